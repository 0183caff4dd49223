/* What probes and scrapers are told, by what is the case. */
#include "core_world.h"

#include <stdio.h>
#include <string.h>

#include "metrics.h"
#include "probes.h"
#include "prometheus_text.h"

static struct world world;
static char body[HTTP_ANSWER_BYTES_MAX];

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const uint32_t prompt[] = {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j'};

static int probe(const char *path, const char *query) {
    struct http_answer answer = {.body = body};
    probes_answer(world.core, world.now_ns, path, query, &answer);
    assert_int_equal(answer.body_bytes, strlen(body));
    return answer.code;
}

/* The codes of /livez, /startupz and /readyz, and words of the last answer. */
static void expect(const char *query, int live, int started, int ready, const char *words) {
    assert_int_equal(probe("/livez", query), live);
    assert_int_equal(probe("/startupz", query), started);
    int code = probe("/health", query);
    assert_int_equal(probe("/readyz", query), code);
    if (code != ready || !strstr(body, words))
        fail_msg("%s: %d of %d: %s lacks \"%s\"", query, code, ready, body, words);
}

static void beat(uint32_t rank, uint64_t collective_seq) {
    const struct fake_worker *worker = &world.worker[rank];
    const struct worker_message message = {
        .type = WORKER_HEARTBEAT,
        .heartbeat = {.generation = worker->generation,
                      .step = worker->step > 0 ? worker->step - 1 : 0,
                      .collective_seq = collective_seq,
                      .collective_ns = 7000000000}};
    world_message(&world, rank, &message);
}

static void start(void) {
    world_init(&world);
    world.options.tp = 2;
    world.options.step_timeout_ms = 60000;
    world_start(&world);
}

static void test_a_group_comes_and_goes(void **state) {
    (void)state;
    start();
    expect("", 200, 503, 503, "starting");
    expect("rank=0", 503, 503, 503, "no worker has come");
    expect("rank=2", 503, 503, 503, "accepted: 0 to 1");
    expect("rank=", 503, 503, 503, "found");
    expect("rank=0x", 503, 503, 503, "found");
    assert_int_equal(probe("/else", ""), 404);
    world_launch(&world, 0);
    world_deliver(&world, 0); /* hello */
    expect("rank=0", 200, 503, 503, "loading");
    world_deliver(&world, 0); /* progress */
    world_deliver(&world, 0); /* loaded */
    expect("rank=0", 200, 200, 503, "waits for its group");
    world_launch(&world, 1);
    for (int i = 0; i < 3; i++)
        world_deliver(&world, 1); /* both are: the group forms, and has not served yet */
    expect("", 200, 503, 503, "starting");
    world_settle(&world);
    expect("", 200, 200, 200, "ready");
    expect("rank=1", 200, 200, 200, "ready");
    world_kill(&world, 1);
    expect("", 200, 200, 503, "rank 1 is lost");
    expect("rank=1", 503, 503, 503, "lost");
    expect("rank=0", 200, 200, 503, "waits for its group");
    world_launch(&world, 1);
    world_recover(&world);
    expect("", 200, 200, 200, "ready");
    world_drain(&world, world.now_ns + 1000 * WORLD_MS);
    assert_int_equal(probe("/readyz", ""), 503);
    world_stop(&world);
}

/* Ten looks a second, at a rank that is stopped and goes on. */
static void test_silence_is_seen_within_a_second(void **state) {
    (void)state;
    start();
    world_serve(&world);
    for (int tenth = 0; tenth < 30; tenth++) {
        bool stopped = tenth >= 10 && tenth < 24;
        world_tick(&world, 100 * WORLD_MS);
        beat(0, 0);
        if (!stopped) beat(1, 0);
        int code = probe("/readyz", "rank=1");
        assert_int_equal(probe("/livez", "rank=1"), code);
        assert_int_equal(probe("/readyz", ""), code);
        assert_int_equal(code, tenth >= 19 && tenth < 24 ? 503 : 200);
        assert_int_equal(probe("/readyz", "rank=0"), 200);
        assert_int_equal(probe("/livez", ""), 200);
        if (code == 503) expect("", 200, 200, 503, "rank 1: nothing was heard of it for");
    }
    world_stop(&world);
}

/* Rank 1 stays behind in a collective; rank 0 waits for it and is well. */
static void test_a_stall_is_judged_by_what_the_step_may_take(void **state) {
    (void)state;
    for (int known = 0; known < 2; known++) {
        start();
        world_serve(&world);
        struct generate_request request = world_request(prompt, COUNT(prompt), known ? 40 : 4);
        request.ignore_eos = true;
        for (uint32_t rank = 0; rank < 2; rank++)
            world.worker[rank].cost_row_ns = 150 * 1000000; /* a decode step: 300 ms */
        world_call(&world, &request);
        for (uint32_t answers = 0; answers < (known ? 40u : 4u); answers++)
            world_deliver(&world, answers % 2);
        for (uint32_t rank = 0; rank < 2; rank++)
            world.worker[rank].stuck = true;
        uint32_t tenths = 0;
        for (; tenths < 20 && probe("/readyz", "rank=1") == 200; tenths++) {
            world_tick(&world, 100 * WORLD_MS);
            beat(0, 9);
            beat(1, tenths < 3 ? tenths : 3);
            assert_int_equal(probe("/readyz", "rank=0"), 200);
        }
        /* Four times 300 ms after its last progress; a step of unknown cost is given its time. */
        if (known) {
            assert_in_range(tenths, 14, 18);
            assert_non_null(strstr(body, "no progress for"));
            beat(1, 10);
            expect("rank=1", 200, 200, 200, "ready");
        } else {
            assert_int_equal(tenths, 20);
        }
        world_stop(&world);
    }
}

/* Rank 1 was stopped for two seconds and answers first when it goes on. Rank 0, which has waited
 * for it, owes the step alone then, and has a second for it like any other. */
static void test_who_waited_is_not_to_blame(void **state) {
    (void)state;
    start();
    world_serve(&world);
    struct generate_request request = world_request(prompt, COUNT(prompt), 40);
    request.ignore_eos = true;
    for (uint32_t rank = 0; rank < 2; rank++)
        world.worker[rank].cost_row_ns = 5 * 1000000;
    world_call(&world, &request);
    for (uint32_t answers = 0; answers < 40; answers++)
        world_deliver(&world, answers % 2);
    for (uint32_t rank = 0; rank < 2; rank++)
        world.worker[rank].stuck = true;
    for (uint32_t tenth = 0; tenth < 20; tenth++) {
        world_tick(&world, 100 * WORLD_MS);
        beat(0, 9);
        assert_int_equal(probe("/readyz", "rank=0"), 200);
    }
    assert_int_equal(probe("/readyz", "rank=1"), 503);
    world.worker[1].stuck = false;
    world_deliver(&world, 1);
    expect("rank=1", 200, 200, 200, "ready");
    uint32_t tenths = 0;
    for (; tenths < 20 && probe("/readyz", "rank=0") == 200; tenths++) {
        world_tick(&world, 100 * WORLD_MS);
        beat(0, 9);
        beat(1, 9);
    }
    assert_in_range(tenths, 9, 10);
    expect("rank=0", 503, 200, 503, "no progress for");
    world_stop(&world);
}

static void scrape(enum metrics_compat compat) {
    struct http_answer answer = {.body = body};
    metrics_answer(world.core, compat, world.now_ns, &answer);
    assert_int_equal(answer.code, 200);
    assert_int_equal(answer.body_bytes, strlen(body));
    prometheus_text_check(body);
}

static void test_metrics(void **state) {
    (void)state;
    start();
    scrape(METRICS_OWN);
    assert_int_equal(prometheus_text_value(body, "espalier_ready"), 0);
    world_serve(&world);
    struct generate_request request = world_request(prompt, COUNT(prompt), 5);
    request.ignore_eos = true;
    for (int i = 0; i < 3; i++) {
        world_call(&world, &request);
        world_tick(&world, 3 * WORLD_MS);
        world_settle(&world);
    }
    world_tick(&world, 250 * WORLD_MS);
    beat(0, 0);
    scrape(METRICS_OWN);
    assert_true(prometheus_text_promtool_passes(body));
    assert_null(strstr(body, ":num"));
    const struct {
        const char *head;
        double value;
    } row[] = {
        {"espalier_ready", 1},
        {"espalier_group_generation", 1},
        {"espalier_num_requests_running", 0},
        {"espalier_requests_finished_total", 3},
        {"espalier_generation_tokens_total", 15},
        {"espalier_prompt_tokens_total", 10 + 1 + 1}, /* nine were found, and one is computed */
        {"espalier_prefix_cache_queries_total", 30},
        {"espalier_prefix_cache_hits_total", 18},
        {"espalier_prefix_cache_hit_ratio", 0.6},
        {"espalier_time_to_first_token_seconds_count", 3},
        {"espalier_time_to_first_token_seconds_bucket{le=\"0.002\"}", 0},
        {"espalier_time_to_first_token_seconds_bucket{le=\"0.005\"}", 3},
        {"espalier_inter_token_latency_seconds_count", 12},
        {"espalier_request_queue_time_seconds_count", 3},
        {"espalier_e2e_request_latency_seconds_count", 3},
        {"espalier_rank_ready{rank=\"1\"}", 1},
        {"espalier_rank_heartbeat_age_seconds{rank=\"0\"}", 0},
        {"espalier_rank_heartbeat_age_seconds{rank=\"1\"}", 0.25},
        {"espalier_rank_all_reduce_seconds_total{rank=\"0\"}", 7},
    };
    for (size_t i = 0; i < COUNT(row); i++) {
        double found = prometheus_text_value(body, row[i].head);
        if (found < row[i].value - 1e-9 || found > row[i].value + 1e-9)
            fail_msg("%s: %g of %g", row[i].head, found, row[i].value);
    }
    double pool = prometheus_text_value(body, "espalier_kv_pool_capacity_tokens");
    double cached = prometheus_text_value(body, "espalier_kv_pool_tokens{state=\"cached\"}");
    double left = prometheus_text_value(body, "espalier_kv_pool_tokens{state=\"free\"}");
    assert_true(cached > 0 && cached + left == pool);
    assert_true(prometheus_text_value(body, "espalier_step_seconds_count") ==
                prometheus_text_value(body, "espalier_steps_total"));

    scrape(METRICS_SGLANG);
    assert_true(prometheus_text_value(body, "sglang:num_requests_total{model_name=\"fake\"}") == 3);
    scrape(METRICS_VLLM);
    assert_true(prometheus_text_value(body, "vllm:prefix_cache_hits_total{model_name=\"fake\"}") ==
                18);
    world_stop(&world);
}

static double sample(const char *name, const char *label, const char *value) {
    char head[128];
    snprintf(head, sizeof head, "espalier_spec_%s_total{%s=\"%s\"}", name, label, value);
    return prometheus_text_value(body, head);
}

/* A text that repeats itself gives guesses; all are counted under their source and their depth. */
static void test_guesses_are_counted(void **state) {
    (void)state;
    static const char *const source[SPECULATION_SOURCES] = {"drafter", "own_text", "shared_text"};
    uint32_t text[60];
    for (uint32_t i = 0; i < COUNT(text); i++)
        text[i] = 'a' + i % 3;
    world_init(&world);
    world.options.tp = 2;
    world.options.speculative_algorithm = SPECULATE_SUFFIX;
    world.options.speculative_tree_rows = 8;
    world.options.speculative_history_tok = 256;
    world.options.speculative_fixed = true;
    world_start(&world);
    world_serve(&world);
    for (int i = 0; i < 4; i++) {
        struct generate_request request = world_request(text, COUNT(text), 20);
        request.ignore_eos = true;
        world_call(&world, &request);
        world_settle(&world);
    }
    scrape(METRICS_VLLM);
    struct speculation_counts counts = core_snapshot(world.core, world.now_ns).speculated;
    assert_true(counts.trees > 4 && counts.accepted[0] > 0);
    assert_true(prometheus_text_value(body, "espalier_spec_trees_total") == (double)counts.trees);
    double guesses = 0, right = 0;
    for (uint32_t i = 0; i < SPECULATION_SOURCES; i++) {
        guesses += sample("draft_tokens", "source", source[i]);
        right += sample("accepted_tokens", "source", source[i]);
        assert_true(sample("accepted_tokens", "source", source[i]) ==
                    (double)counts.source_accepted[i]);
    }
    for (uint32_t depth = 1; depth <= SPECULATION_DEPTHS; depth++) {
        char number[4];
        snprintf(number, sizeof number, "%u", depth);
        double found = sample("accepted_by_depth", "depth", number);
        assert_true(found == (double)counts.accepted[depth - 1]);
        right -= found;
    }
    assert_true(right == 0 && guesses == (double)counts.guesses);
    const char *accepted = "vllm:spec_decode_num_accepted_tokens_total{model_name=\"fake\"}";
    assert_true(prometheus_text_value(body, accepted) > 0);
    world_stop(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_group_comes_and_goes),
        cmocka_unit_test(test_silence_is_seen_within_a_second),
        cmocka_unit_test(test_a_stall_is_judged_by_what_the_step_may_take),
        cmocka_unit_test(test_who_waited_is_not_to_blame),
        cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_guesses_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
