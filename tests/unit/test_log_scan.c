/* The lines of one boot out of many: what is an error, whose it is, and what is not looked at. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "log_scan.h"

#define OLD "aaaaaaaaaaaaaaaa"
#define NEW "bbbbbbbbbbbbbbbb"

/* A file with this text, read and removed. */
static void scan_text(struct log_scan *scan, const char *text) {
    char path[] = "/tmp/log-scan-XXXXXX";
    int fd = mkstemp(path);
    struct error err;
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    if (log_scan_read(scan, path, &err) != STATUS_OK) fail_msg("%s", err.text);
    unlink(path);
}

#define LINE(second, level, who, boot, rest)                                                       \
    "2026-11-29T20:05:" second ".000Z level=" level " comp=" who " boot=" boot " event=" rest "\n"

static void expect_lines(const struct log_scan *scan, const char *const *parts, uint32_t count) {
    assert_int_equal(scan->line_count, count);
    for (uint32_t i = 0; i < count; i++)
        if (!strstr(scan->line[i].text, parts[i]))
            fail_msg("line %u: \"%s\", wanted \"%s\"", i, scan->line[i].text, parts[i]);
}

static void test_one_boot_in_order_of_time(void **state) {
    (void)state;
    struct log_scan scan;
    log_scan_init(&scan);
    scan_text(&scan, LINE("01", "error", "worker rank=3", OLD, "fault reason=\"stale\"")
                         LINE("10", "info", "worker rank=0", NEW, "welcomed")
                             LINE("12", "info", "worker rank=0", NEW, "joined"));
    scan_text(&scan,
              "not a line of ours boot=" NEW "\n"
              "2026-11-29T20:05:11.000Z TP1 Memory pool end. avail mem=4.38 GB boot=" NEW "\n"
              "2026-11-29T20:05:11.500Z level=info comp=x boot=" NEW "b event=other\n"
              "2026-11-29T20:05:09.000Z level=info comp=coordinator boot=" NEW " event=listening");
    log_scan_finish(&scan, NULL);
    assert_string_equal(scan.boot, NEW);
    static const char *const wanted[] = {"listening", "welcomed", "TP1 Memory", "joined"};
    expect_lines(&scan, wanted, 4);
    assert_int_equal(scan.line[2].rank, 1);
    assert_int_equal(scan.line[0].rank, LOG_SCAN_NO_RANK);
    assert_int_equal(scan.error_count, 0);
    assert_int_equal(scan.first_failing_rank, LOG_SCAN_NO_RANK);
    assert_string_equal(scan.since, "2026-11-29T20:05:09.000Z");
    log_scan_deinit(&scan);
}

/* Survivors write first, and write more; the one they complain of comes first. */
static void test_the_first_failing_rank_comes_first(void **state) {
    (void)state;
    struct log_scan scan;
    log_scan_init(&scan);
    scan_text(&scan,
              LINE("20", "error", "worker rank=0", NEW,
                   "fault status=UNAVAILABLE reason=\"rank 0 step 7: rank 5 (pid 12) is gone\"")
                  LINE("21", "error", "worker rank=2", NEW, "fault reason=\"out of memory\"")
                      LINE("22", "warn", "worker rank=4", NEW, "memory line=experts"));
    scan_text(&scan, LINE("23", "warn", "coordinator", NEW,
                          "generation_over generation=1 reason=\"rank 5 is lost: its process 12\"")
                         LINE("24", "fatal", "coordinator", NEW, "check_failed expression=\"x\""));
    log_scan_finish(&scan, NEW);
    assert_int_equal(scan.error_count, 4);
    assert_int_equal(scan.first_failing_rank, 5);
    log_scan_keep_errors(&scan);
    static const char *const wanted[] = {"rank 0 step 7", "generation_over", "out of memory",
                                         "check_failed"};
    expect_lines(&scan, wanted, 4);
    assert_int_equal(scan.line[1].rank, 5);
    assert_int_equal(scan.line[2].rank, 2);
    assert_int_equal(scan.line[3].rank, LOG_SCAN_NO_RANK);
    log_scan_deinit(&scan);
}

static void test_a_boot_that_is_not_there(void **state) {
    (void)state;
    struct log_scan scan;
    struct error err;
    log_scan_init(&scan);
    assert_int_equal(log_scan_read(&scan, "/nowhere/log", &err), STATUS_NOT_FOUND);
    scan_text(&scan, LINE("01", "error", "worker rank=3", OLD, "fault reason=\"stale\""));
    log_scan_finish(&scan, NEW);
    assert_int_equal(scan.line_count, 0);
    assert_int_equal(scan.error_count, 0);
    log_scan_keep_errors(&scan);
    assert_int_equal(scan.line_count, 0);
    log_scan_deinit(&scan);
    log_scan_init(&scan);
    scan_text(&scan, "");
    log_scan_finish(&scan, NULL);
    assert_string_equal(scan.boot, "");
    log_scan_deinit(&scan);
}

/* Lines are kept in two files of bounded size, and none is lost between them. */
static void test_kept_files_are_bounded(void **state) {
    (void)state;
    char folder[] = "/tmp/log-keep-XXXXXX", path[64], before[72];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/worker-0.log", folder);
    snprintf(before, sizeof before, "%s.1", path);
    int null_fd = open("/dev/null", O_WRONLY), kept = dup(STDERR_FILENO);
    assert_true(null_fd >= 0 && kept >= 0);
    assert_false(log_keep("/nowhere/worker-0.log"));
    assert_true(log_keep(path));
    log_init("worker", 0, NEW);
    assert_true(dup2(null_fd, STDERR_FILENO) >= 0);
    char filler[900];
    memset(filler, 'x', sizeof filler - 1);
    filler[sizeof filler - 1] = '\0';
    const uint32_t count = 3 * LOG_FILE_BYTES_MAX / 1000;
    for (uint32_t i = 0; i < count; i++)
        log_info("line", "number=%u text=%s", i, filler);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    close(null_fd);
    struct stat is;
    assert_int_equal(stat(path, &is), 0);
    assert_true(is.st_size <= LOG_FILE_BYTES_MAX && (is.st_mode & 0777) == 0600);
    assert_int_equal(stat(before, &is), 0);
    assert_true(is.st_size <= LOG_FILE_BYTES_MAX && is.st_size > LOG_FILE_BYTES_MAX - 2000);
    struct log_scan scan;
    struct error err;
    log_scan_init(&scan);
    assert_int_equal(log_scan_read(&scan, before, &err), STATUS_OK);
    assert_int_equal(log_scan_read(&scan, path, &err), STATUS_OK);
    log_scan_finish(&scan, NEW);
    for (uint32_t i = 0; i < scan.line_count; i++) {
        char number[32];
        snprintf(number, sizeof number, " number=%u ", count - scan.line_count + i);
        if (!strstr(scan.line[i].text, number)) fail_msg("line %u lacks%s", i, number);
    }
    assert_true(scan.line_count > LOG_FILE_BYTES_MAX / 1000);
    log_scan_deinit(&scan);
    unlink(path);
    unlink(before);
    rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_boot_in_order_of_time),
        cmocka_unit_test(test_the_first_failing_rank_comes_first),
        cmocka_unit_test(test_a_boot_that_is_not_there),
        cmocka_unit_test(test_kept_files_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
