/* The tokenizer against published ids, against itself (what is encoded is decoded), and at sizes
 * where anything quadratic would not end. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "text/piece_split.h"
#include "text_fixture.h"

#define FUZZ_TEXTS     100000
#define FUZZ_CHARS_MAX 40
#define LONG_BYTES     (1u << 20)

static void encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                   struct token_list *ids) {
    struct error err = {0};
    token_list_init(ids, bytes);
    enum status status = tokenizer_encode(tokenizer, text, bytes, ids, &err);
    if (status != STATUS_OK) fail_msg("%s: %s", status_name(status), err.text);
}

static void check_round_trip(const struct tokenizer *tokenizer, const char *text, size_t bytes) {
    struct token_list ids;
    encode(tokenizer, text, bytes, &ids);
    struct text_buf decoded;
    text_buf_init(&decoded, bytes);
    assert_int_equal(tokenizer_decode(tokenizer, ids.ids, ids.count, &decoded, NULL), STATUS_OK);
    assert_int_equal(decoded.bytes, bytes);
    if (bytes > 0) assert_memory_equal(decoded.data, text, bytes);
    for (size_t i = 0; i < ids.count; i++)
        assert_false(vocab_is_special(tokenizer_vocab(tokenizer), ids.ids[i]));
    token_list_deinit(&ids);
    text_buf_deinit(&decoded);
}

/* {"text": ..., "pieces": [...]} of a list, against the split. */
static void check_pieces(struct json_object *list) {
    struct piece_split *split = piece_split_create();
    assert_true(json_object_array_length(list) > 0);
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *vector = json_object_array_get_idx(list, i);
        struct json_object *text = json_object_object_get(vector, "text");
        struct json_object *pieces = json_object_object_get(vector, "pieces");
        const char *data = json_object_get_string(text);
        size_t bytes = (size_t)json_object_get_string_len(text);
        struct piece_walk *walk = piece_split_walk_create(split, data, bytes);
        size_t begin, end, count = 0;
        for (;; count++) {
            assert_int_equal(piece_split_walk_next(walk, &begin, &end, NULL), STATUS_OK);
            if (begin == end) break;
            struct json_object *piece = json_object_array_get_idx(pieces, count);
            assert_non_null(piece);
            if (end - begin != (size_t)json_object_get_string_len(piece) ||
                memcmp(data + begin, json_object_get_string(piece), end - begin)) {
                fail_msg("vector %zu piece %zu: '%.*s', expected '%s'", i, count,
                         (int)(end - begin), data + begin, json_object_get_string(piece));
            }
        }
        assert_int_equal(count, json_object_array_length(pieces));
        piece_split_walk_destroy(walk);
    }
    piece_split_destroy(split);
}

static void test_split_matches_published_vectors(void **state) {
    (void)state;
    struct json_object *vectors = fixture_json("kimi_vectors.json");
    check_pieces(json_object_object_get(vectors, "pretokenize"));
    json_object_put(vectors);
}

static void test_split_matches_another_engine(void **state) {
    (void)state;
    struct json_object *vectors = fixture_json("split_vectors.json");
    check_pieces(vectors);
    json_object_put(vectors);
}

/* Encode `text` where the ids of `expected` that are special stand for their names: what a prompt
 * of segments does. */
static void encode_with_specials(const struct tokenizer *tokenizer, const char *text,
                                 struct json_object *expected, struct token_list *ids) {
    const struct vocab *vocab = tokenizer_vocab(tokenizer);
    token_list_init(ids, strlen(text));
    for (size_t i = 0; i < json_object_array_length(expected); i++) {
        uint32_t id = (uint32_t)json_object_get_int(json_object_array_get_idx(expected, i));
        if (!vocab_is_special(vocab, id)) continue;
        uint32_t name_bytes;
        const char *name = vocab_bytes(vocab, id, &name_bytes);
        const char *found = memmem(text, strlen(text), name, name_bytes);
        assert_non_null(found);
        assert_int_equal(tokenizer_encode(tokenizer, text, (size_t)(found - text), ids, NULL),
                         STATUS_OK);
        token_list_push(ids, id);
        text = found + name_bytes;
    }
    assert_int_equal(tokenizer_encode(tokenizer, text, strlen(text), ids, NULL), STATUS_OK);
}

