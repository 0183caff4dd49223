/* Collectives: sums against a double sum and, bit for bit, against the tree that comm.h states;
 * every size and alignment; operations in any succession; and what happens when a rank dies,
 * leaves, aborts, comes late or comes with something else. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "comm_ranks.h"

#define FLOATS_MAX 700001u
#define BYTES_MAX  ((3u << 20) + 5)

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

/* In a rank: say what is wrong and give up. */
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "rank %u: %s (line %d)\n", comm_rank(comm), #condition, __LINE__);     \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

static const uint32_t SIZES[] = {1, 2, 3, 4, 5, 7, 8};

/* What a rank puts in at i: exponents differ, so that the order of a sum shows in its bits. */
static float value_of(uint32_t rank, size_t i, uint64_t salt) {
    uint64_t bits = hash_mix(salt + rank * UINT64_C(0x9e3779b97f4a7c15) + i);
    float mantissa = (float)(bits & 0xffffff) / 0x1p24f + 1.0f;
    return ldexpf(bits & (1u << 24) ? -mantissa : mantissa, (int)(bits >> 60) - 8);
}

static uint8_t byte_of(uint32_t rank, size_t i, uint64_t salt) {
    return (uint8_t)hash_mix(salt + rank * UINT64_C(0x9e3779b97f4a7c15) + i);
}

/* ((0+1)+(2+3))+((4+5)+(6+7)), and its part for fewer ranks, written out. */
static float tree_of(const float *v, uint32_t size) {
    switch (size) {
    case 1: return v[0];
    case 2: return v[0] + v[1];
    case 3: return (v[0] + v[1]) + v[2];
    case 4: return (v[0] + v[1]) + (v[2] + v[3]);
    case 5: return ((v[0] + v[1]) + (v[2] + v[3])) + v[4];
    case 7: return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + v[6]);
    default: return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    }
}

static bool check_sum(const float *data, size_t count, uint32_t size, uint64_t salt) {
    for (size_t i = 0; i < count; i++) {
        float v[TP_MAX];
        double sum = 0, magnitude = 0;
        for (uint32_t rank = 0; rank < size; rank++) {
            v[rank] = value_of(rank, i, salt);
            sum += (double)v[rank];
            magnitude += fabs((double)v[rank]);
        }
        float tree = tree_of(v, size);
        if (memcmp(&tree, &data[i], sizeof tree) != 0 ||
            fabs((double)data[i] - sum) > 4 * 0x1p-24 * magnitude)
            return false;
    }
    return true;
}

static bool sum_once(struct comm *comm, float *data, size_t count, uint64_t salt) {
    for (size_t i = 0; i < count; i++)
        data[i] = value_of(comm_rank(comm), i, salt);
    float after = data[count] = 17.0f;
    EXPECT(comm_all_reduce(comm, data, count, NULL) == STATUS_OK);
    EXPECT(check_sum(data, count, comm_size(comm), salt));
    EXPECT(data[count] == after);
    return true;
}

static bool sums_of_every_count(struct comm *comm, void *user) {
    (void)user;
    const size_t counts[] = {0, 1, 2, 15, 16, 17, 31, 1023, 1024, 1025, 2048, 4097, 65537};
    float *data = malloc((FLOATS_MAX + 8) * sizeof *data);
    EXPECT(data != NULL);
    uint64_t salt = 1;
    for (size_t c = 0; c < COUNT_OF(counts); c++)
        for (size_t offset = 0; offset < 2; offset++)
            EXPECT(sum_once(comm, data + offset, counts[c], salt++ << 32));
    free(data);
    return true;
}

static bool sums_of_many_pieces(struct comm *comm, void *user) {
    (void)user;
    const size_t counts[] = {262143, 262144, 262145, FLOATS_MAX};
    float *data = malloc((FLOATS_MAX + 8) * sizeof *data);
    EXPECT(data != NULL);
    for (size_t c = 0; c < COUNT_OF(counts); c++)
        EXPECT(sum_once(comm, data + 1, counts[c], (uint64_t)(c + 1) << 33));
    free(data);
    return true;
}

static bool gather_once(struct comm *comm, uint8_t *mine, uint8_t *out, size_t bytes, bool in_place,
                        uint64_t salt) {
    uint8_t *source = in_place ? out + comm_rank(comm) * bytes : mine;
    for (size_t i = 0; i < bytes; i++)
        source[i] = byte_of(comm_rank(comm), i, salt);
    EXPECT(comm_all_gather(comm, source, bytes, out, NULL) == STATUS_OK);
    for (uint32_t rank = 0; rank < comm_size(comm); rank++)
        for (size_t i = 0; i < bytes; i++)
            EXPECT(out[rank * bytes + i] == byte_of(rank, i, salt));
    return true;
}

