/* Probes tell the truth: asked ten times a second while ranks are idle, loaded, stopped, killed,
 * slow and drained, none says 503 of who is well, or 200 of who is not.
 *
 *   phase        what is true                              what is done
 *   idle, load   all well                                  nothing; two streams
 *   stop         the rank and the group are sick,          SIGSTOP, and later SIGCONT, with streams
 *                the other rank is well                    and without
 *   death        all sick until the group forms again      SIGKILL; the launcher starts another
 *   slow step    all well                                  both ranks get a slice of the time, so
 *                                                          that one step takes many seconds
 *   drain        all sick but the coordinator's life       SIGTERM, with a stream that is cut
 *
 * ESPALIER_PROBES_SECONDS=600: phases in any order for so long, groups that live 100 seconds, slow
 * steps of 20 seconds; and a right answer must come within a second (tests/bench/probes.sh).
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "calls.h"
#include "probe_watch.h"
#include "processes.h"

#define STREAMS    2u
#define STREAM_TOK 3000u
/* AddressSanitizer makes a step slow by itself. */
#ifdef __SANITIZE_ADDRESS__
#define SLOW_TOK 64u
#else
#define SLOW_TOK 4000u
#endif
#define SLICE_MS        400 /* a slow rank runs for a part of each */
#define RUN_MS_MIN      5
#define DEATH_GAP_MS    13000 /* more than five losses in a minute end the group */
#define LIFE_MS         100000
#define CPU_ASKS        500u
#define WITHIN_MS       1000
#define SLOW_STEP_S     4
#define SLOW_STEP_S_MAX 20

static struct {
    struct group group;
    struct probe_watch *watch;
    pid_t stream[STREAMS];
    uint32_t generation;
    long died_ms; /* the last death */
    uint32_t text_at;
    uint64_t random;
    double slowest_s;
} world;

static uint32_t below(uint32_t end) {
    world.random = world.random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(world.random >> 33) % end;
}

static pid_t pid_of(const char *who) {
    return (pid_t)processes_ready_pid(world.group.dir, who);
}

static pid_t pid_of_rank(uint32_t rank) {
    return pid_of(rank == 0 ? "worker-0" : "worker-1");
}

static void settle(void) {
    if (!probe_watch_settle(world.watch)) {
        probe_watch_print(stderr);
        fail_msg("a probe never gave a right answer");
    }
}

static void hold(int ms) {
    settle();
    processes_sleep_ms(ms);
}

/* ---- load ---------------------------------------------------------------------------------- */

static void start_streams(void) {
    char tokens[16];
    snprintf(tokens, sizeof tokens, "%u", STREAM_TOK);
    const char *arguments[] = {"generate", "--run-dir", world.group.dir, "--ignore-eos",
                               "--tokens", tokens,      "Once",          NULL};
    for (uint32_t i = 0; i < STREAMS; i++)
        world.stream[i] = processes_start("/dev/null", "espalier", arguments);
}

static void stop_streams(void) {
    for (uint32_t i = 0; i < STREAMS; i++) {
        if (world.stream[i] == 0) continue;
        kill(world.stream[i], SIGINT);
        (void)processes_wait(world.stream[i]);
        world.stream[i] = 0;
    }
}

/* ---- phases -------------------------------------------------------------------------------- */

static void be_idle(void) {
    hold(1500);
}

static void be_loaded(void) {
    start_streams();
    hold(2000);
    stop_streams();
}

static void stop_rank(bool loaded) {
    uint32_t rank = below(2);
    pid_t pid = pid_of_rank(rank);
    if (loaded) start_streams();
    hold(300);
    int64_t since_us = probe_watch_now_us();
    kill(pid, SIGSTOP);
    const char *change = loaded ? "SIGSTOP of a loaded rank" : "SIGSTOP of an idle rank";
    probe_watch_expect(world.watch, PROBE_GROUP_READY, PROBE_SICK, change, since_us);
    probe_watch_expect(world.watch, PROBE_RANK_0 + rank, PROBE_SICK, change, since_us);
    probe_watch_expect(world.watch, PROBE_WORKER_0 + rank, PROBE_SICK, "SIGSTOP, the rank itself",
                       since_us);
    hold(1500);
    since_us = probe_watch_now_us();
    kill(pid, SIGCONT);
    probe_watch_expect_all(world.watch, PROBE_WELL,
                           loaded ? "SIGCONT of a loaded rank" : "SIGCONT of an idle rank",
                           since_us);
    hold(500);
    stop_streams();
}

static void stop_idle_rank(void) {
    stop_rank(false);
}

static void stop_loaded_rank(void) {
    stop_rank(true);
}

/* When the line of the log that says both was written, by the watch's clock. Who writes it does so
 * before it answers anybody. */
