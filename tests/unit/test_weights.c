/* Weights as loaded against the checkpoint, element by element, on every rank: positions in the
 * panels are computed here from the words of kernels/linear/linear.h. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "model_fixture.h"
#include "weights.h"

#define EMBEDDED ESPALIER_SOURCE_DIR "/deploy/model"

/* A checkpoint in memory, and how its names are written. */
struct expected {
    struct tensor_store *store;
    const char *prefix;
    bool drop_model;
};

static bool is(const struct store_tensor *tensor, const char *dtype) {
    return strcmp(tensor->dtype, dtype) == 0;
}

static uint32_t float_bits(double value) {
    float rounded = (float)value;
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    return bits;
}

/* A sign, exponents with this bias, and so many bits of mantissa; no infinity, no NaN. */
static double small_float(uint32_t code, int exponent_bits, int mantissa_bits, int bias) {
    int mantissa = (int)(code & ((1u << mantissa_bits) - 1));
    int exponent = (int)(code >> mantissa_bits & ((1u << exponent_bits) - 1));
    double value = exponent == 0
                       ? ldexp(mantissa, 1 - bias - mantissa_bits)
                       : ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return code >> (exponent_bits + mantissa_bits) & 1 ? -value : value;
}

/* Element (row, column) of a stored weight as memory holds it: its bits, code or nibble; of F16 the
 * bits it has as f32. */
static uint32_t stored_bits(const struct store_tensor *tensor, uint32_t row, uint32_t column) {
    uint64_t row_words = tensor->shape[1];
    uint64_t at = row * row_words + column;
    const uint32_t *word = (const uint32_t *)tensor->data;
    if (is(tensor, "BF16")) return ((const uint16_t *)tensor->data)[at];
    if (is(tensor, "F16"))
        return float_bits(small_float(((const uint16_t *)tensor->data)[at], 5, 10, 15));
    if (is(tensor, "F8_E4M3")) return tensor->data[at];
    if (is(tensor, "F32")) return word[at];
    return word[row * row_words + column / 8] >> 4 * (column % 8) & 15;
}

static float block_scale(const struct store_tensor *scale, uint32_t row, uint32_t column) {
    return ((const float *)scale->data)[row / 128 * scale->shape[1] + column / 128];
}

/* Element (n, k) of batch b of a packed weight, likewise. */
static uint32_t packed_bits(const struct linear_weight *weight, uint32_t b, uint32_t n,
                            uint32_t k) {
    uint64_t panel = b * (uint64_t)((weight->n + 31) / 32) + n / 32;
    uint64_t at = (panel * weight->k + k) * 32 + n % 32; /* of F32 and FP8 */
    switch (weight->format) {
    case LINEAR_F32: return ((const uint32_t *)weight->data)[at];
    case LINEAR_BF16:
        at = (panel * ((weight->k + 1) / 2) + k / 2) * 64 + n % 32 * 2 + k % 2;
        return ((const uint16_t *)weight->data)[at];
    case LINEAR_FP8: return ((const uint8_t *)weight->data)[at];
    case LINEAR_INT4: break;
    }
    uint64_t block = panel * (weight->k / 4) + k / 4;
    uint8_t pair =
        ((const uint8_t *)weight->data)[(block * 16 + n % 16) * 4 + k % 2 * 2 + k % 4 / 2];
    return n % 32 < 16 ? pair & 15 : pair >> 4;
}

static struct store_tensor *get(const struct expected *expected, const char *module,
                                const char *suffix) {
    char name[STORE_NAME_BYTES];
    const char *tail = expected->drop_model && strncmp(module, "model.", 6) == 0 ? module + 6
                                                                                 : module;
    snprintf(name, sizeof name, "%s%s%s", expected->prefix, tail, suffix);
    return tensor_store_find(expected->store, name);
}

static enum linear_format packed_format(const struct store_tensor *tensor) {
    if (is(tensor, "I32")) return LINEAR_INT4;
    if (is(tensor, "F8_E4M3")) return LINEAR_FP8;
    return is(tensor, "BF16") ? LINEAR_BF16 : LINEAR_F32;
}

/* INT4: a scale for each row and group. */
static void check_groups(const struct linear_weight *weight, const struct store_tensor *scale,
                         uint32_t n, uint32_t row, uint32_t rows, uint32_t column) {
    const bf16 *packed = weight->scale;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t g = 0; g < weight->k / 32; g++) {
            uint64_t at = ((n + r) / 32 * (uint64_t)(weight->k / 32) + g) * 32 + (n + r) % 32;
            if (packed[at] != stored_bits(scale, row + r, column / 32 + g))
                fail_msg("%s [%u, %u]", scale->name, row + r, column / 32 + g);
        }
}

