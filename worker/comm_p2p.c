/* The ways of a sum, and who waits where:
 *
 *     compute thread            device                           control thread
 *       all_reduce ──launch──▶    a kernel, waiting for peers
 *                                   ends: all came, late,
 *       wait ◀──────verdict──────   or aborted       ◀──a word──   comm_abort
 *
 * What a rank shares must outlive the peers' use of it. A rank that closes cannot know whether they
 * still read; but all that take part in the next generation have left this one. So memory that was
 * shared is given back when the next group of the rank has met. */
#include "comm_p2p.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "all_reduce/all_reduce.h"
#include "base/clock.h"
#include "base/log.h"
#include "comm_kind.h"
#include "comm_nccl.h"

#define WHY_BYTES  96u
#define HOST_BYTES 40u
#define TURNS      8u /* sums of a measurement */

_Static_assert(TP_MAX == ALL_REDUCE_RANKS_MAX, "a group is one of all_reduce");

static const char *const path_names[COMM_P2P_PATHS] = {"nccl", "one-shot", "two-shot"};

/* What a rank tells the others of itself. */
struct card {
    cudaIpcMemHandle_t memory;
    char host[HOST_BYTES]; /* the boot id of its kernel */
    char why[WHY_BYTES];   /* it cannot take part; "": it can */
};

union parcel {
    struct card card;
    struct comm_p2p_times times;
};

/* Pinned. */
struct pinned {
    _Atomic uint32_t abort;
    _Atomic uint32_t verdict;
    union parcel parcel[TP_MAX];
};

/* Memory that was shared, until the next group of this rank has met. */
struct lent {
    struct lent *next;
    struct all_reduce_exchange *memory;
    pthread_t rank; /* tests have several in a process */
};

struct p2p {
    struct comm base;
    struct comm *nccl;
    cudaStream_t stream;
    uint32_t wait_ms;
    bool met;             /* in comm_use */
    struct error failure; /* of that, which cannot say so itself; its code is STATUS_OK without */
    _Atomic(struct pinned *) pinned;
    union parcel *parcels;                        /* [size], on the device */
    struct all_reduce_exchange *exchange[TP_MAX]; /* NULL: there is none, or not reached */
    enum comm_p2p_path path[COMM_P2P_SIZES];
};

static struct lent *lent;
static pthread_mutex_t lent_lock = PTHREAD_MUTEX_INITIALIZER;

static struct p2p *p2p_of(struct comm *base) {
    return (struct p2p *)(void *)base;
}

/* ============================== sums ========================================================== */

static enum status tell(struct p2p *p2p, const char *doing, struct error *err) {
    const struct pinned *pinned = atomic_load(&p2p->pinned);
    if (p2p->failure.code != STATUS_OK)
        return error_set(err, p2p->failure.code, "%s", p2p->failure.text);
    if (!pinned) return STATUS_OK;
    uint32_t verdict = atomic_load(&pinned->verdict);
    if (atomic_load(&pinned->abort) != 0)
        return error_set(err, STATUS_ABORTED, "collectives were aborted by rank %u",
                         p2p->base.rank);
    if (verdict == ALL_REDUCE_WHOLE) return STATUS_OK;
    return error_set(err, STATUS_DEADLINE_EXCEEDED, "%s: rank %u did not come within %u ms", doing,
                     verdict >> 8, p2p->wait_ms);
}

static enum status device_status(cudaError_t error, struct error *err) {
    if (error == cudaSuccess) return STATUS_OK;
    (void)cudaGetLastError(); /* as in go_without */
    return error_set(err, STATUS_INTERNAL, "all-reduce: the device says: %s",
                     cudaGetErrorString(error));
}

static void launch_sum(struct p2p *p2p, float *data, size_t count, enum comm_p2p_path path) {
    struct pinned *pinned = atomic_load(&p2p->pinned);
    struct kernel_ctx ctx = {.stream = p2p->stream};
    struct all_reduce_args args = {.data = data,
                                   .count = count,
                                   .rank = p2p->base.rank,
                                   .ranks = p2p->base.size,
                                   .form = path == COMM_P2P_ONE_SHOT ? ALL_REDUCE_ONE_SHOT
                                                                     : ALL_REDUCE_TWO_SHOT,
                                   .wait_ns = (uint64_t)p2p->wait_ms * NS_PER_MS,
                                   .abort = (const uint32_t *)&pinned->abort,
                                   .verdict = (uint32_t *)&pinned->verdict};
    memcpy(args.exchange, p2p->exchange, sizeof args.exchange);
    all_reduce_cuda(&args, &ctx);
}

