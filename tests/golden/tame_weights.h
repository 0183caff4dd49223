/* Weights as a trained model has them, so that sums neither vanish nor explode: norms near 1,
 * matrices of about 1 / sqrt(columns). INT4 and FP8 values stay as they are and their scales
 * follow. The same in every run. */
#ifndef ESPALIER_TAME_WEIGHTS_H
#define ESPALIER_TAME_WEIGHTS_H

#include "tensor_store.h"

void tame_weights(struct tensor_store *store);

#endif
