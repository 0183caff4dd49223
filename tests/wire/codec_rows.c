#include "codec_rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

struct arena codec_rows_arena;

int codec_rows_setup(void **state) {
    (void)state;
    arena_init(&codec_rows_arena, 96u << 20);
    return 0;
}

int codec_rows_teardown(void **state) {
    (void)state;
    arena_deinit(&codec_rows_arena);
    return 0;
}

void codec_rows_expect(int line, enum status status, const char *found, const char *expected) {
    if (!expected && status) fail_msg("line %d: refused with '%s'", line, found);
    if (!expected) return;
    if (status != STATUS_INVALID_ARGUMENT) fail_msg("line %d: status %d", line, (int)status);
    if (strcmp(found, expected) != 0)
        fail_msg("line %d:\n  found    '%s'\n  expected '%s'", line, found, expected);
}

const char *codec_rows_chars(size_t count) {
    char *text = arena_calloc(&codec_rows_arena, count + 1, 1);
    memset(text, 'x', count);
    return text;
}

uint32_t *codec_rows_zeros(size_t count) {
    return arena_calloc(&codec_rows_arena, count, sizeof(uint32_t));
}

struct bytes codec_rows_pack(const ProtobufCMessage *message) {
    uint8_t *data = arena_alloc(&codec_rows_arena, protobuf_c_message_get_packed_size(message));
    return (struct bytes){.data = data, .size = protobuf_c_message_pack(message, data)};
}
