#include "radix.h"

#include <string.h>

#include "base/check.h"
#include "base/hash.h"

/* Children looked at for one that shares the beginning of a page. */
#define PARTIAL_LOOK_MAX 8u

/* Computing a token costs its own work and a look at every token before it; after so many tokens
 * the looks cost as much as the work. */
#define COST_DOUBLES_TOK 4096u

static uint32_t buckets_for(uint32_t page_cap) {
    uint32_t count = 64;
    while (count < page_cap)
        count *= 2;
    return count;
}

size_t radix_memory(uint32_t page_cap, uint32_t page_tok) {
    return ((size_t)page_cap + 1) * sizeof(struct radix_node) +
           buckets_for(page_cap) * sizeof(uint32_t) +
           (size_t)page_cap *
               (4 * sizeof(uint32_t) + sizeof(uint64_t) + page_tok * sizeof(uint32_t)) +
           (size_t)8 * ARENA_ALIGN;
}

static void clear(struct radix *radix) {
    for (uint32_t i = 0; i <= radix->bucket_mask; i++)
        radix->bucket[i] = RADIX_NONE;
    radix->node[RADIX_ROOT] = (struct radix_node){
        .parent = RADIX_NONE,
        .first_child = RADIX_NONE,
        .prev = RADIX_NONE,
        .next = RADIX_NONE,
        .first_page = RADIX_NONE,
        .last_page = RADIX_NONE,
        .heap_at = RADIX_NONE,
        .bucket_next = RADIX_NONE,
    };
    radix->node_count = 1;
    radix->first_free_node = RADIX_NONE;
}

void radix_init(struct radix *radix, struct token_pool *pool, uint32_t page_tok,
                struct arena *memory) {
    uint32_t page_cap = pool->page_cap;
    *radix = (struct radix){
        .pool = pool,
        .node = arena_alloc(memory, ((size_t)page_cap + 1) * sizeof *radix->node),
        .bucket = arena_alloc(memory, buckets_for(page_cap) * sizeof *radix->bucket),
        .heap = arena_alloc(memory, page_cap * sizeof *radix->heap),
        .next_page = arena_alloc(memory, page_cap * sizeof *radix->next_page),
        .prev_page = arena_alloc(memory, page_cap * sizeof *radix->prev_page),
        .page_generation = arena_alloc(memory, page_cap * sizeof *radix->page_generation),
        .page_hash = arena_alloc(memory, page_cap * sizeof *radix->page_hash),
        .token = arena_alloc(memory, (size_t)page_cap * page_tok * sizeof *radix->token),
        .page_cap = page_cap,
        .page_tok = page_tok,
        .bucket_mask = buckets_for(page_cap) - 1,
    };
    CHECK(radix->node && radix->bucket && radix->heap && radix->next_page && radix->prev_page);
    CHECK(radix->page_generation && radix->page_hash && radix->token);
    clear(radix);
}

/* ============================== candidates for eviction ======================================= */

/* What is lost with the node's last page: what it costs, above the floor when it was last used. */
static uint64_t value_of(const struct radix *radix, uint32_t idx) {
    const struct radix_node *node = &radix->node[idx];
    uint64_t tok_before = (uint64_t)(node->page_depth + node->page_count - 1) * radix->page_tok;
    return node->base_cost + 1 + tok_before / COST_DOUBLES_TOK;
}

static bool goes_before(const struct radix *radix, uint32_t a, uint32_t b) {
    uint64_t value_a = value_of(radix, a), value_b = value_of(radix, b);
    if (value_a != value_b) return value_a < value_b;
    return radix->node[a].used < radix->node[b].used;
}

static void heap_put(struct radix *radix, uint32_t at, uint32_t idx) {
    radix->heap[at] = idx;
    radix->node[idx].heap_at = at;
}

static void heap_rise(struct radix *radix, uint32_t at) {
    uint32_t idx = radix->heap[at];
    while (at > 0 && goes_before(radix, idx, radix->heap[(at - 1) / 2])) {
        heap_put(radix, at, radix->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_put(radix, at, idx);
}

static void heap_sink(struct radix *radix, uint32_t at) {
    uint32_t idx = radix->heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= radix->heap_count) break;
        if (child + 1 < radix->heap_count &&
            goes_before(radix, radix->heap[child + 1], radix->heap[child]))
            child++;
        if (!goes_before(radix, radix->heap[child], idx)) break;
        heap_put(radix, at, radix->heap[child]);
        at = child;
    }
    heap_put(radix, at, idx);
}

