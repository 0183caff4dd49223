/* How operands of a warpgroup's products lie in shared memory, and how they are named. See
 * wgmma.cuh. */
#ifndef ESPALIER_WGMMA_TILE_CUH
#define ESPALIER_WGMMA_TILE_CUH

#include "cuda/device.cuh"

#define WGMMA_LINE_BYTES  128u
#define WGMMA_EIGHT_BYTES (8u * WGMMA_LINE_BYTES)

#define WGMMA_SWIZZLE_128 ((uint64_t)1 << 62)

/* What a line of the right operand holds: 64 steps of the inner dimension for one column, or 64
 * columns for one step. */
enum wgmma_side { WGMMA_LINE_IS_COLUMN, WGMMA_LINE_IS_STEP };

/* Where a chunk of 16 bytes lies in lines that begin at a multiple of WGMMA_EIGHT_BYTES. */
DEVICE_INLINE uint32_t wgmma_chunk(uint32_t line, uint32_t chunk) {
    return line * WGMMA_LINE_BYTES + (chunk ^ line % 8) * 16;
}

/* The operand that begins at `shared`, in lines side by side; panel_bytes: between columns 64 apart
 * where a line is a step. */
DEVICE_INLINE uint64_t wgmma_tile(const void *shared, uint32_t panel_bytes) {
    return device_shared_address(shared) >> 4 | (uint64_t)(panel_bytes >> 4) << 16 |
           (uint64_t)(WGMMA_EIGHT_BYTES >> 4) << 32 | WGMMA_SWIZZLE_128;
}

/* The operand `bytes` further: whole eights of lines, or, in lines that hold the inner dimension,
 * 32 for the next 16 steps. */
DEVICE_INLINE uint64_t wgmma_tile_at(uint64_t tile, uint32_t bytes) {
    return tile + (bytes >> 4);
}

#endif
