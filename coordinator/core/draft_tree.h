/* Candidates for a draft tree: guesses behind the last token drawn, the likeliest first.
 *
 *   node    token   parent  weight          row 0 is the root, the last token drawn; node i is
 *   0       the     row 0   0.60            row i + 1 of the tree (proto/tree.h)
 *   1       cat     row 1   0.45
 *   2       a       row 0   0.30            a node comes after its parent
 *
 * A node's weight is the probability that a walk comes to it: the product of the conditional
 * probabilities along its path. The expected number of guesses accepted from a tree is the sum of
 * its weights, so the best tree of B nodes is the B heaviest prefixes, and as a child is no heavier
 * than its parent these are a tree (Ringel and Romano, "Accelerating Speculative Decoding with
 * Block Diffusion Draft Trees", section 4). Sources list their nodes by descending weight; the
 * first n of them are then the best tree of n nodes, whatever n is: how many are verified is
 * decided later (draft_budget.h).
 *
 * Seeded: the first seed_count nodes are a chain that goes first whatever its weights are; the
 * order holds among the rest.
 *
 * Values without memory behind them.
 */
#ifndef ESPALIER_DRAFT_TREE_H
#define ESPALIER_DRAFT_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"

#define DRAFT_NODES_MAX (TREE_ROWS_MAX - 1u)

/* Where a guess comes from. */
enum draft_source {
    DRAFT_BLOCK,  /* the worker's block drafter */
    DRAFT_OWN,    /* the request's own tokens */
    DRAFT_SHARED, /* what others of its tenant were given */
};
#define DRAFT_SOURCE_COUNT 3u

struct draft_node {
    double weight;
    float stated; /* the conditional probability as its source has it, before calibration */
    uint32_t token;
    uint8_t parent; /* row */
    uint8_t depth;  /* from 1 */
    uint8_t source; /* enum draft_source */
    uint8_t class;  /* of the source's nodes that are calibrated together (draft_calibration.h) */
};

struct draft_tree {
    struct draft_node node[DRAFT_NODES_MAX];
    uint32_t count, seed_count;
};

/* What a tree may be. */
struct draft_bounds {
    uint32_t node_max;  /* at most DRAFT_NODES_MAX */
    uint32_t depth_max; /* tokens that may still be drawn, less one */
    /* Tokens that end the reply: nothing comes behind them. Two lists: the model's, the request's.
     */
    const uint32_t *stop_token[2];
    uint32_t stop_token_count[2];
};

bool draft_bounds_is_stop(const struct draft_bounds *bounds, uint32_t token);

/* The union of trees: a prefix that several have is one node, as heavy as the heaviest of them. At
 * most one is seeded; its seed goes first. */
void draft_tree_merge(const struct draft_tree *const *from, uint32_t from_count, uint32_t node_max,
                      struct draft_tree *out);

/* The rows of the tree of the first node_count nodes behind this root: [node_count + 1] each. */
void draft_tree_rows(const struct draft_tree *tree, uint32_t node_count, uint32_t root,
                     uint32_t *token_out, uint32_t *parent_out);

#endif
