#include "naive_drafter.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static double *allocate(size_t count) {
    double *memory = calloc(count, sizeof *memory);
    assert_non_null(memory);
    return memory;
}

/* BF16 or F32. */
static double element(const struct store_tensor *tensor, size_t i) {
    if (strcmp(tensor->dtype, "F32") == 0) return (double)((const float *)tensor->data)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)tensor->data)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

static const struct store_tensor *find(const struct naive_drafter *drafter, int layer,
                                       const char *module) {
    char name[STORE_NAME_BYTES];
    if (layer < 0)
        snprintf(name, sizeof name, "%s.weight", module);
    else
        snprintf(name, sizeof name, "layers.%d.%s.weight", layer, module);
    const struct store_tensor *tensor = tensor_store_find((struct tensor_store *)drafter->store,
                                                          name);
    if (!tensor) fail_msg("no %s", name);
    return tensor;
}

/* y = W x for a matrix of [rows, columns]. */
static void multiply(const struct store_tensor *matrix, size_t rows, size_t columns,
                     const double *x, double *y) {
    for (size_t row = 0; row < rows; row++) {
        y[row] = 0;
        for (size_t i = 0; i < columns; i++)
            y[row] += element(matrix, row * columns + i) * x[i];
    }
}

static void norm(const struct store_tensor *weight, size_t dim, double eps, const double *x,
                 double *y) {
    double sum = 0;
    for (size_t i = 0; i < dim; i++)
        sum += x[i] * x[i];
    for (size_t i = 0; i < dim; i++)
        y[i] = x[i] / sqrt(sum / (double)dim + eps) * element(weight, i);
}

static double frequency(const struct naive_drafter *drafter, uint32_t i) {
    double plain = pow(drafter->theta, -2.0 * i / drafter->head_dim);
    if (drafter->yarn_factor == 0) return plain;
    double bound[2];
    const double turns[2] = {32, 1};
    for (int k = 0; k < 2; k++)
        bound[k] = drafter->head_dim * log(drafter->yarn_context / (turns[k] * 2 * M_PI)) /
                   (2 * log(drafter->theta));
    double low = fmax(floor(bound[0]), 0), high = fmin(ceil(bound[1]), drafter->head_dim - 1);
    double ramp = fmin(fmax((i - low) / fmax(high - low, 0.001), 0), 1);
    return plain / drafter->yarn_factor * ramp + plain * (1 - ramp);
}

/* Norm and rotate one head in place. */
static void turn(const struct naive_drafter *drafter, const struct store_tensor *weight,
                 uint32_t position, double *x) {
    uint32_t half = drafter->head_dim / 2;
    norm(weight, drafter->head_dim, drafter->eps, x, x);
    for (uint32_t i = 0; i < half; i++) {
        double angle = position * frequency(drafter, i), a = x[i], b = x[half + i];
        x[i] = drafter->amplitude * (a * cos(angle) - b * sin(angle));
        x[half + i] = drafter->amplitude * (b * cos(angle) + a * sin(angle));
    }
}

/* Keys and values of one token from its feature (context) or its normed residual (block). */
static void key_value(const struct naive_drafter *drafter, int layer, uint32_t position,
                      const double *x, double *key, double *value) {
    uint32_t dim = drafter->head_dim, kv_dim = drafter->kv_heads * dim;
    multiply(find(drafter, layer, "self_attn.k_proj"), kv_dim, drafter->hidden, x, key);
    multiply(find(drafter, layer, "self_attn.v_proj"), kv_dim, drafter->hidden, x, value);
    for (uint32_t g = 0; g < drafter->kv_heads; g++)
        turn(drafter, find(drafter, layer, "self_attn.k_norm"), position, key + g * dim);
}

/* One row at position s + row looks at keys and values of positions [0, s + block). */
static void look(const struct naive_drafter *drafter, int layer, uint32_t s, uint32_t row,
                 const double *q, const double *key, const double *value, double *out) {
    uint32_t dim = drafter->head_dim, kv_dim = drafter->kv_heads * dim;
    uint32_t position = s + row, end = drafter->causal[layer] ? position + 1 : s + drafter->block;
    double *p = allocate(end);
    for (uint32_t h = 0; h < drafter->heads; h++) {
        uint32_t g = h / (drafter->heads / drafter->kv_heads);
        double total = 0;
        memset(out + h * dim, 0, dim * sizeof *out);
        for (uint32_t j = 0; j < end; j++) {
            uint32_t window = drafter->window[layer];
            if (window > 0 && j + window <= position) continue;
            double score = 0;
            for (uint32_t i = 0; i < dim; i++)
                score += q[h * dim + i] * key[j * kv_dim + g * dim + i];
            p[j] = exp(score / sqrt(dim));
            total += p[j];
            for (uint32_t i = 0; i < dim; i++)
                out[h * dim + i] += p[j] * value[j * kv_dim + g * dim + i];
        }
        for (uint32_t i = 0; i < dim; i++)
            out[h * dim + i] /= total;
    }
    free(p);
}

