/* What many calls cost each other, measured as clients see it: real processes, two ranks, the
 * embedded model.
 *
 *     bench_batching gap    [PAIRS [TARGET_MS]]   a long prompt arrives while eight streams decode
 *     bench_batching prefix [PAIRS]               a prompt comes a second time
 *     bench_batching pool   [PAIRS]               32 calls and a pool for four of them
 *     bench_batching idle   [PAIRS]               one plan in flight, or two
 *
 * Prints what was measured as CSV (mode, pair, figure, value), then the medians. Every figure is
 * one of a pair whose two halves are measured one after the other; the ratios of pairs are what
 * counts, for both halves see the same machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "bench_figures.h"
#include "bench_streams.h"
#include "calls.h"
#include "processes.h"

#define STREAMS       8u
#define LONG_TOK      3000u
#define CHUNK_TOK     512u  /* the default of --chunked-prefill-size */
#define DEEP_TOK      2048u /* where the last whole chunk of the long prompt begins */
#define ISOLATED      7u    /* isolated steps of a pair */
#define POOL_CALLS    32u
#define POOL_TOK      1536u /* of four of them */
#define SHORT_PROMPTS 21u
#define SETTLE_MS     150

static struct bench_stream streams[POOL_CALLS], prompt_stream;

/* Run it to its end and return how long its first token took; ms. */
static double run_to_first_token(struct bench_stream *stream, const char *endpoint) {
    bench_streams_start(stream, endpoint, 1);
    bench_streams_join(stream);
    CHECK(stream->token_count == 1);
    return (double)(stream->token_ns[0] - stream->sent_ns) / NS_PER_MS;
}

static void start_decoding(const char *endpoint) {
    for (uint32_t i = 0; i < STREAMS; i++) {
        bench_streams_take_prompt(&streams[i], 200 * i, 64);
        bench_streams_start(&streams[i], endpoint, BENCH_STREAMS_TOKENS_MAX - 64 - 1);
    }
    for (uint32_t i = 0; i < STREAMS; i++)
        bench_streams_wait(&streams[i], 24);
}

static void stop_decoding(void) {
    for (uint32_t i = 0; i < STREAMS; i++)
        bench_streams_give_up(&streams[i]);
    for (uint32_t i = 0; i < STREAMS; i++)
        bench_streams_join(&streams[i]);
}

/* ---- a long prompt among streams ---------------------------------------------------------------
 */

/* Gaps between tokens of a stream, those whose later token came within the time; ms. */
static uint32_t collect_gaps(const struct bench_stream *stream, int64_t from_ns, int64_t to_ns,
                             double *gap_out) {
    uint32_t count = 0, token_count = atomic_load(&stream->token_count);
    for (uint32_t i = 1; i < token_count; i++) {
        if (stream->token_ns[i] <= from_ns || stream->token_ns[i - 1] >= to_ns) continue;
        gap_out[count++] = (double)(stream->token_ns[i] - stream->token_ns[i - 1]) / NS_PER_MS;
    }
    return count;
}

static double gap_percentile(int64_t from_ns, int64_t to_ns, double share) {
    static double gap[STREAMS * BENCH_STREAMS_TOKENS_MAX];
    uint32_t count = 0;
    processes_sleep_ms(SETTLE_MS); /* the gap that is open at the end closes */
    for (uint32_t i = 0; i < STREAMS; i++)
        count += collect_gaps(&streams[i], from_ns, to_ns, gap + count);
    return bench_figures_percentile(gap, count, share);
}

/* One step of eight decode rows and a whole chunk behind DEEP_TOK tokens, which the cache has: the
 * longest gap of each stream, its median over streams. */
static double isolated_step(const char *endpoint, uint32_t tail_begin) {
    double longest[STREAMS], gap[BENCH_STREAMS_TOKENS_MAX];
    memcpy(prompt_stream.prompt + DEEP_TOK, calls_text + tail_begin,
           CHUNK_TOK * sizeof *prompt_stream.prompt);
    prompt_stream.prompt_tok = DEEP_TOK + CHUNK_TOK;
    run_to_first_token(&prompt_stream, endpoint);
    CHECK(prompt_stream.summary.cached_tokens == DEEP_TOK);
    processes_sleep_ms(SETTLE_MS);
    for (uint32_t i = 0; i < STREAMS; i++) {
        uint32_t count = collect_gaps(&streams[i], prompt_stream.sent_ns, prompt_stream.token_ns[0],
                                      gap);
        longest[i] = bench_figures_percentile(gap, count, 1);
    }
    return bench_figures_percentile(longest, STREAMS, 0.5);
}

static double prompt_alone(const char *endpoint, uint32_t text_begin) {
    bench_streams_settle(endpoint);
    bench_streams_take_prompt(&prompt_stream, text_begin, LONG_TOK);
    return run_to_first_token(&prompt_stream, endpoint);
}

