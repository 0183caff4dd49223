/* The vocabulary's two files: what they mean, and one clear line for each way they can be wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "text/vocab.h"
#include "text_fixture.h"

static char model_path[] = "/tmp/test_vocab_model_XXXXXX";
static char config_path[] = "/tmp/test_vocab_config_XXXXXX";

static int make_files(void **state) {
    (void)state;
    int model = mkstemp(model_path), config = mkstemp(config_path);
    return model < 0 || config < 0 || close(model) || close(config);
}

static int remove_files(void **state) {
    (void)state;
    return unlink(model_path) || unlink(config_path);
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* Lines for all single bytes in order, with line `replaced` (from 1; 0 for none) as `line` instead,
 * then `tail`. */
static void write_model(unsigned replaced, const char *line, const char *tail) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char text[8192] = "";
    size_t at = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        if (byte + 1 == replaced)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s", line);
        else
            at += (size_t)snprintf(text + at, sizeof text - at, "%c%c== %u\n", digits[byte >> 2],
                                   digits[(byte & 3) << 4], byte);
    }
    snprintf(text + at, sizeof text - at, "%s", tail);
    write_file(model_path, text);
}

#define CONFIG_EMPTY "{\"added_tokens_decoder\": {}}"

static void test_a_small_vocabulary(void **state) {
    (void)state;
    write_model(0, "", "YWI= 256\nYWJj 257"); /* "ab", "abc"; the last line without its end */
    write_file(config_path,
               "{\"added_tokens_decoder\": {\"258\": {\"content\": \"<x>\", \"special\": "
               "true}, \"260\": {\"content\": \"<y>\", \"special\": false}}}");
    struct vocab *vocab;
    struct error err = {0};
    if (vocab_load(model_path, config_path, &vocab, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_int_equal(vocab_size(vocab), 258 + VOCAB_SPECIALS);
    for (uint32_t byte = 0; byte < 256; byte++) {
        char data = (char)byte;
        assert_int_equal(vocab_find(vocab, &data, 1), byte);
    }
    assert_int_equal(vocab_find(vocab, "ab", 2), 256);
    assert_int_equal(vocab_find(vocab, "abc", 3), 257);
    assert_int_equal(vocab_find(vocab, "abcd", 4), VOCAB_NO_ID);
    assert_int_equal(vocab_find(vocab, "<x>", 3), VOCAB_NO_ID);
    char long_text[VOCAB_TOKEN_BYTES_MAX + 1] = {0};
    assert_int_equal(vocab_find(vocab, long_text, sizeof long_text), VOCAB_NO_ID);

    static const struct {
        uint32_t id;
        const char *bytes;
        bool is_special, is_hidden;
    } tokens[] = {
        {257, "abc", false, false},
        {258, "<x>", true, true},
        {259, "<|reserved_token_259|>", true, true},
        {260, "<y>", true, false},
        {513, "<|reserved_token_513|>", true, true},
    };
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        uint32_t bytes;
        const char *data = vocab_bytes(vocab, tokens[i].id, &bytes);
        assert_int_equal(bytes, strlen(tokens[i].bytes));
        assert_memory_equal(data, tokens[i].bytes, bytes);
        assert_int_equal(vocab_is_special(vocab, tokens[i].id), tokens[i].is_special);
        assert_int_equal(vocab_is_hidden(vocab, tokens[i].id), tokens[i].is_hidden);
        assert_int_equal(vocab_special(vocab, tokens[i].bytes),
                         tokens[i].is_special ? tokens[i].id : VOCAB_NO_ID);
    }
    vocab_destroy(vocab);
}

static void assert_refused(const char *path, const char *expected) {
    struct vocab *vocab;
    struct error err = {0};
    assert_int_equal(vocab_load(model_path, config_path, &vocab, &err), STATUS_INVALID_ARGUMENT);
    char line[ERROR_TEXT_MAX];
    snprintf(line, sizeof line, "%s:%s", path, expected);
    assert_string_equal(err.text, line);
}

static void test_bad_models(void **state) {
    (void)state;
    static const struct {
        unsigned replaced;
        const char *line, *tail, *error;
    } cases[] = {
        {3, "\n", "", "3: expected base64 of 1 to 256 bytes, a space and a rank"},
        {3, "Ag==2\n", "", "3: expected base64 of 1 to 256 bytes, a space and a rank"},
        {3, "Ag= 2\n", "", "3: expected base64 of 1 to 256 bytes, a space and a rank"},
        {3, "A=== 2\n", "", "3: expected base64 of 1 to 256 bytes, a space and a rank"},
        {3, "A-== 2\n", "", "3: expected base64 of 1 to 256 bytes, a space and a rank"},
        {3, " 2\n", "", "3: expected base64 of 1 to 256 bytes, a space and a rank"},
        {3, "Ag== 3\n", "", "3: expected rank 2, found '3'"},
        {3, "Ag== \n", "", "3: expected rank 2, found ''"},
        {3, "Ag== 2x\n", "", "3: expected rank 2, found '2x'"},
        {3, "Ag== 2\r\n", "", "3: expected rank 2, found '2\r'"},
        {3, "Ag== 4294967298\n", "", "3: expected rank 2, found '4294967298'"},
        {3, "", "", "3: expected rank 2, found '3'"},
        {3, "AQ== 2\n", "", "3: same token as on line 2"},
        {256, "", "", "255: ends without a token for the byte 0xFF"},
        {2, "AAA= 1\n", "", "256: ends without a token for the byte 0x01"},
        {0, "", "\n", "257: expected base64 of 1 to 256 bytes, a space and a rank"},
    };
    write_file(config_path, CONFIG_EMPTY);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_model(cases[i].replaced, cases[i].line, cases[i].tail);
        assert_refused(model_path, cases[i].error);
    }
    write_file(model_path, "");
    assert_refused(model_path, "0: ends without a token for the byte 0x00");
}

