/* The client library: talk to a coordinator from a plain C program. Blocking, one thread a client,
 * no event loop needed (it has one of its own); an ordinary ZeroMQ peer with no privilege.
 *
 *     struct client *client;
 *     if (client_open(&(struct client_options){.endpoint = "ipc:///run/espalier/client.sock"},
 *                     &client, &err)) ...
 *     client_generate(client, &request, on_delta, NULL, &summary, &err);
 *     client_close(&client);
 *
 * Statuses are those of the trailer. The library's own:
 *     UNAVAILABLE         no server, the connection broke, or no sign of life for silence_ms
 *     DEADLINE_EXCEEDED   the deadline passed here
 *     CANCELLED           the callback or the cancel flag said so
 *     DATA_LOSS           a message of the stream is missing
 *     INTERNAL            the server sent what makes no sense
 *     UNAUTHENTICATED     the server does not allow our key, or only one of us speaks CURVE
 *     INVALID_ARGUMENT    the request does not fit a message
 * A callback that takes longer than the server's patience (5 s) loses its call: nothing is read,
 * and no sign of life given, meanwhile.
 */
#ifndef ESPALIER_CLIENT_H
#define ESPALIER_CLIENT_H

#include <stdbool.h>

#include "message.h"

#define CLIENT_SILENCE_MS     4000u
#define CLIENT_CANCEL_WAIT_MS 500u /* for the trailer of a call we cancelled */

struct client;

struct client_options {
    const char *endpoint;
    uint32_t deadline_ms; /* of every call; 0: the server's cap */
    const char *server_public_key, *public_key, *secret_key; /* CURVE, or NULL */
    const volatile int *cancel; /* set non-zero, by a signal handler: cancels the call; or NULL */
    uint32_t silence_ms;        /* 0: CLIENT_SILENCE_MS */
};

/* Does not wait for the server: the first call does, up to its deadline or silence_ms. Strings are
 * copied, cancel is borrowed. INVALID_ARGUMENT, PERMISSION_DENIED (as chan_open). */
enum status client_open(const struct client_options *options, struct client **client_out,
                        struct error *err) MUST_USE;
void client_close(struct client **client);

/* Called for each delta; false cancels the call. The delta is borrowed for the call. */
typedef bool client_delta_fn(void *user, const struct generate_delta *delta);
typedef bool client_snapshot_fn(void *user, const struct snapshot *snapshot);
typedef bool client_health_fn(void *user, const struct health_reply *reply);
typedef bool client_resize_fn(void *user, const struct resize_progress *progress);
typedef bool client_examine_fn(void *user, const struct examine_report *report);

/* Returns when the call has ended. *summary_out is filled where the trailer has one, else cleared.
 */
enum status client_generate(struct client *client, const struct generate_request *request,
                            client_delta_fn *on_delta, void *user,
                            struct generate_summary *summary_out, struct error *err) MUST_USE;
enum status client_watch(struct client *client, const struct watch_request *request,
                         client_snapshot_fn *on_snapshot, void *user, struct error *err) MUST_USE;
enum status client_health(struct client *client, const char *service, client_health_fn *on_reply,
                          void *user, struct error *err) MUST_USE;
enum status client_health_watch(struct client *client, const char *service,
                                client_health_fn *on_reply, void *user, struct error *err) MUST_USE;
enum status client_flush(struct client *client, const struct flush_request *request,
                         struct error *err) MUST_USE;
enum status client_resize(struct client *client, const struct resize_request *request,
                          client_resize_fn *on_progress, void *user, struct error *err) MUST_USE;
enum status client_examine(struct client *client, const struct examine_request *request,
                           client_examine_fn *on_report, void *user, struct error *err) MUST_USE;
enum status client_drain(struct client *client, const struct drain_request *request,
                         struct error *err) MUST_USE;

#endif
