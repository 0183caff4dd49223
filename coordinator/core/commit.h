/* What a step's results mean.
 *
 *   plan sent ──▶ expect ──▶ take (each rank once) ──▶ complete ──▶ apply: tokens to requests
 *                              │ wrong, twice, late, another state: the generation is over
 *
 * A step is committed when every rank has reported the state that the coordinator computes from the
 * plan by itself: committed lengths and prefix hashes. Rank 0 brings the tokens drawn; they are
 * kept here until the last rank has reported, and live until the step after the next is expected.
 *
 * Two steps may be in flight. The plan of the second may say "the token drawn last" of a slot; it
 * is resolved when the first is applied: the token is written into the plan, and only then is known
 * what the ranks must report. What they reported before that is kept, and judged then.
 *
 * What a tree commits depends on what was drawn: rank 0's tokens must be a walk of the tree that
 * was sent, and then every rank must report the state after that walk.
 */
#ifndef ESPALIER_COMMIT_H
#define ESPALIER_COMMIT_H

#include "reply.h"
#include "scheduler.h"

#define COMMIT_STEPS_MAX 2u

struct commit_step {
    const struct step_plan_buf *plan;
    int64_t sent_ns;
    bool has_tree;
    bool resolved;          /* every token is known, and so are the next two */
    uint64_t state_hash;    /* what every rank must report */
    uint64_t *prefix_after; /* [max_running_cap]: by place in the plan; chains */
    struct tree_walk *walk; /* likewise; trees */
    bool reported[TP_MAX];
    uint64_t reported_hash[TP_MAX];
    uint32_t reported_count;
    uint64_t compute_ns; /* of the slowest rank */
    uint64_t idle_ns;    /* of rank 0, before it */
    uint64_t draft_ns;   /* of the slowest rank, of its compute_ns */
    uint32_t *token;     /* [step_plan_tokens_max]: of the sequences that draw, in order */
    struct token_logprob *logprob; /* [step_plan_tokens_max, 1 + TOP_LOGPROBS_MAX] */
};

struct commit {
    const struct core_options *options;
    struct commit_step step[COMMIT_STEPS_MAX]; /* in flight: [first, first + count), wrapped */
    uint32_t first, count;
    uint32_t *drawn; /* [max_running_cap]: by slot, what its last step drew */
    int64_t applied_ns;
    uint64_t steps; /* complete ones, of all generations */
    uint64_t step_ns_last;
    struct histogram step_times;
    uint64_t compute_ns, idle_ns; /* of all steps; idle only where there was something to do */
};

size_t commit_memory(const struct core_options *options);
void commit_init(struct commit *commit, const struct core_options *options, struct arena *memory);

/* The step that is to be applied next; NULL: none is in flight. */
const struct commit_step *commit_first(const struct commit *commit);

/* A plan goes out to all ranks. It is borrowed until it is applied or forgotten. */
void commit_expect(struct commit *commit, const struct step_plan_buf *plan, int64_t now_ns);

/* Take one rank's result, of the current generation; drafts go to the speculation at once. ABORTED:
 * it is not what must come, or shows that what came before is not; err says what was found and
 * expected, rank_out whose it is. */
enum status commit_take(struct commit *commit, struct speculation *speculation, uint32_t rank,
                        const struct step_result *result, uint32_t *rank_out,
                        struct error *err) MUST_USE;

/* All ranks have reported the first step. */
bool commit_is_complete(const struct commit *commit);

/* Give requests what the first step computed and drew, emit their deltas and ends, retire those
 * that left meanwhile. Then resolve the next: ABORTED where a rank has reported another state of
 * it than is now known to be right; rank_out says which. */
enum status commit_apply(struct commit *commit, struct scheduler *scheduler,
                         const struct reply_context *context, struct effect_buf *effects,
                         int64_t now_ns, uint32_t *rank_out, struct error *err) MUST_USE;

/* The generation is over: no step is in flight. */
void commit_forget(struct commit *commit);

#endif
