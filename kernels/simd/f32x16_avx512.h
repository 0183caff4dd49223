/* f32x16.h on AVX-512 (F, BW, VL, DQ), with BF16 where compiled for it. */
#ifndef ESPALIER_F32X16_AVX512_H
#define ESPALIER_F32X16_AVX512_H

#include <immintrin.h>

#define F32X16_UNROLL _Pragma("GCC unroll 16")

/* MXCSR: subnormal results are zero, and so are subnormal operands. */
#define F32X16_FLUSH_BITS 0x8040u

typedef __m512 f32x16;

F32X16_INLINE f32x16 f32x16_zero(void) {
    return _mm512_setzero_ps();
}
F32X16_INLINE f32x16 f32x16_set1(float x) {
    return _mm512_set1_ps(x);
}
F32X16_INLINE f32x16 f32x16_load(const float *p) {
    return _mm512_loadu_ps(p);
}
F32X16_INLINE void f32x16_store(float *p, f32x16 a) {
    _mm512_storeu_ps(p, a);
}
F32X16_INLINE f32x16 f32x16_add(f32x16 a, f32x16 b) {
    return _mm512_add_ps(a, b);
}
F32X16_INLINE f32x16 f32x16_sub(f32x16 a, f32x16 b) {
    return _mm512_sub_ps(a, b);
}
F32X16_INLINE f32x16 f32x16_mul(f32x16 a, f32x16 b) {
    return _mm512_mul_ps(a, b);
}
F32X16_INLINE f32x16 f32x16_div(f32x16 a, f32x16 b) {
    return _mm512_div_ps(a, b);
}
F32X16_INLINE f32x16 f32x16_fma(f32x16 a, f32x16 b, f32x16 c) {
    return _mm512_fmadd_ps(a, b, c);
}
F32X16_INLINE f32x16 f32x16_max(f32x16 a, f32x16 b) {
    return _mm512_max_ps(a, b);
}
F32X16_INLINE f32x16 f32x16_min(f32x16 a, f32x16 b) {
    return _mm512_min_ps(a, b);
}

F32X16_INLINE f32x16 f32x16_load_bf16(const bf16 *p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* p * 2^n for integral n in [-152, 130]: one rounding. */
F32X16_INLINE f32x16 f32x16_scale2(f32x16 p, f32x16 n) {
    return _mm512_scalef_ps(p, n);
}

/* Lanes 8 apart, then 4, 2, 1. */
F32X16_INLINE float f32x16_sum(f32x16 a) {
    __m256 by8 = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
    __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
    return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}

/* Lane i of the result is f32x16_sum(v[i]): the same tree, sixteen of them at once. */
F32X16_INLINE f32x16 f32x16_sum16(const f32x16 v[16]) {
    /* Each level adds the two halves of its vectors and packs two of them into one. After levels
     * 8 and 4, vector i holds v[i], v[i+4], v[i+8], v[i+12] in its four quarters, as sums of four
     * lanes; the quarters are then transposed with the last two levels' additions. */
    f32x16 by8[8], by4[4];
    F32X16_UNROLL
    for (int i = 0; i < 8; i++) {
        f32x16 a = v[i + (i & 4)], b = v[i + (i & 4) + 4]; /* 0 and 4, ... 8 and 12, ... */
        by8[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x4e),
                               _mm512_mask_blend_ps(0xff00, a, b));
    }
    F32X16_UNROLL
    for (int i = 0; i < 4; i++)
        by4[i] = _mm512_add_ps(_mm512_shuffle_f32x4(by8[i], by8[i + 4], 0x88),
                               _mm512_shuffle_f32x4(by8[i], by8[i + 4], 0xdd));
    f32x16 by2_lo = _mm512_add_ps(_mm512_shuffle_ps(by4[0], by4[1], 0x44),
                                  _mm512_shuffle_ps(by4[0], by4[1], 0xee));
    f32x16 by2_hi = _mm512_add_ps(_mm512_shuffle_ps(by4[2], by4[3], 0x44),
                                  _mm512_shuffle_ps(by4[2], by4[3], 0xee));
    return _mm512_add_ps(_mm512_shuffle_ps(by2_lo, by2_hi, 0x88),
                         _mm512_shuffle_ps(by2_lo, by2_hi, 0xdd));
}

typedef __m512i bf16x32;

F32X16_INLINE bf16x32 bf16x32_load(const void *p) {
    return _mm512_loadu_si512(p);
}
F32X16_INLINE void bf16x32_store(bf16 *p, bf16x32 a) {
    _mm512_storeu_si512(p, a);
}
F32X16_INLINE bf16x32 bf16x32_pair(const bf16 *p) {
    int pair;
    memcpy(&pair, p, sizeof(pair));
    return _mm512_set1_epi32(pair);
}
F32X16_INLINE f32x16 bf16x32_even(bf16x32 a) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16));
}
F32X16_INLINE f32x16 bf16x32_odd(bf16x32 a) {
    return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32((int)0xffff0000)));
}

#if defined(__AVX512BF16__)

#define F32X16_HAS_DOT 1

F32X16_INLINE f32x16 f32x16_dot(f32x16 acc, bf16x32 a, bf16x32 b) {
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}
F32X16_INLINE bf16x32 bf16x32_round(f32x16 lo, f32x16 hi) {
    return (bf16x32)_mm512_cvtne2ps_pbh(hi, lo);
}

#else

#define F32X16_HAS_DOT 0

F32X16_INLINE f32x16 f32x16_dot(f32x16 acc, bf16x32 a, bf16x32 b) {
    acc = f32x16_fma(bf16x32_odd(a), bf16x32_odd(b), acc);
    return f32x16_fma(bf16x32_even(a), bf16x32_even(b), acc);
}

