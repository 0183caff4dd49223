/* A small HTTP/1.1 server for probes and metrics: GET only, short answers, no bodies read.
 *
 * It must answer while its process is busy, and outside text must not hurt it: at most
 * HTTP_CONNECTIONS_MAX connections, each with a bounded request and an idle limit. Loopback unless
 * told otherwise. Thread: that of the loop.
 */
#ifndef ESPALIER_HTTP_H
#define ESPALIER_HTTP_H

#include <uv.h>

#include "base/status.h"

#define HTTP_CONNECTIONS_MAX   64u
#define HTTP_REQUEST_BYTES_MAX 4096u
#define HTTP_ANSWER_BYTES_MAX  (256u << 10)
#define HTTP_IDLE_MS           5000u

struct http_answer {
    int code;                 /* 200, 404, 503, ... */
    const char *content_type; /* static */
    char *body;               /* [HTTP_ANSWER_BYTES_MAX], to be filled by the handler */
    size_t body_bytes;
};

/* path: without the query ("/readyz"); query: after the `?`, or "". Both borrowed. */
typedef void http_get_fn(void *user, const char *path, const char *query,
                         struct http_answer *answer);

struct http_server;

/* address: "127.0.0.1:0" takes any free port. */
enum status http_server_open(uv_loop_t *loop, const char *address, http_get_fn *on_get, void *user,
                             struct http_server **server_out, struct error *err) MUST_USE;

/* "127.0.0.1:41234": what was bound. */
const char *http_server_address(const struct http_server *server);
void http_server_close(struct http_server **server);

/* Blocking client for `espalier probe` and tests: GET http://address/path_and_query. *code_out is
 * the HTTP status, body_out is NUL-terminated and cut at body_bytes_max. UNAVAILABLE,
 * DEADLINE_EXCEEDED. */
enum status http_get(const char *address, const char *path_and_query, int timeout_ms,
                     int *code_out, char *body_out, size_t body_bytes_max,
                     struct error *err) MUST_USE;

#endif
