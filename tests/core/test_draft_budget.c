/* How many guesses are verified, and whose: against every way to share rows, and on steps that were
 * measured. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "draft_budget.h"
#include "draft_source_block.h"

#define ITEMS_MAX 8u

static uint32_t draw(uint64_t *state, uint32_t bound) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(hash_mix(*state) % bound);
}

/* A machine's step: what so many rows take, in microseconds, and straight lines between. */
struct recorded {
    const char *where;
    struct {
        uint32_t rows;
        double us;
    } point[4];     /* ascending; ends with rows 0 */
    double look_us; /* of 1024 looks */
};

static double recorded_us(const struct recorded *table, double rows) {
    for (uint32_t i = 0;; i++) {
        bool is_last = table->point[i + 1].rows == 0;
        if (!is_last && rows > table->point[i + 1].rows) continue;
        double rows_a = table->point[i].rows, us_a = table->point[i].us;
        if (is_last) return us_a;
        return us_a + (rows - rows_a) / (table->point[i + 1].rows - rows_a) *
                          (table->point[i + 1].us - us_a);
    }
}

/* What the model knows after it has seen such steps, of a few prompts and of each size. */
static void learn(struct cost_model *cost, const struct recorded *table, uint32_t committed) {
    cost_model_init(cost);
    for (uint32_t round = 0; round < 40; round++)
        for (uint32_t rows = 1; rows <= 64; rows++) {
            uint64_t looks = (uint64_t)rows * committed + (uint64_t)rows * (rows + 1) / 2;
            double us = recorded_us(table, rows) + table->look_us * (double)looks / 1024;
            struct cost_model_step step = {.rows = rows, .looks = looks};
            cost_model_take(cost, step, (uint64_t)(us * 1000));
            cost_model_take_drawing(cost, step, (uint64_t)(us * 1000));
        }
}

/* A drafter that is right with 0.7, and mostly among its next few guesses where it is not. */
static void make_tree(struct draft_tree *tree, uint32_t len, double right, bool seeded) {
    struct draft_block block = {.len = len, .top = 4};
    struct draft_calibration calibration;
    for (uint32_t source = 0; source < DRAFT_SOURCE_COUNT; source++)
        for (uint32_t class = 0; class < DRAFT_CLASSES; class ++)
            calibration.predicted[source][class] = calibration.observed[source][class] = 1e12;
    for (uint32_t i = 0; i < len; i++)
        for (uint32_t rank = 0; rank < 4; rank++) {
            block.token[i][rank] = 10 * i + rank;
            block.probability[i][rank] = (float)(rank == 0 ? right : (1 - right) * 0.4 / rank);
        }
    struct draft_bounds bounds = {.node_max = DRAFT_NODES_MAX, .depth_max = DRAFT_NODES_MAX};
    draft_block_guess(&block, &calibration, &bounds, seeded, tree);
}

static struct draft_choice choose(const struct cost_model *cost, struct draft_budget_item *item,
                                  uint32_t count, uint32_t row_max, uint64_t overhead_ns) {
    struct draft_budget budget = {.cost = cost, .row_max = row_max, .overhead_ns = overhead_ns};
    for (uint32_t i = 0; i < count; i++) {
        budget.step.rows++;
        budget.step.looks += item[i].committed + 1;
    }
    uint32_t heap[ITEMS_MAX];
    struct draft_choice choice = draft_budget_choose(&budget, item, count, heap);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += item[i].node_count;
    assert_int_equal(sum, choice.row_count);
    return choice;
}

/* Measured: two on one core of this project's first machine (docs/PERFORMANCE.md, INT4: a decode
 * row and 8 rows after 16,384 tokens; BF16: a decode row, and 512 of a prompt), one on an H200 (the
 * published speed-ups of Qwen3-8B on MATH-500 over their accepted tokens: 5.56 and 7.79 with a
 * chain of 16, 7.52 and 10.73 with trees of 256 and more, of a step of 10 ms). */
static const struct recorded expensive = {
    "after 16,384 tokens, one core", {{1, 101000}, {8, 613000}, {64, 4709000}}, 0};
static const struct recorded moderate = {"one core", {{1, 20400}, {512, 2708000}}, 0};
static const struct recorded cheap = {"an H200", {{1, 10000}, {17, 14010}, {257, 14270}}, 0};

