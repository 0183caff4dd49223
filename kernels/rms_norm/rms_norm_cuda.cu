/* A block a row; the squares are summed in BLOCK_THREADS chains and a tree. */
extern "C" {
#include "rms_norm/rms_norm.h"
}

#include "cuda/block.cuh"

__global__ void __launch_bounds__(BLOCK_THREADS) rms_norm_rows(struct rms_norm_args args) {
    const float *x = args.x + blockIdx.x * args.x_stride;
    float *y = args.y + blockIdx.x * args.y_stride, sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < args.dim; i += BLOCK_THREADS)
        sum = fmaf(x[i], x[i], sum);
    sum = block_reduce<BLOCK_THREADS>(sum, (float *)device_shared(), block_add());
    float r = 1.0f / sqrtf(sum / (float)args.dim + args.eps);
    for (uint32_t i = threadIdx.x; i < args.dim; i += BLOCK_THREADS)
        y[i] = (x[i] * r) * args.weight[i];
}

void rms_norm_cuda(const struct rms_norm_args *args, struct kernel_ctx *ctx) {
    KERNEL_CHECK(args->dim % 16 == 0);
    if (args->rows == 0) return;
    launch(rms_norm_rows, dim3(args->rows), BLOCK_THREADS, BLOCK_THREADS * sizeof(float), ctx,
           *args);
}
