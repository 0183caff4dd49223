/* comm_nccl on emulated streams against a stub of NCCL: what collectives compute, and that nothing
 * NCCL may do to its callers hangs them. Ranks are threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm_nccl.h"
#include "simt_cuda.h"
#include "stub_nccl.h"

#define COUNT     100u
#define BYTES     (COUNT * sizeof(float))
#define WAIT_MS   400u   /* for what will not come */
#define LONG_MS   30000u /* for what will */
#define RANKS_MAX 8u

struct rank;
typedef enum status body_fn(struct rank *rank, struct error *err);

struct rank {
    uint32_t rank, size;
    const struct comm_key *key;
    uint32_t join_ms, wait_ms;
    bool alone; /* wait_ms is that of one rank, the others are patient */
    const _Atomic bool *cancel;
    body_fn *body;
    struct comm *_Atomic comm; /* the test may abort it */
    cudaStream_t stream;
    float *device, *host; /* [size, COUNT]: device memory, pinned memory */
    enum status joined, status;
    struct error err;
    pthread_t thread;
};

static struct rank ranks[RANKS_MAX];

/* Who aborts a communicator and who closes it keep apart, as by the engine's lock. */
static pthread_mutex_t closing[RANKS_MAX] = {
    [0 ... RANKS_MAX - 1] = PTHREAD_MUTEX_INITIALIZER,
};

static void check(cudaError_t error) {
    if (error != cudaSuccess) abort(); /* cmocka's jumps are for its own thread */
}

static float value_of(uint32_t rank, uint32_t i) {
    return (float)(rank + 1) * 0.1f + (float)i;
}

static void *rank_main(void *user) {
    struct rank *rank = user;
    size_t bytes = rank->size * BYTES;
    check(cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking));
    check(cudaMalloc((void **)&rank->device, bytes));
    check(cudaMallocHost((void **)&rank->host, bytes));
    for (uint32_t i = 0; i < COUNT; i++)
        rank->host[i] = value_of(rank->rank, i);
    check(cudaMemcpyAsync(rank->device, rank->host, BYTES, cudaMemcpyHostToDevice, rank->stream));
    check(cudaStreamSynchronize(rank->stream));
    struct comm *comm;
    rank->joined = comm_join(&comm_nccl, rank->key, rank->rank, rank->size, 7, rank->join_ms,
                             rank->cancel, &comm, &rank->err);
    rank->status = rank->joined;
    if (rank->joined == STATUS_OK) {
        comm_use(comm, rank->stream, rank->wait_ms);
        rank->comm = comm;
        rank->status = rank->body(rank, &rank->err);
        pthread_mutex_lock(&closing[rank->rank]);
        comm_close(&comm);
        pthread_mutex_unlock(&closing[rank->rank]);
    }
    simt_cuda_recover();
    check(cudaFree(rank->device));
    check(cudaFreeHost(rank->host));
    check(cudaStreamDestroy(rank->stream));
    return NULL;
}

