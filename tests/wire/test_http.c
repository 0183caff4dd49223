/* The probes' HTTP server, against raw sockets: what it answers, and what it does not fall for. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "http.h"
#include "net_support.h"

#define MANY 100

/* A server whose loop runs in a thread of its own, as the blocking client needs. */
struct server {
    uv_loop_t loop;
    struct http_server *http;
    uv_async_t stop;
    uv_thread_t thread;
    char address[64];
};

static void on_get(void *user, const char *path, const char *query, struct http_answer *answer) {
    (void)user;
    int size = 0;
    if (strcmp(path, "/echo") == 0) {
        answer->code = 200;
        size = snprintf(answer->body, HTTP_ANSWER_BYTES_MAX, "query=%s", query);
    } else if (strcmp(path, "/busy") == 0) {
        answer->code = 503;
        answer->content_type = "application/json";
        size = snprintf(answer->body, HTTP_ANSWER_BYTES_MAX, "{}");
    } else if (strcmp(path, "/large") == 0) {
        answer->code = 200;
        memset(answer->body, 'x', HTTP_ANSWER_BYTES_MAX);
        size = (int)HTTP_ANSWER_BYTES_MAX;
    }
    answer->body_bytes = (size_t)size;
}

static void stop_now(uv_async_t *async) {
    struct server *server = async->data;
    http_server_close(&server->http);
    uv_close((uv_handle_t *)async, NULL);
}

static void serve(void *user) {
    struct server *server = user;
    uv_run(&server->loop, UV_RUN_DEFAULT);
}

