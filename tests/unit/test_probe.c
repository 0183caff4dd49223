/* What a worker says of itself, by the state it is in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "probe.h"
#include "prometheus_text.h"
#include "rank_metrics.h"

static void answers(void **state) {
    (void)state;
    const struct probe_state seeking = {.rank = 3};
    const struct probe_state loading = {
        .rank = 3,
        .connected = true,
        .progress = {.loading = true, .load_bytes = 42, .load_bytes_total = 100}};
    const struct probe_state loaded = {.rank = 3, .connected = true, .progress = {.loaded = true}};
    struct probe_state testing = loading;
    testing.progress = (struct compute_progress){.self_test = SELF_TEST_POOL,
                                                 .self_test_percent = 43};
    struct probe_state ready = loaded;
    ready.in_group = true;
    struct probe_state computing = ready;
    computing.progress.computing = true;
    computing.now_ns = (PROBE_STALL_MS_MAX - 1) * NS_PER_MS;
    struct probe_state stuck = computing;
    stuck.now_ns = (PROBE_STALL_MS_MAX + 1) * NS_PER_MS;
    struct probe_state idle = stuck;
    idle.progress.computing = false;
    const struct {
        const struct probe_state *state;
        const char *path, *query;
        int code;
        const char *part;
    } rows[] = {
        {&seeking, "/livez", "", 200, "seeking"},
        {&seeking, "/startupz", "", 503, "no coordinator yet"},
        {&seeking, "/readyz", "", 503, "no coordinator yet"},
        {&loading, "/livez", "", 200, "loading"},
        {&loading, "/startupz", "", 503, "weights 42 %"},
        {&testing, "/startupz", "", 503, "self-test: pool, 43 %"},
        {&testing, "/livez", "", 200, "testing"},
        {&loaded, "/startupz", "", 200, "loaded"},
        {&loaded, "/readyz", "", 503, "not in a group"},
        {&ready, "/readyz", "", 200, "ready"},
        {&ready, "/health", "", 200, "ready"},
        {&ready, "/readyz", "rank=3", 200, "ready"},
        {&ready, "/readyz", "rank=2", 503, "this is rank 3"},
        {&computing, "/livez", "", 200, "computing"},
        {&stuck, "/livez", "", 503, "no progress"},
        {&stuck, "/startupz", "", 200, "computing"},
        {&idle, "/livez", "", 200, "ready"},
        {&ready, "/else", "", 404, "/else"},
        {&ready, "/a\"b\n", "", 404, "/a\\\"b\\u000a"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static char body[HTTP_ANSWER_BYTES_MAX];
        struct http_answer answer = {.body = body};
        probe_get(rows[i].state, rows[i].path, rows[i].query, &answer);
        if (answer.code != rows[i].code || !strstr(body, rows[i].part) ||
            answer.body_bytes != strlen(body))
            fail_msg("row %zu, %s: %d %s", i, rows[i].path, answer.code, body);
    }
}

static void metrics(void **state) {
    (void)state;
    static char body[HTTP_ANSWER_BYTES_MAX];
    struct http_answer answer = {.body = body};
    const struct probe_state ready = {.rank = 3,
                                      .in_group = true,
                                      .progress = {.loaded = true, .load_bytes = 1 << 20},
                                      .progress_ns = 1,
                                      .now_ns = 2 * NS_PER_S + 1};
    struct compute_numbers numbers = {.weight_loads = 1, .engine.kv_bytes = 4096};
    histogram_take(&numbers.engine.all_reduce_times, 20000);
    rank_metrics_answer(&ready, &numbers, &answer);
    assert_int_equal(answer.code, 200);
    assert_int_equal(answer.body_bytes, strlen(body));
    prometheus_text_check(body);
    assert_true(prometheus_text_promtool_passes(body));
    const struct {
        const char *head;
        double value;
    } row[] = {
        {"espalier_worker_in_group{rank=\"3\"}", 1},
        {"espalier_worker_weight_loads_total{rank=\"3\"}", 1},
        {"espalier_worker_weight_bytes{rank=\"3\"}", 1 << 20},
        {"espalier_worker_kv_pool_bytes{rank=\"3\"}", 4096},
        {"espalier_worker_progress_age_seconds{rank=\"3\"}", 2},
        {"espalier_worker_all_reduce_seconds_bucket{rank=\"3\",le=\"1e-05\"}", 0},
        {"espalier_worker_all_reduce_seconds_bucket{rank=\"3\",le=\"2e-05\"}", 1},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        assert_true(prometheus_text_value(body, row[i].head) == row[i].value);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers), cmocka_unit_test(metrics)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