static void heap_remove(struct radix *radix, uint32_t idx) {
    uint32_t at = radix->node[idx].heap_at;
    radix->node[idx].heap_at = RADIX_NONE;
    uint32_t last = radix->heap[--radix->heap_count];
    if (last == idx) return;
    heap_put(radix, at, last);
    heap_rise(radix, at);
    heap_sink(radix, radix->node[last].heap_at);
}

/* A node is a candidate while nothing is below it and nobody pins it. */
static void update_candidate(struct radix *radix, uint32_t idx) {
    struct radix_node *node = &radix->node[idx];
    bool is_candidate = idx != RADIX_ROOT && node->first_child == RADIX_NONE && node->pins == 0;
    if (is_candidate && node->heap_at == RADIX_NONE) {
        radix->heap[radix->heap_count] = idx;
        heap_rise(radix, radix->heap_count++);
    } else if (!is_candidate && node->heap_at != RADIX_NONE) {
        heap_remove(radix, idx);
    }
}

/* ============================== nodes ========================================================= */

static const uint32_t *tokens_of(const struct radix *radix, uint32_t page) {
    return radix->token + (size_t)page * radix->page_tok;
}

static bool same_page(const struct radix *radix, uint32_t page, const uint32_t *token) {
    return memcmp(tokens_of(radix, page), token, radix->page_tok * sizeof *token) == 0;
}

uint64_t radix_hash(const struct radix *radix, uint32_t node) {
    return node == RADIX_ROOT ? HASH_CHAIN_EMPTY : radix->page_hash[radix->node[node].last_page];
}

static uint64_t chain(uint64_t prefix, const uint32_t *token, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        prefix = hash_chain(prefix, token[i]);
    return prefix;
}

static void index_add(struct radix *radix, uint32_t idx) {
    uint32_t *bucket =
        &radix->bucket[radix->page_hash[radix->node[idx].first_page] & radix->bucket_mask];
    radix->node[idx].bucket_next = *bucket;
    *bucket = idx;
}

static void index_remove(struct radix *radix, uint32_t idx) {
    uint32_t *at =
        &radix->bucket[radix->page_hash[radix->node[idx].first_page] & radix->bucket_mask];
    while (*at != idx)
        at = &radix->node[*at].bucket_next;
    *at = radix->node[idx].bucket_next;
}

static bool is_visible(const struct radix *radix, uint32_t idx, uint64_t salt) {
    return !radix->node[idx].withdrawn && radix->node[idx].salt == salt;
}

/* The visible child whose edge begins with token[0, page_tok); hash: of the prefix with them. */
static uint32_t find_child(const struct radix *radix, uint32_t parent, uint64_t salt,
                           const uint32_t *token, uint64_t hash) {
    uint32_t idx = radix->bucket[hash & radix->bucket_mask];
    for (; idx != RADIX_NONE; idx = radix->node[idx].bucket_next) {
        const struct radix_node *node = &radix->node[idx];
        if (node->parent == parent && radix->page_hash[node->first_page] == hash &&
            is_visible(radix, idx, salt) && same_page(radix, node->first_page, token))
            break;
    }
    return idx;
}

static void link_child(struct radix *radix, uint32_t parent, uint32_t idx) {
    struct radix_node *node = &radix->node[idx];
    uint32_t first = radix->node[parent].first_child;
    node->parent = parent;
    node->prev = RADIX_NONE;
    node->next = first;
    if (first != RADIX_NONE) radix->node[first].prev = idx;
    radix->node[parent].first_child = idx;
}

static void unlink_child(struct radix *radix, uint32_t idx) {
    const struct radix_node *node = &radix->node[idx];
    if (node->prev == RADIX_NONE)
        radix->node[node->parent].first_child = node->next;
    else
        radix->node[node->prev].next = node->next;
    if (node->next != RADIX_NONE) radix->node[node->next].prev = node->prev;
}

/* A node without an edge yet. */
static uint32_t add_node(struct radix *radix, uint32_t parent, uint64_t salt) {
    uint32_t idx = radix->first_free_node;
    const struct radix_node *above = &radix->node[parent];
    if (idx == RADIX_NONE)
        idx = radix->node_count++;
    else
        radix->first_free_node = radix->node[idx].next;
    CHECK(idx <= radix->page_cap);
    radix->node[idx] = (struct radix_node){
        .first_child = RADIX_NONE,
        .first_page = RADIX_NONE,
        .last_page = RADIX_NONE,
        .page_depth = above->page_depth + above->page_count,
        .heap_at = RADIX_NONE,
        .salt = salt,
        .withdrawn = above->withdrawn,
    };
    link_child(radix, parent, idx);
    return idx;
}

