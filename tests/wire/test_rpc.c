/* The server's half of calls, against peers of plain ZeroMQ: one END a call, whatever happens. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/hash.h"
#include "codec.h"
#include "net_support.h"
#include "rpc.h"

#define OWNED_MAX      RPC_CALLS_MAX
#define PROPERTY_SEEDS 6u
#define PROPERTY_PEERS 4u
#define PROPERTY_STEPS 3000u
#define PROPERTY_CALLS 1000u /* of one peer */

/* Owner and server. Remembers calls and what became of them. */
struct fixture {
    struct net_dir dir;
    uv_loop_t loop;
    void *context;
    struct rpc_server *server;
    bool end_at_once;
    bool in_send; /* on_cancel from inside rpc_send is forbidden */
    struct pool_id call[OWNED_MAX];
    uint64_t call_id[OWNED_MAX];
    enum status cancelled[OWNED_MAX]; /* OK: not cancelled */
    uint32_t cancels[OWNED_MAX];
    uint32_t call_count, cancel_count;
    uint32_t goal;
    char method[64];
    char body[64];
    bool closed;
};

static void own_call(void *user, struct pool_id call, const struct header *header,
                     struct bytes body) {
    struct fixture *fixture = user;
    assert_true(fixture->call_count < OWNED_MAX);
    uint32_t i = fixture->call_count++;
    fixture->call[i] = call;
    fixture->call_id[i] = header->call_id;
    fixture->cancelled[i] = STATUS_OK;
    fixture->cancels[i] = 0;
    snprintf(fixture->method, sizeof fixture->method, "%s", header->method);
    snprintf(fixture->body, sizeof fixture->body, "%.*s", (int)body.size, (const char *)body.data);
    if (fixture->end_at_once)
        rpc_end(fixture->server, call, STATUS_OK, "fine", bytes_of_text("last"));
}

static void own_cancel(void *user, struct pool_id call, enum status reason) {
    struct fixture *fixture = user;
    assert_false(fixture->in_send);
    for (uint32_t i = 0; i < fixture->call_count; i++) {
        if (!pool_id_equal(fixture->call[i], call)) continue;
        fixture->cancelled[i] = reason;
        fixture->cancels[i]++;
    }
    fixture->cancel_count++;
}

static const char *const METHODS[] = {"Count", "Echo", "Look", NULL};
static const char *const OBSERVING[] = {"Look", NULL};

struct setting {
    int queue_messages;
    uint32_t client_expiry_ms;
};

static void start(struct fixture *fixture, struct setting setting) {
    struct error err = {0};
    memset(fixture, 0, sizeof *fixture);
    net_dir_init(&fixture->dir);
    assert_int_equal(uv_loop_init(&fixture->loop), 0);
    fixture->context = zmq_ctx_new();
    const struct chan_options options = {
        .role = CHAN_SERVER,
        .endpoint = fixture->dir.endpoint,
        .frame_bytes_max = 4u << 20,
        .queue_messages = setting.queue_messages != 0 ? setting.queue_messages : 256};
    const struct rpc_handlers handlers = {.on_call = own_call,
                                          .on_cancel = own_cancel,
                                          .user = fixture,
                                          .methods = METHODS,
                                          .observing = OBSERVING,
                                          .client_expiry_ms = setting.client_expiry_ms};
    if (rpc_server_open(&fixture->loop, fixture->context, &options, &handlers, &fixture->server,
                        &err) != STATUS_OK)
        fail_msg("%s", err.text);
}

static void note_closed(void *user) {
    *(bool *)user = true;
}

static void stop(struct fixture *fixture) {
    rpc_server_close(&fixture->server, note_closed, &fixture->closed);
    net_finish(&fixture->loop);
    assert_true(fixture->closed);
    zmq_ctx_term(fixture->context);
    net_dir_deinit(&fixture->dir);
}

/* ============================== peers ========================================================= */

static void send_header(struct net_peer *peer, const struct header *header, struct bytes body) {
    struct arena arena;
    arena_init(&arena, codec_arena_budget(FRAME_HEADER_BYTES_MAX));
    struct bytes head = codec_encode_header(header, &arena);
    const void *const data[] = {head.data, body.data, ""};
    const size_t size[] = {head.size, body.size, 0};
    assert_true(net_peer_send(peer, data, size, 3));
    arena_deinit(&arena);
}

static void send_call(struct net_peer *peer, uint64_t call_id, const char *method, uint32_t credits,
                      uint32_t deadline_ms) {
    const struct header header = {.version = WIRE_VERSION,
                                  .kind = FRAME_CALL,
                                  .call_id = call_id,
                                  .method = method,
                                  .credits = credits,
                                  .deadline_ms = deadline_ms};
    send_header(peer, &header, bytes_of_text("question"));
}

static void send_kind(struct net_peer *peer, enum frame_kind kind, uint64_t call_id,
                      uint32_t credits) {
    const struct header header = {
        .version = WIRE_VERSION, .kind = kind, .call_id = call_id, .credits = credits};
    send_header(peer, &header, (struct bytes){0});
}

struct frame {
    enum frame_kind kind;
    uint64_t call_id, seq;
    enum status status;
    char text[ERROR_TEXT_MAX];
    char body[64];
};

