/* The client library against real servers in processes of their own, and against liars. */
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
#include "client.h"
#include "codec.h"
#include "net_support.h"
#include "rpc.h"

#define SILENCE_MS 1000u /* for clients that are to give up; others are patient */

/* ============================== an honest server ============================================== */

/* What Generate does is said by its prompt:
 *     count N     N deltas and a summary          forever   deltas until it is cancelled
 *     refuse      RESOURCE_EXHAUSTED at once      hang      nothing, until it is cancelled
 *     die, stop   three deltas, then SIGKILL or SIGSTOP to itself
 *     leave N     as count, and the process closes and ends at once
 *     deaf        nothing, even when it is cancelled */
struct server {
    const char *endpoint;
    struct net_gate ready;
    uv_loop_t loop;
    void *context;
    struct rpc_server *rpc;
    struct arena arena;
    uv_timer_t timer; /* of the forever call */
    struct pool_id endless;
    uint32_t sent;
    bool deaf;
};

static void send_delta(struct server *server, struct pool_id call, uint32_t token) {
    struct generate_delta delta = {.text = bytes_of_text("x"), .token = &token, .token_count = 1};
    arena_reset(&server->arena);
    rpc_send(server->rpc, call, codec_encode_generate_delta(&delta, &server->arena));
}

static void end_with_summary(struct server *server, struct pool_id call, enum status status,
                             uint32_t tokens) {
    struct generate_summary summary = {.finish_reason = FINISH_STOP, .completion_tokens = tokens};
    arena_reset(&server->arena);
    rpc_end(server->rpc, call, status, "said the server",
            codec_encode_generate_summary(&summary, &server->arena));
}

static void send_one_more(uv_timer_t *timer) {
    struct server *server = timer->data;
    send_delta(server, server->endless, server->sent++);
}

static void do_generate(struct server *server, struct pool_id call, const char *what) {
    unsigned count = 0;
    bool leave = sscanf(what, "leave %u", &count) == 1;
    if (sscanf(what, "count %u", &count) == 1 || leave) {
        for (uint32_t i = 0; i < count; i++)
            send_delta(server, call, i);
        end_with_summary(server, call, STATUS_OK, count);
        if (leave) {
            rpc_server_close(&server->rpc, NULL, NULL);
            uv_close((uv_handle_t *)&server->timer, NULL);
        }
    } else if (strcmp(what, "refuse") == 0) {
        rpc_end(server->rpc, call, STATUS_RESOURCE_EXHAUSTED, "the queue is full",
                (struct bytes){0});
    } else if (strcmp(what, "forever") == 0) {
        server->endless = call;
        uv_timer_start(&server->timer, send_one_more, 1, 1);
    } else if (strcmp(what, "die") == 0 || strcmp(what, "stop") == 0) {
        for (uint32_t i = 0; i < 3; i++)
            send_delta(server, call, i);
        usleep(100000); /* ZeroMQ's thread sends them */
        raise(strcmp(what, "die") == 0 ? SIGKILL : SIGSTOP);
    } else {
        server->deaf = strcmp(what, "deaf") == 0;
    }
}

static void do_watch(struct server *server, struct pool_id call, struct bytes body) {
    struct watch_request request;
    struct error err = {0};
    arena_reset(&server->arena);
    assert_int_equal(codec_decode_watch_request(body, &server->arena, &request, &err), STATUS_OK);
    for (uint32_t i = 0; i < (request.interval_ms == 0 ? 1u : 5u); i++) {
        struct snapshot snapshot = {
            .model = "m", .reason = "", .tp = 1, .page_tok = 1, .steps = i + 1};
        rpc_send(server->rpc, call, codec_encode_snapshot(&snapshot, &server->arena));
    }
    rpc_end(server->rpc, call, STATUS_OK, "", (struct bytes){0});
}

static void do_health(struct server *server, struct pool_id call, struct bytes body, bool watch) {
    struct health_request request;
    struct error err = {0};
    arena_reset(&server->arena);
    assert_int_equal(codec_decode_health_request(body, &server->arena, &request, &err), STATUS_OK);
    struct health_reply reply = {.health = HEALTH_SERVING, .reason = "fine"};
    if (strcmp(request.service, "nobody") == 0) {
        rpc_end(server->rpc, call, STATUS_NOT_FOUND, "no such service", (struct bytes){0});
        return;
    }
    struct bytes wire = codec_encode_health_reply(&reply, &server->arena);
    if (watch) rpc_send(server->rpc, call, wire);
    rpc_end(server->rpc, call, STATUS_OK, "", wire);
}

