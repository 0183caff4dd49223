/* A block: one tile of queries against one range of positions.
 *
 *     positions  ──▶ ring of stages in shared memory, by asynchronous copies, token by token
 *                     through the page table (any page size)
 *     scores     S = Q K^T    products of 16 queries x 8 positions, one or two a warp; where there
 *                             are fewer products than warps, warps share the inner dimension
 *     weights    P = 2^(S c - max), running maximum and sum a query, as FlashAttention does
 *                             (arXiv 2205.14135, algorithm 1)
 *     outputs    O = O 2^(old max - new max) + P V    an eighth of the columns a warp, in registers
 *
 * Three barriers a stage: after the copies landed, after S, after P. The first also says that
 * everybody is done with the stage that is filled next. */
extern "C" {
#include "mla_tree/mla_tree_cuda.h"
#include "mla_tree/mla_tree_tile.h"
}

#include "cuda/math.cuh"

struct split_args {
    struct mla_tree_args op;
    float *partial;      /* [splits, sequences, queries, R]: not yet divided by the sum */
    float *partial_stat; /* [splits, sequences, queries, 2]: maximum (in powers of 2), sum */
    uint32_t splits;
    uint32_t queries; /* rows_max * heads */
};

template <uint32_t Latent, uint32_t Rope, uint32_t Queries, uint32_t Tok, uint32_t Stages>
struct block {
    static constexpr uint32_t width = Latent + Rope;
    static constexpr uint32_t line = width + MLA_PAD;
    static constexpr uint32_t weight_line = Tok + MLA_PAD;
    static constexpr uint32_t query_groups = Queries / 16;
    static constexpr uint32_t tok_groups = Tok / 8;
    static constexpr uint32_t products = query_groups * tok_groups;
    static constexpr uint32_t inner_parts = products < MLA_WARPS ? MLA_WARPS / products : 1;
    static constexpr uint32_t products_a_warp = products < MLA_WARPS ? 1 : products / MLA_WARPS;
    static constexpr uint32_t warp_columns = Latent / MLA_WARPS;
    static constexpr uint32_t column_groups = warp_columns / 8;
    static constexpr uint32_t threads_a_query = MLA_CUDA_THREADS / Queries;
    static constexpr uint32_t tok_a_thread = Tok / threads_a_query;
    static_assert(products_a_warp <= 2 && tok_groups % products_a_warp == 0, "scores");
    static_assert(width % 16 == 0 && warp_columns % 16 == 0 && Tok % 16 == 0, "fragments");
    static_assert(tok_a_thread % 2 == 0 && threads_a_query <= WARP_LANES, "weights");

    bf16 *query;               /* [Queries, line] */
    bf16 *cache;               /* [Stages, Tok, line] */
    bf16 *weight;              /* [Queries, weight_line] */
    float *score;              /* [inner_parts, Queries, Tok] */
    float *max, *sum, *shrink; /* [Queries] each */

    DEVICE_INLINE void carve(unsigned char *shared) {
        query = (bf16 *)shared;
        cache = query + Queries * line;
        weight = cache + Stages * Tok * line;
        score = (float *)(weight + Queries * weight_line);
        max = score + inner_parts * Queries * Tok;
        sum = max + Queries;
        shrink = sum + Queries;
    }
};

/* What the block works on. */
struct task {
    struct mla_sequence seq;
    uint32_t query_begin, query_count; /* of the sequence's row_count * heads */
    uint32_t positions;                /* the last query's row sees fewer than this */
    uint32_t tok_begin, tok_end;       /* of this range */
};

