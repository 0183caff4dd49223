/* A group whose ranks are told where their memory lies: by the kernel's own maps of them. */
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "processes.h"

static struct processes_result result;
static char dir[64], log_path[96];

static int set_up(void **state) {
    (void)state;
    processes_make_dir(dir);
    snprintf(log_path, sizeof log_path, "%s.log", dir);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    processes_kill_all();
    processes_remove_dir(dir);
    remove(log_path);
    return 0;
}

/* The first node that has CPUs we may use; -1 where the kernel tells of none, or lets us choose no
 * memory (containers). */
static int a_node(void) {
    for (int node = 0; node < 64; node++) {
        cpu_set_t mask;
        int mode;
        char path[96], text[64];
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
        FILE *file = fopen(path, "re");
        if (!file) continue;
        bool any = fgets(text, sizeof text, file) && text[0] >= '0' && text[0] <= '9';
        fclose(file);
        unsigned first = 0;
        if (!any || sscanf(text, "%u", &first) != 1) continue;
        if (sched_getaffinity(0, sizeof mask, &mask) != 0 || !CPU_ISSET(first, &mask)) continue;
        return syscall(SYS_get_mempolicy, &mode, NULL, 0ul, NULL, 0ul) == 0 ? node : -1;
    }
    return -1;
}

/* All that the worker has of memory of its own is under `policy`. */
static void expect_policy(const char *who, const char *policy) {
    char path[64], line[4096];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%ld/numa_maps", processes_ready_pid(dir, who));
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (!strstr(line, " anon=") || strstr(line, " file=")) continue;
        if (!strstr(line, policy)) fail_msg("not%sbut %s", policy, line);
        count++;
    }
    fclose(file);
    assert_true(count > 10);
}

static pid_t start(const char *tp, const char *numa) {
    remove(log_path);
    const char *serve[] = {"serve", "--run-dir", dir, "--threads=1", tp, numa, NULL};
    pid_t pid = processes_start(log_path, "espalier", serve);
    processes_wait_for(log_path, "espalier: ready");
    return pid;
}

static void end(pid_t pid) {
    kill(pid, SIGTERM);
    assert_int_equal(processes_wait(pid), 0);
}

static void a_node_is_asked_for(void **state) {
    (void)state;
    int node = a_node();
    if (node < 0) skip();
    char flag[32], policy[32], words[64];
    snprintf(flag, sizeof flag, "--numa=%d", node);
    pid_t pid = start("--tp=2", flag);
    snprintf(policy, sizeof policy, " prefer:%d ", node);
    for (uint32_t rank = 0; rank < 2; rank++) {
        char who[16];
        snprintf(who, sizeof who, "worker-%u", rank);
        expect_policy(who, policy);
        char rank_flag[16];
        snprintf(rank_flag, sizeof rank_flag, "--rank=%u", rank);
        const char *logs[] = {"logs", "--run-dir", dir, rank_flag, NULL};
        processes_run(&result, NULL, "espalier", logs);
        snprintf(words, sizeof words, "event=numa mode=node nodes=%d cpus=", node);
        assert_non_null(strstr(result.out, words));
        assert_non_null(strstr(result.out, " ranks=2 threads=1 policy=preferred "));
        const char *placed = strstr(result.out, "event=numa_placed near_bytes=");
        unsigned long long near_bytes = 0, far_bytes = 0;
        assert_non_null(placed);
        assert_int_equal(sscanf(placed, "event=numa_placed near_bytes=%llu far_bytes=%llu",
                                &near_bytes, &far_bytes),
                         2);
        assert_true(near_bytes > 10u << 20 && far_bytes < near_bytes / 20);
    }
    end(pid);
}

static void none_is_asked_for(void **state) {
    (void)state;
    if (a_node() < 0) skip();
    pid_t pid = start("--tp=1", "--numa=off");
    expect_policy("worker-0", " default ");
    processes_wait_for(log_path, "event=numa mode=off nodes=all cpus=");
    static char text[1 << 16];
    processes_read_file(log_path, text, sizeof text);
    assert_null(strstr(text, "event=numa_placed"));
    end(pid);
}

/* Nothing is tried a second time, and one line says why. */
static void a_node_that_is_not_there(void **state) {
    (void)state;
    const char *serve[] = {"serve", "--run-dir", dir, "--numa=1023", "--tp=1", NULL};
    processes_run(&result, NULL, "espalier", serve);
    assert_int_equal(result.exit_code, 78);
    const char *line = strstr(result.err, "espalier-worker: --numa: found 1023");
    assert_non_null(line);
    assert_null(strstr(line + 1, "espalier-worker: --numa"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_is_asked_for),
        cmocka_unit_test(none_is_asked_for),
        cmocka_unit_test(a_node_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
