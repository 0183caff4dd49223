/* A call's states, and who frees it:
 *
 *     OPEN ──cancel()──▶ CANCELLED ──rpc_end──▶ ENDED ──END sent, or its client gone──▶ free
 *       └──────────────rpc_end───────────────────▶┘
 *
 * Everything that reaches a client goes through its call's queue, as bytes ready to send, so that
 * order, credits and the one END have a single place: flush(). on_cancel is never called where a
 * call is cancelled but from tell_cancelled(), at the end of a receive or from the timer: an owner
 * inside rpc_send is not called back, and no loop over calls has an owner at work inside it.
 */
#include "rpc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "codec.h"

#define CLIENTS_MAX RPC_CALLS_MAX /* a client is remembered while it has a call */
#define RETRY_MS    5             /* where a client's ZeroMQ queue was full */
#define STALL_MS    100           /* a timer later than this: the loop stood still */
#define NEVER_NS    INT64_MAX
#define NO_CALL     UINT32_MAX

enum call_state { CALL_OPEN, CALL_CANCELLED, CALL_ENDED };

struct message {
    struct message *next;
    bool is_end;
    size_t header_bytes, body_bytes;
    uint8_t data[]; /* header, body */
};

struct call {
    struct pool_id id;
    struct pool_id client;
    uint32_t next, previous; /* of its client's calls; NO_CALL at the ends */
    uint64_t call_id;
    enum call_state state;
    bool refused;       /* never seen by the owner, nor found by its call_id */
    bool told;          /* CANCELLED: on_cancel was called */
    bool lost;          /* CANCELLED: its client seemed gone */
    enum status reason; /* CANCELLED */
    int64_t deadline_ns;
    uint64_t seq; /* of the next DATA */
    uint32_t credits;
    struct message *first, *last; /* the queue */
    uint32_t queue_messages;
    size_t queue_bytes;
};

struct client {
    struct pool_id id;
    uint8_t peer[CHAN_PEER_BYTES_MAX];
    size_t peer_bytes;
    int64_t heard_ns;
    bool gone;           /* nothing is kept for it any more; a sign of life revokes that */
    uint32_t first_call; /* NO_CALL: none */
    uint32_t call_count;
    uint64_t last_accepted; /* call_id */
};

struct rpc_server {
    struct rpc_handlers handlers;
    struct chan *chan;
    uv_timer_t timer;
    int64_t timer_due_ns; /* NEVER_NS: not set */
    int64_t expiry_ns;
    bool draining, closing;
    bool blocked; /* a ZeroMQ queue was full: flush again soon */
    uint32_t untold_count;
    size_t queue_bytes; /* of all calls */
    struct rpc_counters counters;

    struct pool call_pool, client_pool;
    struct call call[RPC_CALLS_MAX];
    struct client client[CLIENTS_MAX];
    uint64_t peer_hash[CLIENTS_MAX]; /* of client[].peer: what a search reads */

    struct arena decode_arena; /* of the message being received */
    struct arena encode_arena; /* of the header being written */

    uint32_t handles_open;
    void (*closed)(void *user);
    void *closed_user;
};

/* ============================== time ========================================================== */

static void timer_fired(uv_timer_t *timer);

static void wake_at(struct rpc_server *server, int64_t due_ns) {
    if (server->closing || due_ns >= server->timer_due_ns) return;
    server->timer_due_ns = due_ns;
    int64_t wait_ns = due_ns - clock_now_ns();
    uint64_t wait_ms = wait_ns <= 0 ? 0 : (uint64_t)((wait_ns + NS_PER_MS - 1) / NS_PER_MS);
    uv_timer_start(&server->timer, timer_fired, wait_ms, 0);
}

/* ============================== clients ======================================================= */

static struct bytes peer_of(const struct client *client) {
    return (struct bytes){.data = client->peer, .size = client->peer_bytes};
}

static struct client *find_client(struct rpc_server *server, struct bytes peer) {
    uint64_t hash = hash_bytes(peer.data, peer.size, 0);
    for (uint32_t slot = pool_next_used(&server->client_pool, 0); slot != POOL_NO_SLOT;
         slot = pool_next_used(&server->client_pool, slot + 1)) {
        struct client *client = &server->client[slot];
        if (server->peer_hash[slot] == hash && client->peer_bytes == peer.size &&
            memcmp(client->peer, peer.data, peer.size) == 0)
            return client;
    }
    return NULL;
}

