/* The inner product of every op with weights: a few rows times a few panels, over a range of k.
 * Private to the fast variants; compiled for each instruction set. */
#ifndef ESPALIER_LINEAR_TILE_H
#define ESPALIER_LINEAR_TILE_H

#include "linear/linear.h"
#include "simd/f32x16.h"
#include "simd/isa.h"

/* Rows of a tile: as many as two vectors of sums each fit in the registers. What works on a tile is
 * compiled for each number of rows that it may have: X(rows). */
#if defined(__AVX512F__)
#define LINEAR_TILE_ROWS        12u
#define LINEAR_TILE_FOR_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#elif defined(__AVX2__)
#define LINEAR_TILE_ROWS        3u
#define LINEAR_TILE_FOR_ROWS(X) X(1) X(2) X(3)
#else
#define LINEAR_TILE_ROWS        4u
#define LINEAR_TILE_FOR_ROWS(X) X(1) X(2) X(3) X(4)
#endif

/* Panels of a tile: what they read stays in the second-level cache while the rows of a long step
 * pass. */
#define LINEAR_TILE_PANELS 4u

struct linear_tile {
    _Alignas(64) float sum[LINEAR_TILE_PANELS][LINEAR_TILE_ROWS][KERNEL_PANEL];
};

/* Where x is: rows, each from k = 0. */
struct linear_rows {
    enum kernel_dtype dtype; /* the op's activation, as linear_tile_narrow leaves it */
    uint32_t count;
    const void *packed; /* [chunk][count] chunks of rows, or NULL where rows are apart: */
    const void *row[LINEAR_TILE_ROWS]; /* those of bf16 padded to whole chunks */
};

/* Whether products of so many rows have them copied although they are packed: then once for all
 * panels of a call. */
static inline bool linear_tile_widens(enum kernel_dtype dtype, uint32_t count) {
    return dtype == KERNEL_BF16 && !F32X16_HAS_DOT && count > 1;
}

/* tile[s].sum[p][r][j] = the dot product of segment s of row r and of output j of panel
 * panel_begin + p, in the order of linear.h. A panel is read from end to end, whatever the number
 * of segments. */
#define linear_tile_dot ISA_SYMBOL(linear_tile_dot)
void linear_tile_dot(struct linear_tile *tile, const struct linear_weight *weight,
                     uint32_t panel_begin, uint32_t panel_count, uint32_t segments,
                     const struct linear_rows *x);

/* A row of k values as activation BF16 or INT8, the last chunk padded with zeros. Chunks come to
 * stand chunk_stride bytes apart: linear_row_bytes(dtype, LINEAR_CHUNK), or count times that for a
 * row of packed ones. */
#define linear_tile_narrow ISA_SYMBOL(linear_tile_narrow)
void linear_tile_narrow(enum kernel_dtype dtype, void *out, size_t chunk_stride, const float *x,
                        uint32_t k);

/* Rows of each of the equal blocks that row_count rows are cut into. */
static inline uint32_t linear_tile_block_rows(uint32_t row_count) {
    uint32_t blocks = divide_up(row_count, LINEAR_TILE_ROWS);
    return blocks ? divide_up(row_count, blocks) : 0;
}

#endif
