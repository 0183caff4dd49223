/* Sharing and want of room through the whole core: prefixes found, waited for, copied, adopted,
 * withdrawn; the pool over-committed and corrected; who is let in first, and who is refused. */
#include "core_world.h"

#include <string.h>

static struct world world;

static void fill(uint32_t *prompt, uint32_t begin, uint32_t end, uint64_t seed) {
    for (uint32_t i = begin; i < end; i++)
        prompt[i] = (uint32_t)('a' + world_random(&seed) % 26);
}

static void serve(void) {
    world_start(&world);
    world_serve(&world);
}

static struct snapshot look(void) {
    return core_snapshot(world.core, world.now_ns);
}

static struct generate_request ask(const uint32_t *prompt, uint32_t count, uint32_t max_tokens) {
    struct generate_request request = world_request(prompt, count, max_tokens);
    request.ignore_eos = true;
    return request;
}

static void test_a_prefix_is_found_again(void **state) {
    (void)state;
    static const struct {
        uint32_t page_tok, first, second, shared, cached;
    } row[] = {
        {4, 40, 40, 40, 39}, /* all but the last token, which is computed: the next comes of it */
        {4, 41, 41, 41, 40},  {4, 40, 60, 40, 40},
        {4, 40, 60, 22, 22}, /* five pages and half of the sixth, copied */
        {4, 40, 60, 3, 3},    {1, 40, 60, 17, 17},
        {16, 40, 60, 35, 35}, /* replies are cached too: the third page was filled by one */
        {64, 40, 60, 35, 0},  /* no page was ever full */
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        world_init(&world);
        world.options.page_tok = row[i].page_tok;
        world.options.page_count = 192 / row[i].page_tok;
        serve();
        uint32_t prompt[2][96];
        fill(prompt[0], 0, 96, 1);
        fill(prompt[1], 0, 96, 2);
        memcpy(prompt[1], prompt[0], row[i].shared * sizeof(uint32_t));
        struct generate_request first = ask(prompt[0], row[i].first, 12),
                                second = ask(prompt[1], row[i].second, 12);
        struct world_call *call = world_call(&world, &first);
        world_settle(&world);
        uint64_t computed = look().tokens_prompt;
        assert_int_equal(computed, row[i].first);
        struct world_call *again = world_call(&world, &second);
        world_settle(&world);
        world_expect_stream(&world, call, &first);
        world_expect_stream(&world, again, &second);
        assert_int_equal(call->summary.cached_tokens, 0);
        assert_int_equal(again->summary.cached_tokens, row[i].cached);
        assert_int_equal(look().tokens_prompt - computed, row[i].second - row[i].cached);
        assert_int_equal(look().tokens_cached, row[i].cached);
        assert_int_equal(look().tokens_looked_up, row[i].first + row[i].second);
        world_expect_idle(&world);
        world_stop(&world);
    }
}

static void test_without_the_cache(void **state) {
    (void)state;
    world_init(&world);
    world.options.disable_prefix_cache = true;
    serve();
    uint32_t prompt[40];
    fill(prompt, 0, 40, 1);
    struct generate_request request = ask(prompt, 40, 4);
    for (uint32_t i = 0; i < 2; i++) {
        struct world_call *call = world_call(&world, &request);
        world_settle(&world);
        world_expect_stream(&world, call, &request);
        assert_int_equal(call->summary.cached_tokens, 0);
    }
    assert_int_equal(look().tokens_prompt, 80);
    assert_int_equal(look().pages_free, look().pages_total);
    world_stop(&world);
}

