/* One thread a pair. */
extern "C" {
#include "rope/rope.h"
}

#include "cuda/block.cuh"

__global__ void __launch_bounds__(BLOCK_THREADS) rope_pairs(struct rope_args args) {
    uint32_t half = args.dim / 2;
    size_t pair = block_element();
    if (pair >= (size_t)args.rows * args.heads * half) return;
    size_t row = pair / half / args.heads, head = pair / half % args.heads;
    uint32_t i = (uint32_t)(pair % half);
    const float *angles = args.cos_sin + row * args.dim;
    float *x = args.x + row * args.row_stride + head * args.head_stride;
    float *first = x + (args.halves ? i : 2 * i),
          *second = x + (args.halves ? half + i : 2 * i + 1);
    float a = *first, b = *second, cosine = angles[i], sine = angles[half + i];
    *first = a * cosine - b * sine;
    *second = a * sine + b * cosine;
}

void rope_cuda(const struct rope_args *args, struct kernel_ctx *ctx) {
    KERNEL_CHECK(args->dim % 2 == 0);
    size_t pairs = (size_t)args->rows * args->heads * (args->dim / 2);
    if (pairs == 0) return;
    launch(rope_pairs, dim3(block_count(pairs)), BLOCK_THREADS, 0, ctx, *args);
}