F32X16_INLINE __m256i f32x16_round_half(f32x16 a) {
    __m512i bits = _mm512_castps_si512(a);
    __m512i upper = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    __mmask16 tiny = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
    rounded = _mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40));
    rounded = _mm512_mask_and_epi32(rounded, tiny, upper, _mm512_set1_epi32(0x8000));
    return _mm512_cvtepi32_epi16(rounded);
}
F32X16_INLINE bf16x32 bf16x32_round(f32x16 lo, f32x16 hi) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(f32x16_round_half(lo)), f32x16_round_half(hi),
                              1);
}

#endif

/* Two interleaves leave the pairs in groups of four: the even groups in the first vector, the odd
 * in the second. */
F32X16_INLINE void bf16x32_zip(bf16x32 a, bf16x32 b, bf16x32 z[2]) {
    z[0] = _mm512_unpacklo_epi16(a, b);
    z[1] = _mm512_unpackhi_epi16(a, b);
}
F32X16_INLINE void f32x16_zip_order(f32x16 z[2]) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29,
                                             30, 31);
    f32x16 a = _mm512_permutex2var_ps(z[0], first, z[1]);
    f32x16 b = _mm512_permutex2var_ps(z[0], second, z[1]);
    z[0] = a;
    z[1] = b;
}

/* An e4m3 code's digits, moved up by seven, are those of a half 256 times smaller; the sign has one
 * place further to go, which extension filled with it. */
F32X16_INLINE f32x16 f32x16_load_fp8(const uint8_t *p) {
    __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbfff));
    return _mm512_cvtph_ps(half);
}
F32X16_INLINE void f32x16_panel_fp8(const uint8_t *p, f32x16 w[2]) {
    __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p));
    __m512i half = _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16((short)0xbfff));
    w[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
    w[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
}

/* The upper and the lower bytes of codes as bf16. From code 8 on, which is 2^-6, a bf16's bits are
 * 0x3c00 and 16 times the code, sign aside. For codes below, tables say what stands instead of 0x3c
 * and which digits differ; at 15 they have what all greater codes need. */
F32X16_INLINE void bf16x32_bytes_fp8(__m512i codes, __m512i *upper, __m512i *lower) {
    const __m512i upper_of = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c,
                                                                  0x3c, 0x3c, 0x3c, 0x3c, 0x3c,
                                                                  0x3c, 0x3c, 0x3c, 0x3c, 0x3c));
    const __m512i lower_of = _mm512_broadcast_i32x4(_mm_setr_epi8(
        0, 0x10, (char)0xa0, (char)0xf0, 0x40, 0x70, 0x20, 0x10, 0, 0, 0, 0, 0, 0, 0, 0));
    __m512i sizes = _mm512_and_si512(codes, _mm512_set1_epi8(0x7f));
    __m512i idx = _mm512_min_epu8(sizes, _mm512_set1_epi8(15));
    __m512i eighths = _mm512_and_si512(_mm512_srli_epi16(codes, 4), _mm512_set1_epi8(7));
    __m512i digits = _mm512_and_si512(_mm512_slli_epi16(codes, 4), _mm512_set1_epi8((char)0xf0));
    __m512i sign = _mm512_and_si512(codes, _mm512_set1_epi8((char)0x80));
    *upper = _mm512_or_si512(_mm512_add_epi8(eighths, _mm512_shuffle_epi8(upper_of, idx)), sign);
    *lower = _mm512_xor_si512(digits, _mm512_shuffle_epi8(lower_of, idx));
}

/* Bytes are brought to where two interleaves want them: four outputs of both inputs, and the same
 * four of the second vector, in each quarter. */
F32X16_INLINE void bf16x32_fp8(const uint8_t *p, bf16x32 w[2]) {
    const __m512i quarters = _mm512_setr_epi32(0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7,
                                               15);
    const __m512i pairs = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15));
    __m512i upper, lower, codes = _mm512_permutexvar_epi32(quarters, _mm512_loadu_si512(p));
    bf16x32_bytes_fp8(_mm512_shuffle_epi8(codes, pairs), &upper, &lower);
    w[0] = _mm512_unpacklo_epi8(lower, upper);
    w[1] = _mm512_unpackhi_epi8(lower, upper);
}

/* A nibble is an index into a register of words: the permutation reads the low five bits of one, so
 * the values stand there twice and nothing needs masking. */
F32X16_INLINE void bf16x32_int4(const uint8_t *p, bf16x32 w[4]) {
    const __m512i values = _mm512_broadcast_i64x4(_mm256_setr_epi16(
        (short)0xc100, (short)0xc0e0, (short)0xc0c0, (short)0xc0a0, (short)0xc080, (short)0xc040,
        (short)0xc000, (short)0xbf80, 0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0));
    __m512i block = _mm512_loadu_si512(p);
    w[0] = _mm512_permutexvar_epi16(block, values);
    w[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(block, 4), values);
    w[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(block, 8), values);
    w[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(block, 12), values);
}

F32X16_INLINE uint32_t f32x16_flush_begin(void) {
    uint32_t saved = _mm_getcsr();
    _mm_setcsr(saved | F32X16_FLUSH_BITS);
    return saved;
}
F32X16_INLINE void f32x16_flush_end(uint32_t saved) {
    _mm_setcsr(saved);
}
F32X16_INLINE f32x16 f32x16_fma_flushed(f32x16 a, f32x16 b, f32x16 c) {
    return f32x16_fma(a, b, c);
}
F32X16_INLINE f32x16 f32x16_sum16_flushed(const f32x16 v[16]) {
    return f32x16_sum16(v);
}

#endif