static void test_tokens_too_long(void **state) {
    (void)state;
    /* 256 bytes are 344 characters of base64 with two of padding, 257 with one. */
    char tail[400];
    write_file(config_path, CONFIG_EMPTY);
    memset(tail, 'A', 344);
    snprintf(tail + 342, sizeof tail - 342, "== 256\n");
    write_model(0, "", tail);
    struct vocab *vocab;
    assert_int_equal(vocab_load(model_path, config_path, &vocab, NULL), STATUS_OK);
    vocab_destroy(vocab);
    snprintf(tail + 342, sizeof tail - 342, "A= 256\n");
    write_model(0, "", tail);
    assert_refused(model_path, "257: expected base64 of 1 to 256 bytes, a space and a rank");
}

static void test_bad_configs(void **state) {
    (void)state;
    static const struct {
        const char *config, *error;
    } cases[] = {
        {"", "1: unexpected end of data"},
        {"{\n\"a\": 1,\n}", "3: unexpected character"},
        {"{}", "1: added_tokens_decoder: expected an object of special tokens"},
        {"[]", "1: added_tokens_decoder: expected an object of special tokens"},
        {"{\"added_tokens_decoder\": []}",
         "1: added_tokens_decoder: expected an object of special tokens"},
        {"{\"added_tokens_decoder\": {\n\"255\": {\"content\": \"a\"}}}",
         "2: added_tokens_decoder: id '255' is outside [256, 512)"},
        {"{\"added_tokens_decoder\": {\n\"512\": {\"content\": \"a\"}}}",
         "2: added_tokens_decoder: id '512' is outside [256, 512)"},
        {"{\"added_tokens_decoder\": {\n\n\"x\": {\"content\": \"a\"}}}",
         "3: added_tokens_decoder: id 'x' is outside [256, 512)"},
        {"{\"added_tokens_decoder\": {\n\"256\": 4}}",
         "2: added_tokens_decoder[256].content: expected a string of 1 to 256 bytes"},
        {"{\"added_tokens_decoder\": {\n\"256\": {\"content\": 4}}}",
         "2: added_tokens_decoder[256].content: expected a string of 1 to 256 bytes"},
        {"{\"added_tokens_decoder\": {\n\"256\": {\"content\": \"\"}}}",
         "2: added_tokens_decoder[256].content: expected a string of 1 to 256 bytes"},
        {"{\"added_tokens_decoder\": {\n\"256\": {\"content\": \"a\", \"special\": 1}}}",
         "2: added_tokens_decoder[256].special: expected true or false"},
        {"{\"added_tokens_decoder\": {\n\"256\": {\"content\": \"a\"},\n\"257\": {\"content\": "
         "\"a\"}}}",
         "3: added_tokens_decoder: 256 and 257 have the same content"},
        {CONFIG_EMPTY " x", "1: unexpected character"},
    };
    write_model(0, "", "");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(config_path, cases[i].config);
        assert_refused(config_path, cases[i].error);
    }
}

static void test_missing_files(void **state) {
    (void)state;
    struct vocab *vocab;
    struct error err = {0};
    assert_int_equal(vocab_load("/nonexistent/model", config_path, &vocab, &err), STATUS_NOT_FOUND);
    assert_string_equal(err.text, "/nonexistent/model: No such file or directory");
    assert_int_equal(vocab_load(model_path, "/nonexistent/config", &vocab, &err), STATUS_NOT_FOUND);
    assert_int_equal(vocab_load("/tmp", config_path, &vocab, &err), STATUS_INVALID_ARGUMENT);
}

static void test_real_vocabularies(void **state) {
    (void)state;
    for (int which = 0; which < FIXTURE_VOCAB_COUNT; which++) {
        const struct tokenizer *tokenizer = fixture_tokenizer(which);
        if (!tokenizer) continue;
        const struct vocab *vocab = tokenizer_vocab(tokenizer);
        uint32_t base_count = vocab_size(vocab) - VOCAB_SPECIALS;
        assert_int_equal(vocab_size(vocab), which == FIXTURE_KIMI ? 163840 : 4096);
        assert_int_equal(vocab_special(vocab, "<|im_end|>"), base_count + 2);
        assert_int_equal(vocab_special(vocab, "[PAD]"), base_count + 255);
        assert_int_equal(vocab_special(vocab, "no such name"), VOCAB_NO_ID);
        assert_int_equal(vocab_find(vocab, "\n", 1), 198);
        for (uint32_t id = 0; id < base_count; id++) {
            uint32_t bytes;
            const char *data = vocab_bytes(vocab, id, &bytes);
            assert_int_equal(vocab_find(vocab, data, bytes), id);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_small_vocabulary), cmocka_unit_test(test_bad_models),
        cmocka_unit_test(test_tokens_too_long),    cmocka_unit_test(test_bad_configs),
        cmocka_unit_test(test_missing_files),      cmocka_unit_test(test_real_vocabularies),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
