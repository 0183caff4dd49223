/* The roofs of tests/gpu: that they take the instruction of the device, and count what they do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>

#include "roof_cuda.h"
#include "simt.h"
#include "simt_worlds.h"

#define ROUNDS 2u

static void operations_are_those_done(void **state) {
    (void)state;
    const struct kernel_device devices[] = {
        {.multiprocessors = 1, .shared_bytes_max = SIMT_SM120_SHARED_BYTES},
        {.multiprocessors = 2, .shared_bytes_max = SIMT_SM90_SHARED_BYTES, .has_wgmma = true},
    };
    for (size_t d = 0; d < 2; d++)
        for (size_t s = 0; s < SIMT_ORDER_COUNT; s++) {
            struct kernel_ctx ctx = {.device = &devices[d]};
            struct simt_report report;
            uint32_t sink = 0;
            simt_begin(simt_schedules[s].schedule, &report);
            double operations = roof_cuda_multiply(ROUNDS, &sink, &ctx);
            if (report.failed) fail_msg("%s", report.text);
            assert_int_equal(sink, 0);
            assert_true(operations == (double)report.counters.products * 2 * 16 * 8 * 16);
            assert_int_equal(report.counters.barriers, devices[d].has_wgmma ? 2 : 0);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(operations_are_those_done)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
