/* Many requests at once, on a real group: whoever computes beside a request, whatever is cached,
 * cancelled or retracted, its tokens are those it gets alone, and so are their log-probabilities,
 * to the last bit.
 *
 * ESPALIER_TEST_LONG=1 asks for more requests and more cancels; both are seeded. */
#include <stdio.h>
#include <stdlib.h>

#include "calls.h"
#include "processes.h"

#define CALLS_MAX  1200u
#define CUTS_LONG  1000u /* at least so many are cut short */
#define CUT_TOKENS 512u  /* what a call asks for that goes away before */
#define PAGE_TOK   64u

static bool is_long(void) {
    return getenv("ESPALIER_TEST_LONG") != NULL;
}

/* ---- the tests ----------------------------------------------------------------------------- */

static struct call calls[CALLS_MAX], alone[CALLS_MAX];

/* Lengths around pages and chunks, a third of them with one beginning. */
static void mixed_requests_at_once(void **state) {
    (void)state;
    static const uint32_t lengths[] = {8,   3000, 9,   63,  700, 65,  127, 128,  129, 64, 16,  300,
                                       511, 512,  513, 200, 31,  900, 100, 1024, 20,  45, 250, 400};
    static const char *const flags[] = {"--max-total-tokens", "24576", "--max-running-requests",
                                        "16", NULL};
    uint32_t call_count = is_long() ? 64 : 24, cached_tok = 0;
    for (uint32_t i = 0; i < call_count; i++) {
        uint32_t text_begin = i % 3 == 1 ? 0 : i * 577 % (CALLS_HELD_OUT_TOK - 3000);
        calls[i] = calls_make(text_begin, lengths[i % 24] + i / 24, 8 + i * 7 % 41);
        calls[i].delay_ms = (int)(i * 37 % 101);
        calls_vary_sampling(&calls[i], i);
    }
    calls_run_alone(calls, alone, call_count);
    struct group group;
    calls_start_group(&group, flags);
    calls_run(group.endpoint, calls, call_count, call_count);
    for (uint32_t i = 0; i < call_count; i++) {
        calls_expect_whole(&calls[i], i);
        calls_expect_begins(&calls[i], &alone[i], i);
        cached_tok += calls[i].summary.cached_tokens;
    }
    print_message("%u calls, %u tokens of their prompts from the cache\n", call_count, cached_tok);
    assert_true(cached_tok > 0);
    calls_stop_group(&group);
}

/* Two prompts that begin with the same 2,000 tokens and go on in different ways. */
static void a_prefix_is_computed_once(void **state) {
    (void)state;
    static const char *const flags[] = {"--page-size", "64", "--max-total-tokens", "8192", NULL};
    const uint32_t prompt_tok = CALLS_PREFIX_TOK + CALLS_TAIL_TOK;
    calls[0] = calls_make(0, prompt_tok, 16);
    calls[1] = calls_make(CALLS_HELD_OUT_TOK, prompt_tok, 16);
    calls_run_alone(calls + 1, alone + 1, 1);
    struct group group;
    calls_start_group(&group, flags);
    calls_run(group.endpoint, calls, 2, 1);
    calls_expect_whole(&calls[0], 0);
    calls_expect_whole(&calls[1], 1);
    calls_expect_begins(&calls[1], &alone[1], 1);
    assert_int_equal(calls[0].summary.cached_tokens, 0);
    print_message("%u tokens from the cache\n", calls[1].summary.cached_tokens);
    assert_in_range(calls[1].summary.cached_tokens, CALLS_PREFIX_TOK - PAGE_TOK, CALLS_PREFIX_TOK);
    calls_stop_group(&group);
}

static uint32_t draw(uint64_t *random, uint32_t bound) {
    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*random >> 33) % bound);
}

/* One of the prompts after the other. Nearly all ask for more than they wait for: two thirds of
 * these go away by themselves, a third by a deadline. Every tenth stays to the end. */
