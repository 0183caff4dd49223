/* Draft trees from a block's candidates, and the union of trees, against definitions by enumeration
 * that share nothing with them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "draft_source_block.h"
#include "tree.h"

#define PREFIXES_MAX 4096u

static uint32_t draw(uint64_t *state, uint32_t bound) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(hash_mix(*state) % bound);
}

/* Every factor is 1, within 1e-11. */
static struct draft_calibration trusted(void) {
    struct draft_calibration calibration;
    for (uint32_t source = 0; source < DRAFT_SOURCE_COUNT; source++)
        for (uint32_t class = 0; class < DRAFT_CLASSES; class ++)
            calibration.predicted[source][class] = calibration.observed[source][class] = 1e12;
    return calibration;
}

static struct draft_calibration doubtful(uint64_t *state) {
    struct draft_calibration calibration;
    for (uint32_t source = 0; source < DRAFT_SOURCE_COUNT; source++)
        for (uint32_t class = 0; class < DRAFT_CLASSES; class ++) {
            calibration.predicted[source][class] = 1000;
            calibration.observed[source][class] = draw(state, 1500);
        }
    return calibration;
}

/* Candidates whose probabilities fall at random, some of them equal, all different tokens. */
static void make_block(struct draft_block *block, uint32_t len, uint32_t top, uint64_t *state) {
    *block = (struct draft_block){.len = len, .top = top};
    for (uint32_t i = 0; i < len; i++) {
        float left = 1;
        for (uint32_t rank = 0; rank < top; rank++) {
            float probability = left * (float)(1 + draw(state, 8)) / 10;
            if (rank > 0 && probability > block->probability[i][rank - 1])
                probability = block->probability[i][rank - 1];
            block->token[i][rank] = 100 * i + rank;
            block->probability[i][rank] = probability;
            left -= probability;
        }
    }
}

static struct draft_bounds wide(uint32_t node_max) {
    return (struct draft_bounds){.node_max = node_max, .depth_max = DRAFT_NODES_MAX};
}

static double factor_at(const struct draft_calibration *calibration, uint32_t depth,
                        bool on_spine) {
    return draft_calibration_factor(calibration, DRAFT_BLOCK, depth - 1 + (on_spine ? 0 : 16));
}

static int falling(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* The weights of all prefixes, by counting through them: digit i of a number in base `top` is the
 * rank at position i. */
static uint32_t all_weights(const struct draft_block *block,
                            const struct draft_calibration *calibration, double *weight) {
    uint32_t count = 0;
    for (uint32_t depth = 1, prefixes = block->top; depth <= block->len;
         depth++, prefixes *= block->top)
        for (uint32_t number = 0; number < prefixes; number++) {
            double product = 1;
            bool on_spine = true;
            for (uint32_t i = 0, rest = number; i < depth; i++, rest /= block->top) {
                double p = (double)block->probability[i][rest % block->top] *
                           factor_at(calibration, i + 1, on_spine);
                product *= p < 1 ? p : 1;
                on_spine = on_spine && rest % block->top == 0;
            }
            assert_true(count < PREFIXES_MAX);
            weight[count++] = product;
        }
    qsort(weight, count, sizeof *weight, falling);
    return count;
}

/* Field by field: between them is padding. */
static void check_same(const struct draft_node *a, const struct draft_node *b, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        assert_true(a[i].weight == b[i].weight && a[i].stated == b[i].stated);
        assert_int_equal(a[i].token, b[i].token);
        assert_int_equal(a[i].parent, b[i].parent);
        assert_int_equal(a[i].depth, b[i].depth);
        assert_int_equal(a[i].source, b[i].source);
        assert_int_equal(a[i].class, b[i].class);
    }
}