static struct frame read_frame(struct net_message *message) {
    struct frame frame;
    struct arena arena;
    struct header header;
    struct error err = {0};
    assert_int_equal(message->count, 3);
    assert_int_equal(message->size[2], 0);
    arena_init(&arena, codec_arena_budget(FRAME_HEADER_BYTES_MAX));
    struct bytes wire = {message->data[0], message->size[0]};
    if (codec_decode_header(wire, &arena, &header, &err) != STATUS_OK) fail_msg("%s", err.text);
    frame.kind = header.kind;
    frame.call_id = header.call_id;
    frame.seq = header.seq;
    frame.status = header.status;
    snprintf(frame.text, sizeof frame.text, "%s", header.status_text);
    snprintf(frame.body, sizeof frame.body, "%.63s", (const char *)message->data[1]);
    arena_deinit(&arena);
    net_message_free(message);
    return frame;
}

static struct frame next_frame(struct fixture *fixture, struct net_peer *peer) {
    struct net_message message;
    assert_true(net_peer_receive(peer, &fixture->loop, &message));
    return read_frame(&message);
}

static void expect_end(struct fixture *fixture, struct net_peer *peer, uint64_t call_id,
                       enum status status) {
    struct frame frame = next_frame(fixture, peer);
    assert_int_equal(frame.kind, FRAME_END);
    assert_int_equal(frame.call_id, call_id);
    if (frame.status != status) fail_msg("%s: %s", status_name(frame.status), frame.text);
}

static void expect_data(struct fixture *fixture, struct net_peer *peer, uint64_t call_id,
                        uint64_t begin, uint64_t end) {
    for (uint64_t seq = begin; seq < end; seq++) {
        struct frame frame = next_frame(fixture, peer);
        assert_int_equal(frame.kind, FRAME_DATA);
        assert_int_equal(frame.call_id, call_id);
        assert_int_equal(frame.seq, seq);
    }
}

/* All that was sent before this has been received when it returns, and nothing but a PONG came. */
static void expect_silence(struct fixture *fixture, struct net_peer *peer) {
    send_kind(peer, FRAME_PING, 0, 0);
    assert_int_equal(next_frame(fixture, peer).kind, FRAME_PONG);
}

static bool calls_reached(void *user) {
    const struct fixture *fixture = user;
    return fixture->call_count >= fixture->goal;
}

static bool cancels_reached(void *user) {
    const struct fixture *fixture = user;
    return fixture->cancel_count >= fixture->goal;
}

static void wait_calls(struct fixture *fixture, uint32_t count) {
    fixture->goal = count;
    assert_true(net_run_until(&fixture->loop, calls_reached, fixture));
}

static void wait_cancels(struct fixture *fixture, uint32_t count) {
    fixture->goal = count;
    assert_true(net_run_until(&fixture->loop, cancels_reached, fixture));
}

static struct pool_id begin_call(struct fixture *fixture, struct net_peer *peer, uint64_t call_id,
                                 uint32_t credits, uint32_t deadline_ms) {
    uint32_t i = fixture->call_count;
    send_call(peer, call_id, "Count", credits, deadline_ms);
    wait_calls(fixture, i + 1);
    assert_int_equal(fixture->call_id[i], call_id);
    return fixture->call[i];
}

static void send_some(struct fixture *fixture, struct pool_id call, uint32_t count, size_t size) {
    static uint8_t body[2u << 20];
    fixture->in_send = true;
    for (uint32_t i = 0; i < count; i++)
        rpc_send(fixture->server, call, (struct bytes){body, size});
    fixture->in_send = false;
}

static void end(struct fixture *fixture, struct pool_id call, enum status status) {
    rpc_end(fixture->server, call, status, "said the owner", (struct bytes){0});
}

/* A server with one peer. */
static void start_pair(struct fixture *fixture, struct net_peer *peer, struct setting setting) {
    start(fixture, setting);
    net_peer_init(peer, fixture->dir.endpoint, "first");
}

static void stop_pair(struct fixture *fixture, struct net_peer *peer) {
    assert_int_equal(rpc_server_open_calls(fixture->server), 0);
    net_peer_deinit(peer);
    stop(fixture);
}

/* ============================== calls that go well ============================================ */

static void a_call_may_be_ended_inside_on_call(void **state) {
    (void)state;
    struct fixture fixture;
    struct net_peer peer;
    start_pair(&fixture, &peer, (struct setting){0});
    fixture.end_at_once = true;
    send_call(&peer, 7, "Echo", 0, 0);
    struct frame frame = next_frame(&fixture, &peer);
    assert_int_equal(frame.kind, FRAME_END);
    assert_int_equal(frame.call_id, 7);
    assert_int_equal(frame.status, STATUS_OK);
    assert_string_equal(frame.text, "fine");
    assert_string_equal(frame.body, "last");
    assert_string_equal(fixture.method, "Echo");
    assert_string_equal(fixture.body, "question");
    stop_pair(&fixture, &peer);
}

static void credits_are_respected_exactly(void **state) {
    (void)state;
    struct fixture fixture;
    struct net_peer peer;
    start_pair(&fixture, &peer, (struct setting){0});
    struct pool_id call = begin_call(&fixture, &peer, 1, 3, 0);
    send_some(&fixture, call, 10, 5);
    expect_data(&fixture, &peer, 1, 0, 3);
    expect_silence(&fixture, &peer);
    send_kind(&peer, FRAME_WINDOW, 1, 2);
    expect_data(&fixture, &peer, 1, 3, 5);
    expect_silence(&fixture, &peer);
    end(&fixture, call, STATUS_OK); /* waits for the five before it */
    expect_silence(&fixture, &peer);
    send_kind(&peer, FRAME_WINDOW, 1, 4);
    expect_data(&fixture, &peer, 1, 5, 9);
    expect_silence(&fixture, &peer);
    send_kind(&peer, FRAME_WINDOW, 1, 1);
    expect_data(&fixture, &peer, 1, 9, 10);
    expect_end(&fixture, &peer, 1, STATUS_OK); /* itself it costs nothing */
    send_kind(&peer, FRAME_WINDOW, 1, 1);      /* for a call that is over: no harm */
    expect_silence(&fixture, &peer);
    stop_pair(&fixture, &peer);
}

