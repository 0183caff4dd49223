/* A task is one sequence and one group of heads: 64 tokens of the group's keys and values are
 * widened to f32 once and serve every row and every head of the group. */
#include "gqa_block/gqa_block.h"

#include "gqa_block/gqa_block_scratch.h"
#include "simd/f32x16_math.h"
#include "simd/isa.h"
#include "team.h"

struct job {
    const struct gqa_block_args *args;
    float *scratch;
};

/* One row and head, and the stretch of positions it sees. */
struct query {
    const float *q;
    float *out;
    float *max, *sum;
    uint32_t first, end;
};

static void run_task(void *arg, uint32_t task, uint32_t thread);
static struct query query_of(const struct gqa_block_args *args, const struct gqa_sequence *seq,
                             uint32_t group, uint32_t idx, float *state);
static void load_block(const struct gqa_block_args *args, const struct gqa_sequence *seq,
                       uint32_t group, uint32_t begin, uint32_t count, float *block);
static void attend_block(const struct query *query, uint32_t begin, const float *block,
                         uint32_t head_dim, float scale);

CPU_OP(gqa_block) {
    KERNEL_CHECK(args->head_dim % 16 == 0 && args->heads % args->kv_heads == 0);
    KERNEL_CHECK(args->page_tok >= 1);
    KERNEL_CHECK(ctx->scratch_bytes >=
                 gqa_block_scratch_bytes(team_threads(ctx->team), args->head_dim));
    for (uint32_t s = 0; s < args->sequence_count; s++) {
        const struct gqa_sequence *seq = &args->sequences[s];
        KERNEL_CHECK(seq->context_begin <= seq->committed);
        KERNEL_CHECK((uint64_t)seq->row_count * (args->heads / args->kv_heads) <= GQA_QUERIES_MAX);
    }
    struct job job = {.args = args, .scratch = ctx->scratch};
    team_run(ctx->team, run_task, &job, args->sequence_count * args->kv_heads);
}

static void run_task(void *arg, uint32_t task, uint32_t thread) {
    const struct job *job = arg;
    const struct gqa_block_args *args = job->args;
    const struct gqa_sequence *seq = &args->sequences[task / args->kv_heads];
    uint32_t group = task % args->kv_heads;
    uint32_t queries = seq->row_count * (args->heads / args->kv_heads);
    float *block = job->scratch + thread * gqa_block_scratch_floats(args->head_dim);
    float *state = block + 2 * (size_t)GQA_BLOCK_TOK * args->head_dim;

    uint32_t first = UINT32_MAX;
    for (uint32_t i = 0; i < queries; i++) {
        struct query query = query_of(args, seq, group, i, state);
        *query.max = -INFINITY;
        *query.sum = 0.0f;
        memset(query.out, 0, args->head_dim * sizeof(float));
        first = min_u32(first, query.first);
    }
    uint32_t end = seq->committed + seq->row_count;
    for (uint32_t begin = first / GQA_BLOCK_TOK * GQA_BLOCK_TOK; queries > 0 && begin < end;
         begin += GQA_BLOCK_TOK) {
        load_block(args, seq, group, begin, min_u32(end - begin, GQA_BLOCK_TOK), block);
        for (uint32_t i = 0; i < queries; i++) {
            struct query query = query_of(args, seq, group, i, state);
            attend_block(&query, begin, block, args->head_dim, args->scale);
        }
    }
    for (uint32_t i = 0; i < queries; i++) {
        struct query query = query_of(args, seq, group, i, state);
        f32x16 sum = f32x16_set1(*query.sum);
        for (uint32_t c = 0; c < args->head_dim; c += 16)
            f32x16_store(query.out + c, f32x16_div(f32x16_load(query.out + c), sum));
    }
}

static struct query query_of(const struct gqa_block_args *args, const struct gqa_sequence *seq,
                             uint32_t group, uint32_t idx, float *state) {
    uint32_t group_heads = args->heads / args->kv_heads;
    uint32_t row = idx / group_heads, head = group * group_heads + idx % group_heads;
    size_t at = (((size_t)seq->row_begin + row) * args->heads + head) * args->head_dim;
    uint32_t position = seq->committed + row;
    uint32_t first = seq->context_begin;
    if (args->window > 0 && position + 1 > args->window)
        first = max_u32(first, position + 1 - args->window);
    return (struct query){
        .q = args->q + at,
        .out = args->out + at,
        .max = state + idx,
        .sum = state + GQA_QUERIES_MAX + idx,
        .first = first,
        .end = args->causal ? position + 1 : seq->committed + seq->row_count,
    };
}

