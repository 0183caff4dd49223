/* comm_p2p on emulated streams, with a stub of NCCL beside its own kernels: who makes a sum, that
 * it has the contract's bits whoever does, and that neither a peer that is gone nor a GPU that is
 * out of reach hangs anybody. Ranks are threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "all_reduce/all_reduce.h"
#include "base/log.h"
#include "comm_p2p.h"
#include "cuda_runtime_api.h"
#include "simt_cuda.h"
#include "stub_nccl.h"

#define LARGE     ((1u << COMM_P2P_MOST) + 1)
#define SHORT_MS  2000u  /* for what will not come; of the emulated clock too */
#define LONG_MS   20000u /* for what will */
#define SLOW_MS   40u    /* longer than any sum of ours takes here */
#define RANKS_MAX 8u

struct rank;
typedef enum status body_fn(struct rank *rank, struct error *err);

struct rank {
    uint32_t rank, size, wait_ms;
    const struct comm_key *key;
    body_fn *body;
    struct comm *_Atomic comm; /* the test may abort it */
    cudaStream_t stream;
    float *device, *host; /* [LARGE]: device memory, pinned memory */
    _Atomic bool ended;
    enum status status;
    struct error err;
    pthread_t thread;
};

static struct rank ranks[RANKS_MAX];
static pthread_mutex_t closing = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t together;

static void check(cudaError_t error) {
    if (error != cudaSuccess) abort(); /* cmocka's jumps are for its own thread */
}

/* Sums whose order shows. */
static float value_of(uint32_t rank, uint32_t i) {
    uint64_t z = (i * 31 + rank * 7 + 1) * 0x9e3779b97f4a7c15u;
    return (float)((z ^ z >> 29) >> 40) / 3.0f - (float)(1 << 22);
}

static enum status join_group(struct rank *rank, struct error *err) {
    struct comm *comm;
    enum status status = comm_join(&comm_p2p, rank->key, rank->rank, rank->size, 7, LONG_MS, NULL,
                                   &comm, err);
    if (status != STATUS_OK) return status;
    comm_use(comm, rank->stream, rank->wait_ms);
    rank->comm = comm;
    return STATUS_OK;
}

static void leave_group(struct rank *rank) {
    struct comm *comm = rank->comm;
    pthread_mutex_lock(&closing);
    rank->comm = NULL;
    comm_close(&comm);
    pthread_mutex_unlock(&closing);
}

static void *rank_main(void *user) {
    struct rank *rank = user;
    check(cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking));
    check(cudaMalloc((void **)&rank->device, LARGE * sizeof(float)));
    check(cudaMallocHost((void **)&rank->host, LARGE * sizeof(float)));
    rank->status = join_group(rank, &rank->err);
    if (rank->status == STATUS_OK) {
        rank->status = rank->body(rank, &rank->err);
        leave_group(rank);
    }
    rank->ended = true;
    check(cudaFree(rank->device));
    check(cudaFreeHost(rank->host));
    check(cudaStreamDestroy(rank->stream));
    return NULL;
}

