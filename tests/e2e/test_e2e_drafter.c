/* The drafter on real groups: whatever it guesses and however that is verified, tokens and
 * log-probabilities are those of plain decoding, greedy or drawn - with few ranks and many, pages
 * of one token, a pool so small that requests are sent back, a drafter that sees little.
 *
 * ESPALIER_TEST_LONG=1: 200 requests, and every way with 1, 2 and 8 ranks. */
#include <stdio.h>
#include <stdlib.h>

#include "calls.h"
#include "processes.h"

#define CALLS_MAX 200u
#define THREADS   6u
#define TOKENS    48u

static struct call calls[CALLS_MAX], plain[CALLS_MAX];

struct way {
    const char *tp; /* in the short run */
    const char *flags[13];
    bool fixed; /* every guess is verified, so the drafter must have been right now and then */
};

static const struct way ways[] = {
    {"2", {"--speculative-algorithm", "dflash", "--speculative-fixed-tree"}, true},
    {"1",
     {"--speculative-algorithm", "dflash", "--speculative-fixed-tree", "--speculative-chain-first",
      "--speculative-num-draft-tokens", "32", "--page-size", "1"},
     true},
    {"2",
     {"--speculative-fixed-tree", "--context-length", "256", "--max-total-tokens", "384",
      "--page-size", "16", "--chunked-prefill-size", "24", "--speculative-num-draft-tokens", "64"},
     true},
    {"1",
     {"--speculative-algorithm", "dflash", "--speculative-fixed-tree",
      "--speculative-dflash-draft-window-size", "3"},
     true},
    {"8", {"--speculative-algorithm", "auto"}, false},
};

static bool is_long(void) {
    return getenv("ESPALIER_TEST_LONG") != NULL;
}

static void make_calls(uint32_t call_count) {
    for (uint32_t i = 0; i < call_count; i++) {
        calls[i] = calls_make(i * 7919 % (CALLS_HELD_OUT_TOK - 100), 5 + i * 37 % 85, TOKENS);
        calls_vary_sampling(&calls[i], i);
    }
}

static void check_way(const struct way *way, const char *tp, uint32_t call_count) {
    const char *flags[16] = {"--tp", tp};
    struct group group;
    struct snapshot snapshot;
    for (int i = 0; i < 13; i++)
        flags[2 + i] = way->flags[i];
    make_calls(call_count);
    calls_start_group(&group, flags);
    calls_run(group.endpoint, calls, call_count, THREADS);
    for (uint32_t i = 0; i < call_count; i++) {
        calls_expect_whole(&calls[i], i);
        calls_expect_begins(&calls[i], &plain[i], i);
    }
    calls_look(group.endpoint, &snapshot);
    const struct speculation_counts *counts = &snapshot.speculated;
    print_message("tp %s, %s %s: %u trees, %u guesses of the drafter, %u right\n", tp,
                  way->flags[0], way->flags[1], (unsigned)counts->trees,
                  (unsigned)counts->source_guesses[0], (unsigned)counts->source_accepted[0]);
    if (way->fixed) assert_true(counts->source_accepted[0] > call_count);
    calls_stop_group(&group);
}

static void tokens_are_the_same(void **state) {
    (void)state;
    static const char *const every_tp[] = {"1", "2", "8"};
    const uint32_t call_count = is_long() ? CALLS_MAX : 16;
    calls_load_text();
    make_calls(call_count);
    calls_run_alone(calls, plain, call_count);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (!is_long()) check_way(&ways[i], ways[i].tp, call_count);
        for (size_t t = 0; t < 3 && is_long(); t++)
            check_way(&ways[i], every_tp[t], call_count);
    }
}

static int tear_down(void **state) {
    (void)state;
    processes_kill_all();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_are_the_same)};
    return cmocka_run_group_tests(tests, NULL, tear_down);
}
