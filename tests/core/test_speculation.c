/* Which guesses a step gets: how far is drafted, what is left of a tree that is cut, what is
 * counted, and whether the drafter is asked on machines where that pays and where it does not. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "speculation.h"

#define LEN  7u
#define TOP  4u
#define ROOT 5000u

static const uint64_t us = 1000;

static uint32_t draw(uint64_t *state, uint32_t bound) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(hash_mix(*state) % bound);
}

struct guesser {
    struct core_options options;
    struct arena memory;
    struct speculation speculation;
    struct cost_model cost;
};

static void begin(struct guesser *guesser, enum speculative_algorithm algorithm, bool fixed,
                  uint32_t tree_rows) {
    guesser->options = (struct core_options){.max_running_requests = 2,
                                             .context_len = 1024,
                                             .speculative_algorithm = algorithm,
                                             .speculative_tree_rows = tree_rows,
                                             .speculative_history_tok = 1024,
                                             .speculative_fixed = fixed};
    arena_init(&guesser->memory, speculation_memory(&guesser->options));
    speculation_init(&guesser->speculation, &guesser->options, &guesser->memory);
    guesser->speculation.draft_len = LEN;
    cost_model_init(&guesser->cost);
}

static void end(struct guesser *guesser) {
    arena_deinit(&guesser->memory);
}

/* Position i has the tokens 10 i, 10 i + 1, ...; the first with this probability. */
static void take_draft(struct guesser *guesser, uint32_t slot, float first) {
    static struct draft_candidate candidate[LEN * TOP];
    static float lse[LEN];
    for (uint32_t i = 0; i < LEN; i++)
        for (uint32_t rank = 0; rank < TOP; rank++)
            candidate[i * TOP + rank] = (struct draft_candidate){
                .token = 10 * i + rank, .logit = logf(rank == 0 ? first : (1 - first) / TOP)};
    const struct step_result result = {
        .draft_lse = lse, .candidate = candidate, .draft_count = LEN, .draft_top = TOP};
    const struct result_sequence sequence = {.slot = slot, .draft_count = LEN};
    speculation_take_draft(&guesser->speculation, slot, &result, &sequence);
}

static struct draft_bounds bounds_of(uint32_t tree_rows) {
    return (struct draft_bounds){.node_max = tree_rows - 1, .depth_max = 60};
}

/* Guess for one slot and choose; the nodes that its tree has room for. */
static uint32_t plan(struct guesser *guesser, uint32_t slot, uint32_t committed) {
    struct draft_bounds bounds = bounds_of(guesser->options.speculative_tree_rows);
    struct cost_model_step step = {.rows = 1, .looks = committed + 1};
    speculation_begin(&guesser->speculation);
    speculation_guess(&guesser->speculation, slot, &bounds, committed);
    speculation_choose(&guesser->speculation, &guesser->cost, step, DRAFT_NODES_MAX);
    return speculation_fit(&guesser->speculation, slot, DRAFT_NODES_MAX);
}

/* How long a block is and how large a tree may be have nothing to do with each other. */
static void drafts_are_as_long_as_blocks(void **state) {
    (void)state;
    static const uint32_t tree_rows[] = {2, 5, 8, 64};
    for (uint32_t i = 0; i < 4; i++) {
        struct guesser guesser;
        begin(&guesser, SPECULATE_DFLASH, true, tree_rows[i]);
        speculation_open(&guesser.speculation, 0, 1, NULL, 0);
        assert_int_equal(speculation_draft_len(&guesser.speculation, 0, 100), LEN);
        assert_int_equal(speculation_draft_len(&guesser.speculation, 0, LEN - 1), 0);
        take_draft(&guesser, 0, 0.5f);
        uint32_t all = tree_rows[i] - 1; /* the block has more than any tree takes */
        assert_int_equal(plan(&guesser, 0, 10), all < DRAFT_NODES_MAX ? all : DRAFT_NODES_MAX);
        end(&guesser);
    }
}

/* What room is left for is the tree's beginning, which is a tree; with none it is no tree, and what
 * was cut is neither sent nor counted. */