static void test_encode_matches_published_vectors(void **state) {
    (void)state;
    const struct tokenizer *tokenizer = fixture_tokenizer_or_skip(FIXTURE_KIMI);
    struct json_object *vectors = fixture_json("kimi_vectors.json");
    struct json_object *list = json_object_object_get(vectors, "encode");
    assert_true(json_object_array_length(list) > 0);
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *vector = json_object_array_get_idx(list, i);
        struct json_object *text = json_object_object_get(vector, "text");
        struct json_object *expected = json_object_object_get(vector, "ids");
        struct token_list ids;
        encode_with_specials(tokenizer, json_object_get_string(text), expected, &ids);
        assert_int_equal(ids.count, json_object_array_length(expected));
        for (size_t k = 0; k < ids.count; k++)
            assert_int_equal(ids.ids[k],
                             json_object_get_int(json_object_array_get_idx(expected, k)));
        token_list_deinit(&ids);
    }
    json_object_put(vectors);
}

/* Ids that the Python tokenizer the embedded model was trained with gives. */
static void test_embedded_ids(void **state) {
    (void)state;
    const struct tokenizer *tokenizer = fixture_tokenizer_or_skip(FIXTURE_EMBEDDED);
    static const uint32_t expected[] = {39, 487, 313, 11, 3674, 1487, 0};
    struct token_list ids;
    encode(tokenizer, "Hello, world!", 13, &ids);
    assert_int_equal(ids.count, sizeof expected / sizeof *expected);
    assert_memory_equal(ids.ids, expected, sizeof expected);
    token_list_deinit(&ids);
}

/* Merge by the definition: the lowest rank of all neighbours, found anew each time. */
static size_t merge_naively(const struct vocab *vocab, const char *text, size_t bytes,
                            uint32_t *ids_out) {
    size_t *cut = malloc((bytes + 1) * sizeof *cut), count = bytes;
    for (size_t i = 0; i <= bytes; i++)
        cut[i] = i;
    for (;;) {
        uint32_t best = VOCAB_NO_ID;
        size_t at = 0;
        for (size_t i = 0; i + 2 <= count; i++) {
            uint32_t id = vocab_find(vocab, text + cut[i], cut[i + 2] - cut[i]);
            if (id < best) {
                best = id;
                at = i;
            }
        }
        if (best == VOCAB_NO_ID) break;
        memmove(cut + at + 1, cut + at + 2, (count - at - 1) * sizeof *cut);
        count--;
    }
    for (size_t i = 0; i < count; i++)
        ids_out[i] = vocab_find(vocab, text + cut[i], cut[i + 1] - cut[i]);
    free(cut);
    return count;
}

static void test_merging_follows_the_definition(void **state) {
    (void)state;
    /* One piece of letters each, on both sides of where the long routine takes over. */
    static const uint32_t lengths[] = {2, 3, 7, 20, 64, 95, 96, 97, 98, 128, 300, 700};
    static const char *const alphabets[] = {"a", "ab", "aeinrst", "abcdefghijklmnopqrstuvwxyz"};
    uint64_t seed = 5;
    for (int which = 0; which < FIXTURE_VOCAB_COUNT; which++) {
        const struct tokenizer *tokenizer = fixture_tokenizer(which);
        if (!tokenizer) continue;
        for (uint32_t trial = 0; trial < 40 * sizeof lengths / sizeof *lengths; trial++) {
            uint32_t length = lengths[trial % (sizeof lengths / sizeof *lengths)];
            const char *alphabet = alphabets[fixture_below(&seed, 4)];
            char text[700];
            for (uint32_t i = 0; i < length; i++)
                text[i] = alphabet[fixture_below(&seed, (uint32_t)strlen(alphabet))];
            uint32_t expected[700];
            size_t count = merge_naively(tokenizer_vocab(tokenizer), text, length, expected);
            struct token_list ids;
            encode(tokenizer, text, length, &ids);
            assert_int_equal(ids.count, count);
            assert_memory_equal(ids.ids, expected, count * sizeof *expected);
            token_list_deinit(&ids);
        }
    }
}

