/* The MLP of one layer: plain, or routed experts beside a shared one (DeepSeek-V3, arXiv
 * 2412.19437, section 2.1.2). Both take scratch->h [T, D] and return what this rank's share of the
 * width adds, [T, D], in scratch. */
#ifndef ESPALIER_MOE_H
#define ESPALIER_MOE_H

#include "model.h"

float *moe_dense_forward(const struct model *model, const struct layer_weights *layer,
                         uint32_t rows);
float *moe_routed_forward(const struct model *model, const struct layer_weights *layer,
                          const struct model_input *input);

#endif