static void start(uint32_t size, body_fn *body, const struct rank *how,
                  const struct comm_key *key) {
    for (uint32_t r = 0; r < size; r++) {
        ranks[r] = (struct rank){.rank = r,
                                 .size = size,
                                 .key = key,
                                 .join_ms = how->join_ms,
                                 .wait_ms = how->alone && r != how->rank ? LONG_MS : how->wait_ms,
                                 .cancel = how->cancel,
                                 .body = body};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
}

/* Every communicator that was made is aborted, once, and none is used behind that. */
static void finish(uint32_t size) {
    for (uint32_t r = 0; r < size; r++)
        assert_int_equal(pthread_join(ranks[r].thread, NULL), 0);
    struct stub_nccl_counts counts = stub_nccl_counted();
    assert_int_equal(counts.aborted, counts.made);
    assert_int_equal(counts.misused, 0);
}

static void run(uint32_t size, body_fn *body, const struct rank *how) {
    struct comm_seed *seed;
    struct comm_key key;
    struct error err;
    assert_int_equal(comm_seed_create(&comm_nccl, size, 7, &seed, &key, &err), STATUS_OK);
    start(size, body, how, &key);
    finish(size);
    comm_seed_destroy(&seed);
}

static const struct rank patient = {.join_ms = LONG_MS, .wait_ms = LONG_MS};
static const struct rank hasty = {.join_ms = LONG_MS, .wait_ms = WAIT_MS};

static int forget(void **state) {
    (void)state;
    stub_nccl_reset();
    simt_cuda_recover();
    return 0;
}

static void assert_all(uint32_t size, enum status status) {
    for (uint32_t r = 0; r < size; r++)
        if (ranks[r].status != status)
            fail_msg("rank %u: %s (%s), not %s", r, status_name(ranks[r].status),
                     ranks[r].status ? ranks[r].err.text : "", status_name(status));
}

/* ============================== what they compute ============================================= */

static enum status fetch(struct rank *rank, struct error *err) {
    check(cudaMemcpyAsync(rank->host, rank->device, rank->size * BYTES, cudaMemcpyDeviceToHost,
                          rank->stream));
    return comm_wait(rank->comm, err);
}

static enum status wrong(struct rank *rank, const char *what, struct error *err) {
    return error_set(err, STATUS_UNKNOWN, "%s of rank %u is wrong", what, rank->rank);
}

static enum status sum_twice(struct rank *rank, struct error *err) {
    enum status status = comm_all_reduce(rank->comm, rank->device, COUNT, err);
    if (status == STATUS_OK) status = comm_all_reduce(rank->comm, rank->device, COUNT, err);
    if (status == STATUS_OK) status = fetch(rank, err);
    for (uint32_t i = 0; i < COUNT && status == STATUS_OK; i++) {
        float part[RANKS_MAX], sum;
        for (uint32_t r = 0; r < rank->size; r++)
            part[r] = value_of(r, i);
        for (uint32_t width = 1; width < rank->size; width *= 2)
            for (uint32_t r = 0; r + width < rank->size; r += 2 * width)
                part[r] += part[r + width];
        sum = part[0] * (float)rank->size; /* a power of two: exact */
        if (rank->host[i] != sum) status = wrong(rank, "a sum", err);
    }
    if (status == STATUS_OK && rank->size > 1 && comm_sequence(rank->comm) != 2)
        status = wrong(rank, "the count", err);
    return status;
}

static enum status gather(struct rank *rank, struct error *err) {
    float *mine = rank->device + rank->rank * COUNT;
    check(cudaMemcpyAsync(mine, rank->host, BYTES, cudaMemcpyHostToDevice, rank->stream));
    enum status status = comm_all_gather(rank->comm, mine, BYTES, rank->device, err);
    if (status == STATUS_OK) status = fetch(rank, err);
    for (uint32_t i = 0; i < rank->size * COUNT && status == STATUS_OK; i++)
        if (rank->host[i] != value_of(i / COUNT, i % COUNT)) status = wrong(rank, "a part", err);
    return status;
}

static enum status broadcast(struct rank *rank, struct error *err) {
    uint32_t root = rank->size - 1;
    enum status status = comm_broadcast(rank->comm, rank->device, BYTES, root, err);
    if (status == STATUS_OK) status = fetch(rank, err);
    for (uint32_t i = 0; i < COUNT && status == STATUS_OK; i++)
        if (rank->host[i] != value_of(root, i)) status = wrong(rank, "a word", err);
    return status;
}

/* Even ranks to their neighbours. */
static enum status pass(struct rank *rank, struct error *err) {
    uint32_t peer = rank->rank ^ 1;
    enum status status = rank->rank % 2 == 0
                             ? comm_send(rank->comm, peer, rank->device, BYTES, err)
                             : comm_recv(rank->comm, peer, rank->device, BYTES, err);
    if (status == STATUS_OK) status = fetch(rank, err);
    for (uint32_t i = 0; i < COUNT && status == STATUS_OK; i++)
        if (rank->host[i] != value_of(rank->rank & ~1u, i)) status = wrong(rank, "a word", err);
    return status;
}

/* A captured sum works like one that was called. */
static enum status replay(struct rank *rank, struct error *err) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check(cudaStreamBeginCapture(rank->stream, cudaStreamCaptureModeThreadLocal));
    enum status status = comm_all_reduce(rank->comm, rank->device, COUNT, err);
    check(cudaStreamEndCapture(rank->stream, &graph));
    check(cudaGraphInstantiate(&exec, graph, 0));
    check(cudaGraphDestroy(graph));
    for (int i = 0; i < 3 && status == STATUS_OK; i++) {
        check(cudaGraphLaunch(exec, rank->stream));
        status = comm_wait(rank->comm, err);
    }
    if (status == STATUS_OK) status = fetch(rank, err);
    float sum = value_of(0, 5) + value_of(1, 5);
    if (status == STATUS_OK && rank->host[5] != sum * 4) status = wrong(rank, "a sum", err);
    check(cudaGraphExecDestroy(exec));
    return status;
}

