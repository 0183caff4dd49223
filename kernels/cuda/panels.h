/* What of the products of panels.cuh the plans of their launches must know; plain C. */
#ifndef ESPALIER_PANELS_H
#define ESPALIER_PANELS_H

#include "kernel.h"

#define PANEL_OUTPUTS   (2 * KERNEL_PANEL) /* of a warp: two panels */
#define PANEL_STEP      32u                /* inputs */
#define PANEL_TILE      8u                 /* rows of a product */
#define PANEL_TILES_MAX 4u                 /* that a warp has sums for */
#define PANEL_ROWS_MAX  (PANEL_TILES_MAX * PANEL_TILE)

/* Bytes of shared memory that a warp streams through: at least two stages of PANEL_ROWS_MAX rows.
 * Four such warps leave room for a second block on a multiprocessor of sm_120, so that the end of
 * one overlaps the beginning of the other. */
#define PANEL_RING_NARROW 9984u /* INT4 and FP8 */
#define PANEL_RING_BF16   12288u

/* Steps that each of the equal parts that the inner dimension is cut into touches at most. */
static inline uint32_t panel_steps(uint32_t part_inputs) {
    return part_inputs % PANEL_STEP == 0 ? part_inputs / PANEL_STEP : part_inputs / PANEL_STEP + 2;
}

#endif
