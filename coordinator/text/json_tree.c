/* Trees are walked with a stack of cursors, one a level, so its depth is the tree's. */
#include "text/json_tree.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/utf8.h"

/* A place in an array or an object. */
struct cursor {
    struct json_object *container;
    bool is_array;
    size_t index; /* elements passed */
    struct json_object_iterator at, end;
};

static struct cursor cursor_at(struct json_object *container) {
    struct cursor cursor = {.container = container,
                            .is_array = json_object_is_type(container, json_type_array)};
    if (!cursor.is_array) {
        cursor.at = json_object_iter_begin(container);
        cursor.end = json_object_iter_end(container);
    }
    return cursor;
}

/* Step over one element. False at the end. *key_out is NULL in an array. */
static bool cursor_next(struct cursor *cursor, const char **key_out,
                        struct json_object **value_out) {
    *key_out = NULL;
    if (cursor->is_array) {
        if (cursor->index == json_object_array_length(cursor->container)) return false;
        *value_out = json_object_array_get_idx(cursor->container, cursor->index++);
        return true;
    }
    if (json_object_iter_equal(&cursor->at, &cursor->end)) return false;
    *key_out = json_object_iter_peek_name(&cursor->at);
    *value_out = json_object_iter_peek_value(&cursor->at);
    json_object_iter_next(&cursor->at);
    cursor->index++;
    return true;
}

static bool is_container(struct json_object *value) {
    return json_object_is_type(value, json_type_array) ||
           json_object_is_type(value, json_type_object);
}

/* An upper bound of the values in a text: each begins the text, or follows one of `[ { , :`. */
static size_t count_values(const char *text, size_t bytes) {
    size_t count = 1;
    bool in_string = false;
    for (size_t i = 0; i < bytes; i++) {
        if (in_string) {
            if (text[i] == '\\')
                i++;
            else if (text[i] == '"')
                in_string = false;
        } else if (text[i] == '"') {
            in_string = true;
        } else if (text[i] == '[' || text[i] == '{' || text[i] == ',') {
            count++;
        }
    }
    return count;
}

enum status json_tree_parse(const char *text, size_t bytes, struct json_object **tree_out,
                            struct error *err) {
    size_t bad_offset;
    if (bytes > FRAME_BODY_BYTES_MAX) {
        return error_set(err, STATUS_INVALID_ARGUMENT, "JSON of %zu bytes; at most %u are accepted",
                         bytes, FRAME_BODY_BYTES_MAX);
    }
    if (!utf8_validate(text, bytes, &bad_offset)) {
        return error_set(err, STATUS_INVALID_ARGUMENT, "JSON is not UTF-8 at byte %zu", bad_offset);
    }
    const char *nul = memchr(text, '\0', bytes); /* json-c would take it for the end */
    if (nul) {
        return error_set(err, STATUS_INVALID_ARGUMENT, "JSON at byte %zu: a NUL byte",
                         (size_t)(nul - text));
    }
    if (count_values(text, bytes) > JSON_TREE_VALUES_MAX) {
        return error_set(err, STATUS_INVALID_ARGUMENT, "JSON holds more than %u values",
                         JSON_TREE_VALUES_MAX);
    }
    struct json_tokener *tokener = json_tokener_new_ex(JSON_TREE_DEPTH_MAX);
    CHECK(tokener);
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
    struct json_object *tree = json_tokener_parse_ex(tokener, text, (int)bytes);
    enum json_tokener_error error = json_tokener_get_error(tokener);
    size_t end = json_tokener_get_parse_end(tokener);
    if (error == json_tokener_continue) {
        /* A number ends where something else begins: at the end of the text, say that it is one. */
        tree = json_tokener_parse_ex(tokener, "", 1);
        error = json_tokener_get_error(tokener);
        end = bytes;
    }
    json_tokener_free(tokener);
    if (error == json_tokener_success) {
        *tree_out = tree;
        return STATUS_OK;
    }
    json_object_put(tree);
    return error_set(err, STATUS_INVALID_ARGUMENT, "JSON at byte %zu: %s", end,
                     json_tokener_error_desc(error));
}

struct entry {
    char *key;
    struct json_object *value;
};

static int compare_entries(const void *a, const void *b) {
    return strcmp(((const struct entry *)a)->key, ((const struct entry *)b)->key);
}

/* json-c keeps the order of insertion, so an object is sorted by emptying and filling it. */
static void sort_object(struct json_object *object) {
    size_t count = (size_t)json_object_object_length(object), i = 0;
    struct entry *entries = malloc((count + 1) * sizeof *entries);
    CHECK(entries);
    json_object_object_foreach(object, key, value) {
        entries[i] = (struct entry){strdup(key), json_object_get(value)};
        CHECK(entries[i++].key);
    }
    qsort(entries, count, sizeof *entries, compare_entries);
    for (i = 0; i < count; i++)
        json_object_object_del(object, entries[i].key);
    for (i = 0; i < count; i++) {
        CHECK(json_object_object_add(object, entries[i].key, entries[i].value) == 0);
        free(entries[i].key);
    }
    free(entries);
}