static void collectives_are_those_of_comm(void **state) {
    (void)state;
    const struct {
        body_fn *body;
        uint32_t size;
    } cases[] = {{sum_twice, 2}, {sum_twice, 8}, {gather, 1},    {gather, 2},
                 {gather, 8},    {broadcast, 1}, {broadcast, 8}, {pass, 2},
                 {pass, 4},      {replay, 2},    {sum_twice, 1}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        run(cases[c].size, cases[c].body, &patient);
        assert_all(cases[c].size, STATUS_OK);
    }
}

/* A call is taken in microseconds. Who sleeps between looks gives each collective a millisecond. */
static void a_call_that_is_taken_is_soon_seen(void **state) {
    (void)state;
    run(2, sum_twice, &patient);
    assert_all(2, STATUS_OK);
    assert_true(stub_nccl_counted().pause_ns < 1000000);
}

/* ============================== what NCCL may do ============================================== */

/* Rank 0 meets it; what becomes of rank 1, whom nobody tells, is its own deadline. */
static void nothing_hangs_a_rank(void **state) {
    (void)state;
    static const struct {
        enum stub_nccl_call call;
        enum stub_nccl_fate fate;
        ncclResult_t result;
        enum status status;
    } cases[] = {
        {STUB_ALL_REDUCE, STUB_FAILS, ncclUnhandledCudaError, STATUS_INTERNAL},
        {STUB_ALL_REDUCE, STUB_FAILS, ncclRemoteError, STATUS_UNAVAILABLE},
        {STUB_ALL_REDUCE, STUB_FAILS, ncclInvalidUsage, STATUS_INTERNAL},
        {STUB_ALL_REDUCE, STUB_HANGS, ncclSuccess, STATUS_DEADLINE_EXCEEDED},
        {STUB_ALL_REDUCE, STUB_IN_PROGRESS, ncclSuccess, STATUS_DEADLINE_EXCEEDED},
        {STUB_ALL_REDUCE, STUB_HANGS_ON_DEVICE, ncclSuccess, STATUS_DEADLINE_EXCEEDED},
        {STUB_ASYNC_ERROR, STUB_FAILS, ncclSystemError, STATUS_INTERNAL},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        forget(NULL);
        stub_nccl_order(0, cases[c].call, cases[c].fate, cases[c].result);
        run(2, sum_twice, &hasty);
        if (ranks[0].status != cases[c].status)
            fail_msg("case %zu: %s", c, status_name(ranks[0].status));
        assert_int_equal(ranks[1].status, STATUS_DEADLINE_EXCEEDED);
    }
    forget(NULL);
    stub_nccl_order(-1, STUB_ABORT, STUB_FAILS, ncclInternalError);
    run(2, sum_twice, &patient);
    assert_all(2, STATUS_OK); /* an abort that fails is one */
}

