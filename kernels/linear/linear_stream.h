/* Copies that go past the caches, and look at what they carry. A store to memory that is not cached
 * reads it first, and pushes out what is cached; weights are packed long before anyone reads them,
 * so neither is of use. On the way a look at each value costs nothing. */
#ifndef ESPALIER_LINEAR_STREAM_H
#define ESPALIER_LINEAR_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define LINEAR_STREAM_BYTES 16u

typedef uint8_t linear_u8s __attribute__((vector_size(LINEAR_STREAM_BYTES)));
typedef uint16_t linear_u16s __attribute__((vector_size(LINEAR_STREAM_BYTES)));
typedef uint32_t linear_u32s __attribute__((vector_size(LINEAR_STREAM_BYTES)));

/* to: aligned to LINEAR_STREAM_BYTES, and bytes a multiple of it. Seen by other threads after
 * linear_stream_end. False where a value's magnitude, read as a number, is `bound` or more: the sum
 * then reaches the highest bit. */
#define DEFINE_LINEAR_STREAM(name, vector, element, top)                                           \
    static inline bool name(element *to, const element *from, size_t bytes, element bound) {       \
        const element carry = (element)(top - bound);                                              \
        vector seen = {0};                                                                         \
        for (size_t at = 0; at < bytes; at += LINEAR_STREAM_BYTES) {                               \
            vector value;                                                                          \
            memcpy(&value, (const char *)from + at, sizeof value);                                 \
            linear_stream_store((char *)to + at, &value);                                          \
            seen |= (value & (element)(top - 1)) + carry;                                          \
        }                                                                                          \
        element all = 0;                                                                           \
        for (size_t i = 0; i < sizeof seen / sizeof(element); i++)                                 \
            all |= seen[i];                                                                        \
        return (all & top) == 0;                                                                   \
    }

static inline void linear_stream_store(void *to, const void *value) {
#ifdef __SSE2__
    _mm_stream_si128(to, _mm_loadu_si128(value));
#else
    memcpy(to, value, LINEAR_STREAM_BYTES);
#endif
}

static inline void linear_stream_end(void) {
#ifdef __SSE2__
    _mm_sfence();
#endif
}

DEFINE_LINEAR_STREAM(linear_stream_u8, linear_u8s, uint8_t, 0x80u)
DEFINE_LINEAR_STREAM(linear_stream_u16, linear_u16s, uint16_t, 0x8000u)
DEFINE_LINEAR_STREAM(linear_stream_u32, linear_u32s, uint32_t, 0x80000000u)

#endif
