/* What of comm_nccl.c the CUDA back end uses beside comm.h.
 *
 * Data of collectives is device memory, and a collective has begun, not ended, when its call
 * returns: it is work of a stream. Its errors show in comm_nccl_wait, or in the next call.
 *
 * Life. A communicator is made without blocking, lives for one generation, and is aborted, never
 * destroyed: destroying waits for peers that may be gone. A thread beside it watches whatever is
 * waited for: where it takes too long, or NCCL says that a peer or the device failed, it aborts,
 * and the waiting thread returns with the reason. So does comm_abort, from any thread, also where a
 * call into NCCL itself hangs. */
#ifndef ESPALIER_COMM_NCCL_H
#define ESPALIER_COMM_NCCL_H

#include <cuda_runtime_api.h>

#include "comm.h"

/* Collectives that follow are work of this stream, each, and each wait, at most wait_ms long. */
void comm_nccl_use(struct comm *comm, cudaStream_t stream, uint32_t wait_ms);

/* Returns when all that the stream was told is done. ABORTED, DEADLINE_EXCEEDED, UNAVAILABLE where
 * a peer is gone, INTERNAL where this device failed. */
enum status comm_nccl_wait(struct comm *comm, struct error *err) MUST_USE;

#endif