static void do_resize(struct server *server, struct pool_id call, struct bytes body) {
    struct resize_request request;
    struct error err = {0};
    arena_reset(&server->arena);
    assert_int_equal(codec_decode_resize_request(body, &server->arena, &request, &err), STATUS_OK);
    struct resize_progress progress = {.pages_wanted = request.tokens, .phase = RESIZE_CHANGING};
    rpc_send(server->rpc, call, codec_encode_resize_progress(&progress, &server->arena));
    rpc_end(server->rpc, call, request.force ? STATUS_OK : STATUS_ABORTED, "as asked",
            (struct bytes){0});
}

static void do_examine(struct server *server, struct pool_id call, struct bytes body) {
    struct examine_request request;
    struct error err = {0};
    arena_reset(&server->arena);
    assert_int_equal(codec_decode_examine_request(body, &server->arena, &request, &err), STATUS_OK);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct examine_report report = {
            .rank = rank, .device = "", .page_count = request.token_count, .pages_per_hash = 1};
        rpc_send(server->rpc, call, codec_encode_examine_report(&report, &server->arena));
    }
    rpc_end(server->rpc, call, STATUS_OK, "", (struct bytes){0});
}

static void serve_call(void *user, struct pool_id call, const struct header *header,
                       struct bytes body) {
    struct server *server = user;
    if (strcmp(header->method, METHOD_GENERATE) == 0) {
        struct generate_request request;
        struct error err = {0};
        char what[64];
        arena_reset(&server->arena);
        enum status status = codec_decode_generate_request(body, &server->arena, &request, &err);
        if (status != STATUS_OK) {
            rpc_end(server->rpc, call, status, err.text, (struct bytes){0});
            return;
        }
        snprintf(what, sizeof what, "%.*s", (int)request.prompt_text.size,
                 (const char *)request.prompt_text.data);
        do_generate(server, call, what);
    } else if (strcmp(header->method, METHOD_WATCH) == 0) {
        do_watch(server, call, body);
    } else if (strcmp(header->method, METHOD_FLUSH) == 0) {
        struct flush_request request;
        struct error err = {0};
        arena_reset(&server->arena);
        enum status status = codec_decode_flush_request(body, &server->arena, &request, &err);
        bool right = status == STATUS_OK && request.token_count == 2 && request.token[1] == 9;
        rpc_end(server->rpc, call, right ? STATUS_OK : STATUS_INTERNAL, "", (struct bytes){0});
    } else if (strcmp(header->method, METHOD_RESIZE) == 0) {
        do_resize(server, call, body);
    } else if (strcmp(header->method, METHOD_EXAMINE) == 0) {
        do_examine(server, call, body);
    } else if (strcmp(header->method, METHOD_DRAIN) == 0) {
        rpc_end(server->rpc, call, STATUS_OK, "drained", (struct bytes){0});
    } else {
        do_health(server, call, body, strcmp(header->method, METHOD_HEALTH_WATCH) == 0);
    }
}

static void serve_cancel(void *user, struct pool_id call, enum status reason) {
    struct server *server = user;
    if (server->deaf) return;
    uv_timer_stop(&server->timer);
    end_with_summary(server, call, reason, server->sent);
}

static void serve(void *user) {
    struct server *server = user;
    struct error err = {0};
    arena_init(&server->arena, codec_arena_budget(1u << 16));
    assert_int_equal(uv_loop_init(&server->loop), 0);
    server->context = zmq_ctx_new();
    uv_timer_init(&server->loop, &server->timer);
    server->timer.data = server;
    const struct chan_options options = {.role = CHAN_SERVER,
                                         .endpoint = server->endpoint,
                                         .frame_bytes_max = FRAME_BODY_BYTES_MAX,
                                         .queue_messages = 256};
    const struct rpc_handlers handlers = {
        .on_call = serve_call, .on_cancel = serve_cancel, .user = server};
    if (rpc_server_open(&server->loop, server->context, &options, &handlers, &server->rpc, &err) !=
        STATUS_OK)
        fail_msg("%s", err.text);
    net_gate_open(&server->ready, 'r');
    uv_run(&server->loop, UV_RUN_DEFAULT);
    zmq_ctx_term(server->context);
}

