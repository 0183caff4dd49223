/* What the kernels of the CUDA variant and its plan must agree on. Private to moe_experts. */
#ifndef ESPALIER_MOE_EXPERTS_TILE_H
#define ESPALIER_MOE_EXPERTS_TILE_H

#include "cuda/panels.h"
#include "moe_experts/moe_experts_cuda.h"

#define MOE_CUDA_WARPS   4u
#define MOE_CUDA_THREADS (MOE_CUDA_WARPS * WARP_LANES)
#define MOE_SORT_THREADS 256u
#define MOE_EXPERTS_MAX  1024u

/* Bytes a warp streams through, beside panels.h's: for launches of so few blocks that each has a
 * multiprocessor to itself and must keep it busy alone. */
#define MOE_RING_DEEP 24576u

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

/* Of the down projection. */
static inline uint32_t moe_segment_steps(const struct moe_experts_args *args) {
    return panel_steps(args->width / args->segments);
}

/* Lay the workspace out at base, which may be NULL to measure; its size. */
size_t moe_cuda_scratch_lay(struct moe_cuda_scratch *scratch, void *base,
                            const struct moe_experts_args *args);

#endif
