/* A page's first tokens lie together, so a copy is one memcpy. Copies stay in order on one thread:
 * they are few, and a later one may read what an earlier one wrote. */
#include "kv_copy/kv_copy.h"

#include <string.h>

#include "simd/isa.h"

CPU_OP(kv_copy) {
    (void)ctx;
    size_t page_bytes = args->page_tok * args->tok_bytes;
    for (uint32_t c = 0; c < args->copy_count; c++) {
        struct kv_page_copy copy = args->copies[c];
        KERNEL_CHECK(copy.source != copy.target && copy.tok_count <= args->page_tok);
        memcpy((char *)args->kv + copy.target * page_bytes,
               (const char *)args->kv + copy.source * page_bytes, copy.tok_count * args->tok_bytes);
    }
}
