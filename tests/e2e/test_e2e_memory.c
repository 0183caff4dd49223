/* Pools sized by memory: what is planned, what the kernel says is there, and what is refused. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <json-c/json.h>

#include "processes.h"

#define MODEL "--model-path=" ESPALIER_SOURCE_DIR "/deploy/model"

static struct processes_result result;

/* A running group whose ranks have so much memory each. */
struct group {
    char dir[64], log[96];
    pid_t pid;
};

static struct group start_group(const char *tp, const char *device_memory, const char *more) {
    struct group group;
    processes_make_dir(group.dir);
    snprintf(group.log, sizeof group.log, "%s.log", group.dir);
    const char *serve[] = {"serve",       "--run-dir",       group.dir,     MODEL, "--tp", tp,
                           "--threads=1", "--device-memory", device_memory, more,  NULL};
    group.pid = processes_start(group.log, "espalier", serve);
    processes_wait_for(group.log, "espalier: ready");
    return group;
}

static void end_group(struct group *group) {
    kill(group->pid, SIGTERM);
    assert_int_equal(processes_wait(group->pid), 0);
    processes_remove_dir(group->dir);
    remove(group->log);
}

/* `key` of what `espalier plan --json` prints for such a rank. */
static uint64_t planned(const char *tp, const char *device_memory, const char *key) {
    const char *plan[] = {
        "plan", MODEL, "--tp", tp, "--json", "--threads=1", "--device-memory", device_memory, NULL};
    processes_run(&result, NULL, "espalier", plan);
    assert_int_equal(result.exit_code, 0);
    struct json_object *object = json_tokener_parse(result.out), *value = NULL;
    assert_true(object && json_object_object_get_ex(object, key, &value));
    uint64_t number = json_object_get_uint64(value);
    json_object_put(object);
    return number;
}

/* The number behind `key` in the first line of `text` that holds all of `rank` and `event`. */
static uint64_t number_in(const char *text, const char *rank, const char *event, const char *key) {
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        const char *end = strchr(line, '\n');
        const char *has_rank = strstr(line, rank), *has_event = strstr(line, event);
        const char *value = strstr(line, key);
        if (end && has_rank && has_event && value && has_rank < end && has_event < end &&
            value < end)
            return strtoull(value + strlen(key), NULL, 10);
    }
    fail_msg("no line with%s %s %s", rank, event, key);
    return 0;
}

static uint64_t resident_bytes(pid_t pid) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    processes_read_file(path, text, sizeof text);
    const char *at = strstr(text, "Rss:");
    assert_non_null(at);
    return strtoull(at + 4, NULL, 10) * 1024;
}

static void expect_within_percent(uint64_t found, uint64_t wanted, double percent,
                                  const char *what) {
    double off = 100.0 * ((double)found - (double)wanted) / (double)wanted;
    if (off > percent || off < -percent)
        fail_msg("%s: %llu, planned %llu: %.2f %% off", what, (unsigned long long)found,
                 (unsigned long long)wanted, off);
}

static void expect_rank_as_planned(const struct group *group, const char *tp, const char *memory,
                                   uint32_t rank) {
    static char log[1 << 18];
    char name[32], who[32];
    snprintf(name, sizeof name, " rank=%u ", rank);
    snprintf(who, sizeof who, "worker-%u", rank);
    processes_read_file(group->log, log, sizeof log);
    uint64_t measured = number_in(log, name, "event=memory_total", " measured_bytes=");
    uint64_t resident = resident_bytes((pid_t)processes_ready_pid(group->dir, who));
    assert_int_equal(number_in(log, name, "event=memory_total", " pool_tokens="),
                     planned(tp, memory, "pool_tokens"));
    uint64_t lines = planned(tp, memory, "weight_bytes") + planned(tp, memory, "pool_bytes") +
                     number_in(log, name, " line=activations ", " predicted_bytes=") +
                     number_in(log, name, " line=verify_partials ", " predicted_bytes=");
    expect_within_percent(measured, lines, 2, "resident");
    assert_true(resident >= measured);
    print_message("tp %s rank %u: planned %llu, measured %llu, process %llu, residual %llu\n", tp,
                  rank, (unsigned long long)lines, (unsigned long long)measured,
                  (unsigned long long)resident, (unsigned long long)(resident - measured));
}

static void memory_is_as_planned(void **state) {
    (void)state;
    static const struct {
        const char *tp, *memory, *last;
        uint32_t last_rank;
    } rows[] = {
        {"1", "96M", "worker-0", 0}, {"2", "64M", "worker-1", 1}, {"8", "64M", "worker-7", 7}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct group group = start_group(rows[i].tp, rows[i].memory, NULL);
        expect_rank_as_planned(&group, rows[i].tp, rows[i].memory, 0);
        expect_rank_as_planned(&group, rows[i].tp, rows[i].memory, rows[i].last_rank);
        end_group(&group);
    }
}

/* Two groups that differ in nothing but their memory: what the second has more, the kernel counts
 * more, whatever else a process takes. */
static void more_memory_is_more_pool(void **state) {
    (void)state;
    uint64_t resident[2], pool[2];
    static const char *const memory[] = {"64M", "192M"};
    for (int i = 0; i < 2; i++) {
        struct group group = start_group("2", memory[i], NULL);
        resident[i] = resident_bytes((pid_t)processes_ready_pid(group.dir, "worker-1"));
        pool[i] = planned("2", memory[i], "pool_bytes");
        end_group(&group);
    }
    assert_true(pool[1] - pool[0] > UINT64_C(120) << 20);
    expect_within_percent(resident[1] - resident[0], pool[1] - pool[0], 2, "the difference");
}

