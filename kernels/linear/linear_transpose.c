/* Square tiles of one register a row: N rows of N elements, where N elements are 16 bytes. Seen as
 * one array of N * N, interleaving its two halves turns the address of each element by one bit;
 * after log2(N) times row and column have changed places. Every machine has such registers; the
 * compiler's vectors name them for all.
 *
 * Elements are taken a cache line of each row at a time: rows are often a power of two apart, and
 * then fall on few sets of the first-level cache. */
#include "linear/linear_transpose.h"

#include <string.h>

#include "kernel.h"

#define LINE_BYTES 64u
#define TILE_BYTES 16u

typedef uint8_t bytes16 __attribute__((vector_size(TILE_BYTES)));
typedef uint16_t halves8 __attribute__((vector_size(TILE_BYTES)));
typedef uint32_t words4 __attribute__((vector_size(TILE_BYTES)));

#define LOW_U8(a, b)                                                                               \
    __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH_U8(a, b)                                                                              \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define LOW_U16(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH_U16(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define LOW_U32(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH_U32(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)

/* One tile, from `row` (N pointers) at byte `at` to N lines of the panel. */
#define DEFINE_TILE(name, vector, element, N, ROUNDS, LOW, HIGH)                                   \
    static inline void name(element *panel, const char *const *row, size_t at) {                   \
        vector tile[N], turned[N];                                                                 \
        _Pragma("GCC unroll 16") for (int i = 0; i < N; i++)                                       \
            memcpy(&tile[i], row[i] + at, sizeof tile[i]);                                         \
        _Pragma("GCC unroll 4") for (int round = 0; round < ROUNDS; round++) {                     \
            _Pragma("GCC unroll 8") for (int i = 0; i < N / 2; i++) {                              \
                turned[2 * i] = LOW(tile[i], tile[i + N / 2]);                                     \
                turned[2 * i + 1] = HIGH(tile[i], tile[i + N / 2]);                                \
            }                                                                                      \
            _Pragma("GCC unroll 16") for (int i = 0; i < N; i++) tile[i] = turned[i];              \
        }                                                                                          \
        _Pragma("GCC unroll 16") for (int i = 0; i < N; i++)                                       \
            memcpy(panel + i * KERNEL_PANEL, &tile[i], sizeof tile[i]);                            \
    }

DEFINE_TILE(turn_u8, bytes16, uint8_t, 16, 4, LOW_U8, HIGH_U8)
DEFINE_TILE(turn_u16, halves8, uint16_t, 8, 3, LOW_U16, HIGH_U16)
DEFINE_TILE(turn_u32, words4, uint32_t, 4, 2, LOW_U32, HIGH_U32)

/* Whole tiles of all rows; what is left, at the end of rows or of the panel, element by element. */
#define DEFINE_TRANSPOSE(name, tile, element, N)                                                   \
    static void name(element *panel, const char *source, size_t stride, uint32_t count,            \
                     uint32_t k, element fill) {                                                   \
        const uint32_t line = LINE_BYTES / sizeof(element);                                        \
        uint32_t rows = count / N * N, columns = k / N * N;                                        \
        for (uint32_t begin = 0; begin < columns; begin += line) {                                 \
            uint32_t end = begin + line < columns ? begin + line : columns;                        \
            for (uint32_t r = 0; r < rows; r += N) {                                               \
                const char *row[N];                                                                \
                for (uint32_t i = 0; i < N; i++)                                                   \
                    row[i] = source + (r + i) * stride;                                            \
                for (uint32_t i = begin; i < end; i += N)                                          \
                    tile(panel + (size_t)i * KERNEL_PANEL + r, row, i * sizeof(element));          \
            }                                                                                      \
        }                                                                                          \
        for (uint32_t i = 0; i < k; i++) {                                                         \
            element *to = panel + (size_t)i * KERNEL_PANEL;                                        \
            const char *from = source + i * sizeof(element);                                       \
            for (uint32_t r = i < columns ? rows : 0; r < count; r++)                              \
                memcpy(&to[r], from + r * stride, sizeof *to);                                     \
            for (uint32_t r = count; r < KERNEL_PANEL; r++)                                        \
                to[r] = fill;                                                                      \
        }                                                                                          \
    }

DEFINE_TRANSPOSE(transpose_u8, turn_u8, uint8_t, 16)
DEFINE_TRANSPOSE(transpose_u16, turn_u16, uint16_t, 8)
DEFINE_TRANSPOSE(transpose_u32, turn_u32, uint32_t, 4)

void linear_transpose_u8(uint8_t *panel, const void *source, size_t stride_bytes, uint32_t count,
                         uint32_t k) {
    transpose_u8(panel, source, stride_bytes, count, k, 0);
}

void linear_transpose_u16(uint16_t *panel, const void *source, size_t stride_bytes, uint32_t count,
                          uint32_t k, uint16_t fill) {
    transpose_u16(panel, source, stride_bytes, count, k, fill);
}

void linear_transpose_u32(uint32_t *panel, const void *source, size_t stride_bytes, uint32_t count,
                          uint32_t k) {
    transpose_u32(panel, source, stride_bytes, count, k, 0);
}
