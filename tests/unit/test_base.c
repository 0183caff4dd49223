/* The base modules: status, check, log, arena, pool, hash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/log_limit.h"
#include "base/pool.h"
#include "base/status.h"

/* Run fn in a child with stderr in a file: its exit code (-1 for a signal) and what it wrote. */
static int run_apart(void (*fn)(void), char *text_out, size_t text_bytes) {
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(fileno(file), STDERR_FILENO);
        fn();
        _exit(0);
    }
    int state;
    assert_int_equal(waitpid(child, &state, 0), child);
    rewind(file);
    size_t length = fread(text_out, 1, text_bytes - 1, file);
    text_out[length] = '\0';
    fclose(file);
    return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

static void test_status_names(void **state) {
    (void)state;
    /* The numbers and names of gRPC, which clients know. */
    static const char *const names[STATUS_COUNT] = {"OK",
                                                    "CANCELLED",
                                                    "UNKNOWN",
                                                    "INVALID_ARGUMENT",
                                                    "DEADLINE_EXCEEDED",
                                                    "NOT_FOUND",
                                                    "ALREADY_EXISTS",
                                                    "PERMISSION_DENIED",
                                                    "RESOURCE_EXHAUSTED",
                                                    "FAILED_PRECONDITION",
                                                    "ABORTED",
                                                    "OUT_OF_RANGE",
                                                    "UNIMPLEMENTED",
                                                    "INTERNAL",
                                                    "UNAVAILABLE",
                                                    "DATA_LOSS",
                                                    "UNAUTHENTICATED"};
    for (uint32_t i = 0; i < STATUS_COUNT; i++)
        assert_string_equal(status_name((enum status)i), names[i]);
    assert_string_equal(status_name((enum status)STATUS_COUNT), "UNKNOWN");
    assert_string_equal(status_name((enum status) - 1), "UNKNOWN");
}

static void test_errors(void **state) {
    (void)state;
    struct error err;
    assert_int_equal(error_set(&err, STATUS_NOT_FOUND, "no %s at %d", "page", 7), STATUS_NOT_FOUND);
    assert_int_equal(err.code, STATUS_NOT_FOUND);
    assert_string_equal(err.text, "no page at 7");
    assert_int_equal(error_wrap(&err, STATUS_INTERNAL, "rank %u", 3), STATUS_INTERNAL);
    assert_int_equal(err.code, STATUS_INTERNAL);
    assert_string_equal(err.text, "rank 3: no page at 7");
    assert_int_equal(error_set(NULL, STATUS_ABORTED, "x"), STATUS_ABORTED);
    assert_int_equal(error_wrap(NULL, STATUS_ABORTED, "x"), STATUS_ABORTED);
    /* Too long for its place: cut, and still ended. */
    char longest[2 * ERROR_TEXT_MAX];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    error_set(&err, STATUS_UNKNOWN, "%s", longest);
    assert_int_equal(strlen(err.text), ERROR_TEXT_MAX - 1);
    error_wrap(&err, STATUS_UNKNOWN, "b");
    assert_int_equal(strlen(err.text), ERROR_TEXT_MAX - 1);
    assert_memory_equal(err.text, "b: aaa", 6);
    error_wrap(&err, STATUS_UNKNOWN, "%s", longest);
    assert_int_equal(strlen(err.text), ERROR_TEXT_MAX - 1);
}

static void fail_a_check(void) {
    CHECK(1 + 1 == 3);
}

static void pass_a_check(void) {
    CHECK(1 + 1 == 2);
}

static void test_check(void **state) {
    (void)state;
    char text[4096];
    assert_int_equal(run_apart(fail_a_check, text, sizeof text), EXIT_CODE_INVARIANT);
    assert_non_null(strstr(text, "expression=\"1 + 1 == 3\""));
    assert_non_null(strstr(text, "test_base.c:"));
    assert_non_null(strstr(text, "function=fail_a_check"));
    assert_int_equal(run_apart(pass_a_check, text, sizeof text), 0);
    assert_string_equal(text, "");
}

static void log_everything(void) {
    log_debug("too_early", "level=%d", 1);
    log_init("tester", 3, "0123456789abcdef");
    log_debug("hidden", "x=1");
    log_info("loaded", "count=%d name=\"%s\"", 2, "two\nlines");
    log_set_level(LOG_LEVEL_ERROR);
    log_warn("hidden", "x=1");
    log_error("gone", "x=%s", "y");
    log_plain("TP3", "Memory pool end. avail mem=%.2f GB", 4.38);
    log_plain("", "bare");
    char longest[4096];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    log_error("long", "text=%s", longest);
}

