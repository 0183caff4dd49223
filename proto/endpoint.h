/* Where a ZeroMQ socket may be: `ipc:///ABSOLUTE/PATH` and `tcp://HOST:PORT`, nothing else that
 * ZeroMQ was built with.
 *
 * Binding an ipc path in ZeroMQ steals it silently from whoever has it. So a path is claimed first:
 *
 *     DIR             ours, closed to group and others; created with mode 0700 where it is missing
 *     DIR/NAME.lock   flock'ed for as long as the claim lasts; a kill -9 lets it go
 *     DIR/NAME        the socket; one that is there while the lock was free is a leftover
 */
#ifndef ESPALIER_ENDPOINT_H
#define ESPALIER_ENDPOINT_H

#include <stdbool.h>

#include "base/status.h"

#define ENDPOINT_PATH_MAX 107u /* of sockaddr_un, without the NUL */
#define ENDPOINT_HOST_MAX 253u

enum endpoint_scheme { ENDPOINT_IPC, ENDPOINT_TCP };

struct endpoint {
    enum endpoint_scheme scheme;
    char path[ENDPOINT_PATH_MAX + 1]; /* IPC */
    char host[ENDPOINT_HOST_MAX + 1]; /* TCP, without brackets; "*": every interface */
    bool ipv6;                        /* TCP: host stood in brackets */
    bool local;                       /* ipc, or a loopback address: stays on this machine */
};

enum endpoint_use { ENDPOINT_BIND, ENDPOINT_CONNECT };

/* A host to bind is an address or `*`; a host to connect to may also be a name. INVALID_ARGUMENT
 * says what was found and what is accepted. */
enum status endpoint_parse(const char *text, enum endpoint_use use, struct endpoint *endpoint_out,
                           struct error *err) MUST_USE;

/* An ipc path that is ours to listen on. */
struct endpoint_claim {
    char path[ENDPOINT_PATH_MAX + 1];
    int lock_fd;    /* -1: nothing claimed */
    int listen_fd;  /* bound and listening; whoever takes it sets -1 here */
    bool listening; /* path names our socket */
};

/* ALREADY_EXISTS: another process has it. PERMISSION_DENIED: the directory is not ours alone.
 * UNAVAILABLE: the file system says no. */
enum status endpoint_claim(const struct endpoint *endpoint, struct endpoint_claim *claim_out,
                           struct error *err) MUST_USE;

/* Remove the socket and the lock file and let go. No effect where nothing is claimed. */
void endpoint_release(struct endpoint_claim *claim);

#endif
