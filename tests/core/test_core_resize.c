/* Another size of the pool and of the batch, while requests run: what they get must not change. */
#include "core_world.h"

#include <stdio.h>
#include <string.h>

static struct world world;

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define CALLS        6u

static uint32_t prompt[CALLS][20];
static struct generate_request request[CALLS];
static struct world_call *call[CALLS];

static void expect_words(const char *text, const char *words) {
    if (!strstr(text, words)) fail_msg("'%s' lacks '%s'", text, words);
}

/* Pages of 4 tokens, a context of 96: 24 pages; the pool has 48, and may have 120. */
static void serve(uint32_t tp) {
    world_init(&world);
    world.options.tp = tp;
    world.options.page_cap = 120;
    world.options.max_running_cap = 10;
    world_start(&world);
    world_serve(&world);
}

static struct snapshot now(void) {
    return core_snapshot(world.core, world.now_ns);
}

static void start_calls(uint32_t count, uint32_t max_tokens) {
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < COUNT(prompt[i]); k++)
            prompt[i][k] = 'a' + (i * 7 + k * (i + 1)) % 26;
        request[i] = world_request(prompt[i], COUNT(prompt[i]), max_tokens);
        request[i].ignore_eos = true;
        call[i] = world_call(&world, &request[i]);
    }
}

/* Some steps, whole ones. */
static void run(uint32_t steps) {
    for (uint32_t i = 0; i < steps; i++)
        for (uint32_t rank = 0; rank < world.options.tp; rank++)
            world_deliver(&world, rank);
}

static void expect_calls(uint32_t count) {
    world_settle(&world);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(call[i]->status, STATUS_OK);
        world_expect_stream(&world, call[i], &request[i]);
    }
    struct snapshot snapshot = now();
    assert_int_equal(snapshot.pages_free + snapshot.pages_cached, snapshot.pages_total);
}

static void expect_end(enum status status, const char *words, uint32_t pages) {
    assert_true(world.resize.ended);
    if (world.resize.status != status || !strstr(world.resize.text, words))
        fail_msg("%s: '%s' lacks '%s'", status_name(world.resize.status), world.resize.text, words);
    assert_int_equal(now().pages_total, pages);
    for (uint32_t rank = 0; rank < world.options.tp; rank++)
        assert_int_equal(world.worker[rank].limits.page_count, pages);
}

static void test_growing_waits_for_all_and_disturbs_nobody(void **state) {
    (void)state;
    serve(2);
    start_calls(4, 60);
    run(5);
    uint64_t steps = now().steps;
    world.worker[1].stuck = true; /* its step, and the answer behind it, wait */
    world_resize(&world, 399, 0, false);
    assert_int_equal(world.resize.progress.phase, RESIZE_CHANGING);
    while (world_deliver(&world, 0))
        continue;
    assert_int_equal(now().pages_total, 48);
    assert_false(world.resize.ended);
    world.worker[1].stuck = false;
    world_settle(&world);
    expect_end(STATUS_OK, "", 100);
    assert_int_equal(world.resize.progress.phase, RESIZE_DONE);
    assert_int_equal(world.resize.progress.pages_before, 48);
    assert_int_equal(now().retractions + now().evictions, 0);
    assert_int_equal(world.worker[0].moves, 0);
    assert_true(now().steps > steps);
    world_stop(&world);
}

static void test_growing_lets_more_in(void **state) {
    (void)state;
    serve(1);
    start_calls(CALLS,
                70); /* 23 pages each: two at a time, until replies are known to be shorter */
    run(4);
    uint32_t running = now().requests_running;
    assert_true(running < CALLS);
    world_resize(&world, 120 * 4, 0, false);
    run(4);
    expect_end(STATUS_OK, "", 120);
    assert_true(now().requests_running > running);
    expect_calls(CALLS);
    world_stop(&world);
}

static void test_shrinking_moves_what_runs(void **state) {
    (void)state;
    for (uint32_t overlap = 0; overlap < 2; overlap++) {
        world_init(&world);
        world.options.tp = 2;
        world.options.page_cap = 120;
        world.options.page_count = 120;
        world.options.overlap_steps = overlap;
        world_start(&world);
        world_serve(&world);
        start_calls(5, 40);
        run(6);
        for (uint32_t i = 0; i < 4; i++) /* what is left lies high in the pool */
            world_cancel(&world, call[i], STATUS_CANCELLED);
        world_step(&world, (struct event){.type = EVENT_FLUSH});
        run(2);
        world_resize(&world, 24 * 4, 0, false);
        run(6);
        expect_end(STATUS_OK, "", 24);
        assert_true(world.resize.progress.pages_moved > 0);
        assert_int_equal(world.worker[0].moves, world.resize.progress.pages_moved);
        assert_int_equal(world.worker[1].moves, world.resize.progress.pages_moved);
        assert_int_equal(world.resize.progress.requests_retracted, 0);
        assert_true(world.resize.phases & 1u << RESIZE_WAITING);
        world_settle(&world);
        assert_int_equal(call[4]->status, STATUS_OK);
        world_expect_stream(&world, call[4], &request[4]);
        world_stop(&world);
    }
}