static void fuzz_round_trip(enum fixture_vocab which) {
    const struct tokenizer *tokenizer = fixture_tokenizer_or_skip(which);
    static char text[40 * FUZZ_CHARS_MAX];
    uint64_t seed = 1 + (uint64_t)which;
    for (uint32_t i = 0; i < FUZZ_TEXTS; i++)
        check_round_trip(tokenizer, text, fixture_random_text(&seed, FUZZ_CHARS_MAX, text));
}

static void test_fuzz_round_trip_embedded(void **state) {
    (void)state;
    fuzz_round_trip(FIXTURE_EMBEDDED);
}

static void test_fuzz_round_trip_kimi(void **state) {
    (void)state;
    fuzz_round_trip(FIXTURE_KIMI);
}

static void test_special_names_stay_text(void **state) {
    (void)state;
    for (int which = 0; which < FIXTURE_VOCAB_COUNT; which++) {
        const struct tokenizer *tokenizer = fixture_tokenizer(which);
        if (!tokenizer) continue;
        const struct vocab *vocab = tokenizer_vocab(tokenizer);
        for (uint32_t id = 0; id < vocab_size(vocab); id++) {
            if (!vocab_is_special(vocab, id)) continue;
            uint32_t bytes;
            const char *name = vocab_bytes(vocab, id, &bytes);
            check_round_trip(tokenizer, name, bytes);
        }
    }
}

static void test_text_that_is_not_utf8_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t bytes, bad_offset;
    } cases[] = {
        {"\x80", 1, 0},
        {"abc\xC3", 4, 3},
        {"0123456789\xED\xA0\x80", 13, 10}, /* a surrogate */
        {"\xC0\xAF", 2, 0},                 /* overlong */
        {"ab\xE0\x9F\xBF", 5, 2},           /* overlong */
        {"ab\xF0\x8F\xBF\xBF", 6, 2},       /* overlong */
        {"\xF4\x90\x80\x80", 4, 0},         /* above U+10FFFF */
        {"\xE2\x82\xAC\xE2\x82", 5, 3},
        {"\xFE", 1, 0},
    };
    const struct tokenizer *tokenizer = fixture_tokenizer_or_skip(FIXTURE_EMBEDDED);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct token_list ids;
        struct error err = {0};
        token_list_init(&ids, 100);
        assert_int_equal(tokenizer_encode(tokenizer, cases[i].text, cases[i].bytes, &ids, &err),
                         STATUS_INVALID_ARGUMENT);
        char expected[100];
        snprintf(expected, sizeof expected, "text is not UTF-8 at byte %zu", cases[i].bad_offset);
        assert_string_equal(err.text, expected);
        assert_int_equal(ids.count, 0);
        token_list_deinit(&ids);
    }
}