static void test_log_lines(void **state) {
    (void)state;
    static const char *const wanted[] = {
        ("level=info comp=tester rank=3 boot=0123456789abcdef event=loaded count=2 "
         "name=\"two lines\""),
        "level=error comp=tester rank=3 boot=0123456789abcdef event=gone x=y",
        "TP3 Memory pool end. avail mem=4.38 GB boot=0123456789abcdef",
        "bare boot=0123456789abcdef",
    };
    char text[8192];
    assert_int_equal(run_apart(log_everything, text, sizeof text), 0);
    char *rest = text;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        char *line = strsep(&rest, "\n");
        assert_non_null(line);
        /* 2026-11-29T20:05:34.123Z, then a space */
        int year, month, day, hour, minute, second, ms, length = 0;
        assert_int_equal(sscanf(line, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ%n", &year, &month, &day, &hour,
                                &minute, &second, &ms, &length),
                         7);
        assert_int_equal(length, 24);
        assert_int_equal(line[length], ' ');
        assert_string_equal(line + length + 1, wanted[i]);
    }
    assert_non_null(rest);
    assert_int_equal(strlen(rest), 2048 - 1); /* cut to the longest line, newline and all */
    assert_int_equal(rest[strlen(rest) - 1], '\n');
}

static void *log_many(void *arg) {
    for (int i = 0; i < 200; i++)
        log_info("tick", "who=%s n=%03d end=1", (const char *)arg, i);
    return NULL;
}

static void log_from_threads(void) {
    static char names[4][2] = {"a", "b", "c", "d"};
    pthread_t thread[4];
    log_init("threads", LOG_RANK_NONE, "-");
    for (int i = 0; i < 4; i++)
        if (pthread_create(&thread[i], NULL, log_many, names[i]) != 0) _exit(1);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
}

/* Lines of one boot, then of another, while threads write them. */
static void log_from_two_boots(void) {
    char name[] = "a";
    pthread_t thread[4];
    log_init("boots", LOG_RANK_NONE, "0000000000000000");
    for (int i = 0; i < 4; i++)
        if (pthread_create(&thread[i], NULL, log_many, name) != 0) _exit(1);
    for (int i = 0; i < 500; i++)
        log_set_boot(i % 2 == 0 ? "ffffffffffffffff" : "0000000000000000");
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    log_set_boot("1111111111111111");
    log_info("last", "end=1");
}

static void test_a_boot_is_told_whole(void **state) {
    (void)state;
    static char text[256 * 1024];
    assert_int_equal(run_apart(log_from_two_boots, text, sizeof text), 0);
    int lines = 0;
    char *rest = text;
    for (char *line = strsep(&rest, "\n"); rest; line = strsep(&rest, "\n"), lines++) {
        const char *boot = strstr(line, " boot=");
        assert_non_null(boot);
        assert_int_equal(strspn(boot + 6, (char[]){boot[6], '\0'}), 16);
        assert_true((boot[6] == '1') == (lines == 800));
    }
    assert_int_equal(lines, 801);
}

static void test_log_lines_do_not_mix(void **state) {
    (void)state;
    static char text[256 * 1024];
    assert_int_equal(run_apart(log_from_threads, text, sizeof text), 0);
    int lines = 0;
    char *rest = text;
    for (char *line = strsep(&rest, "\n"); rest; line = strsep(&rest, "\n"), lines++) {
        assert_int_equal(strlen(line), strlen("2026-11-29T20:05:34.123Z level=info comp=threads "
                                              "boot=- event=tick who=a n=000 end=1"));
        assert_string_equal(line + strlen(line) - 6, " end=1");
    }
    assert_int_equal(lines, 800);
}

static void log_a_flood(void) {
    struct log_limit limit = {0}, other = {0};
    log_init("flooded", LOG_RANK_NONE, "-");
    for (int i = 0; i < 1000; i++)
        log_limited(&limit, 5 + i, LOG_LEVEL_WARN, "flood", "n=%d", i);
    log_limited(&other, 5, LOG_LEVEL_WARN, "other", "n=0");
    log_limited(&limit, 4 + LOG_LIMIT_WINDOW_NS, LOG_LEVEL_WARN, "flood", "n=1000");
    log_limited(&limit, 5 + LOG_LIMIT_WINDOW_NS, LOG_LEVEL_WARN, "flood", "n=1001");
    log_limited(&limit, 6 + LOG_LIMIT_WINDOW_NS, LOG_LEVEL_WARN, "flood", "n=1002");
}

