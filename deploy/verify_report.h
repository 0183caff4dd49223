/* What `espalier verify` found, rung by rung. */
#ifndef ESPALIER_VERIFY_REPORT_H
#define ESPALIER_VERIFY_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"

enum verify_rung {
    VERIFY_RANKS,     /* the group serves, and every rank answers */
    VERIFY_CAPACITY,  /* the pool holds a request of the length that was promised */
    VERIFY_CACHE,     /* what is cached is the same on every rank */
    VERIFY_TOKENS,    /* a fixed prompt gives the recorded tokens */
    VERIFY_REQUEST,   /* a request of the whole length, and shorter ones */
    VERIFY_ATTENTION, /* how fast the cache of that request is read */
    VERIFY_LATENCY,   /* how long its tokens took */
    VERIFY_ERRORS,    /* of this boot, in the logs */
    VERIFY_RUNG_COUNT
};
extern const char *const verify_rung_name[VERIFY_RUNG_COUNT];

enum verify_result { VERIFY_NOT_REACHED, VERIFY_OK, VERIFY_FAILED, VERIFY_SKIPPED };

#define VERIFY_TEXT_BYTES_MAX 512u
#define VERIFY_POINTS_MAX     4u

/* A request of so many tokens, prompt and reply together. */
struct verify_point {
    uint32_t tok_count;
    double first_token_ms, token_ms;
};

struct verify_report {
    struct {
        enum verify_result result;
        char text[VERIFY_TEXT_BYTES_MAX];
        double seconds;
    } rung[VERIFY_RUNG_COUNT];

    uint64_t boot_id, model_fingerprint;
    char model[64];
    uint32_t tp, others_running; /* requests of others, when it began */
    uint32_t context_tok;        /* of the longest request, and */
    const char *context_why;     /* where that comes from */
    struct verify_point point[VERIFY_POINTS_MAX];
    uint32_t point_count;
    uint32_t rows; /* of the attention that was timed */
    struct {
        double attention_gb_s, read_gb_s, percent, sum_ms;
    } rank[TP_MAX]; /* zeros: not reached */
};

/* The first that failed; VERIFY_RUNG_COUNT: none. */
enum verify_rung verify_report_failed(const struct verify_report *report);

/* A table and a chart for a person, or an object for a program, on standard output. False: it
 * cannot be written. */
bool verify_report_print(const struct verify_report *report, bool json);

#endif
