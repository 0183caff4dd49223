/* Collectives by NCCL, on the stream of the back end. Sums are NCCL's, the same bits on every rank,
 * but in its order, not in the exactness contract's.
 *
 *     compute thread                         watchdog                    control thread
 *       begin: what, until when ─────────▶   too late? NCCL failed?
 *       the call, or the wait   ◀─ abort ──  broken?              ◀────  comm_abort
 *       end: ended, or why not
 */
#include "comm_nccl.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm_kind.h"

#define POLL_MS 20u    /* between looks at NCCL's own errors */
#define CALL_MS 250u   /* a call into NCCL that takes longer hangs: abort it from beside */
#define TAKE_NS 200000 /* a collective is taken sooner, as a rule; who joins waits for longer */

_Static_assert(sizeof(ncclUniqueId) <= GROUP_KEY_BYTES_MAX, "an id is a key");

enum fault { FAULT_NONE, FAULT_ABORTED, FAULT_CANCELLED, FAULT_LATE, FAULT_NCCL, FAULT_DEVICE };

/* The id lives as long as the process; NCCL has no call to forget it. */
struct seed {
    struct comm_seed base;
    ncclUniqueId id;
};

struct nccl {
    struct comm base;
    cudaStream_t stream;
    uint32_t wait_ms;

    /* Held in calls into NCCL, except by who aborts a call that hangs in it. */
    pthread_mutex_t call_lock;
    _Atomic(ncclComm_t) nccl; /* NULL: not made yet, or aborted */

    pthread_t watchdog; /* of a group of several */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Under the lock: */
    enum fault fault;
    int code;            /* of FAULT_NCCL a ncclResult_t, of FAULT_DEVICE a cudaError_t */
    const char *doing;   /* NULL: nothing is waited for */
    int64_t deadline_ns; /* of it */
    bool ending;
};

static void *watch(void *user);
static void leave(struct comm *base);
static void break_off(struct comm *base);

/* ============================== faults ======================================================== */

static struct timespec timespec_in(clockid_t clock, uint64_t ms) {
    struct timespec at;
    clock_gettime(clock, &at);
    int64_t ns = (int64_t)at.tv_nsec + (int64_t)ms * NS_PER_MS;
    return (struct timespec){.tv_sec = at.tv_sec + ns / NS_PER_S, .tv_nsec = ns % NS_PER_S};
}

/* Its handle is aborted once, by the watchdog: NCCL does not come back from that before graphs
 * which hold its work are gone, and who drops those must not wait for it. A call that hangs in NCCL
 * returns by this; none begins behind it. */
static void abort_nccl(struct nccl *comm) {
    struct timespec until = timespec_in(CLOCK_REALTIME, CALL_MS);
    bool locked = pthread_mutex_timedlock(&comm->call_lock, &until) == 0;
    ncclComm_t nccl = atomic_exchange(&comm->nccl, NULL);
    if (locked) pthread_mutex_unlock(&comm->call_lock);
    if (nccl) ncclCommAbort(nccl); /* what it returns changes nothing: the handle is gone */
}