static void recorded_tables(void **state) {
    (void)state;
    static const struct {
        const struct recorded *table;
        uint32_t least, most;
    } rows[] = {{&expensive, 0, 0}, {&moderate, 1, 4}, {&cheap, 32, 63}};
    struct draft_tree tree;
    make_tree(&tree, 8, 0.7, false);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct cost_model cost;
        learn(&cost, rows[i].table, 0);
        struct draft_budget_item item = {.tree = &tree, .node_max = tree.count};
        struct draft_choice choice = choose(&cost, &item, 1, DRAFT_NODES_MAX, 0);
        print_message("%s: %u guesses, %.2f tokens in %.1f ms, plain 1 in %.1f ms\n",
                      rows[i].table->where, choice.row_count, choice.tokens, choice.ns / 1e6,
                      choice.plain_ns / 1e6);
        assert_in_range(choice.row_count, rows[i].least, rows[i].most);
        assert_true(choice.tokens / choice.ns >= choice.plain_tokens / choice.plain_ns);
        /* Nor does anything pay that costs more than it can bring. */
        choice = choose(&cost, &item, 1, DRAFT_NODES_MAX, UINT64_C(1) << 40);
        assert_int_equal(choice.row_count, 0);
    }
}

/* A step in the cost does not trap the search: worse first, better beyond. */
static void no_size_is_left_out(void **state) {
    (void)state;
    struct recorded table = {"a step of the kernel", {{1, 10000}, {2, 19000}, {64, 20000}}, 0};
    struct cost_model cost;
    learn(&cost, &table, 0);
    struct draft_tree tree;
    make_tree(&tree, 8, 0.75, false);
    struct draft_budget_item item = {.tree = &tree, .node_max = tree.count};
    struct draft_choice choice = choose(&cost, &item, 1, 1, 0);
    assert_int_equal(choice.row_count, 0);
    choice = choose(&cost, &item, 1, DRAFT_NODES_MAX, 0);
    assert_true(choice.row_count > 8);
}

/* The best of all ways to share rows among requests, by trying every one. */
static void shares_are_the_best(void **state) {
    (void)state;
    uint64_t source = 1;
    uint32_t some = 0, none = 0;
    for (uint32_t round = 0; round < 200; round++) {
        struct draft_tree tree[3];
        struct draft_budget_item item[3];
        struct recorded table = {
            "random",
            {{1, 1000}, {3 + draw(&source, 4), 1000 + draw(&source, 3000)}, {64, 9000}},
            1};
        struct cost_model cost;
        learn(&cost, &table, 500);
        for (uint32_t i = 0; i < 3; i++) {
            make_tree(&tree[i], 1 + draw(&source, 6), 0.3 + 0.1 * draw(&source, 7), false);
            item[i] = (struct draft_budget_item){
                .tree = &tree[i], .node_max = draw(&source, tree[i].count + 1), .committed = 500};
            if (item[i].node_max > 12) item[i].node_max = 12;
        }
        uint32_t row_max = 1 + draw(&source, 30);
        uint64_t overhead_ns = draw(&source, 500000);
        struct draft_choice choice = choose(&cost, item, 3, row_max, overhead_ns);
        double best = choice.plain_tokens / choice.plain_ns;
        for (uint32_t a = 0; a <= item[0].node_max; a++)
            for (uint32_t b = 0; b <= item[1].node_max; b++)
                for (uint32_t c = 0; c <= item[2].node_max; c++) {
                    uint32_t count[3] = {a, b, c}, rows = a + b + c;
                    if (rows == 0 || rows > row_max) continue;
                    struct cost_model_step step = {.rows = 3 + rows};
                    double tokens = 3;
                    for (uint32_t i = 0; i < 3; i++) {
                        step.looks += 501;
                        for (uint32_t node = 0; node < count[i]; node++) {
                            tokens += tree[i].node[node].weight;
                            step.looks += 500 + node + 2;
                        }
                    }
                    double ns = cost_model_of_drawing(&cost, step) + (double)overhead_ns;
                    if (tokens / ns > best) best = tokens / ns;
                }
        double found = choice.tokens / choice.ns;
        assert_true(found >= best * (1 - 1e-4)); /* looks within a tree differ by a few */
        some += choice.row_count > 0;
        none += choice.row_count == 0;
    }
    assert_true(some > 20 && none > 20);
}

