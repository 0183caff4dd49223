#include "seq_pages.h"

#include "base/check.h"
#include "base/hash.h"

/* Pages published at a time; more is done in turns. */
#define PUBLISH_MAX 64u

/* Pages of a sequence that may be in the tree: what is found there, or moves, is sent as extents of
 * one plan, and each page may be an extent of its own. */
#define CACHED_MAX (PLAN_EXTENTS_MAX / 2)
_Static_assert(CACHED_MAX + 2 * PLAN_ROWS_MAX <= PLAN_EXTENTS_MAX, "rows bring pages besides");

/* A request holds no more than the context, nor than the pool may ever have. */
static uint32_t pages_each(const struct core_options *options) {
    uint32_t page_count = (options->context_len + options->page_tok - 1) / options->page_tok;
    uint32_t page_cap = core_page_cap(options);
    return page_count < page_cap ? page_count : page_cap;
}

size_t seq_pages_memory(const struct core_options *options) {
    size_t slots = core_running_cap(options);
    uint32_t page_cap = core_page_cap(options);
    return token_pool_memory(page_cap) + radix_memory(page_cap, options->page_tok) +
           slots * (sizeof(struct seq_pages_slot) + pages_each(options) * sizeof(struct page_ref)) +
           page_cap * sizeof(uint32_t) + (size_t)3 * ARENA_ALIGN;
}

void seq_pages_init(struct seq_pages *pages, const struct core_options *options,
                    struct arena *memory) {
    size_t slots = core_running_cap(options), each = pages_each(options);
    *pages = (struct seq_pages){
        .slot = arena_calloc(memory, slots, sizeof *pages->slot),
        .table = arena_alloc(memory, slots * each * sizeof *pages->table),
        .moved_to = arena_alloc(memory, core_page_cap(options) * sizeof *pages->moved_to),
        .slot_count = core_running_cap(options),
        .pages_each = pages_each(options),
        .page_tok = options->page_tok,
        .uses_cache = !options->disable_prefix_cache,
    };
    CHECK(pages->slot && pages->table && pages->moved_to);
    token_pool_init(&pages->pool, options->page_count, core_page_cap(options), memory);
    radix_init(&pages->radix, &pages->pool, options->page_tok, memory);
}

static struct page_ref *table_of(struct seq_pages *pages, uint32_t slot) {
    return pages->table + (size_t)slot * pages->pages_each;
}

uint32_t seq_pages_for(const struct seq_pages *pages, uint32_t tok_count) {
    return (uint32_t)(((uint64_t)tok_count + pages->page_tok - 1) / pages->page_tok);
}

uint32_t seq_pages_room(const struct seq_pages *pages) {
    return pages->pool.free_count + pages->pool.cached_count;
}

static struct radix_match match_all_but_last(struct seq_pages *pages, uint32_t slot, uint64_t salt,
                                             const uint32_t *token, uint32_t tok_count) {
    CHECK(tok_count > 0 && !pages->slot[slot].open);
    if (!pages->uses_cache)
        return (struct radix_match){.node = RADIX_ROOT, .prefix_hash = HASH_CHAIN_EMPTY};
    uint32_t tok_max = CACHED_MAX * pages->page_tok;
    tok_count = tok_count - 1 < tok_max ? tok_count - 1 : tok_max;
    return radix_match(&pages->radix, salt, token, tok_count, table_of(pages, slot));
}

struct seq_pages_look seq_pages_look(struct seq_pages *pages, uint32_t slot, uint64_t salt,
                                     const uint32_t *token, uint32_t tok_count) {
    struct radix_match match = match_all_but_last(pages, slot, salt, token, tok_count);
    const struct page_ref *table = table_of(pages, slot);
    struct seq_pages_look look = {
        .tok_count = match.page_count * pages->page_tok + match.partial_tok,
        .page_count = match.page_count,
    };
    /* Whoever uses a page uses those before it. */
    while (look.in_use < match.page_count && token_pool_users(&pages->pool, table[look.in_use]) > 0)
        look.in_use++;
    return look;
}

static uint64_t extend_hash(uint64_t hash, const uint32_t *token, uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; i++)
        hash = hash_chain(hash, token[i]);
    return hash;
}

/* Where a slot that has just opened begins: behind its pages and its copy. */
static struct seq_pages_start start_of(const struct seq_pages *pages, uint32_t slot,
                                       const uint32_t *token) {
    const struct seq_pages_slot *own = &pages->slot[slot];
    uint32_t begin = own->page_count * pages->page_tok, end = begin + own->copy_tok;
    return (struct seq_pages_start){
        .tok_count = end,
        .prefix_hash = extend_hash(own->open_hash, token, begin, end),
    };
}

