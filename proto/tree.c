#include "tree.h"

#include "base/check.h"
#include "base/hash.h"

_Static_assert(TREE_ROWS_MAX <= 64, "a row's ancestors fit a mask");

enum status tree_init(struct tree *tree, const uint32_t *token, const uint32_t *parent,
                      uint32_t row_count, struct error *err) {
    CHECK(row_count >= 1 && row_count <= TREE_ROWS_MAX);
    *tree = (struct tree){.token = token, .parent = parent, .row_count = row_count};
    if (parent[0] != TREE_NO_PARENT)
        return error_set(err, STATUS_INVALID_ARGUMENT, "row 0: parent %u, accepted %u, none",
                         parent[0], TREE_NO_PARENT);
    tree->ancestors[0] = 1;
    for (uint32_t row = 1; row < row_count; row++) {
        uint32_t above = parent[row];
        if (above >= row)
            return error_set(err, STATUS_INVALID_ARGUMENT, "row %u: parent %u, accepted 0..%u", row,
                             above, row - 1);
        for (uint32_t other = 1; other < row; other++)
            if (parent[other] == above && token[other] == token[row])
                return error_set(err, STATUS_INVALID_ARGUMENT,
                                 "row %u: token %u, as its sibling row %u, accepted once", row,
                                 token[row], other);
        tree->depth[row] = (uint8_t)(tree->depth[above] + 1);
        tree->ancestors[row] = tree->ancestors[above] | UINT64_C(1) << row;
    }
    return STATUS_OK;
}

uint32_t tree_child(const struct tree *tree, uint32_t row, uint32_t token) {
    for (uint32_t child = row + 1; child < tree->row_count; child++)
        if (tree->parent[child] == row && tree->token[child] == token) return child;
    return 0;
}

void tree_walk_begin(struct tree_walk *walk) {
    *walk = (struct tree_walk){.row_count = 1};
}

bool tree_walk_take(struct tree_walk *walk, const struct tree *tree, uint32_t token) {
    CHECK(!walk->done && walk->row_count > 0);
    uint32_t child = tree_child(tree, walk->row[walk->row_count - 1], token);
    walk->next = token;
    walk->done = child == 0;
    if (child > 0) walk->row[walk->row_count++] = (uint8_t)child;
    return !walk->done;
}

uint64_t tree_walk_prefix(const struct tree_walk *walk, const struct tree *tree, uint64_t prefix) {
    for (uint32_t i = 0; i < walk->row_count; i++)
        prefix = hash_chain(prefix, tree->token[walk->row[i]]);
    return prefix;
}
