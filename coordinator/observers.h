/* Calls that look on: Watch streams, Health.Watch streams, and Drain calls waiting for the end.
 *
 * They read the core's snapshot and health and never change it, so they are served by the shell:
 * the core knows nothing of them. One timer serves all, and stands still while there are none.
 *
 * Thread: that of the loop.
 */
#ifndef ESPALIER_OBSERVERS_H
#define ESPALIER_OBSERVERS_H

#include <uv.h>

#include "core/core.h"
#include "rpc.h"

#define OBSERVERS_MAX             256u
#define OBSERVERS_INTERVAL_MS_MIN 50u

struct observers;

/* All are borrowed and must outlive the observers. */
struct observers *observers_create(uv_loop_t *loop, struct rpc_server *server, struct core *core);

/* Serve a Watch, Health.Check, Health.Watch or Drain call. True: it is a Drain with *drain_out,
 * whose END waits for observers_drained. */
bool observers_call(struct observers *observers, struct pool_id call, const char *method,
                    struct bytes body, struct drain_request *drain_out);

/* False: the call is not one of ours. */
bool observers_cancel(struct observers *observers, struct pool_id call, enum status reason);

/* Something happened that may have changed somebody's health. */
void observers_health_changed(struct observers *observers);

/* The drain is over: its callers get their END. */
void observers_drained(struct observers *observers);

/* The memory goes when the loop has turned once more. */
void observers_destroy(struct observers **observers);

#endif
