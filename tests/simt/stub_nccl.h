/* NCCL for ranks that are threads of one process, on emulated streams: collectives are host
 * functions in which the ranks meet. Sums are those of the exactness contract (worker/comm.h).
 * Communicators do not block: a collective is work of its stream once ncclCommGetAsyncError has
 * said so, after some looks, and is in progress before; whatever else uses its handle, or the
 * stream, comes too soon.
 *
 * What NCCL may do to its callers can be ordered: any call fails, hangs until the communicator is
 * aborted, or stays in progress; a collective hangs on the device; a peer's end is told, or not. */
#ifndef ESPALIER_STUB_NCCL_H
#define ESPALIER_STUB_NCCL_H

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

enum stub_nccl_call {
    STUB_GET_ID,
    STUB_INIT,
    STUB_ASYNC_ERROR,
    STUB_ALL_REDUCE,
    STUB_ALL_GATHER,
    STUB_BROADCAST,
    STUB_SEND,
    STUB_RECV,
    STUB_ABORT,
    STUB_CALL_COUNT
};

enum stub_nccl_fate {
    STUB_WORKS,
    STUB_FAILS,           /* returns `result` */
    STUB_HANGS,           /* does not return before the communicator is aborted */
    STUB_IN_PROGRESS,     /* and stays so, until it is aborted */
    STUB_HANGS_ON_DEVICE, /* is accepted; its work ends when the communicator is aborted */
    STUB_FAILS_LATER      /* likewise, and NCCL reports `result` meanwhile */
};

/* What happens to `rank` in its next call of this kind, and in all after it; rank -1: to all. */
void stub_nccl_order(int rank, enum stub_nccl_call call, enum stub_nccl_fate fate,
                     ncclResult_t result);

/* Do peers hear that a rank aborted? At first they do not, as where a machine has died. */
void stub_nccl_tell_peers(bool tell);

/* From now on every sum takes this long, once all ranks have come, and so does the call that makes
 * a communicator. */
void stub_nccl_slow(uint32_t ms);

/* From now on every call for a collective takes its caller this long. */
void stub_nccl_slow_calls(uint32_t ms);

/* Forget all orders and counts. No communicator is alive. */
void stub_nccl_reset(void);

struct stub_nccl_counts {
    uint32_t made, aborted; /* communicators */
    uint32_t misused;       /* calls with one that was aborted, or had not taken the one before */
    uint64_t pause_ns;      /* the shortest between two looks at a call that has not been taken */
};
struct stub_nccl_counts stub_nccl_counted(void);

#endif