/* Three callers with one prompt: the first computes it, the others wait for its pages. */
static void test_a_prefix_being_computed_is_waited_for(void **state) {
    (void)state;
    world_init(&world);
    serve();
    uint32_t prompt[3][60], other[20];
    fill(other, 0, 20, 9);
    for (uint32_t i = 0; i < 3; i++) {
        fill(prompt[i], 0, 40, 1);
        fill(prompt[i], 40, 60, 2 + i);
    }
    struct generate_request request[3], stranger = ask(other, 20, 3);
    struct world_call *call[3];
    for (uint32_t i = 0; i < 3; i++) {
        request[i] = ask(prompt[i], 60, 8);
        call[i] = world_call(&world, &request[i]);
    }
    struct world_call *past = world_call(&world, &stranger);
    assert_int_equal(look().requests_running, 2); /* the first, and who has nothing to share */
    world_settle(&world);
    for (uint32_t i = 0; i < 3; i++) {
        world_expect_stream(&world, call[i], &request[i]);
        assert_int_equal(call[i]->summary.cached_tokens, i == 0 ? 0 : 40);
    }
    world_expect_stream(&world, past, &stranger);
    assert_int_equal(look().tokens_prompt, 60 + 20 + 20 + 20);
    world_expect_idle(&world);
    world_stop(&world);
}

/* Nothing is seen before its results: a rank still computes, or the step is lost. */
static void test_a_prefix_is_not_seen_too_early(void **state) {
    (void)state;
    world_init(&world);
    world.options.tp = 2;
    serve();
    uint32_t prompt[12];
    fill(prompt, 0, 12, 1);
    struct generate_request request = ask(prompt, 12, 4);
    struct world_call *first = world_call(&world, &request);
    world_deliver(&world, 0); /* and not rank 1 */
    assert_int_equal(look().pages_cached, 0);
    world_kill(&world, 1);
    assert_int_equal(first->status, STATUS_UNAVAILABLE);
    assert_int_equal(look().pages_free, look().pages_total);
    world_launch(&world, 1);
    world_recover(&world);
    struct world_call *second = world_call(&world, &request);
    world_settle(&world);
    world_expect_stream(&world, second, &request);
    assert_int_equal(second->summary.cached_tokens, 0);
    world_stop(&world);
}

/* Two compute one prefix in different steps, for it did not show at first; one adopts. */
static void test_pages_are_adopted(void **state) {
    (void)state;
    world_init(&world);
    serve();
    uint32_t prompt[30], longer[96];
    fill(prompt, 0, 30, 1);
    struct generate_request request = ask(prompt, 30, 40);
    struct world_call *one = world_call(&world, &request);
    while (one->token_count < 3)
        assert_true(world_deliver(&world, 0));
    /* What the first will draw, the second has in its prompt. */
    memcpy(longer, prompt, sizeof prompt);
    uint32_t count = 30;
    for (; count < 55; count++)
        longer[count] = fake_draw(longer, count, 0, 0);
    struct generate_request follow = ask(longer, count, 30);
    struct world_call *two = world_call(&world, &follow);
    world_settle(&world);
    world_expect_stream(&world, one, &request);
    world_expect_stream(&world, two, &follow);
    world_expect_idle(&world);
    /* 96 tokens at most in one branch, but for the page at its end: no page twice. */
    assert_true(look().pages_cached <= 24);
    world_stop(&world);
}

static struct world_call *call_as(const struct generate_request *request, const char *tenant,
                                  const char *key, int32_t priority) {
    world.next_tenant = tenant;
    world.next_key = key;
    world.next_priority = priority;
    struct world_call *call = world_call(&world, request);
    world.next_tenant = world.next_key = NULL;
    world.next_priority = 0;
    return call;
}

static void test_tenants_share_nothing(void **state) {
    (void)state;
    world_init(&world);
    serve();
    uint32_t prompt[40];
    fill(prompt, 0, 40, 1);
    struct generate_request request = ask(prompt, 40, 4);
    static const struct {
        const char *tenant;
        uint32_t cached;
    } row[] = {{"a", 0}, {"b", 0}, {"", 0}, {"a", 39}, {NULL, 39}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct world_call *call = call_as(&request, row[i].tenant, NULL, 0);
        world_settle(&world);
        world_expect_stream(&world, call, &request);
        assert_int_equal(call->summary.cached_tokens, row[i].cached);
    }
    world_stop(&world);
}

