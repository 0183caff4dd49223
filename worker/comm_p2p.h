/* Collectives by NCCL, but small sums by the ranks' own kernels where that is faster: all_reduce.h.
 * Those add in the exactness contract's order, NCCL in its own.
 *
 * comm_use is a collective here, at its first call: ranks hand each other a piece of their GPU's
 * memory, and measure at which sizes of a sum who is faster in a captured step, NCCL, one-shot or
 * two-shot; the slowest rank counts, so all choose the same. Where a GPU cannot reach a peer's
 * memory, or a rank is on another host, everything is NCCL's, on all ranks, and one line of the log
 * says why.
 *
 * comm_abort ends waits of the kernels too. A peer that does not come is named by comm_wait. */
#ifndef ESPALIER_COMM_P2P_H
#define ESPALIER_COMM_P2P_H

#include "comm.h"

/* Sums of 2^LEAST to 2^MOST floats are measured, by powers of two; larger ones are NCCL's. Tests
 * are built with fewer. */
#define COMM_P2P_LEAST 8u
#ifndef COMM_P2P_MOST
#define COMM_P2P_MOST 19u /* 73 rows of 7168 */
#endif
#define COMM_P2P_SIZES (COMM_P2P_MOST - COMM_P2P_LEAST + 1)

enum comm_p2p_path { COMM_P2P_NCCL, COMM_P2P_ONE_SHOT, COMM_P2P_TWO_SHOT, COMM_P2P_PATHS };

/* How long a sum takes a rank. */
struct comm_p2p_times {
    uint64_t ns[COMM_P2P_SIZES][COMM_P2P_PATHS];
};

/* The fastest for each size, where all wait for the slowest of `ranks`; NCCL among equals. */
void comm_p2p_choose(const struct comm_p2p_times *times, uint32_t ranks,
                     enum comm_p2p_path path_out[COMM_P2P_SIZES]);

extern const struct comm_kind comm_p2p;

#endif
