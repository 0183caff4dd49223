#include "worker_link.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log_limit.h"
#include "chan.h"
#include "codec.h"
#include "process.h"

#define QUEUE_MESSAGES 256
#define REAP_CHECK_MS  500u
#define LAST_WORDS_MS  50u /* what an ended process sent may still be on its way */
#define LEAVE_NS       (2 * NS_PER_S)

struct connection {
    struct worker_link *link;
    uint32_t id; /* 0: a free entry */
    uint8_t peer[CHAN_PEER_BYTES_MAX];
    size_t peer_bytes;
    uint32_t rank;
    uint64_t pid, process_start;
    struct process_watch *watch; /* NULL: the process cannot be watched from here */
    bool ended;                  /* its process; lost once its last words must have come */
    bool leaving;                /* dropped; kept to see its process end */
    int64_t lose_at_ns, leave_by_ns;
};

struct worker_link {
    struct chan *chan;
    struct worker_link_handlers handlers;
    uv_loop_t *loop;
    uv_timer_t reaper, last_words;
    struct connection connection[WORKER_LINK_CONNECTIONS_MAX];
    uint32_t last_id;
    struct arena decode_arena, encode_arena, header_arena;
    struct bytes note_header; /* the header of every message we send */
    void (*closed)(void *user);
    void *closed_user;
    bool ending; /* nobody is let in any more */
    int closing; /* what is still to close: timers, the channel */
    /* Of lines that a peer can cause at will. */
    struct log_limit refused_lines, ended_lines, unwatched_lines, turned_away_lines,
        unreachable_lines;
};

/* A worker of another version reads little of what we say, but its own line names both numbers:
 * the header's place for the version never moves. */
static void refuse(struct worker_link *link, struct bytes peer, const struct error *err) {
    const struct control_message refusal = {.type = CONTROL_REFUSE,
                                            .refuse = {.status = err->code, .text = err->text}};
    const struct bytes part[FRAME_PARTS] = {link->note_header, worker_link_encode(link, &refusal)};
    enum status status = chan_send(link->chan, peer, part);
    if (status != STATUS_OK) log_debug("refusal_not_sent", "status=%s", status_name(status));
}

static void receive(void *user, struct bytes peer, const struct bytes part[FRAME_PARTS]);
static void reap(uv_timer_t *timer);

/* ---- connections --------------------------------------------------------------------------- */

static struct connection *find_id(struct worker_link *link, struct worker_id worker) {
    for (uint32_t i = 0; i < WORKER_LINK_CONNECTIONS_MAX; i++) {
        struct connection *connection = &link->connection[i];
        if (worker.value != 0 && connection->id == worker.value && !connection->leaving)
            return connection;
    }
    return NULL;
}

static struct connection *find_peer(struct worker_link *link, struct bytes peer) {
    for (uint32_t i = 0; i < WORKER_LINK_CONNECTIONS_MAX; i++) {
        struct connection *connection = &link->connection[i];
        if (connection->id != 0 && connection->peer_bytes == peer.size &&
            memcmp(connection->peer, peer.data, peer.size) == 0)
            return connection;
    }
    return NULL;
}

/* A process that connects anew has lost its old connection, whoever notices first. */
static struct connection *find_process(struct worker_link *link, const struct worker_hello *hello) {
    for (uint32_t i = 0; i < WORKER_LINK_CONNECTIONS_MAX; i++) {
        struct connection *connection = &link->connection[i];
        /* With the rank: containers have pids of their own, and 1 is popular. */
        if (connection->id != 0 && connection->rank == hello->rank &&
            connection->pid == hello->pid && connection->process_start == hello->process_start)
            return connection;
    }
    return NULL;
}

static struct connection *find_free(struct worker_link *link) {
    for (uint32_t i = 0; i < WORKER_LINK_CONNECTIONS_MAX; i++)
        if (link->connection[i].id == 0) return &link->connection[i];
    return NULL;
}

