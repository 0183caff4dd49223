/* What guessing gives and costs on the clock, as clients see it: two groups of real processes, two
 * ranks each, the embedded model and its drafter. One guesses as the flags' defaults have it
 * (`auto`, as many rows as pay), the other is told not to.
 *
 *     bench_speculation chat    [PAIRS]   held-out questions, one after the other
 *     bench_speculation context [PAIRS]   replies behind prompts of 3,000 tokens, likewise
 *     bench_speculation batch1  [PAIRS]   streams of held-out text: one, four, sixteen at a time
 *     bench_speculation batch4  [PAIRS]
 *     bench_speculation batch16 [PAIRS]
 *     bench_speculation repeat  [PAIRS]   tasks to copy, one after the other
 *
 * What follows PAIRS are flags of the group that guesses, to try others than the defaults.
 *
 * The groups take turns, and who is first changes from pair to pair; both of a pair get the same
 * prompts, which come in no other pair, and draw the same tokens. Prints CSV (mode, pair, figure,
 * value); then the medians, and the signs of the ratio: the time from a call's first token to its
 * last, without guesses by with, all calls of a round together. */
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bench_figures.h"
#include "bench_streams.h"
#include "calls.h"

#define CALLS_MAX       16u
#define PAIRS_MAX       40u
#define NS_PER_MS       1e6
#define CHAT_BYTES      1024u
#define PASSAGE_TOK     8u
#define WARM_UP_ROUNDS  1u
#define TEXT_STRIDE_TOK 97u /* between prompts: they overlap, and none begins as another */

/* What one round asks for: calls_at_once calls at a time until all have ended. */
struct load {
    const char *name;
    uint32_t call_count, calls_at_once;
    uint32_t prompt_tok, max_tokens;
    bool is_chat, is_copy;
    uint32_t pairs; /* unless told */
};

static const struct load loads[] = {
    {"chat", 4, 1, 0, 96, true, false, 14},         {"context", 2, 1, 3000, 192, false, false, 12},
    {"batch1", 4, 1, 64, 256, false, false, 20},    {"batch4", 4, 4, 64, 384, false, false, 20},
    {"batch16", 16, 16, 64, 256, false, false, 12}, {"repeat", 4, 1, 160, 384, false, true, 20},
};

static struct bench_stream streams[CALLS_MAX];
static char chat[CALLS_MAX][CHAT_BYTES];
static struct json_object *questions;
static uint32_t prompt_count; /* so far, of all rounds */

static void make_chat(uint32_t at, uint32_t idx) {
    struct json_object *object = json_object_new_object(), *list = json_object_new_array();
    struct json_object *message = json_object_new_object();
    struct json_object *question = json_object_array_get_idx(
        questions, idx % json_object_array_length(questions));
    json_object_object_add(message, "role", json_object_new_string("user"));
    json_object_object_add(message, "content", json_object_get(question));
    json_object_array_add(list, message);
    json_object_object_add(object, "messages", list);
    const char *text = json_object_to_json_string(object);
    CHECK(strlen(text) < CHAT_BYTES);
    memcpy(chat[at], text, strlen(text) + 1);
    json_object_put(object);
    streams[at].chat = chat[at];
}

static void make_prompts(const struct load *load) {
    for (uint32_t i = 0; i < load->call_count; i++, prompt_count++) {
        struct bench_stream *stream = &streams[i];
        uint32_t room = CALLS_HELD_OUT_TOK - load->prompt_tok;
        bench_streams_take_prompt(stream, prompt_count * TEXT_STRIDE_TOK % room, load->prompt_tok);
        for (uint32_t at = PASSAGE_TOK; load->is_copy && at < load->prompt_tok; at++)
            stream->prompt[at] = stream->prompt[at - PASSAGE_TOK];
        if (load->is_chat) make_chat(i, prompt_count);
    }
}

/* What came of a round. */
struct outcome {
    double decode_ms; /* from first tokens to last ones, all calls together */
    double total_ms;  /* and from the calls on */
    double tokens_per_step;
};

