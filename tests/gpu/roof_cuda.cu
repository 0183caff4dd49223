extern "C" {
#include "roof_cuda.h"
}

#include "cuda/block.cuh"
#include "cuda/wgmma.cuh"

#define BLOCKS_A_MULTIPROCESSOR 8u
#define CHAINS                  8u /* products of a warp that do not wait for each other */

#define GROUP_THREADS       128u
#define GROUP_BLOCK_THREADS 256u
#define GROUP_ROWS          64u
#define GROUP_COLUMNS       256u
#define GROUP_SHARED_BYTES  ((GROUP_ROWS + GROUP_COLUMNS) * WGMMA_LINE_BYTES)

struct read_args {
    const uint4 *from;
    size_t count;
    uint32_t *sink;
    uint32_t blocks;
};

__global__ void __launch_bounds__(BLOCK_THREADS) roof_read(struct read_args args) {
    size_t stride = (size_t)args.blocks * BLOCK_THREADS;
    uint32_t mixed = 0;
#pragma unroll 8
    for (size_t i = block_element(); i < args.count; i += stride) {
        uint4 value = args.from[i];
        mixed |= value.x & value.y & value.z & value.w;
    }
    if (mixed == 0x12345678u) *args.sink = mixed; /* never: no number of the fill has these bits */
}

void roof_cuda_read(const void *memory, size_t bytes, uint32_t *sink, struct kernel_ctx *ctx) {
    uint32_t blocks = ctx->device->multiprocessors * BLOCKS_A_MULTIPROCESSOR;
    struct read_args args = {(const uint4 *)memory, bytes / 16, sink, blocks};
    launch(roof_read, dim3(blocks), BLOCK_THREADS, 0, ctx, args);
}

struct multiply_args {
    uint32_t rounds;
    uint32_t *sink;
};

__global__ void __launch_bounds__(BLOCK_THREADS) roof_multiply(struct multiply_args args) {
    uint32_t one = 0x3f803f80u + threadIdx.x % 2, a[4] = {one, one, one, one}, b[2] = {one, one};
    float sums[CHAINS][4] = {};
    for (uint32_t round = 0; round < args.rounds; round++)
#pragma unroll
        for (uint32_t i = 0; i < CHAINS; i++)
            device_mma_bf16(sums[i], a, b);
    float all = 0.0f;
    for (uint32_t i = 0; i < CHAINS; i++)
        all += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
    if (all < 0.0f) *args.sink = 1;
}

/* Both groups of a block multiply the same tiles, of ones and numbers near it. */
__global__ void __launch_bounds__(GROUP_BLOCK_THREADS)
    roof_multiply_groups(struct multiply_args args) {
    unsigned char *a = device_shared(), *b = a + GROUP_ROWS * WGMMA_LINE_BYTES;
    for (uint32_t i = threadIdx.x; i < GROUP_SHARED_BYTES / 4; i += GROUP_BLOCK_THREADS)
        device_store4(a + i * 4, 0x3f803f80u + threadIdx.x % 2);
    device_async_fence();
    device_barrier();
    uint64_t a_tile = wgmma_tile(a, 0), b_tile = wgmma_tile(b, 0);
    float sums[GROUP_COLUMNS / 2] = {};
    for (uint32_t round = 0; round < args.rounds; round++) {
        device_wgmma_fence(sums);
#pragma unroll
        for (uint32_t i = 0; i < CHAINS; i++)
            device_wgmma<WGMMA_LINE_IS_COLUMN>(sums, wgmma_tile_at(a_tile, i % 4 * 32),
                                               wgmma_tile_at(b_tile, i % 4 * 32), true);
        device_wgmma_commit();
        device_wgmma_wait<0>(sums);
    }
    float all = 0.0f;
    for (uint32_t i = 0; i < GROUP_COLUMNS / 2; i++)
        all += sums[i];
    if (all < 0.0f) *args.sink = 1;
}

static double multiply_groups(uint32_t rounds, uint32_t *sink, struct kernel_ctx *ctx) {
    uint32_t blocks = ctx->device->multiprocessors;
    struct multiply_args args = {rounds, sink};
    launch(roof_multiply_groups, dim3(blocks), GROUP_BLOCK_THREADS, GROUP_SHARED_BYTES, ctx, args);
    double products = (double)blocks * (GROUP_BLOCK_THREADS / GROUP_THREADS) * CHAINS * rounds;
    return products * 2 * GROUP_ROWS * GROUP_COLUMNS * 16;
}

double roof_cuda_multiply(uint32_t rounds, uint32_t *sink, struct kernel_ctx *ctx) {
    if (ctx->device->has_wgmma) return multiply_groups(rounds, sink, ctx);
    uint32_t blocks = ctx->device->multiprocessors * BLOCKS_A_MULTIPROCESSOR;
    struct multiply_args args = {rounds, sink};
    launch(roof_multiply, dim3(blocks), BLOCK_THREADS, 0, ctx, args);
    double products = (double)blocks * (BLOCK_THREADS / 32) * CHAINS * rounds;
    return products * 2 * 16 * 8 * 16;
}

struct fill_args {
    uint2 *to;
    size_t count;
    uint64_t seed;
    uint32_t blocks;
};

__global__ void __launch_bounds__(BLOCK_THREADS) roof_fill(struct fill_args args) {
    size_t stride = (size_t)args.blocks * BLOCK_THREADS;
    for (size_t i = block_element(); i < args.count; i += stride) {
        uint64_t z = (args.seed + i) * 0x9e3779b97f4a7c15u; /* splitmix64's */
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z = ((z ^ (z >> 31)) & 0x8077807780778077u) | 0x3c003c003c003c00u; /* no e4m3 NaN */
        uint2 pair = {(uint32_t)z, (uint32_t)(z >> 32)};
        args.to[i] = pair;
    }
}

void roof_cuda_fill(void *memory, size_t bytes, uint64_t seed, struct kernel_ctx *ctx) {
    uint32_t blocks = ctx->device->multiprocessors * BLOCKS_A_MULTIPROCESSOR;
    struct fill_args args = {(uint2 *)memory, bytes / sizeof(uint2), seed, blocks};
    launch(roof_fill, dim3(blocks), BLOCK_THREADS, 0, ctx, args);
}
