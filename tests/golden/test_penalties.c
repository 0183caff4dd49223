/* What a rank counts of its sequences, number by number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "penalties.h"

#define VOCAB    16u
#define PAGE_TOK 4u

static const struct penalties_shape shape = {
    .page_count = 8, .page_tok = PAGE_TOK, .slot_count = 3, .vocab = VOCAB};

static struct penalties *create(void) {
    struct penalties *penalties = NULL;
    struct error err;
    if (penalties_create(&shape, &penalties, &err) != STATUS_OK) fail_msg("%s", err.text);
    return penalties;
}

/* Tokens 1, 2, ... 6 in pages 5 and 2, the second not full. */
static const uint32_t page[] = {5, 2};
static const uint32_t path[] = {1, 2, 3, 4, 5, 6};
#define PATH_TOK 6u

static void put_path(struct penalties *penalties) {
    for (uint32_t i = 0; i < PATH_TOK; i++)
        penalties_store(penalties, page[i / PAGE_TOK] * PAGE_TOK + i % PAGE_TOK, path[i]);
}

static uint64_t hash_of_path(uint32_t count) {
    uint64_t hash = HASH_CHAIN_EMPTY;
    for (uint32_t i = 0; i < count; i++)
        hash = hash_chain(hash, path[i]);
    return hash;
}

static struct plan_sequence begins(uint32_t slot, uint32_t committed, uint32_t reply_begin) {
    return (struct plan_sequence){.slot = slot,
                                  .committed = committed,
                                  .prefix_hash = hash_of_path(committed),
                                  .repetition_penalty = 2,
                                  .reply_begin = reply_begin};
}

static void begin(struct penalties *penalties, const struct step_plan *plan,
                  const struct plan_sequence *sequence, const uint32_t *table) {
    struct error err;
    if (penalties_begin(penalties, plan, sequence, table, &err) != STATUS_OK)
        fail_msg("%s", err.text);
}

static void expect_counts(const struct penalties *penalties, const struct plan_sequence *sequence,
                          const uint32_t expected[VOCAB]) {
    struct penalize_args args = {0};
    assert_true(penalties_fill(penalties, sequence, &args));
    assert_memory_equal(args.count, expected, VOCAB * sizeof *expected);
}

#define P PENALIZE_PROMPT
#define R PENALIZE_REPLY_ONE

/* The prompt ends within the cached tokens, or behind them. */
static void test_prompt_and_reply(void **state) {
    (void)state;
    const struct step_plan plan = {0};
    struct penalties *penalties = create();
    put_path(penalties);
    struct plan_sequence sequence = begins(1, PATH_TOK, 4);
    begin(penalties, &plan, &sequence, page);
    expect_counts(penalties, &sequence, (uint32_t[VOCAB]){0, P, P, P, P, R, R});
    penalties_add(penalties, &sequence, 6, 5);
    penalties_add(penalties, &sequence, 7, 2);
    penalties_add(penalties, &sequence, 8, 15);
    expect_counts(penalties, &sequence, (uint32_t[VOCAB]){0, P, P + R, P, P, 2 * R, R, [15] = R});

    struct plan_sequence other = begins(2, 5, 8);
    begin(penalties, &plan, &other, page);
    penalties_add(penalties, &other, 5, 3);
    penalties_add(penalties, &other, 7, 9);
    penalties_add(penalties, &other, 8, 9);
    expect_counts(penalties, &other, (uint32_t[VOCAB]){0, P, P, P, P, P, [9] = P + R});
    expect_counts(penalties, &sequence, (uint32_t[VOCAB]){0, P, P + R, P, P, 2 * R, R, [15] = R});

    /* Anew in the same slot: nothing of before is left. */
    sequence = begins(1, 0, 0);
    begin(penalties, &plan, &sequence, page);
    penalties_add(penalties, &sequence, 0, 7);
    expect_counts(penalties, &sequence, (uint32_t[VOCAB]){[7] = R});
    penalties_destroy(&penalties);
}

/* A copied page has the ids of its source, as far as it was copied. */
static void test_copies(void **state) {
    (void)state;
    const struct step_plan plan = {0};
    const struct kv_page_copy copies[] = {{.source = 5, .target = 0, .tok_count = 4},
                                          {.source = 2, .target = 7, .tok_count = 1},
                                          {.source = 0, .target = 3, .tok_count = 4}};
    const uint32_t copied[] = {3, 7};
    struct penalties *penalties = create();
    put_path(penalties);
    penalties_copy(penalties, copies, 3);
    struct plan_sequence sequence = begins(0, 5, 5);
    begin(penalties, &plan, &sequence, copied);
    expect_counts(penalties, &sequence, (uint32_t[VOCAB]){0, P, P, P, P, P});
    struct error err; /* the sixth was not copied */
    sequence = begins(0, 6, 5);
    assert_int_equal(penalties_begin(penalties, &plan, &sequence, copied, &err),
                     STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(err.text, "the 6 tokens in its pages"));
    penalties_destroy(&penalties);
}

/* A slot without penalties is not counted and its pages are not looked at; its bias is its own. */
static void test_wishes(void **state) {
    (void)state;
    const struct logit_bias bias[] = {{3, 1}, {4, -2}, {9, 0.5f}};
    const struct step_plan plan = {.bias = bias, .bias_count = 3};
    struct penalties *penalties = create();
    struct penalize_args args = {0};
    struct plan_sequence sequence = begins(0, 4, 4);
    sequence.repetition_penalty = 1;
    assert_false(penalties_are_wanted(&sequence));
    begin(penalties, &plan, &sequence, page);
    assert_false(penalties_are_counted(penalties, 0));
    assert_false(penalties_fill(penalties, &sequence, &args));

    sequence.bias_begin = 1;
    sequence.bias_count = 2;
    sequence.repetition_penalty = 0;
    begin(penalties, &plan, &sequence, page);
    penalties_add(penalties, &sequence, 4, 7);
    assert_true(penalties_fill(penalties, &sequence, &args));
    assert_null(args.count);
    assert_int_equal(args.bias_count, 2);
    assert_int_equal(args.bias[1].token, 9);
    assert_true(args.bias[1].value == 0.5f && args.repetition == 1);

    sequence = begins(0, 0, 4);
    sequence.repetition_penalty = 0;
    sequence.presence_penalty = -1;
    assert_true(penalties_are_wanted(&sequence));
    begin(penalties, &plan, &sequence, page);
    assert_true(penalties_fill(penalties, &sequence, &args));
    assert_int_equal(args.bias_count, 0);
    assert_true(args.repetition == 1 && args.presence == -1 && args.frequency == 0);
    assert_non_null(args.count);
    penalties_destroy(&penalties);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompt_and_reply),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_wishes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