static uint32_t count_words(const char *text, const char *words) {
    uint32_t count = 0;
    for (const char *at = text; (at = strstr(at, words)) != NULL; at++)
        count++;
    return count;
}

/* The first lines of a window pass, the first one of the next says how many did not. */
static void test_floods_are_held_back(void **state) {
    (void)state;
    static char text[16384];
    assert_int_equal(run_apart(log_a_flood, text, sizeof text), 0);
    assert_int_equal(count_words(text, "event=flood"), LOG_LIMIT_LINES + 2);
    assert_int_equal(count_words(text, "event=other n=0\n"), 1);
    assert_non_null(strstr(text, "n=19\n"));
    assert_null(strstr(text, "n=20\n"));
    assert_int_equal(count_words(text, "held_back"), 1);
    assert_non_null(strstr(text, "n=1001 held_back=981\n"));
    assert_non_null(strstr(text, "n=1002\n"));
}

static void test_log_words(void **state) {
    (void)state;
    enum log_level level = LOG_LEVEL_DEBUG;
    assert_true(log_level_parse("warn", &level));
    assert_int_equal(level, LOG_LEVEL_WARN);
    assert_false(log_level_parse("warning", &level));
    assert_false(log_level_parse("", &level));
    assert_int_equal(level, LOG_LEVEL_WARN);
    char first[BOOT_ID_LEN + 1], second[BOOT_ID_LEN + 1];
    log_make_boot_id(first);
    log_make_boot_id(second);
    assert_int_equal(strspn(first, "0123456789abcdef"), BOOT_ID_LEN);
    assert_string_not_equal(first, second);
}

static void test_arena(void **state) {
    (void)state;
    struct arena arena;
    arena_init(&arena, 100);
    unsigned char *first = arena_alloc(&arena, 1);
    unsigned char *second = arena_alloc(&arena, 0);
    unsigned char *third = arena_alloc(&arena, 17);
    assert_int_equal((uintptr_t)first % ARENA_ALIGN, 0);
    assert_ptr_equal(second, first + 16);
    assert_ptr_equal(third, first + 16);
    size_t mark = arena_mark(&arena);
    assert_null(arena_alloc(&arena, 53)); /* 48 + 53 > 100 */
    assert_null(arena_alloc(&arena, SIZE_MAX));
    assert_non_null(arena_alloc(&arena, 52)); /* to the last byte */
    assert_null(arena_alloc(&arena, 1));
    assert_ptr_equal(arena_resize(&arena, third, 20), third);
    third[19] = 7;
    assert_int_equal(arena_mark(&arena), 36);
    assert_null(arena_resize(&arena, third, 85)); /* 16 + 85 > 100 */
    assert_ptr_equal(arena_resize(&arena, third, 84), third);
    assert_int_equal(third[19], 7);
    third[83] = 7;
    arena_rewind(&arena, mark);
    memset(arena_alloc(&arena, 20), 0xff, 20);
    arena_rewind(&arena, mark);
    unsigned char *cleared = arena_calloc(&arena, 5, 4);
    for (int i = 0; i < 20; i++)
        assert_int_equal(cleared[i], 0);
    assert_null(
        arena_calloc(&arena, SIZE_MAX / 4 + 2, 4)); /* the product overflows to a small one */
    arena_reset(&arena);
    assert_ptr_equal(arena_alloc(&arena, 100), first);
    arena_deinit(&arena);
    assert_null(arena.base);
}

static void test_arena_in_place(void **state) {
    (void)state;
    _Alignas(ARENA_ALIGN) unsigned char memory[64];
    struct arena arena;
    arena_init_at(&arena, memory, sizeof memory);
    assert_ptr_equal(arena_alloc(&arena, 64), memory);
    assert_null(arena_alloc(&arena, 1));
    arena_deinit(&arena);
    memory[63] = 1; /* the caller's again, also under AddressSanitizer */
}

static void rewind_forward(void) {
    struct arena arena;
    arena_init(&arena, 32);
    arena_rewind(&arena, 1);
}

