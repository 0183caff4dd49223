#include "sim_coverage.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "request.h"
#include "roster.h"
#include "sim_admission.h"
#include "sim_cluster.h"

#define STATES_MAX 8u

/* One machine: its arrows as the diagram has them, and how often each was seen. */
struct machine {
    const char *name;
    const char *const *state;
    uint32_t state_count;
    const char *arrows; /* "AB" pairs of state initials, ended by NUL; see letter[] */
    const char *letter; /* one a state */
    uint64_t seen[STATES_MAX][STATES_MAX];
};

static const char *const request_state[] = {"free",    "queued", "waiting",
                                            "prefill", "decode", "leaving"};
static const char *const rank_state[] = {"absent", "loading", "loaded", "ready", "lost"};
static const char *const group_state[] = {"gathering", "preparing", "forming", "serving", "gone"};

static struct machine requests = {
    .name = "request",
    .state = request_state,
    .state_count = REQUEST_STATE_COUNT,
    .letter = "FQWPDL",
    .arrows = "FQ FP QW QF WP WF PD PW PL PF DW DL DF LF",
};
static struct machine ranks = {
    .name = "rank",
    .state = rank_state,
    .state_count = 5,
    .letter = "ALDRX",
    .arrows = "AL LD LX DR DX RD RX XL",
};
static struct machine groups = {
    .name = "group",
    .state = group_state,
    .state_count = ROSTER_GROUP_COUNT,
    .letter = "GPFSX",
    .arrows = "GP GX PF PG PX FS FG FX SG SX",
};

static uint32_t index_of(const struct machine *machine, char letter) {
    return (uint32_t)(strchr(machine->letter, letter) - machine->letter);
}

static bool is_legal(const struct machine *machine, uint32_t from, uint32_t to) {
    const char *arrow = machine->arrows;
    for (; *arrow != '\0'; arrow += arrow[2] == ' ' ? 3 : 2)
        if (index_of(machine, arrow[0]) == from && index_of(machine, arrow[1]) == to) return true;
    return false;
}

/* A replayed core is not watched: its cluster was elsewhere. */
static void see(struct machine *machine, uint32_t from, uint32_t to) {
    if (from == to || !sim_cluster_now()) return;
    machine->seen[from][to]++;
    if (is_legal(machine, from, to)) return;
    sim_cluster_fail(sim_cluster_now(),
                     "the %s goes from %s to %s, which the diagram does not have", machine->name,
                     machine->state[from], machine->state[to]);
}

/* ---- what the linker sends here -------------------------------------------------------------- */

struct request *__real_request_open(struct request_table *table, struct pool_id call,
                                    uint32_t choice_count, int64_t now_ns);
struct request *__wrap_request_open(struct request_table *table, struct pool_id call,
                                    uint32_t choice_count, int64_t now_ns);
struct request *__wrap_request_open(struct request_table *table, struct pool_id call,
                                    uint32_t choice_count, int64_t now_ns) {
    struct request *request = __real_request_open(table, call, choice_count, now_ns);
    see(&requests, REQUEST_FREE, request->state);
    return request;
}

void __real_request_set_state(struct request_table *table, struct request *request,
                              enum request_state state);
void __wrap_request_set_state(struct request_table *table, struct request *request,
                              enum request_state state);
void __wrap_request_set_state(struct request_table *table, struct request *request,
                              enum request_state state) {
    see(&requests, request->state, state);
    if (request->state == REQUEST_WAITING && state == REQUEST_PREFILL)
        sim_admission_check(table, request);
    __real_request_set_state(table, request, state);
}

/* Who is retracted is not the oldest of those that run: so everybody finishes in the end. */
static void expect_younger(struct request_table *table, const struct request *retracted) {
    if (!sim_cluster_now()) return;
    for (const struct request *request = request_first(table, &table->running); request;
         request = request_next(table, request))
        if (request->state != REQUEST_LEAVING && request->arrival < retracted->arrival) return;
    sim_cluster_fail(sim_cluster_now(), "the oldest request is retracted");
}

void __real_request_wait(struct request_table *table, struct request *request,
                         const struct wait_order *order);
void __wrap_request_wait(struct request_table *table, struct request *request,
                         const struct wait_order *order);
void __wrap_request_wait(struct request_table *table, struct request *request,
                         const struct wait_order *order) {
    see(&requests, request->state, REQUEST_WAITING);
    if (request->state == REQUEST_QUEUED)
        sim_admission_known(request);
    else
        expect_younger(table, request);
    __real_request_wait(table, request, order);
}

/* The roster changes only within its own functions: states are compared after each with those
 * after the one before. Two steps within one function look like one (serving to gone). */
static struct {
    enum rank_state rank[TP_MAX];
    enum roster_group group;
} last;

void sim_coverage_begin(void) {
    memset(&last, 0, sizeof last);
}

static void look(const struct roster *roster) {
    for (uint32_t rank = 0; rank < roster->options->tp; rank++) {
        see(&ranks, last.rank[rank], roster->seat[rank].state);
        last.rank[rank] = roster->seat[rank].state;
    }
    see(&groups, last.group, roster->group);
    last.group = roster->group;
}

/* What names an older generation must change nothing. */
static void expect_unmoved(const struct roster *before, const struct roster *after) {
    bool moved = before->group != after->group || before->generation != after->generation;
    for (uint32_t rank = 0; rank < TP_MAX; rank++)
        moved = moved || before->seat[rank].state != after->seat[rank].state;
    if (moved && sim_cluster_now())
        sim_cluster_fail(sim_cluster_now(), "a message of an old generation is acted on");
}

