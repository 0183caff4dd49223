/* Launches as linear_cuda.h says; products as cuda/panels.cuh, which moe_experts shares. */
extern "C" {
#include "linear/linear_cublaslt.h"
#include "linear/linear_cuda.h"
}

#include "cuda/block.cuh"
#include "cuda/panels.cuh"

#define THREADS (LINEAR_CUDA_WARPS * WARP_LANES)

template <enum linear_format Format>
static constexpr uint32_t ring_bytes = Format == LINEAR_BF16 ? PANEL_RING_BF16 : PANEL_RING_NARROW;

struct product_args {
    struct linear_args op;
    struct linear_cuda_shape plan;
    bf16 *x;    /* [batch, rows, segments, segment_steps, 32] in the order of panels.cuh */
    float *out; /* [segments * splits, batch, rows, n] by the strides below */
    size_t row_stride, batch_stride;
    uint32_t rows; /* of x as it is cut: a row's parts lie one after the other */
};

/* ============================== prepare ======================================================= */

/* 16 bytes of every part a thread. What of a step is outside of the segment is zero. */
__global__ void __launch_bounds__(BLOCK_THREADS) linear_prepare(struct product_args args) {
    uint32_t chunks = args.op.segments * args.plan.segment_steps * 4;
    uint32_t i = (uint32_t)block_element(), row = blockIdx.y, batch = blockIdx.z;
    if (i >= chunks) return;
    uint32_t segment = i / 4 / args.plan.segment_steps, local = i / 4 % args.plan.segment_steps;
    uint32_t part = args.op.weight.k / args.op.segments;
    uint32_t begin = segment * part, first = (begin / PANEL_STEP + local) * PANEL_STEP + i % 4 * 4;
    const float *x = args.op.x + batch * args.op.x_batch_stride + row * args.op.x_stride;
    float value[8];
#pragma unroll
    for (uint32_t j = 0; j < 8; j++) {
        uint32_t input = first + j / 4 * 16 + j % 4;
        value[j] = input >= begin && input < begin + part ? x[input] : 0.0f;
    }
    for (uint32_t p = 0; p < args.plan.parts; p++) {
        uint32_t packed[4];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            packed[j] = device_pack_bf16(value[2 * j], value[2 * j + 1]);
            value[2 * j] -= device_low_bf16(packed[j]);
            value[2 * j + 1] -= device_high_bf16(packed[j]);
        }
        uint4 all = {packed[0], packed[1], packed[2], packed[3]};
        size_t to = ((size_t)batch * args.rows + row * args.plan.parts + p) * chunks + i;
        *(uint4 *)(args.x + to * 8) = all;
    }
}

/* ============================== product ======================================================= */

/* Whose products a block computes. Blocks that read the same weights run side by side. */
struct place {
    uint32_t tile; /* of 64 outputs */
    uint32_t row, batch;
};

/* The warps' sums of a tile, added in their order: a thread takes four outputs of a row. */
static __device__ void store_tile(const struct product_args &args, const struct place &block,
                                  uint32_t ring, uint32_t row) {
    uint32_t output = block.tile * PANEL_OUTPUTS + threadIdx.x % 16 * 4;
    uint32_t in_tile = threadIdx.x / 16;
    if (row + in_tile >= args.rows) return;
    float sum[4] = {};
#pragma unroll
    for (uint32_t warp = 0; warp < LINEAR_CUDA_WARPS; warp++) {
        const float *part = (const float *)(device_shared() + warp * ring) +
                            in_tile * PANEL_SUM_LINE + threadIdx.x % 16 * 4;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            sum[i] += part[i];
    }
    float *to = args.out + (blockIdx.y * args.op.batch + block.batch) * args.batch_stride +
                (row + in_tile) * args.row_stride + output;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        if (output + i < args.op.weight.n) to[i] = sum[i];
}

