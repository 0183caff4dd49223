/* Pages, and token ids in blocks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "token_pool.h"
#include "token_tape.h"

static struct arena memory;
static struct token_pool pool;

static void init_pool(uint32_t page_count) {
    arena_init(&memory, token_pool_memory(page_count));
    token_pool_init(&pool, page_count, page_count, &memory);
    assert_true(token_pool_is_whole(&pool));
}

static void expect_counts(uint32_t free_count, uint32_t cached_count, uint32_t pinned_count) {
    assert_true(token_pool_is_whole(&pool));
    assert_int_equal(pool.free_count, free_count);
    assert_int_equal(pool.cached_count, cached_count);
    assert_int_equal(pool.pinned_count, pinned_count);
}

static void test_pages_are_lowest_first_and_conserved(void **state) {
    (void)state;
    static const uint32_t page_counts[] = {1, 63, 64, 65, 200};
    for (size_t i = 0; i < sizeof page_counts / sizeof page_counts[0]; i++) {
        uint32_t count = page_counts[i];
        struct page_ref page[200];
        init_pool(count);
        token_pool_take(&pool, count, page);
        for (uint32_t p = 0; p < count; p++)
            assert_int_equal(page[p].page, p);
        expect_counts(0, 0, count);
        for (uint32_t p = 0; p < count; p++)
            token_pool_unpin(&pool, page[p]);
        expect_counts(count, 0, 0);
        arena_deinit(&memory);
    }
}

static void test_returned_pages_fill_gaps_in_order(void **state) {
    (void)state;
    init_pool(130);
    struct page_ref page[130];
    token_pool_take(&pool, 128, page);
    static const uint32_t returned[] = {70, 3, 69, 120}, expected[] = {3, 69, 70, 120, 128, 129};
    for (uint32_t i = 0; i < 4; i++)
        token_pool_unpin(&pool, page[returned[i]]);
    expect_counts(6, 0, 124);
    token_pool_take(&pool, 6, page);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(page[i].page, expected[i]);
        assert_int_equal(page[i].generation, expected[i] < 128); /* the second use of some */
    }
    expect_counts(0, 0, 130);
    arena_deinit(&memory);
}

/* Every arrow of the diagram, and what it does to the counts. */
static void test_users_and_the_cache(void **state) {
    (void)state;
    init_pool(3);
    struct page_ref page;
    token_pool_take(&pool, 1, &page);
    token_pool_pin(&pool, page);
    token_pool_keep(&pool, page);
    assert_int_equal(token_pool_users(&pool, page), 2);
    token_pool_unpin(&pool, page);
    expect_counts(2, 0, 1);
    token_pool_unpin(&pool, page);
    expect_counts(2, 1, 0); /* kept */
    token_pool_pin(&pool, page);
    expect_counts(2, 0, 1); /* found again */
    token_pool_drop(&pool, page);
    expect_counts(2, 0, 1); /* withdrawn while in use */
    token_pool_unpin(&pool, page);
    expect_counts(3, 0, 0);
    token_pool_take(&pool, 1, &page);
    token_pool_keep(&pool, page);
    token_pool_unpin(&pool, page);
    token_pool_drop(&pool, page);
    expect_counts(3, 0, 0); /* evicted */
    arena_deinit(&memory);
}

static void test_a_broken_pool_is_seen(void **state) {
    (void)state;
    init_pool(70);
    struct page_ref page[5];
    token_pool_take(&pool, 5, page);
    pool.page[page[2].page].users = 0; /* lost */
    assert_false(token_pool_is_whole(&pool));
    pool.page[page[2].page].users = 1;
    pool.free_bits[0] |= 1; /* free and in use */
    assert_false(token_pool_is_whole(&pool));
    pool.free_bits[0] &= ~UINT64_C(1);
    pool.free_count++;
    assert_false(token_pool_is_whole(&pool));
    pool.free_count--;
    assert_true(token_pool_is_whole(&pool));
    arena_deinit(&memory);
}

static void test_tape_reads_what_was_appended(void **state) {
    (void)state;
    enum { BLOCKS = 5, B = TOKEN_TAPE_BLOCK_TOK };
    arena_init(&memory, token_tape_memory(BLOCKS));
    struct token_tape_store store;
    token_tape_init(&store, BLOCKS, &memory);
    struct token_tape a = TOKEN_TAPE_EMPTY, b = TOKEN_TAPE_EMPTY;
    uint32_t token[3 * B], read[3 * B];
    for (uint32_t i = 0; i < 3 * B; i++)
        token[i] = i * 7;
    token_tape_append(&store, &a, token, B - 1);
    token_tape_append(&store, &b, token + 5, 1);
    token_tape_append(&store, &a, token + B - 1, 1);
    assert_int_equal(store.free_count, BLOCKS - 2);
    token_tape_append(&store, &a, token + B, 2 * B);
    assert_int_equal(store.free_count, BLOCKS - 4);
    static const struct {
        uint32_t begin, count;
    } range[] = {{0, 3 * B}, {0, 1}, {B - 1, 2}, {B, B}, {2 * B + 9, 20}, {3 * B - 1, 1}};
    for (size_t i = 0; i < sizeof range / sizeof range[0]; i++) {
        token_tape_read(&store, &a, range[i].begin, range[i].count, read);
        assert_memory_equal(read, token + range[i].begin, range[i].count * sizeof *read);
    }
    token_tape_read(&store, &b, 0, 1, read);
    assert_int_equal(read[0], token[5]);
    token_tape_clear(&store, &a);
    token_tape_clear(&store, &a); /* an empty one has nothing to give */
    token_tape_clear(&store, &b);
    assert_int_equal(store.free_count, BLOCKS);
    arena_deinit(&memory);
}

static void test_what_tapes_have_in_common(void **state) {
    (void)state;
    enum { B = TOKEN_TAPE_BLOCK_TOK };
    static const struct {
        uint32_t a, b, differs_at, common;
    } row[] = {{0, 5, 9, 0},
               {5, 5, 0, 0},
               {5, 9, 9, 5},
               {9, 5, 3, 3},
               {2 * B, 2 * B, 3 * B, 2 * B},
               {B + 1, 2 * B, B, B},
               {B, B + 1, B, B}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        arena_init(&memory, token_tape_memory(8));
        struct token_tape_store store;
        token_tape_init(&store, 8, &memory);
        struct token_tape a = TOKEN_TAPE_EMPTY, b = TOKEN_TAPE_EMPTY;
        uint32_t token[2 * B];
        for (uint32_t at = 0; at < 2 * B; at++)
            token[at] = at;
        token_tape_append(&store, &a, token, row[i].a);
        if (row[i].differs_at < 2 * B) token[row[i].differs_at] = 7777;
        token_tape_append(&store, &b, token, row[i].b);
        assert_int_equal(token_tape_common(&store, &a, &b), row[i].common);
        arena_deinit(&memory);
    }
}

static void test_blocks_of_a_length(void **state) {
    (void)state;
    assert_int_equal(token_tape_blocks(0), 0);
    assert_int_equal(token_tape_blocks(1), 1);
    assert_int_equal(token_tape_blocks(512), 1);
    assert_int_equal(token_tape_blocks(513), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_are_lowest_first_and_conserved),
        cmocka_unit_test(test_returned_pages_fill_gaps_in_order),
        cmocka_unit_test(test_users_and_the_cache),
        cmocka_unit_test(test_a_broken_pool_is_seen),
        cmocka_unit_test(test_tape_reads_what_was_appended),
        cmocka_unit_test(test_what_tapes_have_in_common),
        cmocka_unit_test(test_blocks_of_a_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
