#include "naive_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct naive {
    const struct model_kind *kind;
    struct tensor_store *store;
    const struct model_spec *spec;
    uint32_t count; /* of tokens */
    double *x;      /* [count, D] */
};

static double *allocate(size_t count) {
    double *memory = calloc(count, sizeof *memory);
    assert_non_null(memory);
    return memory;
}

static struct store_tensor *find(const struct naive *naive, const char *module,
                                 const char *suffix) {
    char name[STORE_NAME_BYTES];
    bool drop = naive->kind->drop_model && strncmp(module, "model.", 6) == 0;
    snprintf(name, sizeof name, "%s%s%s", naive->kind->prefix, drop ? module + 6 : module, suffix);
    return tensor_store_find(naive->store, name);
}

/* A finite float of so many bits of exponent and mantissa. */
static double small_float(uint32_t code, int exponent_bits, int mantissa_bits) {
    int exponent = (int)(code >> mantissa_bits & ((1u << exponent_bits) - 1));
    double fraction = (code & ((1u << mantissa_bits) - 1)) / ldexp(1, mantissa_bits);
    int bias = (1 << (exponent_bits - 1)) - 1;
    double size = exponent ? ldexp(1 + fraction, exponent - bias) : ldexp(fraction, 1 - bias);
    return code >> (exponent_bits + mantissa_bits) & 1 ? -size : size;
}

