/* Trees of drafted tokens: their masks, their walk, and what is no tree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "tree.h"

#define NONE TREE_NO_PARENT

/* A reproducible source of numbers below `bound`. */
static uint32_t draw(uint64_t *state, uint32_t bound) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(hash_mix(*state) % bound);
}

/* A random tree over few tokens; siblings differ, cousins often do not. */
struct random_tree {
    uint32_t token[TREE_ROWS_MAX], parent[TREE_ROWS_MAX];
    struct tree tree;
};

static void make_tree(struct random_tree *made, uint64_t *state) {
    uint32_t wanted = 1 + draw(state, TREE_ROWS_MAX), row_count = 1;
    made->token[0] = draw(state, 4);
    made->parent[0] = NONE;
    for (uint32_t tries = 0; row_count < wanted && tries < 4 * TREE_ROWS_MAX; tries++) {
        uint32_t parent = draw(state, row_count), token = draw(state, 4), is_new = 1;
        for (uint32_t row = 1; row < row_count; row++)
            if (made->parent[row] == parent && made->token[row] == token) is_new = 0;
        if (!is_new) continue;
        made->parent[row_count] = parent;
        made->token[row_count++] = token;
    }
    struct error err = {0};
    assert_int_equal(tree_init(&made->tree, made->token, made->parent, row_count, &err), STATUS_OK);
}

/* The token of one of the row's children; one that is in no tree where it has none. */
static uint32_t child_token(const struct random_tree *made, uint32_t row, uint64_t *state) {
    uint32_t token = 4;
    for (uint32_t child = row + 1; child < made->tree.row_count; child++)
        if (made->parent[child] == row && (token == 4 || draw(state, 2)))
            token = made->token[child];
    return token;
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        uint32_t token[4], parent[4];
        const char *text; /* NULL: accepted */
    } rows[] = {
        {{1, 1, 1, 1}, {NONE, 0, 1, 2}, NULL},
        {{1, 2, 3, 2}, {NONE, 0, 0, 2}, NULL},
        {{1, 2, 3, 2}, {0, 0, 0, 2}, "row 0: parent 0, accepted 4294967295, none"},
        {{1, 2, 3, 2}, {NONE, 0, 2, 2}, "row 2: parent 2, accepted 0..1"},
        {{1, 2, 3, 2}, {NONE, 0, NONE, 2}, "row 2: parent 4294967295, accepted 0..1"},
        {{1, 2, 3, 2}, {NONE, 0, 1, 0}, "row 3: token 2, as its sibling row 1, accepted once"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tree tree;
        struct error err = {0};
        enum status status = tree_init(&tree, rows[i].token, rows[i].parent, 4, &err);
        assert_int_equal(status, rows[i].text ? STATUS_INVALID_ARGUMENT : STATUS_OK);
        if (rows[i].text) assert_string_equal(err.text, rows[i].text);
    }
}

/* A row's ancestors are those that following parents finds, and no others. */
static void masks_are_paths(void **state) {
    (void)state;
    uint64_t source = 1;
    for (uint32_t round = 0; round < 500; round++) {
        struct random_tree made;
        make_tree(&made, &source);
        for (uint32_t row = 0; row < made.tree.row_count; row++) {
            uint64_t mask = 0;
            uint32_t steps = 0;
            for (uint32_t at = row; at != NONE; at = made.parent[at], steps++)
                mask |= UINT64_C(1) << at;
            assert_true(made.tree.ancestors[row] == mask);
            assert_int_equal(made.tree.depth[row], steps - 1);
            assert_int_equal(__builtin_popcountll(mask), made.tree.depth[row] + 1);
        }
    }
}

/* Against a definition that knows no rows: a string of drawn tokens is followed as long as the
 * tree has it as a path. */
