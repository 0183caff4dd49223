#include "chan.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "base/check.h"
#include "curve_keys.h"
#include "endpoint.h"
#include "socket_watch.h"

#define HANDSHAKE_MS         2000 /* silent connections must not hold descriptors for long */
#define KEEPALIVE_IDLE_S     10
#define KEEPALIVE_INTERVAL_S 5
#define KEEPALIVE_COUNT      3
#define RECONNECT_MS         50
#define RECONNECT_MAX_MS     2000
#define ENDPOINT_TEXT_MAX    320u
#define MONITOR_EVENT_BYTES  6u /* uint16 event, uint32 value */
#define MONITOR_TEXT_MAX     64u
#define ROUTED_PARTS         (1u + FRAME_PARTS)

#define MONITOR_EVENTS                                                                             \
    (ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |                             \
     ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |                  \
     ZMQ_EVENT_DISCONNECTED)

struct chan {
    enum chan_role role;
    void *socket;
    struct socket_watch watch;
    chan_receive_fn *receive;
    void (*on_link)(void *user, enum chan_link link);
    void *user;

    void *monitor; /* CLIENT: PAIR on which ZeroMQ tells what becomes of the connection */
    struct socket_watch monitor_watch;
    bool linked;
    int queue_messages;

    struct endpoint_claim claim;
    char endpoint[ENDPOINT_TEXT_MAX];
    uint64_t dropped_messages;

    bool closing;
    uint32_t parts_open; /* watches that have not stopped yet */
    void (*closed)(void *user);
    void *closed_user;
};

/* ============================== receiving ===================================================== */

static bool more_parts(void *socket) {
    int more = 0;
    size_t size = sizeof more;
    return zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size) == 0 && more != 0;
}

/* Receive one message whole; parts beyond ROUTED_PARTS overwrite each other in the last place.
 * Returns how many parts it had, 0 where none waits. */
static uint32_t receive_parts(struct chan *chan, uint32_t first, zmq_msg_t part[ROUTED_PARTS + 1]) {
    uint32_t count = 0;
    do {
        uint32_t place = first + count < ROUTED_PARTS ? first + count : ROUTED_PARTS;
        if (zmq_msg_recv(&part[place], chan->socket, ZMQ_DONTWAIT) < 0) return 0;
        count++;
    } while (more_parts(chan->socket));
    return count;
}

static struct bytes bytes_of_part(zmq_msg_t *part) {
    return (struct bytes){.data = zmq_msg_data(part), .size = zmq_msg_size(part)};
}

/* False where no message waits. */
static bool receive_one(struct chan *chan) {
    zmq_msg_t message[ROUTED_PARTS + 1];
    for (uint32_t i = 0; i <= ROUTED_PARTS; i++)
        zmq_msg_init(&message[i]);

    uint32_t first = chan->role == CHAN_SERVER ? 0 : 1; /* a client's peer has no routing id */
    uint32_t count = receive_parts(chan, first, message);
    struct bytes peer = bytes_of_part(&message[0]);
    struct bytes part[FRAME_PARTS];
    for (uint32_t i = 0; i < FRAME_PARTS; i++)
        part[i] = bytes_of_part(&message[1 + i]);
    if (count == ROUTED_PARTS - first && peer.size <= CHAN_PEER_BYTES_MAX &&
        part[0].size <= FRAME_HEADER_BYTES_MAX) {
        chan->receive(chan->user, peer, part);
    } else if (count > 0) {
        chan->dropped_messages++;
    }
    for (uint32_t i = 0; i <= ROUTED_PARTS; i++)
        zmq_msg_close(&message[i]);
    return count > 0;
}

static void receive_some(void *user) {
    struct chan *chan = user;
    for (uint32_t i = 0; i < CHAN_TURN_MESSAGES && !chan->closing; i++) {
        if (!receive_one(chan)) break;
    }
}

/* ============================== the link ====================================================== */

/* ZeroMQ keeps what it could not send for the next connection, and with it a server that comes
 * later would be asked what nobody waits for any more. Its remedy, ZMQ_IMMEDIATE, also forgets what
 * came before the connection broke and was not read yet (a trailer, often), and where that breaks
 * off between two parts of a message it ends the process by an assertion. So nothing is given to
 * ZeroMQ while there is no connection, and when one breaks, all that came is read, and then the
 * connection is made anew, which drops what was not sent. */
