/* How moe_experts is laid out on a GPU: a pure function of shapes and of the device.
 *
 *     prepare     pairs (row, choice) sorted by expert into units of at most 32 rows; x as bf16
 *     gate, up    a block: a unit x 32 columns of F; its warps split the inner dimension
 *     down        a warp: a unit x some tiles of 64 columns of D, the whole inner dimension
 *     combine     y from the pairs' outputs, experts ascending
 *
 * Weights are streamed as linear_pack laid them out; a unit reads its expert's once, so an
 * expert's are read from memory once a step, and for its rows beyond 32 again from the L2 cache,
 * since an expert's units run side by side. All arrays of
 * the arguments, `experts` too, lie in device memory, so formats are taken from gate_up_format and
 * down_format. A choice whose expert is not below expert_count is none: rows that fill up a launch
 * which was captured for more. x and the activations are rounded to bf16, whatever `activation`
 * says: tolerance against the reference 1e-2 of max|y|, where it rounds too 2e-3. A row's result
 * does not depend on the others, to the bit. Design and figures: docs/kernels/moe_experts.md. */
#ifndef ESPALIER_MOE_EXPERTS_CUDA_H
#define ESPALIER_MOE_EXPERTS_CUDA_H

#include "moe_experts/moe_experts.h"

#define MOE_CUDA_UNIT_ROWS 32u

struct moe_cuda_plan {
    uint32_t units_max;    /* that a step may have */
    uint32_t gate_up_ring; /* bytes in shared memory that a warp streams through */
    uint32_t down_ring;
    uint32_t down_tiles_a_warp; /* of 64 columns */
    uint32_t down_blocks;       /* a unit */
    size_t scratch_bytes;       /* device memory */
};

/* INT4, BF16 or FP8, whose blocks then begin at a multiple of 32 inputs; dim a multiple of 4, width
 * of 32; at most 1024 experts; not INT8 activations. */
bool moe_experts_cuda_takes(const struct moe_experts_args *args);

struct moe_cuda_plan moe_experts_cuda_plan(const struct moe_experts_args *args,
                                           const struct kernel_device *device);

/* ctx->device and ctx->stream as kernel.h says; ctx->scratch is device memory. */
void moe_experts_cuda(const struct moe_experts_args *args, struct kernel_ctx *ctx);

#endif