static void walks_follow_strings(void **state) {
    (void)state;
    uint64_t source = 2;
    uint32_t longest = 0;
    for (uint32_t round = 0; round < 2000; round++) {
        struct random_tree made;
        make_tree(&made, &source);
        uint32_t drawn[TREE_ROWS_MAX], count = 0, cur = 0;
        uint64_t prefix = hash_chain(7, made.token[0]);
        struct tree_walk walk;
        tree_walk_begin(&walk);
        bool goes_on = true;
        while (goes_on) {
            drawn[count] = draw(&source, 5); /* 4 is in no tree */
            if (round % 2) drawn[count] = child_token(&made, cur, &source);
            uint32_t found = NONE;
            for (uint32_t row = 1; row < made.tree.row_count; row++)
                if (made.parent[row] == cur && made.token[row] == drawn[count]) found = row;
            assert_int_equal(tree_child(&made.tree, cur, drawn[count]), found == NONE ? 0 : found);
            goes_on = tree_walk_take(&walk, &made.tree, drawn[count]);
            assert_int_equal(goes_on, found != NONE);
            assert_int_equal(walk.next, drawn[count++]);
            if (!goes_on) break;
            cur = found;
            prefix = hash_chain(prefix, walk.next);
            assert_int_equal(walk.row[walk.row_count - 1], cur);
        }
        assert_true(walk.done);
        assert_int_equal(walk.row_count, count);
        assert_true(tree_walk_prefix(&walk, &made.tree, 7) == prefix);
        for (uint32_t j = 0; j < walk.row_count; j++) {
            assert_true(walk.row[j] >= j);
            if (j > 0) assert_true(walk.row[j] > walk.row[j - 1]);
            if (j > 0) assert_int_equal(made.token[walk.row[j]], drawn[j - 1]);
        }
        if (count > longest) longest = count;
    }
    assert_true(longest > 8);
}

/* In place and ascending, the path's rows arrive whole. */
static void paths_move_in_place(void **state) {
    (void)state;
    uint64_t source = 3;
    for (uint32_t round = 0; round < 500; round++) {
        struct random_tree made;
        make_tree(&made, &source);
        struct tree_walk walk;
        tree_walk_begin(&walk);
        for (bool goes_on = true; goes_on;) {
            uint32_t token = child_token(&made, walk.row[walk.row_count - 1], &source);
            goes_on = tree_walk_take(&walk, &made.tree, token);
        }
        uint32_t place[TREE_ROWS_MAX];
        for (uint32_t i = 0; i < TREE_ROWS_MAX; i++)
            place[i] = i;
        for (uint32_t j = 0; j < walk.row_count; j++)
            place[j] = place[walk.row[j]];
        for (uint32_t j = 0; j < walk.row_count; j++)
            assert_int_equal(place[j], walk.row[j]);
    }
}

/* Token 0 is a token like others, and so is the root's own as a guess. */
static void token_zero_counts(void **state) {
    (void)state;
    static const uint32_t token[] = {0, 0, 0}, parent[] = {NONE, 0, 1};
    struct tree tree;
    struct error err = {0};
    assert_int_equal(tree_init(&tree, token, parent, 3, &err), STATUS_OK);
    struct tree_walk walk;
    tree_walk_begin(&walk);
    assert_true(tree_walk_take(&walk, &tree, 0));
    assert_true(tree_walk_take(&walk, &tree, 0));
    assert_false(tree_walk_take(&walk, &tree, 0));
    assert_int_equal(walk.row_count, 3);
    assert_int_equal(walk.next, 0);
}

/* Decode is the tree of one. */
static void a_root_alone(void **state) {
    (void)state;
    static const uint32_t token[] = {5}, parent[] = {NONE};
    struct tree tree;
    struct error err = {0};
    assert_int_equal(tree_init(&tree, token, parent, 1, &err), STATUS_OK);
    struct tree_walk walk;
    tree_walk_begin(&walk);
    assert_false(tree_walk_take(&walk, &tree, 5));
    assert_int_equal(walk.row_count, 1);
    assert_true(tree_walk_prefix(&walk, &tree, 3) == hash_chain(3, 5));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),
        cmocka_unit_test(masks_are_paths),
        cmocka_unit_test(walks_follow_strings),
        cmocka_unit_test(paths_move_in_place),
        cmocka_unit_test(token_zero_counts),
        cmocka_unit_test(a_root_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