static void no_credits_named_means_the_default(void **state) {
    (void)state;
    struct fixture fixture;
    struct net_peer peer;
    start_pair(&fixture, &peer, (struct setting){0});
    struct pool_id call = begin_call(&fixture, &peer, 1, 0, 0);
    send_some(&fixture, call, RPC_CREDITS_DEFAULT + 1, 1);
    expect_data(&fixture, &peer, 1, 0, RPC_CREDITS_DEFAULT);
    expect_silence(&fixture, &peer);
    send_kind(&peer, FRAME_WINDOW, 1, CREDITS_MAX);
    send_kind(&peer, FRAME_WINDOW, 1, CREDITS_MAX);
    expect_data(&fixture, &peer, 1, RPC_CREDITS_DEFAULT, RPC_CREDITS_DEFAULT + 1);
    end(&fixture, call, STATUS_NOT_FOUND);
    expect_end(&fixture, &peer, 1, STATUS_NOT_FOUND);
    stop_pair(&fixture, &peer);
}

/* ZeroMQ's own queue to a peer fills before the credits are used: nothing is lost, all is sent in
 * order once the peer reads. */
static void a_full_socket_only_delays(void **state) {
    (void)state;
    struct fixture fixture;
    struct net_peer peer;
    start_pair(&fixture, &peer, (struct setting){.queue_messages = 2});
    struct pool_id call = begin_call(&fixture, &peer, 1, 400, 0);
    send_some(&fixture, call, 300, 1000);
    end(&fixture, call, STATUS_OK);
    assert_int_equal(rpc_server_open_calls(fixture.server), 1);
    expect_data(&fixture, &peer, 1, 0, 300);
    expect_end(&fixture, &peer, 1, STATUS_OK);
    stop_pair(&fixture, &peer);
}

/* ============================== calls that do not ============================================= */

static void a_slow_reader_harms_nobody_else(void **state) {
    (void)state;
    static const struct {
        uint32_t count;
        size_t size;
    } too_much[] = {{RPC_QUEUE_MESSAGES_MAX + 1, 1}, {5, 1u << 20}};
    for (int i = 0; i < 2; i++) {
        struct fixture fixture;
        struct net_peer slow, good;
        start_pair(&fixture, &slow, (struct setting){0});
        net_peer_init(&good, fixture.dir.endpoint, "good");
        struct pool_id other = begin_call(&fixture, &good, 1, 8, 0);
        struct pool_id same_client = begin_call(&fixture, &slow, 2, 8, 0);
        struct pool_id call = begin_call(&fixture, &slow, 1, 1, 0);
        send_some(&fixture, call, 1, 1);
        send_some(&fixture, call, too_much[i].count, too_much[i].size);
        send_some(&fixture, call, 3, 1); /* goes nowhere */
        send_some(&fixture, other, 2, 1);
        send_some(&fixture, same_client, 2, 1);
        expect_data(&fixture, &good, 1, 0, 2);
        wait_cancels(&fixture, 1);
        assert_int_equal(fixture.cancelled[2], STATUS_RESOURCE_EXHAUSTED);
        expect_data(&fixture, &slow, 1, 0, 1);
        expect_data(&fixture, &slow, 2, 0, 2);
        end(&fixture, call, STATUS_OK);
        expect_end(&fixture, &slow, 1, STATUS_RESOURCE_EXHAUSTED);
        end(&fixture, same_client, STATUS_OK);
        expect_end(&fixture, &slow, 2, STATUS_OK);
        end(&fixture, other, STATUS_OK);
        expect_end(&fixture, &good, 1, STATUS_OK);
        assert_int_equal(fixture.cancel_count, 1);
        net_peer_deinit(&good);
        stop_pair(&fixture, &slow);
    }
}

static void a_call_is_cancelled_in_every_state(void **state) {
    (void)state;
    struct fixture fixture;
    struct net_peer peer;
    start_pair(&fixture, &peer, (struct setting){0});

    struct pool_id call = begin_call(&fixture, &peer, 1, 1, 0); /* at work, with a queue */
    send_some(&fixture, call, 3, 1);
    expect_data(&fixture, &peer, 1, 0, 1);
    send_kind(&peer, FRAME_CANCEL, 1, 0);
    send_kind(&peer, FRAME_CANCEL, 1, 0);
    send_kind(&peer, FRAME_WINDOW, 1, 9); /* what waited is not sent any more */
    expect_silence(&fixture, &peer);
    assert_int_equal(fixture.cancelled[0], STATUS_CANCELLED);
    assert_int_equal(fixture.cancels[0], 1);
    send_some(&fixture, call, 3, 1);
    expect_silence(&fixture, &peer);
    rpc_end(fixture.server, call, STATUS_OK, "", bytes_of_text("summary"));
    struct frame frame = next_frame(&fixture, &peer);
    assert_int_equal(frame.kind, FRAME_END);
    assert_int_equal(frame.status, STATUS_CANCELLED);
    assert_string_equal(frame.body, "summary");

    call = begin_call(&fixture, &peer, 2, 1, 0); /* ended, its queue waiting for credit */
    send_some(&fixture, call, 3, 1);
    end(&fixture, call, STATUS_OK);
    expect_data(&fixture, &peer, 2, 0, 1);
    send_kind(&peer, FRAME_CANCEL, 2, 0);
    expect_end(&fixture, &peer, 2, STATUS_CANCELLED);

    call = begin_call(&fixture, &peer, 3, 1, 0); /* its owner has no words for it */
    send_kind(&peer, FRAME_CANCEL, 3, 0);
    wait_cancels(&fixture, 2);
    rpc_end(fixture.server, call, STATUS_CANCELLED, "", (struct bytes){0});
    assert_string_equal(next_frame(&fixture, &peer).text, "cancelled by the client");

    send_kind(&peer, FRAME_CANCEL, 2, 0);  /* over */
    send_kind(&peer, FRAME_CANCEL, 99, 0); /* never was */
    expect_silence(&fixture, &peer);
    assert_int_equal(fixture.cancel_count, 2);
    stop_pair(&fixture, &peer);
}