/* Keys [64, C], then values [64, C], of the positions [begin, begin + count). */
static void load_block(const struct gqa_block_args *args, const struct gqa_sequence *seq,
                       uint32_t group, uint32_t begin, uint32_t count, float *block) {
    size_t dim = args->head_dim, kv_dim = args->kv_heads * dim;
    for (uint32_t j = 0; j < count; j++) {
        uint32_t tok = begin + j;
        float *key = block + j * dim, *value = key + GQA_BLOCK_TOK * dim;
        if (tok < seq->context_begin) continue; /* nobody looks at it */
        if (tok >= seq->committed) {
            size_t at = ((size_t)seq->row_begin + tok - seq->committed) * kv_dim + group * dim;
            memcpy(key, args->k + at, dim * sizeof(float));
            memcpy(value, args->v + at, dim * sizeof(float));
            continue;
        }
        size_t slot = (size_t)seq->page[tok / args->page_tok] * args->page_tok +
                      tok % args->page_tok;
        size_t at = slot * 2 * kv_dim + group * dim;
        if (args->kv_dtype == KERNEL_F32) {
            memcpy(key, (const float *)args->kv + at, dim * sizeof(float));
            memcpy(value, (const float *)args->kv + at + kv_dim, dim * sizeof(float));
            continue;
        }
        const bf16 *from = (const bf16 *)args->kv + at;
        for (size_t i = 0; i < dim; i += 16) {
            f32x16_store(key + i, f32x16_load_bf16(from + i));
            f32x16_store(value + i, f32x16_load_bf16(from + kv_dim + i));
        }
    }
}

/* Sixteen scores from key j on; which of them count is the caller's to say. */
static void score16(const float *q, const float *keys, uint32_t head_dim, float scale,
                    float *scores) {
    f32x16 sums[16];
    F32X16_UNROLL
    for (uint32_t j = 0; j < 16; j++)
        sums[j] = f32x16_zero();
    for (uint32_t i = 0; i < head_dim; i += 16) {
        f32x16 value = f32x16_load(q + i);
        F32X16_UNROLL
        for (uint32_t j = 0; j < 16; j++)
            sums[j] = f32x16_fma(value, f32x16_load(keys + (size_t)j * head_dim + i), sums[j]);
    }
    f32x16_store(scores, f32x16_mul(f32x16_sum16(sums), f32x16_set1(scale)));
}

static void attend_block(const struct query *query, uint32_t begin, const float *block,
                         uint32_t head_dim, float scale) {
    uint32_t from = max_u32(query->first, begin), to = min_u32(query->end, begin + GQA_BLOCK_TOK);
    if (from >= to) return;
    from -= begin;
    to -= begin;
    float p[GQA_BLOCK_TOK], max = -INFINITY, sum = 0.0f;
    for (uint32_t j = from / 16 * 16; j < to; j += 16)
        score16(query->q, block + (size_t)j * head_dim, head_dim, scale, p + j);
    for (uint32_t j = from; j < to; j++)
        max = p[j] > max ? p[j] : max;
    for (uint32_t j = from / 16 * 16; j < to; j += 16)
        f32x16_store(p + j, f32x16_exp(f32x16_sub(f32x16_load(p + j), f32x16_set1(max))));
    for (uint32_t j = from; j < to; j++)
        sum = sum + p[j];

    float merged = *query->max > max ? *query->max : max;
    float factor[16] = {*query->max - merged, max - merged};
    f32x16_store(factor, f32x16_exp(f32x16_load(factor)));
    f32x16 keep = f32x16_set1(factor[0]), take = f32x16_set1(factor[1]);
    const float *values = block + (size_t)GQA_BLOCK_TOK * head_dim;
    for (uint32_t i = 0; i < head_dim; i += 16) {
        f32x16 part = f32x16_zero();
        for (uint32_t j = from; j < to; j++)
            part = f32x16_fma(f32x16_set1(p[j]), f32x16_load(values + (size_t)j * head_dim + i),
                              part);
        f32x16 out = f32x16_load(query->out + i);
        f32x16_store(query->out + i, f32x16_fma(out, keep, f32x16_mul(part, take)));
    }
    *query->sum = fmaf(*query->sum, factor[0], sum * factor[1]);
    *query->max = merged;
}