static struct client *find_or_add_client(struct rpc_server *server, struct bytes peer) {
    struct client *client = find_client(server, peer);
    if (client != NULL) return client;
    struct pool_id id = pool_acquire(&server->client_pool);
    CHECK(id.slot != POOL_NO_SLOT); /* as many as calls, and each has one */
    client = &server->client[id.slot];
    *client = (struct client){.id = id, .peer_bytes = peer.size, .first_call = NO_CALL};
    client->heard_ns = clock_now_ns();
    memcpy(client->peer, peer.data, peer.size);
    server->peer_hash[id.slot] = hash_bytes(peer.data, peer.size, 0);
    wake_at(server, client->heard_ns + server->expiry_ns);
    return client;
}

static struct client *client_of(struct rpc_server *server, const struct call *call) {
    CHECK(pool_is_live(&server->client_pool, call->client));
    return &server->client[call->client.slot];
}

/* ============================== calls ========================================================= */

static struct call *live_call(struct rpc_server *server, struct pool_id id) {
    CHECK(pool_is_live(&server->call_pool, id));
    return &server->call[id.slot];
}

static struct call *find_call(struct rpc_server *server, const struct client *client,
                              uint64_t call_id) {
    uint32_t slot = client == NULL ? NO_CALL : client->first_call;
    for (; slot != NO_CALL; slot = server->call[slot].next) {
        struct call *call = &server->call[slot];
        if (call->call_id == call_id && !call->refused) return call;
    }
    return NULL;
}

/* NULL where all slots are taken. */
static struct call *add_call(struct rpc_server *server, struct bytes peer, uint64_t call_id) {
    struct pool_id id = pool_acquire(&server->call_pool);
    if (id.slot == POOL_NO_SLOT) return NULL;
    struct client *client = find_or_add_client(server, peer);
    struct call *call = &server->call[id.slot];
    *call = (struct call){.id = id,
                          .client = client->id,
                          .next = client->first_call,
                          .previous = NO_CALL,
                          .call_id = call_id,
                          .deadline_ns = NEVER_NS};
    if (client->first_call != NO_CALL) server->call[client->first_call].previous = id.slot;
    client->first_call = id.slot;
    client->call_count++;
    return call;
}

static void drop_queue(struct rpc_server *server, struct call *call) {
    while (call->first != NULL) {
        struct message *message = call->first;
        call->first = message->next;
        free(message);
    }
    call->last = NULL;
    server->queue_bytes -= call->queue_bytes;
    call->queue_bytes = 0;
    call->queue_messages = 0;
}

static void remove_call(struct rpc_server *server, struct call *call) {
    drop_queue(server, call);
    struct client *client = client_of(server, call);
    if (call->previous == NO_CALL) {
        client->first_call = call->next;
    } else {
        server->call[call->previous].next = call->next;
    }
    if (call->next != NO_CALL) server->call[call->next].previous = call->previous;
    client->call_count--;
    if (client->call_count == 0) pool_release(&server->client_pool, client->id);
    pool_release(&server->call_pool, call->id);
}

/* ============================== sending ======================================================= */

static struct bytes encode_header(struct rpc_server *server, const struct header *header) {
    arena_reset(&server->encode_arena);
    return codec_encode_header(header, &server->encode_arena);
}

static struct header make_header(enum frame_kind kind, uint64_t call_id) {
    return (struct header){.version = WIRE_VERSION, .kind = kind, .call_id = call_id};
}

/* For what may be lost: a PONG, a note. */
static enum status send_now(struct rpc_server *server, struct bytes peer,
                            const struct header *header) {
    struct bytes part[FRAME_PARTS] = {encode_header(server, header)};
    return chan_send(server->chan, peer, part);
}

static void enqueue(struct rpc_server *server, struct call *call, const struct header *header,
                    struct bytes body) {
    struct bytes head = encode_header(server, header);
    struct message *message = malloc(sizeof *message + head.size + body.size);
    CHECK(message != NULL);
    *message = (struct message){
        .is_end = header->kind == FRAME_END, .header_bytes = head.size, .body_bytes = body.size};
    memcpy(message->data, head.data, head.size);
    if (body.size > 0) memcpy(message->data + head.size, body.data, body.size);

    if (call->last == NULL) {
        call->first = message;
    } else {
        call->last->next = message;
    }
    call->last = message;
    call->queue_messages++;
    call->queue_bytes += head.size + body.size;
    server->queue_bytes += head.size + body.size;
}