template <uint32_t Tok, uint32_t Queries>
static __device__ struct task find_task(const struct split_args &args) {
    struct task task;
    task.seq = args.op.sequences[blockIdx.z];
    uint32_t queries = task.seq.row_count * args.op.heads;
    task.query_begin = blockIdx.y * Queries;
    task.query_count = 0;
    task.tok_begin = task.tok_end = 0;
    if (task.query_begin >= queries) return task;
    task.query_count = queries - task.query_begin < Queries ? queries - task.query_begin : Queries;
    uint32_t last_row = (task.query_begin + task.query_count - 1) / args.op.heads;
    uint32_t rows_seen = task.seq.ancestors ? task.seq.row_count : last_row + 1;
    task.positions = task.seq.committed + rows_seen;

    /* Ranges are cut for the whole sequence, so that all of its tiles read the same ones. */
    uint32_t stages = (task.seq.committed + task.seq.row_count + Tok - 1) / Tok;
    uint32_t stages_a_range = (stages + args.splits - 1) / args.splits;
    task.tok_begin = blockIdx.x * stages_a_range * Tok;
    task.tok_end = task.tok_begin + stages_a_range * Tok;
    if (task.tok_end > task.positions) task.tok_end = task.positions;
    if (task.tok_begin > task.tok_end) task.tok_begin = task.tok_end;
    return task;
}

/* Queries as bf16; absent ones are zero. */
template <uint32_t Latent, uint32_t Rope, uint32_t Queries, typename Block>
static __device__ void load_queries(const struct split_args &args, const struct task &task,
                                    const Block &block) {
    constexpr uint32_t pairs = (Latent + Rope) / 2;
    for (uint32_t i = threadIdx.x; i < Queries * pairs; i += MLA_CUDA_THREADS) {
        uint32_t query = i / pairs, column = i % pairs * 2;
        float low = 0.0f, high = 0.0f;
        if (query < task.query_count) {
            uint32_t of_sequence = task.query_begin + query;
            size_t row = task.seq.row_begin + of_sequence / args.op.heads;
            uint32_t head = of_sequence % args.op.heads;
            const float *from = column < Latent
                                    ? args.op.q_latent + (row * args.op.heads + head) * Latent +
                                          column
                                    : args.op.q_rope + row * args.op.q_rope_row_stride +
                                          head * args.op.q_rope_head_stride + (column - Latent);
            low = from[0];
            high = from[1];
        }
        *(uint32_t *)(block.query + query * Block::line + column) = device_pack_bf16(low, high);
    }
}

/* Begin to copy the positions from tok_begin into a stage; positions beyond the range become zero,
 * since a weight of zero does not silence a NaN. */
template <uint32_t Tok, uint32_t Stages, typename Block>
static __device__ void begin_stage(const struct split_args &args, const struct task &task,
                                   const Block &block, uint32_t tok_begin) {
    constexpr uint32_t chunks = Block::width / 8;
    bf16 *stage = block.cache + tok_begin / Tok % Stages * Tok * Block::line;
    for (uint32_t i = threadIdx.x; i < Tok * chunks; i += MLA_CUDA_THREADS) {
        uint32_t tok = i / chunks, chunk = i % chunks, position = tok_begin + tok;
        bool wanted = position < task.tok_end;
        size_t slot = 0;
        if (wanted)
            slot = (size_t)task.seq.page[position / args.op.page_tok] * args.op.page_tok +
                   position % args.op.page_tok;
        device_copy16(stage + tok * Block::line + chunk * 8,
                      (const bf16 *)args.op.kv + slot * Block::width + chunk * 8, wanted);
    }
}