static void test_flush(void **state) {
    (void)state;
    world_init(&world);
    serve();
    uint32_t prompt[2][40];
    fill(prompt[0], 0, 40, 1);
    fill(prompt[1], 0, 40, 2);
    struct generate_request request[2] = {ask(prompt[0], 40, 4), ask(prompt[1], 40, 4)};
    for (uint32_t i = 0; i < 2; i++)
        world_call(&world, &request[i]);
    world_settle(&world);
    struct event event = {.type = EVENT_FLUSH};
    event.flush.token = prompt[0];
    event.flush.token_count = 8;
    world_step(&world, event);
    assert_non_null(strstr(world.log, "pages=9")); /* 43 tokens committed, less the first page */
    static const uint32_t cached[] = {4, 39};
    for (uint32_t i = 0; i < 2; i++) {
        struct world_call *call = world_call(&world, &request[i]);
        world_settle(&world);
        world_expect_stream(&world, call, &request[i]);
        assert_int_equal(call->summary.cached_tokens, cached[i]);
    }
    struct world_call *running = world_call(&world, &request[0]);
    event.flush.token_count = 0;
    world_step(&world, event); /* while one reads the pages */
    world_settle(&world);
    world_expect_stream(&world, running, &request[0]);
    assert_int_equal(look().pages_free, look().pages_total);
    world_stop(&world);
}

/* Short replies teach the core to expect short ones; then long ones come, all at once. */
static void test_want_of_room_is_corrected(void **state) {
    (void)state;
    enum { LONG = 6 };
    world_init(&world);
    serve();
    uint32_t prompt[8 + LONG][8];
    for (uint32_t i = 0; i < 8; i++) {
        fill(prompt[i], 0, 8, i + 1);
        struct generate_request brief = ask(prompt[i], 8, 1);
        world_call(&world, &brief);
        world_settle(&world);
    }
    struct generate_request request[LONG];
    struct world_call *call[LONG];
    for (uint32_t i = 0; i < LONG; i++) {
        fill(prompt[8 + i], 0, 8, 100 + i);
        request[i] = ask(prompt[8 + i], 8, 80);
        call[i] = world_call(&world, &request[i]);
    }
    assert_int_equal(look().requests_running, LONG);
    assert_true(look().pages_promised > 2 * look().pages_total); /* over-committed, and said so */
    uint32_t running_least = LONG;
    while (world_deliver(&world, 0))
        if (look().requests_running < running_least && look().requests_waiting > 0)
            running_least = look().requests_running;
    for (uint32_t i = 0; i < LONG; i++) {
        assert_int_equal(call[i]->status, STATUS_OK);
        world_expect_stream(&world, call[i], &request[i]);
    }
    assert_in_range(look().retractions, 1, 3 * LONG); /* and not for ever */
    assert_true(look().tokens_recomputed < (uint64_t)LONG * 88);
    assert_true(running_least >= 1);
    world_expect_idle(&world);
    world_stop(&world);
}

/* The oldest is never sent back, so its first token comes as if it were alone. */
static void test_the_oldest_goes_on(void **state) {
    (void)state;
    world_init(&world);
    serve();
    uint32_t prompt[12][8];
    struct generate_request request[12];
    struct world_call *call[12];
    for (uint32_t i = 0; i < 12; i++) {
        fill(prompt[i], 0, 8, i + 1);
        request[i] = ask(prompt[i], 8, i < 8 ? 1 : 80);
        call[i] = world_call(&world, &request[i]);
        if (i < 8) world_settle(&world);
    }
    uint32_t drawn = 0;
    while (!call[8]->ended) {
        assert_true(world_deliver(&world, 0));
        assert_int_equal(call[8]->token_count, ++drawn);
    }
    world_settle(&world);
    for (uint32_t i = 0; i < 12; i++)
        world_expect_stream(&world, call[i], &request[i]);
    world_stop(&world);
}

