/* A block a row. */
extern "C" {
#include "embed/embed.h"
}

#include "cuda/block.cuh"

__global__ void __launch_bounds__(BLOCK_THREADS) embed_rows(struct embed_args args) {
    uint32_t id = args.id[blockIdx.x];
    bool mine = id >= args.vocab_begin && id - args.vocab_begin < args.vocab_count;
    size_t from = mine ? (size_t)(id - args.vocab_begin) * args.dim : 0;
    float *y = args.y + (size_t)blockIdx.x * args.dim;
    for (uint32_t i = threadIdx.x; i < args.dim; i += BLOCK_THREADS) {
        float value = 0.0f;
        if (mine)
            value = args.table_dtype == KERNEL_F32
                        ? ((const float *)args.table)[from + i]
                        : device_from_bf16(((const bf16 *)args.table)[from + i]);
        y[i] = value + 0.0f; /* a negative zero is zero */
    }
}

void embed_cuda(const struct embed_args *args, struct kernel_ctx *ctx) {
    if (args->rows == 0) return;
    launch(embed_rows, dim3(args->rows), BLOCK_THREADS, 0, ctx, *args);
}
