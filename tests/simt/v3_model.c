#include "v3_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "kernel.h"
#include "tame_weights.h"

/* Blocks of 128 x 128 end in the middle of what eight ranks and heads share out. */
enum {
    HIDDEN = 128,
    LAYERS = 3,
    DENSE_LAYERS = 1,
    HEADS = 8,
    Q_RANK = 64,
    LATENT = 512,
    ROPE = 64,
    NOPE = 32,
    VALUE = 32,
    DENSE = 256,
    EXPERTS = 16,
    GROUP_EXPERTS = 4,
    WIDTH = 256,
    VOCAB = 4096,
};

/* Of the marks below: one that leaves clear margins between the tokens of test_engine_cuda. */
#define SEED 88u

/* What a mark is in an embedding, and in a router's weights: scores of 0.5 and of more than 0.9. */
#define MARK        1.0f
#define MARK_WEIGHT 8.0f

/* The bias's steps in a group and between groups: 3 + 2 and 3 of them stay below 0.4. */
#define BIAS_STEP       0.06f
#define BIAS_GROUP_STEP 0.007f

static const char config[] =
    "{\"model_type\":\"deepseek_v3\",\"hidden_size\":128,\"num_hidden_layers\":3,"
    "\"first_k_dense_replace\":1,\"num_attention_heads\":8,\"num_key_value_heads\":8,"
    "\"q_lora_rank\":64,\"kv_lora_rank\":512,\"qk_nope_head_dim\":32,\"qk_rope_head_dim\":64,"
    "\"v_head_dim\":32,\"intermediate_size\":256,\"moe_intermediate_size\":256,"
    "\"n_routed_experts\":16,\"num_experts_per_tok\":4,\"n_shared_experts\":1,\"n_group\":4,"
    "\"topk_group\":2,\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\","
    "\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,\"vocab_size\":4096,"
    "\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"attention_bias\":false,\"tie_word_embeddings\":false,"
    "\"moe_layer_freq\":1,\"num_nextn_predict_layers\":0,\"bos_token_id\":3840,"
    "\"eos_token_id\":4095,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,"
    "\"original_max_position_embeddings\":1024,\"beta_fast\":32.0,\"beta_slow\":1.0,"
    "\"mscale\":1.0,\"mscale_all_dim\":1.0},\"quantization_config\":{\"quant_method\":\"fp8\","
    "\"fmt\":\"e4m3\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128]}}";

static void add(struct tensor_store *store, const char *prefix, const char *module,
                const char *dtype, uint32_t rows, uint32_t columns) {
    char name[STORE_NAME_BYTES];
    snprintf(name, sizeof name, "%s%s.weight", prefix, module);
    tensor_store_add(store, name, dtype, rows, columns);
    if (strcmp(dtype, "F8_E4M3") != 0) return;
    snprintf(name, sizeof name, "%s%s.weight_scale_inv", prefix, module);
    tensor_store_add(store, name, "F32", (rows + 127) / 128, (columns + 127) / 128);
}

static void add_mlp(struct tensor_store *store, const char *prefix, uint32_t width) {
    add(store, prefix, "gate_proj", "F8_E4M3", width, HIDDEN);
    add(store, prefix, "up_proj", "F8_E4M3", width, HIDDEN);
    add(store, prefix, "down_proj", "F8_E4M3", HIDDEN, width);
}

static void add_layer(struct tensor_store *store, uint32_t layer) {
    char at[STORE_NAME_BYTES / 2], name[STORE_NAME_BYTES];
    snprintf(at, sizeof at, "model.layers.%u.", layer);
    add(store, at, "input_layernorm", "BF16", 0, HIDDEN);
    add(store, at, "post_attention_layernorm", "BF16", 0, HIDDEN);
    add(store, at, "self_attn.q_a_proj", "F8_E4M3", Q_RANK, HIDDEN);
    add(store, at, "self_attn.q_a_layernorm", "BF16", 0, Q_RANK);
    add(store, at, "self_attn.q_b_proj", "F8_E4M3", HEADS * (NOPE + ROPE), Q_RANK);
    add(store, at, "self_attn.kv_a_proj_with_mqa", "F8_E4M3", LATENT + ROPE, HIDDEN);
    add(store, at, "self_attn.kv_a_layernorm", "BF16", 0, LATENT);
    add(store, at, "self_attn.kv_b_proj", "F8_E4M3", HEADS * (NOPE + VALUE), LATENT);
    add(store, at, "self_attn.o_proj", "F8_E4M3", HIDDEN, HEADS * VALUE);
    snprintf(at, sizeof at, "model.layers.%u.mlp.", layer);
    if (layer < DENSE_LAYERS) {
        add_mlp(store, at, DENSE);
        return;
    }
    add(store, at, "gate", "BF16", EXPERTS, HIDDEN);
    snprintf(name, sizeof name, "%sgate.e_score_correction_bias", at);
    tensor_store_add(store, name, "F32", 0, EXPERTS);
    snprintf(name, sizeof name, "%sshared_experts.", at);
    add_mlp(store, name, WIDTH);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        snprintf(name, sizeof name, "%sexperts.%u.", at, e);
        add_mlp(store, name, WIDTH);
    }
}