/* The generation that a message names; UINT64_MAX where it is of none. */
static uint64_t generation_of(const struct worker_message *message) {
    switch (message->type) {
    case WORKER_GROUP_KEY: return message->group_key.generation;
    case WORKER_JOINED: return message->joined.generation;
    case WORKER_FAULT: return message->fault.fatal ? UINT64_MAX : message->fault.generation;
    case WORKER_STEP_RESULT: return message->step_result.generation;
    case WORKER_RESIZED: return message->resized.generation;
    case WORKER_SIZED: return message->sized.generation;
    case WORKER_EXAMINED: return message->examined.generation;
    default: return UINT64_MAX;
    }
}

void __real_roster_message(struct roster *roster, struct effect_buf *effects,
                           struct worker_id worker, const struct worker_message *message,
                           int64_t now_ns);
void __wrap_roster_message(struct roster *roster, struct effect_buf *effects,
                           struct worker_id worker, const struct worker_message *message,
                           int64_t now_ns);
void __wrap_roster_message(struct roster *roster, struct effect_buf *effects,
                           struct worker_id worker, const struct worker_message *message,
                           int64_t now_ns) {
    struct roster before = *roster;
    __real_roster_message(roster, effects, worker, message, now_ns);
    if (generation_of(message) < before.generation) expect_unmoved(&before, roster);
    look(roster);
}

bool __real_roster_answer_rank(struct roster *roster, struct effect_buf *effects,
                               struct worker_id worker, const struct worker_message *message,
                               int64_t now_ns, uint32_t *rank_out);
bool __wrap_roster_answer_rank(struct roster *roster, struct effect_buf *effects,
                               struct worker_id worker, const struct worker_message *message,
                               int64_t now_ns, uint32_t *rank_out);
bool __wrap_roster_answer_rank(struct roster *roster, struct effect_buf *effects,
                               struct worker_id worker, const struct worker_message *message,
                               int64_t now_ns, uint32_t *rank_out) {
    struct roster before = *roster;
    bool taken = __real_roster_answer_rank(roster, effects, worker, message, now_ns, rank_out);
    if (generation_of(message) < before.generation) {
        expect_unmoved(&before, roster);
        if (taken && sim_cluster_now())
            sim_cluster_fail(sim_cluster_now(), "an answer of an old generation is taken");
    }
    look(roster);
    return taken;
}

void __real_roster_lost(struct roster *roster, struct effect_buf *effects, struct worker_id worker,
                        int64_t now_ns);
void __wrap_roster_lost(struct roster *roster, struct effect_buf *effects, struct worker_id worker,
                        int64_t now_ns);
void __wrap_roster_lost(struct roster *roster, struct effect_buf *effects, struct worker_id worker,
                        int64_t now_ns) {
    __real_roster_lost(roster, effects, worker, now_ns);
    look(roster);
}

void __real_roster_fail(struct roster *roster, struct effect_buf *effects, uint32_t rank,
                        const char *text, int64_t now_ns);
void __wrap_roster_fail(struct roster *roster, struct effect_buf *effects, uint32_t rank,
                        const char *text, int64_t now_ns);
void __wrap_roster_fail(struct roster *roster, struct effect_buf *effects, uint32_t rank,
                        const char *text, int64_t now_ns) {
    __real_roster_fail(roster, effects, rank, text, now_ns);
    look(roster);
}

void __real_roster_tick(struct roster *roster, struct effect_buf *effects,
                        const struct roster_step *step, int64_t now_ns);
void __wrap_roster_tick(struct roster *roster, struct effect_buf *effects,
                        const struct roster_step *step, int64_t now_ns);
void __wrap_roster_tick(struct roster *roster, struct effect_buf *effects,
                        const struct roster_step *step, int64_t now_ns) {
    __real_roster_tick(roster, effects, step, now_ns);
    look(roster);
}

void __real_roster_gather(struct roster *roster, struct effect_buf *effects, int64_t now_ns);
void __wrap_roster_gather(struct roster *roster, struct effect_buf *effects, int64_t now_ns);
void __wrap_roster_gather(struct roster *roster, struct effect_buf *effects, int64_t now_ns) {
    __real_roster_gather(roster, effects, now_ns);
    look(roster);
}

void __real_roster_shutdown(struct roster *roster, struct effect_buf *effects, int64_t now_ns);
void __wrap_roster_shutdown(struct roster *roster, struct effect_buf *effects, int64_t now_ns);
void __wrap_roster_shutdown(struct roster *roster, struct effect_buf *effects, int64_t now_ns) {
    __real_roster_shutdown(roster, effects, now_ns);
    look(roster);
}

/* ---- the report ------------------------------------------------------------------------------ */

static bool report(const struct machine *machine) {
    bool all = true;
    for (uint32_t from = 0; from < machine->state_count; from++)
        for (uint32_t to = 0; to < machine->state_count; to++) {
            if (!is_legal(machine, from, to)) continue;
            printf("%-8s %-9s -> %-9s %10llu%s\n", machine->name, machine->state[from],
                   machine->state[to], (unsigned long long)machine->seen[from][to],
                   machine->seen[from][to] == 0 ? "   NOT REACHED" : "");
            all = all && machine->seen[from][to] > 0;
        }
    return all;
}

bool sim_coverage_report(void) {
    bool all = report(&requests);
    all = report(&ranks) && all;
    return report(&groups) && all;
}
