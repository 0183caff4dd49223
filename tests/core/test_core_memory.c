/* The pool where a rank has less memory than was hoped for. Pages are of 4 tokens; the context has
 * 96, and a pool was asked for that holds two of it. */
#include <string.h>

#include "core_world.h"

static struct world world;

static void start(uint32_t tp, bool allow_short_pool) {
    world_init(&world);
    world.options.tp = tp;
    world.options.allow_short_pool = allow_short_pool;
    world_start(&world);
}

/* The rank loads, and says how many pages its memory holds. */
static void load(uint32_t rank, uint32_t page_count, uint32_t fraction_needed,
                 uint64_t free_bytes) {
    world_launch(&world, rank);
    struct worker_message *answer;
    while ((answer = world_take_answer(&world, rank)) != NULL) {
        struct worker_message message = *answer;
        if (message.type == WORKER_LOADED)
            message.loaded = (struct worker_loaded){.bytes = 100,
                                                    .elapsed_ns = 1,
                                                    .page_count = page_count,
                                                    .fraction_needed = fraction_needed,
                                                    .free_bytes = free_bytes};
        world_message(&world, rank, &message);
        if (message.type == WORKER_LOADED) break;
    }
}

static struct generate_request request_of(const uint32_t *prompt, uint32_t count, uint32_t tokens) {
    return world_request(prompt, count, tokens);
}

static void test_the_smallest_rank_rules(void **state) {
    (void)state;
    start(2, false);
    load(0, 0, 0, 500);
    load(1, 30, 0, 300);
    world_settle(&world);
    struct snapshot snapshot = core_snapshot(world.core, world.now_ns);
    assert_true(snapshot.ready);
    assert_int_equal(snapshot.pages_total, 30);
    assert_int_equal(snapshot.pages_free, 30);
    assert_int_equal(snapshot.context_len, 96);
    assert_int_equal(core_free_bytes(world.core), 300);
    /* More than 30 pages of work; the fake workers know no page beyond them. */
    static const uint32_t prompt[40] = {1, 2, 3};
    struct generate_request request = request_of(prompt, 40, 30);
    struct world_call *call[6];
    for (int i = 0; i < 6; i++)
        call[i] = world_call(&world, &request);
    world_settle(&world);
    for (int i = 0; i < 6; i++)
        world_expect_stream(&world, call[i], &request);
    world_expect_idle(&world);
    assert_int_equal(core_snapshot(world.core, world.now_ns).pages_total, 30);
    world_stop(&world);
}

static void test_memory_for_all_changes_nothing(void **state) {
    (void)state;
    start(2, false);
    load(0, 48, 0, 0);
    load(1, 1000, 0, 0);
    world_settle(&world);
    assert_int_equal(core_snapshot(world.core, world.now_ns).pages_total, 48);
    world_stop(&world);
}

/* 23 pages are 92 tokens: no request of 96. */
static void test_a_short_pool_is_refused(void **state) {
    (void)state;
    start(2, false);
    load(0, 0, 0, 0);
    load(1, 23, 931000, 0);
    world_settle(&world);
    assert_true(world.exited);
    assert_int_equal(world.exit_code, EXIT_CODE_CONFIG);
    assert_non_null(strstr(world.exit_text, "rank 1 has memory for 92 tokens"));
    assert_non_null(strstr(world.exit_text, "--context-length 96"));
    assert_non_null(strstr(world.exit_text, "--mem-fraction-static 0.931, "));
    assert_non_null(strstr(world.exit_text, "--context-length 92 or less"));
    assert_true(world.worker[0].shut_down && world.worker[1].shut_down);
    world_stop(&world);
}

/* What waits is judged anew, and clients are told the limit. */
static void test_a_short_pool_is_allowed(void **state) {
    (void)state;
    static const uint32_t prompt[20] = {1, 2, 3};
    start(1, true);
    struct generate_request longer = request_of(prompt, 20, 73),
                            shorter = request_of(prompt, 20, 72);
    struct world_call *ends = world_call(&world, &longer), *runs = world_call(&world, &shorter);
    load(0, 23, 0, 0);
    world_settle(&world);
    struct snapshot snapshot = core_snapshot(world.core, world.now_ns);
    assert_true(snapshot.ready);
    assert_int_equal(snapshot.pages_total, 23);
    assert_int_equal(snapshot.context_len, 92);
    assert_true(ends->ended);
    assert_int_equal(ends->status, STATUS_OUT_OF_RANGE);
    assert_non_null(strstr(ends->status_text, "holds 92"));
    world_expect_stream(&world, runs, &shorter);
    assert_int_equal(runs->status, STATUS_OK);
    ends = world_call(&world, &longer);
    assert_int_equal(ends->status, STATUS_OUT_OF_RANGE);
    world_stop(&world);
}

/* A rank comes back on a smaller machine, while pages were cached. */
static void test_a_rank_comes_back_smaller(void **state) {
    (void)state;
    static const uint32_t prompt[40] = {1, 2, 3};
    start(2, false);
    load(0, 0, 0, 0);
    load(1, 0, 0, 0);
    world_settle(&world);
    struct generate_request request = request_of(prompt, 40, 30);
    struct world_call *call = world_call(&world, &request);
    world_settle(&world);
    assert_int_equal(call->status, STATUS_OK);
    assert_true(core_snapshot(world.core, world.now_ns).pages_cached > 0);
    world_kill(&world, 1);
    load(1, 24, 0, 0);
    world_recover(&world);
    assert_int_equal(core_snapshot(world.core, world.now_ns).pages_total, 24);
    call = world_call(&world, &request);
    world_settle(&world);
    world_expect_stream(&world, call, &request);
    world_stop(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_smallest_rank_rules),
        cmocka_unit_test(test_memory_for_all_changes_nothing),
        cmocka_unit_test(test_a_short_pool_is_refused),
        cmocka_unit_test(test_a_short_pool_is_allowed),
        cmocka_unit_test(test_a_rank_comes_back_smaller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
