/* Four launches (moe_experts_cuda.h). The products are those of cuda/panels.cuh: every warp streams
 * weights through a ring of its own.
 *
 *     gate, up   block: unit x panel f of the gate rows and panel f of the up rows, which are the
 *                two panels of its warps; each warp takes a quarter of D; the quarters are added,
 *                gated, rounded and stored as the down projection reads them
 *     down       warp: unit x tiles of two panels, one after the other, F segment by segment */
extern "C" {
#include "moe_experts/moe_experts_cuda.h"
#include "moe_experts/moe_experts_tile.h"
}

#include "cuda/math.cuh"
#include "cuda/panels.cuh"

static_assert(MOE_CUDA_UNIT_ROWS == PANEL_ROWS_MAX, "a warp has sums for a unit");

struct moe_args {
    struct moe_experts_args op;
    struct moe_cuda_scratch scratch;
    uint32_t dim_steps; /* of 32 inputs */
    uint32_t segment_width;
    uint32_t segment_steps; /* that a segment has room for */
    uint32_t down_tiles_a_warp;
};

/* ============================== prepare ======================================================= */

/* One block: counts, begins, then every pair to its expert's part. Which of an expert's rows comes
 * first is left to chance; results do not depend on it. */
static __device__ void sort_pairs(const struct moe_args &args) {
    uint32_t *next =
        (uint32_t *)device_shared(); /* [experts] pairs, then where the next one goes */
    uint32_t experts = args.op.expert_count, pairs = args.op.rows * args.op.topk;
    uint32_t *pairs_of = next + experts, *units_of = pairs_of + MOE_SORT_THREADS;
    for (uint32_t e = threadIdx.x; e < experts; e += MOE_SORT_THREADS)
        next[e] = 0;
    device_barrier();
    for (uint32_t i = threadIdx.x; i < pairs; i += MOE_SORT_THREADS)
        if (args.op.expert[i] < experts) device_atomic_add(&next[args.op.expert[i]], 1);
    device_barrier();

    uint32_t share = (experts + MOE_SORT_THREADS - 1) / MOE_SORT_THREADS;
    uint32_t begin = threadIdx.x * share < experts ? threadIdx.x * share : experts;
    uint32_t end = begin + share < experts ? begin + share : experts;
    uint32_t pair = 0, unit = 0;
    for (uint32_t e = begin; e < end; e++) {
        pair += next[e];
        unit += (next[e] + MOE_CUDA_UNIT_ROWS - 1) / MOE_CUDA_UNIT_ROWS;
    }
    pairs_of[threadIdx.x] = pair;
    units_of[threadIdx.x] = unit;
    device_barrier();
    pair = unit = 0;
    for (uint32_t before = 0; before < threadIdx.x; before++) {
        pair += pairs_of[before];
        unit += units_of[before];
    }
    for (uint32_t e = begin; e < end; e++) {
        uint32_t rows = next[e];
        next[e] = pair;
        for (uint32_t row = 0; row < rows; row += MOE_CUDA_UNIT_ROWS) {
            uint32_t left = rows - row;
            struct moe_unit found = {e, pair + row,
                                     left < MOE_CUDA_UNIT_ROWS ? left : MOE_CUDA_UNIT_ROWS};
            args.scratch.unit[unit++] = found;
        }
        pair += rows;
    }
    if (threadIdx.x == MOE_SORT_THREADS - 1) *args.scratch.unit_count = unit;
    device_barrier();
    for (uint32_t i = threadIdx.x; i < pairs; i += MOE_SORT_THREADS)
        if (args.op.expert[i] < experts)
            args.scratch.pair[device_atomic_add(&next[args.op.expert[i]], 1)] = i;
}

/* 16 bytes a thread: eight inputs as panel_place lays them. */
static __device__ void round_row(const struct moe_args &args, uint32_t row) {
    const float *x = args.op.x + (size_t)row * args.op.dim;
    bf16 *to = args.scratch.x + (size_t)row * args.dim_steps * PANEL_STEP;
    for (uint32_t i = threadIdx.x; i < args.dim_steps * 4; i += MOE_SORT_THREADS) {
        uint32_t packed[4];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            uint32_t input = i / 4 * PANEL_STEP + j / 2 * 16 + i % 4 * 4 + j % 2 * 2;
            packed[j] = input < args.op.dim ? device_pack_bf16(x[input], x[input + 1]) : 0;
        }
        uint4 all = {packed[0], packed[1], packed[2], packed[3]};
        *(uint4 *)(to + i * 8) = all;
    }
}

