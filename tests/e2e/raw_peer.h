/* A client, or a server, of the wire protocol that keeps no rule: it writes bytes, by hand, and
 * knows nothing of the project's own codec. Numbers are those of docs/PROTOCOL.md. */
#ifndef ESPALIER_RAW_PEER_H
#define ESPALIER_RAW_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RAW_CALL = 1, RAW_DATA = 2, RAW_END = 3, RAW_CANCEL = 4, RAW_PING = 6, RAW_NOTE = 9 };

/* A protobuf message in the making; what does not fit fails the test. */
struct raw_message {
    uint8_t data[4096];
    size_t bytes;
};

void raw_varint(struct raw_message *message, uint32_t field, uint64_t value);
void raw_bytes(struct raw_message *message, uint32_t field, const void *data, size_t bytes);
void raw_text(struct raw_message *message, uint32_t field, const char *text);
void raw_float(struct raw_message *message, uint32_t field, float value);

struct raw_peer {
    void *context, *socket;
    uint8_t caller[64]; /* of a server: the routing id of who was received last */
    size_t caller_bytes;
    uint64_t noise; /* state of raw_peer_draw: the same from run to run */
};

/* Connects to ipc://RUN_DIR/SOCKET. Sends never wait; what a full queue does not take is lost. */
void raw_peer_open(struct raw_peer *peer, const char *run_dir, const char *socket);
/* A server instead: it binds the socket, and answers whoever was received last. */
void raw_peer_serve(struct raw_peer *peer, const char *run_dir, const char *socket);

void raw_peer_close(struct raw_peer *peer);

/* The parts of one message; NULL ones are empty. */
void raw_peer_send(struct raw_peer *peer, const struct raw_message *header,
                   const struct raw_message *body);

/* A number below `below`, from a fixed sequence. */
uint32_t raw_peer_draw(struct raw_peer *peer, uint32_t below);

/* One message of `count` parts of random bytes, up to bytes_max each. */
void raw_peer_send_noise(struct raw_peer *peer, uint32_t count, size_t bytes_max);

/* How a call ended. */
struct raw_end {
    uint32_t status;
    char text[1024];
};
struct raw_end raw_peer_expect_end(struct raw_peer *peer, uint64_t call_id);

/* Does a message come within so long that contains the text? */
bool raw_peer_hears(struct raw_peer *peer, const char *text, long within_ms);

/* Wait until a message comes that contains `text`; fails the test where none does. */
void raw_peer_expect(struct raw_peer *peer, const char *text);

#endif
