#include "zap.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log_limit.h"
#include "curve_keys.h"
#include "socket_watch.h"

#define ZAP_ADDRESS       "inproc://zeromq.zap.01"
#define ZAP_PARTS         7u /* of a request with CURVE's one credential */
#define ZAP_PART_BYTES    256u
#define ZAP_TURN_MESSAGES 64u
#define SELF_TEST_MS      5000
#define SELF_TEST_ADDRESS "inproc://espalier.zap.self_test.%u"

/* The option is known to the library since 4.3.0 and hidden from its header with the drafts. */
#ifndef ZMQ_ZAP_ENFORCE_DOMAIN
#define ZMQ_ZAP_ENFORCE_DOMAIN 93
#endif

enum {
    PART_VERSION,
    PART_REQUEST_ID,
    PART_DOMAIN,
    PART_ADDRESS,
    PART_ROUTING_ID,
    PART_MECHANISM,
    PART_KEY
};

struct zap {
    void *socket; /* REP */
    struct socket_watch watch;
    struct {
        const char *name;
        struct allow_list *list;
    } domain[ZAP_DOMAINS_MAX];
    uint32_t domain_count;
    char self_test_key[CURVE_KEY_TEXT_LEN + 1]; /* turned away without a line */
    uint32_t self_tests; /* so far: an address is not free as soon as its socket is closed */
    struct log_limit refused_lines;
};

struct part {
    uint8_t data[ZAP_PART_BYTES];
    size_t size; /* what is longer than ZAP_PART_BYTES is cut, and then equals nothing we know */
};

static bool part_is(const struct part *part, const char *text) {
    return part->size == strlen(text) && memcmp(part->data, text, part->size) == 0;
}

static struct allow_list *list_of(const struct zap *zap, const struct part *domain) {
    for (uint32_t i = 0; i < zap->domain_count; i++)
        if (part_is(domain, zap->domain[i].name)) return zap->domain[i].list;
    return NULL;
}

static bool is_allowed(const struct zap *zap, const struct part part[ZAP_PARTS], uint32_t count) {
    struct allow_list *list = count == ZAP_PARTS ? list_of(zap, &part[PART_DOMAIN]) : NULL;
    return list && part_is(&part[PART_VERSION], "1.0") && part_is(&part[PART_MECHANISM], "CURVE") &&
           part[PART_KEY].size == ALLOW_LIST_KEY_BYTES &&
           allow_list_holds(list, part[PART_KEY].data);
}

/* An address is ZeroMQ's word, and at most a text of digits; a domain is a socket's of ours. */
static void log_refused(struct zap *zap, const struct part part[ZAP_PARTS], uint32_t count) {
    char key[CURVE_KEY_TEXT_LEN + 1] = "";
    if (count == ZAP_PARTS && part[PART_KEY].size == ALLOW_LIST_KEY_BYTES)
        zmq_z85_encode(key, part[PART_KEY].data, ALLOW_LIST_KEY_BYTES);
    if (key[0] && strcmp(key, zap->self_test_key) == 0) return;
    log_limited(&zap->refused_lines, clock_now_ns(), LOG_LEVEL_WARN, "key_refused",
                "of=%.*s address=%.*s key=\"%s\"", (int)part[PART_DOMAIN].size,
                (const char *)part[PART_DOMAIN].data, (int)part[PART_ADDRESS].size,
                (const char *)part[PART_ADDRESS].data, key);
}

static bool more_parts(void *socket) {
    int more = 0;
    size_t size = sizeof more;
    return zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size) == 0 && more != 0;
}

/* Receive one request; parts beyond the expected are read and forgotten. False: none waits. */
static bool receive_request(void *socket, struct part part[ZAP_PARTS], uint32_t *count_out) {
    uint32_t count = 0;
    do {
        struct part *into = &part[count < ZAP_PARTS ? count : ZAP_PARTS - 1];
        int size = zmq_recv(socket, into->data, sizeof into->data, ZMQ_DONTWAIT);
        if (size < 0) return false;
        into->size = (size_t)size < ZAP_PART_BYTES ? (size_t)size : ZAP_PART_BYTES;
        count++;
    } while (more_parts(socket));
    *count_out = count;
    return true;
}