/* ============================== fixture ======================================================= */

struct fixture {
    struct net_dir dir;
    struct server server; /* lives in the child */
    pid_t pid;
    struct client *client;
    uint32_t deltas, stop_after;
    uint32_t slow_us;
    bool slow_once; /* at the first delta only */
    uint64_t steps;
    char reason[32];
};

/* A server in a process that exists and waits to be let go. */
struct held_server {
    struct net_gate hold;
    pid_t pid;
};

static void hold_server(struct fixture *fixture, struct held_server *held) {
    net_gate_init(&held->hold);
    fixture->server.endpoint = fixture->dir.endpoint;
    held->pid = net_fork_held(&held->hold, serve, &fixture->server);
}

static void let_go(struct fixture *fixture, struct held_server *held) {
    net_gate_open(&held->hold, 'g');
    net_gate_wait(&fixture->server.ready);
    net_gate_deinit(&held->hold);
    fixture->pid = held->pid;
}

static void start_client(struct fixture *fixture, struct client_options options) {
    struct error err = {0};
    options.endpoint = fixture->dir.endpoint;
    if (options.silence_ms == 0) options.silence_ms = NET_WAIT_MS;
    if (client_open(&options, &fixture->client, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void start(struct fixture *fixture, struct client_options options) {
    memset(fixture, 0, sizeof *fixture);
    struct held_server held;
    net_dir_init(&fixture->dir);
    net_gate_init(&fixture->server.ready);
    hold_server(fixture, &held);
    let_go(fixture, &held);
    net_gate_deinit(&fixture->server.ready);
    start_client(fixture, options);
}

static void stop(struct fixture *fixture) {
    client_close(&fixture->client);
    assert_null(fixture->client);
    if (fixture->pid != 0) net_kill(fixture->pid, SIGKILL);
    net_dir_deinit(&fixture->dir);
}

static bool take_delta(void *user, const struct generate_delta *delta) {
    struct fixture *fixture = user;
    assert_int_equal(delta->token_count, 1);
    assert_int_equal(delta->token[0], fixture->deltas);
    fixture->deltas++;
    if (fixture->slow_us > 0) usleep(fixture->slow_us);
    if (fixture->slow_once) fixture->slow_us = 0;
    return fixture->stop_after == 0 || fixture->deltas < fixture->stop_after;
}

static enum status generate(struct fixture *fixture, const char *what,
                            struct generate_summary *summary, struct error *err) {
    struct generate_request request = {.prompt_kind = PROMPT_TEXT,
                                       .prompt_text = bytes_of_text(what),
                                       .sampling = {.temperature = 0, .top_p = 1}};
    *err = (struct error){0};
    fixture->deltas = 0;
    return client_generate(fixture->client, &request, take_delta, fixture, summary, err);
}

static void expect(struct fixture *fixture, const char *what, enum status expected) {
    struct generate_summary summary;
    struct error err;
    enum status status = generate(fixture, what, &summary, &err);
    if (status != expected) fail_msg("%s: %s, \"%s\"", what, status_name(status), err.text);
    if (status == STATUS_OK) return;
    assert_int_equal(err.code, expected);
    assert_true(err.text[0] != '\0');
}

/* ============================== calls that go well ============================================ */

static void streams_of_any_length_arrive_whole(void **state) {
    (void)state;
    static const uint32_t lengths[] = {0, 1, 31, 32, 33, 63, 64, 65, 1000};
    struct fixture fixture;
    start(&fixture, (struct client_options){0});
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        char what[32];
        struct generate_summary summary;
        struct error err;
        snprintf(what, sizeof what, "count %u", lengths[i]);
        assert_int_equal(generate(&fixture, what, &summary, &err), STATUS_OK);
        assert_int_equal(fixture.deltas, lengths[i]);
        assert_int_equal(summary.completion_tokens, lengths[i]);
        assert_int_equal(summary.finish_reason, FINISH_STOP);
    }
    stop(&fixture);
}

static bool take_snapshot(void *user, const struct snapshot *snapshot) {
    struct fixture *fixture = user;
    assert_int_equal(snapshot->steps, fixture->steps + 1);
    fixture->steps++;
    return fixture->stop_after == 0 || fixture->steps < fixture->stop_after;
}

static bool take_health(void *user, const struct health_reply *reply) {
    struct fixture *fixture = user;
    assert_int_equal(reply->health, HEALTH_SERVING);
    snprintf(fixture->reason, sizeof fixture->reason, "%s", reply->reason);
    fixture->steps++;
    return true;
}

static bool take_resize(void *user, const struct resize_progress *progress) {
    struct fixture *fixture = user;
    assert_int_equal(progress->pages_wanted, 77);
    assert_int_equal(progress->phase, RESIZE_CHANGING);
    fixture->steps++;
    return true;
}

static bool take_examined(void *user, const struct examine_report *report) {
    struct fixture *fixture = user;
    assert_int_equal(report->rank, fixture->steps);
    assert_int_equal(report->page_count, 2);
    fixture->steps++;
    return true;
}

static void the_other_methods_answer(void **state) {
    (void)state;
    struct fixture fixture;
    struct error err = {0};
    start(&fixture, (struct client_options){0});
    struct watch_request once = {0}, often = {.interval_ms = 1};
    assert_int_equal(client_watch(fixture.client, &once, take_snapshot, &fixture, &err), STATUS_OK);
    assert_int_equal(fixture.steps, 1);
    fixture.steps = 0;
    assert_int_equal(client_watch(fixture.client, &often, take_snapshot, &fixture, &err),
                     STATUS_OK);
    assert_int_equal(fixture.steps, 5);
    fixture.steps = 0;
    fixture.stop_after = 2;
    assert_int_equal(client_watch(fixture.client, &often, take_snapshot, &fixture, &err),
                     STATUS_CANCELLED);
    assert_int_equal(fixture.steps, 2);

    fixture.steps = 0;
    assert_int_equal(client_health(fixture.client, "", take_health, &fixture, &err), STATUS_OK);
    assert_int_equal(fixture.steps, 1);
    assert_string_equal(fixture.reason, "fine");
    assert_int_equal(client_health(fixture.client, "nobody", take_health, &fixture, &err),
                     STATUS_NOT_FOUND);
    assert_string_equal(err.text, "no such service");
    fixture.steps = 0;
    assert_int_equal(client_health_watch(fixture.client, "", take_health, &fixture, &err),
                     STATUS_OK);
    assert_int_equal(fixture.steps, 2);
    fixture.steps = 0;
    struct resize_request resize = {.tokens = 77, .force = true};
    assert_int_equal(client_resize(fixture.client, &resize, take_resize, &fixture, &err),
                     STATUS_OK);
    assert_int_equal(fixture.steps, 1);
    resize.force = false;
    assert_int_equal(client_resize(fixture.client, &resize, take_resize, &fixture, &err),
                     STATUS_ABORTED);
    assert_string_equal(err.text, "as asked");
    fixture.steps = 0;
    struct examine_request examine = {.token = (const uint32_t[]){8, 9}, .token_count = 2};
    assert_int_equal(client_examine(fixture.client, &examine, take_examined, &fixture, &err),
                     STATUS_OK);
    assert_int_equal(fixture.steps, 2);
    struct flush_request flush = {.token = (const uint32_t[]){8, 9}, .token_count = 2};
    assert_int_equal(client_flush(fixture.client, &flush, &err), STATUS_OK);
    struct drain_request drain = {0};
    assert_int_equal(client_drain(fixture.client, &drain, &err), STATUS_OK);
    stop(&fixture);
}

static void a_slow_callback_loses_nothing(void **state) {
    (void)state;
    struct fixture fixture;
    start(&fixture, (struct client_options){.silence_ms = SILENCE_MS});
    fixture.slow_us = SILENCE_MS * 1200; /* longer than what it calls silence */
    expect(&fixture, "count 2", STATUS_OK);
    assert_int_equal(fixture.deltas, 2);
    stop(&fixture);
}

/* The server closes and ends right behind its trailer: what it sent before still counts, also where
 * the client is slow to read it, and it is more than is read in a turn. */
static void a_trailer_outlives_its_server(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct fixture fixture;
        start(&fixture, (struct client_options){0});
        fixture.slow_us = i % 2 == 0 ? 200000 : 0;
        fixture.slow_once = true;
        expect(&fixture, "leave 64", STATUS_OK);
        assert_int_equal(fixture.deltas, 64);
        stop(&fixture);
    }
}

/* ============================== calls that do not ============================================= */

static void refusals_carry_their_reason(void **state) {
    (void)state;
    struct fixture fixture;
    struct generate_summary summary;
    struct error err;
    start(&fixture, (struct client_options){0});
    assert_int_equal(generate(&fixture, "refuse", &summary, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_string_equal(err.text, "the queue is full");
    struct generate_request request = {.prompt_kind = PROMPT_TEXT};
    assert_int_equal(
        client_generate(fixture.client, &request, take_delta, &fixture, &summary, &err),
        STATUS_INVALID_ARGUMENT); /* the server's codec says so */

    static uint8_t prompt[FRAME_BODY_BYTES_MAX];
    memset(prompt, 'p', sizeof prompt);
    request.prompt_text = (struct bytes){prompt, sizeof prompt};
    assert_int_equal(
        client_generate(fixture.client, &request, take_delta, &fixture, &summary, &err),
        STATUS_INVALID_ARGUMENT); /* fits no message */
    assert_non_null(strstr(err.text, "request"));
    expect(&fixture, "count 3", STATUS_OK); /* and the client is still good */
    stop(&fixture);
}

static void a_server_that_is_not_there_is_unavailable(void **state) {
    (void)state;
    struct fixture fixture = {0};
    net_dir_init(&fixture.dir);
    start_client(&fixture, (struct client_options){.silence_ms = 100});
    expect(&fixture, "count 1", STATUS_UNAVAILABLE);
    expect(&fixture, "count 1", STATUS_UNAVAILABLE);
    client_close(&fixture.client);
    start_client(&fixture, (struct client_options){.deadline_ms = 50, .silence_ms = NET_WAIT_MS});
    expect(&fixture, "count 1", STATUS_DEADLINE_EXCEEDED);
    stop(&fixture);
}

/* Speaks CURVE to whoever has its key. */
static void serve_curve(void *user) {
    struct server *server = user;
    char public_key[41], secret_key[41];
    int on = 1;
    void *context = zmq_ctx_new(), *router = zmq_socket(context, ZMQ_ROUTER);
    assert_int_equal(zmq_curve_keypair(public_key, secret_key), 0);
    assert_int_equal(zmq_setsockopt(router, ZMQ_CURVE_SERVER, &on, sizeof on), 0);
    assert_int_equal(zmq_setsockopt(router, ZMQ_CURVE_SECRETKEY, secret_key, sizeof secret_key), 0);
    assert_int_equal(zmq_bind(router, server->endpoint), 0);
    net_gate_open(&server->ready, 'r');
    for (;;)
        pause();
}

/* Whether the server's verdict comes during a call or before it. */
static void a_server_that_wants_keys_says_so(void **state) {
    (void)state;
    struct fixture fixture = {0};
    net_dir_init(&fixture.dir);
    net_gate_init(&fixture.server.ready);
    fixture.server.endpoint = fixture.dir.endpoint;
    fixture.pid = net_fork(serve_curve, &fixture.server);
    net_gate_wait(&fixture.server.ready);
    net_gate_deinit(&fixture.server.ready);
    start_client(&fixture, (struct client_options){.silence_ms = SILENCE_MS});
    for (int i = 0; i < 3; i++) {
        struct generate_summary summary;
        struct error err;
        usleep(i * 200000);
        enum status status = generate(&fixture, "count 1", &summary, &err);
        /* UNAVAILABLE: each time it hung up before it had told us what it speaks */
        assert_true(status == STATUS_UNAUTHENTICATED || status == STATUS_UNAVAILABLE);
        if (!strstr(err.text, "speaks CURVE, and we have no keys")) fail_msg("\"%s\"", err.text);
    }
    stop(&fixture);
}

static void a_server_that_comes_later_is_found(void **state) {
    (void)state;
    struct fixture fixture = {0};
    struct held_server first, second;
    net_dir_init(&fixture.dir);
    net_gate_init(&fixture.server.ready);
    hold_server(&fixture, &first);
    hold_server(&fixture, &second);
    start_client(&fixture, (struct client_options){.silence_ms = 50});
    expect(&fixture, "count 1", STATUS_UNAVAILABLE);
    client_close(&fixture.client);
    start_client(&fixture, (struct client_options){.silence_ms = NET_WAIT_MS});
    let_go(&fixture, &first);
    expect(&fixture, "count 1", STATUS_OK);

    /* Killed between calls: the next server serves the same client, which may first have to learn,
     * by a call, that the old connection broke. */
    struct generate_summary summary;
    struct error err;
    net_kill(fixture.pid, SIGKILL);
    let_go(&fixture, &second);
    if (generate(&fixture, "count 2", &summary, &err) != STATUS_OK)
        expect(&fixture, "count 2", STATUS_OK);
    net_gate_deinit(&fixture.server.ready);
    stop(&fixture);
}

/* By the broken connection, not by silence: the patience here is longer than the test may take. */
static void a_server_that_dies_is_noticed_at_once(void **state) {
    (void)state;
    struct fixture fixture;
    start(&fixture, (struct client_options){.silence_ms = 100 * NET_WAIT_MS});
    expect(&fixture, "die", STATUS_UNAVAILABLE);
    assert_int_equal(fixture.deltas, 3);
    stop(&fixture);
}

static void a_server_that_falls_silent_is_given_up(void **state) {
    (void)state;
    struct fixture fixture;
    start(&fixture, (struct client_options){.silence_ms = SILENCE_MS});
    expect(&fixture, "stop", STATUS_UNAVAILABLE);
    assert_int_equal(fixture.deltas, 3);
    net_kill(fixture.pid, SIGCONT);
    expect(&fixture, "count 2", STATUS_OK); /* of the old call nothing is left */
    stop(&fixture);
}

/* Nothing to send for a while is no silence: the server answers PINGs. */
static void a_server_that_works_is_waited_for(void **state) {
    (void)state;
    struct fixture fixture;
    start(&fixture, (struct client_options){.deadline_ms = 5000, .silence_ms = 3500});
    expect(&fixture, "hang", STATUS_DEADLINE_EXCEEDED);
    stop(&fixture);
}

static void deadlines_pass_on_both_sides(void **state) {
    (void)state;
    struct fixture fixture;
    start(&fixture, (struct client_options){.deadline_ms = 80});
    expect(&fixture, "hang", STATUS_DEADLINE_EXCEEDED);
    expect(&fixture, "forever", STATUS_DEADLINE_EXCEEDED);
    expect(&fixture, "deaf", STATUS_DEADLINE_EXCEEDED);
    client_close(&fixture.client);
    start_client(&fixture, (struct client_options){.deadline_ms = NET_WAIT_MS});
    expect(&fixture, "count 3", STATUS_OK);
    stop(&fixture);
}

static void a_callback_cancels(void **state) {
    (void)state;
    struct fixture fixture;
    struct generate_summary summary;
    struct error err;
    start(&fixture, (struct client_options){0});
    fixture.stop_after = 10;
    assert_int_equal(generate(&fixture, "forever", &summary, &err), STATUS_CANCELLED);
    assert_int_equal(fixture.deltas, 10);
    assert_true(summary.completion_tokens >= 10); /* the trailer was waited for */
    expect(&fixture, "count 5", STATUS_OK);
    stop(&fixture);
}

static volatile int cancel_flag;

static void set_cancel_flag(int signal) {
    (void)signal;
    cancel_flag = 1;
}

static void a_flag_cancels_from_a_signal_handler(void **state) {
    (void)state;
    static const char *const whats[] = {"hang", "forever", "deaf"};
    struct fixture fixture;
    start(&fixture, (struct client_options){.cancel = &cancel_flag});
    signal(SIGALRM, set_cancel_flag);
    for (int i = 0; i < 3; i++) {
        cancel_flag = 0;
        ualarm(50000, 0);
        expect(&fixture, whats[i], STATUS_CANCELLED);
    }
    expect(&fixture, "count 1", STATUS_CANCELLED); /* still set */
    cancel_flag = 0;
    expect(&fixture, "count 1", STATUS_OK);
    stop(&fixture);
}

/* ============================== liars ========================================================= */

/* A step of a liar's answer to a call; call_id and parts as said, or not. */
struct lie {
    enum frame_kind kind;
    int64_t call_id_offset; /* from the call's */
    uint64_t seq;
    enum status status;
    enum { BODY_NONE, BODY_DELTA, BODY_SUMMARY, BODY_GARBAGE } body;
    enum { PARTS_THREE, PARTS_TWO, PARTS_FIVE, HEADER_GARBAGE } parts;
};

struct liar {
    const char *endpoint;
    struct net_gate ready;
    const struct lie *lie;
    int lie_count;
};

static struct bytes lie_body(const struct lie *lie, struct arena *arena) {
    static const uint32_t token;
    struct generate_delta delta = {.token = &token, .token_count = 1};
    struct generate_summary summary = {.finish_reason = FINISH_STOP, .completion_tokens = 7};
    if (lie->body == BODY_DELTA) return codec_encode_generate_delta(&delta, arena);
    if (lie->body == BODY_SUMMARY) return codec_encode_generate_summary(&summary, arena);
    if (lie->body == BODY_GARBAGE) return bytes_of_text("\xff\xff\xff\xff");
    return (struct bytes){0};
}

static void tell(void *socket, const struct net_message *call, uint64_t call_id,
                 const struct lie *lie) {
    struct arena arena;
    arena_init(&arena, 1u << 20);
    const struct header header = {.version = WIRE_VERSION,
                                  .kind = lie->kind,
                                  .call_id = call_id + (uint64_t)lie->call_id_offset,
                                  .method = lie->kind == FRAME_CALL ? "Generate" : "",
                                  .seq = lie->seq,
                                  .status = lie->status,
                                  .status_text = lie->kind == FRAME_END ? "said the liar" : ""};
    struct bytes head = codec_encode_header(&header, &arena);
    if (lie->parts == HEADER_GARBAGE) head = bytes_of_text("\xff\xff\xff\xff");
    struct bytes body = lie_body(lie, &arena);
    int extra = lie->parts == PARTS_FIVE ? 2 : 0;
    zmq_send(socket, call->data[0], call->size[0], ZMQ_SNDMORE);
    zmq_send(socket, head.data, head.size, ZMQ_SNDMORE);
    zmq_send(socket, body.data, body.size, lie->parts == PARTS_TWO ? 0 : ZMQ_SNDMORE);
    for (int i = 0; i < extra; i++)
        zmq_send(socket, "", 0, ZMQ_SNDMORE);
    if (lie->parts != PARTS_TWO) zmq_send(socket, "", 0, 0);
    arena_deinit(&arena);
}

static void serve_lies(void *user) {
    struct liar *liar = user;
    struct arena arena;
    struct net_peer router = {.context = zmq_ctx_new()};
    arena_init(&arena, codec_arena_budget(FRAME_HEADER_BYTES_MAX));
    router.socket = zmq_socket(router.context, ZMQ_ROUTER);
    assert_int_equal(zmq_bind(router.socket, liar->endpoint), 0);
    net_gate_open(&liar->ready, 'r');
    for (;;) {
        struct net_message message;
        struct header header;
        struct error err;
        if (!net_peer_receive(&router, NULL, &message)) continue;
        arena_reset(&arena);
        struct bytes head = {message.data[1], message.size[1]};
        assert_int_equal(codec_decode_header(head, &arena, &header, &err), STATUS_OK);
        for (int i = 0; header.kind == FRAME_CALL && i < liar->lie_count; i++)
            tell(router.socket, &message, header.call_id, &liar->lie[i]);
        net_message_free(&message);
    }
}

static void lies_are_seen(void **state) {
    (void)state;
    static const struct {
        struct lie lie[4];
        int count;
        enum status expected;
        uint32_t deltas;
    } cases[] = {
        /* the truth, to begin with */
        {{{.kind = FRAME_DATA, .body = BODY_DELTA}, {.kind = FRAME_END, .body = BODY_SUMMARY}},
         2,
         STATUS_OK,
         1},
        /* gaps, repeats */
        {{{.kind = FRAME_DATA, .seq = 1, .body = BODY_DELTA}, {.kind = FRAME_END}},
         2,
         STATUS_DATA_LOSS,
         0},
        {{{.kind = FRAME_DATA, .body = BODY_DELTA},
          {.kind = FRAME_DATA, .body = BODY_DELTA},
          {.kind = FRAME_END}},
         3,
         STATUS_DATA_LOSS,
         1},
        /* a message that went missing on the way, being of five parts */
        {{{.kind = FRAME_DATA, .body = BODY_DELTA, .parts = PARTS_FIVE},
          {.kind = FRAME_DATA, .seq = 1, .body = BODY_DELTA},
          {.kind = FRAME_END}},
         3,
         STATUS_DATA_LOSS,
         0},
        /* wrong parts and strange calls alone do no harm */
        {{{.kind = FRAME_END, .parts = PARTS_TWO, .status = STATUS_INTERNAL},
          {.kind = FRAME_END, .call_id_offset = 1, .status = STATUS_INTERNAL},
          {.kind = FRAME_DATA, .call_id_offset = 5, .seq = 77, .body = BODY_GARBAGE},
          {.kind = FRAME_END}},
         4,
         STATUS_OK,
         0},
        {{{.kind = FRAME_DRAIN}, {.kind = FRAME_PONG}, {.kind = FRAME_END}}, 3, STATUS_OK, 0},
        /* what makes no sense */
        {{{.kind = FRAME_DATA, .body = BODY_GARBAGE}, {.kind = FRAME_END}}, 2, STATUS_INTERNAL, 0},
        {{{.kind = FRAME_END, .body = BODY_GARBAGE}}, 1, STATUS_INTERNAL, 0},
        {{{.kind = FRAME_DATA, .parts = HEADER_GARBAGE}, {.kind = FRAME_END}},
         2,
         STATUS_INTERNAL,
         0},
        {{{.kind = FRAME_CALL}, {.kind = FRAME_END}}, 2, STATUS_INTERNAL, 0},
        {{{.kind = FRAME_NOTE}}, 1, STATUS_INTERNAL, 0}, /* and no END at all */
        /* an END of any status is believed, once */
        {{{.kind = FRAME_END, .status = STATUS_ABORTED, .body = BODY_SUMMARY}, {.kind = FRAME_END}},
         2,
         STATUS_ABORTED,
         0},
        /* none: the server lives, as far as ZeroMQ knows, and answers no PING */
        {{{.kind = FRAME_DATA, .body = BODY_DELTA}}, 1, STATUS_UNAVAILABLE, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fixture fixture = {0};
        struct liar liar = {.lie = cases[i].lie, .lie_count = cases[i].count};
        struct generate_summary summary;
        struct error err;
        net_dir_init(&fixture.dir);
        liar.endpoint = fixture.dir.endpoint;
        net_gate_init(&liar.ready);
        fixture.pid = net_fork(serve_lies, &liar);
        net_gate_wait(&liar.ready);
        net_gate_deinit(&liar.ready);
        bool silent = cases[i].expected == STATUS_UNAVAILABLE;
        start_client(&fixture, (struct client_options){.silence_ms = silent ? SILENCE_MS : 0});
        enum status status = generate(&fixture, "count 1", &summary, &err);
        if (status != cases[i].expected || fixture.deltas != cases[i].deltas)
            fail_msg("case %zu: %s, %u deltas, \"%s\"", i, status_name(status), fixture.deltas,
                     err.text);
        stop(&fixture);
    }
}

static void endpoints_are_checked_when_opening(void **state) {
    (void)state;
    static const struct {
        const char *endpoint;
        enum status expected;
    } cases[] = {
        {"inproc://x", STATUS_INVALID_ARGUMENT},
        {"ipc://relative", STATUS_INVALID_ARGUMENT},
        {"tcp://192.0.2.1:1", STATUS_PERMISSION_DENIED},
        {"tcp://127.0.0.1:1", STATUS_OK},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct client *client;
        struct error err = {0};
        struct client_options options = {.endpoint = cases[i].endpoint};
        assert_int_equal(client_open(&options, &client, &err), cases[i].expected);
        assert_int_equal(client != NULL, cases[i].expected == STATUS_OK);
        client_close(&client);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_of_any_length_arrive_whole),
        cmocka_unit_test(the_other_methods_answer),
        cmocka_unit_test(a_slow_callback_loses_nothing),
        cmocka_unit_test(a_trailer_outlives_its_server),
        cmocka_unit_test(refusals_carry_their_reason),
        cmocka_unit_test(a_server_that_is_not_there_is_unavailable),
        cmocka_unit_test(a_server_that_wants_keys_says_so),
        cmocka_unit_test(a_server_that_comes_later_is_found),
        cmocka_unit_test(a_server_that_dies_is_noticed_at_once),
        cmocka_unit_test(a_server_that_falls_silent_is_given_up),
        cmocka_unit_test(a_server_that_works_is_waited_for),
        cmocka_unit_test(deadlines_pass_on_both_sides),
        cmocka_unit_test(a_callback_cancels),
        cmocka_unit_test(a_flag_cancels_from_a_signal_handler),
        cmocka_unit_test(lies_are_seen),
        cmocka_unit_test(endpoints_are_checked_when_opening),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
