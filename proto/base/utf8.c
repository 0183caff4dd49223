#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

enum utf8_verdict utf8_scan(const char *text, size_t bytes, size_t *length_out) {
    unsigned char lead = (unsigned char)text[0];
    *length_out = 1;
    if (lead < 0x80) return UTF8_CHARACTER;
    if (lead < 0xC2 || lead > 0xF4) return UTF8_WRONG;

    /* The second byte carries the bounds that rule out overlong forms, surrogates and values
     * above U+10FFFF; those after it are free. */
    unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    size_t needed = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    for (size_t i = 1; i < needed; i++) {
        *length_out = i;
        if (i == bytes) return UTF8_CUT_OFF;
        unsigned char next = (unsigned char)text[i];
        if (next < low || next > high) return UTF8_WRONG;
        low = 0x80;
        high = 0xBF;
    }
    *length_out = needed;
    return UTF8_CHARACTER;
}

bool utf8_validate(const char *text, size_t bytes, size_t *bad_offset_out) {
    size_t at = 0;
    while (at < bytes) {
        uint64_t word;
        if (bytes - at >= sizeof word) {
            memcpy(&word, text + at, sizeof word);
            if ((word & UINT64_C(0x8080808080808080)) == 0) {
                at += sizeof word;
                continue;
            }
        }
        size_t length;
        if (utf8_scan(text + at, bytes - at, &length) != UTF8_CHARACTER) {
            if (bad_offset_out) *bad_offset_out = at;
            return false;
        }
        at += length;
    }
    return true;
}
