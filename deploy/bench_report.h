/* What a load has shown, for people and for programs. */
#ifndef ESPALIER_BENCH_REPORT_H
#define ESPALIER_BENCH_REPORT_H

#include "bench_load.h"

/* What the group counted meanwhile, for all its callers. */
struct bench_report_group {
    bool is_known; /* false: it could not be asked, or is another by now */
    uint64_t steps, tokens_generated;
    uint64_t trees, guesses, accepted; /* guesses verified; 0 trees: it did not guess */
};

/* The difference of two snapshots. */
struct bench_report_group bench_report_group_between(const struct snapshot *before,
                                                     const struct snapshot *after);

/* On standard output. Times are sorted in place. False where it cannot be written. */
bool bench_report_print(const struct bench_load *load, struct bench_load_result *result,
                        const struct bench_report_group *group, bool json);

#endif
