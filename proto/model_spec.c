/* Three steps: find the object that describes the text model, read fields by table, then check the
 * fields against each other. Whatever the forward pass does not implement is refused here, by
 * field, so that no weights are read for nothing and no wrong model answers fluently. */
#include "model_spec.h"

#include <json-c/json.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "config_json.h"

#define HIDDEN_MAX   (1u << 16)
#define HEADS_MAX    1024u
#define RANK_MAX     (1u << 14)
#define HEAD_DIM_MAX 1024u
#define WIDTH_MAX    (1u << 20)
#define SHARED_MAX   64u
#define LANES        16u /* vectors are summed in sixteen lanes (kernels/rms_norm, mla_tree) */
#define INT4_INPUTS  32u /* that share a scale */

#define INNER_NORM_EPS 1e-6f /* the reference makes these norms without an eps argument */

/* config.json, and the object in it that describes the text model. */
struct source {
    struct config_json config;
    struct json_object *text; /* the root, or its text_config */
    bool v2;                  /* DeepSeek-V2, whose router differs from V3's and Kimi's */
};

static enum status select_text(struct source *source, struct model_spec *spec);
static enum status check_supported(const struct source *source);
static enum status read_counts(const struct source *source, struct model_spec *spec);
static enum status read_numbers(const struct source *source, struct model_spec *spec);
static enum status read_router(const struct source *source, struct model_spec *spec);
static enum status read_rope(const struct source *source, struct model_spec *spec);
static enum status read_quantization(const struct source *source, struct model_spec *spec);
static enum status read_fp8(const struct config_json *config, struct json_object *object,
                            struct model_spec *spec);
static enum status read_int4(const struct config_json *config, struct json_object *object,
                             struct model_spec *spec);
static enum status read_stop_tokens(const struct config_json *config, struct json_object *object,
                                    struct model_spec *spec);
static enum status read_generation_config(const char *directory, struct model_spec *spec,
                                          struct error *err);
static enum status check_dimensions(const struct source *source, const struct model_spec *spec);
static enum status check_selection(const struct source *source, const struct model_spec *spec);

enum status model_spec_load(const char *directory, struct model_spec *spec_out, struct error *err) {
    char *path = NULL;
    CHECK(asprintf(&path, "%s/config.json", directory) >= 0);
    struct model_spec spec = {.inner_norm_eps = INNER_NORM_EPS};
    struct source source = {.text = NULL};
    enum status status = config_json_open(path, err, &source.config);
    if (status == STATUS_OK) status = select_text(&source, &spec);
    if (status == STATUS_OK) status = check_supported(&source);
    if (status == STATUS_OK) status = read_counts(&source, &spec);
    if (status == STATUS_OK) status = read_numbers(&source, &spec);
    if (status == STATUS_OK) status = read_router(&source, &spec);
    if (status == STATUS_OK) status = read_rope(&source, &spec);
    if (status == STATUS_OK) status = read_quantization(&source, &spec);
    if (status == STATUS_OK) status = check_dimensions(&source, &spec);
    if (status == STATUS_OK) status = check_selection(&source, &spec);
    if (status == STATUS_OK) status = read_stop_tokens(&source.config, source.text, &spec);
    if (status == STATUS_OK) status = read_stop_tokens(&source.config, source.config.root, &spec);
    if (status == STATUS_OK) status = read_generation_config(directory, &spec, err);
    config_json_close(&source.config);
    free(path);
    if (status == STATUS_OK) *spec_out = spec;
    return status;
}

static bool is_one_of(struct json_object *value, const char *const *wanted) {
    for (; *wanted; wanted++)
        if (config_json_is_text(value, *wanted)) return true;
    return false;
}