static void measure_gap(const struct group *group, uint32_t pair, uint32_t target_ms) {
    uint32_t text_begin = 2000 + pair * 611 % 7000;
    double isolated[ISOLATED], alone = prompt_alone(group->endpoint, text_begin);
    bench_streams_settle(group->endpoint);
    start_decoding(group->endpoint);
    int64_t quiet_ns = clock_now_ns();
    processes_sleep_ms(2 * SETTLE_MS);
    bench_figures_note(pair, "gap_decoding_ms", gap_percentile(quiet_ns, clock_now_ns(), 0.5));
    bench_streams_take_prompt(&prompt_stream, text_begin, LONG_TOK);
    double first = run_to_first_token(&prompt_stream, group->endpoint);
    double p99 = gap_percentile(prompt_stream.sent_ns, prompt_stream.token_ns[0], 0.99);
    bench_figures_note(pair, "gap_p99_ms", p99);
    if (target_ms > 0) {
        bench_figures_note(pair, "gap_p99_of_target", p99 / target_ms);
    } else {
        for (uint32_t i = 0; i < ISOLATED; i++)
            isolated[i] = isolated_step(group->endpoint, 10000 + 700 * i);
        double step = bench_figures_percentile(isolated, ISOLATED, 0.5);
        bench_figures_note(pair, "isolated_step_ms", step);
        bench_figures_note(pair, "gap_p99_of_isolated", p99 / step);
    }
    stop_decoding();
    bench_figures_note(pair, "first_token_ms", first);
    bench_figures_note(pair, "first_token_alone_ms", alone);
    bench_figures_note(pair, "first_token_of_alone", first / alone);
}

static void gaps(uint32_t pairs, uint32_t target_ms) {
    char target[16];
    snprintf(target, sizeof target, "%u", target_ms);
    const char *const flags[] = {"--max-total-tokens",
                                 "65536",
                                 "--max-running-requests",
                                 "16",
                                 "--target-step-ms",
                                 target,
                                 NULL};
    struct group group;
    calls_start_group(&group, flags);
    prompt_alone(group.endpoint, 0); /* the first of all touches memory for the first time */
    for (uint32_t pair = 0; pair < pairs; pair++)
        measure_gap(&group, pair, target_ms);
    calls_stop_group(&group);
}

/* ---- a prefix twice -------------------------------------------------------------------------- */

static void prefixes(uint32_t pairs) {
    static const char *const flags[] = {"--max-total-tokens", "16384", NULL};
    struct group group;
    calls_start_group(&group, flags);
    prompt_alone(group.endpoint, 0);
    for (uint32_t pair = 0; pair < pairs; pair++) {
        bench_streams_settle(group.endpoint);
        bench_streams_take_prompt(&prompt_stream, pair * 977 % 9000, CALLS_PREFIX_TOK);
        double first = run_to_first_token(&prompt_stream, group.endpoint);
        double again = run_to_first_token(&prompt_stream, group.endpoint);
        bench_figures_note(pair, "computed_again_tok",
                           prompt_stream.summary.prompt_tokens -
                               prompt_stream.summary.cached_tokens);
        bench_figures_note(pair, "first_token_ms", first);
        bench_figures_note(pair, "first_token_again_ms", again);
        bench_figures_note(pair, "again_of_first", again / first);
    }
    calls_stop_group(&group);
}

/* ---- a pool for four of 32 ------------------------------------------------------------------- */

/* All 32 at once; tokens of replies a second. After short replies, more is let in than fits. */
static double pool_throughput(const char *running_max, bool after_short,
                              struct snapshot *after_out) {
    char pool_tok[16];
    snprintf(pool_tok, sizeof pool_tok, "%u", POOL_TOK);
    const char *const flags[] = {"--max-total-tokens",
                                 pool_tok,
                                 "--allow-short-pool",
                                 "--max-running-requests",
                                 running_max,
                                 "--page-size",
                                 "16",
                                 NULL};
    struct group group;
    uint32_t token_count = 0;
    calls_start_group(&group, flags);
    for (uint32_t i = 0; i < STREAMS * 2; i++) { /* the estimate has seen enough of either kind */
        bench_streams_take_prompt(&prompt_stream, 300 * i, 32);
        bench_streams_start(&prompt_stream, group.endpoint, after_short ? 4 : 128);
        bench_streams_join(&prompt_stream);
    }
    bench_streams_settle(group.endpoint);
    int64_t begin_ns = clock_now_ns();
    for (uint32_t i = 0; i < POOL_CALLS; i++) {
        bench_streams_take_prompt(&streams[i], 400 * i, 216 + i * 7 % 81);
        bench_streams_start(&streams[i], group.endpoint, 96 + i * 11 % 65);
    }
    for (uint32_t i = 0; i < POOL_CALLS; i++) {
        bench_streams_join(&streams[i]);
        token_count += streams[i].summary.completion_tokens;
    }
    double seconds = (double)(clock_now_ns() - begin_ns) / 1e9;
    calls_wait_until_quiet(group.endpoint, after_out);
    calls_stop_group(&group);
    return token_count / seconds;
}

