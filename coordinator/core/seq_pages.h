/* Which pages each sequence slot has: the pool and the prefix cache brought together.
 *
 *   table of a slot   [ cached: in the tree, shared | forked: shared | own: it alone writes them ]
 *                       0 .. cached_count             .. forked_count  .. page_count
 *
 * A sequence opens with what the cache has of its tokens, grows page by page as it is computed,
 * and publishes each page when its KV is committed. Where somebody else has published the same page
 * meanwhile, the sequence goes on with theirs and its own is free: `moved` then says that the
 * workers' table must be sent anew. The beginning of a page that the cache has only in part is
 * copied: the source is pinned until the step that copies it has its result.
 *
 * A sequence can also begin with what another one has computed of the same tokens (a fork): it
 * opens as any other, and shares or copies what the tree does not have, which may be all of it.
 * Pages that are shared and not in the tree stay out of it: neither sequence publishes from then
 * on.
 *
 * A cached page that nobody uses is room like a free one; it goes when room is needed.
 */
#ifndef ESPALIER_SEQ_PAGES_H
#define ESPALIER_SEQ_PAGES_H

#include "core.h"
#include "radix.h"
#include "token_pool.h"

struct seq_pages_slot {
    uint32_t page_count;
    uint32_t cached_count; /* of them, from the front, in the tree */
    uint32_t forked_count; /* of them, shared with a fork whether they are in the tree or not */
    uint32_t node;         /* where the cached ones end there, pinned; RADIX_NONE: no cache */
    uint64_t salt;
    struct page_ref copy_source; /* pinned, and */
    uint32_t copy_node;          /* so is its node; RADIX_NONE: it has none */
    uint32_t copy_tok;           /* 0: no copy to make */
    uint64_t open_hash;          /* of the prefix in the whole pages it opened with */
    bool open, moved, sealed;    /* sealed: it publishes no more */
};

struct seq_pages {
    struct token_pool pool;
    struct radix radix;
    struct seq_pages_slot *slot; /* [slot_count] */
    struct page_ref *table;      /* [slot_count, pages_each] */
    uint32_t *moved_to;          /* [page_cap]: where a resize has put a page */
    uint32_t slot_count, pages_each, page_tok;
    bool uses_cache;
};

/* What a sequence begins with. */
struct seq_pages_start {
    uint32_t tok_count; /* whole pages and the copied part of one */
    uint64_t prefix_hash;
};

size_t seq_pages_memory(const struct core_options *options);
void seq_pages_init(struct seq_pages *pages, const struct core_options *options,
                    struct arena *memory);

/* Pages that tok_count tokens lie in. */
uint32_t seq_pages_for(const struct seq_pages *pages, uint32_t tok_count);

/* Pages that can be had: free ones, and cached ones that nobody uses. */
uint32_t seq_pages_room(const struct seq_pages *pages);

/* What opening with these tokens would find: whole pages, and how many of them are in use anyway
 * and so cost no room. */
struct seq_pages_look {
    uint32_t tok_count, page_count, in_use;
};
struct seq_pages_look seq_pages_look(struct seq_pages *pages, uint32_t slot, uint64_t salt,
                                     const uint32_t *token, uint32_t tok_count);

/* Give a closed slot what the cache has of token[0, tok_count), the last token excepted: it must be
 * computed, for the next one is drawn from it. */
struct seq_pages_start seq_pages_open(struct seq_pages *pages, uint32_t slot, uint64_t salt,
                                      const uint32_t *token, uint32_t tok_count);

/* Likewise, where the slot `of` holds these tokens committed, all but the last one at least: what
 * the cache lacks is taken from there, the whole pages shared and the page begun copied. */
struct seq_pages_start seq_pages_fork(struct seq_pages *pages, uint32_t slot, uint32_t of,
                                      const uint32_t *token, uint32_t tok_count);

/* Have pages for so many tokens. False, and nothing changed: there is no room. */
bool seq_pages_grow(struct seq_pages *pages, uint32_t slot, uint32_t tok_count);

/* The KV of the first tok_count tokens is committed: publish whole pages. token: of the tokens from
 * seq_pages_published on. can_adopt: no step in flight names the slot's own pages, so it may go on
 * with those of another; else what exists is published later, or never. */
uint32_t seq_pages_published(const struct seq_pages *pages, uint32_t slot); /* tokens */
void seq_pages_publish(struct seq_pages *pages, uint32_t slot, const uint32_t *token,
                       uint32_t tok_count, bool can_adopt);

/* Do without the slot's copy, which no step has made: what is left to begin with. False: it has
 * none. */
bool seq_pages_forgo_copy(struct seq_pages *pages, uint32_t slot,
                          struct seq_pages_start *start_out);

/* The step that makes the slot's copy has its result. */
void seq_pages_copied(struct seq_pages *pages, uint32_t slot);

/* Pages that only this slot uses: what closing it gives. */
uint32_t seq_pages_own(const struct seq_pages *pages, uint32_t slot);

/* Let go of everything; what is published stays cached until the room is needed. */
void seq_pages_close(struct seq_pages *pages, uint32_t slot);

/* Have page_count pages, no fewer than are in use by slots. A larger pool changes nothing else. For
 * a smaller one the least valuable cached pages go until the rest fits, then what lies beyond the
 * new end moves below it: tables follow, and are `moved`. No step may be in flight. Where more than
 * RESIZE_MOVES_MAX pages would move, the pool gets only as small as so many moves allow. Writes the
 * moves, which workers must make before the next step. */
struct seq_pages_resized {
    uint32_t page_count;
    uint32_t moved, evicted; /* pages */
};
struct seq_pages_resized seq_pages_resize(struct seq_pages *pages, uint32_t page_count,
                                          struct page_move *move_out);

/* Runs of neighbours that the slot's table consists of: extents of a plan that sends it whole. */
uint32_t seq_pages_runs(const struct seq_pages *pages, uint32_t slot);

/* The KV of every page is lost. All slots are closed. */
void seq_pages_forget_all(struct seq_pages *pages);

static inline const struct page_ref *seq_pages_table(const struct seq_pages *pages, uint32_t slot) {
    return pages->table + (size_t)slot * pages->pages_each;
}

/* CHECK pool, tree and tables against each other. O(pages, tokens of the tree). */
void seq_pages_check(const struct seq_pages *pages);

#endif
