/* One block of the cache against some queries: scores, weights and the weighted sum of values, not
 * yet merged with other blocks. Private to the fast variants of mla_tree and, its weights, of
 * mla_expanded; compiled for each instruction set. */
#ifndef ESPALIER_MLA_BLOCK_H
#define ESPALIER_MLA_BLOCK_H

#include "mla_tree/mla_tree_scratch.h"
#include "simd/isa.h"

struct mla_block {
    enum kernel_dtype dtype; /* of queries and tokens: the op's activation */
    uint32_t latent_dim;
    uint32_t rope_dim;
    float scale;
    const void *query; /* [query_count, R + P] */
    uint32_t query_count;
    const uint32_t *tok_count; /* [query_count] how many of the tokens a query sees; may be 0 */
    /* [R + P] each; up to a multiple of 16 the last one is repeated. */
    const void *tok[MLA_BLOCK_TOK];
    const void *ahead[MLA_BLOCK_TOK]; /* tokens that this thread may need next, in the cache */
    size_t ahead_bytes;               /* of each; 0: none are known */
};

/* For each query that sees a token: the greatest score, the sum of weights, the sum of values. */
struct mla_partial {
    float *max;    /* [query_count] */
    float *sum;    /* [query_count] */
    float *values; /* [query_count, R] */
};

/* weights: [query_count, MLA_BLOCK_TOK], workspace. A query's weights take the place of its scores;
 * bf16 ones the first half of it. */
#define mla_block_attend ISA_SYMBOL(mla_block_attend)
void mla_block_attend(const struct mla_block *block, float *weights,
                      const struct mla_partial *partial);

/* A query's scores become its weights p = exp(score - max), f32 or rounded to bf16 as products with
 * values take them; their sum, of what was rounded. scores: [MLA_BLOCK_TOK], of which the query
 * sees the first `seen`, at least one; the others are overwritten and weigh 0. weights: as many,
 * and may be the same memory. */
#define mla_block_weigh ISA_SYMBOL(mla_block_weigh)
void mla_block_weigh(enum kernel_dtype dtype, float *scores, uint32_t seen, void *weights,
                     float *max_out, float *sum_out);

#endif