static void server_start(struct server *server, const char *address) {
    struct error err = {0};
    assert_int_equal(uv_loop_init(&server->loop), 0);
    if (http_server_open(&server->loop, address, on_get, server, &server->http, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    snprintf(server->address, sizeof server->address, "%s", http_server_address(server->http));
    assert_int_equal(uv_async_init(&server->loop, &server->stop, stop_now), 0);
    server->stop.data = server;
    assert_int_equal(uv_thread_create(&server->thread, serve, server), 0);
}

static void server_stop(struct server *server) {
    uv_async_send(&server->stop);
    uv_thread_join(&server->thread);
    assert_int_equal(uv_loop_close(&server->loop), 0);
    assert_null(server->http);
}

static int connect_raw(const struct server *server) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons((uint16_t)strtoul(strrchr(server->address, ':') + 1, NULL, 10));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void send_raw(int fd, const char *text) {
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* All that comes until the server closes, cut at the buffer's end. Returns the bytes that came. */
static size_t read_all(int fd, char *buffer, size_t size) {
    size_t total = 0;
    char rest[4096];
    for (;;) {
        struct pollfd pollfd = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&pollfd, 1, NET_WAIT_MS), 1);
        bool room = total < size - 1;
        ssize_t n = recv(fd, room ? buffer + total : rest, room ? size - 1 - total : sizeof rest,
                         0);
        assert_true(n >= 0);
        if (n == 0) break;
        total += (size_t)n;
    }
    buffer[total < size ? total : size - 1] = '\0';
    return total;
}

static void expect_raw(const struct server *server, const char *request, const char *first_line) {
    char answer[1024];
    int fd = connect_raw(server);
    send_raw(fd, request);
    read_all(fd, answer, sizeof answer);
    if (strncmp(answer, first_line, strlen(first_line)) != 0)
        fail_msg("%.60s: found \"%.60s\", expected \"%s\"", request, answer, first_line);
    assert_non_null(strstr(answer, "\r\nConnection: close\r\n"));
    close(fd);
}

static void expect_get(const struct server *server, const char *path, int code, const char *body) {
    char found[256];
    int found_code = 0;
    struct error err = {0};
    if (http_get(server->address, path, NET_WAIT_MS, &found_code, found, sizeof found, &err) !=
        STATUS_OK)
        fail_msg("%s: %s", path, err.text);
    assert_int_equal(found_code, code);
    assert_string_equal(found, body);
}

static void answers_are_those_of_the_handler(void **state) {
    (void)state;
    static const char *const addresses[] = {"127.0.0.1:0", "[::1]:0"};
    for (int i = 0; i < 2; i++) {
        struct server server;
        server_start(&server, addresses[i]);
        expect_get(&server, "/echo", 200, "query=");
        expect_get(&server, "/echo?rank=3&x=%20", 200, "query=rank=3&x=%20");
        expect_get(&server, "/echo?a?b", 200, "query=a?b");
        expect_get(&server, "/busy", 503, "{}");
        expect_get(&server, "/nothing", 404, "");
        server_stop(&server);
    }
}

static void a_large_answer_arrives_whole(void **state) {
    (void)state;
    struct server server;
    struct error err;
    int code;
    char *body = malloc(2 * HTTP_ANSWER_BYTES_MAX);
    server_start(&server, "127.0.0.1:0");
    assert_int_equal(http_get(server.address, "/large", NET_WAIT_MS, &code, body,
                              2 * HTTP_ANSWER_BYTES_MAX, &err),
                     STATUS_OK);
    assert_int_equal(strlen(body), HTTP_ANSWER_BYTES_MAX);
    assert_int_equal(http_get(server.address, "/large", NET_WAIT_MS, &code, body, 11, &err),
                     STATUS_OK);
    assert_string_equal(body, "xxxxxxxxxx"); /* cut */
    server_stop(&server);
    free(body);
}

static void what_is_no_plain_get_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *request, *first_line;
    } cases[] = {
        {"GET /echo HTTP/1.1\r\nHost: h\r\n\r\n", "HTTP/1.1 200 OK\r\n"},
        {"GET /echo HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK\r\n"},
        {"POST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 405 "},
        {"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 405 "},
        {"HEAD /echo HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "},
        {"CONNECT host:1 HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "},
        {"GET http://host/echo HTTP/1.1\r\n\r\n", "HTTP/1.1 400 "},
        {"GET * HTTP/1.1\r\n\r\n", "HTTP/1.1 400 "},
        {"nonsense\r\n\r\n", "HTTP/1.1 400 "},
        {"\x16\x03\x01\x02", "HTTP/1.1 400 "},
        {"GET /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\n", "HTTP/1.1 200 OK\r\n"},
        {"GET /echo HTTP/1.1\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "HTTP/1.1 200 OK\r\n"},
    };
    struct server server;
    server_start(&server, "127.0.0.1:0");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_raw(&server, cases[i].request, cases[i].first_line);
    server_stop(&server);
}

static void a_huge_head_is_refused_and_not_kept(void **state) {
    (void)state;
    struct server server;
    static char request[3][HTTP_REQUEST_BYTES_MAX * 4];
    size_t size = sizeof request[0];
    memset(request, 'a', sizeof request);
    memcpy(request[0], "GET /", 5);
    request[0][size - 1] = '\0';
    memcpy(request[1], "GET /echo HTTP/1.1\r\nX: ", 23);
    request[1][size - 1] = '\0';
    size_t at = (size_t)snprintf(request[2], size, "GET /echo HTTP/1.1\r\n");
    for (size_t i = 0; at < size - 16; i++)
        at += (size_t)snprintf(request[2] + at, size - at, "X%zu: y\r\n", i);
    server_start(&server, "127.0.0.1:0");
    for (int i = 0; i < 3; i++)
        expect_raw(&server, request[i], "HTTP/1.1 431 ");
    expect_get(&server, "/echo", 200, "query=");
    server_stop(&server);
}

