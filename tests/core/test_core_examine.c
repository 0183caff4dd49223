/* A look at what ranks hold of the cache: which pages, one report a rank, one end a call. */
#include "core_world.h"

#include <string.h>

static struct world world;

#define PROMPT_TOK 18u
#define PAGES      5u /* whole ones of 4 tokens: the prompt's 18, and 4 of the reply */

static uint32_t prompt[PROMPT_TOK];

/* A request has ended, and left its pages in the tree. */
static void serve(void) {
    world_init(&world);
    world.options.tp = 2;
    world_start(&world);
    world_serve(&world);
    for (uint32_t i = 0; i < PROMPT_TOK; i++)
        prompt[i] = 'a' + i;
    struct generate_request request = world_request(prompt, PROMPT_TOK, 4);
    request.ignore_eos = true;
    struct world_call *call = world_call(&world, &request);
    world_settle(&world);
    assert_int_equal(call->status, STATUS_OK);
}

static void expect_end(enum status status, const char *words) {
    assert_true(world.examine.ended);
    if (world.examine.status != status || !strstr(world.examine.text, words))
        fail_msg("%s: '%s' lacks '%s'", status_name(world.examine.status), world.examine.text,
                 words);
}

static void test_every_rank_reports_the_same_pages(void **state) {
    (void)state;
    serve();
    world_examine(&world, prompt, PROMPT_TOK, 7);
    world_settle(&world);
    expect_end(STATUS_OK, "");
    assert_int_equal(world.examine.reports, 3);
    assert_int_equal(world.examine.page_count, PROMPT_TOK / 4);
    assert_int_equal(world.examine.rows, 7);
    assert_memory_equal(world.examine.hash[0], world.examine.hash[1],
                        PROMPT_TOK / 4 * sizeof(uint64_t));
    assert_true(world.examine.hash[0][0] != world.examine.hash[0][1]);
    world_examine(&world, NULL, 0, 0); /* everything: what was drawn too */
    world_settle(&world);
    expect_end(STATUS_OK, "");
    assert_int_equal(world.examine.page_count, PAGES);
    uint32_t stranger[8] = {'z', 'z', 'z', 'z', 'z', 'z', 'z', 'z'};
    world_examine(&world, stranger, 8, 0);
    world_settle(&world);
    expect_end(STATUS_OK, "");
    assert_int_equal(world.examine.reports, 3);
    assert_int_equal(world.examine.page_count, 0);
    world_stop(&world);
}

static void test_a_rank_that_cannot_ends_it(void **state) {
    (void)state;
    serve();
    world.worker[1].cannot_examine = true;
    world_examine(&world, prompt, PROMPT_TOK, 0);
    world_settle(&world);
    expect_end(STATUS_INTERNAL, "rank 1: the sum is wrong");
    world_examine(&world, prompt, PROMPT_TOK, 0);
    world_settle(&world);
    expect_end(STATUS_OK, "");
    world_stop(&world);
}

static void cancel(void) {
    struct event event = {.type = EVENT_CANCEL};
    event.cancel.call.slot = WORLD_EXAMINE_SLOT;
    event.cancel.reason = STATUS_DEADLINE_EXCEEDED;
    world_step(&world, event);
}

/* One at a time; but who has left makes room, and late answers to him are nobody's. */
static void test_a_caller_who_left_makes_room(void **state) {
    (void)state;
    serve();
    world.worker[1].stuck = true;
    world_examine(&world, prompt, PROMPT_TOK, 0);
    uint32_t first = world.worker[1].examined;
    world_examine(&world, prompt, PROMPT_TOK, 0);
    expect_end(STATUS_ABORTED, "another examination is under way");
    world.examine.ended = false;
    cancel();
    expect_end(STATUS_DEADLINE_EXCEEDED, "not all ranks have answered");
    while (world_deliver(&world, 0)) /* what it answers now, nobody waits for */
        continue;
    assert_int_equal(world.examine.reports, 0);
    world.worker[1].stuck = false;
    world_examine(&world, prompt, PROMPT_TOK, 0);
    struct worker_message late = {.type = WORKER_EXAMINED};
    late.examined = (struct worker_examined){
        .generation = 1, .number = first, .text = "", .report = {.device = ""}};
    struct event event = {.type = EVENT_WORKER_MESSAGE};
    event.worker.worker = world.worker[1].id;
    event.worker.message = &late;
    world_step(&world, event);
    assert_int_equal(world.examine.reports, 0);
    world_settle(&world);
    expect_end(STATUS_OK, "");
    assert_int_equal(world.examine.reports, 3);
    assert_int_equal(core_snapshot(world.core, world.now_ns).generation, 1);
    world_stop(&world);
}

