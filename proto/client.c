/* One call is one exchange, driven by a private loop:
 *
 *     WAITING ──connected, CALL sent──▶ OPEN ──END──────────────────────────▶ DONE
 *        │                               ├──we no longer want it──▶ CANCELLED ─┤ END, or its wait
 *        └──no server──▶ DONE            └──connection broke, silence─────────▶┘
 *
 * advance() judges time, the link and the cancel flag between two turns of the loop; receive() and
 * link_changed() are the loop's callbacks.
 */
#include "client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>
#include <zmq.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/clock.h"
#include "chan.h"
#include "codec.h"

#define TICK_MS         50 /* how late a cancel flag may be noticed */
#define PING_MS         1000
#define CREDITS         64u /* messages the server may have under way */
#define FRAME_BYTES_MAX (1u << 20)
#define QUEUE_MESSAGES  256 /* more than CREDITS and what else a server sends meanwhile */
#define NEVER_NS        INT64_MAX
#define REQUEST_BYTES   1024u /* of a request's fields of fixed size, and more */

enum exchange_state { EXCHANGE_WAITING, EXCHANGE_OPEN, EXCHANGE_CANCELLED, EXCHANGE_DONE };

struct exchange;

/* What to do with a body of the stream (or, last, of the trailer). CANCELLED: enough of it. */
typedef enum status take_body_fn(struct exchange *exchange, struct bytes body, bool last,
                                 struct arena *arena, struct error *err);

struct exchange {
    const char *method;
    struct bytes request;
    take_body_fn *take_body;
    union { /* the caller's; take_body knows which */
        client_delta_fn *on_delta;
        client_snapshot_fn *on_snapshot;
        client_health_fn *on_health;
        client_resize_fn *on_resize;
        client_examine_fn *on_examined;
    };
    void *user;
    struct generate_summary *summary_out;

    enum exchange_state state;
    uint64_t call_id;
    enum status status; /* of the outcome, once CANCELLED or DONE */
    struct error *err;
    int64_t deadline_ns; /* NEVER_NS: none */
    int64_t give_up_ns;  /* WAITING, CANCELLED */
    int64_t ping_ns;     /* when the next is due */
    uint64_t seq;        /* of the next DATA */
    uint32_t owed;       /* credits to give back */
    bool ended;          /* the trailer came */
};

struct client {
    void *zmq_context;
    uv_loop_t loop;
    uv_timer_t tick;
    struct chan *chan;
    char *endpoint;
    char *public_key;    /* ours; NULL: none */
    enum chan_link link; /* the last news of it */
    uint32_t deadline_ms;
    int64_t silence_ns;
    const volatile int *cancel;
    int64_t heard_ns;
    uint64_t last_call_id;
    struct exchange *exchange; /* NULL between calls */
    struct arena arena;        /* of the message being received, and of headers being written */
};

/* ============================== outcomes ====================================================== */

static void finish(struct exchange *exchange, enum status status) {
    exchange->state = EXCHANGE_DONE;
    exchange->status = status;
}

static enum status send_header(struct client *client, const struct header *header,
                               struct bytes body) {
    size_t mark = arena_mark(&client->arena);
    struct bytes part[FRAME_PARTS] = {codec_encode_header(header, &client->arena), body};
    enum status status = chan_send(client->chan, (struct bytes){0}, part);
    arena_rewind(&client->arena, mark);
    return status;
}

static struct header make_header(const struct exchange *exchange, enum frame_kind kind) {
    return (struct header){.version = WIRE_VERSION, .kind = kind, .call_id = exchange->call_id};
}

