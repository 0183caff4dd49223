/* One rank with a model, driven by plans: what the tests of the engine share.
 *
 * A rig plays the coordinator for its rank: it keeps its own account of every slot (committed
 * length, prefix hash, pages) and makes plans from it. Pages are handed out scattered, so that no
 * sequence lies in one piece. Ranks of a group are processes, forked by rig_fork_ranks.
 *
 * What cannot fail in a test ends the process with a message on stderr.
 */
#ifndef ESPALIER_RIG_H
#define ESPALIER_RIG_H

#include "engine.h"

#define RIG_SLOTS 16u

struct rig_options {
    const char *model;   /* folder; NULL: the embedded model */
    const char *drafter; /* folder; NULL: none */
    uint32_t draft_window;
    uint32_t tp, threads;
    uint32_t page_tok;
    uint32_t page_cap; /* what rig_resize may raise the pool to; 0: it stays as it is */
    uint32_t max_rows;
    uint32_t context_len;
    enum kv_dtype kv_dtype;
    enum activation_dtype activation_dtype;
    enum prefill_form prefill_form;
    bool shadow_hash;
    struct device *(*open_device)(void); /* that computes, in the rank's process; NULL: the CPU */
    const struct comm_kind *comm;        /* how ranks meet; NULL: over shared memory */
};

struct rig_slot {
    uint32_t committed, page_count;
    uint64_t prefix_hash;
    uint32_t *page; /* [page_count], room for all of the pool's */
};

struct rig {
    struct rig_options options;
    struct device *device; /* NULL: the CPU */
    struct weights *weights;
    struct drafter_weights *drafter; /* NULL without one */
    struct engine *engine;
    uint64_t step;
    uint32_t page_count;  /* of the pool */
    uint32_t page_cursor; /* where the search for a free page goes on */
    bool *page_taken;     /* [page_count] */
    struct rig_slot slot[RIG_SLOTS];
};

/* What a sequence's draws are changed by. The bias goes with the first plan of a slot. */
struct rig_penalties {
    float repetition, presence, frequency;
    uint32_t reply_begin;
    const struct logit_bias *bias; /* [bias_count] */
    uint32_t bias_count;
};

/* Rows that one sequence puts into a step. */
struct rig_piece {
    uint32_t slot;
    const uint32_t *token;
    uint32_t count;
    bool wants;
    float temperature; /* 0: greedy, all else ignored */
    uint64_t seed;
    const uint32_t *parent;                /* [count] of a tree; NULL: a chain */
    uint32_t draft_len;                    /* guesses wanted behind the token drawn */
    const struct rig_penalties *penalties; /* NULL: none */
};

/* key: NULL for a group of one. */
struct rig *rig_open(const struct rig_options *options, uint32_t rank, const struct comm_key *key);
void rig_close(struct rig **rig);

/* Into a new group of one: step 1 and no slots again. */
void rig_restart(struct rig *rig);

/* A pool of so many pages, not fewer than there are, at most page_cap. */
void rig_resize(struct rig *rig, uint32_t page_count);

/* The plan of the next step, in memory that the next call reuses. It is not run, and pages are only
 * taken when it is: tests may spoil it first. */
struct step_plan *rig_plan(struct rig *rig, const struct rig_piece *piece, uint32_t piece_count);

/* The same for one piece in a new slot that begins with the first tok_count tokens of another,
 * which are these: it shares their whole pages and copies what they have of one more. */
struct step_plan *rig_plan_behind(struct rig *rig, const struct rig_piece *piece, uint32_t owner,
                                  const uint32_t *token, uint32_t tok_count);

/* Candidates a position of what is drafted. */
#define RIG_DRAFT_TOP 8u

/* Plan, run, and keep account; exits unless the step and its state hash are right. */
struct step_result rig_step(struct rig *rig, const struct rig_piece *piece, uint32_t piece_count);

/* Run a plan that rig_plan made of these pieces; what engine_step says. Account is kept if OK. */
enum status rig_run(struct rig *rig, const struct step_plan *plan, const struct rig_piece *piece,
                    struct step_result *result_out, struct error *err) MUST_USE;

/* Forget a slot, and give its pages back: the next plan starts it anew. */
void rig_forget(struct rig *rig, uint32_t slot);

/* Run fn(rig, rank, user) in `tp` processes, each with a rig in one group; user should be shared
 * memory. Exits unless all ranks return and exit with 0 within two minutes. */
void rig_fork_ranks(const struct rig_options *options,
                    void (*fn)(struct rig *rig, uint32_t rank, void *user), void *user);

/* Memory that forked ranks share with the test; cleared. */
void *rig_shared_alloc(size_t bytes);
void rig_shared_free(void *memory, size_t bytes);

/* Path of a file below the source tree, in a static buffer. */
const char *rig_path(const char *below);

uint32_t rig_vocab(const struct rig *rig);

#endif
