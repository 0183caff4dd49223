/* The shared memory of a block of the CUDA variant, known to its kernel and to the plan. Private to
 * mla_tree. */
#ifndef ESPALIER_MLA_TREE_TILE_H
#define ESPALIER_MLA_TREE_TILE_H

#include "kv_store/kv_store.h"
#include "mla_tree/mla_tree_cuda.h"

/* name, queries, positions a stage, stages, blocks of a multiprocessor that registers are left for.
 * At Kimi's 512 + 64 the first three fit into the 99 KiB of an sm_120 block, and twice into a
 * multiprocessor of sm_90; the last takes the 227 KiB of an sm_90 block. */
#define MLA_CUDA_TILES(X)                                                                          \
    X(MLA_TILE_8, 8, 16, 4, 2)                                                                     \
    X(MLA_TILE_16, 16, 16, 4, 2)                                                                   \
    X(MLA_TILE_32, 32, 16, 3, 2)                                                                   \
    X(MLA_TILE_64, 64, 32, 3, 1)

/* The tile of warpgroup products, MLA_TILE_WGMMA (mla_tree_wgmma_cuda.cu). Operands lie in panels
 * of 64 columns; the rotated part has one of its own. */
#define MLA_WGMMA_QUERIES       64u
#define MLA_WGMMA_TOK           32u
#define MLA_WGMMA_STAGES        4u
#define MLA_WGMMA_THREADS       384u
#define MLA_WGMMA_PANEL_COLUMNS 64u

#define MLA_WARPS         (MLA_CUDA_THREADS / WARP_LANES)
#define MLA_PAD           8u /* bf16s after a line: eight lines then lie in different banks */
#define MLA_SCORE_PAD     2u /* floats after a position's scores, likewise for pairs of positions */
#define MLA_PARTIAL_STATS 2u /* maximum, sum */

/* Of a block of the kernel that merges ranges. */
#define MLA_MERGE_COLUMNS (4u * WARP_LANES)
#define MLA_MERGE_FLOATS  (MLA_CUDA_SPLITS_MAX + MLA_CUDA_THREADS + MLA_WARPS * MLA_MERGE_COLUMNS)

struct mla_tile_shape {
    uint32_t queries, tok, stages, blocks;
};

/* Products of 16 positions x 8 queries a stage has; warps beyond them share the inner dimension. */
static inline uint32_t mla_tile_products(struct mla_tile_shape shape) {
    return shape.tok / 16 * (shape.queries / 8);
}

static inline uint32_t mla_tile_inner_parts(struct mla_tile_shape shape) {
    uint32_t products = mla_tile_products(shape);
    return products < MLA_WARPS ? MLA_WARPS / products : 1;
}

/* Queries, stages, the weights of two stages, and four floats a query. */
static inline size_t mla_wgmma_shared_bytes(uint32_t latent_dim) {
    size_t panels = latent_dim / MLA_WGMMA_PANEL_COLUMNS + 1;
    size_t lines = panels * (MLA_WGMMA_QUERIES + MLA_WGMMA_STAGES * MLA_WGMMA_TOK) +
                   MLA_WGMMA_QUERIES;
    return lines * MLA_WGMMA_PANEL_COLUMNS * sizeof(bf16) +
           (size_t)4 * MLA_WGMMA_QUERIES * sizeof(float);
}

/* Tokens lie in a stage as the cache has them. Products want bf16: those of an FP8 cache are
 * widened into a place for the positions of one stage. */
static inline size_t mla_tile_shared_bytes(struct mla_tile_shape shape, enum kernel_dtype kv_dtype,
                                           uint32_t latent_dim, uint32_t rope_dim) {
    size_t line = ((size_t)latent_dim + rope_dim + MLA_PAD) * sizeof(bf16);
    size_t cache = shape.stages * line;
    if (kv_dtype == KERNEL_FP8)
        cache = line + shape.stages * kv_tok_bytes(kv_dtype, latent_dim, rope_dim);
    size_t floats = (size_t)mla_tile_inner_parts(shape) * shape.tok *
                        (shape.queries + MLA_SCORE_PAD) +
                    3 * (size_t)shape.queries;
    return shape.queries * line + shape.tok * cache +
           (size_t)shape.queries * (shape.tok + MLA_PAD) * sizeof(bf16) + floats * sizeof(float);
}

#endif
