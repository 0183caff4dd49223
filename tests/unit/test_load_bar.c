/* One bar for all ranks, whatever they report. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "load_bar.h"

static struct rank_status rank(enum rank_state state, uint64_t bytes, uint64_t total) {
    return (struct rank_status){
        .state = state, .load_bytes = bytes, .load_bytes_total = total, .probe = ""};
}

/* Both ranks have read all they have to. */
static struct rank_status in_test(enum self_test rung, uint32_t percent) {
    struct rank_status status = rank(RANK_LOADING, 10, 10);
    status.rank = rung == SELF_TEST_ATTENTION;
    status.self_test = rung;
    status.self_test_percent = percent;
    return status;
}

static void texts(void **state) {
    (void)state;
    static const uint64_t second_ns = 1000000000;
    const struct {
        struct rank_status rank[2];
        uint64_t elapsed_ns;
        unsigned columns;
        const char *text;
    } rows[] = {
        {{rank(RANK_ABSENT, 0, 0), rank(RANK_ABSENT, 0, 0)}, 0, 200, "waiting for workers: 0 of 2"},
        {{rank(RANK_LOADING, 0, 0), rank(RANK_LOST, 0, 0)}, 0, 200, "waiting for workers: 1 of 2"},
        {{rank(RANK_LOADING, 5000000, 10000000), rank(RANK_LOADED, 10000000, 10000000)},
         3 * second_ns,
         200,
         "loading [########--]  75 %  15.0/20.0 MB  5.0 MB/s  0:01 left  1/2 ranks"},
        {{rank(RANK_LOADING, 1000000000000, 4000000000000), rank(RANK_ABSENT, 0, 0)},
         100 * second_ns,
         200,
         "loading [###-------]  25 %  1000.0/4000.0 GB  10000.0 MB/s  5:00 left  0/2 ranks"},
        {{rank(RANK_READY, 30, 20), rank(RANK_READY, 20, 20)},
         second_ns,
         200,
         "loading [##########] 100 %  0.0/0.0 MB  0.0 MB/s  0:00 left  2/2 ranks"},
        {{in_test(SELF_TEST_POOL, 43), in_test(SELF_TEST_ATTENTION, 50)},
         0,
         200,
         "self-test: attention, 50 % on rank 1; 0/2 ranks loaded"},
        {{rank(RANK_LOADING, 0, 10), rank(RANK_LOADING, 0, 10)}, 0, 15, "loading [------"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct snapshot snapshot = {.tp = 2, .rank = rows[i].rank, .rank_count = 2};
        char text[256];
        load_bar_format(&snapshot, rows[i].elapsed_ns, rows[i].columns, text, sizeof text);
        assert_string_equal(text, rows[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
