#include "socket_watch.h"

#include <poll.h>
#include <string.h>
#include <zmq.h>

#include "base/check.h"

#define SAFETY_MS 250u

static bool message_waits(const struct socket_watch *watch) {
    int events = 0;
    size_t size = sizeof events;
    return zmq_getsockopt(watch->socket, ZMQ_EVENTS, &events, &size) == 0 &&
           (events & ZMQ_POLLIN) != 0;
}

static void descriptor_spoke(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    struct socket_watch *watch = poll->data;
    watch->woken = true;
}

static void stay_awake(uv_idle_t *idle) {
    (void)idle;
}

static void safety_tick(uv_timer_t *timer) {
    (void)timer;
}

static void before_sleep(uv_prepare_t *prepare) {
    struct socket_watch *watch = prepare->data;
    watch->awake = message_waits(watch);
    if (watch->awake) uv_idle_start(&watch->idle, stay_awake);
    watch->woken = false;
    watch->touched = false;
    watch->asleep_since_ms = uv_now(prepare->loop);
}

/* Whether nothing but time woke the loop. Must be asked before ZMQ_EVENTS is read, which takes the
 * descriptor's signal away: then a message that comes only now is not mistaken for a missed one. */
static bool slept_through(const struct socket_watch *watch) {
    if (watch->woken || watch->touched || watch->awake) return false;
    if (uv_now(watch->check.loop) - watch->asleep_since_ms < SAFETY_MS / 2) return false;
    struct pollfd pollfd = {.fd = watch->fd, .events = POLLIN};
    return poll(&pollfd, 1, 0) == 0;
}

static void after_sleep(uv_check_t *check) {
    struct socket_watch *watch = check->data;
    uv_idle_stop(&watch->idle);
    bool silent = slept_through(watch);
    if (!message_waits(watch)) return;
    if (silent) watch->missed_edges++;
    watch->turn(watch->user);
}

enum status socket_watch_start(struct socket_watch *watch, uv_loop_t *loop, void *socket,
                               void (*turn)(void *user), void *user, struct error *err) {
    memset(watch, 0, sizeof *watch);
    watch->socket = socket;
    watch->turn = turn;
    watch->user = user;
    size_t size = sizeof watch->fd;
    CHECK(zmq_getsockopt(socket, ZMQ_FD, &watch->fd, &size) == 0);
    int rc = uv_poll_init(loop, &watch->poll, watch->fd);
    if (rc != 0)
        return error_set(err, STATUS_UNAVAILABLE, "cannot watch a socket: %s", uv_strerror(rc));

    watch->watching = true;
    uv_prepare_init(loop, &watch->prepare);
    uv_check_init(loop, &watch->check);
    uv_idle_init(loop, &watch->idle);
    uv_timer_init(loop, &watch->safety);
    watch->poll.data = watch->prepare.data = watch->check.data = watch;
    watch->idle.data = watch->safety.data = watch;
    watch->open_handles = 5;
    CHECK(uv_poll_start(&watch->poll, UV_READABLE, descriptor_spoke) == 0);
    CHECK(uv_prepare_start(&watch->prepare, before_sleep) == 0);
    CHECK(uv_check_start(&watch->check, after_sleep) == 0);
    CHECK(uv_timer_start(&watch->safety, safety_tick, SAFETY_MS, SAFETY_MS) == 0);
    return STATUS_OK;
}

void socket_watch_touch(struct socket_watch *watch) {
    watch->touched = true;
}

static void handle_closed(uv_handle_t *handle) {
    struct socket_watch *watch = handle->data;
    watch->open_handles--;
    if (watch->open_handles == 0) watch->stopped(watch->user);
}

void socket_watch_stop(struct socket_watch *watch, void (*stopped)(void *user)) {
    CHECK(watch->watching);
    watch->watching = false;
    watch->stopped = stopped;
    uv_close((uv_handle_t *)&watch->poll, handle_closed);
    uv_close((uv_handle_t *)&watch->prepare, handle_closed);
    uv_close((uv_handle_t *)&watch->check, handle_closed);
    uv_close((uv_handle_t *)&watch->idle, handle_closed);
    uv_close((uv_handle_t *)&watch->safety, handle_closed);
}