/* Tell the server that we no longer want the call; its trailer ends the exchange, or the wait. */
static void cancel(struct client *client, struct exchange *exchange, enum status status) {
    if (exchange->state == EXCHANGE_WAITING) {
        finish(exchange, status);
    } else if (exchange->state == EXCHANGE_OPEN) {
        struct header header = make_header(exchange, FRAME_CANCEL);
        (void)send_header(client, &header, (struct bytes){0});
        exchange->state = EXCHANGE_CANCELLED;
        exchange->status = status;
        exchange->give_up_ns = clock_now_ns() + CLIENT_CANCEL_WAIT_MS * NS_PER_MS;
    }
}

/* ============================== receiving ===================================================== */

static void receive_data(struct client *client, struct exchange *exchange,
                         const struct header *header, struct bytes body) {
    exchange->owed++;
    if (exchange->state != EXCHANGE_OPEN) return;
    if (header->seq != exchange->seq) {
        cancel(client, exchange,
               error_set(exchange->err, STATUS_DATA_LOSS,
                         "%s: found message %llu of the stream, expected %llu", client->endpoint,
                         (unsigned long long)header->seq, (unsigned long long)exchange->seq));
        return;
    }
    exchange->seq++;
    enum status status = exchange->take_body(exchange, body, false, &client->arena, exchange->err);
    if (status != STATUS_OK) cancel(client, exchange, status);
}

static void receive_end(struct client *client, struct exchange *exchange,
                        const struct header *header, struct bytes body) {
    enum status status = STATUS_OK;
    exchange->ended = true;
    if (body.size > 0)
        status = exchange->take_body(exchange, body, true, &client->arena, exchange->err);
    if (exchange->state == EXCHANGE_CANCELLED) {
        finish(exchange, exchange->status);
    } else if (header->status != STATUS_OK) {
        finish(exchange, error_set(exchange->err, header->status, "%s", header->status_text));
    } else {
        finish(exchange, status);
    }
}

static void receive_header(struct client *client, struct exchange *exchange,
                           const struct header *header, struct bytes body) {
    bool ours = header->call_id == exchange->call_id && exchange->state != EXCHANGE_WAITING;
    switch (header->kind) {
    case FRAME_DATA:
        if (ours) receive_data(client, exchange, header, body);
        break;
    case FRAME_END:
        if (ours) receive_end(client, exchange, header, body);
        break;
    case FRAME_PONG:
    case FRAME_DRAIN: break; /* a sign of life; a refused call gets its END */
    default:
        cancel(client, exchange,
               error_set(exchange->err, STATUS_INTERNAL,
                         "%s: found a message of kind %d, accepted those of a server",
                         client->endpoint, (int)header->kind));
    }
}

static void receive(void *user, struct bytes peer, const struct bytes part[FRAME_PARTS]) {
    (void)peer;
    struct client *client = user;
    struct exchange *exchange = client->exchange;
    if (exchange == NULL || exchange->state == EXCHANGE_DONE) return;
    struct header header;
    struct error err;
    arena_reset(&client->arena);
    if (codec_decode_header(part[0], &client->arena, &header, &err) == STATUS_OK) {
        receive_header(client, exchange, &header, part[1]);
    } else {
        cancel(client, exchange,
               error_set(exchange->err, STATUS_INTERNAL, "%s: %.400s", client->endpoint, err.text));
    }
    client->heard_ns = clock_now_ns(); /* after the callback, which may have taken its time */
}

static void link_changed(void *user, enum chan_link link) {
    struct client *client = user;
    struct exchange *exchange = client->exchange;
    client->link = link;
    if (link != CHAN_LINK_DOWN || exchange == NULL) return;
    if (exchange->state == EXCHANGE_CANCELLED) finish(exchange, exchange->status);
    if (exchange->state == EXCHANGE_OPEN)
        finish(exchange, error_set(exchange->err, STATUS_UNAVAILABLE, "%s: the connection broke",
                                   client->endpoint));
}

/* ============================== one call ====================================================== */

static void ticked(uv_timer_t *tick) {
    (void)tick;
}

