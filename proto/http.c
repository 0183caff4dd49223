/* One connection's life:
 *
 *     READING ──request complete, or refused──▶ ANSWERING ──written──▶ DRAINING ──EOF──▶ closed
 *        └────────────── idle limit, eviction, error ───────────────────┴──────────────▶ closed
 *
 * A connection is answered once and closed: probes and scrapers gain little from keep-alive, and a
 * server without it has no second request to get wrong. DRAINING reads and forgets what the peer
 * still sends, because closing a socket with unread bytes resets it and can take the answer along.
 * When all slots are taken the oldest connection makes room, so slow or silent peers cannot keep
 * a probe out; the newcomer stays unaccepted until that slot is free, at the end of the turn.
 */
#include "http.h"

#include <errno.h>
#include <fcntl.h>
#include <http_parser.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"

#define HTTP_BACKLOG        128
#define HTTP_ADDRESS_MAX    64u
#define HTTP_HEAD_BYTES_MAX 256u
#define HTTP_READ_BYTES     4096u
#define HTTP_DRAIN_MS       1000u

enum connection_state {
    CONNECTION_FREE,
    CONNECTION_READING,
    CONNECTION_ANSWERING,
    CONNECTION_DRAINING,
    CONNECTION_CLOSING
};

struct connection {
    struct http_server *server;
    enum connection_state state;
    uint64_t order; /* of arrival */
    uint32_t open_handles;
    uv_tcp_t tcp;
    uv_timer_t timer; /* an absolute limit a state: a byte a second does not extend it */
    uv_write_t write;
    uv_shutdown_t shutdown;
    char *answer; /* being written; owned */
    http_parser parser;
    uint32_t request_bytes;
    bool peer_done; /* it has sent its last byte */
    uint32_t url_bytes;
    char url[HTTP_REQUEST_BYTES_MAX + 1];
};

struct http_server {
    uv_tcp_t listener;
    bool closing;
    bool newcomer_waits;
    uint32_t users; /* the listener and every connection not FREE; the last one frees */
    uint64_t arrivals;
    http_get_fn *on_get;
    void *user;
    char address[HTTP_ADDRESS_MAX];
    struct connection connection[HTTP_CONNECTIONS_MAX];
    char read_buffer[HTTP_READ_BYTES];
    char body[HTTP_ANSWER_BYTES_MAX];
};

static const char *reason_phrase(int code) {
    switch (code) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 431: return "Request Header Fields Too Large";
    case 503: return "Service Unavailable";
    default: return "Status";
    }
}

/* ============================== closing ======================================================= */

static void accept_newcomer(struct http_server *server);

static void release_server(struct http_server *server) {
    CHECK(server->users > 0);
    server->users--;
    if (server->users == 0) free(server);
}

static void handle_closed(uv_handle_t *handle) {
    struct connection *connection = handle->data;
    connection->open_handles--;
    if (connection->open_handles > 0) return;
    free(connection->answer);
    connection->answer = NULL;
    connection->state = CONNECTION_FREE;
    struct http_server *server = connection->server;
    if (server->newcomer_waits && !server->closing) accept_newcomer(server);
    release_server(server);
}

static void close_connection(struct connection *connection) {
    if (connection->state == CONNECTION_CLOSING) return;
    connection->state = CONNECTION_CLOSING;
    uv_close((uv_handle_t *)&connection->tcp, handle_closed);
    uv_close((uv_handle_t *)&connection->timer, handle_closed);
}

static void time_is_up(uv_timer_t *timer) {
    close_connection(timer->data);
}

/* ============================== answering ===================================================== */

static void sent(uv_shutdown_t *shutdown, int status) {
    struct connection *connection = shutdown->data;
    if (status < 0 || connection->peer_done) close_connection(connection);
}

