/* One thread a token of the vocabulary; its bias is found by halving. */
extern "C" {
#include "penalize/penalize.h"
}

#include "cuda/block.cuh"

/* The first bias of a token that is not below id. */
static __device__ uint32_t find_bias(const struct penalize_args &args, uint32_t id) {
    uint32_t begin = 0, end = args.bias_count;
    while (begin < end) {
        uint32_t middle = begin + (end - begin) / 2;
        if (args.bias[middle].token < id)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

__global__ void __launch_bounds__(BLOCK_THREADS) penalize_tokens(struct penalize_args args) {
    uint32_t id = (uint32_t)block_element();
    if (id >= args.vocab) return;
    float x = args.logits[id];
    uint32_t bias = find_bias(args, id);
    if (bias < args.bias_count && args.bias[bias].token == id) x = x + args.bias[bias].value;
    uint32_t in_reply = 0, in_prompt = 0;
    if (args.count != NULL) {
        in_prompt = args.count[id] % PENALIZE_REPLY_ONE;
        in_reply = args.count[id] / PENALIZE_REPLY_ONE;
        for (uint32_t i = 0; i < args.tail_count; i++)
            in_reply += args.tail[i] == id;
    }
    if (in_prompt > 0 || in_reply > 0) x = x > 0 ? x / args.repetition : x * args.repetition;
    if (in_reply > 0) {
        x = x - args.frequency * (float)in_reply;
        x = x - args.presence;
    }
    args.out[id] = x;
}

void penalize_cuda(const struct penalize_args *args, struct kernel_ctx *ctx) {
    KERNEL_CHECK(args->tail_count <= PENALIZE_TAIL_MAX);
    launch(penalize_tokens, dim3(block_count(args->vocab)), BLOCK_THREADS, 0, ctx, *args);
}