static enum comm_p2p_path path_of(const struct p2p *p2p, size_t count) {
    for (uint32_t size = 0; size < COMM_P2P_SIZES; size++)
        if (count <= (size_t)1 << (COMM_P2P_LEAST + size)) return p2p->path[size];
    return COMM_P2P_NCCL;
}

static enum status sum(struct p2p *p2p, float *data, size_t count, enum comm_p2p_path path,
                       struct error *err) {
    enum status status = tell(p2p, "all-reduce", err);
    if (status != STATUS_OK) return status;
    if (path == COMM_P2P_NCCL) return comm_all_reduce(p2p->nccl, data, count, err);
    launch_sum(p2p, data, count, path);
    return STATUS_OK;
}

static enum status all_reduce(struct comm *base, float *data, size_t count, struct error *err) {
    struct p2p *p2p = p2p_of(base);
    return sum(p2p, data, count, path_of(p2p, count), err);
}

/* What a kernel found out is closer to the cause than what NCCL makes of it. */
static enum status wait_for_stream(struct comm *base, struct error *err) {
    struct p2p *p2p = p2p_of(base);
    struct error of_nccl;
    enum status status = comm_wait(p2p->nccl, &of_nccl);
    enum status told = tell(p2p, "the step", err);
    if (told != STATUS_OK || status == STATUS_OK) return told;
    return error_set(err, status, "%s", of_nccl.text);
}

static enum status check(struct comm *base, struct error *err) {
    struct p2p *p2p = p2p_of(base);
    enum status status = tell(p2p, "the step", err);
    return status == STATUS_OK ? p2p->nccl->kind->check(p2p->nccl, err) : status;
}

/* ============================== meeting ======================================================= */

/* mine, of every rank, to all: in pinned->parcel. */
static enum status exchange_parcels(struct p2p *p2p, const union parcel *mine, struct error *err) {
    struct pinned *pinned = atomic_load(&p2p->pinned);
    union parcel *own = &p2p->parcels[p2p->base.rank];
    size_t all_bytes = p2p->base.size * sizeof *mine;
    pinned->parcel[p2p->base.rank] = *mine;
    cudaError_t error = cudaMemcpyAsync(own, &pinned->parcel[p2p->base.rank], sizeof *mine,
                                        cudaMemcpyHostToDevice, p2p->stream);
    enum status status = comm_all_gather(p2p->nccl, own, sizeof *mine, p2p->parcels, err);
    if (status == STATUS_OK && error == cudaSuccess)
        error = cudaMemcpyAsync(pinned->parcel, p2p->parcels, all_bytes, cudaMemcpyDeviceToHost,
                                p2p->stream);
    if (status == STATUS_OK) status = comm_wait(p2p->nccl, err);
    return status == STATUS_OK ? device_status(error, err) : status;
}

static void read_host(char host[HOST_BYTES]) {
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd >= 0 ? read(fd, host, HOST_BYTES - 1) : 0;
    if (fd >= 0) close(fd);
    host[bytes > 0 ? bytes : 0] = '\0';
}

/* This rank cannot take part, and NCCL does all. The error is dealt with: the next launch of a
 * kernel must not take it for its own. */
static void go_without(struct card *card, const char *what, cudaError_t error) {
    snprintf(card->why, sizeof card->why, "%s: %s", what, cudaGetErrorString(error));
    (void)cudaGetLastError();
}

/* Memory for the others, all zeros before any of them hears of it. */
static void write_card(struct p2p *p2p, struct card *card) {
    struct all_reduce_exchange **mine = &p2p->exchange[p2p->base.rank];
    *card = (struct card){0};
    read_host(card->host);
    struct lent *node = malloc(sizeof *node);
    cudaError_t error = node ? cudaMalloc((void **)mine, sizeof **mine) : cudaErrorMemoryAllocation;
    if (error == cudaSuccess) {
        pthread_mutex_lock(&lent_lock);
        *node = (struct lent){.next = lent, .memory = *mine, .rank = pthread_self()};
        lent = node;
        pthread_mutex_unlock(&lent_lock);
        error = cudaMemsetAsync(*mine, 0, sizeof **mine, p2p->stream);
    } else {
        free(node);
    }
    if (error == cudaSuccess) error = cudaIpcGetMemHandle(&card->memory, *mine);
    if (error != cudaSuccess) go_without(card, "no memory to share", error);
}