static void only_the_first_of_a_pipeline_is_answered(void **state) {
    (void)state;
    struct server server;
    char answer[1024];
    server_start(&server, "127.0.0.1:0");
    int fd = connect_raw(&server);
    for (int i = 0; i < 20; i++)
        send_raw(fd, "GET /echo?1 HTTP/1.1\r\n\r\nGET /echo?2 HTTP/1.1\r\n\r\n");
    shutdown(fd, SHUT_WR);
    read_all(fd, answer, sizeof answer);
    assert_non_null(strstr(answer, "query=1"));
    assert_null(strstr(answer, "query=2"));
    assert_null(strstr(strstr(answer, "query=1") + 7, "HTTP/1.1"));
    close(fd);
    server_stop(&server);
}

static void a_request_in_pieces_is_one_request(void **state) {
    (void)state;
    struct server server;
    char answer[1024];
    server_start(&server, "127.0.0.1:0");
    int fd = connect_raw(&server);
    int one = 1;
    setsockopt(fd, 6, 1, &one, sizeof one); /* TCP_NODELAY */
    const char *request = "GET /echo?pieces HTTP/1.1\r\nHost: somewhere\r\n\r\n";
    for (const char *at = request; *at != '\0'; at++) {
        assert_int_equal(send(fd, at, 1, MSG_NOSIGNAL), 1);
        usleep(200);
    }
    read_all(fd, answer, sizeof answer);
    assert_non_null(strstr(answer, "query=pieces"));
    close(fd);
    server_stop(&server);
}

/* Peers that hold more connections than there are, and drip a byte now and then. The oldest make
 * room at once: a probe does not wait for the idle limit to close them. */
static void slow_peers_keep_no_probe_out(void **state) {
    (void)state;
    struct server server;
    int fd[MANY];
    server_start(&server, "127.0.0.1:0");
    for (int i = 0; i < MANY; i++) {
        fd[i] = connect_raw(&server);
        send_raw(fd[i], "GET /ec");
    }
    char body[64];
    int code = 0;
    struct error err = {0};
    if (http_get(server.address, "/echo", HTTP_IDLE_MS * 4 / 5, &code, body, sizeof body, &err) !=
        STATUS_OK)
        fail_msg("%s", err.text);
    assert_int_equal(code, 200);
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < MANY; k++)
            send(fd[k], "h", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        expect_get(&server, "/echo", 200, "query=");
    }
    for (int i = 0; i < MANY; i++)
        close(fd[i]);
    server_stop(&server);
}

/* A socket closed with bytes unread would reset the connection, and take the answer with it. */
static void who_goes_on_sending_gets_its_answer_whole(void **state) {
    (void)state;
    struct server server;
    static char junk[20001], answer[2 * HTTP_ANSWER_BYTES_MAX];
    memset(junk, 'j', sizeof junk - 1);
    server_start(&server, "127.0.0.1:0");
    int fd = connect_raw(&server);
    send_raw(fd, "GET /large HTTP/1.1\r\n\r\n");
    struct pollfd pollfd = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&pollfd, 1, NET_WAIT_MS), 1);
    usleep(100000); /* so that all is written; less only makes the test weaker */
    send_raw(fd, junk);
    usleep(50000);
    size_t size = read_all(fd, answer, sizeof answer);
    const char *body = strstr(answer, "\r\n\r\n");
    assert_non_null(body);
    assert_int_equal(size - (size_t)(body + 4 - answer), HTTP_ANSWER_BYTES_MAX);
    close(fd);
    server_stop(&server);
}

static void a_silent_peer_is_closed_in_the_end(void **state) {
    (void)state;
    struct server server;
    char answer[64];
    server_start(&server, "127.0.0.1:0");
    int fd = connect_raw(&server);
    send_raw(fd, "GET /echo HTTP/1.1\r\n");
    assert_int_equal(read_all(fd, answer, sizeof answer), 0);
    close(fd);
    server_stop(&server);
}