__global__ void __launch_bounds__(MOE_SORT_THREADS) moe_prepare(struct moe_args args) {
    if (blockIdx.x == 0)
        sort_pairs(args);
    else
        round_row(args, blockIdx.x - 1);
}

/* ============================== gate and up =================================================== */

static __device__ float swiglu(float gate, float up) {
    return gate / (1.0f + device_exp2(-gate * MATH_LOG2_E)) * up;
}

/* Two neighbouring activations of a row, into every segment they or one of them belong to; what of
 * a step is outside of a segment is zero there. */
static __device__ void store_activation(const struct moe_args &args, uint32_t pair, uint32_t input,
                                        uint32_t packed) {
    uint32_t part = args.segment_width, step = input / PANEL_STEP;
    uint32_t first = step * PANEL_STEP / part, last = (step * PANEL_STEP + PANEL_STEP - 1) / part;
    for (uint32_t segment = first; segment <= last && segment < args.op.segments; segment++) {
        uint32_t begin = segment * part, mask = 0;
        if (input >= begin && input < begin + part) mask |= 0x0000ffffu;
        if (input + 1 >= begin && input + 1 < begin + part) mask |= 0xffff0000u;
        size_t at = ((size_t)pair * args.op.segments + segment) * args.segment_steps + step -
                    begin / PANEL_STEP;
        bf16 *to = args.scratch.activation + at * PANEL_STEP + panel_place(input % PANEL_STEP);
        *(uint32_t *)to = packed & mask;
    }
}

/* The warps' sums of one tile of rows, [8, 64] each, added in their order: 32 gates, 32 ups. A
 * thread takes two columns of a row. */
static __device__ void gate_tile(const struct moe_args &args, const struct moe_unit &unit,
                                 const unsigned char *shared, uint32_t ring_bytes, uint32_t tile) {
    uint32_t row = threadIdx.x / 16, column = threadIdx.x % 16 * 2;
    if (tile * PANEL_TILE + row >= unit.rows) return;
    float gate[2] = {}, up[2] = {};
#pragma unroll
    for (uint32_t warp = 0; warp < MOE_CUDA_WARPS; warp++) {
        const float *sum = (const float *)(shared + warp * ring_bytes) + row * PANEL_SUM_LINE +
                           column;
        gate[0] += sum[0], gate[1] += sum[1];
        up[0] += sum[KERNEL_PANEL], up[1] += sum[KERNEL_PANEL + 1];
    }
    store_activation(args, unit.pair_begin + tile * PANEL_TILE + row,
                     blockIdx.x * KERNEL_PANEL + column,
                     device_pack_bf16(swiglu(gate[0], up[0]), swiglu(gate[1], up[1])));
}

template <enum linear_format Format, uint32_t Ring, uint32_t Tiles>
static __device__ void gate_up_unit(const struct moe_args &args, const struct moe_unit &unit) {
    uint32_t warp = threadIdx.x / WARP_LANES, lane = threadIdx.x % WARP_LANES;
    struct panel_pair pair = panel_pair_of<Format>(args.op.experts[unit.expert].gate_up, blockIdx.x,
                                                   args.op.width / KERNEL_PANEL + blockIdx.x);
    struct panel_rows<Tiles> rows = {
        args.scratch.x, {}
    };
#pragma unroll
    for (uint32_t tile = 0; tile < Tiles; tile++) {
        uint32_t i = tile * PANEL_TILE + lane / 4;
        rows.step[tile] = PANEL_NO_ROW;
        if (i < unit.rows)
            rows.step[tile] = args.scratch.pair[unit.pair_begin + i] / args.op.topk *
                              args.dim_steps;
    }

    uint32_t step = args.dim_steps * warp / MOE_CUDA_WARPS, ahead = step;
    uint32_t end = args.dim_steps * (warp + 1) / MOE_CUDA_WARPS;
    panel_ring<Format, Tiles, Ring> ring;
    ring.init(device_shared());
    auto begin_step = [&] {
        if (ahead < end)
            panel_copy_step<Format, Tiles>(ring.next_to_fill(), pair, ahead, rows, ahead, true);
        ahead++;
    };
    panel_stream_begin(ring, begin_step);
    float sums[Tiles][4][4] = {};
#pragma unroll 1
    for (; step < end; step++)
        panel_stream_step(ring, begin_step, sums);
    device_warp_barrier(); /* the ring has been read: sums may take its place */
#pragma unroll
    for (uint32_t tile = 0; tile < Tiles; tile++) {
        panel_share_sums((float *)ring.base, sums[tile]);
        device_barrier();
        gate_tile(args, unit, device_shared(), Ring, tile);
        device_barrier();
    }
}