static void a_cut_tree_is_a_tree(void **state) {
    (void)state;
    for (uint32_t room = 0; room <= 12; room++) {
        struct guesser guesser;
        uint32_t token[TREE_ROWS_MAX], parent[TREE_ROWS_MAX], whole[TREE_ROWS_MAX];
        struct tree tree;
        struct error err = {0};
        begin(&guesser, SPECULATE_DFLASH, true, 16);
        speculation_open(&guesser.speculation, 0, 1, NULL, 0);
        take_draft(&guesser, 0, 0.4f);
        assert_int_equal(plan(&guesser, 0, 10), 15);
        speculation_rows(&guesser.speculation, 0, ROOT, whole, parent);
        assert_int_equal(speculation_fit(&guesser.speculation, 0, room), room);
        memset(token, 0xff, sizeof token);
        speculation_rows(&guesser.speculation, 0, ROOT, token, parent);
        assert_memory_equal(token, whole, (room + 1) * sizeof *token);
        assert_int_equal(token[room + 1], UINT32_MAX);
        assert_int_equal(tree_init(&tree, token, parent, room + 1, &err), STATUS_OK);
        struct tree_walk walk;
        tree_walk_begin(&walk);
        tree_walk_take(&walk, &tree, ROOT);
        speculation_verified(&guesser.speculation, 0, room > 0 ? &walk : NULL, false);
        assert_int_equal(guesser.speculation.counts.guesses, room);
        assert_int_equal(guesser.speculation.counts.trees, room > 0);
        end(&guesser);
    }
}

/* Walks are counted by how deep they came, guesses by who made them. */
static void walks_are_counted(void **state) {
    (void)state;
    static const uint32_t own[] = {900, 901, 902, 903, 904, 905, 906, 900, 901, 902};
    struct guesser guesser;
    begin(&guesser, SPECULATE_AUTO, true, 64);
    speculation_open(&guesser.speculation, 0, 1, own, 10);
    take_draft(&guesser, 0, 0.9f);
    uint32_t node_count = plan(&guesser, 0, 10);
    uint32_t token[TREE_ROWS_MAX], parent[TREE_ROWS_MAX];
    struct tree tree;
    struct error err = {0};
    speculation_rows(&guesser.speculation, 0, ROOT, token, parent);
    assert_int_equal(tree_init(&tree, token, parent, node_count + 1, &err), STATUS_OK);
    struct tree_walk walk;
    tree_walk_begin(&walk);
    for (uint32_t i = 903; tree_walk_take(&walk, &tree, i < 906 ? i : ROOT); i++) {
    }
    const struct speculation_counts *counts = &guesser.speculation.counts;
    speculation_verified(&guesser.speculation, 0, &walk, false);
    for (uint32_t depth = 1; depth <= SPECULATION_DEPTHS; depth++)
        assert_int_equal(counts->accepted[depth - 1], depth <= 3);
    assert_int_equal(counts->trees, 1);
    assert_int_equal(counts->guesses, node_count);
    assert_int_equal(counts->source_accepted[DRAFT_OWN], 3);
    assert_int_equal(counts->source_accepted[DRAFT_BLOCK], 0);
    assert_true(counts->source_guesses[DRAFT_BLOCK] > 20 && counts->source_guesses[DRAFT_OWN] > 3);
    assert_int_equal(counts->source_guesses[DRAFT_BLOCK] + counts->source_guesses[DRAFT_OWN],
                     node_count);
    end(&guesser);
}

/* --- is the drafter asked -------------------------------------------------------------------- */

/* A machine: what a step, a row more, and a draft take; how often of ten the drafter is right. */
struct machine {
    uint64_t step_ns, row_ns, draft_ns;
    uint32_t right;
};

struct ran {
    uint32_t drafts;
    double ns, tokens;
};

