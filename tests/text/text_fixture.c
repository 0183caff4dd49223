#include "text_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

/* NULL: the folder has none, or is nowhere. */
static const struct tokenizer *load(const char *folder) {
    char model_path[1024], config_path[1024];
    if (!folder) return NULL;
    snprintf(model_path, sizeof model_path, "%s/tiktoken.model", folder);
    snprintf(config_path, sizeof config_path, "%s/tokenizer_config.json", folder);
    struct vocab *vocab;
    struct error err = {0};
    enum status status = vocab_load(model_path, config_path, &vocab, &err);
    if (status == STATUS_NOT_FOUND) return NULL;
    if (status != STATUS_OK) fail_msg("%s", err.text);
    return tokenizer_create(vocab);
}

const struct tokenizer *fixture_tokenizer(enum fixture_vocab which) {
    static const struct tokenizer *loaded[FIXTURE_VOCAB_COUNT];
    if (!loaded[which])
        loaded[which] = load(which == FIXTURE_KIMI ? getenv("ESPALIER_KIMI_DATA")
                                                   : ESPALIER_SOURCE_DIR "/deploy/model");
    return loaded[which];
}

const struct tokenizer *fixture_tokenizer_or_skip(enum fixture_vocab which) {
    const struct tokenizer *tokenizer = fixture_tokenizer(which);
    if (tokenizer) return tokenizer;
    assert_int_equal(which, FIXTURE_KIMI); /* the embedded model is part of the tree */
    print_message("skipped: ESPALIER_KIMI_DATA names no folder with a tiktoken.model\n");
    skip();
    return NULL;
}

struct json_object *fixture_json(const char *name) {
    char path[1024];
    snprintf(path, sizeof path, ESPALIER_SOURCE_DIR "/tests/text/data/%s", name);
    struct json_object *parsed = json_object_from_file(path);
    if (!parsed) fail_msg("%s", json_util_get_last_err());
    return parsed;
}

uint64_t fixture_random(uint64_t *state) {
    return hash_mix(*state += UINT64_C(0x9e3779b97f4a7c15));
}

uint32_t fixture_below(uint64_t *state, uint32_t bound) {
    return (uint32_t)(fixture_random(state) % bound);
}

size_t fixture_put_utf8(char *out, uint32_t code_point) {
    if (code_point < 0x80) {
        out[0] = (char)code_point;
        return 1;
    }
    size_t bytes = code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
    for (size_t i = bytes - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (code_point & 0x3F));
        code_point >>= 6;
    }
    out[0] = (char)((bytes == 2 ? 0xC0u : bytes == 3 ? 0xE0u : 0xF0u) | code_point);
    return bytes;
}

/* Ranges of code points that meet different rules of the split. */
static const struct {
    uint32_t first, count;
} ranges[] = {
    {'a', 26},     {'A', 26},    {'0', 10},          {' ', 1},        {' ', 1},     {'\t', 5},
    {'!', 15},     {0xA0, 96},   {0x100, 128},       {0x300, 112},    {0x391, 57},  {0x410, 64},
    {0x5D0, 27},   {0x621, 42},  {0x660, 10},        {0x905, 53},     {0xE01, 58},  {0x10A0, 80},
    {0x1C4, 12},   {0x2000, 16}, {0x2028, 2},        {0x2160, 32},    {0x2B0, 32},  {0x3000, 32},
    {0x3041, 86},  {0x30A1, 94}, {0x4E00, 20000},    {0xAC00, 11172}, {0xFE00, 16}, {0x1F300, 768},
    {0x1F1E6, 26}, {0x200B, 3},  {0x20000, 40000},   {0x16FF0, 2},    {0x180E, 1},  {0x17F, 1},
    {0x85, 1},     {0, 0xD800},  {0xE000, 0x102000},
};

static const char *const phrases[] = {
    "'s",
    "'T",
    "'re",
    "'VE",
    "'m",
    "'ll",
    "'D",
    "'",
    "\xE2\x80\x99",
    "\r\n",
    "\n\n",
    "  ",
    "<|im_end|>",
    "<|im_user|>",
    "</think>",
    "[EOS]",
    "<|reserved_token_163600|>",
    "https://",
    "getUserName",
    "\xE4\xB8\x96\xE7\x95\x8C\xE3\x80\x82",
    "return ",
    "    ",
    "e\xCC\x81",
};

size_t fixture_random_text(uint64_t *state, uint32_t char_max, char *out) {
    size_t bytes = 0;
    uint32_t range = 0;
    for (uint32_t left = fixture_below(state, char_max + 1); left > 0; left--) {
        if (fixture_below(state, 8) == 0) {
            const char *phrase = phrases[fixture_below(state, sizeof phrases / sizeof *phrases)];
            memcpy(out + bytes, phrase, strlen(phrase));
            bytes += strlen(phrase);
            continue;
        }
        /* Stay in a range for a while, so that runs arise. */
        if (fixture_below(state, 3) == 0)
            range = fixture_below(state, sizeof ranges / sizeof *ranges);
        uint32_t offset = fixture_below(state, ranges[range].count);
        bytes += fixture_put_utf8(out + bytes, ranges[range].first + offset);
    }
    return bytes;
}