void chan_reconnect(struct chan *chan) {
    CHECK(chan->role == CHAN_CLIENT);
    chan->linked = false;
    if (zmq_disconnect(chan->socket, chan->endpoint) == 0)
        (void)zmq_connect(chan->socket, chan->endpoint);
    socket_watch_touch(&chan->watch);
}

static void link_broke(struct chan *chan) {
    for (int i = 0; i < 2 * chan->queue_messages && !chan->closing; i++) {
        if (!receive_one(chan)) break;
    }
    if (!chan->closing) chan_reconnect(chan);
}

static void tell_link(struct chan *chan, enum chan_link link) {
    if (chan->on_link != NULL && !chan->closing) chan->on_link(chan->user, link);
}

static bool read_monitor_event(struct chan *chan, uint16_t *event_out, uint32_t *value_out) {
    uint8_t event[MONITOR_EVENT_BYTES];
    char address[ENDPOINT_TEXT_MAX];
    int size = zmq_recv(chan->monitor, event, sizeof event, ZMQ_DONTWAIT);
    if (size < 0) return false;
    CHECK(size == MONITOR_EVENT_BYTES && more_parts(chan->monitor));
    memcpy(event_out, event, sizeof *event_out);
    memcpy(value_out, event + sizeof *event_out, sizeof *value_out);
    return zmq_recv(chan->monitor, address, sizeof address, ZMQ_DONTWAIT) >= 0;
}

static void read_monitor(void *user) {
    struct chan *chan = user;
    uint16_t event;
    uint32_t value;
    while (!chan->closing && read_monitor_event(chan, &event, &value)) {
        if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
            chan->linked = true;
            tell_link(chan, CHAN_LINK_UP);
        }
        if (event == ZMQ_EVENT_DISCONNECTED && chan->linked) {
            link_broke(chan);
            tell_link(chan, CHAN_LINK_DOWN);
        }
        if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH && value == ZAP_STATUS_REFUSED)
            tell_link(chan, CHAN_LINK_REFUSED);
        if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL &&
            value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
            tell_link(chan, CHAN_LINK_FOREIGN);
        if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) tell_link(chan, CHAN_LINK_CUT);
    }
}

static enum status open_monitor(struct chan *chan, uv_loop_t *loop, void *zmq_context,
                                struct error *err) {
    /* Never an address used before: it is not free as soon as its socket is closed. */
    static _Atomic uint64_t monitors;
    char address[MONITOR_TEXT_MAX];
    snprintf(address, sizeof address, "inproc://espalier.monitor.%" PRIu64, ++monitors);
    /* Without a limit: ZeroMQ's own thread blocks on a full monitor. The events are few. */
    int linger = 0, queue_messages = 0;
    chan->monitor = zmq_socket(zmq_context, ZMQ_PAIR);
    if (chan->monitor == NULL ||
        zmq_setsockopt(chan->monitor, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_setsockopt(chan->monitor, ZMQ_RCVHWM, &queue_messages, sizeof queue_messages) != 0 ||
        zmq_socket_monitor(chan->socket, address, MONITOR_EVENTS) != 0 ||
        zmq_connect(chan->monitor, address) != 0)
        return error_set(err, STATUS_UNAVAILABLE, "socket monitor: %s", zmq_strerror(errno));
    return socket_watch_start(&chan->monitor_watch, loop, chan->monitor, read_monitor, chan, err);
}

/* ============================== options and policy ============================================ */

static enum status check_key(const char *what, const char *text, struct error *err) {
    if (curve_keys_is_key(text)) return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "%s: found %zu characters that are no key, accepted: %u characters of Z85",
                     what, strlen(text), CURVE_KEY_TEXT_LEN);
}

static enum status check_server_keys(const struct chan_options *options,
                                     const struct endpoint *endpoint, struct error *err) {
    if (options->secret_key == NULL && !endpoint->local)
        return error_set(err, STATUS_PERMISSION_DENIED,
                         "%s: found TCP beyond loopback without CURVE, accepted: --curve-keys with "
                         "our secret key and the keys allowed, or a loopback or ipc endpoint",
                         options->endpoint);
    if (options->secret_key == NULL) return STATUS_OK;
    CHECK(options->zap != NULL && options->zap_domain != NULL);
    enum status status = check_key("public key", options->public_key, err);
    return status == STATUS_OK ? check_key("secret key", options->secret_key, err) : status;
}