struct seq_pages_start seq_pages_open(struct seq_pages *pages, uint32_t slot, uint64_t salt,
                                      const uint32_t *token, uint32_t tok_count) {
    struct radix_match match = match_all_but_last(pages, slot, salt, token, tok_count);
    struct page_ref *table = table_of(pages, slot);
    for (uint32_t i = 0; i < match.page_count; i++)
        token_pool_pin(&pages->pool, table[i]);
    if (match.partial_tok > 0) token_pool_pin(&pages->pool, match.partial);
    pages->slot[slot] = (struct seq_pages_slot){
        .open = true,
        .page_count = match.page_count,
        .cached_count = match.page_count,
        .node = pages->uses_cache ? radix_pin(&pages->radix, &match) : RADIX_NONE,
        .salt = salt,
        .copy_source = match.partial,
        .copy_tok = match.partial_tok,
        .open_hash = match.prefix_hash,
    };
    if (match.partial_tok > 0)
        pages->slot[slot].copy_node = radix_pin_partial(&pages->radix, &match);
    return start_of(pages, slot, token);
}

/* Whole pages that the slot lacks of token[0, tok_count) are shared with another that has them. */
static void share_pages(struct seq_pages *pages, uint32_t slot, uint32_t of, const uint32_t *token,
                        uint32_t page_count) {
    struct seq_pages_slot *own = &pages->slot[slot], *other = &pages->slot[of];
    struct page_ref *table = table_of(pages, slot);
    const struct page_ref *from = seq_pages_table(pages, of);
    uint32_t begin = own->page_count;
    if (page_count <= begin) return;
    for (uint32_t i = begin; i < page_count; i++) {
        token_pool_pin(&pages->pool, from[i]);
        table[i] = from[i];
    }
    own->open_hash = extend_hash(own->open_hash, token, begin * pages->page_tok,
                                 page_count * pages->page_tok);
    own->page_count = own->forked_count = page_count;
    if (other->forked_count < page_count) other->forked_count = page_count;
    own->sealed = other->sealed = true;
}

struct seq_pages_start seq_pages_fork(struct seq_pages *pages, uint32_t slot, uint32_t of,
                                      const uint32_t *token, uint32_t tok_count) {
    struct seq_pages_slot *own = &pages->slot[slot], *other = &pages->slot[of];
    CHECK(other->open && (uint64_t)other->page_count * pages->page_tok >= tok_count - 1);
    struct seq_pages_start start = seq_pages_open(pages, slot, other->salt, token, tok_count);
    uint32_t whole = (tok_count - 1) / pages->page_tok, tail = (tok_count - 1) % pages->page_tok;
    if (start.tok_count == tok_count - 1) return start;
    seq_pages_copied(pages, slot);
    share_pages(pages, slot, of, token, whole < CACHED_MAX ? whole : CACHED_MAX);
    if (own->page_count == whole && tail > 0) {
        own->copy_source = seq_pages_table(pages, of)[whole];
        own->copy_node = RADIX_NONE;
        own->copy_tok = tail;
        token_pool_pin(&pages->pool, own->copy_source);
    }
    return start_of(pages, slot, token);
}

bool seq_pages_grow(struct seq_pages *pages, uint32_t slot, uint32_t tok_count) {
    struct seq_pages_slot *own = &pages->slot[slot];
    uint32_t page_count = seq_pages_for(pages, tok_count);
    CHECK(own->open && page_count <= pages->pages_each);
    if (page_count <= own->page_count) return true;
    uint32_t wanted = page_count - own->page_count;
    if (wanted > seq_pages_room(pages)) return false;
    if (wanted > pages->pool.free_count)
        radix_evict(&pages->radix, wanted - pages->pool.free_count);
    token_pool_take(&pages->pool, wanted, table_of(pages, slot) + own->page_count);
    own->page_count = page_count;
    return true;
}

uint32_t seq_pages_published(const struct seq_pages *pages, uint32_t slot) {
    return pages->slot[slot].cached_count * pages->page_tok;
}

/* A page of its own that has another user is read by a copy still to be made, which pins no node:
 * it may not enter the tree before that, nor may those after it. */
static uint32_t before_copied(const struct seq_pages *pages, uint32_t slot, uint32_t page_end) {
    const struct page_ref *table = seq_pages_table(pages, slot);
    uint32_t end = pages->slot[slot].cached_count;
    while (end < page_end && token_pool_users(&pages->pool, table[end]) == 1)
        end++;
    return end;
}

