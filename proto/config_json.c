#include "config_json.h"

#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/utf8.h"
#include "file.h"

#define CONFIG_BYTES_MAX (4u << 20)
#define DEPTH_MAX        32
#define FOUND_CHARS_MAX  80 /* of an offending value, quoted in an error */

enum status config_json_open(const char *path, struct error *err, struct config_json *config_out) {
    char *text;
    uint64_t bytes;
    enum status status = file_read_all(path, CONFIG_BYTES_MAX, &text, &bytes, err);
    if (status != STATUS_OK) return status;
    size_t bad_offset;
    if (!utf8_validate(text, bytes, &bad_offset)) {
        free(text);
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: is not UTF-8 at byte %zu", path,
                         bad_offset);
    }
    struct json_tokener *tokener = json_tokener_new_ex(DEPTH_MAX);
    CHECK(tokener);
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
    struct json_object *root = json_tokener_parse_ex(tokener, text, (int)bytes);
    enum json_tokener_error fault = json_tokener_get_error(tokener);
    if (fault != json_tokener_success || !json_object_is_type(root, json_type_object)) {
        const char *reason = fault == json_tokener_success    ? "it is not an object"
                             : fault == json_tokener_continue ? "it ends too early"
                                                              : json_tokener_error_desc(fault);
        status = error_set(err, STATUS_INVALID_ARGUMENT, "%s: is not JSON at byte %zu: %s", path,
                           json_tokener_get_parse_end(tokener), reason);
        json_object_put(root);
        root = NULL;
    }
    json_tokener_free(tokener);
    free(text);
    *config_out = (struct config_json){.path = path, .root = root, .err = err};
    return status;
}

void config_json_close(struct config_json *config) {
    json_object_put(config->root);
    config->root = NULL;
}

struct json_object *config_json_member(struct json_object *object, const char *name) {
    struct json_object *value = NULL;
    json_object_object_get_ex(object, name, &value);
    return value;
}

bool config_json_is_text(struct json_object *value, const char *wanted) {
    return json_object_is_type(value, json_type_string) &&
           strcmp(json_object_get_string(value), wanted) == 0;
}

static const char *as_json(struct json_object *value) {
    return json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN);
}

enum status config_json_refuse(const struct config_json *config, enum status code,
                               const char *field, struct json_object *value, const char *accepted) {
    return error_set(config->err, code, "%s: %s: found %.*s, accepted %s", config->path, field,
                     FOUND_CHARS_MAX, value ? as_json(value) : "nothing", accepted);
}

enum status config_json_expect(const struct config_json *config, const char *field,
                               struct json_object *value, const char *accepted) {
    if (value && strcmp(as_json(value), accepted) == 0) return STATUS_OK;
    return config_json_refuse(config, STATUS_UNIMPLEMENTED, field, value, accepted);
}

enum status config_json_count(const struct config_json *config, const char *field,
                              struct json_object *value, uint32_t min, uint32_t max,
                              uint32_t multiple, uint32_t *out) {
    int64_t number = json_object_is_type(value, json_type_int) ? json_object_get_int64(value) : -1;
    if (number >= (int64_t)min && number <= (int64_t)max && number % multiple == 0) {
        *out = (uint32_t)number;
        return STATUS_OK;
    }
    char accepted[64];
    int length = snprintf(accepted, sizeof accepted, "%u..%u", min, max);
    if (multiple > 1)
        snprintf(accepted + length, sizeof accepted - (size_t)length, ", a multiple of %u",
                 multiple);
    return config_json_refuse(config, STATUS_INVALID_ARGUMENT, field, value, accepted);
}

enum status config_json_number(const struct config_json *config, struct json_object *object,
                               const char *name, double min, double max, double fallback,
                               double *out) {
    struct json_object *value = config_json_member(object, name);
    bool is_number = json_object_is_type(value, json_type_double) ||
                     json_object_is_type(value, json_type_int);
    double number = is_number ? json_object_get_double(value) : value ? NAN : fallback;
    if (number >= min && number <= max) {
        *out = number;
        return STATUS_OK;
    }
    char accepted[64];
    if (min == max)
        snprintf(accepted, sizeof accepted, "%g", min);
    else
        snprintf(accepted, sizeof accepted, "a number in %g..%g", min, max);
    return config_json_refuse(config, STATUS_INVALID_ARGUMENT, name, value, accepted);
}

enum status config_json_bool(const struct config_json *config, struct json_object *object,
                             const char *name, bool fallback, bool *out) {
    struct json_object *value = config_json_member(object, name);
    if (value && !json_object_is_type(value, json_type_boolean))
        return config_json_refuse(config, STATUS_INVALID_ARGUMENT, name, value, "true or false");
    *out = value ? json_object_get_boolean(value) : fallback;
    return STATUS_OK;
}
