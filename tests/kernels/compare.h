/* Comparators of outputs. Both print the worst place, with its coordinates, and return false
 * unless the arrays agree. */
#ifndef ESPALIER_COMPARE_H
#define ESPALIER_COMPARE_H

#include "rig.h"

/* |got - want| <= relative * |want| + of_max * max|want|; NaN, infinities and integers must match.
 * Both zero: the same bits, NaN payloads aside. */
struct compare_tolerance {
    double relative;
    double of_max;
};

/* Row got_row of every outer index of got against want_row of want; SIZE_MAX: all rows. */
bool compare_outputs(const char *label, const struct rig_output *got, size_t got_row,
                     const struct rig_output *want, size_t want_row,
                     struct compare_tolerance tolerance);

/* Flat arrays of floats. */
bool compare_floats(const char *label, const float *got, const float *want, size_t count,
                    struct compare_tolerance tolerance);

#endif