/* Decode so many steps; no token repeats, so that only the drafter has guesses. */
static struct ran run(struct guesser *guesser, const struct machine *machine, uint32_t steps,
                      uint64_t *source) {
    struct ran ran = {.drafts = 0};
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t token[TREE_ROWS_MAX], parent[TREE_ROWS_MAX];
        uint32_t node_count = plan(guesser, 0, 100);
        uint32_t len = speculation_draft_len(&guesser->speculation, 0, 100);
        bool alone = node_count > 0 || len > 0; /* the plan behind it waits for its result */
        uint64_t verify_ns = machine->step_ns + node_count * machine->row_ns;
        uint64_t draft_ns = len > 0 ? machine->draft_ns : 0, gap_ns = alone ? 100 * us : 0;
        struct tree tree;
        struct tree_walk walk;
        struct error err = {0};
        speculation_rows(&guesser->speculation, 0, ROOT, token, parent);
        assert_int_equal(tree_init(&tree, token, parent, node_count + 1, &err), STATUS_OK);
        tree_walk_begin(&walk);
        for (uint32_t depth = 0;; depth++)
            if (!tree_walk_take(&walk, &tree,
                                draw(source, 10) < machine->right ? 10 * depth : ROOT))
                break;
        if (len > 0) take_draft(guesser, 0, (float)machine->right / 10);
        speculation_verified(&guesser->speculation, 0, node_count > 0 ? &walk : NULL, len > 0);
        struct cost_model_step step = {.rows = 1 + node_count, .looks = 101 * (1 + node_count)};
        cost_model_take(&guesser->cost, step, verify_ns);
        cost_model_take_drawing(&guesser->cost, step, verify_ns);
        speculation_measure(&guesser->speculation, draft_ns, len > 0, alone ? (int64_t)gap_ns : -1);
        ran.drafts += len > 0;
        ran.ns += (double)(verify_ns + draft_ns + gap_ns);
        ran.tokens += walk.row_count;
    }
    return ran;
}

static void drafts_are_asked_for_where_they_pay(void **state) {
    (void)state;
    static const struct {
        const char *name;
        struct machine machine;
        uint32_t least, most; /* drafts of 4,000 steps */
    } rows[] = {
        {"a draft costs four steps", {500 * us, 20 * us, 2000 * us, 7}, 1, 40},
        {"rows cost as much as steps", {20000 * us, 18000 * us, 3000 * us, 6}, 1, 160},
        {"the drafter is wrong", {20000 * us, 100 * us, 3000 * us, 0}, 1, 160},
        {"a large model", {20000 * us, 300 * us, 1500 * us, 7}, 3900, 4000},
        {"a small one, rows for nothing", {500 * us, 2 * us, 250 * us, 8}, 3900, 4000},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct guesser guesser;
        uint64_t source = i;
        begin(&guesser, SPECULATE_DFLASH, false, 32);
        speculation_open(&guesser.speculation, 0, 1, NULL, 0);
        struct ran ran = run(&guesser, &rows[i].machine, 4000, &source);
        double gain = ran.tokens / ran.ns * (double)rows[i].machine.step_ns;
        print_message("%s: %u drafts in 4,000 steps, %.2f of plain decoding\n", rows[i].name,
                      ran.drafts, gain);
        assert_in_range(ran.drafts, rows[i].least, rows[i].most);
        assert_true(gain > 0.97);
        if (rows[i].least > 1000) assert_true(gain > 1.5);
        end(&guesser);
    }
}

/* A machine that changes is found out, in either direction. */
static void what_pays_changes(void **state) {
    (void)state;
    static const struct machine good = {20000 * us, 300 * us, 1500 * us, 7};
    static const struct machine bad = {20000 * us, 300 * us, 30000 * us, 7};
    struct guesser guesser;
    uint64_t source = 1;
    begin(&guesser, SPECULATE_DFLASH, false, 32);
    speculation_open(&guesser.speculation, 0, 1, NULL, 0);
    run(&guesser, &good, 500, &source);
    struct ran ran = run(&guesser, &bad, 4000, &source);
    assert_in_range(ran.drafts, 1, 160);
    assert_true(ran.tokens / ran.ns * (double)bad.step_ns > 0.97);
    run(&guesser, &good, 2200, &source);
    ran = run(&guesser, &good, 1000, &source);
    assert_true(ran.drafts > 900);
    end(&guesser);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_are_as_long_as_blocks),
        cmocka_unit_test(a_cut_tree_is_a_tree),
        cmocka_unit_test(walks_are_counted),
        cmocka_unit_test(drafts_are_asked_for_where_they_pay),
        cmocka_unit_test(what_pays_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
