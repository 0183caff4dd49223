/* A block a row; the squares are summed in BLOCK_THREADS chains and a tree. */
extern "C" {
#include "rms_norm/rms_norm.h"
}

#include "cuda/block.cuh"

__global__ void __launch_bounds__(BLOCK_THREADS) rms_norm_rows(struct rms_norm_args args) {
    const float *x = args.x + blockIdx.x * args.x_stride, *s = x;
    float *y = args.y + blockIdx.x * args.y_stride, squares = 0.0f;
    if (args.add) {
        const float *add = args.add + blockIdx.x * args.x_stride;
        float *sum = args.sum + blockIdx.x * args.x_stride;
        for (uint32_t i = threadIdx.x; i < args.dim; i += BLOCK_THREADS) {
            float value = x[i] + add[i];
            sum[i] = value;
            squares = fmaf(value, value, squares);
        }
        s = sum; /* a thread reads what it wrote */
    } else {
        for (uint32_t i = threadIdx.x; i < args.dim; i += BLOCK_THREADS)
            squares = fmaf(x[i], x[i], squares);
    }
    squares = block_reduce<BLOCK_THREADS>(squares, (float *)device_shared(), block_add());
    float r = 1.0f / sqrtf(squares / (float)args.dim + args.eps);
    for (uint32_t i = threadIdx.x; i < args.dim; i += BLOCK_THREADS)
        y[i] = (s[i] * r) * args.weight[i];
}

void rms_norm_cuda(const struct rms_norm_args *args, struct kernel_ctx *ctx) {
    KERNEL_CHECK(args->dim % 16 == 0);
    if (args->rows == 0) return;
    launch(rms_norm_rows, dim3(args->rows), BLOCK_THREADS, BLOCK_THREADS * sizeof(float), ctx,
           *args);
}
