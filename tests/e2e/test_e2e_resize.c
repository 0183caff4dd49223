/* A pool that grows and shrinks a hundred times under sixteen streams: every token is the one that
 * its call gets alone, no page is lost, and no weight is read again. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "client.h"
#include "processes.h"
#include "prometheus_text.h"

#define STREAMS 16u

/* AddressSanitizer makes a step some fifteen times slower: a fifth of it there. */
#ifdef __SANITIZE_ADDRESS__
#define CALLS   16u
#define RESIZES 20u
#else
#define CALLS   48u
#define RESIZES 100u
#endif

static struct call calls[CALLS], alone[CALLS];
static struct processes_result result;

/* Who resizes, on a thread beside the streams. */
struct resizer {
    const char *endpoint;
    uint32_t wanted; /* resizes */
    atomic_bool done;
    uint32_t succeeded, refused, moved, evicted, retracted;
    struct error unexpected;
    bool failed;
};

static bool take_progress(void *user, const struct resize_progress *progress) {
    struct resizer *resizer = user;
    if (progress->phase != RESIZE_DONE) return true;
    resizer->moved += progress->pages_moved;
    resizer->evicted += progress->pages_evicted;
    resizer->retracted += progress->requests_retracted;
    return true;
}

static struct resize_request next_request(uint64_t *random) {
    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint32_t dice = (uint32_t)(*random >> 33);
    return (struct resize_request){.tokens = 400 + dice % 3600, .force = dice % 5 < 3};
}

/* So many, and each way of making room: how many of these there are is a matter of luck. */
static bool has_had_enough(const struct resizer *resizer) {
    bool has_all = resizer->moved > 0 && resizer->evicted > 0 && resizer->retracted > 0;
    return resizer->succeeded >= resizer->wanted &&
           (has_all || resizer->succeeded >= 10 * resizer->wanted);
}

static void *resize_again_and_again(void *argument) {
    struct resizer *resizer = argument;
    struct client *client;
    struct client_options options = {.endpoint = resizer->endpoint};
    uint64_t random = 7;
    if (client_open(&options, &client, &resizer->unexpected) != STATUS_OK) abort();
    while (!has_had_enough(resizer) && !resizer->failed) {
        struct resize_request request = next_request(&random);
        enum status status = client_resize(client, &request, take_progress, resizer,
                                           &resizer->unexpected);
        resizer->succeeded += status == STATUS_OK;
        resizer->refused += status == STATUS_FAILED_PRECONDITION;
        resizer->failed = status != STATUS_OK && status != STATUS_FAILED_PRECONDITION;
        processes_sleep_ms(5);
    }
    client_close(&client);
    resizer->done = true;
    return NULL;
}

/* The same calls again and again, until the resizer has had enough. */
static uint32_t run_until_done(const struct group *group, struct resizer *resizer) {
    pthread_t thread;
    uint32_t rounds = 0;
    assert_int_equal(pthread_create(&thread, NULL, resize_again_and_again, resizer), 0);
    do {
        calls_run(group->endpoint, calls, CALLS, STREAMS);
        rounds++;
        for (uint32_t i = 0; i < CALLS; i++) {
            calls_expect_whole(&calls[i], i);
            calls_expect_begins(&calls[i], &alone[i], i);
        }
    } while (!resizer->done);
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (resizer->failed) fail_msg("a resize: %s", resizer->unexpected.text);
    return rounds;
}

static void expect_weights_read_once(const struct group *group) {
    for (const char *rank = "0"; rank; rank = *rank == '0' ? "1" : NULL) {
        const char *arguments[] = {"probe", "--run-dir", group->dir, "--rank",
                                   rank,    "--check",   "metrics",  NULL};
        char head[64];
        snprintf(head, sizeof head, "espalier_worker_weight_loads_total{rank=\"%s\"}", rank);
        processes_run(&result, NULL, "espalier", arguments);
        assert_true(prometheus_text_value(result.out, head) == 1);
    }
}

static void resize_under_sixteen_streams(uint32_t wanted) {
    static const char *const flags[] = {"--page-size",
                                        "8",
                                        "--max-total-tokens",
                                        "3000",
                                        "--allow-short-pool",
                                        "--max-running-requests",
                                        "16",
                                        NULL};
    for (uint32_t i = 0; i < CALLS; i++) {
        calls[i] = calls_make(i % 3 == 0 ? 0 : i * 211, 20 + i * 37 % 150, 16 + i * 11 % 80);
        calls_vary_sampling(&calls[i], i);
    }
    calls_run_alone(calls, alone, CALLS);
    struct group group;
    struct snapshot quiet;
    calls_start_group(&group, flags);
    struct resizer resizer = {.endpoint = group.endpoint, .wanted = wanted};
    uint32_t rounds = run_until_done(&group, &resizer);
    calls_wait_until_quiet(group.endpoint, &quiet);
    print_message("%u resizes (%u refused) under %u calls: %u pages moved, %u evicted, %u requests "
                  "sent back\n",
                  resizer.succeeded, resizer.refused, rounds * CALLS, resizer.moved,
                  resizer.evicted, resizer.retracted);
    assert_true(resizer.moved > 0 && resizer.evicted > 0 && resizer.retracted > 0);
    assert_int_equal(quiet.pages_free + quiet.pages_cached, quiet.pages_total);
    assert_int_equal(quiet.generation, 1);
    expect_weights_read_once(&group);
    calls_stop_group(&group);
}

