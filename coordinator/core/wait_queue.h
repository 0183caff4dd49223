/* Who waits, in the order in which they are let in: a binary heap of request slots.
 *
 * The order of a request is fixed when it is put in. Where waiting itself is to count, the caller
 * writes it into the key: a key that begins with the time of arrival gains on all later ones at the
 * same rate, so ageing needs no walk over the queue. O(log waiting). No memory after init.
 */
#ifndef ESPALIER_WAIT_QUEUE_H
#define ESPALIER_WAIT_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"

#define WAIT_QUEUE_NOWHERE UINT32_MAX

/* Smaller is sooner: by class, then key, then seq, which is unique. */
struct wait_order {
    uint32_t class;
    int64_t key;
    uint64_t seq;
};

struct wait_queue {
    uint32_t *heap;           /* [capacity]: slots */
    uint32_t *at;             /* [capacity]: by slot, its place in the heap */
    struct wait_order *order; /* [capacity]: by slot */
    uint32_t count, capacity;
};

size_t wait_queue_memory(uint32_t capacity);
void wait_queue_init(struct wait_queue *queue, uint32_t capacity, struct arena *memory);

void wait_queue_put(struct wait_queue *queue, uint32_t slot, const struct wait_order *order);
void wait_queue_remove(struct wait_queue *queue, uint32_t slot);

/* The one to be let in first; WAIT_QUEUE_NOWHERE: nobody waits. */
uint32_t wait_queue_first(const struct wait_queue *queue);

/* CHECK the heap and the places. */
void wait_queue_check(const struct wait_queue *queue);

#endif