static void an_owner_may_end_before_it_is_told(void **state) {
    (void)state;
    struct fixture fixture;
    struct net_peer peer;
    start_pair(&fixture, &peer, (struct setting){0});
    struct pool_id call = begin_call(&fixture, &peer, 1, 1, 0);
    send_some(&fixture, call, 6, 1u << 20);
    end(&fixture, call, STATUS_OK);
    expect_data(&fixture, &peer, 1, 0, 1);
    expect_end(&fixture, &peer, 1, STATUS_RESOURCE_EXHAUSTED);
    expect_silence(&fixture, &peer);
    assert_int_equal(fixture.cancel_count, 0);
    stop_pair(&fixture, &peer);
}

static void deadlines_end_calls(void **state) {
    (void)state;
    struct fixture fixture;
    struct net_peer peer;
    start_pair(&fixture, &peer, (struct setting){0});
    struct pool_id patient = begin_call(&fixture, &peer, 1, 1, 3600 * 1000);
    struct pool_id hasty = begin_call(&fixture, &peer, 2, 1, 30);
    wait_cancels(&fixture, 1);
    assert_int_equal(fixture.cancelled[0], STATUS_OK);
    assert_int_equal(fixture.cancelled[1], STATUS_DEADLINE_EXCEEDED);
    end(&fixture, hasty, STATUS_CANCELLED);
    expect_end(&fixture, &peer, 2, STATUS_DEADLINE_EXCEEDED);

    struct pool_id waiting = begin_call(&fixture, &peer, 3, 1, 30); /* ended, without credit */
    send_some(&fixture, waiting, 2, 1);
    end(&fixture, waiting, STATUS_OK);
    expect_data(&fixture, &peer, 3, 0, 1);
    expect_end(&fixture, &peer, 3, STATUS_DEADLINE_EXCEEDED);
    end(&fixture, patient, STATUS_OK);
    expect_end(&fixture, &peer, 1, STATUS_OK);
    assert_int_equal(fixture.cancel_count, 1);
    stop_pair(&fixture, &peer);
}

struct pinging {
    struct fixture *fixture;
    struct net_peer *peer;
};

static bool ping_until_cancelled(void *user) {
    struct pinging *pinging = user;
    struct net_message message;
    send_kind(pinging->peer, FRAME_PING, 0, 0);
    while (net_peer_try_receive(pinging->peer, &message))
        assert_int_equal(read_frame(&message).kind, FRAME_PONG);
    return pinging->fixture->cancel_count > 0;
}

static void a_silent_client_loses_its_calls(void **state) {
    (void)state;
    struct fixture fixture;
    struct net_peer silent, alive;
    start_pair(&fixture, &silent, (struct setting){.client_expiry_ms = 1000});
    net_peer_init(&alive, fixture.dir.endpoint, "alive");
    struct pool_id kept = begin_call(&fixture, &alive, 1, 1, 0);
    struct pool_id lost = begin_call(&fixture, &silent, 1, 1, 0);
    struct pool_id ended = begin_call(&fixture, &silent, 2, 1, 0);
    send_some(&fixture, ended, 2, 1);
    end(&fixture, ended, STATUS_OK);
    assert_int_equal(rpc_server_open_calls(fixture.server), 3);

    struct pinging pinging = {&fixture, &alive};
    assert_true(net_run_until(&fixture.loop, ping_until_cancelled, &pinging));
    assert_int_equal(fixture.cancel_count, 1);
    assert_int_equal(fixture.cancelled[1], STATUS_CANCELLED);
    assert_int_equal(rpc_server_open_calls(fixture.server), 2); /* what only waited is gone */
    end(&fixture, lost, STATUS_CANCELLED);
    expect_data(&fixture, &silent, 2, 0, 1);
    struct frame why = next_frame(&fixture, &silent); /* it was only silent, not away */
    assert_int_equal(why.kind, FRAME_END);
    assert_int_equal(why.status, STATUS_CANCELLED);
    assert_non_null(strstr(why.text, "nothing was heard of it")); /* whatever the owner said */
    end(&fixture, kept, STATUS_OK);
    for (struct frame frame = next_frame(&fixture, &alive); frame.kind != FRAME_END;
         frame = next_frame(&fixture, &alive))
        assert_int_equal(frame.kind, FRAME_PONG);
    net_peer_deinit(&alive);
    stop_pair(&fixture, &silent);
}

