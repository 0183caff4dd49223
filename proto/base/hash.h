/* 64-bit hashes: of bytes, and of prefixes as a chain. Not for keys chosen by an enemy. */
#ifndef ESPALIER_HASH_H
#define ESPALIER_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The hash of the empty prefix. */
#define HASH_CHAIN_EMPTY UINT64_C(0x9e3779b97f4a7c15)

/* A bijection of 64 bits with full avalanche (the finaliser of SplitMix64; Steele, Lea and Flood,
 * "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014). */
static inline uint64_t hash_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* The hash of a prefix extended by one value: order matters, and so does every value before. */
static inline uint64_t hash_chain(uint64_t prefix, uint64_t value) {
    return hash_mix(prefix ^ hash_mix(value + UINT64_C(0x9e3779b97f4a7c15)));
}

/* A double as a value of a chain: its bits, so that every difference counts. */
static inline uint64_t hash_double_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The hash of a byte string. */
uint64_t hash_bytes(const void *data, size_t bytes, uint64_t seed);

#endif
