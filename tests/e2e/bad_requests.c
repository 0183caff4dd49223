#include "bad_input.h"

/* Numbers of proto/runtime.proto; a scalar that comes again counts as it came last. */
enum { PROMPT_KIND = 1, PROMPT_TEXT, PROMPT_TOKEN, MAX_TOKENS, SAMPLING, STOP, STOP_TOKEN };
enum { LOGPROBS = 11, TOP_LOGPROBS, CHOICE_COUNT };
enum {
    TEMPERATURE = 1,
    TOP_P,
    TOP_K,
    MIN_P = 5,
    REPETITION,
    PRESENCE,
    FREQUENCY,
    BIAS_TOKEN,
    BIAS
};
enum { OF_TOKENS = 2 };

#define NOT_A_NUMBER __builtin_nanf("")
#define INFINITE     __builtin_inff()

#define NUMBER(field_, number_)                                                                    \
    { .kind = BAD_NUMBER, .field = (field_), .number = (number_) }
#define TEXT(field_, text_)                                                                        \
    { .kind = BAD_BYTES, .field = (field_), .text = (text_), .bytes = sizeof(text_) - 1 }
#define FILLED(field_, bytes_)                                                                     \
    { .kind = BAD_BYTES, .field = (field_), .bytes = (bytes_) }
#define IDS(field_, first_, count_)                                                                \
    { .kind = BAD_IDS, .field = (field_), .number = (first_), .count = (count_) }
#define DRAWN(field_, real_)                                                                       \
    { .kind = BAD_REAL, .field = (field_), .real = (real_) }
#define DRAWN_NUMBER(field_, number_)                                                              \
    { .kind = BAD_SAMPLING_NUMBER, .field = (field_), .number = (number_) }
#define BIASED(first_, count_, real_)                                                              \
    { .kind = BAD_BIAS, .number = (first_), .count = (count_), .real = (real_) }
#define NO_PROMPT TEXT(PROMPT_TEXT, "")
#define INVALID   3u

