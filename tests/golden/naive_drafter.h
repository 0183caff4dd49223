/* A DFlash drafter in doubles, written from the paper's and the published code's mathematics, row
 * by row and without caches: what the drafters of small random checkpoints must agree with. */
#ifndef ESPALIER_NAIVE_DRAFTER_H
#define ESPALIER_NAIVE_DRAFTER_H

#include <stdbool.h>

#include "tensor_store.h"

#define NAIVE_DRAFTER_LAYERS_MAX 4u
#define NAIVE_DRAFTER_TAPS_MAX   4u

struct naive_drafter {
    const struct tensor_store *store;  /* the drafter's */
    const struct tensor_store *target; /* whose embedding and head it uses */
    uint32_t hidden, layers, heads, kv_heads, head_dim, width, block, mask_token, vocab;
    uint32_t tap[NAIVE_DRAFTER_TAPS_MAX], tap_count;
    uint32_t window[NAIVE_DRAFTER_LAYERS_MAX]; /* 0: none */
    bool causal[NAIVE_DRAFTER_LAYERS_MAX];
    double eps, theta, amplitude;
    double yarn_factor, yarn_context; /* 0: no YaRN; beta 32 and 1 */
};

/* The logits of the guesses behind `root` at position s, [block - 1, vocab]. residual: the target's
 * [target layers, s, D] for the tokens before. */
void naive_drafter_logits(const struct naive_drafter *drafter, const float *residual, uint32_t s,
                          uint32_t root, double *logits_out);

#endif