static void many_at_once_are_all_answered(void **state) {
    (void)state;
    struct server server;
    int fd[MANY / 2];
    char answer[1024];
    server_start(&server, "127.0.0.1:0");
    for (int i = 0; i < MANY / 2; i++)
        fd[i] = connect_raw(&server);
    for (int i = 0; i < MANY / 2; i++)
        send_raw(fd[i], "GET /echo HTTP/1.1\r\n\r\n");
    for (int i = 0; i < MANY / 2; i++) {
        read_all(fd[i], answer, sizeof answer);
        assert_non_null(strstr(answer, "query="));
        close(fd[i]);
    }
    server_stop(&server);
}

static void closing_with_peers_at_hand_leaks_nothing(void **state) {
    (void)state;
    struct server server;
    int fd[10];
    server_start(&server, "127.0.0.1:0");
    for (int i = 0; i < 10; i++) {
        fd[i] = connect_raw(&server);
        send_raw(fd[i], i % 2 == 0 ? "GET /lar" : "GET /large HTTP/1.1\r\n\r\n");
    }
    expect_get(&server, "/echo", 200, "query=");
    server_stop(&server); /* the sanitizers look on */
    for (int i = 0; i < 10; i++)
        close(fd[i]);
}

static void addresses_are_numbers(void **state) {
    (void)state;
    static const struct {
        const char *address;
        enum status expected;
    } cases[] = {
        {"127.0.0.1:0", STATUS_OK},
        {"0.0.0.0:0", STATUS_OK},
        {"[::1]:0", STATUS_OK},
        {"localhost:0", STATUS_INVALID_ARGUMENT},
        {"127.0.0.1", STATUS_INVALID_ARGUMENT},
        {"127.0.0.1:", STATUS_INVALID_ARGUMENT},
        {"127.0.0.1:65536", STATUS_INVALID_ARGUMENT},
        {"127.0.0.1:-1", STATUS_INVALID_ARGUMENT},
        {"127.0.0.1:80x", STATUS_INVALID_ARGUMENT},
        {"::1:80", STATUS_INVALID_ARGUMENT},
        {"[::1:80", STATUS_INVALID_ARGUMENT},
        {":80", STATUS_INVALID_ARGUMENT},
        {"", STATUS_INVALID_ARGUMENT},
        {"192.0.2.1:0", STATUS_UNAVAILABLE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uv_loop_t loop;
        struct http_server *http;
        struct error err = {0};
        uv_loop_init(&loop);
        enum status status = http_server_open(&loop, cases[i].address, on_get, NULL, &http, &err);
        if (status != cases[i].expected)
            fail_msg("\"%s\": %s %s", cases[i].address, status_name(status), err.text);
        assert_int_equal(http != NULL, status == STATUS_OK);
        http_server_close(&http);
        net_finish(&loop);
    }
}

static void an_address_in_use_is_refused(void **state) {
    (void)state;
    struct server server;
    struct http_server *second;
    struct error err = {0};
    uv_loop_t loop;
    server_start(&server, "127.0.0.1:0");
    uv_loop_init(&loop);
    assert_int_equal(http_server_open(&loop, server.address, on_get, NULL, &second, &err),
                     STATUS_ALREADY_EXISTS);
    assert_non_null(strstr(err.text, server.address));
    net_finish(&loop);
    server_stop(&server);
}

/* ============================== the client ==================================================== */

/* A listener that answers every connection with `text` (NULL: nothing) and closes, or does not. */
struct fake {
    int fd;
    const char *text;
    char address[64];
    uv_thread_t thread;
};

static void fake_answers(void *user) {
    struct fake *fake = user;
    int fd = accept(fake->fd, NULL, NULL);
    char request[4096];
    ssize_t size = recv(fd, request, sizeof request, 0);
    if (fake->text != NULL && size > 0) {
        send(fd, fake->text, strlen(fake->text), MSG_NOSIGNAL);
    } else {
        while (recv(fd, request, sizeof request, 0) > 0)
            ;
    }
    close(fd);
}

static void fake_start(struct fake *fake, const char *text) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    fake->text = text;
    fake->fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fake->fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fake->fd, 8), 0);
    assert_int_equal(getsockname(fake->fd, (struct sockaddr *)&at, &size), 0);
    snprintf(fake->address, sizeof fake->address, "127.0.0.1:%u", ntohs(at.sin_port));
    assert_int_equal(uv_thread_create(&fake->thread, fake_answers, fake), 0);
}