static void answer(void *socket, const struct part *request_id, bool allowed) {
    const struct {
        const void *data;
        size_t size;
    } reply[] = {
        {"1.0", 3},
        {request_id->data, request_id->size},
        {allowed ? "200" : "400", 3},
        {allowed ? "OK" : "key is not on the allow-list", allowed ? 2 : 28},
        {"", 0}, /* user id */
        {"", 0}, /* metadata */
    };
    const size_t last = sizeof reply / sizeof reply[0] - 1;
    for (size_t i = 0; i <= last; i++)
        zmq_send(socket, reply[i].data, reply[i].size, ZMQ_DONTWAIT | (i < last ? ZMQ_SNDMORE : 0));
}

static void answer_requests(void *user) {
    struct zap *zap = user;
    struct part part[ZAP_PARTS] = {0};
    uint32_t count;
    for (uint32_t i = 0; i < ZAP_TURN_MESSAGES && receive_request(zap->socket, part, &count); i++) {
        bool allowed = is_allowed(zap, part, count);
        if (!allowed) log_refused(zap, part, count);
        answer(zap->socket, &part[PART_REQUEST_ID], allowed);
        socket_watch_touch(&zap->watch);
    }
}

static enum status bind_handler(struct zap *zap, uv_loop_t *loop, void *zmq_context,
                                struct error *err) {
    zap->socket = zmq_socket(zmq_context, ZMQ_REP);
    if (zap->socket == NULL)
        return error_set(err, STATUS_UNAVAILABLE, "ZAP socket: %s", zmq_strerror(errno));
    int linger = 0;
    zmq_setsockopt(zap->socket, ZMQ_LINGER, &linger, sizeof linger);
    if (zmq_bind(zap->socket, ZAP_ADDRESS) != 0)
        return error_set(err, errno == EADDRINUSE ? STATUS_ALREADY_EXISTS : STATUS_UNAVAILABLE,
                         "%s: %s (one handler a ZeroMQ context)", ZAP_ADDRESS, zmq_strerror(errno));
    return socket_watch_start(&zap->watch, loop, zap->socket, answer_requests, zap, err);
}

enum status zap_open(uv_loop_t *loop, void *zmq_context, struct zap **zap_out, struct error *err) {
    struct zap *zap = calloc(1, sizeof *zap);
    CHECK(zap != NULL);
    enum status status = bind_handler(zap, loop, zmq_context, err);
    if (status != STATUS_OK) {
        if (zap->socket != NULL) zmq_close(zap->socket);
        free(zap);
        zap = NULL;
    }
    *zap_out = zap;
    return status;
}

void zap_add(struct zap *zap, const char *domain, struct allow_list *list) {
    CHECK(zap->domain_count < ZAP_DOMAINS_MAX);
    zap->domain[zap->domain_count].name = domain;
    zap->domain[zap->domain_count++].list = list;
}

enum status zap_enforce(void *server_socket, const char *domain, struct error *err) {
    int enforce = 1;
    if (zmq_setsockopt(server_socket, ZMQ_ZAP_DOMAIN, domain, strlen(domain)) == 0 &&
        zmq_setsockopt(server_socket, ZMQ_ZAP_ENFORCE_DOMAIN, &enforce, sizeof enforce) == 0)
        return STATUS_OK;
    return error_set(err, STATUS_PERMISSION_DENIED,
                     "this ZeroMQ cannot enforce an allow-list of keys: %s", zmq_strerror(errno));
}

/* ============================== the self-test ================================================= */

/* A stranger, and the socket on which ZeroMQ tells what became of him. */
struct stranger {
    char address[sizeof SELF_TEST_ADDRESS + 10];
    void *socket, *monitor;
};

