#include "linear/linear_ref.h"

#include <math.h>

#include "e4m3_ref.h"
#include "flushed.h"

/* Element (n, k) of a packed weight as the header lays it out; of INT4 the integer, of FP8 the
 * code's value. */
static float element(const struct linear_weight *weight, size_t n, size_t k) {
    const uint8_t *bytes = weight->data;
    size_t at = n / 32 * weight->k + k; /* 32 elements of panel n/32 */
    if (weight->format == LINEAR_F32) return ((const float *)weight->data)[at * 32 + n % 32];
    if (weight->format == LINEAR_BF16) {
        size_t pair = n / 32 * ((weight->k + 1) / 2) + k / 2;
        return bf16_to_f32(((const bf16 *)weight->data)[(pair * 32 + n % 32) * 2 + k % 2]);
    }
    if (weight->format == LINEAR_FP8) return e4m3_value(bytes[at * 32 + n % 32]);
    uint8_t byte = bytes[(at - k % 4) * 16 + n % 16 * 4 + k % 2 * 2 + k % 4 / 2];
    return (float)((n % 32 < 16 ? byte & 15 : byte >> 4) - 8);
}

/* The scale of element (n, k), and where the group or block ends that shares it. */
static float scale_of(const struct linear_weight *weight, size_t n, size_t k, size_t *end_out) {
    if (weight->format == LINEAR_FP8) {
        size_t block = (weight->block_begin + k) / 128, room = weight->k / 128 + 2;
        *end_out = (block + 1) * 128 - weight->block_begin;
        return ((const float *)weight->scale)[(n / 32 * room + block) * 32 + n % 32];
    }
    size_t group = k / 32;
    *end_out = (group + 1) * 32;
    return bf16_to_f32(
        ((const bf16 *)weight->scale)[(n / 32 * (weight->k / 32) + group) * 32 + n % 32]);
}

/* Pairs begin at even k; one that the range cuts has one input. */
static float dot_of_pairs(const struct linear_weight *weight, const float *x, size_t n,
                          size_t k_begin, size_t k_end, float acc) {
    for (size_t k = k_begin & ~(size_t)1; k < k_end; k += 2)
        for (size_t i = k + 2; i-- > k;) {
            float value = i < k_begin || i >= k_end ? 0.0f : flushed_bf16(x[i]);
            acc = flushed_fma(value, i < weight->k ? element(weight, n, i) : 0.0f, acc);
        }
    return acc;
}

/* The share of one group: inputs [k_begin, k_end), which lie in it. */
static float dot_of_integers(const struct linear_weight *weight, const float *x, size_t n,
                             size_t k_begin, size_t k_end, float scale, float acc) {
    const float *group = x + k_begin / 32 * 32;
    float greatest = 0.0f;
    for (int i = 0; i < 32; i++) {
        if (!isfinite(group[i])) return NAN;
        greatest = fmaxf(greatest, fabsf(group[i]));
    }
    if (greatest < 0x1p-100f) return fmaf(0.0f, 0.0f * scale, acc);
    int sum = 0;
    for (size_t k = k_begin; k < k_end; k++)
        sum += (int)rintf(x[k] * (127.0f / greatest)) * (int)element(weight, n, k);
    return fmaf((float)sum, greatest / 127.0f * scale, acc);
}

/* Weights without scales, and FP8 ones dequantised. */
static float dot_of_weights(const struct linear_weight *weight, const float *x, size_t n,
                            size_t k_begin, size_t k_end) {
    float acc = 0.0f;
    for (size_t k = k_begin, end; k < k_end; k++) {
        float value = element(weight, n, k);
        if (weight->format == LINEAR_FP8) value *= scale_of(weight, n, k, &end);
        acc = fmaf(x[k], value, acc);
    }
    return acc;
}

float linear_ref_dot(const struct linear_weight *weight, enum kernel_dtype activation,
                     const float *x, size_t n, size_t k_begin, size_t k_end) {
    float acc = 0.0f;
    if (weight->format == LINEAR_BF16 && activation == KERNEL_BF16)
        return dot_of_pairs(weight, x, n, k_begin, k_end, acc);
    if (weight->format != LINEAR_INT4 && activation == KERNEL_F32)
        return dot_of_weights(weight, x, n, k_begin, k_end);
    for (size_t k = k_begin, end; k < k_end; k = end) {
        float part = 0.0f, scale = scale_of(weight, n, k, &end);
        if (end > k_end) end = k_end;
        if (activation == KERNEL_INT8) {
            acc = dot_of_integers(weight, x, n, k, end, scale, acc);
            continue;
        }
        if (activation == KERNEL_BF16) {
            acc = flushed_fma(dot_of_pairs(weight, x, n, k, end, part), scale, acc);
            continue;
        }
        for (size_t i = k; i < end; i++)
            part = fmaf(x[i], element(weight, n, i), part);
        acc = fmaf(part, scale, acc);
    }
    return acc;
}

void linear_ref(const struct linear_args *args, struct kernel_ctx *ctx) {
    (void)ctx;
    size_t segments = args->segments, k = args->weight.k, n_count = args->weight.n;
    KERNEL_CHECK(segments == 1 || segments == 2 || segments == 4 || segments == 8);
    KERNEL_CHECK(k % segments == 0);
    KERNEL_CHECK(args->weight.format != LINEAR_INT4 || k % 32 == 0);
    KERNEL_CHECK(!args->add || args->batch == 1);
    KERNEL_CHECK(linear_activation(args->weight.format, args->activation) == args->activation);

    for (size_t b = 0; b < args->batch; b++) {
        struct linear_weight weight = args->weight;
        weight.data = (const char *)weight.data +
                      b * linear_data_bytes(weight.format, weight.n, weight.k);
        if (weight.scale)
            weight.scale = (const char *)weight.scale +
                           b * linear_scale_bytes(weight.format, weight.n, weight.k);
        for (size_t t = 0; t < args->rows; t++) {
            const float *x = args->x + b * args->x_batch_stride + t * args->x_stride;
            float *y = args->y + b * args->y_batch_stride + t * args->y_stride;
            for (size_t n = 0; n < n_count; n++) {
                float part[KERNEL_SEGMENTS] = {0};
                for (size_t s = 0; s < segments; s++) {
                    part[s] = linear_ref_dot(&weight, args->activation, x, n, s * (k / segments),
                                             (s + 1) * (k / segments));
                    if (args->add)
                        part[s] = args->add[(s * args->rows + t) * n_count + n] + part[s];
                }
                for (size_t apart = 1; apart < segments; apart *= 2)
                    for (size_t s = 0; s < segments; s += 2 * apart)
                        part[s] = part[s] + part[s + apart];
                y[n] = part[0];
            }
        }
    }
}
