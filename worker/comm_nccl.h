/* Collectives by NCCL, on device memory.
 *
 * A collective has begun, not ended, when its call returns: it is work of a stream (comm_use). Its
 * errors show in comm_wait, or in the next call.
 *
 * Life. A communicator is made without blocking, lives for one generation, and is aborted, never
 * destroyed: destroying waits for peers that may be gone. A thread beside it watches whatever is
 * waited for: where it takes too long, or NCCL says that a peer or the device failed, it aborts,
 * and the waiting thread returns with the reason. So does comm_abort, from any thread, also where a
 * call into NCCL itself hangs. */
#ifndef ESPALIER_COMM_NCCL_H
#define ESPALIER_COMM_NCCL_H

#include "comm.h"

extern const struct comm_kind comm_nccl;

#endif
