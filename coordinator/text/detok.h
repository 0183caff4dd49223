/* Streaming detokenizer: token ids in, whole characters out.
 *
 * A token may end in the middle of a character. Those bytes, three at most, wait for the next
 * token; what comes out is always valid UTF-8. Bytes that no continuation can turn into a character
 * come out as U+FFFD, as soon as that is certain or at finish. So the outputs together are the
 * bytes of all tokens with every wrong sequence replaced, whatever the pieces they came in.
 *
 * A value without memory behind it: lives inside a request, may be copied. One thread at a time.
 */
#ifndef ESPALIER_DETOK_H
#define ESPALIER_DETOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/utf8.h"
#include "text/vocab.h"

/* One call's output at most: every byte held or fed may be wrong by itself. */
#define DETOK_OUT_BYTES_MAX                                                                        \
    ((VOCAB_TOKEN_BYTES_MAX + UTF8_CHARACTER_BYTES_MAX - 1) * UTF8_REPLACEMENT_BYTES)

struct detok {
    char held[UTF8_CHARACTER_BYTES_MAX - 1]; /* the beginning of a character */
    uint8_t held_count;
    bool keep_hidden;
};

/* keep_hidden: special tokens that readers are not meant to see (vocab_is_hidden) come out by name;
 * else they are skipped, as if they had not been drawn. */
void detok_init(struct detok *detok, bool keep_hidden);

/* Take a token (id < vocab_size()) and write what is certain. Returns the bytes written. */
size_t detok_feed(struct detok *detok, const struct vocab *vocab, uint32_t id,
                  char out[DETOK_OUT_BYTES_MAX]);

/* The end: a character cut off is written as U+FFFD. The detok is as after init. */
size_t detok_finish(struct detok *detok, char out[DETOK_OUT_BYTES_MAX]);

#endif
