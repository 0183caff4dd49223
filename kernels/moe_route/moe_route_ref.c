#include "moe_route/moe_route.h"

#include <math.h>

/* The index of the greatest of count values that are not yet taken; the lowest among equals. */
static uint32_t take_best(const float *value, bool *taken, uint32_t count) {
    uint32_t best = count;
    for (uint32_t i = 0; i < count; i++)
        if (!taken[i] && (best == count || value[i] > value[best])) best = i;
    taken[best] = true;
    return best;
}

static void score_row(const struct moe_route_args *args, const float *logits, float *score) {
    float max = logits[0], sum = 0.0f;
    for (uint32_t e = 1; e < args->experts; e++)
        max = logits[e] > max ? logits[e] : max;
    for (uint32_t e = 0; e < args->experts; e++) {
        score[e] = args->scoring == MOE_SIGMOID ? 1.0f / (1.0f + expf(-logits[e]))
                                                : expf(logits[e] - max);
        sum = sum + score[e];
    }
    for (uint32_t e = 0; e < args->experts && args->scoring == MOE_SOFTMAX; e++)
        score[e] = score[e] / sum;
}

/* All but the best groups become -inf. */
static void keep_groups(const struct moe_route_args *args, float *selection) {
    uint32_t size = args->experts / args->groups;
    float group_score[1024];
    bool kept[1024] = {false};
    for (uint32_t g = 0; g < args->groups; g++) {
        bool taken[1024] = {false};
        float best = selection[g * size + take_best(selection + g * size, taken, size)];
        float second = selection[g * size + take_best(selection + g * size, taken, size)];
        group_score[g] = best + second;
    }
    for (uint32_t k = 0; k < args->topk_groups; k++)
        take_best(group_score, kept, args->groups);
    for (uint32_t e = 0; e < args->experts; e++)
        if (!kept[e / size]) selection[e] = -INFINITY;
}

void moe_route_ref(const struct moe_route_args *args, struct kernel_ctx *ctx) {
    (void)ctx;
    KERNEL_CHECK(args->experts >= 1 && args->experts <= 1024);
    KERNEL_CHECK(args->groups >= 1 && args->experts % args->groups == 0);
    KERNEL_CHECK(args->groups == 1 || args->experts / args->groups >= 2);
    KERNEL_CHECK(args->topk_groups >= 1 && args->topk_groups <= args->groups);
    KERNEL_CHECK(args->topk_groups <= 32);
    KERNEL_CHECK(args->topk >= 1 && args->topk <= 32);
    KERNEL_CHECK(args->topk <= args->experts / args->groups * args->topk_groups);

    for (size_t t = 0; t < args->rows; t++) {
        uint32_t *expert = args->expert + t * args->topk;
        float *weight = args->weight + t * args->topk;
        float score[1024], selection[1024];
        bool taken[1024] = {false};

        if (args->row_count && t >= *args->row_count) {
            for (uint32_t k = 0; k < args->topk; k++) {
                expert[k] = args->experts;
                weight[k] = 0.0f;
            }
            continue;
        }
        score_row(args, args->logits + t * args->experts, score);
        for (uint32_t e = 0; e < args->experts; e++) {
            selection[e] = args->bias ? score[e] + args->bias[e] : score[e];
            if (isnan(selection[e])) selection[e] = -INFINITY;
        }
        if (args->groups > 1) keep_groups(args, selection);

        float sum = 0.0f;
        for (uint32_t k = 0; k < args->topk; k++) {
            expert[k] = take_best(selection, taken, args->experts);
            weight[k] = score[expert[k]];
            sum = sum + weight[k];
        }
        for (uint32_t k = 0; k < args->topk; k++) {
            if (args->renormalize) weight[k] = weight[k] / (sum + 1e-20f);
            weight[k] = weight[k] * args->scale;
        }
        for (uint32_t k = 1; k < args->topk; k++) { /* insertion sort by expert */
            for (uint32_t i = k; i > 0 && expert[i] < expert[i - 1]; i--) {
                uint32_t e = expert[i];
                float w = weight[i];
                expert[i] = expert[i - 1];
                weight[i] = weight[i - 1];
                expert[i - 1] = e;
                weight[i - 1] = w;
            }
        }
    }
}