/* block.score: this warp's products, over its part of the inner dimension. */
template <uint32_t Tok, uint32_t Queries, typename Block>
static __device__ void compute_scores(const Block &block, const bf16 *stage) {
    constexpr uint32_t steps = Block::width / 16;
    uint32_t warp = threadIdx.x / WARP_LANES, lane = threadIdx.x % WARP_LANES;
    uint32_t part = warp % Block::inner_parts;
    uint32_t product = warp / Block::inner_parts * Block::products_a_warp;
    uint32_t query = product / Block::tok_groups * 16, tok = product % Block::tok_groups * 8;
    float sums[Block::products_a_warp][4] = {};

    const bf16 *a = block.query + (query + lane % 16) * Block::line + lane / 16 * 8;
    const bf16 *b = stage + (tok + lane / 16 * 8 + lane % 8) * Block::line + lane / 8 % 2 * 8;
    if (Block::products_a_warp == 1) b = stage + (tok + lane % 8) * Block::line + lane / 8 % 2 * 8;
    for (uint32_t k = steps * part / Block::inner_parts;
         k < steps * (part + 1) / Block::inner_parts; k++) {
        uint32_t queries[4], keys[4];
        device_load_matrix_x4(queries, a + k * 16);
        if constexpr (Block::products_a_warp == 1)
            device_load_matrix_x2(keys, b + k * 16);
        else
            device_load_matrix_x4(keys, b + k * 16);
#pragma unroll
        for (uint32_t i = 0; i < Block::products_a_warp; i++)
            device_mma_bf16(sums[i], queries, keys + 2 * i);
    }
    float *score = block.score + (part * Queries + query + lane / 4) * Tok + tok + lane % 4 * 2;
#pragma unroll
    for (uint32_t i = 0; i < Block::products_a_warp; i++) {
        score[i * 8] = sums[i][0];
        score[i * 8 + 1] = sums[i][1];
        score[8 * Tok + i * 8] = sums[i][2];
        score[8 * Tok + i * 8 + 1] = sums[i][3];
    }
}

static __device__ bool sees(const struct mla_sequence &seq, uint32_t row, uint32_t position) {
    if (position < seq.committed) return true;
    uint32_t member = position - seq.committed;
    return seq.ancestors ? (seq.ancestors[row] >> member & 1) != 0 : member <= row;
}

/* block.weight, and how much the outputs so far must shrink. */
template <uint32_t Tok, uint32_t Queries, typename Block>
static __device__ void compute_weights(const struct split_args &args, const struct task &task,
                                       const Block &block, uint32_t tok_begin) {
    uint32_t query = threadIdx.x / Block::threads_a_query;
    uint32_t tok = threadIdx.x % Block::threads_a_query * Block::tok_a_thread;
    uint32_t row = (task.query_begin + query) / args.op.heads;
    float score[Block::tok_a_thread];
    float max = -INFINITY;
#pragma unroll
    for (uint32_t i = 0; i < Block::tok_a_thread; i++) {
        uint32_t position = tok_begin + tok + i;
        score[i] = 0.0f;
#pragma unroll
        for (uint32_t part = 0; part < Block::inner_parts; part++)
            score[i] += block.score[(part * Queries + query) * Tok + tok + i];
        bool seen = query < task.query_count && position < task.tok_end &&
                    sees(task.seq, row, position);
        score[i] = seen ? score[i] * (args.op.scale * MATH_LOG2_E) : -INFINITY;
        max = fmaxf(max, score[i]);
    }
    for (uint32_t lanes = 1; lanes < Block::threads_a_query; lanes *= 2)
        max = fmaxf(max, device_shuffle_xor(max, lanes));

    float old_max = block.max[query];
    max = fmaxf(max, old_max);
    float shift = max == -INFINITY ? 0.0f : max; /* nothing seen yet: all weights are 2^-inf */
    float sum = 0.0f;
    uint32_t *weight = (uint32_t *)(block.weight + query * Block::weight_line + tok);
#pragma unroll
    for (uint32_t i = 0; i < Block::tok_a_thread; i += 2) {
        uint32_t packed = device_pack_bf16(device_exp2(score[i] - shift),
                                           device_exp2(score[i + 1] - shift));
        /* The sum of what the values are multiplied by, so that the weights add up to one. */
        sum += device_low_bf16(packed) + device_high_bf16(packed);
        weight[i / 2] = packed;
    }
    for (uint32_t lanes = 1; lanes < Block::threads_a_query; lanes *= 2)
        sum += device_shuffle_xor(sum, lanes);
    if (threadIdx.x % Block::threads_a_query == 0) {
        float shrink = device_exp2(old_max - shift);
        block.shrink[query] = shrink;
        block.sum[query] = block.sum[query] * shrink + sum;
        block.max[query] = max;
    }
}

