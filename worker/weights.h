/* This rank's weights: checkpoint names become fields once, here; nothing looks a name up later.
 *
 * Shapes come from the config and are checked strictly; `weight_shape` tensors are never read.
 * A weight is INT4 where the checkpoint has `X.weight_packed` and `X.weight_scale`, FP8 where
 * `X.weight` is F8_E4M3 and has `X.weight_scale_inv`, else BF16 or F32 as stored, and stays so in
 * memory, repacked into panels (kernels/linear). F16 weights, norms and the router's bias become
 * f32, which is exact; so does kv_b in FP8, each weight rounded as a product would round it: the
 * blocks of its scales need not end where heads do. Tensors under `vision_tower.` and
 * `mm_projector.`, layers past the last and `rotary_emb` are skipped; any other unknown tensor is
 * refused.
 *
 * Loading reads only this rank's slices, with several threads, and reports progress.
 */
#ifndef ESPALIER_WEIGHTS_H
#define ESPALIER_WEIGHTS_H

#include <stdatomic.h>

#include "linear/linear.h"
#include "model_spec.h"
#include "moe_experts/moe_experts.h"
#include "safetensors.h"

struct device;

struct layer_weights {
    const float *input_norm, *post_norm; /* [D] */
    /* q_rank > 0: x -> q_a -> q_a_norm -> q_b.  q_rank == 0: x -> q_b, and q_a is empty. */
    struct linear_weight q_a;                /* [q_rank, D] */
    const float *q_a_norm;                   /* [q_rank] */
    struct linear_weight q_b;                /* [H (N + P), q_rank or D] */
    struct linear_weight kv_a;               /* [R + P, D] */
    const float *kv_a_norm;                  /* [R] */
    struct linear_weight w_uk;               /* batch H of [R, N]: latent from q_nope (kv_b^T) */
    struct linear_weight w_uv;               /* batch H of [V, R]: value from latent */
    struct linear_weight o;                  /* [D, H V] */
    bool dense;                              /* a plain MLP; below the router onwards is empty */
    struct linear_weight mlp_gate_up;        /* dense or shared: [2 F, D], gate rows then up rows */
    struct linear_weight mlp_down;           /* [D, F]; n == 0 where there is no shared expert */
    struct linear_weight router;             /* [E, D] */
    const float *router_bias;                /* [E], NULL if the checkpoint's kind has none */
    const struct moe_expert *experts;        /* [E] */
    const struct moe_expert *experts_of_ops; /* where ops find them: the same, or on the device */
};

struct weights {
    struct model_spec spec;
    uint32_t rank, tp;
    uint32_t heads;                    /* H / tp */
    uint32_t mlp_width;                /* of a dense layer, this rank */
    uint32_t shared_width;             /* of the shared expert, this rank */
    uint32_t expert_width;             /* this rank */
    uint32_t vocab_begin, vocab_count; /* this rank's rows of embed and head */
    const void *embed;                 /* [vocab_count, D] */
    enum kernel_dtype embed_dtype;
    const float *final_norm;     /* [D] */
    struct linear_weight head;   /* [vocab_count, D] */
    struct layer_weights *layer; /* [spec.layers] */
    uint64_t bytes;              /* resident, all of the above */
};

struct weights_progress {
    _Atomic uint64_t bytes; /* read so far; any thread may look */
    _Atomic uint64_t bytes_total;
    _Atomic int cancel; /* set to stop loading: CANCELLED */
};

/* Into the device's memory, or with NULL the host's. threads: of reading and packing. progress must
 * outlive the call. err names the tensor and file, what was found and what is accepted. */
enum status weights_load(struct device *device, const struct model_spec *spec,
                         const struct safetensors *checkpoint, uint32_t rank, uint32_t tp,
                         uint32_t threads, struct weights_progress *progress,
                         struct weights **weights_out, struct error *err) MUST_USE;
void weights_destroy(struct weights **weights);

#endif
