/* The workspace of mla_expanded: a thread's block of one head. */
#ifndef ESPALIER_MLA_EXPANDED_SCRATCH_H
#define ESPALIER_MLA_EXPANDED_SCRATCH_H

#include "mla_expanded/mla_expanded.h"

/* Rows of q and p that are kept at a time: no instruction set's tile has more. */
#define MLA_EXPANDED_ROWS 12u

/* Values are the activation's, f32 or bf16, and panels those of linear.h in that format. */
struct mla_expanded_scratch {
    char *w_uk;       /* [N] rows of R: W_UK^T of the head */
    char *tok;        /* [128] rows of R + P: the block's tokens */
    char *latents;    /* panels of 128 outputs, R inputs: their latents */
    char *keys;       /* panels of 128 outputs, N + P inputs */
    char *values;     /* panels of V outputs, 128 inputs */
    char *query;      /* [MLA_EXPANDED_ROWS] rows of N + P */
    char *weights;    /* [MLA_EXPANDED_ROWS] rows of 128 */
    float *max, *sum; /* [rows] of the blocks so far */
};

/* Lay a thread's workspace out at base; its size. base may be NULL to measure. */
size_t mla_expanded_scratch_lay(struct mla_expanded_scratch *scratch, void *base, uint32_t rows,
                                uint32_t latent_dim, uint32_t rope_dim, uint32_t nope_dim,
                                uint32_t value_dim);

#endif