static bool knock(struct stranger *stranger, void *zmq_context, const char *endpoint,
                  const char *server_public_key, const struct curve_pair *pair) {
    const size_t key_bytes = CURVE_KEY_TEXT_LEN + 1;
    const int linger = 0, ipv6 = strchr(endpoint, '[') != NULL;
    stranger->socket = zmq_socket(zmq_context, ZMQ_DEALER);
    stranger->monitor = zmq_socket(zmq_context, ZMQ_PAIR);
    return stranger->socket && stranger->monitor &&
           zmq_setsockopt(stranger->socket, ZMQ_LINGER, &linger, sizeof linger) == 0 &&
           zmq_setsockopt(stranger->monitor, ZMQ_LINGER, &linger, sizeof linger) == 0 &&
           zmq_setsockopt(stranger->socket, ZMQ_IPV6, &ipv6, sizeof ipv6) == 0 &&
           zmq_setsockopt(stranger->socket, ZMQ_CURVE_SERVERKEY, server_public_key, key_bytes) ==
               0 &&
           zmq_setsockopt(stranger->socket, ZMQ_CURVE_PUBLICKEY, pair->public_key, key_bytes) ==
               0 &&
           zmq_setsockopt(stranger->socket, ZMQ_CURVE_SECRETKEY, pair->secret_key, key_bytes) ==
               0 &&
           zmq_socket_monitor(stranger->socket, stranger->address,
                              ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) ==
               0 &&
           zmq_connect(stranger->monitor, stranger->address) == 0 &&
           zmq_connect(stranger->socket, endpoint) == 0;
}

enum verdict { UNDECIDED, TURNED_AWAY, LET_IN };

static enum verdict read_verdict(void *monitor) {
    uint8_t event[6]; /* uint16 event, uint32 value; then a part with the address */
    uint16_t number;
    uint32_t value;
    if (zmq_recv(monitor, event, sizeof event, ZMQ_DONTWAIT) != sizeof event) return UNDECIDED;
    memcpy(&number, event, sizeof number);
    memcpy(&value, event + sizeof number, sizeof value);
    (void)zmq_recv(monitor, event, 0, ZMQ_DONTWAIT);
    if (number == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) return LET_IN;
    return value == ZAP_STATUS_REFUSED ? TURNED_AWAY : UNDECIDED;
}

static enum verdict wait_for_verdict(struct zap *zap, void *monitor) {
    int64_t deadline_ns = clock_now_ns() + SELF_TEST_MS * NS_PER_MS;
    enum verdict verdict = UNDECIDED;
    while (verdict == UNDECIDED && clock_now_ns() < deadline_ns) {
        zmq_pollitem_t item[] = {{.socket = zap->socket, .events = ZMQ_POLLIN},
                                 {.socket = monitor, .events = ZMQ_POLLIN}};
        long wait_ms = (deadline_ns - clock_now_ns()) / NS_PER_MS + 1;
        if (zmq_poll(item, 2, wait_ms) <= 0) continue;
        if (item[0].revents & ZMQ_POLLIN) answer_requests(zap);
        if (item[1].revents & ZMQ_POLLIN) verdict = read_verdict(monitor);
    }
    return verdict;
}

enum status zap_self_test(struct zap *zap, void *zmq_context, const char *endpoint,
                          const char *server_public_key, struct error *err) {
    struct curve_pair pair;
    struct stranger stranger = {.socket = NULL};
    snprintf(stranger.address, sizeof stranger.address, SELF_TEST_ADDRESS, zap->self_tests++);
    curve_keys_make(&pair);
    memcpy(zap->self_test_key, pair.public_key, sizeof zap->self_test_key);
    enum status status;
    if (!knock(&stranger, zmq_context, endpoint, server_public_key, &pair)) {
        status = error_set(err, STATUS_UNAVAILABLE, "%s: the self-test of keys cannot connect: %s",
                           endpoint, zmq_strerror(errno));
    } else {
        switch (wait_for_verdict(zap, stranger.monitor)) {
        case TURNED_AWAY: status = STATUS_OK; break;
        case LET_IN:
            status = error_set(err, STATUS_PERMISSION_DENIED,
                               "%s: the self-test of keys failed: one made just now was let in",
                               endpoint);
            break;
        default:
            status = error_set(err, STATUS_UNAVAILABLE,
                               "%s: the self-test of keys failed: one made just now was neither "
                               "let in nor turned away within %d ms",
                               endpoint, SELF_TEST_MS);
        }
    }
    if (stranger.socket) zmq_socket_monitor(stranger.socket, NULL, 0);
    if (stranger.monitor) zmq_close(stranger.monitor);
    if (stranger.socket) zmq_close(stranger.socket);
    return status;
}

/* ============================== closing ======================================================= */

static void watch_stopped(void *user) {
    struct zap *zap = user;
    zmq_close(zap->socket);
    free(zap);
}

void zap_close(struct zap **zap) {
    socket_watch_stop(&(*zap)->watch, watch_stopped);
    *zap = NULL;
}
