#include "probe_watch.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "processes.h"

#define PERIOD_MS   100
#define REPLY_MS    900 /* for a probe to answer; what comes later is none */
#define PATIENCE_MS 60000
#define CHANGES_MAX 24u
#define REPLY_BYTES 512u
#define REPLIES_MAX 65536u
#define WRONG_MAX   32u /* of one target until the next change */

static const struct {
    const char *name, *who, *path;
} targets[PROBE_TARGETS] = {
    [PROBE_GROUP_LIVE] = {"group /livez", "coordinator", "/livez"},
    [PROBE_GROUP_READY] = {"group /readyz", "coordinator", "/readyz"},
    [PROBE_RANK_0] = {"/readyz?rank=0", "coordinator", "/readyz?rank=0"},
    [PROBE_RANK_1] = {"/readyz?rank=1", "coordinator", "/readyz?rank=1"},
    [PROBE_WORKER_0] = {"worker 0 /readyz", "worker-0", "/readyz"},
    [PROBE_WORKER_1] = {"worker 1 /readyz", "worker-1", "/readyz"},
};

/* What one thread asks, and what is true of it. */
struct asker {
    struct probe_watch *watch;
    enum probe_target target;
    pthread_t thread;
    enum probe_truth truth;
    const char *change;
    int64_t changed_us;
    bool settled;
    struct {
        int64_t asked_us, answered_us;
        int status;
        char body[REPLY_BYTES];
    } wrong[WRONG_MAX]; /* since then: false, unless the next change turns out to be older */
    uint32_t wrong_count;
};

struct probe_watch {
    char run_dir[64];
    pthread_mutex_t lock;
    bool stopping;
    struct asker asker[PROBE_TARGETS];
};

/* Of all watches, of which there is one at a time; under its lock. */
static struct {
    struct {
        const char *name;
        uint64_t count;
        int64_t worst_us, sum_us;
    } change[CHANGES_MAX];
    uint32_t change_count;
    uint64_t answers[PROBE_TARGETS][3]; /* 200, 503, none */
    uint64_t false_count;
    uint32_t reply_us[REPLIES_MAX]; /* of those that were well */
    uint32_t reply_count;
} seen;

static int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void sleep_until(int64_t us) {
    int64_t left = us - now_us();
    if (left > 0) usleep((useconds_t)left);
}

/* ---- asking -------------------------------------------------------------------------------- */

void probe_watch_address(const char *run_dir, const char *who, char out[64]) {
    processes_ready_value(run_dir, who, "probe", out, 64);
}

