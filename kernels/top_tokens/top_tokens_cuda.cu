/* A block a row: the cut of the greatest `count`, those gathered and put in order by counting who
 * comes before whom; then the segments one after the other. */
extern "C" {
#include "top_tokens/top_tokens.h"
}

#include "cuda/select.cuh"

struct top_memory {
    struct select_memory select;
    uint64_t key[TOP_TOKENS_MAX]; /* greater for a greater logit, then for a lower column */
    uint32_t found;
};

static __device__ void write_top(const struct top_tokens_args &args, const float *logits,
                                 struct top_memory *memory) {
    auto digits_of = [&](uint32_t i) { return math_digits(math_logit(logits[i])); };
    auto one = [](uint32_t) { return (uint64_t)1; };
    struct select_cut cut = select_prefix(&memory->select, args.width, digits_of, one, args.count);
    if (threadIdx.x == 0) memory->found = 0;
    device_barrier();
    for (uint32_t i = threadIdx.x; i < args.width; i += SELECT_THREADS)
        if (select_keeps(cut, digits_of(i), i))
            memory->key[device_atomic_add(&memory->found, 1u)] = (uint64_t)digits_of(i) << 32 |
                                                                 (0xffffffffu - i);
    device_barrier();
    uint32_t mine = threadIdx.x;
    if (mine < args.count) {
        uint32_t place = 0, column = 0xffffffffu - (uint32_t)memory->key[mine];
        for (uint32_t other = 0; other < args.count; other++)
            place += memory->key[other] > memory->key[mine];
        size_t at = (size_t)blockIdx.x * args.count + place;
        args.token[at] = args.id_begin + column;
        args.logit[at] = math_logit(logits[column]);
    }
    device_barrier();
}

static __device__ void write_segment(const struct top_tokens_args &args, const float *logits,
                                     uint64_t segment, struct top_memory *memory) {
    uint32_t begin = (uint32_t)(segment * args.width / args.segments);
    uint32_t end = (uint32_t)((segment + 1) * args.width / args.segments);
    float max = -INFINITY, sum = 0.0f;
    for (uint32_t i = begin + threadIdx.x; i < end; i += SELECT_THREADS)
        max = fmaxf(max, math_logit(logits[i]));
    max = select_reduce(&memory->select, max, block_max());
    for (uint32_t i = begin + threadIdx.x; i < end && max > -INFINITY; i += SELECT_THREADS)
        sum += math_exp(math_logit(logits[i]) - max);
    sum = select_reduce(&memory->select, sum, block_add());
    if (threadIdx.x > 0) return;
    args.max[(size_t)blockIdx.x * args.segments + segment] = max;
    args.sum[(size_t)blockIdx.x * args.segments + segment] = sum;
}

__global__ void __launch_bounds__(SELECT_THREADS) top_tokens_rows(struct top_tokens_args args) {
    struct top_memory *memory = (struct top_memory *)device_shared();
    const float *logits = args.logits + blockIdx.x * args.logits_stride;
    write_top(args, logits, memory);
    for (uint32_t segment = 0; segment < args.segments; segment++)
        write_segment(args, logits, segment, memory);
}

void top_tokens_cuda(const struct top_tokens_args *args, struct kernel_ctx *ctx) {
    KERNEL_CHECK(args->count >= 1 && args->count <= TOP_TOKENS_MAX && args->count <= args->width);
    KERNEL_CHECK(args->segments >= 1 && args->segments <= KERNEL_SEGMENTS);
    if (args->rows == 0) return;
    launch(top_tokens_rows, dim3(args->rows), SELECT_THREADS, sizeof(struct top_memory), ctx,
           *args);
}
