/* What operators' tools see of running processes. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "processes.h"
#include "prometheus_text.h"

static struct processes_result result;

/* A running group, in which every token takes a step. */
struct group {
    char dir[64], log[96];
    pid_t pid; /* of `espalier serve` */
};

static struct group start_group(const char *width) {
    struct group group;
    processes_make_dir(group.dir);
    snprintf(group.log, sizeof group.log, "%s.log", group.dir);
    const char *serve[] = {"serve",   "--run-dir",
                           group.dir, "--tp",
                           width,     "--metrics-compat",
                           "sglang",  "--max-running-requests",
                           "3",       "--speculative-algorithm",
                           "none",    NULL};
    group.pid = processes_start(group.log, "espalier", serve);
    processes_wait_for(group.log, "espalier: ready");
    return group;
}

static void end_group(struct group *group) {
    kill(group->pid, SIGTERM);
    assert_int_equal(processes_wait(group->pid), 0);
    assert_true(processes_wait_gone(group->dir) >= 0);
    processes_remove_dir(group->dir);
    remove(group->log);
}

static const char *scrape(const struct group *group, const char *rank) {
    const char *arguments[] = {
        "probe", "--run-dir", group->dir, "--check", "metrics", rank ? "--rank" : NULL, rank, NULL};
    processes_run(&result, NULL, "espalier", arguments);
    assert_int_equal(result.exit_code, 0);
    prometheus_text_check(result.out);
    return result.out;
}

static void metrics_of_a_group_that_has_worked(void **state) {
    (void)state;
    struct group group = start_group("2");
    const char *generate[] = {"generate", "--run-dir",    group.dir, "--tokens",
                              "20",       "--ignore-eos", "Once",    NULL};
    processes_run(&result, NULL, "espalier", generate);
    assert_int_equal(result.exit_code, 0);
    processes_sleep_ms(600); /* heartbeats tell of collectives */
    const char *text = scrape(&group, NULL);
    assert_true(prometheus_text_value(text, "espalier_ready") == 1);
    assert_true(prometheus_text_value(text, "espalier_generation_tokens_total") == 20);
    assert_true(prometheus_text_value(text, "espalier_inter_token_latency_seconds_count") == 19);
    assert_true(prometheus_text_value(text, "espalier_rank_all_reduce_seconds_total{rank=\"1\"}") >
                0);
    assert_non_null(strstr(text, "sglang:token_usage{model_name=\""));
    text = scrape(&group, "1");
    assert_true(prometheus_text_promtool_passes(text));
    assert_true(prometheus_text_value(text, "espalier_worker_weight_loads_total{rank=\"1\"}") == 1);
    assert_true(
        prometheus_text_value(text, "espalier_worker_all_reduce_seconds_count{rank=\"1\"}") >= 20);
    assert_true(prometheus_text_value(
                    text, "espalier_worker_step_compute_seconds_count{rank=\"1\"}") >= 20);
    end_group(&group);
}

/* ---- espalier status --watch ----------------------------------------------------------------- */

#define WATCH_LOG_MAX   (4u << 20)
#define DISTINCT_MAX    3u
#define STEP_ROUNDED_MS 0.011 /* two numbers of two decimals */
#define STREAMS         4u    /* at once: one more than start_group lets in */

static char watch_log[WATCH_LOG_MAX];

static pid_t start_watch(const struct group *group, const char *log) {
    const char *arguments[] = {"status",    "--watch",  "--interval", "50",
                               "--run-dir", group->dir, NULL};
    pid_t pid = processes_start(log, "espalier", arguments);
    processes_wait_for(log, "RANK  STATE");
    return pid;
}

/* The number at idx of those in the line. False: it has not so many. */
static bool number_of(const char *line, uint32_t idx, double *number_out) {
    static const char digits[] = "0123456789";
    const char *end = strchr(line, '\n');
    for (;; idx--) {
        line += strcspn(line, digits);
        if (!end || line >= end) return false;
        char *after;
        *number_out = strtod(line, &after);
        line = after;
        if (idx == 0) return true;
    }
}

/* How many values, up to DISTINCT_MAX, the number takes in the lines of watch_log that begin so. */
static uint32_t distinct_values(const char *label, uint32_t idx) {
    double value[DISTINCT_MAX], number;
    uint32_t count = 0;
    for (const char *line = watch_log; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, label, strlen(label)) != 0 || !number_of(line, idx, &number)) continue;
        uint32_t i = 0;
        while (i < count && value[i] != number)
            i++;
        if (i == count && count < DISTINCT_MAX) value[count++] = number;
    }
    return count;
}

