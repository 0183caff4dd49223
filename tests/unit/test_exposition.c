/* Histograms and the text that carries them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "exposition.h"
#include "prometheus_text.h"

static void bounds(void **state) {
    (void)state;
    assert_int_equal(histogram_bound_ns(0), 1000);
    assert_int_equal(histogram_bound_ns(1), 2000);
    assert_int_equal(histogram_bound_ns(5), 50000);
    assert_int_equal(histogram_bound_ns(HISTOGRAM_BOUNDS - 1), UINT64_C(500000000000));
    const struct {
        uint64_t ns;
        uint32_t idx;
    } row[] = {{0, 0},
               {1000, 0},
               {1001, 1},
               {2000, 1},
               {2001, 2},
               {UINT64_C(500000000000), HISTOGRAM_BOUNDS - 1},
               {UINT64_MAX, HISTOGRAM_BOUNDS}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct histogram histogram = {.sum_ns = 0};
        histogram_take(&histogram, row[i].ns);
        assert_int_equal(histogram.count[row[i].idx], 1);
        assert_int_equal(histogram_count(&histogram), 1);
        assert_true(histogram.sum_ns == row[i].ns);
    }
    struct histogram a = {.sum_ns = 0}, b = {.sum_ns = 0};
    histogram_take(&a, 1500);
    histogram_take(&b, 1600);
    histogram_take(&b, 7);
    histogram_add(&a, &b);
    assert_int_equal(histogram_count(&a), 3);
    assert_int_equal(a.count[1], 2);
    assert_int_equal(a.sum_ns, 3107);
}

static void text(void **state) {
    (void)state;
    static char out[16384];
    struct exposition exposition;
    char label[EXPOSITION_LABELS_MAX];
    struct histogram histogram = {.sum_ns = 0};
    histogram_take(&histogram, 1500);
    histogram_take(&histogram, 3000000000);
    exposition_begin(&exposition, out, sizeof out);
    exposition_family(&exposition, "x_things_total", "counter", "Things.");
    exposition_count(&exposition, "", UINT64_MAX);
    exposition_family(&exposition, "x_ratio", "gauge", "A ratio.");
    exposition_value(&exposition, exposition_quote("name", "a\"b\\c\nd", label), 0.25);
    exposition_family(&exposition, "x_seconds", "histogram", "Times.");
    exposition_histogram(&exposition, "rank=\"1\"", &histogram);
    exposition_histogram(&exposition, "rank=\"2\"", &histogram);
    prometheus_text_check(out);
    assert_true(prometheus_text_promtool_passes(out));
    assert_non_null(strstr(out, "x_things_total 18446744073709551615\n"));
    assert_non_null(strstr(out, "x_ratio{name=\"a\\\"b\\\\c\\nd\"} 0.25\n"));
    assert_int_equal(prometheus_text_value(out, "x_seconds_bucket{rank=\"1\",le=\"1e-06\"}"), 0);
    assert_int_equal(prometheus_text_value(out, "x_seconds_bucket{rank=\"1\",le=\"2e-06\"}"), 1);
    assert_int_equal(prometheus_text_value(out, "x_seconds_bucket{rank=\"1\",le=\"5\"}"), 2);
    assert_int_equal(prometheus_text_value(out, "x_seconds_count{rank=\"2\"}"), 2);
    assert_float_equal(prometheus_text_value(out, "x_seconds_sum{rank=\"2\"}"), 3.0000015, 1e-7);

    struct http_answer answer = {.body = out};
    exposition_answer(&exposition, &answer);
    assert_int_equal(answer.code, 200);
    assert_int_equal(answer.body_bytes, strlen(out));
}

/* What does not fit is left out whole, and said. */
static void no_room(void **state) {
    (void)state;
    for (size_t bytes = 1; bytes < 120; bytes++) {
        char out[128];
        memset(out, '#', sizeof out);
        struct exposition exposition;
        exposition_begin(&exposition, out, bytes);
        exposition_family(&exposition, "x_one", "gauge", "One.");
        exposition_count(&exposition, "", 1);
        exposition_family(&exposition, "x_two", "gauge", "Two.");
        exposition_count(&exposition, "", 2);
        assert_true(strlen(out) < bytes && exposition.used == strlen(out));
        assert_int_equal(exposition.truncated, exposition.used < 88);
        assert_true(exposition.used == 0 || out[exposition.used - 1] == '\n');
        for (size_t i = bytes; i < sizeof out; i++)
            assert_int_equal(out[i], '#');
        struct http_answer answer = {.body = out};
        exposition_answer(&exposition, &answer);
        assert_int_equal(answer.code, exposition.truncated ? 500 : 200);
    }
    char label[EXPOSITION_LABELS_MAX], longer[2 * EXPOSITION_LABELS_MAX];
    memset(longer, '"', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_true(strlen(exposition_quote("n", longer, label)) < EXPOSITION_LABELS_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bounds), cmocka_unit_test(text),
                                       cmocka_unit_test(no_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