static void check_shape(const struct draft_tree *tree) {
    uint32_t token[TREE_ROWS_MAX], parent[TREE_ROWS_MAX];
    draft_tree_rows(tree, tree->count, 7777, token, parent);
    struct tree laid;
    struct error err = {0};
    assert_int_equal(tree_init(&laid, token, parent, tree->count + 1, &err), STATUS_OK);
    for (uint32_t i = 0; i < tree->count; i++) {
        const struct draft_node *node = &tree->node[i];
        assert_int_equal(node->depth, laid.depth[i + 1]);
        double above = node->parent ? tree->node[node->parent - 1].weight : 1;
        assert_true(node->weight > 0 && node->weight <= above);
    }
}

static void check_falling(const struct draft_tree *tree) {
    for (uint32_t i = tree->seed_count + 1; i < tree->count; i++)
        assert_true(tree->node[i].weight <= tree->node[i - 1].weight);
}

/* The tree is the best of its size: its weights are the largest there are. It is as large as it may
 * be and can be. The tree of one node more begins with it. */
static void best_of_every_size(void **state) {
    (void)state;
    static double weight[PREFIXES_MAX];
    uint64_t source = 1;
    for (uint32_t round = 0; round < 400; round++) {
        struct draft_block block;
        make_block(&block, 1 + draw(&source, 5), 1 + draw(&source, 4), &source);
        struct draft_calibration calibration = round % 2 ? trusted() : doubtful(&source);
        uint32_t all = all_weights(&block, &calibration, weight), positive = 0;
        while (positive < all && weight[positive] > 0)
            positive++;
        struct draft_tree last = {.count = 0};
        for (uint32_t node_max = 0; node_max <= DRAFT_NODES_MAX; node_max++) {
            struct draft_tree tree;
            struct draft_bounds bounds = wide(node_max);
            draft_block_guess(&block, &calibration, &bounds, false, &tree);
            assert_int_equal(tree.count, node_max < positive ? node_max : positive);
            check_shape(&tree);
            check_falling(&tree);
            for (uint32_t i = 0; i < tree.count; i++)
                assert_true(fabs(tree.node[i].weight - weight[i]) <= 1e-9);
            check_same(tree.node, last.node, last.count);
            last = tree;
        }
    }
}

/* A sibling is there only if the likelier one is. */
static void ranks_are_closed(void **state) {
    (void)state;
    uint64_t source = 2;
    for (uint32_t round = 0; round < 200; round++) {
        struct draft_block block;
        make_block(&block, 7, 8, &source);
        struct draft_calibration calibration = trusted();
        struct draft_bounds bounds = wide(1 + draw(&source, DRAFT_NODES_MAX));
        struct draft_tree tree;
        draft_block_guess(&block, &calibration, &bounds, false, &tree);
        for (uint32_t i = 0; i < tree.count; i++) {
            if (tree.node[i].token % 100 == 0) continue;
            bool found = false;
            for (uint32_t j = 0; j < i; j++)
                found = found || (tree.node[j].parent == tree.node[i].parent &&
                                  tree.node[j].token + 1 == tree.node[i].token);
            assert_true(found);
        }
    }
}

/* The sum of the weights is the expected number of guesses accepted, with the tokens drawn from the
 * block's own distribution: by enumerating what may be drawn. */
static void weights_sum_to_acceptance(void **state) {
    (void)state;
    uint64_t source = 3;
    struct draft_calibration calibration = trusted();
    for (uint32_t round = 0; round < 100; round++) {
        struct draft_block block;
        make_block(&block, 4, 3, &source);
        struct draft_bounds bounds = wide(1 + draw(&source, 20));
        struct draft_tree tree;
        draft_block_guess(&block, &calibration, &bounds, false, &tree);
        uint32_t token[TREE_ROWS_MAX], parent[TREE_ROWS_MAX];
        draft_tree_rows(&tree, tree.count, 7777, token, parent);
        struct tree laid;
        struct error err = {0};
        assert_int_equal(tree_init(&laid, token, parent, tree.count + 1, &err), STATUS_OK);
        double expected = 0, sum = 0;
        for (uint32_t number = 0; number < 4 * 4 * 4 * 4; number++) { /* rank 3: any other token */
            double probability = 1;
            uint32_t drawn[5] = {0};
            for (uint32_t i = 0, rest = number; i < 4; i++, rest /= 4) {
                double other = 1;
                for (uint32_t rank = 0; rank < 3; rank++)
                    other -= (double)block.probability[i][rank];
                probability *= rest % 4 < 3 ? (double)block.probability[i][rest % 4] : other;
                drawn[i] = rest % 4 < 3 ? block.token[i][rest % 4] : 9999;
            }
            drawn[4] = 9999;
            struct tree_walk walk;
            tree_walk_begin(&walk);
            for (uint32_t i = 0; tree_walk_take(&walk, &laid, drawn[i]); i++) {
            }
            expected += probability * (walk.row_count - 1);
        }
        for (uint32_t i = 0; i < tree.count; i++)
            sum += tree.node[i].weight;
        assert_true(fabs(sum - expected) < 1e-6);
    }
}

