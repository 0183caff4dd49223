/* How mla_tree is laid out on a GPU: a pure function of shapes and of the device, so that it can be
 * tried, printed and captured into a graph without one.
 *
 * The queries of a sequence (row by head, rows outermost) are cut into tiles; a block takes one
 * tile and one of `splits` ranges of positions, and keeps its outputs in registers while the cache
 * streams through shared memory, once for all queries of the tile, as key and as value. A second
 * kernel merges the ranges (log-sum-exp), in ascending order: results do not depend on which block
 * ran when. Design and figures: docs/kernels/mla_tree.md. */
#ifndef ESPALIER_MLA_TREE_CUDA_H
#define ESPALIER_MLA_TREE_CUDA_H

#include <stdbool.h>

#include "mla_tree/mla_tree.h"

#define MLA_CUDA_THREADS    256u
#define MLA_CUDA_SPLITS_MAX 512u
#define MLA_CUDA_SPLIT_TOK  256u /* positions that make a range worth a block */

/* The shapes a block comes in: queries, positions a stage, stages. */
enum mla_cuda_tile { MLA_TILE_16, MLA_TILE_32, MLA_TILE_64, MLA_TILE_COUNT };

struct mla_cuda_plan {
    enum mla_cuda_tile tile;
    uint32_t tile_queries;
    uint32_t query_tiles; /* of the longest sequence */
    uint32_t splits;
    size_t shared_bytes;  /* of a block */
    size_t scratch_bytes; /* device memory for the ranges' partial results */
};

/* bf16 caches of 512 + 64 and of 128 + 32. */
bool mla_tree_cuda_takes(const struct mla_tree_args *args);

struct mla_cuda_plan mla_tree_cuda_plan(const struct mla_tree_args *args,
                                        const struct kernel_device *device);

/* args, ctx->device and ctx->stream as kernel.h says; ctx->scratch is device memory. */
void mla_tree_cuda(const struct mla_tree_args *args, struct kernel_ctx *ctx);

#endif
