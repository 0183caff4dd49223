/* Who asks a group's probes ten times a second, each on a thread of its own, and compares what they
 * say with what is true.
 *
 * The truth is the test's: it knows what it has just stopped, killed or begun. After each change an
 * answer may lag; from the first right one on, every answer until the next change must be right.
 * How long the first took is kept by kind of change.
 */
#ifndef ESPALIER_PROBE_WATCH_H
#define ESPALIER_PROBE_WATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Of a group of two ranks. */
enum probe_target {
    PROBE_GROUP_LIVE,
    PROBE_GROUP_READY,
    PROBE_RANK_0, /* readiness, asked of the coordinator */
    PROBE_RANK_1,
    PROBE_WORKER_0, /* likewise, of the process itself */
    PROBE_WORKER_1,
    PROBE_TARGETS,
};

enum probe_truth {
    PROBE_OPEN, /* either answer is right */
    PROBE_WELL, /* 200 */
    PROBE_SICK, /* 503, or none */
};

struct probe_watch;

/* The group whose run directory this is must be ready. */
struct probe_watch *probe_watch_start(const char *run_dir);

/* What is true since then, by the watch's clock; it may be known only now, and what was wrong until
 * now and answered since then was right. `change` names the row of the table that the wait for the
 * first right answer counts for; borrowed for ever. _all: of all but the coordinator's life. */
void probe_watch_expect(struct probe_watch *watch, enum probe_target target, enum probe_truth truth,
                        const char *change, int64_t since_us);
void probe_watch_expect_all(struct probe_watch *watch, enum probe_truth truth, const char *change,
                            int64_t since_us);
int64_t probe_watch_now_us(void);

/* Wait until every target has given a right answer. False: it took longer than a minute. */
bool probe_watch_settle(struct probe_watch *watch);

/* Stop asking; what was seen stays. */
void probe_watch_stop(struct probe_watch **watch);

/* Of all watches so far: wrong answers, and the longest wait for a right one. */
uint64_t probe_watch_false_count(void);
int64_t probe_watch_worst_ms(void);

/* The changes with their waits, the answers by status, how long a reply took. */
void probe_watch_print(FILE *out);

/* One GET; the status, or 0 where nothing answers within a second. */
int probe_watch_get(const char *address, const char *path);

/* Where a process answers, as its ready file ("coordinator", "worker-1") says; empty: there is
 * none. */
void probe_watch_address(const char *run_dir, const char *who, char out[64]);

#endif
