/* A block: 64 queries against one range of positions, by the products of warpgroups (sm_90a). Two
 * groups hold the outputs, half of the columns each, and fill the ring; a third one is a stage
 * ahead of them with the scores, so that the tensor cores multiply while it weighs.
 *
 *     outputs, twice                              scores
 *     copies of stage s + 2 landed ──staged───▶   S = Q K'                  of 64 x 32
 *                                                 P = 2^(S c - max), running maximum, sum
 *     O = O 2^(old max - new max) + P V  ◀─weighed── P, 2^(old max - new max)
 *     copies into the stage's place begin
 *
 * Both signals are barriers of the whole block at which one side does not wait; stages take turns
 * at two of each, so that a side may be one ahead. "staged" of stage s + 2 also says that the
 * outputs have taken P of stage s, whose place the next P gets. A group fills just the columns that
 * it alone multiplies with P; the scores were done with them when P came.
 *
 * Positions are lines of 64 columns, in panels: as keys the right operand has a position a column,
 * as values a position a step, of the same bytes. */
#include "cuda/math.cuh"
#include "cuda/wgmma.cuh"
#include "mla_tree/mla_tree_split.cuh"

#define GROUP_THREADS 128u
#define OUTPUT_GROUPS 2u
#define STEP_BYTES    32u /* of 16 columns */

/* Numbers of barriers; of the first two the next as well, for odd stages. */
#define BARRIER_STAGED  1u
#define BARRIER_WEIGHED 3u
#define BARRIER_GROUP   5u /* and the next: of a group of outputs */
#define BARRIER_SUMMED  7u

template <uint32_t Latent, uint32_t Rope> struct panels {
    static constexpr uint32_t width = Latent + Rope;
    static constexpr uint32_t latent = Latent / MLA_WGMMA_PANEL_COLUMNS;
    static constexpr uint32_t a_group = latent / OUTPUT_GROUPS;
    static constexpr uint32_t all = latent + 1;
    static constexpr uint32_t query_bytes = MLA_WGMMA_QUERIES * WGMMA_LINE_BYTES;
    static constexpr uint32_t tok_bytes = MLA_WGMMA_TOK * WGMMA_LINE_BYTES;
    static constexpr uint32_t stage_bytes = all * tok_bytes;
    static constexpr uint32_t sums = Latent / OUTPUT_GROUPS / 2; /* of a thread */
    static_assert(Latent % (OUTPUT_GROUPS * MLA_WGMMA_PANEL_COLUMNS) == 0 && Rope % 16 == 0 &&
                      Rope <= MLA_WGMMA_PANEL_COLUMNS,
                  "whole panels");

    unsigned char *query;  /* panels of [MLA_WGMMA_QUERIES] lines */
    unsigned char *ring;   /* [MLA_WGMMA_STAGES], panels of [MLA_WGMMA_TOK] lines */
    unsigned char *weight; /* [MLA_WGMMA_QUERIES] lines: of even stages, then of odd ones */
    float *shrink;         /* [2, MLA_WGMMA_QUERIES] */
    float *max, *sum;      /* [MLA_WGMMA_QUERIES], at the end */

    DEVICE_INLINE void carve(unsigned char *shared) {
        query = shared;
        ring = query + all * query_bytes;
        weight = ring + MLA_WGMMA_STAGES * stage_bytes;
        shrink = (float *)(weight + query_bytes);
        max = shrink + 2 * MLA_WGMMA_QUERIES;
        sum = max + MLA_WGMMA_QUERIES;
    }

    DEVICE_INLINE unsigned char *stage(uint32_t stage_idx) const {
        return ring + stage_idx % MLA_WGMMA_STAGES * stage_bytes;
    }

    /* Of the weights of a stage in their lines. */
    static DEVICE_INLINE uint32_t weight_chunk(uint32_t stage_idx) {
        return stage_idx % 2 * (MLA_WGMMA_TOK / 8);
    }
};

/* The two queries of which this thread of a group holds sums: the first, and eight further. */
static __device__ uint32_t own_query(void) {
    return threadIdx.x % GROUP_THREADS / WARP_LANES * 16 + threadIdx.x % WARP_LANES / 4;
}

/* The first of two columns, in eights of columns. */
static __device__ uint32_t own_column(void) {
    return threadIdx.x % 4 * 2;
}

static __device__ uint32_t count_stages(const struct task &task) {
    return (task.tok_end - task.tok_begin + MLA_WGMMA_TOK - 1) / MLA_WGMMA_TOK;
}

