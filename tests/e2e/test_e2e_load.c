/* What users and operators see of a group while its weights load. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "processes.h"
#include "sparse_model.h"

static struct processes_result result;

/* A terminal that a program writes to; what it wrote is read without waiting. */
struct terminal {
    int fd;
    char path[64];
    char text[PROCESSES_OUTPUT_MAX];
    size_t bytes;
};

static struct terminal terminal;

static void open_terminal(void) {
    terminal.fd = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    assert_true(terminal.fd >= 0);
    assert_int_equal(grantpt(terminal.fd), 0);
    assert_int_equal(unlockpt(terminal.fd), 0);
    assert_int_equal(ptsname_r(terminal.fd, terminal.path, sizeof terminal.path), 0);
    terminal.bytes = 0;
}

static bool terminal_shows(const char *text) {
    ssize_t bytes;
    while (terminal.bytes + 1 < sizeof terminal.text &&
           (bytes = read(terminal.fd, terminal.text + terminal.bytes,
                         sizeof terminal.text - 1 - terminal.bytes)) > 0)
        terminal.bytes += (size_t)bytes;
    terminal.text[terminal.bytes] = '\0';
    return strstr(terminal.text, text) != NULL;
}

static void wait_until_shown(const char *text) {
    long begin_ms = processes_now_ms();
    while (!terminal_shows(text)) {
        if (processes_now_ms() - begin_ms > PROCESSES_PATIENCE_MS)
            fail_msg("the terminal never shows \"%s\":\n%s", text, terminal.text);
        processes_sleep_ms(5);
    }
}

/* ---- a group that loads -------------------------------------------------------------------- */

static char model[64], dir[64];

static pid_t start_serve(void) {
    open_terminal();
    const char *serve[] = {"serve", "--run-dir", dir, "--tp", "2", "--model-path", model, NULL};
    return processes_start(terminal.path, "espalier", serve);
}

static int ask(const char *command, const char *a, const char *b) {
    const char *arguments[] = {command, "--run-dir", dir, a, b, NULL};
    processes_run(&result, NULL, "espalier", arguments);
    return result.exit_code;
}

static int probe(const char *rank, const char *check) {
    const char *arguments[] = {"probe", "--run-dir", dir, "--rank", rank, "--check", check, NULL};
    processes_run(&result, NULL, "espalier", arguments);
    return result.exit_code;
}

/* The bytes that rank 0 has loaded while it is still at it; 0 where it is not. */
static long loading_bytes(void) {
    if (ask("status", "--json", NULL) != 0) return 0;
    const char *rank = strstr(result.out, "{\"rank\":0,\"state\":\"loading\"");
    const char *bytes = rank ? strstr(rank, "\"load_bytes\":") : NULL;
    return bytes ? strtol(bytes + strlen("\"load_bytes\":"), NULL, 10) : 0;
}

static long wait_for_bytes_above(long bytes) {
    long begin_ms = processes_now_ms(), found;
    while ((found = loading_bytes()) <= bytes) {
        if (processes_now_ms() - begin_ms > PROCESSES_PATIENCE_MS)
            fail_msg("loading bytes never grow beyond %ld: %s", bytes, result.out);
        processes_sleep_ms(5);
    }
    return found;
}

static void expect_nothing_left(void) {
    assert_int_equal(processes_count(dir), 0);
    assert_int_equal(processes_dir_entries(dir), 0);
    close(terminal.fd);
}

/* ---- the tests ----------------------------------------------------------------------------- */

