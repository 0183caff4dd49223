/* The likeliest tokens behind rows of hidden state, and the log-sum-exp of all: over the whole
 * vocabulary, of which a rank sees a part. Each rank finds the best of its part; these are gathered
 * and merged, a few words a row, and every rank comes to the same.
 *
 *     x [rows, D] ─▶ head ─▶ logits of this part ─▶ its best, its sums ─▶ gathered ─▶ merged
 *
 * The sums are eight segments added as a binary tree, as products are: on the host the same bits
 * whatever the ranks. Owner: the drafter, which also lays out the workspace. One thread.
 */
#ifndef ESPALIER_CANDIDATES_H
#define ESPALIER_CANDIDATES_H

#include "message.h"
#include "model.h"

#define CANDIDATES_ROWS 64u /* whose logits exist at once */

struct candidates {
    struct device *device; /* that finds them; NULL: the host */
    uint32_t rows_max;
    float *logits;      /* [CANDIDATES_ROWS, vocab / tp], borrowed, as is */
    uint32_t *found;    /* what ranks exchange: candidates_found_words of it */
    uint32_t *gathered; /* the same where the host reads it: pinned, of a device */

    float *lse;                        /* [rows_max] */
    struct draft_candidate *candidate; /* [rows_max, top] */
};

/* RESOURCE_EXHAUSTED. */
enum status candidates_init(struct candidates *candidates, struct device *device, uint32_t tp,
                            uint32_t rows_max, struct error *err) MUST_USE;
void candidates_deinit(struct candidates *candidates);

/* Of `found`, for so many rows. */
size_t candidates_found_words(uint32_t tp, uint32_t rows_max);

/* Of x [rows, D], which is normed for the head, at most rows_max: lse and candidate become theirs.
 * Waited for once, where a device finds them. */
enum status candidates_find(struct candidates *candidates, const struct model *model,
                            const float *x, uint32_t rows, uint32_t top, struct comm *comm,
                            struct error *err) MUST_USE;

#endif
