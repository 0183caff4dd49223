/* Arithmetic of activation BF16 as its definition has it: subnormal numbers are zero, as operands
 * and as results. For references alone; the fast variants have kernels/simd. */
#ifndef ESPALIER_FLUSHED_H
#define ESPALIER_FLUSHED_H

#include <math.h>

#include "kernel.h"

/* A subnormal number counts as zero, with its sign. */
static inline float flushed(float x) {
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

/* fma of flushed numbers, flushed: what rounds to less than 2^-126 with all its digits is zero. */
static inline float flushed_fma(float a, float b, float c) {
    a = flushed(a), b = flushed(b), c = flushed(c);
    double sum = (double)a * b + c;
    return fabs(sum) < 0x1p-126 - 0x1p-151 ? copysignf(0.0f, (float)sum) : fmaf(a, b, c);
}

/* Rounded to bf16, to nearest even. */
static inline float flushed_bf16(float x) {
    return bf16_to_f32(bf16_from_f32(flushed(x)));
}

#endif