/* Remove a leaf whose edge is gone; its parent may become a candidate. */
static void remove_node(struct radix *radix, uint32_t idx) {
    struct radix_node *node = &radix->node[idx];
    uint32_t parent = node->parent;
    CHECK(node->pins == 0 && node->first_child == RADIX_NONE && node->heap_at == RADIX_NONE);
    unlink_child(radix, idx);
    node->next = radix->first_free_node;
    radix->first_free_node = idx;
    update_candidate(radix, parent);
}

static void append_page(struct radix *radix, uint32_t idx, struct page_ref ref,
                        const uint32_t *token) {
    struct radix_node *node = &radix->node[idx];
    bool is_first = node->page_count == 0;
    uint64_t before = is_first ? radix_hash(radix, node->parent) : radix_hash(radix, idx);
    radix->next_page[ref.page] = RADIX_NONE;
    radix->prev_page[ref.page] = node->last_page;
    radix->page_generation[ref.page] = ref.generation;
    radix->page_hash[ref.page] = chain(before, token, radix->page_tok);
    memcpy(radix->token + (size_t)ref.page * radix->page_tok, token,
           radix->page_tok * sizeof *token);
    if (is_first)
        node->first_page = ref.page;
    else
        radix->next_page[node->last_page] = ref.page;
    node->last_page = ref.page;
    node->page_count++;
    if (is_first) index_add(radix, idx);
    token_pool_keep(radix->pool, ref);
    radix->kept_count++;
}

static struct page_ref ref_of(const struct radix *radix, uint32_t page) {
    return (struct page_ref){page, radix->page_generation[page]};
}

/* Drop the last page of a leaf's edge; true: it was the last one, and the node is gone. */
static bool drop_tail(struct radix *radix, uint32_t idx) {
    struct radix_node *node = &radix->node[idx];
    uint32_t page = node->last_page;
    if (node->page_count == 1) index_remove(radix, idx);
    node->last_page = radix->prev_page[page];
    if (node->last_page != RADIX_NONE) radix->next_page[node->last_page] = RADIX_NONE;
    node->page_count--;
    token_pool_drop(radix->pool, ref_of(radix, page));
    radix->kept_count--;
    if (node->page_count > 0) return false;
    if (node->heap_at != RADIX_NONE) heap_remove(radix, idx);
    remove_node(radix, idx);
    return true;
}

/* Cut the node's edge after so many pages; returns the upper part, a new node. */
static uint32_t split(struct radix *radix, uint32_t lower, uint32_t page_count) {
    CHECK(page_count > 0 && page_count < radix->node[lower].page_count);
    uint32_t parent = radix->node[lower].parent;
    index_remove(radix, lower);
    unlink_child(radix, lower);
    uint32_t upper = add_node(radix, parent, radix->node[lower].salt);
    struct radix_node *above = &radix->node[upper], *below = &radix->node[lower];
    above->withdrawn = below->withdrawn;
    above->used = below->used;
    above->base_cost = below->base_cost;
    above->first_page = below->first_page;
    above->page_count = page_count;
    uint32_t page = below->first_page;
    for (uint32_t i = 1; i < page_count; i++)
        page = radix->next_page[page];
    above->last_page = page;
    below->first_page = radix->next_page[page];
    below->page_count -= page_count;
    below->page_depth += page_count;
    radix->next_page[page] = RADIX_NONE;
    radix->prev_page[below->first_page] = RADIX_NONE;
    link_child(radix, upper, lower);
    index_add(radix, upper);
    index_add(radix, lower);
    return upper;
}

/* ============================== finding ======================================================= */

static uint32_t common_tokens(const uint32_t *a, const uint32_t *b, uint32_t limit) {
    uint32_t count = 0;
    while (count < limit && a[count] == b[count])
        count++;
    return count;
}

static void try_partial(const struct radix *radix, uint32_t idx, uint32_t page,
                        const uint32_t *token, uint32_t tok_count, struct radix_match *match) {
    uint32_t limit = tok_count < radix->page_tok ? tok_count : radix->page_tok;
    uint32_t common = common_tokens(tokens_of(radix, page), token, limit);
    if (common <= match->partial_tok) return;
    match->partial_tok = common;
    match->partial_node = idx;
    match->partial = ref_of(radix, page);
}

