/* The prefix cache as a tree: what the picture in radix.h shows, who goes first, who sees what. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "radix.h"

#define PAGES    64u
#define PAGE_TOK 2u
#define TEXT_MAX 64u

static struct arena memory;
static struct token_pool pool;
static struct radix radix;

static int set_up(void **state) {
    (void)state;
    arena_init(&memory, token_pool_memory(PAGES) + radix_memory(PAGES, PAGE_TOK));
    token_pool_init(&pool, PAGES, PAGES, &memory);
    radix_init(&radix, &pool, PAGE_TOK, &memory);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    radix_check(&radix);
    assert_true(token_pool_is_whole(&pool));
    arena_deinit(&memory);
    return 0;
}

/* A sequence that has the tokens of a text and is in progress. */
struct user {
    uint32_t token[TEXT_MAX];
    struct page_ref page[TEXT_MAX / PAGE_TOK];
    uint32_t page_count, node, found; /* found: pages it did not have to compute */
};

static uint32_t tokens_of(const char *text, uint32_t *token) {
    uint32_t count = 0;
    for (; text[count] != '\0'; count++)
        token[count] = (unsigned char)text[count];
    return count;
}

static struct radix_match find(const char *text, uint64_t salt) {
    uint32_t token[TEXT_MAX];
    uint32_t count = tokens_of(text, token);
    return radix_match(&radix, salt, token, count, NULL);
}

static struct user begin(const char *text, uint64_t salt) {
    struct user user = {.page_count = tokens_of(text, user.token) / PAGE_TOK};
    struct radix_match match = radix_match(&radix, salt, user.token, user.page_count * PAGE_TOK,
                                           user.page);
    user.found = match.page_count;
    for (uint32_t i = 0; i < user.found; i++)
        token_pool_pin(&pool, user.page[i]);
    user.node = radix_pin(&radix, &match);
    token_pool_take(&pool, user.page_count - user.found, user.page + user.found);
    radix_check(&radix);
    return user;
}

static void publish(struct user *user, uint64_t salt) {
    struct page_ref before[TEXT_MAX / PAGE_TOK];
    uint32_t count = user->page_count - user->found;
    memcpy(before, user->page + user->found, count * sizeof *before);
    user->node = radix_extend(&radix, user->node, salt, user->token + user->found * PAGE_TOK, count,
                              user->page + user->found, true);
    for (uint32_t i = 0; i < count; i++) {
        struct page_ref now = user->page[user->found + i];
        if (now.page == before[i].page) continue;
        token_pool_pin(&pool, now);
        token_pool_unpin(&pool, before[i]);
    }
    radix_check(&radix);
}

static void end(struct user *user) {
    for (uint32_t i = 0; i < user->page_count; i++)
        token_pool_unpin(&pool, user->page[i]);
    radix_unpin(&radix, user->node);
    radix_check(&radix);
}

static void cache(const char *text, uint64_t salt) {
    struct user user = begin(text, salt);
    publish(&user, salt);
    end(&user);
}

static void expect_found(const char *text, uint64_t salt, uint32_t tok_count) {
    uint32_t token[TEXT_MAX];
    struct radix_match match = find(text, salt);
    assert_int_equal(match.page_count * PAGE_TOK + match.partial_tok, tok_count);
    uint64_t hash = HASH_CHAIN_EMPTY;
    tokens_of(text, token);
    for (uint32_t i = 0; i < match.page_count * PAGE_TOK; i++)
        hash = hash_chain(hash, token[i]);
    assert_true(match.prefix_hash == hash);
}

static uint32_t node_count(void) {
    uint32_t free_count = 0;
    for (uint32_t idx = radix.first_free_node; idx != RADIX_NONE; idx = radix.node[idx].next)
        free_count++;
    return radix.node_count - 1 - free_count;
}

