#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#define ARENA_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#endif

#ifdef ARENA_ASAN
#include <sanitizer/asan_interface.h>
#define poison(at, bytes)   ASAN_POISON_MEMORY_REGION(at, bytes)
#define unpoison(at, bytes) ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#else
#define poison(at, bytes)   ((void)(at), (void)(bytes))
#define unpoison(at, bytes) ((void)(at), (void)(bytes))
#endif

void arena_init(struct arena *arena, size_t budget) {
    void *base = aligned_alloc(ARENA_ALIGN, (budget + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN);
    CHECK(base != NULL);
    arena_init_at(arena, base, budget);
    arena->owns_base = true;
}

void arena_init_at(struct arena *arena, void *memory, size_t bytes) {
    CHECK((size_t)memory % ARENA_ALIGN == 0);
    *arena = (struct arena){.base = memory, .used = 0, .budget = bytes, .owns_base = false};
    poison(arena->base, arena->budget);
}

void arena_deinit(struct arena *arena) {
    unpoison(arena->base, arena->budget);
    if (arena->owns_base) free(arena->base);
    *arena = (struct arena){0};
}

void *arena_alloc(struct arena *arena, size_t bytes) {
    size_t begin = (arena->used + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (begin > arena->budget || bytes > arena->budget - begin) return NULL;
    arena->used = begin + bytes;
    unpoison(arena->base + begin, bytes);
    return arena->base + begin;
}

void *arena_calloc(struct arena *arena, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) return NULL;
    void *memory = arena_alloc(arena, bytes);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

void *arena_resize(struct arena *arena, void *memory, size_t bytes) {
    size_t begin = (size_t)((unsigned char *)memory - arena->base), before = arena->used;
    CHECK(begin <= before);
    if (bytes > arena->budget - begin) return NULL;
    arena->used = begin + bytes;
    unpoison(arena->base + begin, bytes);
    if (arena->used < before) poison(arena->base + arena->used, before - arena->used);
    return memory;
}

void arena_reset(struct arena *arena) {
    arena_rewind(arena, 0);
}

size_t arena_mark(const struct arena *arena) {
    return arena->used;
}

void arena_rewind(struct arena *arena, size_t mark) {
    CHECK(mark <= arena->used);
    poison(arena->base + mark, arena->used - mark); /* behind it, it is poisoned already */
    arena->used = mark;
}
