#include "wait_queue.h"

#include <stdbool.h>

#include "base/check.h"

#define NOWHERE WAIT_QUEUE_NOWHERE

size_t wait_queue_memory(uint32_t capacity) {
    return capacity * (2 * sizeof(uint32_t) + sizeof(struct wait_order)) + (size_t)3 * ARENA_ALIGN;
}

void wait_queue_init(struct wait_queue *queue, uint32_t capacity, struct arena *memory) {
    *queue = (struct wait_queue){
        .heap = arena_alloc(memory, capacity * sizeof *queue->heap),
        .at = arena_alloc(memory, capacity * sizeof *queue->at),
        .order = arena_alloc(memory, capacity * sizeof *queue->order),
        .capacity = capacity,
    };
    CHECK(queue->heap && queue->at && queue->order);
    for (uint32_t slot = 0; slot < capacity; slot++)
        queue->at[slot] = NOWHERE;
}

static bool is_sooner(const struct wait_queue *queue, uint32_t a, uint32_t b) {
    const struct wait_order *left = &queue->order[a], *right = &queue->order[b];
    if (left->class != right->class) return left->class < right->class;
    if (left->key != right->key) return left->key < right->key;
    return left->seq < right->seq;
}

static void place(struct wait_queue *queue, uint32_t at, uint32_t slot) {
    queue->heap[at] = slot;
    queue->at[slot] = at;
}

static void rise(struct wait_queue *queue, uint32_t at) {
    uint32_t slot = queue->heap[at];
    for (; at > 0 && is_sooner(queue, slot, queue->heap[(at - 1) / 2]); at = (at - 1) / 2)
        place(queue, at, queue->heap[(at - 1) / 2]);
    place(queue, at, slot);
}

static void sink(struct wait_queue *queue, uint32_t at) {
    uint32_t slot = queue->heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= queue->count) break;
        if (child + 1 < queue->count &&
            is_sooner(queue, queue->heap[child + 1], queue->heap[child]))
            child++;
        if (!is_sooner(queue, queue->heap[child], slot)) break;
        place(queue, at, queue->heap[child]);
        at = child;
    }
    place(queue, at, slot);
}

void wait_queue_put(struct wait_queue *queue, uint32_t slot, const struct wait_order *order) {
    CHECK(slot < queue->capacity && queue->at[slot] == NOWHERE);
    queue->order[slot] = *order;
    queue->heap[queue->count] = slot;
    rise(queue, queue->count++);
}

void wait_queue_remove(struct wait_queue *queue, uint32_t slot) {
    uint32_t at = queue->at[slot];
    CHECK(at != NOWHERE);
    queue->at[slot] = NOWHERE;
    uint32_t last = queue->heap[--queue->count];
    if (last == slot) return;
    place(queue, at, last);
    rise(queue, at);
    sink(queue, queue->at[last]);
}

uint32_t wait_queue_first(const struct wait_queue *queue) {
    return queue->count > 0 ? queue->heap[0] : NOWHERE;
}

void wait_queue_check(const struct wait_queue *queue) {
    uint32_t placed = 0;
    for (uint32_t slot = 0; slot < queue->capacity; slot++)
        placed += queue->at[slot] != NOWHERE;
    CHECK(placed == queue->count);
    for (uint32_t at = 0; at < queue->count; at++) {
        CHECK(queue->at[queue->heap[at]] == at);
        CHECK(at == 0 || !is_sooner(queue, queue->heap[at], queue->heap[(at - 1) / 2]));
    }
}
