#include "kv_move/kv_move.h"

void kv_move_ref(const struct kv_move_args *args, struct kernel_ctx *ctx) {
    (void)ctx;
    for (uint32_t m = 0; m < args->move_count; m++) {
        size_t from = args->moves[m].from * args->tok_bytes;
        size_t to = args->moves[m].to * args->tok_bytes;
        for (size_t i = 0; i < args->tok_bytes; i++)
            ((char *)args->kv)[to + i] = ((const char *)args->kv)[from + i];
    }
}