/* The first of three choices ends with its first token, in the event in which the others begin:
 * from then on nothing but their copies to come holds the page they begin with, and the pool
 * shrinks. */
static void test_a_source_that_only_copies_hold_moves(void **state) {
    (void)state;
    world_init(&world);
    world.options.overlap_steps = false;
    world.options.page_cap = world.options.page_count = 120;
    world_start(&world);
    world_serve(&world);
    start_calls(5, 60);
    run(6);
    static const uint32_t fork[10] = {'f', 'o', 'r', 'k', 's', 'f', 'o', 'r', 'k', 's'};
    struct generate_request forks = world_request(fork, COUNT(fork), 1);
    forks.choice_count = 3;
    forks.ignore_eos = true;
    struct world_call *forked = world_call(&world, &forks);
    run(1); /* its prompt is on its way, in pages behind all others */
    for (uint32_t i = 0; i < 5; i++)
        world_cancel(&world, call[i], STATUS_CANCELLED);
    world_step(&world, (struct event){.type = EVENT_FLUSH});
    world_resize(&world, 24 * 4, 0, true); /* the pages of the cancelled are still in a step */
    assert_false(world.resize.ended);
    run(1);
    assert_int_equal(world.resize.progress.phase, RESIZE_CHANGING);
    assert_int_equal(forked->token_count, 1);
    assert_int_equal(world.resize.progress.pages_moved, 3);
    world_settle(&world);
    expect_end(STATUS_OK, "", 24);
    assert_int_equal(forked->status, STATUS_OK);
    assert_int_equal(world.resize.progress.requests_retracted, 0);
    for (uint32_t i = 0; i < forks.choice_count; i++)
        assert_int_equal(forked->choice[i].token[0], fake_draw(fork, COUNT(fork), 0, 0));
    world_stop(&world);
}

/* An idle pool: nothing runs, and what is cached stays found, as far as it fits. */
static void test_shrinking_keeps_the_most_valuable_prefixes(void **state) {
    (void)state;
    serve(2);
    world_resize(&world, 120 * 4, 0, false);
    world_settle(&world);
    for (uint32_t i = 0; i < CALLS; i++) {
        start_calls(i + 1, 4); /* each once more: the last is used the most lately */
        world_settle(&world);
    }
    uint32_t cached = now().pages_cached;
    assert_true(cached > 24);
    world_resize(&world, 24 * 4, 0, false);
    world_settle(&world);
    expect_end(STATUS_OK, "", 24);
    assert_int_equal(now().pages_cached, 24);
    assert_int_equal(world.resize.progress.pages_evicted, cached - 24);
    uint64_t found = now().tokens_cached;
    call[CALLS - 1] = world_call(&world, &request[CALLS - 1]);
    expect_calls(CALLS);
    assert_int_equal(now().tokens_cached - found, 19); /* all but the token that is computed */
    world_stop(&world);
}

static void test_force_sends_back_what_does_not_fit(void **state) {
    (void)state;
    serve(2);
    start_calls(4, 20);
    run(16);
    assert_int_equal(now().requests_running, 4);
    world_resize(&world, 24 * 4, 0, false);
    run(4);
    assert_true(world.resize.ended);
    if (world.resize.status != STATUS_OK) {
        expect_end(STATUS_FAILED_PRECONDITION, "or --force, which sends requests back", 48);
        world_resize(&world, 24 * 4, 0, true);
        run(4);
        assert_true(world.resize.progress.requests_retracted > 0);
    }
    expect_end(STATUS_OK, "", 24);
    expect_calls(4);
    world_stop(&world);
}

