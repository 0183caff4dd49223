/* A block takes some queries of one sequence and one group (row by head of the group, rows
 * outermost), and walks over the positions they see, some at a time: keys into shared memory,
 * scores, running maximum and sum (FlashAttention, arXiv 2205.14135, algorithm 1), values into the
 * place of the keys, outputs. Meant for the few thousand positions of a drafter's window; what one
 * block walks is not split. */
extern "C" {
#include "gqa_block/gqa_block_cuda.h"
}

#include "cuda/block.cuh"
#include "cuda/math.cuh"

#define QUERIES         GQA_CUDA_QUERIES
#define TOKS            GQA_CUDA_TOKS
#define THREADS_A_QUERY (BLOCK_THREADS / QUERIES)
#define TOKS_A_THREAD   (TOKS / THREADS_A_QUERY)

/* Of a block, as gqa_block_cuda_shared_bytes has it. */
struct memory {
    float *query, *out, *tile, *weight, *max, *sum, *shrink;
    uint32_t line; /* of the tile: one more than a row, so that tokens lie in different banks */
};

static __device__ struct memory carve(uint32_t head_dim) {
    struct memory memory;
    memory.line = head_dim + 1;
    memory.query = (float *)device_shared();
    memory.out = memory.query + QUERIES * head_dim;
    memory.tile = memory.out + QUERIES * head_dim;
    memory.weight = memory.tile + TOKS * memory.line;
    memory.max = memory.weight + QUERIES * TOKS;
    memory.sum = memory.max + QUERIES;
    memory.shrink = memory.sum + QUERIES;
    return memory;
}

/* What this block works on. */
struct task {
    struct gqa_sequence seq;
    uint32_t group, heads;             /* of the group */
    uint32_t query_begin, query_count; /* of the sequence's row_count * heads */
};

struct range {
    uint32_t begin, end;
};

/* The positions that a row of the sequence sees. */
static __device__ struct range seen_by(const struct gqa_block_args &args, const struct task &task,
                                       uint32_t row) {
    uint32_t position = task.seq.committed + row;
    struct range range = {task.seq.context_begin,
                          args.causal ? position + 1 : task.seq.committed + task.seq.row_count};
    if (args.window > 0 && position + 1 > args.window && position + 1 - args.window > range.begin)
        range.begin = position + 1 - args.window;
    return range;
}

static __device__ size_t query_at(const struct gqa_block_args &args, const struct task &task,
                                  uint32_t query) {
    uint32_t of_sequence = task.query_begin + query;
    size_t row = task.seq.row_begin + of_sequence / task.heads;
    return (row * args.heads + task.group * task.heads + of_sequence % task.heads) * args.head_dim;
}

/* Keys (which 0) or values (1) of positions [begin, end) into the tile; zeros behind them. */
static __device__ void load_tile(const struct gqa_block_args &args, const struct task &task,
                                 const struct memory &memory, uint32_t which, uint32_t begin,
                                 uint32_t end) {
    for (uint32_t at = threadIdx.x; at < TOKS * args.head_dim; at += BLOCK_THREADS) {
        uint32_t tok = begin + at / args.head_dim, i = at % args.head_dim;
        float value = 0.0f;
        if (tok < end && tok >= task.seq.committed) {
            size_t row = (size_t)task.seq.row_begin + tok - task.seq.committed;
            value = (which == 0 ? args.k
                                : args.v)[(row * args.kv_heads + task.group) * args.head_dim + i];
        } else if (tok < end) {
            size_t slot = (size_t)task.seq.page[tok / args.page_tok] * args.page_tok +
                          tok % args.page_tok;
            size_t from = ((slot * 2 + which) * args.kv_heads + task.group) * args.head_dim + i;
            value = args.kv_dtype == KERNEL_F32 ? ((const float *)args.kv)[from]
                                                : device_from_bf16(((const bf16 *)args.kv)[from]);
        }
        memory.tile[at / args.head_dim * memory.line + i] = value;
    }
}

static __device__ void compute_scores(const struct gqa_block_args &args, const struct task &task,
                                      const struct memory &memory, uint32_t begin) {
    uint32_t tok = threadIdx.x % TOKS;
    for (uint32_t query = threadIdx.x / TOKS; query < QUERIES; query += BLOCK_THREADS / TOKS) {
        float score = -INFINITY;
        struct range seen = seen_by(args, task, (task.query_begin + query) / task.heads);
        if (query < task.query_count && begin + tok >= seen.begin && begin + tok < seen.end) {
            score = 0.0f;
            for (uint32_t i = 0; i < args.head_dim; i++)
                score = fmaf(memory.query[query * args.head_dim + i],
                             memory.tile[tok * memory.line + i], score);
            score = score * args.scale;
        }
        memory.weight[query * TOKS + tok] = score;
    }
}

