/* Waiting for a group to become ready, with its progress shown. */
#ifndef ESPALIER_GROUP_WAIT_H
#define ESPALIER_GROUP_WAIT_H

#include <stdbool.h>

#include "client.h"

/* Returns when the group that a client with these options finds is ready. *options->cancel
 * non-zero: CANCELLED. show: a progress bar on standard error. UNAVAILABLE: the coordinator is
 * gone. */
enum status group_wait(const struct client_options *options, bool show, struct error *err) MUST_USE;

#endif
