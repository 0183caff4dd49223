/* A thread owns one place of a page and makes all copies of it, in order: a later copy reads what
 * the same thread has written. */
extern "C" {
#include "kv_copy/kv_copy.h"
}

#include "cuda/block.cuh"

template <typename Element>
__global__ void __launch_bounds__(BLOCK_THREADS) kv_copy_places(struct kv_copy_args args) {
    size_t place = block_element(), page = (size_t)args.page_tok * args.token_dim;
    if (place >= page) return;
    Element *kv = (Element *)args.kv;
    for (uint32_t c = 0; c < args.copy_count; c++) {
        struct kv_page_copy copy = args.copies[c];
        if (place < (size_t)copy.tok_count * args.token_dim)
            kv[copy.target * page + place] = kv[copy.source * page + place];
    }
}

void kv_copy_cuda(const struct kv_copy_args *args, struct kernel_ctx *ctx) {
    if (args->copy_count == 0) return;
    launch(args->kv_dtype == KERNEL_F32 ? kv_copy_places<float> : kv_copy_places<bf16>,
           dim3(block_count((size_t)args->page_tok * args->token_dim)), BLOCK_THREADS, 0, ctx,
           *args);
}