template <enum linear_format Format, uint32_t Tiles>
static __device__ void multiply(const struct product_args &args, const struct place &block) {
    constexpr uint32_t ring_size = ring_bytes<Format>;
    uint32_t warp = threadIdx.x / WARP_LANES, lane = threadIdx.x % WARP_LANES;
    uint32_t segment = blockIdx.y / args.plan.splits, split = blockIdx.y % args.plan.splits;
    struct panel_pair pair = panel_pair_of<Format>(args.op.weight, 2 * block.tile,
                                                   2 * block.tile + 1, block.batch);
    struct panel_rows<Tiles> rows = {
        args.x, {}
    };
#pragma unroll
    for (uint32_t tile = 0; tile < Tiles; tile++) {
        uint32_t i = block.row + tile * PANEL_TILE + lane / 4;
        rows.step[tile] = PANEL_NO_ROW;
        if (i < args.rows)
            rows.step[tile] = ((block.batch * args.rows + i) * args.op.segments + segment) *
                              args.plan.segment_steps;
    }

    /* Steps of the segment: those it has room for, of which the last may lie behind its end. */
    uint32_t part = args.op.weight.k / args.op.segments, before = segment * part / PANEL_STEP;
    uint32_t quarter = split * LINEAR_CUDA_WARPS + warp;
    uint32_t quarters = args.plan.splits * LINEAR_CUDA_WARPS;
    uint32_t step = args.plan.segment_steps * quarter / quarters, ahead = step;
    uint32_t end = args.plan.segment_steps * (quarter + 1) / quarters;
    uint32_t last = (segment + 1) * part;
    panel_ring<Format, Tiles, ring_size> ring;
    ring.init(device_shared());
    float sums[Tiles][4][4] = {};
    auto begin_step = [&] {
        if (ahead < end)
            panel_copy_step<Format, Tiles>(ring.next_to_fill(), pair, before + ahead, rows, ahead,
                                           (before + ahead) * PANEL_STEP < last);
        ahead++;
    };
    panel_stream_begin(ring, begin_step);
#pragma unroll 1
    for (; step < end; step++)
        panel_stream_step(ring, begin_step, sums);
    device_warp_barrier(); /* the ring has been read: sums may take its place */
#pragma unroll
    for (uint32_t tile = 0; tile < Tiles; tile++) {
        panel_share_sums((float *)ring.base, sums[tile]);
        device_barrier();
        store_tile(args, block, ring_size, block.row + tile * PANEL_TILE);
        device_barrier();
    }
}

template <enum linear_format Format>
__global__ void __launch_bounds__(THREADS, 2) linear_product(struct product_args args) {
    uint32_t row_tiles = (args.rows + PANEL_ROWS_MAX - 1) / PANEL_ROWS_MAX;
    struct place block = {blockIdx.x / row_tiles, blockIdx.x % row_tiles * PANEL_ROWS_MAX,
                          blockIdx.z};
    uint32_t left = args.rows - block.row;
#define MULTIPLY(tiles) multiply<Format, tiles>(args, block)
    PANEL_TILES_FOR_ROWS(left, MULTIPLY);
#undef MULTIPLY
}

/* ============================== merge ========================================================= */

/* The tree over the segments, neighbours first. */
DEVICE_INLINE float add_segments(float sum[KERNEL_SEGMENTS], uint32_t segments) {
#pragma unroll
    for (uint32_t apart = 1; apart < KERNEL_SEGMENTS; apart *= 2)
#pragma unroll
        for (uint32_t s = 0; s < KERNEL_SEGMENTS; s += 2 * apart)
            if (apart < segments) sum[s] = sum[s] + sum[s + apart];
    return sum[0];
}

__global__ void __launch_bounds__(BLOCK_THREADS) linear_merge(struct product_args args) {
    uint32_t n = (uint32_t)block_element(), row = blockIdx.y, batch = blockIdx.z;
    if (n >= args.op.weight.n) return;
    float sum[KERNEL_SEGMENTS] = {};
#pragma unroll
    for (uint32_t s = 0; s < KERNEL_SEGMENTS; s++) {
        if (s >= args.op.segments) break;
        for (uint32_t i = 0; i < args.plan.splits * args.plan.parts; i++) {
            size_t at = ((size_t)s * args.plan.splits + i / args.plan.parts) * args.op.batch +
                        batch;
            sum[s] += args.out[at * args.batch_stride +
                               (row * args.plan.parts + i % args.plan.parts) * args.row_stride + n];
        }
        if (args.op.add)
            sum[s] = args.op.add[((size_t)s * args.op.rows + row) * args.op.weight.n + n] + sum[s];
    }
    float *y = args.op.y + batch * args.op.y_batch_stride + row * args.op.y_stride;
    y[n] = add_segments(sum, args.op.segments);
}

/* ============================== for cuBLASLt ================================================== */

struct row_args {
    struct linear_args op;
    bf16 *x;    /* [batch, rows, k] */
    bf16 *slab; /* [batch, slab_outputs, k], from panel `first_panel` on */
    uint32_t first_panel, slab_outputs;
};

#define CHUNK LINEAR_CUBLASLT_UNIT /* inputs a thread */

