/* How the fast variant groups queries, and what it works in. Private to mla_tree. */
#ifndef ESPALIER_MLA_TREE_SCRATCH_H
#define ESPALIER_MLA_TREE_SCRATCH_H

#include "mla_tree/mla_tree.h"

/* Queries (a row and a head) that share one pass over the cache. */
#define MLA_QUERIES 128u

/* Partial results of blocks that wait to be merged, a thread: room for so many of all queries, and
 * of fewer queries for more of them. */
#define MLA_WAITING     8u
#define MLA_WAITING_MAX 32u

/* Groups of queries that are split over threads at once, a thread; more keep the threads busy
 * without being split. */
#define MLA_SPLIT_GROUPS 2u

/* A group is up to `rows` rows and `heads` heads of one sequence. */
struct mla_tree_split {
    uint32_t rows, heads;
    uint32_t head_parts; /* groups side by side that all heads take */
};

struct mla_tree_split mla_tree_split(const struct mla_tree_args *args);

/* Of a sequence's rows. */
uint32_t mla_tree_groups(const struct mla_tree_split *split, const struct mla_sequence *sequence);

struct mla_tree_scratch {
    char *query;    /* a thread: [MLA_QUERIES, R + P] in the activation's type */
    float *block;   /* a thread: [MLA_BLOCK_TOK, R + P], a block in the activation's type */
    float *weights; /* a thread: [MLA_QUERIES, MLA_BLOCK_TOK] */
    float *partial; /* MLA_WAITING a thread: max and sum [MLA_QUERIES], values [MLA_QUERIES, R] */
    float *merged;  /* a split group: max and sum [MLA_QUERIES] */
    /* Distances between threads, partial results, groups. */
    size_t query_bytes, block_floats, weights_floats, partial_floats, merged_floats;
};

/* Lay the workspace out at base; its size. base may be NULL to measure. */
size_t mla_tree_scratch_lay(struct mla_tree_scratch *scratch, void *base, uint32_t threads,
                            uint32_t latent_dim, uint32_t rope_dim);

#endif