const struct bad_request bad_requests[] = {
    /* The prompt. */
    {"no prompt", {NO_PROMPT}, INVALID, {"prompt_text", "0", "1.."}},
    {"a prompt of no kind", {NUMBER(PROMPT_KIND, 0)}, INVALID, {"prompt_kind: 0", "1..3"}},
    {"a prompt of an unknown kind", {NUMBER(PROMPT_KIND, 9)}, INVALID, {"prompt_kind: 9", "1..3"}},
    {"a prompt that is no UTF-8", {TEXT(PROMPT_TEXT, "a\xff")}, INVALID, {"prompt_text", "UTF-8"}},
    {"half a surrogate pair",
     {TEXT(PROMPT_TEXT, "\xed\xa0\x80")},
     INVALID,
     {"prompt_text", "UTF-8"}},
    {"a chat with a NUL in it",
     {NUMBER(PROMPT_KIND, 3), TEXT(PROMPT_TEXT, "[\0]")},
     INVALID,
     {"prompt_text", "NUL"}},
    {"a chat that is no JSON",
     {NUMBER(PROMPT_KIND, 3), TEXT(PROMPT_TEXT, "hello")},
     INVALID,
     {"prompt_text", "JSON at byte 0"}},
    {"a chat without messages",
     {NUMBER(PROMPT_KIND, 3), TEXT(PROMPT_TEXT, "{\"messages\": []}")},
     INVALID,
     {"messages"}},
    {"no tokens", {NUMBER(PROMPT_KIND, OF_TOKENS), NO_PROMPT}, INVALID, {"prompt_token", "1.."}},
    {"text and tokens", {IDS(PROMPT_TOKEN, 1, 1)}, INVALID, {"prompt_token", "1", "0"}},
    {"a token beyond all vocabularies",
     {NUMBER(PROMPT_KIND, OF_TOKENS), NO_PROMPT, IDS(PROMPT_TOKEN, 1u << 20, 1)},
     INVALID,
     {"prompt_token", "1048576", "1048575"}},
    {"a token beyond this vocabulary",
     {NUMBER(PROMPT_KIND, OF_TOKENS), NO_PROMPT, IDS(PROMPT_TOKEN, 500000, 1)},
     INVALID,
     {"prompt token 0 is 500000", "ids below 4096"}},
    {"more tokens than the context holds",
     {NUMBER(PROMPT_KIND, OF_TOKENS), NO_PROMPT, IDS(PROMPT_TOKEN, 1, 64)},
     11,
     {"64 tokens", "the context holds 64", "--context-length"}},
    /* The answer. */
    {"more tokens than any context",
     {NUMBER(MAX_TOKENS, 1u << 23)},
     INVALID,
     {"max_tokens", "8388608"}},
    {"a stop that is empty", {TEXT(STOP, "")}, INVALID, {"stop[0]", "0", "1..256"}},
    {"a stop that is long", {FILLED(STOP, 257)}, INVALID, {"stop[0]", "257", "1..256"}},
    {"a stop that is no UTF-8", {TEXT(STOP, "\x80")}, INVALID, {"stop[0]", "UTF-8"}},
    {"seventeen stops",
     {{.kind = BAD_BYTES, .field = STOP, .text = "a", .bytes = 1, .count = 17}},
     INVALID,
     {"stop", "17", "0..16"}},
    {"seventeen stop tokens", {IDS(STOP_TOKEN, 1, 17)}, INVALID, {"stop_token", "17", "0..16"}},
    {"a stop token beyond all vocabularies",
     {IDS(STOP_TOKEN, 1u << 20, 1)},
     INVALID,
     {"stop_token", "1048576"}},
    {"too many alternatives",
     {NUMBER(LOGPROBS, 1), NUMBER(TOP_LOGPROBS, 21)},
     INVALID,
     {"top_logprobs", "21", "0..20"}},
    {"alternatives without log-probabilities",
     {NUMBER(TOP_LOGPROBS, 3)},
     INVALID,
     {"top_logprobs", "3", "0"}},
    {"too many choices", {NUMBER(CHOICE_COUNT, 1000)}, INVALID, {"choice_count", "1000"}},
    /* The draw. */
    {"a temperature below zero", {DRAWN(TEMPERATURE, -1)}, INVALID, {"sampling.temperature", "-1"}},
    {"a temperature that is no number",
     {DRAWN(TEMPERATURE, NOT_A_NUMBER)},
     INVALID,
     {"sampling.temperature", "nan"}},
    {"an endless temperature",
     {DRAWN(TEMPERATURE, INFINITE)},
     INVALID,
     {"sampling.temperature", "inf"}},
    {"top_p of zero", {DRAWN(TOP_P, 0)}, INVALID, {"sampling.top_p", "0"}},
    {"top_p above one", {DRAWN(TOP_P, 1.5f)}, INVALID, {"sampling.top_p", "1.5"}},
    {"top_p that is no number", {DRAWN(TOP_P, NOT_A_NUMBER)}, INVALID, {"sampling.top_p", "nan"}},
    {"min_p above one", {DRAWN(MIN_P, 2)}, INVALID, {"sampling.min_p", "2"}},
    {"top_k beyond all vocabularies",
     {DRAWN_NUMBER(TOP_K, 4000000000)},
     INVALID,
     {"sampling.top_k", "4000000000"}},
    {"a repetition penalty below zero",
     {DRAWN(REPETITION, -2)},
     INVALID,
     {"sampling.repetition_penalty", "-2"}},
    {"an absurd presence penalty",
     {DRAWN(PRESENCE, 3)},
     INVALID,
     {"sampling.presence_penalty", "3"}},
    {"a frequency penalty that is no number",
     {DRAWN(FREQUENCY, NOT_A_NUMBER)},
     INVALID,
     {"sampling.frequency_penalty", "nan"}},
    {"a bias beyond bounds", {BIASED(1, 1, 101)}, INVALID, {"sampling.logit_bias", "101"}},
    {"a bias for a token twice", {BIASED(7, 2, 1)}, INVALID, {"sampling.logit_bias"}},
    {"a bias for a token beyond this vocabulary",
     {BIASED(500000, 1, 1)},
     INVALID,
     {"logit_bias", "500000", "ids below 4096"}},
    {"no sampling", {{.kind = BAD_NO_SAMPLING}}, INVALID, {"request.sampling", "absent"}},
    {"a body that is no message", {{.kind = BAD_BODY}}, INVALID, {"request", "protobuf"}},
};
const size_t bad_request_count = sizeof bad_requests / sizeof *bad_requests;
