#include "raw_peer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include <cmocka.h>

#include "processes.h"

#define PARTS 3

static void put(struct raw_message *message, uint64_t value) {
    do {
        assert_true(message->bytes < sizeof message->data);
        message->data[message->bytes++] = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
    } while (value > 0);
}

void raw_varint(struct raw_message *message, uint32_t field, uint64_t value) {
    put(message, field << 3);
    put(message, value);
}

void raw_bytes(struct raw_message *message, uint32_t field, const void *data, size_t bytes) {
    put(message, field << 3 | 2);
    put(message, bytes);
    assert_true(message->bytes + bytes <= sizeof message->data);
    memcpy(message->data + message->bytes, data, bytes);
    message->bytes += bytes;
}

void raw_float(struct raw_message *message, uint32_t field, float value) {
    put(message, field << 3 | 5);
    assert_true(message->bytes + sizeof value <= sizeof message->data);
    memcpy(message->data + message->bytes, &value, sizeof value);
    message->bytes += sizeof value;
}

void raw_text(struct raw_message *message, uint32_t field, const char *text) {
    raw_bytes(message, field, text, strlen(text));
}

static void make_socket(struct raw_peer *peer, int type) {
    int linger = 0, unlimited = 0;
    peer->noise = 7;
    peer->caller_bytes = 0;
    peer->context = zmq_ctx_new();
    peer->socket = zmq_socket(peer->context, type);
    assert_non_null(peer->socket);
    assert_int_equal(zmq_setsockopt(peer->socket, ZMQ_LINGER, &linger, sizeof linger), 0);
    assert_int_equal(zmq_setsockopt(peer->socket, ZMQ_SNDHWM, &unlimited, sizeof unlimited), 0);
}

void raw_peer_open(struct raw_peer *peer, const char *run_dir, const char *socket) {
    char endpoint[128];
    snprintf(endpoint, sizeof endpoint, "ipc://%s/%s", run_dir, socket);
    make_socket(peer, ZMQ_DEALER);
    assert_int_equal(zmq_connect(peer->socket, endpoint), 0);
}

void raw_peer_serve(struct raw_peer *peer, const char *run_dir, const char *socket) {
    char endpoint[128];
    snprintf(endpoint, sizeof endpoint, "ipc://%s/%s", run_dir, socket);
    make_socket(peer, ZMQ_ROUTER);
    assert_int_equal(zmq_bind(peer->socket, endpoint), 0);
}

void raw_peer_close(struct raw_peer *peer) {
    zmq_close(peer->socket);
    zmq_ctx_term(peer->context);
}

void raw_peer_send(struct raw_peer *peer, const struct raw_message *header,
                   const struct raw_message *body) {
    const struct raw_message *part[PARTS] = {header, body, NULL};
    if (peer->caller_bytes > 0)
        (void)zmq_send(peer->socket, peer->caller, peer->caller_bytes, ZMQ_DONTWAIT | ZMQ_SNDMORE);
    for (int i = 0; i < PARTS; i++)
        (void)zmq_send(peer->socket, part[i] ? part[i]->data : NULL, part[i] ? part[i]->bytes : 0,
                       ZMQ_DONTWAIT | (i + 1 < PARTS ? ZMQ_SNDMORE : 0));
}

/* Knuth's MMIX generator; its upper bits are the good ones. */
uint32_t raw_peer_draw(struct raw_peer *peer, uint32_t below) {
    peer->noise = peer->noise * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((peer->noise >> 33) % below);
}

void raw_peer_send_noise(struct raw_peer *peer, uint32_t count, size_t bytes_max) {
    uint8_t *data = malloc(bytes_max);
    assert_non_null(data);
    for (uint32_t i = 0; i < count; i++) {
        size_t bytes = raw_peer_draw(peer, (uint32_t)bytes_max + 1);
        for (size_t b = 0; b < bytes; b++)
            data[b] = (uint8_t)raw_peer_draw(peer, 256);
        (void)zmq_send(peer->socket, data, bytes, ZMQ_DONTWAIT | (i + 1 < count ? ZMQ_SNDMORE : 0));
    }
    free(data);
}

static bool is_server(const struct raw_peer *peer) {
    int type;
    size_t length = sizeof type;
    return zmq_getsockopt(peer->socket, ZMQ_TYPE, &type, &length) == 0 && type == ZMQ_ROUTER;
}