static void written(uv_write_t *write, int status) {
    struct connection *connection = write->data;
    if (connection->state == CONNECTION_CLOSING) return;
    connection->shutdown.data = connection;
    if (status < 0 || uv_shutdown(&connection->shutdown, (uv_stream_t *)&connection->tcp, sent)) {
        close_connection(connection);
        return;
    }
    connection->state = CONNECTION_DRAINING;
    uv_timer_start(&connection->timer, time_is_up, HTTP_DRAIN_MS, 0);
}

static void send_answer(struct connection *connection, const struct http_answer *answer) {
    CHECK(answer->body_bytes <= HTTP_ANSWER_BYTES_MAX);
    connection->answer = malloc(HTTP_HEAD_BYTES_MAX + answer->body_bytes);
    CHECK(connection->answer != NULL);
    int head_bytes = snprintf(connection->answer, HTTP_HEAD_BYTES_MAX,
                              "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
                              "%sConnection: close\r\n\r\n",
                              answer->code, reason_phrase(answer->code), answer->content_type,
                              answer->body_bytes, answer->code == 405 ? "Allow: GET\r\n" : "");
    CHECK(head_bytes > 0 && (size_t)head_bytes < HTTP_HEAD_BYTES_MAX);
    memcpy(connection->answer + head_bytes, answer->body, answer->body_bytes);

    connection->state = CONNECTION_ANSWERING;
    connection->write.data = connection;
    uv_buf_t buffer = uv_buf_init(connection->answer,
                                  (unsigned)head_bytes + (unsigned)answer->body_bytes);
    uv_stream_t *stream = (uv_stream_t *)&connection->tcp;
    if (uv_write(&connection->write, stream, &buffer, 1, written) != 0)
        close_connection(connection);
}

static void refuse(struct connection *connection, int code) {
    struct http_answer answer = {
        .code = code, .content_type = "text/plain", .body = connection->server->body};
    answer.body_bytes = (size_t)snprintf(answer.body, HTTP_ANSWER_BYTES_MAX, "%d %s\n", code,
                                         reason_phrase(code));
    send_answer(connection, &answer);
}

static void answer_get(struct connection *connection) {
    struct http_server *server = connection->server;
    struct http_answer answer = {
        .code = 404, .content_type = "text/plain", .body = server->body, .body_bytes = 0};
    connection->url[connection->url_bytes] = '\0';
    char *query = strchr(connection->url, '?');
    if (query != NULL) *query++ = '\0';
    server->on_get(server->user, connection->url, query != NULL ? query : "", &answer);
    send_answer(connection, &answer);
}

/* ============================== reading ======================================================= */

static int url_part(http_parser *parser, const char *data, size_t size) {
    struct connection *connection = parser->data;
    CHECK(size <= HTTP_REQUEST_BYTES_MAX - connection->url_bytes); /* a part of the request */
    memcpy(connection->url + connection->url_bytes, data, size);
    connection->url_bytes += (uint32_t)size;
    return 0;
}

/* A GET's body, if it has one, is not waited for; whatever follows is forgotten. */
static int headers_complete(http_parser *parser) {
    struct connection *connection = parser->data;
    if (parser->method != HTTP_GET) {
        refuse(connection, 405);
    } else if (connection->url[0] != '/') {
        refuse(connection, 400);
    } else {
        answer_get(connection);
    }
    http_parser_pause(parser, 1);
    return 0;
}

static const http_parser_settings REQUEST_SETTINGS = {
    .on_url = url_part,
    .on_headers_complete = headers_complete,
};

static void give_read_buffer(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer) {
    (void)suggested;
    struct connection *connection = handle->data;
    *buffer = uv_buf_init(connection->server->read_buffer, HTTP_READ_BYTES);
}

static void bytes_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buffer) {
    struct connection *connection = stream->data;
    if (size == UV_EOF && connection->state == CONNECTION_ANSWERING) {
        connection->peer_done = true;
    } else if (size < 0) {
        close_connection(connection);
    }
    if (size <= 0 || connection->state != CONNECTION_READING) return;
    uint32_t room = HTTP_REQUEST_BYTES_MAX - connection->request_bytes;
    uint32_t taken = (size_t)size < room ? (uint32_t)size : room;
    connection->request_bytes += taken;
    http_parser_execute(&connection->parser, &REQUEST_SETTINGS, buffer->base, taken);
    if (connection->state != CONNECTION_READING) return;
    if (HTTP_PARSER_ERRNO(&connection->parser) != HPE_OK) {
        refuse(connection, 400);
    } else if (connection->request_bytes == HTTP_REQUEST_BYTES_MAX) {
        refuse(connection, 431);
    }
}