void seq_pages_publish(struct seq_pages *pages, uint32_t slot, const uint32_t *token,
                       uint32_t tok_count, bool can_adopt) {
    struct seq_pages_slot *own = &pages->slot[slot];
    uint32_t begin = own->cached_count;
    uint32_t page_end = before_copied(pages, slot, tok_count / pages->page_tok);
    CHECK(own->open && tok_count / pages->page_tok <= own->page_count);
    if (page_end > CACHED_MAX) page_end = CACHED_MAX;
    if (own->node == RADIX_NONE || own->sealed || page_end <= begin) return;
    struct page_ref *table = table_of(pages, slot);
    struct page_ref before[PUBLISH_MAX];
    while (begin < page_end) {
        uint32_t count = page_end - begin;
        if (count > PUBLISH_MAX) count = PUBLISH_MAX;
        for (uint32_t i = 0; i < count; i++)
            before[i] = table[begin + i];
        uint32_t node = radix_extend(&pages->radix, own->node, own->salt, token, count,
                                     table + begin, can_adopt);
        if (node == RADIX_NONE) return; /* withdrawn, or not now */
        own->node = node;
        for (uint32_t i = 0; i < count; i++) {
            if (table[begin + i].page == before[i].page) continue;
            token_pool_pin(&pages->pool, table[begin + i]);
            token_pool_unpin(&pages->pool, before[i]);
            own->moved = true;
        }
        begin += count;
        token += (size_t)count * pages->page_tok;
        own->cached_count = begin;
    }
}

/* Pages from the front that others may use too. */
static uint32_t shared_count(const struct seq_pages_slot *slot) {
    return slot->cached_count > slot->forked_count ? slot->cached_count : slot->forked_count;
}

bool seq_pages_forgo_copy(struct seq_pages *pages, uint32_t slot,
                          struct seq_pages_start *start_out) {
    const struct seq_pages_slot *own = &pages->slot[slot];
    if (own->copy_tok == 0) return false;
    uint32_t page_count = shared_count(own);
    *start_out = (struct seq_pages_start){
        .tok_count = page_count * pages->page_tok,
        .prefix_hash = own->open_hash,
    };
    seq_pages_copied(pages, slot);
    return true;
}

void seq_pages_copied(struct seq_pages *pages, uint32_t slot) {
    struct seq_pages_slot *own = &pages->slot[slot];
    if (own->copy_tok == 0) return;
    token_pool_unpin(&pages->pool, own->copy_source);
    if (own->copy_node != RADIX_NONE) radix_unpin(&pages->radix, own->copy_node);
    own->copy_tok = 0;
}

uint32_t seq_pages_own(const struct seq_pages *pages, uint32_t slot) {
    const struct seq_pages_slot *own = &pages->slot[slot];
    const struct page_ref *table = seq_pages_table(pages, slot);
    uint32_t shared = 0, end = shared_count(own); /* pages before `shared` have other users */
    while (shared < end) {
        uint32_t middle = shared + (end - shared) / 2;
        if (token_pool_users(&pages->pool, table[middle]) > 1)
            shared = middle + 1;
        else
            end = middle;
    }
    return own->page_count - shared;
}

void seq_pages_close(struct seq_pages *pages, uint32_t slot) {
    struct seq_pages_slot *own = &pages->slot[slot];
    CHECK(own->open);
    seq_pages_copied(pages, slot);
    struct page_ref *table = table_of(pages, slot);
    for (uint32_t i = 0; i < own->page_count; i++)
        token_pool_unpin(&pages->pool, table[i]);
    if (own->node != RADIX_NONE) radix_unpin(&pages->radix, own->node);
    *own = (struct seq_pages_slot){.node = RADIX_NONE};
}

/* How small the pool can get with so many moves. */
static uint32_t reachable(const struct seq_pages *pages, uint32_t page_count) {
    uint32_t end = pages->pool.page_count, moves = 0;
    while (end > page_count) {
        moves += !token_pool_is_free(&pages->pool, end - 1);
        if (moves > RESIZE_MOVES_MAX) break;
        end--;
    }
    return end;
}

/* Where a page lies beyond the limit and has not moved yet, it does. Returns how many: 0 or 1. */
static uint32_t move_page(struct seq_pages *pages, uint32_t limit, uint32_t page,
                          struct page_move *move_out) {
    if (page < limit || token_pool_is_free(&pages->pool, page)) return 0;
    struct page_ref target = token_pool_move(&pages->pool, page);
    CHECK(target.page < limit);
    *move_out = (struct page_move){page, target.page};
    return 1;
}

/* What the tree does not know: pages of slots that are not published, some in two tables, and
 * sources of copies whose own slot may be gone. */
