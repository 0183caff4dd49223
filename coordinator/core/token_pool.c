#include "token_pool.h"

#include "base/check.h"

#define WORD_BITS 64u

static size_t word_count(uint32_t page_cap) {
    return ((size_t)page_cap + WORD_BITS - 1) / WORD_BITS;
}

size_t token_pool_memory(uint32_t page_cap) {
    return word_count(page_cap) * sizeof(uint64_t) +
           (size_t)page_cap * sizeof(struct token_pool_page) + (size_t)2 * ARENA_ALIGN;
}

static void set_bit(struct token_pool *pool, uint32_t page) {
    uint32_t word = page / WORD_BITS;
    pool->free_bits[word] |= UINT64_C(1) << (page % WORD_BITS);
    if (word < pool->first_word) pool->first_word = word;
}

static void set_free(struct token_pool *pool, uint32_t page) {
    set_bit(pool, page);
    pool->page[page].generation++;
    pool->free_count++;
}

void token_pool_init(struct token_pool *pool, uint32_t page_count, uint32_t page_cap,
                     struct arena *memory) {
    *pool = (struct token_pool){
        .free_bits = arena_calloc(memory, word_count(page_cap), sizeof *pool->free_bits),
        .page = arena_calloc(memory, page_cap, sizeof *pool->page),
        .page_cap = page_cap,
    };
    CHECK(pool->free_bits && pool->page);
    token_pool_resize(pool, page_count);
}

void token_pool_resize(struct token_pool *pool, uint32_t page_count) {
    CHECK(page_count <= pool->page_cap);
    for (uint32_t page = pool->page_count; page < page_count; page++)
        set_bit(pool, page);
    for (uint32_t page = page_count; page < pool->page_count; page++) {
        CHECK(token_pool_is_free(pool, page));
        pool->free_bits[page / WORD_BITS] &= ~(UINT64_C(1) << (page % WORD_BITS));
    }
    pool->free_count = pool->free_count + page_count - pool->page_count;
    pool->page_count = page_count;
}

bool token_pool_is_free(const struct token_pool *pool, uint32_t page) {
    return pool->free_bits[page / WORD_BITS] >> (page % WORD_BITS) & 1;
}

struct page_ref token_pool_move(struct token_pool *pool, uint32_t page) {
    CHECK(page < pool->page_count && !token_pool_is_free(pool, page));
    struct token_pool_page *from = &pool->page[page];
    struct page_ref target;
    token_pool_take(pool, 1, &target);
    struct token_pool_page *to = &pool->page[target.page];
    to->users = from->users;
    to->kept = from->kept;
    from->users = from->kept = 0;
    pool->pinned_count--; /* of the two, one is in use as it was before */
    set_free(pool, page);
    return target;
}

void token_pool_take(struct token_pool *pool, uint32_t count, struct page_ref *ref_out) {
    CHECK(count <= pool->free_count);
    uint32_t word = pool->first_word;
    for (uint32_t taken = 0; taken < count; taken++) {
        while (pool->free_bits[word] == 0)
            word++;
        uint32_t page = word * WORD_BITS + (uint32_t)__builtin_ctzll(pool->free_bits[word]);
        pool->free_bits[word] &= pool->free_bits[word] - 1;
        CHECK(pool->page[page].users == 0 && !pool->page[page].kept);
        pool->page[page].users = 1;
        ref_out[taken] = (struct page_ref){page, pool->page[page].generation};
    }
    pool->first_word = word;
    pool->free_count -= count;
    pool->pinned_count += count;
}

/* The page behind a name, which must be of its present use. */
static struct token_pool_page *page_of(const struct token_pool *pool, struct page_ref ref) {
    CHECK(ref.page < pool->page_count);
    struct token_pool_page *page = &pool->page[ref.page];
    CHECK(page->generation == ref.generation && (page->users > 0 || page->kept));
    return page;
}

void token_pool_pin(struct token_pool *pool, struct page_ref ref) {
    struct token_pool_page *page = page_of(pool, ref);
    if (page->users++ > 0) return;
    pool->cached_count--;
    pool->pinned_count++;
}

void token_pool_unpin(struct token_pool *pool, struct page_ref ref) {
    struct token_pool_page *page = page_of(pool, ref);
    CHECK(page->users > 0);
    if (--page->users > 0) return;
    pool->pinned_count--;
    if (page->kept)
        pool->cached_count++;
    else
        set_free(pool, ref.page);
}

void token_pool_keep(struct token_pool *pool, struct page_ref ref) {
    struct token_pool_page *page = page_of(pool, ref);
    CHECK(page->users > 0 && !page->kept);
    page->kept = 1;
}

void token_pool_drop(struct token_pool *pool, struct page_ref ref) {
    struct token_pool_page *page = page_of(pool, ref);
    CHECK(page->kept);
    page->kept = 0;
    if (page->users > 0) return;
    pool->cached_count--;
    set_free(pool, ref.page);
}

uint32_t token_pool_users(const struct token_pool *pool, struct page_ref ref) {
    return page_of(pool, ref)->users;
}

bool token_pool_is_whole(const struct token_pool *pool) {
    uint32_t free_count = 0, cached_count = 0, pinned_count = 0;
    for (uint32_t page = 0; page < pool->page_count; page++) {
        bool is_free = token_pool_is_free(pool, page);
        bool is_pinned = pool->page[page].users > 0;
        bool is_cached = pool->page[page].kept && !is_pinned;
        if (is_free + is_pinned + is_cached != 1) return false;
        if (is_free && page / WORD_BITS < pool->first_word) return false;
        free_count += is_free;
        pinned_count += is_pinned;
        cached_count += is_cached;
    }
    return free_count == pool->free_count && cached_count == pool->cached_count &&
           pinned_count == pool->pinned_count &&
           free_count + cached_count + pinned_count == pool->page_count;
}
