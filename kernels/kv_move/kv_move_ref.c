#include "kv_move/kv_move.h"

void kv_move_ref(const struct kv_move_args *args, struct kernel_ctx *ctx) {
    (void)ctx;
    for (uint32_t m = 0; m < args->move_count; m++) {
        size_t from = (size_t)args->moves[m].from * args->token_dim;
        size_t to = (size_t)args->moves[m].to * args->token_dim;
        for (size_t i = 0; i < args->token_dim; i++) {
            if (args->kv_dtype == KERNEL_F32)
                ((float *)args->kv)[to + i] = ((const float *)args->kv)[from + i];
            else
                ((bf16 *)args->kv)[to + i] = ((const bf16 *)args->kv)[from + i];
        }
    }
}
