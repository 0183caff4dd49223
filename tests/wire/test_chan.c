/* Channels over real sockets: the edge that a send eats, stolen paths, hostile peers, keys. */
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

#include "chan.h"
#include "net_support.h"

#define ROUND_TRIPS  20000
#define WORK_NS      200000
#define HOSTILE_MS   1500
#define AGAIN        500
#define BEHIND_MAX   400   /* descriptors, some to a client */
#define PATIENCE_MS  10000 /* until ZeroMQ has closed what we have */
#define STALL_US     1200000
#define GROWTH_BYTES (48u << 20)

/* A server that keeps what it receives, and answers with it if asked to. */
struct server { /* or a client */
    uv_loop_t loop;
    void *context;
    struct chan *chan;
    bool echo, close_at_once;
    uint64_t received;
    uint64_t unavailable;              /* sends that found nobody */
    int linked, refused, foreign, cut; /* of a client */
    uint64_t turn_received, turn_received_max;
    uint64_t goal;
    char last[3][64];
    bool closed;
};

struct holder { /* for a child */
    struct net_dir dir;
    struct net_gate ready;
};

static void note_closed(void *user) {
    *(bool *)user = true;
}

static void take(void *user, struct bytes peer, const struct bytes part[FRAME_PARTS]) {
    struct server *server = user;
    server->received++;
    server->turn_received++;
    for (int i = 0; i < 3; i++)
        snprintf(server->last[i], sizeof server->last[i], "%.*s", (int)(part[i].size & 63),
                 (const char *)part[i].data);
    if (server->echo) server->unavailable += chan_send(server->chan, peer, part) != STATUS_OK;
    if (server->close_at_once) chan_close(&server->chan, note_closed, &server->closed);
}

static struct chan_options server_options(const char *endpoint) {
    return (struct chan_options){
        .role = CHAN_SERVER, .endpoint = endpoint, .frame_bytes_max = 4096, .queue_messages = 64};
}

static void server_start(struct server *server) {
    memset(server, 0, sizeof *server);
    assert_int_equal(uv_loop_init(&server->loop), 0);
    server->context = zmq_ctx_new();
}

static enum status server_listen(struct server *server, const struct chan_options *options,
                                 struct error *err) {
    return chan_open(&server->loop, server->context, options, take, server, &server->chan, err);
}

static enum status server_try(struct server *server, const struct chan_options *options,
                              struct error *err) {
    server_start(server);
    return server_listen(server, options, err);
}