/* ============================== down ========================================================== */

/* A warp's way: tiles, segments of a tile, steps of a segment. */
struct place {
    uint32_t tile, segment, step;
};

static __device__ void advance(const struct moe_args &args, struct place *at) {
    if (++at->step < args.segment_steps) return;
    at->step = 0;
    if (++at->segment < args.op.segments) return;
    at->segment = 0;
    at->tile++;
}

/* Begin the step at `ahead`, whose panels are `pair`, and go on to the next. */
template <enum linear_format Format, uint32_t Tiles>
static __device__ void copy_down_step(const struct moe_args &args, unsigned char *stage,
                                      const struct linear_weight &weight, struct panel_pair *pair,
                                      const struct panel_rows<Tiles> &rows, struct place *ahead) {
    uint32_t part = args.segment_width;
    uint32_t step = ahead->segment * part / PANEL_STEP + ahead->step;
    panel_copy_step<Format, Tiles>(stage, *pair, step, rows,
                                   ahead->segment * args.segment_steps + ahead->step,
                                   step * PANEL_STEP < (ahead->segment + 1) * part);
    uint32_t tile = ahead->tile;
    advance(args, ahead);
    if (ahead->tile != tile)
        *pair = panel_pair_of<Format>(weight, 2 * ahead->tile, 2 * ahead->tile + 1);
}

/* A segment's sums to the rows of their pairs. */
template <uint32_t Tiles>
static __device__ void store_dots(const struct moe_args &args, const struct moe_unit &unit,
                                  const struct place &at, const float sums[Tiles][4][4]) {
    uint32_t lane = threadIdx.x % WARP_LANES;
    uint32_t column = at.tile * PANEL_OUTPUTS + lane / 16 * KERNEL_PANEL + lane / 4 % 4 * 4;
    size_t pairs = (size_t)args.op.rows * args.op.topk;
#pragma unroll
    for (uint32_t tile = 0; tile < Tiles; tile++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t row = tile * PANEL_TILE + lane % 4 * 2 + i % 2, output = column + i / 2 * 16;
            if (row >= unit.rows || output >= args.op.dim) continue;
            size_t pair = args.scratch.pair[unit.pair_begin + row];
            float4 four = {sums[tile][0][i], sums[tile][1][i], sums[tile][2][i], sums[tile][3][i]};
            *(float4 *)(args.scratch.dot + (at.segment * pairs + pair) * args.op.dim +
                        output) = four;
        }
}