static struct outcome run_round(const struct load *load, const char *endpoint) {
    struct snapshot before, after;
    struct outcome outcome = {0};
    calls_wait_until_quiet(endpoint, &before);
    for (uint32_t begin = 0; begin < load->call_count; begin += load->calls_at_once) {
        for (uint32_t i = begin; i < begin + load->calls_at_once; i++)
            bench_streams_start(&streams[i], endpoint, load->max_tokens);
        for (uint32_t i = begin; i < begin + load->calls_at_once; i++) {
            const struct bench_stream *stream = &streams[i];
            bench_streams_join(&streams[i]);
            uint32_t token_count = atomic_load(&streams[i].token_count);
            CHECK(token_count == stream->summary.completion_tokens);
            int64_t last_ns = stream->token_ns[token_count - 1];
            outcome.decode_ms += (double)(last_ns - stream->token_ns[0]) / NS_PER_MS;
            outcome.total_ms += (double)(last_ns - stream->sent_ns) / NS_PER_MS;
        }
    }
    calls_wait_until_quiet(endpoint, &after);
    outcome.tokens_per_step = (double)(after.tokens_generated - before.tokens_generated) /
                              (double)(after.steps - before.steps);
    return outcome;
}

static void say_what_was_chosen(const char *endpoint) {
    struct snapshot now;
    calls_look(endpoint, &now);
    printf("# %llu trees of %.1f rows; right at depth", (unsigned long long)now.speculated.trees,
           1 + (double)now.speculated.guesses / (double)now.speculated.trees);
    for (uint32_t i = 0; i < SPECULATION_DEPTHS && now.speculated.accepted[i] > 0; i++)
        printf(" %u: %.2f", i + 1,
               (double)now.speculated.accepted[i] / (double)now.speculated.trees);
    printf("\n");
}

static void measure(const struct load *load, uint32_t pairs, const char *const *with_flags) {
    static const char *const without_flags[] = {"--speculative-algorithm", "none", NULL};
    struct group with, without;
    calls_start_group(&with, with_flags);
    calls_start_group(&without, without_flags);
    for (uint32_t round = 0; round < WARM_UP_ROUNDS; round++) {
        make_prompts(load);
        run_round(load, with.endpoint);
        run_round(load, without.endpoint);
    }
    for (uint32_t pair = 0; pair < pairs; pair++) {
        bool with_first = pair % 2;
        make_prompts(load);
        struct outcome first = run_round(load, with_first ? with.endpoint : without.endpoint);
        struct outcome second = run_round(load, with_first ? without.endpoint : with.endpoint);
        struct outcome guessing = with_first ? first : second;
        struct outcome plain = with_first ? second : first;
        bench_figures_note(pair, "decode_ms_without", plain.decode_ms);
        bench_figures_note(pair, "decode_ms_with", guessing.decode_ms);
        bench_figures_note(pair, "gain", plain.decode_ms / guessing.decode_ms);
        bench_figures_note(pair, "gain_with_first_tokens", plain.total_ms / guessing.total_ms);
        bench_figures_note(pair, "tokens_per_step_without", plain.tokens_per_step);
        bench_figures_note(pair, "tokens_per_step_with", guessing.tokens_per_step);
    }
    say_what_was_chosen(with.endpoint);
    calls_stop_group(&with);
    calls_stop_group(&without);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    const char *const none[] = {NULL};
    const struct load *load = NULL;
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++)
        if (strcmp(mode, loads[i].name) == 0) load = &loads[i];
    if (!load) {
        fprintf(stderr,
                "bench_speculation: found '%s', accepted: chat, context, batch1, batch4, "
                "batch16, repeat\n",
                mode);
        return EXIT_CODE_USAGE;
    }
    calls_load_text();
    questions = json_object_from_file(ESPALIER_SOURCE_DIR
                                      "/tests/golden/data/heldout_questions.json");
    CHECK(questions != NULL);
    uint32_t pairs = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : load->pairs;
    if (pairs > PAIRS_MAX) pairs = PAIRS_MAX;
    bench_figures_begin(mode);
    measure(load, pairs, argc > 3 ? (const char *const *)argv + 3 : none);
    bench_figures_print_medians();
    bench_figures_print_signs("gain");
    json_object_put(questions);
    return EXIT_CODE_OK;
}
