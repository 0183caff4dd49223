/* The routed experts of a layer, by segments of the down projection's inner dimension:
 *
 *     a_e[t,:] = silu(gate_e x[t,:]) * up_e x[t,:]                          width F on this rank
 *     y[s,t,:] = sum over the row's experts e, ascending, of  w[t,e] * dot_s(a_e[t,:], down_e)
 *
 * as y = fma(w, dot, y) from zero. Products in the order of linear.h, activation as swiglu.h. The
 * segments are left apart: the shared expert's linear takes them as `add` and sums the tree. An
 * expert's weights are read once a step however many rows it serves. With activation BF16 or INT8,
 * x and a_e are rounded where a product takes them.
 *
 * Shape chain: x [T,D] -> gate_up_e [T_e, 2F] -> a_e [T_e, F] -> y [S, T, D].
 * The fast variants agree to the bit among themselves; against the reference as linear.h. The CUDA
 * variant rounds x and a_e to bf16 and sums in an order of its own (moe_experts_cuda.h). */
#ifndef ESPALIER_MOE_EXPERTS_H
#define ESPALIER_MOE_EXPERTS_H

#include "linear/linear.h"

struct moe_expert {
    struct linear_weight gate_up; /* [2 F, D]: gate rows, then up rows */
    struct linear_weight down;    /* [D, F] */
};

struct moe_experts_args {
    const float *x;                   /* [T, D] dense */
    const uint32_t *expert;           /* [T, K] ascending in a row; E: none, on devices */
    const float *weight;              /* [T, K] */
    const struct moe_expert *experts; /* [E] */
    float *y;                         /* [segments, T, D] dense */
    uint32_t rows;                    /* T */
    uint32_t topk;                    /* K */
    uint32_t expert_count;            /* E */
    uint32_t dim;                     /* D */
    uint32_t width;                   /* F */
    uint32_t segments;                /* of F on this rank */
    enum kernel_dtype activation;     /* one that all experts' formats take */
    /* Of every expert: what a launch on a device is chosen by, since `experts` then lies in device
     * memory (moe_experts_cuda.h). Not read by the reference and the CPU's variant. */
    enum linear_format gate_up_format, down_format;
};

/* Workspace for steps of at most `rows` rows, whatever the activation. */
size_t moe_experts_scratch_bytes(uint32_t rows, uint32_t topk, uint32_t expert_count, uint32_t dim,
                                 uint32_t width);

void moe_experts_ref(const struct moe_experts_args *args, struct kernel_ctx *ctx);
void moe_experts_cpu(const struct moe_experts_args *args, struct kernel_ctx *ctx);

#endif