/* Scores become weights. Threads of a query are neighbours in a warp. */
static __device__ void compute_weights(const struct memory &memory) {
    uint32_t query = threadIdx.x / THREADS_A_QUERY;
    float *score = memory.weight + query * TOKS + threadIdx.x % THREADS_A_QUERY * TOKS_A_THREAD;
    float old_max = memory.max[query], max = old_max, sum = 0.0f;
    for (uint32_t i = 0; i < TOKS_A_THREAD; i++)
        max = fmaxf(max, score[i]);
    for (uint32_t lanes = 1; lanes < THREADS_A_QUERY; lanes *= 2)
        max = fmaxf(max, device_shuffle_xor(max, lanes));
    for (uint32_t i = 0; i < TOKS_A_THREAD; i++) {
        score[i] = score[i] > -INFINITY ? math_exp(score[i] - max) : 0.0f;
        sum += score[i];
    }
    for (uint32_t lanes = 1; lanes < THREADS_A_QUERY; lanes *= 2)
        sum += device_shuffle_xor(sum, lanes);
    if (threadIdx.x % THREADS_A_QUERY > 0) return;
    float shrink = old_max > -INFINITY ? math_exp(old_max - max) : 0.0f;
    memory.shrink[query] = shrink;
    memory.sum[query] = fmaf(memory.sum[query], shrink, sum);
    memory.max[query] = max;
}

static __device__ void add_values(const struct gqa_block_args &args, const struct memory &memory) {
    for (uint32_t at = threadIdx.x; at < QUERIES * args.head_dim; at += BLOCK_THREADS) {
        uint32_t query = at / args.head_dim, i = at % args.head_dim;
        float part = 0.0f;
        for (uint32_t tok = 0; tok < TOKS; tok++)
            part = fmaf(memory.weight[query * TOKS + tok], memory.tile[tok * memory.line + i],
                        part);
        memory.out[at] = fmaf(memory.out[at], memory.shrink[query], part);
    }
}

static __device__ struct task find_task(const struct gqa_block_args &args) {
    struct task task;
    task.seq = args.sequences[blockIdx.z];
    task.group = blockIdx.y;
    task.heads = args.heads / args.kv_heads;
    task.query_begin = blockIdx.x * QUERIES;
    uint32_t queries = task.seq.row_count * task.heads;
    task.query_count = queries > task.query_begin ? queries - task.query_begin : 0;
    if (task.query_count > QUERIES) task.query_count = QUERIES;
    return task;
}

__global__ void __launch_bounds__(BLOCK_THREADS) gqa_block_queries(struct gqa_block_args args) {
    struct task task = find_task(args);
    if (task.query_count == 0) return;
    struct memory memory = carve(args.head_dim);
    for (uint32_t at = threadIdx.x; at < QUERIES * args.head_dim; at += BLOCK_THREADS) {
        uint32_t query = at / args.head_dim;
        memory.out[at] = 0.0f;
        memory.query[at] = query < task.query_count
                               ? args.q[query_at(args, task, query) + at % args.head_dim]
                               : 0.0f;
    }
    if (threadIdx.x < QUERIES) {
        memory.max[threadIdx.x] = -INFINITY;
        memory.sum[threadIdx.x] = 0.0f;
    }
    /* The first row sees the earliest position, the last one the latest. */
    uint32_t last = (task.query_begin + task.query_count - 1) / task.heads;
    uint32_t begin = seen_by(args, task, task.query_begin / task.heads).begin;
    uint32_t end = seen_by(args, task, last).end;
    for (uint32_t tok = begin; tok < end; tok += TOKS) {
        load_tile(args, task, memory, 0, tok, end);
        device_barrier();
        compute_scores(args, task, memory, tok);
        device_barrier();
        load_tile(args, task, memory, 1, tok, end);
        compute_weights(memory);
        device_barrier();
        add_values(args, memory);
        device_barrier();
    }
    for (uint32_t at = threadIdx.x; at < task.query_count * args.head_dim; at += BLOCK_THREADS) {
        uint32_t query = at / args.head_dim;
        args.out[query_at(args, task, query) + at % args.head_dim] = memory.out[at] /
                                                                     memory.sum[query];
    }
}

void gqa_block_cuda(const struct gqa_block_args *args, struct kernel_ctx *ctx) {
    KERNEL_CHECK(args->head_dim % 16 == 0 && args->heads % args->kv_heads == 0);
    if (args->sequence_count == 0) return;
    uint32_t queries = args->rows_max * (args->heads / args->kv_heads);
    launch(gqa_block_queries,
           dim3((queries + QUERIES - 1) / QUERIES, args->kv_heads, args->sequence_count),
           BLOCK_THREADS, gqa_block_cuda_shared_bytes(args->head_dim), ctx, *args);
}
