/* What users and operators are promised when something dies, stops or is asked twice. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "processes.h"

static struct processes_result result;

/* A running group. */
struct group {
    char dir[64], log[96];
    pid_t pid; /* of `espalier serve` */
};

static struct group start_group(const char *width) {
    struct group group;
    processes_make_dir(group.dir);
    snprintf(group.log, sizeof group.log, "%s.log", group.dir);
    /* On a slow machine what runs takes longer than the usual time to finish. */
    const char *serve[] = {"serve", "--run-dir",       group.dir, "--tp",
                           width,   "--drain-timeout", "600",     NULL};
    group.pid = processes_start(group.log, "espalier", serve);
    processes_wait_for(group.log, "espalier: ready");
    return group;
}

static void end_group(struct group *group, int expected_code) {
    assert_int_equal(processes_wait(group->pid), expected_code);
    assert_true(processes_wait_gone(group->dir) >= 0);
    assert_int_equal(processes_dir_entries(group->dir), 0);
    processes_remove_dir(group->dir);
    remove(group->log);
}

/* The exit code of `espalier COMMAND --run-dir DIR ...`. */
static int ask(const struct group *group, const char *command, const char *a, const char *b) {
    const char *arguments[] = {command, "--run-dir", group->dir, a, b, NULL};
    processes_run(&result, NULL, "espalier", arguments);
    return result.exit_code;
}

static int probe_rank(const struct group *group, const char *rank, const char *check) {
    const char *arguments[] = {"probe", "--run-dir", group->dir, "--rank",
                               rank,    "--check",   check,      NULL};
    processes_run(&result, NULL, "espalier", arguments);
    return result.exit_code;
}

/* A stream that goes on until something happens to it. */
static pid_t start_stream(const struct group *group, char out[128]) {
    snprintf(out, 128, "%s.out", group->dir);
    const char *arguments[] = {"generate",       "--run-dir", group->dir,
                               "--ignore-eos",   "--tokens",  "4000",
                               "--print-tokens", "Once",      NULL};
    pid_t pid = processes_start(out, "espalier", arguments);
    processes_wait_for(out, " ");
    return pid;
}

static void expect_short_generate(const struct group *group) {
    const char *arguments[] = {"generate",
                               "--run-dir",
                               group->dir,
                               "--tokens",
                               "4",
                               "--print-tokens",
                               "The sqlite3_open() function",
                               NULL};
    processes_run(&result, NULL, "espalier", arguments);
    if (result.exit_code != 0) fail_msg("generate: %s", result.err);
    assert_int_equal(strncmp(result.out, "290 468 291 845", 15), 0);
}

static void wait_ready(const struct group *group) {
    for (int i = 0; i < 2000; i++) {
        if (ask(group, "probe", NULL, NULL) == 0) return;
        processes_sleep_ms(10);
    }
    fail_msg("the group is not ready again");
}

static void a_killed_coordinator_takes_all_with_it(void **state) {
    (void)state;
    struct group group = start_group("2");
    char out[128];
    pid_t stream = start_stream(&group, out);
    assert_int_equal(kill((pid_t)processes_ready_pid(group.dir, "coordinator"), SIGKILL), 0);
    /* The launcher writes the flag so to its children; the stream and the launcher have it apart.
     */
    char child_mark[96];
    snprintf(child_mark, sizeof child_mark, "--run-dir=%s", group.dir);
    int gone_ms = processes_wait_gone(child_mark);
    assert_true(gone_ms >= 0);
    print_message("no coordinator and no worker %d ms after the kill\n", gone_ms);
    assert_int_equal(processes_wait(stream), 1);
    processes_wait_for(out, "UNAVAILABLE");
    remove(out);
    end_group(&group, 75);
}

