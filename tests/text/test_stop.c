/* Stop strings against a model that keeps the whole text and searches it again after every byte. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/stop.h"
#include "text_fixture.h"

#define TEXT_MAX 400

static void add(struct stop_set *set, const char *text, size_t bytes) {
    struct error err = {0};
    if (stop_set_add(set, text, bytes, &err) != STATUS_OK) fail_msg("%s", err.text);
}

/* Where the text ends: the first byte count at which some string is a suffix of the text; there the
 * longest. *stop_out is its index, STOP_NONE where none occurs. */
static size_t end_naively(const struct stop_set *set, const char *text, size_t bytes,
                          uint32_t *stop_out) {
    *stop_out = STOP_NONE;
    for (size_t end = 1; end <= bytes; end++) {
        size_t longest = 0;
        for (uint32_t i = 0; i < set->count; i++) {
            size_t length = set->string[i].bytes;
            if (length > end || length <= longest) continue;
            if (memcmp(text + end - length, set->string[i].text, length)) continue;
            longest = length;
            *stop_out = i;
        }
        if (longest > 0) return set->include_stop ? end : end - longest;
    }
    return bytes;
}

/* The longest end of the text that begins a stop string: what must be held, and nothing more. */
static size_t held_naively(const struct stop_set *set, const char *text, size_t bytes) {
    for (size_t count = bytes < STOP_HELD_BYTES_MAX ? bytes : STOP_HELD_BYTES_MAX; count > 0;
         count--)
        for (uint32_t i = 0; i < set->count; i++)
            if (count < set->string[i].bytes &&
                !memcmp(text + bytes - count, set->string[i].text, count))
                return count;
    return 0;
}

/* Feed text in random chunks, and compare after each. */
static void check(const struct stop_set *set, const char *text, size_t bytes, uint64_t *seed) {
    char out[TEXT_MAX + STOP_HELD_BYTES_MAX];
    struct stop_scan scan;
    stop_scan_init(&scan);
    uint32_t expected_stop;
    size_t expected_end = end_naively(set, text, bytes, &expected_stop);
    size_t written = 0;
    for (size_t at = 0; at < bytes;) {
        size_t chunk = 1 + fixture_below(seed, 7);
        if (chunk > bytes - at) chunk = bytes - at;
        written += stop_scan_feed(&scan, set, text + at, chunk, out + written);
        at += chunk;
        if (scan.found == STOP_NONE) assert_int_equal(written, at - held_naively(set, text, at));
    }
    assert_int_equal(scan.found, expected_stop);
    written += stop_scan_finish(&scan, out + written);
    assert_int_equal(written, expected_end);
    if (written > 0) assert_memory_equal(out, text, written);
    assert_int_equal(stop_scan_finish(&scan, out), 0);
}

static void test_random_texts(void **state) {
    (void)state;
    uint64_t seed = 11;
    for (int trial = 0; trial < 40000; trial++) {
        struct stop_set set;
        stop_set_init(&set, trial % 2 == 0);
        uint32_t letters = 1 + fixture_below(&seed, 3);
        for (uint32_t count = fixture_below(&seed, 5); count > 0; count--) {
            char string[12];
            uint32_t length = 1 + fixture_below(&seed, trial % 8 == 0 ? 12 : 5);
            for (uint32_t i = 0; i < length; i++)
                string[i] = (char)('a' + fixture_below(&seed, letters));
            add(&set, string, length);
        }
        char text[60];
        uint32_t bytes = fixture_below(&seed, sizeof text);
        for (uint32_t i = 0; i < bytes; i++)
            text[i] = (char)('a' + fixture_below(&seed, letters + 1));
        check(&set, text, bytes, &seed);
    }
}

static void test_long_strings(void **state) {
    (void)state;
    uint64_t seed = 2;
    char string[STOP_STRING_BYTES_MAX], text[TEXT_MAX];
    for (int trial = 0; trial < 200; trial++) {
        struct stop_set set;
        stop_set_init(&set, trial % 2 == 0);
        memset(string, 'a', sizeof string);
        string[sizeof string - 1] = trial % 3 == 0 ? 'a' : 'b';
        for (uint32_t i = 0; i < STOP_STRINGS_MAX; i++)
            add(&set, string + i, sizeof string - i);
        memset(text, 'a', sizeof text);
        for (uint32_t i = fixture_below(&seed, 4); i > 0; i--)
            text[fixture_below(&seed, sizeof text)] = 'b';
        check(&set, text, sizeof text, &seed);
    }
}

