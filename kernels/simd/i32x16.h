/* Sixteen sums of products of bytes, beside f32x16.h: the same numbers on every instruction set.
 *
 * u8x64_nibbles splits 64 bytes into their low and their high nibbles. i32x16_dot4 adds to lane j
 * the products of its four bytes, unsigned and below 16, with the four signed ones at x.
 * i32x16_round takes floats to the nearest integers, ties to even; i32x16_to_i8 stores what fits
 * into bytes.
 */
#ifndef ESPALIER_I32X16_H
#define ESPALIER_I32X16_H

#include "simd/f32x16.h"

F32X16_INLINE int32_t i32x16_word(const int8_t x[4]) {
    int32_t word;
    memcpy(&word, x, sizeof word);
    return word;
}

#if defined(__AVX512F__)

typedef __m512i i32x16;
typedef __m512i u8x64;

F32X16_INLINE i32x16 i32x16_set1(int32_t x) {
    return _mm512_set1_epi32(x);
}
F32X16_INLINE f32x16 i32x16_to_f32(i32x16 a) {
    return _mm512_cvtepi32_ps(a);
}
F32X16_INLINE i32x16 i32x16_round(f32x16 a) {
    return _mm512_cvtps_epi32(a);
}
F32X16_INLINE void i32x16_to_i8(int8_t *out, i32x16 a) {
    _mm_storeu_si128((__m128i *)(void *)out, _mm512_cvtepi32_epi8(a));
}
F32X16_INLINE void u8x64_nibbles(const uint8_t *p, u8x64 *low, u8x64 *high) {
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512i bytes = _mm512_loadu_si512(p);
    *low = _mm512_and_si512(bytes, nibble);
    *high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble);
}
F32X16_INLINE i32x16 i32x16_dot4(i32x16 acc, u8x64 w, const int8_t x[4]) {
    __m512i four = _mm512_set1_epi32(i32x16_word(x));
#if defined(__AVX512VNNI__)
    return _mm512_dpbusd_epi32(acc, w, four);
#else
    __m512i pairs = _mm512_maddubs_epi16(w, four);
    return _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
}

#elif defined(__AVX2__)

typedef struct {
    __m256i lo, hi;
} i32x16;
typedef i32x16 u8x64;

F32X16_INLINE i32x16 i32x16_set1(int32_t x) {
    return (i32x16){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
F32X16_INLINE f32x16 i32x16_to_f32(i32x16 a) {
    return (f32x16){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
F32X16_INLINE i32x16 i32x16_round(f32x16 a) {
    return (i32x16){_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}
/* Packing works within halves: quarters 0, 2, 1, 3 come out. */
F32X16_INLINE void i32x16_to_i8(int8_t *out, i32x16 a) {
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words),
                                    _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)(void *)out, bytes);
}
F32X16_INLINE void u8x64_nibbles(const uint8_t *p, u8x64 *low, u8x64 *high) {
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i lo = _mm256_loadu_si256((const __m256i *)(const void *)p);
    __m256i hi = _mm256_loadu_si256((const __m256i *)(const void *)(p + 32));
    *low = (u8x64){_mm256_and_si256(lo, nibble), _mm256_and_si256(hi, nibble)};
    *high = (u8x64){_mm256_and_si256(_mm256_srli_epi16(lo, 4), nibble),
                    _mm256_and_si256(_mm256_srli_epi16(hi, 4), nibble)};
}
F32X16_INLINE __m256i i32x16_dot4_half(__m256i acc, __m256i w, __m256i four) {
    __m256i pairs = _mm256_maddubs_epi16(w, four);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
F32X16_INLINE i32x16 i32x16_dot4(i32x16 acc, u8x64 w, const int8_t x[4]) {
    __m256i four = _mm256_set1_epi32(i32x16_word(x));
    return (i32x16){i32x16_dot4_half(acc.lo, w.lo, four), i32x16_dot4_half(acc.hi, w.hi, four)};
}

#else

typedef struct {
    int32_t v[16];
} i32x16;
typedef struct {
    uint8_t v[64];
} u8x64;

F32X16_INLINE i32x16 i32x16_set1(int32_t x) {
    i32x16 out;
    for (int i = 0; i < 16; i++)
        out.v[i] = x;
    return out;
}
F32X16_INLINE f32x16 i32x16_to_f32(i32x16 a) {
    float out[16];
    for (int i = 0; i < 16; i++)
        out[i] = (float)a.v[i];
    return f32x16_load(out);
}
F32X16_INLINE i32x16 i32x16_round(f32x16 a) {
    float in[16];
    i32x16 out;
    f32x16_store(in, a);
    for (int i = 0; i < 16; i++)
        out.v[i] = (int32_t)nearbyintf(in[i]);
    return out;
}
F32X16_INLINE void i32x16_to_i8(int8_t *out, i32x16 a) {
    for (int i = 0; i < 16; i++)
        out[i] = (int8_t)a.v[i];
}
F32X16_INLINE void u8x64_nibbles(const uint8_t *p, u8x64 *low, u8x64 *high) {
    for (int i = 0; i < 64; i++) {
        low->v[i] = p[i] & 15;
        high->v[i] = p[i] >> 4;
    }
}
F32X16_INLINE i32x16 i32x16_dot4(i32x16 acc, u8x64 w, const int8_t x[4]) {
    for (int i = 0; i < 64; i++)
        acc.v[i / 4] += w.v[i] * x[i % 4];
    return acc;
}

#endif

#endif