/* This warp's columns of the outputs. */
template <uint32_t Tok, typename Block>
static __device__ void add_values(const Block &block, const bf16 *stage,
                                  float out[Block::query_groups][Block::column_groups][4]) {
    uint32_t warp = threadIdx.x / WARP_LANES, lane = threadIdx.x % WARP_LANES;
#pragma unroll
    for (uint32_t g = 0; g < Block::query_groups; g++) {
        float upper = block.shrink[g * 16 + lane / 4], lower = block.shrink[g * 16 + 8 + lane / 4];
#pragma unroll
        for (uint32_t c = 0; c < Block::column_groups; c++) {
            out[g][c][0] *= upper;
            out[g][c][1] *= upper;
            out[g][c][2] *= lower;
            out[g][c][3] *= lower;
        }
    }
    const bf16 *p = block.weight + lane % 16 * Block::weight_line + lane / 16 * 8;
    const bf16 *v = stage + lane % 16 * Block::line + warp * Block::warp_columns + lane / 16 * 8;
#pragma unroll
    for (uint32_t k = 0; k < Tok; k += 16) {
        uint32_t weights[Block::query_groups][4];
#pragma unroll
        for (uint32_t g = 0; g < Block::query_groups; g++)
            device_load_matrix_x4(weights[g], p + g * 16 * Block::weight_line + k);
#pragma unroll
        for (uint32_t c = 0; c < Block::column_groups; c += 2) {
            uint32_t values[4];
            device_load_matrix_x4_transposed(values, v + k * Block::line + c * 8);
#pragma unroll
            for (uint32_t g = 0; g < Block::query_groups; g++) {
                device_mma_bf16(out[g][c], weights[g], values);
                device_mma_bf16(out[g][c + 1], weights[g], values + 2);
            }
        }
    }
}

template <uint32_t Latent, typename Block>
static __device__ void
store_partial(const struct split_args &args, const struct task &task, const Block &block,
              const float out[Block::query_groups][Block::column_groups][4]) {
    uint32_t warp = threadIdx.x / WARP_LANES, lane = threadIdx.x % WARP_LANES;
    size_t first = ((size_t)blockIdx.x * args.op.sequence_count + blockIdx.z) * args.queries +
                   task.query_begin;
    for (uint32_t query = threadIdx.x; query < task.query_count; query += MLA_CUDA_THREADS) {
        args.partial_stat[(first + query) * 2] = block.max[query];
        args.partial_stat[(first + query) * 2 + 1] = block.sum[query];
    }
    if (task.tok_begin == task.tok_end) return; /* the sum of zero says that nothing is here */
#pragma unroll
    for (uint32_t g = 0; g < Block::query_groups; g++)
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t query = g * 16 + half * 8 + lane / 4;
            float *to = args.partial + (first + query) * Latent + warp * Block::warp_columns +
                        lane % 4 * 2;
#pragma unroll
            for (uint32_t c = 0; c < Block::column_groups; c++)
                if (query < task.query_count) {
                    float2 pair = {out[g][c][half * 2], out[g][c][half * 2 + 1]};
                    *(float2 *)(to + c * 8) = pair;
                }
        }
}

template <uint32_t Latent, uint32_t Rope, uint32_t Queries, uint32_t Tok, uint32_t Stages>
__global__ void __launch_bounds__(MLA_CUDA_THREADS, 1) mla_tree_split(struct split_args args) {
    typedef struct block<Latent, Rope, Queries, Tok, Stages> shape;
    struct task task = find_task<Tok, Queries>(args);
    if (task.query_count == 0) return;
    shape block;
    block.carve(device_shared());
    for (uint32_t query = threadIdx.x; query < Queries; query += MLA_CUDA_THREADS) {
        block.max[query] = -INFINITY;
        block.sum[query] = 0.0f;
    }
    load_queries<Latent, Rope, Queries>(args, task, block);
#pragma unroll
    for (uint32_t ahead = 0; ahead + 1 < Stages; ahead++) {
        if (task.tok_begin + ahead * Tok < task.tok_end)
            begin_stage<Tok, Stages>(args, task, block, task.tok_begin + ahead * Tok);
        device_copy_commit();
    }

    float out[shape::query_groups][shape::column_groups][4] = {};
    for (uint32_t tok = task.tok_begin; tok < task.tok_end; tok += Tok) {
        device_copy_wait<Stages - 2>();
        device_barrier();
        uint32_t next = tok + (Stages - 1) * Tok;
        if (next < task.tok_end) begin_stage<Tok, Stages>(args, task, block, next);
        device_copy_commit();
        const bf16 *stage = block.cache + tok / Tok % Stages * Tok * shape::line;
        compute_scores<Tok, Queries>(block, stage);
        device_barrier();
        compute_weights<Tok, Queries>(args, task, block, tok);
        device_barrier();
        add_values<Tok>(block, stage, out);
    }
    store_partial<Latent>(args, task, block, out);
}

