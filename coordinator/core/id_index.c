#include "id_index.h"

#include "base/check.h"
#include "base/hash.h"

static uint32_t buckets_for(uint32_t capacity) {
    uint32_t count = 16;
    while (count < capacity)
        count *= 2;
    return count;
}

size_t id_index_memory(uint32_t capacity) {
    return buckets_for(capacity) * sizeof(uint32_t) +
           capacity * (sizeof(uint32_t) + sizeof(uint64_t)) + (size_t)3 * ARENA_ALIGN;
}

void id_index_init(struct id_index *index, uint32_t capacity, struct arena *memory) {
    *index = (struct id_index){
        .bucket = arena_alloc(memory, buckets_for(capacity) * sizeof *index->bucket),
        .next = arena_alloc(memory, capacity * sizeof *index->next),
        .id = arena_alloc(memory, capacity * sizeof *index->id),
        .mask = buckets_for(capacity) - 1,
    };
    CHECK(index->bucket && index->next && index->id);
    for (uint32_t i = 0; i <= index->mask; i++)
        index->bucket[i] = ID_INDEX_NONE;
}

static uint32_t *bucket_of(const struct id_index *index, uint64_t id) {
    return &index->bucket[hash_mix(id) & index->mask];
}

void id_index_put(struct id_index *index, uint64_t id, uint32_t slot) {
    CHECK(id_index_find(index, id) == ID_INDEX_NONE);
    uint32_t *bucket = bucket_of(index, id);
    index->id[slot] = id;
    index->next[slot] = *bucket;
    *bucket = slot;
}

void id_index_remove(struct id_index *index, uint32_t slot) {
    uint32_t *at = bucket_of(index, index->id[slot]);
    while (*at != slot) {
        CHECK(*at != ID_INDEX_NONE);
        at = &index->next[*at];
    }
    *at = index->next[slot];
}

void id_index_move(struct id_index *index, uint32_t from_slot, uint32_t to_slot) {
    id_index_remove(index, from_slot);
    id_index_put(index, index->id[from_slot], to_slot);
}

uint32_t id_index_find(const struct id_index *index, uint64_t id) {
    uint32_t slot = *bucket_of(index, id);
    while (slot != ID_INDEX_NONE && index->id[slot] != id)
        slot = index->next[slot];
    return slot;
}