/* Without a launcher: workers see it for themselves. */
static void workers_alone_follow_their_coordinator(void **state) {
    (void)state;
    char dir[64], log[96], run_dir[80];
    processes_make_dir(dir);
    snprintf(log, sizeof log, "%s.log", dir);
    snprintf(run_dir, sizeof run_dir, "--run-dir=%s", dir);
    const char *model = "--model-path=" ESPALIER_SOURCE_DIR "/deploy/model";
    const char *coordinator[] = {model, run_dir, "--tp=2", NULL};
    const char *rank_0[] = {model, run_dir, "--tp=2", "--rank=0", NULL};
    const char *rank_1[] = {model, run_dir, "--tp=2", "--rank=1", NULL};
    pid_t pids[] = {processes_start(log, "espalier-worker", rank_0),
                    processes_start(log, "espalier-coordinator", coordinator),
                    processes_start(log, "espalier-worker", rank_1)};
    processes_wait_for(log, "max_total_num_tokens=4096, chunked_prefill_size=512, "
                            "max_prefill_tokens=4096, max_running_requests=8, context_len=4096");
    processes_wait_for(log, " TP0 Memory pool end. avail mem=");
    processes_wait_for(log, " TP1 Memory pool end. avail mem=");
    kill(pids[1], SIGKILL);
    assert_int_equal(processes_wait(pids[1]), -SIGKILL);
    assert_int_equal(processes_wait(pids[0]), 69);
    assert_int_equal(processes_wait(pids[2]), 69);
    /* What is left does not stand in the way of the next. */
    pids[0] = processes_start(log, "espalier-coordinator", coordinator);
    snprintf(run_dir, sizeof run_dir, "%s/coordinator.ready", dir);
    char pid_text[32];
    snprintf(pid_text, sizeof pid_text, "pid=%d\n", (int)pids[0]);
    processes_wait_for(run_dir, pid_text);
    kill(pids[0], SIGTERM);
    assert_int_equal(processes_wait(pids[0]), 0);
    processes_remove_dir(dir);
    remove(log);
}

static int weight_loads(const struct group *group, const char *rank) {
    const char *arguments[] = {"probe", "--run-dir", group->dir, "--rank",
                               rank,    "--check",   "metrics",  NULL};
    char head[64];
    snprintf(head, sizeof head, "espalier_worker_weight_loads_total{rank=\"%s\"} ", rank);
    processes_run(&result, NULL, "espalier", arguments);
    const char *found = strstr(result.out, head);
    return found ? found[strlen(head)] - '0' : -1;
}

static void a_killed_worker_ends_calls_and_comes_back(void **state) {
    (void)state;
    struct group group = start_group("2");
    for (int rank = 0; rank < 2; rank++) {
        char out[128], who[16];
        pid_t stream = start_stream(&group, out);
        snprintf(who, sizeof who, "worker-%d", rank);
        long survivor = processes_ready_pid(group.dir, rank == 0 ? "worker-1" : "worker-0");
        long killed_ms = processes_now_ms();
        assert_int_equal(kill((pid_t)processes_ready_pid(group.dir, who), SIGKILL), 0);
        assert_int_equal(processes_wait(stream), 1);
        print_message("rank %d: the client knew after %ld ms\n", rank,
                      processes_now_ms() - killed_ms);
        processes_wait_for(out, "UNAVAILABLE");
        remove(out);
        wait_ready(&group);
        expect_short_generate(&group);
        /* Of whoever stayed, the weights did. */
        assert_int_equal(processes_ready_pid(group.dir, rank == 0 ? "worker-1" : "worker-0"),
                         survivor);
        assert_int_equal(weight_loads(&group, "0"), 1);
        assert_int_equal(weight_loads(&group, "1"), 1);
    }
    kill(group.pid, SIGINT); /* Ctrl-C drains too */
    end_group(&group, 0);
}

static void a_killed_launcher_leaves_nobody(void **state) {
    (void)state;
    struct group group = start_group("2");
    kill(group.pid, SIGKILL);
    assert_int_equal(processes_wait(group.pid), -SIGKILL);
    assert_true(processes_wait_gone(group.dir) >= 0);
    processes_remove_dir(group.dir);
    remove(group.log);
}

