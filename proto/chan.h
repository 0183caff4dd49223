/* A ZeroMQ socket that carries our messages on a libuv loop: with zap.c and socket_watch.c, which
 * only serve it, the one place that touches ZeroMQ.
 *
 * A message has FRAME_PARTS parts after the routing id. Anything else is read to its end, dropped
 * and counted. At most CHAN_TURN_MESSAGES are received in a turn of the loop, so that a flood
 * cannot starve timers; how the loop is woken is told in socket_watch.h, which files an ipc
 * endpoint claims in endpoint.h.
 *
 * Who may connect. ZeroMQ's size limit counts one part and its queue limit whole messages, and it
 * keeps a message to itself until its last part has come: one peer that never sends a last part
 * makes the process grow without our seeing a byte. Nothing in a receiver can stop that, so the
 * guard is at the door: without CURVE a server listens only on ipc, in a directory closed to other
 * users, or on loopback; beyond, keys and an allow-list are required, and a stranger is cut off
 * during the handshake. That this works is tried at every start with a key made for it (zap.h). A
 * client likewise sends nothing in clear text off its machine.
 *
 * Thread: that of the loop, for every call.
 */
#ifndef ESPALIER_CHAN_H
#define ESPALIER_CHAN_H

#include <stdbool.h>
#include <uv.h>

#include "base/bytes.h"
#include "base/limits.h"
#include "base/status.h"
#include "zap.h"

#define CHAN_PEER_BYTES_MAX 64u
#define CHAN_TURN_MESSAGES  64u

enum chan_role {
    CHAN_SERVER, /* ROUTER, bound; peers have routing ids */
    CHAN_CLIENT, /* DEALER, connected, and again whenever the connection breaks */
};

enum chan_link {
    CHAN_LINK_UP,      /* connected; messages can be sent */
    CHAN_LINK_DOWN,    /* the connection broke; all that had come was received before this */
    CHAN_LINK_REFUSED, /* the server does not allow our key */
    CHAN_LINK_FOREIGN, /* one of us speaks CURVE and the other does not; not tried again */
    CHAN_LINK_CUT,     /* the server ended the handshake: another key than the one we expect of it,
                        * or it is about to end. Tried again, and told each time */
};

struct chan_options {
    enum chan_role role;
    const char *endpoint;
    size_t frame_bytes_max;  /* of one part; a peer that exceeds it is disconnected */
    int queue_messages;      /* high-water mark, per peer and direction */
    bool peer_may_reconnect; /* a new connection takes over its routing id (worker socket) */
    struct bytes routing_id; /* CLIENT: who to be; empty: any */
    /* CURVE, Z85 text of 40 characters each, NULL for none. Over ipc they are not used: its
     * directory is the guard. */
    const char *server_public_key; /* CLIENT */
    const char *public_key;
    const char *secret_key;
    struct zap *zap;        /* SERVER with keys: who knows whom to let in; borrowed */
    const char *zap_domain; /* and what this socket is to it */
    void (*on_link)(void *user, enum chan_link link); /* CLIENT; may be NULL */
};

struct chan;

/* part[] is borrowed for the call. peer is empty for a CLIENT. */
typedef void chan_receive_fn(void *user, struct bytes peer, const struct bytes part[FRAME_PARTS]);

/* loop, zmq_context and zap must outlive the channel. INVALID_ARGUMENT, PERMISSION_DENIED (policy,
 * directory, or the self-test of keys), ALREADY_EXISTS (another process holds the endpoint),
 * UNAVAILABLE. */
enum status chan_open(uv_loop_t *loop, void *zmq_context, const struct chan_options *options,
                      chan_receive_fn *receive, void *user, struct chan **chan_out,
                      struct error *err) MUST_USE;

/* Never blocks. UNAVAILABLE: no such peer, or no connection. RESOURCE_EXHAUSTED: its queue is full;
 * the caller decides who suffers. A peer that died while its queue was full may stay "full": judge
 * life by heartbeats. All parts or none are sent. */
enum status chan_send(struct chan *chan, struct bytes peer,
                      const struct bytes part[FRAME_PARTS]) MUST_USE;

/* CLIENT: drop what is not sent yet and connect anew, so that a later server is not asked what
 * nobody waits for any more. A connection that breaks is treated so by itself. */
void chan_reconnect(struct chan *chan);

/* The bound endpoint: for port 0, the one the kernel gave. */
const char *chan_endpoint(const struct chan *chan);

/* Wrong number of parts, a header or routing id too long. */
uint64_t chan_dropped_messages(const struct chan *chan);
uint64_t chan_missed_edges(const struct chan *chan); /* stays 0 */

/* Close; handles finish in the loop's next turns, then closed(user) is called, if given. The
 * pointer is nulled and no receive callback follows. What was sent still goes out, for
 * CHAN_LINGER_MS at most, while the context is terminated. */
#define CHAN_LINGER_MS 200
void chan_close(struct chan **chan, void (*closed)(void *user), void *user);

#endif