static void everything_answers_and_then_it_is_ready(void **state) {
    (void)state;
    pid_t pid = start_serve();
    long bytes = wait_for_bytes_above(0);
    assert_int_equal(probe("0", "live"), 0);
    assert_int_equal(probe("1", "live"), 0);
    assert_int_equal(probe("0", "startup"), 1);
    assert_int_equal(probe("0", "ready"), 1);
    assert_non_null(strstr(result.out, "loading"));
    assert_int_equal(ask("probe", NULL, NULL), 1);
    assert_int_equal(ask("probe", "--check", "live"), 0);
    assert_int_equal(ask("status", NULL, NULL), 0);
    assert_int_equal(strncmp(result.out, "not ready", 9), 0);
    wait_for_bytes_above(bytes);
    wait_until_shown("loading [#");
    wait_until_shown(" MB/s");
    wait_until_shown(" left  0/2 ranks");
    wait_until_shown("espalier: ready");
    assert_int_equal(ask("probe", NULL, NULL), 0);
    assert_int_equal(probe("0", "ready"), 0);
    const char *generate[] = {"generate", "--run-dir",      dir, "--tokens", "2", "--ignore-eos",
                              "--stats",  "--print-tokens", "a", NULL};
    processes_run(&result, NULL, "espalier", generate);
    assert_int_equal(result.exit_code, 0);
    assert_non_null(strstr(result.err, "2 tokens in"));
    kill(pid, SIGTERM);
    assert_int_equal(processes_wait(pid), 0);
    expect_nothing_left();
}

static void a_load_can_be_broken_off(void **state) {
    (void)state;
    static const int signals[] = {SIGTERM, SIGINT};
    for (int i = 0; i < 2; i++) {
        pid_t pid = start_serve();
        wait_for_bytes_above(0);
        kill(pid, signals[i]);
        long begin_ms = processes_now_ms();
        assert_int_equal(processes_wait(pid), 0);
        print_message("nothing left %ld ms after signal %d\n", processes_now_ms() - begin_ms,
                      signals[i]);
        assert_false(terminal_shows("espalier: ready"));
        expect_nothing_left();
    }
}

/* Programs that have hardly begun, and do not listen to signals yet, end without a word too. */
static void a_start_can_be_broken_off(void **state) {
    (void)state;
    for (unsigned after_ms = 2; after_ms <= 64; after_ms *= 2) {
        pid_t pid = start_serve();
        processes_sleep_ms(after_ms);
        kill(pid, SIGINT);
        (void)processes_wait(pid); /* of the signal itself, or 0 */
        if (terminal_shows("ended by")) fail_msg("after %u ms: %s", after_ms, terminal.text);
        expect_nothing_left();
    }
}

/* A group of one's own, loading: Ctrl-C ends it, and its directory is gone. */
static void a_private_group_can_be_broken_off(void **state) {
    (void)state;
    open_terminal();
    const char *generate[] = {"generate", "--model-path", model, "--tp", "2", "a", NULL};
    setenv("TMPDIR", dir, 1);
    pid_t pid = processes_start(terminal.path, "espalier", generate);
    unsetenv("TMPDIR");
    wait_until_shown("loading [#");
    kill(pid, SIGINT);
    assert_int_equal(processes_wait(pid), 1);
    expect_nothing_left();
}

/* A rank that is stopped while it loads is found out, dropped and killed; the next one takes its
 * place. */
static void a_stopped_loader_is_lost(void **state) {
    (void)state;
    char log[96], model_path[96], run_dir[96];
    snprintf(log, sizeof log, "%s.log", dir);
    snprintf(model_path, sizeof model_path, "--model-path=%s", model);
    snprintf(run_dir, sizeof run_dir, "--run-dir=%s", dir);
    const char *coordinator[] = {model_path,       run_dir,  "--load-timeout=2000",
                                 "--heartbeat=50", "--tp=1", NULL};
    const char *worker[] = {model_path, run_dir, "--rank=0", NULL};
    pid_t pid = processes_start(log, "espalier-coordinator", coordinator);
    pid_t stopped = processes_start(log, "espalier-worker", worker);
    wait_for_bytes_above(0);
    kill(stopped, SIGSTOP);
    processes_wait_for(log, "event=rank_lost");
    processes_wait_for(log, "rank 0 loaded nothing for 2000 ms (--load-timeout; ");
    assert_int_equal(processes_wait(stopped), -SIGKILL);
    pid_t next = processes_start(log, "espalier-worker", worker);
    processes_wait_for(log, "event=group_ready");
    kill(pid, SIGTERM);
    assert_int_equal(processes_wait(pid), 0);
    assert_int_equal(processes_wait(next), 0);
    assert_int_equal(processes_dir_entries(dir), 2); /* two programs' own logs */
    processes_remove_dir(dir);
    assert_int_equal(mkdir(dir, 0700), 0);
    remove(log);
}

