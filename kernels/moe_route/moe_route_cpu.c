/* One pass over the experts per row: a short list of the best so far, in order, into which an
 * expert is inserted when it beats the last. Experts come in ascending order and must be strictly
 * better to pass, so ties stay with the lower index. */
#include "moe_route/moe_route.h"

#include "simd/f32x16_math.h"
#include "simd/isa.h"
#include "simd/rows.h"

#define EXPERTS_MAX 1024u
#define TOPK_MAX    32u

struct best {
    float value[TOPK_MAX];
    uint32_t idx[TOPK_MAX];
    uint32_t count;
};

static void run_task(void *arg, uint32_t task, uint32_t thread);
static void route(const struct moe_route_args *args, const float *logits, uint32_t *expert,
                  float *weight);
static void route_nowhere(const struct moe_route_args *args, uint32_t *expert, float *weight);
static void score_experts(const struct moe_route_args *args, const float *logits, float *score);
static void drop_groups(const struct moe_route_args *args, float *selection);
static void sort_by_expert(uint32_t *expert, float *weight, uint32_t count);

/* best holds at most `limit`. */
static void insert(struct best *best, uint32_t limit, float value, uint32_t idx) {
    if (best->count == limit && !(value > best->value[limit - 1])) return;
    uint32_t at = best->count < limit ? best->count++ : limit - 1;
    for (; at > 0 && value > best->value[at - 1]; at--) {
        best->value[at] = best->value[at - 1];
        best->idx[at] = best->idx[at - 1];
    }
    best->value[at] = value;
    best->idx[at] = idx;
}

CPU_OP(moe_route) {
    uint32_t experts = args->experts, groups = args->groups;
    KERNEL_CHECK(experts >= 1 && experts <= EXPERTS_MAX);
    KERNEL_CHECK(groups >= 1 && experts % groups == 0 && (groups == 1 || experts / groups >= 2));
    KERNEL_CHECK(args->topk_groups >= 1 && args->topk_groups <= groups);
    KERNEL_CHECK(args->topk_groups <= TOPK_MAX);
    KERNEL_CHECK(args->topk >= 1 && args->topk <= TOPK_MAX);
    KERNEL_CHECK(args->topk <= experts / groups * args->topk_groups);

    struct rows rows = rows_split(args, args->rows, 8 * (size_t)experts);
    team_run(ctx->team, run_task, &rows, rows_tasks(&rows));
}

static void run_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    const struct rows *rows = arg;
    const struct moe_route_args *args = rows->args;
    for (size_t t = rows_begin(rows, task); t < rows_end(rows, task); t++) {
        uint32_t *expert = args->expert + t * args->topk;
        float *weight = args->weight + t * args->topk;
        if (!args->row_count || t < *args->row_count)
            route(args, args->logits + t * args->experts, expert, weight);
        else
            route_nowhere(args, expert, weight);
    }
}

static void route_nowhere(const struct moe_route_args *args, uint32_t *expert, float *weight) {
    for (uint32_t k = 0; k < args->topk; k++) {
        expert[k] = args->experts;
        weight[k] = 0;
    }
}

static void route(const struct moe_route_args *args, const float *logits, uint32_t *expert,
                  float *weight) {
    float score[EXPERTS_MAX], selection[EXPERTS_MAX];
    score_experts(args, logits, score);
    for (uint32_t e = 0; e < args->experts; e++) {
        float value = args->bias ? score[e] + args->bias[e] : score[e];
        selection[e] = isnan(value) ? -INFINITY : value;
    }
    if (args->groups > 1) drop_groups(args, selection);

    struct best best = {.count = 0};
    for (uint32_t e = 0; e < args->experts; e++)
        insert(&best, args->topk, selection[e], e);
    float sum = 0.0f;
    for (uint32_t k = 0; k < args->topk; k++)
        sum = sum + score[best.idx[k]];
    for (uint32_t k = 0; k < args->topk; k++) {
        float value = score[best.idx[k]];
        if (args->renormalize) value = value / (sum + 1e-20f);
        expert[k] = best.idx[k];
        weight[k] = value * args->scale;
    }
    sort_by_expert(expert, weight, args->topk);
}

static void score_experts(const struct moe_route_args *args, const float *logits, float *score) {
    uint32_t experts = args->experts;
    float max = logits[0], sum = 0.0f;
    for (uint32_t e = 1; e < experts && args->scoring == MOE_SOFTMAX; e++)
        max = logits[e] > max ? logits[e] : max;
    for (uint32_t e = 0; e < experts; e += 16) {
        uint32_t count = experts - e < 16 ? experts - e : 16;
        f32x16 x = f32x16_load_part(logits + e, count);
        if (args->scoring == MOE_SIGMOID)
            x = f32x16_sigmoid(x);
        else
            x = f32x16_exp(f32x16_sub(x, f32x16_set1(max)));
        f32x16_store_part(score + e, x, count);
    }
    if (args->scoring == MOE_SIGMOID) return;
    for (uint32_t e = 0; e < experts; e++)
        sum = sum + score[e];
    for (uint32_t e = 0; e < experts; e++)
        score[e] = score[e] / sum;
}

/* All but the best groups become -inf. */
static void drop_groups(const struct moe_route_args *args, float *selection) {
    uint32_t size = args->experts / args->groups;
    bool kept[EXPERTS_MAX] = {false};
    struct best groups = {.count = 0};
    for (uint32_t g = 0; g < args->groups; g++) {
        struct best two = {.count = 0};
        for (uint32_t e = 0; e < size; e++)
            insert(&two, 2, selection[g * size + e], e);
        insert(&groups, args->topk_groups, two.value[0] + two.value[1], g);
    }
    for (uint32_t k = 0; k < args->topk_groups; k++)
        kept[groups.idx[k]] = true;
    for (uint32_t e = 0; e < args->experts; e++)
        if (!kept[e / size]) selection[e] = -INFINITY;
}

static void sort_by_expert(uint32_t *expert, float *weight, uint32_t count) {
    for (uint32_t k = 1; k < count; k++) {
        uint32_t e = expert[k], at = k;
        float w = weight[k];
        for (; at > 0 && expert[at - 1] > e; at--) {
            expert[at] = expert[at - 1];
            weight[at] = weight[at - 1];
        }
        expert[at] = e;
        weight[at] = w;
    }
}
