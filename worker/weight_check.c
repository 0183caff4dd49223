#include "weight_check.h"

#include <stdbool.h>
#include <stdint.h>

#include "kernel.h"

/* Is there a value whose magnitude, read as a number, is `bound` or more, or whose sign is among
 * `refused`? Both end in the highest bit of a sum, so that the loop is a few operations a register
 * and has no branch. */
#define DEFINE_FIND(name, bits, top)                                                               \
    static bool any_##name(const bits *value, size_t count, bits bound, bits refused) {            \
        const bits carry = (bits)(top - bound);                                                    \
        bits seen = 0;                                                                             \
        for (size_t i = 0; i < count; i++)                                                         \
            seen |= (bits)((value[i] & refused) | (bits)((value[i] & (bits)(top - 1)) + carry));   \
        return seen & top;                                                                         \
    }                                                                                              \
                                                                                                   \
    static size_t find_##name(const void *row, size_t count, bits bound, bool negative_too) {      \
        const bits *value = row, refused = negative_too ? top : 0;                                 \
        if (!any_##name(value, count, bound, refused)) return count;                               \
        size_t i = 0;                                                                              \
        while (!any_##name(value + i, 1, bound, refused))                                          \
            i++;                                                                                   \
        return i;                                                                                  \
    }

DEFINE_FIND(u8, uint8_t, 0x80u)
DEFINE_FIND(u16, uint16_t, 0x8000u)
DEFINE_FIND(u32, uint32_t, 0x80000000u)

size_t weight_check_row(enum tensor_dtype dtype, const void *row, size_t count,
                        enum weight_values values) {
    bool scales = values != WEIGHT_VALUES;
    uint32_t bound = values == WEIGHT_BLOCK_SCALES ? (127u + 119u) << 23 : F32_NOT_FINITE;
    switch (dtype) {
    case TENSOR_F32: return find_u32(row, count, bound, scales);
    case TENSOR_BF16: return find_u16(row, count, BF16_NOT_FINITE, scales);
    case TENSOR_F16: return find_u16(row, count, 0x7c00, scales);
    case TENSOR_F8_E4M3: return find_u8(row, count, E4M3_NOT_FINITE, scales);
    case TENSOR_I32:
    case TENSOR_I64:
    case TENSOR_OTHER: break;
    }
    return count;
}

const char *weight_check_words(enum weight_values values) {
    switch (values) {
    case WEIGHT_VALUES: return "is NaN or infinite; accepted: finite";
    case WEIGHT_SCALES: return "is NaN, infinite or negative; accepted: finite, 0 or more";
    case WEIGHT_BLOCK_SCALES: break;
    }
    return "is NaN, infinite, near it or negative; accepted: 0 to below 2^119";
}
