/* Who may connect over CURVE: ZeroMQ's authentication protocol (ZAP, RFC 27) answered from lists
 * of public keys.
 *
 * CURVE alone encrypts and accepts anybody. Only a handler at inproc://zeromq.zap.01, together with
 * a domain that the socket enforces, refuses strangers; it must be there before the socket listens.
 * ZeroMQ has one such address a context. The domain says which door a peer knocks at, and each has
 * a list of its own: a client's key opens no place among the workers. Thread: the loop's.
 */
#ifndef ESPALIER_ZAP_H
#define ESPALIER_ZAP_H

#include <uv.h>

#include "allow_list.h"

#define ZAP_DOMAINS_MAX    4u
#define ZAP_STATUS_REFUSED 400u /* our answer to a stranger, and what its own monitor says */

struct zap;

/* Start answering, everybody with no. ALREADY_EXISTS: the context has a handler. */
enum status zap_open(uv_loop_t *loop, void *zmq_context, struct zap **zap_out,
                     struct error *err) MUST_USE;

/* Whoever knocks at `domain` (static text) is let in by this list, borrowed for the life of zap. */
void zap_add(struct zap *zap, const char *domain, struct allow_list *list);

/* Make the server ask us for every connection, and refuse all where nobody answers. */
enum status zap_enforce(void *server_socket, const char *domain, struct error *err) MUST_USE;

/* Knock at a server of this context with a key made for it. OK: it was turned away, so the whole
 * chain of socket, library and handler works. PERMISSION_DENIED: it was let in. UNAVAILABLE:
 * neither. Blocks for some milliseconds; others who knock meanwhile are answered. */
enum status zap_self_test(struct zap *zap, void *zmq_context, const char *endpoint,
                          const char *server_public_key, struct error *err) MUST_USE;

/* The pointer is nulled; memory goes in the loop's next turns. */
void zap_close(struct zap **zap);

#endif