static struct bytes peer_of(const struct connection *connection) {
    return (struct bytes){connection->peer, connection->peer_bytes};
}

static void forget(struct connection *connection) {
    process_watch_close(&connection->watch);
    struct worker_link *link = connection->link;
    memset(connection, 0, sizeof *connection);
    connection->link = link;
}

static void lose(struct connection *connection) {
    struct worker_link *link = connection->link;
    struct worker_id worker = {connection->id};
    bool leaving = connection->leaving;
    forget(connection);
    if (!leaving) link->handlers.on_lost(link->handlers.user, worker);
}

/* Runs only while somebody has ended and is not lost yet. */
static void lose_ended(uv_timer_t *timer) {
    struct worker_link *link = timer->data;
    int64_t now_ns = clock_now_ns();
    bool more = false;
    for (uint32_t i = 0; i < WORKER_LINK_CONNECTIONS_MAX; i++) {
        struct connection *connection = &link->connection[i];
        if (!connection->ended) continue;
        if (now_ns >= connection->lose_at_ns)
            lose(connection);
        else
            more = true;
    }
    if (more) uv_timer_start(timer, lose_ended, LAST_WORDS_MS, 0);
}

/* The kernel tells of a death sooner than the process's last message is read, and the message says
 * why. */
static void on_process_death(void *user) {
    struct connection *connection = user;
    struct worker_link *link = connection->link;
    int64_t now_ns = clock_now_ns();
    log_limited(&link->ended_lines, now_ns, LOG_LEVEL_INFO, "worker_process_ended", "pid=%" PRIu64,
                connection->pid);
    process_watch_close(&connection->watch);
    connection->ended = true;
    connection->lose_at_ns = now_ns + LAST_WORDS_MS * NS_PER_MS;
    if (connection->leaving)
        lose(connection);
    else if (!uv_is_active((uv_handle_t *)&link->last_words))
        uv_timer_start(&link->last_words, lose_ended, LAST_WORDS_MS, 0);
}

static void watch_process(struct connection *connection) {
    /* A pid of another machine or pid namespace names nobody here, or somebody else. */
    if (connection->pid == 0 || connection->pid > INT32_MAX ||
        process_start_time((pid_t)connection->pid) != connection->process_start)
        return;
    struct error err;
    if (process_watch_open(connection->link->loop, (pid_t)connection->pid,
                           connection->process_start, on_process_death, connection,
                           &connection->watch, &err) != STATUS_OK)
        log_limited(&connection->link->unwatched_lines, clock_now_ns(), LOG_LEVEL_WARN,
                    "worker_not_watched", "pid=%" PRIu64 " reason=\"%s\"", connection->pid,
                    err.text);
}

/* The connection that a HELLO stands for, or NULL where it changes nothing. */
static struct connection *greet(struct worker_link *link, struct bytes peer,
                                const struct worker_hello *hello) {
    struct connection *connection = find_peer(link, peer);
    if (connection && connection->pid == hello->pid &&
        connection->process_start == hello->process_start)
        return NULL; /* it asks again because our answer is on its way */
    if (!connection) connection = find_process(link, hello);
    if (connection) lose(connection);
    connection = find_free(link);
    if (!connection || peer.size > sizeof connection->peer) {
        log_limited(&link->turned_away_lines, clock_now_ns(), LOG_LEVEL_WARN, "worker_turned_away",
                    "pid=%" PRIu64 " reason=\"%u connections already\"", hello->pid,
                    WORKER_LINK_CONNECTIONS_MAX);
        return NULL;
    }
    connection->id = ++link->last_id;
    memcpy(connection->peer, peer.data, peer.size);
    connection->peer_bytes = peer.size;
    connection->rank = hello->rank;
    connection->pid = hello->pid;
    connection->process_start = hello->process_start;
    watch_process(connection);
    return connection;
}

/* ---- life ---------------------------------------------------------------------------------- */