/* A seeded tree is taken from its front, whatever the weights behind its chain are. */
static void seeds_go_first(void **state) {
    (void)state;
    struct draft_tree seeded, other;
    make_tree(&seeded, 7, 0.5, true);
    make_tree(&other, 7, 0.5, false);
    struct cost_model cost;
    learn(&cost, &cheap, 0);
    for (uint32_t row_max = 1; row_max < 60; row_max++) {
        struct draft_budget_item item[2] = {{.tree = &seeded, .node_max = seeded.count},
                                            {.tree = &other, .node_max = other.count}};
        struct draft_choice choice = choose(&cost, item, 2, row_max, 0);
        double tokens = 2;
        for (uint32_t i = 0; i < item[0].node_count; i++)
            tokens += seeded.node[i].weight;
        for (uint32_t i = 0; i < item[1].node_count; i++)
            tokens += other.node[i].weight;
        assert_true(fabs(tokens - choice.tokens) < 1e-9);
    }
}

static void nothing_is_known_at_first(void **state) {
    (void)state;
    struct cost_model cost;
    cost_model_init(&cost);
    struct draft_tree tree;
    make_tree(&tree, 8, 0.9, false);
    struct draft_budget_item item = {.tree = &tree, .node_max = tree.count};
    struct draft_choice choice = choose(&cost, &item, 1, DRAFT_NODES_MAX, 0);
    assert_int_equal(choice.row_count, 0);
    assert_true(choice.plain_ns == 0);
}

/* Steps are remembered by their number of rows; between two lies what is between, and looks count
 * besides. */
static void costs_of_drawing_steps(void **state) {
    (void)state;
    static const struct recorded table = {"", {{1, 1000}, {8, 8000}, {64, 9000}}, 0};
    struct cost_model cost;
    cost_model_init(&cost);
    for (uint32_t i = 0; i < 4000; i++) {
        uint32_t rows = 1 + i % 64;
        struct cost_model_step step = {.rows = rows, .looks = (uint64_t)(i * 7 % 100) * 1024};
        double us = recorded_us(&table, rows) + 100.0 * (i * 7 % 100);
        cost_model_take(&cost, step, (uint64_t)(us * 1000));
        cost_model_take_drawing(&cost, step, (uint64_t)(us * 1000));
    }
    for (uint32_t rows = 1; rows <= 64; rows += 7) {
        struct cost_model_step step = {.rows = rows, .looks = 1024 * 50};
        double expected = recorded_us(&table, rows) + 5000;
        double found = cost_model_of_drawing(&cost, step) / 1000;
        assert_true(fabs(found - expected) < 0.12 * expected);
    }
}

/* A machine that has decoded and read prompts, and never verified: a little is tried, then a little
 * more, until it is known what pays. What was slow by chance is tried again. */
static void what_is_unknown_is_tried(void **state) {
    (void)state;
    struct cost_model cost;
    struct cost_model_step one = {.rows = 1, .looks = 1}, prompt = {.rows = 500, .looks = 500};
    cost_model_init(&cost);
    for (uint32_t i = 0; i < 40; i++) {
        cost_model_take(&cost, i % 4 ? one : prompt, i % 4 ? 10000000 : 4000000000);
        if (i % 4) cost_model_take_drawing(&cost, one, 10000000);
    }
    struct draft_tree tree;
    make_tree(&tree, 8, 0.7, false);
    struct draft_budget_item item = {.tree = &tree, .node_max = tree.count};
    uint32_t most = 0, last = 0;
    for (uint32_t i = 0; i < 200; i++) { /* a row more costs a hundredth of a step */
        struct draft_choice choice = choose(&cost, &item, 1, DRAFT_NODES_MAX, 0);
        struct cost_model_step step = {.rows = 1 + choice.row_count};
        cost_model_take_drawing(&cost, step, 10000000 + 100000 * (uint64_t)choice.row_count);
        assert_true(choice.row_count <= 2 * most + 3);
        if (choice.row_count > most) most = choice.row_count;
        last = choice.row_count;
    }
    assert_true(last > 12);
    for (uint32_t i = 0; i < 6400; i++) /* now they cost a hundred */
        cost_model_take_drawing(&cost, (struct cost_model_step){.rows = 2 + i % 63}, 1000000000);
    for (uint32_t i = 0; i < 30; i++)
        cost_model_take_drawing(&cost, one, 10000000);
    assert_int_equal(choose(&cost, &item, 1, DRAFT_NODES_MAX, 0).row_count, 0);
    for (uint32_t i = 0; i < 2100; i++)
        cost_model_take_drawing(&cost, one, 10000000);
    assert_true(choose(&cost, &item, 1, DRAFT_NODES_MAX, 0).row_count > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_tables),          cmocka_unit_test(no_size_is_left_out),
        cmocka_unit_test(shares_are_the_best),      cmocka_unit_test(seeds_go_first),
        cmocka_unit_test(what_is_unknown_is_tried), cmocka_unit_test(nothing_is_known_at_first),
        cmocka_unit_test(costs_of_drawing_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