static enum status check_client_keys(const struct chan_options *options,
                                     const struct endpoint *endpoint, struct error *err) {
    int given = (options->server_public_key != NULL) + (options->public_key != NULL) +
                (options->secret_key != NULL);
    if (given != 0 && given != 3)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s: found %d of 3 CURVE keys, accepted: the server's public key, our "
                         "public key and our secret key, or none",
                         options->endpoint, given);
    if (given == 0 && !endpoint->local)
        return error_set(err, STATUS_PERMISSION_DENIED,
                         "%s: found TCP beyond loopback without CURVE, accepted: --curve-keys with "
                         "the server's public key and our secret key",
                         options->endpoint);
    if (given == 0) return STATUS_OK;
    enum status status = check_key("server's public key", options->server_public_key, err);
    if (status == STATUS_OK) status = check_key("public key", options->public_key, err);
    if (status == STATUS_OK) status = check_key("secret key", options->secret_key, err);
    return status;
}

static bool set_int(void *socket, int option, int value) {
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}

static bool set_key(void *socket, int option, const char *key) {
    return zmq_setsockopt(socket, option, key, CURVE_KEY_TEXT_LEN + 1) == 0;
}

/* No ZMQ_HEARTBEAT_IVL: in ZeroMQ up to 4.3.5 a heartbeat that falls due after a peer hung up with
 * our queue of its messages full ends the whole process by an assertion, so any client could end
 * ours. Those who use a channel send signs of life as messages, which also prove that a peer does
 * more than answer its sockets; a TCP peer whose machine is gone is found by the kernel. */
static bool set_keepalive(void *socket) {
    return set_int(socket, ZMQ_TCP_KEEPALIVE, 1) &&
           set_int(socket, ZMQ_TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S) &&
           set_int(socket, ZMQ_TCP_KEEPALIVE_INTVL, KEEPALIVE_INTERVAL_S) &&
           set_int(socket, ZMQ_TCP_KEEPALIVE_CNT, KEEPALIVE_COUNT);
}

static bool set_common_options(void *socket, const struct chan_options *options, bool ipv6) {
    int64_t frame_bytes_max = (int64_t)options->frame_bytes_max;
    return zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &frame_bytes_max, sizeof frame_bytes_max) == 0 &&
           set_int(socket, ZMQ_SNDHWM, options->queue_messages) &&
           set_int(socket, ZMQ_RCVHWM, options->queue_messages) &&
           set_int(socket, ZMQ_LINGER, CHAN_LINGER_MS) &&
           set_int(socket, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS) && set_keepalive(socket) &&
           (!ipv6 || set_int(socket, ZMQ_IPV6, 1));
}

static bool set_server_options(void *socket, const struct chan_options *options) {
    uid_t self = geteuid(), root = 0; /* beside the directory's mode, which a person may change */
    return set_int(socket, ZMQ_ROUTER_MANDATORY, 1) &&
           set_int(socket, ZMQ_ROUTER_HANDOVER, options->peer_may_reconnect) &&
           zmq_setsockopt(socket, ZMQ_IPC_FILTER_UID, &self, sizeof self) == 0 &&
           zmq_setsockopt(socket, ZMQ_IPC_FILTER_UID, &root, sizeof root) == 0 &&
           (options->secret_key == NULL ||
            (set_int(socket, ZMQ_CURVE_SERVER, 1) &&
             set_key(socket, ZMQ_CURVE_SECRETKEY, options->secret_key)));
}

static bool set_client_options(void *socket, const struct chan_options *options) {
    return set_int(socket, ZMQ_RECONNECT_IVL, RECONNECT_MS) &&
           set_int(socket, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS) &&
           (options->routing_id.size == 0 ||
            zmq_setsockopt(socket, ZMQ_ROUTING_ID, options->routing_id.data,
                           options->routing_id.size) == 0) &&
           (options->secret_key == NULL ||
            (set_key(socket, ZMQ_CURVE_SERVERKEY, options->server_public_key) &&
             set_key(socket, ZMQ_CURVE_PUBLICKEY, options->public_key) &&
             set_key(socket, ZMQ_CURVE_SECRETKEY, options->secret_key)));
}

