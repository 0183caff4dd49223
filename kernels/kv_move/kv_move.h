/* Move single tokens within one layer's cache: how the rows of a tree that were accepted come to
 * lie where the sequence goes on. Moves are done in order, so a later one sees what an earlier one
 * wrote; from and to may be the same slot. Exact. */
#ifndef ESPALIER_KV_MOVE_H
#define ESPALIER_KV_MOVE_H

#include "kernel.h"

struct kv_slot_move {
    uint32_t from, to; /* slots */
};

struct kv_move_args {
    void *kv;                         /* [slots] of this layer */
    const struct kv_slot_move *moves; /* [move_count] */
    uint32_t move_count;
    size_t tok_bytes; /* of a token, a multiple of 4 */
};

void kv_move_ref(const struct kv_move_args *args, struct kernel_ctx *ctx);
void kv_move_cpu(const struct kv_move_args *args, struct kernel_ctx *ctx);
void kv_move_cuda(const struct kv_move_args *args, struct kernel_ctx *ctx);

#endif