enum status worker_link_open(uv_loop_t *loop, void *zmq_context, const struct chan_options *door,
                             const struct worker_link_handlers *handlers,
                             struct worker_link **link_out, struct error *err) {
    struct worker_link *link = calloc(1, sizeof *link);
    CHECK(link);
    link->handlers = *handlers;
    link->loop = loop;
    for (uint32_t i = 0; i < WORKER_LINK_CONNECTIONS_MAX; i++)
        link->connection[i].link = link;
    struct chan_options options = *door;
    options.role = CHAN_SERVER;
    options.frame_bytes_max = WORKER_BODY_BYTES_MAX;
    options.queue_messages = QUEUE_MESSAGES;
    options.peer_may_reconnect = true;
    enum status status = chan_open(loop, zmq_context, &options, receive, link, &link->chan, err);
    if (status != STATUS_OK) {
        free(link);
        return status;
    }
    arena_init(&link->decode_arena, codec_arena_budget(WORKER_BODY_BYTES_MAX));
    arena_init(&link->encode_arena, codec_arena_budget(WORKER_BODY_BYTES_MAX));
    arena_init(&link->header_arena, FRAME_HEADER_BYTES_MAX);
    const struct header note = {.version = WIRE_VERSION, .kind = FRAME_NOTE};
    link->note_header = codec_encode_header(&note, &link->header_arena);
    uv_timer_init(loop, &link->reaper);
    uv_timer_init(loop, &link->last_words);
    link->reaper.data = link->last_words.data = link;
    *link_out = link;
    return STATUS_OK;
}

const char *worker_link_endpoint(const struct worker_link *link) {
    return chan_endpoint(link->chan);
}

static void part_closed(struct worker_link *link) {
    if (--link->closing > 0) return;
    arena_deinit(&link->decode_arena);
    arena_deinit(&link->encode_arena);
    arena_deinit(&link->header_arena);
    void (*closed)(void *) = link->closed;
    void *user = link->closed_user;
    free(link);
    if (closed) closed(user);
}

static void timer_closed(uv_handle_t *handle) {
    part_closed(handle->data);
}

static void chan_closed(void *user) {
    part_closed(user);
}

void worker_link_close(struct worker_link **link, void (*closed)(void *user), void *user) {
    struct worker_link *own = *link;
    *link = NULL;
    own->closed = closed;
    own->closed_user = user;
    own->closing = 3;
    for (uint32_t i = 0; i < WORKER_LINK_CONNECTIONS_MAX; i++)
        if (own->connection[i].id != 0) forget(&own->connection[i]);
    uv_close((uv_handle_t *)&own->reaper, timer_closed);
    uv_close((uv_handle_t *)&own->last_words, timer_closed);
    chan_close(&own->chan, chan_closed, own);
}

/* ---- receiving ----------------------------------------------------------------------------- */

static void tell_to_end(struct worker_link *link, struct bytes peer) {
    const struct control_message shutdown = {.type = CONTROL_SHUTDOWN};
    const struct bytes part[FRAME_PARTS] = {link->note_header, worker_link_encode(link, &shutdown)};
    enum status status = chan_send(link->chan, peer, part);
    if (status != STATUS_OK) log_debug("shutdown_not_sent", "status=%s", status_name(status));
}

static void receive(void *user, struct bytes peer, const struct bytes part[FRAME_PARTS]) {
    struct worker_link *link = user;
    arena_reset(&link->decode_arena);
    struct header header;
    struct worker_message message;
    struct error err;
    enum status status = codec_decode_header(part[0], &link->decode_arena, &header, &err);
    if (status == STATUS_OK && header.kind != FRAME_NOTE)
        status = error_set(&err, STATUS_INVALID_ARGUMENT, "header.kind: found %d, accepted: NOTE",
                           (int)header.kind);
    if (status == STATUS_OK)
        status = codec_decode_worker_message(part[1], &link->decode_arena, &message, &err);
    if (status != STATUS_OK) {
        log_limited(&link->refused_lines, clock_now_ns(), LOG_LEVEL_WARN, "worker_frame_refused",
                    "reason=\"%s\"", err.text);
        if (status == STATUS_FAILED_PRECONDITION) refuse(link, peer, &err);
        return;
    }
    if (link->ending) {
        tell_to_end(link, peer);
        return;
    }
    struct connection *connection = message.type == WORKER_HELLO ? greet(link, peer, &message.hello)
                                                                 : find_peer(link, peer);
    if (connection && !connection->leaving) {
        link->handlers.on_message(link->handlers.user, (struct worker_id){connection->id},
                                  &message);
        return;
    }
    /* Given up on, perhaps while it was stopped: it must not live on in the belief that it
     * belongs to the group. */
    if (message.type != WORKER_HELLO) tell_to_end(link, peer);
}

