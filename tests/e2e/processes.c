#include "processes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define ARGUMENTS_MAX   64
#define ENVIRONMENT_MAX 512
#define STARTED_MAX     64
#define POLL_MS         5

extern char **environ;

static pid_t started[STARTED_MAX];
static int started_count;

long processes_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void processes_sleep_ms(int ms) {
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000L};
    nanosleep(&pause, NULL);
}

/* ---- starting ------------------------------------------------------------------------------ */

static void fill_argv(const char *argv[ARGUMENTS_MAX], const char *program,
                      const char *const *arguments) {
    int count = 0;
    argv[count++] = program;
    for (; *arguments; arguments++) {
        assert_true(count + 1 < ARGUMENTS_MAX);
        argv[count++] = *arguments;
    }
    argv[count] = NULL;
}

/* The variables come first: of two of one name the first counts. */
static void fill_environment(const char *environment[ENVIRONMENT_MAX],
                             const char *const *variables) {
    int count = 0;
    for (; variables && *variables; variables++)
        environment[count++] = *variables;
    for (char **inherited = environ; *inherited; inherited++) {
        assert_true(count + 1 < ENVIRONMENT_MAX);
        environment[count++] = *inherited;
    }
    environment[count] = NULL;
}

/* In the child: only what is safe between fork and exec, since a test may have threads. */
static void surround(const struct processes_surroundings *surroundings) {
    const struct {
        int resource;
        long most;
    } limits[] = {{RLIMIT_NOFILE, surroundings->files_max},
                  {RLIMIT_FSIZE, surroundings->file_bytes_max}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const struct rlimit value = {(rlim_t)limits[i].most, (rlim_t)limits[i].most};
        if (limits[i].most > 0 && setrlimit(limits[i].resource, &value) != 0) _exit(127);
    }
    if (surroundings->no_override && geteuid() == 0 &&
        (prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE) != 0 ||
         prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH) != 0))
        _exit(127);
}

static _Noreturn void become(const int streams[3],
                             const struct processes_surroundings *surroundings, const char *path,
                             const char *const *argv, const char *const *environment,
                             pid_t parent) {
    surround(surroundings);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        dup2(streams[fd], fd);
    execve(path, (char *const *)argv, (char *const *)environment);
    _exit(127);
}

static pid_t spawn(int in, int out, int err, const char *program,
                   const struct processes_surroundings *surroundings,
                   const char *const *arguments) {
    const int streams[3] = {in, out, err};
    const char *argv[ARGUMENTS_MAX], *environment[ENVIRONMENT_MAX];
    char path[4096];
    fill_argv(argv, program, arguments);
    fill_environment(environment, surroundings->variables);
    snprintf(path, sizeof path, "%s/%s", E2E_BIN_DIR, program);
    pid_t parent = getpid(), pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) become(streams, surroundings, path, argv, environment, parent);
    assert_true(started_count < STARTED_MAX);
    started[started_count++] = pid;
    return pid;
}

pid_t processes_start(const char *log, const char *program, const char *const *arguments) {
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(in >= 0 && out >= 0);
    pid_t pid = spawn(in, out, out, program, &(struct processes_surroundings){0}, arguments);
    close(in);
    close(out);
    return pid;
}

/* ---- ending -------------------------------------------------------------------------------- */

static void forget(pid_t pid) {
    for (int i = 0; i < started_count; i++)
        if (started[i] == pid) started[i] = started[--started_count];
}

static int code_of(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int processes_wait(pid_t pid) {
    long begin_ms = processes_now_ms();
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (processes_now_ms() - begin_ms > PROCESSES_PATIENCE_MS)
            fail_msg("process %d does not end", (int)pid);
        processes_sleep_ms(POLL_MS);
    }
    forget(pid);
    return code_of(status);
}

bool processes_is_running(pid_t pid) {
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
}

void processes_kill_all(void) {
    while (started_count > 0) {
        pid_t pid = started[--started_count];
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
}

/* ---- running ------------------------------------------------------------------------------- */

/* Append what can be read; false at the end. */
static bool take(int fd, char *text, size_t *used) {
    char spill[4096];
    bool room = *used + 1 < PROCESSES_OUTPUT_MAX;
    ssize_t bytes = room ? read(fd, text + *used, PROCESSES_OUTPUT_MAX - 1 - *used)
                         : read(fd, spill, sizeof spill);
    if (bytes > 0 && room) *used += (size_t)bytes;
    text[*used] = '\0';
    return bytes > 0;
}

static void collect(struct processes_result *result, int out, int err, pid_t pid) {
    long begin_ms = processes_now_ms();
    size_t out_used = 0, err_used = 0;
    struct pollfd fds[2] = {{.fd = out, .events = POLLIN}, {.fd = err, .events = POLLIN}};
    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
        if (processes_now_ms() - begin_ms > PROCESSES_PATIENCE_MS) {
            kill(pid, SIGKILL);
            fail_msg("a program does not end; it said \"%s\" and \"%s\"", result->out, result->err);
        }
        if (poll(fds, 2, 1000) <= 0) continue;
        if (fds[0].revents && !take(out, result->out, &out_used)) fds[0].fd = -1;
        if (fds[1].revents && !take(err, result->err, &err_used)) fds[1].fd = -1;
    }
}

