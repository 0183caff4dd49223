#include "verify_limits.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"

#define FILE_BYTES_MAX 65536u

static const struct {
    const char *key;
    size_t at;
} fields[] = {
    {"answer_seconds_max", offsetof(struct verify_limits, answer_seconds)},
    {"attention_percent_min", offsetof(struct verify_limits, attention_percent)},
    {"sum_ms_max", offsetof(struct verify_limits, sum_ms)},
    {"first_token_seconds_max", offsetof(struct verify_limits, first_token_seconds)},
    {"token_ms_max", offsetof(struct verify_limits, token_ms)},
    {"token_growth_max", offsetof(struct verify_limits, token_growth)},
};
#define FIELD_COUNT (sizeof fields / sizeof *fields)

static enum status take_line(const char *path, unsigned number, char *line, bool given[FIELD_COUNT],
                             struct verify_limits *limits, struct error *err) {
    char *rest, *key = strtok_r(line, " \t", &rest);
    if (!key || key[0] == '#') return STATUS_OK;
    char *text = strtok_r(NULL, " \t", &rest), *more = strtok_r(NULL, " \t", &rest);
    size_t i = 0;
    while (i < FIELD_COUNT && strcmp(fields[i].key, key) != 0)
        i++;
    if (i == FIELD_COUNT || given[i])
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s, line %u: found \"%s\"%s, accepted: answer_seconds_max, "
                         "attention_percent_min, sum_ms_max, first_token_seconds_max, "
                         "token_ms_max, token_growth_max, each once",
                         path, number, key, i < FIELD_COUNT ? " again" : "");
    char *end = NULL;
    double value = text ? strtod(text, &end) : 0;
    bool is_number = text && end != text && *end == '\0' && isfinite(value) && value >= 0;
    if (!is_number || (more && more[0] != '#'))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s, line %u: found \"%s\" for %s, accepted: one number of 0 or more",
                         path, number,
                         more   ? more
                         : text ? text
                                : "",
                         key);
    *(double *)(void *)((char *)limits + fields[i].at) = value;
    given[i] = true;
    return STATUS_OK;
}

enum status verify_limits_parse(const char *path, char *text, struct verify_limits *limits_out,
                                struct error *err) {
    bool given[FIELD_COUNT] = {false};
    unsigned number = 0;
    *limits_out = (struct verify_limits){.answer_seconds = 0};
    for (char *line; (line = strsep(&text, "\n")) != NULL;) {
        enum status status = take_line(path, ++number, line, given, limits_out, err);
        if (status != STATUS_OK) return status;
    }
    for (size_t i = 0; i < FIELD_COUNT; i++)
        if (!given[i])
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "%s: found no %s, accepted: a line \"%s NUMBER\"", path, fields[i].key,
                             fields[i].key);
    return STATUS_OK;
}

enum status verify_limits_read(const char *path, struct verify_limits *limits_out,
                               struct error *err) {
    char *text;
    uint64_t bytes;
    enum status status = file_read_all(path, FILE_BYTES_MAX, &text, &bytes, err);
    if (status != STATUS_OK) return status;
    status = verify_limits_parse(path, text, limits_out, err);
    free(text);
    return status;
}
