/* The prefix cache: which pages hold the KV of which prefix, as a tree of token runs.
 *
 * An edge is a run of whole pages; a node is the edge that leads to it. Page size 2, and three
 * prefixes "the cat sat.", "the cat ran!", "the dog":
 *
 *   insert t h e _ c a t _ s a t .        insert t h e _ c a t _ r a n !     insert t h e _ d o g _
 *
 *   root                                  root                               root
 *    └─[th e_ ca t_ sa t.]                 └─[th e_ ca t_]  ◀─ split          └─[th e_]  ◀─ split
 *                                              ├─[sa t.]                          ├─[ca t_]
 *                                              └─[ra n!]                          │   ├─[sa t.]
 *                                                                                 │   └─[ra n!]
 *                                                                                 └─[do g_]
 *
 *   - A split makes the upper part the new node; the lower one keeps its name, its children and
 *     its pins, so whoever holds a node holds it through any split.
 *   - A sequence in progress pins the node at which its cached prefix ends. What lies between the
 *     root and a pinned node has children and is no leaf: pinning a node pins its path.
 *   - Only committed KV is put in (the caller's duty), so what is found is true on every rank.
 *   - Pages leave from the tails of unpinned leaves, the least valuable first: value is the time of
 *     the last use plus what computing the page again would cost, which grows with its depth
 *     (GreedyDual; Young, "The k-server dual and loose competitiveness for paging", 1994). Where
 *     costs are equal it is least recently used.
 *   - A salt separates tenants: prefixes of different salts have no page in common.
 *   - A prefix can be withdrawn: its nodes become invisible at once and go when they are unpinned.
 *
 * The tree knows the tokens of its pages, so a hit is compared token by token: a hash only finds
 * the place to compare. No memory after init; every node has a page, so nodes cannot run out.
 */
#ifndef ESPALIER_RADIX_H
#define ESPALIER_RADIX_H

#include "message.h"
#include "token_pool.h"

#define RADIX_ROOT 0u
#define RADIX_NONE UINT32_MAX

struct radix_node {
    uint32_t parent, first_child, prev, next; /* RADIX_NONE at the ends; next also: free nodes */
    uint32_t first_page, last_page;           /* of the edge, linked by radix.next_page */
    uint32_t page_count;
    uint32_t page_depth; /* pages between the root and the edge */
    uint32_t pins;
    uint32_t heap_at;     /* RADIX_NONE: not a candidate for eviction */
    uint32_t bucket_next; /* in the index of first pages */
    bool withdrawn;
    uint64_t salt;
    uint64_t used;      /* radix.clock at the last use */
    uint64_t base_cost; /* radix.cost_floor then */
};

struct radix {
    struct token_pool *pool;
    struct radix_node *node;         /* [page_cap + 1]; of them [0, node_count) have been in use */
    uint32_t *bucket;                /* [bucket_count]: nodes by the hash of their first page */
    uint32_t *heap;                  /* [page_cap]: unpinned leaves, the least valuable first */
    uint32_t *next_page, *prev_page; /* [page_cap]: along an edge */
    uint32_t *page_generation;       /* [page_cap]: with the page, its name */
    uint64_t *page_hash;             /* [page_cap]: of the prefix up to the page's end */
    uint32_t *token;                 /* [page_cap, page_tok] */
    uint32_t page_cap, page_tok, bucket_mask;
    uint32_t node_count, first_free_node, heap_count;
    uint64_t clock;      /* uses so far */
    uint64_t cost_floor; /* the value of the last page evicted */
    uint64_t kept_count; /* pages in the tree */
    uint64_t evictions;  /* pages, of all times */
};

size_t radix_memory(uint32_t page_cap, uint32_t page_tok); /* for a pool of so many at most */
void radix_init(struct radix *radix, struct token_pool *pool, uint32_t page_tok,
                struct arena *memory);

/* What the tree has of a prefix. */
struct radix_match {
    uint32_t node, edge_pages; /* where it ends: so many pages into the node's edge */
    uint32_t page_count;       /* whole pages found */
    uint64_t prefix_hash;      /* hash_chain over their tokens */
    uint32_t partial_tok;      /* further tokens that begin some page; 0: none */
    uint32_t partial_node;     /* with that page on its edge, and */
    struct page_ref partial;   /* the page */
};

/* Find the longest cached prefix of token[0, tok_count); ref_out (may be NULL) receives its pages.
 * Changes nothing. O(tok_count). */
struct radix_match radix_match(const struct radix *radix, uint64_t salt, const uint32_t *token,
                               uint32_t tok_count, struct page_ref *ref_out);

/* Pin the place of a fresh match, and count it as a use; returns the node to unpin. */
uint32_t radix_pin(struct radix *radix, const struct radix_match *match);

/* Pin the page that the match has in part, once radix_pin has been called. Not a use. */
uint32_t radix_pin_partial(struct radix *radix, const struct radix_match *match);
void radix_unpin(struct radix *radix, uint32_t node);

/* hash_chain over the tokens from the root to the node's end. */
uint64_t radix_hash(const struct radix *radix, uint32_t node);

/* Put page_count pages with committed KV of token[] below the pinned node; the pin moves to where
 * they end, which is returned. Where the tree has a page already, ref[i] becomes that page, and the
 * caller's own is not put in; if it cannot adopt pages now, nothing is changed: RADIX_NONE. Nor is
 * it below a withdrawn node. O(tokens). */
uint32_t radix_extend(struct radix *radix, uint32_t node, uint64_t salt, const uint32_t *token,
                      uint32_t page_count, struct page_ref *ref, bool can_adopt);

/* Drop at most so many pages; returns how many were. O(log nodes) a page. */
uint32_t radix_evict(struct radix *radix, uint32_t page_count);

/* Withdraw all that begins with token[0, tok_count), rounded down to pages, of a salt. Returns the
 * pages dropped at once; pinned ones follow. */
uint32_t radix_withdraw(struct radix *radix, uint64_t salt, const uint32_t *token,
                        uint32_t tok_count);

/* Withdraw everything. */
uint32_t radix_withdraw_all(struct radix *radix);

/* The pages of the tree, at most page_max, parents before children; returns how many. */
uint32_t radix_pages(const struct radix *radix, uint32_t *page_out, uint32_t page_max);

/* Move every page of the tree from `limit` on to a free one below it, which there is; edges come
 * out in long runs. Writes what moved to move_out; returns how many. O(pages of the tree). */
uint32_t radix_move_below(struct radix *radix, uint32_t limit, struct page_move *move_out);

/* CHECK the tree, its index, its heap and what the pool says of its pages. O(tokens). */
void radix_check(const struct radix *radix);

#endif
