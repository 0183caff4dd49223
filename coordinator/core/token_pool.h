/* The pages of the KV cache: which are free, which are in use, which are only remembered.
 *
 *                 take                     keep (its KV is committed and in the prefix cache)
 *        FREE ───────────▶ PINNED, users 1 ──────▶ PINNED, users 1, kept
 *          ▲                 │  ▲ pin: users + 1     │  ▲ pin: users + 1
 *          │   unpin, last   │  │                    ▼  │
 *          ├─────────────────┘  unpin               unpin, last: CACHED (kept, no users)
 *          │                    drop (evicted, or no longer wanted in the cache)  │
 *          └──────────────────────────────────────────────────────────────────────┘
 *
 * The coordinator alone decides about pages; every worker's cache has the same numbering. A user is
 * a sequence whose table lists the page, or a copy in flight that reads it; the prefix cache is not
 * one. Invariant: free + cached + pinned == total.
 *
 * A page is named with the generation of its use, so a name that outlived its page is caught where
 * it is used, not guessed from wrong words later. Lowest free pages are given first, so that page
 * lists come out in long runs. The pool may grow and shrink up to a cap: what lies beyond its size
 * is not there. No memory after init; the pool's own memory is the caller's arena.
 */
#ifndef ESPALIER_TOKEN_POOL_H
#define ESPALIER_TOKEN_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"

/* One use of a page. */
struct page_ref {
    uint32_t page, generation;
};

struct token_pool_page {
    uint32_t generation; /* of the present use, or of the next where the page is free */
    uint32_t users : 31;
    uint32_t kept : 1; /* by the prefix cache */
};

struct token_pool {
    uint64_t *free_bits;          /* [(page_cap + 63) / 64] */
    struct token_pool_page *page; /* [page_cap] */
    uint32_t page_count, page_cap;
    uint32_t free_count, cached_count, pinned_count;
    uint32_t first_word; /* no page below this word is free */
};

size_t token_pool_memory(uint32_t page_cap);
void token_pool_init(struct token_pool *pool, uint32_t page_count, uint32_t page_cap,
                     struct arena *memory);

/* Have page_count pages, at most page_cap. CHECKs that those which go are free. */
void token_pool_resize(struct token_pool *pool, uint32_t page_count);

/* The lowest free page takes over a page's users and its place in the prefix cache; the page is
 * free. CHECKs that there is one. */
struct page_ref token_pool_move(struct token_pool *pool, uint32_t page);

bool token_pool_is_free(const struct token_pool *pool, uint32_t page);

/* Write `count` pages, ascending, each with one user, to ref_out. CHECKs that so many are free:
 * callers look first. */
void token_pool_take(struct token_pool *pool, uint32_t count, struct page_ref *ref_out);

/* One more user, one fewer. A page without users is free, unless it is kept. */
void token_pool_pin(struct token_pool *pool, struct page_ref ref);
void token_pool_unpin(struct token_pool *pool, struct page_ref ref);

/* The prefix cache begins to keep a page in use; it lets go of one, which is free unless used. */
void token_pool_keep(struct token_pool *pool, struct page_ref ref);
void token_pool_drop(struct token_pool *pool, struct page_ref ref);

/* Users of a page; CHECKs that the name is of the present use. */
uint32_t token_pool_users(const struct token_pool *pool, struct page_ref ref);

/* True where free + cached + pinned == total, everything counted anew. O(pages). */
bool token_pool_is_whole(const struct token_pool *pool);

#endif