static void test_the_picture(void **state) {
    (void)state;
    cache("the_cat_sat.", 0);
    assert_int_equal(node_count(), 1);
    cache("the_cat_ran!", 0);
    assert_int_equal(node_count(), 3);
    cache("the_dog_", 0);
    assert_int_equal(node_count(), 5);
    assert_int_equal(radix.kept_count, 6 + 2 + 2);
    assert_int_equal(pool.cached_count, 10);
    expect_found("the_cat_sat.", 0, 12);
    expect_found("the_cat_ran!", 0, 12);
    expect_found("the_cat_ran?", 0, 11); /* one token of a page */
    expect_found("the_d", 0, 5);
    expect_found("the_cow_", 0, 5);
    expect_found("a_cat", 0, 0);
    expect_found("", 0, 0);
    cache("the_cat_", 0); /* nothing new */
    assert_int_equal(node_count(), 5);
}

static void test_an_edge_grows_for_its_only_user(void **state) {
    (void)state;
    struct user one = begin("abcd", 0);
    publish(&one, 0);
    struct page_ref more;
    token_pool_take(&pool, 1, &more);
    uint32_t token[] = {'e', 'f'};
    assert_int_equal(radix_extend(&radix, one.node, 0, token, 1, &more, true), one.node);
    assert_int_equal(node_count(), 1);
    struct user two = begin("abcdef", 0); /* now it has two */
    assert_int_equal(two.node, one.node);
    struct page_ref other;
    token_pool_take(&pool, 1, &other);
    token[0] = 'x';
    uint32_t branch = radix_extend(&radix, two.node, 0, token, 1, &other, true);
    assert_int_not_equal(branch, one.node);
    two.node = branch;
    token_pool_unpin(&pool, more);
    token_pool_unpin(&pool, other);
    end(&one);
    end(&two);
    expect_found("abcdefxf", 0, 8);
    expect_found("abcdxf", 0, 4);
}

/* Two compute the same at once: the second to publish goes on with the pages of the first. */
static void test_what_exists_is_adopted(void **state) {
    (void)state;
    struct user one = begin("abcdef", 0), two = begin("abcdxy", 0);
    assert_int_equal(two.found, 0);
    publish(&one, 0);
    struct page_ref unchanged = two.page[0];
    assert_int_equal(radix_extend(&radix, two.node, 0, two.token, 3, two.page, false), RADIX_NONE);
    assert_int_equal(two.page[0].page, unchanged.page);
    publish(&two, 0);
    assert_int_equal(two.page[0].page, one.page[0].page);
    assert_int_equal(two.page[1].page, one.page[1].page);
    assert_int_not_equal(two.page[2].page, one.page[2].page);
    assert_int_equal(pool.pinned_count, 4);
    assert_int_equal(token_pool_users(&pool, one.page[0]), 2);
    end(&one);
    assert_int_equal(radix_evict(&radix, 9), 1); /* "ef"; the rest is in use */
    end(&two);
    assert_int_equal(radix_evict(&radix, 9), 3);
    assert_int_equal(pool.free_count, PAGES);
    assert_int_equal(node_count(), 0);
}

static void test_least_recently_used_leaves_go_first(void **state) {
    (void)state;
    cache("aa11", 0);
    cache("bb22", 0);
    cache("bb33", 0);
    struct user again = begin("aa11", 0);
    end(&again);
    assert_int_equal(radix_evict(&radix, 1), 1);
    expect_found("bb22", 0, 2);
    expect_found("bb33", 0, 4);
    assert_int_equal(radix_evict(&radix, 2), 2); /* then all of bb */
    expect_found("bb33", 0, 0);
    expect_found("aa11", 0, 4);
    assert_int_equal(radix.evictions, 3);
}

