/* Few tokens of a vocabulary are in a path: a row is copied, and those changed. The ones with a
 * bias, and those of the tail, are few again: they are computed once more, from the beginning. */
#include "penalize/penalize.h"

#include <stdbool.h>
#include <string.h>

#include "simd/isa.h"

static float penalized(const struct penalize_args *args, float x, uint32_t count) {
    if (count == 0) return x;
    x = x > 0 ? x / args->repetition : x * args->repetition;
    if (count < PENALIZE_REPLY_ONE) return x;
    x = x - args->frequency * (float)(count / PENALIZE_REPLY_ONE);
    return x - args->presence;
}

static uint32_t count_with_tail(const struct penalize_args *args, uint32_t id) {
    if (!args->count) return 0;
    uint32_t count = args->count[id];
    for (uint32_t i = 0; i < args->tail_count; i++)
        if (args->tail[i] == id) count += PENALIZE_REPLY_ONE;
    return count;
}

/* The logit of a token with its bias, if it has one: binary search. */
static float with_bias(const struct penalize_args *args, uint32_t id) {
    uint32_t begin = 0, end = args->bias_count;
    while (begin < end) {
        uint32_t middle = begin + (end - begin) / 2;
        if (args->bias[middle].token < id)
            begin = middle + 1;
        else
            end = middle;
    }
    bool has = begin < args->bias_count && args->bias[begin].token == id;
    return has ? args->logits[id] + args->bias[begin].value : args->logits[id];
}

CPU_OP(penalize) {
    (void)ctx;
    KERNEL_CHECK(args->tail_count <= PENALIZE_TAIL_MAX && args->repetition > 0);
    KERNEL_CHECK(args->count || args->tail_count == 0);
    memcpy(args->out, args->logits, args->vocab * sizeof(float));
    for (uint32_t id = 0; id < args->vocab && args->count; id++)
        if (args->count[id] != 0)
            args->out[id] = penalized(args, args->logits[id], args->count[id]);
    for (uint32_t i = 0; i < args->tail_count; i++) {
        uint32_t id = args->tail[i];
        KERNEL_CHECK(id < args->vocab);
        args->out[id] = penalized(args, with_bias(args, id), count_with_tail(args, id));
    }
    for (uint32_t i = 0; i < args->bias_count; i++) {
        uint32_t id = args->bias[i].token;
        KERNEL_CHECK(id < args->vocab && (i == 0 || args->bias[i - 1].token < id));
        args->out[id] = penalized(args, args->logits[id] + args->bias[i].value,
                                  count_with_tail(args, id));
    }
}
