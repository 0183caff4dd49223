/* Ranks of a communicator for tests: as threads of this process, or as processes of their own. */
#ifndef ESPALIER_COMM_RANKS_H
#define ESPALIER_COMM_RANKS_H

#include <sys/types.h>

#include "comm.h"

#define RANKS_GENERATION 3u
#define RANKS_JOIN_MS    20000u

/* What one rank does; true if all was as it should be. It says on stderr what was not. */
typedef bool rank_fn(struct comm *comm, void *user);

/* Join `size` ranks, run fn in each, close. False if any fn did not return true. */
bool comm_ranks_threads(uint32_t size, rank_fn *fn, void *user);
bool comm_ranks_processes(uint32_t size, rank_fn *fn, void *user);

/* The parts of comm_ranks_processes: fork one rank; how did it end (as waitpid says)? */
pid_t comm_ranks_fork(const struct comm_key *key, uint32_t rank, uint32_t size, rank_fn *fn,
                      void *user);
int comm_ranks_await(pid_t pid);

#endif
