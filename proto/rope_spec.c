#include "rope_spec.h"

#include <json-c/json.h>
#include <math.h>
#include <stddef.h>

#include "base/limits.h"
#include "config_json.h"

static enum status read_yarn(const struct config_json *config, struct json_object *scaling,
                             double mscale_fallback, struct rope_spec *rope) {
    const struct {
        const char *name;
        double min, max, fallback;
        double *into;
    } numbers[] = {
        {"factor", 1, 65536, NAN, &rope->factor},
        {"original_max_position_embeddings", 1, CONTEXT_TOK_MAX, NAN, &rope->original_context},
        {"beta_fast", 1e-3, 1e6, 32, &rope->beta_fast},
        {"beta_slow", 1e-3, 1e6, 1, &rope->beta_slow},
        {"mscale", 0, 100, mscale_fallback, &rope->mscale},
        {"mscale_all_dim", 0, 100, 0, &rope->mscale_all_dim},
        {"attention_factor", 0, 100, 0, &rope->attention_factor},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        enum status status = config_json_number(config, scaling, numbers[i].name, numbers[i].min,
                                                numbers[i].max, numbers[i].fallback,
                                                numbers[i].into);
        if (status != STATUS_OK) return status;
    }
    struct json_object *truncate = config_json_member(scaling, "truncate");
    rope->yarn = true;
    return truncate ? config_json_expect(config, "truncate", truncate, "true") : STATUS_OK;
}

enum status rope_spec_read(const struct config_json *config, struct json_object *object,
                           double mscale_fallback, struct rope_spec *rope_out) {
    struct json_object *scaling = config_json_member(object, "rope_scaling");
    if (!scaling) scaling = config_json_member(object, "rope_parameters");
    if (scaling && !json_object_is_type(scaling, json_type_object))
        return config_json_refuse(config, STATUS_INVALID_ARGUMENT, "rope_scaling", scaling,
                                  "an object");
    bool theta_inside = scaling && config_json_member(scaling, "rope_theta");
    enum status status = config_json_number(config, theta_inside ? scaling : object, "rope_theta",
                                            2, 1e12, 10000, &rope_out->theta);
    if (status != STATUS_OK || !scaling) return status;
    struct json_object *type = config_json_member(scaling, "type");
    if (!type) type = config_json_member(scaling, "rope_type");
    if (config_json_is_text(type, "default")) return STATUS_OK;
    if (!config_json_is_text(type, "yarn") && !config_json_is_text(type, "deepseek_yarn"))
        return config_json_refuse(config, STATUS_UNIMPLEMENTED, "rope_scaling.type", type,
                                  "yarn, deepseek_yarn or default");
    return read_yarn(config, scaling, mscale_fallback, rope_out);
}

double rope_spec_scaling(const struct rope_spec *rope, double weight) {
    return rope->factor > 1 ? 0.1 * weight * log(rope->factor) + 1 : 1;
}

/* The pair of dimensions that turns `rotations` times over the original context. */
static double yarn_pair(const struct rope_spec *rope, uint32_t dim, double rotations) {
    double turns = rope->original_context / (2 * M_PI * rotations);
    return dim * log(turns) / (2 * log(rope->theta));
}

void rope_spec_inv_freq(const struct rope_spec *rope, uint32_t dim, double *inv_freq_out) {
    double low = 0;
    double high = 0;
    if (rope->yarn) {
        low = fmax(floor(yarn_pair(rope, dim, rope->beta_fast)), 0);
        high = fmin(ceil(yarn_pair(rope, dim, rope->beta_slow)), dim - 1);
        if (low == high) high += 0.001;
    }
    for (uint32_t i = 0; i < dim / 2; i++) {
        double plain = pow(rope->theta, -2.0 * i / dim);
        double ramp = rope->yarn ? fmin(fmax((i - low) / (high - low), 0), 1) : 0;
        inv_freq_out[i] = rope->yarn ? plain * ((1 - ramp) + ramp / rope->factor) : plain;
    }
}