static bool broadcast_once(struct comm *comm, uint8_t *data, size_t bytes, uint32_t root,
                           uint64_t salt) {
    for (size_t i = 0; i < bytes; i++)
        data[i] = byte_of(comm_rank(comm), i, salt);
    EXPECT(comm_broadcast(comm, data, bytes, root, NULL) == STATUS_OK);
    for (size_t i = 0; i < bytes; i++)
        EXPECT(data[i] == byte_of(root, i, salt));
    return true;
}

static bool gathers_and_broadcasts(struct comm *comm, void *user) {
    (void)user;
    const size_t sizes[] = {0, 1, 63, 64, 4097, 1u << 20, (1u << 20) + 1, BYTES_MAX};
    uint8_t *mine = malloc(BYTES_MAX), *out = malloc((size_t)TP_MAX * BYTES_MAX);
    EXPECT(mine != NULL && out != NULL);
    uint64_t salt = 77;
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        EXPECT(gather_once(comm, mine, out, sizes[s], false, salt++ << 32));
        EXPECT(gather_once(comm, mine, out, sizes[s], true, salt++ << 32));
        EXPECT(broadcast_once(comm, out, sizes[s], (uint32_t)s % comm_size(comm), salt++ << 32));
    }
    free(mine);
    free(out);
    return true;
}

/* Thousands of operations of all kinds in one random order, ranks out of step by random pauses:
 * what an operation wrote must not be seen by the next. */
static bool operations_in_any_succession(struct comm *comm, void *user) {
    const uint32_t operations = *(const uint32_t *)user;
    static _Thread_local float data[4096 + 1];
    static _Thread_local uint8_t mine[1024], out[TP_MAX * 1024];
    uint64_t common = 4711, own = comm_rank(comm);
    for (uint32_t i = 0; i < operations; i++) {
        common = hash_mix(common + 1);
        own = hash_mix(own + i);
        if (own % 8 == 0) sched_yield();
        if (own % 97 == 0) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        switch (common % 4) {
        case 0: EXPECT(sum_once(comm, data, common % 1024, common)); break;
        case 1: EXPECT(sum_once(comm, data, common % 4096, common)); break;
        case 2: EXPECT(gather_once(comm, mine, out, common % 1024, common & 64, common)); break;
        default:
            EXPECT(broadcast_once(comm, mine, common % 1024, (uint32_t)(common % comm_size(comm)),
                                  common));
        }
    }
    EXPECT(comm_sequence(comm) == operations);
    return true;
}

/* Round the ring, then back: each rank speaks and hears once each way. A sum at the end keeps
 * everybody until all have heard. */
static bool messages_round_the_ring(struct comm *comm, void *user) {
    (void)user;
    const size_t sizes[] = {0, 1, 65535, 65536, 65537, 1000003};
    uint32_t rank = comm_rank(comm), size = comm_size(comm);
    uint8_t *mine = malloc(1u << 20), *theirs = malloc(1u << 20);
    EXPECT(mine != NULL && theirs != NULL);
    for (uint32_t turn = 0; turn < 2 * COUNT_OF(sizes); turn++) {
        size_t bytes = sizes[turn / 2];
        uint32_t next = (rank + (turn % 2 ? size - 1 : 1)) % size;
        uint32_t previous = (rank + (turn % 2 ? 1 : size - 1)) % size;
        for (size_t i = 0; i < bytes; i++)
            mine[i] = byte_of(rank, i, turn);
        if (rank > 0) EXPECT(comm_recv(comm, previous, theirs, bytes, NULL) == STATUS_OK);
        EXPECT(comm_send(comm, next, mine, bytes, NULL) == STATUS_OK);
        if (rank == 0) EXPECT(comm_recv(comm, previous, theirs, bytes, NULL) == STATUS_OK);
        for (size_t i = 0; i < bytes; i++)
            EXPECT(theirs[i] == byte_of(previous, i, turn));
    }
    free(mine);
    free(theirs);
    float one = 1;
    EXPECT(comm_all_reduce(comm, &one, 1, NULL) == STATUS_OK);
    return true;
}

static void test_values_in_threads(void **state) {
    (void)state;
    for (size_t s = 0; s < COUNT_OF(SIZES); s++) {
        assert_true(comm_ranks_threads(SIZES[s], sums_of_every_count, NULL));
        if (SIZES[s] > 1) assert_true(comm_ranks_threads(SIZES[s], messages_round_the_ring, NULL));
    }
}

