/* From a 64-bit id to the slot that has it: a hash table with chains, of a fixed size.
 * Ids are unique while they are in it. No memory after init. */
#ifndef ESPALIER_ID_INDEX_H
#define ESPALIER_ID_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"

#define ID_INDEX_NONE UINT32_MAX

struct id_index {
    uint32_t *bucket; /* [mask + 1] */
    uint32_t *next;   /* [capacity]: along a chain */
    uint64_t *id;     /* [capacity]: by slot */
    uint32_t mask;
};

size_t id_index_memory(uint32_t capacity);
void id_index_init(struct id_index *index, uint32_t capacity, struct arena *memory);

void id_index_put(struct id_index *index, uint64_t id, uint32_t slot);

/* CHECKs that the slot is in it. */
void id_index_remove(struct id_index *index, uint32_t slot);

/* Another slot has the id from now on. */
void id_index_move(struct id_index *index, uint32_t from_slot, uint32_t to_slot);

/* ID_INDEX_NONE: nobody has it. */
uint32_t id_index_find(const struct id_index *index, uint64_t id);

#endif
