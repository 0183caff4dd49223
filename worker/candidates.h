/* The likeliest tokens behind rows of hidden state, and the log-sum-exp of all: over the whole
 * vocabulary, of which a rank sees a part. Each rank finds the best of its part; these are gathered
 * and merged, a few words a row, and every rank comes to the same.
 *
 *     x [rows, D] ─▶ head ─▶ logits of this part ─▶ its best, its sums ─▶ gathered ─▶ merged
 *
 * The sums are eight segments added as a binary tree, as products are: the same bits whatever the
 * ranks. Owner: the drafter, which also lays out the workspace. One thread.
 */
#ifndef ESPALIER_CANDIDATES_H
#define ESPALIER_CANDIDATES_H

#include "message.h"
#include "model.h"

#define CANDIDATES_ROWS 64u /* whose logits exist at once */

struct candidates {
    float *logits; /* [CANDIDATES_ROWS, vocab / tp], borrowed, as is */
    void *found;   /* what ranks exchange: candidates_found_words of them */

    float *lse;                        /* [DRAFT_POSITIONS_MAX] */
    struct draft_candidate *candidate; /* [DRAFT_POSITIONS_MAX, top] */
    uint32_t positions;                /* found so far */
};

/* False: there is no memory. */
bool candidates_init(struct candidates *candidates);
void candidates_deinit(struct candidates *candidates);

/* 4-byte words that `found` must hold. */
size_t candidates_found_words(uint32_t tp);

/* Of x [rows, D], which is normed for the head: positions behind those there are. */
enum status candidates_find(struct candidates *candidates, const struct model *model,
                            const float *x, uint32_t rows, uint32_t top, struct comm *comm,
                            struct error *err) MUST_USE;

#endif
