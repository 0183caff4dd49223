/* The workspace of moe_experts: a (row, choice) pair is one visit of a row to an expert. */
#ifndef ESPALIER_MOE_EXPERTS_SCRATCH_H
#define ESPALIER_MOE_EXPERTS_SCRATCH_H

#include "moe_experts/moe_experts.h"

struct moe_experts_scratch {
    char *activation;     /* [pairs] rows of F (linear_row_bytes), in the order of `pair` */
    char *x;              /* [T] rows of D, unless activation is F32 */
    uint32_t *pair;       /* [pairs] t * topk + k, by expert, then by row */
    uint32_t *pair_begin; /* [E + 1] an expert's part of `pair` */
    uint32_t *active;     /* [E] experts with rows, ascending */
};

/* Lay the workspace out at base; its size. base may be NULL to measure. */
size_t moe_experts_scratch_lay(struct moe_experts_scratch *scratch, void *base,
                               const struct moe_experts_args *args);

#endif