template <enum linear_format Format, uint32_t Ring, uint32_t Tiles>
static __device__ void down_unit(const struct moe_args &args, const struct moe_unit &unit) {
    uint32_t warp = threadIdx.x / WARP_LANES, lane = threadIdx.x % WARP_LANES;
    struct linear_weight weight = args.op.experts[unit.expert].down;
    uint32_t tiles = (args.op.dim + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS;
    struct place at = {(blockIdx.x * MOE_CUDA_WARPS + warp) * args.down_tiles_a_warp, 0, 0};
    struct place ahead = at;
    uint32_t end = at.tile + args.down_tiles_a_warp;
    if (end > tiles) end = tiles;
    struct panel_rows<Tiles> rows = {
        args.scratch.activation, {}
    };
#pragma unroll
    for (uint32_t tile = 0; tile < Tiles; tile++) {
        uint32_t i = tile * PANEL_TILE + lane / 4;
        rows.step[tile] = PANEL_NO_ROW;
        if (i < unit.rows)
            rows.step[tile] = (unit.pair_begin + i) * args.op.segments * args.segment_steps;
    }

    panel_ring<Format, Tiles, Ring> ring;
    ring.init(device_shared());
    struct panel_pair pair = panel_pair_of<Format>(weight, 2 * at.tile, 2 * at.tile + 1);
    auto begin_step = [&] {
        if (ahead.tile < end)
            copy_down_step<Format, Tiles>(args, ring.next_to_fill(), weight, &pair, rows, &ahead);
    };
    panel_stream_begin(ring, begin_step);
    while (at.tile < end) {
        float sums[Tiles][4][4] = {};
        struct place of = at;
#pragma unroll 1
        for (; at.tile == of.tile && at.segment == of.segment; advance(args, &at))
            panel_stream_step(ring, begin_step, sums);
        store_dots<Tiles>(args, unit, of, sums);
    }
}

/* ============================== launches ====================================================== */

template <enum linear_format Format, uint32_t Ring, bool Down, uint32_t Tiles>
static __device__ void multiply_unit(const struct moe_args &args, const struct moe_unit &unit) {
    if constexpr (Down)
        down_unit<Format, Ring, Tiles>(args, unit);
    else
        gate_up_unit<Format, Ring, Tiles>(args, unit);
}

/* All blocks of a launch that have no unit return at once. */
template <enum linear_format Format, uint32_t Ring, bool Down>
__global__ void __launch_bounds__(MOE_CUDA_THREADS, 2) moe_product(struct moe_args args) {
    if (blockIdx.y >= *args.scratch.unit_count) return;
    struct moe_unit unit = args.scratch.unit[blockIdx.y];
#define MULTIPLY(tiles) multiply_unit<Format, Ring, Down, tiles>(args, unit)
    PANEL_TILES_FOR_ROWS(unit.rows, MULTIPLY);
#undef MULTIPLY
}

/* A block a row and segment. */
__global__ void __launch_bounds__(MOE_SORT_THREADS) moe_combine(struct moe_args args) {
    size_t row = blockIdx.x, segment = blockIdx.y, pairs = (size_t)args.op.rows * args.op.topk;
    const float *dot = args.scratch.dot + (segment * pairs + row * args.op.topk) * args.op.dim;
    float *y = args.op.y + (segment * args.op.rows + row) * args.op.dim;
    for (uint32_t column = threadIdx.x; column < args.op.dim; column += MOE_SORT_THREADS) {
        float sum = 0.0f;
        for (uint32_t k = 0; k < args.op.topk; k++)
            if (args.op.expert[row * args.op.topk + k] < args.op.expert_count)
                sum = fmaf(args.op.weight[row * args.op.topk + k],
                           dot[(size_t)k * args.op.dim + column], sum);
        y[column] = sum;
    }
}

template <enum linear_format Format, uint32_t Ring, bool Down>
static void (*choose_ring(uint32_t ring))(struct moe_args) {
    return ring == MOE_RING_DEEP ? moe_product<Format, MOE_RING_DEEP, Down>
                                 : moe_product<Format, Ring, Down>;
}

template <bool Down>
static void (*choose_kernel(enum linear_format format, uint32_t ring))(struct moe_args) {
    switch (format) {
    case LINEAR_INT4: return choose_ring<LINEAR_INT4, PANEL_RING_NARROW, Down>(ring);
    case LINEAR_FP8: return choose_ring<LINEAR_FP8, PANEL_RING_NARROW, Down>(ring);
    default: return choose_ring<LINEAR_BF16, PANEL_RING_BF16, Down>(ring);
    }
}

void moe_experts_cuda(const struct moe_experts_args *args, struct kernel_ctx *ctx) {
    uint32_t segments = args->segments;
    KERNEL_CHECK(segments == 1 || segments == 2 || segments == 4 || segments == 8);
    KERNEL_CHECK(args->width % segments == 0);
    KERNEL_CHECK(args->gate_up_format != LINEAR_INT4 || args->dim % INT4_GROUP == 0);
    if (args->rows == 0) return;
    struct moe_cuda_plan plan = moe_experts_cuda_plan(args, ctx->device);
    KERNEL_CHECK(ctx->scratch_bytes >= plan.scratch_bytes);
    struct moe_args moe = {*args,
                           {},
                           (args->dim + PANEL_STEP - 1) / PANEL_STEP,
                           args->width / args->segments,
                           moe_segment_steps(args),
                           plan.down_tiles_a_warp};
    moe_cuda_scratch_lay(&moe.scratch, ctx->scratch, args);

    launch(moe_prepare, dim3(1 + args->rows), MOE_SORT_THREADS,
           (args->expert_count + 2 * MOE_SORT_THREADS) * sizeof(uint32_t), ctx, moe);
    launch(choose_kernel<false>(args->gate_up_format, plan.gate_up_ring),
           dim3(args->width / KERNEL_PANEL, plan.units_max), MOE_CUDA_THREADS,
           MOE_CUDA_WARPS * plan.gate_up_ring, ctx, moe);
    launch(choose_kernel<true>(args->down_format, plan.down_ring),
           dim3(plan.down_blocks, plan.units_max), MOE_CUDA_THREADS,
           MOE_CUDA_WARPS * plan.down_ring, ctx, moe);
    launch(moe_combine, dim3(args->rows, args->segments), MOE_SORT_THREADS, 0, ctx, moe);
}
