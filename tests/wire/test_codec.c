/* The codec as a whole: whatever is valid survives the trip, whatever is cut off or blown up is
 * refused within its memory. The bounds of single fields are in test_codec_client.c and
 * test_codec_worker.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "codec_samples.h"

#define SAMPLES     4000u
#define BOMB_BYTES  ((2u << 20) - 2)
#define ROOMY_BYTES (192u << 20) /* any of the bombs would unpack into it */

/* Reset by each user; no larger than they must be, as a sanitizer marks all of it each time. */
static struct arena samples, scratch;

static int make_arenas(void **state) {
    (void)state;
    arena_init(&samples, 8u << 20);
    arena_init(&scratch, 8u << 20);
    return 0;
}

static int free_arenas(void **state) {
    (void)state;
    arena_deinit(&samples);
    arena_deinit(&scratch);
    return 0;
}

/* A decoder given exactly the budget of its message. */
static enum status decode_in_budget(const struct codec_case *codec, struct bytes wire,
                                    struct arena *arena, void *message, struct error *err) {
    arena_init(arena, codec_arena_budget(wire.size));
    return codec->decode(wire, arena, message, err);
}

static void decoding_undoes_encoding(void **state) {
    (void)state;
    for (uint32_t i = 0; i < SAMPLES; i++) {
        const struct codec_case *codec = &codec_samples_case[i % CODEC_CASE_COUNT];
        struct sample_source source = {.state = i, .arena = &samples, .big_one_in = 200};
        _Alignas(16) unsigned char sent[SAMPLE_MESSAGE_BYTES_MAX] = {0}, got[sizeof sent] = {0};
        arena_reset(&samples);
        arena_reset(&scratch);
        codec->sample(&source, sent);
        struct bytes wire = codec->encode(sent, &scratch);
        struct error err = {0};
        struct arena arena, again;
        if (decode_in_budget(codec, wire, &arena, got, &err))
            fail_msg("%s, seed %u: %s", codec->name, i, err.text);
        if (!codec->same(sent, got)) fail_msg("%s, seed %u: differs", codec->name, i);

        /* The budget of a message's length holds its encoding too. */
        arena_init(&again, codec_arena_budget(wire.size));
        struct bytes copy = codec->encode(got, &again);
        assert_int_equal(copy.size, wire.size);
        assert_memory_equal(copy.data, wire.data, wire.size);
        arena_deinit(&again);
        arena_deinit(&arena);
    }
}

static void largest_messages_fit_a_worker_frame(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 64; i++) {
        struct sample_source source = {.state = i, .arena = &samples, .big_one_in = 1};
        struct control_message plan;
        struct worker_message result;
        arena_reset(&samples);
        arena_reset(&scratch);
        sample_control_message(&source, &plan);
        sample_worker_message(&source, &result);
        assert_true(codec_encode_control_message(&plan, &scratch).size <= WORKER_BODY_BYTES_MAX);
        assert_true(codec_encode_worker_message(&result, &scratch).size <= WORKER_BODY_BYTES_MAX);
    }
}

/* Every beginning of a message is either refused with a line or a valid message of its own. */
static void truncated_bytes_are_harmless(void **state) {
    (void)state;
    struct arena small;
    arena_init(&small, codec_arena_budget(16u << 10));
    for (uint32_t i = 0; i < 10 * CODEC_CASE_COUNT; i++) {
        const struct codec_case *codec = &codec_samples_case[i % CODEC_CASE_COUNT];
        struct sample_source source = {.state = i, .arena = &samples};
        _Alignas(16) unsigned char sent[SAMPLE_MESSAGE_BYTES_MAX] = {0}, got[sizeof sent] = {0};
        arena_reset(&samples);
        arena_reset(&scratch);
        codec->sample(&source, sent);
        struct bytes wire = codec->encode(sent, &scratch);
        uint8_t *exact = malloc(wire.size + 1);
        for (size_t bytes = 0; bytes < wire.size; bytes++) {
            /* At the end of its block, so that a sanitizer sees a read beyond. */
            uint8_t *begin = exact + wire.size + 1 - bytes;
            if (bytes) memcpy(begin, wire.data, bytes);
            struct error err = {0};
            enum status status = codec->decode((struct bytes){.data = begin, .size = bytes}, &small,
                                               got, &err);
            if (status) {
                assert_int_equal(err.code, status);
                assert_true(strlen(err.text) > 0);
            } else {
                assert_true(codec->same(got, got));
            }
            arena_reset(&small);
        }
        free(exact);
    }
    arena_deinit(&small);
}

struct bomb {
    const char *what;
    const char *type;
    const char *repeated; /* hexadecimal */
    size_t bytes;
};

static const struct codec_case *case_named(const char *name) {
    for (uint32_t i = 0; i < CODEC_CASE_COUNT; i++)
        if (strcmp(codec_samples_case[i].name, name) == 0) return &codec_samples_case[i];
    fail_msg("no type %s", name);
    return NULL;
}