struct victim {
    char endpoint[NET_PATH_MAX + 16];
    struct net_gate hold, gate;
};

static void call_and_wait_to_be_killed(void *user) {
    struct victim *victim = user;
    struct net_peer peer;
    struct net_message message;
    net_peer_init(&peer, victim->endpoint, "victim");
    send_call(&peer, 1, "Count", 1u << 20, 0);
    send_call(&peer, 2, "Count", 1, 0);
    if (net_peer_receive(&peer, NULL, &message)) net_gate_open(&victim->gate, 'r');
    pause();
}

static bool send_until_cancelled(void *user) {
    struct fixture *fixture = user;
    if (fixture->cancels[0] == 0) send_some(fixture, fixture->call[0], 1, 1);
    return fixture->cancel_count == 2;
}

/* kill -9: found by the next message to it, or by its silence; here the first. */
static void a_killed_client_loses_its_calls(void **state) {
    (void)state;
    struct fixture fixture;
    struct victim *victim = net_shared_create(sizeof *victim);
    net_gate_init(&victim->hold);
    net_gate_init(&victim->gate);
    pid_t pid = net_fork_held(&victim->hold, call_and_wait_to_be_killed, victim);
    start(&fixture, (struct setting){0});
    snprintf(victim->endpoint, sizeof victim->endpoint, "%s", fixture.dir.endpoint);
    net_gate_open(&victim->hold, 'g');
    wait_calls(&fixture, 2);
    send_some(&fixture, fixture.call[0], 1, 1);
    net_gate_wait(&victim->gate);
    net_kill(pid, SIGKILL);
    assert_true(net_run_until(&fixture.loop, send_until_cancelled, &fixture));
    assert_int_equal(fixture.cancelled[0], STATUS_CANCELLED);
    assert_int_equal(fixture.cancelled[1], STATUS_CANCELLED);
    end(&fixture, fixture.call[0], STATUS_CANCELLED);
    end(&fixture, fixture.call[1], STATUS_CANCELLED);
    assert_int_equal(rpc_server_open_calls(fixture.server), 0);
    net_gate_deinit(&victim->gate);
    net_gate_deinit(&victim->hold);
    net_shared_destroy(victim, sizeof *victim);
    stop(&fixture);
}

/* ============================== refusals ====================================================== */

static void calls_that_make_no_sense_are_refused(void **state) {
    (void)state;
    struct fixture fixture;
    struct net_peer peer;
    start_pair(&fixture, &peer, (struct setting){0});
    struct pool_id call = begin_call(&fixture, &peer, 1, 8, 0);

    send_call(&peer, 2, "Nonsense", 0, 0);
    struct frame frame = next_frame(&fixture, &peer);
    assert_int_equal(frame.status, STATUS_UNIMPLEMENTED);
    assert_non_null(strstr(frame.text, "Nonsense"));
    send_call(&peer, 0, "Count", 0, 0);
    expect_end(&fixture, &peer, 0, STATUS_INVALID_ARGUMENT);
    send_call(&peer, 3, "", 0, 0); /* a header the codec refuses, of a call it can name */
    expect_end(&fixture, &peer, 3, STATUS_INVALID_ARGUMENT);
    const struct header newer = {
        .version = WIRE_VERSION + 1, .kind = FRAME_CALL, .call_id = 4, .method = "Count"};
    send_header(&peer, &newer, (struct bytes){0});
    expect_end(&fixture, &peer, 4, STATUS_FAILED_PRECONDITION);

    send_call(&peer, 1, "Count", 0, 0); /* open already: this one is refused, that one goes on */
    expect_end(&fixture, &peer, 1, STATUS_ALREADY_EXISTS);
    send_some(&fixture, call, 1, 1);
    expect_data(&fixture, &peer, 1, 0, 1);
    end(&fixture, call, STATUS_OK);
    expect_end(&fixture, &peer, 1, STATUS_OK);
    assert_int_equal(fixture.call_count, 1);
    stop_pair(&fixture, &peer);
}

static void other_nonsense_is_dropped_and_counted(void **state) {
    (void)state;
    struct fixture fixture;
    struct net_peer peer;
    start_pair(&fixture, &peer, (struct setting){0});
    struct pool_id call = begin_call(&fixture, &peer, 1, 8, 0);
    struct rpc_counters counters;

    static const char *const garbage[] = {"\xff\xff\xff", "body", ""};
    assert_true(net_peer_send_text(&peer, garbage, 3));
    assert_true(net_peer_send_text(&peer, garbage, 2));
    static const enum frame_kind servers[] = {FRAME_DATA, FRAME_END, FRAME_PONG, FRAME_DRAIN,
                                              FRAME_NOTE};
    for (int i = 0; i < 5; i++)
        send_kind(&peer, servers[i], 1, 0);
    send_call(&peer, 1, "", 0, 0); /* of a call that is open: an END would end the wrong one */
    expect_silence(&fixture, &peer);
    rpc_server_count(fixture.server, &counters);
    assert_int_equal(counters.dropped_messages, 8);
    assert_int_equal(counters.accepted, 1);
    assert_int_equal(counters.refused, 0);
    assert_int_equal(counters.missed_edges, 0);
    end(&fixture, call, STATUS_OK);
    expect_end(&fixture, &peer, 1, STATUS_OK);
    stop_pair(&fixture, &peer);
}

