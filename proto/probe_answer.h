/* What a probe says, the same from every process: 200 or 503, and a JSON line for a person.
 *
 *     {"ok": false, "state": "loading", "reason": "weights 42 %"}
 */
#ifndef ESPALIER_PROBE_ANSWER_H
#define ESPALIER_PROBE_ANSWER_H

#include <stdbool.h>

#include "http.h"

/* state is one of our own words; reason is quoted and may be empty. */
void probe_answer_fill(struct http_answer *answer, bool ok, const char *state, const char *reason);

/* 404: no such path. */
void probe_answer_unknown(struct http_answer *answer, const char *path);

#endif