/* Replies of many lengths, more than the pool can hold: as fast as if only as many ran as fit for
 * certain, and little is computed twice. */
static void test_a_crowd_is_no_slower(void **state) {
    (void)state;
    enum { CROWD = 32 };
    uint64_t steps[2];
    for (uint32_t many = 0; many < 2; many++) {
        world_init(&world);
        world.options.max_running_requests = many ? 16 : 4;
        world.options.max_queued_requests = CROWD;
        serve(); /* 48 pages: four requests of twelve */
        uint32_t prompt[CROWD][8];
        struct generate_request request[CROWD];
        struct world_call *call[CROWD];
        for (uint32_t i = 0; i < CROWD; i++) {
            fill(prompt[i], 0, 8, i + 1);
            request[i] = ask(prompt[i], 8, 40);
            request[i].ignore_eos = i % 2; /* some end early, and mislead */
            call[i] = world_call(&world, &request[i]);
        }
        world_settle(&world);
        uint64_t tokens = 0;
        for (uint32_t i = 0; i < CROWD; i++) {
            world_expect_stream(&world, call[i], &request[i]);
            assert_int_equal(call[i]->status, STATUS_OK);
            tokens += 8 + call[i]->token_count;
        }
        assert_true(look().tokens_recomputed * 10 <= tokens);
        steps[many] = world.worker[0].step;
        world_stop(&world);
    }
    print_message("steps: %u at most four at a time, %u as the pool allows\n", (unsigned)steps[0],
                  (unsigned)steps[1]);
    assert_true(steps[1] * 9 <= steps[0] * 10);
}

/* Who was sent back comes before who never ran, whatever the policy says. */
static void test_retracted_ones_come_first(void **state) {
    (void)state;
    world_init(&world);
    world.options.schedule_policy = SCHEDULE_SHORTEST;
    serve();
    uint32_t prompt[16][8];
    struct generate_request request[16];
    struct world_call *call[16];
    for (uint32_t i = 0; i < 12; i++) {
        fill(prompt[i], 0, 8, i + 1);
        request[i] = ask(prompt[i], 8, i < 8 ? 1 : 80);
        call[i] = world_call(&world, &request[i]);
        if (i < 8) world_settle(&world);
    }
    while (look().retractions == 0)
        assert_true(world_deliver(&world, 0));
    for (uint32_t i = 12; i < 16; i++) { /* short ones arrive and must wait */
        fill(prompt[i], 0, 8, i + 1);
        request[i] = ask(prompt[i], 2, 60);
        call[i] = world_call(&world, &request[i]);
    }
    while (look().requests_waiting > 4) { /* somebody is still sent back */
        for (uint32_t i = 12; i < 16; i++)
            assert_int_equal(call[i]->token_count, 0);
        assert_true(world_deliver(&world, 0));
    }
    world_settle(&world);
    for (uint32_t i = 8; i < 16; i++) {
        world_expect_stream(&world, call[i], &request[i]);
        assert_int_equal(call[i]->status, STATUS_OK);
    }
    world_stop(&world);
}

/* The order in which calls come to their first token, one running at a time. */
static void expect_order(enum schedule_policy policy, const int32_t *priority,
                         const uint32_t *prompt_count, const char *expected) {
    world_init(&world);
    world.options.max_running_requests = 1;
    world.options.schedule_policy = policy;
    serve();
    uint32_t prompt[4][40];
    struct generate_request request[4], head;
    struct world_call *call[4];
    fill(prompt[3], 0, 40, 77);
    head = ask(prompt[3], 24, 20);
    struct world_call *first = world_call(&world, &head); /* runs while the others come */
    for (uint32_t i = 0; i < 3; i++) {
        fill(prompt[i], 0, 40, i + 1);
        if (i == 2) memcpy(prompt[i], prompt[3], 20 * sizeof(uint32_t));
        request[i] = ask(prompt[i], prompt_count[i], 2);
        call[i] = call_as(&request[i], NULL, NULL, priority[i]);
        world.now_ns += WORLD_MS;
    }
    char order[4] = "";
    uint32_t taken = 0;
    while (taken < 3) {
        assert_true(world_deliver(&world, 0));
        for (uint32_t i = 0; i < 3; i++) {
            char name = (char)('a' + i);
            if (call[i]->token_count > 0 && !strchr(order, name)) order[taken++] = name;
        }
    }
    assert_string_equal(order, expected);
    world_settle(&world);
    assert_true(first->ended);
    for (uint32_t i = 0; i < 3; i++)
        world_expect_stream(&world, call[i], &request[i]);
    world_stop(&world);
}