static void fill_with_cancels(const struct call *prompt, uint32_t prompt_count,
                              uint32_t call_count) {
    uint64_t random = 20;
    for (uint32_t i = 0; i < call_count; i++) {
        calls[i] = prompt[i % prompt_count];
        if (i % 10 == 9) continue;
        if (draw(&random, 3) == 0)
            calls[i].deadline_ms = 1 + draw(&random, 150);
        else
            calls[i].cancel_after = 1 + draw(&random, 16);
        calls[i].delay_ms = (int)draw(&random, 10);
        calls[i].max_tokens = CUT_TOKENS;
    }
}

static enum status expected_status(const struct call *call) {
    if (call->deadline_ms != 0) return STATUS_DEADLINE_EXCEEDED;
    return call->cancel_after != CALLS_NEVER ? STATUS_CANCELLED : STATUS_OK;
}

static void expect_ends(const struct call *prompt_alone, uint32_t prompt_count,
                        uint32_t call_count) {
    uint32_t cut_short = 0, expired = 0;
    for (uint32_t i = 0; i < call_count; i++) {
        const struct call *call = &calls[i];
        calls_expect_begins(call, &prompt_alone[i % prompt_count], i);
        if (call->status != expected_status(call))
            fail_msg("call %u: status %d, expected %d, %s", i, (int)call->status,
                     (int)expected_status(call), call->err.text);
        if (call->status == STATUS_OK) calls_expect_whole(call, i);
        cut_short += call->status != STATUS_OK;
        expired += call->status == STATUS_DEADLINE_EXCEEDED;
    }
    print_message("%u calls, %u cut short, %u of them by a deadline\n", call_count, cut_short,
                  expired);
    assert_true(cut_short >= (is_long() ? CUTS_LONG : 100));
    assert_in_range(expired, 1, cut_short - 1);
}

static void cancels_leave_nothing(void **state) {
    (void)state;
    static const char *const flags[] = {"--page-size", "16", "--max-total-tokens", "4096", NULL};
    static struct call prompts[7];
    uint32_t call_count = is_long() ? CALLS_MAX : 200,
             prompt_count = sizeof prompts / sizeof *prompts;
    for (uint32_t i = 0; i < prompt_count; i++) {
        prompts[i] = calls_make(i % 2 * 4000, 20 + i * i * 11, 24);
        calls_vary_sampling(&prompts[i], i);
    }
    fill_with_cancels(prompts, prompt_count, call_count);
    calls_run_alone(prompts, alone, prompt_count);
    struct group group;
    struct snapshot before, after, last;
    calls_start_group(&group, flags);
    calls_look(group.endpoint, &before);
    assert_int_equal(before.pages_free, before.pages_total);
    calls_run(group.endpoint, calls, call_count, 12);
    expect_ends(alone, prompt_count, call_count);
    calls_wait_until_quiet(group.endpoint, &after);
    print_message("%llu tokens generated\n", (unsigned long long)after.tokens_generated);
    assert_true(after.tokens_generated < call_count * CUT_TOKENS / 4);
    assert_int_equal(after.pages_total, before.pages_total);
    assert_int_equal(after.generation, before.generation);
    calls_flush(group.endpoint);
    calls_wait_until_quiet(group.endpoint, &last);
    assert_int_equal(last.pages_free, before.pages_total);
    calls_run(group.endpoint, prompts, prompt_count, prompt_count);
    for (uint32_t i = 0; i < prompt_count; i++) {
        calls_expect_whole(&prompts[i], i);
        calls_expect_begins(&prompts[i], &alone[i], i);
    }
    calls_stop_group(&group);
}

/* The prompt is computed once, whoever else runs; each choice is what it is in a call that is
 * alone, the first one what a call for one gives, and greedy ones are all alike. */
