/* How many tokens a step yields when trees of the drafter's guesses are verified.
 *
 *     bench_drafts [MODEL DRAFTER]
 *
 * The model continues held-out text and answers held-out questions, greedily and one token a step,
 * and the drafter guesses behind every token. As a guess depends on the tokens before and on
 * nothing else, and as verifying changes no token (tests/golden/test_verify, test_drafter), every
 * way to verify is then played on the same record: from the token it is at, a way builds its tree
 * with the coordinator's own code, walks it along the tokens that came, and goes on behind them.
 *
 * Printed: tokens a step, the last token drawn included, with a 95 % interval from 4,000 samples of
 * the prompts with replacement; the share of steps whose walk came so deep; and for pairs of ways
 * the difference, sampled in pairs. A chain-first tree must never accept less than the chain, from
 * no token of the record: otherwise the exit code is 1. */
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "draft_source_block.h"
#include "golden_data.h"
#include "rig.h"
#include "text/prompt.h"
#include "text/vocab.h"

#define TEXT_PROMPTS    24u
#define TEXT_PROMPT_TOK 64u
#define CHAT_PROMPTS    40u
#define PROMPT_TOK_MAX  512u
#define NEW_TOKENS      128u
#define PROMPTS_MAX     (TEXT_PROMPTS + CHAT_PROMPTS)
#define SAMPLES         4000u
#define DEPTHS          7u

/* Control tokens of the embedded model. */
enum { IM_END = 3842, IM_USER, IM_ASSISTANT, IM_MIDDLE = 3857, THINK = 3862, THINK_END };

static const struct way {
    const char *name;
    uint32_t rows;
    bool seed_chain;
} ways[] = {
    {"chain of 8 rows", 8, true},       {"tree of 8 rows", 8, false},
    {"tree of 16 rows", 16, false},     {"tree of 32 rows", 32, false},
    {"chain first, 16 rows", 16, true}, {"chain first, 32 rows", 32, true},
};
#define WAYS  (sizeof ways / sizeof *ways)
#define CHAIN 0u

/* A prompt's continuation, and what was guessed behind each of its tokens. */
struct record {
    uint32_t token[NEW_TOKENS], count;
    struct draft_block block[NEW_TOKENS];
};

struct play {
    uint32_t steps, tokens;
    uint32_t deep[DEPTHS + 1]; /* steps whose walk came at least so deep */
};

static struct record record;
static struct play plays[PROMPTS_MAX][WAYS];

_Noreturn static void die(const char *what) {
    fprintf(stderr, "bench_drafts: %s\n", what);
    exit(1);
}

/* One token a step, with a draft behind each. */
static void make_record(struct rig *rig, const uint32_t *prompt, uint32_t prompt_tok,
                        bool stops_at_end) {
    const uint32_t *token = prompt;
    uint32_t count = prompt_tok;
    struct error err;
    rig_forget(rig, 0);
    for (record.count = 0; record.count < NEW_TOKENS;) {
        struct rig_piece piece = {.token = token,
                                  .count = count,
                                  .wants = true,
                                  .draft_len = rig->drafter->spec.block - 1};
        struct step_plan *plan = rig_plan(rig, &piece, 1);
        struct step_result result;
        plan->draft_top = DRAFT_TOP_MAX;
        if (rig_run(rig, plan, &piece, &result, &err) != STATUS_OK) die(err.text);
        record.token[record.count] = result.token[0];
        draft_block_take(&record.block[record.count], &result, &result.sequence[0]);
        token = &record.token[record.count++];
        count = 1;
        if (stops_at_end && *token == IM_END) return;
    }
}

/* Guesses accepted by a tree of so many rows behind token `at` of the record. */
static uint32_t accepted(const struct way *way, uint32_t at) {
    struct draft_calibration calibration;
    struct draft_tree tree;
    struct draft_bounds bounds = {.node_max = way->rows - 1, .depth_max = DEPTHS};
    draft_calibration_init(&calibration);
    draft_block_guess(&record.block[at], &calibration, &bounds, way->seed_chain, &tree);
    uint32_t row = 0, depth = 0;
    for (uint32_t i = 0; i < tree.count && i + 1 < way->rows; i++) {
        if (tree.node[i].parent != row || at + depth + 1 >= record.count ||
            tree.node[i].token != record.token[at + depth + 1])
            continue;
        row = i + 1;
        depth++;
    }
    return depth;
}

static void play_record(struct play *play) {
    for (size_t w = 0; w < WAYS; w++) {
        for (uint32_t at = 0; at + 1 < record.count;) {
            uint32_t depth = accepted(&ways[w], at);
            for (uint32_t d = 1; d <= depth; d++)
                play[w].deep[d]++;
            uint32_t left = record.count - 1 - at, step = depth + 1 < left ? depth + 1 : left;
            play[w].steps++;
            play[w].tokens += step;
            at += step;
        }
        for (uint32_t at = 0; ways[w].seed_chain && at + 1 < record.count; at++)
            if (accepted(&ways[w], at) < accepted(&ways[CHAIN], at))
                die("a chain-first tree accepted less than the chain");
    }
}

static uint32_t below(uint64_t *state, uint32_t end) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*state >> 32) * end >> 32);
}

/* Tokens a step over the prompts that a sample names, or over all. */
static double rate(size_t way, uint32_t begin, uint32_t count, const uint32_t *sample) {
    double tokens = 0, steps = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct play *play = &plays[begin + (sample ? sample[i] : i)][way];
        tokens += play->tokens;
        steps += play->steps;
    }
    return tokens / steps;
}

