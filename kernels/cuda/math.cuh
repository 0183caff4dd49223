/* Elementary functions from multiplications and fma alone: the bits of the CPU's, so that what is
 * drawn is the same. simd/f32x16_math.h and sample/sample.h say how they are made. */
#ifndef ESPALIER_MATH_CUH
#define ESPALIER_MATH_CUH

#include <float.h>
#include <string.h>

#include "cuda/device.cuh"

#define MATH_LOG2_E 1.44269504088896341f

/* exp(x), 0 below about -104, infinity above about 88.73, NaN for NaN. */
DEVICE_INLINE float math_exp(float x) {
    const float magic = 0x1.8p23f; /* sums near it have no fraction bits */
    if (x < -105.0f) x = -105.0f;
    if (x > 90.0f) x = 90.0f;
    float n = fmaf(x, 0x1.715476p+0f, magic) - magic;
    float r = fmaf(n, -0x1.62e4p-1f, x);
    r = fmaf(n, -0x1.7f7d1cp-20f, r);
    float p = 1.0f / 5040;
    p = fmaf(p, r, 1.0f / 720);
    p = fmaf(p, r, 1.0f / 120);
    p = fmaf(p, r, 1.0f / 24);
    p = fmaf(p, r, 1.0f / 6);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    return ldexpf(p, (int)n);
}

/* ln(x) for a positive normal x, -infinity for 0: x = 2^k m, ln m = 2 artanh((m - 1) / (m + 1)). */
DEVICE_INLINE double math_ln(double x) {
    if (x == 0) return -(double)INFINITY;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t k = (int64_t)(bits >> 52) - 1023;
    bits = (bits & (((uint64_t)1 << 52) - 1)) | (uint64_t)1023 << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        k++;
    }
    double s = (m - 1) / (m + 1), s2 = s * s, series = 1.0 / 21;
    for (int odd = 19; odd >= 3; odd -= 2)
        series = series * s2 + 1.0 / odd;
    double fraction = 2 * s + 2 * s * (s2 * series);
    return (double)k * 0x1.62e42fefa38p-1 + ((double)k * 0x1.ef35793c7673p-45 + fraction);
}

/* A logit as it is read: no NaN, nothing above FLT_MAX. */
DEVICE_INLINE float math_logit(float value) {
    if (value != value) return -INFINITY;
    return value > FLT_MAX ? FLT_MAX : value;
}

/* Ascends with the logit; both zeros are one. */
DEVICE_INLINE uint32_t math_digits(float logit) {
    float value = logit + 0.0f;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

#endif