template <uint32_t Latent, typename Panels>
static __device__ void load_queries(const struct split_args &args, const struct task &task,
                                    const Panels &panels) {
    constexpr uint32_t pairs = Panels::width / 2;
    for (uint32_t i = threadIdx.x; i < MLA_WGMMA_QUERIES * pairs; i += MLA_WGMMA_THREADS) {
        uint32_t query = i / pairs, column = i % pairs * 2;
        uint32_t panel = column / MLA_WGMMA_PANEL_COLUMNS;
        uint32_t chunk = column % MLA_WGMMA_PANEL_COLUMNS / 8;
        device_store4(panels.query + panel * Panels::query_bytes + wgmma_chunk(query, chunk) +
                          column % 8 * sizeof(bf16),
                      load_query_pair<Latent>(args, task, query, column));
    }
}

/* ============================== outputs ======================================================= */

/* Begin to copy the group's columns of a stage, and its share of the rotated keys, where there is
 * such a stage; positions beyond the range become zero, since a weight of zero does not silence a
 * NaN. */
template <uint32_t Latent, uint32_t Rope, typename Panels>
static __device__ void begin_stage(const struct split_args &args, const struct task &task,
                                   const Panels &panels, uint32_t stage_idx) {
    uint32_t group = threadIdx.x / GROUP_THREADS, thread = threadIdx.x % GROUP_THREADS;
    uint32_t chunk = thread % 8;
    unsigned char *stage = panels.stage(stage_idx);
#pragma unroll
    for (uint32_t lines = 0; lines < OUTPUT_GROUPS; lines++) {
        uint32_t tok = lines * (GROUP_THREADS / 8) + thread / 8;
        uint32_t position = task.tok_begin + stage_idx * MLA_WGMMA_TOK + tok;
        bool wanted = position < task.tok_end;
        size_t slot = 0;
        if (wanted)
            slot = (size_t)task.seq.page[position / args.op.page_tok] * args.op.page_tok +
                   position % args.op.page_tok;
        const bf16 *from = (const bf16 *)args.op.kv + slot * Panels::width + chunk * 8;
        unsigned char *to = stage + wgmma_chunk(tok, chunk);
#pragma unroll
        for (uint32_t i = 0; i < Panels::a_group; i++) {
            uint32_t panel = group * Panels::a_group + i;
            device_copy16(to + panel * Panels::tok_bytes, from + panel * MLA_WGMMA_PANEL_COLUMNS,
                          wanted);
        }
        if (lines == group && chunk < Rope / 8)
            device_copy16(to + Panels::latent * Panels::tok_bytes, from + Latent, wanted);
    }
}

template <typename Panels>
static __device__ void add_values(const Panels &panels, uint32_t stage_idx,
                                  float (&out)[Panels::sums]) {
    uint32_t group = threadIdx.x / GROUP_THREADS;
    const float *shrink = panels.shrink + stage_idx % 2 * MLA_WGMMA_QUERIES + own_query();
    float upper = shrink[0], lower = shrink[8];
#pragma unroll
    for (uint32_t i = 0; i < Panels::sums; i++)
        out[i] *= i % 4 < 2 ? upper : lower;

    uint64_t weights = wgmma_tile(panels.weight, 0);
    uint64_t values = wgmma_tile(
        panels.stage(stage_idx) + group * Panels::a_group * Panels::tok_bytes, Panels::tok_bytes);
    weights = wgmma_tile_at(weights, Panels::weight_chunk(stage_idx) * 16);
    device_wgmma_fence(out);
#pragma unroll
    for (uint32_t k = 0; k < MLA_WGMMA_TOK / 16; k++)
        device_wgmma<WGMMA_LINE_IS_STEP>(out, wgmma_tile_at(weights, k * STEP_BYTES),
                                         wgmma_tile_at(values, k * 2 * WGMMA_EIGHT_BYTES), true);
    device_wgmma_commit();
    device_wgmma_wait<0>(out);
}