static void test_policies(void **state) {
    (void)state;
    static const int32_t same[] = {0, 0, 0}, rising[] = {-1, 0, 1};
    static const uint32_t counts[] = {30, 8, 24};
    expect_order(SCHEDULE_FCFS, rising, counts, "abc");
    expect_order(SCHEDULE_SHORTEST, same, counts, "bca");
    expect_order(SCHEDULE_LONGEST_PREFIX, same, counts, "cab");
    expect_order(SCHEDULE_PRIORITY, rising, counts, "cba");
}

/* Ten seconds of waiting weigh as much as one step of priority. */
static void test_priorities_age(void **state) {
    (void)state;
    for (uint32_t seconds = 9; seconds <= 11; seconds += 2) {
        world_init(&world);
        world.options.max_running_requests = 1;
        world.options.schedule_policy = SCHEDULE_PRIORITY;
        world_start(&world); /* nobody serves yet */
        uint32_t prompt[2][8];
        fill(prompt[0], 0, 8, 1);
        fill(prompt[1], 0, 8, 2);
        struct generate_request request[] = {ask(prompt[0], 8, 2), ask(prompt[1], 8, 2)};
        struct world_call *low = call_as(&request[0], NULL, NULL, 0);
        world.now_ns += seconds * 1000 * WORLD_MS;
        struct world_call *high = call_as(&request[1], NULL, NULL, 1);
        world_launch(&world, 0);
        while (low->token_count + high->token_count == 0)
            assert_true(world_deliver(&world, 0));
        assert_int_equal(low->token_count, seconds > 10);
        world_settle(&world);
        world_stop(&world);
    }
}

/* A millisecond of waiting weighs as much as a cached token, in whole pages. */
static void test_prefixes_age(void **state) {
    (void)state;
    for (int more = -1; more <= 1; more += 2) {
        world_init(&world);
        world.options.max_running_requests = 1;
        world.options.schedule_policy = SCHEDULE_LONGEST_PREFIX;
        serve();
        uint32_t begun[40], other[40];
        fill(begun, 0, 40, 1);
        fill(other, 0, 40, 2);
        uint32_t cached_tok = (40 - 1) / world.options.page_tok * world.options.page_tok;
        struct generate_request head = ask(begun, 40, 20),
                                request[] = {ask(other, 40, 2), ask(begun, 40, 2)};
        struct world_call *running = world_call(&world, &head);
        struct world_call *early = world_call(&world, &request[0]);
        world.now_ns += ((int64_t)cached_tok + more) * WORLD_MS;
        struct world_call *cached = world_call(&world, &request[1]);
        while (early->token_count + cached->token_count == 0)
            assert_true(world_deliver(&world, 0));
        assert_int_equal(early->token_count > 0, more > 0);
        world_settle(&world);
        world_expect_stream(&world, running, &head);
        world_stop(&world);
    }
}