static void an_attachment_is_refused(void **state) {
    (void)state;
    struct fixture fixture;
    struct net_peer peer;
    start_pair(&fixture, &peer, (struct setting){0});
    struct arena arena;
    arena_init(&arena, codec_arena_budget(FRAME_HEADER_BYTES_MAX));
    const struct header header = {
        .version = WIRE_VERSION, .kind = FRAME_CALL, .call_id = 5, .method = "Count"};
    struct bytes head = codec_encode_header(&header, &arena);
    const void *const data[] = {head.data, "b", "attachment"};
    const size_t size[] = {head.size, 1, 10};
    assert_true(net_peer_send(&peer, data, size, 3));
    expect_end(&fixture, &peer, 5, STATUS_INVALID_ARGUMENT);
    arena_deinit(&arena);
    stop_pair(&fixture, &peer);
}

static void open_calls_are_limited(void **state) {
    (void)state;
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct net_peer peer[6];
    char name[] = "peer0";
    start(fixture, (struct setting){.queue_messages = 3000});
    for (uint32_t p = 0; p < 6; p++) {
        name[4] = (char)('0' + p);
        net_peer_init(&peer[p], fixture->dir.endpoint, name);
    }
    for (uint32_t p = 0; p < 4; p++) {
        for (uint32_t i = 0; i < RPC_CALLS_PER_CLIENT_MAX; i++) {
            send_call(&peer[p], 1 + i, "Count", 1, 0);
            if (i % 256 == 255) wait_calls(fixture, p * RPC_CALLS_PER_CLIENT_MAX + i + 1);
        }
        send_call(&peer[p], 5000, "Count", 1, 0);
        expect_end(fixture, &peer[p], 5000, STATUS_RESOURCE_EXHAUSTED);
    }
    send_call(&peer[4], 1, "Count", 1, 0);
    expect_end(fixture, &peer[4], 1, STATUS_RESOURCE_EXHAUSTED);
    end(fixture, fixture->call[0], STATUS_OK);
    expect_end(fixture, &peer[0], 1, STATUS_OK);
    fixture->call_count = 0;
    struct pool_id call = begin_call(fixture, &peer[5], 1, 1, 0);
    end(fixture, call, STATUS_OK);
    expect_end(fixture, &peer[5], 1, STATUS_OK);
    stop(fixture); /* with some four thousand calls open */
    for (uint32_t p = 0; p < 6; p++)
        net_peer_deinit(&peer[p]);
    free(fixture);
}

static void draining_refuses_and_says_from_where(void **state) {
    (void)state;
    struct fixture fixture;
    struct net_peer peer, other;
    start_pair(&fixture, &peer, (struct setting){0});
    net_peer_init(&other, fixture.dir.endpoint, "other");
    struct pool_id call = begin_call(&fixture, &peer, 41, 1, 0);
    rpc_server_drain(fixture.server);
    rpc_server_drain(fixture.server);
    struct frame frame = next_frame(&fixture, &peer);
    assert_int_equal(frame.kind, FRAME_DRAIN);
    assert_int_equal(frame.call_id, 41);
    expect_silence(&fixture, &peer);
    send_call(&peer, 42, "Count", 1, 0);
    frame = next_frame(&fixture, &peer);
    assert_int_equal(frame.kind, FRAME_DRAIN);
    assert_int_equal(frame.call_id, 41);
    expect_end(&fixture, &peer, 42, STATUS_UNAVAILABLE);
    send_call(&other, 7, "Count", 1, 0);
    frame = next_frame(&fixture, &other);
    assert_int_equal(frame.kind, FRAME_DRAIN);
    assert_int_equal(frame.call_id, 0);
    expect_end(&fixture, &other, 7, STATUS_UNAVAILABLE);
    send_call(&other, 8, "Look", 1, 0); /* who only looks is let in */
    wait_calls(&fixture, 2);
    end(&fixture, fixture.call[1], STATUS_OK);
    expect_end(&fixture, &other, 8, STATUS_OK);
    end(&fixture, call, STATUS_OK); /* what was accepted is finished */
    expect_end(&fixture, &peer, 41, STATUS_OK);
    net_peer_deinit(&other);
    stop_pair(&fixture, &peer);
}

/* More refusals than ZeroMQ's queue to the peer holds: each still gets its END. */
static void no_refusal_is_lost(void **state) {
    (void)state;
    struct fixture fixture;
    struct net_peer peer;
    bool ended[501] = {false};
    start_pair(&fixture, &peer, (struct setting){.queue_messages = 1});
    int unlimited = 0;
    assert_int_equal(zmq_setsockopt(peer.socket, ZMQ_SNDHWM, &unlimited, sizeof unlimited), 0);
    assert_int_equal(zmq_connect(peer.socket, fixture.dir.endpoint), 0);
    for (uint64_t id = 1; id <= 500; id++)
        send_call(&peer, id, "Nonsense", 0, 0);
    for (uint64_t id = 1; id <= 500; id++) {
        struct frame frame = next_frame(&fixture, &peer);
        assert_int_equal(frame.kind, FRAME_END);
        assert_int_equal(frame.status, STATUS_UNIMPLEMENTED);
        assert_false(ended[frame.call_id]);
        ended[frame.call_id] = true;
    }
    stop_pair(&fixture, &peer);
}