static void test_a_bound_on_ids_holds(void **state) {
    (void)state;
    const struct tokenizer *tokenizer = fixture_tokenizer_or_skip(FIXTURE_EMBEDDED);
    struct token_list ids;
    struct error err = {0};
    token_list_init(&ids, 7);
    assert_int_equal(tokenizer_encode(tokenizer, "Hello, world!", 13, &ids, &err), STATUS_OK);
    assert_int_equal(tokenizer_encode(tokenizer, "", 0, &ids, &err), STATUS_OK);
    assert_int_equal(tokenizer_encode(tokenizer, "!", 1, &ids, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_string_equal(err.text, "text is longer than 7 tokens");
    assert_int_equal(ids.count, 7);
    token_list_deinit(&ids);
}

/* A megabyte made by repeating a unit. */
static void check_long(const struct tokenizer *tokenizer, const char *unit) {
    size_t unit_bytes = strlen(unit), bytes = LONG_BYTES / unit_bytes * unit_bytes;
    char *text = malloc(bytes);
    for (size_t at = 0; at < bytes; at += unit_bytes)
        memcpy(text + at, unit, unit_bytes);
    check_round_trip(tokenizer, text, bytes);
    free(text);
}

/* Anything quadratic would run into the test's time limit here: 10^12 operations a text. */
static void test_a_megabyte_of_anything(void **state) {
    (void)state;
    static const char *const units[] = {
        "a",
        "A",
        " ",
        "\n",
        "\t ",
        "\xD8\xA7",         /* a letter without case: upper and lower at once */
        "\xCC\x81",         /* a combining mark */
        "\xE4\xB8\xAD",     /* Han */
        "\xF0\x9F\x98\x80", /* emoji */
        "'",
        "Ab",
        "The quick brown fox doesn't jump over 12345 lazy dogs.\n",
    };
    for (int which = 0; which < FIXTURE_VOCAB_COUNT; which++) {
        const struct tokenizer *tokenizer = fixture_tokenizer(which);
        if (!tokenizer) continue;
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            check_long(tokenizer, units[i]);
    }
}

/* A mark, then capitals: the split looks over all of them before it settles for the mark. */
static void test_long_backtracking(void **state) {
    (void)state;
    const struct tokenizer *tokenizer = fixture_tokenizer_or_skip(FIXTURE_EMBEDDED);
    char *text = malloc(LONG_BYTES);
    memset(text, 'A', LONG_BYTES);
    memcpy(text, "\xCC\x81", 2);
    check_round_trip(tokenizer, text, LONG_BYTES);
    memset(text, ' ', LONG_BYTES);
    text[LONG_BYTES - 1] = 'x';
    check_round_trip(tokenizer, text, LONG_BYTES);
    free(text);
}

#define THREADS          4
#define TEXTS_PER_THREAD 300

struct encoding {
    const struct tokenizer *tokenizer;
    uint64_t hash; /* of all ids, in order */
};

static void *encode_many(void *argument) {
    struct encoding *encoding = argument;
    char text[40 * FUZZ_CHARS_MAX];
    uint64_t seed = 77;
    for (uint32_t i = 0; i < TEXTS_PER_THREAD; i++) {
        struct token_list ids;
        token_list_init(&ids, sizeof text);
        size_t bytes = fixture_random_text(&seed, FUZZ_CHARS_MAX, text);
        if (tokenizer_encode(encoding->tokenizer, text, bytes, &ids, NULL) != STATUS_OK)
            return NULL;
        for (size_t k = 0; k < ids.count; k++)
            encoding->hash = hash_chain(encoding->hash, ids.ids[k]);
        token_list_deinit(&ids);
    }
    return argument;
}

static void test_threads_share_a_tokenizer(void **state) {
    (void)state;
    pthread_t thread[THREADS];
    struct encoding encoding[THREADS + 1];
    for (int i = 0; i <= THREADS; i++)
        encoding[i] = (struct encoding){fixture_tokenizer_or_skip(FIXTURE_EMBEDDED), 0};
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, encode_many, &encoding[i]), 0);
    encode_many(&encoding[THREADS]);
    for (int i = 0; i < THREADS; i++) {
        void *finished;
        assert_int_equal(pthread_join(thread[i], &finished), 0);
        assert_non_null(finished);
        assert_true(encoding[i].hash == encoding[THREADS].hash);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_matches_published_vectors),
        cmocka_unit_test(test_split_matches_another_engine),
        cmocka_unit_test(test_encode_matches_published_vectors),
        cmocka_unit_test(test_embedded_ids),
        cmocka_unit_test(test_merging_follows_the_definition),
        cmocka_unit_test(test_fuzz_round_trip_embedded),
        cmocka_unit_test(test_fuzz_round_trip_kimi),
        cmocka_unit_test(test_special_names_stay_text),
        cmocka_unit_test(test_text_that_is_not_utf8_is_refused),
        cmocka_unit_test(test_a_bound_on_ids_holds),
        cmocka_unit_test(test_a_megabyte_of_anything),
        cmocka_unit_test(test_long_backtracking),
        cmocka_unit_test(test_threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
