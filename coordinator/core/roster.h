/* Who is there: the workers by rank, and the group they form.
 *
 *   a rank     hello          loaded           joined
 *     ABSENT ─────────▶ LOADING ─────▶ LOADED ─────────▶ READY
 *     LOST ──── hello ───▶ ▲             ▲  generation over │
 *       ▲                  │             └──────────────────┘
 *       └── process gone, a breach, a time-out: from LOADING, LOADED or READY
 *
 *   the group           all ranks loaded:             key:                 all joined
 *     GATHERING ──── PREPARE_GROUP to rank 0 ──▶ PREPARING ── FORM_GROUP ──▶ FORMING ──▶ SERVING
 *         ▲                                          │          to all          │           │
 *         └── END_GENERATION to who is left ◀── a rank lost, a fault, a wrong result, silence
 *
 *   from any: a rank stays lost for rejoin_timeout, or too many losses in a row ──▶ GONE
 *
 * A generation is one such group, numbered from 1; a process keeps its weights across generations.
 * Loading may take as long as it likes while it goes on: a rank is overdue when it has read nothing
 * for load_timeout, or, with everything read and its pool to make, has said nothing for as long.
 *
 * After a loss the next group waits for one heartbeat: a survivor often reports a dead neighbour
 * before the neighbour's own end is known here, and one death must not count as two losses.
 *
 * Messages that name an older generation are counted and ignored. A worker that says what its state
 * does not allow, or names a generation that never was, is in breach: it is dropped and its rank is
 * lost until a new process says HELLO.
 *
 * The roster decides nothing about requests: roster_take_news tells its owner what became of the
 * group, once.
 */
#ifndef ESPALIER_ROSTER_H
#define ESPALIER_ROSTER_H

#include "core.h"
#include "effect_buf.h"

#define ROSTER_LOSSES_MAX    5u /* more group losses than this within the window: GONE */
#define ROSTER_LOSS_WINDOW_S 60

/* Ticks come once a second. Longer without any event, and it was this process that stood still:
 * what it missed meanwhile is not held against the workers. */
#define ROSTER_PAUSE_S 3

/* Without a sign of life, or of progress beyond what the step is expected to take, for so long a
 * rank is in trouble: probes say so within a second. It is dropped when --step-timeout is over. */
#define ROSTER_TROUBLE_MS      900
#define ROSTER_TROUBLE_BEATS   3u /* heartbeats missed, where they are rarer */
#define ROSTER_TROUBLE_EXPECTS 4u /* times the expected step */

enum roster_group {
    ROSTER_GATHERING,
    ROSTER_PREPARING,
    ROSTER_FORMING,
    ROSTER_SERVING,
    ROSTER_GONE
};
#define ROSTER_GROUP_COUNT 5

#define ROSTER_NAME_BYTES_MAX 64u /* of a device or probe; longer ones are cut */

struct roster_seat {
    enum rank_state state;
    struct worker_id worker;
    uint64_t pid;
    char device[ROSTER_NAME_BYTES_MAX], probe[ROSTER_NAME_BYTES_MAX];
    uint64_t draft_fingerprint; /* 0: no drafter */
    uint32_t draft_len;
    uint64_t load_bytes, load_bytes_total, load_ns;
    uint32_t page_count;      /* that its memory holds */
    uint32_t fraction_needed; /* as it said in LOADED */
    uint64_t free_bytes;
    int64_t hello_ns, lost_ns;
    int64_t load_moved_ns; /* load_bytes last grew, or loading began */
    int64_t heard_ns;      /* any message */
    int64_t progress_ns;   /* (step, collective_seq) last grew, or a result came */
    uint64_t step, collective_seq;
    uint64_t collective_ns;
    enum self_test self_test; /* the rung it is on */
    uint32_t self_test_percent;
};

enum roster_news { ROSTER_NO_NEWS, ROSTER_ENDED, ROSTER_EXIT };