static void test_values_in_processes(void **state) {
    (void)state;
    const uint32_t sizes[] = {1, 2, 8};
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        assert_true(comm_ranks_processes(sizes[s], sums_of_many_pieces, NULL));
        assert_true(comm_ranks_processes(sizes[s], gathers_and_broadcasts, NULL));
    }
}

/* Eight ranks where there are fewer CPUs: nobody may spin away another's time. */
static void test_any_succession(void **state) {
    (void)state;
    uint32_t operations = 1000;
    assert_true(comm_ranks_processes(8, operations_in_any_succession, &operations));
    assert_true(comm_ranks_threads(2, operations_in_any_succession, &operations));
    operations = 300;
    assert_true(comm_ranks_threads(8, operations_in_any_succession, &operations));
}

/* ============================== faults ======================================================== */

static enum status sum_until_error(struct comm *comm, struct error *err) {
    float data[64] = {0};
    for (;;) {
        enum status status = comm_all_reduce(comm, data, 64, err);
        if (status != STATUS_OK) return status;
    }
}

static bool second_rank_is_killed(struct comm *comm, void *user) {
    (void)user;
    struct error err;
    float data[64] = {0};
    for (int i = 0; i < 5; i++)
        EXPECT(comm_all_reduce(comm, data, 64, NULL) == STATUS_OK);
    if (comm_rank(comm) == 2) raise(SIGKILL);
    EXPECT(sum_until_error(comm, &err) == STATUS_UNAVAILABLE);
    EXPECT(strncmp(err.text, "rank 2 (pid ", 12) == 0);
    EXPECT(comm_all_reduce(comm, data, 64, &err) == STATUS_UNAVAILABLE);
    return true;
}

/* Whether or not its parent has taken note of the death. */
static void test_a_killed_rank_frees_all_others(void **state) {
    (void)state;
    for (int reaped_at_once = 0; reaped_at_once < 2; reaped_at_once++) {
        struct comm_seed *seed = NULL;
        struct comm_key key;
        pid_t pid[4];
        assert_int_equal(comm_seed_create(&comm_host, 4, RANKS_GENERATION, &seed, &key, NULL),
                         STATUS_OK);
        for (uint32_t rank = 0; rank < 4; rank++)
            pid[rank] = comm_ranks_fork(&key, rank, 4, second_rank_is_killed, NULL);
        if (reaped_at_once) assert_int_equal(comm_ranks_await(pid[2]), SIGKILL);
        assert_int_equal(comm_ranks_await(pid[0]), 0);
        assert_int_equal(comm_ranks_await(pid[1]), 0);
        assert_int_equal(comm_ranks_await(pid[3]), 0);
        if (!reaped_at_once) assert_int_equal(comm_ranks_await(pid[2]), SIGKILL);
        comm_seed_destroy(&seed);
    }
}

static void *abort_soon(void *arg) {
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    comm_abort(arg);
    return NULL;
}

/* Rank 1 aborts from another thread while it does not take part; the others wait for it, in a sum
 * or for a message. */
static bool first_rank_aborts(struct comm *comm, void *user) {
    (void)user;
    struct error err;
    pthread_t thread;
    char message[16];
    switch (comm_rank(comm)) {
    case 1:
        EXPECT(pthread_create(&thread, NULL, abort_soon, comm) == 0);
        pthread_join(thread, NULL);
        EXPECT(sum_until_error(comm, &err) == STATUS_ABORTED);
        break;
    case 3: EXPECT(comm_recv(comm, 1, message, sizeof message, &err) == STATUS_ABORTED); break;
    default: EXPECT(sum_until_error(comm, &err) == STATUS_ABORTED);
    }
    EXPECT(strcmp(err.text, "collectives were aborted by rank 1") == 0);
    return true;
}

static bool only_rank_aborts(struct comm *comm, void *user) {
    (void)user;
    float one = 1;
    EXPECT(comm_all_reduce(comm, &one, 1, NULL) == STATUS_OK);
    comm_abort(comm);
    EXPECT(comm_all_reduce(comm, &one, 1, NULL) == STATUS_ABORTED);
    EXPECT(comm_all_gather(comm, &one, 4, &one, NULL) == STATUS_ABORTED);
    EXPECT(comm_broadcast(comm, &one, 4, 0, NULL) == STATUS_ABORTED);
    return true;
}

static void test_abort_frees_all(void **state) {
    (void)state;
    assert_true(comm_ranks_threads(1, only_rank_aborts, NULL));
    assert_true(comm_ranks_threads(4, first_rank_aborts, NULL));
    assert_true(comm_ranks_processes(4, first_rank_aborts, NULL));
}