/* The first fault is the one that is told. */
static void break_comm(struct nccl *comm, enum fault fault, int code) {
    pthread_mutex_lock(&comm->lock);
    if (comm->fault == FAULT_NONE) {
        comm->fault = fault;
        comm->code = code;
    }
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

static enum status status_of(ncclResult_t result) {
    return result == ncclRemoteError || result == ncclSystemError ? STATUS_UNAVAILABLE
                                                                  : STATUS_INTERNAL;
}

static enum status tell_fault(struct nccl *comm, const char *doing, struct error *err) {
    pthread_mutex_lock(&comm->lock);
    enum fault fault = comm->fault;
    int code = comm->code;
    pthread_mutex_unlock(&comm->lock);
    switch (fault) {
    case FAULT_NONE: return STATUS_OK;
    case FAULT_ABORTED:
        return error_set(err, STATUS_ABORTED, "collectives were aborted by rank %u",
                         comm->base.rank);
    case FAULT_CANCELLED: return error_set(err, STATUS_ABORTED, "%s was cancelled", doing);
    case FAULT_LATE:
        return error_set(err, STATUS_DEADLINE_EXCEEDED, "%s did not end within %u ms", doing,
                         comm->wait_ms);
    case FAULT_NCCL:
        return error_set(err, status_of((ncclResult_t)code), "%s: NCCL says: %s", doing,
                         ncclGetErrorString((ncclResult_t)code));
    case FAULT_DEVICE:
        return error_set(err, STATUS_INTERNAL, "%s: the device says: %s", doing,
                         cudaGetErrorString((cudaError_t)code));
    }
    CHECK(false); /* a fault of no kind */
    return STATUS_INTERNAL;
}

/* ============================== the watchdog ================================================== */

/* From here to end_watch the thread may be stuck, for wait_ms at most. */
static void begin_watch(struct nccl *comm, const char *doing) {
    pthread_mutex_lock(&comm->lock);
    comm->doing = doing;
    comm->deadline_ns = clock_now_ns() + comm->wait_ms * NS_PER_MS;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

static void end_watch(struct nccl *comm) {
    pthread_mutex_lock(&comm->lock);
    comm->doing = NULL;
    pthread_mutex_unlock(&comm->lock);
}

/* What NCCL knows of its own threads and peers. The call lock is held. */
static ncclResult_t ask_nccl(struct nccl *comm, ncclResult_t if_gone) {
    ncclComm_t nccl = atomic_load(&comm->nccl);
    ncclResult_t result = if_gone;
    if (nccl && ncclCommGetAsyncError(nccl, &result) != ncclSuccess) result = ncclInternalError;
    return result;
}

/* Unless somebody is in a call, whose end will tell. */
static ncclResult_t look_at_nccl(struct nccl *comm) {
    if (pthread_mutex_trylock(&comm->call_lock) != 0) return ncclSuccess;
    ncclResult_t result = ask_nccl(comm, ncclSuccess);
    pthread_mutex_unlock(&comm->call_lock);
    return result;
}

static void *watch(void *user) {
    struct nccl *comm = user;
    pthread_mutex_lock(&comm->lock);
    for (;;) {
        if (comm->fault != FAULT_NONE && atomic_load(&comm->nccl)) {
            pthread_mutex_unlock(&comm->lock);
            abort_nccl(comm);
            pthread_mutex_lock(&comm->lock);
            continue;
        }
        if (comm->ending) break;
        if (!comm->doing || comm->fault != FAULT_NONE) {
            pthread_cond_wait(&comm->changed, &comm->lock);
            continue;
        }
        bool late = clock_now_ns() >= comm->deadline_ns;
        pthread_mutex_unlock(&comm->lock);
        ncclResult_t result = look_at_nccl(comm);
        if (result != ncclSuccess && result != ncclInProgress)
            break_comm(comm, FAULT_NCCL, (int)result);
        else if (late)
            break_comm(comm, FAULT_LATE, 0);
        pthread_mutex_lock(&comm->lock);
        struct timespec until = timespec_in(CLOCK_MONOTONIC, POLL_MS);
        if (!comm->ending) pthread_cond_timedwait(&comm->changed, &comm->lock, &until);
    }
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}

/* ============================== calls ========================================================= */

/* Before a call into NCCL: its lock is held when this returns OK. */
static enum status begin_call(struct nccl *comm, const char *doing, ncclComm_t *nccl_out,
                              struct error *err) {
    enum status status = tell_fault(comm, doing, err);
    if (status != STATUS_OK) return status;
    begin_watch(comm, doing);
    pthread_mutex_lock(&comm->call_lock);
    *nccl_out = atomic_load(&comm->nccl);
    if (*nccl_out) return STATUS_OK;
    pthread_mutex_unlock(&comm->call_lock);
    end_watch(comm);
    return tell_fault(comm, doing, err);
}

/* Until NCCL has taken what it was given, which a communicator that does not block does beside us,
 * in a thread that it starts for each call. A sleep is long beside that, so there is none at first.
 */
static ncclResult_t settle(struct nccl *comm, ncclResult_t result, const _Atomic bool *cancel) {
    const int64_t begin_ns = clock_now_ns();
    while (result == ncclInProgress) {
        if (clock_now_ns() - begin_ns < TAKE_NS)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = NS_PER_MS}, NULL);
        if (cancel && atomic_load(cancel)) break_comm(comm, FAULT_CANCELLED, 0);
        pthread_mutex_lock(&comm->call_lock);
        result = ask_nccl(comm, ncclInternalError); /* gone: the fault says why */
        pthread_mutex_unlock(&comm->call_lock);
    }
    return result;
}