/* A page of the tree that begins as the rest does: the next of the edge, or of some child. */
static void find_partial(const struct radix *radix, uint64_t salt, const uint32_t *token,
                         uint32_t tok_count, uint32_t edge_page, struct radix_match *match) {
    if (edge_page != RADIX_NONE) {
        try_partial(radix, match->node, edge_page, token, tok_count, match);
        return;
    }
    uint32_t idx = radix->node[match->node].first_child;
    for (uint32_t i = 0; i < PARTIAL_LOOK_MAX && idx != RADIX_NONE; i++) {
        if (is_visible(radix, idx, salt))
            try_partial(radix, idx, radix->node[idx].first_page, token, tok_count, match);
        idx = radix->node[idx].next;
    }
}

struct radix_match radix_match(const struct radix *radix, uint64_t salt, const uint32_t *token,
                               uint32_t tok_count, struct page_ref *ref_out) {
    struct radix_match match = {.node = RADIX_ROOT, .prefix_hash = HASH_CHAIN_EMPTY};
    uint32_t page_tok = radix->page_tok, page = RADIX_NONE; /* the next one on the edge */
    while (tok_count >= page_tok) {
        if (page == RADIX_NONE) {
            uint64_t hash = chain(match.prefix_hash, token, page_tok);
            uint32_t child = find_child(radix, match.node, salt, token, hash);
            if (child == RADIX_NONE) break;
            match.node = child;
            match.edge_pages = 0;
            page = radix->node[child].first_page;
        } else if (!same_page(radix, page, token)) {
            break;
        }
        if (ref_out) ref_out[match.page_count] = ref_of(radix, page);
        match.page_count++;
        match.edge_pages++;
        match.prefix_hash = radix->page_hash[page];
        token += page_tok;
        tok_count -= page_tok;
        page = radix->next_page[page];
    }
    find_partial(radix, salt, token, tok_count, page, &match);
    return match;
}

static void touch(struct radix *radix, uint32_t idx) {
    radix->clock++;
    for (; idx != RADIX_ROOT; idx = radix->node[idx].parent) {
        CHECK(radix->node[idx].heap_at == RADIX_NONE); /* pinned, or above what is */
        radix->node[idx].used = radix->clock;
        radix->node[idx].base_cost = radix->cost_floor;
    }
}

uint32_t radix_pin(struct radix *radix, const struct radix_match *match) {
    uint32_t idx = match->node;
    if (idx != RADIX_ROOT && match->edge_pages < radix->node[idx].page_count)
        idx = split(radix, idx, match->edge_pages);
    radix->node[idx].pins++;
    update_candidate(radix, idx);
    touch(radix, idx);
    return idx;
}

/* The page is the first of its edge now, for radix_pin has cut what lies before it; what lies after
 * it stays free to go. */
uint32_t radix_pin_partial(struct radix *radix, const struct radix_match *match) {
    uint32_t idx = match->partial_node;
    CHECK(radix->node[idx].first_page == match->partial.page);
    if (radix->node[idx].page_count > 1) idx = split(radix, idx, 1);
    radix->node[idx].pins++;
    update_candidate(radix, idx);
    return idx;
}

/* Drop withdrawn nodes from here upwards as far as nothing holds them. */
static uint32_t drop_withdrawn(struct radix *radix, uint32_t idx) {
    uint32_t dropped = 0;
    while (idx != RADIX_ROOT && radix->node[idx].withdrawn && radix->node[idx].pins == 0 &&
           radix->node[idx].first_child == RADIX_NONE) {
        uint32_t parent = radix->node[idx].parent;
        do
            dropped++;
        while (!drop_tail(radix, idx));
        idx = parent;
    }
    return dropped;
}

void radix_unpin(struct radix *radix, uint32_t node) {
    CHECK(radix->node[node].pins > 0);
    radix->node[node].pins--;
    update_candidate(radix, node);
    drop_withdrawn(radix, node);
}

/* ============================== putting in, taking out ======================================== */

/* Follow the child's edge as far as it is token[]; ref[] becomes its pages. Returns how far. */
static uint32_t follow_edge(const struct radix *radix, uint32_t idx, const uint32_t *token,
                            uint32_t page_count, struct page_ref *ref) {
    uint32_t page = radix->node[idx].first_page, count = 0;
    while (count < page_count && page != RADIX_NONE &&
           same_page(radix, page, token + (size_t)count * radix->page_tok)) {
        ref[count++] = ref_of(radix, page);
        page = radix->next_page[page];
    }
    return count;
}

