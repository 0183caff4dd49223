#include "stub_nccl.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernel.h"

#define RANKS_MAX 8
#define RANK_ALL  RANKS_MAX
#define LOOKS     4 /* for the communicator's state, until a collective has been taken */

enum kind { KIND_SUM, KIND_GATHER, KIND_BROADCAST, KIND_SEND, KIND_RECV };

/* A collective as one rank asks for it; work of a stream, perhaps more than once. */
struct operation {
    struct operation *next; /* of all, until stub_nccl_reset */
    struct ncclComm *comm;
    cudaStream_t stream;
    enum kind kind;
    const void *from;
    void *to;
    size_t count;
    int other; /* root, or peer */
    bool hangs;
};

/* The ranks that have an id. */
struct group {
    struct group *next;
    ncclUniqueId id;
    int size, joined, aborted;
    struct ncclComm *comm[RANKS_MAX];
    /* Of the collective under way: who has come, and how many were before it. */
    struct operation *here[RANKS_MAX];
    int here_count;
    uint64_t round;
    struct operation *sent[RANKS_MAX][RANKS_MAX]; /* [from][to], waiting to be taken */
};

/* Handles live as long as the process, so that a misuse is counted and not a crash. */
struct ncclComm {
    struct group *group;
    int rank;
    bool aborted;
    bool in_progress;   /* for ever */
    ncclResult_t async; /* what it reports */
    /* As NCCL's calls do that do not block, it comes back before its work is the stream's. */
    struct operation *untaken;
    uint32_t looks; /* at it so far */
    pthread_t looker;
    uint64_t looked_ns; /* the last one */
};

struct order {
    enum stub_nccl_fate fate;
    ncclResult_t result;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct order orders[RANKS_MAX + 1][STUB_CALL_COUNT];
static struct stub_nccl_counts counts;
static struct group *groups;
static struct operation *operations;
static uint64_t ids;
static bool peers_hear;
static uint32_t slow_ms, slow_calls_ms;

static void run(void *user);

/* ============================== orders ======================================================== */

void stub_nccl_order(int rank, enum stub_nccl_call call, enum stub_nccl_fate fate,
                     ncclResult_t result) {
    pthread_mutex_lock(&lock);
    orders[rank < 0 ? RANK_ALL : rank][call] = (struct order){fate, result};
    pthread_mutex_unlock(&lock);
}

void stub_nccl_tell_peers(bool tell) {
    pthread_mutex_lock(&lock);
    peers_hear = tell;
    pthread_mutex_unlock(&lock);
}

void stub_nccl_slow(uint32_t ms) {
    pthread_mutex_lock(&lock);
    slow_ms = ms;
    pthread_mutex_unlock(&lock);
}

void stub_nccl_slow_calls(uint32_t ms) {
    pthread_mutex_lock(&lock);
    slow_calls_ms = ms;
    pthread_mutex_unlock(&lock);
}

void stub_nccl_reset(void) {
    pthread_mutex_lock(&lock);
    while (operations != NULL) {
        struct operation *next = operations->next;
        free(operations);
        operations = next;
    }
    memset(orders, 0, sizeof orders);
    counts = (struct stub_nccl_counts){.pause_ns = UINT64_MAX};
    peers_hear = false;
    slow_ms = slow_calls_ms = 0;
    pthread_mutex_unlock(&lock);
}

struct stub_nccl_counts stub_nccl_counted(void) {
    pthread_mutex_lock(&lock);
    struct stub_nccl_counts now = counts;
    pthread_mutex_unlock(&lock);
    return now;
}

static struct order order_of(int rank, enum stub_nccl_call call) {
    struct order mine = orders[rank][call];
    return mine.fate != STUB_WORKS ? mine : orders[RANK_ALL][call];
}

/* What the call returns at once, or ncclSuccess for it to go on. The lock is held. */
static ncclResult_t obey(struct ncclComm *comm, enum stub_nccl_call call) {
    struct order order = order_of(comm->rank, call);
    if (comm->aborted || (comm->untaken && call != STUB_ASYNC_ERROR)) {
        counts.misused++;
        return ncclInvalidArgument;
    }
    while (order.fate == STUB_HANGS && !comm->aborted)
        pthread_cond_wait(&changed, &lock);
    if (order.fate == STUB_HANGS) return ncclInternalError;
    if (order.fate == STUB_FAILS) return order.result;
    if (order.fate == STUB_FAILS_LATER) comm->async = order.result;
    if (order.fate == STUB_IN_PROGRESS) comm->in_progress = true;
    return ncclSuccess;
}

/* ============================== life ========================================================== */

const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const words[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "in progress"};
    return words[result];
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id_out) {
    pthread_mutex_lock(&lock);
    struct order order = order_of(0, STUB_GET_ID);
    memset(id_out, 0, sizeof *id_out);
    ids++;
    memcpy(id_out->internal, &ids, sizeof ids);
    pthread_mutex_unlock(&lock);
    return order.fate == STUB_FAILS ? order.result : ncclSuccess;
}