struct roster {
    const struct core_options *options;
    enum roster_group group;
    uint64_t generation;
    int64_t group_ns;         /* the group is in its state since */
    int64_t gather_ns;        /* no new group before */
    int64_t tick_ns, woke_ns; /* last look at the clock; end of our last pause */
    struct roster_seat seat[TP_MAX];
    int64_t loss_ns[ROSTER_LOSSES_MAX];
    bool has_served;  /* once, in this boot */
    uint64_t losses;  /* of all time; the last ones are in loss_ns, a ring */
    uint64_t ignored; /* messages of old generations or of nobody */
    struct log_limit refused_lines, hello_lines, loaded_lines, lost_lines; /* peers cause them */
    enum roster_news news;
    char reason[EFFECT_BUF_TEXT_BYTES_MAX]; /* why the group does not serve; empty when it does */
};

/* Positions the ranks' drafters guess; 0: they have none, or only some do. */
uint32_t roster_draft_len(const struct roster *roster);

void roster_init(struct roster *roster, const struct core_options *options);

/* Any message but a step result and the answers to orders, which roster_answer_rank is for. */
void roster_message(struct roster *roster, struct effect_buf *effects, struct worker_id worker,
                    const struct worker_message *message, int64_t now_ns);

/* The sender of a step result, or of an answer to what all ranks of the generation that serves were
 * asked. False: to be ignored, or a breach. */
bool roster_answer_rank(struct roster *roster, struct effect_buf *effects, struct worker_id worker,
                        const struct worker_message *message, int64_t now_ns, uint32_t *rank_out);

/* The worker's process or connection is gone. */
void roster_lost(struct roster *roster, struct effect_buf *effects, struct worker_id worker,
                 int64_t now_ns);

/* The rank's results cannot be believed: the generation ends, its process stays. */
void roster_fail(struct roster *roster, struct effect_buf *effects, uint32_t rank, const char *text,
                 int64_t now_ns);

/* The step in flight, for the clock's view; NULL where there is none. */
struct roster_step {
    int64_t sent_ns;
    const bool *reported; /* [tp] */
    uint64_t expected_ns; /* 0: not known yet */
};

/* Look at the clock. At most one loss a call. */
void roster_tick(struct roster *roster, struct effect_buf *effects, const struct roster_step *step,
                 int64_t now_ns);

/* When roster_tick will next have something to do if nothing happens; INT64_MAX: never. */
int64_t roster_due_ns(const struct roster *roster, const struct roster_step *step);

/* Write why the rank is in trouble to out: silent, or stuck in the step; empty: neither. now_ns is
 * when its connection was last seen to hold nothing more. */
void roster_find_trouble(const struct roster *roster, const struct roster_step *step, uint32_t rank,
                         int64_t now_ns, char *out, size_t bytes);

/* Start a group where all ranks are loaded and none is under way. */
void roster_gather(struct roster *roster, struct effect_buf *effects, int64_t now_ns);

/* What the ranks' memory holds: the smallest rules. */
struct roster_memory {
    uint32_t page_count;
    uint32_t rank; /* the one that holds no more */
    uint32_t fraction_needed;
};

/* All ranks have shown that their memory holds so many pages. */
void roster_hold_pages(struct roster *roster, uint32_t page_count);

/* True where all ranks are loaded and no group is under way: the time to settle the pool. */
bool roster_memory(const struct roster *roster, struct roster_memory *memory_out);

/* What a rank has left, after a resize; the least of any rank, 0 where one has not said it. */
void roster_note_free(struct roster *roster, uint32_t rank, uint64_t free_bytes);
uint64_t roster_free_bytes(const struct roster *roster);

bool roster_is_serving(const struct roster *roster);

/* What happened since the last call: the generation ended (reason says why), or the process must
 * exit with EXIT_CODE_GROUP_LOST. */
enum roster_news roster_take_news(struct roster *roster);

/* One message to every worker that is there. */
void roster_broadcast(const struct roster *roster, struct effect_buf *effects,
                      const struct control_message *message);

/* SHUTDOWN to every worker: the process is about to exit. */
void roster_shutdown(struct roster *roster, struct effect_buf *effects, int64_t now_ns);

void roster_check(const struct roster *roster);

#endif
