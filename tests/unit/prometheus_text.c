#include "prometheus_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FAMILIES_MAX 128
#define SAMPLES_MAX  4096
#define NAME_MAX_    128
#define LINE_MAX_    1024

struct reading {
    char family[FAMILIES_MAX][NAME_MAX_];
    char type[FAMILIES_MAX][16];
    bool has_type;
    int families, samples_in_family;
    char sample[SAMPLES_MAX][LINE_MAX_]; /* all before their values */
    int samples;
    double last_le, last_count; /* of the series of buckets under way */
    char series[LINE_MAX_];
};

static bool name_ok(const char *name, size_t length) {
    if (length == 0 || (name[0] >= '0' && name[0] <= '9')) return false;
    return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:") >=
           length;
}

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static void open_family(struct reading *reading, const char *line) {
    char name[NAME_MAX_];
    int used = 0;
    if (sscanf(line, "# HELP %127s %n", name, &used) != 1 || line[used] == '\0')
        fail_msg("no help: %s", line);
    if (!name_ok(name, strlen(name))) fail_msg("name: %s", line);
    if (reading->families > 0 && (!reading->has_type || reading->samples_in_family == 0))
        fail_msg("a family without type or sample before: %s", line);
    for (int i = 0; i < reading->families; i++)
        if (strcmp(reading->family[i], name) == 0) fail_msg("a second time: %s", line);
    assert_true(reading->families < FAMILIES_MAX);
    snprintf(reading->family[reading->families++], NAME_MAX_, "%s", name);
    reading->has_type = false;
    reading->samples_in_family = 0;
}

static void set_type(struct reading *reading, const char *line) {
    char name[NAME_MAX_], type[16];
    if (sscanf(line, "# TYPE %127s %15s", name, type) != 2 || reading->families == 0 ||
        reading->has_type || strcmp(name, reading->family[reading->families - 1]) != 0)
        fail_msg("not the type of the family just opened: %s", line);
    bool is_counter = strcmp(type, "counter") == 0;
    if (!is_counter && strcmp(type, "gauge") != 0 && strcmp(type, "histogram") != 0)
        fail_msg("type: %s", line);
    if (is_counter != ends_with(name, "_total")) fail_msg("a name against its type: %s", line);
    snprintf(reading->type[reading->families - 1], sizeof reading->type[0], "%s", type);
    reading->has_type = true;
}

/* Labels between braces: name="text", escapes \\ \" \n, commas between. Returns what follows. */
static const char *skip_labels(const char *at, const char *line) {
    if (*at != '{') return at;
    at++;
    while (*at != '}') {
        size_t length = strcspn(at, "=");
        if (!name_ok(at, length) || at[length] != '=' || at[length + 1] != '"')
            fail_msg("labels: %s", line);
        at += length + 2;
        while (*at != '"') {
            if (*at == '\0') fail_msg("labels: %s", line);
            if (*at == '\\' && !strchr("\\\"n", *++at)) fail_msg("escape: %s", line);
            at++;
        }
        at++;
        if (*at == ',')
            at++;
        else if (*at != '}')
            fail_msg("labels: %s", line);
    }
    return at + 1;
}

/* Buckets of one series come one after the other, bounds and counts ascending, +Inf last. */
static void take_bucket(struct reading *reading, const char *line, size_t head, double value) {
    char before[LINE_MAX_];
    const char *le = strstr(line, "le=\"");
    if (!le) fail_msg("a bucket without le: %s", line);
    snprintf(before, sizeof before, "%.*s", (int)(le - line), line);
    double bound = strncmp(le + 4, "+Inf", 4) == 0 ? 1e300 : strtod(le + 4, NULL);
    bool same = strcmp(before, reading->series) == 0;
    if (same && (bound <= reading->last_le || value < reading->last_count))
        fail_msg("buckets do not ascend: %.*s", (int)head, line);
    snprintf(reading->series, sizeof reading->series, "%s", before);
    reading->last_le = bound;
    reading->last_count = value;
}

static void take_sample(struct reading *reading, const char *line) {
    size_t length = strcspn(line, "{ ");
    if (!name_ok(line, length)) fail_msg("name: %s", line);
    const char *rest = skip_labels(line + length, line);
    size_t head = (size_t)(rest - line);
    char *end;
    double value = strtod(rest + 1, &end);
    if (*rest != ' ' || end == rest + 1 || *end != '\0') fail_msg("value: %s", line);
    if (!reading->has_type) fail_msg("a sample before its type: %s", line);
    const char *family = reading->family[reading->families - 1];
    bool is_histogram = strcmp(reading->type[reading->families - 1], "histogram") == 0;
    char name[NAME_MAX_];
    snprintf(name, sizeof name, "%.*s", (int)length, line);
    const char *suffix = strncmp(name, family, strlen(family)) == 0 ? name + strlen(family) : "?";
    if (is_histogram ? strcmp(suffix, "_bucket") != 0 && strcmp(suffix, "_sum") != 0 &&
                           strcmp(suffix, "_count") != 0
                     : *suffix != '\0')
        fail_msg("a sample outside its family %s: %s", family, line);
    if (is_histogram && strcmp(suffix, "_bucket") == 0) take_bucket(reading, line, head, value);
    if (is_histogram && strcmp(suffix, "_count") == 0 &&
        (reading->last_le < 1e299 || reading->last_count != value))
        fail_msg("the last bucket is not the count: %s", line);
    assert_true(reading->samples < SAMPLES_MAX);
    snprintf(reading->sample[reading->samples], LINE_MAX_, "%.*s", (int)head, line);
    for (int i = 0; i < reading->samples; i++)
        if (strcmp(reading->sample[i], reading->sample[reading->samples]) == 0)
            fail_msg("a sample twice: %s", line);
    reading->samples++;
    reading->samples_in_family++;
}

void prometheus_text_check(const char *text) {
    static struct reading reading;
    memset(&reading, 0, sizeof reading);
    while (*text) {
        char line[LINE_MAX_];
        size_t length = strcspn(text, "\n");
        if (text[length] != '\n' || length >= sizeof line) fail_msg("line: %.80s", text);
        snprintf(line, sizeof line, "%.*s", (int)length, text);
        if (strncmp(line, "# HELP ", 7) == 0)
            open_family(&reading, line);
        else if (strncmp(line, "# TYPE ", 7) == 0)
            set_type(&reading, line);
        else
            take_sample(&reading, line);
        text += length + 1;
    }
    assert_true(reading.families > 0 && reading.samples_in_family > 0);
}

double prometheus_text_value(const char *text, const char *head) {
    size_t length = strlen(head);
    for (; *text; text += strcspn(text, "\n") + 1)
        if (strncmp(text, head, length) == 0 && text[length] == ' ')
            return strtod(text + length, NULL);
    fail_msg("no sample %s", head);
    return 0;
}

int prometheus_text_promtool_passes(const char *text) {
    FILE *look = popen("command -v promtool", "r");
    char found[256] = "";
    bool installed = look && fgets(found, sizeof found, look);
    if (look) pclose(look);
    if (!installed) return 1;
    FILE *tool = popen("promtool check metrics", "w");
    assert_non_null(tool);
    fputs(text, tool);
    return pclose(tool) == 0;
}
