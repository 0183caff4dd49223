#include "mla_expanded/mla_expanded.h"

#include <math.h>
#include <string.h>

#include "flushed.h"
#include "kv_store/kv_value.h"

/* What products and the workspace take of a value. */
static float take(const struct mla_expanded_args *args, float x) {
    return args->activation == KERNEL_BF16 ? flushed_bf16(x) : x;
}

/* linear.h's dot product; elements stand `stride` apart in b. */
static float dot(const struct mla_expanded_args *args, const float *a, const float *b,
                 size_t stride, size_t count) {
    float acc = 0.0f;
    if (args->activation == KERNEL_F32) {
        for (size_t i = 0; i < count; i++)
            acc = fmaf(a[i], b[i * stride], acc);
        return acc;
    }
    for (size_t pair = 0; pair < count; pair += 2)
        for (size_t i = pair + 2; i-- > pair;)
            if (i < count) acc = flushed_fma(take(args, a[i]), b[i * stride], acc);
    return acc;
}

/* Element (n, k) of a head's packed weight, as linear.h lays it out. */
static float element(const struct linear_weight *weight, size_t head, size_t n, size_t k) {
    const char *data = (const char *)weight->data +
                       head * linear_data_bytes(weight->format, weight->n, weight->k);
    if (weight->format == LINEAR_F32)
        return ((const float *)(const void *)data)[(n / 32 * weight->k + k) * 32 + n % 32];
    size_t pair = n / 32 * ((weight->k + 1) / 2) + k / 2;
    return bf16_to_f32(((const bf16 *)(const void *)data)[(pair * 32 + n % 32) * 2 + k % 2]);
}

static void read_token(const struct mla_expanded_args *args, const struct mla_sequence *seq,
                       uint32_t position, float *tok) {
    size_t dim = (size_t)args->latent_dim + args->rope_dim;
    size_t slot = (size_t)seq->page[position / args->page_tok] * args->page_tok +
                  position % args->page_tok;
    for (size_t i = 0; i < dim; i++)
        tok[i] = kv_value(args->kv, args->kv_dtype, args->latent_dim, args->rope_dim, slot, i);
}

/* tok [R + P] -> key [N + P] and value [V] of a head; w [R] is for a row of weights. */
static void expand(const struct mla_expanded_args *args, size_t head, const float *tok, float *w,
                   float *key, float *value) {
    for (size_t n = 0; n < args->nope_dim; n++) {
        for (size_t r = 0; r < args->latent_dim; r++)
            w[r] = element(&args->w_uk, head, r, n);
        key[n] = take(args, dot(args, tok, w, 1, args->latent_dim));
    }
    memcpy(key + args->nope_dim, tok + args->latent_dim, args->rope_dim * sizeof(float));
    for (size_t v = 0; v < args->value_dim; v++) {
        for (size_t r = 0; r < args->latent_dim; r++)
            w[r] = element(&args->w_uv, head, v, r);
        value[v] = take(args, dot(args, tok, w, 1, args->latent_dim));
    }
}

/* One row and one block: `seen` of its positions. */
static void attend(const struct mla_expanded_args *args, const float *q, const float *keys,
                   const float *values, uint32_t seen, float *max, float *sum, float *out) {
    size_t key_dim = args->nope_dim + args->rope_dim;
    float p[MLA_BLOCK_TOK] = {0}, lane[16] = {0}, block_max = -INFINITY;
    for (uint32_t j = 0; j < seen; j++) {
        p[j] = dot(args, q, keys + j * key_dim, 1, key_dim) * args->scale;
        block_max = p[j] > block_max ? p[j] : block_max;
    }
    for (uint32_t j = 0; j < seen; j++) {
        p[j] = take(args, expf(p[j] - block_max));
        lane[j % 16] = lane[j % 16] + p[j];
    }
    for (int apart = 8; apart > 0; apart /= 2)
        for (int l = 0; l < apart; l++)
            lane[l] = lane[l] + lane[l + apart];
    float merged_max = *max > block_max ? *max : block_max;
    float a = expf(*max - merged_max), b = expf(block_max - merged_max);
    for (size_t v = 0; v < args->value_dim; v++) {
        float of_block = dot(args, p, values + v, args->value_dim, MLA_BLOCK_TOK);
        out[v] = fmaf(out[v], a, of_block * b);
    }
    *sum = fmaf(*sum, a, lane[0] * b);
    *max = merged_max;
}

static void attend_chunk(const struct mla_expanded_args *args, const struct mla_sequence *seq,
                         size_t head, float *scratch) {
    size_t key_dim = args->nope_dim + args->rope_dim, value_dim = args->value_dim;
    float *tok = scratch, *w = tok + args->latent_dim + args->rope_dim;
    float *keys = w + args->latent_dim, *values = keys + MLA_BLOCK_TOK * key_dim;
    float *max = values + MLA_BLOCK_TOK * value_dim, *sum = max + seq->row_count;
    size_t stride = args->heads * value_dim;
    float *out = args->out + seq->row_begin * stride + head * value_dim;
    for (uint32_t row = 0; row < seq->row_count; row++) {
        memset(out + row * stride, 0, value_dim * sizeof(float));
        max[row] = -INFINITY;
        sum[row] = 0.0f;
    }
    uint32_t positions = seq->committed + seq->row_count;
    for (uint32_t begin = 0; begin < positions; begin += MLA_BLOCK_TOK) {
        memset(values, 0, MLA_BLOCK_TOK * value_dim * sizeof(float));
        for (uint32_t j = 0; j < MLA_BLOCK_TOK && begin + j < positions; j++) {
            read_token(args, seq, begin + j, tok);
            expand(args, head, tok, w, keys + j * key_dim, values + j * value_dim);
        }
        for (uint32_t row = 0; row < seq->row_count; row++) {
            uint32_t end = seq->committed + row + 1;
            if (end <= begin) continue;
            const float *q = args->q + (seq->row_begin + row) * args->q_row_stride +
                             head * args->q_head_stride;
            attend(args, q, keys, values, end - begin < MLA_BLOCK_TOK ? end - begin : MLA_BLOCK_TOK,
                   &max[row], &sum[row], out + row * stride);
        }
    }
    for (uint32_t row = 0; row < seq->row_count; row++)
        for (size_t v = 0; v < value_dim; v++)
            out[row * stride + v] = out[row * stride + v] / sum[row];
}

void mla_expanded_ref(const struct mla_expanded_args *args, struct kernel_ctx *ctx) {
    for (uint32_t s = 0; s < args->sequence_count; s++) {
        const struct mla_sequence *seq = &args->sequences[s];
        KERNEL_CHECK(!seq->ancestors && args->nope_dim % 2 == 0);
        KERNEL_CHECK(ctx->scratch_bytes >=
                     mla_expanded_scratch_bytes(1, seq->row_count, args->latent_dim, args->rope_dim,
                                                args->nope_dim, args->value_dim));
        for (uint32_t head = 0; head < args->heads; head++)
            attend_chunk(args, seq, head, ctx->scratch);
    }
}
