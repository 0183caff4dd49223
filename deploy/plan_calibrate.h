/* What a boot log says about memory, and what it makes of the plan's unknowns.
 *
 * Understood are our own lines and SGLang's, in any order of ranks; of several ranks the one with
 * the least memory counts, as it does when the pool is sized:
 *
 *     Load weight begin. avail mem=93.73 GB               free before the load
 *     Load weight end. ... avail mem=21.33 GB             after it; the last one counts
 *     Memory pool end. avail mem=4.38 GB
 *     max_total_num_tokens=218484, ..., max_running_requests=8, context_len=200000, ...
 *     mem_fraction_static=0.94, or --mem-fraction-static 0.94
 *     event=memory line=experts predicted_bytes=... measured_bytes=...      (ours)
 *     event=memory_total ... resident_bytes=... residual_bytes=...          (ours)
 *
 * A boot ends with its max_total_num_tokens line. Tokens are linear in the fraction: with two
 * boots the slope and the intercept are known, and with the price of a token everything else is.
 */
#ifndef ESPALIER_PLAN_CALIBRATE_H
#define ESPALIER_PLAN_CALIBRATE_H

#include "plan_case.h"

#define PLAN_BOOTS_MAX 64u

struct plan_boot {
    char id[24];                                /* of our own logs */
    double begin_gib, loaded_gib, pool_end_gib; /* 0: not said */
    double fraction;                            /* 0: not said */
    uint64_t pool_tok;
    uint32_t max_running, context_len;
};

struct plan_calibration {
    struct plan_boot boot[PLAN_BOOTS_MAX];
    uint32_t boot_count;
    uint32_t rank_count;                  /* ranks that were heard of, at most TP_MAX */
    uint64_t measured[MEMORY_LINE_COUNT]; /* of our own ledger, the largest of all ranks; 0: none */
    uint64_t predicted[MEMORY_LINE_COUNT];
    uint64_t residual_bytes; /* of our own, the largest */

    /* What follows, 0 where nothing does. */
    double tokens_per_fraction, fraction_of_nothing; /* tokens = slope * (fraction - that) */
    double worst_tok;                                /* a boot's distance from the line */
    bool priced_as_target_layers;                    /* the price that explains the slope */
    uint64_t token_bytes;                            /* it */
    uint64_t free_bytes, resident_bytes;
    uint64_t headroom_bytes, pool_end_bytes; /* of the last boot that says both */
};

/* NOT_FOUND: no such file; INVALID_ARGUMENT: nothing in it says anything about memory. */
enum status plan_calibrate_read(const char *path, struct plan_calibration *calibration_out,
                                struct error *err) MUST_USE;

/* Fit the unknowns with the prices of this case, and let the case be planned with them where its
 * flags left them open. INVALID_ARGUMENT: the log is of more ranks than the case. */
enum status plan_calibrate_fit(struct plan_calibration *calibration, struct plan_case *plan_case,
                               struct error *err) MUST_USE;

#endif
