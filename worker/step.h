/* A plan becomes arrays: first it is checked against what this rank holds, then page tables grow
 * and every row gets its position and its cache slot, and at the end rows are committed: of a chain
 * all, of a tree those of the walk, which move together in the cache.
 *
 *   plan ─▶ step_check ─▶ step_begin ─▶ (the forward pass reads struct step_batch) ─▶ step_commit
 *
 * step_check changes nothing and refuses whatever would be wrong later, so nothing after it fails
 * because of the plan; it is the same function of (plan, state) on every rank, so all ranks refuse
 * alike, before any of them waits for another.
 *
 * Owner: the engine. One thread.
 */
#ifndef ESPALIER_STEP_H
#define ESPALIER_STEP_H

#include "kv_copy/kv_copy.h"
#include "kv_move/kv_move.h"
#include "message.h"
#include "mla_tree/mla_tree.h"

struct step_limits {
    uint32_t rows_max;
    uint32_t slot_count;
    uint32_t page_tok;
    uint32_t page_count; /* now */
    uint32_t page_cap;   /* what step_resize may raise it to */
    uint32_t context_len;
    uint32_t vocab;
    uint32_t draft_len; /* positions the drafter guesses; 0: there is none */
};

/* What the forward pass reads. Row t of the step is row t of the plan. */
struct step_batch {
    uint32_t rows;                 /* T */
    uint32_t *token;               /* [T] of the plan, or drawn by the step before */
    uint32_t *position;            /* [T] */
    uint32_t *kv_slot;             /* [T] */
    struct mla_sequence *sequence; /* [sequence_count] in plan order */
    struct tree *tree;             /* [sequence_count] of those that are trees */
    uint32_t sequence_count;
    struct kv_page_copy *copy; /* [copy_count] */
    uint32_t copy_count;
};

/* What a step made final. Rows ascend, and a row never lies before its place. */
struct step_final {
    uint64_t state_hash;
    uint32_t count;
    uint32_t *row;             /* [count] of the step */
    uint32_t *position;        /* [count] */
    uint32_t *kv_slot;         /* [count] where its KV belongs */
    uint64_t *prefix_before;   /* [count] of its sequence, before it and */
    uint64_t *prefix_with;     /* with it */
    struct kv_slot_move *move; /* [move_count] of those whose KV lies elsewhere, in this order */
    uint32_t move_count;
};

/* A sequence that goes on, as a drafter needs it. */
struct step_end {
    uint32_t root; /* the last token drawn: at position committed, without KV */
    uint32_t committed;
    uint64_t prefix_hash; /* of the committed tokens */
    const uint32_t *page; /* its table; valid until the next step */
};

struct step;
struct kv_shadow;
struct penalties;

/* shadow: NULL, or the twin of the cache to keep and check. penalties: to keep. Both borrowed. */
enum status step_create(const struct step_limits *limits, struct kv_shadow *shadow,
                        struct penalties *penalties, struct step **step_out,
                        struct error *err) MUST_USE;
void step_destroy(struct step **step);

/* Forget every slot; the next plan is step 1 of generation. */
void step_restart(struct step *step, uint64_t generation);

/* The pool has so many pages now, at most page_cap. */
void step_resize(struct step *step, uint32_t page_count);

/* FAILED_PRECONDITION where the plan does not continue what this rank holds, INVALID_ARGUMENT where
 * it contradicts itself or the limits, UNIMPLEMENTED for masks; err names sequence and field. */
enum status step_check(struct step *step, const struct step_plan *plan, struct error *err) MUST_USE;

/* The batch is valid until the next call. Fails only where the cache is shown to be another's: by
 * shadow hashes, or by tokens that are to be counted. */
enum status step_begin(struct step *step, const struct step_plan *plan,
                       const struct step_batch **batch_out, struct error *err) MUST_USE;

/* Commit by the tokens drawn, and keep the last ones for the next plan. A step is committed once:
 * the next plan must be of the next number. Borrowed until the next call. */
const struct step_final *step_commit(struct step *step, const struct step_plan *plan,
                                     const struct step_result *drawn);

/* The end of a slot that has drawn a token. */
struct step_end step_end_of(const struct step *step, uint32_t slot);

/* The page tables of all slots. */
const void *step_page_tables(const struct step *step, size_t *bytes_out);

#endif
