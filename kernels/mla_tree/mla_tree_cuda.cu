/* A block: one tile of queries against one range of positions.
 *
 *     positions  ──▶ ring of stages in shared memory, by asynchronous copies, token by token
 *                     through the page table (any page size), as the cache has them; records of an
 *                     FP8 cache are then widened, exactly, into one stage of bf16 beside the ring
 *     scores     S' = K Q'    products of 16 positions x 8 queries, one or two a warp; where there
 *                             are fewer products than warps, warps share the inner dimension
 *     weights    P = 2^(S c - max), running maximum and sum a query, as FlashAttention does
 *                             (arXiv 2205.14135, algorithm 1)
 *     outputs    O' = O' 2^(old max - new max) + V' P'    an eighth of the columns a warp, in
 *                             registers
 *
 * The cache is the left operand of both products and the queries are the right one, in eights: the
 * eight heads that a rank of eight has of Kimi fill a product, and what is read of the cache is
 * loaded into registers by one warp.
 *
 * Three barriers a stage: after the copies landed, after S, after P; a fourth after records were
 * widened. The first also says that everybody is done with the stage that is filled next, and with
 * what was widened last. */
#include "cuda/block.cuh"
#include "cuda/math.cuh"
#include "cuda/widen.cuh"
#include "mla_tree/mla_tree_split.cuh"

/* What a token takes in a cache, and where the rotated key of a record is: kv_store.h. */
template <enum kernel_dtype Cache, uint32_t Latent, uint32_t Rope> struct token {
    static constexpr uint32_t bytes = (Latent + Rope) * sizeof(bf16);
};

template <uint32_t Latent, uint32_t Rope> struct token<KERNEL_FP8, Latent, Rope> {
    static constexpr uint32_t rope_at = Latent +
                                        (Latent + KV_FP8_GROUP - 1) / KV_FP8_GROUP * sizeof(float);
    static constexpr uint32_t bytes = (rope_at + Rope * sizeof(bf16) + KV_FP8_ALIGN - 1) /
                                      KV_FP8_ALIGN * KV_FP8_ALIGN;
};

template <enum kernel_dtype Cache, uint32_t Latent, uint32_t Rope, uint32_t Queries, uint32_t Tok,
          uint32_t Stages>
struct block {
    typedef struct token<Cache, Latent, Rope> cached;
    static constexpr bool is_widened = Cache == KERNEL_FP8;
    static constexpr uint32_t width = Latent + Rope;
    static constexpr uint32_t line = width + MLA_PAD;
    /* From token to token of a stage. */
    static constexpr uint32_t staged_bytes = is_widened ? cached::bytes : line * sizeof(bf16);
    static constexpr uint32_t widened = is_widened ? Tok * line : 0;
    static constexpr uint32_t weight_line = Tok + MLA_PAD;
    static constexpr uint32_t score_line = Queries + MLA_SCORE_PAD;
    static constexpr uint32_t query_groups = Queries / 8;
    static constexpr uint32_t products = Tok / 16 * query_groups;
    static constexpr uint32_t inner_parts = products < MLA_WARPS ? MLA_WARPS / products : 1;
    static constexpr uint32_t products_a_warp = products < MLA_WARPS ? 1 : products / MLA_WARPS;
    static constexpr uint32_t warp_columns = Latent / MLA_WARPS;
    static constexpr uint32_t column_groups = warp_columns / 16;
    static constexpr uint32_t threads_a_query = MLA_CUDA_THREADS / Queries < Tok / 2
                                                    ? MLA_CUDA_THREADS / Queries
                                                    : Tok / 2;
    static constexpr uint32_t tok_a_thread = Tok / threads_a_query;
    static_assert(products_a_warp <= 2 && query_groups % products_a_warp == 0, "scores");
    static_assert(width % 16 == 0 && warp_columns % 16 == 0 && Tok % 16 == 0, "fragments");
    static_assert(Queries * threads_a_query % WARP_LANES == 0, "weights are of whole warps");

    bf16 *query;               /* [Queries, line] */
    unsigned char *ring;       /* [Stages, Tok, staged_bytes] */
    bf16 *wide;                /* [Tok, line], of an FP8 cache alone */
    bf16 *weight;              /* [Queries, weight_line] */
    float *score;              /* [inner_parts, Tok, score_line] */
    float *max, *sum, *shrink; /* [Queries] each */

