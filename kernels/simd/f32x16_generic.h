/* f32x16.h in plain C, for machines without wrappers of their own and to check the others by.
 * fmaf rounds once also where it is a function call. */
#ifndef ESPALIER_F32X16_GENERIC_H
#define ESPALIER_F32X16_GENERIC_H

/* No registers to fill: unrolled tiles would only be long. */
#define F32X16_UNROLL

#define F32X16_HAS_DOT 0

typedef struct {
    float lane[16];
} f32x16;

#define F32X16_MAP(expression)                                                                     \
    f32x16 out;                                                                                    \
    for (int i = 0; i < 16; i++)                                                                   \
        out.lane[i] = (expression);                                                                \
    return out

F32X16_INLINE f32x16 f32x16_zero(void) {
    F32X16_MAP(0.0f);
}
F32X16_INLINE f32x16 f32x16_set1(float x) {
    F32X16_MAP(x);
}
F32X16_INLINE f32x16 f32x16_load(const float *p) {
    F32X16_MAP(p[i]);
}
F32X16_INLINE void f32x16_store(float *p, f32x16 a) {
    for (int i = 0; i < 16; i++)
        p[i] = a.lane[i];
}
F32X16_INLINE f32x16 f32x16_add(f32x16 a, f32x16 b) {
    F32X16_MAP(a.lane[i] + b.lane[i]);
}
F32X16_INLINE f32x16 f32x16_sub(f32x16 a, f32x16 b) {
    F32X16_MAP(a.lane[i] - b.lane[i]);
}
F32X16_INLINE f32x16 f32x16_mul(f32x16 a, f32x16 b) {
    F32X16_MAP(a.lane[i] * b.lane[i]);
}
F32X16_INLINE f32x16 f32x16_div(f32x16 a, f32x16 b) {
    F32X16_MAP(a.lane[i] / b.lane[i]);
}
F32X16_INLINE f32x16 f32x16_fma(f32x16 a, f32x16 b, f32x16 c) {
    F32X16_MAP(fmaf(a.lane[i], b.lane[i], c.lane[i]));
}
F32X16_INLINE f32x16 f32x16_max(f32x16 a, f32x16 b) {
    F32X16_MAP(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]);
}
F32X16_INLINE f32x16 f32x16_min(f32x16 a, f32x16 b) {
    F32X16_MAP(a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]);
}

F32X16_INLINE f32x16 f32x16_load_bf16(const bf16 *p) {
    F32X16_MAP(bf16_to_f32(p[i]));
}

/* p * 2^n for integral n in [-152, 130]: one rounding. */
F32X16_INLINE f32x16 f32x16_scale2(f32x16 p, f32x16 n) {
    F32X16_MAP(isnan(n.lane[i]) ? n.lane[i] : ldexpf(p.lane[i], (int)n.lane[i]));
}

/* Lanes 8 apart, then 4, 2, 1. */
F32X16_INLINE float f32x16_sum(f32x16 a) {
    for (int apart = 8; apart > 0; apart /= 2)
        for (int i = 0; i < apart; i++)
            a.lane[i] = a.lane[i] + a.lane[i + apart];
    return a.lane[0];
}

/* Lane i of the result is f32x16_sum(v[i]). */
F32X16_INLINE f32x16 f32x16_sum16(const f32x16 v[16]) {
    F32X16_MAP(f32x16_sum(v[i]));
}

typedef struct {
    bf16 at[32];
} bf16x32;

F32X16_INLINE bf16x32 bf16x32_load(const void *p) {
    bf16x32 out;
    memcpy(out.at, p, sizeof(out.at));
    return out;
}
F32X16_INLINE void bf16x32_store(bf16 *p, bf16x32 a) {
    memcpy(p, a.at, sizeof(a.at));
}
F32X16_INLINE bf16x32 bf16x32_pair(const bf16 *p) {
    bf16x32 out;
    for (int i = 0; i < 32; i++)
        out.at[i] = p[i % 2];
    return out;
}
F32X16_INLINE f32x16 bf16x32_even(bf16x32 a) {
    F32X16_MAP(bf16_to_f32(a.at[2 * i]));
}
F32X16_INLINE f32x16 bf16x32_odd(bf16x32 a) {
    F32X16_MAP(bf16_to_f32(a.at[2 * i + 1]));
}