static enum status select_text(struct source *source, struct model_spec *spec) {
    static const char *const flat[] = {"kimi_k2", "deepseek_v3", "deepseek_v2", NULL};
    const struct config_json *config = &source->config;
    struct json_object *type = config_json_member(config->root, "model_type");
    struct json_object *text = config_json_member(config->root, "text_config");
    if (text && !json_object_is_type(text, json_type_object))
        return config_json_refuse(config, STATUS_INVALID_ARGUMENT, "text_config", text,
                                  "an object");
    bool nested = config_json_is_text(type, "kimi_k25");
    if (!nested && !is_one_of(type, flat))
        return config_json_refuse(config, STATUS_UNIMPLEMENTED, "model_type", type,
                                  "kimi_k2, kimi_k25, deepseek_v3 or deepseek_v2");
    if (nested && !text)
        return config_json_refuse(config, STATUS_INVALID_ARGUMENT, "text_config", NULL,
                                  "an object, as model_type is kimi_k25");
    struct json_object *inner = text ? config_json_member(text, "model_type") : type;
    if (inner && inner != type && !is_one_of(inner, flat))
        return config_json_refuse(config, STATUS_UNIMPLEMENTED, "text_config.model_type", inner,
                                  "kimi_k2, deepseek_v3 or deepseek_v2");
    source->text = text ? text : config->root;
    source->v2 = config_json_is_text(inner ? inner : type, "deepseek_v2");
    snprintf(spec->model_type, sizeof spec->model_type, "%s", json_object_get_string(type));
    return STATUS_OK;
}

