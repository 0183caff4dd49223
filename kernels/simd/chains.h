/* Chains of one instruction, to time it by: CHAINS sums that do not wait for each other, `steps` of
 * each. The empty assembly keeps the compiler from joining or dropping them; unrolled throughout,
 * the vectors are registers. */
#ifndef ESPALIER_CHAINS_H
#define ESPALIER_CHAINS_H

#include <stdint.h>

#define CHAINS 12u /* more than latency times ports */

#if defined(__x86_64__)
#define VECTOR_REGISTER "+v"
#else
#define VECTOR_REGISTER "+w"
#endif

#define EACH_CHAIN _Pragma("GCC unroll 16") for (uint32_t c = 0; c < CHAINS; c++)
#define DEFINE_CHAINS(name, features, vector, zero, step)                                          \
    __attribute__((target(features))) static void name(uint32_t steps) {                           \
        vector sum[CHAINS];                                                                        \
        EACH_CHAIN sum[c] = zero;                                                                  \
        for (uint32_t i = 0; i < steps; i++) {                                                     \
            EACH_CHAIN {                                                                           \
                sum[c] = step;                                                                     \
                __asm__ volatile("" : VECTOR_REGISTER(sum[c]));                                    \
            }                                                                                      \
        }                                                                                          \
    }

#if defined(__x86_64__)
#include <immintrin.h>

DEFINE_CHAINS(chains_fma_avx512, "avx512f", __m512, _mm512_setzero_ps(),
              _mm512_fmadd_ps(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.25f), sum[c]))
DEFINE_CHAINS(chains_dot_bf16, "avx512f,avx512bf16", __m512, _mm512_setzero_ps(),
              _mm512_dpbf16_ps(sum[c], (__m512bh)_mm512_set1_epi32(0x3f003f00),
                               (__m512bh)_mm512_set1_epi32(0x3e803e80)))
#endif

#endif
