/* Narrow numbers as pairs of bf16, which hold them exactly. */
#ifndef ESPALIER_WIDEN_CUH
#define ESPALIER_WIDEN_CUH

#include "cuda/device.cuh"

/* Four nibbles that lie sixteen bits apart, offset binary, as pairs of bf16: 0x4300 is 128. */
DEVICE_INLINE uint32_t widen_int4(uint32_t nibbles) {
    const uint32_t minus_136 = 0xc308c308u;
    return device_add_bf16x2((nibbles & 0x000f000fu) | 0x43004300u, minus_136);
}

/* Two e4m3 codes, in the lowest bytes of the halves, as a pair of bf16: exponents begin 120 lower,
 * and subnormal codes are subnormal numbers until they are multiplied. */
DEVICE_INLINE uint32_t widen_fp8(uint32_t codes) {
    const uint32_t two_to_120 = 0x7b807b80u;
    return device_multiply_bf16x2((codes & 0x00800080u) << 8 | (codes & 0x007f007fu) << 4,
                                  two_to_120);
}

#endif
