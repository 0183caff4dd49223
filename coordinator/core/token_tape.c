#include "token_tape.h"

#include <string.h>

#include "base/check.h"

#define BLOCK_TOK TOKEN_TAPE_BLOCK_TOK
#define NO_BLOCK  TOKEN_TAPE_NO_BLOCK

uint32_t token_tape_blocks(uint64_t token_count) {
    return (uint32_t)((token_count + BLOCK_TOK - 1) / BLOCK_TOK);
}

size_t token_tape_memory(uint32_t block_count) {
    return (size_t)block_count * (BLOCK_TOK + 1) * sizeof(uint32_t) + (size_t)2 * ARENA_ALIGN;
}

void token_tape_init(struct token_tape_store *store, uint32_t block_count, struct arena *memory) {
    *store = (struct token_tape_store){
        .token = arena_alloc(memory, (size_t)block_count * BLOCK_TOK * sizeof(uint32_t)),
        .next = arena_alloc(memory, block_count * sizeof(uint32_t)),
        .block_count = block_count,
        .first_free = block_count > 0 ? 0 : NO_BLOCK,
        .free_count = block_count,
    };
    CHECK(store->token && store->next);
    for (uint32_t block = 0; block < block_count; block++)
        store->next[block] = block + 1 < block_count ? block + 1 : NO_BLOCK;
}

static void add_block(struct token_tape_store *store, struct token_tape *tape) {
    CHECK(store->free_count > 0);
    uint32_t block = store->first_free;
    store->first_free = store->next[block];
    store->free_count--;
    store->next[block] = NO_BLOCK;
    if (tape->last_block == NO_BLOCK)
        tape->first_block = block;
    else
        store->next[tape->last_block] = block;
    tape->last_block = block;
}

static uint32_t min(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

void token_tape_append(struct token_tape_store *store, struct token_tape *tape,
                       const uint32_t *token, uint32_t count) {
    while (count > 0) {
        uint32_t used = tape->count % BLOCK_TOK;
        if (used == 0) add_block(store, tape);
        uint32_t part = min(count, BLOCK_TOK - used);
        memcpy(store->token + (size_t)tape->last_block * BLOCK_TOK + used, token,
               part * sizeof *token);
        tape->count += part;
        token += part;
        count -= part;
    }
}

/* The block that holds id `begin`. Decoding asks for the last id again and again. */
static uint32_t find_block(const struct token_tape_store *store, const struct token_tape *tape,
                           uint32_t begin) {
    if (begin / BLOCK_TOK == (tape->count - 1) / BLOCK_TOK) return tape->last_block;
    uint32_t block = tape->first_block;
    for (uint32_t i = begin / BLOCK_TOK; i > 0; i--)
        block = store->next[block];
    return block;
}

void token_tape_read(const struct token_tape_store *store, const struct token_tape *tape,
                     uint32_t begin, uint32_t count, uint32_t *token_out) {
    CHECK(count > 0 && begin < tape->count && count <= tape->count - begin);
    uint32_t block = find_block(store, tape, begin);
    uint32_t skip = begin % BLOCK_TOK;
    while (count > 0) {
        uint32_t part = min(count, BLOCK_TOK - skip);
        memcpy(token_out, store->token + (size_t)block * BLOCK_TOK + skip,
               part * sizeof *token_out);
        token_out += part;
        count -= part;
        skip = 0;
        block = store->next[block];
    }
}

void token_tape_copy(struct token_tape_store *store, const struct token_tape *from,
                     struct token_tape *to) {
    uint32_t block = from->first_block;
    for (uint32_t begin = 0; begin < from->count; begin += BLOCK_TOK) {
        token_tape_append(store, to, store->token + (size_t)block * BLOCK_TOK,
                          min(from->count - begin, BLOCK_TOK));
        block = store->next[block];
    }
}

uint32_t token_tape_common(const struct token_tape_store *store, const struct token_tape *a,
                           const struct token_tape *b) {
    uint32_t limit = min(a->count, b->count), common = 0;
    uint32_t block_a = a->first_block, block_b = b->first_block;
    while (common < limit) {
        const uint32_t *left = store->token + (size_t)block_a * BLOCK_TOK;
        const uint32_t *right = store->token + (size_t)block_b * BLOCK_TOK;
        uint32_t count = min(limit - common, BLOCK_TOK), same = 0;
        while (same < count && left[same] == right[same])
            same++;
        common += same;
        if (same < BLOCK_TOK) break;
        block_a = store->next[block_a];
        block_b = store->next[block_b];
    }
    return common;
}

void token_tape_clear(struct token_tape_store *store, struct token_tape *tape) {
    if (tape->first_block != NO_BLOCK) {
        store->next[tape->last_block] = store->first_free;
        store->first_free = tape->first_block;
        store->free_count += token_tape_blocks(tape->count);
    }
    *tape = TOKEN_TAPE_EMPTY;
}