static enum status end_call(struct nccl *comm, const char *doing, ncclResult_t result,
                            struct error *err) {
    pthread_mutex_unlock(&comm->call_lock);
    result = settle(comm, result, NULL);
    end_watch(comm);
    if (result != ncclSuccess) break_comm(comm, FAULT_NCCL, (int)result);
    return tell_fault(comm, doing, err);
}

static void use(struct comm *base, void *stream, uint32_t wait_ms) {
    struct nccl *comm = (struct nccl *)base;
    comm->stream = stream;
    comm->wait_ms = wait_ms;
}

static enum status wait_for_stream(struct comm *base, struct error *err) {
    struct nccl *comm = (struct nccl *)base;
    const char *doing = "the step";
    enum status status = tell_fault(comm, doing, err);
    if (status != STATUS_OK) return status;
    begin_watch(comm, doing);
    cudaError_t error = cudaStreamSynchronize(comm->stream);
    pthread_mutex_lock(&comm->call_lock);
    ncclResult_t result = ask_nccl(comm, ncclSuccess);
    pthread_mutex_unlock(&comm->call_lock);
    end_watch(comm);
    if (error != cudaSuccess) break_comm(comm, FAULT_DEVICE, (int)error);
    if (result != ncclSuccess && result != ncclInProgress)
        break_comm(comm, FAULT_NCCL, (int)result);
    return tell_fault(comm, doing, err);
}

static enum status check(struct comm *base, struct error *err) {
    return tell_fault((struct nccl *)base, "the step", err);
}

static enum status all_reduce(struct comm *base, float *data, size_t count, struct error *err) {
    struct nccl *comm = (struct nccl *)base;
    const char *doing = "all-reduce";
    ncclComm_t nccl;
    if (comm->base.size == 1) return tell_fault(comm, doing, err);
    enum status status = begin_call(comm, doing, &nccl, err);
    if (status != STATUS_OK) return status;
    return end_call(comm, doing,
                    ncclAllReduce(data, data, count, ncclFloat32, ncclSum, nccl, comm->stream),
                    err);
}

static enum status all_gather(struct comm *base, const void *mine, size_t bytes, void *out,
                              struct error *err) {
    struct nccl *comm = (struct nccl *)base;
    const char *doing = "all-gather";
    ncclComm_t nccl;
    if (comm->base.size == 1) {
        cudaError_t error = cudaSuccess;
        if (mine != out)
            error = cudaMemcpyAsync(out, mine, bytes, cudaMemcpyDeviceToDevice, comm->stream);
        if (error != cudaSuccess) break_comm(comm, FAULT_DEVICE, (int)error);
        return tell_fault(comm, doing, err);
    }
    enum status status = begin_call(comm, doing, &nccl, err);
    if (status != STATUS_OK) return status;
    return end_call(comm, doing, ncclAllGather(mine, out, bytes, ncclUint8, nccl, comm->stream),
                    err);
}

static enum status broadcast(struct comm *base, void *data, size_t bytes, uint32_t root,
                             struct error *err) {
    struct nccl *comm = (struct nccl *)base;
    const char *doing = "broadcast";
    ncclComm_t nccl;
    if (comm->base.size == 1) return tell_fault(comm, doing, err);
    enum status status = begin_call(comm, doing, &nccl, err);
    if (status != STATUS_OK) return status;
    return end_call(comm, doing,
                    ncclBroadcast(data, data, bytes, ncclUint8, (int)root, nccl, comm->stream),
                    err);
}

static enum status send_to(struct comm *base, uint32_t peer, const void *data, size_t bytes,
                           struct error *err) {
    struct nccl *comm = (struct nccl *)base;
    const char *doing = "send";
    ncclComm_t nccl;
    enum status status = begin_call(comm, doing, &nccl, err);
    if (status != STATUS_OK) return status;
    return end_call(comm, doing, ncclSend(data, bytes, ncclUint8, (int)peer, nccl, comm->stream),
                    err);
}

static enum status recv_from(struct comm *base, uint32_t peer, void *data, size_t bytes,
                             struct error *err) {
    struct nccl *comm = (struct nccl *)base;
    const char *doing = "receive";
    ncclComm_t nccl;
    enum status status = begin_call(comm, doing, &nccl, err);
    if (status != STATUS_OK) return status;
    return end_call(comm, doing, ncclRecv(data, bytes, ncclUint8, (int)peer, nccl, comm->stream),
                    err);
}