static void keep_caller(struct raw_peer *peer, const uint8_t *id, size_t bytes) {
    assert_true(bytes <= sizeof peer->caller);
    memcpy(peer->caller, id, bytes);
    peer->caller_bytes = bytes;
}

/* The parts of the next message, one behind the other and cut at *bytes, which becomes their
 * length; false where none waits. */
static bool receive(struct raw_peer *peer, uint8_t *data, size_t *bytes) {
    size_t room = *bytes;
    *bytes = 0;
    int more = 1;
    for (size_t length = sizeof more; more; length = sizeof more) {
        int size = zmq_recv(peer->socket, data + *bytes, room - *bytes, ZMQ_DONTWAIT);
        if (size < 0) return false;
        if (*bytes == 0 && is_server(peer)) keep_caller(peer, data, (size_t)size);
        *bytes += (size_t)size < room - *bytes ? (size_t)size : room - *bytes;
        assert_int_equal(zmq_getsockopt(peer->socket, ZMQ_RCVMORE, &more, &length), 0);
    }
    return true;
}

static uint64_t take(const uint8_t *data, size_t bytes, size_t *at) {
    uint64_t value = 0;
    for (uint32_t shift = 0; *at < bytes; shift += 7) {
        uint8_t next = data[(*at)++];
        value |= (uint64_t)(next & 0x7f) << shift;
        if (!(next & 0x80)) break;
    }
    return value;
}

/* Is this header the END of the call? The numbers are those of runtime.proto. */
static bool is_end(const uint8_t *data, size_t bytes, uint64_t call_id, struct raw_end *end_out) {
    uint64_t kind = 0, id = 0;
    *end_out = (struct raw_end){.status = 0};
    for (size_t at = 0; at < bytes;) {
        uint64_t tag = take(data, bytes, &at);
        uint64_t value = (tag & 7) == 1 ? 0 : take(data, bytes, &at); /* fixed64 is not ours */
        if ((tag & 7) == 1) at += 8;
        if (tag >> 3 == 2) kind = value;
        if (tag >> 3 == 3) id = value;
        if (tag >> 3 == 13) end_out->status = (uint32_t)value;
        if ((tag & 7) != 2) continue;
        assert_true(value <= bytes - at);
        if (tag >> 3 == 14)
            snprintf(end_out->text, sizeof end_out->text, "%.*s", (int)value, data + at);
        at += value;
    }
    return kind == RAW_END && id == call_id;
}

struct raw_end raw_peer_expect_end(struct raw_peer *peer, uint64_t call_id) {
    uint8_t data[8192];
    struct raw_end end;
    long begin_ms = processes_now_ms();
    while (processes_now_ms() - begin_ms < PROCESSES_PATIENCE_MS) {
        int more = 1;
        size_t length = sizeof more;
        int header = zmq_recv(peer->socket, data, sizeof data, ZMQ_DONTWAIT);
        if (header < 0) {
            processes_sleep_ms(2);
            continue;
        }
        bool ends = is_end(data, (size_t)header, call_id, &end);
        assert_int_equal(zmq_getsockopt(peer->socket, ZMQ_RCVMORE, &more, &length), 0);
        while (more) { /* body and attachment */
            (void)zmq_recv(peer->socket, data, sizeof data, 0);
            assert_int_equal(zmq_getsockopt(peer->socket, ZMQ_RCVMORE, &more, &length), 0);
        }
        if (ends) return end;
    }
    fail_msg("call %llu has no end", (unsigned long long)call_id);
    return end;
}

bool raw_peer_hears(struct raw_peer *peer, const char *text, long within_ms) {
    uint8_t data[8192];
    long begin_ms = processes_now_ms();
    while (processes_now_ms() - begin_ms < within_ms) {
        size_t bytes = sizeof data;
        if (!receive(peer, data, &bytes))
            processes_sleep_ms(2);
        else if (memmem(data, bytes, text, strlen(text)))
            return true;
    }
    return false;
}

void raw_peer_expect(struct raw_peer *peer, const char *text) {
    if (!raw_peer_hears(peer, text, PROCESSES_PATIENCE_MS))
        fail_msg("no message contains \"%s\"", text);
}
