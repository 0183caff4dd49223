/* Figures that are measured several times, in pairs: printed as CSV (mode, pair, figure, value) as
 * they come, and what to make of them at the end. Of one thread. */
#ifndef ESPALIER_BENCH_FIGURES_H
#define ESPALIER_BENCH_FIGURES_H

#include <stdint.h>

/* The first column of what follows; borrowed. */
void bench_figures_begin(const char *mode);

/* name is borrowed. */
void bench_figures_note(uint32_t pair, const char *name, double value);

/* Every figure's median. */
void bench_figures_print_medians(void);

/* A figure that is a ratio of pairs: how many were above 1 and below, and how likely a fair coin
 * falls as unevenly as that or more (the sign test, two-sided). */
void bench_figures_print_signs(const char *name);

/* Sorts value; count is not 0. */
double bench_figures_percentile(double *value, uint32_t count, double share);

#endif
