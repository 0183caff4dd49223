/* A tree is accepted by a few tokens a step, in order: one thread, one memcpy a token. */
#include "kv_move/kv_move.h"

#include <string.h>

#include "simd/isa.h"

CPU_OP(kv_move) {
    (void)ctx;
    size_t tok_bytes = args->tok_bytes;
    for (uint32_t m = 0; m < args->move_count; m++) {
        struct kv_slot_move move = args->moves[m];
        if (move.from != move.to)
            memcpy((char *)args->kv + move.to * tok_bytes,
                   (const char *)args->kv + move.from * tok_bytes, tok_bytes);
    }
}