static void probes_answer_while_a_rank_is_stopped(void **state) {
    (void)state;
    struct group group = start_group("2");
    assert_int_equal(ask(&group, "probe", NULL, NULL), 0);
    assert_int_equal(probe_rank(&group, "0", "ready"), 0);
    assert_int_equal(probe_rank(&group, "1", "ready"), 0);
    char out[128];
    pid_t stream = start_stream(&group, out);
    pid_t stopped = (pid_t)processes_ready_pid(group.dir, "worker-1");
    kill(stopped, SIGSTOP);
    /* Rank 0 now waits for rank 1, within a step or after it. */
    assert_int_equal(probe_rank(&group, "0", "live"), 0);
    assert_int_equal(probe_rank(&group, "1", "live"), 1);
    assert_int_equal(ask(&group, "probe", "--check", "live"), 0);
    long stopped_ms = processes_now_ms();
    while (ask(&group, "probe", NULL, NULL) == 0)
        processes_sleep_ms(20);
    print_message("readiness: a stopped rank was known %ld ms after its processes' first probe\n",
                  processes_now_ms() - stopped_ms);
    assert_non_null(strstr(result.out, "rank 1: nothing was heard of it"));
    assert_int_equal(ask(&group, "status", NULL, NULL), 0);
    assert_non_null(strstr(result.out, "1 running"));
    assert_int_equal(ask(&group, "status", "--json", NULL), 0);
    assert_non_null(strstr(result.out, "\"requests_running\":1"));
    kill(stopped, SIGCONT);
    wait_ready(&group);
    kill(stream, SIGINT);
    assert_int_equal(processes_wait(stream), 1);
    processes_wait_for(out, "CANCELLED");
    remove(out);
    expect_short_generate(&group);
    kill(group.pid, SIGTERM);
    end_group(&group, 0);
}

static void probes_and_status_before_the_group_is_whole(void **state) {
    (void)state;
    struct group group;
    processes_make_dir(group.dir);
    snprintf(group.log, sizeof group.log, "%s.log", group.dir);
    char run_dir[80];
    snprintf(run_dir, sizeof run_dir, "--run-dir=%s", group.dir);
    const char *model = "--model-path=" ESPALIER_SOURCE_DIR "/deploy/model";
    const char *coordinator[] = {model, run_dir, "--tp=2", NULL};
    const char *worker[] = {model, run_dir, "--tp=2", "--rank=1", NULL};
    pid_t pids[] = {processes_start(group.log, "espalier-coordinator", coordinator),
                    processes_start(group.log, "espalier-worker", worker)};
    processes_wait_for(group.log, "TP1 Memory pool end.");
    assert_int_equal(ask(&group, "probe", NULL, NULL), 1);
    assert_int_equal(ask(&group, "probe", "--check", "live"), 0);
    assert_int_equal(ask(&group, "probe", "--check", "startup"), 1);
    assert_int_equal(probe_rank(&group, "1", "live"), 0);
    assert_int_equal(probe_rank(&group, "1", "startup"), 0);
    assert_int_equal(probe_rank(&group, "1", "ready"), 1);
    assert_int_equal(probe_rank(&group, "0", "live"), 1);
    assert_int_equal(ask(&group, "status", NULL, NULL), 0);
    assert_non_null(strstr(result.out, "not ready"));
    assert_non_null(strstr(result.out, "absent"));
    /* A call that comes early waits for the group. */
    char out[128];
    snprintf(out, sizeof out, "%s.out", group.dir);
    const char *generate[] = {"generate", "--run-dir", group.dir,      "--tokens",
                              "3",        "--stats",   "CREATE TABLE", NULL};
    pid_t early = processes_start(out, "espalier", generate);
    do {
        assert_int_equal(ask(&group, "status", NULL, NULL), 0);
    } while (!strstr(result.out, "1 waiting"));
    const char *missing[] = {model, run_dir, "--tp=2", "--rank=0", NULL};
    pid_t rank_0 = processes_start(group.log, "espalier-worker", missing);
    assert_int_equal(processes_wait(early), 0);
    processes_wait_for(out, "3 tokens in");
    remove(out);
    kill(pids[0], SIGTERM);
    assert_int_equal(processes_wait(pids[0]), 0);
    assert_int_equal(processes_wait(pids[1]), 0);
    assert_int_equal(processes_wait(rank_0), 0);
    processes_remove_dir(group.dir);
    remove(group.log);
}