/* ============================== life ========================================================== */

static enum status seed_create(uint32_t size, uint64_t generation, struct comm_seed **seed_out,
                               struct comm_key *key_out, struct error *err) {
    struct seed *seed = calloc(1, sizeof *seed);
    if (!seed) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a group's seed");
    key_out->bytes = 0;
    ncclResult_t result = size > 1 ? ncclGetUniqueId(&seed->id) : ncclSuccess;
    if (result != ncclSuccess) {
        free(seed);
        return error_set(err, status_of(result), "no id for generation %llu: NCCL says: %s",
                         (unsigned long long)generation, ncclGetErrorString(result));
    }
    if (size > 1) {
        memcpy(key_out->data, &seed->id, sizeof seed->id);
        key_out->bytes = sizeof seed->id;
    }
    *seed_out = &seed->base;
    return STATUS_OK;
}

static void seed_destroy(struct comm_seed *base) {
    free(base);
}

static enum status make_nccl(struct nccl *comm, const struct comm_key *key,
                             const _Atomic bool *cancel, struct error *err) {
    const char *doing = "joining the group";
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclComm_t nccl = NULL;
    config.blocking = 0;
    memcpy(&id, key->data, sizeof id);
    begin_watch(comm, doing);
    pthread_mutex_lock(&comm->call_lock);
    ncclResult_t result = ncclCommInitRankConfig(&nccl, (int)comm->base.size, id,
                                                 (int)comm->base.rank, &config);
    atomic_store(&comm->nccl, nccl);
    pthread_mutex_unlock(&comm->call_lock);
    pthread_mutex_lock(&comm->lock); /* it may be too late: then this is to be aborted */
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    result = settle(comm, result, cancel);
    end_watch(comm);
    if (result != ncclSuccess) break_comm(comm, FAULT_NCCL, (int)result);
    return tell_fault(comm, doing, err);
}

static enum status start_watchdog(struct nccl *comm, struct error *err) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&comm->lock, NULL);
    pthread_mutex_init(&comm->call_lock, NULL);
    pthread_cond_init(&comm->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    if (comm->base.size == 1) return STATUS_OK;
    int error = pthread_create(&comm->watchdog, NULL, watch, comm);
    if (error == 0) return STATUS_OK;
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no thread to watch a communicator: %s",
                     strerror(error));
}

static enum status join(const struct comm_key *key, uint32_t rank, uint32_t size,
                        uint64_t generation, uint32_t timeout_ms, const _Atomic bool *cancel,
                        struct comm **comm_out, struct error *err) {
    (void)generation; /* an id is of one */
    if (size > 1 && key->bytes != sizeof(ncclUniqueId))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "group.key: found %u bytes, accepted: an NCCL id of %zu", key->bytes,
                         sizeof(ncclUniqueId));
    struct nccl *comm = calloc(1, sizeof *comm);
    if (!comm) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a communicator");
    comm->base.rank = rank;
    comm->base.size = size;
    comm->wait_ms = timeout_ms;
    enum status status = start_watchdog(comm, err);
    if (status != STATUS_OK) {
        free(comm);
        return status;
    }
    if (size > 1) status = make_nccl(comm, key, cancel, err);
    if (status != STATUS_OK)
        leave(&comm->base);
    else
        *comm_out = &comm->base;
    return status;
}

static void leave(struct comm *base) {
    struct nccl *closed = (struct nccl *)base;
    break_off(base);
    if (base->size > 1) {
        pthread_mutex_lock(&closed->lock);
        closed->ending = true;
        pthread_cond_broadcast(&closed->changed);
        pthread_mutex_unlock(&closed->lock);
        pthread_join(closed->watchdog, NULL);
    }
    pthread_cond_destroy(&closed->changed);
    pthread_mutex_destroy(&closed->call_lock);
    pthread_mutex_destroy(&closed->lock);
    free(closed);
}

static void break_off(struct comm *base) {
    break_comm((struct nccl *)base, FAULT_ABORTED, 0);
}

/* NCCL's buffers are the device's, and it does not say where. Collectives end on the device, where
 * nobody looks at the clock. */
const struct comm_kind comm_nccl = {
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