static void every_call_is_watched(void **state) {
    (void)state;
    static const struct {
        enum stub_nccl_call call;
        body_fn *body;
        uint32_t rank; /* that makes it */
    } cases[] = {{STUB_ALL_GATHER, gather, 0},
                 {STUB_BROADCAST, broadcast, 0},
                 {STUB_SEND, pass, 0},
                 {STUB_RECV, pass, 1}};
    static const struct {
        enum stub_nccl_fate fate;
        enum status status;
    } fates[] = {{STUB_FAILS, STATUS_UNAVAILABLE},
                 {STUB_FAILS_LATER, STATUS_UNAVAILABLE},
                 {STUB_HANGS, STATUS_DEADLINE_EXCEEDED},
                 {STUB_HANGS_ON_DEVICE, STATUS_DEADLINE_EXCEEDED}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (size_t f = 0; f < sizeof fates / sizeof fates[0]; f++) {
            const struct rank *rank = &ranks[cases[c].rank];
            const struct rank how = {
                .rank = cases[c].rank, .join_ms = LONG_MS, .wait_ms = WAIT_MS, .alone = true};
            forget(NULL);
            stub_nccl_tell_peers(true); /* they need not wait for their own deadline */
            stub_nccl_order((int)cases[c].rank, cases[c].call, fates[f].fate, ncclRemoteError);
            run(2, cases[c].body, &how);
            if (rank->status != fates[f].status)
                fail_msg("case %zu, fate %zu: %s", c, f, status_name(rank->status));
        }
}

/* What NCCL finds out while we wait ends the wait, long before the deadline. */
static void asynchronous_errors_end_waits(void **state) {
    (void)state;
    stub_nccl_order(0, STUB_ALL_REDUCE, STUB_HANGS_ON_DEVICE, ncclSuccess);
    stub_nccl_order(1, STUB_ALL_REDUCE, STUB_FAILS_LATER, ncclSystemError);
    stub_nccl_tell_peers(true);
    run(2, sum_twice, &patient);
    assert_all(2, STATUS_UNAVAILABLE);
    assert_non_null(strstr(ranks[1].err.text, "unhandled system error"));
    assert_non_null(strstr(ranks[0].err.text, "remote process exited"));
}

static void joining_is_bounded(void **state) {
    (void)state;
    const struct rank short_join = {.join_ms = WAIT_MS, .wait_ms = WAIT_MS};
    stub_nccl_order(0, STUB_INIT, STUB_IN_PROGRESS, ncclSuccess);
    run(2, sum_twice, &short_join);
    assert_int_equal(ranks[0].joined, STATUS_DEADLINE_EXCEEDED);

    forget(NULL);
    stub_nccl_slow(2 * WAIT_MS); /* the deadline passes before there is a handle */
    stub_nccl_order(-1, STUB_INIT, STUB_IN_PROGRESS, ncclSuccess);
    run(2, sum_twice, &short_join);
    assert_all(2, STATUS_DEADLINE_EXCEEDED);

    forget(NULL);
    stub_nccl_order(-1, STUB_INIT, STUB_FAILS, ncclSystemError);
    run(2, sum_twice, &short_join);
    assert_all(2, STATUS_UNAVAILABLE);
    assert_int_equal(ranks[0].joined, STATUS_UNAVAILABLE);
}

static void a_join_can_be_cancelled(void **state) {
    (void)state;
    static const _Atomic bool cancel = true;
    const struct rank cancelled = {.join_ms = LONG_MS, .wait_ms = LONG_MS, .cancel = &cancel};
    stub_nccl_order(-1, STUB_INIT, STUB_IN_PROGRESS, ncclSuccess);
    run(2, sum_twice, &cancelled);
    assert_all(2, STATUS_ABORTED);
}

static void no_id_is_said(void **state) {
    (void)state;
    struct comm_seed *seed;
    struct comm_key key;
    struct error err;
    stub_nccl_order(-1, STUB_GET_ID, STUB_FAILS, ncclSystemError);
    assert_int_equal(comm_seed_create(&comm_nccl, 2, 7, &seed, &key, &err), STATUS_UNAVAILABLE);
    assert_non_null(strstr(err.text, "unhandled system error"));
    key.bytes = 5;
    struct comm *comm;
    assert_int_equal(comm_join(&comm_nccl, &key, 0, 2, 7, WAIT_MS, NULL, &comm, &err),
                     STATUS_INVALID_ARGUMENT);
}

/* From another thread, as the control thread does. */
static enum status stuck_until_aborted(struct rank *rank, struct error *err) {
    enum status status = comm_all_reduce(rank->comm, rank->device, COUNT, err);
    return status == STATUS_OK ? comm_wait(rank->comm, err) : status;
}

static void aborts_reach_whoever_is_stuck(void **state) {
    (void)state;
    static const enum stub_nccl_fate fates[] = {STUB_HANGS, STUB_HANGS_ON_DEVICE, STUB_IN_PROGRESS};
    for (size_t f = 0; f < sizeof fates / sizeof fates[0]; f++) {
        forget(NULL);
        struct comm_seed *seed;
        struct comm_key key;
        struct error err;
        stub_nccl_order(-1, STUB_ALL_REDUCE, fates[f], ncclSuccess);
        assert_int_equal(comm_seed_create(&comm_nccl, 2, 7, &seed, &key, &err), STATUS_OK);
        start(2, stuck_until_aborted, &patient, &key);
        for (uint32_t r = 0; r < 2; r++) {
            struct comm *comm;
            while ((comm = ranks[r].comm) == NULL || comm_sequence(comm) == 0)
                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
            pthread_mutex_lock(&closing[r]);
            comm_abort(comm);
            pthread_mutex_unlock(&closing[r]);
        }
        finish(2);
        assert_all(2, STATUS_ABORTED);
        comm_seed_destroy(&seed);
    }
}

static enum status device_fails(struct rank *rank, struct error *err) {
    simt_cuda_fail(0, cudaErrorIllegalAddress);
    enum status status = comm_wait(rank->comm, err);
    if (status != STATUS_INTERNAL) return status;
    struct error again;
    return comm_all_reduce(rank->comm, rank->device, COUNT, &again); /* it stays broken */
}

static void device_errors_are_told(void **state) {
    (void)state;
    run(1, device_fails, &patient);
    assert_all(1, STATUS_INTERNAL);
    assert_non_null(strstr(ranks[0].err.text, "illegal memory access"));
}

/* A generation that failed leaves nothing behind that the next one meets. */
static void the_next_generation_works(void **state) {
    (void)state;
    stub_nccl_order(-1, STUB_ALL_REDUCE, STUB_HANGS_ON_DEVICE, ncclSuccess);
    run(2, sum_twice, &hasty);
    assert_all(2, STATUS_DEADLINE_EXCEEDED);
    forget(NULL);
    run(2, sum_twice, &patient);
    assert_all(2, STATUS_OK);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup(f, forget)
    const struct CMUnitTest tests[] = {
        TEST(collectives_are_those_of_comm), TEST(a_call_that_is_taken_is_soon_seen),
        TEST(nothing_hangs_a_rank),          TEST(every_call_is_watched),
        TEST(asynchronous_errors_end_waits), TEST(joining_is_bounded),
        TEST(a_join_can_be_cancelled),       TEST(no_id_is_said),
        TEST(aborts_reach_whoever_is_stuck), TEST(device_errors_are_told),
        TEST(the_next_generation_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
