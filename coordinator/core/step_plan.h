/* A step's plan as flat arrays in memory taken at create.
 *
 *   sequence   [ A: rows 0..1 | B: rows 1..6 | C: rows 6..7 ]     rows are [row_begin, + row_count)
 *   token        a              b b b b b      c
 *   extent     [ A: none | B: 12+1 | C: none ]                    pages appended to a slot's table
 *   copy       [ page 7 to page 12, 5 tokens ]                    done before the rows
 *   release    [ slots forgotten before the step ]
 *   bias       [ A: none | B: 3 tokens' | C: none ]               of slots that begin
 *
 * It lives until the next step_plan_begin: effects point into it, and commit reads it when the
 * results come.
 */
#ifndef ESPALIER_STEP_PLAN_H
#define ESPALIER_STEP_PLAN_H

#include "base/arena.h"
#include "core.h"
#include "token_pool.h"

struct step_plan_buf {
    struct step_plan plan;          /* its arrays are those below */
    uint32_t *token;                /* [rows_max] */
    uint32_t *parent;               /* [rows_max]: of the plan where it has a tree */
    struct plan_sequence *sequence; /* [sequences_max] */
    struct page_extent *extent;     /* [extents_max] */
    struct page_copy *copy;         /* [sequences_max] */
    uint32_t *release;              /* [sequences_max] */
    struct logit_bias *bias;        /* [biases_max] */
    uint32_t rows_max, sequences_max, extents_max, biases_max, drafts_max;
    uint32_t draft_top;   /* candidates a position */
    uint32_t draft_count; /* positions that the sequences so far draft */
};

/* Rows of a step at most: a decode row of every sequence, guesses, and the chunks of prompts. */
uint32_t step_plan_rows_max(const struct core_options *options);

/* Of them, guesses, and tokens that a step may draw. */
uint32_t step_plan_guesses_max(const struct core_options *options);
uint32_t step_plan_tokens_max(const struct core_options *options);

/* Extents that a sequence's table may consist of, for a plan to send it whole. */
uint32_t step_plan_runs_max(const struct core_options *options);

size_t step_plan_memory(const struct core_options *options);
void step_plan_init(struct step_plan_buf *buf, const struct core_options *options,
                    struct arena *memory);

/* Start an empty plan. */
void step_plan_begin(struct step_plan_buf *buf, uint64_t generation, uint64_t step);

void step_plan_release(struct step_plan_buf *buf, uint32_t slot);
void step_plan_copy(struct step_plan_buf *buf, const struct page_copy *copy);

/* True where these pages fit the plan as extents, and so many biases beside those it has. A page
 * with a new row always has room; a table that is sent anew may have to wait for the next step. */
bool step_plan_fits(const struct step_plan_buf *buf, const struct page_ref *page,
                    uint32_t page_count, uint32_t bias_count);

/* Append a sequence: all of `sequence` but its bias and the positions of its rows and extents,
 * which are decided here; page[0, page_count) are appended to its table. Returns its rows' tokens,
 * for the caller to write. A tree's parents are those of a chain until step_plan_parents is
 * written. */
uint32_t *step_plan_add(struct step_plan_buf *buf, const struct plan_sequence *sequence,
                        const struct page_ref *page, uint32_t page_count);

/* Give the sequence appended last its bias. */
void step_plan_add_bias(struct step_plan_buf *buf, const struct logit_bias *bias, uint32_t count);

/* The parents of the rows of the sequence appended last, a tree. */
uint32_t *step_plan_parents(struct step_plan_buf *buf);

/* The plan in one line, for logs; cut at bytes - 1. Returns the length written. */
size_t step_plan_print(const struct step_plan *plan, char *out, size_t bytes);

#endif
