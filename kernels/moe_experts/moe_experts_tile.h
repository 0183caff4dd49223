/* What the kernels of the CUDA variant and its plan must agree on. Private to moe_experts. */
#ifndef ESPALIER_MOE_EXPERTS_TILE_H
#define ESPALIER_MOE_EXPERTS_TILE_H

#include "moe_experts/moe_experts_cuda.h"

#define MOE_CUDA_WARPS   4u
#define MOE_CUDA_THREADS (MOE_CUDA_WARPS * 32u)
#define MOE_TILE_COLUMNS 64u /* of a warp: two panels */
#define MOE_SORT_THREADS 256u
#define MOE_EXPERTS_MAX  1024u

/* Bytes a warp streams through. The shallow rings leave room for two blocks on a multiprocessor of
 * sm_120, whose beginnings and ends then overlap; the deep one is for launches of so few blocks
 * that each has a multiprocessor to itself and must keep it busy alone. Any holds two stages of a
 * unit's rows. */
#define MOE_RING_NARROW 9984u /* INT4 and FP8 */
#define MOE_RING_BF16   12288u
#define MOE_RING_DEEP   24576u

/* Up to MOE_CUDA_UNIT_ROWS rows of one expert. */
struct moe_unit {
    uint32_t expert;
    uint32_t pair_begin; /* in the sorted order */
    uint32_t rows;
};

struct moe_cuda_scratch {
    uint32_t *pair;        /* [pairs] t * topk + k, by expert */
    struct moe_unit *unit; /* [units_max] */
    uint32_t *unit_count;
    bf16 *x;          /* [T, steps of D, 32] in the order of panels.cuh */
    bf16 *activation; /* [pairs, segments, steps of a segment, 32], by expert, likewise */
    float *dot;       /* [segments, pairs, D] */
};

/* Steps of 32 inputs that a segment of the down projection touches at most. */
static inline uint32_t moe_segment_steps(const struct moe_experts_args *args) {
    uint32_t part = args->width / args->segments;
    return part % 32 == 0 ? part / 32 : part / 32 + 2;
}

/* Lay the workspace out at base, which may be NULL to measure; its size. */
size_t moe_cuda_scratch_lay(struct moe_cuda_scratch *scratch, void *base,
                            const struct moe_experts_args *args);

#endif