/* A row of x. */
__global__ void __launch_bounds__(BLOCK_THREADS) linear_round(struct row_args args) {
    uint32_t chunk = (uint32_t)block_element(), row = blockIdx.y, batch = blockIdx.z;
    if (chunk >= args.op.weight.k / CHUNK) return;
    const float *x = args.op.x + batch * args.op.x_batch_stride + row * args.op.x_stride +
                     chunk * CHUNK;
    uint4 all = {device_pack_bf16(x[0], x[1]), device_pack_bf16(x[2], x[3]),
                 device_pack_bf16(x[4], x[5]), device_pack_bf16(x[6], x[7])};
    *(uint4 *)(args.x + ((size_t)batch * args.op.rows + row) * args.op.weight.k +
               chunk * CHUNK) = all;
}

/* A chunk of an output: a warp reads four whole pairs of inputs of its panel. */
__global__ void __launch_bounds__(BLOCK_THREADS) linear_unpack(struct row_args args) {
    uint32_t i = (uint32_t)block_element(), output = i % KERNEL_PANEL, chunk = i / KERNEL_PANEL;
    uint32_t batch = blockIdx.z, k = args.op.weight.k;
    if (chunk >= k / CHUNK) return;
    uint32_t panels = (args.op.weight.n + KERNEL_PANEL - 1) / KERNEL_PANEL;
    size_t panel = (size_t)batch * panels + args.first_panel + blockIdx.y;
    const uint32_t *pair = (const uint32_t *)args.op.weight.data +
                           (panel * (k / 2) + chunk * 4) * KERNEL_PANEL + output;
    uint4 all = {pair[0], pair[KERNEL_PANEL], pair[2 * KERNEL_PANEL], pair[3 * KERNEL_PANEL]};
    size_t row = (size_t)batch * args.slab_outputs + blockIdx.y * KERNEL_PANEL + output;
    *(uint4 *)(args.slab + row * k + chunk * CHUNK) = all;
}

/* ============================== weights in f32 ================================================ */

/* A warp: a panel x a row, a lane an output. */
__global__ void __launch_bounds__(BLOCK_THREADS) linear_f32(struct linear_args args) {
    uint32_t panel = blockIdx.x * (BLOCK_THREADS / WARP_LANES) + threadIdx.x / WARP_LANES;
    uint32_t lane = threadIdx.x % WARP_LANES, n = panel * KERNEL_PANEL + lane;
    uint32_t row = blockIdx.y, batch = blockIdx.z, part = args.weight.k / args.segments;
    if (n >= args.weight.n) return;
    uint32_t panels = (args.weight.n + KERNEL_PANEL - 1) / KERNEL_PANEL;
    const float *w = (const float *)args.weight.data +
                     ((size_t)batch * panels + panel) * args.weight.k * KERNEL_PANEL + lane;
    const float *x = args.x + batch * args.x_batch_stride + row * args.x_stride;
    float sum[KERNEL_SEGMENTS] = {};
#pragma unroll
    for (uint32_t s = 0; s < KERNEL_SEGMENTS; s++) {
        if (s >= args.segments) break;
        float acc = 0.0f;
        for (uint32_t k = s * part; k < (s + 1) * part; k++)
            acc = fmaf(x[k], w[(size_t)k * KERNEL_PANEL], acc);
        sum[s] = args.add ? args.add[((size_t)s * args.rows + row) * args.weight.n + n] + acc : acc;
    }
    float *y = args.y + batch * args.y_batch_stride + row * args.y_stride;
    y[n] = add_segments(sum, args.segments);
}

/* ============================== launches ====================================================== */