/* The server's verdict on our key holds for every call, so it may have come before this one. */
static void judge_link(struct client *client, struct exchange *exchange) {
    const char *difference = client->public_key ? "speaks no CURVE, and we have keys"
                                                : "speaks CURVE, and we have no keys";
    if (client->link == CHAN_LINK_REFUSED)
        finish(exchange, error_set(exchange->err, STATUS_UNAUTHENTICATED,
                                   "%s: the server does not allow our key %s", client->endpoint,
                                   client->public_key));
    if (client->link == CHAN_LINK_FOREIGN)
        finish(exchange, error_set(exchange->err, STATUS_UNAUTHENTICATED, "%s: the server %s",
                                   client->endpoint, difference));
}

static void give_up(struct client *client, struct exchange *exchange) {
    const char *why = client->link != CHAN_LINK_CUT ? ""
                      : client->public_key
                          ? " that has the key we expect: handshakes are ended there"
                          : ": handshakes are ended there, as by one that speaks "
                            "CURVE, and we have no keys";
    finish(exchange, error_set(exchange->err, STATUS_UNAVAILABLE, "no server at %s%s",
                               client->endpoint, why));
}

static void try_to_start(struct client *client, struct exchange *exchange, int64_t now_ns) {
    struct header header = make_header(exchange, FRAME_CALL);
    header.method = exchange->method;
    header.credits = CREDITS;
    if (exchange->deadline_ns != NEVER_NS)
        header.deadline_ms = (uint32_t)((exchange->deadline_ns - now_ns) / NS_PER_MS) + 1;
    if (send_header(client, &header, exchange->request) == STATUS_OK) {
        exchange->state = EXCHANGE_OPEN;
        exchange->ping_ns = now_ns + PING_MS * NS_PER_MS;
        client->heard_ns = now_ns;
    } else if (now_ns >= exchange->give_up_ns) {
        give_up(client, exchange);
    }
}

static void keep_alive(struct client *client, struct exchange *exchange, int64_t now_ns) {
    if (exchange->owed >= CREDITS / 2) {
        struct header header = make_header(exchange, FRAME_WINDOW);
        header.credits = exchange->owed;
        if (send_header(client, &header, (struct bytes){0}) == STATUS_OK) exchange->owed = 0;
    }
    if (now_ns >= exchange->ping_ns) {
        struct header header = make_header(exchange, FRAME_PING);
        (void)send_header(client, &header, (struct bytes){0});
        exchange->ping_ns = now_ns + PING_MS * NS_PER_MS;
    }
    if (now_ns - client->heard_ns >= client->silence_ns)
        finish(exchange,
               error_set(exchange->err, STATUS_UNAVAILABLE, "%s: no sign of life for %lld ms",
                         client->endpoint, (long long)(client->silence_ns / NS_PER_MS)));
}

static void advance(struct client *client, struct exchange *exchange) {
    int64_t now_ns = clock_now_ns();
    if (exchange->state <= EXCHANGE_OPEN && client->cancel != NULL && *client->cancel != 0)
        cancel(client, exchange, error_set(exchange->err, STATUS_CANCELLED, "cancelled"));
    if (exchange->state <= EXCHANGE_OPEN && now_ns >= exchange->deadline_ns)
        cancel(client, exchange,
               error_set(exchange->err, STATUS_DEADLINE_EXCEEDED, "%s: no end within %u ms",
                         client->endpoint, client->deadline_ms));
    if (exchange->state == EXCHANGE_WAITING) judge_link(client, exchange);
    if (exchange->state == EXCHANGE_WAITING) try_to_start(client, exchange, now_ns);
    if (exchange->state == EXCHANGE_CANCELLED && now_ns >= exchange->give_up_ns)
        finish(exchange, exchange->status);
    if (exchange->state == EXCHANGE_OPEN || exchange->state == EXCHANGE_CANCELLED)
        keep_alive(client, exchange, now_ns);
}