static void test_refusals(void **state) {
    (void)state;
    serve(2);
    const struct {
        uint32_t tokens, running;
        const char *words;
    } row[] = {
        {0, 0, "neither tokens nor mem_fraction nor max_running_requests"},
        {121 * 4, 0, "--tokens: found 484, accepted: up to 480"},
        {UINT32_MAX, 0, "accepted: up to 480"},
        {92, 0, "holds no request of the context length 96"},
        {0, 11, "--max-running-requests: found 11, accepted: 1 to 10"},
        {100, 11, "--max-running-requests: found 11"},
    };
    for (size_t i = 0; i < COUNT(row); i++) {
        world_resize(&world, row[i].tokens, row[i].running, true);
        expect_end(STATUS_INVALID_ARGUMENT, row[i].words, 48);
    }
    world_resize(&world, 48 * 4, 8, false); /* what is */
    expect_end(STATUS_OK, "", 48);
    world_kill(&world, 1);
    world_resize(&world, 100 * 4, 0, false);
    assert_int_equal(world.resize.status, STATUS_UNAVAILABLE);
    expect_words(world.resize.text, "no group serves: rank 1 is lost");
    world_launch(&world, 1);
    world_recover(&world);
    world_resize(&world, 100 * 4, 0, false);
    struct event event = {.type = EVENT_RESIZE};
    event.resize.call.slot = WORLD_RESIZE_SLOT;
    event.resize.request.tokens = 400;
    world.resize.ended = false;
    world_step(&world, event);
    assert_int_equal(world.resize.status, STATUS_ABORTED);
    expect_words(world.resize.text, "another resize is under way");
    world.resize.ended = false;
    world_settle(&world);
    expect_end(STATUS_OK, "", 100);
    start_calls(1, 40);
    world_drain(&world, world.now_ns + 5000 * WORLD_MS);
    world_resize(&world, 48 * 4, 0, false);
    expect_end(STATUS_UNAVAILABLE, "draining", 100);
    world_stop(&world);
}

static void test_a_rank_that_cannot_leaves_the_old_size(void **state) {
    (void)state;
    for (uint32_t rank = 0; rank < 2; rank++) {
        for (uint32_t shrinks = 0; shrinks < 2; shrinks++) {
            serve(2);
            start_calls(4, 30);
            run(6);
            world.worker[rank].cannot_resize = true;
            world_resize(&world, shrinks ? 160 : 400, 0, false);
            run(12);
            char words[64];
            snprintf(words, sizeof words, "rank %u: no memory for it; the old size stands", rank);
            expect_end(STATUS_RESOURCE_EXHAUSTED, words, 48);
            assert_true(world.resize.phases & 1u << RESIZE_UNDOING);
            assert_false(world.resize.phases & 1u << RESIZE_DONE);
            expect_calls(4);
            world_resize(&world, 400, 0, false); /* and the next one is as good as any */
            world_settle(&world);
            expect_end(STATUS_OK, "", 100);
            world_stop(&world);
        }
    }
}

/* Ranks of 100 and 90 pages, of which one is the weights'. */
static void serve_memory(void) {
    serve(2);
    world.worker[0].memory_pages = 100;
    world.worker[1].memory_pages = 90;
}

static void test_a_fraction_is_what_the_smallest_rank_holds(void **state) {
    (void)state;
    serve_memory();
    start_calls(4, 60);
    run(5);
    world_resize_by_memory(&world, 800000);
    assert_int_equal(world.resize.progress.phase, RESIZE_SIZING);
    world_deliver(&world, 0);
    assert_int_equal(now().pages_total, 48);
    run(8);
    expect_end(STATUS_OK, "", 71);
    assert_int_equal(world.resize.phases,
                     1u << RESIZE_SIZING | 1u << RESIZE_CHANGING | 1u << RESIZE_DONE);
    world_kill(&world, 1); /* who comes back is told the fraction, and the size */
    world_launch(&world, 1);
    world_recover(&world);
    assert_int_equal(world.worker[1].limits.mem_fraction, 800000);
    assert_int_equal(world.worker[1].limits.page_count, 71);
    world.worker[1].memory_pages = 90;
    world_resize_by_memory(&world, 400000);
    world_settle(&world);
    expect_end(STATUS_OK, "", 35);
    world_resize(&world, 200, 0, false); /* a size in tokens leaves no fraction */
    world_settle(&world);
    world_kill(&world, 0);
    world_launch(&world, 0);
    world_recover(&world);
    assert_int_equal(world.worker[0].limits.mem_fraction, 0);
    assert_int_equal(world.worker[0].limits.page_count, 50);
    world_stop(&world);
}

