/* A block a row. Who is chosen is found without sorting: an expert's place is how many come before
 * it, and everybody counts for himself. Sums have the order of the header: one thread adds. */
extern "C" {
#include "moe_route/moe_route.h"
}

#include "cuda/block.cuh"
#include "cuda/math.cuh"

#define EXPERTS_MAX 1024u
#define TOPK_MAX    32u

struct route_memory {
    float score[EXPERTS_MAX], selection[EXPERTS_MAX];
    float group_score[EXPERTS_MAX];
    uint32_t best[TOPK_MAX]; /* best first */
    float sum;               /* of what is divided by it; before that the greatest logit */
};

/* How many of `count` values come before value[i]: greater ones, and equal ones of lower index. */
static __device__ uint32_t place_of(const float *value, uint32_t count, uint32_t i) {
    uint32_t place = 0;
    for (uint32_t other = 0; other < count; other++)
        place += value[other] > value[i] || (value[other] == value[i] && other < i);
    return place;
}

static __device__ void score_softmax(const struct moe_route_args &args, const float *logits,
                                     struct route_memory *memory) {
    if (threadIdx.x == 0) {
        float max = logits[0];
        for (uint32_t e = 1; e < args.experts; e++)
            max = logits[e] > max ? logits[e] : max;
        memory->sum = max;
    }
    device_barrier();
    for (uint32_t e = threadIdx.x; e < args.experts; e += BLOCK_THREADS)
        memory->score[e] = math_exp(logits[e] - memory->sum);
    device_barrier();
    if (threadIdx.x == 0) {
        float sum = 0.0f;
        for (uint32_t e = 0; e < args.experts; e++)
            sum = sum + memory->score[e];
        memory->sum = sum;
    }
    device_barrier();
    for (uint32_t e = threadIdx.x; e < args.experts; e += BLOCK_THREADS)
        memory->score[e] = memory->score[e] / memory->sum;
}

/* All but the best groups become -inf. */
static __device__ void drop_groups(const struct moe_route_args &args, struct route_memory *memory) {
    uint32_t size = args.experts / args.groups;
    for (uint32_t g = threadIdx.x; g < args.groups; g += BLOCK_THREADS) {
        float best = -INFINITY, second = -INFINITY;
        for (uint32_t e = g * size; e < (g + 1) * size; e++) {
            float value = memory->selection[e];
            second = fmaxf(second, fminf(best, value));
            best = fmaxf(best, value);
        }
        memory->group_score[g] = best + second;
    }
    device_barrier();
    for (uint32_t e = threadIdx.x; e < args.experts; e += BLOCK_THREADS)
        if (place_of(memory->group_score, args.groups, e / size) >= args.topk_groups)
            memory->selection[e] = -INFINITY;
    device_barrier();
}

/* The chosen, best first, to their places in ascending order of index. */
static __device__ void write_chosen(const struct moe_route_args &args,
                                    const struct route_memory *memory) {
    uint32_t k = threadIdx.x, place = 0;
    if (k >= args.topk) return;
    for (uint32_t other = 0; other < args.topk; other++)
        place += memory->best[other] < memory->best[k];
    float value = memory->score[memory->best[k]];
    if (args.renormalize) value = value / (memory->sum + 1e-20f);
    size_t at = (size_t)blockIdx.x * args.topk + place;
    args.expert[at] = memory->best[k];
    args.weight[at] = value * args.scale;
}

static __device__ void write_none(const struct moe_route_args &args) {
    size_t at = (size_t)blockIdx.x * args.topk + threadIdx.x;
    if (threadIdx.x >= args.topk) return;
    args.expert[at] = args.experts;
    args.weight[at] = 0.0f;
}

__global__ void __launch_bounds__(BLOCK_THREADS) moe_route_rows(struct moe_route_args args) {
    if (args.row_count != NULL && blockIdx.x >= *args.row_count) {
        write_none(args);
        return;
    }
    struct route_memory *memory = (struct route_memory *)device_shared();
    const float *logits = args.logits + (size_t)blockIdx.x * args.experts;
    if (args.scoring == MOE_SOFTMAX) score_softmax(args, logits, memory);
    for (uint32_t e = threadIdx.x; e < args.experts; e += BLOCK_THREADS) {
        float score = args.scoring == MOE_SOFTMAX ? memory->score[e]
                                                  : 1.0f / (1.0f + math_exp(-logits[e]));
        float value = args.bias ? score + args.bias[e] : score;
        memory->score[e] = score;
        memory->selection[e] = value != value ? -INFINITY : value;
    }
    device_barrier();
    if (args.groups > 1) drop_groups(args, memory);
    for (uint32_t e = threadIdx.x; e < args.experts; e += BLOCK_THREADS) {
        uint32_t place = place_of(memory->selection, args.experts, e);
        if (place < args.topk) memory->best[place] = e;
    }
    device_barrier();
    if (threadIdx.x == 0) {
        float sum = 0.0f;
        for (uint32_t k = 0; k < args.topk; k++)
            sum = sum + memory->score[memory->best[k]];
        memory->sum = sum;
    }
    device_barrier();
    write_chosen(args, memory);
}

void moe_route_cuda(const struct moe_route_args *args, struct kernel_ctx *ctx) {
    uint32_t experts = args->experts, groups = args->groups;
    KERNEL_CHECK(experts >= 1 && experts <= EXPERTS_MAX);
    KERNEL_CHECK(groups >= 1 && experts % groups == 0 && (groups == 1 || experts / groups >= 2));
    KERNEL_CHECK(args->topk_groups >= 1 && args->topk_groups <= groups);
    KERNEL_CHECK(args->topk >= 1 && args->topk <= TOPK_MAX);
    KERNEL_CHECK(args->topk <= experts / groups * args->topk_groups);
    if (args->rows == 0) return;
    launch(moe_route_rows, dim3(args->rows), BLOCK_THREADS, sizeof(struct route_memory), ctx,
           *args);
}
