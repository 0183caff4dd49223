#include "model_fixture.h"

#include <json-c/json.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Sizes of every kind; the widths of experts depend on INT4. */
enum {
    D = 64,
    LAYERS = 3,
    H = 8,
    Q_RANK = 48,
    R = 80,
    N = 24,
    P = 16,
    V = 8,
    DENSE = 40,
    EXPERTS = 3,
    VOCAB = 72,
};

const struct model_kind model_kinds[] = {
    {.name = "plain",
     .prefix = "",
     .dense = "BF16",
     .norms = "BF16",
     .bias = "F32",
     .shared = 1,
     .dense_layers = 1,
     .files = 1},
    {.name = "int4",
     .prefix = "",
     .dense = "BF16",
     .norms = "BF16",
     .bias = "F32",
     .int4 = true,
     .shared = 1,
     .dense_layers = 1,
     .files = 3},
    {.name = "k25",
     .prefix = "language_model.",
     .nested = true,
     .dense = "BF16",
     .norms = "BF16",
     .bias = "F32",
     .int4 = true,
     .shared = 1,
     .dense_layers = 1,
     .junk = true,
     .files = 5},
    {.name = "no-inner-model",
     .prefix = "language_model.",
     .drop_model = true,
     .nested = true,
     .dense = "BF16",
     .norms = "BF16",
     .bias = "BF16",
     .int4 = true,
     .shared = 2,
     .dense_layers = 2,
     .junk = true,
     .files = 1},
    {.name = "f32",
     .prefix = "",
     .dense = "F32",
     .norms = "F32",
     .bias = "F32",
     .shared = 0,
     .dense_layers = 0,
     .files = 2},
    {.name = "all-int4",
     .prefix = "",
     .dense = "BF16",
     .norms = "F32",
     .bias = "F32",
     .int4 = true,
     .int4_dense = true,
     .shared = 1,
     .dense_layers = 1,
     .files = 1},
    {.name = "fp8",
     .prefix = "",
     .dense = "BF16",
     .norms = "BF16",
     .bias = "F32",
     .fp8 = true,
     .shared = 1,
     .dense_layers = 1,
     .junk = true,
     .files = 2},
    {.name = "f16",
     .prefix = "",
     .dense = "F16",
     .embed = "F16",
     .norms = "F16",
     .bias = "F16",
     .shared = 1,
     .dense_layers = 1,
     .files = 1},
    {.name = "v2",
     .prefix = "",
     .v2 = true,
     .dense = "BF16",
     .norms = "BF16",
     .shared = 2,
     .dense_layers = 1,
     .files = 2},
};
const uint32_t model_kind_count = sizeof model_kinds / sizeof *model_kinds;

static uint32_t expert_width(const struct model_kind *kind) {
    if (kind->fp8) return 136; /* a rank's columns begin inside a block */
    return kind->int4 ? 256 : 24;
}

static uint32_t dense_width(const struct model_kind *kind) {
    if (kind->fp8) return 1000;
    return kind->int4_dense ? 512 : DENSE;
}

static uint32_t value_dim(const struct model_kind *kind) {
    return kind->int4_dense ? 32 : V;
}

static uint32_t q_rank(const struct model_kind *kind) {
    return kind->int4_dense ? 64 : Q_RANK;
}

static void add_int(struct json_object *object, const char *name, int64_t value) {
    json_object_object_add(object, name, json_object_new_int64(value));
}

static void add_json(struct json_object *object, const char *name, const char *text) {
    json_object_object_add(object, name, json_tokener_parse(text));
}