/* Candidates that a tree of this size cannot reach make no difference. */
static void unreachable_ranks_do_not_matter(void **state) {
    (void)state;
    uint64_t source = 4;
    struct draft_calibration calibration = trusted();
    for (uint32_t round = 0; round < 100; round++) {
        struct draft_block block;
        make_block(&block, 6, 16, &source);
        uint32_t node_max = 1 + draw(&source, 15);
        struct draft_bounds bounds = wide(node_max);
        struct draft_tree tree, cut;
        draft_block_guess(&block, &calibration, &bounds, false, &tree);
        for (uint32_t i = 0; i < block.len; i++)
            for (uint32_t rank = node_max > i ? node_max - i : 0; rank < 16; rank++)
                block.probability[i][rank] = 0;
        draft_block_guess(&block, &calibration, &bounds, false, &cut);
        assert_int_equal(tree.count, cut.count);
        check_same(tree.node, cut.node, tree.count);
    }
}

static void extremes(void **state) {
    (void)state;
    struct draft_calibration calibration = trusted();
    struct draft_tree tree;
    struct draft_bounds bounds = wide(DRAFT_NODES_MAX);
    struct draft_block certain = {.len = 7, .top = 3};
    for (uint32_t i = 0; i < 7; i++)
        certain.token[i][0] = i, certain.token[i][1] = 50, certain.token[i][2] = 51,
        certain.probability[i][0] = 1;
    draft_block_guess(&certain, &calibration, &bounds, false, &tree);
    assert_int_equal(tree.count, 7); /* a chain */
    for (uint32_t i = 0; i < 7; i++)
        assert_int_equal(tree.node[i].parent, i);

    uint64_t source = 5;
    struct draft_block star;
    make_block(&star, 1, 16, &source);
    draft_block_guess(&star, &calibration, &bounds, false, &tree);
    assert_int_equal(tree.count, 16);
    for (uint32_t i = 0; i < 16; i++)
        assert_int_equal(tree.node[i].parent, 0);

    struct draft_block none = {.len = 0};
    draft_block_guess(&none, &calibration, &bounds, true, &tree);
    assert_int_equal(tree.count, 0);

    /* All alike: a function of the candidates all the same, and shallow first. */
    struct draft_block alike = {.len = 8, .top = 16};
    for (uint32_t i = 0; i < 8; i++)
        for (uint32_t rank = 0; rank < 16; rank++)
            alike.token[i][rank] = rank, alike.probability[i][rank] = 1.0f / 16;
    draft_block_guess(&alike, &calibration, &bounds, false, &tree);
    for (uint32_t i = 0; i < 16; i++) {
        assert_int_equal(tree.node[i].depth, 1);
        assert_int_equal(tree.node[i].token, i);
    }
}

