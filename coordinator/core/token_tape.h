/* Token ids of many requests in one fixed store: each request's are a list of blocks.
 *
 *   tape   block ─▶ block ─▶ block        512 ids a block; the last one is partly filled
 *
 * Prompts differ in length by five orders of magnitude and a queue holds many: a store of blocks is
 * bounded by the sum of what they hold, not by their number times the longest. How many blocks
 * there are, and that they suffice, is request.c's arithmetic.
 */
#ifndef ESPALIER_TOKEN_TAPE_H
#define ESPALIER_TOKEN_TAPE_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"

#define TOKEN_TAPE_BLOCK_TOK 512u
#define TOKEN_TAPE_NO_BLOCK  UINT32_MAX

struct token_tape_store {
    uint32_t *token; /* [block_count, TOKEN_TAPE_BLOCK_TOK] */
    uint32_t *next;  /* [block_count]: the block after it, of a tape or of the free ones */
    uint32_t block_count;
    uint32_t first_free;
    uint32_t free_count;
};

struct token_tape {
    uint32_t first_block, last_block; /* TOKEN_TAPE_NO_BLOCK while empty */
    uint32_t count;                   /* ids */
};

#define TOKEN_TAPE_EMPTY                                                                           \
    ((struct token_tape){.first_block = TOKEN_TAPE_NO_BLOCK, .last_block = TOKEN_TAPE_NO_BLOCK})

/* Blocks that so many ids fill. */
uint32_t token_tape_blocks(uint64_t token_count);

size_t token_tape_memory(uint32_t block_count);
void token_tape_init(struct token_tape_store *store, uint32_t block_count, struct arena *memory);

/* CHECKs that the store has the blocks: callers look at free_count first, or have a promise. */
void token_tape_append(struct token_tape_store *store, struct token_tape *tape,
                       const uint32_t *token, uint32_t count);

/* Write the ids [begin, begin + count) of the tape to token_out. O(begin / block + count). */
void token_tape_read(const struct token_tape_store *store, const struct token_tape *tape,
                     uint32_t begin, uint32_t count, uint32_t *token_out);

/* Append all ids of one tape to another. */
void token_tape_copy(struct token_tape_store *store, const struct token_tape *from,
                     struct token_tape *to);

/* How many ids two tapes have in common at their beginnings. O(that). */
uint32_t token_tape_common(const struct token_tape_store *store, const struct token_tape *a,
                           const struct token_tape *b);

/* Give the blocks back; the tape is empty then. */
void token_tape_clear(struct token_tape_store *store, struct token_tape *tape);

#endif