/* FP8: the scale that each weight finds is that of its block in the whole tensor. */
static void check_blocks(const struct linear_weight *weight, const struct store_tensor *scale,
                         uint32_t n, uint32_t row, uint32_t rows, uint32_t column) {
    const float *packed = weight->scale;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < weight->k; c++) {
            uint64_t block = (n + r) / 32 * (uint64_t)(weight->k / 128 + 2) +
                             (weight->block_begin + c) / 128;
            if (packed[block * 32 + (n + r) % 32] != block_scale(scale, row + r, column + c))
                fail_msg("%s of [%u, %u]", scale->name, row + r, column + c);
        }
}

/* Rows [n, n + rows) of the packed weight are rows [row, ...) and columns [column, ...) of the
 * module's tensor. */
static void check_rows(const struct expected *expected, const struct linear_weight *weight,
                       const char *module, uint32_t n, uint32_t row, uint32_t rows,
                       uint32_t column) {
    const struct store_tensor *plain = get(expected, module, ".weight");
    const struct store_tensor *packed = get(expected, module, ".weight_packed");
    const struct store_tensor *tensor = plain ? plain : packed;
    assert_non_null(tensor);
    assert_int_equal(weight->format, packed_format(tensor));
    assert_int_equal((uintptr_t)weight->data % 64, 0);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < weight->k; c++)
            if (packed_bits(weight, 0, n + r, c) != stored_bits(tensor, row + r, column + c))
                fail_msg("%s [%u, %u]", module, row + r, column + c);
    assert_int_equal((uintptr_t)weight->scale % 64, 0);
    if (weight->format == LINEAR_INT4)
        check_groups(weight, get(expected, module, ".weight_scale"), n, row, rows, column);
    else if (weight->format == LINEAR_FP8)
        check_blocks(weight, get(expected, module, ".weight_scale_inv"), n, row, rows, column);
    else
        assert_null(weight->scale);
}

/* Outputs that pad the last panel are zero. */
static void check_padding(const struct linear_weight *weight, uint32_t batch) {
    for (uint32_t b = 0; b < batch; b++)
        for (uint32_t n = weight->n; n % 32 != 0; n++)
            for (uint32_t k = 0; k < weight->k; k++)
                assert_int_equal(packed_bits(weight, b, n, k),
                                 weight->format == LINEAR_INT4 ? 8 : 0);
}

static void check_linear(const struct expected *expected, const struct linear_weight *weight,
                         const char *module, uint32_t row, uint32_t rows, uint32_t column,
                         uint32_t columns) {
    assert_int_equal(weight->n, rows);
    assert_int_equal(weight->k, columns);
    check_rows(expected, weight, module, 0, row, rows, column);
    check_padding(weight, 1);
}

static void check_vector(const struct expected *expected, const float *value, const char *module,
                         const char *suffix) {
    const struct store_tensor *tensor = get(expected, module, suffix);
    assert_non_null(tensor);
    for (uint32_t i = 0; i < tensor->shape[0]; i++) {
        uint32_t bits;
        memcpy(&bits, &value[i], sizeof bits);
        uint32_t stored = stored_bits(tensor, 0, i);
        assert_int_equal(bits, is(tensor, "BF16") ? stored << 16 : stored);
    }
}

static const char *module_name(uint32_t layer, const char *name) {
    static char module[STORE_NAME_BYTES];
    snprintf(module, sizeof module, "model.layers.%u.%s", layer, name);
    return module;
}

/* FP8 is dequantised: the code's value times its scale, rounded once. */
static uint32_t kv_b_bits(const struct store_tensor *tensor, const struct store_tensor *scale,
                          uint32_t row, uint32_t column) {
    uint32_t stored = stored_bits(tensor, row, column);
    if (!scale) return stored;
    return float_bits(small_float(stored, 4, 3, 7) * (double)block_scale(scale, row, column));
}

static void check_kv_b(const struct expected *expected, const struct weights *weights,
                       const struct layer_weights *layer, const char *module) {
    const struct model_spec *spec = &weights->spec;
    const struct store_tensor *tensor = get(expected, module, ".weight");
    const struct store_tensor *scale = get(expected, module, ".weight_scale_inv");
    uint32_t head_rows = spec->nope_dim + spec->value_dim;
    assert_int_equal(layer->w_uk.format, scale ? LINEAR_F32 : packed_format(tensor));
    assert_int_equal(layer->w_uv.format, layer->w_uk.format);
    assert_int_equal(layer->w_uk.n, spec->kv_rank);
    assert_int_equal(layer->w_uk.k, spec->nope_dim);
    assert_int_equal(layer->w_uv.n, spec->value_dim);
    assert_int_equal(layer->w_uv.k, spec->kv_rank);
    for (uint32_t h = 0; h < weights->heads; h++) {
        uint32_t row = (weights->rank * weights->heads + h) * head_rows;
        for (uint32_t r = 0; r < spec->kv_rank; r++) {
            for (uint32_t i = 0; i < spec->nope_dim; i++)
                assert_int_equal(packed_bits(&layer->w_uk, h, r, i),
                                 kv_b_bits(tensor, scale, row + i, r));
            for (uint32_t v = 0; v < spec->value_dim; v++)
                assert_int_equal(packed_bits(&layer->w_uv, h, v, r),
                                 kv_b_bits(tensor, scale, row + spec->nope_dim + v, r));
        }
    }
    check_padding(&layer->w_uk, weights->heads);
    check_padding(&layer->w_uv, weights->heads);
}

