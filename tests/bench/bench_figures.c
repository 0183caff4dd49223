#include "bench_figures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define VALUES_MAX  512u
#define FIGURES_MAX 16u

static struct figure {
    const char *name;
    double value[VALUES_MAX];
    uint32_t count;
} figures[FIGURES_MAX + 1]; /* the last has no name */

static const char *mode = "";

static int compare(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

double bench_figures_percentile(double *value, uint32_t count, double share) {
    CHECK(count > 0);
    qsort(value, count, sizeof *value, compare);
    return value[(uint32_t)(share * (count - 1) + 0.5)];
}

static struct figure *find(const char *name) {
    struct figure *figure = figures;
    while (figure->name && strcmp(figure->name, name) != 0)
        figure++;
    return figure;
}

void bench_figures_begin(const char *new_mode) {
    mode = new_mode;
}

void bench_figures_note(uint32_t pair, const char *name, double value) {
    struct figure *figure = find(name);
    CHECK(figure < figures + FIGURES_MAX && figure->count < VALUES_MAX);
    figure->name = name;
    figure->value[figure->count++] = value;
    printf("%s,%u,%s,%.4f\n", mode, pair, name, value);
    fflush(stdout);
}

void bench_figures_print_medians(void) {
    for (struct figure *figure = figures; figure->name; figure++)
        printf("# median of %u: %s %.3f\n", figure->count, figure->name,
               bench_figures_percentile(figure->value, figure->count, 0.5));
}

/* The likelihood that of n throws of a fair coin at most k are heads. */
static double tail(uint32_t n, uint32_t k) {
    double sum = 0;
    for (uint32_t i = 0; i <= k; i++)
        sum += exp(lgamma(n + 1.0) - lgamma(i + 1.0) - lgamma(n - i + 1.0) - n * log(2));
    return sum;
}

void bench_figures_print_signs(const char *name) {
    const struct figure *figure = find(name);
    uint32_t above = 0, below = 0;
    for (uint32_t i = 0; i < figure->count; i++) {
        above += figure->value[i] > 1;
        below += figure->value[i] < 1;
    }
    double p = 2 * tail(above + below, above < below ? above : below);
    printf("# signs of %s: %u above 1, %u below, p %.4f\n", name, above, below, p < 1 ? p : 1);
}