static void dequeue(struct rpc_server *server, struct call *call) {
    struct message *message = call->first;
    size_t bytes = message->header_bytes + message->body_bytes;
    call->first = message->next;
    if (call->first == NULL) call->last = NULL;
    call->queue_messages--;
    call->queue_bytes -= bytes;
    server->queue_bytes -= bytes;
    free(message);
}

static enum status send_first(struct rpc_server *server, struct call *call) {
    const struct message *message = call->first;
    struct bytes part[FRAME_PARTS] = {
        {.data = message->data, .size = message->header_bytes},
        {.data = message->data + message->header_bytes, .size = message->body_bytes},
    };
    return chan_send(server->chan, peer_of(client_of(server, call)), part);
}

static void lose_client(struct rpc_server *server, struct client *client);

/* Send what credit and ZeroMQ's queue allow. The call may be gone afterwards. */
static void flush(struct rpc_server *server, struct call *call) {
    while (call->first != NULL && (call->first->is_end || call->credits > 0)) {
        struct client *client = client_of(server, call);
        enum status status = send_first(server, call);
        if (status == STATUS_UNAVAILABLE || (status != STATUS_OK && client->gone)) {
            lose_client(server, client);
            return;
        }
        if (status != STATUS_OK) {
            server->blocked = true;
            wake_at(server, clock_now_ns() + RETRY_MS * NS_PER_MS);
            return;
        }
        if (call->first->is_end) {
            remove_call(server, call);
            return;
        }
        call->credits--;
        dequeue(server, call);
    }
}

static void enqueue_end(struct rpc_server *server, struct call *call, enum status status,
                        const char *text, struct bytes body) {
    struct header header = make_header(FRAME_END, call->call_id);
    header.status = status;
    header.status_text = text;
    call->state = CALL_ENDED;
    enqueue(server, call, &header, body);
}

/* ============================== cancelling ==================================================== */

static const char *reason_text(enum status reason) {
    switch (reason) {
    case STATUS_CANCELLED: return "cancelled by the client";
    case STATUS_DEADLINE_EXCEEDED: return "the deadline passed";
    case STATUS_RESOURCE_EXHAUSTED: return "the client reads too slowly";
    default: return "the server closes";
    }
}

/* A client that comes back after all is not told that it cancelled what it did not. */
static const char *cancel_text(const struct call *call) {
    return call->lost ? "the client seemed gone: nothing was heard of it, or nothing reached it"
                      : reason_text(call->reason);
}

/* The client may be gone from the pool afterwards, with its calls. */
static void cancel(struct rpc_server *server, struct call *call, enum status reason) {
    if (call->state == CALL_CANCELLED) return;
    drop_queue(server, call);
    if (call->state == CALL_OPEN) {
        call->state = CALL_CANCELLED;
        call->reason = reason;
        server->untold_count++;
        wake_at(server, clock_now_ns());
    } else {
        enqueue_end(server, call, reason, reason_text(reason), (struct bytes){0});
        flush(server, call);
    }
}

/* Its calls are cancelled, and those that only wait to be sent forgotten. */
static void lose_client(struct rpc_server *server, struct client *client) {
    client->gone = true;
    for (uint32_t slot = client->first_call; slot != NO_CALL;) {
        struct call *call = &server->call[slot];
        slot = call->next;
        if (call->state == CALL_ENDED) {
            remove_call(server, call);
        } else if (call->state == CALL_OPEN) {
            call->lost = true;
            cancel(server, call, STATUS_CANCELLED);
        }
    }
}

static void tell_cancelled(struct rpc_server *server) {
    uint32_t slot = server->untold_count == 0 ? POOL_NO_SLOT
                                              : pool_next_used(&server->call_pool, 0);
    while (slot != POOL_NO_SLOT && !server->closing) {
        struct call *call = &server->call[slot];
        if (call->state == CALL_CANCELLED && !call->told) {
            call->told = true;
            server->untold_count--;
            server->handlers.on_cancel(server->handlers.user, call->id, call->reason);
        }
        slot = pool_next_used(&server->call_pool, slot + 1);
    }
}

