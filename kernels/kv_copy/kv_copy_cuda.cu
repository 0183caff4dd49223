/* A thread owns one word of a page and makes all copies of it, in order: a later copy reads what
 * the same thread has written. */
extern "C" {
#include "kv_copy/kv_copy.h"
}

#include "cuda/block.cuh"

__global__ void __launch_bounds__(BLOCK_THREADS) kv_copy_words(struct kv_copy_args args) {
    size_t tok = args.tok_bytes / sizeof(uint32_t), page = args.page_tok * tok;
    size_t place = block_element();
    if (place >= page) return;
    uint32_t *kv = (uint32_t *)args.kv;
    for (uint32_t c = 0; c < args.copy_count; c++) {
        struct kv_page_copy copy = args.copies[c];
        if (place < copy.tok_count * tok)
            kv[copy.target * page + place] = kv[copy.source * page + place];
    }
}

void kv_copy_cuda(const struct kv_copy_args *args, struct kernel_ctx *ctx) {
    if (args->copy_count == 0) return;
    launch(kv_copy_words, dim3(block_count(args->page_tok * args->tok_bytes / sizeof(uint32_t))),
           BLOCK_THREADS, 0, ctx, *args);
}