static void test_refusals_of_a_fraction(void **state) {
    (void)state;
    serve_memory();
    const struct {
        uint32_t memory_pages, mem_fraction;
        const char *words;
    } row[] = {
        {90, 200000,
         "--mem-fraction-static: found 0.2, a pool of 68 tokens on rank 1, which holds no request "
         "of the context length 96; accepted: 0.500 or more"},
        {90, 1, "found 1e-06, a pool of 0 tokens on rank"},
        {1000, 1000000, "found 1, a pool of 396 tokens on rank 0"},
    };
    for (size_t i = 0; i < COUNT(row) - 1; i++) {
        world.worker[1].memory_pages = row[i].memory_pages;
        world_resize_by_memory(&world, row[i].mem_fraction);
        world_settle(&world);
        expect_end(STATUS_INVALID_ARGUMENT, row[i].words, 48);
        assert_int_equal(world.resize.phases, 1u << RESIZE_SIZING);
    }
    world.worker[0].memory_pages = world.worker[1].memory_pages = 1000;
    world_resize_by_memory(&world, 1000000);
    world_settle(&world);
    expect_end(STATUS_INVALID_ARGUMENT,
               "found 1, a pool of 3996 tokens on rank 0, accepted: up to "
               "480, what the coordinator was started for",
               48);
    start_calls(3, 60);
    run(40); /* more than 100 tokens are in use then */
    world.worker[1].memory_pages = 90;
    world_resize_by_memory(&world, 290000);
    run(8);
    expect_end(STATUS_FAILED_PRECONDITION, "a pool of 100 tokens on rank 1; running requests use",
               48);
    struct event event = {.type = EVENT_RESIZE};
    event.resize.call.slot = WORLD_RESIZE_SLOT;
    event.resize.request = (struct resize_request){.tokens = 400, .mem_fraction = 500000};
    world.resize.ended = false;
    world_step(&world, event);
    expect_end(STATUS_INVALID_ARGUMENT, "--tokens 400 and --mem-fraction-static 0.5", 48);
    expect_calls(3);
    world_stop(&world);
}

/* One rank's memory says yes, and its system then no. */
static void test_a_fraction_that_a_rank_cannot_have(void **state) {
    (void)state;
    serve_memory();
    world.worker[1].cannot_resize = true;
    world_resize_by_memory(&world, 800000);
    world_settle(&world);
    expect_end(STATUS_RESOURCE_EXHAUSTED, "rank 1: no memory for it; the old size stands", 48);
    world_kill(&world, 1);
    world_launch(&world, 1);
    world_recover(&world);
    assert_int_equal(world.worker[1].limits.mem_fraction, 0); /* as it was */
    world_stop(&world);
}

static void test_a_rank_lost_while_sizes_are_asked(void **state) {
    (void)state;
    serve_memory();
    world_resize_by_memory(&world, 800000);
    world_deliver(&world, 0);
    world_kill(&world, 1);
    assert_true(world.resize.ended);
    assert_int_equal(world.resize.status, STATUS_UNAVAILABLE);
    expect_words(world.resize.text, "the old size stands");
    assert_int_equal(now().pages_total, 48);
    world_launch(&world, 1);
    world_recover(&world);
    start_calls(3, 30);
    expect_calls(3);
    world_stop(&world);
}

static void test_a_lost_rank_leaves_the_old_size(void **state) {
    (void)state;
    for (uint32_t shrinks = 0; shrinks < 2; shrinks++) {
        serve(2);
        world_resize(&world, shrinks ? 24 * 4 : 400, 0, false);
        world_deliver(&world, 0); /* one of two answers */
        assert_false(world.resize.ended);
        world_kill(&world, 1);
        assert_true(world.resize.ended);
        assert_int_equal(world.resize.status, STATUS_UNAVAILABLE);
        expect_words(world.resize.text, "the old size stands");
        assert_int_equal(now().pages_total, 48);
        assert_int_not_equal(world.worker[0].limits.page_count, 48);
        world_launch(&world, 1);
        world_recover(&world);
        expect_end(STATUS_UNAVAILABLE, "", 48); /* the group was formed with it */
        start_calls(3, 30);
        expect_calls(3);
        world_stop(&world);
    }
}

static void test_a_rank_that_does_not_answer(void **state) {
    (void)state;
    serve(2);
    world_resize(&world, 400, 0, false);
    world_deliver(&world, 0);
    for (int i = 0; i < 10; i++) {
        assert_false(world.resize.ended);
        world_tick(&world, 100 * WORLD_MS);
        for (uint32_t rank = 0; rank < 2; rank++) {
            const struct worker_message beat = {.type = WORKER_HEARTBEAT,
                                                .heartbeat.generation = 1};
            world_message(&world, rank, &beat);
        }
    }
    assert_true(world.resize.ended);
    expect_words(world.resize.text, "rank 1: it does not answer the order to resize");
    while (world_take_answer(&world, 1))
        continue;
    world_recover(&world);
    assert_true(now().ready);
    assert_int_equal(now().generation, 2);
    world_stop(&world);
}

