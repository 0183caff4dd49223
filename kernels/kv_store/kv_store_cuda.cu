/* A block a row. */
extern "C" {
#include "kv_store/kv_store.h"
}

#include "cuda/block.cuh"

__global__ void __launch_bounds__(BLOCK_THREADS) kv_store_rows(struct kv_store_args args) {
    uint32_t dim = args.latent_dim + args.rope_dim;
    size_t row = blockIdx.x, at = (size_t)args.slot[row] * dim;
    for (uint32_t i = threadIdx.x; i < dim; i += BLOCK_THREADS) {
        float value = i < args.latent_dim
                          ? args.latent[row * args.latent_stride + i]
                          : args.rope_key[row * args.rope_stride + i - args.latent_dim];
        if (args.kv_dtype == KERNEL_F32)
            ((float *)args.kv)[at + i] = value;
        else
            ((bf16 *)args.kv)[at + i] = device_to_bf16(value);
    }
}

void kv_store_cuda(const struct kv_store_args *args, struct kernel_ctx *ctx) {
    if (args->rows == 0) return;
    launch(kv_store_rows, dim3(args->rows), BLOCK_THREADS, 0, ctx, *args);
}
