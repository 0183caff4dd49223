/* A thread owns one word of every token and makes all moves of it, in order. Moves are read some
 * at a time before any of them is written, which hides the memory's latency, wherever none of them
 * reads what another of them wrote: always, for the rows of a tree, whose rows only move down. */
extern "C" {
#include "kv_move/kv_move.h"
}

#include "cuda/block.cuh"

#define MOVES_AT_A_TIME 8u

/* Does a move of [begin, end) read what an earlier one of them wrote? */
static __device__ bool depends(const struct kv_slot_move *moves, uint32_t begin, uint32_t end) {
    for (uint32_t later = begin + 1; later < end; later++)
        for (uint32_t earlier = begin; earlier < later; earlier++)
            if (moves[later].from == moves[earlier].to) return true;
    return false;
}

__global__ void __launch_bounds__(BLOCK_THREADS) kv_move_words(struct kv_move_args args) {
    size_t i = block_element(), tok = args.tok_bytes / sizeof(uint32_t);
    if (i >= tok) return;
    uint32_t *kv = (uint32_t *)args.kv + i;
    for (uint32_t begin = 0; begin < args.move_count;) {
        uint32_t end = begin + MOVES_AT_A_TIME;
        if (end > args.move_count) end = args.move_count;
        if (depends(args.moves, begin, end)) end = begin + 1;
        uint32_t held[MOVES_AT_A_TIME];
#pragma unroll
        for (uint32_t m = 0; m < MOVES_AT_A_TIME; m++)
            if (begin + m < end) held[m] = kv[args.moves[begin + m].from * tok];
#pragma unroll
        for (uint32_t m = 0; m < MOVES_AT_A_TIME; m++)
            if (begin + m < end) kv[args.moves[begin + m].to * tok] = held[m];
        begin = end;
    }
}

void kv_move_cuda(const struct kv_move_args *args, struct kernel_ctx *ctx) {
    if (args->move_count == 0) return;
    launch(kv_move_words, dim3(block_count(args->tok_bytes / sizeof(uint32_t))), BLOCK_THREADS, 0,
           ctx, *args);
}
