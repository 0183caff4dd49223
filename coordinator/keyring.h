/* Who may connect to the coordinator over TCP: its own key, a list of keys for each of its two
 * doors, and the handler that ZeroMQ asks at every handshake (zap.h). All of it lies in the folder
 * of --curve-keys (curve_keys.h). Thread: that of the loop.
 */
#ifndef ESPALIER_KEYRING_H
#define ESPALIER_KEYRING_H

#include "chan.h"

struct keyring;

enum keyring_door { KEYRING_CLIENTS, KEYRING_WORKERS };

/* Errors are those of curve_keys_read_pair, allow_list_open and zap_open. */
enum status keyring_open(uv_loop_t *loop, void *zmq_context, const char *dir,
                         struct keyring **keyring_out, struct error *err) MUST_USE;

/* Put the door's keys into options; keyring NULL: none. Borrowed until keyring_close. */
void keyring_guard(const struct keyring *keyring, enum keyring_door door,
                   struct chan_options *options);

/* Read the lists now and log what is in them, or what is wrong with them. */
void keyring_reread(struct keyring *keyring);

/* Nobody new is let in any more. */
void keyring_close(struct keyring **keyring);

#endif