static void test_deep_pages_are_worth_more(void **state) {
    (void)state;
    enum { TOK = 4, LONG_PAGES = 2100, ALL = LONG_PAGES + 20 };
    static uint32_t token[LONG_PAGES * TOK];
    static struct page_ref page[LONG_PAGES];
    struct arena own;
    struct token_pool wide_pool;
    struct radix wide;
    arena_init(&own, token_pool_memory(ALL) + radix_memory(ALL, TOK));
    token_pool_init(&wide_pool, ALL, ALL, &own);
    radix_init(&wide, &wide_pool, TOK, &own);
    for (uint32_t i = 0; i < LONG_PAGES * TOK; i++)
        token[i] = 5 + i;
    for (uint32_t round = 0; round < 2; round++) { /* a long prompt, and after it a short one */
        uint32_t count = round == 0 ? LONG_PAGES : 10;
        token[0] = round;
        struct radix_match match = radix_match(&wide, 0, token, count * TOK, NULL);
        uint32_t node = radix_pin(&wide, &match);
        token_pool_take(&wide_pool, count, page);
        node = radix_extend(&wide, node, 0, token, count, page, true);
        for (uint32_t i = 0; i < count; i++)
            token_pool_unpin(&wide_pool, page[i]);
        radix_unpin(&wide, node);
    }
    assert_int_equal(radix_evict(&wide, 10), 10);
    assert_int_equal(radix_match(&wide, 0, token, 10 * TOK, NULL).page_count, 0);
    token[0] = 0;
    assert_int_equal(radix_match(&wide, 0, token, LONG_PAGES * TOK, NULL).page_count, LONG_PAGES);
    radix_check(&wide);
    arena_deinit(&own);
}

static void test_salts_share_nothing(void **state) {
    (void)state;
    cache("abcd", 7);
    expect_found("abcd", 7, 4);
    expect_found("abcd", 0, 0);
    expect_found("abcd", 8, 0);
    cache("abcd", 8);
    assert_int_equal(radix.kept_count, 4);
}

static void test_a_partial_page_is_pinned_alone(void **state) {
    (void)state;
    cache("abcdefgh", 0);
    struct radix_match match = find("abcx", 0);
    assert_int_equal(match.page_count, 1);
    assert_int_equal(match.partial_tok, 1);
    struct page_ref first;
    uint32_t token[] = {'a', 'b'};
    radix_match(&radix, 0, token, 2, &first);
    token_pool_pin(&pool, first);
    token_pool_pin(&pool, match.partial);
    uint32_t node = radix_pin(&radix, &match), partial = radix_pin_partial(&radix, &match);
    radix_check(&radix);
    assert_int_equal(radix_evict(&radix, 9), 2); /* "ef" and "gh" */
    token_pool_unpin(&pool, match.partial);
    radix_unpin(&radix, partial);
    token_pool_unpin(&pool, first);
    radix_unpin(&radix, node);
    assert_int_equal(radix_evict(&radix, 9), 2);
}

static void test_a_withdrawn_prefix(void **state) {
    (void)state;
    cache("abcdef", 0);
    cache("abcdxy", 0);
    cache("abqq", 0);
    struct user user = begin("abcdef", 0);
    uint32_t token[TEXT_MAX];
    assert_int_equal(radix_withdraw(&radix, 0, token, tokens_of("abzz", token)), 0);
    assert_int_equal(radix_withdraw(&radix, 9, token, tokens_of("abcd", token)), 0);
    assert_int_equal(radix_withdraw(&radix, 0, token, tokens_of("abcd", token)), 1); /* "xy" */
    expect_found("abcdef", 0, 2);
    expect_found("abqq", 0, 4);
    struct page_ref own[2];
    token_pool_take(&pool, 2, own);
    assert_int_equal(radix_extend(&radix, user.node, 0, token, 1, own, true), RADIX_NONE);
    cache("abcdef", 0); /* computed again, and seen again */
    expect_found("abcdef", 0, 6);
    assert_int_equal(radix.kept_count, 4 + 2 + 0);
    end(&user); /* the old pages go */
    assert_int_equal(radix.kept_count, 4);
    token_pool_unpin(&pool, own[0]);
    token_pool_unpin(&pool, own[1]);
    user = begin("abqqrr", 0);
    assert_int_equal(radix_withdraw_all(&radix), 2); /* what hangs below "ab" beside the user's */
    expect_found("ab", 0, 0);
    end(&user);
    assert_int_equal(pool.free_count, PAGES);
    assert_int_equal(node_count(), 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_the_picture),
        TEST(test_an_edge_grows_for_its_only_user),
        TEST(test_what_exists_is_adopted),
        TEST(test_least_recently_used_leaves_go_first),
        TEST(test_deep_pages_are_worth_more),
        TEST(test_salts_share_nothing),
        TEST(test_a_partial_page_is_pinned_alone),
        TEST(test_a_withdrawn_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