static int64_t line_since_us(const char *log, const char *who, const char *what) {
    struct tm utc = {0};
    struct timespec now;
    int ms = 0, length = 0;
    const char *line = log, *end;
    for (; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        const char *has_who = strstr(line, who), *has_what = strstr(line, what);
        if (has_who && has_who < end && has_what && has_what < end) break;
    }
    if (!end) fail_msg("no line of%s says %s", who, what);
    sscanf(line, "%d-%d-%dT%d:%d:%d.%3dZ%n", &utc.tm_year, &utc.tm_mon, &utc.tm_mday, &utc.tm_hour,
           &utc.tm_min, &utc.tm_sec, &ms, &length);
    assert_int_equal(length, 24);
    utc.tm_year -= 1900;
    utc.tm_mon--;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t ago_us = (now.tv_sec - timegm(&utc)) * INT64_C(1000000) + now.tv_nsec / 1000 -
                     ms * INT64_C(1000);
    return probe_watch_now_us() - ago_us;
}

/* A rank is well when it has joined, the group when all have. */
static void expect_new_generation(void) {
    static char log[1 << 20];
    static const char change[] = "a new generation";
    char ready[64], joined[64];
    snprintf(ready, sizeof ready, " event=group_ready generation=%u ", ++world.generation);
    snprintf(joined, sizeof joined, " event=joined generation=%u ", world.generation);
    processes_wait_for(world.group.log, ready);
    processes_read_file(world.group.log, log, sizeof log);
    int64_t since_us = line_since_us(log, " comp=coordinator ", ready);
    probe_watch_expect(world.watch, PROBE_GROUP_READY, PROBE_WELL, change, since_us);
    for (uint32_t rank = 0; rank < 2; rank++) {
        since_us = line_since_us(log, rank == 0 ? " rank=0 " : " rank=1 ", joined);
        probe_watch_expect(world.watch, PROBE_RANK_0 + rank, PROBE_WELL, change, since_us);
        probe_watch_expect(world.watch, PROBE_WORKER_0 + rank, PROBE_WELL, change, since_us);
    }
}

static void kill_rank(void) {
    long gap_ms = processes_now_ms() - world.died_ms;
    if (world.died_ms > 0 && gap_ms < DEATH_GAP_MS) return;
    bool loaded = below(2) == 0;
    if (loaded) start_streams();
    hold(300);
    world.died_ms = processes_now_ms();
    int64_t since_us = probe_watch_now_us();
    kill(pid_of_rank(below(2)), SIGKILL);
    probe_watch_expect_all(world.watch, PROBE_SICK, "a rank's death", since_us);
    expect_new_generation();
    hold(500);
    stop_streams();
}

/* ---- a slow step --------------------------------------------------------------------------- */