static void sigterm_lets_what_runs_finish(void **state) {
    (void)state;
    struct group group = start_group("2");
    char out[128];
    snprintf(out, sizeof out, "%s.out", group.dir);
    const char *arguments[] = {"generate", "--run-dir",      group.dir, "--ignore-eos", "--tokens",
                               "1500",     "--print-tokens", "--stats", "Once",         NULL};
    pid_t stream = processes_start(out, "espalier", arguments);
    processes_wait_for(out, " ");
    kill(group.pid, SIGTERM);
    processes_wait_for(group.log, "event=draining");
    const char *late[] = {"generate", "--run-dir", group.dir, "a", NULL};
    processes_run(&result, NULL, "espalier", late);
    assert_int_equal(result.exit_code, 1);
    assert_non_null(strstr(result.err, "UNAVAILABLE: the server is draining"));
    /* Those who only look are still answered, and a second drain waits for the same end. */
    assert_int_equal(ask(&group, "status", NULL, NULL), 0);
    assert_int_equal(strncmp(result.out, "draining", 8), 0);
    assert_int_equal(ask(&group, "probe", NULL, NULL), 1);
    assert_int_equal(ask(&group, "probe", "--check", "live"), 0);
    assert_int_equal(probe_rank(&group, "1", "live"), 0);
    assert_int_equal(ask(&group, "drain", NULL, NULL), 0);
    assert_int_equal(processes_wait(stream), 0);
    processes_wait_for(out, "1500 tokens in");
    remove(out);
    end_group(&group, 0);
}

static void a_second_sigterm_does_not_wait(void **state) {
    (void)state;
    struct group group = start_group("2");
    char out[128];
    pid_t stream = start_stream(&group, out);
    kill(group.pid, SIGTERM);
    processes_wait_for(group.log, "event=draining");
    kill(group.pid, SIGTERM);
    assert_int_equal(processes_wait(stream), 1);
    processes_wait_for(out, "UNAVAILABLE");
    remove(out);
    end_group(&group, 0);
}

/* However often one asks: the exit codes are the programs' own. */
static void sigterm_after_sigterm_changes_nothing(void **state) {
    (void)state;
    struct group group = start_group("2");
    const pid_t pids[] = {(pid_t)processes_ready_pid(group.dir, "coordinator"),
                          (pid_t)processes_ready_pid(group.dir, "worker-0"),
                          (pid_t)processes_ready_pid(group.dir, "worker-1")};
    while (processes_count(group.dir) > 1) { /* the last one is the launcher */
        for (size_t i = 0; i < sizeof pids / sizeof pids[0]; i++)
            kill(pids[i], SIGTERM);
        processes_sleep_ms(1);
    }
    assert_true(processes_wait_gone(group.dir) >= 0);
    processes_read_file(group.log, result.out, sizeof result.out);
    assert_null(strstr(result.out, "ended by"));
    end_group(&group, 0);
}

static void two_coordinators_and_two_groups(void **state) {
    (void)state;
    struct group first = start_group("1"), second = start_group("2");
    expect_short_generate(&first);
    expect_short_generate(&second);
    const char *again[] = {"serve", "--run-dir", first.dir, NULL};
    processes_run(&result, NULL, "espalier", again);
    assert_int_equal(result.exit_code, 75);
    assert_non_null(strstr(result.err, "another coordinator runs"));
    assert_ptr_equal(strchr(result.err, '\n') + 1, result.err + strlen(result.err));
    expect_short_generate(&first);
    kill(first.pid, SIGTERM);
    end_group(&first, 0);
    expect_short_generate(&second);
    kill(second.pid, SIGTERM);
    end_group(&second, 0);
}

