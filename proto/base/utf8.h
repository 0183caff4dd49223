/* UTF-8, one judgement for everybody: what a character is, what is merely cut off, what is wrong.
 *
 * Surrogates, overlong forms and values above U+10FFFF are wrong. A wrong sequence is as long as
 * its longest part that could still have become a character, which is the length of what one
 * U+FFFD replaces (Unicode 15, section 3.9, "substitution of maximal subparts").
 * Pure functions; any thread.
 */
#ifndef ESPALIER_UTF8_H
#define ESPALIER_UTF8_H

#include <stdbool.h>
#include <stddef.h>

#define UTF8_CHARACTER_BYTES_MAX 4u
#define UTF8_REPLACEMENT         "\xEF\xBF\xBD"
#define UTF8_REPLACEMENT_BYTES   3u

enum utf8_verdict {
    UTF8_CHARACTER, /* a whole character */
    UTF8_CUT_OFF,   /* all bytes given are the beginning of a character */
    UTF8_WRONG,     /* no continuation makes a character of it */
};

/* Judge the sequence at text[0]; bytes must not be 0. *length_out is its length, at least 1. */
enum utf8_verdict utf8_scan(const char *text, size_t bytes, size_t *length_out);

/* True where all of the text is whole characters. Else *bad_offset_out (may be NULL) is the first
 * byte that is not. */
bool utf8_validate(const char *text, size_t bytes, size_t *bad_offset_out);

#endif
