#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "base/check.h"
#include "base/clock.h"
#include "process.h"

#define CHILDREN_MAX      (1u + TP_MAX)
#define ARGV_MAX          (LAUNCHER_ARGS_MAX + 6u)
#define RESTART_WINDOW_NS (60 * NS_PER_S)
#define RESTART_FIRST_MS  200u
#define RESTART_LAST_MS   5000u
#define FOLLOW_MS         2000u /* for workers to follow their coordinator's end */
#define INSIST_MS         300u  /* between a SIGTERM that drains and one that stops */
#define STUCK_MS          5000u /* for the coordinator, beyond the time to drain */
#define WORK_WAIT_MS      1000u
#define SIGNALS           3

struct launcher;

struct child {
    struct launcher *launcher;
    int rank;  /* RUN_DIR_COORDINATOR for the coordinator */
    pid_t pid; /* 0: not running */
    struct process_watch *watch;
    uv_timer_t restart;
    int64_t started_ns[LAUNCHER_RESTARTS_MAX]; /* of the last restarts, a ring */
    uint32_t restarts;
    uint32_t pause_ms;
};

struct launcher {
    const struct launcher_options *options;
    uv_loop_t loop;
    struct child child[CHILDREN_MAX]; /* [0] is the coordinator, [1 + rank] the workers */
    uint32_t child_count;
    int ready_read; /* the end of the pipe on which the coordinator says that it listens */
    uv_poll_t ready;
    uv_signal_t signal[SIGNALS];
    uv_timer_t follow, insist, stuck;
    uv_async_t worked;
    pthread_t worker_thread;
    bool work_started, work_joined;
    _Atomic bool work_done;
    int work_code;
    int cancel;
    int signals_seen;
    bool killed;   /* whoever was left */
    bool ending;   /* the coordinator was told to end */
    int exit_code; /* what went wrong first; 0 so far */
};

static void start_child(struct child *child);

/* ---- the work ------------------------------------------------------------------------------ */

static void cancel_work(struct launcher *launcher) {
    __atomic_store_n(&launcher->cancel, 1, __ATOMIC_SEQ_CST);
}

static void *work_main(void *argument) {
    struct launcher *launcher = argument;
    launcher->work_code = launcher->options->work(launcher->options->user, &launcher->cancel);
    launcher->work_done = true;
    uv_async_send(&launcher->worked);
    return NULL;
}

