/* One ZeroMQ socket as a citizen of a libuv loop.
 *
 * ZMQ_FD is edge-triggered and signals both directions, and any send may eat the edge that a
 * receive was waiting for. So the descriptor only wakes the loop, and ZMQ_EVENTS is read on both
 * sides of the loop's sleep:
 *
 *     prepare: a message waits? start idle, so that the loop does not sleep
 *     check:   stop idle; a message waits? call turn(), which receives a bounded number of them;
 *              what it leaves is seen by the next prepare
 *
 * A slow timer bounds the sleep. If it ever wakes the loop to a message of which the descriptor
 * said nothing, an edge was missed in spite of all this, and is counted.
 */
#ifndef ESPALIER_SOCKET_WATCH_H
#define ESPALIER_SOCKET_WATCH_H

#include <stdbool.h>
#include <uv.h>

#include "base/status.h"

struct socket_watch {
    void *socket;             /* ZeroMQ's; borrowed */
    int fd;                   /* ZMQ_FD: never read, never closed by us */
    void (*turn)(void *user); /* receive, without blocking, a bounded number of messages */
    void (*stopped)(void *user);
    void *user;
    uv_poll_t poll;
    uv_prepare_t prepare;
    uv_check_t check;
    uv_idle_t idle;
    uv_timer_t safety;
    uint32_t open_handles;
    bool watching;            /* started and not stopped */
    bool woken;               /* the descriptor spoke in this turn */
    bool touched;             /* a send in this turn may have eaten an edge */
    bool awake;               /* idle is on */
    uint64_t asleep_since_ms; /* loop time when the turn went to sleep */
    uint64_t missed_edges;
};

/* Start watching. On UNAVAILABLE nothing was started. */
enum status socket_watch_start(struct socket_watch *watch, uv_loop_t *loop, void *socket,
                               void (*turn)(void *user), void *user, struct error *err) MUST_USE;

/* Say that something was sent on the socket. */
void socket_watch_touch(struct socket_watch *watch);

/* Stop. turn is not called again; stopped(user) follows in one of the loop's next turns, and only
 * then may the socket be closed and the memory of *watch go. */
void socket_watch_stop(struct socket_watch *watch, void (*stopped)(void *user));

#endif
