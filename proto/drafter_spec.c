#include "drafter_spec.h"

#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "config_json.h"

#define LANES        16u /* vectors are summed in sixteen lanes (kernels) */
#define HEADS_MAX    1024u
#define HEAD_DIM_MAX 1024u
#define WIDTH_MAX    (1u << 20)

struct source {
    struct config_json config;
    struct json_object *dflash; /* dflash_config */
    const struct model_spec *target;
};

static enum status check_supported(struct source *source);
static enum status read_counts(const struct source *source, struct drafter_spec *spec);
static enum status read_block(const struct source *source, struct drafter_spec *spec);
static enum status read_taps(const struct source *source, struct drafter_spec *spec);
static enum status read_layers(const struct source *source, struct drafter_spec *spec);
static enum status read_rope(const struct source *source, struct drafter_spec *spec);
static enum status check_dimensions(const struct source *source, const struct drafter_spec *spec);

enum status drafter_spec_load(const char *directory, const struct model_spec *target,
                              struct drafter_spec *spec_out, struct error *err) {
    char *path = NULL;
    CHECK(asprintf(&path, "%s/config.json", directory) >= 0);
    struct drafter_spec spec = {.rope_amplitude = 1};
    struct source source = {.target = target};
    double eps = 0;
    enum status status = config_json_open(path, err, &source.config);
    if (status == STATUS_OK) status = check_supported(&source);
    if (status == STATUS_OK) status = read_counts(&source, &spec);
    if (status == STATUS_OK)
        status = config_json_number(&source.config, source.config.root, "rms_norm_eps", 1e-12, 1,
                                    NAN, &eps);
    spec.norm_eps = (float)eps;
    if (status == STATUS_OK) status = read_block(&source, &spec);
    if (status == STATUS_OK) status = read_taps(&source, &spec);
    if (status == STATUS_OK) status = read_layers(&source, &spec);
    if (status == STATUS_OK) status = read_rope(&source, &spec);
    if (status == STATUS_OK) status = check_dimensions(&source, &spec);
    config_json_close(&source.config);
    free(path);
    if (status == STATUS_OK) *spec_out = spec;
    return status;
}

/* Fields of which one value is implemented; absent means that value. */
static enum status check_supported(struct source *source) {
    const struct config_json *config = &source->config;
    struct json_object *root = config->root;
    enum status status = config_json_expect(config, "architectures",
                                            config_json_member(root, "architectures"),
                                            "[\"DFlashDraftModel\"]");
    if (status != STATUS_OK) return status;
    source->dflash = config_json_member(root, "dflash_config");
    if (!json_object_is_type(source->dflash, json_type_object))
        return config_json_refuse(config, STATUS_INVALID_ARGUMENT, "dflash_config", source->dflash,
                                  "an object");
    const struct {
        struct json_object *object;
        const char *name;
        const char *accepted; /* as JSON */
    } fixed[] = {
        {root, "hidden_act", "\"silu\""},
        {root, "attention_bias", "false"},
        {root, "mlp_bias", "false"},
        {source->dflash, "attention_sink_bias", "false"},
    };
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed && status == STATUS_OK; i++) {
        struct json_object *value = config_json_member(fixed[i].object, fixed[i].name);
        if (value) status = config_json_expect(config, fixed[i].name, value, fixed[i].accepted);
    }
    return status;
}

