#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"

/* In /proc/PID/stat the second field is the program's name in parentheses, and may itself hold
 * spaces and parentheses: only what follows the last ')' can be split at spaces. */
#define STAT_FIELD_AFTER_NAME 3
#define STAT_FIELD_START_TIME 22
#define STAT_BYTES_MAX        1024

#define FILES_MAX 65536u /* more than any of our processes opens */

struct process_watch {
    union {
        uv_poll_t poll;   /* of the pidfd */
        uv_timer_t timer; /* of 0 ms, for a process that had ended before */
    } handle;
    int pidfd; /* -1: ended before */
    void (*on_death)(void *user);
    void *user;
};

uint64_t process_start_time(pid_t pid) {
    char path[64];
    char stat[STAT_BYTES_MAX];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    size_t size = fread(stat, 1, sizeof stat - 1, file);
    fclose(file);
    stat[size] = '\0';

    const char *field = strrchr(stat, ')');
    for (int number = STAT_FIELD_AFTER_NAME - 1; field != NULL && number < STAT_FIELD_START_TIME;
         number++) {
        field = strchr(field + 1, ' ');
    }
    return field == NULL ? 0 : strtoull(field + 1, NULL, 10);
}

bool process_path_beside(const char *name, char out[PROCESS_PATH_MAX]) {
    ssize_t bytes = readlink("/proc/self/exe", out, PROCESS_PATH_MAX);
    CHECK(bytes > 0);
    while (bytes > 0 && out[bytes - 1] != '/')
        bytes--;
    size_t room = PROCESS_PATH_MAX - (size_t)bytes;
    return (size_t)snprintf(out + bytes, room, "%s", name) < room;
}

void process_fill_standard_streams(void) {
    int fd;
    do { /* the lowest free number is given out first */
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

void process_let_writes_fail(void) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

void process_end_in_peace(void) {
    static const int number[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++)
        sigaddset(&set, number[i]);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
}

enum status process_require_files(uint32_t needed, struct error *err) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    rlim_t most = limit.rlim_max < FILES_MAX ? limit.rlim_max : FILES_MAX;
    if (limit.rlim_cur < most) {
        limit.rlim_cur = most;
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    if (limit.rlim_cur >= needed) return STATUS_OK;
    return error_set(err, STATUS_FAILED_PRECONDITION,
                     "RLIMIT_NOFILE (ulimit -n): found %llu open files, accepted: %u or more",
                     (unsigned long long)limit.rlim_cur, needed);
}

void process_die_with_parent(pid_t parent) {
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    if (getppid() != parent) raise(SIGKILL);
}

static void tell_once(struct process_watch *watch) {
    void (*on_death)(void *user) = watch->on_death;
    watch->on_death = NULL;
    if (on_death != NULL) on_death(watch->user);
}

static void pidfd_readable(uv_poll_t *poll, int status, int events) {
    (void)status; /* an error of the descriptor cannot be told from the end, and is told as such */
    (void)events;
    uv_poll_stop(poll);
    tell_once(poll->data);
}

static void ended_before(uv_timer_t *timer) {
    tell_once(timer->data);
}

static enum status watch_pidfd(struct process_watch *watch, uv_loop_t *loop, struct error *err) {
    int rc = uv_poll_init(loop, &watch->handle.poll, watch->pidfd);
    if (rc != 0)
        return error_set(err, STATUS_UNAVAILABLE, "cannot watch a pidfd: %s", uv_strerror(rc));
    watch->handle.poll.data = watch;
    CHECK(uv_poll_start(&watch->handle.poll, UV_READABLE, pidfd_readable) == 0);
    return STATUS_OK;
}

static void watch_nothing(struct process_watch *watch, uv_loop_t *loop) {
    uv_timer_init(loop, &watch->handle.timer);
    watch->handle.timer.data = watch;
    CHECK(uv_timer_start(&watch->handle.timer, ended_before, 0, 0) == 0);
}

/* A descriptor of the process (pid, start_time), or -1 in *pidfd_out where it has ended. */
static enum status open_pidfd(pid_t pid, uint64_t start_time, int *pidfd_out, struct error *err) {
    *pidfd_out = -1;
    int pidfd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0u) : -1;
    if (pidfd < 0 && pid > 0 && errno == ESRCH) return STATUS_OK;
    if (pidfd < 0) {
        return error_set(err, STATUS_NOT_FOUND, "cannot watch process %d: %s", (int)pid,
                         pid > 0 ? strerror(errno) : "not in our pid namespace");
    }
    /* Looked up after the descriptor is open: if the number had been given to another process, the
     * start time shows it; if not, the descriptor cannot be moved to another any more. */
    if (process_start_time(pid) == start_time) {
        *pidfd_out = pidfd;
    } else {
        close(pidfd);
    }
    return STATUS_OK;
}

enum status process_watch_open(uv_loop_t *loop, pid_t pid, uint64_t start_time,
                               void (*on_death)(void *user), void *user,
                               struct process_watch **watch_out, struct error *err) {
    *watch_out = NULL;
    int pidfd;
    enum status status = open_pidfd(pid, start_time, &pidfd, err);
    if (status != STATUS_OK) return status;

    struct process_watch *watch = calloc(1, sizeof *watch);
    CHECK(watch != NULL);
    watch->pidfd = pidfd;
    watch->on_death = on_death;
    watch->user = user;
    if (pidfd < 0) {
        watch_nothing(watch, loop);
    } else {
        status = watch_pidfd(watch, loop, err);
    }
    if (status != STATUS_OK) {
        close(pidfd);
        free(watch);
        return status;
    }
    *watch_out = watch;
    return STATUS_OK;
}

static void free_watch(uv_handle_t *handle) {
    struct process_watch *watch = handle->data;
    if (watch->pidfd >= 0) close(watch->pidfd);
    free(watch);
}

void process_watch_close(struct process_watch **watch) {
    if (*watch == NULL) return;
    (*watch)->on_death = NULL;
    uv_close((uv_handle_t *)&(*watch)->handle, free_watch);
    *watch = NULL;
}
