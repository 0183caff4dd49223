/* The coordinator's HTTP probes: what supervisors and load balancers ask.
 *
 *   path        200 when
 *   /livez      the loop answers;            ?rank=N: the rank's process is there and in order
 *   /startupz   a group has once been ready; ?rank=N: its weights are loaded
 *   /readyz     a call would be accepted and served; ?rank=N: the rank is in the current group
 *   /health     the same as /readyz
 *
 * A rank that is silent, or makes no progress in a step for longer than that step may take, is not
 * ready, and neither is the whole. Answers come from the core's state and start no work, so they
 * cost nothing under load and do not pile up behind it. Thread: that of the loop.
 */
#ifndef ESPALIER_PROBES_H
#define ESPALIER_PROBES_H

#include "core/core.h"
#include "http.h"

/* now_ns: as for core_snapshot. */
void probes_answer(struct core *core, int64_t now_ns, const char *path, const char *query,
                   struct http_answer *answer);

#endif