static int input_file(const char *input) {
    if (!input) return open("/dev/null", O_RDONLY | O_CLOEXEC);
    char path[] = "/tmp/espalier-e2e-input-XXXXXX";
    int fd = mkostemp(path, O_CLOEXEC);
    assert_true(fd >= 0);
    unlink(path);
    assert_int_equal(write(fd, input, strlen(input)), (ssize_t)strlen(input));
    lseek(fd, 0, SEEK_SET);
    return fd;
}

static void replace_by_file(int *fd, const char *path) {
    close(*fd);
    *fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    assert_true(*fd >= 0);
}

void processes_run_in(struct processes_result *result_out,
                      const struct processes_surroundings *surroundings, const char *program,
                      const char *const *arguments) {
    struct processes_result *result = result_out;
    int out[2], err[2], in = input_file(surroundings->input);
    assert_true(in >= 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(err, O_CLOEXEC), 0);
    if (surroundings->out_path) replace_by_file(&out[1], surroundings->out_path);
    if (surroundings->err_path) replace_by_file(&err[1], surroundings->err_path);
    result->out[0] = result->err[0] = '\0';
    pid_t pid = spawn(in, out[1], err[1], program, surroundings, arguments);
    close(in);
    close(out[1]);
    close(err[1]);
    collect(result, out[0], err[0], pid);
    close(out[0]);
    close(err[0]);
    result->exit_code = processes_wait(pid);
}

void processes_run(struct processes_result *result_out, const char *input, const char *program,
                   const char *const *arguments) {
    const struct processes_surroundings surroundings = {.input = input};
    processes_run_in(result_out, &surroundings, program, arguments);
}

void processes_run_with(struct processes_result *result_out, const char *const *variables,
                        const char *program, const char *const *arguments) {
    const struct processes_surroundings surroundings = {.variables = variables};
    processes_run_in(result_out, &surroundings, program, arguments);
}

/* ---- looking around ------------------------------------------------------------------------ */

void processes_read_file(const char *path, char *out, size_t bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, out, bytes - 1) : 0;
    out[got > 0 ? got : 0] = '\0';
    if (fd >= 0) close(fd);
}

/* Do the arguments of /proc/PID/cmdline, separated by NULs, contain the text? */
static bool has_argument(const char *pid, const char *text) {
    char path[64], line[8192];
    snprintf(path, sizeof path, "/proc/%.20s/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t bytes = read(fd, line, sizeof line - 1);
    close(fd);
    return bytes > 0 && memmem(line, (size_t)bytes, text, strlen(text)) != NULL;
}

int processes_count(const char *text) {
    DIR *proc = opendir("/proc");
    assert_non_null(proc);
    int count = 0;
    struct dirent *entry;
    while ((entry = readdir(proc)) != NULL)
        count += entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
                 has_argument(entry->d_name, text);
    closedir(proc);
    return count;
}

int processes_wait_gone(const char *text) {
    long begin_ms = processes_now_ms();
    while (processes_count(text) > 0) {
        if (processes_now_ms() - begin_ms > PROCESSES_PATIENCE_MS) return -1;
        processes_sleep_ms(POLL_MS);
    }
    return (int)(processes_now_ms() - begin_ms);
}

void processes_wait_for(const char *path, const char *text) {
    static char content[PROCESSES_OUTPUT_MAX];
    long begin_ms = processes_now_ms();
    do {
        processes_read_file(path, content, sizeof content);
        if (strstr(content, text)) return;
        processes_sleep_ms(POLL_MS);
    } while (processes_now_ms() - begin_ms < PROCESSES_PATIENCE_MS);
    fail_msg("%s never says \"%s\":\n%s", path, text, content);
}

void processes_ready_value(const char *run_dir, const char *who, const char *key, char *out,
                           size_t bytes) {
    char path[4096], content[2048];
    size_t key_bytes = strlen(key);
    snprintf(path, sizeof path, "%s/%s.ready", run_dir, who);
    processes_read_file(path, content, sizeof content);
    const char *line = content;
    while (*line && (strncmp(line, key, key_bytes) != 0 || line[key_bytes] != '=')) {
        line += strcspn(line, "\n");
        line += *line == '\n';
    }
    const char *value = *line ? line + key_bytes + 1 : "";
    snprintf(out, bytes, "%.*s", (int)strcspn(value, "\n"), value);
}

long processes_ready_pid(const char *run_dir, const char *who) {
    char pid[32];
    processes_ready_value(run_dir, who, "pid", pid, sizeof pid);
    return strtol(pid, NULL, 10);
}

/* ---- directories --------------------------------------------------------------------------- */

void processes_make_dir(char path_out[64]) {
    snprintf(path_out, 64, "/tmp/espalier-e2e-XXXXXX");
    assert_non_null(mkdtemp(path_out));
}

int processes_dir_entries(const char *path) {
    DIR *dir = opendir(path);
    if (!dir) return -1;
    int count = 0;
    struct dirent *entry;
    while ((entry = readdir(dir)) != NULL)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return count;
}

void processes_remove_dir(const char *path) {
    DIR *dir = opendir(path);
    if (!dir) return;
    struct dirent *entry;
    while ((entry = readdir(dir)) != NULL)
        unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    rmdir(path);
}