static void test_pool(void **state) {
    (void)state;
    struct pool pool;
    struct pool_id id[70];
    pool_init(&pool, 70); /* more than a word of bits */
    assert_int_equal(pool_next_used(&pool, 0), POOL_NO_SLOT);
    for (uint32_t i = 0; i < 70; i++) {
        id[i] = pool_acquire(&pool);
        assert_int_equal(id[i].slot, i);
        assert_true(pool_is_live(&pool, id[i]));
    }
    assert_int_equal(pool_acquire(&pool).slot, POOL_NO_SLOT);
    assert_int_equal(pool.used_count, 70);
    pool_release(&pool, id[66]);
    pool_release(&pool, id[3]);
    assert_false(pool_is_live(&pool, id[3]));
    struct pool_id again = pool_acquire(&pool);
    assert_int_equal(again.slot, 3); /* lowest first */
    assert_true(pool_is_live(&pool, again));
    assert_false(pool_is_live(&pool, id[3])); /* the slot lives, this id does not */
    assert_true(pool_id_equal(again, again));
    assert_false(pool_id_equal(again, id[3]));
    assert_false(pool_id_equal(id[4], (struct pool_id){5, id[4].generation}));
    assert_false(pool_is_live(&pool, (struct pool_id){.slot = 70, .generation = 1}));
    assert_false(pool_is_live(&pool, (struct pool_id){.slot = POOL_NO_SLOT}));
    assert_int_equal(pool_next_used(&pool, 65), 65);
    assert_int_equal(pool_next_used(&pool, 66), 67);
    assert_int_equal(pool_next_used(&pool, 70), POOL_NO_SLOT);
    pool_deinit(&pool);
}

static void release_twice(void) {
    struct pool pool;
    pool_init(&pool, 2);
    struct pool_id id = pool_acquire(&pool);
    pool_release(&pool, id);
    pool_release(&pool, id);
}

static void release_for_another(void) {
    struct pool pool;
    pool_init(&pool, 2);
    struct pool_id id = pool_acquire(&pool);
    pool_release(&pool, id);
    (void)pool_acquire(&pool);
    pool_release(&pool, id);
}

static void test_misuse_ends_the_process(void **state) {
    (void)state;
    static void (*const misuses[])(void) = {rewind_forward, release_twice, release_for_another};
    char text[4096];
    for (size_t i = 0; i < sizeof misuses / sizeof *misuses; i++) {
        assert_int_equal(run_apart(misuses[i], text, sizeof text), EXIT_CODE_INVARIANT);
        assert_non_null(strstr(text, "event=check_failed"));
    }
}

static void test_hash(void **state) {
    (void)state;
    /* The first two outputs of SplitMix64 from seed 0. */
    assert_true(hash_mix(UINT64_C(0x9e3779b97f4a7c15)) == UINT64_C(0xe220a8397b1dcdaf));
    assert_true(hash_mix(UINT64_C(0x3c6ef372fe94f82a)) == UINT64_C(0x6e789e6aa1b965f4));
    /* A chain knows order, repetition and every value before. */
    uint64_t ab = hash_chain(hash_chain(HASH_CHAIN_EMPTY, 1), 2);
    uint64_t ba = hash_chain(hash_chain(HASH_CHAIN_EMPTY, 2), 1);
    uint64_t aa = hash_chain(hash_chain(HASH_CHAIN_EMPTY, 1), 1);
    assert_true(ab != ba && ab != aa && ba != aa);
    assert_true(hash_chain(HASH_CHAIN_EMPTY, 0) != HASH_CHAIN_EMPTY);
    assert_true(hash_chain(0, 0) != 0);
}

static void test_hash_bytes(void **state) {
    (void)state;
    static const char text[] = "0123456789abcdefXYZ";
    /* Every length is another hash, also where the tail is zeros; the place does not matter. */
    char moved[sizeof text + 1];
    char zeros[sizeof text] = {0};
    memcpy(moved + 1, text, sizeof text);
    for (size_t a = 0; a < sizeof text; a++) {
        assert_true(hash_bytes(text, a, 5) == hash_bytes(moved + 1, a, 5));
        assert_true(hash_bytes(text, a, 5) != hash_bytes(text, a, 6));
        for (size_t b = a + 1; b < sizeof text; b++) {
            assert_true(hash_bytes(text, a, 5) != hash_bytes(text, b, 5));
            assert_true(hash_bytes(zeros, a, 5) != hash_bytes(zeros, b, 5));
        }
    }
    /* Every byte counts. */
    uint64_t whole = hash_bytes(text, sizeof text, 0);
    for (size_t i = 0; i < sizeof text; i++) {
        char changed[sizeof text];
        memcpy(changed, text, sizeof text);
        changed[i] ^= 1;
        assert_true(hash_bytes(changed, sizeof text, 0) != whole);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_names),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_log_lines),
        cmocka_unit_test(test_log_lines_do_not_mix),
        cmocka_unit_test(test_a_boot_is_told_whole),
        cmocka_unit_test(test_floods_are_held_back),
        cmocka_unit_test(test_log_words),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_arena_in_place),
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_misuse_ends_the_process),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_hash_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
