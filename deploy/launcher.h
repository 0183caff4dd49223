/* One group as children of one process: a coordinator and its workers on this machine.
 *
 *     launcher ─┬─ coordinator      dies: everything ends
 *               ├─ worker 0         dies: started again, with growing pauses, at most
 *               └─ worker n-1             LAUNCHER_RESTARTS_MAX times a minute
 *
 * Nothing outlives it. Children die with the launcher, even of SIGKILL (PDEATHSIG, set before
 * exec, checked against a parent that died in between), so they are forked by the thread that
 * waits for them. A death is learned from the kernel at once. Children are process groups of their
 * own: Ctrl-C reaches the launcher only, which asks the coordinator to drain; a second one stops
 * it at once, a third kills. Whoever does not follow in time is killed, too.
 *
 * Work is a function that runs on a thread beside, once the coordinator listens: it may block, be
 * an ordinary client, and end the group by returning.
 */
#ifndef ESPALIER_LAUNCHER_H
#define ESPALIER_LAUNCHER_H

#include "base/limits.h"
#include "run_dir.h"

#define LAUNCHER_RESTARTS_MAX 5
#define LAUNCHER_ARGS_MAX     64u
#define LAUNCHER_STAY         (-1)

/* *cancel becomes non-zero when the work should come to its end: a signal, or the group is gone.
 * Returns an exit code, with which the group ends, or LAUNCHER_STAY. */
typedef int launcher_work_fn(void *user, const int *cancel);

struct launcher_options {
    const struct run_dir *run_dir;
    uint32_t tp;
    char *const *coordinator_args; /* flags besides --run-dir; borrowed */
    uint32_t coordinator_arg_count;
    char *const *worker_args; /* flags besides --run-dir and --rank; borrowed */
    uint32_t worker_arg_count;
    bool foreground; /* the group exists for the work: a first signal cancels the work only, and a
                      * dead worker is not started again */
    uint32_t drain_timeout_ms; /* how long the coordinator may drain before it is stuck */
    launcher_work_fn *work;    /* may be NULL */
    void *user;
};

/* Run the group to its end. Returns the exit code: the coordinator's where it failed, else the
 * work's. Prints one line for what went wrong, unless a child has said it. */
int launcher_run(const struct launcher_options *options);

#endif
