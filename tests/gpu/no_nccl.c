/* NCCL for a bench of one rank, which meets nobody: nothing of it is called. So its program needs a
 * driver and no library. */
#include <nccl.h>

const char *ncclGetErrorString(ncclResult_t result) {
    (void)result;
    return "built without NCCL";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id_out) {
    (void)id_out;
    return ncclInvalidUsage;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm_out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    (void)comm_out, (void)size, (void)id, (void)rank, (void)config;
    return ncclInvalidUsage;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    (void)comm;
    return ncclInvalidUsage;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error_out) {
    (void)comm, (void)error_out;
    return ncclInvalidUsage;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    (void)from, (void)to, (void)count, (void)type, (void)op, (void)comm, (void)stream;
    return ncclInvalidUsage;
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    (void)from, (void)to, (void)count, (void)type, (void)comm, (void)stream;
    return ncclInvalidUsage;
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    (void)from, (void)to, (void)count, (void)type, (void)root, (void)comm, (void)stream;
    return ncclInvalidUsage;
}

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
