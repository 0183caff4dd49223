/* From checkpoint layout to the panels of linear.h. Pure; one thread; called at load, so each
 * function packs a range of panels and a loader may call it from many threads. */
#ifndef ESPALIER_LINEAR_PACK_H
#define ESPALIER_LINEAR_PACK_H

#include <stdbool.h>

#include "linear/linear.h"

/* source: rows [row_begin, row_begin + row_count) of W, each k values of the format's type (bf16
 * or float), source_stride_bytes apart. row_begin is a multiple of KERNEL_PANEL, and the range
 * ends at n or on a panel's edge. data: the packed weight of n x k. False where a value is NaN or
 * infinite; all are packed all the same. */
bool linear_pack_rows(enum linear_format format, void *data, uint32_t n, uint32_t k,
                      const void *source, size_t source_stride_bytes, uint32_t row_begin,
                      uint32_t row_count);

/* As above for W^T given as [k, n] row-major: element (n, k) is source[k * stride + n]. For the
 * absorbed W_UK, whose stored form has the inner dimension first. BF16 and F32 only. */
void linear_pack_transposed(enum linear_format format, void *data, uint32_t n, uint32_t k,
                            const void *source, size_t source_stride_bytes);

/* INT4, compressed-tensors pack-quantized: packed rows of k/8 little-endian 32-bit words, the
 * first input in the lowest nibble, offset binary; scales [rows, k/32] bf16. */
void linear_pack_int4(void *data, bf16 *scale, uint32_t n, uint32_t k, const void *packed,
                      size_t packed_stride_bytes, const bf16 *scales, size_t scales_stride_bytes,
                      uint32_t row_begin, uint32_t row_count);

/* FP8: rows of k codes, and for each row its scales, [row_count, blocks] f32, one for each of the
 * blocks that inputs [block_begin, block_begin + k) touch. False where a code is NaN. */
bool linear_pack_fp8(void *data, float *scale, uint32_t n, uint32_t k, uint32_t block_begin,
                     const void *codes, size_t codes_stride_bytes, const float *scales,
                     size_t scales_stride_bytes, uint32_t row_begin, uint32_t row_count);

/* A row of FP8 codes, or a part of one, as what products make of it: value * scale in f32. scales:
 * of the blocks that inputs [block_begin, block_begin + k) touch. */
void linear_unpack_fp8(float *out, const uint8_t *codes, uint32_t k, uint32_t block_begin,
                       const float *scales);

#endif
