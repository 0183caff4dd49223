/* What `espalier plan` is asked: a model, a machine, flags; and the arithmetic that all of its
 * answers share. Values; nothing here prints. */
#ifndef ESPALIER_PLAN_CASE_H
#define ESPALIER_PLAN_CASE_H

#include "memory_plan.h"

struct plan_case {
    struct model_spec spec;
    struct memory_request request; /* its spec is the one above */
    struct memory_plan plan;
    uint32_t running, running_cap; /* as memory_plan_running takes them */
    uint32_t chunk_tok;
    uint32_t tree_rows; /* of one request in a step; 1 without a tree */
};

/* Plan anew after a change of the request, batch, chunk or tree; what memory is laid out for, and
 * the largest step, follow from them. */
enum status plan_case_make(struct plan_case *plan_case, struct error *err) MUST_USE;

/* What one turn of a knob costs, in tokens of the pool: what a pool that takes all that fits gains,
 * and for what a fraction does not look at, the pool's worth of the bytes. */
struct plan_knob {
    char text[64];
    int64_t tokens;
};
#define PLAN_KNOBS_MAX 8u
uint32_t plan_case_knobs(const struct plan_case *plan_case, struct plan_knob knob[PLAN_KNOBS_MAX]);

/* Requests of a length, at once. */
struct plan_want {
    uint32_t count;
    uint64_t tok_count; /* of each */
};

/* "8x25k", "200k", "200,000". INVALID_ARGUMENT. */
enum status plan_want_parse(const char *text, struct plan_want *want_out,
                            struct error *err) MUST_USE;

struct plan_answer {
    uint64_t pool_tok;   /* that the wanted requests need together */
    uint64_t kv_bytes;   /* of them */
    uint64_t rest_bytes; /* beside weights and pool, with so many running */
    bool fits;
    double fraction;        /* the smallest that holds them */
    uint32_t fitting_count; /* requests of that length that fit, up to those wanted */
    uint64_t fitting_tok;   /* how long so many requests may be */
    bool fits_as_fp8;
};

/* What it takes to run `want`, on the case's machine. */
enum status plan_want_answer(const struct plan_case *plan_case, const struct plan_want *want,
                             struct plan_answer *answer_out, struct error *err) MUST_USE;

#endif