static double element(const struct store_tensor *tensor, size_t i) {
    if (strcmp(tensor->dtype, "F32") == 0) return (double)((const float *)tensor->data)[i];
    if (strcmp(tensor->dtype, "F8_E4M3") == 0) return small_float(tensor->data[i], 4, 3);
    if (strcmp(tensor->dtype, "F16") == 0)
        return small_float(((const uint16_t *)tensor->data)[i], 5, 10);
    uint32_t bits = (uint32_t)((const uint16_t *)tensor->data)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* A tensor as stored, FP8 with a scale for each block of 128 by 128, or INT4 in groups of 32:
 * offset binary, the first input in the low nibble. */
static double *load(const struct naive *naive, size_t rows, size_t columns, const char *module) {
    double *out = allocate(rows * columns);
    const struct store_tensor *plain = find(naive, module, ".weight");
    if (plain) {
        const struct store_tensor *blocks = find(naive, module, ".weight_scale_inv");
        size_t stride = (columns + 127) / 128;
        for (size_t i = 0; i < rows * columns; i++) {
            size_t block = i / columns / 128 * stride + i % columns / 128;
            out[i] = element(plain, i) * (blocks ? element(blocks, block) : 1);
        }
        return out;
    }
    const struct store_tensor *packed = find(naive, module, ".weight_packed");
    const struct store_tensor *scale = find(naive, module, ".weight_scale");
    if (!packed || !scale) fail_msg("no %s", module);
    for (size_t i = 0; i < rows * columns; i++) {
        uint32_t word = ((const uint32_t *)packed->data)[i / 8];
        int nibble = (int)(word >> (4 * (i % 8)) & 15) - 8;
        out[i] = nibble * element(scale, i / 32);
    }
    return out;
}

static void multiply(const double *matrix, size_t rows, size_t columns, const double *x,
                     double *y) {
    for (size_t row = 0; row < rows; row++) {
        y[row] = 0;
        for (size_t i = 0; i < columns; i++)
            y[row] += matrix[row * columns + i] * x[i];
    }
}

static void norm(const struct naive *naive, const char *module, const double *x, size_t dim,
                 double eps, double *y) {
    double *weight = load(naive, 1, dim, module), sum = 0;
    for (size_t i = 0; i < dim; i++)
        sum += x[i] * x[i];
    for (size_t i = 0; i < dim; i++)
        y[i] = x[i] / sqrt(sum / (double)dim + eps) * weight[i];
    free(weight);
}

static void rotate(const struct naive *naive, double *x, uint32_t position) {
    uint32_t dim = naive->spec->rope_dim;
    for (uint32_t i = 0; i < dim / 2; i++) {
        double angle = position * pow(naive->spec->rope.theta, -2.0 * i / dim);
        double a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cos(angle) - b * sin(angle);
        x[2 * i + 1] = a * sin(angle) + b * cos(angle);
    }
}

static double *project(const struct naive *naive, size_t rows, size_t columns, const double *x,
                       uint32_t layer, const char *module) {
    char name[STORE_NAME_BYTES];
    snprintf(name, sizeof name, "model.layers.%u.%s", layer, module);
    double *matrix = load(naive, rows, columns, name), *y = allocate(rows);
    multiply(matrix, rows, columns, x, y);
    free(matrix);
    return y;
}

static void normalize(const struct naive *naive, double *x, size_t dim, double eps, uint32_t layer,
                      const char *module) {
    char name[STORE_NAME_BYTES];
    snprintf(name, sizeof name, "model.layers.%u.%s", layer, module);
    norm(naive, name, x, dim, eps, x);
}

/* Softmax over score[0, count), in place. */
static void softmax(double *score, uint32_t count) {
    double max = score[0], sum = 0;
    for (uint32_t i = 1; i < count; i++)
        max = score[i] > max ? score[i] : max;
    for (uint32_t i = 0; i < count; i++)
        sum += score[i] = exp(score[i] - max);
    for (uint32_t i = 0; i < count; i++)
        score[i] /= sum;
}

/* One head of one row against the keys and values of the rows before it and itself. */
static void attend(const struct naive *naive, const double *query, double *const *key_value,
                   double *const *rope_key, uint32_t head, uint32_t row, double *out) {
    const struct model_spec *spec = naive->spec;
    const uint32_t n = spec->nope_dim, p = spec->rope_dim, v = spec->value_dim;
    double *score = allocate(row + 1);
    for (uint32_t j = 0; j <= row; j++) {
        const double *key = key_value[j] + (size_t)head * (n + v);
        for (uint32_t i = 0; i < n; i++)
            score[j] += query[i] * key[i];
        for (uint32_t i = 0; i < p; i++)
            score[j] += query[n + i] * rope_key[j][i];
        score[j] /= sqrt(n + p);
    }
    softmax(score, row + 1);
    for (uint32_t j = 0; j <= row; j++)
        for (uint32_t i = 0; i < v; i++)
            out[i] += score[j] * key_value[j][(size_t)head * (n + v) + n + i];
    free(score);
}

static void attention(const struct naive *naive, uint32_t layer) {
    const struct model_spec *spec = naive->spec;
    const uint32_t dim = spec->hidden, heads = spec->heads, q = spec->nope_dim + spec->rope_dim;
    const uint32_t r = spec->kv_rank;
    double **key_value = calloc(naive->count, sizeof *key_value);
    double **latent = calloc(naive->count, sizeof *latent);
    double **rope_key = calloc(naive->count, sizeof *rope_key);
    double *h = allocate(dim);
    assert_true(key_value && latent && rope_key);
    for (uint32_t row = 0; row < naive->count; row++) {
        double *x = naive->x + (size_t)row * dim, *query;
        memcpy(h, x, dim * sizeof *h);
        normalize(naive, h, dim, (double)spec->norm_eps, layer, "input_layernorm");
        if (spec->q_rank > 0) {
            double *low = project(naive, spec->q_rank, dim, h, layer, "self_attn.q_a_proj");
            normalize(naive, low, spec->q_rank, 1e-6, layer, "self_attn.q_a_layernorm");
            query = project(naive, heads * q, spec->q_rank, low, layer, "self_attn.q_b_proj");
            free(low);
        } else {
            query = project(naive, heads * q, dim, h, layer, "self_attn.q_proj");
        }
        latent[row] = project(naive, r + spec->rope_dim, dim, h, layer,
                              "self_attn.kv_a_proj_with_mqa");
        rope_key[row] = latent[row] + r;
        normalize(naive, latent[row], r, 1e-6, layer, "self_attn.kv_a_layernorm");
        rotate(naive, rope_key[row], row);
        key_value[row] = project(naive, heads * (spec->nope_dim + spec->value_dim), r, latent[row],
                                 layer, "self_attn.kv_b_proj");
        double *out = allocate(heads * spec->value_dim);
        for (uint32_t head = 0; head < heads; head++) {
            rotate(naive, query + head * q + spec->nope_dim, row);
            attend(naive, query + head * q, key_value, rope_key, head, row,
                   out + head * spec->value_dim);
        }
        double *delta = project(naive, dim, heads * spec->value_dim, out, layer,
                                "self_attn.o_proj");
        for (uint32_t i = 0; i < dim; i++)
            x[i] += delta[i];
        free(delta);
        free(out);
        free(query);
    }
    for (uint32_t row = 0; row < naive->count; row++) {
        free(latent[row]);
        free(key_value[row]);
    }
    free(key_value);
    free(latent);
    free(rope_key);
    free(h);
}

/* out += weight * down(silu(gate h) * up h) */
static void gated(const struct naive *naive, const double *h, uint32_t width, uint32_t layer,
                  const char *part, double weight, double *out) {
    char name[STORE_NAME_BYTES];
    const uint32_t dim = naive->spec->hidden;
    snprintf(name, sizeof name, "mlp.%sgate_proj", part);
    double *gate = project(naive, width, dim, h, layer, name);
    snprintf(name, sizeof name, "mlp.%sup_proj", part);
    double *up = project(naive, width, dim, h, layer, name);
    for (uint32_t i = 0; i < width; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    snprintf(name, sizeof name, "mlp.%sdown_proj", part);
    double *down = project(naive, dim, width, gate, layer, name);
    for (uint32_t i = 0; i < dim; i++)
        out[i] += weight * down[i];
    free(gate);
    free(up);
    free(down);
}

static void routed(const struct naive *naive, const double *h, uint32_t layer, double *out) {
    const struct model_spec *spec = naive->spec;
    char name[STORE_NAME_BYTES];
    double *score = project(naive, spec->experts, spec->hidden, h, layer, "mlp.gate");
    if (naive->kind->v2)
        softmax(score, spec->experts);
    else
        for (uint32_t e = 0; e < spec->experts; e++)
            score[e] = 1 / (1 + exp(-score[e]));
    snprintf(name, sizeof name, "model.layers.%u.mlp.gate.e_score_correction_bias", layer);
    const struct store_tensor *bias = find(naive, name, "");
    bool chosen[MODEL_EXPERTS_MAX] = {false};
    double sum = 0;
    for (uint32_t k = 0; k < spec->topk; k++) {
        uint32_t best = UINT32_MAX;
        double best_value = 0;
        for (uint32_t e = 0; e < spec->experts; e++) {
            double value = score[e] + (bias ? element(bias, e) : 0);
            if (chosen[e] || (best != UINT32_MAX && value <= best_value)) continue;
            best = e;
            best_value = value;
        }
        chosen[best] = true;
        sum += score[best];
    }
    for (uint32_t e = 0; e < spec->experts; e++) {
        if (!chosen[e]) continue;
        snprintf(name, sizeof name, "experts.%u.", e);
        double weight = spec->renormalize ? score[e] / sum : score[e];
        gated(naive, h, spec->expert_width, layer, name, weight * (double)spec->routed_scale, out);
    }
    uint32_t shared = spec->shared_experts * spec->expert_width;
    if (shared > 0) gated(naive, h, shared, layer, "shared_experts.", 1, out);
    free(score);
}

static void mlp(const struct naive *naive, uint32_t layer) {
    const struct model_spec *spec = naive->spec;
    const uint32_t dim = spec->hidden;
    for (uint32_t row = 0; row < naive->count; row++) {
        double *x = naive->x + (size_t)row * dim, *h = allocate(dim);
        memcpy(h, x, dim * sizeof *h);
        normalize(naive, h, dim, (double)spec->norm_eps, layer, "post_attention_layernorm");
        if (layer < spec->dense_layers)
            gated(naive, h, spec->dense_width, layer, "", 1, x);
        else
            routed(naive, h, layer, x);
        free(h);
    }
}

void naive_model_logits(const struct model_kind *kind, struct tensor_store *store,
                        const struct model_spec *spec, const uint32_t *token, uint32_t count,
                        double *logits) {
    const uint32_t dim = spec->hidden;
    struct naive naive = {.kind = kind,
                          .store = store,
                          .spec = spec,
                          .count = count,
                          .x = allocate((size_t)count * dim)};
    double *embed = load(&naive, spec->vocab, dim, "model.embed_tokens");
    double *head = load(&naive, spec->vocab, dim, "lm_head");
    for (uint32_t row = 0; row < count; row++)
        memcpy(naive.x + (size_t)row * dim, embed + (size_t)token[row] * dim, dim * sizeof *embed);
    for (uint32_t layer = 0; layer < spec->layers; layer++) {
        attention(&naive, layer);
        mlp(&naive, layer);
    }
    for (uint32_t row = 0; row < count; row++) {
        double *x = naive.x + (size_t)row * dim;
        norm(&naive, "model.norm", x, dim, (double)spec->norm_eps, x);
        multiply(head, spec->vocab, dim, x, logits + (size_t)row * spec->vocab);
    }
    free(embed);
    free(head);
    free(naive.x);
}