/* ============================== opening ======================================================= */

static enum status open_socket(struct chan *chan, void *zmq_context,
                               const struct chan_options *options, bool ipv6, struct error *err) {
    bool server = options->role == CHAN_SERVER;
    chan->socket = zmq_socket(zmq_context, server ? ZMQ_ROUTER : ZMQ_DEALER);
    if (chan->socket != NULL && set_common_options(chan->socket, options, ipv6) &&
        (server ? set_server_options(chan->socket, options)
                : set_client_options(chan->socket, options)))
        return STATUS_OK;
    return error_set(err, STATUS_UNAVAILABLE, "%s: %s", options->endpoint, zmq_strerror(errno));
}

static enum status bind_socket(struct chan *chan, const struct endpoint *endpoint,
                               struct error *err) {
    if (endpoint->scheme == ENDPOINT_IPC) {
        /* Given a listening socket, ZeroMQ leaves the path alone, also when it closes: removing
         * it later, from its own thread, it could remove the next owner's. */
        enum status status = endpoint_claim(endpoint, &chan->claim, err);
        if (status != STATUS_OK) return status;
        if (!set_int(chan->socket, ZMQ_USE_FD, chan->claim.listen_fd))
            return error_set(err, STATUS_UNAVAILABLE, "%s: %s", chan->endpoint,
                             zmq_strerror(errno));
    }
    if (zmq_bind(chan->socket, chan->endpoint) != 0) {
        enum status status = errno == EADDRINUSE ? STATUS_ALREADY_EXISTS
                             : errno == EACCES   ? STATUS_PERMISSION_DENIED
                                                 : STATUS_UNAVAILABLE;
        return error_set(err, status, "cannot listen on %s: %s", chan->endpoint,
                         zmq_strerror(errno));
    }
    chan->claim.listen_fd = -1; /* ZeroMQ's now */
    size_t size = sizeof chan->endpoint;
    CHECK(zmq_getsockopt(chan->socket, ZMQ_LAST_ENDPOINT, chan->endpoint, &size) == 0);
    return STATUS_OK;
}

static enum status open_server(struct chan *chan, void *zmq_context,
                               const struct chan_options *options, const struct endpoint *endpoint,
                               struct error *err) {
    bool guarded = options->secret_key != NULL;
    enum status status = STATUS_OK;
    if (guarded) status = zap_enforce(chan->socket, options->zap_domain, err);
    if (status == STATUS_OK) status = bind_socket(chan, endpoint, err);
    if (status == STATUS_OK && guarded)
        status = zap_self_test(options->zap, zmq_context, chan->endpoint, options->public_key, err);
    return status;
}

static enum status open_client(struct chan *chan, uv_loop_t *loop, void *zmq_context,
                               struct error *err) {
    enum status status = open_monitor(chan, loop, zmq_context, err);
    if (status != STATUS_OK) return status;
    chan->parts_open++;
    if (zmq_connect(chan->socket, chan->endpoint) == 0) return STATUS_OK;
    return error_set(err, STATUS_UNAVAILABLE, "cannot connect to %s: %s", chan->endpoint,
                     zmq_strerror(errno));
}

/* What of the options counts at this kind of endpoint. */
static struct chan_options options_at(const struct endpoint *endpoint,
                                      const struct chan_options *options) {
    struct chan_options counting = *options;
    if (endpoint->scheme == ENDPOINT_IPC)
        counting.server_public_key = counting.public_key = counting.secret_key = NULL;
    return counting;
}