static void test_queue_timeout(void **state) {
    (void)state;
    world_init(&world);
    world.options.queue_timeout_ms = 500;
    world.options.max_running_requests = 1;
    serve();
    uint32_t prompt[8] = {'a'};
    struct generate_request request = ask(prompt, 8, 80);
    struct generate_request text = {.prompt_kind = PROMPT_TEXT, .prompt_text = bytes_of_text("x")};
    struct world_call *running = world_call(&world, &request);
    struct world_call *waiting = world_call(&world, &request);
    world_tick(&world, 300 * WORLD_MS);
    struct world_call *queued = world_call(&world, &text);
    world_tick(&world, 199 * WORLD_MS);
    assert_false(waiting->ended);
    assert_true(world.timer_ns <= world.now_ns + WORLD_MS); /* it would be told in time */
    world_tick(&world, WORLD_MS);
    assert_int_equal(waiting->status, STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(waiting->status_text, "--queue-timeout"));
    assert_false(queued->ended);
    world_tick(&world, 300 * WORLD_MS);
    assert_int_equal(queued->status, STATUS_RESOURCE_EXHAUSTED);
    assert_false(running->ended);
    world_settle(&world);
    world_expect_stream(&world, running, &request);
    world_stop(&world);
}

static void test_queue_limit_in_tokens(void **state) {
    (void)state;
    world_init(&world);
    world.options.max_queued_tokens = 1000; /* two blocks of 512 */
    world_start(&world);
    uint32_t prompt[90] = {'a'};
    struct generate_request request = ask(prompt, 90, 1);
    struct world_call *call[3];
    for (uint32_t i = 0; i < 3; i++)
        call[i] = world_call(&world, &request);
    assert_false(call[1]->ended);
    assert_int_equal(call[2]->status, STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(call[2]->status_text, "--max-queued-tokens"));
    core_destroy(&world.core);
}

static void test_idempotency_keys(void **state) {
    (void)state;
    world_init(&world);
    serve();
    uint32_t prompt[8] = {'a'};
    struct generate_request request = ask(prompt, 8, 10);
    struct world_call *first = call_as(&request, "t", "k1", 0);
    struct world_call *twice = call_as(&request, "t", "k1", 0);
    struct world_call *other_key = call_as(&request, "t", "k2", 0);
    struct world_call *other_tenant = call_as(&request, "u", "k1", 0);
    assert_int_equal(twice->status, STATUS_ALREADY_EXISTS);
    assert_non_null(strstr(twice->status_text, "'k1'"));
    world_settle(&world);
    struct world_call *later = call_as(&request, "t", "k1", 0); /* it has ended: a new call */
    world_settle(&world);
    struct world_call *served[] = {first, other_key, other_tenant, later};
    for (size_t i = 0; i < sizeof served / sizeof served[0]; i++) {
        assert_int_equal(served[i]->status, STATUS_OK);
        world_expect_stream(&world, served[i], &request);
    }
    world_stop(&world);
}

static void test_a_cancel_says_what_it_freed(void **state) {
    (void)state;
    world_init(&world);
    world.options.chunked_prefill_size = 16;
    serve();
    uint32_t prompt[40];
    fill(prompt, 0, 40, 1);
    struct generate_request request = ask(prompt, 40, 20);
    struct world_call *call = world_call(&world, &request);
    while (call->token_count < 5)
        assert_true(world_deliver(&world, 0));
    world_cancel(&world, call, STATUS_CANCELLED);
    assert_int_equal(call->summary.freed_tokens, 44);
    world_settle(&world);
    world_expect_idle(&world);
    world_stop(&world);
}

static void test_budgets(void **state) {
    (void)state;
    world_init(&world);
    world.options.max_step_rows = 12;
    serve();
    uint32_t prompt[6][40];
    struct generate_request request[6];
    struct world_call *call[6];
    for (uint32_t i = 0; i < 6; i++) {
        fill(prompt[i], 0, 40, i + 1);
        request[i] = ask(prompt[i], 10 + 5 * i, 5);
        call[i] = world_call(&world, &request[i]);
    }
    world_settle(&world);
    assert_int_equal(world.worker[0].rows_most, 12);
    for (uint32_t i = 0; i < 6; i++)
        world_expect_stream(&world, call[i], &request[i]);
    world_stop(&world);

    world_init(&world);
    world.options.max_prefill_tokens = 50;
    serve();
    for (uint32_t i = 0; i < 6; i++)
        call[i] = world_call(&world, &request[i]);
    assert_int_equal(look().requests_running, 3); /* 10 + 15 + 20, and not 25 more */
    world_settle(&world);
    for (uint32_t i = 0; i < 6; i++)
        world_expect_stream(&world, call[i], &request[i]);
    world_stop(&world);
}