/* ============================== accepting ===================================================== */

static struct connection *find_slot(struct http_server *server) {
    for (uint32_t i = 0; i < HTTP_CONNECTIONS_MAX; i++) {
        if (server->connection[i].state == CONNECTION_FREE) return &server->connection[i];
    }
    return NULL;
}

static void evict_oldest(struct http_server *server) {
    struct connection *oldest = NULL;
    for (uint32_t i = 0; i < HTTP_CONNECTIONS_MAX; i++) {
        struct connection *connection = &server->connection[i];
        if (connection->state == CONNECTION_CLOSING) continue;
        if (oldest == NULL || connection->order < oldest->order) oldest = connection;
    }
    if (oldest != NULL) close_connection(oldest);
}

static void accept_newcomer(struct http_server *server) {
    struct connection *connection = find_slot(server);
    server->newcomer_waits = connection == NULL;
    if (connection == NULL) {
        evict_oldest(server);
        return;
    }
    memset(connection, 0, sizeof *connection);
    connection->server = server;
    connection->state = CONNECTION_READING;
    connection->order = server->arrivals++;
    http_parser_init(&connection->parser, HTTP_REQUEST);
    connection->parser.data = connection;
    CHECK(uv_tcp_init(server->listener.loop, &connection->tcp) == 0);
    CHECK(uv_timer_init(server->listener.loop, &connection->timer) == 0);
    connection->tcp.data = connection;
    connection->timer.data = connection;
    connection->open_handles = 2;
    server->users++;

    uv_stream_t *stream = (uv_stream_t *)&connection->tcp;
    uv_timer_start(&connection->timer, time_is_up, HTTP_IDLE_MS, 0);
    if (uv_accept((uv_stream_t *)&server->listener, stream) != 0 ||
        uv_read_start(stream, give_read_buffer, bytes_read) != 0)
        close_connection(connection);
}

static void somebody_connects(uv_stream_t *listener, int status) {
    if (status == 0) accept_newcomer(listener->data);
}

/* ============================== server ======================================================== */

/* "127.0.0.1:80" or "[::1]:80": numbers only, since a probe must not wait for a resolver. */
static enum status parse_address(const char *text, struct sockaddr_storage *address_out,
                                 struct error *err) {
    char host[HTTP_ADDRESS_MAX];
    const char *colon = strrchr(text, ':');
    size_t host_bytes = colon == NULL ? 0 : (size_t)(colon - text);
    char *end = NULL;
    unsigned long port = colon == NULL ? 0 : strtoul(colon + 1, &end, 10);
    bool ok = host_bytes > 0 && host_bytes < sizeof host && colon[1] >= '0' && colon[1] <= '9' &&
              *end == '\0' && port <= UINT16_MAX;
    if (ok && text[0] == '[' && colon[-1] == ']') {
        snprintf(host, sizeof host, "%.*s", (int)host_bytes - 2, text + 1);
        ok = uv_ip6_addr(host, (int)port, (struct sockaddr_in6 *)address_out) == 0;
    } else if (ok) {
        snprintf(host, sizeof host, "%.*s", (int)host_bytes, text);
        ok = uv_ip4_addr(host, (int)port, (struct sockaddr_in *)address_out) == 0;
    }
    if (ok) return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "address: found \"%s\", accepted: IPV4:PORT or [IPV6]:PORT", text);
}

