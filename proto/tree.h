/* A tree of drafted tokens laid flat, and the walk that says which of them were right.
 *
 *      a ──▶ b ──▶ d        row     0  1  2  3  4       row 0, the root, is the last token drawn:
 *       ╲     ╲──▶ e        token   a  b  c  d  e       known, but without KV. The others are
 *        ╲──▶ c             parent  -  0  0  1  1       guesses, each after its parent.
 *                           depth   0  1  1  2  2
 *
 * With s tokens committed, row i sits at position s + depth[i], is written at cache slot s + i, and
 * attends to [0, s) and to its ancestors, itself among them. At each row the model draws the token
 * that follows. The walk begins at the root and goes to the child whose token was drawn, as long as
 * there is one. The rows of its path are right: they and the last token drawn, which no child has,
 * are what plain decoding would have given, for a token drawn at a row depends on the row's path
 * and not on the tree (Miao et al., "SpecInfer", ASPLOS 2024, section 4; here with one draw a row).
 *
 * Worker and coordinator walk with this code and must come to the same end. Integers only. Values
 * without memory behind them; token and parent are borrowed.
 */
#ifndef ESPALIER_TREE_H
#define ESPALIER_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/status.h"

#define TREE_NO_PARENT UINT32_MAX /* of the root */

struct tree {
    const uint32_t *token;             /* [row_count] */
    const uint32_t *parent;            /* [row_count] */
    uint32_t row_count;                /* 1..TREE_ROWS_MAX */
    uint8_t depth[TREE_ROWS_MAX];      /* of the root 0 */
    uint64_t ancestors[TREE_ROWS_MAX]; /* bit j: row j is on the path to this row, or it itself */
};

/* INVALID_ARGUMENT where a parent is not a row before, or two children of one row have the same
 * token: then there would be two ways to walk. */
enum status tree_init(struct tree *tree, const uint32_t *token, const uint32_t *parent,
                      uint32_t row_count, struct error *err) MUST_USE;

/* The child of a row that has this token; 0, which is nobody's child, if none has. */
uint32_t tree_child(const struct tree *tree, uint32_t row, uint32_t token);

/* A walk under way. The path's rows ascend, and row[j] >= j: moving row row[j] to place j one after
 * the other overwrites nothing that is still to be moved. */
struct tree_walk {
    uint8_t row[TREE_ROWS_MAX]; /* the path: [0, row_count), from the root */
    uint32_t row_count;         /* tokens that become committed: the root's and those accepted */
    uint32_t next;              /* the last token drawn, and the root of what comes */
    bool done;                  /* no child has it */
};

/* At the root, which is right in any case. */
void tree_walk_begin(struct tree_walk *walk);

/* Take the token drawn at the last row of the path. True: the path has another row now; take the
 * token drawn there. False: done. */
bool tree_walk_take(struct tree_walk *walk, const struct tree *tree, uint32_t token);

/* The hash of the prefix with the path behind it (hash_chain). */
uint64_t tree_walk_prefix(const struct tree_walk *walk, const struct tree *tree, uint64_t prefix);

#endif
