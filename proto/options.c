#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define CHOICE_DIGITS_MAX 3u

#define FLAG_BYTES_MAX 64u
#define HELP_COLUMN    34

/* ---- names -------------------------------------------------------------------------------- */

static char folded(char c) {
    return c == '_' ? '-' : c;
}

/* Do name[0, bytes) and the word at `word` (ended by NUL or space) spell the same flag? */
static bool same_name(const char *name, size_t bytes, const char *word) {
    size_t word_bytes = strcspn(word, " ");
    if (word_bytes != bytes) return false;
    for (size_t i = 0; i < bytes; i++) {
        /* The leading dashes are exact: `__tp` is nobody's habit. */
        char c = i < 2 ? name[i] : folded(name[i]);
        if (c != word[i]) return false;
    }
    return true;
}

static bool is_called(const struct option *option, const char *name, size_t bytes) {
    if (same_name(name, bytes, option->name)) return true;
    for (const char *alias = option->aliases; alias && *alias;) {
        if (same_name(name, bytes, alias)) return true;
        alias += strcspn(alias, " ");
        alias += strspn(alias, " ");
    }
    return false;
}

static struct option *find(const struct options_program *program, const char *name, size_t bytes) {
    for (uint32_t i = 0; i < program->option_count; i++)
        if (is_called(&program->option[i], name, bytes)) return &program->option[i];
    return NULL;
}

static uint32_t min3(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t least = a < b ? a : b;
    return least < c ? least : c;
}

/* Levenshtein distance by rows. */
static uint32_t edit_distance(const char *a, size_t a_bytes, const char *b) {
    size_t b_bytes = strlen(b);
    if (a_bytes >= FLAG_BYTES_MAX || b_bytes >= FLAG_BYTES_MAX) return UINT32_MAX;
    uint32_t row[FLAG_BYTES_MAX];
    for (size_t j = 0; j <= b_bytes; j++)
        row[j] = (uint32_t)j;
    for (size_t i = 1; i <= a_bytes; i++) {
        uint32_t diagonal = row[0];
        row[0] = (uint32_t)i;
        for (size_t j = 1; j <= b_bytes; j++) {
            uint32_t above = row[j];
            uint32_t change = diagonal + (folded(a[i - 1]) != b[j - 1]);
            row[j] = min3(above + 1, row[j - 1] + 1, change);
            diagonal = above;
        }
    }
    return row[b_bytes];
}

static enum status unknown_flag(const struct options_program *program, const char *name,
                                size_t bytes, struct error *err) {
    const struct option *nearest = NULL;
    uint32_t nearest_distance = 4;
    for (uint32_t i = 0; i < program->option_count; i++) {
        uint32_t distance = edit_distance(name, bytes, program->option[i].name);
        if (distance >= nearest_distance) continue;
        nearest_distance = distance;
        nearest = &program->option[i];
    }
    if (nearest)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%.*s: no such flag, did you mean %s? (--help lists all)", (int)bytes,
                         name, nearest->name);
    return error_set(err, STATUS_INVALID_ARGUMENT, "%.*s: no such flag (--help lists all)",
                     (int)bytes, name);
}

/* ---- values ------------------------------------------------------------------------------- */

/* 1000s for a small letter, 1024s for a capital one; 0 where it is no suffix. */
static uint64_t suffix_factor(char suffix) {
    switch (suffix) {
    case 'k': return 1000;
    case 'm': return 1000000;
    case 'g': return 1000000000;
    case 'K': return UINT64_C(1) << 10;
    case 'M': return UINT64_C(1) << 20;
    case 'G': return UINT64_C(1) << 30;
    default: return 0;
    }
}

static bool parse_whole(const char *text, uint64_t *value_out) {
    if (*text < '0' || *text > '9') return false;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0) return false;
    if (*end != '\0') {
        uint64_t factor = suffix_factor(*end);
        if (factor == 0 || end[1] != '\0' || value > UINT64_MAX / factor) return false;
        value *= factor;
    }
    *value_out = value;
    return true;
}

static enum status set_count(const struct option *option, const char *text, struct error *err) {
    uint64_t value;
    if (!parse_whole(text, &value) || value < option->min || value > option->max)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s: found \"%s\", accepted: an integer from %u to %u", option->name, text,
                         option->min, option->max);
    *(uint32_t *)option->value = (uint32_t)value;
    return STATUS_OK;
}

static enum status set_wide(const struct option *option, const char *text, struct error *err) {
    uint64_t value;
    if (!parse_whole(text, &value))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s: found \"%s\", accepted: an integer from 0 to 2^64 - 1", option->name,
                         text);
    *(uint64_t *)option->value = value;
    return STATUS_OK;
}

