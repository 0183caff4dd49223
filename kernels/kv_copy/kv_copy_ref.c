#include "kv_copy/kv_copy.h"

void kv_copy_ref(const struct kv_copy_args *args, struct kernel_ctx *ctx) {
    (void)ctx;
    for (uint32_t c = 0; c < args->copy_count; c++) {
        struct kv_page_copy copy = args->copies[c];
        KERNEL_CHECK(copy.source != copy.target && copy.tok_count <= args->page_tok);
        for (size_t tok = 0; tok < copy.tok_count; tok++) {
            size_t from = ((size_t)copy.source * args->page_tok + tok) * args->tok_bytes;
            size_t to = ((size_t)copy.target * args->page_tok + tok) * args->tok_bytes;
            for (size_t i = 0; i < args->tok_bytes; i++)
                ((char *)args->kv)[to + i] = ((const char *)args->kv)[from + i];
        }
    }
}
