#include "compare.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct worst {
    double excess; /* of the difference over what is allowed; <= 0 is fine */
    size_t outer, row, column;
    double got, want;
    bool found;
};

static float load_float(const struct rig_output *output, size_t at) {
    if (output->type == RIG_BF16) return bf16_to_f32(((const bf16 *)output->data)[at]);
    return ((const float *)output->data)[at];
}

/* What no op has written: a gap between rows, which would outgrow every result. */
static bool is_untouched(const struct rig_output *output, size_t at) {
    const unsigned char *bytes = output->data;
    size_t size = output->type == RIG_BF16 ? sizeof(bf16) : sizeof(float);
    for (size_t i = 0; i < size; i++)
        if (bytes[at * size + i] != RIG_UNTOUCHED) return false;
    return true;
}

static double max_abs(const struct rig_output *output) {
    double max = 0;
    for (size_t i = 0; i < output->outer * output->rows * output->width; i++) {
        if (is_untouched(output, i)) continue;
        double value = fabs((double)load_float(output, i));
        if (isfinite(value) && value > max) max = value;
    }
    return max;
}

/* How far beyond the tolerance; > 0 is a difference. */
static double excess_of(float got, float want, struct compare_tolerance tolerance, double max) {
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : INFINITY;
    bool exact = tolerance.relative == 0 && tolerance.of_max == 0;
    if (exact || isinf(want) || isinf(got)) return memcmp(&got, &want, 4) == 0 ? 0 : INFINITY;
    double allowed = tolerance.relative * fabs((double)want) + tolerance.of_max * max;
    return fabs((double)got - (double)want) - allowed;
}

static void visit(struct worst *worst, const struct rig_output *got, size_t got_at,
                  const struct rig_output *want, size_t want_at, size_t outer, size_t row,
                  size_t column, struct compare_tolerance tolerance, double max) {
    double excess, g, w;
    if (want->type == RIG_U32) {
        g = ((const uint32_t *)got->data)[got_at];
        w = ((const uint32_t *)want->data)[want_at];
        excess = g == w ? 0 : INFINITY;
    } else {
        float gf = load_float(got, got_at), wf = load_float(want, want_at);
        g = (double)gf;
        w = (double)wf;
        excess = excess_of(gf, wf, tolerance, max);
    }
    if (excess > 0 && (!worst->found || excess > worst->excess))
        *worst = (struct worst){excess, outer, row, column, g, w, true};
}

bool compare_outputs(const char *label, const struct rig_output *got, size_t got_row,
                     const struct rig_output *want, size_t want_row,
                     struct compare_tolerance tolerance) {
    bool all = want_row == SIZE_MAX;
    double max = want->type == RIG_U32 || tolerance.of_max == 0 ? 0 : max_abs(want);
    struct worst worst = {0};
    size_t different = 0;
    for (size_t outer = 0; outer < want->outer; outer++) {
        for (size_t r = 0; r < (all ? want->rows : 1); r++) {
            size_t got_at = (outer * got->rows + (all ? r : got_row)) * got->width;
            size_t want_at = (outer * want->rows + (all ? r : want_row)) * want->width;
            for (size_t i = 0; i < want->width; i++) {
                struct worst one = {0};
                visit(&one, got, got_at + i, want, want_at + i, outer, all ? r : want_row, i,
                      tolerance, max);
                different += one.found;
                if (one.found && (!worst.found || one.excess > worst.excess)) worst = one;
            }
        }
    }
    if (worst.found)
        fprintf(stderr,
                "%s: %s differs in %zu places; worst at [%zu,%zu,%zu]: %.9g, expected %.9g\n",
                label, want->name, different, worst.outer, worst.row, worst.column, worst.got,
                worst.want);
    return !worst.found;
}

bool compare_floats(const char *label, const float *got, const float *want, size_t count,
                    struct compare_tolerance tolerance) {
    struct rig_output g = {"values", (void *)(uintptr_t)got, NULL, RIG_F32, 1, 1, count};
    struct rig_output w = {"values", (void *)(uintptr_t)want, NULL, RIG_F32, 1, 1, count};
    return compare_outputs(label, &g, SIZE_MAX, &w, SIZE_MAX, tolerance);
}