static void server_open(struct server *server, const struct chan_options *options) {
    struct error err = {0};
    if (server_try(server, options, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void server_close(struct server *server) {
    chan_close(&server->chan, NULL, NULL);
    net_finish(&server->loop);
    zmq_ctx_term(server->context);
}

static bool goal_reached(void *user) {
    const struct server *server = user;
    return server->received >= server->goal;
}

static void receive_total(struct server *server, uint64_t goal) {
    server->goal = goal;
    assert_true(net_run_until(&server->loop, goal_reached, server));
}

static void assert_answers(struct server *server, struct net_peer *peer) {
    const char *const text[] = {"header", "body", ""};
    struct net_message message;
    server->echo = true;
    assert_true(net_peer_send_text(peer, text, 3));
    assert_true(net_peer_receive(peer, &server->loop, &message));
    assert_int_equal(message.count, 3);
    assert_string_equal((char *)message.data[0], "header");
    assert_string_equal((char *)message.data[1], "body");
    assert_int_equal(message.size[2], 0);
    net_message_free(&message);
}

/* ============================== the edge ====================================================== */

static void ping_pong(void *user) {
    const char *endpoint = user;
    const char *const text[] = {"ping", "", ""};
    struct net_peer peer;
    struct net_message message;
    net_peer_init(&peer, endpoint, "pinger");
    for (int i = 0; i < ROUND_TRIPS; i++) {
        if (!net_peer_send_text(&peer, text, 3) || !net_peer_receive(&peer, NULL, &message)) break;
        net_message_free(&message);
    }
    net_peer_deinit(&peer);
}

/* Works a while, so that the next message has come and given its signal, which the send takes. */
static void work_and_send_to_nobody(uv_timer_t *timer) {
    struct server *server = timer->data;
    for (uint64_t end_ns = uv_hrtime() + WORK_NS; uv_hrtime() < end_ns;)
        ;
    const struct bytes part[FRAME_PARTS] = {bytes_of_text("x")};
    server->unavailable += chan_send(server->chan, bytes_of_text("nobody"), part) ==
                           STATUS_UNAVAILABLE;
}

static void sends_on_a_timer_eat_no_edge(void **state) {
    (void)state;
    struct net_dir dir;
    struct server server;
    net_dir_init(&dir);
    struct chan_options options = server_options(dir.endpoint);
    server_open(&server, &options);
    server.echo = true;
    uv_timer_t timer;
    uv_timer_init(&server.loop, &timer);
    timer.data = &server;
    uv_timer_start(&timer, work_and_send_to_nobody, 1, 1);

    uv_thread_t thread;
    assert_int_equal(uv_thread_create(&thread, ping_pong, dir.endpoint), 0);
    receive_total(&server, ROUND_TRIPS);
    uv_thread_join(&thread);
    assert_int_equal(chan_missed_edges(server.chan), 0);
    assert_true(server.unavailable > 0);
    uv_close((uv_handle_t *)&timer, NULL);
    server_close(&server);
    net_dir_deinit(&dir);
}

static void count_turn(uv_prepare_t *prepare) {
    struct server *server = prepare->data;
    if (server->turn_received > server->turn_received_max)
        server->turn_received_max = server->turn_received;
    server->turn_received = 0;
}

static void a_flood_is_cut_into_turns(void **state) {
    (void)state;
    struct net_dir dir;
    struct server server;
    struct net_peer peer;
    net_dir_init(&dir);
    struct chan_options options = server_options(dir.endpoint);
    options.queue_messages = 1000;
    server_open(&server, &options);
    uv_prepare_t prepare;
    uv_prepare_init(&server.loop, &prepare);
    prepare.data = &server;
    uv_prepare_start(&prepare, count_turn);
    net_peer_init(&peer, dir.endpoint, "flood");
    const char *const text[] = {"a", "b", "c"};
    assert_true(net_peer_send_text(&peer, text, 3));
    receive_total(&server, 1);
    for (int i = 0; i < 600; i++)
        assert_true(net_peer_send_text(&peer, text, 3));
    usleep(200000); /* so that many wait at once; fewer only make the test weaker */
    receive_total(&server, 601);
    uv_run(&server.loop, UV_RUN_NOWAIT);
    assert_true(server.turn_received_max > 1);
    assert_true(server.turn_received_max <= CHAN_TURN_MESSAGES);
    uv_close((uv_handle_t *)&prepare, NULL);
    net_peer_deinit(&peer);
    server_close(&server);
    net_dir_deinit(&dir);
}

/* ============================== messages ====================================================== */

static void wrong_part_counts_are_dropped(void **state) {
    (void)state;
    struct net_dir dir;
    struct server server;
    struct net_peer bad, good, long_id;
    net_dir_init(&dir);
    struct chan_options options = server_options(dir.endpoint);
    server_open(&server, &options);
    net_peer_init(&bad, dir.endpoint, "bad");
    net_peer_init(&good, dir.endpoint, "good");
    char id[CHAN_PEER_BYTES_MAX + 2];
    memset(id, 'i', sizeof id);
    id[sizeof id - 1] = '\0';
    net_peer_init(&long_id, dir.endpoint, id);

    static const size_t counts[] = {1, 2, 4, 5, 200};
    const char *parts[200];
    for (int i = 0; i < 200; i++)
        parts[i] = "part";
    for (size_t i = 0; i < 5; i++)
        assert_true(net_peer_send_text(&bad, parts, counts[i]));
    assert_answers(&server, &bad); /* a later message of the same peer is whole */
    assert_int_equal(chan_dropped_messages(server.chan), 5);
    assert_answers(&server, &good);

    assert_true(net_peer_send_text(&long_id, parts, 3));
    while (chan_dropped_messages(server.chan) < 6)
        assert_answers(&server, &good);
    assert_int_equal(chan_dropped_messages(server.chan), 6);
    assert_string_equal(server.last[0], "header");

    net_peer_deinit(&bad);
    net_peer_deinit(&good);
    net_peer_deinit(&long_id);
    server_close(&server);
    net_dir_deinit(&dir);
}

static void header_length_is_bounded(void **state) {
    (void)state;
    struct net_dir dir;
    struct server server;
    struct net_peer peer;
    net_dir_init(&dir);
    struct chan_options options = server_options(dir.endpoint);
    options.frame_bytes_max = 1u << 20;
    server_open(&server, &options);
    server.echo = true;
    net_peer_init(&peer, dir.endpoint, "peer");
    static char bytes[FRAME_HEADER_BYTES_MAX + 1];
    const void *const data[] = {bytes, bytes, bytes};
    const size_t fits[] = {sizeof bytes - 1, sizeof bytes, 1};
    const size_t too_long[] = {sizeof bytes, 1, 1};
    struct net_message message;
    assert_true(net_peer_send(&peer, data, too_long, 3));
    assert_true(net_peer_send(&peer, data, fits, 3));
    assert_true(net_peer_receive(&peer, &server.loop, &message));
    assert_int_equal(message.size[0], FRAME_HEADER_BYTES_MAX);
    assert_int_equal(message.size[1], FRAME_HEADER_BYTES_MAX + 1);
    assert_int_equal(chan_dropped_messages(server.chan), 1);
    net_message_free(&message);
    net_peer_deinit(&peer);
    server_close(&server);
    net_dir_deinit(&dir);
}

/* ZeroMQ closes the connection of a peer whose part is too large; it may come back and behave. */
static void too_large_a_part_costs_the_connection(void **state) {
    (void)state;
    struct net_dir dir;
    struct server server;
    struct net_peer bad, good;
    net_dir_init(&dir);
    struct chan_options options = server_options(dir.endpoint);
    server_open(&server, &options);
    net_peer_init(&bad, dir.endpoint, "bad");
    net_peer_init(&good, dir.endpoint, "good");
    assert_answers(&server, &bad);
    assert_answers(&server, &good);
    uint64_t received = server.received;
    static char bytes[4097];
    const void *const data[] = {"h", bytes, ""};
    const size_t size[] = {1, sizeof bytes, 0};
    assert_true(net_peer_send(&bad, data, size, 3));
    for (int i = 0; i < 20; i++)
        assert_answers(&server, &good);
    assert_int_equal(server.received, received + 20);
    net_peer_deinit(&bad);
    net_peer_deinit(&good);
    server_close(&server);
    net_dir_deinit(&dir);
}

static void a_full_queue_and_an_absent_peer_differ(void **state) {
    (void)state;
    struct net_dir dir;
    struct server server;
    struct net_peer slow, good;
    net_dir_init(&dir);
    struct chan_options options = server_options(dir.endpoint);
    options.queue_messages = 4;
    server_open(&server, &options);
    net_peer_init(&slow, dir.endpoint, "slow");
    net_peer_init(&good, dir.endpoint, "good");
    assert_answers(&server, &slow);
    static uint8_t bytes[4000];
    const struct bytes part[FRAME_PARTS] = {{bytes, 8}, {bytes, sizeof bytes}};
    enum status status = STATUS_OK;
    for (int i = 0; i < 1000000 && status == STATUS_OK; i++)
        status = chan_send(server.chan, bytes_of_text("slow"), part);
    assert_int_equal(status, STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(chan_send(server.chan, bytes_of_text("nobody"), part), STATUS_UNAVAILABLE);
    assert_answers(&server, &good);
    net_peer_deinit(&slow);
    net_peer_deinit(&good);
    server_close(&server);
    net_dir_deinit(&dir);
}

static void flood_and_wait(void *user) {
    const struct holder *holder = user;
    const char *const text[] = {"header", "body", ""};
    struct net_peer peer;
    net_peer_init(&peer, holder->dir.endpoint, "flood");
    for (int i = 0; i < 100; i++)
        net_peer_send_text(&peer, text, 3);
    net_gate_open(&holder->ready, 'r');
    pause();
}

/* With ZeroMQ's own heartbeats on, this ends the server's process. */
static void a_peer_may_die_while_its_messages_wait(void **state) {
    (void)state;
    struct holder holder;
    struct server server;
    struct net_peer good;
    net_dir_init(&holder.dir);
    net_gate_init(&holder.ready);
    struct chan_options options = server_options(holder.dir.endpoint);
    options.queue_messages = 1;
    pid_t pid = net_fork(flood_and_wait, &holder);
    server_open(&server, &options);
    net_gate_wait(&holder.ready);
    receive_total(&server, 1);
    net_kill(pid, SIGKILL);
    usleep(STALL_US); /* a loop that is busy elsewhere */
    net_peer_init(&good, holder.dir.endpoint, "good");
    assert_answers(&server, &good);
    net_peer_deinit(&good);
    server_close(&server);
    net_gate_deinit(&holder.ready);
    net_dir_deinit(&holder.dir);
}

static void a_routing_id_is_taken_over_only_where_allowed(void **state) {
    (void)state;
    for (int may = 0; may <= 1; may++) {
        struct net_dir dir;
        struct server server;
        struct net_peer first, second;
        net_dir_init(&dir);
        struct chan_options options = server_options(dir.endpoint);
        options.peer_may_reconnect = may != 0;
        server_open(&server, &options);
        net_peer_init(&first, dir.endpoint, "same");
        assert_answers(&server, &first);
        net_peer_init(&second, dir.endpoint, "same");
        if (may) {
            assert_answers(&server, &second);
        } else {
            const char *const text[] = {"header", "intruder", ""};
            assert_true(net_peer_send_text(&second, text, 3));
            for (int i = 0; i < 20; i++)
                assert_answers(&server, &first);
            assert_string_equal(server.last[1], "body");
        }
        net_peer_deinit(&first);
        net_peer_deinit(&second);
        server_close(&server);
        net_dir_deinit(&dir);
    }
}

static bool is_closed(void *user) {
    return *(bool *)user;
}

static void closing_inside_receive_ends_it(void **state) {
    (void)state;
    struct net_dir dir;
    struct server server;
    struct net_peer peer;
    net_dir_init(&dir);
    struct chan_options options = server_options(dir.endpoint);
    server_open(&server, &options);
    net_peer_init(&peer, dir.endpoint, "peer");
    server.close_at_once = true;
    const char *const text[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++)
        assert_true(net_peer_send_text(&peer, text, 3));
    assert_true(net_run_until(&server.loop, is_closed, &server.closed));
    assert_int_equal(server.received, 1);
    assert_null(server.chan);
    net_peer_deinit(&peer);
    net_finish(&server.loop);
    zmq_ctx_term(server.context);
    net_dir_deinit(&dir);
}

/* ============================== whose path it is ============================================== */

static void closing_leaves_nothing(void **state) {
    (void)state;
    struct net_dir dir;
    struct server server;
    net_dir_init(&dir);
    struct chan_options options = server_options(dir.endpoint);
    server_open(&server, &options);
    assert_string_equal(chan_endpoint(server.chan), dir.endpoint);
    assert_true(net_file_exists(&dir, "s"));
    assert_true(net_file_exists(&dir, "s.lock"));
    server_close(&server);
    assert_false(net_file_exists(&dir, "s"));
    assert_false(net_file_exists(&dir, "s.lock"));
    net_dir_deinit(&dir);
}

static void a_path_cannot_be_stolen(void **state) {
    (void)state;
    struct net_dir dir;
    struct server first, second;
    struct net_peer peer;
    struct error err = {0};
    net_dir_init(&dir);
    struct chan_options options = server_options(dir.endpoint);
    server_open(&first, &options);
    assert_int_equal(server_try(&second, &options, &err), STATUS_ALREADY_EXISTS);
    assert_non_null(strstr(err.text, dir.endpoint));
    assert_null(second.chan);
    net_finish(&second.loop);
    zmq_ctx_term(second.context);

    net_peer_init(&peer, dir.endpoint, "peer");
    assert_answers(&first, &peer);
    assert_true(net_file_exists(&dir, "s.lock"));
    net_peer_deinit(&peer);
    server_close(&first);
    net_dir_deinit(&dir);
}

static void hold_endpoint(void *user) {
    struct holder *holder = user;
    struct server server;
    struct chan_options options = server_options(holder->dir.endpoint);
    server_open(&server, &options);
    net_gate_open(&holder->ready, 'r');
    uv_run(&server.loop, UV_RUN_DEFAULT);
}

static void a_killed_owner_leaves_the_path_usable(void **state) {
    (void)state;
    struct holder holder;
    struct server server;
    struct net_peer peer;
    struct error err = {0};
    net_dir_init(&holder.dir);
    net_gate_init(&holder.ready);
    pid_t pid = net_fork(hold_endpoint, &holder);
    net_gate_wait(&holder.ready);

    struct chan_options options = server_options(holder.dir.endpoint);
    assert_int_equal(server_try(&server, &options, &err), STATUS_ALREADY_EXISTS);
    net_finish(&server.loop);
    zmq_ctx_term(server.context);

    net_kill(pid, SIGKILL);
    assert_true(net_file_exists(&holder.dir, "s"));
    assert_true(net_file_exists(&holder.dir, "s.lock"));
    server_open(&server, &options);
    net_peer_init(&peer, holder.dir.endpoint, "peer");
    assert_answers(&server, &peer);
    net_peer_deinit(&peer);
    server_close(&server);
    net_gate_deinit(&holder.ready);
    net_dir_deinit(&holder.dir);
}

static void refuse_directory(const char *endpoint, enum status expected, const char *word) {
    struct server server;
    struct error err = {0};
    struct chan_options options = server_options(endpoint);
    assert_int_equal(server_try(&server, &options, &err), expected);
    if (strstr(err.text, word) == NULL) fail_msg("no \"%s\" in \"%s\"", word, err.text);
    assert_null(server.chan);
    net_finish(&server.loop);
    zmq_ctx_term(server.context);
}

static void only_a_directory_of_ours_alone_will_do(void **state) {
    (void)state;
    struct net_dir dir;
    char endpoint[3 * NET_PATH_MAX], path[2 * NET_PATH_MAX];
    net_dir_init(&dir);
    static const mode_t open_modes[] = {0755, 0701, 0770, 0777};
    for (size_t i = 0; i < 4; i++) {
        chmod(dir.path, open_modes[i]);
        refuse_directory(dir.endpoint, STATUS_PERMISSION_DENIED, "0700");
    }
    chmod(dir.path, 0700);
    if (geteuid() == 0) {
        assert_int_equal(chown(dir.path, 65534, 65534), 0);
        refuse_directory(dir.endpoint, STATUS_PERMISSION_DENIED, "uid 65534");
        assert_int_equal(chown(dir.path, 0, 0), 0);
    }
    snprintf(path, sizeof path, "%s/link", dir.path);
    snprintf(endpoint, sizeof endpoint, "ipc://%s/s", path);
    assert_int_equal(symlink(dir.path, path), 0);
    refuse_directory(endpoint, STATUS_PERMISSION_DENIED, "no directory");
    snprintf(endpoint, sizeof endpoint, "ipc://%s/missing/deeper/s", dir.path);
    refuse_directory(endpoint, STATUS_UNAVAILABLE, "missing/deeper");

    snprintf(path, sizeof path, "%s/s", dir.path);
    int fd = open(path, O_CREAT | O_WRONLY,
                  0600); /* a file that is no socket is nobody's leftover */
    assert_true(fd >= 0);
    close(fd);
    refuse_directory(dir.endpoint, STATUS_PERMISSION_DENIED, "no socket");
    assert_true(net_file_exists(&dir, "s"));
    assert_false(net_file_exists(&dir, "s.lock"));
    net_dir_deinit(&dir);
}

static void a_missing_directory_is_made(void **state) {
    (void)state;
    struct net_dir dir;
    struct server server;
    char endpoint[2 * NET_PATH_MAX], path[2 * NET_PATH_MAX];
    net_dir_init(&dir);
    snprintf(path, sizeof path, "%s/new", dir.path);
    snprintf(endpoint, sizeof endpoint, "ipc://%s/s", path);
    struct chan_options options = server_options(endpoint);
    mode_t mask = umask(0);
    server_open(&server, &options);
    umask(mask);
    struct stat stat_of;
    assert_int_equal(stat(path, &stat_of), 0);
    assert_int_equal(stat_of.st_mode & 07777, 0700);
    server_close(&server);
    assert_int_equal(rmdir(path), 0);
    net_dir_deinit(&dir);
}

/* ============================== who may connect =============================================== */

struct keys {
    char public_key[41], secret_key[41];
};

static void make_keys(struct keys *keys) {
    assert_int_equal(zmq_curve_keypair(keys->public_key, keys->secret_key), 0);
}

/* A server's door: a list of one key in a file, and who answers for it. */
struct door {
    struct net_dir dir;
    char path[NET_PATH_MAX + 8];
    struct allow_list *list;
    struct zap *zap;
};

static void write_list(const struct door *door, const char *text) {
    FILE *file = fopen(door->path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(door->path, 0644), 0);
}

static void door_open(struct door *door, struct server *server, const char *allowed) {
    struct error err = {0};
    net_dir_init(&door->dir);
    snprintf(door->path, sizeof door->path, "%s/allowed", door->dir.path);
    write_list(door, allowed);
    assert_int_equal(allow_list_open(door->path, &door->list, &err), STATUS_OK);
    server_start(server);
    assert_int_equal(zap_open(&server->loop, server->context, &door->zap, &err), STATUS_OK);
    zap_add(door->zap, "friends", door->list);
}

static struct chan_options keyed(const struct door *door, const char *endpoint,
                                 const struct keys *keys) {
    struct chan_options options = server_options(endpoint);
    options.public_key = keys->public_key;
    options.secret_key = keys->secret_key;
    options.zap = door->zap;
    options.zap_domain = "friends";
    return options;
}

static void door_close(struct door *door, struct server *server) {
    zap_close(&door->zap);
    server_close(server);
    allow_list_close(&door->list);
    net_dir_deinit(&door->dir);
}

static void tcp_beyond_loopback_needs_keys(void **state) {
    (void)state;
    struct keys keys, half;
    make_keys(&keys);
    half = keys;
    half.secret_key[3] = '\0';
    const struct {
        const char *endpoint;
        const struct keys *keys;
        enum status expected;
        const char *word;
    } cases[] = {
        {"tcp://0.0.0.0:0", NULL, STATUS_PERMISSION_DENIED, "without CURVE"},
        {"tcp://*:0", NULL, STATUS_PERMISSION_DENIED, "without CURVE"},
        {"tcp://[::]:0", NULL, STATUS_PERMISSION_DENIED, "without CURVE"},
        {"tcp://192.0.2.1:80", NULL, STATUS_PERMISSION_DENIED, "without CURVE"},
        {"tcp://0.0.0.0:0", &half, STATUS_INVALID_ARGUMENT, "Z85"},
        {"tcp://0.0.0.0:0", &keys, STATUS_OK, ""},
        {"tcp://[::1]:0", &keys, STATUS_OK, ""},
        {"tcp://127.0.0.1:0", &keys, STATUS_OK, ""},
        {"tcp://127.0.0.1:0", NULL, STATUS_OK, ""},
        {"tcp://127.9.9.9:0", NULL, STATUS_OK, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct server server;
        struct door door;
        struct error err = {0};
        door_open(&door, &server, keys.public_key);
        struct chan_options options = server_options(cases[i].endpoint);
        if (cases[i].keys) options = keyed(&door, cases[i].endpoint, cases[i].keys);
        enum status status = server_listen(&server, &options, &err);
        if (status != cases[i].expected || strstr(err.text, cases[i].word) == NULL)
            fail_msg("case %zu: %s, \"%s\"", i, status_name(status), err.text);
        door_close(&door, &server);
    }
}

static void a_client_sends_nothing_in_clear_text_off_its_machine(void **state) {
    (void)state;
    struct keys keys;
    make_keys(&keys);
    const struct {
        const char *endpoint, *server_key, *secret_key;
        enum status expected;
    } cases[] = {
        {"tcp://192.0.2.1:80", NULL, NULL, STATUS_PERMISSION_DENIED},
        {"tcp://some.host:80", NULL, NULL, STATUS_PERMISSION_DENIED},
        {"tcp://some.host:80", keys.public_key, NULL, STATUS_INVALID_ARGUMENT},
        {"tcp://some.host:80", keys.public_key, "short", STATUS_INVALID_ARGUMENT},
        {"tcp://192.0.2.1:80", keys.public_key, keys.secret_key, STATUS_OK},
        {"tcp://localhost:80", NULL, NULL, STATUS_OK},
        {"tcp://[::1]:80", NULL, NULL, STATUS_OK},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct server server;
        struct error err = {0};
        struct chan_options options = server_options(cases[i].endpoint);
        options.role = CHAN_CLIENT;
        options.server_public_key = cases[i].server_key;
        options.public_key = cases[i].server_key;
        options.secret_key = cases[i].secret_key;
        enum status status = server_try(&server, &options, &err);
        if (status != cases[i].expected)
            fail_msg("case %zu: %s, \"%s\"", i, status_name(status), err.text);
        server_close(&server);
    }
}

static void note_link(void *user, enum chan_link link) {
    struct server *client = user;
    client->linked += link == CHAN_LINK_UP;
    client->refused += link == CHAN_LINK_REFUSED;
    client->foreign += link == CHAN_LINK_FOREIGN;
    client->cut += link == CHAN_LINK_CUT;
}

static bool link_decided(void *user) {
    const struct server *client = user;
    return client->linked + client->refused + client->foreign + client->cut > 0;
}

/* Server and client of one loop and context. Keys NULL: none. */
static void connect_with(struct server *server, const char *server_key, const struct keys *keys,
                         struct server *client) {
    struct chan_options options = server_options(chan_endpoint(server->chan));
    struct error err = {0};
    options.role = CHAN_CLIENT;
    if (keys) {
        options.server_public_key = server_key;
        options.public_key = keys->public_key;
        options.secret_key = keys->secret_key;
    }
    options.on_link = note_link;
    memset(client, 0, sizeof *client);
    enum status status = chan_open(&server->loop, server->context, &options, take, client,
                                   &client->chan, &err);
    if (status != STATUS_OK) fail_msg("%s", err.text);
    assert_true(net_run_until(&server->loop, link_decided, client));
}

static void curve_server_open(struct door *door, struct server *server,
                              const struct keys *server_keys, const char *allowed) {
    struct error err = {0};
    door_open(door, server, allowed);
    struct chan_options options = keyed(door, "tcp://127.0.0.1:0", server_keys);
    if (server_listen(server, &options, &err) != STATUS_OK) fail_msg("%s", err.text);
    server->echo = true;
}

static bool is_foreign(void *user) {
    return ((struct server *)user)->foreign > 0;
}

static bool has_one(void *user) {
    return ((struct server *)user)->received == 1;
}

static void keys_decide_who_is_served(void **state) {
    (void)state;
    struct keys server_keys, friend, stranger;
    struct server server, client;
    struct door door;
    make_keys(&server_keys);
    make_keys(&friend);
    make_keys(&stranger);
    curve_server_open(&door, &server, &server_keys, friend.public_key);

    connect_with(&server, server_keys.public_key, &friend, &client);
    assert_int_equal(client.linked, 1);
    const struct bytes part[FRAME_PARTS] = {bytes_of_text("h"), bytes_of_text("b")};
    assert_int_equal(chan_send(client.chan, (struct bytes){0}, part), STATUS_OK);
    assert_true(net_run_until(&server.loop, has_one, &client));
    chan_close(&client.chan, NULL, NULL);

    const struct {
        const char *server_key;
        const struct keys *keys;
        int refused, foreign, cut;
    } strangers[] = {{server_keys.public_key, &stranger, 1, 0, 0},
                     {stranger.public_key, &friend, 0, 0, 1},
                     {NULL, NULL, 0, 1, 0}};
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
        connect_with(&server, strangers[i].server_key, strangers[i].keys, &client);
        if (strangers[i].foreign) {
            /* before it has said what it speaks the server may hang up, some times */
            assert_true(net_run_until(&server.loop, is_foreign, &client));
            client.cut = 0;
        }
        assert_int_equal(client.linked, 0);
        assert_int_equal(client.refused, strangers[i].refused);
        assert_int_equal(client.foreign, strangers[i].foreign);
        assert_int_equal(client.cut > 0, strangers[i].cut);
        assert_int_equal(chan_send(client.chan, (struct bytes){0}, part), STATUS_UNAVAILABLE);
        chan_close(&client.chan, NULL, NULL);
    }
    assert_int_equal(server.received, 1);
    assert_int_equal(chan_missed_edges(server.chan), 0);

    struct error err = {0};
    struct zap *second; /* of the same context */
    assert_int_equal(zap_open(&server.loop, server.context, &second, &err), STATUS_ALREADY_EXISTS);
    door_close(&door, &server);
}

/* 1: let in, -1: turned away. */
static int outcome(struct server *server, const struct keys *server_keys, const struct keys *keys) {
    struct server client;
    connect_with(server, server_keys->public_key, keys, &client);
    chan_close(&client.chan, NULL, NULL);
    return client.linked - client.refused;
}

static void a_changed_list_counts_from_the_next_handshake(void **state) {
    (void)state;
    struct keys server_keys, one, other;
    struct server server;
    struct door door;
    char both[200];
    make_keys(&server_keys);
    make_keys(&one);
    make_keys(&other);
    curve_server_open(&door, &server, &server_keys, one.public_key);
    assert_int_equal(outcome(&server, &server_keys, &other), -1);
    snprintf(both, sizeof both, "# two\n%s\n  %s other # of these\n", one.public_key,
             other.public_key);
    write_list(&door, both);
    assert_int_equal(outcome(&server, &server_keys, &other), 1);
    assert_int_equal(outcome(&server, &server_keys, &one), 1);
    write_list(&door, "no key at all\n");
    assert_int_equal(outcome(&server, &server_keys, &one), 1); /* those from before stay */
    write_list(&door, other.public_key);
    assert_int_equal(outcome(&server, &server_keys, &one), -1);
    write_list(&door, "");
    assert_int_equal(outcome(&server, &server_keys, &other), -1);
    door_close(&door, &server);
}

/* A server that encrypts and has nobody to ask: what the self-test is for. */
static void a_server_that_lets_a_new_key_in_fails_its_self_test(void **state) {
    (void)state;
    struct keys server_keys, friend;
    struct server server;
    struct door door;
    const int yes = 1, no_wait = 0;
    make_keys(&server_keys);
    make_keys(&friend);
    door_open(&door, &server, friend.public_key);
    void *elsewhere = zmq_ctx_new();
    for (int asks = 0; asks <= 1; asks++) {
        void *context = asks ? server.context : elsewhere;
        void *socket = zmq_socket(context, ZMQ_ROUTER);
        zmq_setsockopt(socket, ZMQ_LINGER, &no_wait, sizeof no_wait);
        zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &yes, sizeof yes);
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, server_keys.secret_key, 41);
        struct error err = {0};
        if (asks) assert_int_equal(zap_enforce(socket, "friends", &err), STATUS_OK);
        assert_int_equal(zmq_bind(socket, "tcp://127.0.0.1:*"), 0);
        char endpoint[64];
        size_t size = sizeof endpoint;
        assert_int_equal(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &size), 0);
        enum status status = zap_self_test(door.zap, context, endpoint, server_keys.public_key,
                                           &err);
        assert_int_equal(status, asks ? STATUS_OK : STATUS_PERMISSION_DENIED);
        assert_true(asks || strstr(err.text, "was let in"));
        zmq_close(socket);
    }
    door_close(&door, &server);
    zmq_ctx_term(elsewhere);
}

/* A socket is closed by ZeroMQ's own thread, some time after; what is made in its place, perhaps at
 * the same address in memory, must not trip over it. On a busy machine that thread may fall behind
 * by more sockets than a context can have. */
static void a_client_is_closed_and_made_again_at_once(void **state) {
    (void)state;
    struct net_dir dir;
    struct server client;
    net_dir_init(&dir);
    server_start(&client);
    for (int i = 0; i < AGAIN; i++) {
        struct chan_options options = server_options(dir.endpoint);
        struct error err = {0};
        options.role = CHAN_CLIENT;
        if (server_listen(&client, &options, &err) != STATUS_OK) fail_msg("%d: %s", i, err.text);
        client.closed = false;
        chan_close(&client.chan, note_closed, &client.closed);
        while (!client.closed)
            uv_run(&client.loop, UV_RUN_ONCE);
        for (int ms = 0; net_count_entries("/proc/self/fd") > BEHIND_MAX; ms++, usleep(1000))
            if (ms == PATIENCE_MS) fail_msg("%d: more than %d descriptors", i, BEHIND_MAX);
    }
    server_close(&client);
    net_dir_deinit(&dir);
}

struct hostile {
    char endpoint[128];
    struct keys server_keys, own;
    struct net_gate hold, started;
};

/* A peer that never sends a last part: through ZeroMQ with a key nobody knows, */
static void send_parts_for_ever(void *user) {
    struct hostile *hostile = user;
    void *socket = zmq_socket(zmq_ctx_new(), ZMQ_DEALER);
    zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, hostile->server_keys.public_key, 41);
    zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, hostile->own.public_key, 41);
    zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, hostile->own.secret_key, 41);
    zmq_connect(socket, hostile->endpoint);
    net_gate_open(&hostile->started, 's');
    static char bytes[4000];
    for (uint64_t i = 0; i < 100000; i++)
        zmq_send(socket, bytes, sizeof bytes, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    pause();
}