enum status chan_open(uv_loop_t *loop, void *zmq_context, const struct chan_options *options,
                      chan_receive_fn *receive, void *user, struct chan **chan_out,
                      struct error *err) {
    *chan_out = NULL;
    CHECK(options->frame_bytes_max > 0 && options->queue_messages > 0);
    CHECK(options->routing_id.size <= CHAN_PEER_BYTES_MAX);
    bool server = options->role == CHAN_SERVER;
    struct endpoint endpoint;
    enum status status = endpoint_parse(options->endpoint,
                                        server ? ENDPOINT_BIND : ENDPOINT_CONNECT, &endpoint, err);
    const struct chan_options counting = options_at(&endpoint, options);
    options = &counting;
    if (status == STATUS_OK)
        status = server ? check_server_keys(options, &endpoint, err)
                        : check_client_keys(options, &endpoint, err);
    if (status != STATUS_OK) return status;

    struct chan *chan = calloc(1, sizeof *chan);
    CHECK(chan != NULL);
    chan->role = options->role;
    chan->receive = receive;
    chan->on_link = options->on_link;
    chan->queue_messages = options->queue_messages;
    chan->user = user;
    chan->claim = (struct endpoint_claim){.lock_fd = -1, .listen_fd = -1};
    snprintf(chan->endpoint, sizeof chan->endpoint, "%s", options->endpoint);

    status = open_socket(chan, zmq_context, options, endpoint.ipv6, err);
    if (status == STATUS_OK)
        status = server ? open_server(chan, zmq_context, options, &endpoint, err)
                        : open_client(chan, loop, zmq_context, err);
    if (status == STATUS_OK)
        status = socket_watch_start(&chan->watch, loop, chan->socket, receive_some, chan, err);
    if (status == STATUS_OK) {
        chan->parts_open++;
        *chan_out = chan;
    } else {
        chan_close(&chan, NULL, NULL);
    }
    return status;
}

/* ============================== sending ======================================================= */

enum status chan_send(struct chan *chan, struct bytes peer, const struct bytes part[FRAME_PARTS]) {
    if (chan->role == CHAN_CLIENT && !chan->linked) return STATUS_UNAVAILABLE;
    socket_watch_touch(&chan->watch);
    int error = 0;
    bool begun = false;
    if (chan->role == CHAN_SERVER) {
        begun = zmq_send(chan->socket, peer.data, peer.size, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0;
        if (!begun) error = errno;
    }
    /* Once a first part is accepted ZeroMQ takes the others or, where the connection broke between
     * them, forgets them all; it must be shown every part to know where the message ends. */
    for (uint32_t i = 0; i < FRAME_PARTS && (begun || error == 0); i++) {
        int flags = ZMQ_DONTWAIT | (i + 1 < FRAME_PARTS ? ZMQ_SNDMORE : 0);
        if (zmq_send(chan->socket, part[i].data, part[i].size, flags) < 0) {
            error = errno;
        } else {
            begun = true;
        }
    }
    if (error == 0) return STATUS_OK;
    return error == EAGAIN ? STATUS_RESOURCE_EXHAUSTED : STATUS_UNAVAILABLE;
}

const char *chan_endpoint(const struct chan *chan) {
    return chan->endpoint;
}

uint64_t chan_dropped_messages(const struct chan *chan) {
    return chan->dropped_messages;
}

uint64_t chan_missed_edges(const struct chan *chan) {
    return chan->watch.missed_edges + chan->monitor_watch.missed_edges;
}

/* ============================== closing ======================================================= */

static void destroy(struct chan *chan) {
    if (chan->monitor != NULL) {
        zmq_socket_monitor(chan->socket, NULL, 0);
        zmq_close(chan->monitor);
    }
    if (chan->socket != NULL) zmq_close(chan->socket);
    endpoint_release(&chan->claim);
    if (chan->closed != NULL) chan->closed(chan->closed_user);
    free(chan);
}

static void part_stopped(void *user) {
    struct chan *chan = user;
    chan->parts_open--;
    if (chan->parts_open == 0) destroy(chan);
}

void chan_close(struct chan **chan_inout, void (*closed)(void *user), void *user) {
    struct chan *chan = *chan_inout;
    if (chan == NULL) return;
    *chan_inout = NULL;
    chan->closing = true;
    chan->closed = closed;
    chan->closed_user = user;
    if (chan->parts_open == 0) {
        destroy(chan);
        return;
    }
    if (chan->monitor_watch.watching) socket_watch_stop(&chan->monitor_watch, part_stopped);
    if (chan->watch.watching) socket_watch_stop(&chan->watch, part_stopped);
}