/* Partial results of a range, or the outputs themselves where there is only one. */
template <uint32_t Latent, typename Panels>
static __device__ void store(const struct split_args &args, const struct task &task,
                             const Panels &panels, const float (&out)[Panels::sums]) {
    bool is_whole = task.splits == 1;
    float *to = args.op.out +
                ((size_t)task.seq.row_begin * args.op.heads + task.query_begin) * Latent;
    if (!is_whole) to = args.partial + first_partial(args, task) * Latent;
    to += threadIdx.x / GROUP_THREADS * (Latent / OUTPUT_GROUPS) + own_column();
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t query = own_query() + half * 8;
        if (query >= task.query_count) continue;
        float sum = is_whole ? panels.sum[query] : 1.0f;
#pragma unroll
        for (uint32_t i = 0; i < Panels::sums / 4; i++) {
            to[query * Latent + i * 8] = out[i * 4 + half * 2] / sum;
            to[query * Latent + i * 8 + 1] = out[i * 4 + half * 2 + 1] / sum;
        }
    }
}

template <uint32_t Latent, uint32_t Rope, typename Panels>
static __device__ void run_outputs(const struct split_args &args, const struct task &task,
                                   const Panels &panels) {
    uint32_t stages = count_stages(task), group = threadIdx.x / GROUP_THREADS;
    float out[Panels::sums] = {};
#pragma unroll 1
    for (uint32_t ahead = 0; ahead < MLA_WGMMA_STAGES; ahead++) {
        if (ahead < stages) begin_stage<Latent, Rope>(args, task, panels, ahead);
        device_copy_commit();
    }
    device_copy_wait<MLA_WGMMA_STAGES - 2>();
    device_async_fence();
    for (uint32_t i = 0; i < 2 && i < stages; i++)
        device_signal(BARRIER_STAGED + i, MLA_WGMMA_THREADS);

    for (uint32_t i = 0; i < stages; i++) {
        device_meet(BARRIER_WEIGHED + i % 2, MLA_WGMMA_THREADS);
        add_values(panels, i, out);
        device_meet(BARRIER_GROUP + group, GROUP_THREADS); /* all warps have read the stage */
        if (i + MLA_WGMMA_STAGES < stages)
            begin_stage<Latent, Rope>(args, task, panels, i + MLA_WGMMA_STAGES);
        device_copy_commit();
        device_copy_wait<MLA_WGMMA_STAGES - 2>();
        device_async_fence();
        if (i + 2 < stages) device_signal(BARRIER_STAGED + i % 2, MLA_WGMMA_THREADS);
    }
    device_meet(BARRIER_SUMMED, MLA_WGMMA_THREADS); /* the scores' maxima and sums are there */
    store<Latent>(args, task, panels, out);
}

/* ============================== scores ======================================================== */

/* What a thread knows of its two queries; sums are of its own columns. */
struct running {
    uint32_t row[2];
    float max[2], sum[2];
};

template <typename Panels>
static __device__ void compute_scores(const Panels &panels, uint32_t stage_idx,
                                      float (&score)[MLA_WGMMA_TOK / 2]) {
    uint64_t queries = wgmma_tile(panels.query, 0), keys = wgmma_tile(panels.stage(stage_idx), 0);
    device_wgmma_fence(score);
#pragma unroll
    for (uint32_t k = 0; k < Panels::width / 16; k++) {
        uint32_t panel = k * 16 / MLA_WGMMA_PANEL_COLUMNS;
        uint32_t step = k % (MLA_WGMMA_PANEL_COLUMNS / 16) * STEP_BYTES;
        device_wgmma<WGMMA_LINE_IS_COLUMN>(
            score, wgmma_tile_at(queries, panel * Panels::query_bytes + step),
            wgmma_tile_at(keys, panel * Panels::tok_bytes + step), k > 0);
    }
    device_wgmma_commit();
    device_wgmma_wait<0>(score);
}

/* Scores in powers of two; -infinity where a row does not see the position. */
static __device__ void scale_scores(const struct split_args &args, const struct task &task,
                                    const struct running &running, uint32_t tok_begin,
                                    float (&score)[MLA_WGMMA_TOK / 2]) {
    bool all_seen = tok_begin + MLA_WGMMA_TOK <= task.seq.committed &&
                    tok_begin + MLA_WGMMA_TOK <= task.tok_end;
#pragma unroll
    for (uint32_t i = 0; i < MLA_WGMMA_TOK / 2; i++) {
        uint32_t position = tok_begin + i / 4 * 8 + own_column() + i % 2;
        bool seen = all_seen ||
                    (position < task.tok_end && sees(task.seq, running.row[i / 2 % 2], position));
        score[i] = seen ? score[i] * (args.op.scale * MATH_LOG2_E) : -INFINITY;
    }
}

/* The weights of one of the thread's two queries, into their lines, and how much the outputs so far
 * must shrink. */