static void start(uint32_t size, uint32_t wait_ms, body_fn *body, const struct comm_key *key) {
    pthread_barrier_init(&together, NULL, size);
    for (uint32_t r = 0; r < size; r++) {
        ranks[r] = (struct rank){
            .rank = r, .size = size, .wait_ms = wait_ms, .key = key, .body = body};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
}

static void finish(uint32_t size) {
    for (uint32_t r = 0; r < size; r++)
        assert_int_equal(pthread_join(ranks[r].thread, NULL), 0);
    pthread_barrier_destroy(&together);
}

static void run(uint32_t size, uint32_t wait_ms, body_fn *body) {
    struct comm_seed *seed;
    struct comm_key key;
    struct error err;
    assert_int_equal(comm_seed_create(&comm_p2p, size, 7, &seed, &key, &err), STATUS_OK);
    start(size, wait_ms, body, &key);
    finish(size);
    comm_seed_destroy(&seed);
}

static void assert_all(uint32_t size, enum status status) {
    for (uint32_t r = 0; r < size; r++)
        if (ranks[r].status != status)
            fail_msg("rank %u: %s (%s), not %s", r, status_name(ranks[r].status),
                     ranks[r].status ? ranks[r].err.text : "", status_name(status));
}

static int forget(void **state) {
    (void)state;
    stub_nccl_reset();
    simt_cuda_recover();
    simt_cuda_plug(&simt_device_default);
    return 0;
}

/* ============================== sums ========================================================== */

static enum status check_sum(struct rank *rank, uint32_t count, struct error *err) {
    for (uint32_t i = 0; i < count; i++) {
        float part[RANKS_MAX], sum;
        const float *data[RANKS_MAX];
        for (uint32_t r = 0; r < rank->size; r++) {
            part[r] = value_of(r, i);
            data[r] = &part[r];
        }
        all_reduce_ref(data, rank->size, 1, &sum);
        if (rank->host[i] != sum)
            return error_set(err, STATUS_UNKNOWN, "float %u of %u is wrong", i, count);
    }
    return STATUS_OK;
}

static enum status sum_floats(struct rank *rank, uint32_t count, struct error *err) {
    size_t bytes = count * sizeof(float);
    for (uint32_t i = 0; i < count; i++)
        rank->host[i] = value_of(rank->rank, i);
    check(cudaMemcpyAsync(rank->device, rank->host, bytes, cudaMemcpyHostToDevice, rank->stream));
    enum status status = comm_all_reduce(rank->comm, rank->device, count, err);
    if (status != STATUS_OK) return status;
    check(cudaMemcpyAsync(rank->host, rank->device, bytes, cudaMemcpyDeviceToHost, rank->stream));
    status = comm_wait(rank->comm, err);
    return status == STATUS_OK ? check_sum(rank, count, err) : status;
}

static _Atomic uint64_t kernels_before;

/* Rank 0 counts the kernels behind the measurement, those of all ranks. */
static void mark_begin(struct rank *rank) {
    pthread_barrier_wait(&together);
    if (rank->rank == 0) kernels_before = simt_cuda_count().kernels;
    pthread_barrier_wait(&together);
}

static enum status sum_small_and_large(struct rank *rank, struct error *err) {
    static const uint32_t counts[] = {1, 502, LARGE - 1, LARGE};
    enum status status = STATUS_OK;
    mark_begin(rank);
    for (uint32_t i = 0; i < 4 && status == STATUS_OK; i++)
        status = sum_floats(rank, counts[i], err);
    return status;
}

static void small_sums_are_our_kernels_where_nccl_is_slow(void **state) {
    (void)state;
    for (uint32_t size = 2; size <= RANKS_MAX; size *= 2) {
        stub_nccl_slow(SLOW_MS);
        run(size, LONG_MS, sum_small_and_large);
        assert_all(size, STATUS_OK);
        assert_int_equal(simt_cuda_count().kernels - kernels_before, 3 * size);
    }
}

/* What a call costs the host, a captured step does not pay. */
static void calls_that_cost_the_host_do_not_count(void **state) {
    (void)state;
    stub_nccl_slow_calls(SLOW_MS);
    run(2, LONG_MS, sum_small_and_large);
    assert_all(2, STATUS_OK);
    assert_true(simt_cuda_count().kernels - kernels_before < 3 * 2);
}

static void a_group_of_one_sums_nothing(void **state) {
    (void)state;
    run(1, LONG_MS, sum_small_and_large);
    assert_all(1, STATUS_OK);
    assert_int_equal(simt_cuda_count().kernels, kernels_before);
}

/* A captured sum works like one that was called. */
static enum status replay(struct rank *rank, struct error *err) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    *rank->host = 1.0f;
    check(cudaMemcpyAsync(rank->device, rank->host, sizeof(float), cudaMemcpyHostToDevice,
                          rank->stream));
    check(cudaStreamBeginCapture(rank->stream, cudaStreamCaptureModeThreadLocal));
    enum status status = comm_all_reduce(rank->comm, rank->device, 1, err);
    check(cudaStreamEndCapture(rank->stream, &graph));
    check(cudaGraphInstantiate(&exec, graph, 0));
    check(cudaGraphDestroy(graph));
    mark_begin(rank);
    for (int i = 0; i < 3 && status == STATUS_OK; i++) {
        check(cudaGraphLaunch(exec, rank->stream));
        status = comm_wait(rank->comm, err);
    }
    check(cudaMemcpyAsync(rank->host, rank->device, sizeof(float), cudaMemcpyDeviceToHost,
                          rank->stream));
    if (status == STATUS_OK) status = comm_wait(rank->comm, err);
    if (status == STATUS_OK && *rank->host != 64.0f)
        status = error_set(err, STATUS_UNKNOWN, "%g, not 4^3", (double)*rank->host);
    check(cudaGraphExecDestroy(exec));
    return status;
}

static void captured_sums_are_replayed(void **state) {
    (void)state;
    stub_nccl_slow(SLOW_MS);
    run(4, LONG_MS, replay);
    assert_all(4, STATUS_OK);
    assert_int_equal(simt_cuda_count().kernels - kernels_before, 3 * 4);
}

