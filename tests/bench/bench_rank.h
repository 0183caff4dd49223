/* One rank of a group that is measured: the engine with a checkpoint, and a sequence to run.
 *
 * A point is what is measured: some steps of so many rows each, after a context. The context is not
 * prefilled each time: every page of the pool is filled once, with copies of the pages of one real
 * chunk, and a point starts its sequence anew on them, as a plan does that found its prefix in a
 * cache. Tokens then attend to keys of the right size and spread that lie where a real context
 * would: in scattered pages that no cache holds.
 *
 * What cannot fail in a bench ends the process with a message on stderr.
 */
#ifndef ESPALIER_BENCH_RANK_H
#define ESPALIER_BENCH_RANK_H

#include "comm.h"
#include "message.h"

#define BENCH_ROWS_MAX     512u   /* of a step: the coordinator's chunk of a prompt */
#define BENCH_CONTEXT_MAX  16384u /* before a point; its own rows come on top */
#define BENCH_OWN_ROWS_MAX 2048u

struct bench_point {
    uint32_t rows;    /* of a step */
    uint32_t context; /* tokens before the first step */
    uint32_t steps;   /* each continues the one before; the last row of each is drawn from */
};

struct bench_measurement {
    int64_t wall_ns; /* of all steps */
    int64_t cpu_ns;  /* of this process: all its threads, spinning included */
    double bytes;    /* of weights and cache that this rank must read, in all steps */
    double flops;    /* multiplications and additions of products and of attention */
    uint32_t drawn;  /* the token drawn last */
};

struct bench_rank;

struct bench_rank *bench_rank_open(const char *model, uint32_t rank, uint32_t tp, uint32_t threads,
                                   enum activation_dtype activation, enum prefill_form form,
                                   const struct comm_key *key);
void bench_rank_close(struct bench_rank **rank);

/* All ranks of the group must run the same point. The token at position p is
 * hash_mix(p + 1) % vocab, so that a peer can run the same. */
struct bench_measurement bench_rank_run(struct bench_rank *rank, const struct bench_point *point);

#endif
