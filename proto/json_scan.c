#include "json_scan.h"

#include <string.h>

#include "base/utf8.h"

void json_scan_init(struct json_scan *scan, char *text, size_t bytes) {
    *scan = (struct json_scan){.text = text, .at = 0, .bytes = bytes, .fault = NULL};
}

static bool fail(struct json_scan *scan, const char *fault) {
    if (!scan->fault) scan->fault = fault;
    return false;
}

static void skip_space(struct json_scan *scan) {
    while (scan->at < scan->bytes) {
        char c = scan->text[scan->at];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
        scan->at++;
    }
}

bool json_scan_next_is(struct json_scan *scan, char wanted) {
    skip_space(scan);
    return scan->at < scan->bytes && scan->text[scan->at] == wanted;
}

bool json_scan_take(struct json_scan *scan, char expected) {
    if (!json_scan_next_is(scan, expected)) {
        switch (expected) {
        case '{': return fail(scan, "expected {");
        case '[': return fail(scan, "expected [");
        case ':': return fail(scan, "expected :");
        case ',': return fail(scan, "expected , or a closing bracket");
        case '"': return fail(scan, "expected a string");
        default: return fail(scan, "unexpected character");
        }
    }
    scan->at++;
    return true;
}

static bool take_hex4(struct json_scan *scan, uint32_t *value_out) {
    if (scan->bytes - scan->at < 4) return fail(scan, "incomplete \\u escape");
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        unsigned char c = (unsigned char)scan->text[scan->at++];
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = c - '0';
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            digit = (uint32_t)(c | 0x20) - 'a' + 10;
        else
            return fail(scan, "bad \\u escape");
        value = value * 16 + digit;
    }
    *value_out = value;
    return true;
}

/* The code point of a \u escape whose "\u" is taken, both halves of a surrogate pair. */
static bool take_code_point(struct json_scan *scan, uint32_t *code_out) {
    uint32_t code, low;
    if (!take_hex4(scan, &code)) return false;
    if (code >= 0xd800 && code < 0xe000) {
        if (code >= 0xdc00 || scan->bytes - scan->at < 2 || scan->text[scan->at] != '\\' ||
            scan->text[scan->at + 1] != 'u')
            return fail(scan, "half a surrogate pair");
        scan->at += 2;
        if (!take_hex4(scan, &low)) return false;
        if (low < 0xdc00 || low >= 0xe000) return fail(scan, "half a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    *code_out = code;
    return true;
}

/* Write a code point as UTF-8; never longer than the escape it came from. */
static size_t put_utf8(char *to, uint32_t code) {
    if (code < 0x80) {
        to[0] = (char)code;
        return 1;
    }
    size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--) {
        to[i] = (char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    to[0] = (char)((0xf00u >> length & 0xf0u) | code);
    return length;
}

static bool take_escape(struct json_scan *scan, uint32_t *code_out) {
    if (scan->at >= scan->bytes) return fail(scan, "string does not end");
    char c = scan->text[scan->at++];
    switch (c) {
    case '"':
    case '\\':
    case '/': *code_out = (uint32_t)c; return true;
    case 'u':
        if (!take_code_point(scan, code_out)) return false;
        return *code_out >= 0x20 || fail(scan, "control character in a string");
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't': return fail(scan, "control character in a string");
    default: return fail(scan, "bad escape");
    }
}

bool json_scan_string(struct json_scan *scan, char **string_out) {
    if (!json_scan_take(scan, '"')) return false;
    char *begin = scan->text + scan->at;
    char *to = begin;
    while (scan->at < scan->bytes) {
        char c = scan->text[scan->at++];
        if (c == '"') {
            if (!utf8_validate(begin, (size_t)(to - begin), NULL))
                return fail(scan, "a string that is not UTF-8");
            *to = '\0';
            *string_out = begin;
            return true;
        }
        if ((unsigned char)c < 0x20) return fail(scan, "control character in a string");
        if (c != '\\') {
            *to++ = c;
            continue;
        }
        uint32_t code;
        if (!take_escape(scan, &code)) return false;
        to += put_utf8(to, code);
    }
    return fail(scan, "string does not end");
}

bool json_scan_count(struct json_scan *scan, uint64_t *count_out) {
    skip_space(scan);
    size_t begin = scan->at;
    uint64_t count = 0;
    while (scan->at < scan->bytes && scan->text[scan->at] >= '0' && scan->text[scan->at] <= '9') {
        uint64_t digit = (uint64_t)(scan->text[scan->at] - '0');
        if (count > ((uint64_t)INT64_MAX - digit) / 10) return fail(scan, "number too large");
        count = count * 10 + digit;
        scan->at++;
    }
    if (scan->at == begin) return fail(scan, "expected a whole number, 0 or more");
    if (scan->text[begin] == '0' && scan->at > begin + 1) return fail(scan, "leading zero");
    if (scan->at < scan->bytes && scan->text[scan->at] && strchr(".eE", scan->text[scan->at]))
        return fail(scan, "expected a whole number, 0 or more");
    *count_out = count;
    return true;
}

bool json_scan_more(struct json_scan *scan, char closing, uint64_t item, bool *more_out) {
    *more_out = !json_scan_next_is(scan, closing);
    if (!*more_out) return json_scan_take(scan, closing);
    return item == 0 || json_scan_take(scan, ',');
}

/* A number or a word, as far as it goes. */
static bool skip_scalar(struct json_scan *scan) {
    size_t begin = scan->at;
    while (scan->at < scan->bytes) {
        char c = scan->text[scan->at];
        bool part = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-' || c == '+' ||
                    c == '.' || c == 'E';
        if (!part) break;
        scan->at++;
    }
    return scan->at > begin || fail(scan, "expected a value");
}

bool json_scan_skip(struct json_scan *scan) {
    char closing[JSON_SCAN_DEPTH_MAX];
    uint32_t depth = 0;
    char *ignored;
    do {
        skip_space(scan);
        char c = scan->at < scan->bytes ? scan->text[scan->at] : '\0';
        if (c == '{' || c == '[') {
            if (depth == JSON_SCAN_DEPTH_MAX) return fail(scan, "nested too deeply");
            closing[depth++] = c == '{' ? '}' : ']';
            scan->at++;
        } else if (depth > 0 && c == closing[depth - 1]) {
            depth--;
            scan->at++;
        } else if (depth > 0 && (c == ',' || c == ':')) {
            scan->at++;
        } else if (c == '"') {
            if (!json_scan_string(scan, &ignored)) return false;
        } else if (!skip_scalar(scan)) {
            return false;
        }
    } while (depth > 0);
    return true;
}

bool json_scan_finish(struct json_scan *scan) {
    skip_space(scan);
    return scan->at == scan->bytes || fail(scan, "text after the end");
}