static void closing_ends_every_call(void **state) {
    (void)state;
    struct fixture fixture;
    struct net_peer peer;
    start_pair(&fixture, &peer, (struct setting){0});
    begin_call(&fixture, &peer, 1, 1, 0);
    struct pool_id waiting = begin_call(&fixture, &peer, 2, 1, 0);
    send_some(&fixture, waiting, 2, 1);
    end(&fixture, waiting, STATUS_OK);
    expect_data(&fixture, &peer, 2, 0, 1);
    begin_call(&fixture, &peer, 3, 1, 0);
    send_kind(&peer, FRAME_CANCEL, 3, 0);
    wait_cancels(&fixture, 1);
    rpc_server_close(&fixture.server, note_closed, &fixture.closed);
    assert_null(fixture.server);
    net_finish(&fixture.loop);
    assert_true(fixture.closed);
    enum status status[4] = {0};
    for (int i = 0; i < 3; i++) {
        struct net_message message;
        assert_true(net_peer_receive(&peer, NULL, &message));
        struct frame frame = read_frame(&message);
        assert_int_equal(frame.kind, FRAME_END);
        status[frame.call_id] = frame.status;
    }
    assert_int_equal(status[1], STATUS_UNAVAILABLE);
    assert_int_equal(status[2], STATUS_UNAVAILABLE);
    assert_int_equal(status[3], STATUS_CANCELLED);
    assert_int_equal(fixture.cancel_count, 1);
    zmq_ctx_term(fixture.context);
    net_peer_deinit(&peer);
    net_dir_deinit(&fixture.dir);
}

/* ============================== the property ================================================== */

/* Random clients and a random owner. At the end: each CALL has one END, DATA is dense and never
 * follows it, never outruns the credits, and END(OK) comes after all that the owner sent. */
struct caller {
    struct net_peer peer;
    uint64_t last_id;
    uint32_t ends[PROPERTY_CALLS];
    uint64_t seq[PROPERTY_CALLS], credits[PROPERTY_CALLS];
    enum status status[PROPERTY_CALLS];
};

struct play {
    struct fixture fixture;
    struct caller caller[PROPERTY_PEERS];
    uint64_t random;
    uint32_t owned_caller[OWNED_MAX]; /* which caller an owned call is of: told by its body */
    uint64_t sent[OWNED_MAX];
    bool done[OWNED_MAX];
};

static uint32_t draw(struct play *play, uint32_t below) {
    play->random = hash_mix(play->random + 1);
    return (uint32_t)((play->random >> 32) % below);
}

static void caller_reads(struct caller *caller) {
    struct net_message message;
    while (net_peer_try_receive(&caller->peer, &message)) {
        struct frame frame = read_frame(&message);
        uint64_t id = frame.call_id;
        if (frame.kind == FRAME_PONG || frame.kind == FRAME_DRAIN) continue;
        assert_true(id >= 1 && id <= caller->last_id);
        assert_int_equal(caller->ends[id], 0);
        if (frame.kind == FRAME_END) {
            caller->ends[id]++;
            caller->status[id] = frame.status;
            continue;
        }
        assert_int_equal(frame.kind, FRAME_DATA);
        assert_int_equal(frame.seq, caller->seq[id]);
        assert_true(caller->seq[id] < caller->credits[id]);
        caller->seq[id]++;
    }
}

static void caller_acts(struct play *play, uint32_t who) {
    struct caller *caller = &play->caller[who];
    uint64_t id = caller->last_id == 0 ? 0 : 1 + draw(play, (uint32_t)caller->last_id);
    uint32_t choice = draw(play, 10);
    if (choice < 3 && caller->last_id + 1 < PROPERTY_CALLS) {
        id = ++caller->last_id;
        caller->credits[id] = 1 + draw(play, 6);
        uint32_t deadline_ms = draw(play, 4) == 0 ? 1 + draw(play, 30) : 0;
        const struct header header = {.version = WIRE_VERSION,
                                      .kind = FRAME_CALL,
                                      .call_id = id,
                                      .method = draw(play, 10) == 0 ? "Nonsense" : "Count",
                                      .credits = (uint32_t)caller->credits[id],
                                      .deadline_ms = deadline_ms};
        char name[] = {(char)('0' + who), '\0'};
        send_header(&caller->peer, &header, bytes_of_text(name));
    } else if (choice < 6 && id != 0) {
        uint32_t more = 1 + draw(play, 5);
        caller->credits[id] += more;
        send_kind(&caller->peer, FRAME_WINDOW, id, more);
    } else if (choice == 6 && id != 0) {
        send_kind(&caller->peer, FRAME_CANCEL, id, 0);
    } else if (choice == 7) {
        send_kind(&caller->peer, FRAME_PING, 0, 0);
    } else {
        caller_reads(caller);
    }
}

static void owner_ends(struct play *play, uint32_t i) {
    static const enum status outcome[] = {STATUS_OK, STATUS_OK, STATUS_INTERNAL};
    play->done[i] = true;
    end(&play->fixture, play->fixture.call[i], outcome[draw(play, 3)]);
}

static void owner_acts(struct play *play) {
    if (play->fixture.call_count == 0) return;
    uint32_t i = draw(play, play->fixture.call_count);
    if (play->done[i]) return;
    if (draw(play, 4) == 0) {
        owner_ends(play, i);
    } else {
        uint32_t count = draw(play, 5);
        play->sent[i] += count;
        send_some(&play->fixture, play->fixture.call[i], count, 1 + draw(play, 100));
    }
}

static void own_and_note(void *user, struct pool_id call, const struct header *header,
                         struct bytes body) {
    struct play *play = user;
    own_call(&play->fixture, call, header, body);
    uint32_t i = play->fixture.call_count - 1;
    play->owned_caller[i] = (uint32_t)(play->fixture.body[0] - '0');
    if (draw(play, 8) == 0) owner_ends(play, i);
}

