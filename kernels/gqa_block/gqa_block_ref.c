#include "gqa_block/gqa_block.h"

#include <math.h>

/* Element i of a token's key (which 0) or value (1) in group g; tok is a position. */
static float element(const struct gqa_block_args *args, const struct gqa_sequence *seq, int which,
                     uint32_t tok, uint32_t g, uint32_t i) {
    if (tok >= seq->committed) {
        size_t row = (size_t)seq->row_begin + tok - seq->committed;
        const float *from = which == 0 ? args->k : args->v;
        return from[(row * args->kv_heads + g) * args->head_dim + i];
    }
    size_t slot = (size_t)seq->page[tok / args->page_tok] * args->page_tok + tok % args->page_tok;
    size_t at = ((slot * 2 + (size_t)which) * args->kv_heads + g) * args->head_dim + i;
    return args->kv_dtype == KERNEL_F32 ? ((const float *)args->kv)[at]
                                        : bf16_to_f32(((const bf16 *)args->kv)[at]);
}

static float score(const struct gqa_block_args *args, const struct gqa_sequence *seq,
                   const float *q, uint32_t tok, uint32_t g) {
    float lane[16] = {0};
    for (uint32_t i = 0; i < args->head_dim; i++)
        lane[i % 16] = fmaf(q[i], element(args, seq, 0, tok, g, i), lane[i % 16]);
    for (int apart = 8; apart > 0; apart /= 2)
        for (int l = 0; l < apart; l++)
            lane[l] = lane[l] + lane[l + apart];
    return lane[0] * args->scale;
}

static void attend(const struct gqa_block_args *args, const struct gqa_sequence *seq, uint32_t row,
                   uint32_t head) {
    size_t at = ((size_t)seq->row_begin + row) * args->heads + head;
    const float *q = args->q + at * args->head_dim;
    float *out = args->out + at * args->head_dim;
    uint32_t g = head / (args->heads / args->kv_heads);
    uint32_t position = seq->committed + row;
    uint32_t first = seq->context_begin;
    if (args->window > 0 && position + 1 > args->window && position + 1 - args->window > first)
        first = position + 1 - args->window;
    uint32_t end = args->causal ? position + 1 : seq->committed + seq->row_count;

    float max = -INFINITY, sum = 0.0f;
    for (uint32_t i = 0; i < args->head_dim; i++)
        out[i] = 0.0f;
    for (uint32_t begin = first / GQA_BLOCK_TOK * GQA_BLOCK_TOK; begin < end;
         begin += GQA_BLOCK_TOK) {
        uint32_t from = begin > first ? begin : first;
        uint32_t to = begin + GQA_BLOCK_TOK < end ? begin + GQA_BLOCK_TOK : end;
        float p[GQA_BLOCK_TOK], block_max = -INFINITY, block_sum = 0.0f;
        for (uint32_t tok = from; tok < to; tok++) {
            p[tok - begin] = score(args, seq, q, tok, g);
            block_max = p[tok - begin] > block_max ? p[tok - begin] : block_max;
        }
        for (uint32_t tok = from; tok < to; tok++) {
            p[tok - begin] = expf(p[tok - begin] - block_max);
            block_sum = block_sum + p[tok - begin];
        }
        float merged = max > block_max ? max : block_max;
        float a = expf(max - merged), b = expf(block_max - merged);
        for (uint32_t i = 0; i < args->head_dim; i++) {
            float part = 0.0f;
            for (uint32_t tok = from; tok < to; tok++)
                part = fmaf(p[tok - begin], element(args, seq, 1, tok, g, i), part);
            out[i] = fmaf(out[i], a, part * b);
        }
        sum = fmaf(sum, a, block_sum * b);
        max = merged;
    }
    for (uint32_t i = 0; i < args->head_dim; i++)
        out[i] = out[i] / sum;
}

void gqa_block_ref(const struct gqa_block_args *args, struct kernel_ctx *ctx) {
    (void)ctx;
    KERNEL_CHECK(args->head_dim % 16 == 0 && args->heads % args->kv_heads == 0);
    for (uint32_t s = 0; s < args->sequence_count; s++) {
        KERNEL_CHECK(args->sequences[s].context_begin <= args->sequences[s].committed);
        for (uint32_t row = 0; row < args->sequences[s].row_count; row++)
            for (uint32_t head = 0; head < args->heads; head++)
                attend(args, &args->sequences[s], row, head);
    }
}