template <enum linear_format Format>
static void launch_product(const struct product_args &args, struct kernel_ctx *ctx) {
    uint32_t row_tiles = (args.rows + PANEL_ROWS_MAX - 1) / PANEL_ROWS_MAX;
    launch(linear_product<Format>,
           dim3((args.op.weight.n + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS * row_tiles,
                args.op.segments * args.plan.splits, args.op.batch),
           THREADS, LINEAR_CUDA_WARPS * ring_bytes<Format>, ctx, args);
}

static void launch_merge(const struct product_args &args, struct kernel_ctx *ctx) {
    if (args.plan.is_direct) return;
    launch(linear_merge, dim3(block_count(args.op.weight.n), args.op.rows, args.op.batch),
           BLOCK_THREADS, 0, ctx, args);
}

/* Outputs from `first` on, `count` of them, which are in the slab. */
static void multiply_slab(const struct product_args &product, const struct linear_cuda_room &room,
                          uint32_t first, uint32_t count, struct kernel_ctx *ctx) {
    const struct linear_args &op = product.op;
    uint32_t part = op.weight.k / op.segments;
    struct linear_cublaslt_args args = {};
    args.shape.rows = op.rows;
    args.shape.n = count;
    args.shape.k = part;
    args.shape.batch = op.batch;
    args.shape.x_stride = args.shape.w_stride = op.weight.k;
    args.shape.x_batch_stride = (size_t)op.rows * op.weight.k;
    args.shape.w_batch_stride = (size_t)product.plan.slab_outputs * op.weight.k;
    args.shape.y_stride = product.row_stride;
    args.shape.y_batch_stride = product.batch_stride;
    args.workspace = room.workspace;
    for (uint32_t segment = 0; segment < op.segments; segment++) {
        args.x = room.x + segment * part;
        args.w = room.slab + segment * part;
        args.y = product.out + segment * op.batch * product.batch_stride + first;
        linear_cublaslt_multiply(&args, ctx);
    }
}

static void multiply_by_cublaslt(struct product_args &product, struct kernel_ctx *ctx) {
    const struct linear_args &op = product.op;
    struct linear_cuda_room room;
    (void)linear_cuda_lay_out(&op, &product.plan, ctx->scratch, &room);
    if (!product.plan.is_direct) {
        product.out = room.sums;
        product.row_stride = op.weight.n;
        product.batch_stride = (size_t)op.rows * op.weight.n;
    }
    struct row_args rows = {op, room.x, room.slab, 0, product.plan.slab_outputs};
    uint32_t chunks = op.weight.k / CHUNK;
    launch(linear_round, dim3(block_count(chunks), op.rows, op.batch), BLOCK_THREADS, 0, ctx, rows);
    for (uint32_t first = 0; first < op.weight.n; first += rows.slab_outputs) {
        uint32_t count = min_u32(rows.slab_outputs, op.weight.n - first);
        rows.first_panel = first / KERNEL_PANEL;
        launch(linear_unpack,
               dim3(block_count((size_t)chunks * KERNEL_PANEL), divide_up(count, KERNEL_PANEL),
                    op.batch),
               BLOCK_THREADS, 0, ctx, rows);
        multiply_slab(product, room, first, count, ctx);
    }
    launch_merge(product, ctx);
}

void linear_cuda(const struct linear_args *args, struct kernel_ctx *ctx) {
    if (args->rows == 0) return;
    uint32_t segments = args->segments;
    KERNEL_CHECK(segments == 1 || segments == 2 || segments == 4 || segments == 8);
    KERNEL_CHECK(args->weight.k % segments == 0 && (!args->add || args->batch == 1));
    KERNEL_CHECK(args->weight.format != LINEAR_INT4 || args->weight.k % INT4_GROUP == 0);
    struct linear_cuda_shape plan = linear_cuda_plan(args, ctx->device);
    KERNEL_CHECK(ctx->scratch_bytes >= plan.scratch_bytes);
    if (args->weight.format == LINEAR_F32) {
        uint32_t panels = (args->weight.n + KERNEL_PANEL - 1) / KERNEL_PANEL;
        launch(linear_f32, dim3(block_count((size_t)panels * WARP_LANES), args->rows, args->batch),
               BLOCK_THREADS, 0, ctx, *args);
        return;
    }
    struct product_args product = {*args,
                                   plan,
                                   (bf16 *)ctx->scratch,
                                   args->y,
                                   args->y_stride,
                                   args->y_batch_stride,
                                   args->rows * plan.parts};
    if (plan.slab_outputs > 0) {
        multiply_by_cublaslt(product, ctx);
        return;
    }
    uint32_t chunks = args->segments * plan.segment_steps * 4;
    if (!plan.is_direct) {
        product.out = (float *)(product.x + (size_t)args->batch * product.rows * chunks * 8);
        product.row_stride = args->weight.n;
        product.batch_stride = (size_t)product.rows * args->weight.n;
    }
    launch(linear_prepare, dim3(block_count(chunks), args->rows, args->batch), BLOCK_THREADS, 0,
           ctx, product);
    switch (args->weight.format) {
    case LINEAR_BF16: launch_product<LINEAR_BF16>(product, ctx); break;
    case LINEAR_INT4: launch_product<LINEAR_INT4>(product, ctx); break;
    default: launch_product<LINEAR_FP8>(product, ctx); break;
    }
    launch_merge(product, ctx);
}