static void add_mlp(const struct naive_drafter *drafter, int layer, double *x) {
    uint32_t width = drafter->width, hidden = drafter->hidden;
    double *h = allocate(hidden), *gate = allocate(width), *up = allocate(width);
    norm(find(drafter, layer, "post_attention_layernorm"), hidden, drafter->eps, x, h);
    multiply(find(drafter, layer, "mlp.gate_proj"), width, hidden, h, gate);
    multiply(find(drafter, layer, "mlp.up_proj"), width, hidden, h, up);
    for (uint32_t i = 0; i < width; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    multiply(find(drafter, layer, "mlp.down_proj"), hidden, width, gate, h);
    for (uint32_t i = 0; i < hidden; i++)
        x[i] += h[i];
    free(h);
    free(gate);
    free(up);
}

/* x [block, D] through one layer; feature [s, D] is the context's. */
static void layer_forward(const struct naive_drafter *drafter, int layer, const double *feature,
                          uint32_t s, double *x) {
    uint32_t hidden = drafter->hidden, dim = drafter->head_dim, block = drafter->block;
    size_t kv_dim = drafter->kv_heads * dim, q_dim = drafter->heads * dim;
    double *key = allocate((s + block) * kv_dim), *value = allocate((s + block) * kv_dim);
    double *h = allocate(block * hidden), *q = allocate(q_dim), *o = allocate(q_dim);
    double *delta = allocate(hidden);
    for (uint32_t t = 0; t < s; t++)
        key_value(drafter, layer, t, feature + (size_t)t * hidden, key + t * kv_dim,
                  value + t * kv_dim);
    for (uint32_t row = 0; row < block; row++) {
        norm(find(drafter, layer, "input_layernorm"), hidden, drafter->eps,
             x + (size_t)row * hidden, h + (size_t)row * hidden);
        key_value(drafter, layer, s + row, h + (size_t)row * hidden, key + (s + row) * kv_dim,
                  value + (s + row) * kv_dim);
    }
    for (uint32_t row = 0; row < block; row++) {
        multiply(find(drafter, layer, "self_attn.q_proj"), q_dim, hidden, h + (size_t)row * hidden,
                 q);
        for (uint32_t head = 0; head < drafter->heads; head++)
            turn(drafter, find(drafter, layer, "self_attn.q_norm"), s + row, q + head * dim);
        look(drafter, layer, s, row, q, key, value, o);
        multiply(find(drafter, layer, "self_attn.o_proj"), hidden, q_dim, o, delta);
        for (uint32_t i = 0; i < hidden; i++)
            x[(size_t)row * hidden + i] += delta[i];
        add_mlp(drafter, layer, x + (size_t)row * hidden);
    }
    free(key);
    free(value);
    free(h);
    free(q);
    free(o);
    free(delta);
}

void naive_drafter_logits(const struct naive_drafter *drafter, const float *residual, uint32_t s,
                          uint32_t root, double *logits_out) {
    struct tensor_store *target = (struct tensor_store *)drafter->target;
    const struct store_tensor *embed = tensor_store_find(target, "model.embed_tokens.weight");
    const struct store_tensor *head = tensor_store_find(target, "lm_head.weight");
    assert_true(embed && head);
    size_t hidden = drafter->hidden;
    double *feature = allocate(s * hidden), *tap = allocate(drafter->tap_count * hidden);
    double *x = allocate(drafter->block * hidden);
    for (uint32_t t = 0; t < s; t++) {
        for (uint32_t i = 0; i < drafter->tap_count; i++)
            for (size_t d = 0; d < hidden; d++)
                tap[i * hidden + d] = (double)residual[(drafter->tap[i] * s + t) * hidden + d];
        multiply(find(drafter, -1, "fc"), hidden, drafter->tap_count * hidden, tap,
                 feature + t * hidden);
        norm(find(drafter, -1, "hidden_norm"), hidden, drafter->eps, feature + t * hidden,
             feature + t * hidden);
    }
    for (uint32_t row = 0; row < drafter->block; row++)
        for (size_t d = 0; d < hidden; d++)
            x[row * hidden + d] = element(embed, (row ? drafter->mask_token : root) * hidden + d);
    for (uint32_t layer = 0; layer < drafter->layers; layer++)
        layer_forward(drafter, (int)layer, feature, s, x);
    for (uint32_t row = 1; row < drafter->block; row++) {
        norm(find(drafter, -1, "norm"), hidden, drafter->eps, x + row * hidden, x + row * hidden);
        multiply(head, drafter->vocab, hidden, x + row * hidden,
                 logits_out + (size_t)(row - 1) * drafter->vocab);
    }
    free(feature);
    free(tap);
    free(x);
}