static uint8_t hex_digit(char digit) {
    return (uint8_t)(digit <= '9' ? digit - '0' : digit - 'a' + 10);
}

/* Small on the wire, large in memory. The arena has room, so only the budget refuses. */
static void bombs_do_not_unpack(void **state) {
    (void)state;
    static const struct bomb bombs[] = {
        {"empty metadata", "header", "5200", FRAME_HEADER_BYTES_MAX},
        {"empty stop strings", "generate_request", "3200", BOMB_BYTES},
        {"empty ranks", "snapshot", "a20100", BOMB_BYTES},
        {"unpacked tokens", "generate_request", "1d01000000", BOMB_BYTES},
        {"unknown numbers", "watch_request", "7800", BOMB_BYTES},
        {"empty choices", "generate_summary", "5200", BOMB_BYTES},
        {"unknown bytes", "generate_summary", "7a00", BOMB_BYTES},
        {"unknown numbers", "worker_message", "7800", BOMB_BYTES},
        {"joined again and again", "worker_message", "2a00", BOMB_BYTES},
        {"plans again and again", "control_message", "2a00", BOMB_BYTES},
        {"group key of many keys", "worker_message", "22021200", BOMB_BYTES},
        {"unpacked rows of a plan", "control_message", "2a051d00000000", BOMB_BYTES},
    };
    uint8_t *wire = malloc(BOMB_BYTES);
    struct arena roomy;
    arena_init(&roomy, ROOMY_BYTES);
    for (size_t i = 0; i < sizeof bombs / sizeof *bombs; i++) {
        const struct bomb *bomb = &bombs[i];
        size_t unit = strlen(bomb->repeated) / 2, bytes = bomb->bytes / unit * unit;
        for (size_t at = 0; at < bytes; at++) {
            const char *digits = bomb->repeated + at % unit * 2;
            wire[at] = (uint8_t)(hex_digit(digits[0]) << 4 | hex_digit(digits[1]));
        }
        _Alignas(16) unsigned char got[SAMPLE_MESSAGE_BYTES_MAX];
        struct error err = {0};
        arena_reset(&roomy);
        enum status status = case_named(bomb->type)
                                 ->decode((struct bytes){.data = wire, .size = bytes}, &roomy, got,
                                          &err);
        if (status != STATUS_RESOURCE_EXHAUSTED)
            fail_msg("%s in %s: %s %s", bomb->what, bomb->type, status_name(status), err.text);
        assert_true(roomy.used <= codec_arena_budget(bytes));
    }
    arena_deinit(&roomy);
    free(wire);
}

/* A newer peer may say more than we know. */
static void unknown_fields_are_passed_over(void **state) {
    (void)state;
    static const uint8_t wire[] = {0x08, 0x07, 0x78, 0x2a, 0x7a, 0x02, 'h', 'i'};
    struct watch_request got;
    arena_reset(&scratch);
    assert_int_equal(codec_decode_watch_request((struct bytes){.data = wire, .size = sizeof wire},
                                                &scratch, &got, NULL),
                     STATUS_OK);
    assert_int_equal(got.interval_ms, 7);
}

/* 34 KB of nesting once killed a decoder with a message that could hold itself. */
static void deep_nesting_is_harmless(void **state) {
    (void)state;
    enum { LEVELS = 12000, BYTES = LEVELS * 5 };
    uint8_t *wire = malloc(BYTES);
    for (uint32_t tag = 1; tag <= 31; tag++) {
        size_t at = BYTES;
        for (uint32_t level = 0; level < LEVELS; level++) {
            size_t inside = BYTES - at;
            uint8_t prefix[5];
            size_t used = 0;
            for (prefix[used++] = (uint8_t)(tag << 3 | 2); inside >= 0x80; inside >>= 7)
                prefix[used++] = (uint8_t)(inside | 0x80);
            prefix[used++] = (uint8_t)inside;
            if (used > at) break;
            at -= used;
            memcpy(wire + at, prefix, used);
        }
        for (uint32_t i = 0; i < CODEC_CASE_COUNT; i++) {
            _Alignas(16) unsigned char got[SAMPLE_MESSAGE_BYTES_MAX];
            arena_reset(&scratch);
            struct bytes bytes = {.data = wire + at, .size = BYTES - at};
            if (codec_samples_case[i].decode(bytes, &scratch, got, NULL) == STATUS_OK)
                assert_true(codec_samples_case[i].same(got, got));
        }
    }
    free(wire);
}