static void lose_silent_clients(struct rpc_server *server, int64_t now_ns) {
    for (uint32_t slot = pool_next_used(&server->client_pool, 0); slot != POOL_NO_SLOT;
         slot = pool_next_used(&server->client_pool, slot + 1)) {
        struct client *client = &server->client[slot];
        if (client->gone) continue;
        if (now_ns - client->heard_ns >= server->expiry_ns) {
            lose_client(server, client);
        } else {
            wake_at(server, client->heard_ns + server->expiry_ns);
        }
    }
}

static void timer_fired(uv_timer_t *timer) {
    struct rpc_server *server = timer->data;
    int64_t now_ns = clock_now_ns();
    bool stalled = now_ns - server->timer_due_ns > STALL_MS * NS_PER_MS;
    server->timer_due_ns = NEVER_NS;
    bool blocked = server->blocked;
    server->blocked = false;

    /* After a stall the signs of life may lie in the socket, unread: read first, judge later. */
    if (stalled) {
        wake_at(server, now_ns + STALL_MS * NS_PER_MS);
    } else {
        lose_silent_clients(server, now_ns);
    }
    for (uint32_t slot = pool_next_used(&server->call_pool, 0); slot != POOL_NO_SLOT;
         slot = pool_next_used(&server->call_pool, slot + 1)) {
        struct call *call = &server->call[slot];
        if (call->state == CALL_CANCELLED) continue;
        if (now_ns >= call->deadline_ns) {
            call->deadline_ns = NEVER_NS;
            cancel(server, call, STATUS_DEADLINE_EXCEEDED);
        } else {
            wake_at(server, call->deadline_ns);
            if (blocked) flush(server, call);
        }
    }
    tell_cancelled(server);
}

/* ============================== receiving ===================================================== */

/* A refusal owes its END as well; where it cannot be sent at once it waits like any other. Only
 * with all slots taken it is lost, and the client's own deadline ends the call. */
static void refuse(struct rpc_server *server, struct bytes peer, uint64_t call_id,
                   enum status status, const char *text) {
    server->counters.refused++;
    struct header header = make_header(FRAME_END, call_id);
    header.status = status;
    header.status_text = text;
    if (send_now(server, peer, &header) != STATUS_RESOURCE_EXHAUSTED) return;
    const struct client *client = find_client(server, peer);
    if (client != NULL && client->call_count >= RPC_CALLS_PER_CLIENT_MAX) return;
    struct call *call = add_call(server, peer, call_id);
    if (call == NULL) return;
    call->refused = true;
    enqueue_end(server, call, status, text, (struct bytes){0});
    flush(server, call);
}

/* names ends with NULL. */
static bool is_listed(const char *const *names, const char *name) {
    while (*names != NULL && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}

static bool method_is_known(const struct rpc_server *server, const char *method) {
    const char *const *known = server->handlers.methods;
    return known == NULL || is_listed(known, method);
}

static bool method_observes(const struct rpc_server *server, const char *method) {
    const char *const *observing = server->handlers.observing;
    return observing != NULL && is_listed(observing, method);
}

/* OK, or why the call is refused. */
static enum status judge_call(struct rpc_server *server, const struct client *client,
                              const struct header *header, struct bytes attachment,
                              struct error *err) {
    if (header->call_id == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "call_id: found 0, accepted 1 and above");
    if (find_call(server, client, header->call_id) != NULL)
        return error_set(err, STATUS_ALREADY_EXISTS, "call_id: a call of this id is open");
    if (server->draining && !method_observes(server, header->method))
        return error_set(err, STATUS_UNAVAILABLE, "the server is draining");
    if (attachment.size > 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "attachment: found %zu bytes, accepted none",
                         attachment.size);
    if (!method_is_known(server, header->method))
        return error_set(err, STATUS_UNIMPLEMENTED, "method: unknown \"%s\"", header->method);
    if (client != NULL && client->call_count >= RPC_CALLS_PER_CLIENT_MAX)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%u calls of this client are open",
                         client->call_count);
    if (server->call_pool.used_count >= RPC_CALLS_MAX)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%u calls are open", RPC_CALLS_MAX);
    return STATUS_OK;
}

static void send_drain(struct rpc_server *server, struct bytes peer, uint64_t last_accepted) {
    struct header header = make_header(FRAME_DRAIN, last_accepted);
    (void)send_now(server, peer, &header);
}

