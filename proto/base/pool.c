#include "base/pool.h"

#include <stdlib.h>

#include "base/check.h"

#define WORD_BITS 64u

void pool_init(struct pool *pool, uint32_t capacity) {
    CHECK(capacity > 0 && capacity < POOL_NO_SLOT);
    *pool = (struct pool){
        .generation = calloc(capacity, sizeof *pool->generation),
        .used_bits = calloc((capacity + WORD_BITS - 1) / WORD_BITS, sizeof *pool->used_bits),
        .capacity = capacity,
    };
    CHECK(pool->generation && pool->used_bits);
}

void pool_deinit(struct pool *pool) {
    free(pool->generation);
    free(pool->used_bits);
    *pool = (struct pool){0};
}

struct pool_id pool_acquire(struct pool *pool) {
    for (uint32_t word = 0; word * WORD_BITS < pool->capacity; word++) {
        uint64_t free_bits = ~pool->used_bits[word];
        if (!free_bits) continue;
        uint32_t slot = word * WORD_BITS + (uint32_t)__builtin_ctzll(free_bits);
        if (slot >= pool->capacity) break;
        pool->used_bits[word] |= UINT64_C(1) << (slot % WORD_BITS);
        pool->used_count++;
        return (struct pool_id){.slot = slot, .generation = ++pool->generation[slot]};
    }
    return (struct pool_id){.slot = POOL_NO_SLOT, .generation = 0};
}

void pool_release(struct pool *pool, struct pool_id id) {
    CHECK(pool_is_live(pool, id));
    pool->used_bits[id.slot / WORD_BITS] &= ~(UINT64_C(1) << (id.slot % WORD_BITS));
    pool->generation[id.slot]++;
    pool->used_count--;
}

bool pool_is_live(const struct pool *pool, struct pool_id id) {
    return id.slot < pool->capacity && id.generation % 2 == 1 &&
           pool->generation[id.slot] == id.generation;
}

bool pool_id_equal(struct pool_id a, struct pool_id b) {
    return a.slot == b.slot && a.generation == b.generation;
}

uint32_t pool_next_used(const struct pool *pool, uint32_t from) {
    for (uint32_t word = from / WORD_BITS; word * WORD_BITS < pool->capacity; word++) {
        uint64_t bits = pool->used_bits[word];
        if (word == from / WORD_BITS) bits &= ~UINT64_C(0) << (from % WORD_BITS);
        if (bits) return word * WORD_BITS + (uint32_t)__builtin_ctzll(bits);
    }
    return POOL_NO_SLOT;
}
