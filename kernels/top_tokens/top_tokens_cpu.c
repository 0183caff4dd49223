/* Most logits lie below the least of the best so far: sixteen are compared with it at once, and
 * only where one is greater are they looked at one by one. Ids ascend, so an equal logit that comes
 * later never displaces an earlier one. */
#include "top_tokens/top_tokens.h"

#include <float.h>

#include "simd/f32x16_math.h"
#include "simd/isa.h"
#include "simd/rows.h"

struct best {
    float logit[TOP_TOKENS_MAX];
    uint32_t column[TOP_TOKENS_MAX];
    uint32_t count;
};

/* Up to sixteen logits from column id on, NaN and infinities read as the header says; -inf behind
 * the end. */
static f32x16 load_clean(const float *logits, uint32_t id, uint32_t end) {
    f32x16 limit = f32x16_set1(FLT_MAX), low = f32x16_set1(-INFINITY);
    /* The limit on the left keeps a NaN, the maximum on the right then drops it. */
    if (end - id >= 16) return f32x16_max(f32x16_min(limit, f32x16_load(logits + id)), low);
    float part[16];
    for (uint32_t i = 0; i < 16; i++)
        part[i] = i < end - id ? logits[id + i] : -INFINITY;
    return f32x16_max(f32x16_min(limit, f32x16_load(part)), low);
}

static void insert(struct best *best, uint32_t wanted, float logit, uint32_t column) {
    if (best->count == wanted && logit <= best->logit[wanted - 1]) return;
    uint32_t at = best->count < wanted ? best->count++ : wanted - 1;
    for (; at > 0 && best->logit[at - 1] < logit; at--) {
        best->logit[at] = best->logit[at - 1];
        best->column[at] = best->column[at - 1];
    }
    best->logit[at] = logit;
    best->column[at] = column;
}

static float max_lane(f32x16 v) {
    float lane[16], max = -INFINITY;
    f32x16_store(lane, v);
    for (int i = 0; i < 16; i++)
        max = lane[i] > max ? lane[i] : max;
    return max;
}

static void find_best(const struct top_tokens_args *args, const float *logits, struct best *best) {
    best->count = 0;
    for (uint32_t id = 0; id < args->width; id += 16) {
        f32x16 some = load_clean(logits, id, args->width);
        if (best->count == args->count && !(max_lane(some) > best->logit[args->count - 1]))
            continue;
        float lane[16];
        f32x16_store(lane, some);
        for (uint32_t i = 0; i < 16 && i < args->width - id; i++)
            insert(best, args->count, lane[i], id + i);
    }
}

static void sum_segment(const float *logits, uint32_t begin, uint32_t end, float *max_out,
                        float *sum_out) {
    f32x16 max = f32x16_set1(-INFINITY), sum = f32x16_zero();
    for (uint32_t id = begin; id < end; id += 16)
        max = f32x16_max(load_clean(logits, id, end), max);
    *max_out = max_lane(max);
    f32x16 minus = f32x16_set1(*max_out);
    for (uint32_t id = begin; id<end && * max_out> - INFINITY; id += 16)
        sum = f32x16_add(sum, f32x16_exp(f32x16_sub(load_clean(logits, id, end), minus)));
    *sum_out = f32x16_sum(sum);
}

static void run_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    const struct rows *rows = arg;
    const struct top_tokens_args *args = rows->args;
    for (size_t t = rows_begin(rows, task); t < rows_end(rows, task); t++) {
        const float *logits = args->logits + t * args->logits_stride;
        struct best best;
        find_best(args, logits, &best);
        for (uint32_t i = 0; i < args->count; i++) {
            args->token[t * args->count + i] = args->id_begin + best.column[i];
            args->logit[t * args->count + i] = best.logit[i];
        }
        for (uint64_t s = 0; s < args->segments; s++)
            sum_segment(logits, (uint32_t)(s * args->width / args->segments),
                        (uint32_t)((s + 1) * args->width / args->segments),
                        &args->max[t * args->segments + s], &args->sum[t * args->segments + s]);
    }
}

CPU_OP(top_tokens) {
    KERNEL_CHECK(args->count >= 1 && args->count <= TOP_TOKENS_MAX && args->count <= args->width);
    KERNEL_CHECK(args->segments >= 1 && args->segments <= KERNEL_SEGMENTS);
    struct rows rows = rows_split(args, args->rows, args->width);
    team_run(ctx->team, run_task, &rows, rows_tasks(&rows));
}
