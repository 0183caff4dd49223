/* Rows of the codec's bounds: a valid message, one change, and the line that refuses it. The last
 * accepted value on the other side of a bound is a row too.
 *
 *     REFUSED(watch_request, m->interval_ms = 86400001, "watch.interval_ms: 86400001, accepted
 * ...");
 *
 * For each message M so tested there is a struct M_fixture with a `message` in it, and
 * M_fixture_init, which makes it valid.
 */
#ifndef ESPALIER_CODEC_ROWS_H
#define ESPALIER_CODEC_ROWS_H

#include "codec.h"
#include "runtime.pb-c.h"

extern struct arena codec_rows_arena; /* each row begins with a reset */

/* cmocka's group fixtures. */
int codec_rows_setup(void **state);
int codec_rows_teardown(void **state);

/* Fail the test where a row did not do what it should; expected is NULL for "accepted". */
void codec_rows_expect(int line, enum status status, const char *found, const char *expected);

const char *codec_rows_chars(size_t count); /* a text of so many characters */
uint32_t *codec_rows_zeros(size_t count);
struct bytes codec_rows_pack(const ProtobufCMessage *message);

#define CODEC_ROW(name, change, expected)                                                          \
    do {                                                                                           \
        arena_reset(&codec_rows_arena);                                                            \
        struct name##_fixture f;                                                                   \
        name##_fixture_init(&f);                                                                   \
        __typeof__(f.message) *m = &f.message, got;                                                \
        struct error err = {0};                                                                    \
        (void)(change);                                                                            \
        struct bytes wire = codec_encode_##name(m, &codec_rows_arena);                             \
        enum status status = codec_decode_##name(wire, &codec_rows_arena, &got, &err);             \
        codec_rows_expect(__LINE__, status, err.text, expected);                                   \
    } while (0)
#define REFUSED(name, change, expected) CODEC_ROW(name, change, expected)
#define ACCEPTED(name, change)          CODEC_ROW(name, change, NULL)

#endif
