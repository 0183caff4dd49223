/* Guesses from what was there before, against a search that looks at every place. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "draft_source_suffix.h"

static uint32_t draw(uint64_t *state, uint32_t bound) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(hash_mix(*state) % bound);
}

struct history {
    struct arena memory;
    struct draft_suffix suffix;
    struct draft_calibration calibration;
    struct draft_bounds bounds;
    struct draft_tree tree;
};

static void begin(struct history *history, uint32_t capacity) {
    arena_init(&history->memory, draft_suffix_memory(capacity));
    draft_suffix_init(&history->suffix, capacity, &history->memory);
    draft_calibration_init(&history->calibration);
    history->bounds = (struct draft_bounds){.node_max = DRAFT_NODES_MAX, .depth_max = 8};
}

static const struct draft_tree *guess(struct history *history, uint32_t mark, const uint32_t *end,
                                      uint32_t end_count) {
    draft_suffix_guess(&history->suffix, DRAFT_OWN, mark, end, end_count, &history->calibration,
                       &history->bounds, &history->tree);
    return &history->tree;
}

/* How many places with the same `match` tokens before them as the end go on with this path, where
 * whatever reaches the end repeats what it began with. */
static uint32_t count_followed(const uint32_t *token, uint32_t count, uint32_t match,
                               const uint32_t *path, uint32_t depth) {
    uint32_t found = 0;
    for (uint32_t at = match; at < count; at++) { /* at: what follows the match */
        bool equal = true;
        for (uint32_t i = 1; i <= match && equal; i++)
            equal = token[at - i] == token[count - i];
        for (uint32_t i = 0, from = at; i < depth && equal; i++, from++) {
            if (from == count) from = at;
            equal = token[from] == path[i];
        }
        found += equal;
    }
    return found;
}

/* The longest match of this class (15 is of all longer ones) that this token follows. */
static uint32_t longest_like(const uint32_t *token, uint32_t count, uint32_t class, uint32_t next) {
    uint32_t match = class;
    if (class == 15)
        while (match < 32 && count_followed(token, count, match + 1, &next, 1) > 0)
            match++;
    return match;
}

/* Every node's probability is what counting says, for one length of match, which is the same for
 * the whole tree; nothing that was there more than never is left out before the rest. */
static void counts_are_right(void **state) {
    (void)state;
    uint64_t source = 1;
    uint32_t trees = 0, deep = 0;
    for (uint32_t round = 0; round < 300; round++) {
        struct history history;
        begin(&history, 128);
        uint32_t token[120], count = 10 + draw(&source, 110), letters = 2 + draw(&source, 4);
        for (uint32_t i = 0; i < count; i++)
            token[i] = draw(&source, letters);
        draft_suffix_append(&history.suffix, 3, token, count);
        const struct draft_tree *tree = guess(&history, 3, token, count);
        uint32_t match = 0;
        for (uint32_t i = 0; i < tree->count; i++) {
            const struct draft_node *node = &tree->node[i];
            uint32_t path[16] = {0};
            for (uint32_t row = i + 1; row > 0; row = tree->node[row - 1].parent)
                path[tree->node[row - 1].depth - 1] = tree->node[row - 1].token;
            if (i == 0) match = longest_like(token, count, node->class % 16, path[0]);
            uint32_t here = count_followed(token, count, match, path, node->depth);
            uint32_t above = count_followed(token, count, match, path, node->depth - 1u);
            assert_true(here > 0);
            assert_true(fabsf(node->stated - (float)here / (float)above) < 1e-6f);
            uint32_t length = match + node->depth - 1u;
            assert_int_equal(node->class % 16, length < 15 ? length : 15);
            assert_int_equal(node->class / 16, above > 1);
            double factor = draft_calibration_factor(&history.calibration, DRAFT_OWN, node->class);
            double parent = node->parent ? tree->node[node->parent - 1].weight : 1;
            assert_true(fabs(node->weight - parent * (double)node->stated * factor) < 1e-6);
            if (i > 0) assert_true(node->weight <= tree->node[i - 1].weight);
            deep += node->depth > 2;
        }
        trees += tree->count > 0;
        /* No tree where the last two tokens were never there before. */
        uint32_t any = count_followed(token, count, 2, NULL, 0);
        assert_int_equal(tree->count > 0, any > 0);
        arena_deinit(&history.memory);
    }
    assert_true(trees > 200 && deep > 100);
}

static void append_text(struct history *history, uint32_t mark, const char *text) {
    for (; *text; text++) {
        uint32_t token = (unsigned char)*text;
        draft_suffix_append(&history->suffix, mark, &token, 1);
    }
}

