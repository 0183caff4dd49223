/* `espalier bench`: what it counts, and how it ends. Nothing is said of times but their order. */
#include <json-c/json.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "calls.h"
#include "processes.h"

#define ARGUMENTS_MAX 24

static struct processes_result result;
static struct json_object *figures; /* of the last bench_json */

static void bench(const char *const *flags) {
    const char *arguments[ARGUMENTS_MAX] = {"bench"};
    for (int i = 0; flags[i] != NULL; i++)
        arguments[1 + i] = flags[i];
    processes_run(&result, NULL, "espalier", arguments);
}

static void take_figures(const char *text) {
    json_object_put(figures);
    figures = json_tokener_parse(text);
    if (!json_object_is_type(figures, json_type_object)) fail_msg("no JSON: \"%s\"", text);
}

static struct json_object *at(struct json_object *object, const char *key) {
    struct json_object *value;
    if (!json_object_object_get_ex(object, key, &value)) fail_msg("no \"%s\"", key);
    return value;
}

static int64_t count_of(const char *key) {
    assert_true(json_object_is_type(at(figures, key), json_type_int));
    return json_object_get_int64(at(figures, key));
}

static double real_of(struct json_object *object, const char *key) {
    assert_true(json_object_is_type(at(object, key), json_type_double));
    return json_object_get_double(at(object, key));
}

static void expect_spread(const char *key) {
    struct json_object *spread = at(figures, key);
    double median = real_of(spread, "median"), p90 = real_of(spread, "p90");
    assert_true(median >= 0 && median <= p90 && p90 <= real_of(spread, "p99"));
}

/* 12 prompts of 96 tokens, 64 of them shared, 16 tokens each, to a group that does not guess. */
static void bench_shared(const struct group *group, const char *concurrency, const char *seed) {
    bench((const char *const[]){"--endpoint", group->endpoint, "--json", "--requests=12",
                                "--concurrency", concurrency, "--prompt-tokens=96",
                                "--shared-prefix=64", "--tokens=16", "--seed", seed, NULL});
    assert_int_equal(result.exit_code, 0);
    assert_string_equal(result.err, "");
    take_figures(result.out);
}

static const char *const plain[] = {"--speculative-algorithm", "none", "--page-size", "16", NULL};

static void counts_what_was_sent_and_came(void **state) {
    (void)state;
    struct group group;
    calls_start_group(&group, plain);
    bench_shared(&group, "4", "5");
    assert_int_equal(count_of("seed"), 5);
    assert_int_equal(count_of("concurrency"), 4);
    assert_int_equal(count_of("finished"), 12);
    assert_int_equal(count_of("failed") + count_of("cut_off") + count_of("unsent"), 0);
    assert_int_equal(json_object_object_length(at(figures, "failed_by_status")), 0);
    assert_int_equal(count_of("prompt_tokens"), 12 * 96);
    assert_int_equal(count_of("output_tokens"), 12 * 16);
    expect_spread("first_token_ms");
    expect_spread("between_tokens_ms");
    double per_s = 12 * 16 / real_of(figures, "duration_s");
    assert_true(fabs(real_of(figures, "output_tokens_per_s") / per_s - 1) < 0.05);
    assert_null(at(figures, "speculation"));
    /* Four at a time: of the steps that decode, some had more than one row. */
    double tokens = real_of(figures, "tokens_per_step") * (double)count_of("steps");
    assert_true(count_of("steps") < 12 * 16 && fabs(tokens - 12 * 16) < 0.5);
    calls_stop_group(&group);
}

static void prompts_are_of_the_seed(void **state) {
    (void)state;
    struct group group;
    calls_start_group(&group, plain);
    bench_shared(&group, "1", "5");
    assert_int_equal(count_of("cached_tokens"), 11 * 64); /* all but the first find the prefix */
    bench_shared(&group, "1", "5");
    assert_true(count_of("cached_tokens") >= 12 * 80); /* whole pages before the last token */
    bench_shared(&group, "1", "6");
    assert_int_equal(count_of("cached_tokens"), 11 * 64);
    calls_stop_group(&group);
}

