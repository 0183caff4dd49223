/* Configs of drafters: the embedded and the published ones give their numbers; what the block pass
 * does not do, or what does not fit the target, is refused by field. And checkpoints of drafters:
 * what is missing, of another shape, or nobody's is refused by name. */
#include <json-c/json.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "config_edit.h"
#include "drafter_weights.h"
#include "tensor_store.h"

#define EMBEDDED ESPALIER_SOURCE_DIR "/deploy/drafter"
#define TARGET   ESPALIER_SOURCE_DIR "/deploy/model"

static struct model_spec target;

static enum status load_edited(const char *edits, struct drafter_spec *spec, struct error *err) {
    char folder[64];
    struct json_object *root = json_object_from_file(EMBEDDED "/config.json");
    assert_non_null(root);
    config_edit(root, edits);
    const char *text = json_object_to_json_string(root);
    folder_create(folder);
    folder_write(folder, "config.json", text, strlen(text));
    enum status status = drafter_spec_load(folder, &target, spec, err);
    folder_remove(folder);
    json_object_put(root);
    return status;
}

static void load_or_fail(const char *edits, struct drafter_spec *spec) {
    struct error err;
    if (load_edited(edits, spec, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void test_embedded(void **state) {
    (void)state;
    struct drafter_spec spec;
    struct error err;
    load_or_fail("", &spec);
    assert_int_equal(spec.layers, 2);
    assert_int_equal(spec.heads, 8);
    assert_int_equal(spec.kv_heads, 8);
    assert_int_equal(spec.head_dim, 32);
    assert_int_equal(spec.width, 512);
    assert_int_equal(spec.block, 8);
    assert_int_equal(spec.mask_token, 4094);
    assert_int_equal(spec.tap_count, 3);
    assert_int_equal(spec.tap[2], 4);
    assert_true(spec.rope_amplitude == 1);
    assert_true(spec.layer[1].window == 0 && !spec.layer[1].causal);
    assert_int_equal(drafter_spec_kv_dim(&spec), 2 * 2 * 8 * 32);
    for (uint32_t tp = 1; tp <= 8; tp *= 2)
        assert_int_equal(drafter_spec_check_tp(&spec, tp, &err), STATUS_OK);
    spec.kv_heads = 4;
    assert_int_equal(drafter_spec_check_tp(&spec, 8, &err), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "num_key_value_heads of 4"));
}

/* Windows, causality and amplitudes as the table of the header and transformers say. */
static void test_layers_and_amplitudes(void **state) {
    (void)state;
    static const struct {
        const char *edits;
        uint32_t window[2];
        bool causal[2];
        double amplitude;
    } cases[] = {
        {"layer_types=-", {0, 0}, {false, false}, 1},
        {"layer_types=[\"sliding_attention\",\"full_attention\"];sliding_window=2048",
         {2048, 0},
         {true, false},
         1},
        {"layer_types=-;dflash_config/use_swa=true;dflash_config/swa_window_size=7",
         {7, 7},
         {false, false},
         1},
        {"dflash_config/causal=true", {0, 0}, {true, true}, 1},
        {"layer_types=[\"sliding_attention\",\"sliding_attention\"];sliding_window=9;"
         "is_causal=false",
         {9, 9},
         {false, false},
         1},
        {"rope_scaling/factor=64", {0, 0}, {false, false}, 1},
        {"rope_scaling/attention_factor=1.41589", {0, 0}, {false, false}, 1.41589},
        {"rope_scaling/mscale=-;rope_scaling/mscale_all_dim=-;rope_scaling/factor=64",
         {0, 0},
         {false, false},
         1.415888308336},
        {"rope_scaling/mscale=2;rope_scaling/factor=64", {0, 0}, {false, false}, 1.293729},
        {"rope_scaling=-", {0, 0}, {false, false}, 1},
        {"rope_scaling/type=\"deepseek_yarn\"", {0, 0}, {false, false}, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct drafter_spec spec;
        load_or_fail(cases[i].edits, &spec);
        for (uint32_t l = 0; l < 2; l++)
            if (spec.layer[l].window != cases[i].window[l] ||
                spec.layer[l].causal != cases[i].causal[l])
                fail_msg("%s: layer %u", cases[i].edits, l);
        if (fabs(spec.rope_amplitude - cases[i].amplitude) > 1e-6)
            fail_msg("%s: amplitude %.9g", cases[i].edits, spec.rope_amplitude);
    }
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *edits;
        enum status status;
        const char *says;
    } cases[] = {
        {"architectures=[\"LlamaForCausalLM\"]", STATUS_UNIMPLEMENTED,
         "architectures: found [\"LlamaForCausalLM\"], accepted [\"DFlashDraftModel\"]"},
        {"dflash_config=-", STATUS_INVALID_ARGUMENT, "dflash_config: found nothing"},
        {"hidden_act=\"gelu\"", STATUS_UNIMPLEMENTED, "hidden_act: found \"gelu\""},
        {"attention_bias=true", STATUS_UNIMPLEMENTED, "attention_bias: found true"},
        {"dflash_config/attention_sink_bias=true", STATUS_UNIMPLEMENTED, "attention_sink_bias"},
        {"hidden_size=512", STATUS_INVALID_ARGUMENT, "hidden_size: found 512, accepted 256..256"},
        {"vocab_size=151936", STATUS_INVALID_ARGUMENT, "vocab_size: found 151936"},
        {"num_target_layers=61", STATUS_INVALID_ARGUMENT,
         "num_target_layers: found 61, accepted 6..6"},
        {"num_hidden_layers=33", STATUS_INVALID_ARGUMENT, "num_hidden_layers: found 33"},
        {"num_key_value_heads=3", STATUS_INVALID_ARGUMENT,
         "num_key_value_heads: found 3, accepted a divisor"},
        {"head_dim=24", STATUS_INVALID_ARGUMENT, "head_dim: found 24, accepted 16..1024, a mult"},
        {"intermediate_size=510", STATUS_INVALID_ARGUMENT, "a multiple of 8"},
        {"block_size=1", STATUS_INVALID_ARGUMENT, "block_size: found 1, accepted 2..33"},
        {"block_size=-", STATUS_INVALID_ARGUMENT, "block_size: found nothing"},
        {"dflash_config/mask_token_id=4096", STATUS_INVALID_ARGUMENT,
         "dflash_config.mask_token_id: found 4096, accepted 0..4095"},
        {"dflash_config/target_layer_ids=[]", STATUS_INVALID_ARGUMENT, "an array of 1 to 16"},
        {"dflash_config/target_layer_ids=[0,6]", STATUS_INVALID_ARGUMENT,
         "dflash_config.target_layer_ids: found 6, accepted 0..5"},
        {"layer_types=[\"full_attention\"]", STATUS_INVALID_ARGUMENT,
         "accepted an array of num_hidden_layers"},
        {"layer_types=[\"full_attention\",\"linear_attention\"]", STATUS_UNIMPLEMENTED,
         "layer_types: found \"linear_attention\""},
        {"layer_types=[\"sliding_attention\",\"full_attention\"]", STATUS_INVALID_ARGUMENT,
         "sliding_window: found nothing"},
        {"layer_types=-;dflash_config/use_swa=true", STATUS_INVALID_ARGUMENT,
         "dflash_config.swa_window_size"},
        {"rope_scaling/type=\"linear\"", STATUS_UNIMPLEMENTED, "rope_scaling.type"},
        {"rope_scaling/factor=-", STATUS_INVALID_ARGUMENT, "factor: found nothing"},
        {"rope_scaling/truncate=false", STATUS_UNIMPLEMENTED, "truncate: found false"},
        {"rms_norm_eps=0", STATUS_INVALID_ARGUMENT, "rms_norm_eps: found 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct drafter_spec spec;
        struct error err;
        enum status status = load_edited(cases[i].edits, &spec, &err);
        if (status != cases[i].status || !strstr(err.text, cases[i].says))
            fail_msg("%s: %s: %s", cases[i].edits, status_name(status), err.text);
    }
}

/* Every field of the spec is part of what it is. */
static void test_fingerprint(void **state) {
    (void)state;
    static const char *const edits[] = {
        "",
        "num_attention_heads=16",
        "intermediate_size=520",
        "block_size=7",
        "dflash_config/mask_token_id=1",
        "dflash_config/target_layer_ids=[0,2,5]",
        "rms_norm_eps=1e-6",
        "rope_theta=10000",
        "rope_scaling/factor=5",
        "rope_scaling/attention_factor=1.1",
        "is_causal=true",
    };
    uint64_t seen[sizeof edits / sizeof *edits];
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        struct drafter_spec spec;
        load_or_fail(edits[i], &spec);
        seen[i] = drafter_spec_fingerprint(&spec);
        for (size_t j = 0; j < i; j++)
            if (seen[i] == seen[j]) fail_msg("'%s' and '%s'", edits[i], edits[j]);
    }
}

static enum status load_store(const struct tensor_store *store, struct error *err) {
    char folder[64];
    struct drafter_spec spec;
    struct safetensors *checkpoint = NULL;
    struct weights_progress progress = {0};
    struct drafter_weights *weights = NULL;
    folder_create(folder);
    tensor_store_write(store, folder, 1);
    load_or_fail("", &spec);
    assert_int_equal(safetensors_open(folder, &checkpoint, err), STATUS_OK);
    enum status status = drafter_weights_load(NULL, &spec, checkpoint, 1, 4, 2, &progress, &weights,
                                              err);
    if (status == STATUS_OK) {
        assert_int_equal(weights->heads, 2);
        assert_int_equal(weights->fc.k, 3 * 256 / 4);
        assert_true(weights->bytes > 2 * 3 * 256 * 256 / 4);
        assert_int_equal(progress.bytes, progress.bytes_total);
    }
    drafter_weights_destroy(&weights);
    safetensors_close(&checkpoint);
    folder_remove(folder);
    return status;
}

static void test_checkpoints(void **state) {
    (void)state;
    struct tensor_store *store = tensor_store_create();
    struct error err;
    tensor_store_read_file(store, EMBEDDED "/model.safetensors");
    if (load_store(store, &err) != STATUS_OK) fail_msg("%s", err.text);

    tensor_store_add(store, "layers.0.self_attn.q_proj.bias", "BF16", 0, 256);
    assert_int_equal(load_store(store, &err), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "q_proj.bias: is not part of the drafter"));
    tensor_store_remove(store, "layers.0.self_attn.q_proj.bias");

    tensor_store_remove(store, "layers.1.self_attn.k_norm.weight");
    assert_int_equal(load_store(store, &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, "lacks tensor layers.1.self_attn.k_norm.weight"));
    tensor_store_add(store, "layers.1.self_attn.k_norm.weight", "F16", 0, 31);
    assert_int_equal(load_store(store, &err), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "k_norm.weight: found shape [31], accepted [32]"));
    tensor_store_remove(store, "layers.1.self_attn.k_norm.weight");
    tensor_store_add(store, "layers.1.self_attn.k_norm.weight", "F16", 0, 32);
    if (load_store(store, &err) != STATUS_OK) fail_msg("%s", err.text);

    tensor_store_remove(store, "layers.0.mlp.up_proj.weight");
    tensor_store_add(store, "layers.0.mlp.up_proj.weight", "F32", 512, 256);
    assert_int_equal(load_store(store, &err), STATUS_UNIMPLEMENTED);
    assert_non_null(strstr(err.text, "stored in different formats"));
    tensor_store_remove(store, "layers.0.mlp.up_proj.weight");
    tensor_store_add(store, "layers.0.mlp.up_proj.weight", "I32", 512, 256);
    assert_int_equal(load_store(store, &err), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "found dtype I32, accepted BF16, F16 or F32"));
    tensor_store_destroy(store);
}

static int set_up(void **state) {
    (void)state;
    struct error err;
    return model_spec_load(TARGET, &target, &err) == STATUS_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embedded),    cmocka_unit_test(test_layers_and_amplitudes),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_checkpoints),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