    DEVICE_INLINE void carve(unsigned char *shared) {
        query = (bf16 *)shared;
        ring = (unsigned char *)(query + Queries * line);
        wide = (bf16 *)(ring + Stages * Tok * staged_bytes);
        weight = wide + widened;
        score = (float *)(weight + Queries * weight_line);
        max = score + inner_parts * Tok * score_line;
        sum = max + Queries;
        shrink = sum + Queries;
    }

    DEVICE_INLINE unsigned char *stage_of(uint32_t tok_begin) const {
        return ring + tok_begin / Tok % Stages * Tok * staged_bytes;
    }
};

/* Queries as bf16; absent ones are zero. */
template <uint32_t Latent, uint32_t Rope, uint32_t Queries, typename Block>
static __device__ void load_queries(const struct split_args &args, const struct task &task,
                                    const Block &block) {
    constexpr uint32_t pairs = (Latent + Rope) / 2;
    for (uint32_t i = threadIdx.x; i < Queries * pairs; i += MLA_CUDA_THREADS) {
        uint32_t query = i / pairs, column = i % pairs * 2;
        *(uint32_t *)(block.query + query * Block::line +
                      column) = load_query_pair<Latent>(args, task, query, column);
    }
}

/* Begin to copy the positions from tok_begin into a stage; positions beyond the range become zero,
 * since a weight of zero does not silence a NaN. */
template <uint32_t Tok, typename Block>
static __device__ void begin_stage(const struct split_args &args, const struct task &task,
                                   const Block &block, uint32_t tok_begin) {
    constexpr uint32_t tok_bytes = Block::cached::bytes, chunks = tok_bytes / 16;
    unsigned char *stage = block.stage_of(tok_begin);
    for (uint32_t i = threadIdx.x; i < Tok * chunks; i += MLA_CUDA_THREADS) {
        uint32_t tok = i / chunks, chunk = i % chunks, position = tok_begin + tok;
        bool wanted = position < task.tok_end;
        size_t slot = 0;
        if (wanted)
            slot = (size_t)task.seq.page[position / args.op.page_tok] * args.op.page_tok +
                   position % args.op.page_tok;
        device_copy16(stage + tok * Block::staged_bytes + chunk * 16,
                      (const unsigned char *)args.op.kv + slot * tok_bytes + chunk * 16, wanted);
    }
}

/* Eight codes as bf16, times a power of two. */
static __device__ uint4 widen_codes(const uint32_t codes[2], float scale) {
    uint32_t scales = device_pack_bf16(scale, scale), wide[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t pair = codes[i / 2] >> i % 2 * 16;
        wide[i] = device_multiply_bf16x2(widen_fp8((pair & 0xff) | (pair & 0xff00) << 8), scales);
    }
    return {wide[0], wide[1], wide[2], wide[3]};
}

/* block.wide: the stage's records. */
template <uint32_t Latent, uint32_t Rope, uint32_t Tok, typename Block>
static __device__ void widen_stage(const Block &block, const unsigned char *stage) {
    constexpr uint32_t eights = Latent / 8, pairs = Rope / 2;
#pragma unroll
    for (uint32_t i = threadIdx.x; i < Tok * eights; i += MLA_CUDA_THREADS) {
        uint32_t tok = i / eights, column = i % eights * 8, codes[2];
        const unsigned char *record = stage + tok * Block::staged_bytes;
        device_load8(codes, record + column);
        const float *scale = (const float *)(record + Latent) + column / KV_FP8_GROUP;
        *(uint4 *)(block.wide + tok * Block::line + column) = widen_codes(codes, *scale);
    }
#pragma unroll
    for (uint32_t i = threadIdx.x; i < Tok * pairs; i += MLA_CUDA_THREADS) {
        uint32_t tok = i / pairs, pair = i % pairs;
        const unsigned char *key = stage + tok * Block::staged_bytes + Block::cached::rope_at;
        uint32_t *to = (uint32_t *)(block.wide + tok * Block::line + Latent);
        to[pair] = ((const uint32_t *)key)[pair];
    }
}

/* The stage's positions as bf16, when all of them are there. */
template <uint32_t Latent, uint32_t Rope, uint32_t Tok, typename Block>
static __device__ const bf16 *take_stage(const Block &block, uint32_t tok_begin) {
    const unsigned char *stage = block.stage_of(tok_begin);
    if constexpr (Block::is_widened) {
        widen_stage<Latent, Rope, Tok>(block, stage);
        device_barrier();
        return block.wide;
    }
    return (const bf16 *)stage;
}