static void fake_stop(struct fake *fake) {
    uv_thread_join(&fake->thread);
    close(fake->fd);
}

static void the_client_believes_only_http(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int timeout_ms;
        enum status expected;
        const char *body;
    } cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", NET_WAIT_MS, STATUS_OK, "ok"},
        {"HTTP/1.0 200 OK\r\n\r\nuntil the end", NET_WAIT_MS, STATUS_OK, "until the end"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
         NET_WAIT_MS, STATUS_OK, "abc"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", NET_WAIT_MS, STATUS_UNAVAILABLE,
         "short"},
        {"SSH-2.0-something\r\n", NET_WAIT_MS, STATUS_UNAVAILABLE, ""},
        {"", NET_WAIT_MS, STATUS_UNAVAILABLE, ""},
        {NULL, 50, STATUS_DEADLINE_EXCEEDED, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fake fake;
        struct error err = {0};
        char body[64];
        int code = 0;
        fake_start(&fake, cases[i].text);
        enum status status = http_get(fake.address, "/", cases[i].timeout_ms, &code, body,
                                      sizeof body, &err);
        fake_stop(&fake);
        if (status != cases[i].expected) fail_msg("case %zu: %s", i, err.text);
        assert_string_equal(body, cases[i].body);
        assert_int_equal(code, status == STATUS_OK ? 200 : 0);
    }
}

static void the_client_says_what_it_cannot_do(void **state) {
    (void)state;
    struct server server;
    char body[64];
    int code;
    server_start(&server, "127.0.0.1:0");
    static const struct {
        const char *path;
        enum status expected;
    } cases[] = {{"/echo", STATUS_OK},
                 {"echo", STATUS_INVALID_ARGUMENT},
                 {"", STATUS_INVALID_ARGUMENT},
                 {"/a b", STATUS_INVALID_ARGUMENT},
                 {"/a\r\nX: y", STATUS_INVALID_ARGUMENT}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error err = {0};
        enum status status = http_get(server.address, cases[i].path, NET_WAIT_MS, &code, body,
                                      sizeof body, &err);
        if (status != cases[i].expected) fail_msg("\"%s\": %s", cases[i].path, err.text);
    }
    char address[64];
    struct error err = {0};
    snprintf(address, sizeof address, "%s", server.address);
    server_stop(&server);
    assert_int_equal(http_get(address, "/", NET_WAIT_MS, &code, body, sizeof body, &err),
                     STATUS_UNAVAILABLE); /* nobody there */
    assert_non_null(strstr(err.text, address));
    assert_int_equal(http_get("nowhere", "/", NET_WAIT_MS, &code, body, sizeof body, &err),
                     STATUS_INVALID_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_the_handler),
        cmocka_unit_test(a_large_answer_arrives_whole),
        cmocka_unit_test(what_is_no_plain_get_is_refused),
        cmocka_unit_test(a_huge_head_is_refused_and_not_kept),
        cmocka_unit_test(only_the_first_of_a_pipeline_is_answered),
        cmocka_unit_test(a_request_in_pieces_is_one_request),
        cmocka_unit_test(slow_peers_keep_no_probe_out),
        cmocka_unit_test(who_goes_on_sending_gets_its_answer_whole),
        cmocka_unit_test(a_silent_peer_is_closed_in_the_end),
        cmocka_unit_test(many_at_once_are_all_answered),
        cmocka_unit_test(closing_with_peers_at_hand_leaks_nothing),
        cmocka_unit_test(addresses_are_numbers),
        cmocka_unit_test(an_address_in_use_is_refused),
        cmocka_unit_test(the_client_believes_only_http),
        cmocka_unit_test(the_client_says_what_it_cannot_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