static bool last_rank_leaves(struct comm *comm, void *user) {
    (void)user;
    struct error err;
    float one = 1;
    EXPECT(comm_all_reduce(comm, &one, 1, NULL) == STATUS_OK);
    if (comm_rank(comm) == comm_size(comm) - 1) return true;
    EXPECT(sum_until_error(comm, &err) == STATUS_UNAVAILABLE);
    EXPECT(strcmp(err.text, "rank 2 left the group") == 0);
    return true;
}

static bool sum_and_leave(struct comm *comm, void *user) {
    (void)user;
    float one = 1;
    EXPECT(comm_all_reduce(comm, &one, 1, NULL) == STATUS_OK);
    EXPECT(one == (float)comm_size(comm));
    return true;
}

/* Those who wait for a rank that left are told; but an operation that ended for the rank that left
 * first has ended for all. */
static void test_leaving(void **state) {
    (void)state;
    assert_true(comm_ranks_threads(3, last_rank_leaves, NULL));
    for (int i = 0; i < 100; i++)
        assert_true(comm_ranks_threads(4, sum_and_leave, NULL));
}

static bool third_rank_differs(struct comm *comm, void *user) {
    const int what = *(const int *)user;
    bool other = comm_rank(comm) == 2;
    float data[2048] = {0};
    uint8_t bytes[4 * 64] = {0};
    enum status status = STATUS_OK;
    struct error err = {0};
    switch (what) {
    case 0: status = comm_all_reduce(comm, data, other ? 63 : 64, &err); break;
    case 1: status = comm_all_reduce(comm, data, other ? 64 : 2048, &err); break;
    case 2: status = comm_broadcast(comm, data, 64, other ? 1 : 0, &err); break;
    case 3:
        status = other ? comm_all_gather(comm, data, 64, bytes, &err)
                       : comm_broadcast(comm, data, 64, 0, &err);
        break;
    default: return false;
    }
    EXPECT(status == STATUS_INTERNAL);
    EXPECT(strstr(err.text, "another operation or size") != NULL);
    return true;
}

static bool message_of_another_size(struct comm *comm, void *user) {
    (void)user;
    char message[8] = {0};
    struct error err;
    if (comm_rank(comm) == 0) {
        EXPECT(comm_send(comm, 1, message, 8, NULL) == STATUS_OK);
        EXPECT(sum_until_error(comm, &err) == STATUS_INTERNAL);
    } else {
        EXPECT(comm_recv(comm, 0, message, 7, &err) == STATUS_INTERNAL);
    }
    EXPECT(strstr(err.text, "another operation or size") != NULL);
    return true;
}

static void test_different_operations_are_found_out(void **state) {
    (void)state;
    for (int what = 0; what < 4; what++)
        assert_true(comm_ranks_threads(4, third_rank_differs, &what));
    assert_true(comm_ranks_threads(2, message_of_another_size, NULL));
}

/* ============================== joining ======================================================= */

static void test_a_rank_that_does_not_come(void **state) {
    (void)state;
    struct comm_seed *seed = NULL;
    struct comm_key key;
    struct comm *comm = NULL;
    struct error err;
    assert_int_equal(comm_seed_create(&comm_host, 2, 9, &seed, &key, &err), STATUS_OK);
    assert_int_equal(comm_join(&comm_host, &key, 0, 2, 9, 200, NULL, &comm, &err),
                     STATUS_DEADLINE_EXCEEDED);
    assert_string_equal(err.text, "rank 1 did not come in time");
    assert_int_equal(comm_join(&comm_host, &key, 1, 2, 9, 200, NULL, &comm, &err),
                     STATUS_DEADLINE_EXCEEDED);
    assert_null(comm);
    comm_seed_destroy(&seed);
}

/* Told to stop before it waits, or while it does: what matters is that it does not wait on. */
static void test_a_join_called_off(void **state) {
    (void)state;
    struct comm_seed *seed = NULL;
    struct comm_key key;
    struct comm *comm = NULL;
    struct error err;
    const _Atomic bool cancel = true;
    assert_int_equal(comm_seed_create(&comm_host, 3, 9, &seed, &key, &err), STATUS_OK);
    assert_int_equal(comm_join(&comm_host, &key, 1, 3, 9, 60000, &cancel, &comm, &err),
                     STATUS_ABORTED);
    assert_int_equal(comm_join(&comm_host, &key, 0, 3, 9, 60000, NULL, &comm, &err),
                     STATUS_ABORTED);
    assert_string_equal(err.text, "collectives were aborted by rank 1");
    assert_null(comm);
    comm_seed_destroy(&seed);
}

