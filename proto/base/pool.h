/* Fixed slots with generations. An id names a slot and the generation of its use, so an id kept
 * after its release is seen as stale instead of reaching the slot's next user.
 *
 * The caller owns the objects: an array of `capacity` entries indexed by id.slot. The pool only
 * says which are in use. Slots are given lowest first. No allocation after init. One thread.
 */
#ifndef ESPALIER_POOL_H
#define ESPALIER_POOL_H

#include <stdbool.h>
#include <stdint.h>

#define POOL_NO_SLOT UINT32_MAX

struct pool_id {
    uint32_t slot;       /* 0-based; POOL_NO_SLOT for none */
    uint32_t generation; /* odd while in use */
};

struct pool {
    uint32_t *generation; /* [capacity], owned */
    uint64_t *used_bits;  /* [(capacity + 63) / 64], owned */
    uint32_t capacity;
    uint32_t used_count;
};

void pool_init(struct pool *pool, uint32_t capacity);
void pool_deinit(struct pool *pool);

/* The id of a free slot; .slot == POOL_NO_SLOT when all are in use. */
struct pool_id pool_acquire(struct pool *pool);

/* CHECKs that id is live. */
void pool_release(struct pool *pool, struct pool_id id);

bool pool_is_live(const struct pool *pool, struct pool_id id);

/* The same use of the same slot. */
bool pool_id_equal(struct pool_id a, struct pool_id b);

/* The first slot in use at or after `from`; POOL_NO_SLOT at the end: for loops over live slots. */
uint32_t pool_next_used(const struct pool *pool, uint32_t from);

#endif