static uint8_t *data_of(struct tensor_store *store, uint32_t layer, const char *module) {
    char name[STORE_NAME_BYTES];
    snprintf(name, sizeof name, "model.layers.%u.%s", layer, module);
    struct store_tensor *tensor = tensor_store_find(store, name);
    assert_non_null(tensor);
    return tensor->data;
}

/* Its experts read the marks in another order than another layer's. */
static void decide_layer(struct tensor_store *store, uint32_t layer) {
    uint16_t *norm = (uint16_t *)data_of(store, layer, "post_attention_layernorm.weight");
    uint16_t *gate = (uint16_t *)data_of(store, layer, "mlp.gate.weight");
    float *bias = (float *)data_of(store, layer, "mlp.gate.e_score_correction_bias");
    memset(gate, 0, (size_t)EXPERTS * HIDDEN * sizeof *gate);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        uint32_t group = e / GROUP_EXPERTS;
        norm[e] = bf16_from_f32(1.0f);
        gate[e * HIDDEN + (e * 5 + layer * 3) % EXPERTS] = bf16_from_f32(MARK_WEIGHT);
        bias[e] = BIAS_STEP * (float)((e + group + layer) % GROUP_EXPERTS) +
                  BIAS_GROUP_STEP * (float)group;
    }
}

/* Experts that random weights choose are often so near to others that rounding decides. Here a
 * token is marked, or not, for each: in its embedding's first elements, which no layer writes to
 * and which alone the routers read. So scores have two values, and what the bias adds to them, or
 * to the best two of a group, leaves no two alike. */
static void decide_routes(struct tensor_store *store) {
    struct store_tensor *embedding = tensor_store_find(store, "model.embed_tokens.weight");
    for (uint32_t token = 0; token < VOCAB; token++)
        for (uint32_t mark = 0; mark < EXPERTS; mark++)
            ((uint16_t *)embedding->data)[token * HIDDEN + mark] =
                hash_mix(SEED + token) >> mark & 1 ? bf16_from_f32(MARK) : 0;
    for (uint32_t t = 0; t < store->count; t++) {
        struct store_tensor *tensor = &store->tensor[t];
        if (strstr(tensor->name, "o_proj.weight") || strstr(tensor->name, "down_proj.weight"))
            if (strcmp(tensor->dtype, "F8_E4M3") == 0)
                memset(tensor->data, 0, EXPERTS * tensor->shape[1]);
    }
    for (uint32_t layer = DENSE_LAYERS; layer < LAYERS; layer++)
        decide_layer(store, layer);
}

static void copy_tokenizer(const char *folder, const char *file) {
    char path[4096];
    size_t bytes;
    snprintf(path, sizeof path, "%s/deploy/model/%s", ESPALIER_SOURCE_DIR, file);
    char *text = file_text(path, &bytes);
    folder_write(folder, file, text, bytes);
    free(text);
}

void v3_model_write(char folder_out[64]) {
    struct tensor_store *store = tensor_store_create();
    add(store, "model.", "embed_tokens", "BF16", VOCAB, HIDDEN);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        add_layer(store, layer);
    add(store, "model.", "norm", "BF16", 0, HIDDEN);
    add(store, "", "lm_head", "BF16", VOCAB, HIDDEN);
    tame_weights(store);
    decide_routes(store);
    folder_create(folder_out);
    folder_write(folder_out, "config.json", config, strlen(config));
    tensor_store_write(store, folder_out, 1);
    copy_tokenizer(folder_out, "tiktoken.model");
    copy_tokenizer(folder_out, "tokenizer_config.json");
    tensor_store_destroy(store);
}