static void start_work(struct launcher *launcher) {
    if (!launcher->options->work || launcher->work_started) return;
    launcher->work_started = true;
    /* Signals are the main thread's. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    CHECK(pthread_create(&launcher->worker_thread, NULL, work_main, launcher) == 0);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void join_work(struct launcher *launcher) {
    if (!launcher->work_started || launcher->work_joined) return;
    CHECK(pthread_join(launcher->worker_thread, NULL) == 0);
    launcher->work_joined = true;
}

static void on_waited(uv_timer_t *timer) {
    (void)timer;
}

/* The group is gone. The work notices, unless it waits for a person at a terminal: then it is left
 * where it is, with what it may still touch, and ends with the process. */
static void wait_for_work(struct launcher *launcher) {
    if (!launcher->work_started || launcher->work_joined) return;
    uv_timer_start(&launcher->follow, on_waited, WORK_WAIT_MS, 0);
    while (!launcher->work_done && uv_is_active((uv_handle_t *)&launcher->follow))
        uv_run(&launcher->loop, UV_RUN_ONCE);
}

/* ---- ending -------------------------------------------------------------------------------- */

static struct child *coordinator(struct launcher *launcher) {
    return &launcher->child[0];
}

static bool has_children(const struct launcher *launcher) {
    for (uint32_t i = 0; i < launcher->child_count; i++)
        if (launcher->child[i].pid != 0) return true;
    return false;
}

static void signal_child(const struct child *child, int number) {
    /* Children are reaped by us alone, so the pid cannot have been given to another. */
    if (child->pid != 0) kill(child->pid, number);
}

static void kill_all(struct launcher *launcher) {
    launcher->killed = true;
    for (uint32_t i = 0; i < launcher->child_count; i++)
        signal_child(&launcher->child[i], SIGKILL);
}

static void finish_if_over(struct launcher *launcher) {
    if (!has_children(launcher)) uv_stop(&launcher->loop);
}

static void on_follow(uv_timer_t *timer) {
    kill_all(timer->data);
}

static void on_insist(uv_timer_t *timer) {
    struct launcher *launcher = timer->data;
    signal_child(coordinator(launcher), SIGTERM);
}

static void on_stuck(uv_timer_t *timer) {
    struct launcher *launcher = timer->data;
    fprintf(stderr, "espalier: the coordinator does not end\n");
    if (launcher->exit_code == EXIT_CODE_OK) launcher->exit_code = EXIT_CODE_TEMPORARY;
    kill_all(launcher);
}

/* A coordinator that is stopped, or stuck, must not keep us. */
static void expect_end_within(struct launcher *launcher, uint64_t timeout_ms) {
    uv_timer_start(&launcher->stuck, on_stuck, timeout_ms + STUCK_MS, 0);
}

static void stop_restarts(struct launcher *launcher) {
    for (uint32_t i = 0; i < launcher->child_count; i++)
        uv_timer_stop(&launcher->child[i].restart);
}

/* Ask for the end: the coordinator drains, and its workers follow. */
static void end(struct launcher *launcher) {
    if (launcher->ending) return;
    launcher->ending = true;
    stop_restarts(launcher);
    if (coordinator(launcher)->pid != 0)
        signal_child(coordinator(launcher), SIGTERM);
    else
        uv_timer_start(&launcher->follow, on_follow, FOLLOW_MS, 0);
    expect_end_within(launcher, launcher->options->drain_timeout_ms);
    finish_if_over(launcher);
}

/* There is nothing to drain for: the second SIGTERM comes as soon as it can be told from the
 * first. */
static void fail(struct launcher *launcher, int exit_code) {
    if (launcher->exit_code == EXIT_CODE_OK) launcher->exit_code = exit_code;
    cancel_work(launcher);
    end(launcher);
    uv_timer_start(&launcher->insist, on_insist, INSIST_MS, 0);
    expect_end_within(launcher, 0);
}

static void on_worked(uv_async_t *async) {
    struct launcher *launcher = async->data;
    join_work(launcher);
    if (launcher->work_code == LAUNCHER_STAY) return;
    if (launcher->exit_code == EXIT_CODE_OK) launcher->exit_code = launcher->work_code;
    end(launcher);
}

static void on_signal(uv_signal_t *handle, int number) {
    (void)number;
    struct launcher *launcher = handle->data;
    launcher->signals_seen++;
    cancel_work(launcher);
    bool work_ends_it = launcher->options->foreground && launcher->work_started;
    if (launcher->signals_seen > 2)
        kill_all(launcher);
    else if (launcher->signals_seen == 2 && launcher->ending) {
        signal_child(coordinator(launcher), SIGTERM);
        expect_end_within(launcher, 0);
    } else if (!work_ends_it || launcher->signals_seen == 2)
        end(launcher);
}

/* ---- deaths -------------------------------------------------------------------------------- */

static int exit_code_of(int status) {
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    return EXIT_CODE_TEMPORARY; /* killed: another try may do better */
}

static const char *describe(int status, char out[64]) {
    if (WIFEXITED(status))
        snprintf(out, 64, "exit code %d", WEXITSTATUS(status));
    else
        snprintf(out, 64, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return out;
}

static void coordinator_died(struct launcher *launcher, int status) {
    char how[64];
    int code = exit_code_of(status);
    /* One that was just started cannot drain yet and dies of the signal we sent. */
    int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    bool as_asked = (launcher->ending && number == SIGTERM) ||
                    (launcher->killed && number == SIGKILL);
    if (!WIFEXITED(status) && !as_asked)
        fprintf(stderr, "espalier: the coordinator ended by %s\n", describe(status, how));
    /* What it says of itself outweighs what its end made of the work. */
    if (code != EXIT_CODE_OK && !launcher->ending) launcher->exit_code = code;
    launcher->ending = true;
    stop_restarts(launcher);
    cancel_work(launcher);
    /* One that was just started may not have met the coordinator, and would seek it for long. */
    for (uint32_t i = 1; i < launcher->child_count; i++)
        signal_child(&launcher->child[i], SIGTERM);
    uv_timer_start(&launcher->follow, on_follow, FOLLOW_MS, 0);
}

static void on_restart(uv_timer_t *timer) {
    start_child(timer->data);
}

/* A code with which starting again would only repeat the failure. */
static bool is_final(int exit_code) {
    return exit_code == EXIT_CODE_USAGE || exit_code == EXIT_CODE_CONFIG ||
           exit_code == EXIT_CODE_PERMISSION;
}

static void plan_restart(struct child *child) {
    struct launcher *launcher = child->launcher;
    int64_t now_ns = clock_now_ns();
    int64_t *oldest_ns = &child->started_ns[child->restarts % LAUNCHER_RESTARTS_MAX];
    if (child->restarts >= LAUNCHER_RESTARTS_MAX && now_ns - *oldest_ns < RESTART_WINDOW_NS) {
        fprintf(stderr, "espalier: worker %d was started again %d times in a minute: giving up\n",
                child->rank, LAUNCHER_RESTARTS_MAX);
        fail(launcher, EXIT_CODE_GROUP_LOST);
        return;
    }
    bool calm = child->restarts == 0 ||
                now_ns - child->started_ns[(child->restarts - 1) % LAUNCHER_RESTARTS_MAX] >
                    RESTART_WINDOW_NS;
    child->pause_ms = calm ? RESTART_FIRST_MS : child->pause_ms * 2;
    if (child->pause_ms > RESTART_LAST_MS) child->pause_ms = RESTART_LAST_MS;
    *oldest_ns = now_ns;
    child->restarts++;
    uv_timer_start(&child->restart, on_restart, child->pause_ms, 0);
}

static void worker_died(struct child *child, int status) {
    struct launcher *launcher = child->launcher;
    if (launcher->ending) return;
    char how[64];
    int code = exit_code_of(status);
    /* A worker that was told to end says nothing: its coordinator is about to end as well, or has
     * given it up and waits for the next. One that will not do says why itself. */
    if (!WIFEXITED(status) || (code != EXIT_CODE_OK && !is_final(code)))
        fprintf(stderr, "espalier: worker %d ended by %s\n", child->rank, describe(status, how));
    if (WIFEXITED(status) && is_final(code))
        fail(launcher, code);
    else if (launcher->options->foreground && code != EXIT_CODE_OK)
        fail(launcher, EXIT_CODE_GROUP_LOST);
    else
        plan_restart(child);
}

static void on_death(void *user) {
    struct child *child = user;
    int status = 0;
    process_watch_close(&child->watch);
    CHECK(waitpid(child->pid, &status, 0) == child->pid);
    child->pid = 0;
    if (child->rank == RUN_DIR_COORDINATOR)
        coordinator_died(child->launcher, status);
    else
        worker_died(child, status);
    if (child->launcher->ending) finish_if_over(child->launcher);
}

/* ---- births -------------------------------------------------------------------------------- */

/* In the child, between fork and exec: only what is safe there. */
static _Noreturn void become(const char *path, char *const *argv, pid_t parent, int keep_fd) {
    process_die_with_parent(parent);
    setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int null_fd = open("/dev/null", O_RDONLY);
    if (null_fd >= 0) dup2(null_fd, STDIN_FILENO);
    if (keep_fd >= 0) fcntl(keep_fd, F_SETFD, 0);
    execv(path, argv);
    static const char text[] = "espalier: cannot run a program beside this one\n";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
    _exit(EXIT_CODE_CONFIG);
}

static void spawn(struct child *child, const char *name, char *const *argv, int keep_fd) {
    char path[PROCESS_PATH_MAX];
    CHECK(process_path_beside(name, path));
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0) become(path, argv, parent, keep_fd);
    if (pid < 0) {
        fprintf(stderr, "espalier: cannot fork: %s\n", strerror(errno));
        fail(child->launcher, EXIT_CODE_TEMPORARY);
        return;
    }
    child->pid = pid;
    struct error err;
    if (process_watch_open(&child->launcher->loop, pid, process_start_time(pid), on_death, child,
                           &child->watch, &err) != STATUS_OK) {
        fprintf(stderr, "espalier: %s\n", err.text);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        child->pid = 0;
        fail(child->launcher, EXIT_CODE_TEMPORARY);
    }
}

static void append(char **argv, uint32_t *count, char *argument) {
    CHECK(*count + 1 < ARGV_MAX);
    argv[(*count)++] = argument;
    argv[*count] = NULL;
}

static void append_all(char **argv, uint32_t *count, char *const *args, uint32_t arg_count) {
    for (uint32_t i = 0; i < arg_count; i++)
        append(argv, count, args[i]);
}

static void start_worker(struct child *child) {
    const struct launcher_options *options = child->launcher->options;
    char *argv[ARGV_MAX], run_dir[RUN_DIR_PATH_MAX + 16], rank[24];
    char endpoint[RUN_DIR_ENDPOINT_MAX + 24];
    struct ready_file ready;
    struct error err;
    uint32_t count = 0;
    bool found = run_dir_find(options->run_dir, RUN_DIR_COORDINATOR, &ready, &err) == STATUS_OK;
    snprintf(run_dir, sizeof run_dir, "--run-dir=%s", options->run_dir->path);
    snprintf(rank, sizeof rank, "--rank=%d", child->rank);
    append(argv, &count, "espalier-worker");
    append_all(argv, &count, options->worker_args, options->worker_arg_count);
    append(argv, &count, run_dir);
    append(argv, &count, rank);
    if (found) { /* what was bound, which for port 0 nobody knows before */
        snprintf(endpoint, sizeof endpoint, "--worker-endpoint=%s", ready.workers);
        append(argv, &count, endpoint);
    }
    spawn(child, "espalier-worker", argv, -1);
}

static void start_coordinator(struct child *child) {
    struct launcher *launcher = child->launcher;
    const struct launcher_options *options = launcher->options;
    char *argv[ARGV_MAX], run_dir[RUN_DIR_PATH_MAX + 16], ready_fd[32];
    uint32_t count = 0;
    int pipe_fd[2];
    CHECK(pipe2(pipe_fd, O_CLOEXEC) == 0);
    snprintf(run_dir, sizeof run_dir, "--run-dir=%s", options->run_dir->path);
    snprintf(ready_fd, sizeof ready_fd, "--ready-fd=%d", pipe_fd[1]);
    append(argv, &count, "espalier-coordinator");
    append_all(argv, &count, options->coordinator_args, options->coordinator_arg_count);
    append(argv, &count, run_dir);
    append(argv, &count, ready_fd);
    spawn(child, "espalier-coordinator", argv, pipe_fd[1]);
    close(pipe_fd[1]);
    launcher->ready_read = pipe_fd[0];
}

static void start_child(struct child *child) {
    if (child->rank == RUN_DIR_COORDINATOR)
        start_coordinator(child);
    else
        start_worker(child);
}

/* Workers are started only now: what is wrong with the command line or the model has been said by
 * one process, once. */
static void on_ready(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    struct launcher *launcher = poll->data;
    char text[32];
    ssize_t bytes = read(launcher->ready_read, text, sizeof text);
    uv_poll_stop(poll);
    if (bytes <= 0 || launcher->ending) return; /* it ended instead; its death tells */
    for (uint32_t i = 1; i < launcher->child_count; i++)
        start_child(&launcher->child[i]);
    start_work(launcher);
}

/* ---- life ---------------------------------------------------------------------------------- */

static void open_handles(struct launcher *launcher) {
    static const int number[SIGNALS] = {SIGINT, SIGTERM, SIGHUP};
    CHECK(uv_loop_init(&launcher->loop) == 0);
    for (int i = 0; i < SIGNALS; i++) {
        uv_signal_init(&launcher->loop, &launcher->signal[i]);
        launcher->signal[i].data = launcher;
        uv_signal_start(&launcher->signal[i], on_signal, number[i]);
    }
    uv_timer_init(&launcher->loop, &launcher->follow);
    uv_timer_init(&launcher->loop, &launcher->insist);
    uv_timer_init(&launcher->loop, &launcher->stuck);
    launcher->stuck.data = launcher;
    uv_async_init(&launcher->loop, &launcher->worked, on_worked);
    launcher->follow.data = launcher;
    launcher->insist.data = launcher;
    launcher->worked.data = launcher;
    launcher->child_count = 1 + launcher->options->tp;
    for (uint32_t i = 0; i < launcher->child_count; i++) {
        struct child *child = &launcher->child[i];
        child->launcher = launcher;
        child->rank = i == 0 ? RUN_DIR_COORDINATOR : (int)i - 1;
        uv_timer_init(&launcher->loop, &child->restart);
        child->restart.data = child;
    }
}

static void close_one(uv_handle_t *handle, void *unused) {
    (void)unused;
    if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

int launcher_run(const struct launcher_options *options) {
    CHECK(options->tp <= TP_MAX);
    struct launcher *launcher = calloc(1, sizeof *launcher);
    CHECK(launcher);
    launcher->options = options;
    open_handles(launcher);
    start_child(coordinator(launcher));
    uv_poll_init(&launcher->loop, &launcher->ready, launcher->ready_read);
    launcher->ready.data = launcher;
    uv_poll_start(&launcher->ready, UV_READABLE, on_ready);

    while (has_children(launcher))
        uv_run(&launcher->loop, UV_RUN_DEFAULT);
    cancel_work(launcher);
    wait_for_work(launcher);
    if (launcher->work_started && !launcher->work_done) return EXIT_CODE_OK;
    join_work(launcher);
    bool work_failed = launcher->work_started && launcher->work_code > EXIT_CODE_OK;
    int exit_code = launcher->exit_code;
    if (exit_code == EXIT_CODE_OK && work_failed) exit_code = launcher->work_code;

    uv_walk(&launcher->loop, close_one, NULL);
    uv_run(&launcher->loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&launcher->loop) == 0);
    close(launcher->ready_read);
    free(launcher);
    return exit_code;
}
