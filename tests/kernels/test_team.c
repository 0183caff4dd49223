#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "team.h"

#define TASKS_MAX 1000u

struct record {
    uint32_t plain[TASKS_MAX]; /* not atomic: a task run twice at once is a race to be seen */
    uint32_t threads;
    atomic_uint wrong_thread;
    uint32_t step;
};

static void mark(void *arg, uint32_t task, uint32_t thread) {
    struct record *record = arg;
    if (thread >= record->threads) atomic_fetch_add(&record->wrong_thread, 1);
    record->plain[task] += record->step;
}

/* Every task once, whatever the size of the team and of the work, run after run. */
static void test_each_task_once(void **state) {
    (void)state;
    static const struct {
        uint32_t threads, spin;
    } teams[] = {{1, 0}, {2, 0}, {3, 0}, {3, 300}, {7, 20}};
    static const uint32_t counts[] = {0, 1, 2, 3, 7, 64, TASKS_MAX};
    for (size_t t = 0; t < sizeof(teams) / sizeof(teams[0]); t++) {
        struct kernel_team *team = team_create(teams[t].threads, teams[t].spin);
        assert_non_null(team);
        assert_int_equal(team_threads(team), teams[t].threads);
        for (uint32_t run = 0; run < 300; run++) {
            struct record record = {.threads = teams[t].threads, .step = run + 1};
            uint32_t count = counts[run % 7];
            team_run(team, mark, &record, count);
            assert_int_equal(atomic_load(&record.wrong_thread), 0);
            for (uint32_t i = 0; i < TASKS_MAX; i++)
                assert_int_equal(record.plain[i], i < count ? run + 1 : 0);
        }
        team_destroy(&team);
        assert_null(team);
    }
}

static void test_no_team(void **state) {
    (void)state;
    struct kernel_team *none = NULL;
    struct record record = {.threads = 1, .step = 1};
    assert_int_equal(team_threads(NULL), 1);
    team_run(NULL, mark, &record, 10);
    for (uint32_t i = 0; i < TASKS_MAX; i++)
        assert_int_equal(record.plain[i], i < 10);
    team_destroy(&none);
}

struct meeting {
    atomic_uint arrived;
};

static void meet(void *arg, uint32_t task, uint32_t thread) {
    (void)task, (void)thread;
    struct meeting *meeting = arg;
    atomic_fetch_add(&meeting->arrived, 1);
    while (atomic_load(&meeting->arrived) < 2)
        usleep(100);
}

/* Two tasks that wait for each other end only if two threads run them, so a sleeping member is
 * woken; and the caller, done first or last, waits for the other. */
static void test_members_wake(void **state) {
    (void)state;
    struct kernel_team *team = team_create(2, 0);
    assert_non_null(team);
    for (uint32_t run = 0; run < 50; run++) {
        struct meeting meeting = {0};
        if (run % 10 == 0) usleep(2000); /* let the member fall asleep */
        team_run(team, meet, &meeting, 2);
        assert_int_equal(atomic_load(&meeting.arrived), 2);
    }
    team_destroy(&team);
}

#define SHARE 4u

struct beginnings {
    atomic_uint arrived;
    uint32_t first[2]; /* task of each thread */
    bool has_begun[2];
};

/* Nobody takes a second task before both have taken their first. */
static void begin(void *arg, uint32_t task, uint32_t thread) {
    struct beginnings *beginnings = arg;
    if (!beginnings->has_begun[thread]) {
        beginnings->has_begun[thread] = true;
        beginnings->first[thread] = task;
        atomic_fetch_add(&beginnings->arrived, 1);
    }
    while (atomic_load(&beginnings->arrived) < 2)
        usleep(100);
}

/* Half of the tasks each, the first half to the caller. */
static void test_threads_begin_apart(void **state) {
    (void)state;
    struct kernel_team *team = team_create(2, 0);
    assert_non_null(team);
    for (uint32_t run = 0; run < 50; run++) {
        struct beginnings beginnings = {0};
        team_run(team, begin, &beginnings, 2 * SHARE);
        assert_int_equal(beginnings.first[0], 0);
        assert_int_equal(beginnings.first[1], SHARE);
    }
    team_destroy(&team);
}

static void test_destroyed_at_once(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 50; i++) {
        struct kernel_team *team = team_create(4, i % 2 ? 0 : 100);
        assert_non_null(team);
        team_destroy(&team);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_task_once),    cmocka_unit_test(test_no_team),
        cmocka_unit_test(test_members_wake),      cmocka_unit_test(test_threads_begin_apart),
        cmocka_unit_test(test_destroyed_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