static enum status read_counts(const struct source *source, struct drafter_spec *spec) {
    const struct config_json *config = &source->config;
    const struct model_spec *target = source->target;
    uint32_t vocab = target->vocab, target_layers = target->layers;
    const struct {
        const char *name;
        uint32_t *into;
        uint32_t min, max, multiple;
        bool optional;
    } counts[] = {
        {"hidden_size", &spec->hidden, target->hidden, target->hidden, 1, false},
        {"num_hidden_layers", &spec->layers, 1, DRAFTER_LAYERS_MAX, 1, false},
        {"num_attention_heads", &spec->heads, 1, HEADS_MAX, 1, false},
        {"num_key_value_heads", &spec->kv_heads, 1, HEADS_MAX, 1, false},
        {"head_dim", &spec->head_dim, LANES, HEAD_DIM_MAX, LANES, false},
        {"intermediate_size", &spec->width, 1, WIDTH_MAX, SUM_SEGMENTS, false},
        /* What it says of its target must be so. */
        {"vocab_size", &vocab, vocab, vocab, 1, true},
        {"num_target_layers", &target_layers, target_layers, target_layers, 1, true},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct json_object *value = config_json_member(config->root, counts[i].name);
        if (!value && counts[i].optional) continue;
        enum status status = config_json_count(config, counts[i].name, value, counts[i].min,
                                               counts[i].max, counts[i].multiple, counts[i].into);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

static enum status read_block(const struct source *source, struct drafter_spec *spec) {
    const struct config_json *config = &source->config;
    struct json_object *block = config_json_member(config->root, "block_size");
    if (!block) block = config_json_member(source->dflash, "block_size");
    enum status status = config_json_count(config, "block_size", block, 2, DRAFT_LEN_MAX + 1, 1,
                                           &spec->block);
    if (status != STATUS_OK) return status;
    return config_json_count(config, "dflash_config.mask_token_id",
                             config_json_member(source->dflash, "mask_token_id"), 0,
                             source->target->vocab - 1, 1, &spec->mask_token);
}

static enum status read_taps(const struct source *source, struct drafter_spec *spec) {
    static const char field[] = "dflash_config.target_layer_ids";
    struct json_object *list = config_json_member(source->dflash, "target_layer_ids");
    size_t count = json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    if (count < 1 || count > DRAFTER_TAPS_MAX)
        return config_json_refuse(&source->config, STATUS_INVALID_ARGUMENT, field, list,
                                  "an array of 1 to 16 layers");
    for (size_t i = 0; i < count; i++) {
        enum status status = config_json_count(&source->config, field,
                                               json_object_array_get_idx(list, i), 0,
                                               source->target->layers - 1, 1, &spec->tap[i]);
        if (status != STATUS_OK) return status;
    }
    spec->tap_count = (uint32_t)count;
    return STATUS_OK;
}

static enum status read_layer_types(const struct source *source, struct json_object *types,
                                    struct drafter_spec *spec) {
    const struct config_json *config = &source->config;
    if (!json_object_is_type(types, json_type_array) ||
        json_object_array_length(types) != spec->layers)
        return config_json_refuse(config, STATUS_INVALID_ARGUMENT, "layer_types", types,
                                  "an array of num_hidden_layers");
    for (uint32_t i = 0; i < spec->layers; i++) {
        struct json_object *type = json_object_array_get_idx(types, i);
        if (config_json_is_text(type, "full_attention")) continue;
        if (!config_json_is_text(type, "sliding_attention"))
            return config_json_refuse(config, STATUS_UNIMPLEMENTED, "layer_types", type,
                                      "full_attention or sliding_attention");
        enum status status = config_json_count(config, "sliding_window",
                                               config_json_member(config->root, "sliding_window"),
                                               1, CONTEXT_TOK_MAX, 1, &spec->layer[i].window);
        if (status != STATUS_OK) return status;
        spec->layer[i].causal = true;
    }
    return STATUS_OK;
}

static enum status read_layers(const struct source *source, struct drafter_spec *spec) {
    const struct config_json *config = &source->config;
    struct json_object *types = config_json_member(config->root, "layer_types");
    bool use_swa = false;
    enum status status = config_json_bool(config, source->dflash, "use_swa", false, &use_swa);
    if (status == STATUS_OK && types) status = read_layer_types(source, types, spec);
    if (status == STATUS_OK && !types && use_swa) {
        uint32_t window = 0;
        status = config_json_count(config, "dflash_config.swa_window_size",
                                   config_json_member(source->dflash, "swa_window_size"), 1,
                                   CONTEXT_TOK_MAX, 1, &window);
        for (uint32_t i = 0; i < spec->layers; i++)
            spec->layer[i].window = window;
    }
    if (status != STATUS_OK) return status;
    struct json_object *object = source->dflash;
    const char *name = "causal";
    if (!config_json_member(object, name)) {
        object = config->root;
        name = "is_causal";
    }
    if (!config_json_member(object, name)) return STATUS_OK;
    bool causal = false;
    status = config_json_bool(config, object, name, false, &causal);
    for (uint32_t i = 0; i < spec->layers; i++)
        spec->layer[i].causal = causal;
    return status;
}

/* The amplitude is what the config states; else the ratio of its two mscales; else YaRN's own
 * (transformers, modeling_rope_utils). Engines differ on it, so a config may state it. */
static enum status read_rope(const struct source *source, struct drafter_spec *spec) {
    struct rope_spec *rope = &spec->rope;
    enum status status = rope_spec_read(&source->config, source->config.root, 0, rope);
    if (status != STATUS_OK || !rope->yarn) return status;
    if (rope->attention_factor > 0)
        spec->rope_amplitude = rope->attention_factor;
    else if (rope->mscale > 0 && rope->mscale_all_dim > 0)
        spec->rope_amplitude = rope_spec_scaling(rope, rope->mscale) /
                               rope_spec_scaling(rope, rope->mscale_all_dim);
    else
        spec->rope_amplitude = rope_spec_scaling(rope, 1);
    return STATUS_OK;
}

/* What the block pass and its split into eight segments ask of the sizes. */
static enum status check_dimensions(const struct source *source, const struct drafter_spec *spec) {
    const struct config_json *config = &source->config;
    if (spec->heads % spec->kv_heads != 0)
        return config_json_refuse(config, STATUS_INVALID_ARGUMENT, "num_key_value_heads",
                                  config_json_member(config->root, "num_key_value_heads"),
                                  "a divisor of num_attention_heads");
    if (spec->heads * spec->head_dim % SUM_SEGMENTS != 0 ||
        spec->tap_count * spec->hidden % SUM_SEGMENTS != 0)
        return config_json_refuse(config, STATUS_UNIMPLEMENTED, "head_dim",
                                  config_json_member(config->root, "head_dim"),
                                  "num_attention_heads * head_dim a multiple of 8");
    return STATUS_OK;
}

enum status drafter_spec_check_tp(const struct drafter_spec *spec, uint32_t tp, struct error *err) {
    const struct {
        const char *name;
        uint32_t size;
    } split[] = {
        {"num_attention_heads", spec->heads},
        {"num_key_value_heads", spec->kv_heads},
        {"intermediate_size", spec->width},
    };
    for (size_t i = 0; i < sizeof split / sizeof *split; i++)
        if (split[i].size % tp != 0)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "tp: found %u, which does not divide the drafter's %s of %u", tp,
                             split[i].name, split[i].size);
    return STATUS_OK;
}

void drafter_spec_inv_freq(const struct drafter_spec *spec, double *inv_freq_out) {
    rope_spec_inv_freq(&spec->rope, spec->head_dim, inv_freq_out);
}

uint32_t drafter_spec_kv_dim(const struct drafter_spec *spec) {
    return spec->layers * 2 * spec->kv_heads * spec->head_dim;
}

uint64_t drafter_spec_fingerprint(const struct drafter_spec *spec) {
    const uint64_t fields[] = {
        spec->hidden,
        spec->layers,
        spec->heads,
        spec->kv_heads,
        spec->head_dim,
        spec->width,
        spec->block,
        spec->mask_token,
        spec->tap_count,
        hash_double_bits(spec->norm_eps),
        hash_double_bits(spec->rope.theta),
        spec->rope.yarn,
        hash_double_bits(spec->rope.factor),
        hash_double_bits(spec->rope.original_context),
        hash_double_bits(spec->rope.beta_fast),
        hash_double_bits(spec->rope.beta_slow),
        hash_double_bits(spec->rope_amplitude),
    };
    uint64_t hash = HASH_CHAIN_EMPTY;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        hash = hash_chain(hash, fields[i]);
    for (uint32_t i = 0; i < spec->tap_count; i++)
        hash = hash_chain(hash, spec->tap[i]);
    for (uint32_t i = 0; i < spec->layers; i++)
        hash = hash_chain(hash, (uint64_t)spec->layer[i].window << 1 | spec->layer[i].causal);
    return hash;
}
