/* The streaming detokenizer against decoding all at once with another decoder. */
#include <stdlib.h>
#include <string.h>

#include "text/detok.h"
#include "text_fixture.h"

#define TOKENS_MAX 200
#define TEXT_MAX   (TOKENS_MAX * DETOK_OUT_BYTES_MAX)

/* Whether bytes[0, count) is one character, by encoding every candidate anew. */
static bool is_character(const char *bytes, size_t count) {
    uint32_t lead = (unsigned char)bytes[0];
    uint32_t value = count == 1   ? lead
                     : count == 2 ? lead & 0x1F
                     : count == 3 ? lead & 0xF
                                  : lead & 7;
    for (size_t i = 1; i < count; i++)
        value = value << 6 | ((unsigned char)bytes[i] & 0x3F);
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return false;
    char again[4];
    return fixture_put_utf8(again, value) == count && !memcmp(again, bytes, count);
}

/* Whether bytes[0, count) begins some character, by trying continuations. Bounds of the second byte
 * are all that matters, so two steps of 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF find one. */
static bool begins_character(const char *bytes, size_t count) {
    static const unsigned char next[] = {0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF};
    char trial[4] = {0};
    memcpy(trial, bytes, count);
    for (size_t total = count + 1; total <= 4; total++) {
        size_t free_count = total - count, choices = 1;
        for (size_t i = 0; i < free_count; i++)
            choices *= sizeof next;
        for (size_t choice = 0; choice < choices; choice++) {
            for (size_t i = 0, rest = choice; count + i < sizeof trial && i < free_count;
                 i++, rest /= sizeof next)
                trial[count + i] = (char)next[rest % sizeof next];
            if (is_character(trial, total)) return true;
        }
    }
    return false;
}

/* All of bytes with U+FFFD for each longest wrong sequence. */
static size_t decode_all(const char *bytes, size_t count, char *out) {
    size_t written = 0;
    for (size_t at = 0; at < count;) {
        size_t length = 0;
        for (size_t n = 1; n <= 4 && at + n <= count && length == 0; n++)
            if (is_character(bytes + at, n)) length = n;
        if (length > 0) {
            memcpy(out + written, bytes + at, length);
            written += length;
            at += length;
            continue;
        }
        size_t wrong = 1;
        while (wrong < 3 && at + wrong < count && begins_character(bytes + at, wrong + 1))
            wrong++;
        memcpy(out + written, "\xEF\xBF\xBD", 3);
        written += 3;
        at += wrong;
    }
    return written;
}

static char together[TEXT_MAX], streamed[TEXT_MAX], expected[TEXT_MAX];

/* Stream ids and compare with the whole; each output must be whole characters by itself. */
static void check_stream(const struct vocab *vocab, const uint32_t *ids, size_t count,
                         bool keep_hidden) {
    struct detok detok;
    detok_init(&detok, keep_hidden);
    size_t bytes = 0, written = 0;
    for (size_t i = 0; i <= count; i++) {
        size_t delta = i < count ? detok_feed(&detok, vocab, ids[i], streamed + written)
                                 : detok_finish(&detok, streamed + written);
        assert_true(utf8_validate(streamed + written, delta, NULL));
        written += delta;
        if (i == count || (!keep_hidden && vocab_is_hidden(vocab, ids[i]))) continue;
        uint32_t token_bytes;
        const char *token = vocab_bytes(vocab, ids[i], &token_bytes);
        memcpy(together + bytes, token, token_bytes);
        bytes += token_bytes;

        /* Nothing is held but the beginning of a character, and that only at the end. */
        size_t certain = decode_all(together, bytes, expected);
        assert_true(written == certain || written + 3 == certain);
        if (written != certain) {
            size_t tail = detok.held_count;
            assert_true(tail > 0 && begins_character(together + bytes - tail, tail));
        }
    }
    assert_int_equal(written, decode_all(together, bytes, expected));
    assert_memory_equal(streamed, expected, written);
    assert_int_equal(detok_finish(&detok, streamed), 0);
}

