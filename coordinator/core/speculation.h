/* Which guesses the next step verifies, and what became of those it did.
 *
 *   tokens drawn ──▶ follow ──▶ own history ─┐
 *   a draft came ──▶ take_draft ─▶ block ────┼─▶ guess ─▶ tree ─▶ choose ─▶ rows of the plan
 *   replies ended ─▶ learn ──▶ shared history┘   (a slot)        (all slots of a step)
 *                                                                      │
 *   calibration, counts ◀── verified (the walk) ◀── the step's result ─┘
 *
 * Overlap: a tree's root is the last token drawn, so a sequence with a tree in flight, or with a
 * draft on its way, has no row in a plan made ahead; and as two half batches cost more than one, no
 * plan is made ahead then. A sequence that decodes plainly in overlapped steps is held back when
 * its history promises enough; one for which nothing was chosen after all rests, twice as long each
 * time. Whether the drafter is asked at all, draft_trial.h finds out.
 *
 * Guesses cannot change what is drawn (proto/tree.h), only how soon. State a slot; slots are those
 * of sequences. Memory is taken at init, and only for the sources that are used.
 */
#ifndef ESPALIER_SPECULATION_H
#define ESPALIER_SPECULATION_H

#include "core.h"
#include "draft_budget.h"
#include "draft_calibration.h"
#include "draft_source_block.h"
#include "draft_source_suffix.h"
#include "draft_trial.h"
#include "tree.h"

struct speculation_slot {
    struct draft_suffix own;
    struct draft_block block; /* behind the last token drawn; len 0: none */
    struct draft_tree tree;   /* behind it, from all sources */
    uint32_t mark;            /* of its tenant, in the shared history */
    uint32_t node_count;      /* of the tree in flight; 0: none is */
    bool draft_asked;         /* a step in flight drafts */
    uint32_t rest;            /* decode rows before it is held back again */
    uint32_t rest_next;
};

struct speculation {
    const struct core_options *options;
    uint32_t draft_len;            /* positions the workers' drafters guess; 0: they have none */
    struct speculation_slot *slot; /* [max_running_requests]; NULL: no speculation */
    struct draft_suffix shared;
    struct draft_calibration calibration;
    struct draft_trial trial;
    struct draft_budget_item *item; /* [max_running_requests]: of the step being planned */
    uint32_t *item_slot, *heap;     /* likewise */
    uint32_t item_count;
    struct draft_choice choice; /* the last */
    uint32_t choice_count;      /* sequences it was for */
    double gap_ns;   /* ranks wait so long for a plan that was not made ahead; fading mean */
    double draft_ns; /* a sequence's draft; likewise */
    struct speculation_counts counts;
    char reason[LINE_BYTES_MAX + 1]; /* the last choice in words */
};

size_t speculation_memory(const struct core_options *options);
void speculation_init(struct speculation *speculation, const struct core_options *options,
                      struct arena *memory);

/* A request begins to run, with these as its last tokens. */
void speculation_open(struct speculation *speculation, uint32_t slot, uint64_t salt,
                      const uint32_t *token, uint32_t token_count);

/* Of its tokens, the last so many are what speculation_open wants. */
uint32_t speculation_history_tok(const struct speculation *speculation);

/* A token was drawn. */
void speculation_follow(struct speculation *speculation, uint32_t slot, uint32_t token);

/* It has ended with this reply, which others of its tenant may be given too. */
bool speculation_learns(const struct speculation *speculation);
void speculation_learn(struct speculation *speculation, uint32_t slot, const uint32_t *token,
                       uint32_t token_count);

/* It runs no more. */
void speculation_close(struct speculation *speculation, uint32_t slot);

/* --- planning ------------------------------------------------------------------------------- */

/* The slot's next row must know the result in flight: there is a tree or a draft in it, or what is
 * known promises a tree. bounds: as of the tokens known. */
bool speculation_waits(struct speculation *speculation, uint32_t slot,
                       const struct draft_bounds *bounds);

/* The sequences of a step that decode, one by one; then how many guesses each gets. step: their
 * decode rows. */
void speculation_begin(struct speculation *speculation);
void speculation_guess(struct speculation *speculation, uint32_t slot,
                       const struct draft_bounds *bounds, uint32_t committed);
void speculation_choose(struct speculation *speculation, const struct cost_model *cost,
                        struct cost_model_step step, uint32_t row_max);

/* There is room for so many guesses of the slot. How many it keeps of those chosen. */
uint32_t speculation_fit(struct speculation *speculation, uint32_t slot, uint32_t room);

/* The rows of its tree, root and guesses. */
void speculation_rows(const struct speculation *speculation, uint32_t slot, uint32_t root,
                      uint32_t *token_out, uint32_t *parent_out);

/* The slot gets a row that draws: positions to be drafted behind it, of the step's room for them.
 */
uint32_t speculation_draft_len(struct speculation *speculation, uint32_t slot, uint32_t room);

/* --- results -------------------------------------------------------------------------------- */

void speculation_take_draft(struct speculation *speculation, uint32_t slot,
                            const struct step_result *result,
                            const struct result_sequence *sequence);

/* A step in which the slot drew has its results. walk: NULL for a chain; drafted: it was to. */
void speculation_verified(struct speculation *speculation, uint32_t slot,
                          const struct tree_walk *walk, bool drafted);

/* A step has passed that drafted for so many sequences. gap_ns: see there; below 0: not known. */
void speculation_measure(struct speculation *speculation, uint64_t draft_ns, uint32_t draft_count,
                         int64_t gap_ns);

/* For snapshots; lives until the next call. */
const char *speculation_reason(struct speculation *speculation);

#endif