/* What is said of the steps between two looks is, taken together, what is said of all. */
static void expect_steps_add_up(void) {
    double steps = 0, ms = 0, total = 0, mean_ms = 0, new_steps = 0, new_mean_ms = 0;
    for (const char *line = watch_log; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, "steps ", 6) != 0 || !number_of(line, 4, &new_mean_ms)) continue;
        assert_true(number_of(line, 0, &total) && number_of(line, 1, &mean_ms) &&
                    number_of(line, 3, &new_steps));
        steps += new_steps;
        ms += new_steps * new_mean_ms;
    }
    assert_true(steps == total);
    double error_ms = ms - total * mean_ms;
    assert_true(error_ms < total * STEP_ROUNDED_MS && error_ms > -total * STEP_ROUNDED_MS);
}

static void stream_some(const struct group *group) {
    const char *generate[] = {"generate",
                              "--run-dir",
                              group->dir,
                              "--tokens",
                              "200",
                              "--ignore-eos",
                              "One after the other they came down from the hill, and each of them "
                              "carried what the one before had left on the stones by the water, so "
                              "that in the end nothing was missing and nobody had to go twice. ",
                              NULL};
    pid_t pid[STREAMS];
    for (uint32_t i = 0; i < STREAMS; i++)
        pid[i] = processes_start("/dev/null", "espalier", generate);
    for (uint32_t i = 0; i < STREAMS; i++)
        assert_int_equal(processes_wait(pid[i]), 0);
}

/* Streams come and go until each figure has been seen to move. */
static void a_watch_shows_what_changes(void **state) {
    (void)state;
    static const struct {
        const char *label;
        uint32_t idx, values;
    } figures[] = {
        {"requests ", 0, 2}, /* running */
        {"requests ", 1, 2}, /* waiting */
        {"steps ", 3, 3},    /* since the last look: none, and more or less */
        {"steps ", 4, 3},    /* ms each */
        {"KV cache ", 2, 2}, /* used pages */
        {"prefixes ", 0, 2}, /* found, of a hundred */
    };
    struct group group = start_group("2");
    char log[96];
    snprintf(log, sizeof log, "%s.watch", group.dir);
    pid_t pid = start_watch(&group, log);
    const long begin_ms = processes_now_ms();
    for (uint32_t seen = 0; seen < sizeof figures / sizeof *figures;) {
        stream_some(&group);
        processes_read_file(log, watch_log, sizeof watch_log);
        for (seen = 0; seen < sizeof figures / sizeof *figures; seen++) {
            if (distinct_values(figures[seen].label, figures[seen].idx) < figures[seen].values)
                break;
        }
        if (seen < sizeof figures / sizeof *figures &&
            processes_now_ms() - begin_ms > PROCESSES_PATIENCE_MS)
            fail_msg("%snumber %u never moves", figures[seen].label, figures[seen].idx);
    }
    assert_true(processes_is_running(pid));
    kill(pid, SIGINT);
    assert_int_equal(processes_wait(pid), 0);
    processes_read_file(log, watch_log, sizeof watch_log);
    expect_steps_add_up();
    assert_null(strstr(watch_log, "espalier status:")); /* nothing to complain of */
    remove(log);
    end_group(&group);
}

/* Its group stops in order, or the coordinator dies: one line says so. */
static void a_watch_ends_with_its_coordinator(void **state) {
    (void)state;
    for (int by_force = 0; by_force <= 1; by_force++) {
        struct group group = start_group("1");
        char log[96];
        snprintf(log, sizeof log, "%s.watch", group.dir);
        pid_t pid = start_watch(&group, log);
        long coordinator = processes_ready_pid(group.dir, "coordinator");
        assert_true(coordinator > 0);
        if (by_force) {
            kill((pid_t)coordinator, SIGKILL);
            assert_int_not_equal(processes_wait(group.pid), 0);
            assert_true(processes_wait_gone(group.dir) >= 0);
            processes_remove_dir(group.dir);
            remove(group.log);
        } else {
            end_group(&group);
        }
        assert_int_equal(processes_wait(pid), 1);
        processes_read_file(log, watch_log, sizeof watch_log);
        const char *line = strstr(watch_log, "espalier status: UNAVAILABLE: ");
        assert_non_null(line);
        assert_string_equal(strchr(line, '\n'), "\n"); /* the last one */
        remove(log);
    }
}

static int tear_down(void **state) {
    (void)state;
    processes_kill_all();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(metrics_of_a_group_that_has_worked, tear_down),
        cmocka_unit_test_teardown(a_watch_shows_what_changes, tear_down),
        cmocka_unit_test_teardown(a_watch_ends_with_its_coordinator, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