/* Fields of which one value is implemented; absent means that value. */
static enum status check_supported(const struct source *source) {
    const struct {
        const char *name;
        const char *accepted; /* as JSON */
    } fixed[] = {
        {"hidden_act", "\"silu\""},
        {"attention_bias", "false"},
        {"mlp_bias", "false"},
        {"moe_layer_freq", "1"},
        {"tie_word_embeddings", "false"},
        {"rope_interleave", "true"},
        {"scoring_func", source->v2 ? "\"softmax\"" : "\"sigmoid\""},
        {"topk_method", source->v2 ? "\"greedy\"" : "\"noaux_tc\""},
    };
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        struct json_object *value = config_json_member(source->text, fixed[i].name);
        if (!value) continue;
        enum status status = config_json_expect(&source->config, fixed[i].name, value,
                                                fixed[i].accepted);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

#define REQUIRED UINT32_MAX

static enum status read_counts(const struct source *source, struct model_spec *spec) {
#define INTO(field) offsetof(struct model_spec, field)
    static const struct {
        const char *name;
        size_t into;
        uint32_t min, max, multiple;
        uint32_t fallback; /* where absent */
    } counts[] = {
        {"hidden_size", INTO(hidden), LANES, HIDDEN_MAX, LANES, REQUIRED},
        {"num_hidden_layers", INTO(layers), 1, MODEL_LAYERS_MAX, 1, REQUIRED},
        {"first_k_dense_replace", INTO(dense_layers), 0, MODEL_LAYERS_MAX, 1, 0},
        {"num_attention_heads", INTO(heads), 1, HEADS_MAX, 1, REQUIRED},
        {"q_lora_rank", INTO(q_rank), LANES, RANK_MAX, LANES, 0},
        {"kv_lora_rank", INTO(kv_rank), LANES, RANK_MAX, LANES, REQUIRED},
        {"qk_nope_head_dim", INTO(nope_dim), 1, HEAD_DIM_MAX, 1, REQUIRED},
        {"qk_rope_head_dim", INTO(rope_dim), LANES, HEAD_DIM_MAX, LANES, REQUIRED},
        {"v_head_dim", INTO(value_dim), 1, HEAD_DIM_MAX, 1, REQUIRED},
        {"intermediate_size", INTO(dense_width), 1, WIDTH_MAX, SUM_SEGMENTS, REQUIRED},
        {"moe_intermediate_size", INTO(expert_width), 1, WIDTH_MAX, SUM_SEGMENTS, REQUIRED},
        {"n_routed_experts", INTO(experts), 1, MODEL_EXPERTS_MAX, 1, REQUIRED},
        {"num_experts_per_tok", INTO(topk), 1, MODEL_TOPK_MAX, 1, REQUIRED},
        {"n_shared_experts", INTO(shared_experts), 0, SHARED_MAX, 1, 0},
        {"n_group", INTO(groups), 1, MODEL_EXPERTS_MAX, 1, 1},
        {"topk_group", INTO(topk_groups), 1, MODEL_EXPERTS_MAX, 1, 1},
        {"vocab_size", INTO(vocab), 1, MODEL_VOCAB_MAX, 1, REQUIRED},
        {"max_position_embeddings", INTO(context_max), 1, CONTEXT_TOK_MAX, 1, REQUIRED},
    };
#undef INTO
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct json_object *value = config_json_member(source->text, counts[i].name);
        uint32_t *into = (uint32_t *)((char *)spec + counts[i].into);
        if (!value && counts[i].fallback != REQUIRED) {
            *into = counts[i].fallback;
            continue;
        }
        enum status status = config_json_count(&source->config, counts[i].name, value,
                                               counts[i].min, counts[i].max, counts[i].multiple,
                                               into);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

static enum status read_numbers(const struct source *source, struct model_spec *spec) {
    double eps = 0;
    double scale = 0;
    enum status status = config_json_number(&source->config, source->text, "rms_norm_eps", 1e-12, 1,
                                            NAN, &eps);
    if (status == STATUS_OK)
        status = config_json_number(&source->config, source->text, "routed_scaling_factor", 1e-6,
                                    1e6, 1, &scale);
    spec->norm_eps = (float)eps;
    spec->routed_scale = (float)scale;
    return status;
}

static enum status read_router(const struct source *source, struct model_spec *spec) {
    spec->scoring = source->v2 ? MODEL_SCORING_SOFTMAX : MODEL_SCORING_SIGMOID;
    enum status status = config_json_bool(&source->config, source->text, "norm_topk_prob",
                                          !source->v2, &spec->renormalize);
    if (source->v2) {
        /* The reference of V2 looks at no groups in greedy selection, never divides the weight of a
         * single expert, and either divides by the sum or scales, not both. */
        spec->groups = spec->topk_groups = 1;
        spec->renormalize = spec->renormalize && spec->topk > 1;
        if (spec->renormalize) spec->routed_scale = 1;
    }
    return status;
}

static enum status read_rope(const struct source *source, struct model_spec *spec) {
    const struct config_json *config = &source->config;
    struct rope_spec *rope = &spec->rope;
    enum status status = rope_spec_read(config, source->text, 1, rope);
    if (status != STATUS_OK || !rope->yarn) return status;
    struct json_object *scaling = config_json_member(source->text, "rope_scaling");
    if (!scaling) scaling = config_json_member(source->text, "rope_parameters");
    /* What multiplies cosine and sine in the reference; it is 1 in every model accepted. */
    if (rope->attention_factor != 0 && rope->attention_factor != 1)
        return config_json_refuse(config, STATUS_UNIMPLEMENTED, "attention_factor",
                                  config_json_member(scaling, "attention_factor"), "1");
    if (rope->mscale != rope->mscale_all_dim)
        return config_json_refuse(config, STATUS_UNIMPLEMENTED, "mscale_all_dim",
                                  config_json_member(scaling, "mscale_all_dim"),
                                  "the value of mscale (1 if absent)");
    return STATUS_OK;
}

/* One of compressed-tensors' config_groups: INT4 in groups of 32 inputs and nothing else. */
static enum status check_group(const struct config_json *config, struct json_object *group) {
    static const struct {
        const char *name;
        const char *accepted; /* as JSON */
        bool optional;        /* absent means the accepted value */
    } fixed[] = {
        {"num_bits", "4", false},         {"type", "\"int\"", true},   {"symmetric", "true", true},
        {"strategy", "\"group\"", false}, {"group_size", "32", false}, {"dynamic", "false", true},
        {"actorder", "null", true},
    };
    struct json_object *weights = config_json_member(group, "weights");
    if (!json_object_is_type(weights, json_type_object))
        return config_json_refuse(config, STATUS_INVALID_ARGUMENT,
                                  "quantization_config.config_groups weights", weights,
                                  "an object");
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        struct json_object *value = config_json_member(weights, fixed[i].name);
        if (!value && fixed[i].optional) continue;
        char field[64];
        snprintf(field, sizeof field, "quantization_config weights.%s", fixed[i].name);
        enum status status = config_json_expect(config, field, value, fixed[i].accepted);
        if (status != STATUS_OK) return status;
    }
    static const char *const absent[] = {"input_activations", "output_activations"};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        struct json_object *value = config_json_member(group, absent[i]);
        if (value)
            return config_json_refuse(config, STATUS_UNIMPLEMENTED, absent[i], value, "null");
    }
    return STATUS_OK;
}

