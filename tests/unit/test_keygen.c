/* `espalier keygen` where a file cannot be finished: the system's word for it is the user's. What
 * else it does is looked at end to end (test_e2e_curve). */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"
#include "cmd_keygen.h"
#include "curve_keys.h"

static int close_fails_by; /* an errno; 0: it does not */

int __real_close(int fd);
int __wrap_close(int fd);

/* As on a file system that writes only now, and cannot. */
int __wrap_close(int fd) {
    int result = __real_close(fd);
    if (close_fails_by == 0) return result;
    errno = close_fails_by;
    return -1;
}

/* What it says on standard error; returns its exit code. */
static int keygen(const char *dir, char said[1024]) {
    FILE *catch = tmpfile();
    int before = dup(STDERR_FILENO);
    assert_true(catch && before >= 0);
    assert_true(dup2(fileno(catch), STDERR_FILENO) >= 0);
    char *const arguments[] = {"keygen", (char *)(uintptr_t)dir, NULL};
    int exit_code = cmd_keygen(2, arguments);
    close_fails_by = 0;
    fflush(stderr);
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
    rewind(catch);
    said[fread(said, 1, 1023, catch)] = '\0';
    fclose(catch);
    return exit_code;
}

static void a_file_that_cannot_be_finished_is_told(void **state) {
    (void)state;
    char dir[] = "/tmp/espalier-keygen-XXXXXX", path[96], said[1024];
    assert_non_null(mkdtemp(dir));
    close_fails_by = EIO;
    assert_int_equal(keygen(dir, said), EXIT_CODE_USAGE);
    if (!strstr(said, "cannot write ") || !strstr(said, strerror(EIO))) fail_msg("%s", said);
    snprintf(path, sizeof path, "%s/" CURVE_COORDINATOR_SECRET, dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0); /* nothing was written after that */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_file_that_cannot_be_finished_is_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
