/* What `espalier verify` accepts: a file of `key value` lines, `#` begins a comment. Every key must
 * be there once, and no other. */
#ifndef ESPALIER_VERIFY_LIMITS_H
#define ESPALIER_VERIFY_LIMITS_H

#include "base/status.h"

struct verify_limits {
    double answer_seconds;      /* every rank answers within */
    double attention_percent;   /* of what a plain read of the same bytes reaches, at least */
    double sum_ms;              /* a sum over the ranks takes at most */
    double first_token_seconds; /* at any length, at most */
    double token_ms;            /* per token at any length, at most */
    double token_growth;        /* time per token at the full length over that at the shortest */
};

/* INVALID_ARGUMENT names the line and what is accepted. */
enum status verify_limits_read(const char *path, struct verify_limits *limits_out,
                               struct error *err) MUST_USE;
enum status verify_limits_parse(const char *path, char *text, struct verify_limits *limits_out,
                                struct error *err) MUST_USE;

#endif
