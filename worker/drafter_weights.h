/* This rank's weights of a drafter, loaded as the target's are (weights.h): names become fields
 * once, shapes are checked strictly, and only this rank's slices are read.
 *
 * Let n = TP size. Embedding and head are the target's.
 *
 *   tensor                                     split        a rank holds
 *   ------------------------------------------ ------------ -----------------------------------
 *   fc [D, taps D]                             columns      taps D / n inputs
 *   q_proj, k_proj, v_proj                     rows         its heads' C rows each
 *   o_proj, down_proj                          columns      its heads' C columns; F / n
 *   gate_proj, up_proj                         rows         F / n
 *   norms                                      -            all
 *
 * Weights are BF16, F16 or F32.
 */
#ifndef ESPALIER_DRAFTER_WEIGHTS_H
#define ESPALIER_DRAFTER_WEIGHTS_H

#include "drafter_spec.h"
#include "weights.h"

struct drafter_layer_weights {
    const float *input_norm, *post_norm; /* [D] */
    const float *q_norm, *k_norm;        /* [C] */
    struct linear_weight q;              /* [H C, D] */
    struct linear_weight k, v;           /* [G C, D] */
    struct linear_weight o;              /* [D, H C] */
    struct linear_weight gate_up;        /* [2 F, D] */
    struct linear_weight down;           /* [D, F] */
};

struct drafter_weights {
    struct drafter_spec spec;
    uint32_t rank, tp;
    uint32_t heads, kv_heads, width;     /* H, G and F of this rank */
    struct linear_weight fc;             /* [D, taps D / n] */
    const float *hidden_norm;            /* [D] of the context */
    const float *norm;                   /* [D] before the head */
    struct drafter_layer_weights *layer; /* [spec.layers] */
    uint64_t bytes;                      /* resident, all of the above */
};

/* As weights_load. The spec passed drafter_spec_check_tp. */
enum status drafter_weights_load(struct device *device, const struct drafter_spec *spec,
                                 const struct safetensors *checkpoint, uint32_t rank, uint32_t tp,
                                 uint32_t threads, struct weights_progress *progress,
                                 struct drafter_weights **weights_out, struct error *err) MUST_USE;
void drafter_weights_destroy(struct drafter_weights **weights);

#endif
