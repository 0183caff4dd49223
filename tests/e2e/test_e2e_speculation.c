/* Guesses on real groups: whatever is guessed, tokens and log-probabilities are those of plain
 * decoding, greedy or drawn, on one rank, two and eight; and where text repeats itself a step gives
 * several tokens.
 *
 * ESPALIER_TEST_LONG=1 asks for 200 prompts. */
#include <stdio.h>
#include <stdlib.h>

#include "calls.h"
#include "processes.h"

#define CALLS_MAX  200u
#define COPY_CALLS 12u

static struct call calls[CALLS_MAX], plain[CALLS_MAX];

static bool is_long(void) {
    return getenv("ESPALIER_TEST_LONG") != NULL;
}

/* Prompts of all lengths, some with one beginning; greedy and drawn in turns. */
static void make_calls(uint32_t call_count) {
    static const uint32_t lengths[] = {8,  300, 65,  12,  128, 700, 20, 45,
                                       63, 9,   129, 250, 64,  16,  90, 400};
    for (uint32_t i = 0; i < call_count; i++) {
        uint32_t text_begin = i % 5 == 1 ? 0 : i * 577 % (CALLS_HELD_OUT_TOK - 1000);
        calls[i] = calls_make(text_begin, lengths[i % 16] + i / 16, 24 + i * 7 % 41);
        calls[i].delay_ms = (int)(i * 37 % 101);
        calls_vary_sampling(&calls[i], i);
    }
}

/* Run them with guesses and compare. Every guess is verified, or as many as pay. */
static void run_guessing(uint32_t call_count, uint32_t thread_count, const char *const *flags) {
    struct group group;
    struct snapshot snapshot;
    calls_start_group(&group, flags);
    calls_run(group.endpoint, calls, call_count, thread_count);
    for (uint32_t i = 0; i < call_count; i++) {
        calls_expect_whole(&calls[i], i);
        calls_expect_begins(&calls[i], &plain[i], i);
    }
    calls_wait_until_quiet(group.endpoint, &snapshot);
    print_message("tp %u: %u trees of %u guesses, %u right at depth 1, %u at depth 4; %u tokens "
                  "in %u steps\n",
                  snapshot.tp, (unsigned)snapshot.speculated.trees,
                  (unsigned)snapshot.speculated.guesses, (unsigned)snapshot.speculated.accepted[0],
                  (unsigned)snapshot.speculated.accepted[3], (unsigned)snapshot.tokens_generated,
                  (unsigned)snapshot.steps);
    assert_true(snapshot.speculated.accepted[0] > 0);
    calls_stop_group(&group);
}

static void tokens_are_the_same(void **state) {
    (void)state;
    static const char *const by_tp[][8] = {
        {"--tp", "1", "--speculative-algorithm", "suffix", "--speculative-fixed-tree"},
        {"--tp", "2", "--speculative-algorithm", "suffix", "--speculative-fixed-tree",
         "--speculative-num-draft-tokens", "40"},
        {"--tp", "8", "--speculative-algorithm", "suffix", "--speculative-fixed-tree"}};
    uint32_t call_count = is_long() ? CALLS_MAX : 32;
    make_calls(call_count);
    calls_run_alone(calls, plain, call_count);
    for (size_t i = 0; i < sizeof by_tp / sizeof *by_tp; i++)
        run_guessing(is_long() || i < 2 ? call_count : 8, 8, by_tp[i]);
}

/* The generator of a copy task: a few tokens of the held-out text, twenty times over.
 * The model goes on with the passage, or falls into a repetition of its own. It is written where
 * the passage stands. */
#define PASSAGE_TOK 8u
#define COPY_TOK    (20 * PASSAGE_TOK)

static struct call make_copy(uint32_t idx) {
    uint32_t *text = calls_text + (size_t)idx * 1000;
    for (uint32_t i = PASSAGE_TOK; i < COPY_TOK; i++)
        text[i] = text[i - PASSAGE_TOK];
    return calls_make(idx * 1000, COPY_TOK, CALLS_TOKENS_MAX);
}

/* With the budget of what pays, which changes as steps are measured: two at a time, where text
 * repeats itself. */
static void budgets_change_nothing(void **state) {
    (void)state;
    static const char *const flags[] = {"--tp", "1", "--speculative-algorithm", "suffix", NULL};
    for (uint32_t i = 0; i < COPY_CALLS; i++)
        calls[i] = make_copy(i);
    calls_run_alone(calls, plain, COPY_CALLS);
    run_guessing(COPY_CALLS, 2, flags);
}

/* Tokens a step, those of prompts included. */
static void copies_take_few_steps(void **state) {
    (void)state;
    static const char *const flags[] = {"--tp",
                                        "1",
                                        "--speculative-algorithm",
                                        "suffix",
                                        "--speculative-fixed-tree",
                                        "--speculative-num-draft-tokens",
                                        "32",
                                        NULL};
    struct group group;
    struct snapshot before, after;
    calls_start_group(&group, flags);
    uint32_t token_count = 0;
    for (uint32_t i = 0; i < COPY_CALLS; i++)
        calls[i] = make_copy(i);
    calls_wait_until_quiet(group.endpoint, &before);
    calls_run(group.endpoint, calls, COPY_CALLS, 1);
    calls_wait_until_quiet(group.endpoint, &after);
    for (uint32_t i = 0; i < COPY_CALLS; i++)
        token_count += calls[i].summary.completion_tokens;
    for (uint32_t i = 0; i < COPY_CALLS; i++)
        calls_expect_whole(&calls[i], i);
    double steps = (double)(after.steps - before.steps);
    print_message("%u tokens in %.0f steps: %.2f a step\n", token_count, steps,
                  token_count / steps);
    assert_true(token_count / steps >= 3);
    calls_stop_group(&group);
}

static int tear_down(void **state) {
    (void)state;
    processes_kill_all();
    return 0;
}

int main(void) {
    calls_load_text();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(tokens_are_the_same, tear_down),
        cmocka_unit_test_teardown(budgets_change_nothing, tear_down),
        cmocka_unit_test_teardown(copies_take_few_steps, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