/* Sizes are told and printed with two decimals, so a suffix may follow a fraction. */
static enum status set_bytes(const struct option *option, const char *text, struct error *err) {
    char *end = NULL;
    double value = *text >= '0' && *text <= '9' ? strtod(text, &end) : -1;
    if (end && *end != '\0') {
        uint64_t factor = suffix_factor(*end);
        value = factor == 0 || end[1] != '\0' ? -1 : value * (double)factor;
    }
    if (!(value >= 1 && value < 0x1p62))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s: found \"%s\", accepted: a size in bytes, as 96G or 93.73G",
                         option->name, text);
    *(uint64_t *)option->value = (uint64_t)value;
    return STATUS_OK;
}

static enum status set_real(const struct option *option, const char *text, struct error *err) {
    char *end;
    double value = strtod(text, &end);
    bool number = end != text && *end == '\0' && isfinite(value);
    if (!number || value < option->real_min || value > option->real_max)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s: found \"%s\", accepted: a number from %g to %g", option->name, text,
                         option->real_min, option->real_max);
    *(double *)option->value = value;
    return STATUS_OK;
}

/* "name:N" stands for "name:" and a small number. */
static bool is_numbered(const char *choice, size_t choice_bytes, const char *text) {
    size_t name_bytes = choice_bytes > 2 ? choice_bytes - 1 : 0;
    if (name_bytes == 0 || memcmp(choice + name_bytes - 1, ":N", 2) != 0) return false;
    if (strncmp(choice, text, name_bytes) != 0) return false;
    size_t digits = strspn(text + name_bytes, "0123456789");
    return digits >= 1 && digits <= CHOICE_DIGITS_MAX && text[name_bytes + digits] == '\0';
}

static bool is_choice(const struct option *option, const char *text) {
    size_t bytes = strlen(text);
    for (const char *choice = option->choices; *choice;) {
        size_t choice_bytes = strcspn(choice, "|");
        if (bytes == choice_bytes && memcmp(choice, text, bytes) == 0) return true;
        if (is_numbered(choice, choice_bytes, text)) return true;
        choice += choice_bytes;
        choice += *choice == '|';
    }
    return false;
}

static enum status set_choice(const struct option *option, const char *text, struct error *err) {
    if (!is_choice(option, text))
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: found \"%s\", accepted: %s",
                         option->name, text, option->choices);
    *(const char **)option->value = text;
    return STATUS_OK;
}

/* Digits alone: whoever takes the text need not know suffixes. */
static enum status set_choice_or_count(const struct option *option, const char *text,
                                       struct error *err) {
    uint64_t value;
    bool is_count = text[strspn(text, "0123456789")] == '\0' && parse_whole(text, &value) &&
                    value >= option->min && value <= option->max;
    if (!is_count && !is_choice(option, text))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s: found \"%s\", accepted: %s, or an integer from %u to %u",
                         option->name, text, option->choices, option->min, option->max);
    *(const char **)option->value = text;
    return STATUS_OK;
}

static enum status set_text(const struct option *option, const char *text, struct error *err) {
    if (*text == '\0')
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: found an empty value, accepted: %s",
                         option->name, option->argument ? option->argument : "a text");
    *(const char **)option->value = text;
    return STATUS_OK;
}

static enum status add_item(const struct option *option, const char *text, struct error *err) {
    struct option_list *list = option->value;
    if (*text == '\0' || list->count == OPTIONS_LIST_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: found %s, accepted: up to %u texts",
                         option->name, *text ? "one more" : "an empty value", OPTIONS_LIST_MAX);
    list->item[list->count++] = text;
    return STATUS_OK;
}

static enum status set_value(const struct option *option, const char *text, struct error *err) {
    switch (option->type) {
    case OPTION_COUNT: return set_count(option, text, err);
    case OPTION_WIDE: return set_wide(option, text, err);
    case OPTION_BYTES: return set_bytes(option, text, err);
    case OPTION_REAL: return set_real(option, text, err);
    case OPTION_TEXT: return set_text(option, text, err);
    case OPTION_CHOICE: return set_choice(option, text, err);
    case OPTION_CHOICE_OR_COUNT: return set_choice_or_count(option, text, err);
    case OPTION_LIST: return add_item(option, text, err);
    case OPTION_SWITCH: break;
    }
    *(bool *)option->value = true;
    return STATUS_OK;
}

/* What the value of an option is, in words. */
static const char *argument_name(const struct option *option) {
    if (option->argument) return option->argument;
    switch (option->type) {
    case OPTION_SWITCH: return "";
    case OPTION_COUNT:
    case OPTION_WIDE: return "N";
    case OPTION_BYTES: return "BYTES";
    case OPTION_REAL: return "X";
    case OPTION_CHOICE: return option->choices;
    case OPTION_TEXT:
    case OPTION_CHOICE_OR_COUNT:
    case OPTION_LIST: break;
    }
    return "TEXT";
}