static enum status read_quantization(const struct source *source, struct model_spec *spec) {
    const struct config_json *config = &source->config;
    struct json_object *object = config_json_member(source->text, "quantization_config");
    if (!object) object = config_json_member(config->root, "quantization_config");
    spec->quantization = MODEL_QUANT_NONE;
    if (!object) return STATUS_OK;
    struct json_object *method = config_json_member(object, "quant_method");
    if (!config_json_is_text(method, "fp8") && !config_json_is_text(method, "compressed-tensors"))
        return config_json_refuse(config, STATUS_UNIMPLEMENTED, "quantization_config.quant_method",
                                  method, "compressed-tensors or fp8");
    return config_json_is_text(method, "fp8") ? read_fp8(config, object, spec)
                                              : read_int4(config, object, spec);
}

/* E4M3 codes with a scale for each block of 128 by 128. `dynamic` says that the reference rounds
 * activations to FP8 as it goes; here they stay f32. */
static enum status read_fp8(const struct config_json *config, struct json_object *object,
                            struct model_spec *spec) {
    static const struct {
        const char *name;
        const char *accepted; /* as JSON */
        bool optional;        /* absent means the accepted value */
    } fixed[] = {
        {"fmt", "\"e4m3\"", true},
        {"weight_block_size", "[128,128]", false},
        {"activation_scheme", "\"dynamic\"", true},
    };
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        struct json_object *value = config_json_member(object, fixed[i].name);
        if (!value && fixed[i].optional) continue;
        char field[64];
        snprintf(field, sizeof field, "quantization_config.%s", fixed[i].name);
        enum status status = config_json_expect(config, field, value, fixed[i].accepted);
        if (status != STATUS_OK) return status;
    }
    spec->quantization = MODEL_QUANT_FP8_BLOCK128;
    return STATUS_OK;
}

static enum status read_int4(const struct config_json *config, struct json_object *object,
                             struct model_spec *spec) {
    struct json_object *format = config_json_member(object, "format");
    struct json_object *cache = config_json_member(object, "kv_cache_scheme");
    struct json_object *groups = config_json_member(object, "config_groups");
    enum status status = config_json_expect(config, "quantization_config.format", format,
                                            "\"pack-quantized\"");
    if (status == STATUS_OK && cache)
        status = config_json_refuse(config, STATUS_UNIMPLEMENTED,
                                    "quantization_config.kv_cache_scheme", cache, "null");
    if (status != STATUS_OK) return status;
    if (!json_object_is_type(groups, json_type_object) || json_object_object_length(groups) == 0)
        return config_json_refuse(config, STATUS_INVALID_ARGUMENT,
                                  "quantization_config.config_groups", groups,
                                  "an object of groups");
    json_object_object_foreach(groups, name, group) {
        (void)name;
        status = check_group(config, group);
        if (status != STATUS_OK) return status;
    }
    spec->quantization = MODEL_QUANT_INT4_GROUP32;
    return STATUS_OK;
}

