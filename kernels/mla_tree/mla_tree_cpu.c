/* A query is a row and a head; a group is up to 128 queries of one sequence, some rows and some
 * heads. An item is a group and a block of the cache: each page is read once for all the queries of
 * a group. What an item computes depends on nothing else, so items run in any order, on any thread;
 * only their merging has an order.
 *
 *     many groups   a task walks a group's blocks and merges each at once
 *     few groups    items are spread over the threads, as many at a time as there is room for their
 *                   results; then these are merged, each query by one thread, blocks ascending
 *
 * Rows of a chain see the same tokens at the same positions and differ in where they end. Rows of
 * a tree do so only up to the block in which the tree begins; from there on a row gathers its own
 * path. What a query computes never depends on which queries share its group. */
#include "mla_tree/mla_tree.h"

#include <stdbool.h>

#include "mla_tree/mla_block.h"
#include "mla_tree/mla_token.h"
#include "simd/f32x16_math.h"
#include "team.h"

#define PATH_MAX_TOK 64u
#define GROUP_NONE   UINT32_MAX

#define MERGE_MAX 16u /* blocks that are merged at once: a vector of factors */

struct group {
    const struct mla_sequence *seq;
    uint32_t row_begin, row_count; /* of the sequence */
    uint32_t head_begin, head_count;
    uint32_t block_count;
};

struct item {
    uint32_t group;
    uint32_t block;
};

struct job {
    const struct mla_tree_args *args;
    struct mla_tree_scratch scratch;
    uint32_t threads;
    struct mla_tree_split split;
    uint32_t group_count;
    uint32_t stride; /* from a thread's block to its next one, as a rule */
    size_t tok_bytes;
    uint32_t loaded[TEAM_THREADS_MAX]; /* the group whose queries a thread has; GROUP_NONE: none */
    uint32_t queries;      /* of the largest group */
    size_t partial_floats; /* from a waiting result to the next: those of so many queries */
    uint32_t waiting_max;  /* a thread */
    struct item item[TEAM_THREADS_MAX * MLA_WAITING_MAX]; /* of few groups, those under way */
    uint32_t item_count;
};

static void count_groups(struct job *job);
static struct group group_at(const struct job *job, uint32_t idx);
static void run_group(void *arg, uint32_t task, uint32_t thread);
static void run_split(struct job *job, struct kernel_team *team);
static void run_item(void *arg, uint32_t task, uint32_t thread);
static void run_merge(void *arg, uint32_t task, uint32_t thread);
static void load_queries_once(struct job *job, uint32_t group_idx, const struct group *group,
                              uint32_t thread);
static void load_queries(const struct job *job, const struct group *group, uint32_t thread);
static void attend(const struct job *job, const struct group *group, uint32_t block,
                   uint32_t thread, const struct mla_partial *partial);
static void merge(const struct job *job, const struct group *group, uint32_t query, uint32_t block,
                  const struct mla_partial *partial, uint32_t count,
                  const struct mla_partial *merged);

CPU_OP(mla_tree) {
    KERNEL_CHECK(args->latent_dim % 16 == 0 && args->rope_dim % 16 == 0);
    KERNEL_CHECK(
        args->activation == KERNEL_F32 ||
        (args->kv_dtype != KERNEL_F32 && args->latent_dim % 32 == 0 && args->rope_dim % 32 == 0));
    KERNEL_CHECK(args->heads >= 1 && args->page_tok >= 1);
    struct job job;
    job.args = args;
    job.threads = team_threads(ctx->team);
    job.tok_bytes = kv_tok_bytes(args->kv_dtype, args->latent_dim, args->rope_dim);
    KERNEL_CHECK(mla_tree_scratch_lay(&job.scratch, ctx->scratch, job.threads, args->latent_dim,
                                      args->rope_dim) <= ctx->scratch_bytes);
    job.split = mla_tree_split(args);
    count_groups(&job);
    bool split = job.threads > 1 && job.group_count < MLA_SPLIT_GROUPS * job.threads;
    job.stride = split ? job.threads : 1;
    if (!split)
        team_run(ctx->team, run_group, &job, job.group_count);
    else
        run_split(&job, ctx->team);
}

static void count_groups(struct job *job) {
    const struct mla_tree_args *args = job->args;
    uint32_t rows = 0;
    job->group_count = 0;
    for (uint32_t s = 0; s < args->sequence_count; s++) {
        job->group_count += mla_tree_groups(&job->split, &args->sequences[s]);
        if (args->sequences[s].row_count > rows) rows = args->sequences[s].row_count;
    }
    job->queries = max_u32(min_u32(rows, job->split.rows), 1) * job->split.heads;
    job->partial_floats = job->queries * ((size_t)args->latent_dim + 2);
    job->waiting_max = min_u32(MLA_WAITING * MLA_QUERIES / job->queries, MLA_WAITING_MAX);
}