static void choices_share_their_prompt(void **state) {
    (void)state;
    static const char *const flags[] = {"--page-size", "64", "--max-total-tokens", "16384", NULL};
    static const uint32_t lengths[] = {5, 64, 65, 700, 129, 1000};
    const uint32_t call_count = 12; /* each prompt for four choices, and for one */
    uint32_t prompt_tok = 0;
    for (uint32_t i = 0; i < call_count; i++) {
        calls[i] = calls_make(i / 2 * 1500, lengths[i / 2], 24);
        calls_vary_sampling(&calls[i], i / 2);
        calls[i].choice_count = i % 2 == 0 ? CALLS_CHOICES_MAX : 0;
        if (i / 2 % 3 == 0) { /* what is counted is each choice's own */
            calls[i].sampling.repetition_penalty = 1.3f;
            calls[i].sampling.frequency_penalty = 0.5f;
        }
    }
    calls_run_alone(calls, alone, call_count);
    struct group group;
    struct snapshot after;
    calls_start_group(&group, flags);
    for (uint32_t i = 0; i < call_count; i += 2) {
        calls[i].delay_ms = (int)(i * 5);
        calls_run(group.endpoint, &calls[i], 1, 1);
        prompt_tok += calls[i].prompt_tok + CALLS_CHOICES_MAX - 1;
    }
    calls_wait_until_quiet(group.endpoint, &after);
    assert_int_equal(after.tokens_prompt, prompt_tok);
    calls_flush(group.endpoint);
    calls_run(group.endpoint, calls, call_count, call_count);
    for (uint32_t i = 0; i < call_count; i++) {
        calls_expect_whole(&calls[i], i);
        calls_expect_begins(&calls[i], &alone[i], i);
        calls_expect_same(&calls[i].reply[0], &alone[i | 1].reply[0], i);
        for (uint32_t choice = 1; choice < calls[i].summary.choice_count; choice++) {
            const struct call_reply *reply = &calls[i].reply[choice];
            assert_int_equal(calls[i].summary.choice[choice].cached_tokens,
                             calls[i].prompt_tok - 1);
            if (calls[i].sampling.temperature > 0)
                assert_memory_not_equal(reply->token, calls[i].reply[0].token, 24 * 4);
            else
                calls_expect_same(reply, &calls[i].reply[0], i);
        }
    }
    calls_stop_group(&group);
}

/* A pool for about three of sixteen. What went before was short, so that more are let in than fit,
 * and some must go back to wait. */
static void a_short_pool_loses_nothing(void **state) {
    (void)state;
    static const char *const flags[] = {
        "--page-size",        "16", "--max-total-tokens", "768", "--max-running-requests", "16",
        "--allow-short-pool", NULL};
    const uint32_t call_count = 16, short_count = 48;
    struct group group;
    struct snapshot after;
    calls_start_group(&group, flags);
    for (uint32_t i = 0; i < short_count; i++)
        calls[i] = calls_make(i * 100, 8, 2);
    calls_run(group.endpoint, calls, short_count, 8);
    for (uint32_t i = 0; i < call_count; i++) {
        calls[i] = calls_make(i % 4 * 1000, 60 + 11 * i, 48 + i % 3 * 16);
        calls_vary_sampling(&calls[i], i);
    }
    calls_run(group.endpoint, calls, call_count, call_count);
    calls_wait_until_quiet(group.endpoint, &after);
    calls_stop_group(&group);
    calls_run_alone(calls, alone, call_count);
    for (uint32_t i = 0; i < call_count; i++) {
        calls_expect_whole(&calls[i], i);
        calls_expect_begins(&calls[i], &alone[i], i);
    }
    print_message("%llu retractions, %llu evictions\n", (unsigned long long)after.retractions,
                  (unsigned long long)after.evictions);
    assert_int_equal(after.requests_finished, call_count + short_count);
    assert_int_equal(after.requests_waiting, 0);
    assert_true(after.evictions > 0);
}

/* ---- all of it ----------------------------------------------------------------------------- */

static int set_up(void **state) {
    (void)state;
    calls_load_text();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    processes_kill_all();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(mixed_requests_at_once, tear_down),
        cmocka_unit_test_teardown(a_prefix_is_computed_once, tear_down),
        cmocka_unit_test_teardown(cancels_leave_nothing, tear_down),
        cmocka_unit_test_teardown(choices_share_their_prompt, tear_down),
        cmocka_unit_test_teardown(a_short_pool_loses_nothing, tear_down),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