void json_tree_sort_keys(struct json_object *tree) {
    struct cursor stack[JSON_TREE_DEPTH_MAX];
    size_t depth = 0;
    struct json_object *value = tree;
    const char *key;
    for (;;) {
        if (is_container(value)) {
            CHECK(depth < JSON_TREE_DEPTH_MAX);
            if (json_object_is_type(value, json_type_object)) sort_object(value);
            stack[depth++] = cursor_at(value);
        }
        while (depth > 0 && !cursor_next(&stack[depth - 1], &key, &value))
            depth--;
        if (depth == 0) return;
    }
}

static void append_string(struct text_buf *out, const char *text, size_t bytes) {
    static const char short_escapes[] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f',
                                         ['\r'] = 'r', ['"'] = '"',  ['\\'] = '\\'};
    text_buf_append(out, "\"", 1);
    size_t plain = 0; /* the first byte not written yet */
    for (size_t i = 0; i < bytes; i++) {
        unsigned char byte = (unsigned char)text[i];
        char escape = byte < sizeof short_escapes ? short_escapes[byte] : 0;
        if (!escape && byte >= 0x20) continue;
        text_buf_append(out, text + plain, i - plain);
        plain = i + 1;
        char escaped[8];
        int count = escape ? snprintf(escaped, sizeof escaped, "\\%c", escape)
                           : snprintf(escaped, sizeof escaped, "\\u%04x", byte);
        text_buf_append(out, escaped, (size_t)count);
    }
    text_buf_append(out, text + plain, bytes - plain);
    text_buf_append(out, "\"", 1);
}

/* The shortest digits that read back as the same number, written without an exponent from 1e-4 up
 * to below 1e16, and always with a point or an exponent. */
static void append_double(struct text_buf *out, double value) {
    if (isinf(value)) {
        text_buf_append_str(out, value < 0 ? "-Infinity" : "Infinity");
        return;
    }
    char text[32];
    int digits = 0;
    do
        snprintf(text, sizeof text, "%.*e", digits, value);
    while (strtod(text, NULL) != value && ++digits < 17);
    int exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    if (exponent >= -4 && exponent < 16) {
        int decimals = digits > exponent ? digits - exponent : 0;
        snprintf(text, sizeof text, "%.*f", decimals > 0 ? decimals : 1, value);
    }
    text_buf_append_str(out, text);
}

void json_tree_append_number(struct text_buf *out, struct json_object *number) {
    if (json_object_is_type(number, json_type_double))
        append_double(out, json_object_get_double(number));
    else
        text_buf_append_str(out, json_object_to_json_string_ext(number, JSON_C_TO_STRING_PLAIN));
}

/* Append a value without inside, or the opening of a container. */
static void append_value(struct text_buf *out, struct json_object *value) {
    switch (json_object_get_type(value)) {
    case json_type_null: text_buf_append_str(out, "null"); break;
    case json_type_boolean:
        text_buf_append_str(out, json_object_get_boolean(value) ? "true" : "false");
        break;
    case json_type_double:
    case json_type_int: json_tree_append_number(out, value); break;
    case json_type_string:
        append_string(out, json_object_get_string(value),
                      (size_t)json_object_get_string_len(value));
        break;
    case json_type_array: text_buf_append(out, "[", 1); break;
    case json_type_object: text_buf_append(out, "{", 1); break;
    }
}

void json_tree_append(struct text_buf *out, struct json_object *tree,
                      struct json_tree_style style) {
    struct cursor stack[JSON_TREE_DEPTH_MAX];
    size_t depth = 0;
    struct json_object *value = tree;
    const char *key;
    for (;;) {
        append_value(out, value);
        if (is_container(value)) {
            CHECK(depth < JSON_TREE_DEPTH_MAX);
            stack[depth++] = cursor_at(value);
        }
        while (depth > 0 && !cursor_next(&stack[depth - 1], &key, &value))
            text_buf_append(out, stack[--depth].is_array ? "]" : "}", 1);
        if (depth == 0) return;
        if (stack[depth - 1].index > 1) text_buf_append_str(out, style.comma);
        if (key) {
            append_string(out, key, strlen(key));
            text_buf_append_str(out, style.colon);
        }
    }
}

const char *json_tree_kind(struct json_object *tree) {
    switch (json_object_get_type(tree)) {
    case json_type_null: return "null";
    case json_type_boolean: return "true or false";
    case json_type_double:
    case json_type_int: return "number";
    case json_type_string: return "string";
    case json_type_array: return "array";
    case json_type_object: return "object";
    }
    return "nothing";
}
