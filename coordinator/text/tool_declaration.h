/* Tool declarations as the models read them: TypeScript types made of JSON schemas.
 *
 *   # Tools
 *
 *   ## functions
 *   namespace functions {
 *   // Get the current weather for a location
 *   type get_weather = (_: {
 *     // The city and state, e.g. San Francisco, CA
 *     location: string,
 *     // Temperature unit
 *     unit?: "celsius" | "fahrenheit"
 *   }) => any;
 *   }
 *
 * The form is that of Kimi K2.5's tool_declaration_ts.py, byte for byte, since any other is one the
 * model has not seen. Where that encoder gives up (an unknown reference, a value an enum's type
 * forbids, a tool that is no function), the declaration is the tools as compact JSON, as there.
 */
#ifndef ESPALIER_TOOL_DECLARATION_H
#define ESPALIER_TOOL_DECLARATION_H

#include <json-c/json.h>

#include "base/status.h"
#include "text/text_buf.h"

/* Append the declaration of `tools`, an array of {"type": "function", "function": {...}} parsed by
 * json_tree_parse; its keys are sorted here. INVALID_ARGUMENT: not of that form; err names the
 * path. Whether all fitted is told by out->full. */
MUST_USE enum status tool_declaration_append(struct text_buf *out, struct json_object *tools,
                                             struct error *err);

#endif