static uint32_t positions_of(const struct mla_sequence *seq, uint32_t row) {
    if (!seq->ancestors) return seq->committed + row + 1;
    return seq->committed + (uint32_t)__builtin_popcountll(seq->ancestors[row]);
}

static struct group group_at(const struct job *job, uint32_t idx) {
    const struct mla_tree_split *split = &job->split;
    const struct mla_sequence *seq = job->args->sequences;
    for (uint32_t count; idx >= (count = mla_tree_groups(split, seq)); seq++)
        idx -= count;
    struct group group = {.seq = seq};
    group.row_begin = idx / split->head_parts * split->rows;
    group.row_count = min_u32(seq->row_count - group.row_begin, split->rows);
    group.head_begin = idx % split->head_parts * split->heads;
    group.head_count = min_u32(job->args->heads - group.head_begin, split->heads);
    for (uint32_t row = 0; row < group.row_count; row++) {
        uint32_t blocks = divide_up(positions_of(seq, group.row_begin + row), MLA_BLOCK_TOK);
        if (blocks > group.block_count) group.block_count = blocks;
    }
    return group;
}

static struct mla_partial partial_at(const struct job *job, float *base) {
    return (struct mla_partial){base, base + job->queries, base + (size_t)2 * job->queries};
}

static struct mla_partial partial_of(const struct job *job, uint32_t waiting) {
    return partial_at(job, job->scratch.partial + waiting * job->partial_floats);
}

static struct mla_partial merged_of(const struct job *job, uint32_t idx) {
    return partial_at(job, job->scratch.merged + idx * job->scratch.merged_floats);
}

static void run_group(void *arg, uint32_t task, uint32_t thread) {
    const struct job *job = arg;
    struct group group = group_at(job, task);
    struct mla_partial partial = partial_of(job, thread), merged = merged_of(job, thread);
    load_queries(job, &group, thread);
    for (uint32_t block = 0; block < group.block_count; block++) {
        attend(job, &group, block, thread, &partial);
        for (uint32_t q = 0; q < group.row_count * group.head_count; q++)
            merge(job, &group, q, block, &partial, 1, &merged);
    }
}

/* ============================== few groups ==================================================== */

static void run_split(struct job *job, struct kernel_team *team) {
    const uint32_t room = job->threads * job->waiting_max;
    job->item_count = 0;
    for (uint32_t i = 0; i < job->threads; i++)
        job->loaded[i] = GROUP_NONE;
    for (uint32_t g = 0; g < job->group_count; g++) {
        struct group group = group_at(job, g);
        for (uint32_t block = 0; block < group.block_count; block++) {
            job->item[job->item_count++] = (struct item){g, block};
            bool last = g + 1 == job->group_count && block + 1 == group.block_count;
            if (job->item_count < room && !last) continue;
            team_run(team, run_item, job, job->item_count);
            team_run(team, run_merge, job, job->threads);
            job->item_count = 0;
        }
    }
}

static void run_item(void *arg, uint32_t task, uint32_t thread) {
    struct job *job = arg;
    const struct item *item = &job->item[task];
    struct group group = group_at(job, item->group);
    struct mla_partial partial = partial_of(job, task);
    load_queries_once(job, item->group, &group, thread);
    attend(job, &group, item->block, thread, &partial);
}

/* A task's share of every group's queries. */
static void run_merge(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    const struct job *job = arg;
    for (uint32_t i = 0, count; i < job->item_count; i += count) {
        const struct item *item = &job->item[i];
        for (count = 1; i + count < job->item_count && count < MERGE_MAX; count++)
            if (item[count].group != item->group) break;
        struct group group = group_at(job, item->group);
        struct mla_partial partial = partial_of(job, i), merged = merged_of(job, item->group);
        uint32_t queries = group.row_count * group.head_count;
        for (uint32_t q = task; q < queries; q += job->threads)
            merge(job, &group, q, item->block, &partial, count, &merged);
    }
}

/* ============================== a group and a block =========================================== */

static size_t out_at(const struct job *job, const struct group *group, uint32_t query) {
    size_t t = (size_t)group->seq->row_begin + group->row_begin + query / group->head_count;
    size_t head = group->head_begin + query % group->head_count;
    return (t * job->args->heads + head) * job->args->latent_dim;
}

/* A thread's items of a step are mostly of one group. */
static void load_queries_once(struct job *job, uint32_t group_idx, const struct group *group,
                              uint32_t thread) {
    if (job->loaded[thread] == group_idx) return;
    load_queries(job, group, thread);
    job->loaded[thread] = group_idx;
}

