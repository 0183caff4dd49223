/* What the config.json of a block-diffusion drafter says (DFlash, arXiv 2602.06036), parsed and
 * validated once, against the model that it drafts for.
 *
 * A drafter is a small stack of layers without embedding or head: those are the target's. It reads
 * the target's residual stream behind a few layers (the taps), keeps keys and values of its own for
 * every token so seen, and guesses a block of tokens in one pass: the last token drawn, then masks.
 *
 *   layer_types[i]                              window              causal inside the block
 *   full_attention, or no layer_types           none                no
 *   sliding_attention                           sliding_window      yes
 *   no layer_types, dflash_config.use_swa       swa_window_size     no
 *   dflash_config.causal, or is_causal          -                   as it says, every layer
 */
#ifndef ESPALIER_DRAFTER_SPEC_H
#define ESPALIER_DRAFTER_SPEC_H

#include "model_spec.h"

#define DRAFTER_LAYERS_MAX 32u
#define DRAFTER_TAPS_MAX   16u

struct drafter_layer {
    uint32_t window; /* tokens a row sees, its own included; 0: all */
    bool causal;     /* within the block; the context is always before it */
};

struct drafter_spec {
    uint32_t hidden; /* D, the target's */
    uint32_t layers;
    uint32_t heads;    /* H */
    uint32_t kv_heads; /* G */
    uint32_t head_dim; /* C */
    uint32_t width;    /* F, of the MLP */
    uint32_t block;    /* rows of a pass: the last token drawn, and block - 1 guesses */
    uint32_t mask_token;
    uint32_t tap[DRAFTER_TAPS_MAX]; /* layers of the target, counted from 0 */
    uint32_t tap_count;
    float norm_eps;
    struct rope_spec rope;
    double rope_amplitude; /* of cosine and sine; 1 but for some YaRN configs */
    struct drafter_layer layer[DRAFTER_LAYERS_MAX];
};

/* Read `directory`/config.json. err: file, field, what was found, what is accepted. NOT_FOUND,
 * INVALID_ARGUMENT, also where it does not fit the target, or UNIMPLEMENTED. */
enum status drafter_spec_load(const char *directory, const struct model_spec *target,
                              struct drafter_spec *spec_out, struct error *err) MUST_USE;

/* Can it be split over tp ranks as its target is? INVALID_ARGUMENT names the dimension. */
enum status drafter_spec_check_tp(const struct drafter_spec *spec, uint32_t tp,
                                  struct error *err) MUST_USE;

/* head_dim / 2 inverse frequencies with YaRN applied. */
void drafter_spec_inv_freq(const struct drafter_spec *spec, double *inv_freq_out);

/* Numbers that the context of one token takes, in all layers and on all ranks together: what its
 * cache costs. */
uint32_t drafter_spec_kv_dim(const struct drafter_spec *spec);

/* Equal for equal specs. */
uint64_t drafter_spec_fingerprint(const struct drafter_spec *spec);

#endif