/* What is wrong with a header can be told to who sent it. */
static void refused_headers_name_their_call(void **state) {
    (void)state;
    const struct {
        struct header sent;
        enum status status;
        const char *line;
        enum frame_kind kind;
    } rows[] = {
        {{.version = WIRE_VERSION + 1, .kind = FRAME_CALL, .call_id = 9, .method = "Generate"},
         STATUS_FAILED_PRECONDITION,
         "header.version: 2, accepted 1",
         FRAME_CALL},
        {{.version = WIRE_VERSION, .kind = FRAME_CALL, .call_id = 9},
         STATUS_INVALID_ARGUMENT,
         "header.method: 0 bytes, accepted 1..64",
         FRAME_CALL},
        {{.version = WIRE_VERSION, .kind = (enum frame_kind)77, .call_id = 9},
         STATUS_INVALID_ARGUMENT,
         "header.kind: 77, accepted 1..9",
         (enum frame_kind)0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct header got;
        struct error err;
        arena_reset(&scratch);
        struct bytes wire = codec_encode_header(&rows[i].sent, &scratch);
        assert_int_equal(codec_decode_header(wire, &scratch, &got, &err), rows[i].status);
        assert_string_equal(err.text, rows[i].line);
        assert_int_equal(got.kind, rows[i].kind);
        assert_int_equal(got.call_id, 9);
    }

    static const uint8_t garbage[] = {0x08, 0x01, 0x18};
    struct header got = {.kind = FRAME_CALL, .call_id = 1};
    assert_int_equal(
        codec_decode_header((struct bytes){garbage, sizeof garbage}, &scratch, &got, NULL),
        STATUS_INVALID_ARGUMENT);
    assert_int_equal(got.kind, 0);
    assert_int_equal(got.call_id, 0);
}

/* An error line quotes what it likes and is cut where it ends; it must arrive all the same. */
static void reasons_are_made_fit_to_send(void **state) {
    (void)state;
    char line[LINE_BYTES_MAX + 2], across[sizeof line], beyond[sizeof line];
    memset(line, 'x', sizeof line);
    memcpy(across, line, sizeof line);
    memcpy(across + LINE_BYTES_MAX - 1, "é", 2); /* ends one byte beyond the bound */
    memcpy(beyond, line, sizeof line);
    line[LINE_BYTES_MAX] = across[LINE_BYTES_MAX + 1] = beyond[LINE_BYTES_MAX + 1] = '\0';
    struct {
        const char *sent, *prefix;
        size_t bytes;
    } rows[] = {
        {NULL, "", 0},
        {"all well", "all well", 8},
        {line, "xxxx", LINE_BYTES_MAX},
        {beyond, "xxxx", LINE_BYTES_MAX},
        {across, "xxxx", LINE_BYTES_MAX - 1},
        {"cut \xE6\xB0", "cut \xEF\xBF\xBD", 7},
        {"bad \xFF\xFE.", "bad \xEF\xBF\xBD\xEF\xBF\xBD.", 11},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct header sent = {.version = WIRE_VERSION,
                              .kind = FRAME_END,
                              .status = STATUS_INTERNAL,
                              .status_text = rows[i].sent};
        struct header got;
        struct error err = {0};
        arena_reset(&scratch);
        struct bytes wire = codec_encode_header(&sent, &scratch);
        if (codec_decode_header(wire, &scratch, &got, &err)) fail_msg("row %zu: %s", i, err.text);
        assert_int_equal(strlen(got.status_text), rows[i].bytes);
        assert_memory_equal(got.status_text, rows[i].prefix, strlen(rows[i].prefix));
    }
}

/* The hash both sides keep: fixed for ever, sensitive to each input and to order. */
static void state_hash_sees_every_input(void **state) {
    (void)state;
    uint64_t base = step_state_hash(STEP_STATE_HASH_EMPTY, 3, 40, 99);
    assert_int_equal(base, hash_chain(hash_chain(0, UINT64_C(3) << 32 | 40), 99));
    assert_int_not_equal(base, step_state_hash(1, 3, 40, 99));
    assert_int_not_equal(base, step_state_hash(0, 4, 40, 99));
    assert_int_not_equal(base, step_state_hash(0, 3, 41, 99));
    assert_int_not_equal(base, step_state_hash(0, 3, 40, 98));
    uint64_t ab = step_state_hash(step_state_hash(0, 1, 5, 7), 2, 6, 8);
    uint64_t ba = step_state_hash(step_state_hash(0, 2, 6, 8), 1, 5, 7);
    assert_int_not_equal(ab, ba);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_undoes_encoding),
        cmocka_unit_test(largest_messages_fit_a_worker_frame),
        cmocka_unit_test(truncated_bytes_are_harmless),
        cmocka_unit_test(bombs_do_not_unpack),
        cmocka_unit_test(unknown_fields_are_passed_over),
        cmocka_unit_test(deep_nesting_is_harmless),
        cmocka_unit_test(refused_headers_name_their_call),
        cmocka_unit_test(reasons_are_made_fit_to_send),
        cmocka_unit_test(state_hash_sees_every_input),
    };
    return cmocka_run_group_tests(tests, make_arenas, free_arenas);
}