static int by_value(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* The 95 % interval of a way's rate, or of its lead over another (minus: WAYS for none). */
static void interval(size_t way, size_t minus, uint32_t begin, uint32_t count, double out[2]) {
    static double value[SAMPLES];
    uint64_t state = 1;
    for (uint32_t s = 0; s < SAMPLES; s++) {
        uint32_t sample[PROMPTS_MAX];
        for (uint32_t i = 0; i < count; i++)
            sample[i] = below(&state, count);
        value[s] = rate(way, begin, count, sample);
        if (minus < WAYS) value[s] -= rate(minus, begin, count, sample);
    }
    qsort(value, SAMPLES, sizeof *value, by_value);
    out[0] = value[SAMPLES / 40];
    out[1] = value[SAMPLES - 1 - SAMPLES / 40];
}

static void report(const char *kind, uint32_t begin, uint32_t count) {
    double bound[2];
    uint32_t tokens = 0;
    for (uint32_t i = 0; i < count; i++)
        tokens += plays[begin + i][CHAIN].tokens;
    printf("%s: %u prompts, %u tokens\n", kind, count, tokens);
    for (size_t w = 0; w < WAYS; w++) {
        uint64_t steps = 0;
        interval(w, WAYS, begin, count, bound);
        printf("  %-21s %.3f tokens a step [%.3f, %.3f]  depth", ways[w].name,
               rate(w, begin, count, NULL), bound[0], bound[1]);
        for (uint32_t i = 0; i < count; i++)
            steps += plays[begin + i][w].steps;
        for (uint32_t d = 1; d <= DEPTHS; d++) {
            uint64_t deep = 0;
            for (uint32_t i = 0; i < count; i++)
                deep += plays[begin + i][w].deep[d];
            printf(" %.0f%%", 100.0 * (double)deep / (double)steps);
        }
        printf("\n");
    }
    for (size_t w = 1; w < WAYS; w++) {
        interval(w, CHAIN, begin, count, bound);
        printf("  %-21s %+.3f of the chain's [%+.3f, %+.3f]\n", ways[w].name,
               rate(w, begin, count, NULL) - rate(CHAIN, begin, count, NULL), bound[0], bound[1]);
    }
}

static void play_text(struct rig *rig) {
    const uint32_t *text;
    uint32_t count = golden_data_heldout(&text), stride = (count - TEXT_PROMPT_TOK) / TEXT_PROMPTS;
    for (uint32_t i = 0; i < TEXT_PROMPTS; i++) {
        make_record(rig, text + i * stride, TEXT_PROMPT_TOK, false);
        play_record(plays[i]);
    }
}

static void ask(const struct tokenizer *tokenizer, const char *question, struct token_list *ids) {
    struct prompt prompt;
    struct error err;
    prompt_init(&prompt, 1 << 16);
    prompt_add_special(&prompt, IM_USER);
    prompt_add_text(&prompt, "user", 4);
    prompt_add_special(&prompt, IM_MIDDLE);
    prompt_add_text(&prompt, question, strlen(question));
    prompt_add_special(&prompt, IM_END);
    prompt_add_special(&prompt, IM_ASSISTANT);
    prompt_add_text(&prompt, "assistant", 9);
    prompt_add_special(&prompt, IM_MIDDLE);
    prompt_add_special(&prompt, THINK);
    prompt_add_special(&prompt, THINK_END);
    ids->count = 0;
    if (prompt_encode(&prompt, tokenizer, ids, &err) != STATUS_OK) die(err.text);
    prompt_deinit(&prompt);
}

static void play_chat(struct rig *rig, const char *model) {
    struct vocab *vocab = NULL;
    struct error err;
    char merges[4200], config[4200];
    snprintf(merges, sizeof merges, "%s/tiktoken.model", model);
    snprintf(config, sizeof config, "%s/tokenizer_config.json", model);
    if (vocab_load(merges, config, &vocab, &err) != STATUS_OK) die(err.text);
    struct tokenizer *tokenizer = tokenizer_create(vocab);
    struct json_object *file = json_object_from_file(
        rig_path("tests/golden/data/heldout_questions.json"));
    if (!file || json_object_array_length(file) < CHAT_PROMPTS) die("no questions");
    struct token_list ids;
    token_list_init(&ids, PROMPT_TOK_MAX);
    for (uint32_t i = 0; i < CHAT_PROMPTS; i++) {
        ask(tokenizer, json_object_get_string(json_object_array_get_idx(file, i)), &ids);
        make_record(rig, ids.ids, (uint32_t)ids.count, true);
        play_record(plays[TEXT_PROMPTS + i]);
    }
    token_list_deinit(&ids);
    json_object_put(file);
    tokenizer_destroy(tokenizer);
    vocab_destroy(vocab);
}

int main(int argc, char **argv) {
    char model[4096], drafter[4096];
    snprintf(model, sizeof model, "%s", argc > 2 ? argv[1] : rig_path("deploy/model"));
    snprintf(drafter, sizeof drafter, "%s", argc > 2 ? argv[2] : rig_path("deploy/drafter"));
    const struct rig_options options = {.model = model,
                                        .drafter = drafter,
                                        .tp = 1,
                                        .threads = 1,
                                        .page_tok = 64,
                                        .max_rows = PROMPT_TOK_MAX,
                                        .context_len = PROMPT_TOK_MAX + NEW_TOKENS,
                                        .kv_dtype = KV_F32};
    struct rig *rig = rig_open(&options, 0, NULL);
    play_text(rig);
    report("text", 0, TEXT_PROMPTS);
    play_chat(rig, model);
    report("chat", TEXT_PROMPTS, CHAT_PROMPTS);
    rig_close(&rig);
    return 0;
}