static int connect_to(const char *address) {
    struct sockaddr_in to = {.sin_family = AF_INET};
    char host[64];
    unsigned port;
    if (sscanf(address, "%63[^:]:%u", host, &port) != 2) return -1;
    to.sin_port = htons((uint16_t)port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (inet_pton(AF_INET, host, &to.sin_addr) == 1 &&
        connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
        return fd;
    close(fd);
    return -1;
}

static int ask(const char *address, const char *path, char text[REPLY_BYTES]) {
    int status = 0, fd = connect_to(address);
    text[0] = '\0';
    if (fd < 0) return 0;
    int length = snprintf(text, REPLY_BYTES,
                          "GET %s HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n", path);
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    if (send(fd, text, (size_t)length, MSG_NOSIGNAL) == length && poll(&wait, 1, REPLY_MS) == 1) {
        ssize_t count = recv(fd, text, REPLY_BYTES - 1, 0);
        text[count > 0 ? count : 0] = '\0';
        if (sscanf(text, "HTTP/1.1 %d", &status) != 1) status = 0;
    }
    close(fd);
    return status;
}

int probe_watch_get(const char *address, const char *path) {
    char text[REPLY_BYTES];
    return ask(address, path, text);
}

/* ---- judging ------------------------------------------------------------------------------- */

static void count_wait(const char *name, int64_t us) {
    uint32_t i = 0;
    while (i < seen.change_count && strcmp(seen.change[i].name, name) != 0)
        i++;
    if (i == CHANGES_MAX) abort();
    if (i == seen.change_count) seen.change[seen.change_count++].name = name;
    seen.change[i].count++;
    seen.change[i].sum_us += us;
    if (us > seen.change[i].worst_us) seen.change[i].worst_us = us;
}

/* What was wrong before the change that came at since_us was false. */
static void settle_accounts(struct asker *asker, int64_t since_us) {
    for (uint32_t i = 0; i < asker->wrong_count; i++) {
        if (asker->wrong[i].answered_us >= since_us) continue;
        seen.false_count++;
        fprintf(stderr, "FALSE: %s says %d, %.1f s after \"%s\": %s\n", targets[asker->target].name,
                asker->wrong[i].status,
                (double)(asker->wrong[i].asked_us - asker->changed_us) / 1e6, asker->change,
                asker->wrong[i].body);
    }
    asker->wrong_count = 0;
}

static void keep_wrong(struct asker *asker, int status, const char *reply, int64_t asked_us) {
    const char *body = strstr(reply, "\r\n\r\n");
    if (asker->wrong_count == WRONG_MAX) settle_accounts(asker, INT64_MAX);
    uint32_t i = asker->wrong_count++;
    asker->wrong[i].status = status;
    asker->wrong[i].asked_us = asked_us;
    asker->wrong[i].answered_us = now_us();
    snprintf(asker->wrong[i].body, REPLY_BYTES, "%s", body ? body + 4 : "");
}

static void count_answer(const struct asker *asker, int status, int64_t asked_us) {
    seen.answers[asker->target][status == 200 ? 0 : status == 503 ? 1 : 2]++;
    bool undisturbed = asker->settled && asker->truth == PROBE_WELL && status != 0;
    if (undisturbed && seen.reply_count < REPLIES_MAX)
        seen.reply_us[seen.reply_count++] = (uint32_t)(now_us() - asked_us);
}

static void judge(struct asker *asker, int status, const char *reply, int64_t asked_us) {
    bool right = asker->truth == PROBE_OPEN || (status == 200) == (asker->truth == PROBE_WELL);
    count_answer(asker, status, asked_us);
    if (asked_us < asker->changed_us) return; /* either may be meant */
    if (!right && asker->settled) keep_wrong(asker, status, reply, asked_us);
    if (!right || asker->settled) return;
    asker->settled = true;
    if (asker->truth != PROBE_OPEN) count_wait(asker->change, asked_us - asker->changed_us);
}

static bool is_stopping(struct probe_watch *watch) {
    pthread_mutex_lock(&watch->lock);
    bool stopping = watch->stopping;
    pthread_mutex_unlock(&watch->lock);
    return stopping;
}

static void *ask_again_and_again(void *argument) {
    struct asker *asker = argument;
    for (int64_t at_us = now_us(); !is_stopping(asker->watch); at_us += PERIOD_MS * 1000) {
        char address[64], reply[REPLY_BYTES];
        if (at_us < now_us() - PERIOD_MS * 1000) at_us = now_us(); /* the last one took long */
        sleep_until(at_us);
        int64_t asked_us = now_us();
        probe_watch_address(asker->watch->run_dir, targets[asker->target].who, address);
        int status = ask(address, targets[asker->target].path, reply);
        pthread_mutex_lock(&asker->watch->lock);
        if (!asker->watch->stopping) judge(asker, status, reply, asked_us);
        pthread_mutex_unlock(&asker->watch->lock);
    }
    return NULL;
}

/* ---- the test's side ----------------------------------------------------------------------- */

struct probe_watch *probe_watch_start(const char *run_dir) {
    struct probe_watch *watch = calloc(1, sizeof *watch);
    if (!watch) abort();
    snprintf(watch->run_dir, sizeof watch->run_dir, "%s", run_dir);
    pthread_mutex_init(&watch->lock, NULL);
    for (uint32_t i = 0; i < PROBE_TARGETS; i++) {
        watch->asker[i] = (struct asker){.watch = watch,
                                         .target = (enum probe_target)i,
                                         .truth = PROBE_WELL,
                                         .change = "start",
                                         .changed_us = now_us()};
        if (pthread_create(&watch->asker[i].thread, NULL, ask_again_and_again, &watch->asker[i]))
            abort();
    }
    return watch;
}

static void change_truth(struct asker *asker, enum probe_truth truth, const char *change,
                         int64_t since_us) {
    if (truth == asker->truth) return;
    settle_accounts(asker, since_us);
    asker->truth = truth;
    asker->change = change;
    asker->changed_us = since_us;
    asker->settled = false;
}

void probe_watch_expect(struct probe_watch *watch, enum probe_target target, enum probe_truth truth,
                        const char *change, int64_t since_us) {
    pthread_mutex_lock(&watch->lock);
    change_truth(&watch->asker[target], truth, change, since_us);
    pthread_mutex_unlock(&watch->lock);
}

void probe_watch_expect_all(struct probe_watch *watch, enum probe_truth truth, const char *change,
                            int64_t since_us) {
    for (uint32_t i = PROBE_GROUP_READY; i < PROBE_TARGETS; i++)
        probe_watch_expect(watch, (enum probe_target)i, truth, change, since_us);
}

int64_t probe_watch_now_us(void) {
    return now_us();
}

static bool all_settled(struct probe_watch *watch) {
    bool settled = true;
    pthread_mutex_lock(&watch->lock);
    for (uint32_t i = 0; i < PROBE_TARGETS; i++)
        settled = settled && watch->asker[i].settled;
    pthread_mutex_unlock(&watch->lock);
    return settled;
}

bool probe_watch_settle(struct probe_watch *watch) {
    int64_t deadline_us = now_us() + PATIENCE_MS * INT64_C(1000);
    while (!all_settled(watch)) {
        if (now_us() > deadline_us) return false;
        usleep(5000);
    }
    return true;
}

void probe_watch_stop(struct probe_watch **watch_in) {
    struct probe_watch *watch = *watch_in;
    pthread_mutex_lock(&watch->lock);
    watch->stopping = true;
    for (uint32_t i = 0; i < PROBE_TARGETS; i++)
        settle_accounts(&watch->asker[i], INT64_MAX);
    pthread_mutex_unlock(&watch->lock);
    for (uint32_t i = 0; i < PROBE_TARGETS; i++)
        pthread_join(watch->asker[i].thread, NULL);
    pthread_mutex_destroy(&watch->lock);
    free(watch);
    *watch_in = NULL;
}

/* ---- what was seen ------------------------------------------------------------------------- */

uint64_t probe_watch_false_count(void) {
    return seen.false_count;
}

int64_t probe_watch_worst_ms(void) {
    int64_t worst_us = 0;
    for (uint32_t i = 0; i < seen.change_count; i++)
        if (seen.change[i].worst_us > worst_us) worst_us = seen.change[i].worst_us;
    return worst_us / 1000;
}

static int by_size(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return left < right ? -1 : left > right;
}

static double reply_ms(double share) {
    return seen.reply_us[(uint32_t)(share * (double)(seen.reply_count - 1))] / 1000.0;
}

void probe_watch_print(FILE *out) {
    fprintf(out, "\n%-36s%8s%12s%12s\n", "first right answer after", "times", "mean, ms",
            "worst, ms");
    for (uint32_t i = 0; i < seen.change_count; i++)
        fprintf(out, "%-36s%8llu%12.0f%12.0f\n", seen.change[i].name,
                (unsigned long long)seen.change[i].count,
                (double)seen.change[i].sum_us / 1e3 / (double)seen.change[i].count,
                (double)seen.change[i].worst_us / 1e3);
    fprintf(out, "\n%-20s%10s%10s%10s\n", "answers", "200", "503", "none");
    for (uint32_t i = 0; i < PROBE_TARGETS; i++)
        fprintf(out, "%-20s%10llu%10llu%10llu\n", targets[i].name,
                (unsigned long long)seen.answers[i][0], (unsigned long long)seen.answers[i][1],
                (unsigned long long)seen.answers[i][2]);
    fprintf(out, "false: %llu\n", (unsigned long long)seen.false_count);
    if (seen.reply_count == 0) return;
    qsort(seen.reply_us, seen.reply_count, sizeof *seen.reply_us, by_size);
    fprintf(out, "a reply, wall: median %.2f ms, p99 %.2f ms, p99.9 %.2f ms, of %u\n",
            reply_ms(0.5), reply_ms(0.99), reply_ms(0.999), seen.reply_count);
}
