/* Processes by identity: start times, death of a parent, a watch that tells it once. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "net_support.h"
#include "process.h"

struct watched {
    uv_loop_t loop;
    struct process_watch *watch;
    uint32_t deaths;
    bool close_inside;
};

static void note_death(void *user) {
    struct watched *watched = user;
    watched->deaths++;
    if (watched->close_inside) process_watch_close(&watched->watch);
}

static bool is_dead(void *user) {
    return ((const struct watched *)user)->deaths > 0;
}

static void watch(struct watched *watched, pid_t pid, uint64_t start_time) {
    struct error err = {0};
    memset(watched, 0, sizeof *watched);
    assert_int_equal(uv_loop_init(&watched->loop), 0);
    if (process_watch_open(&watched->loop, pid, start_time, note_death, watched, &watched->watch,
                           &err) != STATUS_OK)
        fail_msg("%s", err.text);
}

/* Turns enough for anything that was due. */
static void finish(struct watched *watched) {
    for (int i = 0; i < 10; i++)
        uv_run(&watched->loop, UV_RUN_NOWAIT);
    process_watch_close(&watched->watch);
    assert_null(watched->watch);
    net_finish(&watched->loop);
}

static void sleep_for_ever(void *user) {
    (void)user;
    for (;;)
        pause();
}

static void take_an_awkward_name(void *user) {
    const struct net_gate *gate = user;
    prctl(PR_SET_NAME, "a) S (b c) 1 2");
    net_gate_open(gate, 'r');
    sleep_for_ever(NULL);
}

static void start_times_tell_processes_apart(void **state) {
    (void)state;
    uint64_t self = process_start_time(getpid());
    assert_true(self > 0);
    assert_int_equal(process_start_time(getpid()), self);
    assert_int_equal(process_start_time(0), 0);
    assert_int_equal(process_start_time(0x7ffffff0), 0);

    struct net_gate gate;
    net_gate_init(&gate);
    pid_t pid = net_fork(take_an_awkward_name, &gate);
    uint64_t plain = process_start_time(pid);
    net_gate_wait(&gate);
    assert_true(plain >= self);
    assert_int_equal(process_start_time(pid), plain);
    net_kill(pid, SIGKILL);
    assert_int_equal(process_start_time(pid), 0);
    net_gate_deinit(&gate);
}

static void a_death_is_told_once(void **state) {
    (void)state;
    for (int inside = 0; inside <= 1; inside++) {
        struct watched watched;
        pid_t pid = net_fork(sleep_for_ever, NULL);
        watch(&watched, pid, process_start_time(pid));
        watched.close_inside = inside != 0;
        for (int i = 0; i < 10; i++)
            uv_run(&watched.loop, UV_RUN_NOWAIT);
        assert_int_equal(watched.deaths, 0);
        assert_int_equal(kill(pid, SIGKILL),
                         0); /* a zombie from then on: nobody waits for it yet */
        assert_true(net_run_until(&watched.loop, is_dead, &watched));
        finish(&watched);
        assert_int_equal(watched.deaths, 1);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
    }
}

static void a_stopped_process_is_not_dead(void **state) {
    (void)state;
    struct watched watched;
    pid_t pid = net_fork(sleep_for_ever, NULL);
    watch(&watched, pid, process_start_time(pid));
    net_kill(pid, SIGSTOP);
    for (int i = 0; i < 10; i++)
        uv_run(&watched.loop, UV_RUN_NOWAIT);
    assert_int_equal(watched.deaths, 0);
    net_kill(pid, SIGKILL);
    assert_true(net_run_until(&watched.loop, is_dead, &watched));
    finish(&watched);
}

static void who_has_ended_before_is_told_at_the_next_turn(void **state) {
    (void)state;
    pid_t pid = net_fork(sleep_for_ever, NULL);
    uint64_t start_time = process_start_time(pid);
    struct watched watched;

    kill(pid, SIGKILL);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    watch(&watched, pid, start_time); /* a zombie */
    assert_int_equal(watched.deaths, 0);
    assert_true(net_run_until(&watched.loop, is_dead, &watched));
    finish(&watched);

    assert_int_equal(waitpid(pid, NULL, 0), pid);
    watch(&watched, pid, start_time); /* gone */
    assert_int_equal(watched.deaths, 0);
    assert_true(net_run_until(&watched.loop, is_dead, &watched));
    finish(&watched);
    assert_int_equal(watched.deaths, 1);
}

