/* Collectives between the ranks of a group, in several ways with one contract. comm_host.c:
 * shared memory on one host; on device memory comm_nccl.c: NCCL, and comm_p2p.c: kernels of ours
 * for sums where they are faster.
 *
 * One communicator lives for one generation. Its key is made by rank 0, handed out by the
 * coordinator, and used by every rank to join. All ranks call the same operations in the same
 * order; each is bounded in time; a dead or late peer gives an error, never a hang. After an error
 * the communicator is broken: close it and wait for the next generation.
 *
 * Sums are those of the exactness contract: element by element, ranks as a binary tree, neighbours
 * first, ((0+1)+(2+3))+((4+5)+(6+7)), the same bits on every rank. NCCL has an
 * order of its own; what else differs there, comm_nccl.h says.
 *
 * Thread: one at a time (the compute thread), except comm_abort and comm_sequence: any thread.
 */
#ifndef ESPALIER_COMM_H
#define ESPALIER_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/histogram.h"
#include "base/status.h"
#include "message.h"

struct comm;
struct comm_kind; /* a way to meet: */
extern const struct comm_kind comm_host;

struct comm_key {
    uint8_t data[GROUP_KEY_BYTES_MAX];
    uint32_t bytes;
};

/* What a rank makes a group with: rank 0 before anyone joins. The seed must stay open until all
 * have joined. */
struct comm_seed;
enum status comm_seed_create(const struct comm_kind *kind, uint32_t size, uint64_t generation,
                             struct comm_seed **seed_out, struct comm_key *key_out,
                             struct error *err) MUST_USE;
void comm_seed_destroy(struct comm_seed **seed);

/* Returns when all `size` ranks have joined: DEADLINE_EXCEEDED after timeout_ms. size 1 needs no
 * key (key->bytes 0). UNAVAILABLE where the seed is gone or of another generation. ABORTED, for
 * the others too, soon after *cancel becomes true; cancel may be NULL. */
enum status comm_join(const struct comm_kind *kind, const struct comm_key *key, uint32_t rank,
                      uint32_t size, uint64_t generation, uint32_t timeout_ms,
                      const _Atomic bool *cancel, struct comm **comm_out,
                      struct error *err) MUST_USE;

/* Ends it for the others too: what has not ended by then gives them UNAVAILABLE. Graphs that hold
 * its operations are dropped before: NCCL waits for that. */
void comm_close(struct comm **comm);

/* Where data is device memory, collectives that follow are work of this stream, each, and each
 * wait, at most wait_ms long. Nothing where it is the host's. */
void comm_use(struct comm *comm, void *stream, uint32_t wait_ms);

/* Returns when all that the stream was told is done; at once where there is none. ABORTED,
 * DEADLINE_EXCEEDED, UNAVAILABLE where a peer is gone, INTERNAL where this device failed. A group
 * of one waits for its device however long it takes. */
enum status comm_wait(struct comm *comm, struct error *err) MUST_USE;

/* Operations that were captured with the stream's other work (device.h) are about to be done again,
 * so many. Errors: those of comm_wait, where the communicator is broken. */
enum status comm_replay(struct comm *comm, uint64_t operations, struct error *err) MUST_USE;

uint32_t comm_rank(const struct comm *comm);
uint32_t comm_size(const struct comm *comm);

/* data[0, count) becomes the sum over ranks. */
enum status comm_all_reduce(struct comm *comm, float *data, size_t count,
                            struct error *err) MUST_USE;

/* out: size blocks of `bytes`, in rank order; mine may lie at its place in out. */
enum status comm_all_gather(struct comm *comm, const void *mine, size_t bytes, void *out,
                            struct error *err) MUST_USE;

/* data of `root` replaces everybody's. */
enum status comm_broadcast(struct comm *comm, void *data, size_t bytes, uint32_t root,
                           struct error *err) MUST_USE;

/* Point to point, in order between a pair; both sides must call. For copying a neighbour's KV. */
enum status comm_send(struct comm *comm, uint32_t peer, const void *data, size_t bytes,
                      struct error *err) MUST_USE;
enum status comm_recv(struct comm *comm, uint32_t peer, void *data, size_t bytes,
                      struct error *err) MUST_USE;

/* What the ranks share; NULL for a group of one. */
const void *comm_memory(const struct comm *comm, size_t *bytes_out);

/* Break the communicator: every rank in, or entering, an operation returns ABORTED at once. */
void comm_abort(struct comm *comm);

/* How long all-reduces of several ranks took since the last call, waits for the others included,
 * are added to `into`. */
void comm_take_times(struct comm *comm, struct histogram *into);

/* Operations entered so far: what a heartbeat shows as progress within a step. */
uint64_t comm_sequence(const struct comm *comm);

#endif
