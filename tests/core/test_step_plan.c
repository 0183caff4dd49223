/* Plans as flat arrays, and their line in the log. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "step_plan.h"

static const struct core_options options = {
    .max_running_requests = 4, .chunked_prefill_size = 8, .context_len = 16, .page_tok = 4};

static void build(struct step_plan_buf *buf) {
    step_plan_begin(buf, 3, 17);
    step_plan_release(buf, 2);
    step_plan_release(buf, 0);
    struct plan_sequence decode = {
        .slot = 1, .committed = 8, .row_count = 1, .page_base = 2, .want = PLAN_WANT_TOKEN};
    step_plan_add(buf, &decode, (const struct page_ref[]){{9, 0}}, 1)[0] = 41;
    struct plan_sequence chunk = {.slot = 2, .row_count = 5};
    static const struct page_ref page[] = {{3, 7}, {4, 1}, {5, 2}, {8, 0}, {10, 3}};
    step_plan_copy(buf, &(struct page_copy){.source = 6, .target = 3, .tok_count = 2});
    uint32_t *token = step_plan_add(buf, &chunk, page, 5);
    for (uint32_t i = 0; i < 5; i++)
        token[i] = 100 + i;
}

static void test_arrays(void **state) {
    (void)state;
    struct arena memory;
    arena_init(&memory, step_plan_memory(&options));
    struct step_plan_buf buf;
    step_plan_init(&buf, &options, &memory);
    build(&buf);
    build(&buf); /* nothing of the plan before remains */
    const struct step_plan *plan = &buf.plan;
    assert_int_equal(plan->row_count, 6);
    assert_memory_equal(plan->token, ((const uint32_t[]){41, 100, 101, 102, 103, 104}), 24);
    assert_null(plan->parent);
    assert_int_equal(plan->sequence_count, 2);
    assert_int_equal(plan->sequence[1].row_begin, 1);
    /* Page 9 is the first sequence's, so 10 does not join it; 3, 4, 5 are one run. */
    assert_int_equal(plan->sequence[0].extent_count, 1);
    assert_int_equal(plan->sequence[1].extent_begin, 1);
    assert_int_equal(plan->sequence[1].extent_count, 3);
    static const struct page_extent expected[] = {{9, 1}, {3, 3}, {8, 1}, {10, 1}};
    assert_int_equal(plan->extent_count, 4);
    assert_memory_equal(plan->extent, expected, sizeof expected);
    assert_int_equal(plan->release_count, 2);
    assert_int_equal(plan->copy_count, 1);
    assert_int_equal(plan->copy[0].source, 6);
    arena_deinit(&memory);
}

/* A table sent whole leaves room for a page of every row still to come. */
static void test_extents_are_a_budget(void **state) {
    (void)state;
    struct arena memory;
    arena_init(&memory, step_plan_memory(&options));
    struct step_plan_buf buf;
    step_plan_init(&buf, &options, &memory);
    assert_int_equal(buf.extents_max, 12 + 5 * 4);
    step_plan_begin(&buf, 1, 1);
    struct page_ref page[21];
    for (uint32_t i = 0; i < 21; i++)
        page[i] = (struct page_ref){2 * i, 0};
    assert_true(step_plan_fits(&buf, page, 20, 0));
    assert_false(step_plan_fits(&buf, page, 21, 0));
    for (uint32_t i = 0; i < 21; i++)
        page[i].page = i;
    assert_true(step_plan_fits(&buf, page, 21, 0)); /* one run */
    arena_deinit(&memory);
}

/* Biases are the sequence's that was added last; with very many sequences they are a budget. */
static void test_biases(void **state) {
    (void)state;
    static const struct core_options many = {
        .context_len = 16, .page_tok = 4, .max_running_requests = 40, .chunked_prefill_size = 8};
    static struct logit_bias bias[LOGIT_BIAS_MAX];
    struct arena memory;
    arena_init(&memory, step_plan_memory(&many));
    struct step_plan_buf buf;
    step_plan_init(&buf, &many, &memory);
    step_plan_begin(&buf, 1, 1);
    const struct page_ref page = {1, 0};
    for (uint32_t i = 0; i < LOGIT_BIAS_MAX; i++)
        bias[i] = (struct logit_bias){.token = i, .value = (float)i};
    for (uint32_t i = 0; i < 40; i++) {
        bool fits = step_plan_fits(&buf, &page, 1, LOGIT_BIAS_MAX);
        assert_int_equal(fits, i < PLAN_BIASES_MAX / LOGIT_BIAS_MAX);
        assert_true(step_plan_fits(&buf, &page, 1, 0));
        struct plan_sequence one = {.slot = i, .row_count = 1};
        step_plan_add(&buf, &one, &page, 1);
        if (fits) step_plan_add_bias(&buf, bias, LOGIT_BIAS_MAX);
    }
    assert_int_equal(buf.plan.bias_count, PLAN_BIASES_MAX);
    assert_int_equal(buf.plan.sequence[3].bias_begin, 3 * LOGIT_BIAS_MAX);
    assert_int_equal(buf.plan.sequence[3].bias_count, LOGIT_BIAS_MAX);
    assert_int_equal(buf.plan.sequence[39].bias_count, 0);
    assert_int_equal(buf.plan.bias[4 * LOGIT_BIAS_MAX - 1].token, LOGIT_BIAS_MAX - 1);
    step_plan_begin(&buf, 1, 2);
    assert_true(step_plan_fits(&buf, &page, 1, LOGIT_BIAS_MAX));
    arena_deinit(&memory);
}

static void test_rows_max(void **state) {
    (void)state;
    assert_int_equal(step_plan_rows_max(&options), 12);
    struct core_options wide = {.max_running_requests = 8, .chunked_prefill_size = UINT32_MAX};
    assert_int_equal(step_plan_rows_max(&wide), PLAN_ROWS_MAX);
    wide.max_step_rows = 100;
    assert_int_equal(step_plan_rows_max(&wide), 100);
}

static void test_print(void **state) {
    (void)state;
    struct arena memory;
    arena_init(&memory, step_plan_memory(&options));
    struct step_plan_buf buf;
    step_plan_init(&buf, &options, &memory);
    build(&buf);
    static const char expected[] = "generation=3 step=17 rows=6 sequences=2 release=2,0 "
                                   "copy=6:3+2 [slot=1 s=8 rows=1 first=41 pages=2+9..10 draw] "
                                   "[slot=2 s=0 rows=5 first=100 pages=0+3..6+8..9+10..11]";
    char line[256];
    assert_int_equal(step_plan_print(&buf.plan, line, sizeof line), strlen(expected));
    assert_string_equal(line, expected);
    for (size_t bytes = 1; bytes < sizeof expected; bytes++) { /* cut anywhere, and no further */
        memset(line, '#', sizeof line);
        assert_int_equal(step_plan_print(&buf.plan, line, bytes), bytes - 1);
        assert_memory_equal(line, expected, bytes - 1);
        assert_int_equal(line[bytes - 1], '\0');
        assert_int_equal(line[bytes], '#');
    }
    arena_deinit(&memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arrays), cmocka_unit_test(test_extents_are_a_budget),
        cmocka_unit_test(test_biases), cmocka_unit_test(test_rows_max),
        cmocka_unit_test(test_print),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
