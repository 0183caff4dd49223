/* GET /metrics: what the coordinator knows, as Prometheus reads it (exposition.h).
 *
 * Every name begins with `espalier_`, has its unit and ends in `_total` where it only grows; the
 * stems are those of other servers, so that a dashboard moves by search and replace. With a
 * compat the same numbers appear once more under that server's own names. Answers come from the
 * core's state and start no work. Thread: that of the loop.
 */
#ifndef ESPALIER_METRICS_H
#define ESPALIER_METRICS_H

#include "core.h"
#include "http.h"

enum metrics_compat { METRICS_OWN, METRICS_SGLANG, METRICS_VLLM };

/* now_ns: as for core_snapshot. */
void metrics_answer(struct core *core, enum metrics_compat compat, int64_t now_ns,
                    struct http_answer *answer);

#endif
