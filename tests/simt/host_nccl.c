/* NCCL for ranks that are processes on emulated devices: collectives are host functions of their
 * streams, in which the ranks meet over shared memory, as the ranks of CPUs do. An id is the path
 * of a file, which rank 0 fills with what the others join by. */
#include <nccl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm.h"
#include "kernel.h"
#include "simt_cuda.h"

#define JOIN_MS    20000u
#define GRAPHS_MS  20000u /* that an abort waits for graphs to be dropped */
#define GENERATION 1u     /* an id is of one */

struct ncclComm {
    struct ncclComm *next; /* of all: handles live as long as the process */
    struct comm *comm;
    struct comm_seed *seed;     /* rank 0 */
    struct operation *captured; /* that graphs hold, or held */
    _Atomic ncclResult_t async;
};

enum kind { KIND_SUM, KIND_GATHER, KIND_BROADCAST };

struct operation {
    struct operation *next; /* of those captured */
    struct ncclComm *comm;
    enum kind kind;
    const void *from;
    void *to;
    size_t count;
    uint32_t root;
    bool is_captured; /* and so done again and again */
};

static struct ncclComm *comms;

const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclRemoteError ? "remote process exited or there was a network error"
                                     : "internal error";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id_out) {
    static uint32_t count;
    memset(id_out, 0, sizeof *id_out);
    snprintf(id_out->internal, sizeof id_out->internal, "/tmp/espalier-nccl-%d-%u", (int)getpid(),
             count++);
    return ncclSuccess;
}

static bool write_key(const char *path, const struct comm_key *key) {
    char beside[NCCL_UNIQUE_ID_BYTES + 8];
    snprintf(beside, sizeof beside, "%s.new", path);
    FILE *file = fopen(beside, "wb");
    if (!file) return false;
    bool written = fwrite(key, sizeof *key, 1, file) == 1;
    return fclose(file) == 0 && written && rename(beside, path) == 0;
}

static bool read_key(const char *path, struct comm_key *key) {
    for (uint32_t waited = 0; waited < JOIN_MS; waited++) {
        FILE *file = fopen(path, "rb");
        if (file) {
            bool read = fread(key, sizeof *key, 1, file) == 1;
            fclose(file);
            return read;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return false;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm_out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    struct comm_key key;
    struct error err;
    struct ncclComm *made = calloc(1, sizeof *made);
    KERNEL_CHECK(made != NULL && config->blocking == 0);
    made->next = comms;
    comms = made;
    if (rank == 0 && (comm_seed_create(&comm_host, (uint32_t)size, GENERATION, &made->seed, &key,
                                       &err) != STATUS_OK ||
                      !write_key(id.internal, &key)))
        return ncclInternalError;
    if (rank != 0 && !read_key(id.internal, &key)) return ncclSystemError;
    enum status joined = comm_join(&comm_host, &key, (uint32_t)rank, (uint32_t)size, GENERATION,
                                   JOIN_MS, NULL, &made->comm, &err);
    if (rank == 0) unlink(id.internal);
    if (joined != STATUS_OK) return ncclRemoteError;
    *comm_out = made;
    return ncclSuccess;
}

/* As NCCL does, it waits for the graphs that hold its work. */
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    comm_abort(comm->comm);
    for (uint32_t waited = 0; comm->captured != NULL && simt_cuda_count().graphs > 0; waited++) {
        KERNEL_CHECK(waited < GRAPHS_MS);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error_out) {
    *error_out = comm->async;
    return ncclSuccess;
}

static void run(void *user) {
    struct operation *operation = user;
    struct comm *comm = operation->comm->comm;
    struct error err;
    enum status status = STATUS_OK;
    switch (operation->kind) {
    case KIND_SUM: status = comm_all_reduce(comm, operation->to, operation->count, &err); break;
    case KIND_GATHER:
        status = comm_all_gather(comm, operation->from, operation->count, operation->to, &err);
        break;
    case KIND_BROADCAST:
        status = comm_broadcast(comm, operation->to, operation->count, operation->root, &err);
        break;
    }
    if (status != STATUS_OK) operation->comm->async = ncclRemoteError;
    if (!operation->is_captured) free(operation);
}

static ncclResult_t begin(const struct operation *wanted, cudaStream_t stream) {
    struct operation *operation = malloc(sizeof *operation);
    KERNEL_CHECK(operation != NULL);
    *operation = *wanted;
    enum cudaStreamCaptureStatus capture;
    if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess) return ncclUnhandledCudaError;
    operation->is_captured = capture == cudaStreamCaptureStatusActive;
    if (operation->is_captured) {
        operation->next = operation->comm->captured;
        operation->comm->captured = operation;
    }
    return cudaLaunchHostFunc(stream, run, operation) == cudaSuccess ? ncclSuccess
                                                                     : ncclUnhandledCudaError;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    KERNEL_CHECK(from == to && type == ncclFloat32 && op == ncclSum);
    return begin(&(struct operation){.comm = comm, .kind = KIND_SUM, .to = to, .count = count},
                 stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    KERNEL_CHECK(type == ncclUint8);
    return begin(
        &(struct operation){
            .comm = comm, .kind = KIND_GATHER, .from = from, .to = to, .count = count},
        stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    KERNEL_CHECK(from == to && type == ncclUint8);
    return begin(
        &(struct operation){
            .comm = comm, .kind = KIND_BROADCAST, .to = to, .count = count, .root = (uint32_t)root},
        stream);
}

/* Ranks do not send to one another yet. */
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
    (void)from, (void)count, (void)type, (void)peer, (void)comm, (void)stream;
    return ncclInvalidUsage;
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    (void)to, (void)count, (void)type, (void)peer, (void)comm, (void)stream;
    return ncclInvalidUsage;
}
