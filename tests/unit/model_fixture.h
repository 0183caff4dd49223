/* Small models of every accepted shape, for the tests of the loader: a config and a checkpoint with
 * random weights. Sizes are chosen so that panels of 32 outputs are cut in the middle: by the end
 * of a weight, by the border of gate and up, and by ranks. */
#ifndef ESPALIER_MODEL_FIXTURE_H
#define ESPALIER_MODEL_FIXTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor_store.h"

struct model_kind {
    const char *name;
    const char *prefix; /* of tensor names: "", "language_model." */
    bool drop_model;    /* language_model.layers without the inner model. */
    bool nested;        /* config has a text_config */
    bool v2;            /* DeepSeek-V2: q_proj, softmax, no bias */
    const char *dense;  /* dtype of dense weights: BF16, F16 or F32 */
    const char *embed;  /* of the embedding; NULL: BF16 */
    const char *norms;  /* dtype of norms */
    const char *bias;   /* dtype of the router's bias */
    bool int4;          /* routed experts */
    bool int4_dense;    /* and all other projections but kv_b */
    bool fp8;           /* all projections but the router and the head */
    uint32_t shared;    /* shared experts */
    uint32_t dense_layers;
    bool junk; /* vision, extra layers, rotary_emb, garbage weight_shape */
    uint32_t files;
};

extern const struct model_kind model_kinds[];
extern const uint32_t model_kind_count;

/* The config as JSON text; freed by the caller. */
char *model_fixture_config(const struct model_kind *kind);

/* All tensors a model of this kind has. */
struct tensor_store *model_fixture_store(const struct model_kind *kind);

/* config.json and the checkpoint in a new folder. */
void model_fixture_write(const struct model_kind *kind, const struct tensor_store *store,
                         char folder_out[64]);

#endif
