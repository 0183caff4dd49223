/* `espalier logs --errors`: the errors of this boot, and of no other. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "processes.h"

static struct processes_result result;
static char dir[64], log_dir[64], log_path[96];

static int set_up(void **state) {
    (void)state;
    processes_make_dir(dir);
    processes_make_dir(log_dir);
    snprintf(log_path, sizeof log_path, "%s.log", dir);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    processes_kill_all();
    processes_remove_dir(dir);
    processes_remove_dir(log_dir);
    remove(log_path);
    return 0;
}

static pid_t start(const char *more) {
    remove(log_path);
    const char *serve[] = {"serve", "--run-dir", dir, "--tp=2", more, NULL};
    pid_t pid = processes_start(log_path, "espalier", serve);
    processes_wait_for(log_path, "espalier: ready");
    return pid;
}

static void end(pid_t pid) {
    kill(pid, SIGTERM);
    assert_int_equal(processes_wait(pid), 0);
}

static int logs(const char *a, const char *b) {
    const char *arguments[] = {"logs", "--run-dir", dir, a, b, NULL};
    processes_run(&result, NULL, "espalier", arguments);
    return result.exit_code;
}

static void boot_of_the_group(char boot_out[17]) {
    processes_ready_value(dir, "coordinator", "boot", boot_out, 17);
    assert_int_equal(strlen(boot_out), 16);
}

static void kill_rank_1(void) {
    kill((pid_t)processes_ready_pid(dir, "worker-1"), SIGKILL);
    processes_wait_for(log_path, "event=generation_over");
    processes_wait_for(log_path, "event=group_ready generation=2");
}

static void a_clean_boot_and_a_lost_rank(void **state) {
    (void)state;
    pid_t pid = start(NULL);
    char boot[17], words[64];
    boot_of_the_group(boot);
    snprintf(words, sizeof words, "no errors in boot %s (since 20", boot);
    assert_int_equal(logs("--errors", NULL), 0);
    assert_int_equal(strncmp(result.out, words, strlen(words)), 0);
    assert_int_equal(logs(NULL, NULL), 0);
    assert_non_null(strstr(result.out, "event=listening"));
    assert_non_null(strstr(result.out, " TP1 Memory pool end."));
    assert_non_null(strstr(result.out, "event=group_ready"));
    assert_int_equal(logs("--rank=1", NULL), 0);
    assert_null(strstr(result.out, "comp=coordinator"));
    assert_non_null(strstr(result.out, " rank=1 "));
    kill_rank_1();
    assert_int_equal(logs("--errors", NULL), 1);
    assert_int_equal(strncmp(result.out, "--- rank 1, which failed first\n", 31), 0);
    assert_non_null(strstr(result.out, "rank 1 is lost"));
    end(pid);
    assert_int_equal(logs("--errors", NULL), 1); /* the files went with the group */
    assert_non_null(strstr(result.err, "no logs of a group that runs"));
}

static void stale_errors_are_not_shown(void **state) {
    (void)state;
    char flag[96], boot[17];
    snprintf(flag, sizeof flag, "--log-dir=%s", log_dir);
    pid_t pid = start(flag);
    boot_of_the_group(boot);
    kill_rank_1();
    assert_int_equal(logs("--errors", flag), 1);
    end(pid);
    assert_int_equal(logs("--errors", flag), 1); /* the last boot, its group gone */
    assert_non_null(strstr(result.out, boot));
    pid = start(flag);
    assert_int_equal(logs("--errors", flag), 0);
    assert_int_equal(strncmp(result.out, "no errors in boot ", 18), 0);
    assert_null(strstr(result.out, boot));
    const char *old[] = {"logs", "--errors", flag, "--boot", boot, NULL};
    processes_run(&result, NULL, "espalier", old);
    assert_int_equal(result.exit_code, 1);
    assert_non_null(strstr(result.out, boot));
    end(pid);
    /* From elsewhere: what a journal prints. */
    static char text[1 << 17];
    processes_read_file(log_path, text, sizeof text);
    const char *piped[] = {"logs", "--errors", "-", NULL};
    processes_run(&result, text, "espalier", piped);
    assert_int_equal(result.exit_code, 0);
}

/* ---- systemd's journal, through a journalctl of our own ------------------------------------- */

#define OLD_ERROR                                                                                  \
    "2026-11-29T20:05:01.000Z level=error comp=worker rank=3 boot=aaaaaaaaaaaaaaaa event=fault "   \
    "reason=\"stale\""
#define NEW_LINE(rest)                                                                             \
    "2026-11-29T20:06:01.000Z level=info comp=coordinator boot=bbbbbbbbbbbbbbbb event=" rest

static int logs_of_journal(const char *script) {
    char program[96], path[4200];
    snprintf(program, sizeof program, "%s/journalctl", log_dir);
    FILE *file = fopen(program, "w");
    assert_non_null(file);
    assert_true(fprintf(file, "#!/bin/sh\n%s\n", script) > 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(program, 0700), 0);
    snprintf(path, sizeof path, "PATH=%s:/usr/bin:/bin", log_dir);
    const char *variables[] = {path, NULL};
    const char *arguments[] = {"logs", "--run-dir", dir, "--journald", "--errors", NULL};
    processes_run_with(&result, variables, "espalier", arguments);
    return result.exit_code;
}

static void the_journal_of_our_units(void **state) {
    (void)state;
    const struct {
        const char *script;
        int exit_code;
        const char *out, *err;
    } rows[] = {
        /* Of our units, and messages alone; the stale error is another boot's. */
        {"case \"$*\" in *--output=cat*--unit=espalier-coordinator.service*"
         "--unit=espalier-worker@?.service*) ;; *) echo \"$*\" >&2; exit 9 ;; esac\n"
         "echo '" OLD_ERROR "'; echo 'Started Espalier.'; echo '" NEW_LINE("listening") "'",
         0, "no errors in boot bbbbbbbbbbbbbbbb (since 2026-11-29T20:06:01.000Z)", ""},
        {"echo '" NEW_LINE("listening") "'; echo '" NEW_LINE(
             "generation_over reason=\"rank 1 is lost\"") "'",
         1, "--- rank 1, which failed first", ""},
        {"echo 'No journal files were opened due to insufficient permissions.' >&2; exit 1", 1, "",
         "insufficient permissions"},
        {"echo '" NEW_LINE("listening") "'; kill -9 $$", 1, "", "journalctl ended by signal 9"},
        {"exit 0", 1, "", "found no line of espalier-coordinator.service"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (logs_of_journal(rows[i].script) != rows[i].exit_code ||
            !strstr(result.out, rows[i].out) || !strstr(result.err, rows[i].err))
            fail_msg("row %zu: %d, \"%s\", \"%s\"", i, result.exit_code, result.out, result.err);

    const char *nowhere[] = {"PATH=/nowhere", NULL};
    const char *arguments[] = {"logs", "--run-dir", dir, "--journald", NULL};
    processes_run_with(&result, nowhere, "espalier", arguments);
    assert_int_equal(result.exit_code, 1);
    assert_non_null(strstr(result.err, "--journald: found no journalctl"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_clean_boot_and_a_lost_rank, set_up, tear_down),
        cmocka_unit_test_setup_teardown(stale_errors_are_not_shown, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_journal_of_our_units, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
