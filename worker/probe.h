/* A worker's HTTP probes, answered by the control thread from what it knows of the compute thread.
 *
 *   path        200 when
 *   /livez      the process answers, and a step under way has made progress within the limit
 *   /startupz   weights are loaded
 *   /readyz     this rank is in a group
 *   /health     the same as /readyz
 */
#ifndef ESPALIER_PROBE_H
#define ESPALIER_PROBE_H

#include "compute.h"
#include "http.h"

#define PROBE_STALL_MS_MAX 60000 /* a step without progress for so long is stuck */

struct probe_state {
    uint32_t rank;
    bool connected; /* the coordinator has welcomed us */
    bool in_group;
    struct compute_progress progress;
    int64_t progress_ns; /* when it last changed, or computing began */
    int64_t now_ns;
};

/* A step is under way and makes no progress. */
bool probe_is_stuck(const struct probe_state *state);

void probe_get(const struct probe_state *state, const char *path, const char *query,
               struct http_answer *answer);

#endif