static void check_mlp(const struct expected *expected, const struct weights *weights,
                      const struct linear_weight *gate_up, const struct linear_weight *down,
                      uint32_t layer, const char *folder, uint32_t width) {
    char name[64];
    uint32_t begin = weights->rank * width;
    assert_int_equal(gate_up->n, 2 * width);
    assert_int_equal(gate_up->k, weights->spec.hidden);
    snprintf(name, sizeof name, "%sgate_proj", folder);
    check_rows(expected, gate_up, module_name(layer, name), 0, begin, width, 0);
    snprintf(name, sizeof name, "%sup_proj", folder);
    check_rows(expected, gate_up, module_name(layer, name), width, begin, width, 0);
    check_padding(gate_up, 1);
    snprintf(name, sizeof name, "%sdown_proj", folder);
    check_linear(expected, down, module_name(layer, name), 0, weights->spec.hidden, begin, width);
}

static void check_layer(const struct expected *expected, const struct weights *weights,
                        uint32_t i) {
    const struct model_spec *spec = &weights->spec;
    const struct layer_weights *layer = &weights->layer[i];
    uint32_t query = weights->heads * (spec->nope_dim + spec->rope_dim);
    uint32_t value = weights->heads * spec->value_dim;
    check_vector(expected, layer->input_norm, module_name(i, "input_layernorm"), ".weight");
    check_vector(expected, layer->post_norm, module_name(i, "post_attention_layernorm"), ".weight");
    if (spec->q_rank > 0) {
        check_linear(expected, &layer->q_a, module_name(i, "self_attn.q_a_proj"), 0, spec->q_rank,
                     0, spec->hidden);
        check_vector(expected, layer->q_a_norm, module_name(i, "self_attn.q_a_layernorm"),
                     ".weight");
        check_linear(expected, &layer->q_b, module_name(i, "self_attn.q_b_proj"),
                     weights->rank * query, query, 0, spec->q_rank);
    } else {
        assert_int_equal(layer->q_a.n, 0);
        check_linear(expected, &layer->q_b, module_name(i, "self_attn.q_proj"),
                     weights->rank * query, query, 0, spec->hidden);
    }
    check_linear(expected, &layer->kv_a, module_name(i, "self_attn.kv_a_proj_with_mqa"), 0,
                 spec->kv_rank + spec->rope_dim, 0, spec->hidden);
    check_vector(expected, layer->kv_a_norm, module_name(i, "self_attn.kv_a_layernorm"), ".weight");
    check_kv_b(expected, weights, layer, module_name(i, "self_attn.kv_b_proj"));
    check_linear(expected, &layer->o, module_name(i, "self_attn.o_proj"), 0, spec->hidden,
                 weights->rank * value, value);
    assert_int_equal(layer->dense, i < spec->dense_layers);
    if (layer->dense) {
        check_mlp(expected, weights, &layer->mlp_gate_up, &layer->mlp_down, i, "mlp.",
                  spec->dense_width / weights->tp);
        assert_int_equal(layer->router.n, 0);
        assert_null(layer->experts);
        return;
    }
    check_linear(expected, &layer->router, module_name(i, "mlp.gate"), 0, spec->experts, 0,
                 spec->hidden);
    if (spec->scoring == MODEL_SCORING_SIGMOID)
        check_vector(expected, layer->router_bias,
                     module_name(i, "mlp.gate.e_score_correction_bias"), "");
    else
        assert_null(layer->router_bias);
    if (spec->shared_experts > 0)
        check_mlp(expected, weights, &layer->mlp_gate_up, &layer->mlp_down, i,
                  "mlp.shared_experts.", spec->shared_experts * spec->expert_width / weights->tp);
    else
        assert_int_equal(layer->mlp_down.n, 0);
    for (uint32_t e = 0; e < spec->experts; e++) {
        char folder[48];
        snprintf(folder, sizeof folder, "mlp.experts.%u.", e);
        check_mlp(expected, weights, &layer->experts[e].gate_up, &layer->experts[e].down, i, folder,
                  spec->expert_width / weights->tp);
    }
}

