/* A whole step of one rank of eight, alone, by the worker's own forward pass: embedding to logits,
 * over a few layers of random weights, of a draft tree behind a context. Once replayed from a
 * graph, and once launched op by op. What sums over ranks take is not in it, nor is drawing. */
#ifndef ESPALIER_BENCH_STEP_H
#define ESPALIER_BENCH_STEP_H

#include <stdbool.h>
#include <stdint.h>

/* What a step of so many rows behind so many tokens takes: the best of some runs, in seconds, and
 * what it reads and computes at least. */
struct bench_step_time {
    double by_graph, by_op;
    double bytes, flops;
};

struct bench_step;

/* tiny: a model for the emulator. Whatever fails ends the program. */
struct bench_step *bench_step_open(bool tiny, uint32_t context_max);
void bench_step_close(struct bench_step **bench);

/* How far the logits of a replayed step are from those of the same launches, one by one: not at
 * all, where graphs are right. NaN where one is. */
double bench_step_differs(struct bench_step *bench, uint32_t rows, uint32_t context);

struct bench_step_time bench_step_run(struct bench_step *bench, uint32_t rows, uint32_t context,
                                      uint32_t runs);

#endif
