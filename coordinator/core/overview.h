/* What the core shows of itself: how things stand, to Watch, status and probes; what is wrong, to
 * who asks about health.
 *
 * It looks at the other parts and changes nothing but its own texts, which live until the next
 * look.
 */
#ifndef ESPALIER_OVERVIEW_H
#define ESPALIER_OVERVIEW_H

#include "commit.h"
#include "roster.h"
#include "scheduler.h"

/* Borrowed for the life of the overview. */
struct overview_parts {
    const struct core_options *options;
    const struct roster *roster;
    const struct request_table *requests;
    struct scheduler *scheduler; /* for the line that says how it guesses */
    const struct commit *commit;
    const bool *draining;
    const int64_t *start_ns; /* of the first event; 0: none yet */
};

#define OVERVIEW_TROUBLE_BYTES_MAX 160u

struct overview {
    struct overview_parts parts;
    struct rank_status rank_status[TP_MAX];
    char trouble[TP_MAX][OVERVIEW_TROUBLE_BYTES_MAX];
    char trouble_line[OVERVIEW_TROUBLE_BYTES_MAX + 16]; /* the first of them, with its rank */
    char test_line[OVERVIEW_TROUBLE_BYTES_MAX]; /* the first rank in a self-test, and where */
};

void overview_init(struct overview *overview, const struct overview_parts *parts);

/* As core_snapshot, core_health and core_in_trouble in core.h. */
struct snapshot overview_snapshot(struct overview *overview, int64_t now_ns);
struct health_reply overview_health(struct overview *overview, const char *service, int64_t now_ns);
bool overview_in_trouble(struct overview *overview, int64_t now_ns);

/* The step in flight as the roster sees it; NULL: there is none. */
const struct roster_step *overview_step(const struct overview *overview,
                                        struct roster_step *step_out);

#endif