static void test_cases(void **state) {
    (void)state;
    static const struct {
        const char *stops[3], *text, *without, *with;
        uint32_t found;
    } cases[] = {
        {{"END"}, "the END of", "the ", "the END", 0},
        {{"END"}, "the EN", "the EN", "the EN", STOP_NONE}, /* held, then let out */
        {{NULL}, "anything", "anything", "anything", STOP_NONE},
        {{"abcd", "c"}, "xabcd", "xab", "xabc", 1}, /* the first to be complete */
        {{"c", "abc"}, "xabc", "x", "xabc", 1},     /* of two complete at once, the longest */
        {{"abc", "abc"}, "abc", "", "abc", 0},      /* twice the same */
        {{"aab"}, "aaab", "a", "aaab", 0},
        {{"abab"}, "ababab", "", "abab", 0},
        {{"\xC3\xA9"}, "\xC3\xA8\xC3\xA9", "\xC3\xA8", "\xC3\xA8\xC3\xA9", 0},
        {{"\n\n"}, "a\nb\n\n\n", "a\nb", "a\nb\n\n", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int include_stop = 0; include_stop < 2; include_stop++) {
            struct stop_set set;
            stop_set_init(&set, include_stop);
            for (int k = 0; k < 3 && cases[i].stops[k]; k++)
                add(&set, cases[i].stops[k], strlen(cases[i].stops[k]));
            char out[TEXT_MAX + STOP_HELD_BYTES_MAX];
            struct stop_scan scan;
            stop_scan_init(&scan);
            size_t written = stop_scan_feed(&scan, &set, cases[i].text, strlen(cases[i].text), out);
            written += stop_scan_finish(&scan, out + written);
            out[written] = '\0';
            assert_string_equal(out, include_stop ? cases[i].with : cases[i].without);
            assert_int_equal(scan.found, cases[i].found);
            if (scan.found != STOP_NONE)
                assert_int_equal(stop_scan_feed(&scan, &set, "more", 4, out), 0);
        }
    }
}

static void test_characters_stay_whole(void **state) {
    (void)state;
    uint64_t seed = 21;
    for (int trial = 0; trial < 2000; trial++) {
        struct stop_set set;
        stop_set_init(&set, false);
        add(&set, "\xE2\x82\xAC", 3);
        add(&set, "\xE2\x82\xADx", 4);
        add(&set, "x\xC3\xA9x", 4);
        struct stop_scan scan;
        stop_scan_init(&scan);
        for (int i = 0; i < 20; i++) {
            static const char *const characters[] = {"\xC3\xA9", "\xE2\x82\xAD", "\xE2\x82\xAE",
                                                     "x"};
            const char *character = characters[fixture_below(&seed, 4)];
            char out[4 + STOP_HELD_BYTES_MAX];
            size_t written = stop_scan_feed(&scan, &set, character, strlen(character), out);
            assert_true(utf8_validate(out, written, NULL));
        }
    }
}

static void test_bad_strings(void **state) {
    (void)state;
    struct stop_set set;
    struct error err = {0};
    char text[STOP_STRING_BYTES_MAX + 1];
    memset(text, 'x', sizeof text);
    stop_set_init(&set, false);
    add(&set, text, STOP_STRING_BYTES_MAX);
    assert_int_equal(stop_set_add(&set, text, 0, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.text, "stop[1]: 0 bytes; 1 to 256 are accepted");
    assert_int_equal(stop_set_add(&set, text, sizeof text, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.text, "stop[1]: 257 bytes; 1 to 256 are accepted");
    assert_int_equal(stop_set_add(&set, "a\xC3", 2, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.text, "stop[1]: not UTF-8 at byte 1");
    for (uint32_t i = 1; i < STOP_STRINGS_MAX; i++)
        add(&set, text, 1);
    assert_int_equal(stop_set_add(&set, text, 1, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.text, "stop: at most 16 strings are accepted");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_texts), cmocka_unit_test(test_long_strings),
        cmocka_unit_test(test_cases),        cmocka_unit_test(test_characters_stay_whole),
        cmocka_unit_test(test_bad_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
