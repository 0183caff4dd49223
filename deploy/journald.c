#include "journald.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"

#define NO_SUCH_PROGRAM 127      /* what a shell would end with */
#define LINES_MAX       "100000" /* the last ones, of all boots */

#define COORDINATOR_UNIT "espalier-coordinator.service"
#define WORKER_UNITS     "espalier-worker@*.service"

/* Messages alone: a line of ours brings its own time and names. */
static char *const arguments[] = {"journalctl",           "--quiet",
                                  "--no-pager",           "--output=cat",
                                  "--lines=" LINES_MAX,   "--unit=" COORDINATOR_UNIT,
                                  "--unit=" WORKER_UNITS, NULL};

static enum status start(pid_t *pid_out, FILE **stream_out, struct error *err) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "journalctl: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        execvp(arguments[0], arguments);
        _exit(NO_SUCH_PROGRAM);
    }
    int cause = errno;
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "journalctl: %s", strerror(cause));
    }
    *pid_out = pid;
    *stream_out = fdopen(ends[0], "r");
    CHECK(*stream_out);
    return STATUS_OK;
}

static enum status judge(int how, struct error *err) {
    if (WIFEXITED(how) && WEXITSTATUS(how) == NO_SUCH_PROGRAM)
        return error_set(err, STATUS_NOT_FOUND,
                         "--journald: found no journalctl, accepted: a machine with systemd");
    if (WIFEXITED(how) && WEXITSTATUS(how) == 0) return STATUS_OK;
    return error_set(err, STATUS_UNAVAILABLE, "--journald: journalctl ended by %s %d",
                     WIFEXITED(how) ? "exit code" : "signal",
                     WIFEXITED(how) ? WEXITSTATUS(how) : WTERMSIG(how));
}

enum status journald_read(struct log_scan *scan, struct error *err) {
    pid_t pid = 0;
    FILE *stream = NULL;
    enum status status = start(&pid, &stream, err);
    if (status != STATUS_OK) return status;
    status = log_scan_read_stream(scan, stream, "--journald", err);
    fclose(stream); /* one that still writes ends by it */
    int how = 0;
    while (waitpid(pid, &how, 0) < 0)
        CHECK(errno == EINTR);
    if (status == STATUS_OK) status = judge(how, err);
    if (status == STATUS_OK && scan->line_count == 0)
        status = error_set(err, STATUS_NOT_FOUND,
                           "--journald: found no line of " COORDINATOR_UNIT " or " WORKER_UNITS);
    return status;
}
