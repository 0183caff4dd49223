#include "draft_tree.h"

#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "tree.h"

#define PLACES 256u /* of nodes by parent and token; four a node at least */

_Static_assert((PLACES & (PLACES - 1)) == 0 && PLACES >= 4 * DRAFT_NODES_MAX, "a sparse table");

/* The union under construction. */
struct merging {
    struct draft_tree *out;
    uint8_t place[PLACES]; /* row, by hash of parent and token; 0: free */
};

bool draft_bounds_is_stop(const struct draft_bounds *bounds, uint32_t token) {
    for (uint32_t list = 0; list < 2; list++)
        for (uint32_t i = 0; i < bounds->stop_token_count[list]; i++)
            if (bounds->stop_token[list][i] == token) return true;
    return false;
}

/* Where the child is in the table, or where it would be. */
static uint8_t *place_of(struct merging *merging, uint8_t parent, uint32_t token) {
    uint64_t hash = hash_mix((uint64_t)parent << 32 | token);
    for (uint32_t i = (uint32_t)hash % PLACES;; i = (i + 1) % PLACES) {
        uint8_t row = merging->place[i];
        if (row == 0) return &merging->place[i];
        const struct draft_node *node = &merging->out->node[row - 1];
        if (node->parent == parent && node->token == token) return &merging->place[i];
    }
}

/* The row of this node in the union, where it is added if it is new. */
static uint8_t add(struct merging *merging, const struct draft_node *node, uint8_t parent) {
    uint8_t *place = place_of(merging, parent, node->token);
    if (*place > 0) return *place;
    struct draft_tree *out = merging->out;
    CHECK(parent <= out->count);
    out->node[out->count] = *node;
    out->node[out->count].parent = parent;
    return *place = (uint8_t)++out->count;
}

/* One tree on its way into the union. */
struct merging_from {
    const struct draft_tree *tree;
    uint32_t next;              /* its first node that has not come */
    uint8_t row[TREE_ROWS_MAX]; /* of the union, by row of the tree */
};

static void take(struct merging *merging, struct merging_from *from) {
    const struct draft_node *node = &from->tree->node[from->next++];
    from->row[from->next] = add(merging, node, from->row[node->parent]);
}

/* The heaviest node that has not come yet; the earlier tree's where two are as heavy. */
static struct merging_from *heaviest(struct merging_from *from, uint32_t from_count) {
    struct merging_from *found = NULL;
    for (uint32_t i = 0; i < from_count; i++) {
        if (from[i].next == from[i].tree->count) continue;
        if (!found ||
            from[i].tree->node[from[i].next].weight > found->tree->node[found->next].weight)
            found = &from[i];
    }
    return found;
}

void draft_tree_merge(const struct draft_tree *const *tree, uint32_t from_count, uint32_t node_max,
                      struct draft_tree *out) {
    CHECK(from_count <= DRAFT_SOURCE_COUNT && node_max <= DRAFT_NODES_MAX);
    struct merging merging = {.out = out};
    struct merging_from from[DRAFT_SOURCE_COUNT];
    out->count = out->seed_count = 0;
    for (uint32_t i = 0; i < from_count; i++) {
        from[i] = (struct merging_from){.tree = tree[i]};
        CHECK(out->seed_count == 0 || tree[i]->seed_count == 0);
        while (from[i].next < tree[i]->seed_count && out->count < node_max)
            take(&merging, &from[i]);
        out->seed_count += from[i].next;
    }
    struct merging_from *next;
    while (out->count < node_max && (next = heaviest(from, from_count)) != NULL)
        take(&merging, next);
}

void draft_tree_rows(const struct draft_tree *tree, uint32_t node_count, uint32_t root,
                     uint32_t *token_out, uint32_t *parent_out) {
    CHECK(node_count <= tree->count);
    token_out[0] = root;
    parent_out[0] = TREE_NO_PARENT;
    for (uint32_t i = 0; i < node_count; i++) {
        token_out[i + 1] = tree->node[i].token;
        parent_out[i + 1] = tree->node[i].parent;
    }
}