/* What the forward pass and its split into eight segments ask of the sizes. */
static enum status check_dimensions(const struct source *source, const struct model_spec *spec) {
    const struct config_json *config = &source->config;
    struct json_object *text = source->text;
    struct json_object *kv_heads = config_json_member(text, "num_key_value_heads");
    if (kv_heads && json_object_get_int64(kv_heads) != (int64_t)spec->heads)
        return config_json_refuse(config, STATUS_UNIMPLEMENTED, "num_key_value_heads", kv_heads,
                                  "num_attention_heads: latent attention has one for each");
    if (spec->dense_layers > spec->layers)
        return config_json_refuse(config, STATUS_INVALID_ARGUMENT, "first_k_dense_replace",
                                  config_json_member(text, "first_k_dense_replace"),
                                  "at most num_hidden_layers");
    if (spec->heads * spec->value_dim % SUM_SEGMENTS != 0)
        return config_json_refuse(config, STATUS_UNIMPLEMENTED, "v_head_dim",
                                  config_json_member(text, "v_head_dim"),
                                  "num_attention_heads * v_head_dim a multiple of 8");
    if (spec->quantization != MODEL_QUANT_INT4_GROUP32) return STATUS_OK;
    if (spec->expert_width % INT4_INPUTS != 0)
        return config_json_refuse(config, STATUS_UNIMPLEMENTED, "moe_intermediate_size",
                                  config_json_member(text, "moe_intermediate_size"),
                                  "with INT4 experts a multiple of 32");
    if (spec->hidden % INT4_INPUTS != 0)
        return config_json_refuse(config, STATUS_UNIMPLEMENTED, "hidden_size",
                                  config_json_member(text, "hidden_size"),
                                  "with INT4 experts a multiple of 32");
    return STATUS_OK;
}

/* Can every row find its experts? */
static enum status check_selection(const struct source *source, const struct model_spec *spec) {
    const struct config_json *config = &source->config;
    uint32_t group_experts = spec->experts / spec->groups;
    if (spec->experts % spec->groups != 0 || (spec->groups > 1 && group_experts < 2))
        return config_json_refuse(config, STATUS_INVALID_ARGUMENT, "n_group",
                                  config_json_member(source->text, "n_group"),
                                  "a divisor of n_routed_experts that leaves two or more a group");
    if (spec->topk_groups > spec->groups)
        return config_json_refuse(config, STATUS_INVALID_ARGUMENT, "topk_group",
                                  config_json_member(source->text, "topk_group"),
                                  "at most n_group");
    if (spec->topk > group_experts * spec->topk_groups) {
        char accepted[64];
        snprintf(accepted, sizeof accepted, "at most the %u experts to select from",
                 group_experts * spec->topk_groups);
        return config_json_refuse(config, STATUS_INVALID_ARGUMENT, "num_experts_per_tok",
                                  config_json_member(source->text, "num_experts_per_tok"),
                                  accepted);
    }
    return STATUS_OK;
}

static enum status add_stop_token(const struct config_json *config, struct json_object *value,
                                  struct model_spec *spec) {
    uint32_t token = 0;
    enum status status = config_json_count(config, "eos_token_id", value, 0, spec->vocab - 1, 1,
                                           &token);
    if (status != STATUS_OK) return status;
    for (uint32_t i = 0; i < spec->stop_token_count; i++)
        if (spec->stop_token[i] == token) return STATUS_OK;
    if (spec->stop_token_count == MODEL_STOP_TOKENS_MAX)
        return config_json_refuse(config, STATUS_INVALID_ARGUMENT, "eos_token_id", value,
                                  "at most 8 different tokens in all");
    spec->stop_token[spec->stop_token_count++] = token;
    return STATUS_OK;
}