/* Of the parcels that lie here. The first rank that cannot take part speaks for all. */
static bool all_can(const struct p2p *p2p, char why[WHY_BYTES + 16]) {
    const struct pinned *pinned = atomic_load(&p2p->pinned);
    for (uint32_t rank = 0; rank < p2p->base.size; rank++) {
        const struct card *card = &pinned->parcel[rank].card;
        if (card->why[0] == '\0') continue;
        snprintf(why, WHY_BYTES + 16, "rank %u: %s", rank, card->why);
        return false;
    }
    return true;
}

static void reach_peers(struct p2p *p2p, struct card *mine) {
    const struct pinned *pinned = atomic_load(&p2p->pinned);
    char what[48];
    for (uint32_t rank = 0; rank < p2p->base.size && mine->why[0] == '\0'; rank++) {
        const struct card *card = &pinned->parcel[rank].card;
        if (rank == p2p->base.rank) continue;
        if (card->host[0] == '\0' || strcmp(card->host, mine->host) != 0) {
            snprintf(mine->why, sizeof mine->why, "rank %u is on another host", rank);
            return;
        }
        void *memory = NULL;
        cudaError_t error = cudaIpcOpenMemHandle(&memory, card->memory,
                                                 cudaIpcMemLazyEnablePeerAccess);
        snprintf(what, sizeof what, "memory of rank %u's GPU", rank);
        if (error != cudaSuccess)
            go_without(mine, what, error);
        else
            p2p->exchange[rank] = memory;
    }
}

static void leave_peers(struct p2p *p2p) {
    for (uint32_t rank = 0; rank < p2p->base.size; rank++)
        if (rank != p2p->base.rank && p2p->exchange[rank])
            (void)cudaIpcCloseMemHandle(p2p->exchange[rank]); /* a dead device maps nothing */
    memset(p2p->exchange, 0, sizeof p2p->exchange);
}

/* All but this generation's. */
static void give_back_lent(const struct p2p *p2p) {
    pthread_mutex_lock(&lent_lock);
    for (struct lent **link = &lent; *link;) {
        struct lent *node = *link;
        if (!pthread_equal(node->rank, pthread_self()) ||
            node->memory == p2p->exchange[p2p->base.rank]) {
            link = &node->next;
            continue;
        }
        *link = node->next;
        (void)cudaFree(node->memory);
        free(node);
    }
    pthread_mutex_unlock(&lent_lock);
}

/* ============================== measuring ===================================================== */

void comm_p2p_choose(const struct comm_p2p_times *times, uint32_t ranks,
                     enum comm_p2p_path path_out[COMM_P2P_SIZES]) {
    for (uint32_t size = 0; size < COMM_P2P_SIZES; size++) {
        uint64_t slowest[COMM_P2P_PATHS] = {0};
        path_out[size] = COMM_P2P_NCCL;
        for (uint32_t path = 0; path < COMM_P2P_PATHS; path++) {
            for (uint32_t rank = 0; rank < ranks; rank++)
                if (times[rank].ns[size][path] > slowest[path])
                    slowest[path] = times[rank].ns[size][path];
            if (slowest[path] < slowest[path_out[size]]) path_out[size] = path;
        }
    }
}

static enum status sum_now(struct p2p *p2p, float *data, size_t count, enum comm_p2p_path path,
                           struct error *err) {
    enum status status = sum(p2p, data, count, path, err);
    return status == STATUS_OK ? wait_for_stream(&p2p->base, err) : status;
}

static enum status capture_sums(struct p2p *p2p, float *data, size_t count, enum comm_p2p_path path,
                                cudaGraphExec_t *sums_out, struct error *err) {
    cudaGraph_t captured = NULL;
    enum status status = STATUS_OK;
    cudaError_t error = cudaStreamBeginCapture(p2p->stream, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess) return device_status(error, err);
    for (uint32_t turn = 0; turn < TURNS && status == STATUS_OK; turn++)
        status = sum(p2p, data, count, path, err);
    error = cudaStreamEndCapture(p2p->stream, &captured);
    if (status != STATUS_OK || error != cudaSuccess) {
        if (captured) (void)cudaGraphDestroy(captured);
        return status != STATUS_OK ? status : device_status(error, err);
    }
    error = cudaGraphInstantiate(sums_out, captured, 0);
    if (error == cudaSuccess) error = cudaGraphUpload(*sums_out, p2p->stream);
    (void)cudaGraphDestroy(captured);
    return device_status(error, err);
}

