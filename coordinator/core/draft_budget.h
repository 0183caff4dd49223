/* How many guesses a step verifies, and whose.
 *
 * Every node of a tree is worth its weight in expected tokens, and costs the step a row. Of all
 * requests' trees together the best N nodes are the N heaviest, which one heap over the requests
 * gives in order. What N rows more cost is measured (cost_model.h) and is neither linear nor
 * convex: kernels have steps, experts fill up. So no N is left out: the one with the most expected
 * tokens a second is taken, zero among them (Liu et al., "TurboSpec", section 4, for trees; a
 * search that stops at the first loss would be trapped). Pure.
 */
#ifndef ESPALIER_DRAFT_BUDGET_H
#define ESPALIER_DRAFT_BUDGET_H

#include "cost_model.h"
#include "draft_tree.h"

/* A request that decodes. */
struct draft_budget_item {
    const struct draft_tree *tree;
    uint32_t node_max;   /* of them; what its tokens and pages allow */
    uint32_t committed;  /* tokens before its rows */
    uint32_t node_count; /* out: verify so many */
};

struct draft_budget {
    const struct cost_model *cost;
    struct cost_model_step step; /* without guesses */
    uint32_t row_max;            /* of guesses, all together */
    uint64_t overhead_ns;        /* what any guess costs besides rows: the next plan waits for it */
};

struct draft_choice {
    uint32_t row_count;            /* of guesses */
    double tokens, ns;             /* expected of the step as it was chosen */
    double plain_tokens, plain_ns; /* and without guesses; no time is known where it is 0 */
};

/* heap: [item_count], scratch. Until steps have been measured nothing is guessed. */
struct draft_choice draft_budget_choose(const struct draft_budget *budget,
                                        struct draft_budget_item *item, uint32_t item_count,
                                        uint32_t *heap);

#endif