template <typename Panels>
static __device__ void compute_weights(const Panels &panels, uint32_t stage_idx, uint32_t half,
                                       const float (&score)[MLA_WGMMA_TOK / 2],
                                       struct running &running) {
    uint32_t query = own_query() + half * 8;
    float max = running.max[half];
#pragma unroll
    for (uint32_t i = 0; i < MLA_WGMMA_TOK / 8; i++)
        max = fmaxf(max, fmaxf(score[i * 4 + half * 2], score[i * 4 + half * 2 + 1]));
    for (uint32_t lanes = 1; lanes < 4; lanes *= 2)
        max = fmaxf(max, device_shuffle_xor(max, lanes));

    float shift = max == -INFINITY ? 0.0f : max; /* nothing seen yet: all weights are 2^-inf */
    float shrink = device_exp2(running.max[half] - shift), sum = running.sum[half] * shrink;
#pragma unroll
    for (uint32_t i = 0; i < MLA_WGMMA_TOK / 8; i++) {
        uint32_t packed = device_pack_bf16(device_exp2(score[i * 4 + half * 2] - shift),
                                           device_exp2(score[i * 4 + half * 2 + 1] - shift));
        /* The sum of what the values are multiplied by, so that the weights add up to one. */
        sum += device_low_bf16(packed) + device_high_bf16(packed);
        device_store4(panels.weight + wgmma_chunk(query, Panels::weight_chunk(stage_idx) + i) +
                          own_column() * sizeof(bf16),
                      packed);
    }
    running.max[half] = max;
    running.sum[half] = sum;
    if (threadIdx.x % 4 == 0) panels.shrink[stage_idx % 2 * MLA_WGMMA_QUERIES + query] = shrink;
}

template <typename Panels>
static __device__ void leave_statistics(const struct split_args &args, const struct task &task,
                                        const Panels &panels, const struct running &running) {
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t query = own_query() + half * 8;
        float sum = running.sum[half];
        for (uint32_t lanes = 1; lanes < 4; lanes *= 2)
            sum += device_shuffle_xor(sum, lanes);
        if (threadIdx.x % 4 != 0) continue;
        panels.sum[query] = sum;
        if (task.splits == 1 || query >= task.query_count) continue;
        float *stat = args.partial_stat + (first_partial(args, task) + query) * MLA_PARTIAL_STATS;
        stat[0] = running.max[half];
        stat[1] = sum;
    }
}

template <typename Panels>
static __device__ void run_scores(const struct split_args &args, const struct task &task,
                                  const Panels &panels) {
    uint32_t stages = count_stages(task), last_row = task.seq.row_count - 1;
    struct running running;
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t row = (task.query_begin + own_query() + half * 8) / args.op.heads;
        running.row[half] = row < last_row ? row : last_row; /* absent ones see what it sees */
        running.max[half] = -INFINITY;
        running.sum[half] = 0.0f;
    }
    for (uint32_t i = 0; i < stages; i++) {
        float score[MLA_WGMMA_TOK / 2] = {};
        device_meet(BARRIER_STAGED + i % 2, MLA_WGMMA_THREADS);
        compute_scores(panels, i, score);
        scale_scores(args, task, running, task.tok_begin + i * MLA_WGMMA_TOK, score);
#pragma unroll
        for (uint32_t half = 0; half < 2; half++)
            compute_weights(panels, i, half, score, running);
        device_async_fence();
        device_signal(BARRIER_WEIGHED + i % 2, MLA_WGMMA_THREADS);
    }
    leave_statistics(args, task, panels, running);
    device_signal(BARRIER_SUMMED, MLA_WGMMA_THREADS);
}

template <uint32_t Latent, uint32_t Rope>
__global__ void __launch_bounds__(MLA_WGMMA_THREADS, 1) mla_tree_wgmma(struct split_args args) {
    struct task task = find_task<MLA_WGMMA_TOK, MLA_WGMMA_QUERIES>(args);
    if (task.query_count == 0) return;
    struct panels<Latent, Rope> panels;
    panels.carve(device_shared());
    load_queries<Latent>(args, task, panels);
    device_async_fence(); /* scores begin where all have met: at the first stage */
    if (threadIdx.x < OUTPUT_GROUPS * GROUP_THREADS)
        run_outputs<Latent, Rope>(args, task, panels);
    else
        run_scores(args, task, panels);
}

void (*mla_tree_wgmma_kernel(uint32_t latent_dim))(struct split_args) {
    return latent_dim == 512 ? mla_tree_wgmma<512, 64> : mla_tree_wgmma<128, 32>;
}