static void check_random_streams(enum fixture_vocab which) {
    const struct vocab *vocab = tokenizer_vocab(fixture_tokenizer_or_skip(which));
    uint64_t seed = 3;
    for (int trial = 0; trial < 300; trial++) {
        uint32_t ids[TOKENS_MAX], count = fixture_below(&seed, TOKENS_MAX);
        for (uint32_t i = 0; i < count; i++) {
            /* Half of them single bytes: the first 256 ids, in all orders. */
            bool is_byte = fixture_below(&seed, 2) == 0;
            ids[i] = fixture_below(&seed, is_byte ? 256 : vocab_size(vocab));
        }
        check_stream(vocab, ids, count, trial % 2 == 0);
    }
}

static void test_random_streams_embedded(void **state) {
    (void)state;
    check_random_streams(FIXTURE_EMBEDDED);
}

static void test_random_streams_kimi(void **state) {
    (void)state;
    check_random_streams(FIXTURE_KIMI);
}

/* Every order of bytes matters more than every byte: all pairs, and all leads with cut tails. */
static void test_byte_sequences(void **state) {
    (void)state;
    static const unsigned char edges[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                                          0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE,
                                          0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
    const size_t n = sizeof edges;
    const struct vocab *vocab = tokenizer_vocab(fixture_tokenizer_or_skip(FIXTURE_EMBEDDED));
    for (size_t i = 0; i < n * n * n * n; i++) {
        uint32_t ids[4];
        for (size_t k = 0, rest = i; k < 4; k++, rest /= n) {
            char byte = (char)edges[rest % n];
            ids[k] = vocab_find(vocab, &byte, 1);
        }
        check_stream(vocab, ids, 4, true);
    }
}

static void test_text_comes_back_from_single_bytes(void **state) {
    (void)state;
    const struct vocab *vocab = tokenizer_vocab(fixture_tokenizer_or_skip(FIXTURE_EMBEDDED));
    uint64_t seed = 8;
    for (int trial = 0; trial < 500; trial++) {
        char text[40 * 40];
        size_t bytes = fixture_random_text(&seed, 40, text), written = 0;
        struct detok detok;
        detok_init(&detok, false);
        for (size_t i = 0; i < bytes; i++)
            written += detok_feed(&detok, vocab, vocab_find(vocab, text + i, 1),
                                  streamed + written);
        assert_int_equal(detok_finish(&detok, streamed), 0);
        assert_int_equal(written, bytes);
        if (bytes > 0) assert_memory_equal(streamed, text, bytes);
    }
}

static void test_hidden_tokens(void **state) {
    (void)state;
    const struct vocab *vocab = tokenizer_vocab(fixture_tokenizer_or_skip(FIXTURE_EMBEDDED));
    uint32_t half_1 = vocab_find(vocab, "\xC3", 1), half_2 = vocab_find(vocab, "\xA9", 1);
    uint32_t hidden = vocab_special(vocab, "<|im_end|>"), shown = vocab_special(vocab, "</think>");
    uint32_t unnamed = vocab_size(vocab) - VOCAB_SPECIALS + 5;
    const uint32_t ids[] = {half_1, hidden, half_2, shown, unnamed};
    static const struct {
        bool keep_hidden;
        const char *text;
    } cases[] = {
        {false, "\xC3\xA9</think>"}, /* as if it had not been drawn */
        {true, "\xEF\xBF\xBD<|im_end|>\xEF\xBF\xBD</think><|reserved_token_3845|>"},
    };
    for (size_t i = 0; i < 2; i++) {
        struct detok detok;
        size_t written = 0;
        detok_init(&detok, cases[i].keep_hidden);
        for (size_t k = 0; k < sizeof ids / sizeof *ids; k++)
            written += detok_feed(&detok, vocab, ids[k], streamed + written);
        written += detok_finish(&detok, streamed + written);
        streamed[written] = '\0';
        assert_string_equal(streamed, cases[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_streams_embedded),
        cmocka_unit_test(test_random_streams_kimi),
        cmocka_unit_test(test_byte_sequences),
        cmocka_unit_test(test_text_comes_back_from_single_bytes),
        cmocka_unit_test(test_hidden_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