/* Where all weigh the same: the shallower, then the likelier sibling, then the earlier parent. */
static void ties_have_an_order(void **state) {
    (void)state;
    static const uint32_t rank[] = {0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1};
    static const uint8_t parent[] = {0, 0, 1, 2, 1, 2, 3, 4, 5, 6, 3, 4, 5, 6};
    struct draft_calibration twice = trusted();
    for (uint32_t class = 0; class < DRAFT_CLASSES; class ++)
        twice.observed[DRAFT_BLOCK][class] *= 4; /* each half counts as certain */
    struct draft_block block = {.len = 3, .top = 2};
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t j = 0; j < 2; j++)
            block.token[i][j] = 100 * i + j, block.probability[i][j] = 0.5f;
    struct draft_bounds bounds = wide(DRAFT_NODES_MAX);
    struct draft_tree tree;
    draft_block_guess(&block, &twice, &bounds, false, &tree);
    assert_int_equal(tree.count, sizeof rank / sizeof *rank);
    for (uint32_t i = 0; i < tree.count; i++) {
        assert_true(tree.node[i].weight == 1);
        assert_int_equal(tree.node[i].token % 100, rank[i]);
        assert_int_equal(tree.node[i].parent, parent[i]);
    }
}

/* Logits far from their log-sum-exp, equal ones, and sums below a logit: probabilities all the
 * same. */
static void logits_become_probabilities(void **state) {
    (void)state;
    static const struct draft_candidate candidate[] = {{4, 2}, {5, 2},      {6, -300},
                                                       {7, 9}, {8, -3e38f}, {9, -3e38f}};
    static const float lse[] = {2.7f, 5};
    struct step_result result = {
        .draft_lse = lse, .candidate = candidate, .draft_count = 2, .draft_top = 3};
    struct result_sequence sequence = {.draft_count = 2};
    struct draft_block block;
    draft_block_take(&block, &result, &sequence);
    assert_int_equal(block.len, 2);
    assert_true(fabsf(block.probability[0][0] - expf(-0.7f)) < 1e-6f);
    assert_true(block.probability[0][1] == block.probability[0][0]);
    assert_true(block.probability[0][2] == 0);
    assert_true(block.probability[1][0] == 1);
    assert_true(block.probability[1][1] == 0);
    struct draft_calibration calibration = trusted();
    struct draft_bounds bounds = wide(DRAFT_NODES_MAX);
    struct draft_tree tree;
    draft_block_guess(&block, &calibration, &bounds, false, &tree);
    assert_int_equal(tree.count, 4); /* what has no chance is not guessed */
    sequence = (struct result_sequence){.draft_begin = 1, .draft_count = 1};
    draft_block_take(&block, &result, &sequence);
    assert_int_equal(block.token[0][0], 7);
}

/* The chain of the likeliest goes first, whole if it fits; what it leaves out is the best there
 * is. Such a tree accepts at least what the chain of as many rows does. */
static void seeded_with_the_chain(void **state) {
    (void)state;
    uint64_t source = 6;
    for (uint32_t round = 0; round < 300; round++) {
        struct draft_block block;
        uint32_t len = 1 + draw(&source, 10);
        make_block(&block, len, 2 + draw(&source, 6), &source);
        struct draft_calibration calibration = doubtful(&source);
        for (uint32_t class = 0; class < DRAFT_CLASSES; class ++)
            calibration.observed[DRAFT_BLOCK][class] += 1;
        uint32_t node_max = draw(&source, DRAFT_NODES_MAX + 1);
        struct draft_bounds bounds = wide(node_max);
        struct draft_tree tree, more;
        draft_block_guess(&block, &calibration, &bounds, true, &tree);
        check_shape(&tree);
        check_falling(&tree);
        assert_int_equal(tree.seed_count, node_max < len ? node_max : len);
        for (uint32_t i = 0; i < tree.seed_count; i++) {
            assert_int_equal(tree.node[i].token, 100 * i);
            assert_int_equal(tree.node[i].parent, i);
        }
        bounds.node_max = DRAFT_NODES_MAX;
        draft_block_guess(&block, &calibration, &bounds, true, &more);
        assert_true(more.count >= tree.count);
        check_same(more.node, tree.node, tree.count);
        /* As a set it holds the best tree whenever that has the spine. */
        struct draft_tree pure;
        bounds.node_max = node_max;
        draft_block_guess(&block, &calibration, &bounds, false, &pure);
        double sum_seeded = 0, sum_pure = 0;
        bool has_spine = false;
        for (uint32_t i = 0; i < pure.count; i++)
            has_spine = has_spine || (pure.node[i].depth == len && pure.node[i].class < 16 &&
                                      pure.node[i].token % 100 == 0);
        for (uint32_t i = 0; i < tree.count; i++)
            sum_seeded += tree.node[i].weight;
        for (uint32_t i = 0; i < pure.count; i++)
            sum_pure += pure.node[i].weight;
        assert_true(sum_seeded <= sum_pure + 1e-12);
        if (has_spine) assert_true(fabs(sum_seeded - sum_pure) < 1e-12);
    }
}

