/* Stop strings over a stream of text.
 *
 * No byte of a stop string that is completed later is ever let out, and no byte is held that cannot
 * belong to one:
 *
 *   stop "END."     text    ..the E|ND of EN|D.
 *                   out     ..the  |END of  |(stopped)      held after each part: "E", "EN"
 *
 * The stop string whose last byte comes first ends the text; of several that end there, the
 * longest. What is let out ends before that string, or with include_stop after it.
 *
 * Two values: a stop_set says what to look for and is written once, a stop_scan is one stream's
 * place in it. Neither has memory behind it. One thread at a time.
 */
#ifndef ESPALIER_STOP_H
#define ESPALIER_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/status.h"

#define STOP_HELD_BYTES_MAX (STOP_STRING_BYTES_MAX - 1)
#define STOP_NONE           UINT32_MAX

struct stop_string {
    char text[STOP_STRING_BYTES_MAX];
    uint8_t fallback[STOP_STRING_BYTES_MAX]; /* [i]: length of the longest proper prefix of the
                                                string that ends its first i + 1 bytes */
    uint16_t bytes;
};

struct stop_set {
    struct stop_string string[STOP_STRINGS_MAX];
    uint32_t count;
    bool include_stop;
};

struct stop_scan {
    char held[STOP_HELD_BYTES_MAX]; /* not let out yet */
    uint16_t held_count;
    uint16_t matched[STOP_STRINGS_MAX]; /* bytes of each string that the stream now ends in */
    uint32_t found;                     /* the string that ended the text; STOP_NONE before */
};

void stop_set_init(struct stop_set *set, bool include_stop);

/* Add text[0, bytes). INVALID_ARGUMENT: empty, too long, not UTF-8, or one too many. */
MUST_USE enum status stop_set_add(struct stop_set *set, const char *text, size_t bytes,
                                  struct error *err);

void stop_scan_init(struct stop_scan *scan);

/* Take text[0, bytes), whole characters, and write what is certain to out, which must hold
 * bytes + STOP_HELD_BYTES_MAX. Returns the bytes written: whole characters. Once scan->found is
 * set the text has ended and everything fed is dropped. O(bytes x strings). */
size_t stop_scan_feed(struct stop_scan *scan, const struct stop_set *set, const char *text,
                      size_t bytes, char *out);

/* No more text comes: write what is held. out must hold STOP_HELD_BYTES_MAX. */
size_t stop_scan_finish(struct stop_scan *scan, char *out);

#endif