/* A short prompt gets through beside a long one that was first. */
static void test_a_short_prompt_is_not_stuck_behind_a_long_one(void **state) {
    (void)state;
    world_init(&world);
    serve();
    uint32_t prompt[2][96];
    fill(prompt[0], 0, 96, 1);
    fill(prompt[1], 0, 96, 2);
    struct generate_request longer = ask(prompt[0], 90, 2), brief = ask(prompt[1], 4, 2);
    struct world_call *first = world_call(&world, &longer);
    struct world_call *second = world_call(&world, &brief);
    world_deliver(&world, 0);
    world_deliver(&world, 0);
    assert_int_equal(second->token_count, 1);
    assert_int_equal(first->token_count, 0);
    world_settle(&world);
    world_expect_stream(&world, first, &longer);
    world_expect_stream(&world, second, &brief);
    world_stop(&world);
}

/* Rows take a millisecond and a step one more: of ten, two decode, and seven are left. */
static void test_target_step(void **state) {
    (void)state;
    world_init(&world);
    world.options.target_step_ms = 10;
    world.options.page_count = 96;
    serve();
    world.worker[0].cost_row_ns = WORLD_MS;
    uint32_t prompt[3][96];
    for (uint32_t i = 0; i < 3; i++)
        fill(prompt[i], 0, 96, i + 1);
    struct generate_request request[] = {ask(prompt[0], 5, 85), ask(prompt[1], 9, 80),
                                         ask(prompt[2], 64, 3)};
    struct world_call *call[3] = {world_call(&world, &request[0]), world_call(&world, &request[1])};
    while (call[1]->token_count < 20)
        assert_true(world_deliver(&world, 0));
    call[2] = world_call(&world, &request[2]);
    world_deliver(&world, 0);
    for (uint32_t i = 0; i < 4; i++) {
        assert_in_range(world.worker[0].rows_last, 9, 10); /* the least chunk is eight */
        world_deliver(&world, 0);
    }
    world_settle(&world);
    for (uint32_t i = 0; i < 3; i++)
        world_expect_stream(&world, call[i], &request[i]);
    world_stop(&world);
}

/* Plans leave before results come: the rows that decode take their tokens from the workers. */
static void test_steps_overlap(void **state) {
    (void)state;
    for (uint32_t tp = 1; tp <= 4; tp += 3) {
        world_init(&world);
        world.options.overlap_steps = true;
        world.options.tp = tp;
        serve();
        uint32_t prompt[3][40];
        struct generate_request request[3];
        struct world_call *call[3];
        for (uint32_t i = 0; i < 3; i++) {
            fill(prompt[i], 0, 40, i + 1);
            request[i] = ask(prompt[i], 20 + 10 * i, 12);
            request[i].ignore_eos = i != 1;
            call[i] = world_call(&world, &request[i]);
        }
        assert_int_equal(world.worker[0].step, 2); /* two are in flight */
        world_settle(&world);
        uint32_t drawn = 0;
        for (uint32_t i = 0; i < 3; i++) {
            world_expect_stream(&world, call[i], &request[i]);
            assert_int_equal(call[i]->status, STATUS_OK);
            drawn += call[i]->token_count;
        }
        /* All but first tokens, most of them ahead; none ahead of a known end. */
        assert_in_range(world.worker[0].rows_drawn, drawn / 2, drawn);
        world_expect_idle(&world);
        world_stop(&world);
    }
}