static void refused_in_one_line(const char *const *arguments, const char *a, const char *b) {
    processes_run(&result, NULL, "espalier-coordinator", arguments);
    assert_int_equal(result.exit_code, 78);
    if (!strstr(result.err, a) || !strstr(result.err, b)) fail_msg("%s", result.err);
}

static void short_memory_is_refused_at_once(void **state) {
    (void)state;
    char dir[64];
    processes_make_dir(dir);
    refused_in_one_line(
        (const char *const[]){MODEL, "--run-dir", dir, "--device-memory", "36M", NULL},
        "--device-memory: found 36.0 MiB", "--mem-fraction-static 0.");
    refused_in_one_line(
        (const char *const[]){MODEL, "--run-dir", dir, "--device-memory", "1M", NULL},
        "hold a pool of 0 tokens", "accepted: more memory, ");
    processes_remove_dir(dir);
}

/* One rank's machine is smaller than the others'; the coordinator learns it when all have loaded.
 */
static void start_uneven(const char *dir, const char *log, const char *rank_1_memory,
                         const char *more, pid_t pid_out[3]) {
    const char *coordinator[] = {MODEL, "--run-dir", dir, "--tp=2", "--device-memory",
                                 "64M", more,        NULL};
    const char *rank_0[] = {MODEL,      "--run-dir",       dir,   "--tp=2",
                            "--rank=0", "--device-memory", "64M", NULL};
    const char *rank_1[] = {MODEL,      "--run-dir",       dir,           "--tp=2",
                            "--rank=1", "--device-memory", rank_1_memory, NULL};
    pid_out[0] = processes_start(log, "espalier-coordinator", coordinator);
    pid_out[1] = processes_start(log, "espalier-worker", rank_0);
    pid_out[2] = processes_start(log, "espalier-worker", rank_1);
}

static void the_smallest_rank_rules(void **state) {
    (void)state;
    char dir[64], log[96];
    pid_t pid[3];
    processes_make_dir(dir);
    snprintf(log, sizeof log, "%s.log", dir);
    start_uneven(dir, log, "40M", NULL, pid);
    processes_wait_for(log, "event=pool_settled rank=1 tokens=");
    processes_wait_for(log, "available_gpu_mem=");
    char text[1 << 16];
    processes_read_file(log, text, sizeof text);
    uint64_t tokens = number_in(text, " rank=1 ", "event=memory_total", " pool_tokens=");
    char line[64];
    snprintf(line, sizeof line, "Z max_total_num_tokens=%llu, ", (unsigned long long)tokens);
    assert_non_null(strstr(text, line));
    const char *generate[] = {"generate",
                              "--run-dir",
                              dir,
                              "--tokens",
                              "4",
                              "--print-tokens",
                              "The sqlite3_open() function",
                              NULL};
    processes_run(&result, NULL, "espalier", generate);
    assert_int_equal(strncmp(result.out, "290 468 291 845", 15), 0);
    kill(pid[0], SIGTERM);
    assert_int_equal(processes_wait(pid[0]), 0);
    processes_remove_dir(dir);
    remove(log);
}

static void a_rank_too_small_is_refused(void **state) {
    (void)state;
    char dir[64], log[96];
    pid_t pid[3];
    processes_make_dir(dir);
    snprintf(log, sizeof log, "%s.log", dir);
    start_uneven(dir, log, "27M", NULL, pid);
    assert_int_equal(processes_wait(pid[0]), 78);
    processes_wait_for(log, "event=pool_short reason=\"rank 1 has memory for ");
    char text[1 << 16];
    processes_read_file(log, text, sizeof text);
    assert_non_null(strstr(text, "accepted: --mem-fraction-static 0."));
    processes_remove_dir(dir);
    remove(log);
}

/* A short pool that was asked for is told to clients as the limit it is. */
static void a_short_pool_is_advertised(void **state) {
    (void)state;
    struct group group = start_group("2", "44M", "--allow-short-pool");
    const char *plan[] = {"plan",   MODEL, "--tp=2", "--threads=1", "--device-memory=44M",
                          "--json", NULL};
    processes_run(&result, NULL, "espalier", plan);
    assert_int_equal(result.exit_code, 1);
    const char *at = strstr(result.out, "\"pool_tokens\":");
    assert_non_null(at);
    unsigned long tokens = strtoul(at + strlen("\"pool_tokens\":"), NULL, 10);
    assert_in_range(tokens, 64, 4095);
    char words[64];
    snprintf(words, sizeof words, "  context %lu  ", tokens);
    const char *status[] = {"status", "--run-dir", group.dir, NULL};
    processes_run(&result, NULL, "espalier", status);
    if (!strstr(result.out, words)) fail_msg("wanted \"%s\": %s", words, result.out);
    end_group(&group);
}

static int tear_down(void **state) {
    (void)state;
    processes_kill_all();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(memory_is_as_planned, tear_down),
        cmocka_unit_test_teardown(more_memory_is_more_pool, tear_down),
        cmocka_unit_test_teardown(short_memory_is_refused_at_once, tear_down),
        cmocka_unit_test_teardown(the_smallest_rank_rules, tear_down),
        cmocka_unit_test_teardown(a_rank_too_small_is_refused, tear_down),
        cmocka_unit_test_teardown(a_short_pool_is_advertised, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
