/* The tables of what users and peers get wrong, and what must be said of it. */
#ifndef ESPALIER_BAD_INPUT_H
#define ESPALIER_BAD_INPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "broken_model.h"

#define BAD_INPUT_PARTS 4

/* `espalier generate` with this model says one line, with these parts, and ends with this code. */
struct bad_checkpoint {
    const char *label;
    int exit_code;
    struct broken_model broken;
    const char *parts[BAD_INPUT_PARTS];
};
extern const struct bad_checkpoint bad_checkpoints[];
extern const size_t bad_checkpoint_count;

#define BAD_INPUT_ARGUMENTS 12

/* This command line says one line, and ends with this code. In arguments and parts @RUN is the run
 * directory of a group that serves 64 tokens of context, @PORT a port that is taken, and @LONG a
 * prompt of more than 64 tokens. */
struct bad_line {
    const char *program;
    const char *arguments[BAD_INPUT_ARGUMENTS];
    int exit_code;
    const char *parts[BAD_INPUT_PARTS];
};
extern const struct bad_line bad_lines[];
extern const size_t bad_line_count;

/* One thing that a sound request gets wrong: a field is written behind it once more, as the wire
 * allows. Texts that are not given are `bytes` letters. */
struct bad_field {
    enum {
        BAD_NOTHING,
        BAD_NUMBER,
        BAD_BYTES,           /* `count` times, once where that is 0 */
        BAD_IDS,             /* `count` packed numbers from `number` on */
        BAD_REAL,            /* of sampling */
        BAD_SAMPLING_NUMBER, /* likewise */
        BAD_BIAS,            /* `count` times the same token and value */
        BAD_NO_SAMPLING,
        BAD_BODY, /* rubbish instead of everything */
    } kind;
    unsigned field, number, count;
    const char *text;
    size_t bytes;
    float real;
};

/* This call ends with this status and one line with these parts. */
struct bad_request {
    const char *label;
    struct bad_field wrong[3];
    unsigned status;
    const char *parts[BAD_INPUT_PARTS];
};
extern const struct bad_request bad_requests[];
extern const size_t bad_request_count;

#endif
