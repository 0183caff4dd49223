/* Copy the first tokens of pages within one layer's cache: how a partial page is shared, and how
 * pages move when the pool shrinks. Copies are done in order; a later one sees an earlier one's
 * result. Exact. */
#ifndef ESPALIER_KV_COPY_H
#define ESPALIER_KV_COPY_H

#include "kernel.h"

struct kv_page_copy {
    uint32_t source;    /* page */
    uint32_t target;    /* page, not source */
    uint32_t tok_count; /* first tokens of the page */
};

struct kv_copy_args {
    void *kv;                          /* [slots] of this layer */
    const struct kv_page_copy *copies; /* [copy_count] */
    uint32_t copy_count;
    uint32_t page_tok; /* tokens of a page */
    size_t tok_bytes;  /* of a token, a multiple of 4 */
};

void kv_copy_ref(const struct kv_copy_args *args, struct kernel_ctx *ctx);
void kv_copy_cpu(const struct kv_copy_args *args, struct kernel_ctx *ctx);
void kv_copy_cuda(const struct kv_copy_args *args, struct kernel_ctx *ctx);

#endif
