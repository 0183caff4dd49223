/* One Knuth-Morris-Pratt automaton a string: its state is how many bytes of the string the stream
 * ends in. The greatest of the states is what must be held. */
#include "text/stop.h"

#include <string.h>

#include "base/check.h"
#include "base/utf8.h"

_Static_assert(STOP_HELD_BYTES_MAX <= UINT8_MAX, "a fallback fits its byte");

void stop_set_init(struct stop_set *set, bool include_stop) {
    *set = (struct stop_set){.include_stop = include_stop};
}

/* The state after `byte`, where `matched` bytes of the string, not all, were there before. */
static uint16_t advance(const struct stop_string *string, uint16_t matched, char byte) {
    while (matched > 0 && string->text[matched] != byte)
        matched = string->fallback[matched - 1];
    return string->text[matched] == byte ? matched + 1 : 0;
}

enum status stop_set_add(struct stop_set *set, const char *text, size_t bytes, struct error *err) {
    if (set->count == STOP_STRINGS_MAX) {
        return error_set(err, STATUS_INVALID_ARGUMENT, "stop: at most %u strings are accepted",
                         STOP_STRINGS_MAX);
    }
    if (bytes == 0 || bytes > STOP_STRING_BYTES_MAX) {
        return error_set(err, STATUS_INVALID_ARGUMENT, "stop[%u]: %zu bytes; 1 to %u are accepted",
                         set->count, bytes, STOP_STRING_BYTES_MAX);
    }
    size_t bad_offset;
    if (!utf8_validate(text, bytes, &bad_offset)) {
        return error_set(err, STATUS_INVALID_ARGUMENT, "stop[%u]: not UTF-8 at byte %zu",
                         set->count, bad_offset);
    }
    struct stop_string *string = &set->string[set->count++];
    memcpy(string->text, text, bytes);
    string->bytes = (uint16_t)bytes;
    string->fallback[0] = 0;
    for (size_t i = 1; i < bytes; i++)
        string->fallback[i] = (uint8_t)advance(string, string->fallback[i - 1], text[i]);
    return STATUS_OK;
}

void stop_scan_init(struct stop_scan *scan) {
    *scan = (struct stop_scan){.found = STOP_NONE};
}

/* Advance all strings over one byte. The longest string completed by it goes to scan->found. */
static void scan_byte(struct stop_scan *scan, const struct stop_set *set, char byte) {
    uint16_t longest = 0;
    for (uint32_t i = 0; i < set->count; i++) {
        scan->matched[i] = advance(&set->string[i], scan->matched[i], byte);
        if (scan->matched[i] == set->string[i].bytes && set->string[i].bytes > longest) {
            longest = set->string[i].bytes;
            scan->found = i;
        }
    }
}

static size_t longest_match(const struct stop_scan *scan, const struct stop_set *set) {
    size_t longest = 0;
    for (uint32_t i = 0; i < set->count; i++)
        if (scan->matched[i] > longest) longest = scan->matched[i];
    return longest;
}

size_t stop_scan_feed(struct stop_scan *scan, const struct stop_set *set, const char *text,
                      size_t bytes, char *out) {
    if (scan->found != STOP_NONE) return 0;
    size_t held = scan->held_count, taken = 0;
    while (taken < bytes && scan->found == STOP_NONE)
        scan_byte(scan, set, text[taken++]);

    size_t keep = longest_match(scan, set);
    if (scan->found != STOP_NONE) keep = set->include_stop ? 0 : set->string[scan->found].bytes;
    CHECK(keep <= held + taken);
    size_t written = held + taken - keep; /* of the held bytes followed by the new ones */

    size_t from_held = written < held ? written : held;
    memcpy(out, scan->held, from_held);
    memcpy(out + from_held, text, written - from_held);
    if (scan->found != STOP_NONE) {
        scan->held_count = 0;
        return written;
    }
    memmove(scan->held, scan->held + from_held, held - from_held);
    memcpy(scan->held + held - from_held, text + written - from_held,
           taken - (written - from_held));
    scan->held_count = (uint16_t)keep;
    return written;
}

size_t stop_scan_finish(struct stop_scan *scan, char *out) {
    size_t written = scan->held_count;
    memcpy(out, scan->held, written);
    scan->held_count = 0;
    return written;
}
