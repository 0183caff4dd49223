/* Candidates from tokens that were there before: what stood behind the same last few tokens, in the
 * request itself or in what others of its tenant were given. No model; a look-up is microseconds.
 *
 *   history   ... the cat sat on the mat . the cat sat        what ends like the end of the request
 *                         ▲── found ──┘         └── the end    goes on here: "on the mat"
 *
 * A history is a ring: what is oldest is written over, so memory is bounded and eviction is the
 * writing itself. Each place is linked to the one before it that ended with the same KEY_TOK tokens
 * (as LZ77 compressors find matches: Deutsch, RFC 1951, section 4). The latest OCCURRENCES_MAX such
 * places are compared backwards with the end, and what follows them is counted: a trie of
 * continuations, in which a token's probability is how many of its parent's occurrences go on with
 * it (Oliaro et al., "SuffixDecoding", NeurIPS 2025, section 3). Long matches are worth more and
 * are fewer: for each length the tree is built from those that match so far, and the one with most
 * expected tokens is taken, the longer of equals.
 *
 * Different tenants may share a history and never see each other's tokens: a mark tells them apart.
 */
#ifndef ESPALIER_DRAFT_SOURCE_SUFFIX_H
#define ESPALIER_DRAFT_SOURCE_SUFFIX_H

#include <stddef.h>

#include "base/arena.h"
#include "draft_calibration.h"

#define DRAFT_SUFFIX_MATCH_MAX 32u /* tokens compared; a longer match is no better */

struct draft_suffix_place {
    uint32_t token;
    uint32_t back; /* places to the one before with the same key; 0: none */
    uint32_t mark;
};

struct draft_suffix {
    struct draft_suffix_place *place; /* [capacity], a ring */
    uint32_t *head;                   /* [capacity]: the latest place of each key, by hash */
    uint32_t capacity;                /* a power of two */
    uint64_t written;                 /* places so far; the ring holds the last `capacity` */
    uint64_t begin;                   /* of what may be found */
};

/* capacity: tokens kept, a power of two. */
size_t draft_suffix_memory(uint32_t capacity);
void draft_suffix_init(struct draft_suffix *suffix, uint32_t capacity, struct arena *memory);

/* Forget everything. O(1). */
void draft_suffix_clear(struct draft_suffix *suffix);

/* Tokens that follow those appended last. */
void draft_suffix_append(struct draft_suffix *suffix, uint32_t mark, const uint32_t *token,
                         uint32_t count);

/* What comes next does not follow them. */
void draft_suffix_separate(struct draft_suffix *suffix);

/* The last tokens appended, oldest first: at most DRAFT_SUFFIX_MATCH_MAX. How many. */
uint32_t draft_suffix_end(const struct draft_suffix *suffix, uint32_t *token_out);

/* The best tree behind `end`, the last tokens of a request, oldest first: at most
 * DRAFT_SUFFIX_MATCH_MAX count. In a history that ends with the request's own tokens, their own end
 * is no occurrence, for nothing follows it. */
void draft_suffix_guess(const struct draft_suffix *suffix, enum draft_source source, uint32_t mark,
                        const uint32_t *end, uint32_t end_count,
                        const struct draft_calibration *calibration,
                        const struct draft_bounds *bounds, struct draft_tree *out);

#endif
