/* The whole cluster in one process, from one seed.
 *
 *   sim_scenario ──▶ options, calls, faults
 *                       │
 *   sim_client ──bytes──▶ ┌─────────────┐ ──bytes──▶ sim_process (around sim_worker), one a rank
 *              ◀──bytes── │ core_step   │ ◀──bytes──
 *                         └─────────────┘
 *                 time, links, tokenizer jobs: the agenda
 *
 * sim_cluster is what loop.c is in production: it decodes what arrives with the production codec,
 * hands it to the core, and carries out the effects, encoded again. Time is virtual. What is sent
 * on one connection keeps its order; different connections overtake each other freely.
 *
 * The first violation ends the program with the seed and what was found.
 */
#ifndef ESPALIER_SIM_CLUSTER_H
#define ESPALIER_SIM_CLUSTER_H

#include "base/arena.h"
#include "core.h"
#include "sim_agenda.h"
#include "sim_client.h"
#include "sim_examine.h"
#include "sim_process.h"
#include "sim_random.h"
#include "sim_resize.h"

#define SIM_MS          INT64_C(1000000)
#define SIM_CONNECTIONS 512u

/* One deliberate mistake of the simulated world that the oracles must find. */
enum sim_canary {
    SIM_CANARY_NONE,
    SIM_CANARY_TOKEN, /* rank 0 draws another token once */
    SIM_CANARY_CACHE, /* a place of the cache changes by itself */
    SIM_CANARY_END,   /* an END is lost on its way to the client */
    SIM_CANARY_DELTA, /* a delta arrives twice */
    SIM_CANARY_STALL, /* a step never ends, and its ranks say they make progress */
    SIM_CANARY_COUNT,
};

/* How the world behaves; faults come at their own times (sim_scenario). */
struct sim_weather {
    uint32_t delay_us_max;   /* of a message */
    uint32_t laggard_us_max; /* of the last rank's messages, besides */
    uint32_t compute_us_max; /* of a step */
    uint32_t load_us_max;
    uint32_t stall_percent; /* of launches: a load that stands still */
    uint32_t relaunch_ms_max;
    uint32_t stay_dead_percent;     /* of processes, until the calm */
    uint32_t draft_len, draft_luck; /* of the workers' drafters */
};

enum sim_item_kind {
    SIM_ITEM_TICK,
    SIM_ITEM_TO_COORDINATOR, /* who: connection */
    SIM_ITEM_LOST,           /* who: connection; the coordinator learns of it */
    SIM_ITEM_TO_WORKER,      /* who: connection */
    SIM_ITEM_CLOSED,         /* who: connection; the worker learns of it */
    SIM_ITEM_LAUNCH,         /* who: rank */
    SIM_ITEM_RESUME,         /* who: rank */
    SIM_ITEM_PROCESS,        /* who: rank, what: enum of sim_process, value: its own */
    SIM_ITEM_CALL,           /* who: call */
    SIM_ITEM_CANCEL,         /* who: call, what: status */
    SIM_ITEM_JOB,            /* who: call, value: job */
    SIM_ITEM_FAULT,          /* who: of the scenario */
    SIM_ITEM_DRAIN,          /* value: time it has, in ns */
    SIM_ITEM_FLUSH,          /* of the prefix cache */
    SIM_ITEM_RESIZE,         /* of pool or batch */
    SIM_ITEM_EXAMINE,        /* of what ranks hold */
    SIM_ITEM_EXAMINE_CANCEL, /* who: of the examinations */
    SIM_ITEM_LIE_DUE,        /* value: generation; it must be over by now */
    SIM_ITEM_DRAIN_DUE,      /* the process must have ended by now */
    SIM_ITEM_CALM,           /* no more faults */
};

struct sim_connection {
    uint32_t rank;
    bool dropped, lost;     /* by the core; from its point of view */
    int64_t up_ns, down_ns; /* what was sent last arrives then */
};

struct journal;

struct sim_cluster {
    uint64_t seed;
    bool verbose;
    bool storm;
    enum sim_canary canary;
    struct journal *journal; /* NULL: none */
    struct sim_random random;
    struct sim_weather weather;
    struct core_options options;
    struct model_spec spec;
    struct core *core;
    struct arena wire, lent; /* of one message; what an event lends to the core */
    struct sim_agenda agenda;
    int64_t now_ns;
    int64_t skew_ns;         /* the core's clock is ahead by it */
    int64_t paused_until_ns; /* the coordinator stands still */
    int64_t tick_at_ns;
    struct sim_process process[TP_MAX];
    struct sim_connection connection[SIM_CONNECTIONS];
    uint32_t connection_count;
    struct sim_client client;
    struct sim_resizes resizes;
    struct sim_examines examines;
    bool disturbed; /* something happened that may cost a generation */
    bool calm, draining;
    bool is_exiting, exited; /* this event ends with it; it has */
    int exit_code;
    bool was_serving, is_serving; /* before and after the last event */
    uint32_t was_waiting;         /* requests, before it */
    uint64_t was_evicted;         /* pages, before it */
    uint64_t events, hash;
};

/* Run one seed to its end. Returns the hash of all events and effects. */
struct sim_run {
    uint64_t seed;
    bool verbose;
    bool storm; /* every client cancels, or has a deadline */
    enum sim_canary canary;
    uint64_t events_max; /* 0: no bound of its own */
    struct journal *journal;
};
uint64_t sim_cluster_run(const struct sim_run *run);

/* For the other parts. */
void sim_cluster_put(struct sim_cluster *cluster, int64_t delay_ns, struct sim_item item,
                     struct bytes bytes);
void sim_cluster_event(struct sim_cluster *cluster, struct event *event);

/* The connection of a rank's process breaks: both ends learn of it, each in its time. */
void sim_cluster_cut(struct sim_cluster *cluster, uint32_t rank);

/* A time of up to so many microseconds, in nanoseconds. */
int64_t sim_cluster_chance_us(struct sim_cluster *cluster, uint32_t us_max);

void sim_cluster_say(struct sim_cluster *cluster, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
_Noreturn void sim_cluster_fail(const struct sim_cluster *cluster, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Of all cores so far. */
struct sim_cluster_totals {
    uint64_t events, steps, retractions, evictions, tokens_cached, rows_ahead;
    uint64_t resizes, resizes_undone, pages_moved;
    uint64_t trees, guesses_right;
};
extern struct sim_cluster_totals sim_cluster_totals;

/* The seed that runs, for whoever must report it when the core itself gives up. */
const struct sim_cluster *sim_cluster_now(void);

#endif