/* One query a block: the ranges' outputs, each shrunk to the common maximum, over the common sum.
 */
__global__ void __launch_bounds__(MLA_CUDA_THREADS) mla_tree_merge(struct split_args args) {
    struct mla_sequence seq = args.op.sequences[blockIdx.y];
    uint32_t query = blockIdx.x;
    if (query >= seq.row_count * args.op.heads) return;
    size_t stride = (size_t)args.op.sequence_count * args.queries;
    size_t first = (size_t)blockIdx.y * args.queries + query;
    float max = -INFINITY, sum = 0.0f;
    for (uint32_t split = 0; split < args.splits; split++)
        max = fmaxf(max, args.partial_stat[(first + split * stride) * 2]);
    for (uint32_t split = 0; split < args.splits; split++)
        sum += args.partial_stat[(first + split * stride) * 2 + 1] *
               device_exp2(args.partial_stat[(first + split * stride) * 2] - max);
    float *to = args.op.out + ((size_t)seq.row_begin * args.op.heads + query) * args.op.latent_dim;
    for (uint32_t column = threadIdx.x; column < args.op.latent_dim; column += MLA_CUDA_THREADS) {
        float value = 0.0f;
        for (uint32_t split = 0; split < args.splits; split++) {
            const float *stat = args.partial_stat + (first + split * stride) * 2;
            if (stat[1] == 0.0f) continue; /* of an empty range only the statistics were written */
            value += args.partial[(first + split * stride) * args.op.latent_dim + column] *
                     device_exp2(stat[0] - max);
        }
        to[column] = value / sum;
    }
}

template <uint32_t Latent, uint32_t Rope>
static void (*choose_kernel(enum mla_cuda_tile tile))(struct split_args) {
    switch (tile) {
#define X(name, queries, tok, stages)                                                              \
    case name: return mla_tree_split<Latent, Rope, queries, tok, stages>;
        MLA_CUDA_TILES(X)
#undef X
    default: return NULL;
    }
}

void mla_tree_cuda(const struct mla_tree_args *args, struct kernel_ctx *ctx) {
    KERNEL_CHECK(mla_tree_cuda_takes(args) && args->page_tok >= 1);
    struct mla_cuda_plan plan = mla_tree_cuda_plan(args, ctx->device);
    KERNEL_CHECK(ctx->scratch_bytes >= plan.scratch_bytes);
    void (*kernel)(struct split_args) = args->latent_dim == 512 ? choose_kernel<512, 64>(plan.tile)
                                                                : choose_kernel<128, 32>(plan.tile);
    KERNEL_CHECK(kernel != NULL);

    uint32_t queries = args->rows_max * args->heads;
    struct split_args split_args = {*args, (float *)ctx->scratch, NULL, plan.splits, queries};
    split_args.partial_stat = split_args.partial + (size_t)plan.splits * args->sequence_count *
                                                       queries * args->latent_dim;
    launch(kernel, dim3(plan.splits, plan.query_tiles, args->sequence_count), MLA_CUDA_THREADS,
           plan.shared_bytes, ctx, split_args);
    launch(mla_tree_merge, dim3(queries, args->sequence_count), MLA_CUDA_THREADS, 0, ctx,
           split_args);
}