/* As captured steps have them: launched one by one, NCCL's cost the host more than the GPU. A sum
 * before them loads what they need, and one more lets ranks begin together. */
static enum status measure_path(struct p2p *p2p, float *data, size_t count, enum comm_p2p_path path,
                                uint64_t *ns_out, struct error *err) {
    cudaGraphExec_t sums = NULL;
    enum status status = sum_now(p2p, data, count, path, err);
    if (status == STATUS_OK) status = capture_sums(p2p, data, count, path, &sums, err);
    if (status == STATUS_OK) status = sum_now(p2p, data, count, path, err);
    int64_t begin_ns = clock_now_ns();
    if (status == STATUS_OK) status = device_status(cudaGraphLaunch(sums, p2p->stream), err);
    if (status == STATUS_OK) status = wait_for_stream(&p2p->base, err);
    *ns_out = (uint64_t)(clock_now_ns() - begin_ns) / TURNS;
    if (sums) (void)cudaGraphExecDestroy(sums);
    return status;
}

static enum status measure(struct p2p *p2p, float *data, struct error *err) {
    const struct pinned *pinned = atomic_load(&p2p->pinned);
    union parcel mine = {.times = {{{0}}}};
    enum status status = STATUS_OK;
    for (uint32_t size = 0; size < COMM_P2P_SIZES; size++)
        for (uint32_t path = 0; path < COMM_P2P_PATHS && status == STATUS_OK; path++)
            status = measure_path(p2p, data, (size_t)1 << (COMM_P2P_LEAST + size), path,
                                  &mine.times.ns[size][path], err);
    if (status == STATUS_OK) status = exchange_parcels(p2p, &mine, err);
    if (status != STATUS_OK) return status;
    struct comm_p2p_times times[TP_MAX];
    for (uint32_t rank = 0; rank < p2p->base.size; rank++)
        times[rank] = pinned->parcel[rank].times;
    comm_p2p_choose(times, p2p->base.size, p2p->path);
    return STATUS_OK;
}

static void log_paths(const struct p2p *p2p) {
    char text[256] = "";
    size_t used = 0;
    for (uint32_t size = 0; size < COMM_P2P_SIZES && used < sizeof text; size++)
        if (size == 0 || p2p->path[size] != p2p->path[size - 1])
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s from %u",
                                     size > 0 ? ", " : "", path_names[p2p->path[size]],
                                     size > 0 ? (1u << (COMM_P2P_LEAST + size - 1)) + 1 : 1);
    log_info("all_reduce", "floats=\"%s\" largest=%u", text, 1u << COMM_P2P_MOST);
}

/* ============================== life ========================================================== */

static enum status take_memory(struct p2p *p2p, float **data_out, struct error *err) {
    struct pinned *pinned = NULL;
    size_t data_bytes = sizeof(float) << COMM_P2P_MOST;
    cudaError_t error = cudaMallocHost((void **)&pinned, sizeof *pinned);
    if (error == cudaSuccess) {
        memset(pinned, 0, sizeof *pinned);
        atomic_store(&p2p->pinned, pinned);
        error = cudaMalloc((void **)&p2p->parcels, p2p->base.size * sizeof *p2p->parcels);
    }
    if (error == cudaSuccess) error = cudaMalloc((void **)data_out, data_bytes);
    if (error == cudaSuccess) error = cudaMemsetAsync(*data_out, 0, data_bytes, p2p->stream);
    if (error == cudaSuccess) return STATUS_OK;
    (void)cudaGetLastError();
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "memory to meet in: %s",
                     cudaGetErrorString(error));
}

/* An error: the communicator is broken. Whether peers can be reached is none. */
static enum status meet(struct p2p *p2p, float *data, struct error *err) {
    union parcel mine;
    char why[WHY_BYTES + 16];
    write_card(p2p, &mine.card);
    enum status status = exchange_parcels(p2p, &mine, err);
    if (status != STATUS_OK) return status;
    give_back_lent(p2p);
    bool can = all_can(p2p, why);
    if (can) {
        reach_peers(p2p, &mine.card);
        status = exchange_parcels(p2p, &mine, err);
        if (status != STATUS_OK) return status;
        can = all_can(p2p, why);
    }
    if (can) status = measure(p2p, data, err);
    if (status != STATUS_OK) return status;
    if (can)
        log_paths(p2p);
    else
        log_warn("all_reduce", "by=nccl why=\"%s\"", why);
    return STATUS_OK;
}