static void receive_call(struct rpc_server *server, struct bytes peer, const struct header *header,
                         const struct bytes part[FRAME_PARTS]) {
    struct error err;
    const struct client *known = find_client(server, peer);
    enum status status = judge_call(server, known, header, part[2], &err);
    if (status != STATUS_OK) {
        if (server->draining) send_drain(server, peer, known == NULL ? 0 : known->last_accepted);
        refuse(server, peer, header->call_id, status, err.text);
        return;
    }
    struct call *call = add_call(server, peer, header->call_id);
    CHECK(call != NULL);
    uint32_t deadline_ms = header->deadline_ms;
    if (deadline_ms == 0 || deadline_ms > RPC_DEADLINE_MS_MAX) deadline_ms = RPC_DEADLINE_MS_MAX;
    call->deadline_ns = clock_now_ns() + deadline_ms * NS_PER_MS;
    call->credits = header->credits != 0 ? header->credits : RPC_CREDITS_DEFAULT;
    client_of(server, call)->last_accepted = header->call_id;
    server->counters.accepted++;
    wake_at(server, call->deadline_ns);
    server->handlers.on_call(server->handlers.user, call->id, header, part[1]);
}

static void receive_window(struct rpc_server *server, struct call *call, uint32_t credits) {
    call->credits = credits > CREDITS_MAX - call->credits ? CREDITS_MAX : call->credits + credits;
    flush(server, call);
}

static void receive_header(struct rpc_server *server, struct bytes peer,
                           const struct header *header, const struct bytes part[FRAME_PARTS]) {
    struct call *call = find_call(server, find_client(server, peer), header->call_id);
    struct header pong = make_header(FRAME_PONG, header->call_id);
    switch (header->kind) {
    case FRAME_CALL: receive_call(server, peer, header, part); break;
    case FRAME_CANCEL:
        if (call != NULL) cancel(server, call, STATUS_CANCELLED);
        break;
    case FRAME_WINDOW:
        if (call != NULL) receive_window(server, call, header->credits);
        break;
    case FRAME_PING: (void)send_now(server, peer, &pong); break;
    default: server->counters.dropped_messages++;
    }
}

/* A header that cannot be believed may still say which call it would have started; unless that is
 * open already, the caller is told. */
static void receive_malformed(struct rpc_server *server, struct bytes peer,
                              const struct header *header, const struct error *err) {
    if (header->kind == FRAME_CALL && header->call_id != 0 &&
        find_call(server, find_client(server, peer), header->call_id) == NULL) {
        refuse(server, peer, header->call_id, err->code, err->text);
    } else {
        server->counters.dropped_messages++;
    }
}

static void receive(void *user, struct bytes peer, const struct bytes part[FRAME_PARTS]) {
    struct rpc_server *server = user;
    struct client *client = find_client(server, peer);
    if (client != NULL) {
        client->heard_ns = clock_now_ns();
        if (client->gone) wake_at(server, client->heard_ns + server->expiry_ns);
        client->gone = false;
    }
    struct header header = {0};
    struct error err;
    arena_reset(&server->decode_arena);
    if (codec_decode_header(part[0], &server->decode_arena, &header, &err) == STATUS_OK) {
        receive_header(server, peer, &header, part);
    } else {
        receive_malformed(server, peer, &header, &err);
    }
    tell_cancelled(server);
}

/* ============================== the owner's side ============================================== */

void rpc_send(struct rpc_server *server, struct pool_id id, struct bytes body) {
    struct call *call = live_call(server, id);
    CHECK(call->state != CALL_ENDED);
    if (call->state == CALL_CANCELLED) return;
    struct header header = make_header(FRAME_DATA, call->call_id);
    header.seq = call->seq++;
    enqueue(server, call, &header, body);
    flush(server, call);
    if (call->state == CALL_OPEN &&
        (call->queue_messages > RPC_QUEUE_MESSAGES_MAX || call->queue_bytes > RPC_QUEUE_BYTES_MAX ||
         server->queue_bytes > RPC_QUEUE_BYTES_TOTAL))
        cancel(server, call, STATUS_RESOURCE_EXHAUSTED);
}

void rpc_end(struct rpc_server *server, struct pool_id id, enum status status, const char *text,
             struct bytes body) {
    struct call *call = live_call(server, id);
    CHECK(call->state != CALL_ENDED);
    if (call->state == CALL_CANCELLED) {
        if (!call->told) server->untold_count--;
        if (status != call->reason || call->lost || *text == '\0') text = cancel_text(call);
        status = call->reason;
    }
    enqueue_end(server, call, status, text, body);
    flush(server, call);
}

