/* A pull scanner for JSON whose form is known in advance, without a tree.
 *
 * Checkpoint headers are tens of megabytes of `{"name":{"dtype":...},...}`. A tree of them costs
 * seconds and hides duplicate keys; a scanner reads them at memory speed and sees every key.
 *
 * The text is the caller's and is changed: strings are decoded in place and ended by a NUL, so they
 * live as long as the text. Functions return false on the first fault and say what it was in
 * scan->fault, with the place in scan->at. No recursion, no allocation.
 */
#ifndef ESPALIER_JSON_SCAN_H
#define ESPALIER_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_SCAN_DEPTH_MAX 32u

struct json_scan {
    char *text;
    size_t at;         /* next byte */
    size_t bytes;      /* of text */
    const char *fault; /* NULL until the first fault */
};

void json_scan_init(struct json_scan *scan, char *text, size_t bytes);

/* Take this character, white space before it aside. */
bool json_scan_take(struct json_scan *scan, char expected);

/* Is this the next character? Takes nothing but white space. */
bool json_scan_next_is(struct json_scan *scan, char wanted);

/* A string, in UTF-8. Characters below 0x20, escaped or not, are a fault: no name of ours holds
 * one. */
bool json_scan_string(struct json_scan *scan, char **string_out);

/* An integer in [0, 2^63). */
bool json_scan_count(struct json_scan *scan, uint64_t *count_out);

/* The items of an object or array after its opening bracket, in a loop:
 *
 *     for (uint32_t i = 0; json_scan_more(&scan, '}', i, &more) && more; i++) { ... }
 *
 * Takes the comma before each item but the first, or the closing bracket (*more_out = false). */
bool json_scan_more(struct json_scan *scan, char closing, uint64_t item, bool *more_out);

/* Any value, looked at no closer than balanced brackets and whole strings. */
bool json_scan_skip(struct json_scan *scan);

/* Nothing but white space may follow. */
bool json_scan_finish(struct json_scan *scan);

#endif