/* Nothing comes behind what ends a reply, and nothing deeper than what may still be drawn. */
static void stops_prune(void **state) {
    (void)state;
    uint64_t source = 7;
    struct draft_calibration calibration = trusted();
    static const uint32_t model_stop[] = {0}, own_stop[] = {101, 200};
    for (uint32_t seeded = 0; seeded < 2; seeded++) {
        struct draft_block block;
        make_block(&block, 6, 4, &source);
        struct draft_bounds bounds = {.node_max = 40,
                                      .depth_max = 4,
                                      .stop_token = {model_stop, own_stop},
                                      .stop_token_count = {1, 2}};
        struct draft_tree tree;
        draft_block_guess(&block, &calibration, &bounds, seeded, &tree);
        assert_true(tree.count > 4);
        uint32_t stops = 0;
        for (uint32_t i = 0; i < tree.count; i++) {
            assert_true(tree.node[i].depth <= 4);
            if (tree.node[i].parent == 0) continue;
            uint32_t above = tree.node[tree.node[i].parent - 1].token;
            assert_true(above != 0 && above != 101 && above != 200);
            stops += draft_bounds_is_stop(&bounds, tree.node[i].token);
        }
        assert_true(stops > 0);
        bounds.depth_max = 0;
        draft_block_guess(&block, &calibration, &bounds, seeded, &tree);
        assert_int_equal(tree.count, 0);
    }
}

/* --- the union ------------------------------------------------------------------------------- */

/* The weight of a path in a tree; 0 where it is not there. */
static double weight_of_path(const struct draft_tree *tree, const uint32_t *path, uint32_t depth) {
    uint32_t row = 0;
    for (uint32_t i = 0; i < depth; i++) {
        uint32_t found = 0;
        for (uint32_t at = 0; at < tree->count; at++)
            if (tree->node[at].parent == row && tree->node[at].token == path[i]) found = at + 1;
        if (found == 0) return 0;
        row = found;
    }
    return tree->node[row - 1].weight;
}

static void path_of(const struct draft_tree *tree, uint32_t row, uint32_t *path) {
    for (; row > 0; row = tree->node[row - 1].parent)
        path[tree->node[row - 1].depth - 1] = tree->node[row - 1].token;
}

/* Every prefix of a tree is as heavy in the union as in the heaviest; the union has the heaviest of
 * all. */
