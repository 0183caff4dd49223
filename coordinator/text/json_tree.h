/* JSON of clients, bounded: what json-c does not bound or does not do.
 *
 * Text becomes json-c objects, so the cost of a byte matters: an empty object is two bytes of text
 * and most of a kilobyte of memory. Values are counted before anything is built. Nesting is bounded
 * too, which also bounds the recursion inside json-c.
 *
 * The writer gives the form of Python's json module with ensure_ascii off, which is what chat
 * templates were rendered with when models were trained: numbers as repr() writes them, separators
 * as the template asks.
 */
#ifndef ESPALIER_JSON_TREE_H
#define ESPALIER_JSON_TREE_H

#include <json-c/json.h>
#include <stddef.h>

#include "base/status.h"
#include "text/text_buf.h"

#define JSON_TREE_DEPTH_MAX  64u
#define JSON_TREE_VALUES_MAX 65536u

struct json_tree_style {
    const char *comma, *colon;
};

#define JSON_TREE_SPACED  ((struct json_tree_style){", ", ": "})
#define JSON_TREE_COMPACT ((struct json_tree_style){",", ":"})

/* Parse one JSON value. INVALID_ARGUMENT: not JSON, not UTF-8, or beyond the bounds; err names the
 * byte. The caller owns *tree_out (json_object_put). */
MUST_USE enum status json_tree_parse(const char *text, size_t bytes, struct json_object **tree_out,
                                     struct error *err);

/* Sort the keys of every object in a parsed tree, by code point. */
void json_tree_sort_keys(struct json_object *tree);

/* Append a parsed tree as text. */
void json_tree_append(struct text_buf *out, struct json_object *tree, struct json_tree_style style);

/* Append a number as Python's repr() writes it. */
void json_tree_append_number(struct text_buf *out, struct json_object *number);

/* "null", "number", "string", ...: for messages. NULL is "null", as json-c has it. */
const char *json_tree_kind(struct json_object *tree);

#endif