/* The number is in use, by a process that started at another time: who was meant has ended. */
static void a_reused_number_is_seen(void **state) {
    (void)state;
    struct watched watched;
    pid_t pid = net_fork(sleep_for_ever, NULL);
    watch(&watched, pid, process_start_time(pid) - 1);
    assert_true(net_run_until(&watched.loop, is_dead, &watched));
    finish(&watched);
    assert_int_equal(process_start_time(pid) > 0, true);
    net_kill(pid, SIGKILL);
}

static void a_closed_watch_is_silent(void **state) {
    (void)state;
    struct watched watched;
    pid_t pid = net_fork(sleep_for_ever, NULL);
    watch(&watched, pid, process_start_time(pid));
    net_kill(pid, SIGKILL);
    process_watch_close(&watched.watch);
    finish(&watched);
    assert_int_equal(watched.deaths, 0);
    watch(&watched, pid, 1);
    process_watch_close(&watched.watch);
    finish(&watched);
    assert_int_equal(watched.deaths, 0);
}

static void a_pid_of_elsewhere_cannot_be_watched(void **state) {
    (void)state;
    uv_loop_t loop;
    struct process_watch *unwatched;
    struct error err = {0};
    assert_int_equal(uv_loop_init(&loop), 0);
    static const pid_t pids[] = {0, -1};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(process_watch_open(&loop, pids[i], 1, note_death, NULL, &unwatched, &err),
                         STATUS_NOT_FOUND);
        assert_null(unwatched);
    }
    net_finish(&loop);
}

/* A grandchild bound to the child: it says its pid over the gate's pipe. */
static void parent_of_a_bound_child(void *user) {
    const struct net_gate *gate = user;
    pid_t self = getpid();
    if (fork() == 0) {
        process_die_with_parent(self);
        pid_t pid = getpid();
        ssize_t written = write(gate->fd[1], &pid, sizeof pid);
        (void)written;
        sleep_for_ever(NULL);
    }
    sleep_for_ever(NULL);
}

static void children_die_with_their_parent(void **state) {
    (void)state;
    struct net_gate gate;
    struct watched watched;
    pid_t bound;
    net_gate_init(&gate);
    pid_t pid = net_fork(parent_of_a_bound_child, &gate);
    assert_int_equal(read(gate.fd[0], &bound, sizeof bound), sizeof bound);
    watch(&watched, bound, process_start_time(bound));
    net_kill(pid, SIGKILL);
    assert_true(net_run_until(&watched.loop, is_dead, &watched));
    finish(&watched);
    net_gate_deinit(&gate);
}

static void bind_to_one_who_is_not_our_parent(void *user) {
    (void)user;
    process_die_with_parent(getppid() + 1);
}

static void a_parent_gone_before_is_noticed(void **state) {
    (void)state;
    int status;
    pid_t pid = net_fork(bind_to_one_who_is_not_our_parent, NULL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
}

/* In a child: ours are needed. Exits with the number of streams that are not /dev/null. */
static void missing_streams_are_filled(void **state) {
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct stat null, stream;
        int wrong = stat("/dev/null", &null) != 0;
        for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
            close(fd);
        process_fill_standard_streams();
        for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
            wrong += fstat(fd, &stream) != 0 || stream.st_rdev != null.st_rdev;
        _exit(wrong);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(start_times_tell_processes_apart),
        cmocka_unit_test(a_death_is_told_once),
        cmocka_unit_test(a_stopped_process_is_not_dead),
        cmocka_unit_test(who_has_ended_before_is_told_at_the_next_turn),
        cmocka_unit_test(a_reused_number_is_seen),
        cmocka_unit_test(a_closed_watch_is_silent),
        cmocka_unit_test(a_pid_of_elsewhere_cannot_be_watched),
        cmocka_unit_test(children_die_with_their_parent),
        cmocka_unit_test(a_parent_gone_before_is_noticed),
        cmocka_unit_test(missing_streams_are_filled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
