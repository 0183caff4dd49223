/* Candidates from the worker's block drafter: for each position behind the root the likeliest
 * tokens, independent of one another (DFlash, "Block Diffusion for Flash Speculative Decoding";
 * trees from it: DDTree, see draft_tree.h). Their best-first search holds one sibling and one child
 * a node: O(B log B) for B nodes. A value without memory behind it.
 */
#ifndef ESPALIER_DRAFT_SOURCE_BLOCK_H
#define ESPALIER_DRAFT_SOURCE_BLOCK_H

#include "draft_calibration.h"
#include "message.h"

/* What a worker returned for one sequence, as probabilities. */
struct draft_block {
    uint32_t token[DRAFT_LEN_MAX][DRAFT_TOP_MAX];
    float probability[DRAFT_LEN_MAX][DRAFT_TOP_MAX]; /* descending */
    uint32_t len, top;
};

/* Keep the candidates of a result's sequence; the codec has judged them. None: len is 0. */
void draft_block_take(struct draft_block *block, const struct step_result *result,
                      const struct result_sequence *sequence);

/* The best tree. seed_chain: the likeliest token of each position goes first, so that no chain of
 * as many rows accepts more. */
void draft_block_guess(const struct draft_block *block, const struct draft_calibration *calibration,
                       const struct draft_bounds *bounds, bool seed_chain, struct draft_tree *out);

#endif
