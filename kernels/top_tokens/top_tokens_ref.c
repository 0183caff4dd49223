#include "top_tokens/top_tokens.h"

#include <float.h>
#include <math.h>

static float read_logit(const float *logits, uint32_t id) {
    if (isnan(logits[id])) return -INFINITY;
    return logits[id] > FLT_MAX ? FLT_MAX : logits[id];
}

/* Does column a come before b? */
static int before(const float *logits, uint32_t a, uint32_t b) {
    float left = read_logit(logits, a), right = read_logit(logits, b);
    return left > right || (left == right && a < b);
}

/* The best column that comes after `last`; width for the first. */
static uint32_t next_best(const float *logits, uint32_t width, uint32_t last) {
    uint32_t best = width;
    for (uint32_t id = 0; id < width; id++)
        if ((last == width || before(logits, last, id)) &&
            (best == width || before(logits, id, best)))
            best = id;
    return best;
}

void top_tokens_ref(const struct top_tokens_args *args, struct kernel_ctx *ctx) {
    (void)ctx;
    KERNEL_CHECK(args->count >= 1 && args->count <= TOP_TOKENS_MAX && args->count <= args->width);
    KERNEL_CHECK(args->segments >= 1 && args->segments <= KERNEL_SEGMENTS);
    for (size_t t = 0; t < args->rows; t++) {
        const float *logits = args->logits + t * args->logits_stride;
        for (uint32_t i = 0, last = args->width; i < args->count; i++) {
            last = next_best(logits, args->width, last);
            args->token[t * args->count + i] = args->id_begin + last;
            args->logit[t * args->count + i] = read_logit(logits, last);
        }
        for (uint64_t s = 0; s < args->segments; s++) {
            uint32_t begin = (uint32_t)(s * args->width / args->segments);
            uint32_t end = (uint32_t)((s + 1) * args->width / args->segments);
            float max = -INFINITY, lane[16] = {0};
            for (uint32_t id = begin; id < end; id++)
                max = read_logit(logits, id) > max ? read_logit(logits, id) : max;
            for (uint32_t id = begin; id < end && max > -INFINITY; id++)
                lane[(id - begin) % 16] = lane[(id - begin) % 16] +
                                          expf(read_logit(logits, id) - max);
            for (int apart = 8; apart > 0; apart /= 2)
                for (int l = 0; l < apart; l++)
                    lane[l] = lane[l] + lane[l + apart];
            args->max[t * args->segments + s] = max;
            args->sum[t * args->segments + s] = lane[0];
        }
    }
}
