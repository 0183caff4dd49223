/* Configs: the published ones give the published numbers; everything the forward pass does not do
 * is refused by field. */
#include <json-c/json.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config_edit.h"
#include "model_spec.h"
#include "tensor_store.h"

#define K25_CONFIG   ESPALIER_SOURCE_DIR "/tests/unit/data/kimi_k25_config.json"
#define YARN_VECTORS ESPALIER_SOURCE_DIR "/tests/text/data/kimi_vectors.json"
#define EMBEDDED     ESPALIER_SOURCE_DIR "/deploy/model"

/* Load the config at `base` with edits; status and line. */
static enum status load_edited(const char *base, const char *edits, const char *generation,
                               struct model_spec *spec, struct error *err) {
    char folder[64];
    struct json_object *root = json_object_from_file(base);
    assert_non_null(root);
    config_edit(root, edits);
    const char *text = json_object_to_json_string(root);
    folder_create(folder);
    folder_write(folder, "config.json", text, strlen(text));
    if (generation) folder_write(folder, "generation_config.json", generation, strlen(generation));
    enum status status = model_spec_load(folder, spec, err);
    folder_remove(folder);
    json_object_put(root);
    return status;
}

static void load_or_fail(const char *base, const char *edits, struct model_spec *spec) {
    struct error err;
    if (load_edited(base, edits, NULL, spec, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void test_kimi_k25(void **state) {
    (void)state;
    struct model_spec spec;
    load_or_fail(K25_CONFIG, "", &spec);
    assert_string_equal(spec.model_type, "kimi_k25");
    assert_int_equal(spec.hidden, 7168);
    assert_int_equal(spec.layers, 61);
    assert_int_equal(spec.dense_layers, 1);
    assert_int_equal(spec.heads, 64);
    assert_int_equal(spec.q_rank, 1536);
    assert_int_equal(spec.kv_rank, 512);
    assert_int_equal(spec.nope_dim, 128);
    assert_int_equal(spec.rope_dim, 64);
    assert_int_equal(spec.value_dim, 128);
    assert_int_equal(spec.dense_width, 18432);
    assert_int_equal(spec.expert_width, 2048);
    assert_int_equal(spec.experts, 384);
    assert_int_equal(spec.topk, 8);
    assert_int_equal(spec.shared_experts, 1);
    assert_int_equal(spec.groups, 1);
    assert_int_equal(spec.topk_groups, 1);
    assert_int_equal(spec.scoring, MODEL_SCORING_SIGMOID);
    assert_true(spec.renormalize);
    assert_true(spec.routed_scale == 2.827f);
    assert_int_equal(spec.vocab, 163840);
    assert_int_equal(spec.context_max, 262144);
    assert_true(spec.norm_eps == 1e-5f);
    assert_true(spec.inner_norm_eps == 1e-6f);
    assert_true(spec.rope.theta == 50000);
    assert_true(spec.rope.yarn);
    assert_true(spec.rope.factor == 64);
    assert_true(spec.rope.original_context == 4096);
    assert_true(spec.rope.beta_fast == 32);
    assert_true(spec.rope.beta_slow == 1);
    assert_true(spec.rope.mscale == 1 && spec.rope.mscale_all_dim == 1);
    assert_int_equal(spec.quantization, MODEL_QUANT_INT4_GROUP32);
    assert_int_equal(spec.stop_token_count, 1);
    assert_int_equal(spec.stop_token[0], 163586);
}

static void test_embedded_model(void **state) {
    (void)state;
    struct model_spec spec;
    struct error err;
    if (model_spec_load(EMBEDDED, &spec, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_string_equal(spec.model_type, "kimi_k2");
    assert_int_equal(spec.hidden, 256);
    assert_int_equal(spec.experts, 16);
    assert_int_equal(spec.quantization, MODEL_QUANT_INT4_GROUP32);
    assert_true(fabs(model_spec_softmax_scale(&spec) - 0.162060) < 5e-7);
    for (uint32_t tp = 1; tp <= 8; tp *= 2)
        assert_int_equal(model_spec_check_tp(&spec, tp, &err), STATUS_OK);
}

/* Published softmax scales and tables of inverse frequencies. */
static void test_yarn(void **state) {
    (void)state;
    static const struct {
        const char *table;
        const char *edits;
        double scale;
    } cases[] = {
        {"kimi-k2.5/2.6", "", 0.1446796258},
        {"kimi-k2-thinking/0905", "text_config/rope_scaling/beta_fast=1.0", 0.1446796258},
        {"kimi-k2-instruct",
         "text_config/rope_scaling/beta_fast=1;text_config/rope_scaling/factor=32", 0.1308608000},
        {"deepseek-v3/v2-lite", "text_config/rope_scaling/factor=40;text_config/rope_theta=10000",
         0.1352337789},
        {"deepseek-v3/v2-lite",
         "text_config/rope_scaling/factor=40;text_config/rope_theta=10000;"
         "text_config/rope_scaling/mscale=0.707;text_config/rope_scaling/mscale_all_dim=0.707",
         0.1147213868},
    };
    struct json_object *vectors = json_object_from_file(YARN_VECTORS);
    assert_non_null(vectors);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_spec spec;
        double inv_freq[32];
        struct json_object *table;
        assert_true(json_object_object_get_ex(vectors, "yarn", &table));
        assert_true(json_object_object_get_ex(table, cases[i].table, &table));
        assert_true(json_object_object_get_ex(table, "inv_freq", &table));
        load_or_fail(K25_CONFIG, cases[i].edits, &spec);
        assert_int_equal(spec.rope_dim / 2, json_object_array_length(table));
        model_spec_inv_freq(&spec, inv_freq);
        for (size_t k = 0; k < 32; k++) {
            double wanted = json_object_get_double(json_object_array_get_idx(table, k));
            assert_true(fabs(inv_freq[k] - wanted) <= 1e-14 * wanted);
        }
        assert_true(fabs(model_spec_softmax_scale(&spec) - cases[i].scale) < 1e-8);
    }
    json_object_put(vectors);
}

static void test_plain_rope(void **state) {
    (void)state;
    static const char *const edits[] = {
        "text_config/rope_scaling=null",
        "text_config/rope_scaling={\"rope_type\": \"default\"}",
    };
    for (size_t i = 0; i < 2; i++) {
        struct model_spec spec;
        double inv_freq[32];
        load_or_fail(K25_CONFIG, edits[i], &spec);
        assert_false(spec.rope.yarn);
        model_spec_inv_freq(&spec, inv_freq);
        assert_true(fabs(inv_freq[16] - 1 / sqrt(50000)) < 1e-15);
        assert_true(fabs(model_spec_softmax_scale(&spec) - 1 / sqrt(192)) < 1e-8);
    }
}

/* The same model written in other ways is the same spec. */
static void test_equal_forms(void **state) {
    (void)state;
    static const char *const edits[] = {
        /* as newer transformers write it */
        ("text_config/rope_parameters={\"rope_theta\": 50000.0, \"rope_type\": \"yarn\","
         " \"factor\": 64, \"original_max_position_embeddings\": 4096, \"mscale\": 1,"
         " \"mscale_all_dim\": 1};text_config/rope_scaling=-;text_config/rope_theta=-;"
         "text_config/scoring_func=-;text_config/topk_method=-"),
        /* quantization at the top */
        ("quantization_config={\"quant_method\": \"compressed-tensors\","
         " \"format\": \"pack-quantized\", \"config_groups\": {\"g\": {\"weights\":"
         " {\"num_bits\": 4, \"strategy\": \"group\", \"group_size\": 32}}}};"
         "text_config/quantization_config=-"),
        /* defaults left out, as null or absent */
        ("text_config/n_group=null;text_config/topk_group=-;text_config/model_type=-;"
         "text_config/attention_bias=-;text_config/num_key_value_heads=-;eos_token_id=null"),
    };
    struct model_spec wanted, spec;
    load_or_fail(K25_CONFIG, "", &wanted);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        load_or_fail(K25_CONFIG, edits[i], &spec);
        assert_true(model_spec_fingerprint(&spec) == model_spec_fingerprint(&wanted));
    }
}

#define QUANT "text_config/quantization_config"
#define FP8                                                                                        \
    QUANT "={\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"activation_scheme\": \"dynamic\","    \
          " \"weight_block_size\": [128, 128]};"

static void test_fp8(void **state) {
    (void)state;
    struct model_spec spec;
    load_or_fail(K25_CONFIG, FP8, &spec);
    assert_int_equal(spec.quantization, MODEL_QUANT_FP8_BLOCK128);
}

/* Every field that shapes the model is in the fingerprint. */
static void test_fingerprint(void **state) {
    (void)state;
    static const char *const edits[] = {
        "text_config/hidden_size=4096",
        "text_config/num_hidden_layers=60",
        "text_config/first_k_dense_replace=3",
        "text_config/q_lora_rank=null",
        "text_config/kv_lora_rank=256",
        "text_config/qk_nope_head_dim=64",
        "text_config/qk_rope_head_dim=32",
        "text_config/v_head_dim=64",
        "text_config/intermediate_size=9216",
        "text_config/moe_intermediate_size=1024",
        "text_config/n_routed_experts=256",
        "text_config/num_experts_per_tok=4",
        "text_config/n_shared_experts=2",
        "text_config/n_group=8;text_config/topk_group=8",
        "text_config/n_group=8;text_config/topk_group=4",
        "text_config/norm_topk_prob=false",
        "text_config/routed_scaling_factor=2.5",
        "text_config/vocab_size=163842",
        "text_config/max_position_embeddings=131072",
        "text_config/rms_norm_eps=1e-6",
        "text_config/rope_theta=10000",
        "text_config/rope_scaling/factor=32",
        "text_config/rope_scaling/beta_fast=1",
        "text_config/rope_scaling/beta_slow=2",
        "text_config/rope_scaling/original_max_position_embeddings=8192",
        "text_config/rope_scaling/mscale=2;text_config/rope_scaling/mscale_all_dim=2",
        "text_config/rope_scaling=null",
        "text_config/quantization_config=null",
        FP8,
        "eos_token_id=163585",
        "text_config/num_attention_heads=32;text_config/num_key_value_heads=32",
        "model_type=\"kimi_k2\"",
    };
    enum { COUNT = sizeof edits / sizeof *edits };
    uint64_t print[COUNT + 1];
    struct model_spec spec;
    load_or_fail(K25_CONFIG, "", &spec);
    print[COUNT] = model_spec_fingerprint(&spec);
    for (size_t i = 0; i < COUNT; i++) {
        load_or_fail(K25_CONFIG, edits[i], &spec);
        print[i] = model_spec_fingerprint(&spec);
    }
    for (size_t i = 0; i <= COUNT; i++)
        for (size_t j = i + 1; j <= COUNT; j++)
            if (print[i] == print[j]) fail_msg("%s is not in the fingerprint", edits[i]);
}

/* DeepSeek-V2: either divide by the sum or scale; groups do not matter to greedy selection. */
static void test_deepseek_v2(void **state) {
    (void)state;
#define V2                                                                                         \
    "text_config/model_type=\"deepseek_v2\";text_config/scoring_func=\"softmax\";"                 \
    "text_config/topk_method=\"greedy\";text_config/q_lora_rank=null;"                             \
    "text_config/quantization_config=null;text_config/routed_scaling_factor=16.0;"                 \
    "text_config/moe_intermediate_size=1408;text_config/n_group=8;text_config/topk_group=3;"
    static const struct {
        const char *edits;
        bool renormalize;
        float scale;
    } cases[] = {
        {V2 "text_config/norm_topk_prob=false", false, 16},
        {V2 "text_config/norm_topk_prob=-", false, 16},
        {V2 "text_config/norm_topk_prob=true", true, 1},
        {V2 "text_config/norm_topk_prob=true;text_config/num_experts_per_tok=1", false, 16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_spec spec;
        load_or_fail(K25_CONFIG, cases[i].edits, &spec);
        assert_int_equal(spec.scoring, MODEL_SCORING_SOFTMAX);
        assert_int_equal(spec.q_rank, 0);
        assert_int_equal(spec.groups, 1);
        assert_int_equal(spec.topk_groups, 1);
        assert_int_equal(spec.quantization, MODEL_QUANT_NONE);
        assert_int_equal(spec.renormalize, cases[i].renormalize);
        assert_true(spec.routed_scale == cases[i].scale);
    }
}

static void test_stop_tokens(void **state) {
    (void)state;
    static const struct {
        const char *edits;
        const char *generation; /* NULL: no such file */
        uint32_t count;
        uint32_t token[4];
    } cases[] = {
        {"", NULL, 1, {163586}},
        {"", "{\"eos_token_id\": 163585}", 2, {163586, 163585}},
        {"text_config/eos_token_id=163585",
         "{\"eos_token_id\": [163586, 7]}",
         3,
         {163585, 163586, 7}},
        {"text_config/eos_token_id=[1, 2]", "{\"eos_token_id\": [2, 1]}", 3, {1, 2, 163586}},
        {"text_config/eos_token_id=null;eos_token_id=-", "{}", 0, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_spec spec;
        struct error err;
        if (load_edited(K25_CONFIG, cases[i].edits, cases[i].generation, &spec, &err) != STATUS_OK)
            fail_msg("%s", err.text);
        assert_int_equal(spec.stop_token_count, cases[i].count);
        for (uint32_t t = 0; t < cases[i].count; t++)
            assert_int_equal(spec.stop_token[t], cases[i].token[t]);
    }
}

#define QGROUP QUANT "/config_groups/group_0"
#define YARN   "text_config/rope_scaling"

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *edits;
        enum status status;
        const char *words[3];
    } cases[] = {
        {"model_type=\"llama\"", STATUS_UNIMPLEMENTED, {"model_type", "\"llama\"", "kimi_k2"}},
        {"model_type=-", STATUS_UNIMPLEMENTED, {"model_type", "nothing"}},
        {"text_config=-", STATUS_INVALID_ARGUMENT, {"text_config", "kimi_k25"}},
        {"text_config=[]", STATUS_INVALID_ARGUMENT, {"text_config", "[]"}},
        {"text_config/model_type=\"qwen3\"", STATUS_UNIMPLEMENTED, {"text_config.model_type"}},
        {"text_config/hidden_size=-", STATUS_INVALID_ARGUMENT, {"hidden_size", "nothing"}},
        {"text_config/hidden_size=0", STATUS_INVALID_ARGUMENT, {"hidden_size", "found 0"}},
        {"text_config/hidden_size=-7168", STATUS_INVALID_ARGUMENT, {"hidden_size", "-7168"}},
        {"text_config/hidden_size=7169",
         STATUS_INVALID_ARGUMENT,
         {"hidden_size", "multiple of 16"}},
        {"text_config/hidden_size=99999999999999999999", STATUS_INVALID_ARGUMENT, {"hidden_size"}},
        {"text_config/hidden_size=\"7168\"", STATUS_INVALID_ARGUMENT, {"hidden_size", "\"7168\""}},
        {"text_config/hidden_size=7168.0", STATUS_INVALID_ARGUMENT, {"hidden_size", "7168.0"}},
        {"text_config/hidden_size=[7168]", STATUS_INVALID_ARGUMENT, {"hidden_size"}},
        {"text_config/num_hidden_layers=257",
         STATUS_INVALID_ARGUMENT,
         {"num_hidden_layers", "1..256"}},
        {"text_config/first_k_dense_replace=62",
         STATUS_INVALID_ARGUMENT,
         {"first_k_dense_replace", "62"}},
        {"text_config/num_key_value_heads=8", STATUS_UNIMPLEMENTED, {"num_key_value_heads"}},
        {"text_config/num_attention_heads=3;text_config/num_key_value_heads=3;"
         "text_config/v_head_dim=12",
         STATUS_UNIMPLEMENTED,
         {"v_head_dim", "multiple of 8"}},
        {"text_config/qk_rope_head_dim=63", STATUS_INVALID_ARGUMENT, {"qk_rope_head_dim"}},
        {"text_config/n_routed_experts=1025", STATUS_INVALID_ARGUMENT, {"n_routed_experts"}},
        {"text_config/num_experts_per_tok=33", STATUS_INVALID_ARGUMENT, {"num_experts_per_tok"}},
        {"text_config/n_routed_experts=4",
         STATUS_INVALID_ARGUMENT,
         {"num_experts_per_tok", "found 8", "at most the 4"}},
        {"text_config/n_group=96;text_config/topk_group=1",
         STATUS_INVALID_ARGUMENT,
         {"num_experts_per_tok", "at most the 4"}},
        {"text_config/n_group=5", STATUS_INVALID_ARGUMENT, {"n_group", "divisor"}},
        {"text_config/n_group=384", STATUS_INVALID_ARGUMENT, {"n_group"}},
        {"text_config/topk_group=2", STATUS_INVALID_ARGUMENT, {"topk_group", "n_group"}},
        {"text_config/vocab_size=1048577", STATUS_INVALID_ARGUMENT, {"vocab_size"}},
        {"text_config/max_position_embeddings=4194305",
         STATUS_INVALID_ARGUMENT,
         {"max_position_embeddings"}},
        {"text_config/intermediate_size=18436", STATUS_INVALID_ARGUMENT, {"intermediate_size"}},
        {"text_config/moe_intermediate_size=1400",
         STATUS_UNIMPLEMENTED,
         {"moe_intermediate_size", "1400", "multiple of 32"}},
        {"text_config/hidden_size=7184", STATUS_UNIMPLEMENTED, {"hidden_size", "multiple of 32"}},
        {"text_config/rms_norm_eps=0", STATUS_INVALID_ARGUMENT, {"rms_norm_eps"}},
        {"text_config/rms_norm_eps=null", STATUS_INVALID_ARGUMENT, {"rms_norm_eps", "nothing"}},
        {"text_config/routed_scaling_factor=\"x\"",
         STATUS_INVALID_ARGUMENT,
         {"routed_scaling_factor"}},
        {"text_config/norm_topk_prob=1", STATUS_INVALID_ARGUMENT, {"norm_topk_prob", "true or"}},
        {"text_config/hidden_act=\"gelu\"", STATUS_UNIMPLEMENTED, {"hidden_act", "gelu", "silu"}},
        {"text_config/attention_bias=true", STATUS_UNIMPLEMENTED, {"attention_bias", "false"}},
        {"text_config/moe_layer_freq=2", STATUS_UNIMPLEMENTED, {"moe_layer_freq"}},
        {"text_config/tie_word_embeddings=true", STATUS_UNIMPLEMENTED, {"tie_word_embeddings"}},
        {"text_config/rope_interleave=false", STATUS_UNIMPLEMENTED, {"rope_interleave"}},
        {"text_config/scoring_func=\"softmax\"",
         STATUS_UNIMPLEMENTED,
         {"scoring_func", "softmax", "sigmoid"}},
        {"text_config/topk_method=\"group_limited_greedy\"",
         STATUS_UNIMPLEMENTED,
         {"topk_method", "group_limited_greedy", "noaux_tc"}},
        {V2 "text_config/topk_method=\"group_limited_greedy\"",
         STATUS_UNIMPLEMENTED,
         {"topk_method", "group_limited_greedy", "greedy"}},
        {YARN "=7", STATUS_INVALID_ARGUMENT, {"rope_scaling"}},
        {YARN "/type=\"linear\"", STATUS_UNIMPLEMENTED, {"rope_scaling.type", "linear", "yarn"}},
        {YARN "/type=-", STATUS_UNIMPLEMENTED, {"rope_scaling.type"}},
        {YARN "/factor=-", STATUS_INVALID_ARGUMENT, {"factor", "nothing"}},
        {YARN "/factor=0.5", STATUS_INVALID_ARGUMENT, {"factor", "0.5"}},
        {YARN "/factor=1e300", STATUS_INVALID_ARGUMENT, {"factor"}},
        {YARN "/mscale_all_dim=-", STATUS_UNIMPLEMENTED, {"mscale_all_dim", "nothing"}},
        {YARN "/mscale=0.5", STATUS_UNIMPLEMENTED, {"mscale_all_dim", "1.0"}},
        {YARN "/attention_factor=1.4159", STATUS_UNIMPLEMENTED, {"attention_factor", "1.4159"}},
        {YARN "/truncate=false", STATUS_UNIMPLEMENTED, {"truncate"}},
        {"text_config/rope_theta=0", STATUS_INVALID_ARGUMENT, {"rope_theta"}},
        {QUANT "/quant_method=\"gptq\"",
         STATUS_UNIMPLEMENTED,
         {"quant_method", "gptq", "compressed-tensors or fp8"}},
        {QUANT "/quant_method=\"fp8\"",
         STATUS_UNIMPLEMENTED,
         {"weight_block_size", "nothing", "[128,128]"}},
        {QUANT "={\"quant_method\": \"fp8\", \"weight_block_size\": [64, 64]}",
         STATUS_UNIMPLEMENTED,
         {"weight_block_size", "[64,64]", "[128,128]"}},
        {FP8 QUANT "/fmt=\"e5m2\"", STATUS_UNIMPLEMENTED, {"fmt", "e5m2", "e4m3"}},
        {FP8 QUANT "/activation_scheme=\"static\"",
         STATUS_UNIMPLEMENTED,
         {"activation_scheme", "static", "dynamic"}},
        {QUANT "/format=\"float-quantized\"", STATUS_UNIMPLEMENTED, {"format", "pack-quantized"}},
        {QUANT "/kv_cache_scheme={}", STATUS_UNIMPLEMENTED, {"kv_cache_scheme"}},
        {QUANT "/config_groups={}", STATUS_INVALID_ARGUMENT, {"config_groups"}},
        {QGROUP "/weights=-", STATUS_INVALID_ARGUMENT, {"config_groups weights"}},
        {QGROUP "/weights/num_bits=8", STATUS_UNIMPLEMENTED, {"num_bits", "found 8", "accepted 4"}},
        {QGROUP "/weights/group_size=128", STATUS_UNIMPLEMENTED, {"group_size", "128", "32"}},
        {QGROUP "/weights/group_size=-", STATUS_UNIMPLEMENTED, {"group_size", "nothing"}},
        {QGROUP "/weights/strategy=\"channel\"", STATUS_UNIMPLEMENTED, {"strategy", "channel"}},
        {QGROUP "/weights/type=\"float\"", STATUS_UNIMPLEMENTED, {"weights.type", "float"}},
        {QGROUP "/weights/symmetric=false", STATUS_UNIMPLEMENTED, {"symmetric"}},
        {QGROUP "/weights/actorder=\"group\"", STATUS_UNIMPLEMENTED, {"actorder", "null"}},
        {QGROUP "/input_activations={}", STATUS_UNIMPLEMENTED, {"input_activations"}},
        {"eos_token_id=163840", STATUS_INVALID_ARGUMENT, {"eos_token_id", "163840"}},
        {"eos_token_id=[1,2,3,4,5,6,7,8]", STATUS_INVALID_ARGUMENT, {"eos_token_id", "at most 8"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_spec spec;
        struct error err = {0};
        enum status status = load_edited(K25_CONFIG, cases[i].edits, NULL, &spec, &err);
        if (status != cases[i].status)
            fail_msg("%s: %s %s", cases[i].edits, status_name(status), err.text);
        assert_non_null(strstr(err.text, "/config.json: "));
        for (size_t w = 0; w < 3 && cases[i].words[w]; w++)
            if (!strstr(err.text, cases[i].words[w]))
                fail_msg("\"%s\" is not in \"%s\"", cases[i].words[w], err.text);
    }
}

static void test_files_that_are_no_config(void **state) {
    (void)state;
    static const struct {
        const char *config; /* NULL: no file */
        const char *generation;
        enum status status;
        const char *words;
    } cases[] = {
        {NULL, NULL, STATUS_NOT_FOUND, "/config.json"},
        {"", NULL, STATUS_INVALID_ARGUMENT, "ends too early"},
        {"{\"model_type\": \"kimi_k2\"", NULL, STATUS_INVALID_ARGUMENT, "ends too early"},
        {"[]", NULL, STATUS_INVALID_ARGUMENT, "not an object"},
        {"model_type: kimi_k2", NULL, STATUS_INVALID_ARGUMENT, "is not JSON at byte 0"},
        {"{} {}", NULL, STATUS_INVALID_ARGUMENT, "is not JSON at byte 3"},
        {"{'model_type': 'kimi_k2'}", NULL, STATUS_INVALID_ARGUMENT, "is not JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[64];
        struct model_spec spec;
        struct error err = {0};
        folder_create(folder);
        if (cases[i].config)
            folder_write(folder, "config.json", cases[i].config, strlen(cases[i].config));
        assert_int_equal(model_spec_load(folder, &spec, &err), cases[i].status);
        if (!strstr(err.text, cases[i].words))
            fail_msg("\"%s\" is not in \"%s\"", cases[i].words, err.text);
        folder_remove(folder);
    }
    struct model_spec spec;
    struct error err = {0};
    assert_int_equal(load_edited(K25_CONFIG, "", "{", &spec, &err), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "generation_config.json"));
    assert_int_equal(load_edited(K25_CONFIG, "", "{\"eos_token_id\": -1}", &spec, &err),
                     STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "generation_config.json: eos_token_id: found -1"));
}

static void test_check_tp(void **state) {
    (void)state;
    static const struct {
        const char *edits;
        uint32_t tp;
        const char *words; /* NULL: accepted */
    } cases[] = {
        {"", 8, NULL},
        {"", 1, NULL},
        {"", 0, "--tp: found 0, accepted 1, 2, 4 or 8"},
        {"", 3, "--tp: found 3, accepted 1, 2, 4 or 8"},
        {"", 16, "--tp: found 16, accepted 1, 2, 4 or 8"},
        {"text_config/num_attention_heads=4;text_config/num_key_value_heads=4", 8,
         "num_attention_heads of 4; accepted 1, 2, 4"},
        {"text_config/vocab_size=163841", 2, "vocab_size of 163841; accepted 1"},
        {"text_config/moe_intermediate_size=1408", 4, NULL},
        {"text_config/moe_intermediate_size=1408", 8,
         "moe_intermediate_size of 1408 into whole groups of 32; accepted 1, 2, 4"},
        {FP8 "text_config/moe_intermediate_size=1408", 8, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_spec spec;
        struct error err = {0};
        load_or_fail(K25_CONFIG, cases[i].edits, &spec);
        enum status status = model_spec_check_tp(&spec, cases[i].tp, &err);
        assert_int_equal(status, cases[i].words ? STATUS_INVALID_ARGUMENT : STATUS_OK);
        if (cases[i].words) assert_non_null(strstr(err.text, cases[i].words));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kimi_k25),    cmocka_unit_test(test_embedded_model),
        cmocka_unit_test(test_yarn),        cmocka_unit_test(test_plain_rope),
        cmocka_unit_test(test_equal_forms), cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_deepseek_v2), cmocka_unit_test(test_stop_tokens),
        cmocka_unit_test(test_refusals),    cmocka_unit_test(test_files_that_are_no_config),
        cmocka_unit_test(test_check_tp),    cmocka_unit_test(test_fp8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