static struct comm_key key_of(const char *text) {
    struct comm_key key = {.bytes = (uint32_t)strlen(text)};
    memcpy(key.data, text, key.bytes);
    return key;
}

static void test_bad_keys(void **state) {
    (void)state;
    struct comm_seed *seed = NULL;
    struct comm_key key;
    struct comm *comm = NULL;
    struct error err;
    assert_int_equal(comm_seed_create(&comm_host, 3, 9, &seed, &key, &err), STATUS_OK);
    assert_int_equal(comm_join(&comm_host, &key, 0, 3, 8, 100, NULL, &comm, &err),
                     STATUS_UNAVAILABLE);
    assert_string_equal(err.text, "the group's key is of generation 9, not 8");
    assert_int_equal(comm_join(&comm_host, &key, 0, 2, 9, 100, NULL, &comm, &err),
                     STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.text, "the group's key is for 3 ranks, not 2");
    assert_int_equal(comm_join(&comm_host, &key, 0, 8, 9, 100, NULL, &comm, &err),
                     STATUS_INVALID_ARGUMENT);

    struct comm_key other = key;
    uint8_t *digit = &other.data[other.bytes - 1];
    *digit = *digit == '0' ? '1' : '0';
    assert_int_equal(comm_join(&comm_host, &other, 0, 3, 9, 100, NULL, &comm, &err),
                     STATUS_UNAVAILABLE);
    comm_seed_destroy(&seed);
    assert_int_equal(comm_join(&comm_host, &key, 0, 3, 9, 100, NULL, &comm, &err),
                     STATUS_UNAVAILABLE);

    /* The number of the seed's descriptor, used again by something else. */
    unsigned number = 0;
    assert_int_equal(sscanf(strstr((const char *)key.data, "fd/"), "fd/%u", &number), 1);
    int fd = memfd_create("other", MFD_ALLOW_SEALING);
    assert_int_equal(dup2(fd, (int)number), (int)number);
    assert_int_equal(comm_join(&comm_host, &key, 0, 3, 9, 100, NULL, &comm, &err),
                     STATUS_UNAVAILABLE);
    assert_int_equal(fcntl((int)number, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    assert_int_equal(comm_join(&comm_host, &key, 0, 3, 9, 100, NULL, &comm, &err),
                     STATUS_UNAVAILABLE);
    if (fd != (int)number) close(fd);
    close((int)number);

    const char *const bad[] = {"",
                               "/dev/zero",
                               "/proc/1/fd/x#0000000000000000",
                               "/proc/1/fd/2",
                               "/proc/1/fd/2#123",
                               "/proc/1/fd/2#0000000000000000 ",
                               "/proc/1/fd/2/../2#0000000000000000"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        other = key_of(bad[i]);
        assert_int_equal(comm_join(&comm_host, &other, 0, 3, 9, 100, NULL, &comm, &err),
                         STATUS_INVALID_ARGUMENT);
    }
    assert_null(comm);
}

static bool another_of_my_rank(struct comm *comm, void *user) {
    struct comm *twin = NULL;
    struct error err;
    EXPECT(comm_join(&comm_host, user, comm_rank(comm), 2, RANKS_GENERATION, 100, NULL, &twin,
                     &err) == STATUS_ALREADY_EXISTS);
    float one = 1;
    EXPECT(comm_all_reduce(comm, &one, 1, NULL) == STATUS_OK);
    return true;
}

static void test_a_rank_joins_once(void **state) {
    (void)state;
    struct comm_seed *seed = NULL;
    struct comm_key key;
    assert_int_equal(comm_seed_create(&comm_host, 2, RANKS_GENERATION, &seed, &key, NULL),
                     STATUS_OK);
    pid_t first = comm_ranks_fork(&key, 0, 2, another_of_my_rank, &key);
    pid_t second = comm_ranks_fork(&key, 1, 2, another_of_my_rank, &key);
    assert_int_equal(comm_ranks_await(first), 0);
    assert_int_equal(comm_ranks_await(second), 0);
    comm_seed_destroy(&seed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_in_threads),
        cmocka_unit_test(test_values_in_processes),
        cmocka_unit_test(test_any_succession),
        cmocka_unit_test(test_a_killed_rank_frees_all_others),
        cmocka_unit_test(test_abort_frees_all),
        cmocka_unit_test(test_leaving),
        cmocka_unit_test(test_different_operations_are_found_out),
        cmocka_unit_test(test_a_rank_that_does_not_come),
        cmocka_unit_test(test_a_join_called_off),
        cmocka_unit_test(test_bad_keys),
        cmocka_unit_test(test_a_rank_joins_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