/* ---- parsing ------------------------------------------------------------------------------ */

/* One flag at argv[*at]; its value may be the next argument, which is then consumed. */
static enum status parse_flag(const struct options_program *program, int argc, char *const *argv,
                              int *at, struct error *err) {
    const char *name = argv[*at];
    size_t bytes = strcspn(name, "=");
    struct option *option = find(program, name, bytes);
    if (!option) return unknown_flag(program, name, bytes, err);
    const char *text = name[bytes] == '=' ? name + bytes + 1 : NULL;
    if (option->type == OPTION_SWITCH) {
        if (text)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "%s: found \"%s\", accepted: no value, it is a switch", option->name,
                             text);
        text = "";
    } else if (!text) {
        if (*at + 1 >= argc)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "%s: found no value, accepted: %s after it", option->name,
                             argument_name(option));
        text = argv[++*at];
    }
    option->given = text;
    return set_value(option, text, err);
}

static enum status take_positional(const struct options_program *program, const char *text,
                                   struct options_result *result, struct error *err) {
    if (!program->positional_name)
        return error_set(err, STATUS_INVALID_ARGUMENT, "found \"%s\", accepted: flags only", text);
    if (result->positional_count == program->positional_max)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "found \"%s\" after the last argument, accepted: %u %s (quote it)", text,
                         program->positional_max, program->positional_name);
    result->positional[result->positional_count++] = text;
    return STATUS_OK;
}

enum status options_parse(const struct options_program *program, int argc, char *const *argv,
                          struct options_result *result_out, struct error *err) {
    CHECK(program->positional_max <= OPTIONS_LIST_MAX);
    *result_out = (struct options_result){0};
    bool flags_ended = false;
    for (int at = 1; at < argc; at++) {
        const char *text = argv[at];
        enum status status;
        if (!flags_ended && strcmp(text, "--") == 0) {
            flags_ended = true;
            continue;
        }
        if (!flags_ended && (strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0)) {
            result_out->help = true;
            return STATUS_OK;
        }
        if (!flags_ended && strcmp(text, "--version") == 0) {
            result_out->version = true;
            return STATUS_OK;
        }
        if (!flags_ended && text[0] == '-' && text[1] != '\0')
            status = parse_flag(program, argc, argv, &at, err);
        else
            status = take_positional(program, text, result_out, err);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

bool options_take(const struct options_program *program, int argc, char *const *argv,
                  struct options_result *result_out, int *exit_code_out) {
    struct error err;
    if (options_parse(program, argc, argv, result_out, &err) != STATUS_OK) {
        *exit_code_out = options_refuse(program->name, EXIT_CODE_USAGE, &err);
        return false;
    }
    *exit_code_out = EXIT_CODE_OK;
    if (result_out->help) options_print_help(program, stdout);
    if (result_out->version) printf("%s %s\n", program->name, ESPALIER_VERSION);
    return !result_out->help && !result_out->version;
}

int options_refuse(const char *program_name, int exit_code, const struct error *err) {
    fprintf(stderr, "%s: %s\n", program_name, err->text);
    return exit_code;
}

void options_print_help(const struct options_program *program, FILE *out) {
    fprintf(out, "%s %s\n%s\n\n", program->name, program->usage, program->summary);
    for (uint32_t i = 0; i < program->option_count; i++) {
        const struct option *option = &program->option[i];
        int width = fprintf(out, "  %s %s", option->name, argument_name(option));
        if (width < HELP_COLUMN)
            fprintf(out, "%*s", HELP_COLUMN - width, "");
        else
            fprintf(out, "\n%*s", HELP_COLUMN, "");
        fputs(option->help, out);
        if (option->fallback) fprintf(out, " (default: %s)", option->fallback);
        if (option->aliases) fprintf(out, "; also %s", option->aliases);
        fputc('\n', out);
    }
    fprintf(out, "  %-*s%s\n", HELP_COLUMN - 2, "--help", "this table");
    fprintf(out, "  %-*s%s\n", HELP_COLUMN - 2, "--version", "the version");
}

uint32_t options_forward(const struct options_program *program, unsigned scope, char **out,
                         uint32_t out_max) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < program->option_count; i++) {
        const struct option *option = &program->option[i];
        if (!option->given || !(option->scope & scope)) continue;
        CHECK(count < out_max);
        const char *separator = option->type == OPTION_SWITCH ? "" : "=";
        int length = asprintf(&out[count], "%s%s%s", option->name, separator, option->given);
        CHECK(length > 0);
        count++;
    }
    return count;
}