static void change(const char *path, const struct stat *info, bool shrink) {
    if (shrink)
        assert_int_equal(truncate(path, info->st_size / 2), 0);
    else
        assert_int_equal(utimensat(AT_FDCWD, path, NULL, 0), 0);
}

/* False where all was loaded before the change came. */
static bool is_refused(pid_t pid) {
    while (processes_is_running(pid) && !terminal_shows("espalier: ready"))
        processes_sleep_ms(5);
    if (!processes_is_running(pid)) return true;
    kill(pid, SIGTERM);
    return false;
}

/* What happens to the file while it is read ends the load in words, and the group. */
static void a_file_that_changes_is_refused(void **state) {
    (void)state;
    static const char *const words[] = {"was written to", "shrank from"};
    char path[96];
    snprintf(path, sizeof path, "%s/model.safetensors", model);
    for (int shrink = 0; shrink <= 1; shrink++) {
        struct stat info;
        assert_int_equal(stat(path, &info), 0);
        bool refused = false;
        for (int attempt = 0; attempt < 5 && !refused; attempt++) {
            pid_t pid = start_serve();
            wait_for_bytes_above(0);
            change(path, &info, shrink);
            refused = is_refused(pid);
            assert_int_equal(processes_wait(pid), refused ? 78 : 0);
            expect_nothing_left();
            assert_int_equal(truncate(path, info.st_size), 0);
        }
        assert_true(refused);
        assert_true(terminal_shows("level=error"));
        if (!terminal_shows(path) ||
            (!terminal_shows(words[shrink]) && !terminal_shows("ends at byte")))
            fail_msg("the line lacks \"%s\":\n%s", words[shrink], terminal.text);
    }
}

/* A log that cannot be written, on a full device or at the limit of a file, stops nothing. */
static void full_logs_stop_nothing(void **state) {
    (void)state;
    static const struct {
        const char *err_path; /* NULL: beside the run directory */
        long file_bytes_max;
    } rows[] = {{"/dev/full", 0}, {NULL, 4096}};
    const char *generate[] = {"generate",    "--tokens", "2",    "--print-tokens",
                              "--log-level", "debug",    "Once", NULL};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char log[96];
        snprintf(log, sizeof log, "%s.log", dir);
        const struct processes_surroundings full = {.err_path = rows[i].err_path ? rows[i].err_path
                                                                                 : log,
                                                    .file_bytes_max = rows[i].file_bytes_max};
        processes_run_in(&result, &full, "espalier", generate);
        assert_int_equal(result.exit_code, 0);
        assert_true(result.out[0] >= '0' && result.out[0] <= '9');
        struct stat info;
        if (!rows[i].err_path) assert_int_equal(stat(log, &info), 0);
        if (!rows[i].err_path) assert_in_range(info.st_size, 1024, 4096);
        remove(log);
    }
    const char *full[] = {"generate", "--tokens", "2", "--journal", "/dev/full", "Once", NULL};
    processes_run(&result, NULL, "espalier", full);
    assert_int_equal(result.exit_code, 0);
}

static int set_up(void **state) {
    (void)state;
    processes_make_dir(model);
    processes_make_dir(dir);
    sparse_model_make(model);
    return 0;
}

static int end(void **state) {
    (void)state;
    processes_remove_dir(model);
    processes_remove_dir(dir);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    processes_kill_all();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_load_can_be_broken_off, tear_down),
        cmocka_unit_test_teardown(a_start_can_be_broken_off, tear_down),
        cmocka_unit_test_teardown(a_private_group_can_be_broken_off, tear_down),
        cmocka_unit_test_teardown(a_stopped_loader_is_lost, tear_down),
        cmocka_unit_test_teardown(a_file_that_changes_is_refused, tear_down),
        cmocka_unit_test_teardown(full_logs_stop_nothing, tear_down),
        cmocka_unit_test_teardown(everything_answers_and_then_it_is_ready, tear_down),
    };
    return cmocka_run_group_tests(tests, set_up, end);
}
