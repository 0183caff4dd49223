/* The worker processes: life, links and manners around sim_worker.
 *
 * A process says HELLO, loads (a stalled one for ever), joins groups, beats, runs plans. A step
 * runs only when all ranks of the generation have its plan, as collectives would have it, and takes
 * time; a rank that stops or dies leaves the others stuck in it. Orders are done between the steps
 * that they came between. Each process has one connection;
 * when it is gone or closed by the coordinator, the process ends, and a launcher starts the next
 * one.
 */
#ifndef ESPALIER_SIM_PROCESS_H
#define ESPALIER_SIM_PROCESS_H

#include "event.h"
#include "sim_worker.h"

#define SIM_PROCESS_PLANS  4u
#define SIM_PROCESS_ORDERS 64u
#define SIM_PROCESS_BYTES  131072u /* of a kept message */

/* What a worker may say that is not so. Each is told once, with the next result that it fits, but
 * for the eager one, which needs the end of a generation. */
enum sim_lie {
    SIM_LIE_NONE,
    SIM_LIE_HASH,
    SIM_LIE_FEWER,  /* a drawn token is left out */
    SIM_LIE_DOUBLE, /* two for one sequence */
    SIM_LIE_MORE,   /* one for a sequence that nobody asked about */
    SIM_LIE_TWICE,
    SIM_LIE_STEP,
    SIM_LIE_RANK,
    SIM_LIE_TOKEN, /* beyond the vocabulary */
    SIM_LIE_LOGPROBS,
    SIM_LIE_WALK,         /* a walk that ends where it went on */
    SIM_LIE_DRAFT_TOKEN,  /* a guess beyond the vocabulary */
    SIM_LIE_DRAFT_LENGTH, /* a position less than was asked for */
    SIM_LIE_JOINED,       /* again */
    SIM_LIE_HELLO,
    SIM_LIE_LOADED,
    SIM_LIE_KEY,
    SIM_LIE_EAGER,    /* the key of the next generation, from another rank than 0 */
    SIM_LIE_FUTURE,   /* a generation that never was */
    SIM_LIE_RESIZED,  /* an answer that nobody asked for */
    SIM_LIE_SIZED,    /* likewise */
    SIM_LIE_EXAMINED, /* likewise */
    SIM_LIE_GARBLED,
    SIM_LIE_GHOST, /* the last result of an older generation, too; must do no harm */
    SIM_LIE_COUNT,
};

struct sim_plan {
    uint64_t step;
    uint8_t *data;
    size_t bytes;
};

/* To resize, to say a size, to examine: done in its turn. */
struct sim_order {
    uint64_t behind; /* the step that came before it; 0: none */
    uint8_t *data;
    size_t bytes;
};

struct sim_process {
    bool alive;
    uint32_t life; /* counts launches: timers of an older one are void */
    uint32_t connection;
    bool loading, stalls; /* its load stands still, and it beats all the same */
    int64_t load_begin_ns, load_ns;
    int64_t stopped_until_ns;
    int64_t slow_until_ns;
    struct sim_worker worker;
    struct sim_plan plan[SIM_PROCESS_PLANS]; /* the first one runs or waits for the others */
    uint32_t plan_count;
    struct sim_order order[SIM_PROCESS_ORDERS];
    uint32_t order_count;
    bool busy, stuck; /* in a step; a peer holds it up */
    uint32_t turn;    /* counts steps and generations: timers of an older one are void */
    uint64_t collective_seq;
    uint64_t over; /* the last generation that ended */
    enum sim_lie lie;
    bool gets_twice;                  /* the next plan reaches it a second time */
    bool is_mute;                     /* it does the next order and does not say so */
    uint8_t ghost[SIM_PROCESS_BYTES]; /* the last result, and of which generation */
    size_t ghost_bytes;
    uint64_t ghost_generation;
};

struct sim_cluster;

void sim_process_launch(struct sim_cluster *cluster, uint32_t rank);
void sim_process_timer(struct sim_cluster *cluster, uint32_t rank, uint32_t what, uint64_t value);
void sim_process_message(struct sim_cluster *cluster, uint32_t rank, struct bytes bytes);

/* The process ends. The coordinator learns of it some time later. */
void sim_process_kill(struct sim_cluster *cluster, uint32_t rank);

/* Its connection is gone, or the coordinator closed it. */
void sim_process_closed(struct sim_cluster *cluster, uint32_t rank);

/* Until then it does nothing, and what would reach it waits (the cluster sees to it). */
void sim_process_stop(struct sim_cluster *cluster, uint32_t rank, int64_t until_ns);
void sim_process_resume(struct sim_cluster *cluster, uint32_t rank);

/* Seldom, some rank will not answer the order to come. */
void sim_process_may_be_mute(struct sim_cluster *cluster);

void sim_process_fault(struct sim_cluster *cluster, uint32_t rank, bool fatal);
/* No more faults: it is there, quick and honest, and awake when it was to be; what waits for it
 * must not be overtaken. */
void sim_process_calm(struct sim_cluster *cluster, uint32_t rank);
void sim_process_free(struct sim_process *process);

#endif
