/* What the tests of text share: vocabularies, files, random numbers. */
#ifndef ESPALIER_TEXT_FIXTURE_H
#define ESPALIER_TEXT_FIXTURE_H

#include <json-c/json.h>
#include <stddef.h>
#include <stdint.h>

#include "text/tokenizer.h"

/* cmocka needs these before it, in this order. */
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum fixture_vocab { FIXTURE_EMBEDDED, FIXTURE_KIMI, FIXTURE_VOCAB_COUNT };

/* A tokenizer over the embedded model's vocabulary, or over Moonshot's, which is NULL where its
 * files are absent (ESPALIER_KIMI_DATA names their folder). Loaded once, kept to the end. */
const struct tokenizer *fixture_tokenizer(enum fixture_vocab which);

/* The tokenizer, or skip the test with a printed line. */
const struct tokenizer *fixture_tokenizer_or_skip(enum fixture_vocab which);

/* Parse tests/text/data/<name>; the test fails where it cannot. */
struct json_object *fixture_json(const char *name);

/* SplitMix64: the next of a seeded sequence. */
uint64_t fixture_random(uint64_t *state);
uint32_t fixture_below(uint64_t *state, uint32_t bound);

/* Write the UTF-8 of one character; the number of bytes. */
size_t fixture_put_utf8(char *out, uint32_t code_point);

/* A random text of up to char_max characters: words of several scripts, marks, digits, white space
 * runs, apostrophes, emoji, control-token names, any code point. out holds 40 bytes a character. */
size_t fixture_random_text(uint64_t *state, uint32_t char_max, char *out);

#endif