/* Of twelve tokens the first ends the prompt, and eleven rows follow, no row for a known end. */
static void test_no_row_beyond_a_known_end(void **state) {
    (void)state;
    world_init(&world);
    world.options.overlap_steps = true;
    serve();
    uint32_t prompt[20];
    fill(prompt, 0, 20, 1);
    struct generate_request request = ask(prompt, 20, 12);
    struct world_call *call = world_call(&world, &request);
    world_settle(&world);
    world_expect_stream(&world, call, &request);
    assert_int_equal(world.worker[0].rows_drawn, 11);
    world_stop(&world);
}

/* A rank's lie about a step is found although its truth was not known when it came. */
static void test_a_lie_about_the_step_ahead(void **state) {
    (void)state;
    world_init(&world);
    world.options.overlap_steps = true;
    world.options.tp = 2;
    serve();
    uint32_t prompt[8];
    fill(prompt, 0, 8, 1);
    struct generate_request request = ask(prompt, 8, 20);
    struct world_call *call = world_call(&world, &request);
    world_deliver(&world, 1);
    struct worker_message *ahead = world_take_answer(&world, 1);
    assert_int_equal(ahead->step_result.step, 2);
    ahead->step_result.state_hash ^= 1;
    world_message(&world, 1, ahead);
    assert_false(call->ended);
    world_deliver(&world, 0); /* the first step is whole, and tells what the second must be */
    assert_int_equal(call->status, STATUS_UNAVAILABLE);
    assert_non_null(strstr(call->status_text, "rank 1"));
    assert_non_null(strstr(call->status_text, "after step 2"));
    core_destroy(&world.core);
}

/* A request ends with a token while its next row is in flight: the row is dropped. */
static void test_the_row_too_many(void **state) {
    (void)state;
    static const uint32_t script[] = {'a', 'b', WORLD_EOS, 'c'};
    fake_script[0] = (struct fake_script){script, 4};
    world_init(&world);
    world.options.overlap_steps = true;
    serve();
    uint32_t prompt[6];
    fill(prompt, 0, 6, 1);
    struct generate_request request = world_request(prompt, 6, 30);
    request.sampling.has_seed = true;
    request.sampling.seed = FAKE_SCRIPT_SEED;
    struct world_call *call = world_call(&world, &request);
    while (!call->ended)
        assert_true(world_deliver(&world, 0));
    assert_int_equal(call->token_count, 3);
    assert_int_equal(look().requests_running, 1); /* leaving */
    world_deliver(&world, 0);
    assert_int_equal(look().requests_running, 0);
    world_settle(&world);
    assert_int_equal(call->summary.completion_tokens, 3);
    world_expect_text(call, CHANNEL_CONTENT, "ab");
    world_expect_idle(&world);
    world_stop(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_prefix_is_found_again),
        cmocka_unit_test(test_without_the_cache),
        cmocka_unit_test(test_a_prefix_being_computed_is_waited_for),
        cmocka_unit_test(test_a_prefix_is_not_seen_too_early),
        cmocka_unit_test(test_pages_are_adopted),
        cmocka_unit_test(test_tenants_share_nothing),
        cmocka_unit_test(test_flush),
        cmocka_unit_test(test_want_of_room_is_corrected),
        cmocka_unit_test(test_the_oldest_goes_on),
        cmocka_unit_test(test_a_crowd_is_no_slower),
        cmocka_unit_test(test_retracted_ones_come_first),
        cmocka_unit_test(test_policies),
        cmocka_unit_test(test_priorities_age),
        cmocka_unit_test(test_prefixes_age),
        cmocka_unit_test(test_queue_timeout),
        cmocka_unit_test(test_queue_limit_in_tokens),
        cmocka_unit_test(test_idempotency_keys),
        cmocka_unit_test(test_a_cancel_says_what_it_freed),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_target_step),
        cmocka_unit_test(test_steps_overlap),
        cmocka_unit_test(test_no_row_beyond_a_known_end),
        cmocka_unit_test(test_a_lie_about_the_step_ahead),
        cmocka_unit_test(test_the_row_too_many),
        cmocka_unit_test(test_a_short_prompt_is_not_stuck_behind_a_long_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
