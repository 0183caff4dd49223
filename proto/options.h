/* Command lines, one table a program: a row names a flag, its type, its range and its help, and
 * says where the value goes. Parsing, `--help`, and every refusal come from the table, so all
 * programs refuse in the same words:
 *
 *     espalier-worker: --tp: found "3x", accepted: an integer from 1 to 8
 *
 * Accepted spellings: `--flag value`, `--flag=value`, `-` or `_` inside a name. Whole numbers may
 * end in k, m, g (1000s) or K, M, G (1024s). Given twice, the last one counts, so that a wrapper
 * can append. `--help` and `--version` are always there; `--` ends the flags.
 *
 * Values are borrowed from argv. One thread.
 */
#ifndef ESPALIER_OPTIONS_H
#define ESPALIER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

#define OPTIONS_LIST_MAX 16u

enum option_type {
    OPTION_SWITCH,          /* bool *: present or not */
    OPTION_COUNT,           /* uint32_t *: within [min, max] */
    OPTION_WIDE,            /* uint64_t *: any 64-bit value */
    OPTION_BYTES,           /* uint64_t *: a size, a fraction of a unit too: 96G, 93.73G */
    OPTION_REAL,            /* double *: within [real_min, real_max] */
    OPTION_TEXT,            /* const char **: not empty */
    OPTION_CHOICE,          /* const char **: one of `choices` */
    OPTION_CHOICE_OR_COUNT, /* const char **: one of `choices`, or digits within [min, max] */
    OPTION_LIST,            /* struct option_list *: may be given up to OPTIONS_LIST_MAX times */
};

struct option_list {
    const char *item[OPTIONS_LIST_MAX];
    uint32_t count;
};

struct option {
    const char *name;    /* "--context-length" */
    const char *aliases; /* other names, separated by spaces; NULL for none */
    enum option_type type;
    void *value;       /* by type; holds the default before parsing */
    uint32_t min, max; /* COUNT, CHOICE_OR_COUNT */
    double real_min, real_max;
    const char *choices;  /* CHOICE, CHOICE_OR_COUNT: "bf16|f32" */
    const char *argument; /* what `--help` calls the value; NULL: by type */
    const char *fallback; /* what `--help` says of the default */
    const char *help;
    unsigned scope;    /* the program's own bits; options_forward selects by them */
    const char *given; /* out: the value's text as given, "" for a switch; NULL: not given */
};

struct options_program {
    const char *name;    /* "espalier-worker" */
    const char *usage;   /* "[flags] PROMPT" */
    const char *summary; /* one sentence */
    struct option *option;
    uint32_t option_count;
    /* What stands between the flags. */
    const char *positional_name; /* "PROMPT"; NULL: nothing may */
    uint32_t positional_max;
};

struct options_result {
    bool help, version; /* asked for; the rest was not looked at */
    const char *positional[OPTIONS_LIST_MAX];
    uint32_t positional_count;
};

/* Parse argv[1, argc). INVALID_ARGUMENT: err names the flag, what was found, what is accepted. */
enum status options_parse(const struct options_program *program, int argc, char *const *argv,
                          struct options_result *result_out, struct error *err) MUST_USE;

/* options_parse for a main: prints help or the version, or one line on stderr. True: go on; false:
 * the program ends with *exit_code_out. */
bool options_take(const struct options_program *program, int argc, char *const *argv,
                  struct options_result *result_out, int *exit_code_out);

void options_print_help(const struct options_program *program, FILE *out);

/* Print `NAME: text` on stderr and return the exit code: how a program refuses what it was asked
 * after its flags were read. */
int options_refuse(const char *program_name, int exit_code, const struct error *err);

/* The given rows whose scope has a bit of `scope`, as "--name=value" strings for a child's argv.
 * Strings are the caller's to free; returns how many, CHECKs that they are at most out_max. */
uint32_t options_forward(const struct options_program *program, unsigned scope, char **out,
                         uint32_t out_max);

#endif
