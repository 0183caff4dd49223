/* The forward pass once more, as plainly as it can be written: doubles, one token after the other,
 * keys and values expanded for each head, every matrix in its stored orientation. It reads the
 * tensors of a test's store by name and shares no code with the runtime. */
#ifndef ESPALIER_NAIVE_MODEL_H
#define ESPALIER_NAIVE_MODEL_H

#include "model_fixture.h"
#include "model_spec.h"

/* logits [count, vocab] after each of the tokens. No YaRN, no expert groups. */
void naive_model_logits(const struct model_kind *kind, struct tensor_store *store,
                        const struct model_spec *spec, const uint32_t *token, uint32_t count,
                        double *logits);

#endif
