/* How mla_tree is laid out on a GPU: a pure function of shapes and of the device, so that it can be
 * tried, printed and captured into a graph without one.
 *
 * The queries of a sequence (row by head, rows outermost) are cut into tiles, its positions into
 * ranges. A block takes one tile and one range, and keeps its outputs in registers while the cache
 * streams through shared memory, once for all queries of the tile, as key and as value. A sequence
 * gets as many ranges as its tiles leave blocks for: one with few rows is split over the whole
 * device, and one with many, a prefill chunk, is not split at all; its blocks finish their outputs
 * themselves, and need no workspace. Ranges are merged by a second kernel (log-sum-exp), in a fixed
 * order: results do not depend on which block ran when. Design and figures:
 * docs/kernels/mla_tree.md. */
#ifndef ESPALIER_MLA_TREE_CUDA_H
#define ESPALIER_MLA_TREE_CUDA_H

#include <stdbool.h>

#include "mla_tree/mla_tree.h"

#define MLA_CUDA_THREADS           256u
#define MLA_CUDA_SPLITS_MAX        512u
#define MLA_CUDA_SPLIT_TOK         256u /* positions that make a range worth a block */
#define MLA_CUDA_SCRATCH_BYTES_MAX ((size_t)32 << 20) /* whatever the step and the device */

/* The shapes a block comes in, by its queries. */
enum mla_cuda_tile {
    MLA_TILE_8,
    MLA_TILE_16,
    MLA_TILE_32,
    MLA_TILE_64,
    MLA_TILE_WGMMA, /* 64, by the products of a warpgroup: sm_90 */
    MLA_TILE_COUNT
};

struct mla_cuda_plan {
    enum mla_cuda_tile tile;
    uint32_t tile_queries;
    uint32_t threads;       /* of a block */
    uint32_t blocks;        /* that a sequence may be split over: its share of the device */
    uint32_t splits_max;    /* ranges of a sequence of one tile; 1: nothing is split */
    uint32_t grid_blocks;   /* a sequence: its tiles times their ranges, or more */
    uint32_t partials;      /* a sequence: queries times ranges, of those that are split */
    uint32_t merge_queries; /* of a sequence that is split, or more */
    size_t shared_bytes;    /* of a block */
    size_t scratch_bytes;   /* device memory for the ranges' partial results */
};

/* Caches of 512 + 64 and of 128 + 32, in bf16 and fp8. */
bool mla_tree_cuda_takes(const struct mla_tree_args *args);

struct mla_cuda_plan mla_tree_cuda_plan(const struct mla_tree_args *args,
                                        const struct kernel_device *device);

/* The most that a launch needs which is like args or has fewer rows, sequences or positions. */
size_t mla_tree_cuda_scratch_bytes_max(const struct mla_tree_args *args,
                                       const struct kernel_device *device);

/* args, ctx->device and ctx->stream as kernel.h says; ctx->scratch is device memory. */
void mla_tree_cuda(const struct mla_tree_args *args, struct kernel_ctx *ctx);

#endif