static enum status the_others(struct rank *rank, struct error *err) {
    const float want[5] = {value_of(0, 0), value_of(1, 0), value_of(1, 1), value_of(0, 0),
                           value_of(1, 0)};
    const uint32_t count = rank->rank == 0 ? 3 : 5;
    float *device = rank->device, *mine = device + rank->rank;
    rank->host[rank->rank] = value_of(rank->rank, 0);
    rank->host[2] = value_of(rank->rank, 1);
    check(cudaMemcpyAsync(device, rank->host, 3 * sizeof(float), cudaMemcpyHostToDevice,
                          rank->stream));
    enum status status = comm_all_gather(rank->comm, mine, sizeof(float), device, err);
    if (status == STATUS_OK) status = comm_broadcast(rank->comm, device + 2, sizeof(float), 1, err);
    if (status == STATUS_OK)
        status = rank->rank == 0 ? comm_send(rank->comm, 1, device, 2 * sizeof(float), err)
                                 : comm_recv(rank->comm, 0, device + 3, 2 * sizeof(float), err);
    check(cudaMemcpyAsync(rank->host, device, count * sizeof(float), cudaMemcpyDeviceToHost,
                          rank->stream));
    if (status == STATUS_OK) status = comm_wait(rank->comm, err);
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++)
        if (rank->host[i] != want[i])
            status = error_set(err, STATUS_UNKNOWN, "float %u is wrong", i);
    return status;
}

static void other_collectives_are_nccls(void **state) {
    (void)state;
    run(2, LONG_MS, the_others);
    assert_all(2, STATUS_OK);
}

/* ============================== who sums ====================================================== */

static void the_slowest_rank_decides(void **state) {
    (void)state;
    struct comm_p2p_times times[2];
    enum comm_p2p_path path[COMM_P2P_SIZES];
    for (uint32_t size = 0; size < COMM_P2P_SIZES; size++)
        for (uint32_t r = 0; r < 2; r++) {
            times[r].ns[size][COMM_P2P_NCCL] = 100;
            times[r].ns[size][COMM_P2P_ONE_SHOT] = 40 + 30 * size;
            times[r].ns[size][COMM_P2P_TWO_SHOT] = 75;
        }
    times[1].ns[3][COMM_P2P_TWO_SHOT] = 100; /* as slow as NCCL, on one rank */
    comm_p2p_choose(times, 2, path);
    assert_true(COMM_P2P_SIZES == 4);
    assert_int_equal(path[0], COMM_P2P_ONE_SHOT);
    assert_int_equal(path[1], COMM_P2P_ONE_SHOT);
    assert_int_equal(path[2], COMM_P2P_TWO_SHOT);
    assert_int_equal(path[3], COMM_P2P_NCCL);
}

/* The log as a file, for as long as a group lives. */
static void read_log(const char *path, char *text, size_t bytes) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, bytes - 1, file)] = '\0';
    fclose(file);
}

static void out_of_reach_is_said_and_nccls(void **state) {
    (void)state;
    char path[] = "/tmp/espalier-p2p-XXXXXX", text[8192];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_true(log_keep(path));
    struct simt_device device = simt_device_default;
    device.apart = true;
    simt_cuda_plug(&device);
    stub_nccl_slow(1);
    run(4, LONG_MS, sum_small_and_large);
    read_log(path, text, sizeof text);
    unlink(path);
    assert_all(4, STATUS_OK);
    assert_int_equal(simt_cuda_count().kernels, kernels_before);
    assert_int_equal(cudaGetLastError(), cudaSuccess); /* else the next launch finds it */
    assert_non_null(strstr(text, "event=all_reduce by=nccl why=\"rank 0: memory of rank 1's GPU: "
                                 "peer access is not supported"));
}

/* ============================== faults ======================================================== */

