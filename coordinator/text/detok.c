#include "text/detok.h"

#include <string.h>

void detok_init(struct detok *detok, bool keep_hidden) {
    *detok = (struct detok){.keep_hidden = keep_hidden};
}

size_t detok_feed(struct detok *detok, const struct vocab *vocab, uint32_t id,
                  char out[DETOK_OUT_BYTES_MAX]) {
    if (!detok->keep_hidden && vocab_is_hidden(vocab, id)) return 0;
    char text[VOCAB_TOKEN_BYTES_MAX + sizeof detok->held];
    uint32_t token_bytes;
    const char *token = vocab_bytes(vocab, id, &token_bytes);
    memcpy(text, detok->held, detok->held_count);
    memcpy(text + detok->held_count, token, token_bytes);
    size_t bytes = detok->held_count + token_bytes, written = 0;
    detok->held_count = 0;

    for (size_t at = 0, length; at < bytes; at += length) {
        switch (utf8_scan(text + at, bytes - at, &length)) {
        case UTF8_CHARACTER:
            memcpy(out + written, text + at, length);
            written += length;
            break;
        case UTF8_WRONG:
            memcpy(out + written, UTF8_REPLACEMENT, UTF8_REPLACEMENT_BYTES);
            written += UTF8_REPLACEMENT_BYTES;
            break;
        case UTF8_CUT_OFF:
            memcpy(detok->held, text + at, length);
            detok->held_count = (uint8_t)length;
            break;
        }
    }
    return written;
}

size_t detok_finish(struct detok *detok, char out[DETOK_OUT_BYTES_MAX]) {
    if (detok->held_count == 0) return 0;
    detok->held_count = 0;
    memcpy(out, UTF8_REPLACEMENT, UTF8_REPLACEMENT_BYTES);
    return UTF8_REPLACEMENT_BYTES;
}