static enum status run(struct client *client, struct exchange *exchange) {
    CHECK(client->exchange == NULL); /* not from a callback */
    if (exchange->request.size > FRAME_BODY_BYTES_MAX)
        return error_set(exchange->err, STATUS_INVALID_ARGUMENT,
                         "request: found %zu bytes, accepted at most %u", exchange->request.size,
                         FRAME_BODY_BYTES_MAX);
    int64_t now_ns = clock_now_ns();
    exchange->call_id = ++client->last_call_id;
    exchange->deadline_ns = client->deadline_ms == 0 ? NEVER_NS
                                                     : now_ns + client->deadline_ms * NS_PER_MS;
    exchange->give_up_ns = now_ns + client->silence_ns;

    uv_run(&client->loop, UV_RUN_NOWAIT); /* that the link broke before is not about this call */
    client->exchange = exchange;
    uv_timer_start(&client->tick, ticked, TICK_MS, TICK_MS);
    advance(client, exchange);
    while (exchange->state != EXCHANGE_DONE) {
        uv_run(&client->loop, UV_RUN_ONCE);
        advance(client, exchange);
    }
    uv_timer_stop(&client->tick);
    client->exchange = NULL;
    if (!exchange->ended) {
        client->link = CHAN_LINK_DOWN;
        chan_reconnect(client->chan);
    }
    return exchange->status;
}

/* ============================== bodies ======================================================== */

static enum status nonsense(enum status status, struct error *err) {
    return status == STATUS_OK ? STATUS_OK : error_wrap(err, STATUS_INTERNAL, "from the server");
}

static enum status enough(struct error *err) {
    return error_set(err, STATUS_CANCELLED, "cancelled");
}

static enum status take_delta(struct exchange *exchange, struct bytes body, bool last,
                              struct arena *arena, struct error *err) {
    struct generate_delta delta;
    enum status status = last ? codec_decode_generate_summary(body, arena, exchange->summary_out,
                                                              err)
                              : codec_decode_generate_delta(body, arena, &delta, err);
    if (last) return nonsense(status, err);
    if (status != STATUS_OK) return nonsense(status, err);
    return exchange->on_delta(exchange->user, &delta) ? STATUS_OK : enough(err);
}

static enum status take_snapshot(struct exchange *exchange, struct bytes body, bool last,
                                 struct arena *arena, struct error *err) {
    struct snapshot snapshot;
    enum status status = codec_decode_snapshot(body, arena, &snapshot, err);
    if (status != STATUS_OK) return nonsense(status, err);
    return exchange->on_snapshot(exchange->user, &snapshot) || last ? STATUS_OK : enough(err);
}

static enum status take_health(struct exchange *exchange, struct bytes body, bool last,
                               struct arena *arena, struct error *err) {
    struct health_reply reply;
    enum status status = codec_decode_health_reply(body, arena, &reply, err);
    if (status != STATUS_OK) return nonsense(status, err);
    return exchange->on_health(exchange->user, &reply) || last ? STATUS_OK : enough(err);
}

static enum status take_nothing(struct exchange *exchange, struct bytes body, bool last,
                                struct arena *arena, struct error *err) {
    (void)exchange;
    (void)arena;
    if (last && body.size == 0) return STATUS_OK;
    return error_set(err, STATUS_INTERNAL, "from the server: a message of %zu bytes, expected none",
                     body.size);
}

static enum status take_resize(struct exchange *exchange, struct bytes body, bool last,
                               struct arena *arena, struct error *err) {
    struct resize_progress progress;
    if (last) return take_nothing(exchange, body, last, arena, err);
    enum status status = codec_decode_resize_progress(body, arena, &progress, err);
    if (status != STATUS_OK) return nonsense(status, err);
    return exchange->on_resize(exchange->user, &progress) ? STATUS_OK : enough(err);
}