/* block.score: this warp's products, over its part of the inner dimension. */
template <uint32_t Tok, typename Block>
static __device__ void compute_scores(const Block &block, const bf16 *stage) {
    constexpr uint32_t steps = Block::width / 16;
    uint32_t warp = threadIdx.x / WARP_LANES, lane = threadIdx.x % WARP_LANES;
    uint32_t part = warp % Block::inner_parts;
    uint32_t product = warp / Block::inner_parts * Block::products_a_warp;
    uint32_t tok = product / Block::query_groups * 16, query = product % Block::query_groups * 8;
    float sums[Block::products_a_warp][4] = {};

    const bf16 *a = stage + (tok + lane % 16) * Block::line + lane / 16 * 8;
    const bf16 *b = block.query + (query + lane % 8) * Block::line + lane / 8 % 2 * 8;
    if (Block::products_a_warp == 2) b += lane / 16 * 8 * Block::line;
    for (uint32_t k = steps * part / Block::inner_parts;
         k < steps * (part + 1) / Block::inner_parts; k++) {
        uint32_t keys[4], queries[4];
        device_load_matrix_x4(keys, a + k * 16);
        if constexpr (Block::products_a_warp == 1)
            device_load_matrix_x2(queries, b + k * 16);
        else
            device_load_matrix_x4(queries, b + k * 16);
#pragma unroll
        for (uint32_t i = 0; i < Block::products_a_warp; i++)
            device_mma_bf16(sums[i], keys, queries + 2 * i);
    }
    float *score = block.score + (part * Tok + tok + lane / 4) * Block::score_line + query +
                   lane % 4 * 2;
#pragma unroll
    for (uint32_t i = 0; i < Block::products_a_warp; i++) {
        float2 upper = {sums[i][0], sums[i][1]}, lower = {sums[i][2], sums[i][3]};
        *(float2 *)(score + i * 8) = upper;
        *(float2 *)(score + 8 * Block::score_line + i * 8) = lower;
    }
}

