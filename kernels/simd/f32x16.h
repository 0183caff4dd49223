/* Sixteen floats: one AVX-512 register, two of AVX2, or an array.
 *
 * Sixteen is part of the exactness contract, not of a machine: sums that the headers describe by
 * lanes have sixteen of them everywhere. Every function below gives the same bits in every
 * implementation (NaN payloads aside); fma rounds once, max(a, b) is a > b ? a : b.
 *
 * F32X16_UNROLL before a loop unrolls it where tiles of sums live in registers: they are arrays
 * until their loops are gone.
 *
 * f32x16_load_fp8 loads finite e4m3 codes divided by 256, which is what half precision can hold.
 * Panels: weights come in panels of 32 outputs, two vectors wide; f32x16_panel_fp8 loads one
 * input's 32 e4m3 weights, divided likewise.
 *
 * bf16x32 is 32 values as bf16, or sixteen pairs: bf16x32_even and _odd widen the first and the
 * second of each, bf16x32_pair is one pair sixteen times, bf16x32_round narrows two vectors, to
 * nearest even. f32x16_dot adds the products of pairs, the second of a pair first:
 *
 *     acc = fma(a odd, b odd, acc);  acc = fma(a even, b even, acc)
 *
 * which is what AVX-512 BF16 has an instruction for. That one takes subnormal numbers for zero,
 * operands and results, so everyone does: the other sets between f32x16_flush_begin and _end, where
 * alone f32x16_dot and the functions ending in _flushed may be called; bf16x32_round by itself.
 *
 * F32X16_HAS_DOT: this set has that instruction. Others split each pair into two numbers.
 *
 * bf16x32_zip makes pairs of the elements of two vectors, in an order of its own that
 * f32x16_zip_order puts right in sums over them. bf16x32_int4 unpacks 64 bytes of INT4 weights,
 * four inputs of a panel: pairs 0 and 1 of outputs 0 to 15 in w[0] and w[2], of 16 to 31 in w[1]
 * and w[3]; bf16x32_fp8 unpacks 64 bytes of finite e4m3 codes, two inputs: of outputs 0 to 15 in
 * w[0], of 16 to 31 in w[1]. Layouts: linear/linear.h.
 */
#ifndef ESPALIER_F32X16_H
#define ESPALIER_F32X16_H

#include <math.h>
#include <string.h>

#include "kernel.h"

#define F32X16_INLINE static inline __attribute__((always_inline, unused))

#if defined(__AVX512F__)
#include "simd/f32x16_avx512.h"
#elif defined(__AVX2__)
#include "simd/f32x16_avx2.h"
#else
#include "simd/f32x16_generic.h"
#endif

/* The first count floats, zeros behind them. */
F32X16_INLINE f32x16 f32x16_load_part(const float *p, uint32_t count) {
    float part[16] = {0};
    memcpy(part, p, count * sizeof(float));
    return f32x16_load(part);
}

F32X16_INLINE void f32x16_store_part(float *p, f32x16 v, uint32_t count) {
    float part[16];
    f32x16_store(part, v);
    memcpy(p, part, count * sizeof(float));
}

#endif