static void a_hundred_resizes_under_sixteen_streams(void **state) {
    (void)state;
    resize_under_sixteen_streams(RESIZES);
}

/* Records are moved as other tokens are. */
static void the_same_with_an_fp8_cache(void **state) {
    (void)state;
    calls_kv_dtype = "fp8";
    resize_under_sixteen_streams(RESIZES / 10);
    calls_kv_dtype = "f32";
}

/* What the command says to a person, and to a script. */
static void the_command(void **state) {
    (void)state;
    static const char *const flags[] = {NULL};
    struct group group;
    calls_start_group(&group, flags);
    static const struct {
        const char *flag, *value;
        int exit_code;
        const char *words;
    } row[] = {
        {"--tokens", "8192", 0, "max_total_num_tokens=8192 (was 4096), max_running_requests=8"},
        {"--tokens", "4096", 0, "max_total_num_tokens=4096 (was 8192)"},
        {"--max-running-requests", "12", 0, "max_running_requests=12"},
        {"--tokens", "64", 1, "holds no request of the context length 4096"},
        {"--max-running-requests", "33", 1, "accepted: 1 to 32"},
        {"--tokens", "x", 64, "--tokens: found \"x\""},
        {"--force", NULL, 64,
         "found neither --tokens nor --mem-fraction-static nor --max-running-requests"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const char *arguments[] = {"resize",    "--run-dir",  group.dir,
                                   row[i].flag, row[i].value, NULL};
        processes_run(&result, NULL, "espalier", arguments);
        const char *said = row[i].exit_code == 0 ? result.out : result.err;
        if (result.exit_code != row[i].exit_code || !strstr(said, row[i].words))
            fail_msg("%s %s: %d, %s%s", row[i].flag, row[i].value, result.exit_code, result.out,
                     result.err);
    }
    processes_wait_for(group.log, "max_total_num_tokens=8192, chunked_prefill_size=512, "
                                  "max_prefill_tokens=8192, max_running_requests=8");
    calls_stop_group(&group);
}

static uint32_t tokens_of(const char *text, const char *words) {
    const char *at = strstr(text, words);
    if (!at) fail_msg("'%s' lacks '%s'", text, words);
    return (uint32_t)strtoul(at + strlen(words), NULL, 10);
}

static uint32_t tokens_at_start(const struct group *group) {
    processes_wait_for(group->log, "max_total_num_tokens=");
    processes_read_file(group->log, result.out, sizeof result.out);
    return tokens_of(result.out, "event=group_ready generation=1 tp=2 max_total_num_tokens=");
}

#define BY_MEMORY(fraction)                                                                        \
    (const char *const[]) {                                                                        \
        "--device-memory", "80M", "--mem-fraction-static", fraction, "--context-length", "2048",   \
            NULL                                                                                   \
    }

/* A fraction given later is the same pool as one given at the start, measured anew; one that the
 * memory does not hold is refused by the ranks, and the old size stands. */
static void a_fraction_of_memory(void **state) {
    (void)state;
    struct group group;
    calls_start_group(&group, BY_MEMORY("0.62"));
    uint32_t larger = tokens_at_start(&group);
    calls_stop_group(&group);
    calls_start_group(&group, BY_MEMORY("0.5"));
    uint32_t smaller = tokens_at_start(&group);
    assert_true(smaller < larger);
    const char *arguments[] = {"resize", "--run-dir", group.dir, "--mem-fraction-static",
                               "0.62",   NULL};
    processes_run(&result, NULL, "espalier", arguments);
    char words[96];
    snprintf(words, sizeof words, "max_total_num_tokens=%u (was %u)", larger, smaller);
    if (!strstr(result.out, words)) fail_msg("%s%s lacks %s", result.out, result.err, words);
    snprintf(words, sizeof words, "event=memory_total pool_tokens=%u ", larger);
    processes_wait_for(group.log, words);
    arguments[4] = "1";
    processes_run(&result, NULL, "espalier", arguments);
    assert_int_equal(result.exit_code, 1);
    assert_non_null(strstr(result.err, "--device-memory: found 83886080 bytes; a pool of "));
    assert_non_null(strstr(result.err, "the old size stands"));
    arguments[4] = "0.2";
    processes_run(&result, NULL, "espalier", arguments);
    assert_int_equal(result.exit_code, 1);
    assert_non_null(strstr(result.err, "--mem-fraction-static: found 0.2, a pool of "));
    char enough[8] = "";
    const char *accepted = strstr(result.err, "of the context length 2048; accepted: ");
    assert_true(accepted && sscanf(accepted, "%*[^;]; accepted: %7[0-9.]", enough) == 1);
    arguments[4] = enough;
    processes_run(&result, NULL, "espalier", arguments);
    assert_int_equal(result.exit_code, 0);
    struct snapshot now;
    calls_wait_until_quiet(group.endpoint, &now);
    assert_in_range(now.pages_total * now.page_tok, 2048, smaller - 1);
    calls_stop_group(&group);
}

static int set_up(void **state) {
    (void)state;
    calls_load_text();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    processes_kill_all();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_hundred_resizes_under_sixteen_streams, tear_down),
        cmocka_unit_test_teardown(the_same_with_an_fp8_cache, tear_down),
        cmocka_unit_test_teardown(the_command, tear_down),
        cmocka_unit_test_teardown(a_fraction_of_memory, tear_down),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
