/* The memory that the ranks of a host communicator share, and every way of waiting on it.
 *
 * One memfd, made by rank 0's seed, mapped by all, sealed so that nobody can shrink it under the
 * others; it has no name, so nothing is left behind whoever dies:
 *
 *     [ head | a line a rank | words | 2 x (size + 1) slots | a channel for each ordered pair ]
 *
 * A word is what one waits for: a counter in a cache line of its own, and the futex of those who
 * wait for it to move. Its lowest bit says that the communicator is broken. Breaking sets the bit
 * in all words, which wakes every sleeper and makes any later sleep return at once. A waiter looks
 * at the counter first and at the bit second: what has happened counts, even if a peer broke the
 * communicator right after, so an operation that ended for one rank ends for all.
 *
 * Every wait is bounded (COMM_SHM_WAIT_MS) and sleeps in short slices; after each, the waiter sees
 * whether the processes of its peers still live. So a killed peer is noticed even if nobody calls
 * comm_abort.
 *
 * Thread: as comm.h; comm_shm_break may be called from any thread while the mapping exists.
 */
#ifndef ESPALIER_COMM_SHM_H
#define ESPALIER_COMM_SHM_H

#include <stdatomic.h>
#include <stdbool.h>

#include "comm.h"

#define COMM_SHM_LINE 64u

/* Of one rank's part of one piece of an operation. */
#define COMM_SHM_SLOT_BYTES (1u << 20)

/* Of one piece sent from rank to rank, and how many may lie in a channel. */
#define COMM_SHM_PIECE_BYTES (64u << 10)
#define COMM_SHM_PIECES      2u

/* How long a rank waits for its peers in one operation before it gives the group up; a test of the
 * limit is built with a shorter one. */
#ifndef COMM_SHM_WAIT_MS
#define COMM_SHM_WAIT_MS 30000u
#endif

/* Counts go round here. */
#define COMM_SHM_COUNT_MASK 0x7fffffffu

struct comm_shm_word {
    _Alignas(COMM_SHM_LINE) _Atomic uint32_t value; /* 2 * count + broken */
    _Atomic uint32_t sleepers;                      /* at least as many as sleep */
};

/* What a rank says about itself. */
struct comm_shm_line {
    _Alignas(COMM_SHM_LINE) _Atomic uint32_t pid; /* 0 before it joins */
    _Atomic uint64_t process_start;               /* as /proc/PID/stat has it; 0: not known */
    _Atomic uint64_t meetings;                    /* barriers it has come to */
    _Atomic uint64_t operation[2];                /* what it does there; by parity */
};

struct comm_shm_piece {
    _Alignas(COMM_SHM_LINE) uint64_t bytes_left; /* of the message, this piece included */
    _Alignas(COMM_SHM_LINE) uint8_t data[COMM_SHM_PIECE_BYTES];
};

struct comm_shm_channel {
    struct comm_shm_word *sent, *taken;
    struct comm_shm_piece *piece; /* [COMM_SHM_PIECES] */
};

enum comm_shm_fault {
    COMM_SHM_WHOLE,    /* not broken */
    COMM_SHM_ABORTED,  /* a rank called comm_abort */
    COMM_SHM_LEFT,     /* a rank closed it while another waited */
    COMM_SHM_DEAD,     /* a rank's process is gone */
    COMM_SHM_LATE,     /* a rank did not come in time */
    COMM_SHM_DIFFERENT /* ranks came to one barrier with different operations */
};

/* One rank's view. Opaque but for its place in the group. */
struct comm_shm {
    struct comm_shm_head *head;
    size_t bytes;
    uint32_t rank, size;
    uint32_t spin, spin_max; /* looks at a word before sleeping: next time, and at most */
};

/* The descriptor of the memory of a new group, and the key that finds it. */
enum status comm_shm_create(uint32_t size, uint64_t generation, int *fd_out,
                            struct comm_key *key_out, struct error *err) MUST_USE;

/* As comm_join, for size > 1. */
enum status comm_shm_join(struct comm_shm *shm, const struct comm_key *key, uint32_t rank,
                          uint32_t size, uint64_t generation, uint32_t timeout_ms,
                          const _Atomic bool *cancel, struct error *err) MUST_USE;

/* Unmap. Those who still wait for this rank get an error at once. */
void comm_shm_leave(struct comm_shm *shm);

/* Wait at the barrier for all ranks; `operation` must be the same on all. */
enum status comm_shm_meet(struct comm_shm *shm, uint64_t operation, struct error *err) MUST_USE;

/* Wait until the count of word is not `seen` any more; suspect: the rank to blame if it never
 * moves. */
enum status comm_shm_wait(struct comm_shm *shm, struct comm_shm_word *word, uint32_t seen,
                          uint32_t suspect, struct error *err) MUST_USE;
uint32_t comm_shm_count(const struct comm_shm_word *word);
void comm_shm_advance(struct comm_shm_word *word); /* count + 1, and wake */

/* OK, or how the communicator broke. */
enum status comm_shm_status(const struct comm_shm *shm, struct error *err) MUST_USE;

/* The first fault stays; rank: who is to blame. */
void comm_shm_break(struct comm_shm *shm, enum comm_shm_fault fault, uint32_t rank);

/* buffer 0 or 1; idx: a rank, or size for the sum that all read. */
void *comm_shm_slot(const struct comm_shm *shm, uint32_t buffer, uint32_t idx);
struct comm_shm_channel comm_shm_channel(const struct comm_shm *shm, uint32_t source,
                                         uint32_t target);

#endif
