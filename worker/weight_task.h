/* What loading is cut into: rows of one packed weight, and where they lie in files.
 *
 * A task is at most a few megabytes, so that threads stay busy to the end and a cancelled load
 * stops soon; it is worked off in bites that stay in the second-level cache. Rows split by columns
 * lie in pieces. Where the gap between two pieces is short, whole rows are read and the pieces
 * taken by stride: fewer calls, and the device reads the gap anyway. Pure.
 */
#ifndef ESPALIER_WEIGHT_TASK_H
#define ESPALIER_WEIGHT_TASK_H

#include <stdbool.h>

#include "linear/linear.h"
#include "safetensors.h"

enum weight_task_kind {
    WEIGHT_TASK_LINEAR, /* pack rows into panels */
    WEIGHT_TASK_KV_B,   /* one head of kv_b: W_UK transposed into data, W_UV into more */
    WEIGHT_TASK_ROWS,   /* copy rows */
};

/* Rows of a stored tensor. A fused weight has two parts, one under the other. */
struct weight_part {
    const struct tensor_info *data;
    const struct tensor_info *scale; /* NULL unless INT4 or FP8 */
    uint32_t row_begin, row_count;
};

struct weight_task {
    enum weight_task_kind kind;
    enum linear_format format; /* in memory: F32 also where F16 or FP8 is stored */
    struct weight_part part[2];
    uint32_t part_count;
    uint32_t columns;                    /* of the stored tensor */
    uint32_t column_begin, column_count; /* that are wanted */
    uint32_t rows;                       /* of all parts together */
    uint32_t row_begin, row_count;       /* that this task fills */
    uint32_t nope_dim;                   /* KV_B: rows of W_UK; the rest is W_UV */
    void *data;                          /* row 0 of the packed weight, or the array */
    void *more;                          /* INT4, FP8: packed scales; KV_B: packed W_UV */
};

/* How many rows a task of this kind and width should fill: whole panels. */
uint32_t weight_task_rows(const struct weight_task *task);

/* What the task takes from files, as progress counts it. */
uint64_t weight_task_bytes(const struct weight_task *task);

/* The rows that are read, checked and packed at a time. next_bite is false behind the last. */
struct weight_task weight_task_first_bite(const struct weight_task *task);
bool weight_task_next_bite(const struct weight_task *task, struct weight_task *bite);

/* How the wanted columns lie in a stored row, and rows where they are read to. */
struct weight_grid {
    size_t row_bytes;   /* stored */
    size_t begin_bytes; /* from the row's begin to the first wanted column */
    size_t slice_bytes; /* wanted */
    size_t stride;      /* from row to row: row_bytes where whole rows are read */
};
struct weight_grid weight_task_data_grid(const struct weight_task *task);

/* Of INT4: a scale for each row and group. */
struct weight_grid weight_task_group_grid(const struct weight_task *task);

/* Of FP8: a scale for each block, of which the wanted columns touch some. Rows are those of blocks;
 * once read, every row of the weight has its own copy. */
struct weight_grid weight_task_block_grid(const struct weight_task *task);

/* Rows of part `idx` that the task fills. */
struct weight_piece {
    const struct weight_part *part;
    uint32_t row, row_count; /* of the stored tensor */
    uint32_t to;             /* the first one's place among the task's rows */
};
struct weight_piece weight_task_piece(const struct weight_task *task, uint32_t idx);

enum tensor_dtype weight_task_dtype(const struct weight_task *task); /* as stored */

/* Bits of a stored value; the words of INT4 hold eight. */
uint32_t weight_task_value_bits(enum tensor_dtype dtype);

/* For qsort: in the order in which the files hold them. */
int weight_task_by_place(const void *left, const void *right);

#endif