uint32_t radix_extend(struct radix *radix, uint32_t node, uint64_t salt, const uint32_t *token,
                      uint32_t page_count, struct page_ref *ref, bool can_adopt) {
    CHECK(radix->node[node].pins > 0);
    if (radix->node[node].withdrawn) return RADIX_NONE;
    uint32_t at = node, done = 0;
    while (done < page_count) {
        const uint32_t *rest = token + (size_t)done * radix->page_tok;
        uint64_t hash = chain(radix_hash(radix, at), rest, radix->page_tok);
        uint32_t child = find_child(radix, at, salt, rest, hash);
        if (child == RADIX_NONE) break;
        if (!can_adopt) return RADIX_NONE; /* the first page exists; no later one could alone */
        uint32_t followed = follow_edge(radix, child, rest, page_count - done, ref + done);
        done += followed;
        at = followed < radix->node[child].page_count ? split(radix, child, followed) : child;
    }
    if (done < page_count) {
        /* An edge that only this sequence holds grows; any other gets a branch. */
        const struct radix_node *end = &radix->node[at];
        bool grows = at == node && at != RADIX_ROOT && end->first_child == RADIX_NONE &&
                     end->pins == 1;
        if (!grows) at = add_node(radix, at, salt);
        for (; done < page_count; done++)
            append_page(radix, at, ref[done], token + (size_t)done * radix->page_tok);
    }
    radix->node[at].pins++;
    update_candidate(radix, at);
    radix->node[node].pins--;
    update_candidate(radix, node);
    if (radix->node[at].parent != RADIX_NONE) update_candidate(radix, radix->node[at].parent);
    touch(radix, at);
    return at;
}

uint32_t radix_evict(struct radix *radix, uint32_t page_count) {
    uint32_t dropped = 0;
    while (dropped < page_count && radix->heap_count > 0) {
        uint32_t idx = radix->heap[0];
        uint64_t value = value_of(radix, idx);
        if (value > radix->cost_floor) radix->cost_floor = value;
        drop_tail(radix, idx); /* a shorter edge is worth less, so it stays at the top */
        dropped++;
    }
    radix->evictions += dropped;
    return dropped;
}

/* The next node of the subtree of `top` after idx, parents first; RADIX_NONE at the end. */
static uint32_t next_below(const struct radix *radix, uint32_t top, uint32_t idx) {
    if (radix->node[idx].first_child != RADIX_NONE) return radix->node[idx].first_child;
    while (idx != top && radix->node[idx].next == RADIX_NONE)
        idx = radix->node[idx].parent;
    return idx == top ? RADIX_NONE : radix->node[idx].next;
}

uint32_t radix_pages(const struct radix *radix, uint32_t *page_out, uint32_t page_max) {
    uint32_t count = 0;
    for (uint32_t idx = next_below(radix, RADIX_ROOT, RADIX_ROOT); idx != RADIX_NONE;
         idx = next_below(radix, RADIX_ROOT, idx)) {
        uint32_t page = radix->node[idx].first_page;
        for (; page != RADIX_NONE && count < page_max; page = radix->next_page[page])
            page_out[count++] = page;
    }
    return count;
}

/* Another page takes the place of one on the node's edge. */
static void replace_page(struct radix *radix, uint32_t idx, uint32_t page, struct page_ref target) {
    struct radix_node *node = &radix->node[idx];
    uint32_t prev = radix->prev_page[page], next = radix->next_page[page];
    radix->prev_page[target.page] = prev;
    radix->next_page[target.page] = next;
    radix->page_generation[target.page] = target.generation;
    radix->page_hash[target.page] = radix->page_hash[page];
    memcpy(radix->token + (size_t)target.page * radix->page_tok, tokens_of(radix, page),
           radix->page_tok * sizeof *radix->token);
    if (prev == RADIX_NONE)
        node->first_page = target.page;
    else
        radix->next_page[prev] = target.page;
    if (next == RADIX_NONE)
        node->last_page = target.page;
    else
        radix->prev_page[next] = target.page;
}

uint32_t radix_move_below(struct radix *radix, uint32_t limit, struct page_move *move_out) {
    uint32_t count = 0;
    for (uint32_t idx = next_below(radix, RADIX_ROOT, RADIX_ROOT); idx != RADIX_NONE;
         idx = next_below(radix, RADIX_ROOT, idx)) {
        uint32_t page = radix->node[idx].first_page;
        for (; page != RADIX_NONE; page = radix->next_page[page]) {
            if (page < limit) continue;
            struct page_ref target = token_pool_move(radix->pool, page);
            CHECK(target.page < limit);
            replace_page(radix, idx, page, target);
            move_out[count++] = (struct page_move){.source = page, .target = target.page};
            page = target.page;
        }
    }
    return count;
}

