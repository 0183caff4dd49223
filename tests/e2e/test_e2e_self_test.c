/* A rank that cannot do what it is about to promise is not ready: it says in one line which rung it
 * failed and ends with exit code 70. Its memory is made false from outside (false_memory.c); with
 * --no-self-test nobody looks. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "processes.h"

#define MODEL_DIR ESPALIER_SOURCE_DIR "/deploy/model"
#define TOKENS    "512"

static const struct {
    const char *fault, *words;
    bool of_all; /* the other rank sees it too */
} rungs[] = {
    {"attention", "self-test attention: over " TOKENS " tokens, ", false},
    {"pool", "self-test pool: the cache, page 0 of 8 in layer 1: ", false},
    {"collective", "self-test collective: element 0 of a sum of 16 over 2 ranks ", true},
};
#define RUNGS (sizeof rungs / sizeof rungs[0])

struct group {
    char dir[64], coordinator_log[96], log[2][96];
    pid_t coordinator, rank[2];
};

static pid_t start_rank(const char *dir, const char *rank, const char *log) {
    const char *arguments[] = {"--run-dir",    dir,       "--tp", "2", "--rank", rank,
                               "--model-path", MODEL_DIR, NULL};
    return processes_start(log, "espalier-worker", arguments);
}

/* Rank 1 has false memory. */
static void start(struct group *group, const char *fault, const char *flag) {
    processes_make_dir(group->dir);
    snprintf(group->coordinator_log, sizeof group->coordinator_log, "%s.log", group->dir);
    snprintf(group->log[0], sizeof group->log[0], "%s-rank-0.log", group->dir);
    snprintf(group->log[1], sizeof group->log[1], "%s-rank-1.log", group->dir);
    const char *arguments[] = {"--run-dir",
                               group->dir,
                               "--tp",
                               "2",
                               "--model-path",
                               MODEL_DIR,
                               "--context-length",
                               TOKENS,
                               "--max-total-tokens",
                               TOKENS,
                               flag,
                               NULL};
    group->coordinator = processes_start(group->coordinator_log, "espalier-coordinator", arguments);
    group->rank[0] = start_rank(group->dir, "0", group->log[0]);
    setenv("LD_PRELOAD", ESPALIER_FALSE_MEMORY_LIB, 1);
    setenv("ESPALIER_FALSE_MEMORY", fault, 1);
    group->rank[1] = start_rank(group->dir, "1", group->log[1]);
    unsetenv("LD_PRELOAD");
    unsetenv("ESPALIER_FALSE_MEMORY");
}

/* Ends what is left of it; returns the exit code of rank 0. */
static int stop(struct group *group) {
    kill(group->coordinator, SIGTERM);
    assert_int_equal(processes_wait(group->coordinator), 0);
    int exit_code = processes_wait(group->rank[0]);
    processes_remove_dir(group->dir);
    remove(group->coordinator_log);
    remove(group->log[0]);
    remove(group->log[1]);
    return exit_code;
}

/* How many lines of the file have both; the last of them is copied. */
static int count_lines(const char *path, const char *a, const char *b, char *line_out,
                       size_t bytes) {
    static char text[1u << 16];
    int count = 0;
    processes_read_file(path, text, sizeof text);
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        if (!strstr(line, a) || !strstr(line, b)) continue;
        snprintf(line_out, bytes, "%s", line);
        count++;
    }
    return count;
}

static void skip_with_sanitizers(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* they want to be loaded first themselves */
#endif
}

static void a_rank_that_fails_a_rung_ends(void **state) {
    (void)state;
    skip_with_sanitizers();
    for (size_t i = 0; i < RUNGS; i++) {
        struct group group;
        char line[1024] = "";
        start(&group, rungs[i].fault, NULL);
        int exit_code = processes_wait(group.rank[1]);
        int count = count_lines(group.log[1], "level=error", "", line, sizeof line);
        if (exit_code != 70 || count != 1 || !strstr(line, " rank=1 ") ||
            !strstr(line, rungs[i].words))
            fail_msg("%s: exit code %d, %d errors, the last: %s", rungs[i].fault, exit_code, count,
                     line);
        processes_wait_for(group.coordinator_log, "reason=\"rank ");
        if (!rungs[i].of_all && count_lines(group.coordinator_log, "reason=\"rank 1",
                                            rungs[i].words, line, sizeof line) == 0)
            fail_msg("%s: the coordinator does not know why", rungs[i].fault);
        if (!rungs[i].of_all)
            processes_wait_for(group.coordinator_log, "event=worker_loaded rank=0");
        assert_int_equal(
            count_lines(group.coordinator_log, "event=group_ready", "", line, sizeof line), 0);
        exit_code = stop(&group);
        if (exit_code != 0 && !(rungs[i].of_all && exit_code == 70))
            fail_msg("%s: rank 0 ends with %d", rungs[i].fault, exit_code);
    }
}

static void without_a_self_test_nobody_looks(void **state) {
    (void)state;
    skip_with_sanitizers();
    for (size_t i = 0; i < RUNGS; i++) {
        struct group group;
        char line[1024] = "";
        start(&group, rungs[i].fault, "--no-self-test");
        processes_wait_for(group.coordinator_log, "event=group_ready generation=1");
        if (count_lines(group.log[1], "self", "test", line, sizeof line) > 0)
            fail_msg("%s: %s", rungs[i].fault, line);
        kill(group.coordinator, SIGTERM);
        assert_int_equal(processes_wait(group.rank[1]), 0);
        assert_int_equal(stop(&group), 0);
    }
}

/* The same group with sound memory: what fails above is the memory's fault. */
static void sound_memory_passes(void **state) {
    (void)state;
    skip_with_sanitizers();
    struct group group;
    char line[1024] = "";
    start(&group, "none", NULL);
    processes_wait_for(group.coordinator_log, "event=group_ready generation=1");
    assert_int_equal(
        count_lines(group.log[1], "event=self_test", "rungs=\"attention pool\"", line, sizeof line),
        1);
    kill(group.coordinator, SIGTERM);
    assert_int_equal(processes_wait(group.rank[1]), 0);
    assert_int_equal(stop(&group), 0);
}

static int tear_down(void **state) {
    (void)state;
    processes_kill_all();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_rank_that_fails_a_rung_ends, tear_down),
        cmocka_unit_test_teardown(without_a_self_test_nobody_looks, tear_down),
        cmocka_unit_test_teardown(sound_memory_passes, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
