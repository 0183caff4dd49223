/* The KV pool grows and shrinks in place: layers stay where they are and keep their pages, memory
 * beyond the pool is not there, and what cannot be had leaves the pool as it was. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kv_pool.h"

#define LAYERS     3u
#define PAGE_TOK   16u
#define TOK_BYTES  320u
#define PAGE_BYTES (PAGE_TOK * (size_t)TOK_BYTES)

static const struct kv_pool_shape SHAPE = {
    .layers = LAYERS, .page_tok = PAGE_TOK, .tok_bytes = TOK_BYTES};

static uint8_t *page_of(const struct kv_pool *pool, uint32_t layer, uint32_t page) {
    return (uint8_t *)kv_pool_layer(pool, layer) + page * PAGE_BYTES;
}

static void fill(const struct kv_pool *pool, uint32_t begin, uint32_t end) {
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t page = begin; page < end; page++)
            memset(page_of(pool, layer, page), (int)(1 + layer * 50 + page % 50), PAGE_BYTES);
}

static bool holds(const struct kv_pool *pool, uint32_t layer, uint32_t page, int value) {
    const uint8_t *bytes = page_of(pool, layer, page);
    for (size_t i = 0; i < PAGE_BYTES; i++)
        if (bytes[i] != (uint8_t)value) return false;
    return true;
}

static void check_filled(const struct kv_pool *pool, uint32_t end) {
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t page = 0; page < end; page++)
            assert_true(holds(pool, layer, page, (int)(1 + layer * 50 + page % 50)));
}

static void test_pages_survive_a_resize(void **state) {
    (void)state;
    struct kv_pool *pool = NULL;
    struct error err;
    assert_int_equal(kv_pool_create(&SHAPE, &pool, &err), STATUS_OK);
    assert_int_equal(kv_pool_pages(pool), 0);
    assert_int_equal(kv_pool_bytes(pool), 0);
    const uint8_t *first = kv_pool_layer(pool, 0), *last = kv_pool_layer(pool, LAYERS - 1);

    assert_int_equal(kv_pool_resize(pool, 100, &err), STATUS_OK);
    fill(pool, 0, 100);
    assert_int_equal(kv_pool_resize(pool, 700, &err), STATUS_OK);
    assert_true(kv_pool_bytes(pool) >= LAYERS * 700 * PAGE_BYTES);
    check_filled(pool, 100);
    fill(pool, 100, 700);
    assert_int_equal(kv_pool_resize(pool, 37, &err), STATUS_OK);
    assert_int_equal(kv_pool_pages(pool), 37);
    check_filled(pool, 37);
    assert_int_equal(kv_pool_resize(pool, 700, &err), STATUS_OK);
    check_filled(pool, 37);
    assert_true(holds(pool, 1, 699, 0)); /* given back in between */
    assert_ptr_equal(first, kv_pool_layer(pool, 0));
    assert_ptr_equal(last, kv_pool_layer(pool, LAYERS - 1));
    kv_pool_destroy(&pool);
    assert_null(pool);
}

/* A write far behind the last page ends the process: it is nobody's memory. */
static void test_nothing_lies_behind_the_pool(void **state) {
    (void)state;
    struct kv_pool *pool = NULL;
    struct error err;
    assert_int_equal(kv_pool_create(&SHAPE, &pool, &err), STATUS_OK);
    assert_int_equal(kv_pool_resize(pool, 700, &err), STATUS_OK);
    assert_int_equal(kv_pool_resize(pool, 10, &err), STATUS_OK);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL); /* cmocka's own handler would go on with the next test */
        *(volatile uint8_t *)page_of(pool, 1, 500) = 1;
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    kv_pool_destroy(&pool);
}

static void test_what_cannot_be_had(void **state) {
    (void)state;
    struct kv_pool *pool = NULL;
    struct error err;
    struct kv_pool_shape huge = SHAPE;
    huge.layers = 1u << 20;
    huge.tok_bytes = 1u << 15;
    assert_int_equal(kv_pool_create(&huge, &pool, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_null(pool);

    assert_int_equal(kv_pool_create(&SHAPE, &pool, &err), STATUS_OK);
    assert_int_equal(kv_pool_resize(pool, 5, &err), STATUS_OK);
    fill(pool, 0, 5);
    assert_int_equal(kv_pool_resize(pool, (1u << 24) / PAGE_TOK + 1, &err),
                     STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.text, "at most 16777216 tokens"));
    assert_int_equal(kv_pool_pages(pool), 5);
    check_filled(pool, 5);
    kv_pool_destroy(&pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_survive_a_resize),
        cmocka_unit_test(test_nothing_lies_behind_the_pool),
        cmocka_unit_test(test_what_cannot_be_had),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