/* Latent and rope part of each query next to each other, as products take them. */
static void load_queries(const struct job *job, const struct group *group, uint32_t thread) {
    const struct mla_tree_args *args = job->args;
    uint32_t dim = args->latent_dim + args->rope_dim;
    char *to = job->scratch.query + thread * job->scratch.query_bytes;
    for (uint32_t q = 0; q < group->row_count * group->head_count; q++) {
        size_t t = (size_t)group->seq->row_begin + group->row_begin + q / group->head_count;
        size_t head = group->head_begin + q % group->head_count;
        const float *part[2] = {args->q_latent + out_at(job, group, q),
                                args->q_rope + t * args->q_rope_row_stride +
                                    head * args->q_rope_head_stride};
        for (uint32_t i = 0; i < dim; i += 16) {
            const float *from = i < args->latent_dim ? part[0] + i : part[1] + i - args->latent_dim;
            if (args->activation == KERNEL_F32)
                f32x16_store((float *)(void *)to + q * dim + i, f32x16_load(from));
            else if (i % 32 == 0)
                bf16x32_store((bf16 *)(void *)to + q * dim + i,
                              bf16x32_round(f32x16_load(from), f32x16_load(from + 16)));
        }
    }
}

/* The tokens of positions [begin, begin + count), where they lie in the cache. path: the tokens
 * behind the committed ones, or NULL where a position is its own token. */
static void find_tokens(const struct job *job, const struct mla_sequence *seq, const uint32_t *path,
                        uint32_t begin, uint32_t count, const void **tok_out) {
    const struct mla_tree_args *args = job->args;
    for (uint32_t j = 0; j < count; j++) {
        uint32_t tok = begin + j;
        if (path && tok >= seq->committed) tok = seq->committed + path[tok - seq->committed];
        size_t slot = (size_t)seq->page[tok / args->page_tok] * args->page_tok +
                      tok % args->page_tok;
        tok_out[j] = (const char *)args->kv + slot * job->tok_bytes;
    }
}

/* The same as products take them: a cache of another type than theirs is read into `block`. */
static void load_tokens(const struct job *job, const struct mla_sequence *seq, const uint32_t *path,
                        uint32_t begin, uint32_t count, float *block, const void **tok_out) {
    const struct mla_tree_args *args = job->args;
    uint32_t latent_dim = args->latent_dim, rope_dim = args->rope_dim;
    size_t dim = (size_t)latent_dim + rope_dim;
    find_tokens(job, seq, path, begin, count, tok_out);
    for (uint32_t j = 0; j < count && args->kv_dtype != args->activation; j++) {
        float *wide = block + j * dim;
        bf16 *narrow = (bf16 *)(void *)block + j * dim;
        if (args->activation == KERNEL_F32)
            mla_token_to_f32(args->kv_dtype, tok_out[j], latent_dim, rope_dim, wide);
        else
            mla_token_to_bf16(tok_out[j], latent_dim, rope_dim, narrow);
        tok_out[j] = args->activation == KERNEL_F32 ? (const void *)wide : narrow;
    }
    for (uint32_t j = count; j % 16 != 0; j++)
        tok_out[j] = tok_out[count - 1];
}

static uint32_t tokens_seen(uint32_t positions, uint32_t begin) {
    return positions > begin ? min_u32(positions - begin, MLA_BLOCK_TOK) : 0;
}

/* A tree's row at and behind the block in which the tree begins. */
static void attend_row(const struct job *job, const struct mla_sequence *seq, uint32_t row,
                       uint32_t begin, struct mla_block *block, float *loaded, float *weights,
                       const struct mla_partial *partial) {
    uint32_t path[PATH_MAX_TOK], depth = 0;
    for (uint64_t left = seq->ancestors[row]; left != 0; left &= left - 1)
        path[depth++] = (uint32_t)__builtin_ctzll(left);
    uint32_t count = tokens_seen(seq->committed + depth, begin);
    if (count == 0) return;
    load_tokens(job, seq, path, begin, count, loaded, block->tok);
    mla_block_attend(block, weights, partial);
}

