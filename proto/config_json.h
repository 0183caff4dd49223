/* Fields of a JSON config, read strictly: a number of the right kind in its range, or one line that
 * names file, field, what was found and what is accepted. null counts as absent, as configs write
 * it for "no such thing". */
#ifndef ESPALIER_CONFIG_JSON_H
#define ESPALIER_CONFIG_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct json_object; /* json-c */

struct config_json {
    const char *path;         /* borrowed; for messages */
    struct json_object *root; /* owned; an object */
    struct error *err;        /* where all functions below write */
};

/* Read and parse path, of bounded size and depth. NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT.
 */
enum status config_json_open(const char *path, struct error *err,
                             struct config_json *config_out) MUST_USE;
void config_json_close(struct config_json *config);

/* NULL where it is absent or null. */
struct json_object *config_json_member(struct json_object *object, const char *name);

bool config_json_is_text(struct json_object *value, const char *wanted);

/* "path: field: found X, accepted Y" with this status. value may be NULL. */
enum status config_json_refuse(const struct config_json *config, enum status code,
                               const char *field, struct json_object *value, const char *accepted);

/* The value must be `accepted`, which is JSON ("\"silu\"", "false", "4"), or else UNIMPLEMENTED. */
enum status config_json_expect(const struct config_json *config, const char *field,
                               struct json_object *value, const char *accepted) MUST_USE;

/* A whole number in [min, max] and a multiple of `multiple`. value may be NULL, which is none. */
enum status config_json_count(const struct config_json *config, const char *field,
                              struct json_object *value, uint32_t min, uint32_t max,
                              uint32_t multiple, uint32_t *out) MUST_USE;

/* object's `name` in [min, max]; `fallback` where it is absent, NAN where it must not be. */
enum status config_json_number(const struct config_json *config, struct json_object *object,
                               const char *name, double min, double max, double fallback,
                               double *out) MUST_USE;

enum status config_json_bool(const struct config_json *config, struct json_object *object,
                             const char *name, bool fallback, bool *out) MUST_USE;

#endif