static uint32_t move_own(struct seq_pages *pages, uint32_t limit, struct page_move *move_out) {
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < pages->slot_count; slot++) {
        const struct seq_pages_slot *own = &pages->slot[slot];
        const struct page_ref *table = table_of(pages, slot);
        for (uint32_t i = own->cached_count; i < own->page_count; i++)
            count += move_page(pages, limit, table[i].page, move_out + count);
        if (own->copy_tok > 0)
            count += move_page(pages, limit, own->copy_source.page, move_out + count);
    }
    return count;
}

static bool follow_move(const struct seq_pages *pages, uint32_t limit, struct page_ref *ref) {
    if (ref->page < limit) return false;
    uint32_t page = pages->moved_to[ref->page];
    *ref = (struct page_ref){page, pages->pool.page[page].generation};
    return true;
}

static void follow_moves(struct seq_pages *pages, uint32_t limit, const struct page_move *move,
                         uint32_t move_count) {
    for (uint32_t i = 0; i < move_count; i++)
        pages->moved_to[move[i].source] = move[i].target;
    for (uint32_t slot = 0; slot < pages->slot_count; slot++) {
        struct seq_pages_slot *own = &pages->slot[slot];
        struct page_ref *table = table_of(pages, slot);
        for (uint32_t i = 0; i < own->page_count; i++)
            if (follow_move(pages, limit, &table[i])) own->moved = true;
        if (own->copy_tok > 0) follow_move(pages, limit, &own->copy_source);
    }
}

struct seq_pages_resized seq_pages_resize(struct seq_pages *pages, uint32_t page_count,
                                          struct page_move *move_out) {
    struct seq_pages_resized resized = {.page_count = page_count};
    struct token_pool *pool = &pages->pool;
    if (page_count < pool->page_count) {
        CHECK(pool->pinned_count <= page_count);
        uint32_t used = pool->pinned_count + pool->cached_count;
        if (used > page_count) resized.evicted = radix_evict(&pages->radix, used - page_count);
        uint32_t limit = resized.page_count = reachable(pages, page_count);
        resized.moved = radix_move_below(&pages->radix, limit, move_out);
        resized.moved += move_own(pages, limit, move_out + resized.moved);
        follow_moves(pages, limit, move_out, resized.moved);
    }
    token_pool_resize(pool, resized.page_count);
    return resized;
}

uint32_t seq_pages_runs(const struct seq_pages *pages, uint32_t slot) {
    const struct page_ref *table = seq_pages_table(pages, slot);
    uint32_t runs = 0;
    for (uint32_t i = 0; i < pages->slot[slot].page_count; i++)
        runs += i == 0 || table[i].page != table[i - 1].page + 1;
    return runs;
}

void seq_pages_forget_all(struct seq_pages *pages) {
    for (uint32_t slot = 0; slot < pages->slot_count; slot++)
        CHECK(!pages->slot[slot].open);
    radix_withdraw_all(&pages->radix);
    CHECK(pages->pool.free_count == pages->pool.page_count);
}

/* Copies still to be made that read the page. */
static uint32_t copies_of(const struct seq_pages *pages, struct page_ref ref) {
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < pages->slot_count; slot++)
        count += pages->slot[slot].copy_tok > 0 && pages->slot[slot].copy_source.page == ref.page;
    return count;
}

void seq_pages_check(const struct seq_pages *pages) {
    CHECK(token_pool_is_whole(&pages->pool));
    radix_check(&pages->radix);
    uint64_t uses = 0;
    for (uint32_t slot = 0; slot < pages->slot_count; slot++) {
        const struct seq_pages_slot *own = &pages->slot[slot];
        const struct page_ref *table = seq_pages_table(pages, slot);
        CHECK(own->open || (own->page_count == 0 && own->copy_tok == 0));
        CHECK(shared_count(own) <= own->page_count && own->page_count <= pages->pages_each);
        CHECK(own->forked_count <= own->cached_count || own->sealed);
        for (uint32_t i = 0; i < own->page_count; i++) {
            uint32_t users = token_pool_users(&pages->pool, table[i]);
            bool kept = pages->pool.page[table[i].page].kept;
            CHECK(users > 0 && (i >= own->cached_count || kept));
            CHECK(i < shared_count(own) || (users == 1 + copies_of(pages, table[i]) && !kept));
        }
        uses += own->page_count + (own->copy_tok > 0);
    }
    for (uint32_t page = 0; page < pages->pool.page_count; page++)
        uses -= pages->pool.page[page].users;
    CHECK(uses == 0); /* every user of a page is in a table or a copy, once */
}
