#include "weight_task.h"

#include "base/check.h"

#define TASK_BYTES         (4u << 20)   /* a task reads about this much */
#define BITE_BYTES         (128u << 10) /* of it at a time */
#define READ_GAP_BYTES_MAX (16u << 10)  /* shorter gaps are read, not skipped */

uint32_t weight_task_value_bits(enum tensor_dtype dtype) {
    switch (dtype) {
    case TENSOR_F32: return 32;
    case TENSOR_F16:
    case TENSOR_BF16: return 16;
    case TENSOR_F8_E4M3: return 8;
    case TENSOR_I32: return 4;
    case TENSOR_I64:
    case TENSOR_OTHER: break; /* of no weight; the planner refuses them */
    }
    CHECK(dtype == TENSOR_I32);
    return 0;
}

static struct weight_grid make_grid(const struct weight_task *task, uint32_t bits, uint32_t group) {
    struct weight_grid grid = {
        .row_bytes = (size_t)(task->columns / group) * bits / 8,
        .begin_bytes = (size_t)(task->column_begin / group) * bits / 8,
        .slice_bytes = (size_t)(task->column_count / group) * bits / 8,
    };
    bool whole_rows = grid.row_bytes - grid.slice_bytes <= READ_GAP_BYTES_MAX;
    grid.stride = whole_rows ? grid.row_bytes : grid.slice_bytes;
    return grid;
}

enum tensor_dtype weight_task_dtype(const struct weight_task *task) {
    return task->part[0].data->dtype;
}

struct weight_grid weight_task_data_grid(const struct weight_task *task) {
    return make_grid(task, weight_task_value_bits(weight_task_dtype(task)), 1);
}

struct weight_grid weight_task_group_grid(const struct weight_task *task) {
    return make_grid(task, weight_task_value_bits(TENSOR_BF16), INT4_GROUP);
}

struct weight_grid weight_task_block_grid(const struct weight_task *task) {
    uint32_t begin = task->column_begin / FP8_BLOCK;
    uint32_t end = (task->column_begin + task->column_count - 1) / FP8_BLOCK + 1;
    size_t slice_bytes = (end - begin) * sizeof(float);
    return (struct weight_grid){
        .row_bytes = (task->columns + FP8_BLOCK - 1) / FP8_BLOCK * sizeof(float),
        .begin_bytes = begin * sizeof(float),
        .slice_bytes = slice_bytes,
        .stride = slice_bytes,
    };
}

/* How many rows are about so many bytes: whole panels. */
static uint32_t rows_of(const struct weight_task *task, size_t bytes) {
    size_t panels = bytes / (weight_task_data_grid(task).stride * KERNEL_PANEL);
    return (uint32_t)(panels > 0 ? panels : 1) * KERNEL_PANEL;
}

uint32_t weight_task_rows(const struct weight_task *task) {
    return rows_of(task, TASK_BYTES);
}

/* A head of kv_b is packed as a whole. */
struct weight_task weight_task_first_bite(const struct weight_task *task) {
    struct weight_task bite = *task;
    uint32_t rows = rows_of(task, BITE_BYTES);
    if (task->kind != WEIGHT_TASK_KV_B && rows < task->row_count) bite.row_count = rows;
    return bite;
}

bool weight_task_next_bite(const struct weight_task *task, struct weight_task *bite) {
    uint32_t end = task->row_begin + task->row_count;
    bite->row_begin += bite->row_count;
    if (bite->row_count > end - bite->row_begin) bite->row_count = end - bite->row_begin;
    return bite->row_count > 0;
}

struct weight_piece weight_task_piece(const struct weight_task *task, uint32_t idx) {
    const struct weight_part *part = &task->part[idx];
    uint32_t part_begin = idx > 0 ? task->part[0].row_count : 0; /* among all rows */
    uint32_t begin = task->row_begin, end = task->row_begin + task->row_count;
    if (begin < part_begin) begin = part_begin;
    if (end > part_begin + part->row_count) end = part_begin + part->row_count;
    return (struct weight_piece){.part = part,
                                 .row = part->row_begin + begin - part_begin,
                                 .row_count = begin < end ? end - begin : 0,
                                 .to = begin - task->row_begin};
}

uint64_t weight_task_bytes(const struct weight_task *task) {
    uint64_t bytes = (uint64_t)weight_task_data_grid(task).slice_bytes * task->row_count;
    if (weight_task_dtype(task) == TENSOR_I32)
        bytes += weight_task_group_grid(task).slice_bytes * task->row_count;
    if (weight_task_dtype(task) != TENSOR_F8_E4M3) return bytes;
    for (uint32_t p = 0; p < task->part_count; p++) {
        struct weight_piece piece = weight_task_piece(task, p);
        if (piece.row_count == 0) continue;
        uint32_t blocks = (piece.row + piece.row_count - 1) / FP8_BLOCK - piece.row / FP8_BLOCK + 1;
        bytes += weight_task_block_grid(task).slice_bytes * blocks;
    }
    return bytes;
}

int weight_task_by_place(const void *left, const void *right) {
    const struct weight_part *a = &((const struct weight_task *)left)->part[0];
    const struct weight_part *b = &((const struct weight_task *)right)->part[0];
    if (a->data->file != b->data->file) return a->data->file < b->data->file ? -1 : 1;
    if (a->data->offset != b->data->offset) return a->data->offset < b->data->offset ? -1 : 1;
    uint32_t row_a = ((const struct weight_task *)left)->row_begin + a->row_begin;
    uint32_t row_b = ((const struct weight_task *)right)->row_begin + b->row_begin;
    return (row_a > row_b) - (row_a < row_b);
}