/* block.weight, and how much the outputs so far must shrink. */
template <uint32_t Tok, uint32_t Queries, typename Block>
static __device__ void compute_weights(const struct split_args &args, const struct task &task,
                                       const Block &block, uint32_t tok_begin) {
    if (threadIdx.x >= Queries * Block::threads_a_query) return; /* whole warps */
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
            score[i] += block.score[(part * Tok + tok + i) * Block::score_line + query];
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

/* Eight queries' weights of 16 positions, as the right operand; of every group of queries. */
template <typename Block>
static __device__ void load_weights(const Block &block, uint32_t tok,
                                    uint32_t weights[Block::query_groups][2]) {
    uint32_t lane = threadIdx.x % WARP_LANES;
    const bf16 *p = block.weight + lane % 8 * Block::weight_line + lane / 8 % 2 * 8 + tok;
    if constexpr (Block::query_groups == 1) {
        device_load_matrix_x2(weights[0], p);
    } else {
        p += lane / 16 * 8 * Block::weight_line;
#pragma unroll
        for (uint32_t g = 0; g < Block::query_groups; g += 2)
            device_load_matrix_x4(weights[g], p + g * 8 * Block::weight_line);
    }
}

/* This warp's columns of the outputs. */
template <uint32_t Tok, typename Block>
static __device__ void add_values(const Block &block, const bf16 *stage,
                                  float out[Block::column_groups][Block::query_groups][4]) {
    uint32_t warp = threadIdx.x / WARP_LANES, lane = threadIdx.x % WARP_LANES;
#pragma unroll
    for (uint32_t g = 0; g < Block::query_groups; g++) {
        float2 shrink = *(const float2 *)(block.shrink + g * 8 + lane % 4 * 2);
#pragma unroll
        for (uint32_t c = 0; c < Block::column_groups; c++) {
            out[c][g][0] *= shrink.x;
            out[c][g][1] *= shrink.y;
            out[c][g][2] *= shrink.x;
            out[c][g][3] *= shrink.y;
        }
    }
    const bf16 *v = stage + (lane / 16 * 8 + lane % 8) * Block::line + warp * Block::warp_columns +
                    lane / 8 % 2 * 8;
#pragma unroll
    for (uint32_t k = 0; k < Tok; k += 16) {
        uint32_t weights[Block::query_groups][2];
        load_weights(block, k, weights);
#pragma unroll
        for (uint32_t c = 0; c < Block::column_groups; c++) {
            uint32_t values[4];
            device_load_matrix_x4_transposed(values, v + k * Block::line + c * 16);
#pragma unroll
            for (uint32_t g = 0; g < Block::query_groups; g++)
                device_mma_bf16(out[c][g], values, weights[g]);
        }
    }
}

/* Partial results of a range, or the outputs themselves where there is only one. */
template <uint32_t Latent, typename Block>
static __device__ void store(const struct split_args &args, const struct task &task,
                             const Block &block,
                             const float out[Block::column_groups][Block::query_groups][4]) {
    uint32_t warp = threadIdx.x / WARP_LANES, lane = threadIdx.x % WARP_LANES;
    bool is_whole = task.splits == 1;
    float *to = args.op.out +
                ((size_t)task.seq.row_begin * args.op.heads + task.query_begin) * Latent;
    if (!is_whole) {
        size_t first = first_partial(args, task);
        to = args.partial + first * Latent;
        for (uint32_t i = threadIdx.x; i < task.query_count; i += MLA_CUDA_THREADS) {
            args.partial_stat[(first + i) * 2] = block.max[i];
            args.partial_stat[(first + i) * 2 + 1] = block.sum[i];
        }
        if (task.tok_begin == task.tok_end) return; /* the maximum says that nothing is here */
    }
    to += warp * Block::warp_columns + lane / 4;
#pragma unroll
    for (uint32_t g = 0; g < Block::query_groups; g++)
#pragma unroll
        for (uint32_t next = 0; next < 2; next++) {
            uint32_t query = g * 8 + lane % 4 * 2 + next;
            if (query >= task.query_count) continue;
            float sum = is_whole ? block.sum[query] : 1.0f;
#pragma unroll
            for (uint32_t c = 0; c < Block::column_groups; c++) {
                to[query * Latent + c * 16] = out[c][g][next] / sum;
                to[query * Latent + c * 16 + 8] = out[c][g][2 + next] / sum;
            }
        }
}

template <enum kernel_dtype Cache, uint32_t Latent, uint32_t Rope, uint32_t Queries, uint32_t Tok,
          uint32_t Stages, uint32_t Blocks>
__global__ void __launch_bounds__(MLA_CUDA_THREADS, Blocks) mla_tree_split(struct split_args args) {
    typedef struct block<Cache, Latent, Rope, Queries, Tok, Stages> shape;
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
            begin_stage<Tok>(args, task, block, task.tok_begin + ahead * Tok);
        device_copy_commit();
    }

    float out[shape::column_groups][shape::query_groups][4] = {};
    for (uint32_t tok = task.tok_begin; tok < task.tok_end; tok += Tok) {
        device_copy_wait<Stages - 2>();
        device_barrier();
        uint32_t next = tok + (Stages - 1) * Tok;
        if (next < task.tok_end) begin_stage<Tok>(args, task, block, next);
        device_copy_commit();
        const bf16 *stage = take_stage<Latent, Rope, Tok>(block, tok);
        compute_scores<Tok>(block, stage);
        device_barrier();
        compute_weights<Tok, Queries>(args, task, block, tok);
        device_barrier();
        add_values<Tok>(block, stage, out);
    }
    store<Latent>(args, task, block, out);
}

/* What a range's outputs are multiplied by, into factor, and the sum of all weights: the ranges'
 * maxima are shrunk to the common one. */
static __device__ float merge_factors(const struct split_args &args, size_t first, uint32_t stride,
                                      uint32_t splits, float *factor, float *shared) {
    float max = -INFINITY, sum = 0.0f;
    for (uint32_t split = threadIdx.x; split < splits; split += MLA_CUDA_THREADS)
        max = fmaxf(max, args.partial_stat[(first + split * stride) * 2]);
    max = block_reduce<MLA_CUDA_THREADS>(max, shared, block_max());
    for (uint32_t split = threadIdx.x; split < splits; split += MLA_CUDA_THREADS) {
        const float *stat = args.partial_stat + (first + split * stride) * 2;
        factor[split] = device_exp2(stat[0] - max);
        sum += stat[1] * factor[split];
    }
    return block_reduce<MLA_CUDA_THREADS>(sum, shared, block_add());
}