static void attend(const struct job *job, const struct group *group, uint32_t block_idx,
                   uint32_t thread, const struct mla_partial *partial) {
    const struct mla_tree_args *args = job->args;
    const struct mla_tree_scratch *scratch = &job->scratch;
    const uint32_t begin = block_idx * MLA_BLOCK_TOK, heads = group->head_count;
    float *loaded = scratch->block + thread * scratch->block_floats;
    float *weights = scratch->weights + thread * scratch->weights_floats;
    char *query = scratch->query + thread * scratch->query_bytes;
    uint32_t seen[MLA_QUERIES], furthest = 0;
    for (uint32_t row = 0; row < group->row_count; row++) {
        uint32_t count = tokens_seen(positions_of(group->seq, group->row_begin + row), begin);
        furthest = count > furthest ? count : furthest;
        for (uint32_t h = 0; h < heads; h++)
            seen[row * heads + h] = count;
    }
    struct mla_block block = {
        .dtype = args->activation,
        .latent_dim = args->latent_dim,
        .rope_dim = args->rope_dim,
        .scale = args->scale,
        .query = query,
        .query_count = group->row_count * heads,
        .tok_count = seen,
    };
    if (!group->seq->ancestors || begin + MLA_BLOCK_TOK <= group->seq->committed) {
        load_tokens(job, group->seq, NULL, begin, furthest, loaded, block.tok);
        uint32_t ahead = begin + job->stride * MLA_BLOCK_TOK;
        if (args->activation == KERNEL_BF16 && ahead + MLA_BLOCK_TOK <= group->seq->committed) {
            find_tokens(job, group->seq, NULL, ahead, MLA_BLOCK_TOK, block.ahead);
            block.ahead_bytes = job->tok_bytes;
        }
        mla_block_attend(&block, weights, partial);
        return;
    }
    size_t query_bytes = scratch->query_bytes / MLA_QUERIES /
                         (args->activation == KERNEL_BF16 ? 2 : 1);
    block.query_count = heads;
    for (uint32_t row = 0; row < group->row_count; row++) {
        uint32_t first = row * heads;
        block.query = query + first * query_bytes;
        block.tok_count = seen + first;
        attend_row(job, group->seq, group->row_begin + row, begin, &block, loaded, weights,
                   &(struct mla_partial){partial->max + first, partial->sum + first,
                                         partial->values + (size_t)first * args->latent_dim});
    }
}

/* What the values so far are multiplied by when block b comes to them, and what its own are. */
static void merge_factors(const struct job *job, uint32_t query, const struct mla_partial *partial,
                          uint32_t count, const struct mla_partial *merged, float keep[MERGE_MAX],
                          float take[MERGE_MAX]) {
    float max = merged->max[query], sum = merged->sum[query];
    for (uint32_t b = 0; b < MERGE_MAX; b++)
        keep[b] = take[b] = 0.0f;
    for (uint32_t b = 0; b < count; b++) {
        float old_max = max, new_max = partial->max[b * job->partial_floats + query];
        max = old_max > new_max ? old_max : new_max;
        keep[b] = old_max - max;
        take[b] = new_max - max;
    }
    f32x16_store(keep, f32x16_exp(f32x16_load(keep)));
    f32x16_store(take, f32x16_exp(f32x16_load(take)));
    for (uint32_t b = 0; b < count; b++)
        sum = fmaf(sum, keep[b], partial->sum[b * job->partial_floats + query] * take[b]);
    merged->max[query] = max;
    merged->sum[query] = sum;
}

/* A query's parts of `count` blocks, the first of them `block`, into `merged` and out; after its
 * last block, the division. How many are merged at once changes no bit. partial: the first one. */
static void merge(const struct job *job, const struct group *group, uint32_t query, uint32_t block,
                  const struct mla_partial *partial, uint32_t count,
                  const struct mla_partial *merged) {
    uint32_t row = group->row_begin + query / group->head_count;
    uint32_t blocks = divide_up(positions_of(group->seq, row), MLA_BLOCK_TOK);
    if (block >= blocks) return;
    if (count > blocks - block) count = blocks - block;
    const uint32_t dim = job->args->latent_dim;
    float *out = job->args->out + out_at(job, group, query);
    if (block == 0) {
        merged->max[query] = -INFINITY;
        merged->sum[query] = 0.0f;
        memset(out, 0, dim * sizeof(float));
    }
    float keep[MERGE_MAX], take[MERGE_MAX];
    merge_factors(job, query, partial, count, merged, keep, take);
    const f32x16 by = f32x16_set1(merged->sum[query]);
    const bool last = block + count == blocks;
    const float *values = partial->values + (size_t)query * dim;
    for (uint32_t i = 0; i < dim; i += 16) {
        f32x16 o = f32x16_load(out + i);
        for (uint32_t b = 0; b < count; b++) {
            f32x16 value = f32x16_load(values + b * job->partial_floats + i);
            o = f32x16_fma(o, f32x16_set1(keep[b]), f32x16_mul(value, f32x16_set1(take[b])));
        }
        f32x16_store(out + i, last ? f32x16_div(o, by) : o);
    }
}
