/* The sum over ranks, each with a GPU of its own, by kernels that read each other's memory. NCCL
 * has an order of its own; this has the exactness contract's (decisions/0002): element by element,
 * ranks as a binary tree, neighbours first, ((0+1)+(2+3))+((4+5)+(6+7)), the same bits everywhere.
 *
 * Every rank makes the same calls in the same order. An op of the others knows no ranks; this one
 * is about nothing else. A block and its likes of the other ranks are a group of their own, with
 * buffers, flags and a count of meetings that no other block touches:
 *
 *     one-shot   write mine │ meet │ read all, sum
 *     two-shot   write mine │ meet │ sum my slice of all, write it │ meet │ read every slice
 *
 * Data is read from peers and never written to them; flags are written to them and read at home.
 * Meeting number m is about buffer m % 2. Who writes it for m + 2 has been at m + 1, to which every
 * rank came only after it had read for m: what is still read is never written. Numbers only grow,
 * in device memory, so nothing is reset between calls and a captured launch can be replayed.
 *
 * A wait is bounded, and the host can end it. Then *verdict says why, data is undefined, and this
 * and every later call of the rank returns at once. */
#ifndef ESPALIER_ALL_REDUCE_H
#define ESPALIER_ALL_REDUCE_H

#include "kernel.h"

#define ALL_REDUCE_RANKS_MAX    8u
#define ALL_REDUCE_BLOCKS_MAX   32u
#define ALL_REDUCE_BLOCK_FLOATS 8192u /* that a block writes before it meets the others */

enum all_reduce_form { ALL_REDUCE_ONE_SHOT, ALL_REDUCE_TWO_SHOT };

enum all_reduce_verdict {
    ALL_REDUCE_WHOLE,
    ALL_REDUCE_ABORTED, /* by the host */
    ALL_REDUCE_LATE     /* a peer did not come in time */
};

/* Of each rank, in memory of its device that the others can read and write. All zeros before the
 * first call of any rank. */
struct all_reduce_exchange {
    float buffer[2][ALL_REDUCE_BLOCKS_MAX][ALL_REDUCE_BLOCK_FLOATS] __attribute__((aligned(128)));
    uint32_t flag[ALL_REDUCE_BLOCKS_MAX][ALL_REDUCE_RANKS_MAX]; /* the meeting each has come to */
    uint32_t meeting[ALL_REDUCE_BLOCKS_MAX];                    /* this rank's last; its own */
    uint32_t broken; /* enum all_reduce_verdict; its own */
};

struct all_reduce_args {
    float *data; /* [count], in and out */
    size_t count;
    /* [ranks], where this rank finds them; its own among them. */
    struct all_reduce_exchange *exchange[ALL_REDUCE_RANKS_MAX];
    uint32_t rank, ranks; /* ranks: 1, 2, 4 or 8 */
    enum all_reduce_form form;
    uint64_t wait_ns;      /* for a peer, at a meeting */
    const uint32_t *abort; /* pinned: not 0 ends every wait */
    uint32_t *verdict; /* pinned: enum all_reduce_verdict, the peer waited for in bits 8 to 15 */
};

/* The definition: sum[i] over data[rank][i]. */
void all_reduce_ref(const float *const *data, uint32_t ranks, size_t count, float *sum);

void all_reduce_cuda(const struct all_reduce_args *args, struct kernel_ctx *ctx);

#endif