static void check_weights(const struct expected *expected, const struct weights *weights) {
    const struct model_spec *spec = &weights->spec;
    const struct store_tensor *embed = get(expected, "model.embed_tokens", ".weight");
    assert_int_equal(weights->vocab_begin, weights->rank * spec->vocab / weights->tp);
    assert_int_equal(weights->vocab_count, spec->vocab / weights->tp);
    assert_int_equal(weights->heads, spec->heads / weights->tp);
    assert_int_equal(weights->mlp_width, spec->dense_width / weights->tp);
    assert_int_equal(weights->expert_width, spec->expert_width / weights->tp);
    assert_int_equal(weights->shared_width,
                     spec->shared_experts * spec->expert_width / weights->tp);
    assert_int_equal(weights->embed_dtype, is(embed, "BF16") ? KERNEL_BF16 : KERNEL_F32);
    for (uint32_t row = 0; row < weights->vocab_count; row++)
        for (uint32_t i = 0; i < spec->hidden; i++) {
            size_t at = (size_t)row * spec->hidden + i;
            uint32_t bits = weights->embed_dtype == KERNEL_BF16
                                ? ((const uint16_t *)weights->embed)[at]
                                : ((const uint32_t *)weights->embed)[at];
            assert_int_equal(bits, stored_bits(embed, weights->vocab_begin + row, i));
        }
    for (uint32_t i = 0; i < spec->layers; i++)
        check_layer(expected, weights, i);
    check_vector(expected, weights->final_norm, "model.norm", ".weight");
    check_linear(expected, &weights->head, "lm_head", weights->vocab_begin, weights->vocab_count, 0,
                 spec->hidden);
}

