/* GET /metrics of a worker: what this rank alone knows (exposition.h). The coordinator's own say
 * how the group does; these say where the time of a rank goes. Thread: the control thread. */
#ifndef ESPALIER_RANK_METRICS_H
#define ESPALIER_RANK_METRICS_H

#include "compute.h"
#include "http.h"
#include "probe.h"

void rank_metrics_answer(const struct probe_state *state, const struct compute_numbers *numbers,
                         struct http_answer *answer);

#endif
