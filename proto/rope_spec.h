/* How a config rotates its heads: theta, and YaRN (Peng et al., arXiv 2309.00071) where it
 * stretches the context. The same fields in models and in drafters; each takes its own amplitude
 * from them.
 *
 * `rope_scaling` or `rope_parameters`; `type` or `rope_type`; rope_theta beside or inside. */
#ifndef ESPALIER_ROPE_SPEC_H
#define ESPALIER_ROPE_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct config_json;
struct json_object;

struct rope_spec {
    double theta;
    bool yarn; /* below: only with yarn */
    double factor;
    double original_context; /* original_max_position_embeddings */
    double beta_fast, beta_slow;
    double mscale, mscale_all_dim;
    double attention_factor; /* of cosine and sine; 0 where not stated */
};

/* From `object`, the config or its part for the text model. mscale_fallback: where it is absent.
 * INVALID_ARGUMENT or UNIMPLEMENTED, with the field. */
enum status rope_spec_read(const struct config_json *config, struct json_object *object,
                           double mscale_fallback, struct rope_spec *rope_out) MUST_USE;

/* YaRN's mscale of a weight: 0.1 weight ln(factor) + 1; 1 where nothing is stretched. */
double rope_spec_scaling(const struct rope_spec *rope, double weight);

/* dim / 2 inverse frequencies, for heads that are rotated over dim dimensions. */
void rope_spec_inv_freq(const struct rope_spec *rope, uint32_t dim, double *inv_freq_out);

#endif
