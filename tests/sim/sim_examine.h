/* Operators who examine what the ranks of a simulated cluster hold of the cache, and whether they
 * are told the truth: the right pages are looked at, each rank's report comes once and as the rank
 * gave it, a call ends once and for a reason that there was.
 *
 * Pages are judged by what the worker holds, not by what the core says of them: a page of a prefix
 * must hold that prefix by the model's own hash, and all ranks the same.
 */
#ifndef ESPALIER_SIM_EXAMINE_H
#define ESPALIER_SIM_EXAMINE_H

#include "event.h"
#include "sim_client.h"

#define SIM_EXAMINES       24u
#define SIM_EXAMINE_SLOT   0x00fe0000u /* of their calls: no client's, no resize's */
#define SIM_EXAMINE_TOKENS (SIM_PROMPT_MAX + SIM_MODEL_TOKENS)

struct sim_cluster;

struct sim_examine {
    const char *tenant;
    uint32_t token[SIM_EXAMINE_TOKENS];
    uint32_t token_count; /* 0: everything of everybody */
    uint32_t rows;
    enum status refusal;              /* how it must end at once; OK: it must not */
    uint32_t pages_least, pages_most; /* that there are to be found */
    uint32_t number;                  /* of the order; 0: none went out */
    uint32_t page_count;              /* that it names */
    bool may_refuse;                  /* ranks may */
    uint32_t stutters;                /* the rank that answers twice; TP_MAX: none does */
    bool has_hash;
    uint64_t hash;                          /* of what the first rank to answer holds */
    bool answered[TP_MAX], refused[TP_MAX]; /* as the ranks did */
    bool reported[TP_MAX];                  /* as the caller heard */
    bool ended, cancelled;
    enum status cancel_as;
};

/* A prefix that must be cached whole as long as nothing that could cost a page of it happens. */
struct sim_kept {
    const struct sim_call *call; /* NULL: none */
    uint64_t generation, evictions;
};

struct sim_examines {
    struct sim_examine of[SIM_EXAMINES];
    uint32_t count;
    uint32_t number; /* of the last order */
    struct sim_kept kept;
    int64_t flushed_ns; /* last */
    bool is_last_asked;
};

/* One examination, of what the seed draws; sometimes its caller does not wait for the end, and
 * sometimes another one asks before it is over. */
void sim_examine_ask(struct sim_cluster *cluster);

/* When all is quiet: everything, and no rank may refuse. False: it was asked already, or nobody can
 * answer. */
bool sim_examine_ask_last(struct sim_cluster *cluster);

void sim_examine_cancel(struct sim_cluster *cluster, uint32_t idx);

/* The call has ended well: its prompt is cached. And: pages may be gone. */
void sim_examine_keep(struct sim_cluster *cluster, const struct sim_call *call);
void sim_examine_forget(struct sim_cluster *cluster);
void sim_examine_flushed(struct sim_cluster *cluster);

/* What a rank makes of the order, and whether it says so twice. What the answer points to lives
 * until the next one. */
struct worker_examined sim_examine_answer(struct sim_cluster *cluster, uint32_t rank,
                                          const struct control_examine *order);
bool sim_examine_stutters(struct sim_cluster *cluster, uint32_t rank, uint32_t number);

/* Effects. A report is looked at before what the event lent is gone, and must not follow an end. */
void sim_examine_order(struct sim_cluster *cluster, const struct control_examine *order);
void sim_examine_report(struct sim_cluster *cluster, const struct effect *effect);
void sim_examine_goes_on(struct sim_cluster *cluster, struct pool_id call);
bool sim_examine_end(struct sim_cluster *cluster, const struct effect *effect);

bool sim_examine_all_ended(const struct sim_cluster *cluster);
void sim_examine_expect_ended(const struct sim_cluster *cluster);

/* What came of all examinations so far. */
struct sim_examine_totals {
    uint64_t ended[STATUS_COUNT];
    uint64_t reports, pages;
    uint64_t found;      /* of prefixes that had to be there */
    uint64_t late, lost; /* a rank was late, or the group lost, after it was asked */
};
extern struct sim_examine_totals sim_examine_totals;

#endif
