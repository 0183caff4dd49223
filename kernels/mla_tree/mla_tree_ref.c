#include "mla_tree/mla_tree.h"

#include <math.h>

#include "flushed.h"
#include "kv_store/kv_value.h"

static float cached(const struct mla_tree_args *args, size_t slot, size_t i) {
    return kv_value(args->kv, args->kv_dtype, args->latent_dim, args->rope_dim, slot, i);
}

/* The cache slot of position `position` as row `row` of the sequence sees it. */
static size_t slot_of(const struct mla_tree_args *args, const struct mla_sequence *seq,
                      uint32_t row, uint32_t position) {
    uint32_t tok = position;
    if (seq->ancestors && position >= seq->committed) {
        uint32_t skip = position - seq->committed;
        uint32_t member = 0;
        while (!(seq->ancestors[row] >> member & 1) || skip-- > 0)
            member++;
        tok = seq->committed + member;
    }
    return (size_t)seq->page[tok / args->page_tok] * args->page_tok + tok % args->page_tok;
}

static float score(const struct mla_tree_args *args, const float *q_latent, const float *q_rope,
                   size_t slot) {
    float lane[16] = {0};
    for (uint32_t i = 0; i < args->latent_dim; i++)
        lane[i % 16] = fmaf(q_latent[i], cached(args, slot, i), lane[i % 16]);
    for (uint32_t i = 0; i < args->rope_dim; i++)
        lane[i % 16] = fmaf(q_rope[i], cached(args, slot, args->latent_dim + i), lane[i % 16]);
    for (int apart = 8; apart > 0; apart /= 2)
        for (int l = 0; l < apart; l++)
            lane[l] = lane[l] + lane[l + apart];
    return lane[0] * args->scale;
}

/* The same with activation BF16. */
static float score_of_pairs(const struct mla_tree_args *args, const float *q_latent,
                            const float *q_rope, size_t slot) {
    float lane[16] = {0};
    for (uint32_t pair = 0; pair < (args->latent_dim + args->rope_dim) / 2; pair++)
        for (uint32_t i = 2 * pair + 2; i-- > 2 * pair;) {
            float q = i < args->latent_dim ? q_latent[i] : q_rope[i - args->latent_dim];
            lane[pair % 16] = flushed_fma(flushed_bf16(q), cached(args, slot, i), lane[pair % 16]);
        }
    for (int apart = 8; apart > 0; apart /= 2)
        for (int l = 0; l < apart; l++)
            lane[l] = flushed_fma(lane[l], 1.0f, lane[l + apart]);
    return flushed_fma(lane[0], args->scale, 0.0f);
}

/* Element i of o over the block's tokens. */
static float weigh(const struct mla_tree_args *args, const float *p, const size_t *slot,
                   uint32_t count, uint32_t i) {
    float o = 0.0f;
    for (uint32_t j = 0; j < count; j++) {
        if (args->activation == KERNEL_F32) {
            o = fmaf(p[j], cached(args, slot[j], i), o);
        } else if (j % 2 == 0) {
            if (j + 1 < count) o = flushed_fma(p[j + 1], cached(args, slot[j + 1], i), o);
            o = flushed_fma(p[j], cached(args, slot[j], i), o);
        }
    }
    return o;
}

static void attend(const struct mla_tree_args *args, const struct mla_sequence *seq, uint32_t row,
                   uint32_t head) {
    size_t t = (size_t)seq->row_begin + row;
    const float *q_latent = args->q_latent + (t * args->heads + head) * args->latent_dim;
    const float *q_rope = args->q_rope + t * args->q_rope_row_stride +
                          head * args->q_rope_head_stride;
    float *out = args->out + (t * args->heads + head) * args->latent_dim;
    uint32_t depth = row;
    if (seq->ancestors) depth = (uint32_t)__builtin_popcountll(seq->ancestors[row]) - 1;
    uint32_t positions = seq->committed + depth + 1;

    float max = -INFINITY, sum = 0.0f;
    for (uint32_t i = 0; i < args->latent_dim; i++)
        out[i] = 0.0f;

    for (uint32_t begin = 0; begin < positions; begin += MLA_BLOCK_TOK) {
        uint32_t count = positions - begin < MLA_BLOCK_TOK ? positions - begin : MLA_BLOCK_TOK;
        float p[MLA_BLOCK_TOK], lane[16] = {0};
        size_t slot[MLA_BLOCK_TOK];
        float block_max = -INFINITY;
        for (uint32_t j = 0; j < count; j++) {
            slot[j] = slot_of(args, seq, row, begin + j);
            p[j] = args->activation == KERNEL_BF16 ? score_of_pairs(args, q_latent, q_rope, slot[j])
                                                   : score(args, q_latent, q_rope, slot[j]);
            block_max = p[j] > block_max ? p[j] : block_max;
        }
        for (uint32_t j = 0; j < count; j++) {
            p[j] = expf(p[j] - block_max);
            if (args->activation == KERNEL_BF16) p[j] = flushed_bf16(p[j]);
            lane[j % 16] = lane[j % 16] + p[j];
        }
        for (int apart = 8; apart > 0; apart /= 2)
            for (int l = 0; l < apart; l++)
                lane[l] = lane[l] + lane[l + apart];
        float block_sum = lane[0];
        float merged_max = max > block_max ? max : block_max;
        float a = expf(max - merged_max), b = expf(block_max - merged_max);
        for (uint32_t i = 0; i < args->latent_dim; i++) {
            float block_out = weigh(args, p, slot, count, i);
            out[i] = fmaf(out[i], a, block_out * b);
        }
        sum = fmaf(sum, a, block_sum * b);
        max = merged_max;
    }
    for (uint32_t i = 0; i < args->latent_dim; i++)
        out[i] = out[i] / sum;
}

void mla_tree_ref(const struct mla_tree_args *args, struct kernel_ctx *ctx) {
    (void)ctx;
    KERNEL_CHECK(args->latent_dim % 16 == 0 && args->rope_dim % 16 == 0);
    for (uint32_t s = 0; s < args->sequence_count; s++)
        for (uint32_t row = 0; row < args->sequences[s].row_count; row++)
            for (uint32_t head = 0; head < args->heads; head++)
                attend(args, &args->sequences[s], row, head);
}
