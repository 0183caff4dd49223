/* The sampling flags that `generate` and `chat` share. */
#ifndef ESPALIER_PROMPT_FLAGS_H
#define ESPALIER_PROMPT_FLAGS_H

#include "message.h"
#include "options.h"

struct prompt_flags {
    uint32_t tokens;
    double temperature, top_p, min_p;
    double repetition_penalty, presence_penalty, frequency_penalty;
    struct option_list logit_bias;
    struct logit_bias bias[LOGIT_BIAS_MAX]; /* what prompt_flags_apply makes of it */
    uint32_t top_k;
    uint64_t seed;
    struct option_list stop;
    bool ignore_eos;
    bool stats;
};

#define PROMPT_FLAGS_DEFAULT                                                                       \
    { .tokens = 128, .top_p = 1, .repetition_penalty = 1 }

#define PROMPT_FLAGS_ROWS(flags)                                                                   \
    {.name = "--tokens",                                                                           \
     .aliases = "--max-tokens --max-new-tokens -n",                                                \
     .type = OPTION_COUNT,                                                                         \
     .value = &(flags)->tokens,                                                                    \
     .min = 1,                                                                                     \
     .max = CONTEXT_TOK_MAX,                                                                       \
     .fallback = "128",                                                                            \
     .help = "at most so many tokens of an answer"},                                               \
        {.name = "--temperature",                                                                  \
         .type = OPTION_REAL,                                                                      \
         .value = &(flags)->temperature,                                                           \
         .real_min = 0,                                                                            \
         .real_max = 100,                                                                          \
         .fallback = "0, the likeliest token always",                                              \
         .help = "spread of the draw"},                                                            \
        {.name = "--top-p",                                                                        \
         .type = OPTION_REAL,                                                                      \
         .value = &(flags)->top_p,                                                                 \
         .real_min = 1e-6,                                                                         \
         .real_max = 1,                                                                            \
         .fallback = "1",                                                                          \
         .help = "draw among the likeliest tokens of this total probability"},                     \
        {.name = "--top-k",                                                                        \
         .type = OPTION_COUNT,                                                                     \
         .value = &(flags)->top_k,                                                                 \
         .min = 0,                                                                                 \
         .max = MODEL_VOCAB_MAX,                                                                   \
         .fallback = "0, no limit",                                                                \
         .help = "draw among so many likeliest tokens"},                                           \
        {.name = "--min-p",                                                                        \
         .type = OPTION_REAL,                                                                      \
         .value = &(flags)->min_p,                                                                 \
         .real_min = 0,                                                                            \
         .real_max = 1,                                                                            \
         .fallback = "0, no limit",                                                                \
         .help = "draw among tokens at least so likely, as a share of the likeliest"},             \
        {.name = "--repetition-penalty",                                                           \
         .type = OPTION_REAL,                                                                      \
         .value = &(flags)->repetition_penalty,                                                    \
         .real_min = 1e-3,                                                                         \
         .real_max = (double)REPETITION_PENALTY_MAX,                                               \
         .fallback = "1, none",                                                                    \
         .help = "divide the logits of tokens in prompt or answer; below 1 favours them"},         \
        {.name = "--presence-penalty",                                                             \
         .type = OPTION_REAL,                                                                      \
         .value = &(flags)->presence_penalty,                                                      \
         .real_min = -(double)REPLY_PENALTY_MAX,                                                   \
         .real_max = (double)REPLY_PENALTY_MAX,                                                    \
         .fallback = "0, none",                                                                    \
         .help = "take from the logits of tokens in the answer"},                                  \
        {.name = "--frequency-penalty",                                                            \
         .type = OPTION_REAL,                                                                      \
         .value = &(flags)->frequency_penalty,                                                     \
         .real_min = -(double)REPLY_PENALTY_MAX,                                                   \
         .real_max = (double)REPLY_PENALTY_MAX,                                                    \
         .fallback = "0, none",                                                                    \
         .help = "likewise, for each time they are there"},                                        \
        {.name = "--logit-bias",                                                                   \
         .type = OPTION_LIST,                                                                      \
         .value = &(flags)->logit_bias,                                                            \
         .argument = "ID=VALUE,...",                                                               \
         .help = "add to the logits of these token ids, -100 to 100; may be repeated"},            \
        {.name = "--seed",                                                                         \
         .type = OPTION_WIDE,                                                                      \
         .value = &(flags)->seed,                                                                  \
         .fallback = "drawn, and shown by --stats",                                                \
         .help = "the same seed draws the same tokens"},                                           \
        {.name = "--stop",                                                                         \
         .type = OPTION_LIST,                                                                      \
         .value = &(flags)->stop,                                                                  \
         .help = "end before this text; may be repeated"},                                         \
        {.name = "--ignore-eos",                                                                   \
         .type = OPTION_SWITCH,                                                                    \
         .value = &(flags)->ignore_eos,                                                            \
         .help = "go on to --tokens whatever is drawn"},                                           \
    {                                                                                              \
        .name = "--stats", .type = OPTION_SWITCH, .value = &(flags)->stats,                        \
        .help = "a line of figures after an answer, on standard error"                             \
    }

/* Fill all of the request but its prompt; stop strings and bias are borrowed from flags.
 * INVALID_ARGUMENT names a bad --logit-bias. */
enum status prompt_flags_apply(struct prompt_flags *flags, const struct options_program *program,
                               struct generate_request *request, struct error *err) MUST_USE;

/* "64 tokens in 1.20 s, 52.9 tokens/s, ..." on standard error. */
void prompt_flags_print_stats(const struct generate_summary *summary);

#endif