static void failures_are_counted(void **state) {
    (void)state;
    struct group group;
    calls_start_group(&group, plain);
    bench((const char *const[]){"--endpoint", group.endpoint, "--json", "--requests=7",
                                "--prompt-tokens=5000", NULL});
    assert_int_equal(result.exit_code, 1);
    take_figures(result.out);
    assert_int_equal(count_of("finished"), 0);
    assert_int_equal(count_of("failed"), 7);
    assert_int_equal(json_object_get_int(at(at(figures, "failed_by_status"), "OUT_OF_RANGE")), 7);
    assert_int_equal(count_of("output_tokens"), 0);
    assert_null(at(figures, "first_token_ms"));
    bench((const char *const[]){"--endpoint", group.endpoint, "--requests=7",
                                "--prompt-tokens=5000", NULL});
    assert_int_equal(result.exit_code, 1);
    assert_non_null(strstr(result.out, "0 of 7 finished"));
    assert_non_null(strstr(result.out, "failed    7: 7 OUT_OF_RANGE; the first: "));
    calls_stop_group(&group);
    bench((const char *const[]){"--endpoint", group.endpoint, NULL});
    assert_int_equal(result.exit_code, 1);
    assert_string_equal(result.out, "");
    assert_non_null(strstr(result.err, "espalier bench: UNAVAILABLE"));
}

/* Ctrl-C: what was measured until then, and no request is left in the group. */
static void an_interrupt_ends_it_with_figures(void **state) {
    (void)state;
    static char text[PROCESSES_OUTPUT_MAX];
    struct group group;
    struct snapshot snapshot = {0};
    char log[112];
    calls_start_group(&group, plain);
    snprintf(log, sizeof log, "%s.bench", group.dir);
    const char *arguments[] = {
        "bench", "--json", "--endpoint", group.endpoint, "--requests=100000", "--tokens=16", NULL};
    pid_t pid = processes_start(log, "espalier", arguments);
    while (snapshot.requests_finished < 8)
        calls_look(group.endpoint, &snapshot);
    kill(pid, SIGINT);
    assert_int_equal(processes_wait(pid), 1);
    processes_read_file(log, text, sizeof text);
    take_figures(text);
    /* The group may have finished a call whose end was still on its way. */
    assert_true(count_of("finished") + count_of("cut_off") >= 8 && count_of("unsent") > 0);
    assert_int_equal(count_of("failed"), 0);
    assert_int_equal(count_of("finished") + count_of("cut_off") + count_of("unsent"), 100000);
    calls_wait_until_quiet(group.endpoint, &snapshot);
    calls_stop_group(&group);
    remove(log);
}

static void a_group_of_its_own_that_guesses(void **state) {
    (void)state;
    const char *const flags[] = {
        "--tp=1", "--requests=3", "--tokens=24", "--speculative-fixed-tree", NULL, NULL};
    bench(flags);
    assert_int_equal(result.exit_code, 0);
    assert_non_null(strstr(result.out, "requests  3 of 3 finished"));
    assert_non_null(strstr(result.out, "prompt 384, "));
    assert_non_null(strstr(result.out, "output 72, "));
    assert_non_null(strstr(result.out, "tokens a tree"));
    assert_non_null(strstr(result.out, "\nbetween tokens "));
    const char *json[ARGUMENTS_MAX];
    memcpy(json, flags, sizeof flags);
    json[4] = "--json";
    bench(json);
    assert_int_equal(result.exit_code, 0);
    take_figures(result.out);
    struct json_object *speculation = at(figures, "speculation");
    int64_t trees = json_object_get_int64(at(speculation, "trees"));
    int64_t accepted = json_object_get_int64(at(speculation, "accepted"));
    assert_true(trees > 0 && accepted <= json_object_get_int64(at(speculation, "guesses")));
    assert_true(fabs(real_of(speculation, "tokens_per_tree") -
                     (1 + (double)accepted / (double)trees)) < 1e-3);
}

static int tear_down(void **state) {
    (void)state;
    processes_kill_all();
    json_object_put(figures);
    figures = NULL;
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(counts_what_was_sent_and_came, tear_down),
        cmocka_unit_test_teardown(prompts_are_of_the_seed, tear_down),
        cmocka_unit_test_teardown(failures_are_counted, tear_down),
        cmocka_unit_test_teardown(an_interrupt_ends_it_with_figures, tear_down),
        cmocka_unit_test_teardown(a_group_of_its_own_that_guesses, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