static void unions_hold_the_heaviest(void **state) {
    (void)state;
    uint64_t source = 8;
    for (uint32_t round = 0; round < 300; round++) {
        struct draft_tree tree[3], out;
        const struct draft_tree *from[3] = {&tree[0], &tree[1], &tree[2]};
        struct draft_calibration calibration = trusted();
        double all[3 * DRAFT_NODES_MAX];
        uint32_t all_count = 0;
        for (uint32_t i = 0; i < 3; i++) {
            struct draft_block block;
            make_block(&block, 1 + draw(&source, 5), 1 + draw(&source, 4), &source);
            struct draft_bounds bounds = wide(draw(&source, DRAFT_NODES_MAX + 1));
            draft_block_guess(&block, &calibration, &bounds, false, &tree[i]);
        }
        for (uint32_t i = 0; i < 3; i++)
            for (uint32_t row = 1; row <= tree[i].count; row++) {
                uint32_t path[TREE_ROWS_MAX], depth = tree[i].node[row - 1].depth;
                path_of(&tree[i], row, path);
                double heaviest = 0, before = 0;
                for (uint32_t j = 0; j < 3; j++) {
                    double weight = weight_of_path(&tree[j], path, depth);
                    if (weight > heaviest) heaviest = weight;
                    if (j < i && weight > before) before = weight;
                }
                if (before == 0) all[all_count++] = heaviest; /* new with this tree */
            }
        qsort(all, all_count, sizeof *all, falling);
        uint32_t node_max = draw(&source, DRAFT_NODES_MAX + 1);
        draft_tree_merge(from, 3, node_max, &out);
        assert_int_equal(out.count, node_max < all_count ? node_max : all_count);
        check_shape(&out);
        check_falling(&out);
        for (uint32_t i = 0; i < out.count; i++)
            assert_true(out.node[i].weight == all[i]);
        /* One alone is itself. */
        draft_tree_merge(from, 1, DRAFT_NODES_MAX, &out);
        assert_int_equal(out.count, tree[0].count);
        check_same(out.node, tree[0].node, out.count);
    }
}

static void unions_keep_a_seed(void **state) {
    (void)state;
    uint64_t source = 9;
    struct draft_calibration calibration = trusted();
    struct draft_block block[2];
    make_block(&block[0], 7, 4, &source);
    make_block(&block[1], 7, 4, &source);
    struct draft_bounds bounds = wide(DRAFT_NODES_MAX);
    struct draft_tree tree[2], out;
    draft_block_guess(&block[0], &calibration, &bounds, true, &tree[0]);
    draft_block_guess(&block[1], &calibration, &bounds, false, &tree[1]);
    const struct draft_tree *from[2] = {&tree[1], &tree[0]};
    draft_tree_merge(from, 2, 20, &out);
    assert_int_equal(out.seed_count, 7);
    check_shape(&out);
    check_falling(&out);
    for (uint32_t i = 0; i < 7; i++)
        assert_int_equal(out.node[i].token, 100 * i);
}

/* --- calibration ----------------------------------------------------------------------------- */

static void factors_follow_what_happens(void **state) {
    (void)state;
    struct draft_calibration calibration;
    draft_calibration_init(&calibration);
    double first = draft_calibration_factor(&calibration, DRAFT_OWN, 3),
           next = draft_calibration_factor(&calibration, DRAFT_OWN, 4),
           shared = draft_calibration_factor(&calibration, DRAFT_SHARED, 3);
    struct draft_node node = {.source = DRAFT_OWN, .class = 3, .stated = 0.5f};
    for (uint32_t i = 0; i < 400; i++)
        draft_calibration_take(&calibration, &node, i % 8 == 0);
    assert_true(fabs(draft_calibration_factor(&calibration, DRAFT_OWN, 3) - 0.25) < 0.03);
    assert_true(draft_calibration_factor(&calibration, DRAFT_OWN, 4) == next);
    assert_true(draft_calibration_factor(&calibration, DRAFT_SHARED, 3) == shared);
    for (uint32_t i = 0; i < 20000; i++)
        draft_calibration_fade(&calibration);
    assert_true(fabs(draft_calibration_factor(&calibration, DRAFT_OWN, 3) - first) < 0.01);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(best_of_every_size),
        cmocka_unit_test(ranks_are_closed),
        cmocka_unit_test(weights_sum_to_acceptance),
        cmocka_unit_test(unreachable_ranks_do_not_matter),
        cmocka_unit_test(extremes),
        cmocka_unit_test(ties_have_an_order),
        cmocka_unit_test(logits_become_probabilities),
        cmocka_unit_test(seeded_with_the_chain),
        cmocka_unit_test(stops_prune),
        cmocka_unit_test(unions_hold_the_heaviest),
        cmocka_unit_test(unions_keep_a_seed),
        cmocka_unit_test(factors_follow_what_happens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