/* ---- sending ------------------------------------------------------------------------------- */

struct bytes worker_link_encode(struct worker_link *link, const struct control_message *message) {
    arena_reset(&link->encode_arena);
    return codec_encode_control_message(message, &link->encode_arena);
}

enum status worker_link_send(struct worker_link *link, struct worker_id worker,
                             struct bytes encoded) {
    struct connection *connection = find_id(link, worker);
    if (!connection) return STATUS_UNAVAILABLE;
    const struct bytes part[FRAME_PARTS] = {link->note_header, encoded};
    enum status status = chan_send(link->chan, peer_of(connection), part);
    if (status == STATUS_OK) return STATUS_OK;
    log_limited(&link->unreachable_lines, clock_now_ns(), LOG_LEVEL_WARN, "worker_unreachable",
                "pid=%" PRIu64 " status=%s", connection->pid, status_name(status));
    worker_link_drop(link, worker);
    return STATUS_UNAVAILABLE;
}

void worker_link_shutdown_all(struct worker_link *link) {
    link->ending = true;
    for (uint32_t i = 0; i < WORKER_LINK_CONNECTIONS_MAX; i++) {
        struct connection *connection = &link->connection[i];
        if (connection->id == 0) continue;
        tell_to_end(link, peer_of(connection));
        connection->leaving = true;
    }
}

uint32_t worker_link_remaining(const struct worker_link *link) {
    uint32_t remaining = 0;
    for (uint32_t i = 0; i < WORKER_LINK_CONNECTIONS_MAX; i++)
        remaining += link->connection[i].id != 0 && link->connection[i].watch != NULL;
    return remaining;
}

/* ---- leaving ------------------------------------------------------------------------------- */

void worker_link_drop(struct worker_link *link, struct worker_id worker) {
    struct connection *connection = find_id(link, worker);
    if (!connection) return;
    if (!connection->watch) {
        forget(connection);
        return;
    }
    connection->leaving = true;
    connection->leave_by_ns = clock_now_ns() + LEAVE_NS;
    if (!uv_is_active((uv_handle_t *)&link->reaper))
        uv_timer_start(&link->reaper, reap, REAP_CHECK_MS, REAP_CHECK_MS);
}

static void kill_process(const struct connection *connection) {
    if (process_start_time((pid_t)connection->pid) != connection->process_start) return;
    int rc = kill((pid_t)connection->pid, SIGKILL);
    log_warn("worker_killed", "pid=%" PRIu64 " reason=\"dropped and did not end\" result=\"%s\"",
             connection->pid, rc == 0 ? "ok" : strerror(errno));
}

/* Runs only while somebody is leaving. */
static void reap(uv_timer_t *timer) {
    struct worker_link *link = timer->data;
    uint32_t leaving = 0;
    int64_t now_ns = clock_now_ns();
    for (uint32_t i = 0; i < WORKER_LINK_CONNECTIONS_MAX; i++) {
        struct connection *connection = &link->connection[i];
        if (connection->id == 0 || !connection->leaving) continue;
        leaving++;
        if (now_ns < connection->leave_by_ns) continue;
        kill_process(connection);
        connection->leave_by_ns = now_ns + LEAVE_NS;
    }
    if (leaving == 0) uv_timer_stop(timer);
}