char *model_fixture_config(const struct model_kind *kind) {
    struct json_object *text = json_object_new_object();
    add_json(text, "model_type", kind->v2 ? "\"deepseek_v2\"" : "\"kimi_k2\"");
    add_int(text, "hidden_size", D);
    add_int(text, "num_hidden_layers", LAYERS);
    add_int(text, "first_k_dense_replace", kind->dense_layers);
    add_int(text, "num_attention_heads", H);
    add_int(text, "num_key_value_heads", H);
    if (kind->v2)
        json_object_object_add(text, "q_lora_rank", NULL);
    else
        add_int(text, "q_lora_rank", q_rank(kind));
    add_int(text, "kv_lora_rank", R);
    add_int(text, "qk_nope_head_dim", N);
    add_int(text, "qk_rope_head_dim", P);
    add_int(text, "v_head_dim", value_dim(kind));
    add_int(text, "intermediate_size", dense_width(kind));
    add_int(text, "moe_intermediate_size", expert_width(kind));
    add_int(text, "n_routed_experts", EXPERTS);
    add_int(text, "num_experts_per_tok", 2);
    add_int(text, "n_shared_experts", kind->shared);
    add_int(text, "vocab_size", VOCAB);
    add_int(text, "max_position_embeddings", 512);
    add_int(text, "eos_token_id", 7);
    add_json(text, "rms_norm_eps", "1e-6");
    add_json(text, "rope_theta", "10000.0");
    if (kind->int4)
        add_json(text, "quantization_config",
                 "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\","
                 " \"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 4,"
                 " \"type\": \"int\", \"symmetric\": true, \"strategy\": \"group\","
                 " \"group_size\": 32}}}}");
    if (kind->fp8)
        add_json(text, "quantization_config",
                 "{\"quant_method\": \"fp8\", \"fmt\": \"e4m3\","
                 " \"activation_scheme\": \"dynamic\", \"weight_block_size\": [128, 128]}");
    struct json_object *root = text;
    if (kind->nested) {
        root = json_object_new_object();
        add_json(root, "model_type", "\"kimi_k25\"");
        json_object_object_add(root, "text_config", text);
    }
    char *config = strdup(json_object_to_json_string(root));
    json_object_put(root);
    assert_non_null(config);
    return config;
}

static void full_name(const struct model_kind *kind, const char *module, const char *suffix,
                      char name_out[STORE_NAME_BYTES]) {
    const char *tail = kind->drop_model && strncmp(module, "model.", 6) == 0 ? module + 6 : module;
    snprintf(name_out, STORE_NAME_BYTES, "%s%s%s", kind->prefix, tail, suffix);
}

static void add_plain(const struct model_kind *kind, struct tensor_store *store, const char *module,
                      const char *dtype, uint32_t rows, uint32_t columns) {
    char name[STORE_NAME_BYTES];
    full_name(kind, module, ".weight", name);
    tensor_store_add(store, name, dtype, rows, columns);
}

static void add_linear(const struct model_kind *kind, struct tensor_store *store, bool int4,
                       const char *module, uint32_t rows, uint32_t columns) {
    char name[STORE_NAME_BYTES];
    if (kind->fp8) {
        add_plain(kind, store, module, "F8_E4M3", rows, columns);
        full_name(kind, module, ".weight_scale_inv", name);
        tensor_store_add(store, name, "F32", (rows + 127) / 128, (columns + 127) / 128);
        return;
    }
    if (!int4) {
        add_plain(kind, store, module, kind->dense, rows, columns);
        return;
    }
    full_name(kind, module, ".weight_packed", name);
    tensor_store_add(store, name, "I32", rows, columns / 8);
    full_name(kind, module, ".weight_scale", name);
    tensor_store_add(store, name, "BF16", rows, columns / 32);
    full_name(kind, module, ".weight_shape", name);
    tensor_store_add(store, name, "I32", 0, kind->junk ? 3 : 2);
}