/* The first leaf at or below idx. */
static uint32_t first_leaf(const struct radix *radix, uint32_t idx) {
    while (radix->node[idx].first_child != RADIX_NONE)
        idx = radix->node[idx].first_child;
    return idx;
}

/* The leaves of the subtree one after the other, each with what it leaves bare above it. The next
 * one is found before this one goes; it is no ancestor of it. */
static uint32_t withdraw_below(struct radix *radix, uint32_t top) {
    for (uint32_t idx = top; idx != RADIX_NONE; idx = next_below(radix, top, idx))
        radix->node[idx].withdrawn = idx != RADIX_ROOT;
    uint32_t dropped = 0, idx = first_leaf(radix, top);
    while (idx != RADIX_NONE && idx != RADIX_ROOT) {
        uint32_t up = idx;
        while (up != top && radix->node[up].next == RADIX_NONE)
            up = radix->node[up].parent;
        uint32_t next = up == top ? RADIX_NONE : first_leaf(radix, radix->node[up].next);
        dropped += drop_withdrawn(radix, idx);
        idx = next;
    }
    return dropped;
}

uint32_t radix_withdraw(struct radix *radix, uint64_t salt, const uint32_t *token,
                        uint32_t tok_count) {
    uint32_t wanted = tok_count / radix->page_tok;
    struct radix_match match = radix_match(radix, salt, token, wanted * radix->page_tok, NULL);
    if (wanted == 0 || match.page_count < wanted) return 0;
    /* Everything from the last page of the prefix on. */
    uint32_t above = match.edge_pages - 1;
    if (above > 0) split(radix, match.node, above);
    return withdraw_below(radix, match.node);
}

uint32_t radix_withdraw_all(struct radix *radix) {
    return withdraw_below(radix, RADIX_ROOT);
}

/* ============================== check ========================================================= */

static void check_edge(const struct radix *radix, uint32_t idx) {
    const struct radix_node *node = &radix->node[idx];
    const struct radix_node *parent = &radix->node[node->parent];
    CHECK(node->page_count > 0 && node->page_depth == parent->page_depth + parent->page_count);
    CHECK(node->parent == RADIX_ROOT || node->salt == parent->salt);
    CHECK(node->withdrawn || !parent->withdrawn);
    bool is_candidate = node->first_child == RADIX_NONE && node->pins == 0;
    CHECK(is_candidate == (node->heap_at != RADIX_NONE));
    uint64_t hash = radix_hash(radix, node->parent);
    uint32_t prev = RADIX_NONE, count = 0;
    for (uint32_t page = node->first_page; page != RADIX_NONE; page = radix->next_page[page]) {
        CHECK(page < radix->pool->page_count && radix->prev_page[page] == prev);
        hash = chain(hash, tokens_of(radix, page), radix->page_tok);
        CHECK(radix->page_hash[page] == hash && ++count <= node->page_count);
        CHECK(radix->pool->page[page].kept);
        uint32_t users = token_pool_users(radix->pool, ref_of(radix, page));
        CHECK(!is_candidate || users == 0);
        prev = page;
    }
    CHECK(count == node->page_count && prev == node->last_page);
    uint32_t at = radix->bucket[radix->page_hash[node->first_page] & radix->bucket_mask];
    while (at != idx && at != RADIX_NONE)
        at = radix->node[at].bucket_next;
    CHECK(at == idx);
}

void radix_check(const struct radix *radix) {
    uint64_t kept = 0;
    uint32_t nodes = 0;
    for (uint32_t idx = next_below(radix, RADIX_ROOT, RADIX_ROOT); idx != RADIX_NONE;
         idx = next_below(radix, RADIX_ROOT, idx)) {
        CHECK(++nodes < radix->node_count);
        check_edge(radix, idx);
        kept += radix->node[idx].page_count;
        for (uint32_t at = radix->node[idx].heap_at; at != RADIX_NONE && at > 0; at = RADIX_NONE)
            CHECK(!goes_before(radix, idx, radix->heap[(at - 1) / 2]));
    }
    CHECK(kept == radix->kept_count);
    for (uint32_t i = 0; i < radix->heap_count; i++)
        CHECK(radix->node[radix->heap[i]].heap_at == i);
}