/* An answer that no order waits for is a worker that has lost its way. */
static void test_an_answer_to_nothing_ends_the_generation(void **state) {
    (void)state;
    serve();
    struct worker_message stray = {.type = WORKER_EXAMINED};
    stray.examined = (struct worker_examined){
        .generation = 1, .number = 99, .text = "", .report = {.device = ""}};
    struct event event = {.type = EVENT_WORKER_MESSAGE};
    event.worker.worker = world.worker[1].id;
    event.worker.message = &stray;
    world_step(&world, event);
    assert_non_null(strstr(core_snapshot(world.core, world.now_ns).reason,
                           "rank 1: it answers an examination that was not asked for"));
    world_settle(&world);
    world_stop(&world);
}

/* Both ranks are heard of meanwhile, and get on with the step they are in. */
static void wait_half_the_timeout(void) {
    static uint64_t collectives;
    collectives++;
    world.now_ns += (int64_t)world.options.step_timeout_ms * EVENT_NS_PER_MS / 2;
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct worker_message beat = {.type = WORKER_HEARTBEAT};
        beat.heartbeat = (struct worker_heartbeat){
            .generation = 1, .step = world.worker[rank].step, .collective_seq = collectives};
        struct event event = {.type = EVENT_WORKER_MESSAGE};
        event.worker.worker = world.worker[rank].id;
        event.worker.message = &beat;
        world_step(&world, event);
    }
}

static void test_a_rank_that_never_answers_is_named(void **state) {
    (void)state;
    serve();
    world.worker[1].stuck = true;
    world_examine(&world, prompt, PROMPT_TOK, 0);
    while (world_deliver(&world, 0))
        continue;
    assert_int_equal(world.examine.reports, 1);
    wait_half_the_timeout();
    wait_half_the_timeout();
    expect_end(STATUS_UNAVAILABLE, "rank 1");
    world_stop(&world);
}

/* Ranks come to it when they are through with the step before, however long that takes. */
static void test_a_long_step_before_it_is_no_delay(void **state) {
    (void)state;
    serve();
    world.worker[0].stuck = world.worker[1].stuck = true;
    struct generate_request request = world_request(prompt, PROMPT_TOK, 20);
    struct world_call *call = world_call(&world, &request);
    world_examine(&world, prompt, PROMPT_TOK, 0);
    for (uint32_t i = 0; i < 6; i++)
        wait_half_the_timeout();
    assert_false(world.examine.ended);
    world_resize_by_memory(&world, 500000);
    for (uint32_t i = 0; i < 6; i++)
        wait_half_the_timeout();
    assert_false(world.examine.ended);
    assert_false(world.resize.ended);
    assert_false(call->ended);
    assert_true(core_snapshot(world.core, world.now_ns).ready);
    world_stop(&world);
}

static void test_nothing_is_examined_without_a_group_or_while_draining(void **state) {
    (void)state;
    world_init(&world);
    world_start(&world);
    world_examine(&world, prompt, 0, 0);
    expect_end(STATUS_UNAVAILABLE, "no group serves");
    world_stop(&world);
    serve();
    struct generate_request request = world_request(prompt, PROMPT_TOK, 20);
    request.ignore_eos = true;
    world_call(&world, &request);
    world_drain(&world, world.now_ns + 1000 * EVENT_NS_PER_MS);
    world_examine(&world, prompt, 0, 0);
    expect_end(STATUS_UNAVAILABLE, "draining");
    world_settle(&world);
    world_stop(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_rank_reports_the_same_pages),
        cmocka_unit_test(test_a_rank_that_cannot_ends_it),
        cmocka_unit_test(test_a_caller_who_left_makes_room),
        cmocka_unit_test(test_an_answer_to_nothing_ends_the_generation),
        cmocka_unit_test(test_a_rank_that_never_answers_is_named),
        cmocka_unit_test(test_a_long_step_before_it_is_no_delay),
        cmocka_unit_test(test_nothing_is_examined_without_a_group_or_while_draining),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