static void add_layer(const struct model_kind *kind, struct tensor_store *store, uint32_t layer) {
    static char module[STORE_NAME_BYTES];
#define MODULE(...) (snprintf(module, sizeof module, __VA_ARGS__), module)
    bool int4 = kind->int4_dense;
    uint32_t values = value_dim(kind);
    add_plain(kind, store, MODULE("model.layers.%u.input_layernorm", layer), kind->norms, 0, D);
    add_plain(kind, store, MODULE("model.layers.%u.post_attention_layernorm", layer), kind->norms,
              0, D);
    if (kind->v2) {
        add_linear(kind, store, int4, MODULE("model.layers.%u.self_attn.q_proj", layer),
                   H * (N + P), D);
    } else {
        add_linear(kind, store, int4, MODULE("model.layers.%u.self_attn.q_a_proj", layer),
                   q_rank(kind), D);
        add_plain(kind, store, MODULE("model.layers.%u.self_attn.q_a_layernorm", layer),
                  kind->norms, 0, q_rank(kind));
        add_linear(kind, store, int4, MODULE("model.layers.%u.self_attn.q_b_proj", layer),
                   H * (N + P), q_rank(kind));
    }
    add_linear(kind, store, int4, MODULE("model.layers.%u.self_attn.kv_a_proj_with_mqa", layer),
               R + P, D);
    add_plain(kind, store, MODULE("model.layers.%u.self_attn.kv_a_layernorm", layer), kind->norms,
              0, R);
    add_linear(kind, store, false, MODULE("model.layers.%u.self_attn.kv_b_proj", layer),
               H * (N + values), R);
    add_linear(kind, store, int4, MODULE("model.layers.%u.self_attn.o_proj", layer), D, H * values);
    if (layer < kind->dense_layers) {
        uint32_t width = dense_width(kind);
        add_linear(kind, store, int4, MODULE("model.layers.%u.mlp.gate_proj", layer), width, D);
        add_linear(kind, store, int4, MODULE("model.layers.%u.mlp.up_proj", layer), width, D);
        add_linear(kind, store, int4, MODULE("model.layers.%u.mlp.down_proj", layer), D, width);
        return;
    }
    char bias[STORE_NAME_BYTES];
    add_plain(kind, store, MODULE("model.layers.%u.mlp.gate", layer), kind->dense, EXPERTS, D);
    full_name(kind, MODULE("model.layers.%u.mlp.gate.e_score_correction_bias", layer), "", bias);
    if (!kind->v2) tensor_store_add(store, bias, kind->bias, 0, EXPERTS);
    uint32_t width = expert_width(kind) * kind->shared;
    if (width > 0) {
        add_linear(kind, store, int4, MODULE("model.layers.%u.mlp.shared_experts.gate_proj", layer),
                   width, D);
        add_linear(kind, store, int4, MODULE("model.layers.%u.mlp.shared_experts.up_proj", layer),
                   width, D);
        add_linear(kind, store, int4, MODULE("model.layers.%u.mlp.shared_experts.down_proj", layer),
                   D, width);
    }
    width = expert_width(kind);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        add_linear(kind, store, kind->int4,
                   MODULE("model.layers.%u.mlp.experts.%u.gate_proj", layer, e), width, D);
        add_linear(kind, store, kind->int4,
                   MODULE("model.layers.%u.mlp.experts.%u.up_proj", layer, e), width, D);
        add_linear(kind, store, kind->int4,
                   MODULE("model.layers.%u.mlp.experts.%u.down_proj", layer, e), D, width);
    }
#undef MODULE
}

struct tensor_store *model_fixture_store(const struct model_kind *kind) {
    struct tensor_store *store = tensor_store_create();
    char name[STORE_NAME_BYTES];
    add_plain(kind, store, "model.embed_tokens", kind->embed ? kind->embed : "BF16", VOCAB, D);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        add_layer(kind, store, layer);
    add_plain(kind, store, "model.norm", kind->norms, 0, D);
    if (kind->fp8)
        add_plain(kind, store, "lm_head", kind->dense, VOCAB, D);
    else
        add_linear(kind, store, kind->int4_dense, "lm_head", VOCAB, D);
    if (!kind->junk) return store;
    tensor_store_add(store, "vision_tower.encoder.blocks.0.wqkv.weight", "BF16", 8, 8);
    tensor_store_add(store, "mm_projector.proj.0.bias", "BF16", 0, 8);
    full_name(kind, "model.layers.3.enorm", ".weight", name); /* an extra layer, for drafting */
    tensor_store_add(store, name, "BF16", 0, D);
    full_name(kind, "model.layers.0.self_attn.rotary_emb.inv_freq", "", name);
    tensor_store_add(store, name, "F32", 0, P / 2);
    return store;
}

void model_fixture_write(const struct model_kind *kind, const struct tensor_store *store,
                         char folder_out[64]) {
    char *config = model_fixture_config(kind);
    folder_create(folder_out);
    folder_write(folder_out, "config.json", config, strlen(config));
    tensor_store_write(store, folder_out, kind->files);
    free(config);
}
