/* FP8 numbers of the kind e4m3 as their definition has them (OCP 8-bit floating point, revision
 * 1.0). For references alone; the fast variants have kernel.h and kernels/simd. */
#ifndef ESPALIER_E4M3_REF_H
#define ESPALIER_E4M3_REF_H

#include <math.h>
#include <stdint.h>

/* 1.mmm * 2^(e - 7), and 0.mmm * 2^-6 where e is 0. */
static inline float e4m3_value(uint8_t code) {
    int e = code >> 3 & 15, m = code & 7;
    float size = e == 0 ? ldexpf((float)m, -9) : ldexpf((float)(8 + m), e - 10);
    return code & 0x80 ? -size : size;
}

/* The code whose value is nearest to x, |x| <= 448; of two, the even one. */
static inline uint8_t e4m3_nearest(float x) {
    uint8_t best = 0;
    for (uint8_t code = 1; code < 0x7f; code++) {
        float distance = fabsf(e4m3_value(code) - fabsf(x));
        float least = fabsf(e4m3_value(best) - fabsf(x));
        if (distance < least || (distance == least && code % 2 == 0)) best = code;
    }
    return signbit(x) ? best | 0x80 : best;
}

#endif
