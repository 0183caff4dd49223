/* What a step costs, learned from the steps that were.
 *
 *     ns = base + row * rows + look * looks / 1024
 *
 * rows: tokens computed; looks: for each of them the tokens before it, which attention reads. The
 * three coefficients are the state of a Kalman filter that drifts slowly (Haykin, "Adaptive Filter
 * Theory"): it follows a machine that changes, and steps that are all alike do not make it forget
 * what others cost.
 *
 * A line is too simple for steps of few rows that all draw a token: there kernels have steps, and
 * each row more may read experts of its own. Such steps are remembered besides by their number of
 * rows, for a while, and between two remembered ones lies what is not. What is a little larger than
 * any of them is taken to cost no more, so that it is tried and then known; what is larger still
 * costs what the line says. Values only; one owner.
 */
#ifndef ESPALIER_COST_MODEL_H
#define ESPALIER_COST_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#define COST_MODEL_TERMS 3u
#define COST_MODEL_SIZES 20u

/* Steps in which every row draws, of about as many rows. */
struct cost_model_size {
    double rows, looks, ns; /* fading means */
    uint64_t seen;          /* by the count of such steps, the last */
    uint32_t times;         /* up to what is enough */
};

struct cost_model {
    double weight[COST_MODEL_TERMS]; /* ns a step, a row, 1024 looks */
    double spread[COST_MODEL_TERMS][COST_MODEL_TERMS];
    uint32_t steps; /* seen, up to what is enough */
    struct cost_model_size drawing[COST_MODEL_SIZES];
    uint64_t drawing_count;
};

/* What a step consists of. */
struct cost_model_step {
    uint32_t rows;
    uint64_t looks;
};

void cost_model_init(struct cost_model *model);

void cost_model_take(struct cost_model *model, struct cost_model_step step, uint64_t ns);

/* Such a step, in which every row draws a token. */
void cost_model_take_drawing(struct cost_model *model, struct cost_model_step step, uint64_t ns);

/* What it would cost; 0 until enough steps were seen. */
double cost_model_of_drawing(const struct cost_model *model, struct cost_model_step step);

/* 0 until enough steps were seen. */
uint64_t cost_model_of(const struct cost_model *model, struct cost_model_step step);

/* How many rows at positions from `committed` on may be added so that the step stays within
 * target_ns: at most row_max, and row_max until enough steps were seen. */
uint32_t cost_model_rows(const struct cost_model *model, struct cost_model_step step,
                         uint32_t committed, uint32_t row_max, uint64_t target_ns);

#endif
