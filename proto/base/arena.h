/* A bump arena with a fixed budget: many small allocations, one reset.
 *
 *   base            used                         budget
 *   |###############|............................|
 *
 * The budget is the point: a decoder that allocates from an arena cannot be made to allocate more
 * by hostile input; it gets NULL and fails cleanly. Under AddressSanitizer the unused part is
 * poisoned. One thread at a time.
 */
#ifndef ESPALIER_ARENA_H
#define ESPALIER_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#define ARENA_ALIGN 16

struct arena {
    unsigned char *base; /* owned where owns_base, else the caller's */
    size_t used;
    size_t budget;       /* bytes */
    bool owns_base;
};

/* Take `budget` bytes from the heap now. CHECKs that they were given: arenas are made at start. */
void arena_init(struct arena *arena, size_t budget);

/* Use the caller's memory, which must outlive the arena. */
void arena_init_at(struct arena *arena, void *memory, size_t bytes);
void arena_deinit(struct arena *arena);

/* ARENA_ALIGN-aligned, not cleared. NULL when the budget is spent. bytes == 0 gives a pointer. */
void *arena_alloc(struct arena *arena, size_t bytes);

/* arena_alloc of count * size, cleared. NULL also where the product overflows. */
void *arena_calloc(struct arena *arena, size_t count, size_t size);

/* The allocation at `memory` has so many bytes now and is the last: what lay behind it is
 * forgotten. NULL, and nothing done, when the budget is spent. */
void *arena_resize(struct arena *arena, void *memory, size_t bytes);

/* Forget everything allocated. */
void arena_reset(struct arena *arena);

/* Remember and go back: everything allocated since the mark is forgotten. */
size_t arena_mark(const struct arena *arena);
void arena_rewind(struct arena *arena, size_t mark);

#endif