static int note_bound_address(struct http_server *server) {
    struct sockaddr_storage bound;
    char host[HTTP_ADDRESS_MAX];
    int size = sizeof bound;
    int rc = uv_tcp_getsockname(&server->listener, (struct sockaddr *)&bound, &size);
    if (rc != 0) return rc;
    if (bound.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&bound;
        uv_ip6_name(in6, host, sizeof host);
        snprintf(server->address, HTTP_ADDRESS_MAX, "[%.45s]:%u", host, ntohs(in6->sin6_port));
    } else {
        const struct sockaddr_in *in = (const struct sockaddr_in *)&bound;
        uv_ip4_name(in, host, sizeof host);
        snprintf(server->address, HTTP_ADDRESS_MAX, "%.15s:%u", host, ntohs(in->sin_port));
    }
    return 0;
}

enum status http_server_open(uv_loop_t *loop, const char *address, http_get_fn *on_get, void *user,
                             struct http_server **server_out, struct error *err) {
    *server_out = NULL;
    struct sockaddr_storage bind_to;
    enum status status = parse_address(address, &bind_to, err);
    if (status != STATUS_OK) return status;

    struct http_server *server = calloc(1, sizeof *server);
    CHECK(server != NULL);
    server->on_get = on_get;
    server->user = user;
    server->users = 1;
    CHECK(uv_tcp_init(loop, &server->listener) == 0);
    server->listener.data = server;
    int rc = uv_tcp_bind(&server->listener, (struct sockaddr *)&bind_to, 0);
    if (rc == 0) rc = uv_listen((uv_stream_t *)&server->listener, HTTP_BACKLOG, somebody_connects);
    if (rc == 0) rc = note_bound_address(server);
    if (rc == 0) {
        *server_out = server;
        return STATUS_OK;
    }
    http_server_close(&server);
    status = rc == UV_EADDRINUSE ? STATUS_ALREADY_EXISTS
             : rc == UV_EACCES   ? STATUS_PERMISSION_DENIED
                                 : STATUS_UNAVAILABLE;
    return error_set(err, status, "cannot listen on %s: %s", address, uv_strerror(rc));
}

const char *http_server_address(const struct http_server *server) {
    return server->address;
}

static void listener_closed(uv_handle_t *handle) {
    release_server(handle->data);
}

void http_server_close(struct http_server **server_inout) {
    struct http_server *server = *server_inout;
    if (server == NULL) return;
    *server_inout = NULL;
    server->closing = true;
    for (uint32_t i = 0; i < HTTP_CONNECTIONS_MAX; i++) {
        if (server->connection[i].state != CONNECTION_FREE)
            close_connection(&server->connection[i]);
    }
    uv_close((uv_handle_t *)&server->listener, listener_closed);
}

/* ============================== client ======================================================== */

struct exchange {
    const char *address;
    int fd;
    int64_t deadline_ns;
    char *body;
    size_t body_bytes, body_bytes_max;
    bool complete;
};

/* DEADLINE_EXCEEDED where the socket is not ready for `events` in time. */
static enum status wait_for(const struct exchange *exchange, short events, struct error *err) {
    for (;;) {
        int64_t left_ms = (exchange->deadline_ns - clock_now_ns() + NS_PER_MS - 1) / NS_PER_MS;
        struct pollfd pollfd = {.fd = exchange->fd, .events = events};
        int rc = left_ms <= 0 ? 0 : poll(&pollfd, 1, (int)left_ms);
        if (rc > 0) return STATUS_OK;
        if (rc == 0)
            return error_set(err, STATUS_DEADLINE_EXCEEDED, "no answer from %s in time",
                             exchange->address);
        if (errno != EINTR) return error_set(err, STATUS_UNAVAILABLE, "poll: %s", strerror(errno));
    }
}

static enum status fail(const struct exchange *exchange, int error, struct error *err) {
    return error_set(err, STATUS_UNAVAILABLE, "%s: %s", exchange->address, strerror(error));
}