/* Neither a client nor Ctrl-C waits for ever. */
static void a_stopped_coordinator_holds_up_nobody(void **state) {
    (void)state;
    struct group group = start_group("2");
    char out[128];
    pid_t stream = start_stream(&group, out);
    kill((pid_t)processes_ready_pid(group.dir, "coordinator"), SIGSTOP);
    assert_int_equal(processes_wait(stream), 1);
    processes_wait_for(out, "UNAVAILABLE");
    remove(out);
    kill(group.pid, SIGINT);
    kill(group.pid, SIGTERM);
    processes_wait_for(group.log, "the coordinator does not end");
    end_group(&group, 75);
}

/* A worker that dies again and again is not started for ever. */
static void a_worker_that_keeps_dying_ends_the_group(void **state) {
    (void)state;
    struct group group = start_group("1");
    int kills = 0;
    for (long killed = 0; processes_is_running(group.pid); processes_sleep_ms(5)) {
        long pid = processes_ready_pid(group.dir, "worker-0");
        if (pid <= 0 || pid == killed || kill((pid_t)pid, SIGKILL) != 0) continue;
        killed = pid;
        kills++;
    }
    assert_int_equal(kills, 6); /* the first, and five that were started again */
    processes_wait_for(group.log, "giving up");
    end_group(&group, 69);
}

/* One that is refused, or cannot be had, is not started again at all. */
static void hopeless_workers_end_the_group(void **state) {
    (void)state;
    char dir[64], log[96], run_dir[80];
    processes_make_dir(dir);
    snprintf(log, sizeof log, "%s.log", dir);
    snprintf(run_dir, sizeof run_dir, "--run-dir=%s", dir);
    const char *model = "--model-path=" ESPALIER_SOURCE_DIR "/deploy/model";
    const char *coordinator[] = {model, run_dir, "--tp=1", NULL};
    const char *worker[] = {model, run_dir, "--tp=2", "--rank=1", NULL};
    pid_t pid = processes_start(log, "espalier-coordinator", coordinator);
    char ready[96];
    snprintf(ready, sizeof ready, "%s/coordinator.ready", dir);
    processes_wait_for(ready, "pid=");
    processes_run(&result, NULL, "espalier-worker", worker);
    assert_int_equal(result.exit_code, 78);
    assert_non_null(strstr(result.err, "refused by the coordinator"));
    kill(pid, SIGTERM);
    assert_int_equal(processes_wait(pid), 0);
    const char *serve[] = {"serve", "--run-dir", dir, "--device", "cuda", NULL};
    processes_run(&result, NULL, "espalier", serve);
    assert_int_equal(result.exit_code, 78);
    assert_non_null(strstr(result.err, "espalier-worker: --device")); /* this build, or machine */
    assert_int_equal(processes_count(dir), 0);
    processes_remove_dir(dir);
    remove(log);
}

static pid_t start_coordinator(const struct group *group, const char *run_dir) {
    const char *model = "--model-path=" ESPALIER_SOURCE_DIR "/deploy/model";
    const char *coordinator[] = {model, run_dir, "--tp=2", NULL};
    pid_t pid = processes_start(group->log, "espalier-coordinator", coordinator);
    char ready[96], pid_text[32];
    snprintf(ready, sizeof ready, "%s/coordinator.ready", group->dir);
    snprintf(pid_text, sizeof pid_text, "pid=%d\n", (int)pid);
    processes_wait_for(ready, pid_text);
    return pid;
}