static void assert_first_path(struct history *history, uint32_t mark, const char *end,
                              const char *expected) {
    uint32_t token[64], count = 0;
    for (; *end; end++)
        token[count++] = (unsigned char)*end;
    const struct draft_tree *tree = guess(history, mark, token, count);
    if (!*expected) assert_int_equal(tree->count, 0);
    for (uint32_t i = 0; expected[i]; i++) {
        assert_true(i < tree->count);
        assert_int_equal(tree->node[i].token, (unsigned char)expected[i]);
        assert_int_equal(tree->node[i].parent, i);
    }
}

static void texts(void **state) {
    (void)state;
    struct history history;
    begin(&history, 256);
    append_text(&history, 0, "the cat sat on the mat; the cat ");
    assert_first_path(&history, 0, "; the cat ", "sat on t");
    assert_first_path(&history, 0, "t", "");   /* too short to say anything */
    assert_first_path(&history, 0, "xyz", ""); /* never there */
    assert_first_path(&history, 0, "e mat", "; the ca");
    /* A repetition follows itself. */
    append_text(&history, 0, "abababab");
    assert_first_path(&history, 0, "abababab", "abababab");
    arena_deinit(&history.memory);
}

static void tenants_and_ends_separate(void **state) {
    (void)state;
    struct history history;
    begin(&history, 256);
    append_text(&history, 1, "secret word");
    draft_suffix_separate(&history.suffix);
    append_text(&history, 2, "public talk");
    draft_suffix_separate(&history.suffix);
    append_text(&history, 1, "other");
    assert_first_path(&history, 1, "secret", " word");
    assert_first_path(&history, 2, "secret", "");
    assert_first_path(&history, 2, "public", " talk");
    assert_first_path(&history, 1, "public", "");
    assert_first_path(&history, 1, "word", ""); /* nothing follows an end */
    uint32_t across[] = {'k', 'o'};
    assert_int_equal(guess(&history, 1, across, 2)->count, 0);
    draft_suffix_clear(&history.suffix);
    assert_first_path(&history, 1, "secret", "");
    append_text(&history, 1, "secret garden");
    assert_first_path(&history, 1, "secret", " garden");
    arena_deinit(&history.memory);
}

/* What is older than the ring is gone, and what is not is there, all the way around. */
static void the_oldest_is_evicted(void **state) {
    (void)state;
    struct history history;
    begin(&history, 64);
    history.bounds.depth_max = 2;
    for (uint32_t round = 0; round < 1000; round++) {
        uint32_t phrase[] = {10000 + round, 20000 + round, 30000 + round, 40000 + round};
        draft_suffix_append(&history.suffix, 0, phrase, 4);
        for (uint32_t age = 0; age < 20 && age <= round; age++) {
            uint32_t end[] = {10000 + round - age, 20000 + round - age};
            const struct draft_tree *tree = guess(&history, 0, end, 2);
            if (age < 16) {
                assert_int_equal(tree->count, 2);
                assert_int_equal(tree->node[0].token, 30000 + round - age);
            } else {
                assert_int_equal(tree->count, 0);
            }
        }
    }
    arena_deinit(&history.memory);
}

/* The latest occurrences speak where there are more than are looked at, and a long match among many
 * short ones is found. */
static void many_occurrences(void **state) {
    (void)state;
    struct history history;
    begin(&history, 4096);
    append_text(&history, 0, "long unique ab!");
    for (uint32_t i = 0; i < 100; i++)
        append_text(&history, 0, "ab?");
    assert_first_path(&history, 0, "xab", "?");
    assert_first_path(&history, 0, "long unique ab", "!ab?");
    arena_deinit(&history.memory);
}

static void stops_and_bounds(void **state) {
    (void)state;
    struct history history;
    begin(&history, 256);
    static const uint32_t stop[] = {'n'};
    history.bounds.stop_token[0] = stop, history.bounds.stop_token_count[0] = 1;
    append_text(&history, 0, "sat on the mat. sat");
    assert_first_path(&history, 0, "sat", " on");
    assert_int_equal(history.tree.count, 3);
    history.bounds.depth_max = 2;
    assert_first_path(&history, 0, "sat", " o");
    assert_int_equal(history.tree.count, 2);
    history.bounds.node_max = 1;
    assert_first_path(&history, 0, "sat", " ");
    assert_int_equal(history.tree.count, 1);
    history.bounds.depth_max = 0;
    assert_first_path(&history, 0, "sat", "");
    arena_deinit(&history.memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_right),          cmocka_unit_test(texts),
        cmocka_unit_test(tenants_and_ends_separate), cmocka_unit_test(the_oldest_is_evicted),
        cmocka_unit_test(many_occurrences),          cmocka_unit_test(stops_and_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