static void use(struct comm *base, void *stream, uint32_t wait_ms) {
    struct p2p *p2p = p2p_of(base);
    p2p->stream = stream;
    p2p->wait_ms = wait_ms;
    comm_use(p2p->nccl, stream, wait_ms);
    if (base->size == 1 || p2p->met) return;
    p2p->met = true;
    struct error err;
    float *data = NULL;
    enum status status = take_memory(p2p, &data, &err);
    if (status == STATUS_OK) status = meet(p2p, data, &err);
    (void)cudaFree(data);
    (void)cudaFree(p2p->parcels);
    if (status == STATUS_OK) return;
    log_warn("all_reduce", "status=%s why=\"%s\"", status_name(status), err.text);
    p2p->failure = err;
    comm_abort(p2p->nccl); /* peers wait for this rank: none of them is to be kept */
}

static void break_off(struct comm *base) {
    struct p2p *p2p = p2p_of(base);
    struct pinned *pinned = atomic_load(&p2p->pinned);
    if (pinned) atomic_store(&pinned->abort, 1);
    comm_abort(p2p->nccl);
}

static void leave(struct comm *base) {
    struct p2p *p2p = p2p_of(base);
    struct pinned *pinned = atomic_load(&p2p->pinned);
    break_off(base);
    if (p2p->stream) (void)cudaStreamSynchronize(p2p->stream); /* kernels use what follows */
    leave_peers(p2p);
    comm_close(&p2p->nccl);
    (void)cudaFreeHost(pinned);
    free(p2p);
}

static enum status join(const struct comm_key *key, uint32_t rank, uint32_t size,
                        uint64_t generation, uint32_t timeout_ms, const _Atomic bool *cancel,
                        struct comm **comm_out, struct error *err) {
    struct p2p *p2p = calloc(1, sizeof *p2p);
    if (!p2p) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a communicator");
    enum status status = comm_join(&comm_nccl, key, rank, size, generation, timeout_ms, cancel,
                                   &p2p->nccl, err);
    if (status != STATUS_OK) {
        free(p2p);
        return status;
    }
    p2p->base.rank = rank;
    p2p->base.size = size;
    *comm_out = &p2p->base;
    return STATUS_OK;
}

/* ============================== what is NCCL's ================================================ */

static enum status seed_create(uint32_t size, uint64_t generation, struct comm_seed **seed_out,
                               struct comm_key *key_out, struct error *err) {
    return comm_nccl.seed_create(size, generation, seed_out, key_out, err);
}

static void seed_destroy(struct comm_seed *seed) {
    comm_nccl.seed_destroy(seed);
}

/* Where the ranks could not meet, that is why. */
static enum status of_nccl(struct comm *base, enum status status, struct error *err) {
    const struct error *failure = &p2p_of(base)->failure;
    if (status == STATUS_OK || failure->code == STATUS_OK) return status;
    return error_set(err, failure->code, "%s", failure->text);
}

static enum status all_gather(struct comm *base, const void *mine, size_t bytes, void *out,
                              struct error *err) {
    struct comm *nccl = p2p_of(base)->nccl;
    return of_nccl(base, comm_all_gather(nccl, mine, bytes, out, err), err);
}

static enum status broadcast(struct comm *base, void *data, size_t bytes, uint32_t root,
                             struct error *err) {
    return of_nccl(base, comm_broadcast(p2p_of(base)->nccl, data, bytes, root, err), err);
}

static enum status send_to(struct comm *base, uint32_t peer, const void *data, size_t bytes,
                           struct error *err) {
    return of_nccl(base, comm_send(p2p_of(base)->nccl, peer, data, bytes, err), err);
}

static enum status recv_from(struct comm *base, uint32_t peer, void *data, size_t bytes,
                             struct error *err) {
    return of_nccl(base, comm_recv(p2p_of(base)->nccl, peer, data, bytes, err), err);
}

const struct comm_kind comm_p2p = {
    .seed_create = seed_create,
    .seed_destroy = seed_destroy,
    .join = join,
    .close = leave,
    .use = use,
    .wait = wait_for_stream,
    .check = check,
    .all_reduce = all_reduce,
    .all_gather = all_gather,
    .broadcast = broadcast,
    .send = send_to,
    .recv = recv_from,
    .abort = break_off,
};