F32X16_INLINE float f32x16_flush(float x) {
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}
/* A result is subnormal if it would round to less than the least normal number with all its digits;
 * in double it has them. */
F32X16_INLINE float f32x16_fma_flushed_lane(float a, float b, float c) {
    double digits = (double)f32x16_flush(a) * (double)f32x16_flush(b) + (double)f32x16_flush(c);
    float sum = fmaf(f32x16_flush(a), f32x16_flush(b), f32x16_flush(c));
    return fabs(digits) < 0x1p-126 - 0x1p-151 ? copysignf(0.0f, sum) : sum;
}
F32X16_INLINE f32x16 f32x16_fma_flushed(f32x16 a, f32x16 b, f32x16 c) {
    F32X16_MAP(f32x16_fma_flushed_lane(a.lane[i], b.lane[i], c.lane[i]));
}
F32X16_INLINE f32x16 f32x16_dot(f32x16 acc, bf16x32 a, bf16x32 b) {
    acc = f32x16_fma_flushed(bf16x32_odd(a), bf16x32_odd(b), acc);
    return f32x16_fma_flushed(bf16x32_even(a), bf16x32_even(b), acc);
}
F32X16_INLINE float f32x16_sum_flushed(f32x16 a) {
    for (int apart = 8; apart > 0; apart /= 2)
        for (int i = 0; i < apart; i++)
            a.lane[i] = f32x16_fma_flushed_lane(a.lane[i], 1.0f, a.lane[i + apart]);
    return a.lane[0];
}
F32X16_INLINE f32x16 f32x16_sum16_flushed(const f32x16 v[16]) {
    F32X16_MAP(f32x16_sum_flushed(v[i]));
}
F32X16_INLINE uint32_t f32x16_flush_begin(void) {
    return 0; /* every function above flushes by itself */
}
F32X16_INLINE void f32x16_flush_end(uint32_t saved) {
    (void)saved;
}

F32X16_INLINE bf16x32 bf16x32_round(f32x16 lo, f32x16 hi) {
    bf16x32 out;
    for (int i = 0; i < 16; i++) {
        out.at[i] = bf16_from_f32(f32x16_flush(lo.lane[i]));
        out.at[i + 16] = bf16_from_f32(f32x16_flush(hi.lane[i]));
    }
    return out;
}

F32X16_INLINE void bf16x32_zip(bf16x32 a, bf16x32 b, bf16x32 z[2]) {
    for (int i = 0; i < 32; i++) {
        z[i / 16].at[2 * (i % 16)] = a.at[i];
        z[i / 16].at[2 * (i % 16) + 1] = b.at[i];
    }
}
F32X16_INLINE void f32x16_zip_order(f32x16 z[2]) {
    (void)z; /* zipped in order */
}

F32X16_INLINE f32x16 f32x16_load_fp8(const uint8_t *p) {
    f32x16 out;
    for (int i = 0; i < 16; i++)
        out.lane[i] = e4m3_to_f32(p[i]) * 0x1p-8f;
    return out;
}
F32X16_INLINE void f32x16_panel_fp8(const uint8_t *p, f32x16 w[2]) {
    w[0] = f32x16_load_fp8(p);
    w[1] = f32x16_load_fp8(p + 16);
}

F32X16_INLINE void bf16x32_fp8(const uint8_t *p, bf16x32 w[2]) {
    for (int i = 0; i < 64; i++)
        w[i % 32 / 16].at[2 * (i % 16) + i / 32] = bf16_from_f32(e4m3_to_f32(p[i]));
}

F32X16_INLINE void bf16x32_int4(const uint8_t *p, bf16x32 w[4]) {
    static const bf16 values[16] = {0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
                                    0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
    for (int i = 0; i < 64; i++) {
        w[i % 2 * 2].at[i / 2] = values[p[i] & 15];
        w[i % 2 * 2 + 1].at[i / 2] = values[p[i] >> 4];
    }
}

#endif