/* or by hand, as a peer that has no mechanism: greeting, READY, then parts with MORE set. */
static void write_parts_for_ever(void *user) {
    struct hostile *hostile = user;
    unsigned port = 0;
    assert_int_equal(sscanf(hostile->endpoint, "tcp://127.0.0.1:%u", &port), 1);
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static unsigned char greeting[64] = {0xff, 0,    0, 0, 0,   0,   0,   0,
                                         1,    0x7f, 3, 0, 'N', 'U', 'L', 'L'};
    static unsigned char ready[] = "\4\x29\5READY\13Socket-Type\0\0\0\6DEALER\10Identity\0\0\0\0";
    static unsigned char part[2 + 255] = {1, 255};
    signal(SIGPIPE, SIG_IGN);
    net_gate_open(&hostile->started, 's');
    for (;;) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (const struct sockaddr *)&to, sizeof to) == 0 &&
            send(fd, greeting, sizeof greeting, 0) > 0 && send(fd, ready, sizeof ready - 1, 0) > 0)
            while (send(fd, part, sizeof part, 0) > 0)
                ;
        close(fd);
        usleep(1000);
    }
}

static bool time_is_over(void *user) {
    return uv_hrtime() > *(uint64_t *)user;
}

static void endless_parts_of_a_stranger_grow_nothing(void **state) {
    (void)state;
    for (int by_hand = 0; by_hand <= 1; by_hand++) {
        struct hostile *hostile = net_shared_create(sizeof *hostile);
        struct keys friend;
        struct server server, client;
        struct door door;
        make_keys(&hostile->server_keys);
        make_keys(&hostile->own);
        make_keys(&friend);
        net_gate_init(&hostile->hold);
        net_gate_init(&hostile->started);
        pid_t pid = net_fork_held(&hostile->hold,
                                  by_hand ? write_parts_for_ever : send_parts_for_ever, hostile);
        curve_server_open(&door, &server, &hostile->server_keys, friend.public_key);
        snprintf(hostile->endpoint, sizeof hostile->endpoint, "%s", chan_endpoint(server.chan));
        net_gate_open(&hostile->hold, 'g');
        net_gate_wait(&hostile->started);

        size_t before = net_resident_bytes();
        uint64_t end = uv_hrtime() + HOSTILE_MS * UINT64_C(1000000);
        assert_true(net_run_until(&server.loop, time_is_over, &end));
        size_t after = net_resident_bytes();
        if (after > before + GROWTH_BYTES) fail_msg("grew by %zu bytes", after - before);
        /* Others are served. */
        connect_with(&server, hostile->server_keys.public_key, &friend, &client);
        assert_int_equal(client.linked, 1);
        chan_close(&client.chan, NULL, NULL);
        net_kill(pid, SIGKILL);
        net_gate_deinit(&hostile->started);
        net_gate_deinit(&hostile->hold);
        net_shared_destroy(hostile, sizeof *hostile);
        door_close(&door, &server);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sends_on_a_timer_eat_no_edge),
        cmocka_unit_test(a_flood_is_cut_into_turns),
        cmocka_unit_test(wrong_part_counts_are_dropped),
        cmocka_unit_test(header_length_is_bounded),
        cmocka_unit_test(too_large_a_part_costs_the_connection),
        cmocka_unit_test(a_full_queue_and_an_absent_peer_differ),
        cmocka_unit_test(a_peer_may_die_while_its_messages_wait),
        cmocka_unit_test(a_routing_id_is_taken_over_only_where_allowed),
        cmocka_unit_test(closing_inside_receive_ends_it),
        cmocka_unit_test(closing_leaves_nothing),
        cmocka_unit_test(a_path_cannot_be_stolen),
        cmocka_unit_test(a_killed_owner_leaves_the_path_usable),
        cmocka_unit_test(only_a_directory_of_ours_alone_will_do),
        cmocka_unit_test(a_missing_directory_is_made),
        cmocka_unit_test(tcp_beyond_loopback_needs_keys),
        cmocka_unit_test(a_client_sends_nothing_in_clear_text_off_its_machine),
        cmocka_unit_test(a_client_is_closed_and_made_again_at_once),
        cmocka_unit_test(keys_decide_who_is_served),
        cmocka_unit_test(a_changed_list_counts_from_the_next_handshake),
        cmocka_unit_test(a_server_that_lets_a_new_key_in_fails_its_self_test),
        cmocka_unit_test(endless_parts_of_a_stranger_grow_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