static struct group *find_group(const ncclUniqueId *id, int size) {
    for (struct group *group = groups; group != NULL; group = group->next)
        if (memcmp(&group->id, id, sizeof *id) == 0) return group;
    struct group *group = calloc(1, sizeof *group);
    KERNEL_CHECK(group != NULL);
    group->id = *id;
    group->size = size;
    group->next = groups;
    groups = group;
    return group;
}

static void take_time(uint32_t ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm_out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    if (config->blocking != 0 || size > RANKS_MAX || rank >= size) return ncclInvalidArgument;
    struct ncclComm *comm = calloc(1, sizeof *comm);
    KERNEL_CHECK(comm != NULL);
    take_time(slow_ms);
    pthread_mutex_lock(&lock);
    comm->group = find_group(&id, size);
    comm->rank = rank;
    ncclResult_t result = obey(comm, STUB_INIT);
    if (result == ncclSuccess && (comm->group->size != size || comm->group->comm[rank] != NULL))
        result = ncclInvalidUsage;
    if (result == ncclSuccess) {
        comm->group->comm[rank] = comm;
        comm->group->joined++;
        counts.made++;
        *comm_out = comm;
        result = ncclInProgress;
    } else {
        free(comm);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    pthread_mutex_lock(&lock);
    struct order order = order_of(comm->rank, STUB_ABORT);
    if (comm->aborted) counts.misused++;
    comm->aborted = true;
    comm->group->aborted++;
    counts.aborted++;
    for (int peer = 0; peer < comm->group->size && peers_hear; peer++)
        if (comm->group->comm[peer] != NULL && comm->group->comm[peer]->async == ncclSuccess)
            comm->group->comm[peer]->async = ncclRemoteError;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return order.fate == STUB_FAILS ? order.result : ncclSuccess;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Of one thread: how soon it looks again. */
static void note_pause(struct ncclComm *comm) {
    uint64_t at_ns = now_ns(), pause_ns = at_ns - comm->looked_ns;
    bool again = comm->looks > 0 && pthread_equal(comm->looker, pthread_self()) != 0;
    if (again && pause_ns < counts.pause_ns) counts.pause_ns = pause_ns;
    comm->looker = pthread_self();
    comm->looked_ns = at_ns;
}

/* The operation that this look finds taken. The lock is held. */
static struct operation *look(struct ncclComm *comm) {
    note_pause(comm);
    if (comm->in_progress || ++comm->looks < LOOKS) return NULL;
    struct operation *taken = comm->untaken;
    comm->untaken = NULL;
    return taken;
}

static ncclResult_t look_at_untaken(struct ncclComm *comm, ncclResult_t *error_out) {
    const struct operation *taken = look(comm);
    *error_out = taken ? ncclSuccess : ncclInProgress;
    pthread_mutex_unlock(&lock);
    bool told = !taken ||
                cudaLaunchHostFunc(taken->stream, run, (void *)(uintptr_t)taken) == cudaSuccess;
    return told ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error_out) {
    pthread_mutex_lock(&lock);
    ncclResult_t result = obey(comm, STUB_ASYNC_ERROR);
    if (result == ncclSuccess && comm->untaken) return look_at_untaken(comm, error_out);
    bool joining = comm->group->joined < comm->group->size;
    *error_out = comm->async != ncclSuccess     ? comm->async
                 : joining || comm->in_progress ? ncclInProgress
                                                : ncclSuccess;
    pthread_mutex_unlock(&lock);
    return result;
}

/* ============================== collectives =================================================== */

static void sum(const struct group *group) {
    float part[RANKS_MAX];
    for (size_t i = 0; i < group->here[0]->count; i++) {
        for (int rank = 0; rank < group->size; rank++)
            part[rank] = ((const float *)group->here[rank]->from)[i];
        for (int width = 1; width < group->size; width *= 2)
            for (int rank = 0; rank + width < group->size; rank += 2 * width)
                part[rank] += part[rank + width];
        for (int rank = 0; rank < group->size; rank++)
            ((float *)group->here[rank]->to)[i] = part[0];
    }
}

static void gather(const struct group *group) {
    for (int rank = 0; rank < group->size; rank++)
        for (int part = 0; part < group->size; part++)
            memmove((char *)group->here[rank]->to + (size_t)part * group->here[rank]->count,
                    group->here[part]->from, group->here[part]->count);
}

static void broadcast(const struct group *group) {
    const struct operation *root = group->here[group->here[0]->other];
    for (int rank = 0; rank < group->size; rank++)
        memmove(group->here[rank]->to, root->from, root->count);
}

/* All ranks come; the last one computes for all. */
static void meet(struct operation *operation) {
    struct ncclComm *comm = operation->comm;
    struct group *group = comm->group;
    uint64_t round = group->round;
    group->here[comm->rank] = operation;
    if (++group->here_count == group->size) {
        if (operation->kind == KIND_SUM) {
            take_time(slow_ms);
            sum(group);
        }
        if (operation->kind == KIND_GATHER) gather(group);
        if (operation->kind == KIND_BROADCAST) broadcast(group);
        group->here_count = 0;
        group->round++;
        pthread_cond_broadcast(&changed);
    }
    while (group->round == round && !comm->aborted)
        pthread_cond_wait(&changed, &lock);
    if (group->round == round) group->here_count--; /* who comes later does not find us */
}

/* The sender waits until its bytes were taken. */
static void pass(struct operation *operation) {
    struct ncclComm *comm = operation->comm;
    int from = operation->kind == KIND_SEND ? comm->rank : operation->other;
    int to = operation->kind == KIND_SEND ? operation->other : comm->rank;
    struct operation **sent = &comm->group->sent[from][to];
    if (operation->kind == KIND_SEND) {
        *sent = operation;
        pthread_cond_broadcast(&changed);
        while (*sent == operation && !comm->aborted)
            pthread_cond_wait(&changed, &lock);
        if (*sent == operation) *sent = NULL;
        return;
    }
    while (*sent == NULL && !comm->aborted)
        pthread_cond_wait(&changed, &lock);
    if (comm->aborted) return;
    memcpy(operation->to, (*sent)->from, operation->count);
    *sent = NULL;
    pthread_cond_broadcast(&changed);
}

static void run(void *user) {
    struct operation *operation = user;
    struct ncclComm *comm = operation->comm;
    pthread_mutex_lock(&lock);
    while (operation->hangs && !comm->aborted)
        pthread_cond_wait(&changed, &lock);
    if (!comm->aborted && operation->kind < KIND_SEND)
        meet(operation);
    else if (!comm->aborted)
        pass(operation);
    pthread_mutex_unlock(&lock);
}

static ncclResult_t begin(enum stub_nccl_call call, const struct operation *wanted,
                          cudaStream_t stream) {
    take_time(slow_calls_ms);
    pthread_mutex_lock(&lock);
    ncclResult_t result = obey(wanted->comm, call);
    enum stub_nccl_fate fate = order_of(wanted->comm->rank, call).fate;
    bool hangs = fate == STUB_HANGS_ON_DEVICE || fate == STUB_FAILS_LATER;
    struct operation *operation = malloc(sizeof *operation);
    KERNEL_CHECK(operation != NULL);
    *operation = *wanted;
    operation->stream = stream;
    operation->hangs = hangs;
    operation->next = operations;
    operations = operation;
    if (result == ncclSuccess) {
        wanted->comm->untaken = operation;
        wanted->comm->looks = 0;
    }
    pthread_mutex_unlock(&lock);
    return result == ncclSuccess ? ncclInProgress : result;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    if (type != ncclFloat32 || op != ncclSum) return ncclInvalidArgument;
    return begin(
        STUB_ALL_REDUCE,
        &(struct operation){.comm = comm, .kind = KIND_SUM, .from = from, .to = to, .count = count},
        stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    if (type != ncclUint8) return ncclInvalidArgument;
    return begin(STUB_ALL_GATHER,
                 &(struct operation){
                     .comm = comm, .kind = KIND_GATHER, .from = from, .to = to, .count = count},
                 stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    if (type != ncclUint8) return ncclInvalidArgument;
    return begin(STUB_BROADCAST,
                 &(struct operation){.comm = comm,
                                     .kind = KIND_BROADCAST,
                                     .from = from,
                                     .to = to,
                                     .count = count,
                                     .other = root},
                 stream);
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
    if (type != ncclUint8) return ncclInvalidArgument;
    return begin(STUB_SEND,
                 &(struct operation){
                     .comm = comm, .kind = KIND_SEND, .from = from, .count = count, .other = peer},
                 stream);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    if (type != ncclUint8) return ncclInvalidArgument;
    return begin(STUB_RECV,
                 &(struct operation){
                     .comm = comm, .kind = KIND_RECV, .to = to, .count = count, .other = peer},
                 stream);
}
