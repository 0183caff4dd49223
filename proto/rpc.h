/* The server's half of a call: status, relative deadline, credits, cancel, and a trailer always.
 *
 *     CALL ──▶ on_call ──▶ rpc_send* ──▶ rpc_end         every accepted call gets exactly one END
 *                 ▲                          │
 *     CANCEL, deadline, client gone or silent for CLIENT_EXPIRY, reader too slow
 *                 └──▶ on_cancel: the owner must call rpc_end
 *
 * A DATA message costs the caller one credit. Without credit messages wait in the call's queue,
 * which is bounded in messages and bytes: a reader too slow for it has its call cancelled with
 * RESOURCE_EXHAUSTED, nobody else is touched. An END never waits for credit, but for the queue.
 * A cancelled call's queue is dropped and its END carries the reason it was cancelled for, whatever
 * rpc_end says: an END(OK) means that every message was sent. That holds after rpc_end too, while
 * the queue empties: a deadline or CANCEL that comes first decides the status.
 *
 * Refused with an END of their own, unseen by the owner: an unknown method (UNIMPLEMENTED), a call
 * id that is open already (ALREADY_EXISTS), too many calls (RESOURCE_EXHAUSTED), an attachment or a
 * header that makes no sense but names a call (INVALID_ARGUMENT), while draining any call but
 * those that only observe (UNAVAILABLE, with a DRAIN note that names the last call accepted; 0:
 * none of those open). Other malformed messages are dropped and counted. Idempotency keys are
 * carried, not acted on.
 *
 * Thread: that of the loop.
 */
#ifndef ESPALIER_RPC_H
#define ESPALIER_RPC_H

#include "base/pool.h"
#include "chan.h"
#include "message.h"

#define RPC_CALLS_MAX            4096u
#define RPC_CALLS_PER_CLIENT_MAX 1024u
#define RPC_DEADLINE_MS_MAX      (24u * 3600u * 1000u)
#define RPC_CREDITS_DEFAULT      64u   /* where a CALL names none */
#define RPC_QUEUE_MESSAGES_MAX   4096u /* of one call, waiting for credit */
#define RPC_QUEUE_BYTES_MAX      (4u << 20)
#define RPC_QUEUE_BYTES_TOTAL    (256u << 20) /* of all calls */
#define RPC_PING_MS              1000u
#define RPC_CLIENT_EXPIRY_MS     5000u

struct rpc_server;

struct rpc_handlers {
    /* A call was accepted. header and body are borrowed for the call. May send and end at once. */
    void (*on_call)(void *user, struct pool_id call, const struct header *header,
                    struct bytes body);
    /* The call is no longer wanted: CANCELLED, DEADLINE_EXCEEDED or RESOURCE_EXHAUSTED. Once a
     * call, and never from inside rpc_send. The owner ends it with rpc_end, now or later; until
     * then the id stays valid. */
    void (*on_cancel)(void *user, struct pool_id call, enum status reason);
    void *user;
    const char *const *methods; /* ends with NULL; others are UNIMPLEMENTED. NULL: all go through */
    const char *const *observing; /* of the methods, those that are answered while draining as well;
                                     ends with NULL. NULL: none */
    uint32_t client_expiry_ms;    /* 0: RPC_CLIENT_EXPIRY_MS */
};

/* Binds options->endpoint (role SERVER). */
enum status rpc_server_open(uv_loop_t *loop, void *zmq_context, const struct chan_options *options,
                            const struct rpc_handlers *handlers, struct rpc_server **server_out,
                            struct error *err) MUST_USE;

/* Queue one DATA message; body is copied. Nothing after on_cancel reaches the client, and no
 * status is owed: the server keeps the rule that a stream has no gap. */
void rpc_send(struct rpc_server *server, struct pool_id call, struct bytes body);

/* The trailer; the id is dead after it. text may be empty; body may hold a last message. */
void rpc_end(struct rpc_server *server, struct pool_id call, enum status status, const char *text,
             struct bytes body);

/* Refuse new calls from now on, those that observe aside. */
void rpc_server_drain(struct rpc_server *server);

/* Calls not ended yet, or whose END still waits behind their queue. */
uint32_t rpc_server_open_calls(const struct rpc_server *server);
const char *rpc_server_endpoint(const struct rpc_server *server);

struct rpc_counters {
    uint64_t accepted, refused; /* calls */
    uint64_t dropped_messages;  /* wrong parts, malformed headers, kinds only a server sends */
    uint64_t missed_edges;      /* stays 0 */
};
void rpc_server_count(const struct rpc_server *server, struct rpc_counters *counters_out);

/* Every open call is ended with UNAVAILABLE first; what can be sent without waiting, is. No handler
 * is called any more. */
void rpc_server_close(struct rpc_server **server, void (*closed)(void *user), void *user);

#endif
