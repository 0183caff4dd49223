/* The workers' side of the coordinator's shell: connections, and the processes behind them.
 *
 *     routing id ──HELLO──▶ worker_id ──▶ messages ──▶ core
 *                               ▲
 *            pidfd: the process has ended ──▶ lost, behind its last words
 *
 * A connection is a process: one that says HELLO gets a worker_id of its own, never used again.
 * Frames are decoded and validated here, so the core may believe what it is given. A process on
 * this machine is watched through the kernel; of one elsewhere only its silence tells, and the
 * core watches that.
 *
 * A dropped worker that is still there two seconds later, because it is stopped or stuck, is
 * killed where that is possible: a rank that holds a place it no longer fills blocks its successor.
 *
 * Thread: that of the loop. Callbacks come from the loop, never from within a call below.
 */
#ifndef ESPALIER_WORKER_LINK_H
#define ESPALIER_WORKER_LINK_H

#include <uv.h>

#include "chan.h"
#include "core/event.h"

#define WORKER_LINK_CONNECTIONS_MAX 64u

struct worker_link;

struct worker_link_handlers {
    void (*on_message)(void *user, struct worker_id worker, const struct worker_message *message);
    void (*on_lost)(void *user, struct worker_id worker);
    void *user;
};

/* door: the endpoint to bind, and its keys. Errors are chan_open's. */
enum status worker_link_open(uv_loop_t *loop, void *zmq_context, const struct chan_options *door,
                             const struct worker_link_handlers *handlers,
                             struct worker_link **link_out, struct error *err) MUST_USE;
const char *worker_link_endpoint(const struct worker_link *link);

/* A message as bytes, to be sent to any number of workers; borrowed until the next encode. */
struct bytes worker_link_encode(struct worker_link *link, const struct control_message *message);

/* UNAVAILABLE: this worker cannot be reached any more, which is then the caller's to know; on_lost
 * is not called for it. */
enum status worker_link_send(struct worker_link *link, struct worker_id worker,
                             struct bytes encoded) MUST_USE;

/* Nothing from this worker matters any more. No on_lost follows. */
void worker_link_drop(struct worker_link *link, struct worker_id worker);

/* Tell every worker to end, those who come later too. No callback follows. */
void worker_link_shutdown_all(struct worker_link *link);

/* Workers told to end whose processes are still there, as far as they can be seen from here. */
uint32_t worker_link_remaining(const struct worker_link *link);

void worker_link_close(struct worker_link **link, void (*closed)(void *user), void *user);

#endif
