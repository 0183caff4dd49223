/* One thread an element; exp is the CPU's, so results are too. */
extern "C" {
#include "swiglu/swiglu.h"
}

#include "cuda/block.cuh"
#include "cuda/math.cuh"

__global__ void __launch_bounds__(BLOCK_THREADS) swiglu_elements(struct swiglu_args args) {
    size_t element = block_element();
    if (element >= (size_t)args.rows * args.dim) return;
    size_t row = element / args.dim, i = element % args.dim;
    const float *gate = args.gate_up + row * args.gate_up_stride + i;
    args.y[row * args.y_stride + i] = gate[0] / (1.0f + math_exp(-gate[0])) * gate[args.dim];
}

void swiglu_cuda(const struct swiglu_args *args, struct kernel_ctx *ctx) {
    size_t count = (size_t)args->rows * args->dim;
    if (count == 0) return;
    launch(swiglu_elements, dim3(block_count(count)), BLOCK_THREADS, 0, ctx, *args);
}
