/* The limit of a wait within an operation, with comm_shm built for a short one: a rank that lives
 * and does not come is blamed by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <time.h>

#include "comm_ranks.h"
#include "comm_shm.h"

static bool expect_late(struct comm *comm, enum status status, const struct error *err) {
    if (status == STATUS_DEADLINE_EXCEEDED && !strcmp(err->text, "rank 1 did not come in time"))
        return true;
    fprintf(stderr, "rank %u: %s: %s\n", comm_rank(comm), status_name(status), err->text);
    return false;
}

/* Rank 1 comes to the first sum and to nothing after. */
static bool second_sum_lacks_a_rank(struct comm *comm, void *user) {
    (void)user;
    float one = 1;
    struct error err = {0};
    if (comm_all_reduce(comm, &one, 1, &err) != STATUS_OK) return false;
    if (comm_rank(comm) == 1)
        nanosleep(&(struct timespec){.tv_sec = 1 + 4 * COMM_SHM_WAIT_MS / 1000}, NULL);
    return expect_late(comm, comm_all_reduce(comm, &one, 1, &err), &err);
}

static bool message_never_sent(struct comm *comm, void *user) {
    (void)user;
    char message[4];
    struct error err = {0};
    if (comm_rank(comm) == 1)
        nanosleep(&(struct timespec){.tv_sec = 1 + 4 * COMM_SHM_WAIT_MS / 1000}, NULL);
    if (comm_rank(comm) == 0)
        return expect_late(comm, comm_recv(comm, 1, message, sizeof message, &err), &err);
    return true;
}

static void test_a_late_rank_is_named(void **state) {
    (void)state;
    assert_true(comm_ranks_threads(3, second_sum_lacks_a_rank, NULL));
    assert_true(comm_ranks_threads(2, message_never_sent, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_late_rank_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