/* Time that the process has had of a processor. */
static double cpu_ms(pid_t pid) {
    clockid_t clock;
    struct timespec time;
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

/* Lets its two processes run for so much of each slice that the work of a step, which costs need_ms
 * of a processor, ends after `seconds`; for a little of it at least, so that they can say that they
 * live, and never past the slice: on a busy machine a slice is no promise. */
struct brake {
    pid_t pid[2];
    double need_ms[2], seconds;
    atomic_bool done;
};

static bool is_behind(const struct brake *brake, const double *begin_ms, double part) {
    return cpu_ms(brake->pid[0]) - begin_ms[0] < part * brake->need_ms[0] &&
           cpu_ms(brake->pid[1]) - begin_ms[1] < part * brake->need_ms[1];
}

static void *slow_down(void *argument) {
    struct brake *brake = argument;
    const double begin_ms[2] = {cpu_ms(brake->pid[0]), cpu_ms(brake->pid[1])};
    const long first_ms = processes_now_ms();
    while (!brake->done) {
        long slice_ms = processes_now_ms();
        double part = (double)(slice_ms - first_ms) / (brake->seconds * 1e3);
        for (int i = 0; i < 2; i++)
            kill(brake->pid[i], SIGCONT);
        do {
            processes_sleep_ms(RUN_MS_MIN);
        } while (processes_now_ms() < slice_ms + SLICE_MS && is_behind(brake, begin_ms, part));
        for (int i = 0; i < 2; i++)
            kill(brake->pid[i], SIGSTOP);
        long rest_ms = slice_ms + SLICE_MS - processes_now_ms();
        if (rest_ms > 0) processes_sleep_ms((int)rest_ms);
    }
    for (int i = 0; i < 2; i++)
        kill(brake->pid[i], SIGCONT);
    return NULL;
}

/* A prompt that is one chunk, and nothing of it cached; how long it took. */
static double take_a_step(void) {
    world.text_at = (world.text_at + 37) % (CALLS_HELD_OUT_TOK - SLOW_TOK);
    struct call call = calls_make(world.text_at, SLOW_TOK, 1);
    long begin_ms = processes_now_ms();
    calls_run(world.group.endpoint, &call, 1, 1);
    calls_expect_whole(&call, 0);
    return (double)(processes_now_ms() - begin_ms) / 1e3;
}

static void take_slow_step(double seconds) {
    pthread_t thread;
    settle();
    struct brake brake = {.pid = {pid_of_rank(0), pid_of_rank(1)}, .seconds = seconds};
    double before_ms[2] = {cpu_ms(brake.pid[0]), cpu_ms(brake.pid[1])};
    take_a_step();
    for (int i = 0; i < 2; i++)
        brake.need_ms[i] = cpu_ms(brake.pid[i]) - before_ms[i];
    assert_int_equal(pthread_create(&thread, NULL, slow_down, &brake), 0);
    double took_s = take_a_step();
    brake.done = true;
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (took_s > world.slowest_s) world.slowest_s = took_s;
    hold(300);
}

static void be_slow(void) {
    take_slow_step(SLOW_STEP_S_MAX);
}

/* ---- groups -------------------------------------------------------------------------------- */

static void begin(void) {
    static const char *const flags[] = {"--chunked-prefill-size", "4096", "--drain-timeout", "2",
                                        "--disable-radix-cache",  NULL};
    calls_start_group(&world.group, flags);
    world.generation = 1;
    world.died_ms = 0;
    world.watch = probe_watch_start(world.group.dir);
    settle();
}

/* With a stream that outlasts the drain. */
static void drain(void) {
    start_streams();
    hold(300);
    pid_t coordinator = pid_of("coordinator");
    int64_t since_us = probe_watch_now_us();
    kill(coordinator, SIGTERM);
    probe_watch_expect(world.watch, PROBE_GROUP_READY, PROBE_SICK, "SIGTERM: drain", since_us);
    processes_sleep_ms(1000); /* of the two seconds that the streams have */
    assert_true(processes_is_running(world.group.pid));
    settle();
    probe_watch_stop(&world.watch);
    stop_streams();
    assert_int_equal(processes_wait(world.group.pid), 0);
    processes_remove_dir(world.group.dir);
    remove(world.group.log);
}

/* ---- what a reply costs -------------------------------------------------------------------- */

/* Of the process's first thread, which answers. */
static double thread_cpu_us(pid_t pid) {
    char path[64], text[128];
    snprintf(path, sizeof path, "/proc/%d/task/%d/schedstat", (int)pid, (int)pid);
    processes_read_file(path, text, sizeof text);
    return (double)strtoull(text, NULL, 10) / 1e3;
}

static void measure_cpu(const char *who) {
    char address[64];
    probe_watch_address(world.group.dir, who, address);
    double begin_us = thread_cpu_us(pid_of(who));
    for (uint32_t i = 0; i < CPU_ASKS; i++)
        assert_int_equal(probe_watch_get(address, "/readyz"), 200);
    print_message("a reply, processor time of the thread that answers: %s %.0f us\n", who,
                  (thread_cpu_us(pid_of(who)) - begin_us) / CPU_ASKS);
}

/* ---- the two runs -------------------------------------------------------------------------- */

static void tell(void) {
    probe_watch_print(stdout);
    printf("the slowest step took %.1f s\n", world.slowest_s);
    fflush(stdout);
}

static void each_phase_once(void) {
    begin();
    measure_cpu("coordinator");
    measure_cpu("worker-0");
    be_idle();
    be_loaded();
    stop_idle_rank();
    stop_loaded_rank();
    kill_rank();
    take_slow_step(SLOW_STEP_S);
    drain();
}

static void mixed_phases(long seconds) {
    static void (*const phase[])(void) = {be_idle,          be_loaded,        stop_idle_rank,
                                          stop_loaded_rank, stop_loaded_rank, kill_rank,
                                          kill_rank,        be_slow};
    long end_ms = processes_now_ms() + seconds * 1000;
    world.random = (uint64_t)processes_now_ms();
    while (processes_now_ms() < end_ms) {
        begin();
        measure_cpu("coordinator");
        measure_cpu("worker-0");
        long life_ms = processes_now_ms() + LIFE_MS;
        while (processes_now_ms() < life_ms && processes_now_ms() < end_ms)
            phase[below(sizeof phase / sizeof *phase)]();
        drain();
    }
}

static void probes_tell_the_truth(void **state) {
    (void)state;
    const char *seconds = getenv("ESPALIER_PROBES_SECONDS");
    if (seconds)
        mixed_phases(strtol(seconds, NULL, 10));
    else
        each_phase_once();
    tell();
    assert_int_equal(probe_watch_false_count(), 0);
    if (seconds) assert_in_range(probe_watch_worst_ms(), 0, WITHIN_MS);
}

static int set_up(void **state) {
    (void)state;
    world.random = 5;
    calls_load_text();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    processes_kill_all();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(probes_tell_the_truth, tear_down),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