static enum status take_examined(struct exchange *exchange, struct bytes body, bool last,
                                 struct arena *arena, struct error *err) {
    struct examine_report report;
    if (last) return take_nothing(exchange, body, last, arena, err);
    enum status status = codec_decode_examine_report(body, arena, &report, err);
    if (status != STATUS_OK) return nonsense(status, err);
    return exchange->on_examined(exchange->user, &report) ? STATUS_OK : enough(err);
}

/* ============================== calls ========================================================= */

static size_t generate_request_bytes(const struct generate_request *request) {
    size_t bytes = REQUEST_BYTES + request->prompt_text.size;
    bytes += sizeof(uint32_t) * ((size_t)request->prompt_token_count + request->stop_token_count);
    bytes += sizeof(struct logit_bias) * request->sampling.logit_bias_count;
    for (uint32_t i = 0; i < request->stop_count; i++)
        bytes += strlen(request->stop[i]) + sizeof(uint64_t);
    return bytes;
}

enum status client_generate(struct client *client, const struct generate_request *request,
                            client_delta_fn *on_delta, void *user,
                            struct generate_summary *summary_out, struct error *err) {
    *summary_out = (struct generate_summary){0};
    struct arena arena;
    arena_init(&arena, codec_arena_budget(generate_request_bytes(request)));
    struct exchange exchange = {.method = METHOD_GENERATE,
                                .request = codec_encode_generate_request(request, &arena),
                                .take_body = take_delta,
                                .on_delta = on_delta,
                                .user = user,
                                .summary_out = summary_out,
                                .err = err};
    enum status status = run(client, &exchange);
    arena_deinit(&arena);
    return status;
}

enum status client_watch(struct client *client, const struct watch_request *request,
                         client_snapshot_fn *on_snapshot, void *user, struct error *err) {
    struct arena arena;
    arena_init(&arena, codec_arena_budget(REQUEST_BYTES));
    struct exchange exchange = {.method = METHOD_WATCH,
                                .request = codec_encode_watch_request(request, &arena),
                                .take_body = take_snapshot,
                                .on_snapshot = on_snapshot,
                                .user = user,
                                .err = err};
    enum status status = run(client, &exchange);
    arena_deinit(&arena);
    return status;
}

static enum status ask_health(struct client *client, const char *method, const char *service,
                              client_health_fn *on_reply, void *user, struct error *err) {
    struct arena arena;
    arena_init(&arena, codec_arena_budget(REQUEST_BYTES + strlen(service)));
    struct health_request request = {.service = service};
    struct exchange exchange = {.method = method,
                                .request = codec_encode_health_request(&request, &arena),
                                .take_body = take_health,
                                .on_health = on_reply,
                                .user = user,
                                .err = err};
    enum status status = run(client, &exchange);
    arena_deinit(&arena);
    return status;
}

enum status client_health(struct client *client, const char *service, client_health_fn *on_reply,
                          void *user, struct error *err) {
    return ask_health(client, METHOD_HEALTH_CHECK, service, on_reply, user, err);
}

enum status client_health_watch(struct client *client, const char *service,
                                client_health_fn *on_reply, void *user, struct error *err) {
    return ask_health(client, METHOD_HEALTH_WATCH, service, on_reply, user, err);
}

enum status client_flush(struct client *client, const struct flush_request *request,
                         struct error *err) {
    struct arena arena;
    arena_init(&arena, codec_arena_budget(REQUEST_BYTES + request->token_count * sizeof(uint32_t)));
    struct exchange exchange = {.method = METHOD_FLUSH,
                                .request = codec_encode_flush_request(request, &arena),
                                .take_body = take_nothing,
                                .err = err};
    enum status status = run(client, &exchange);
    arena_deinit(&arena);
    return status;
}