static void open_model(const char *folder, struct model_spec *spec,
                       struct safetensors **checkpoint) {
    struct error err;
    if (model_spec_load(folder, spec, &err) != STATUS_OK) fail_msg("%s", err.text);
    if (safetensors_open(folder, checkpoint, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void check_all_ranks(const char *folder, const struct expected *expected, uint32_t tp,
                            uint32_t threads) {
    struct model_spec spec;
    struct safetensors *checkpoint;
    open_model(folder, &spec, &checkpoint);
    for (uint32_t rank = 0; rank < tp; rank++) {
        struct weights_progress progress = {0};
        struct weights *weights = NULL;
        struct error err;
        if (weights_load(NULL, &spec, checkpoint, rank, tp, threads, &progress, &weights, &err) !=
            STATUS_OK)
            fail_msg("%s", err.text);
        check_weights(expected, weights);
        assert_true(progress.bytes_total > 0);
        assert_int_equal(progress.bytes, progress.bytes_total);
        assert_true(weights->bytes >= progress.bytes_total);
        weights_destroy(&weights);
        assert_null(weights);
    }
    safetensors_close(&checkpoint);
}

static void test_every_kind(void **state) {
    (void)state;
    for (uint32_t i = 0; i < model_kind_count; i++) {
        const struct model_kind *kind = &model_kinds[i];
        struct expected expected = {model_fixture_store(kind), kind->prefix, kind->drop_model};
        char folder[64];
        print_message("           %s\n", kind->name);
        model_fixture_write(kind, expected.store, folder);
        for (uint32_t tp = 1; tp <= TP_MAX; tp *= 2)
            check_all_ranks(folder, &expected, tp, tp % 3 + 1);
        folder_remove(folder);
        tensor_store_destroy(expected.store);
    }
}

static void test_embedded_model(void **state) {
    (void)state;
    struct expected expected = {tensor_store_create(), "", false};
    tensor_store_read(expected.store, EMBEDDED);
    check_all_ranks(EMBEDDED, &expected, 1, 4);
    check_all_ranks(EMBEDDED, &expected, 8, 1);
    tensor_store_destroy(expected.store);
}

/* The first tensor of large rows: columns too far apart to be read in one piece, and weights of
 * more than one task. */
static void test_large_rows(void **state) {
    (void)state;
    struct model_kind kind = model_kinds[0];
    struct expected expected = {model_fixture_store(&kind), kind.prefix, kind.drop_model};
    static const struct {
        const char *name;
        uint32_t rows, columns;
    } wide[] = {{"gate_proj", 40960, 64}, {"up_proj", 40960, 64}, {"down_proj", 64, 40960}};
    for (size_t i = 0; i < 3; i++) {
        char name[STORE_NAME_BYTES];
        snprintf(name, sizeof name, "model.layers.0.mlp.%s.weight", wide[i].name);
        tensor_store_remove(expected.store, name);
        tensor_store_add(expected.store, name, "BF16", wide[i].rows, wide[i].columns);
    }
    char folder[64];
    model_fixture_write(&kind, expected.store, folder);
    char *config = model_fixture_config(&kind);
    char *width = strstr(config, "\"intermediate_size\": 40,");
    assert_non_null(width);
    char *wider = NULL;
    assert_true(asprintf(&wider, "%.*s\"intermediate_size\": 40960,%s", (int)(width - config),
                         config, width + strlen("\"intermediate_size\": 40,")) > 0);
    folder_write(folder, "config.json", wider, strlen(wider));
    check_all_ranks(folder, &expected, 1, 3);
    check_all_ranks(folder, &expected, 8, 2);
    free(wider);
    free(config);
    folder_remove(folder);
    tensor_store_destroy(expected.store);
}

/* Each case spoils one tensor of the K2.5 kind; the line must name what `words` names. */
enum spoil {
    SPOIL_REMOVE,
    SPOIL_ADD,
    SPOIL_DTYPE,
    SPOIL_SHAPE,
    SPOIL_VALUE,
    SPOIL_TRANSPOSE,
    SPOIL_F32,  /* where its fellow is BF16 */
    SPOIL_INT4, /* where the shape or the use forbids it */
};

static void remake(struct tensor_store *store, const char *name, const char *dtype, uint32_t rows,
                   uint32_t columns) {
    tensor_store_remove(store, name);
    tensor_store_add(store, name, dtype, rows, columns);
}

static void spoil_tensor(struct tensor_store *store, enum spoil spoil, const char *name,
                         uint32_t value) {
    struct store_tensor *tensor = tensor_store_find(store, name);
    assert_int_equal(tensor == NULL, spoil == SPOIL_ADD);
    if (spoil == SPOIL_ADD) {
        tensor_store_add(store, name, "BF16", 0, value);
        return;
    }
    const struct store_tensor old = *tensor;
    uint32_t rows = old.dims == 2 ? (uint32_t)old.shape[0] : 0;
    uint32_t columns = (uint32_t)old.shape[old.dims - 1];
    char packed[STORE_NAME_BYTES + 8], scale[STORE_NAME_BYTES + 8];
    switch (spoil) {
    case SPOIL_REMOVE: tensor_store_remove(store, name); break;
    case SPOIL_ADD: break;
    case SPOIL_DTYPE: /* of as many bytes */
        snprintf(tensor->dtype, sizeof tensor->dtype, "%s",
                 is(tensor, "BF16")  ? "I16"
                 : is(tensor, "F32") ? "I32"
                                     : "I8");
        break;
    case SPOIL_SHAPE: remake(store, name, old.dtype, rows, value); break;
    case SPOIL_TRANSPOSE:
        tensor->shape[0] = columns;
        tensor->shape[1] = rows;
        break;
    case SPOIL_VALUE: ((uint16_t *)tensor->data)[1] = (uint16_t)value; break;
    case SPOIL_F32: remake(store, name, "F32", rows, columns); break;
    case SPOIL_INT4:
        snprintf(packed, sizeof packed, "%s_packed", name);
        snprintf(scale, sizeof scale, "%s_scale", name);
        tensor_store_remove(store, name);
        tensor_store_add(store, packed, "I32", rows, columns / 8);
        tensor_store_add(store, scale, "BF16", rows, columns / 32);
        break;
    }
}

#define LM "language_model.model."

struct spoiled {
    enum spoil spoil;
    const char *tensor;
    uint32_t value; /* bits to write, or columns to have */
    enum status status;
    const char *words[3];
};

static const struct model_kind *kind_named(const char *name) {
    for (uint32_t i = 0; i < model_kind_count; i++)
        if (strcmp(model_kinds[i].name, name) == 0) return &model_kinds[i];
    fail_msg("no kind is called %s", name);
    return NULL;
}

static enum status load_rank_0(const char *folder, uint32_t tp, struct error *err) {
    struct model_spec spec;
    struct safetensors *checkpoint;
    open_model(folder, &spec, &checkpoint);
    struct weights_progress progress = {0};
    struct weights *weights = NULL;
    enum status status = weights_load(NULL, &spec, checkpoint, 0, tp, 2, &progress, &weights, err);
    assert_int_equal(weights == NULL, status != STATUS_OK);
    weights_destroy(&weights);
    safetensors_close(&checkpoint);
    return status;
}

static void check_spoiled(const struct model_kind *kind, const struct spoiled *spoiled) {
    struct tensor_store *store = model_fixture_store(kind);
    struct error err = {0};
    char folder[64];
    spoil_tensor(store, spoiled->spoil, spoiled->tensor, spoiled->value);
    model_fixture_write(kind, store, folder);
    if (load_rank_0(folder, 1, &err) != spoiled->status)
        fail_msg("%s: %s", spoiled->tensor, err.text);
    for (size_t w = 0; w < 3 && spoiled->words[w]; w++)
        if (!strstr(err.text, spoiled->words[w]))
            fail_msg("\"%s\" is not in \"%s\"", spoiled->words[w], err.text);
    folder_remove(folder);
    tensor_store_destroy(store);
}

static void test_spoiled_fp8(void **state) {
    (void)state;
#define GATE "model.layers.0.mlp.gate_proj.weight"
#define KV_B "model.layers.2.self_attn.kv_b_proj.weight"
    static const struct spoiled cases[] = {
        {SPOIL_REMOVE, GATE "_scale_inv", 0, STATUS_NOT_FOUND, {GATE "_scale_inv", "lacks"}},
        {SPOIL_REMOVE, KV_B "_scale_inv", 0, STATUS_NOT_FOUND, {KV_B "_scale_inv", "lacks"}},
        {SPOIL_SHAPE, GATE "_scale_inv", 2, STATUS_INVALID_ARGUMENT, {GATE, "[8, 2]", "[8, 1]"}},
        {SPOIL_SHAPE, GATE, 65, STATUS_INVALID_ARGUMENT, {GATE, "[1000, 65]", "[1000, 64]"}},
        {SPOIL_DTYPE, GATE "_scale_inv", 0, STATUS_INVALID_ARGUMENT, {GATE, "I32", "F32"}},
        {SPOIL_DTYPE, GATE, 0, STATUS_INVALID_ARGUMENT, {GATE, "I8", "F8_E4M3"}},
        {SPOIL_F32, GATE, 0, STATUS_UNIMPLEMENTED, {GATE, "up_proj", "same for both"}},
        {SPOIL_VALUE, GATE, 0x7f12, STATUS_INVALID_ARGUMENT, {GATE, "[0, 3]", "NaN"}},
        {SPOIL_VALUE, KV_B, 0x12ff, STATUS_INVALID_ARGUMENT, {KV_B, "[0, 2]", "NaN"}},
        /* the upper half of the first scale: NaN, and 2^119 */
        {SPOIL_VALUE,
         GATE "_scale_inv",
         0x7fc0,
         STATUS_INVALID_ARGUMENT,
         {GATE "_scale", "[0, 0]"}},
        {SPOIL_VALUE, GATE "_scale_inv", 0xfb00, STATUS_INVALID_ARGUMENT, {"[0, 0]", "2^119"}},
        {SPOIL_VALUE,
         KV_B "_scale_inv",
         0x7f80,
         STATUS_INVALID_ARGUMENT,
         {KV_B "_scale", "[0, 0]"}},
        {SPOIL_REMOVE, GATE, 0, STATUS_NOT_FOUND, {GATE ",", "lacks"}},
        {SPOIL_ADD,
         "model.layers.1.mlp.gate.weight_scale_inv",
         1,
         STATUS_INVALID_ARGUMENT,
         {"mlp.gate.weight_scale_inv", "not part"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_spoiled(kind_named("fp8"), &cases[i]);
}

/* 64 inputs are two groups: two ranks have one each, four would split them. */
static void test_groups_over_ranks(void **state) {
    (void)state;
    const struct model_kind *kind = kind_named("k25");
    struct tensor_store *store = model_fixture_store(kind);
    char folder[64];
    struct error err = {0};
    spoil_tensor(store, SPOIL_INT4, LM "layers.0.self_attn.o_proj.weight", 0);
    model_fixture_write(kind, store, folder);
    assert_int_equal(load_rank_0(folder, 1, &err), STATUS_OK);
    assert_int_equal(load_rank_0(folder, 2, &err), STATUS_OK);
    assert_int_equal(load_rank_0(folder, 4, &err), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "o_proj.weight_packed"));
    assert_non_null(strstr(err.text, "tp 4"));
    assert_non_null(strstr(err.text, "accepted tp: 1, 2"));
    folder_remove(folder);
    tensor_store_destroy(store);
}

static void test_spoiled_checkpoints(void **state) {
    (void)state;
    static const struct spoiled cases[] = {
        {SPOIL_REMOVE, LM "norm.weight", 0, STATUS_NOT_FOUND, {"model.norm.weight", "lacks"}},
        {SPOIL_REMOVE, "language_model.lm_head.weight", 0, STATUS_NOT_FOUND, {"lm_head.weight"}},
        {SPOIL_REMOVE,
         LM "layers.2.self_attn.kv_b_proj.weight",
         0,
         STATUS_NOT_FOUND,
         {"layers.2.self_attn.kv_b_proj.weight"}},
        {SPOIL_REMOVE,
         LM "layers.1.mlp.gate.e_score_correction_bias",
         0,
         STATUS_NOT_FOUND,
         {"layers.1.mlp.gate.e_score_correction_bias"}},
        {SPOIL_REMOVE,
         LM "layers.2.mlp.experts.1.up_proj.weight_scale",
         0,
         STATUS_NOT_FOUND,
         {"experts.1.up_proj.weight_scale"}},
        {SPOIL_REMOVE,
         LM "layers.2.mlp.experts.1.up_proj.weight_packed",
         0,
         STATUS_NOT_FOUND,
         {"experts.1.up_proj.weight"}},
        {SPOIL_ADD,
         LM "layers.0.self_attn.q_proj.weight",
         64,
         STATUS_INVALID_ARGUMENT,
         {"layers.0.self_attn.q_proj.weight", "not part of the model"}},
        {SPOIL_ADD,
         LM "layers.1.mlp.experts.3.gate_proj.weight",
         64,
         STATUS_INVALID_ARGUMENT,
         {"experts.3.gate_proj.weight", "not part"}},
        {SPOIL_ADD,
         LM "layers.1.mlp.experts.0.gate_proj.weight",
         64,
         STATUS_INVALID_ARGUMENT,
         {"experts.0.gate_proj.weight", "not part"}},
        {SPOIL_ADD, "lm_head.weight", 64, STATUS_INVALID_ARGUMENT, {"lm_head.weight", "not part"}},
        {SPOIL_ADD, LM "layers.2x.norm.weight", 64, STATUS_INVALID_ARGUMENT, {"layers.2x.norm"}},
        {SPOIL_DTYPE,
         LM "layers.0.self_attn.o_proj.weight",
         0,
         STATUS_INVALID_ARGUMENT,
         {"self_attn.o_proj.weight", "I16", "BF16, F16, F32 or F8_E4M3"}},
        {SPOIL_DTYPE,
         LM "embed_tokens.weight",
         0,
         STATUS_INVALID_ARGUMENT,
         {"embed_tokens.weight", "I16", "BF16, F16 or F32"}},
        {SPOIL_DTYPE,
         LM "layers.1.mlp.experts.2.down_proj.weight_scale",
         0,
         STATUS_INVALID_ARGUMENT,
         {"experts.2.down_proj.weight_scale", "I16", "BF16"}},
        {SPOIL_DTYPE,
         LM "layers.0.input_layernorm.weight",
         0,
         STATUS_INVALID_ARGUMENT,
         {"layers.0.input_layernorm.weight", "I16", "BF16, F16 or F32"}},
        {SPOIL_SHAPE,
         LM "layers.0.self_attn.q_a_proj.weight",
         63,
         STATUS_INVALID_ARGUMENT,
         {"self_attn.q_a_proj.weight", "[48, 63]", "[48, 64]"}},
        {SPOIL_SHAPE,
         LM "layers.1.mlp.experts.0.gate_proj.weight_packed",
         9,
         STATUS_INVALID_ARGUMENT,
         {"gate_proj.weight_packed", "[256, 9]", "[256, 8]"}},
        {SPOIL_SHAPE,
         LM "layers.1.mlp.experts.0.gate_proj.weight_scale",
         3,
         STATUS_INVALID_ARGUMENT,
         {"gate_proj.weight_scale", "[256, 3]", "[256, 2]"}},
        {SPOIL_SHAPE,
         LM "norm.weight",
         65,
         STATUS_INVALID_ARGUMENT,
         {"model.norm.weight", "[65]", "[64]"}},
        {SPOIL_TRANSPOSE,
         LM "layers.1.mlp.gate.weight",
         0,
         STATUS_INVALID_ARGUMENT,
         {"layers.1.mlp.gate.weight", "[64, 3]", "[3, 64]"}},
        {SPOIL_VALUE,
         LM "layers.1.mlp.gate.e_score_correction_bias",
         0x7fc0, /* the upper half of the first value */
         STATUS_INVALID_ARGUMENT,
         {"e_score_correction_bias", "[0, 0]"}},
        {SPOIL_F32,
         LM "layers.0.mlp.up_proj.weight",
         0,
         STATUS_UNIMPLEMENTED,
         {"mlp.gate_proj.weight", "mlp.up_proj.weight", "same for both"}},
        {SPOIL_INT4,
         LM "layers.0.self_attn.q_b_proj.weight",
         0,
         STATUS_UNIMPLEMENTED,
         {"q_b_proj.weight_packed", "48 inputs", "multiple of 32"}},
        {SPOIL_INT4,
         LM "layers.0.self_attn.kv_b_proj.weight",
         0,
         STATUS_NOT_FOUND,
         {"kv_b_proj.weight,", "lacks"}},
        {SPOIL_INT4,
         LM "layers.1.mlp.gate.weight",
         0,
         STATUS_NOT_FOUND,
         {"mlp.gate.weight,", "lacks"}},
        {SPOIL_VALUE,
         LM "layers.1.mlp.experts.2.down_proj.weight_scale",
         0x7fc0,
         STATUS_INVALID_ARGUMENT,
         {"experts.2.down_proj.weight_scale", "[0, 1]", "NaN"}},
        {SPOIL_VALUE,
         LM "layers.2.post_attention_layernorm.weight",
         0xff80,
         STATUS_INVALID_ARGUMENT,
         {"layers.2.post_attention_layernorm.weight", "infinite"}},
        {SPOIL_VALUE,
         LM "layers.2.self_attn.q_b_proj.weight",
         0x7f80,
         STATUS_INVALID_ARGUMENT,
         {"layers.2.self_attn.q_b_proj.weight", "[0, 1]"}},
        {SPOIL_VALUE,
         LM "embed_tokens.weight",
         0x7f81,
         STATUS_INVALID_ARGUMENT,
         {"embed_tokens.weight", "[0, 1]"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_spoiled(kind_named("k25"), &cases[i]);
}

/* What happens to the files between looking at them and reading them. */
static void test_files_that_change(void **state) {
    (void)state;
    static const struct {
        enum change { SHRINKS, VANISHES, GROWS, IS_WRITTEN, IS_REPLACED } change;
        enum status status;
        const char *words;
    } cases[] = {
        {SHRINKS, STATUS_DATA_LOSS, "shrank from"},
        {VANISHES, STATUS_NOT_FOUND, "cannot be opened"},
        {GROWS, STATUS_DATA_LOSS, "grew from"},
        {IS_WRITTEN, STATUS_DATA_LOSS, "was written to"},
        {IS_REPLACED, STATUS_DATA_LOSS, "was replaced by another file"},
    };
    const struct model_kind *kind = &model_kinds[1];
    struct tensor_store *store = model_fixture_store(kind);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[64];
        char path[128];
        struct model_spec spec;
        struct safetensors *checkpoint;
        model_fixture_write(kind, store, folder);
        open_model(folder, &spec, &checkpoint);
        snprintf(path, sizeof path, "%s/model-00002-of-00003.safetensors", folder);
        size_t bytes;
        char *text = file_text(path, &bytes);
        const struct timespec long_ago[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
        switch (cases[i].change) {
        case SHRINKS: assert_int_equal(truncate(path, (off_t)bytes / 2), 0); break;
        case VANISHES: assert_int_equal(unlink(path), 0); break;
        case GROWS: assert_int_equal(truncate(path, (off_t)bytes + 1), 0); break;
        case IS_WRITTEN: assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0); break;
        case IS_REPLACED: {
            char old[160];
            snprintf(old, sizeof old, "%s.old", path); /* it keeps its inode from being reused */
            assert_int_equal(rename(path, old), 0);
            folder_write(folder, "model-00002-of-00003.safetensors", text, bytes);
            break;
        }
        }
        free(text);
        struct weights_progress progress = {0};
        struct weights *weights = NULL;
        struct error err = {0};
        enum status status = weights_load(NULL, &spec, checkpoint, 0, 1, 2, &progress, &weights,
                                          &err);
        assert_int_equal(status, cases[i].status);
        assert_non_null(strstr(err.text, cases[i].words));
        assert_non_null(strstr(err.text, "model-00002-of-00003.safetensors"));
        safetensors_close(&checkpoint);
        folder_remove(folder);
    }
    tensor_store_destroy(store);
}

static void test_refusals_before_reading(void **state) {
    (void)state;
    struct model_spec spec;
    struct safetensors *checkpoint;
    struct weights_progress progress = {.cancel = 1};
    struct weights *weights = NULL;
    struct error err = {0};
    open_model(EMBEDDED, &spec, &checkpoint);
    assert_int_equal(weights_load(NULL, &spec, checkpoint, 0, 1, 2, &progress, &weights, &err),
                     STATUS_CANCELLED);
    assert_null(weights);
    assert_int_equal(weights_load(NULL, &spec, checkpoint, 0, 3, 2, &progress, &weights, &err),
                     STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "tp: found 3"));
    spec.quantization = MODEL_QUANT_NONE;
    assert_int_equal(weights_load(NULL, &spec, checkpoint, 0, 1, 2, &progress, &weights, &err),
                     STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "quantization_config"));
    safetensors_close(&checkpoint);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind),        cmocka_unit_test(test_embedded_model),
        cmocka_unit_test(test_large_rows),        cmocka_unit_test(test_spoiled_checkpoints),
        cmocka_unit_test(test_spoiled_fp8),       cmocka_unit_test(test_groups_over_ranks),
        cmocka_unit_test(test_files_that_change), cmocka_unit_test(test_refusals_before_reading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
