/* CURVE keys in a folder, as `espalier keygen DIR` makes it. Over TCP nobody talks without.
 *
 *     coordinator.secret   the coordinator's alone
 *     coordinator.public   whom workers and clients expect to find
 *     worker.secret        of all workers
 *     client.secret        of a client
 *     workers.allowed      public keys that may connect as workers, and as clients (allow_list.h):
 *     clients.allowed      both for the coordinator
 *
 * A program reads what it needs, so a machine is given no more than that. A key is 40 characters of
 * Z85; a public key follows from its secret one. A file with a secret key belongs to the one who
 * reads it, or to root, and is closed to everybody else (mode 0600 or less), or it is refused.
 *
 * Any thread.
 */
#ifndef ESPALIER_CURVE_KEYS_H
#define ESPALIER_CURVE_KEYS_H

#include <stdbool.h>

#include "base/status.h"

#define CURVE_KEY_TEXT_LEN       40u
#define CURVE_COORDINATOR_PUBLIC "coordinator.public"
#define CURVE_COORDINATOR_SECRET "coordinator.secret"
#define CURVE_WORKER_SECRET      "worker.secret"
#define CURVE_CLIENT_SECRET      "client.secret"
#define CURVE_WORKERS_ALLOWED    "workers.allowed"
#define CURVE_CLIENTS_ALLOWED    "clients.allowed"

struct curve_pair {
    char public_key[CURVE_KEY_TEXT_LEN + 1];
    char secret_key[CURVE_KEY_TEXT_LEN + 1];
};

/* What one needs to call a coordinator. */
struct curve_caller {
    char server_public_key[CURVE_KEY_TEXT_LEN + 1];
    struct curve_pair own;
};

bool curve_keys_is_key(const char *text);

/* A new pair. */
void curve_keys_make(struct curve_pair *pair_out);

/* dir/name holds a secret key. Besides file_open's: PERMISSION_DENIED (open to others),
 * INVALID_ARGUMENT (no key). */
enum status curve_keys_read_pair(const char *dir, const char *name, struct curve_pair *pair_out,
                                 struct error *err) MUST_USE;

/* The coordinator's public key. */
enum status curve_keys_read_server(const char *dir, char key_out[CURVE_KEY_TEXT_LEN + 1],
                                   struct error *err) MUST_USE;

/* The coordinator's public key and the secret one in dir/name. */
enum status curve_keys_read_caller(const char *dir, const char *name,
                                   struct curve_caller *caller_out, struct error *err) MUST_USE;

#endif
