/* Small drafters of the embedded model with random weights, of every kind that a config may say. */
#ifndef ESPALIER_RANDOM_DRAFTER_H
#define ESPALIER_RANDOM_DRAFTER_H

#include "naive_drafter.h"

#define RANDOM_DRAFTER_HIDDEN 256u /* the embedded model's */

struct random_drafter {
    const char *name;
    const char *dtype;
    uint32_t layers, heads, kv_heads, head_dim, width, block;
    uint32_t tap[NAIVE_DRAFTER_TAPS_MAX], tap_count;
    uint32_t window[NAIVE_DRAFTER_LAYERS_MAX];
    bool causal[NAIVE_DRAFTER_LAYERS_MAX];
    double amplitude, yarn_factor, yarn_context;
    const char *more;   /* of the config */
    const char *dflash; /* of dflash_config */
};

struct tensor_store *random_drafter_store(const struct random_drafter *kind);

/* config.json and the checkpoint in a new folder. */
void random_drafter_write(const struct random_drafter *kind, const struct tensor_store *store,
                          char folder_out[64]);

#endif