/* Its lines, and no older ones, are those of all that serve it. */
static void expect_workers_in_this_boot(const struct group *group) {
    static const char *const words[] = {"comp=worker rank=0", "comp=worker rank=1",
                                        "TP1 Memory pool end.", "event=memory_total",
                                        "event=joined generation=1 size=2"};
    const char *logs[] = {"logs", "--run-dir", group->dir, NULL};
    processes_run(&result, NULL, "espalier", logs);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strstr(result.out, words[i])) fail_msg("'%s' lacks '%s'", result.out, words[i]);
}

/* Weights outlive a coordinator where that was asked for, whether it was killed or ended in order,
 * and are not read again. */
static void lingering_workers_serve_the_next(void **state) {
    (void)state;
    struct group group;
    processes_make_dir(group.dir);
    snprintf(group.log, sizeof group.log, "%s.log", group.dir);
    char run_dir[80];
    snprintf(run_dir, sizeof run_dir, "--run-dir=%s", group.dir);
    const char *model = "--model-path=" ESPALIER_SOURCE_DIR "/deploy/model";
    const char *worker[2][6] = {{model, run_dir, "--tp=2", "--rank=0", "--linger=60", NULL},
                                {model, run_dir, "--tp=2", "--rank=1", "--linger=60", NULL}};
    pid_t coordinator = start_coordinator(&group, run_dir), workers[2];
    for (int rank = 0; rank < 2; rank++)
        workers[rank] = processes_start(group.log, "espalier-worker", worker[rank]);
    wait_ready(&group);
    static const int ends[] = {SIGKILL, SIGTERM, SIGKILL};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        kill(coordinator, ends[i]);
        assert_int_equal(processes_wait(coordinator), ends[i] == SIGKILL ? -SIGKILL : 0);
        long begin_ms = processes_now_ms();
        coordinator = start_coordinator(&group, run_dir);
        wait_ready(&group);
        print_message("signal %d: serving again %ld ms after the next was started\n", ends[i],
                      processes_now_ms() - begin_ms);
        expect_short_generate(&group);
        expect_workers_in_this_boot(&group);
    }
    assert_int_equal((pid_t)processes_ready_pid(group.dir, "worker-0"), workers[0]);
    assert_int_equal((pid_t)processes_ready_pid(group.dir, "worker-1"), workers[1]);
    assert_int_equal(weight_loads(&group, "0"), 1);
    assert_int_equal(weight_loads(&group, "1"), 1);
    kill(coordinator, SIGTERM);
    assert_int_equal(processes_wait(coordinator), 0);
    for (int rank = 0; rank < 2; rank++) {
        assert_true(processes_is_running(workers[rank]));
        kill(workers[rank], SIGTERM);
        assert_int_equal(processes_wait(workers[rank]), 0);
    }
    processes_remove_dir(group.dir);
    remove(group.log);
}

static int tear_down(void **state) {
    (void)state;
    processes_kill_all();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_killed_coordinator_takes_all_with_it, tear_down),
        cmocka_unit_test_teardown(workers_alone_follow_their_coordinator, tear_down),
        cmocka_unit_test_teardown(a_killed_worker_ends_calls_and_comes_back, tear_down),
        cmocka_unit_test_teardown(a_killed_launcher_leaves_nobody, tear_down),
        cmocka_unit_test_teardown(probes_answer_while_a_rank_is_stopped, tear_down),
        cmocka_unit_test_teardown(probes_and_status_before_the_group_is_whole, tear_down),
        cmocka_unit_test_teardown(sigterm_lets_what_runs_finish, tear_down),
        cmocka_unit_test_teardown(a_second_sigterm_does_not_wait, tear_down),
        cmocka_unit_test_teardown(sigterm_after_sigterm_changes_nothing, tear_down),
        cmocka_unit_test_teardown(two_coordinators_and_two_groups, tear_down),
        cmocka_unit_test_teardown(a_stopped_coordinator_holds_up_nobody, tear_down),
        cmocka_unit_test_teardown(a_worker_that_keeps_dying_ends_the_group, tear_down),
        cmocka_unit_test_teardown(hopeless_workers_end_the_group, tear_down),
        cmocka_unit_test_teardown(lingering_workers_serve_the_next, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