/* Not "aborted", with which a group would be formed again and again. */
static void memory_that_is_short_is_what_a_rank_says(void **state) {
    (void)state;
    struct simt_device device = simt_device_default;
    size_t free_bytes, all_bytes;
    check(cudaMemGetInfo(&free_bytes, &all_bytes));
    device.memory_bytes = all_bytes - free_bytes + 2 * LARGE * sizeof(float); /* the ranks' own */
    simt_cuda_plug(&device);
    run(2, LONG_MS, sum_small_and_large);
    assert_all(2, STATUS_RESOURCE_EXHAUSTED);
    run(2, LONG_MS, the_others);
    assert_all(2, STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
}

/* All but rank 1 sum. */
static enum status one_is_missing(struct rank *rank, struct error *err) {
    enum status status = STATUS_OK;
    mark_begin(rank);
    if (rank->rank != 1) status = sum_floats(rank, 5, err);
    struct error again;
    if (rank->rank != 1 && comm_all_reduce(rank->comm, rank->device, 5, &again) != status)
        return STATUS_OK; /* it is to stay broken */
    pthread_barrier_wait(&together);
    return status;
}

static void a_peer_that_does_not_come_is_named(void **state) {
    (void)state;
    stub_nccl_slow(SLOW_MS);
    run(4, SHORT_MS, one_is_missing);
    for (uint32_t r = 0; r < 4; r++) {
        if (r == 1) continue;
        assert_int_equal(ranks[r].status, STATUS_DEADLINE_EXCEEDED);
        if (strstr(ranks[r].err.text, "rank 1 did not come") == NULL)
            fail_msg("%s", ranks[r].err.text);
    }
}

/* Rank 1 waits for the control thread, so to speak. */
static enum status stuck_until_aborted(struct rank *rank, struct error *err) {
    enum status status = STATUS_OK;
    mark_begin(rank);
    if (rank->rank != 1) status = sum_floats(rank, 5, err);
    pthread_barrier_wait(&together);
    return status;
}

static void aborts_reach_a_kernel_that_waits(void **state) {
    (void)state;
    struct comm_seed *seed;
    struct comm_key key;
    struct error err;
    stub_nccl_slow(SLOW_MS);
    kernels_before = UINT64_MAX;
    assert_int_equal(comm_seed_create(&comm_p2p, 2, 7, &seed, &key, &err), STATUS_OK);
    start(2, LONG_MS, stuck_until_aborted, &key);
    /* Until rank 0's kernel is there, and waits. */
    while (!ranks[0].ended &&
           (kernels_before == UINT64_MAX || simt_cuda_count().kernels == kernels_before))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    pthread_mutex_lock(&closing);
    if (ranks[0].comm != NULL) comm_abort(ranks[0].comm);
    pthread_mutex_unlock(&closing);
    finish(2);
    comm_seed_destroy(&seed);
    assert_int_equal(ranks[0].status, STATUS_ABORTED);
}

/* Two generations in one life: what the first shared is given back by the second, and no sooner. */
static struct comm_key second_key;
static size_t bytes_used[3];

static void note_bytes_used(const struct rank *rank, size_t *bytes_out) {
    size_t free_bytes, all_bytes;
    pthread_barrier_wait(&together);
    if (rank->rank == 0) {
        check(cudaMemGetInfo(&free_bytes, &all_bytes));
        *bytes_out = all_bytes - free_bytes;
    }
    pthread_barrier_wait(&together);
}

static enum status live_twice(struct rank *rank, struct error *err) {
    struct comm *first = rank->comm;
    enum status status = sum_floats(rank, 5, err);
    if (status != STATUS_OK) return status;
    note_bytes_used(rank, &bytes_used[0]);
    comm_close(&first);
    note_bytes_used(rank, &bytes_used[1]);
    rank->key = &second_key;
    if (join_group(rank, err) != STATUS_OK) abort();
    status = sum_floats(rank, 5, err);
    note_bytes_used(rank, &bytes_used[2]);
    return status;
}

static void what_was_shared_outlives_its_generation(void **state) {
    (void)state;
    struct comm_seed *seed;
    struct error err;
    assert_int_equal(comm_seed_create(&comm_p2p, 2, 8, &seed, &second_key, &err), STATUS_OK);
    stub_nccl_slow(SLOW_MS);
    run(2, LONG_MS, live_twice);
    comm_seed_destroy(&seed);
    assert_all(2, STATUS_OK);
    assert_int_equal(bytes_used[1], bytes_used[0]);
    assert_int_equal(bytes_used[2], bytes_used[0]);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup(f, forget)
    const struct CMUnitTest tests[] = {
        TEST(small_sums_are_our_kernels_where_nccl_is_slow),
        TEST(calls_that_cost_the_host_do_not_count),
        TEST(a_group_of_one_sums_nothing),
        TEST(captured_sums_are_replayed),
        TEST(other_collectives_are_nccls),
        TEST(the_slowest_rank_decides),
        TEST(out_of_reach_is_said_and_nccls),
        TEST(memory_that_is_short_is_what_a_rank_says),
        TEST(a_peer_that_does_not_come_is_named),
        TEST(aborts_reach_a_kernel_that_waits),
        TEST(what_was_shared_outlives_its_generation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