void rpc_server_drain(struct rpc_server *server) {
    if (server->draining) return;
    server->draining = true;
    for (uint32_t slot = pool_next_used(&server->client_pool, 0); slot != POOL_NO_SLOT;
         slot = pool_next_used(&server->client_pool, slot + 1)) {
        const struct client *client = &server->client[slot];
        send_drain(server, peer_of(client), client->last_accepted);
    }
}

uint32_t rpc_server_open_calls(const struct rpc_server *server) {
    return server->call_pool.used_count;
}

const char *rpc_server_endpoint(const struct rpc_server *server) {
    return chan_endpoint(server->chan);
}

void rpc_server_count(const struct rpc_server *server, struct rpc_counters *counters_out) {
    *counters_out = server->counters;
    counters_out->dropped_messages += chan_dropped_messages(server->chan);
    counters_out->missed_edges = chan_missed_edges(server->chan);
}

/* ============================== opening and closing =========================================== */

static void destroy(struct rpc_server *server) {
    arena_deinit(&server->decode_arena);
    arena_deinit(&server->encode_arena);
    pool_deinit(&server->call_pool);
    pool_deinit(&server->client_pool);
    free(server);
}

enum status rpc_server_open(uv_loop_t *loop, void *zmq_context, const struct chan_options *options,
                            const struct rpc_handlers *handlers, struct rpc_server **server_out,
                            struct error *err) {
    *server_out = NULL;
    CHECK(options->role == CHAN_SERVER);
    struct rpc_server *server = calloc(1, sizeof *server);
    CHECK(server != NULL);
    server->handlers = *handlers;
    server->timer_due_ns = NEVER_NS;
    server->expiry_ns = NS_PER_MS * (handlers->client_expiry_ms != 0 ? handlers->client_expiry_ms
                                                                     : RPC_CLIENT_EXPIRY_MS);
    pool_init(&server->call_pool, RPC_CALLS_MAX);
    pool_init(&server->client_pool, CLIENTS_MAX);
    arena_init(&server->decode_arena, codec_arena_budget(FRAME_HEADER_BYTES_MAX));
    arena_init(&server->encode_arena, codec_arena_budget(FRAME_HEADER_BYTES_MAX));
    enum status status = chan_open(loop, zmq_context, options, receive, server, &server->chan, err);
    if (status != STATUS_OK) {
        destroy(server);
        return status;
    }
    CHECK(uv_timer_init(loop, &server->timer) == 0);
    server->timer.data = server;
    *server_out = server;
    return STATUS_OK;
}

/* The END that a call gets from a server that closes: it was cancelled for a reason, or not. What
 * waited to be sent before it is lost, and so is an OK. */
static void end_at_close(struct rpc_server *server, struct call *call) {
    struct header header = make_header(FRAME_END, call->call_id);
    header.status = call->state == CALL_CANCELLED ? call->reason : STATUS_UNAVAILABLE;
    header.status_text = call->state == CALL_CANCELLED ? cancel_text(call)
                                                       : reason_text(header.status);
    (void)send_now(server, peer_of(client_of(server, call)), &header);
    remove_call(server, call);
}

static void part_closed(struct rpc_server *server) {
    server->handles_open--;
    if (server->handles_open > 0) return;
    if (server->closed != NULL) server->closed(server->closed_user);
    destroy(server);
}

static void chan_is_closed(void *user) {
    part_closed(user);
}

static void timer_is_closed(uv_handle_t *handle) {
    part_closed(handle->data);
}

void rpc_server_close(struct rpc_server **server_inout, void (*closed)(void *user), void *user) {
    struct rpc_server *server = *server_inout;
    if (server == NULL) return;
    *server_inout = NULL;
    server->closing = true;
    server->closed = closed;
    server->closed_user = user;
    for (uint32_t slot = pool_next_used(&server->call_pool, 0); slot != POOL_NO_SLOT;
         slot = pool_next_used(&server->call_pool, slot + 1))
        end_at_close(server, &server->call[slot]);
    server->handles_open = 2;
    uv_close((uv_handle_t *)&server->timer, timer_is_closed);
    chan_close(&server->chan, chan_is_closed, server);
}
