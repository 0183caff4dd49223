/* Multi-head latent attention of one layer, absorbed: queries move into the latent space (or, where
 * model->prefill_form says so, long chunks move keys and values out of it); the cache holds one
 * latent and one rotated key a token for all heads (DeepSeek-V2, arXiv 2405.04434). */
#ifndef ESPALIER_ATTENTION_H
#define ESPALIER_ATTENTION_H

#include "model.h"

/* Takes scratch->h [T, D], stores the rows' latents in kv, the layer's cache, and returns what this
 * rank's heads add, [T, D], in scratch. */
float *attention_forward(const struct model *model, const struct layer_weights *layer, void *kv,
                         const struct model_input *input);

/* The middle of it alone: scratch->o_latent from the queries in scratch->q_latent and, rotated,
 * scratch->q, over what kv holds for these sequences. */
void attention_attend(const struct model *model, const void *kv,
                      const struct model_sequences *sequences);

#endif
