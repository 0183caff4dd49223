/* How ops on independent rows share them among threads: consecutive rows, enough to be worth a
 * task. */
#ifndef ESPALIER_ROWS_H
#define ESPALIER_ROWS_H

#include "team.h"

/* Below this many floats of work a thread costs more to wake than it does. */
#define ROWS_TASK_FLOATS 16384u

struct rows {
    const void *args; /* of the op */
    uint32_t count;
    uint32_t of_task;
};

static inline struct rows rows_split(const void *args, uint32_t count, size_t floats_a_row) {
    size_t of_task = floats_a_row < ROWS_TASK_FLOATS ? ROWS_TASK_FLOATS / (floats_a_row + 1) : 1;
    return (struct rows){args, count, of_task > 0 ? (uint32_t)of_task : 1};
}

static inline uint32_t rows_tasks(const struct rows *rows) {
    return rows->count / rows->of_task + (rows->count % rows->of_task != 0);
}

/* The rows [begin, end) of a task. */
static inline uint32_t rows_begin(const struct rows *rows, uint32_t task) {
    return task * rows->of_task;
}
static inline uint32_t rows_end(const struct rows *rows, uint32_t task) {
    uint32_t begin = task * rows->of_task;
    return rows->count - begin < rows->of_task ? rows->count : begin + rows->of_task;
}

#endif