/* An answer out of turn ends the generation. */
static void test_answers_nobody_asked_for(void **state) {
    (void)state;
    serve(2);
    const struct worker_message answer = {.type = WORKER_RESIZED,
                                          .resized = {.generation = 1, .number = 1, .text = ""}};
    world_message(&world, 1, &answer);
    assert_false(now().ready);
    world_recover(&world);
    assert_int_equal(now().generation, 2);
    world_message(&world, 1, &answer); /* of an old generation: no harm */
    assert_true(now().ready);
    world_resize(&world, 400, 0, false);
    struct worker_message *mine = world_take_answer(&world, 1);
    struct worker_message twice = *mine;
    world_message(&world, 1, &twice);
    world_message(&world, 1, &twice);
    assert_false(now().ready);
    world_recover(&world);
    expect_end(STATUS_UNAVAILABLE, "not asked for", 48);
    world_stop(&world);
}

static void test_who_does_not_wait_for_the_end(void **state) {
    (void)state;
    serve(1);
    world_resize(&world, 400, 0, false);
    struct event event = {.type = EVENT_CANCEL};
    event.cancel.call.slot = WORLD_RESIZE_SLOT;
    event.cancel.reason = STATUS_CANCELLED;
    world_step(&world, event);
    assert_int_equal(world.resize.status, STATUS_CANCELLED);
    world_settle(&world);
    expect_end(STATUS_CANCELLED, "goes on", 100);
    world_stop(&world);
}

/* In a pool shorter than the context: a reply as long as the pool allows becomes shorter with it,
 * and one whose length was named must still be possible. */
static void test_replies_in_a_short_pool(void **state) {
    (void)state;
    world_init(&world);
    world.options.allow_short_pool = true;
    world.options.page_count = 20;
    world.options.page_cap = 40;
    world_start(&world);
    world_serve(&world);
    start_calls(1, 0);
    run(10);
    world_resize(&world, 28, 0, false);
    expect_end(STATUS_FAILED_PRECONDITION, "found 28; a request that runs or waits may need", 20);
    world_resize(&world, 40, 0, false);
    world_settle(&world);
    expect_end(STATUS_OK, "", 10);
    assert_int_equal(call[0]->status, STATUS_OK);
    assert_int_equal(call[0]->summary.finish_reason, FINISH_LENGTH);
    assert_int_equal(call[0]->token_count, 40 - COUNT(prompt[0]));
    start_calls(1, 20);
    run(3);
    world_resize(&world, 36, 0, true);
    expect_end(STATUS_FAILED_PRECONDITION, "may need 40 alone", 10);
    expect_calls(1);
    world_stop(&world);
}

static void test_the_batch(void **state) {
    (void)state;
    serve(1);
    start_calls(CALLS, 4);
    run(3);
    assert_int_equal(now().requests_running, CALLS);
    world_resize(&world, 0, 2, false);
    expect_end(STATUS_OK, "", 48);
    assert_int_equal(now().max_running_requests, 2);
    start_calls(CALLS, 30); /* those before finish; of these, two at a time */
    while (now().requests_finished < CALLS)
        run(1);
    run(2);
    assert_int_equal(now().requests_running, 2);
    world_resize(&world, 0, 10, false);
    run(1);
    assert_true(now().requests_running > 2);
    expect_calls(CALLS);
    world_resize(&world, 100 * 4, 1, false); /* both, in one */
    world_settle(&world);
    expect_end(STATUS_OK, "", 100);
    assert_int_equal(now().max_running_requests, 1);
    world_stop(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_growing_waits_for_all_and_disturbs_nobody),
        cmocka_unit_test(test_growing_lets_more_in),
        cmocka_unit_test(test_shrinking_moves_what_runs),
        cmocka_unit_test(test_a_source_that_only_copies_hold_moves),
        cmocka_unit_test(test_shrinking_keeps_the_most_valuable_prefixes),
        cmocka_unit_test(test_force_sends_back_what_does_not_fit),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_a_rank_that_cannot_leaves_the_old_size),
        cmocka_unit_test(test_a_fraction_is_what_the_smallest_rank_holds),
        cmocka_unit_test(test_refusals_of_a_fraction),
        cmocka_unit_test(test_a_fraction_that_a_rank_cannot_have),
        cmocka_unit_test(test_a_rank_lost_while_sizes_are_asked),
        cmocka_unit_test(test_a_lost_rank_leaves_the_old_size),
        cmocka_unit_test(test_a_rank_that_does_not_answer),
        cmocka_unit_test(test_answers_nobody_asked_for),
        cmocka_unit_test(test_who_does_not_wait_for_the_end),
        cmocka_unit_test(test_replies_in_a_short_pool),
        cmocka_unit_test(test_the_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