static void own_cancel_and_perhaps_end(void *user, struct pool_id call, enum status reason) {
    struct play *play = user;
    own_cancel(&play->fixture, call, reason);
    if (draw(play, 2) == 0) return;
    for (uint32_t i = 0; i < play->fixture.call_count; i++) {
        if (pool_id_equal(play->fixture.call[i], call) && !play->done[i]) owner_ends(play, i);
    }
}

/* Calls may arrive for as long as the machine likes: whatever is open is ended as it comes. */
static bool every_call_has_its_end(void *user) {
    struct play *play = user;
    for (uint32_t i = 0; i < play->fixture.call_count; i++)
        if (!play->done[i]) owner_ends(play, i);
    bool all = true;
    for (uint32_t who = 0; who < PROPERTY_PEERS; who++) {
        struct caller *caller = &play->caller[who];
        caller_reads(caller);
        for (uint64_t id = 1; id <= caller->last_id; id++)
            all = all && caller->ends[id] == 1;
    }
    return all;
}

static void play_start(struct play *play, uint64_t seed) {
    memset(play, 0, sizeof *play);
    play->random = seed;
    struct fixture *fixture = &play->fixture;
    struct error err = {0};
    net_dir_init(&fixture->dir);
    assert_int_equal(uv_loop_init(&fixture->loop), 0);
    fixture->context = zmq_ctx_new();
    const struct chan_options options = {.role = CHAN_SERVER,
                                         .endpoint = fixture->dir.endpoint,
                                         .frame_bytes_max = 1u << 20,
                                         .queue_messages = 1 + (int)draw(play, 8)};
    const struct rpc_handlers handlers = {.on_call = own_and_note,
                                          .on_cancel = own_cancel_and_perhaps_end,
                                          .user = play,
                                          .methods = METHODS};
    if (rpc_server_open(&fixture->loop, fixture->context, &options, &handlers, &fixture->server,
                        &err) != STATUS_OK)
        fail_msg("%s", err.text);
    for (uint32_t who = 0; who < PROPERTY_PEERS; who++) {
        char name[] = {'p', (char)('0' + who), '\0'};
        net_peer_init(&play->caller[who].peer, fixture->dir.endpoint, name);
    }
}

static void play_settle(struct play *play) {
    struct fixture *fixture = &play->fixture;
    for (uint32_t who = 0; who < PROPERTY_PEERS; who++) {
        struct caller *caller = &play->caller[who];
        for (uint64_t id = 1; id <= caller->last_id; id++) {
            caller->credits[id] += 1000;
            send_kind(&caller->peer, FRAME_WINDOW, id, 1000);
        }
        send_kind(&caller->peer, FRAME_PING, 0, 0);
    }
    if (!net_run_until(&fixture->loop, every_call_has_its_end, play)) fail_msg("a call has no END");
}

static void each_call_has_exactly_one_end(void **state) {
    (void)state;
    struct play *play = calloc(1, sizeof *play);
    uint64_t statuses[STATUS_COUNT] = {0};
    for (uint64_t seed = 0; seed < PROPERTY_SEEDS; seed++) {
        play_start(play, seed);
        struct fixture *fixture = &play->fixture;
        for (uint32_t step = 0; step < PROPERTY_STEPS; step++) {
            caller_acts(play, draw(play, PROPERTY_PEERS));
            owner_acts(play);
            if (draw(play, 4) == 0) uv_run(&fixture->loop, UV_RUN_NOWAIT);
        }
        play_settle(play);
        assert_int_equal(rpc_server_open_calls(fixture->server), 0);
        for (uint32_t i = 0; i < fixture->call_count; i++) {
            const struct caller *caller = &play->caller[play->owned_caller[i]];
            uint64_t id = fixture->call_id[i];
            assert_true(fixture->cancels[i] <= 1);
            if (caller->status[id] == STATUS_OK) assert_int_equal(caller->seq[id], play->sent[i]);
            statuses[caller->status[id]]++;
        }
        for (uint32_t who = 0; who < PROPERTY_PEERS; who++)
            net_peer_deinit(&play->caller[who].peer);
        stop(fixture);
    }
    assert_true(statuses[STATUS_OK] > 0 && statuses[STATUS_CANCELLED] > 0);
    assert_true(statuses[STATUS_INTERNAL] > 0 && statuses[STATUS_DEADLINE_EXCEEDED] > 0);
    free(play);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_may_be_ended_inside_on_call),
        cmocka_unit_test(credits_are_respected_exactly),
        cmocka_unit_test(no_credits_named_means_the_default),
        cmocka_unit_test(a_full_socket_only_delays),
        cmocka_unit_test(a_slow_reader_harms_nobody_else),
        cmocka_unit_test(a_call_is_cancelled_in_every_state),
        cmocka_unit_test(an_owner_may_end_before_it_is_told),
        cmocka_unit_test(deadlines_end_calls),
        cmocka_unit_test(a_silent_client_loses_its_calls),
        cmocka_unit_test(a_killed_client_loses_its_calls),
        cmocka_unit_test(calls_that_make_no_sense_are_refused),
        cmocka_unit_test(other_nonsense_is_dropped_and_counted),
        cmocka_unit_test(an_attachment_is_refused),
        cmocka_unit_test(open_calls_are_limited),
        cmocka_unit_test(draining_refuses_and_says_from_where),
        cmocka_unit_test(no_refusal_is_lost),
        cmocka_unit_test(closing_ends_every_call),
        cmocka_unit_test(each_call_has_exactly_one_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
