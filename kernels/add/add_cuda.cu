/* One thread an element: what is read and written once has no other roof. */
extern "C" {
#include "add/add.h"
}

#include "cuda/block.cuh"

__global__ void __launch_bounds__(BLOCK_THREADS) add_elements(struct add_args args) {
    size_t i = block_element();
    if (i < args.count) args.x[i] = args.x[i] + args.y[i];
}

void add_cuda(const struct add_args *args, struct kernel_ctx *ctx) {
    if (args->count == 0) return;
    launch(add_elements, dim3(block_count(args->count)), BLOCK_THREADS, 0, ctx, *args);
}