static enum status connect_to(struct exchange *exchange, const struct sockaddr_storage *address,
                              struct error *err) {
    socklen_t size = address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                                    : sizeof(struct sockaddr_in);
    exchange->fd = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (exchange->fd < 0) return fail(exchange, errno, err);
    if (connect(exchange->fd, (const struct sockaddr *)address, size) == 0) return STATUS_OK;
    if (errno != EINPROGRESS) return fail(exchange, errno, err);
    enum status status = wait_for(exchange, POLLOUT, err);
    if (status != STATUS_OK) return status;
    int error = 0;
    socklen_t error_size = sizeof error;
    if (getsockopt(exchange->fd, SOL_SOCKET, SO_ERROR, &error, &error_size) != 0) error = errno;
    return error == 0 ? STATUS_OK : fail(exchange, error, err);
}

static enum status send_request(struct exchange *exchange, const char *path_and_query,
                                struct error *err) {
    char request[HTTP_REQUEST_BYTES_MAX];
    int size = snprintf(request, sizeof request,
                        "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path_and_query,
                        exchange->address);
    if (size < 0 || (size_t)size >= sizeof request || path_and_query[0] != '/' ||
        path_and_query[strcspn(path_and_query, " \t\r\n")] != '\0')
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "path: found \"%.80s\", accepted: at most %u bytes, starting with /, "
                         "without spaces",
                         path_and_query, HTTP_REQUEST_BYTES_MAX / 2);
    for (int done = 0; done < size;) {
        enum status status = wait_for(exchange, POLLOUT, err);
        if (status != STATUS_OK) return status;
        ssize_t n = send(exchange->fd, request + done, (size_t)(size - done), MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR) return fail(exchange, errno, err);
        if (n > 0) done += (int)n;
    }
    return STATUS_OK;
}

static int keep_body(http_parser *parser, const char *data, size_t size) {
    struct exchange *exchange = parser->data;
    size_t room = exchange->body_bytes_max - 1 - exchange->body_bytes;
    if (size > room) size = room;
    memcpy(exchange->body + exchange->body_bytes, data, size);
    exchange->body_bytes += size;
    exchange->body[exchange->body_bytes] = '\0';
    return 0;
}

static int answer_complete(http_parser *parser) {
    struct exchange *exchange = parser->data;
    exchange->complete = true;
    return 0;
}

static enum status read_answer(struct exchange *exchange, int *code_out, struct error *err) {
    static const http_parser_settings settings = {.on_body = keep_body,
                                                  .on_message_complete = answer_complete};
    http_parser parser;
    http_parser_init(&parser, HTTP_RESPONSE);
    parser.data = exchange;
    while (!exchange->complete) {
        char buffer[HTTP_READ_BYTES];
        enum status status = wait_for(exchange, POLLIN, err);
        if (status != STATUS_OK) return status;
        ssize_t size = recv(exchange->fd, buffer, sizeof buffer, 0);
        if (size < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (size < 0) return fail(exchange, errno, err);
        http_parser_execute(&parser, &settings, buffer, (size_t)size);
        if (HTTP_PARSER_ERRNO(&parser) != HPE_OK || (size == 0 && !exchange->complete))
            return error_set(err, STATUS_UNAVAILABLE, "%s: not an HTTP answer", exchange->address);
    }
    *code_out = parser.status_code;
    return STATUS_OK;
}

enum status http_get(const char *address, const char *path_and_query, int timeout_ms, int *code_out,
                     char *body_out, size_t body_bytes_max, struct error *err) {
    CHECK(body_bytes_max > 0);
    body_out[0] = '\0';
    struct exchange exchange = {.address = address,
                                .fd = -1,
                                .deadline_ns = clock_now_ns() + timeout_ms * NS_PER_MS,
                                .body = body_out,
                                .body_bytes_max = body_bytes_max};
    struct sockaddr_storage to;
    enum status status = parse_address(address, &to, err);
    if (status == STATUS_OK) status = connect_to(&exchange, &to, err);
    if (status == STATUS_OK) status = send_request(&exchange, path_and_query, err);
    if (status == STATUS_OK) status = read_answer(&exchange, code_out, err);
    if (exchange.fd >= 0) close(exchange.fd);
    return status;
}
