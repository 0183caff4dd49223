/* Where a prefix of the tokens in descending order ends, without sorting them: digit by digit, by
 * the mass of all tokens that share a digit. Ties are taken by ascending id.
 *
 * Masses are whole numbers, so sums have no order. Each lane of a warp adds to a table of its own:
 * most logits share their upper digits, and would wait for each other. */
#ifndef ESPALIER_SELECT_CUH
#define ESPALIER_SELECT_CUH

#include "cuda/block.cuh"
#include "cuda/math.cuh"

#define SELECT_THREADS 1024u
#define SELECT_TABLES  32u
#define SELECT_DIGITS  256u

/* Of the block, in its shared memory. */
struct select_memory {
    uint64_t mass[SELECT_DIGITS * SELECT_TABLES]; /* also what block_reduce works with */
    uint64_t above[2][SELECT_DIGITS];             /* mass of greater digits */
    uint32_t digit;
    uint64_t wanted;
};

/* The tokens of greater digits, and of equal ones those up to `last`. */
struct select_cut {
    uint32_t digits;
    uint32_t last; /* id */
};

DEVICE_INLINE bool select_keeps(const struct select_cut &cut, uint32_t digits, uint32_t id) {
    return digits > cut.digits || (digits == cut.digits && id <= cut.last);
}

template <typename Value, typename Op>
DEVICE_INLINE Value select_reduce(struct select_memory *memory, Value value, Op op) {
    return block_reduce<SELECT_THREADS>(value, (Value *)memory->mass, op);
}

/* above[d] = mass of the digits greater than d; memory->mass has been filled. */
static __device__ uint64_t *sum_above(struct select_memory *memory) {
    uint32_t digit = threadIdx.x;
    if (digit < SELECT_DIGITS) {
        uint64_t sum = 0;
        for (uint32_t t = 0; t < SELECT_TABLES; t++)
            sum += memory->mass[digit * SELECT_TABLES + (t + digit) % SELECT_TABLES];
        memory->above[0][digit] = sum;
    }
    device_barrier();
    uint32_t from = 0;
    for (uint32_t apart = 1; apart < SELECT_DIGITS; apart *= 2) {
        if (digit < SELECT_DIGITS)
            memory->above[1 - from][digit] =
                memory->above[from][digit] +
                (digit + apart < SELECT_DIGITS ? memory->above[from][digit + apart] : 0);
        from = 1 - from;
        device_barrier();
    }
    return memory->above[from]; /* [d] includes d itself */
}

/* The key at which the mass of [0, count) in descending order of keys first reaches `wanted`, of
 * 32 bits; *wanted becomes what keys equal to it must still bring. mass_of is 0 for tokens that do
 * not count; the mass of all is at least wanted, and wanted at least 1. */
template <typename KeyOf, typename MassOf>
static __device__ uint32_t select_key(struct select_memory *memory, uint32_t count, KeyOf key_of,
                                      MassOf mass_of, uint64_t *wanted) {
    uint32_t found = 0, table = threadIdx.x % SELECT_TABLES;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (uint32_t i = threadIdx.x; i < SELECT_DIGITS * SELECT_TABLES; i += SELECT_THREADS)
            memory->mass[i] = 0;
        device_barrier();
        for (uint32_t id = threadIdx.x; id < count; id += SELECT_THREADS) {
            uint32_t key = key_of(id);
            if (shift < 24 && (key ^ found) >> (shift + 8) != 0) continue;
            device_atomic_add(&memory->mass[(key >> shift) % SELECT_DIGITS * SELECT_TABLES + table],
                              mass_of(id));
        }
        device_barrier();
        const uint64_t *from = sum_above(memory);
        uint32_t digit = threadIdx.x;
        if (digit < SELECT_DIGITS) {
            uint64_t above = digit + 1 < SELECT_DIGITS ? from[digit + 1] : 0;
            if (above < *wanted && *wanted <= from[digit]) {
                memory->digit = digit;
                memory->wanted = *wanted - above;
            }
        }
        device_barrier();
        found |= memory->digit << shift;
        *wanted = memory->wanted;
        device_barrier();
    }
    return found;
}

/* Where the shortest prefix ends whose mass reaches `wanted`. Equal digits have equal masses. */
template <typename DigitsOf, typename MassOf>
static __device__ struct select_cut select_prefix(struct select_memory *memory, uint32_t count,
                                                  DigitsOf digits_of, MassOf mass_of,
                                                  uint64_t wanted) {
    struct select_cut cut;
    cut.digits = select_key(memory, count, digits_of, mass_of, &wanted);
    /* Ids descend where their complements ascend. */
    cut.last = ~select_key(
        memory, count, [](uint32_t id) { return ~id; },
        [&](uint32_t id) { return digits_of(id) == cut.digits ? mass_of(id) : (uint64_t)0; },
        &wanted);
    return cut;
}

#endif