static enum status read_stop_tokens(const struct config_json *config, struct json_object *object,
                                    struct model_spec *spec) {
    struct json_object *eos = config_json_member(object, "eos_token_id");
    if (!eos) return STATUS_OK;
    if (!json_object_is_type(eos, json_type_array)) return add_stop_token(config, eos, spec);
    for (size_t i = 0; i < json_object_array_length(eos); i++) {
        enum status status = add_stop_token(config, json_object_array_get_idx(eos, i), spec);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

static enum status read_generation_config(const char *directory, struct model_spec *spec,
                                          struct error *err) {
    char *path = NULL;
    CHECK(asprintf(&path, "%s/generation_config.json", directory) >= 0);
    struct config_json config = {.root = NULL};
    enum status status = config_json_open(path, err, &config);
    if (status == STATUS_OK) status = read_stop_tokens(&config, config.root, spec);
    if (status == STATUS_NOT_FOUND) status = STATUS_OK;
    config_json_close(&config);
    free(path);
    return status;
}

enum status model_spec_check_tp(const struct model_spec *spec, uint32_t tp, struct error *err) {
    /* INT4 experts are split between groups of inputs that share a scale. */
    bool int4 = spec->quantization == MODEL_QUANT_INT4_GROUP32;
    const struct {
        const char *name;
        uint32_t size;
        uint32_t unit; /* that stays whole */
    } split[] = {
        {"num_attention_heads", spec->heads, 1},
        {"vocab_size", spec->vocab, 1},
        {"intermediate_size", spec->dense_width, 1},
        {"moe_intermediate_size", spec->expert_width, int4 ? INT4_INPUTS : 1},
    };
    if (tp == 0 || tp > TP_MAX || SUM_SEGMENTS % tp != 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "--tp: found %u, accepted 1, 2, 4 or 8", tp);
    for (size_t i = 0; i < sizeof split / sizeof *split; i++) {
        if (split[i].size % (tp * split[i].unit) == 0) continue;
        char sizes[32] = "1";
        for (uint32_t fits = 2; fits < tp && split[i].size % (fits * split[i].unit) == 0; fits *= 2)
            snprintf(sizes + strlen(sizes), sizeof sizes - strlen(sizes), ", %u", fits);
        return error_set(
            err, STATUS_INVALID_ARGUMENT,
            "--tp: found %u, which does not divide the model's %s of %u%s; accepted %s", tp,
            split[i].name, split[i].size, split[i].unit > 1 ? " into whole groups of 32" : "",
            sizes);
    }
    return STATUS_OK;
}

void model_spec_inv_freq(const struct model_spec *spec, double *inv_freq_out) {
    rope_spec_inv_freq(&spec->rope, spec->rope_dim, inv_freq_out);
}

float model_spec_softmax_scale(const struct model_spec *spec) {
    double scale = 1 / sqrt((double)spec->nope_dim + spec->rope_dim);
    if (spec->rope.yarn) {
        double mscale = rope_spec_scaling(&spec->rope, spec->rope.mscale_all_dim);
        scale *= mscale * mscale;
    }
    return (float)scale;
}

uint64_t model_spec_fingerprint(const struct model_spec *spec) {
    /* Field by field: the bytes between fields are not part of the value. */
    const uint64_t fields[] = {
        spec->hidden,
        spec->layers,
        spec->dense_layers,
        spec->heads,
        spec->q_rank,
        spec->kv_rank,
        spec->nope_dim,
        spec->rope_dim,
        spec->value_dim,
        spec->dense_width,
        spec->expert_width,
        spec->experts,
        spec->topk,
        spec->shared_experts,
        spec->groups,
        spec->topk_groups,
        spec->scoring,
        spec->renormalize,
        hash_double_bits(spec->routed_scale),
        spec->vocab,
        spec->context_max,
        hash_double_bits(spec->norm_eps),
        hash_double_bits(spec->inner_norm_eps),
        hash_double_bits(spec->rope.theta),
        spec->rope.yarn,
        hash_double_bits(spec->rope.factor),
        hash_double_bits(spec->rope.original_context),
        hash_double_bits(spec->rope.beta_fast),
        hash_double_bits(spec->rope.beta_slow),
        hash_double_bits(spec->rope.mscale),
        hash_double_bits(spec->rope.mscale_all_dim),
        spec->quantization,
        spec->stop_token_count,
    };
    uint64_t hash = hash_bytes(spec->model_type, strlen(spec->model_type), HASH_CHAIN_EMPTY);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        hash = hash_chain(hash, fields[i]);
    for (uint32_t i = 0; i < spec->stop_token_count; i++)
        hash = hash_chain(hash, spec->stop_token[i]);
    return hash;
}
