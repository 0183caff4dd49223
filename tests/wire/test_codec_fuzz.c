/* Valid messages with random damage: a decoder may refuse them or not, but what it accepts is
 * within its arena, can be read to the last element, and comes back the same after another trip.
 * Seeded: a failure names the number to start from. ESPALIER_TEST_LONG=1 does ten times as much. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "codec_samples.h"

#define MUTATIONS      20000u
#define MUTATIONS_LONG 200000u
#define WIRE_BYTES_MAX (1u << 16)

struct victim {
    uint8_t wire[WIRE_BYTES_MAX];
    size_t bytes;
};

static uint32_t below(struct sample_source *source, size_t count) {
    return count ? (uint32_t)sample_number(source, 0, count - 1) : 0;
}

static void insert(struct victim *victim, size_t at, const uint8_t *data, size_t bytes) {
    if (victim->bytes + bytes > WIRE_BYTES_MAX) return;
    memmove(victim->wire + at + bytes, victim->wire + at, victim->bytes - at);
    memcpy(victim->wire + at, data, bytes);
    victim->bytes += bytes;
}

static void cut_out(struct victim *victim, size_t at, size_t bytes) {
    memmove(victim->wire + at, victim->wire + at + bytes, victim->bytes - at - bytes);
    victim->bytes -= bytes;
}

static void mutate(struct sample_source *source, struct victim *victim,
                   const struct victim *other) {
    static const uint8_t number[] = {0xff, 0xff, 0xff, 0xff, 0x0f};
    static const uint8_t interesting[] = {0, 1, 0x7f, 0x80, 0xff, 0x08, 0x0a, 0x0d, 0x12, 0xfe};
    size_t at = below(source, victim->bytes), rest = victim->bytes - at;
    switch (below(source, 9)) {
    case 0:
        if (rest) victim->wire[at] ^= (uint8_t)(1u << below(source, 8));
        break;
    case 1:
        if (rest) victim->wire[at] = interesting[below(source, sizeof interesting)];
        break;
    case 2:
        if (rest) victim->wire[at] = (uint8_t)below(source, 256);
        break;
    case 3: cut_out(victim, at, below(source, rest < 16 ? rest + 1 : 16)); break;
    case 4: victim->bytes = at; break;
    case 5: insert(victim, at, number, 1 + below(source, sizeof number)); break;
    case 6: { /* a piece of itself, again */
        uint8_t piece[256];
        size_t bytes = below(source, rest < sizeof piece ? rest + 1 : sizeof piece);
        memcpy(piece, victim->wire + at, bytes);
        insert(victim, below(source, victim->bytes + 1), piece, bytes);
        break;
    }
    case 7: { /* a piece of another message */
        size_t from = below(source, other->bytes), most = other->bytes - from;
        insert(victim, at, other->wire + from, below(source, most < 512 ? most + 1 : 512));
        break;
    }
    default: /* a number of four bytes, as columns hold */
        if (rest >= 4) memset(victim->wire + at, (int)below(source, 256), 4);
        break;
    }
}

static void sample_wire(struct sample_source *source, const struct codec_case *codec,
                        struct arena *scratch, struct victim *victim) {
    _Alignas(16) unsigned char message[SAMPLE_MESSAGE_BYTES_MAX] = {0};
    codec->sample(source, message);
    struct bytes wire = codec->encode(message, scratch);
    victim->bytes = wire.size < WIRE_BYTES_MAX ? wire.size : 0;
    memcpy(victim->wire, wire.data, victim->bytes);
}

/* True where the decoder accepted it. */
static bool try_decode(const struct codec_case *codec, const struct victim *victim,
                       uint32_t iteration) {
    /* Its own block, so that a sanitizer sees a read beyond. */
    uint8_t *exact = malloc(victim->bytes + 1);
    memcpy(exact + 1, victim->wire, victim->bytes);
    struct bytes wire = {.data = exact + 1, .size = victim->bytes};
    _Alignas(16) unsigned char first[SAMPLE_MESSAGE_BYTES_MAX], second[sizeof first];
    struct arena arena, again;
    struct error err = {0};
    arena_init(&arena, codec_arena_budget(wire.size));
    enum status status = codec->decode(wire, &arena, first, &err);
    free(exact);
    if (status) {
        assert_int_equal(err.code, status);
        assert_true(strlen(err.text) > 0);
    } else {
        arena_init(&again, 2 * codec_arena_budget(victim->bytes));
        struct bytes copy = codec->encode(first, &again);
        if (codec->decode(copy, &again, second, &err))
            fail_msg("%s, iteration %u: came back as %s", codec->name, iteration, err.text);
        if (!codec->same(first, second))
            fail_msg("%s, iteration %u: came back different", codec->name, iteration);
        arena_deinit(&again);
    }
    arena_deinit(&arena);
    return status == STATUS_OK;
}

static void damaged_messages_are_harmless(void **state) {
    (void)state;
    uint32_t mutations = getenv("ESPALIER_TEST_LONG") ? MUTATIONS_LONG : MUTATIONS, accepted = 0;
    struct victim *victim = malloc(sizeof *victim), *other = malloc(sizeof *other);
    struct arena scratch;
    arena_init(&scratch, 8u << 20);
    for (uint32_t i = 0; i < mutations; i++) {
        const struct codec_case *codec = &codec_samples_case[i % CODEC_CASE_COUNT];
        struct sample_source source = {.state = i, .arena = &scratch};
        arena_reset(&scratch);
        sample_wire(&source, codec, &scratch, victim);
        sample_wire(&source, codec, &scratch, other);
        for (uint32_t k = 1 + below(&source, 4); k > 0; k--)
            mutate(&source, victim, other);
        accepted += try_decode(codec, victim, i);
    }
    /* Both answers must occur, or the damage is too great or too small to mean anything. */
    assert_in_range(accepted, mutations / 20, mutations * 19 / 20);
    arena_deinit(&scratch);
    free(victim);
    free(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_messages_are_harmless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
