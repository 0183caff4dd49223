/* Elementary functions on f32x16, from multiplications and fma alone: the same bits on every
 * instruction set, unlike any libm. */
#ifndef ESPALIER_F32X16_MATH_H
#define ESPALIER_F32X16_MATH_H

#include "simd/f32x16.h"

/* exp(x) to 2 units in the last place, subnormal results included; 0 below about -104, infinity
 * above about 88.73, NaN for NaN.
 *
 * exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln(2) / 2. ln 2 is taken in two parts so that
 * n * hi is exact and r keeps the low bits; exp(r) is its Taylor polynomial of degree 7, whose
 * remainder r^8 / 8! stays below 6e-9. */
F32X16_INLINE f32x16 f32x16_exp(f32x16 x) {
    const f32x16 round_magic = f32x16_set1(0x1.8p23f); /* sums near it have no fraction bits */
    x = f32x16_max(f32x16_set1(-105.0f), x);           /* this order of operands keeps a NaN */
    x = f32x16_min(f32x16_set1(90.0f), x);
    f32x16 n = f32x16_sub(f32x16_fma(x, f32x16_set1(0x1.715476p+0f), round_magic), round_magic);
    f32x16 r = f32x16_fma(n, f32x16_set1(-0x1.62e4p-1f), x);
    r = f32x16_fma(n, f32x16_set1(-0x1.7f7d1cp-20f), r);
    f32x16 p = f32x16_set1(1.0f / 5040);
    p = f32x16_fma(p, r, f32x16_set1(1.0f / 720));
    p = f32x16_fma(p, r, f32x16_set1(1.0f / 120));
    p = f32x16_fma(p, r, f32x16_set1(1.0f / 24));
    p = f32x16_fma(p, r, f32x16_set1(1.0f / 6));
    p = f32x16_fma(p, r, f32x16_set1(0.5f));
    p = f32x16_fma(p, r, f32x16_set1(1.0f));
    p = f32x16_fma(p, r, f32x16_set1(1.0f));
    return f32x16_scale2(p, n);
}

/* 1 / (1 + exp(-x)) */
F32X16_INLINE f32x16 f32x16_sigmoid(f32x16 x) {
    f32x16 one = f32x16_set1(1.0f);
    return f32x16_div(one, f32x16_add(one, f32x16_exp(f32x16_sub(f32x16_zero(), x))));
}

/* silu(gate) * up, silu(g) = g / (1 + exp(-g)) */
F32X16_INLINE f32x16 f32x16_swiglu(f32x16 gate, f32x16 up) {
    f32x16 one = f32x16_set1(1.0f);
    f32x16 below = f32x16_add(one, f32x16_exp(f32x16_sub(f32x16_zero(), gate)));
    return f32x16_mul(f32x16_div(gate, below), up);
}

#endif