/* A block: some columns of one query. Its warps take every eighth range each, and their sums are
 * added in order. */
__global__ void __launch_bounds__(MLA_CUDA_THREADS) mla_tree_merge(struct split_args args) {
    struct mla_sequence seq = args.op.sequences[blockIdx.z];
    uint32_t query = blockIdx.x, queries = seq.row_count * args.op.heads;
    if (query >= queries) return;
    uint32_t splits = count_splits(args, seq, count_tiles(args, seq));
    if (splits == 1) return;
    float *factor = (float *)device_shared(), *shared = factor + MLA_CUDA_SPLITS_MAX;
    float *part = shared + MLA_CUDA_THREADS;
    size_t first = (size_t)blockIdx.z * args.plan.partials + query;
    float sum = merge_factors(args, first, queries, splits, factor, shared);

    uint32_t warp = threadIdx.x / WARP_LANES, lane = threadIdx.x % WARP_LANES;
    uint32_t column = blockIdx.y * MLA_MERGE_COLUMNS;
    float values[4] = {};
#pragma unroll 4
    for (uint32_t split = warp; split < splits; split += MLA_WARPS) {
        float4 from = *(const float4 *)(args.partial +
                                        (first + split * queries) * args.op.latent_dim + column +
                                        lane * 4);
        float of[4] = {from.x, from.y, from.z, from.w};
        /* Of a range without positions only the statistics were written. */
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            values[i] = fmaf(factor[split] == 0.0f ? 0.0f : of[i], factor[split], values[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        part[warp * MLA_MERGE_COLUMNS + lane * 4 + i] = values[i];
    device_barrier();
    if (threadIdx.x >= MLA_MERGE_COLUMNS) return;
    float value = 0.0f;
    for (uint32_t of = 0; of < MLA_WARPS; of++)
        value += part[of * MLA_MERGE_COLUMNS + threadIdx.x];
    args.op.out[((size_t)seq.row_begin * args.op.heads + query) * args.op.latent_dim + column +
                threadIdx.x] = value / sum;
}

template <enum kernel_dtype Cache, uint32_t Latent, uint32_t Rope>
static void (*kernel_of_tile(enum mla_cuda_tile tile))(struct split_args) {
    switch (tile) {
#define X(name, queries, tok, stages, blocks)                                                      \
    case name: return mla_tree_split<Cache, Latent, Rope, queries, tok, stages, blocks>;
        MLA_CUDA_TILES(X)
#undef X
    default: return NULL;
    }
}

template <enum kernel_dtype Cache>
static void (*choose_kernel(const struct mla_tree_args *args,
                            enum mla_cuda_tile tile))(struct split_args) {
    return args->latent_dim == 512 ? kernel_of_tile<Cache, 512, 64>(tile)
                                   : kernel_of_tile<Cache, 128, 32>(tile);
}

void mla_tree_cuda(const struct mla_tree_args *args, struct kernel_ctx *ctx) {
    KERNEL_CHECK(mla_tree_cuda_takes(args) && args->page_tok >= 1);
    struct mla_cuda_plan plan = mla_tree_cuda_plan(args, ctx->device);
    KERNEL_CHECK(ctx->scratch_bytes >= plan.scratch_bytes);
    void (*kernel)(struct split_args) = args->kv_dtype == KERNEL_FP8
                                            ? choose_kernel<KERNEL_FP8>(args, plan.tile)
                                            : choose_kernel<KERNEL_BF16>(args, plan.tile);
    if (plan.tile == MLA_TILE_WGMMA) kernel = mla_tree_wgmma_kernel(args->latent_dim);
    KERNEL_CHECK(kernel != NULL);

    struct split_args split_args = {*args, plan, (float *)ctx->scratch, NULL};
    split_args.partial_stat = split_args.partial +
                              (size_t)plan.partials * args->sequence_count * args->latent_dim;
    launch(kernel, dim3(plan.grid_blocks, args->sequence_count), plan.threads, plan.shared_bytes,
           ctx, split_args);
    if (plan.splits_max == 1) return;
    launch(mla_tree_merge,
           dim3(plan.merge_queries, args->latent_dim / MLA_MERGE_COLUMNS, args->sequence_count),
           MLA_CUDA_THREADS, MLA_MERGE_FLOATS * sizeof(float), ctx, split_args);
}