enum status client_resize(struct client *client, const struct resize_request *request,
                          client_resize_fn *on_progress, void *user, struct error *err) {
    struct arena arena;
    arena_init(&arena, codec_arena_budget(REQUEST_BYTES));
    struct exchange exchange = {.method = METHOD_RESIZE,
                                .request = codec_encode_resize_request(request, &arena),
                                .take_body = take_resize,
                                .on_resize = on_progress,
                                .user = user,
                                .err = err};
    enum status status = run(client, &exchange);
    arena_deinit(&arena);
    return status;
}

enum status client_examine(struct client *client, const struct examine_request *request,
                           client_examine_fn *on_report, void *user, struct error *err) {
    struct arena arena;
    arena_init(&arena, codec_arena_budget(REQUEST_BYTES + request->token_count * sizeof(uint32_t)));
    struct exchange exchange = {.method = METHOD_EXAMINE,
                                .request = codec_encode_examine_request(request, &arena),
                                .take_body = take_examined,
                                .on_examined = on_report,
                                .user = user,
                                .err = err};
    enum status status = run(client, &exchange);
    arena_deinit(&arena);
    return status;
}

enum status client_drain(struct client *client, const struct drain_request *request,
                         struct error *err) {
    struct arena arena;
    arena_init(&arena, codec_arena_budget(REQUEST_BYTES));
    struct exchange exchange = {.method = METHOD_DRAIN,
                                .request = codec_encode_drain_request(request, &arena),
                                .take_body = take_nothing,
                                .err = err};
    enum status status = run(client, &exchange);
    arena_deinit(&arena);
    return status;
}

/* ============================== opening and closing =========================================== */

enum status client_open(const struct client_options *options, struct client **client_out,
                        struct error *err) {
    *client_out = NULL;
    struct client *client = calloc(1, sizeof *client);
    CHECK(client != NULL);
    client->endpoint = strdup(options->endpoint);
    if (options->public_key != NULL) client->public_key = strdup(options->public_key);
    client->zmq_context = zmq_ctx_new();
    CHECK(client->endpoint != NULL && client->zmq_context != NULL);
    client->deadline_ms = options->deadline_ms;
    client->cancel = options->cancel;
    client->link = CHAN_LINK_DOWN;
    client->silence_ns = NS_PER_MS *
                         (options->silence_ms != 0 ? options->silence_ms : CLIENT_SILENCE_MS);
    /* Decoders take what their message's size allows: one header, one body; and a header to send
     * while those are in use. */
    arena_init(&client->arena, codec_arena_budget(FRAME_BYTES_MAX) +
                                   2 * codec_arena_budget(FRAME_HEADER_BYTES_MAX));
    CHECK(uv_loop_init(&client->loop) == 0);
    CHECK(uv_timer_init(&client->loop, &client->tick) == 0);

    struct chan_options chan_options = {.role = CHAN_CLIENT,
                                        .endpoint = options->endpoint,
                                        .frame_bytes_max = FRAME_BYTES_MAX,
                                        .queue_messages = QUEUE_MESSAGES,
                                        .server_public_key = options->server_public_key,
                                        .public_key = options->public_key,
                                        .secret_key = options->secret_key,
                                        .on_link = link_changed};
    enum status status = chan_open(&client->loop, client->zmq_context, &chan_options, receive,
                                   client, &client->chan, err);
    if (status == STATUS_OK) {
        *client_out = client;
    } else {
        client_close(&client);
    }
    return status;
}

void client_close(struct client **client_inout) {
    struct client *client = *client_inout;
    if (client == NULL) return;
    *client_inout = NULL;
    chan_close(&client->chan, NULL, NULL);
    uv_close((uv_handle_t *)&client->tick, NULL);
    uv_run(&client->loop, UV_RUN_DEFAULT); /* until the last handle is closed */
    CHECK(uv_loop_close(&client->loop) == 0);
    while (zmq_ctx_term(client->zmq_context) != 0)
        CHECK(errno == EINTR);
    arena_deinit(&client->arena);
    free(client->endpoint);
    free(client->public_key);
    free(client);
}
