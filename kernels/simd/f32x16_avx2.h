/* f32x16.h on AVX2 and FMA. */
#ifndef ESPALIER_F32X16_AVX2_H
#define ESPALIER_F32X16_AVX2_H

#include <immintrin.h>

#define F32X16_UNROLL _Pragma("GCC unroll 16")

/* MXCSR: subnormal results are zero, and so are subnormal operands. */
#define F32X16_FLUSH_BITS 0x8040u

#define F32X16_HAS_DOT 0

typedef struct {
    __m256 lo, hi;
} f32x16;

F32X16_INLINE f32x16 f32x16_zero(void) {
    return (f32x16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
F32X16_INLINE f32x16 f32x16_set1(float x) {
    return (f32x16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
F32X16_INLINE f32x16 f32x16_load(const float *p) {
    return (f32x16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
F32X16_INLINE void f32x16_store(float *p, f32x16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
F32X16_INLINE f32x16 f32x16_add(f32x16 a, f32x16 b) {
    return (f32x16){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
F32X16_INLINE f32x16 f32x16_sub(f32x16 a, f32x16 b) {
    return (f32x16){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
F32X16_INLINE f32x16 f32x16_mul(f32x16 a, f32x16 b) {
    return (f32x16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
F32X16_INLINE f32x16 f32x16_div(f32x16 a, f32x16 b) {
    return (f32x16){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
F32X16_INLINE f32x16 f32x16_fma(f32x16 a, f32x16 b, f32x16 c) {
    return (f32x16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
F32X16_INLINE f32x16 f32x16_max(f32x16 a, f32x16 b) {
    return (f32x16){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
F32X16_INLINE f32x16 f32x16_min(f32x16 a, f32x16 b) {
    return (f32x16){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

F32X16_INLINE __m256 f32x16_widen_bf16(const bf16 *p) {
    __m128i narrow = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}
F32X16_INLINE f32x16 f32x16_load_bf16(const bf16 *p) {
    return (f32x16){f32x16_widen_bf16(p), f32x16_widen_bf16(p + 8)};
}

/* p * 2^n for integral n in [-152, 130], in two factors that both exist as normal numbers. The
 * first product is exact for p near one, so the whole rounds once. */
F32X16_INLINE __m256 f32x16_scale2_half(__m256 p, __m256 n) {
    __m256i whole = _mm256_cvtps_epi32(n);
    __m256i first = _mm256_srai_epi32(whole, 1);
    __m256i second = _mm256_sub_epi32(whole, first);
    __m256i bias = _mm256_set1_epi32(127);
    __m256 by_first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23));
    __m256 by_second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(p, by_first), by_second);
}
F32X16_INLINE f32x16 f32x16_scale2(f32x16 p, f32x16 n) {
    return (f32x16){f32x16_scale2_half(p.lo, n.lo), f32x16_scale2_half(p.hi, n.hi)};
}

/* Lanes 8 apart, then 4, 2, 1. */
F32X16_INLINE float f32x16_sum(f32x16 a) {
    __m256 by8 = _mm256_add_ps(a.lo, a.hi);
    __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
    __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
    return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}

/* Lane i of the result is f32x16_sum(v[i]). Eight vectors: halves added, pairs four apart packed
 * and added, then a transposition by pairs with the last two levels' additions. */
F32X16_INLINE __m256 f32x16_sum8(const f32x16 v[8]) {
    __m256 by4[4];
    F32X16_UNROLL
    for (int i = 0; i < 4; i++) {
        __m256 a = _mm256_add_ps(v[i].lo, v[i].hi);
        __m256 b = _mm256_add_ps(v[i + 4].lo, v[i + 4].hi);
        by4[i] = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20),
                               _mm256_permute2f128_ps(a, b, 0x31));
    }
    __m256 by2_lo = _mm256_add_ps(_mm256_shuffle_ps(by4[0], by4[1], 0x44),
                                  _mm256_shuffle_ps(by4[0], by4[1], 0xee));
    __m256 by2_hi = _mm256_add_ps(_mm256_shuffle_ps(by4[2], by4[3], 0x44),
                                  _mm256_shuffle_ps(by4[2], by4[3], 0xee));
    return _mm256_add_ps(_mm256_shuffle_ps(by2_lo, by2_hi, 0x88),
                         _mm256_shuffle_ps(by2_lo, by2_hi, 0xdd));
}
F32X16_INLINE f32x16 f32x16_sum16(const f32x16 v[16]) {
    return (f32x16){f32x16_sum8(v), f32x16_sum8(v + 8)};
}

typedef struct {
    __m256i lo, hi;
} bf16x32;

F32X16_INLINE bf16x32 bf16x32_load(const void *p) {
    return (bf16x32){_mm256_loadu_si256((const __m256i *)p),
                     _mm256_loadu_si256((const __m256i *)p + 1)};
}
F32X16_INLINE void bf16x32_store(bf16 *p, bf16x32 a) {
    _mm256_storeu_si256((__m256i *)(void *)p, a.lo);
    _mm256_storeu_si256((__m256i *)(void *)(p + 16), a.hi);
}
F32X16_INLINE bf16x32 bf16x32_pair(const bf16 *p) {
    int pair;
    memcpy(&pair, p, sizeof(pair));
    return (bf16x32){_mm256_set1_epi32(pair), _mm256_set1_epi32(pair)};
}
F32X16_INLINE f32x16 bf16x32_even(bf16x32 a) {
    return (f32x16){_mm256_castsi256_ps(_mm256_slli_epi32(a.lo, 16)),
                    _mm256_castsi256_ps(_mm256_slli_epi32(a.hi, 16))};
}
F32X16_INLINE f32x16 bf16x32_odd(bf16x32 a) {
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    return (f32x16){_mm256_castsi256_ps(_mm256_and_si256(a.lo, upper)),
                    _mm256_castsi256_ps(_mm256_and_si256(a.hi, upper))};
}
F32X16_INLINE f32x16 f32x16_dot(f32x16 acc, bf16x32 a, bf16x32 b) {
    acc = f32x16_fma(bf16x32_odd(a), bf16x32_odd(b), acc);
    return f32x16_fma(bf16x32_even(a), bf16x32_even(b), acc);
}

/* Eight values, each in the lower half of 32 bits. */
F32X16_INLINE __m256i f32x16_round_words(__m256 a) {
    __m256i bits = _mm256_castps_si256(a);
    __m256i upper = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    __m256i exponent = _mm256_and_si256(bits, _mm256_set1_epi32(0x7f800000));
    __m256i tiny = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
    __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    __m256i sign = _mm256_and_si256(upper, _mm256_set1_epi32(0x8000));
    return _mm256_blendv_epi8(_mm256_blendv_epi8(rounded, quiet, nan), sign, tiny);
}
F32X16_INLINE __m256i f32x16_round_half(f32x16 a) {
    __m256i packed = _mm256_packus_epi32(f32x16_round_words(a.lo), f32x16_round_words(a.hi));
    return _mm256_permute4x64_epi64(packed, 0xd8);
}
F32X16_INLINE bf16x32 bf16x32_round(f32x16 lo, f32x16 hi) {
    return (bf16x32){f32x16_round_half(lo), f32x16_round_half(hi)};
}

/* As on AVX-512, within each half: groups of four, even ones first. */
F32X16_INLINE void bf16x32_zip(bf16x32 a, bf16x32 b, bf16x32 z[2]) {
    z[0] = (bf16x32){_mm256_unpacklo_epi16(a.lo, b.lo), _mm256_unpackhi_epi16(a.lo, b.lo)};
    z[1] = (bf16x32){_mm256_unpacklo_epi16(a.hi, b.hi), _mm256_unpackhi_epi16(a.hi, b.hi)};
}
F32X16_INLINE void f32x16_zip_order(f32x16 z[2]) {
    for (int i = 0; i < 2; i++)
        z[i] = (f32x16){_mm256_permute2f128_ps(z[i].lo, z[i].hi, 0x20),
                        _mm256_permute2f128_ps(z[i].lo, z[i].hi, 0x31)};
}

/* As on AVX-512. */
F32X16_INLINE f32x16 f32x16_load_fp8(const uint8_t *p) {
    __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbfff));
    return (f32x16){_mm256_cvtph_ps(_mm256_castsi256_si128(half)),
                    _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
}
F32X16_INLINE void f32x16_panel_fp8(const uint8_t *p, f32x16 w[2]) {
    w[0] = f32x16_load_fp8(p);
    w[1] = f32x16_load_fp8(p + 16);
}

/* As on AVX-512. */
F32X16_INLINE void bf16x32_bytes_fp8(__m256i codes, __m256i *upper, __m256i *lower) {
    const __m256i upper_of = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c,
                      0x3c, 0x3c, 0x3c));
    const __m256i lower_of = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 0x10, (char)0xa0, (char)0xf0, 0x40, 0x70, 0x20, 0x10, 0, 0, 0, 0, 0, 0, 0, 0));
    __m256i sizes = _mm256_and_si256(codes, _mm256_set1_epi8(0x7f));
    __m256i idx = _mm256_min_epu8(sizes, _mm256_set1_epi8(15));
    __m256i eighths = _mm256_and_si256(_mm256_srli_epi16(codes, 4), _mm256_set1_epi8(7));
    __m256i digits = _mm256_and_si256(_mm256_slli_epi16(codes, 4), _mm256_set1_epi8((char)0xf0));
    __m256i sign = _mm256_and_si256(codes, _mm256_set1_epi8((char)0x80));
    *upper = _mm256_or_si256(_mm256_add_epi8(eighths, _mm256_shuffle_epi8(upper_of, idx)), sign);
    *lower = _mm256_xor_si256(digits, _mm256_shuffle_epi8(lower_of, idx));
}

/* Pairs of codes, and then pairs of values, in groups of eight and of four: those of outputs below
 * 16 in the lower half, those of the others in the upper one. */
F32X16_INLINE void bf16x32_fp8(const uint8_t *p, bf16x32 w[2]) {
    bf16x32 inputs = bf16x32_load(p);
    __m256i half[2][2]; /* of both vectors */
    for (int i = 0; i < 2; i++) {
        __m256i upper, lower,
            codes = i == 0 ? _mm256_unpacklo_epi8(inputs.lo, inputs.hi)
                           : _mm256_unpackhi_epi8(inputs.lo, inputs.hi);
        bf16x32_bytes_fp8(codes, &upper, &lower);
        __m256i first = _mm256_unpacklo_epi8(lower, upper);
        __m256i second = _mm256_unpackhi_epi8(lower, upper);
        half[0][i] = _mm256_permute2x128_si256(first, second, 0x20);
        half[1][i] = _mm256_permute2x128_si256(first, second, 0x31);
    }
    w[0] = (bf16x32){half[0][0], half[0][1]};
    w[1] = (bf16x32){half[1][0], half[1][1]};
}

/* The two bytes of a value come from two tables of bytes; an index with its top bit set gives 0. */
F32X16_INLINE __m256i f32x16_int4_words(__m256i nibbles) {
    const __m256i lower = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, (char)0xe0, (char)0xc0, (char)0xa0, (char)0x80, 0x40, 0, (char)0x80, 0,
                      (char)0x80, 0, 0x40, (char)0x80, (char)0xa0, (char)0xc0, (char)0xe0));
    const __m256i upper = _mm256_broadcastsi128_si256(
        _mm_setr_epi8((char)0xc1, (char)0xc0, (char)0xc0, (char)0xc0, (char)0xc0, (char)0xc0,
                      (char)0xc0, (char)0xbf, 0, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40));
    __m256i idx = _mm256_and_si256(nibbles, _mm256_set1_epi16(15));
    __m256i low = _mm256_shuffle_epi8(lower,
                                      _mm256_or_si256(idx, _mm256_set1_epi16((short)0x8000)));
    __m256i high = _mm256_shuffle_epi8(
        upper, _mm256_or_si256(_mm256_slli_epi16(idx, 8), _mm256_set1_epi16(0x80)));
    return _mm256_or_si256(low, high);
}
F32X16_INLINE void bf16x32_int4(const uint8_t *p, bf16x32 w[4]) {
    bf16x32 block = bf16x32_load(p);
    F32X16_UNROLL
    for (int i = 0; i < 4; i++)
        w[i] = (bf16x32){f32x16_int4_words(_mm256_srli_epi16(block.lo, 4 * i)),
                         f32x16_int4_words(_mm256_srli_epi16(block.hi, 4 * i))};
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