static void pools(uint32_t pairs) {
    static const char *const ratio[] = {"throughput_of_four", "after_short_throughput_of_four"};
    static const char *const again[] = {"recomputed_share", "after_short_recomputed_share"};
    static const char *const back[] = {"retractions", "after_short_retractions"};
    struct snapshot after;
    for (uint32_t pair = 0; pair < pairs; pair++)
        for (uint32_t after_short = 0; after_short < 2; after_short++) {
            double four = pool_throughput("4", after_short, &after);
            double all = pool_throughput("32", after_short, &after);
            uint64_t computed = after.tokens_prompt + after.tokens_generated;
            bench_figures_note(pair, ratio[after_short], all / four);
            bench_figures_note(pair, again[after_short],
                               (double)after.tokens_recomputed / (double)computed);
            bench_figures_note(pair, back[after_short], (double)after.retractions);
        }
}

/* ---- one plan in flight, or two -------------------------------------------------------------- */

struct decoding {
    double tokens_per_s, idle_us, compute_us;
    double first_token_ms; /* of a short prompt that comes meanwhile */
};

static struct decoding decode_for_a_while(bool overlap, uint32_t stream_count) {
    const char *const flags[] = {"--max-total-tokens",
                                 "16384",
                                 "--max-running-requests",
                                 "16",
                                 "--disable-radix-cache",
                                 overlap ? NULL : "--disable-overlap-schedule",
                                 NULL};
    double first_token_ms[SHORT_PROMPTS];
    struct group group;
    struct snapshot before, after;
    calls_start_group(&group, flags);
    for (uint32_t i = 0; i < stream_count; i++) {
        bench_streams_take_prompt(&streams[i], 200 * i, 64);
        bench_streams_start(&streams[i], group.endpoint, BENCH_STREAMS_TOKENS_MAX / 2);
    }
    for (uint32_t i = 0; i < stream_count; i++)
        bench_streams_wait(&streams[i], 24);
    calls_look(group.endpoint, &before);
    int64_t begin_ns = clock_now_ns();
    processes_sleep_ms(2500);
    calls_look(group.endpoint, &after);
    double seconds = (double)(clock_now_ns() - begin_ns) / 1e9;
    for (uint32_t i = 0; i < SHORT_PROMPTS; i++) {
        bench_streams_take_prompt(&prompt_stream, 3000 + 50 * i, 16);
        first_token_ms[i] = run_to_first_token(&prompt_stream, group.endpoint);
    }
    for (uint32_t i = 0; i < stream_count; i++)
        bench_streams_give_up(&streams[i]);
    for (uint32_t i = 0; i < stream_count; i++)
        bench_streams_join(&streams[i]);
    calls_stop_group(&group);
    double steps = (double)(after.steps - before.steps);
    return (struct decoding){
        .tokens_per_s = (double)(after.tokens_generated - before.tokens_generated) / seconds,
        .idle_us = (double)(after.idle_ns - before.idle_ns) / steps / 1e3,
        .compute_us = (double)(after.compute_ns - before.compute_ns) / steps / 1e3,
        .first_token_ms = bench_figures_percentile(first_token_ms, SHORT_PROMPTS, 0.5),
    };
}

static void idle_gaps(uint32_t pairs) {
    static const struct {
        uint32_t stream_count;
        const char *without, *with, *compute, *ratio, *first;
    } load[] = {{1, "one_idle_without_us", "one_idle_with_us", "one_compute_us",
                 "one_tokens_with_of_without", "one_first_token_with_of_without"},
                {STREAMS, "eight_idle_without_us", "eight_idle_with_us", "eight_compute_us",
                 "eight_tokens_with_of_without", "eight_first_token_with_of_without"}};
    for (uint32_t pair = 0; pair < pairs; pair++)
        for (uint32_t i = 0; i < 2; i++) {
            bool with_first = pair % 2;
            struct decoding first = decode_for_a_while(with_first, load[i].stream_count);
            struct decoding second = decode_for_a_while(!with_first, load[i].stream_count);
            struct decoding with = with_first ? first : second;
            struct decoding without = with_first ? second : first;
            bench_figures_note(pair, load[i].without, without.idle_us);
            bench_figures_note(pair, load[i].with, with.idle_us);
            bench_figures_note(pair, load[i].compute, with.compute_us);
            bench_figures_note(pair, load[i].ratio, with.tokens_per_s / without.tokens_per_s);
            bench_figures_note(pair, load[i].first, with.first_token_ms / without.first_token_ms);
        }
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    bench_figures_begin(mode);
    uint32_t pairs = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 5;
    calls_load_text();
    if (strcmp(mode, "gap") == 0) {
        gaps(pairs, argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0);
    } else if (strcmp(mode, "prefix") == 0) {
        prefixes(pairs);
    } else if (strcmp(mode, "pool") == 0) {
        pools(pairs);
    } else if (strcmp(mode, "idle") == 0) {
        idle_gaps(pairs);
    } else {
        fprintf(stderr, "bench_batching: found '%s', accepted: gap, prefix, pool, idle\n", mode);
        return EXIT_CODE_USAGE;
    }
    bench_figures_print_medians();
    return EXIT_CODE_OK;
}
