#include "weight_reader.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "device.h"
#include "file.h"
#include "linear/linear_pack.h"
#include "weight_ahead.h"
#include "weight_check.h"

#define READER_THREADS_MAX 64u
#define RUN_BYTES_MAX      (64u << 20) /* of tasks that one thread takes at a time */
#define RUNS_A_THREAD      8u          /* at least, so that all end together */
#define STAGE_ALIGN        64u

struct reader {
    struct device *device; /* that the weights are for; NULL: the host */
    const struct safetensors *checkpoint;
    const struct weight_task *task; /* [task_count] */
    uint32_t task_count;
    size_t stage_bytes, packed_bytes; /* of the largest bite: read, and packed */
    int *fd;                          /* [files], -1 where no task reads the file */
    struct weights_progress *progress;
    struct weight_ahead ahead;
    uint64_t run_bytes;
    atomic_bool stop;
    pthread_mutex_t lock; /* of what is below */
    uint32_t next;        /* task not yet taken */
    enum status status;
    struct error error; /* the first one */
};

/* Tasks [begin, end), one after the other by one thread. */
struct run {
    uint32_t begin, end;
};

/* What one thread works with. */
struct desk {
    unsigned char *stage;       /* to read into */
    struct device_stage *there; /* to pack into, where that is for a device; NULL: not */
};

static enum status open_files(struct reader *reader, struct error *err);
static enum status check_files(const struct reader *reader, struct error *err);
static void *run_thread(void *arg);
static enum status run_task(struct reader *reader, const struct weight_task *task,
                            const struct desk *desk, struct error *err);

static size_t align_stage(size_t bytes) {
    return (bytes + STAGE_ALIGN - 1) / STAGE_ALIGN * STAGE_ALIGN;
}

static bool is_widened(const struct weight_task *task) {
    return task->format == LINEAR_F32 && weight_task_dtype(task) != TENSOR_F32;
}

/* Of the task's rows on the stage: the data, behind it the scales, behind them the data as f32. */
static size_t staged_data_bytes(const struct weight_task *task) {
    return align_stage(task->row_count * weight_task_data_grid(task).stride);
}

static size_t staged_scale_bytes(const struct weight_task *task) {
    size_t stride = 0;
    if (weight_task_dtype(task) == TENSOR_I32) stride = weight_task_group_grid(task).stride;
    if (weight_task_dtype(task) == TENSOR_F8_E4M3) stride = weight_task_block_grid(task).stride;
    return align_stage(task->row_count * stride);
}

static size_t staged_bytes(const struct weight_task *task) {
    size_t widened = is_widened(task) ? (size_t)task->row_count * task->column_count * sizeof(float)
                                      : 0;
    return staged_data_bytes(task) + staged_scale_bytes(task) + align_stage(widened);
}

/* A bite as it is packed: `data`, behind it `more`. Rows of a vector or table are as they are. */
struct packed {
    size_t data_bytes, more_bytes;
    size_t data_at, more_at; /* where they begin in the whole */
};

static struct packed packed_of(const struct weight_task *bite) {
    const uint32_t rows = bite->row_count, begin = bite->row_begin, width = bite->column_count;
    const size_t value_bytes = bite->format == LINEAR_BF16 ? sizeof(bf16) : sizeof(float);
    switch (bite->kind) {
    case WEIGHT_TASK_LINEAR: break;
    case WEIGHT_TASK_KV_B:
        return (struct packed){
            .data_bytes = linear_data_bytes(bite->format, bite->columns, bite->nope_dim),
            .more_bytes = linear_data_bytes(bite->format, bite->rows - bite->nope_dim,
                                            bite->columns)};
    case WEIGHT_TASK_ROWS:
        return (struct packed){.data_bytes = rows * value_bytes * width,
                               .data_at = begin * value_bytes * width};
    }
    return (struct packed){.data_bytes = linear_data_bytes(bite->format, rows, width),
                           .more_bytes = linear_scale_bytes(bite->format, rows, width),
                           .data_at = linear_data_bytes(bite->format, begin, width),
                           .more_at = linear_scale_bytes(bite->format, begin, width)};
}

enum status weight_reader_run(struct device *device, const struct safetensors *checkpoint,
                              struct weight_task *tasks, uint32_t task_count, uint32_t threads,
                              struct weights_progress *progress, struct error *err) {
    CHECK(threads > 0);
    struct reader reader = {.device = device,
                            .checkpoint = checkpoint,
                            .task = tasks,
                            .task_count = task_count,
                            .progress = progress,
                            .lock = PTHREAD_MUTEX_INITIALIZER};
    uint64_t all_bytes = 0;
    for (uint32_t i = 0; i < task_count; i++) {
        all_bytes += weight_task_bytes(&tasks[i]);
        struct weight_task bite = weight_task_first_bite(&tasks[i]);
        size_t bytes = staged_bytes(&bite);
        if (bytes > reader.stage_bytes) reader.stage_bytes = bytes;
        const struct packed packed = packed_of(&bite);
        bytes = packed.data_bytes + packed.more_bytes;
        if (bytes > reader.packed_bytes) reader.packed_bytes = bytes;
    }
    reader.run_bytes = all_bytes / (threads * RUNS_A_THREAD);
    if (reader.run_bytes > RUN_BYTES_MAX) reader.run_bytes = RUN_BYTES_MAX;
    qsort(tasks, task_count, sizeof *tasks, weight_task_by_place);
    reader.status = open_files(&reader, &reader.error);
    reader.ahead = (struct weight_ahead){.task = tasks, .task_count = task_count, .fd = reader.fd};

    pthread_t helper[READER_THREADS_MAX];
    uint32_t helpers = 0;
    if (reader.status == STATUS_OK) {
        /* Fewer threads than asked for load more slowly and just as well. */
        while (helpers + 1 < threads && helpers < READER_THREADS_MAX &&
               pthread_create(&helper[helpers], NULL, run_thread, &reader) == 0)
            helpers++;
        run_thread(&reader);
    }
    for (uint32_t i = 0; i < helpers; i++)
        pthread_join(helper[i], NULL);
    if (reader.status == STATUS_OK) reader.status = check_files(&reader, &reader.error);
    for (uint32_t i = 0; i < safetensors_file_count(checkpoint); i++)
        if (reader.fd[i] >= 0) close(reader.fd[i]);
    free(reader.fd);
    if (reader.status != STATUS_OK && err) *err = reader.error;
    return reader.status;
}

static enum status open_files(struct reader *reader, struct error *err) {
    uint32_t files = safetensors_file_count(reader->checkpoint);
    reader->fd = malloc(files * sizeof *reader->fd);
    CHECK(reader->fd);
    for (uint32_t i = 0; i < files; i++)
        reader->fd[i] = -1;
    for (uint32_t i = 0; i < reader->task_count; i++) {
        const struct weight_task *task = &reader->task[i];
        for (uint32_t p = 0; p < task->part_count; p++) {
            const struct tensor_info *tensors[] = {task->part[p].data, task->part[p].scale};
            for (uint32_t t = 0; t < 2; t++) {
                if (!tensors[t] || reader->fd[tensors[t]->file] >= 0) continue;
                uint64_t bytes;
                enum status status = file_open(
                    safetensors_path(reader->checkpoint, tensors[t]->file),
                    &reader->fd[tensors[t]->file], &bytes, err);
                if (status != STATUS_OK) return status;
            }
        }
    }
    return check_files(reader, err);
}

/* The offsets are those of the headers read before: the files must still be the same, now and when
 * all is read. */
static enum status check_files(const struct reader *reader, struct error *err) {
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < safetensors_file_count(reader->checkpoint) && status == STATUS_OK; i++)
        if (reader->fd[i] >= 0)
            status = file_check_unchanged(reader->fd[i], safetensors_path(reader->checkpoint, i),
                                          safetensors_state(reader->checkpoint, i), err);
    return status;
}

/* Keep the first failure and stop all threads. */
static void report(struct reader *reader, enum status status, const struct error *error) {
    pthread_mutex_lock(&reader->lock);
    if (reader->status == STATUS_OK) {
        reader->status = status;
        reader->error = *error;
    }
    pthread_mutex_unlock(&reader->lock);
    atomic_store(&reader->stop, true);
}

/* Neighbours in files are mostly neighbours in memory and may share a huge page. Whoever touches it
 * first has all of it cleared, and two threads at once clear it twice. */
static struct run take_run(struct reader *reader) {
    pthread_mutex_lock(&reader->lock);
    struct run run = {.begin = reader->next, .end = reader->next};
    for (uint64_t bytes = 0; run.end < reader->task_count && bytes <= reader->run_bytes; run.end++)
        bytes += weight_task_bytes(&reader->task[run.end]);
    reader->next = run.end;
    pthread_mutex_unlock(&reader->lock);
    return run;
}

static void *run_thread(void *arg) {
    struct reader *reader = arg;
    struct error error = {.code = STATUS_OK};
    struct desk desk = {.stage = aligned_alloc(STAGE_ALIGN, reader->stage_bytes + STAGE_ALIGN)};
    enum status opened = device_stage_open(reader->device, reader->packed_bytes, &desk.there,
                                           &error);
    if (!desk.stage)
        opened = error_set(&error, STATUS_RESOURCE_EXHAUSTED,
                           "no memory for %zu bytes to read weights through", reader->stage_bytes);
    if (opened != STATUS_OK) report(reader, opened, &error);
    while (!atomic_load(&reader->stop)) {
        const struct run run = take_run(reader);
        if (run.begin == run.end) break;
        for (uint32_t i = run.begin; i < run.end && !atomic_load(&reader->stop); i++) {
            weight_ahead_of(&reader->ahead, i);
            enum status status = atomic_load(&reader->progress->cancel)
                                     ? error_set(&error, STATUS_CANCELLED,
                                                 "loading the weights was cancelled")
                                     : run_task(reader, &reader->task[i], &desk, &error);
            if (status != STATUS_OK) report(reader, status, &error);
        }
    }
    device_stage_close(reader->device, &desk.there);
    free(desk.stage);
    return NULL;
}

static enum status read_at(const struct reader *reader, const struct tensor_info *tensor,
                           uint64_t offset, void *out, uint64_t bytes, struct error *err) {
    const char *path = safetensors_path(reader->checkpoint, tensor->file);
    enum status status = file_read_at(reader->fd[tensor->file], path, out, bytes,
                                      tensor->offset + offset, err);
    return status == STATUS_OK ? status : error_wrap(err, status, "tensor %s", tensor->name);
}

/* Rows of one tensor onto the stage. */
static enum status read_rows(const struct reader *reader, const struct tensor_info *tensor,
                             const struct weight_grid *grid, uint32_t row_begin, uint32_t row_count,
                             unsigned char *to, struct error *err) {
    if (grid->stride == grid->row_bytes)
        return read_at(reader, tensor, row_begin * grid->row_bytes, to, row_count * grid->row_bytes,
                       err);
    enum status status = STATUS_OK;
    for (uint32_t r = 0; r < row_count && status == STATUS_OK; r++)
        status = read_at(reader, tensor, (row_begin + r) * grid->row_bytes + grid->begin_bytes,
                         to + r * grid->stride, grid->slice_bytes, err);
    return status;
}

static enum status check_values(const struct reader *reader, const struct tensor_info *tensor,
                                const struct weight_grid *grid, enum weight_values values,
                                uint32_t row_begin, uint32_t row_count, const unsigned char *from,
                                struct error *err) {
    size_t value_bytes = weight_task_value_bits(tensor->dtype) / 8;
    if (value_bytes == 0) return STATUS_OK;
    size_t count = grid->slice_bytes / value_bytes;
    for (uint32_t r = 0; r < row_count; r++) {
        size_t bad = weight_check_row(tensor->dtype, from + r * grid->stride, count, values);
        if (bad == count) continue;
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: tensor %s: value [%u, %zu] %s",
                         safetensors_path(reader->checkpoint, tensor->file), tensor->name,
                         row_begin + r, grid->begin_bytes / value_bytes + bad,
                         weight_check_words(values));
    }
    return STATUS_OK;
}

static size_t staged_column(const struct weight_grid *grid) {
    return grid->stride == grid->row_bytes ? grid->begin_bytes : 0;
}

/* Rows that are on the stage. */
static enum status check_rows(const struct reader *reader, const struct weight_task *task,
                              bool scales, const unsigned char *stage, struct error *err) {
    struct weight_grid grid = scales ? weight_task_group_grid(task) : weight_task_data_grid(task);
    enum status status = STATUS_OK;
    for (uint32_t p = 0; p < task->part_count && status == STATUS_OK; p++) {
        struct weight_piece piece = weight_task_piece(task, p);
        if (piece.row_count == 0) continue;
        status = check_values(reader, scales ? piece.part->scale : piece.part->data, &grid,
                              scales ? WEIGHT_SCALES : WEIGHT_VALUES, piece.row, piece.row_count,
                              stage + staged_column(&grid) + piece.to * grid.stride, err);
    }
    return status;
}

/* Rows of data, or of INT4 scales, onto the stage; across the border of two parts where the range
 * holds it. *from_out: row 0, first wanted column. Values of products are looked at when they are
 * packed. */
static enum status stage_rows(const struct reader *reader, const struct weight_task *task,
                              bool scales, unsigned char *stage, const unsigned char **from_out,
                              struct error *err) {
    struct weight_grid grid = scales ? weight_task_group_grid(task) : weight_task_data_grid(task);
    enum status status = STATUS_OK;
    for (uint32_t p = 0; p < task->part_count && status == STATUS_OK; p++) {
        struct weight_piece piece = weight_task_piece(task, p);
        if (piece.row_count == 0) continue;
        status = read_rows(reader, scales ? piece.part->scale : piece.part->data, &grid, piece.row,
                           piece.row_count, stage + piece.to * grid.stride, err);
    }
    *from_out = stage + staged_column(&grid);
    if (status != STATUS_OK || (task->kind == WEIGHT_TASK_LINEAR && !scales)) return status;
    return check_rows(reader, task, scales, stage, err);
}

/* FP8: the scales of its blocks for each row. A row of blocks is read to the first of its rows and
 * copied to the others. */
static enum status stage_blocks(const struct reader *reader, const struct weight_task *task,
                                unsigned char *stage, struct error *err) {
    struct weight_grid grid = weight_task_block_grid(task);
    for (uint32_t p = 0; p < task->part_count; p++) {
        struct weight_piece piece = weight_task_piece(task, p);
        const struct tensor_info *scale = piece.part->scale;
        for (uint32_t r = 0; r < piece.row_count; r++) {
            uint32_t block = (piece.row + r) / FP8_BLOCK;
            unsigned char *to = stage + (piece.to + r) * grid.stride;
            if (r > 0 && block == (piece.row + r - 1) / FP8_BLOCK) {
                memcpy(to, to - grid.stride, grid.stride);
                continue;
            }
            enum status status = read_at(reader, scale, block * grid.row_bytes + grid.begin_bytes,
                                         to, grid.slice_bytes, err);
            if (status == STATUS_OK)
                status = check_values(reader, scale, &grid, WEIGHT_BLOCK_SCALES, block, 1, to, err);
            if (status != STATUS_OK) return status;
        }
    }
    return STATUS_OK;
}

/* A row as f32. scales: of FP8. */
static void widen_row(const struct weight_task *task, const unsigned char *row, const float *scales,
                      float *out) {
    enum tensor_dtype dtype = weight_task_dtype(task);
    if (dtype == TENSOR_F8_E4M3) {
        linear_unpack_fp8(out, row, task->column_count, task->column_begin % FP8_BLOCK, scales);
        return;
    }
    const uint16_t *value = (const uint16_t *)row;
    for (uint32_t i = 0; i < task->column_count; i++)
        out[i] = dtype == TENSOR_F16 ? f16_to_f32(value[i]) : bf16_to_f32(value[i]);
}

/* The task's rows as its format has them: as they were read, or widened. */
static enum status stage_values(const struct reader *reader, const struct weight_task *task,
                                unsigned char *stage, const unsigned char **from_out,
                                size_t *stride_out, struct error *err) {
    const unsigned char *data;
    unsigned char *scales = stage + staged_data_bytes(task);
    enum status status = stage_rows(reader, task, false, stage, &data, err);
    if (status == STATUS_OK && weight_task_dtype(task) == TENSOR_F8_E4M3)
        status = stage_blocks(reader, task, scales, err);
    *from_out = data;
    *stride_out = weight_task_data_grid(task).stride;
    if (status != STATUS_OK || !is_widened(task)) return status;

    float *wide = (float *)(void *)(scales + staged_scale_bytes(task));
    size_t scale_stride = weight_task_dtype(task) == TENSOR_F8_E4M3
                              ? weight_task_block_grid(task).stride
                              : 0;
    for (size_t r = 0; r < task->row_count; r++)
        widen_row(task, data + r * *stride_out,
                  (const float *)(const void *)(scales + r * scale_stride),
                  wide + r * task->column_count);
    *from_out = (const unsigned char *)wide;
    *stride_out = task->column_count * sizeof(float);
    return STATUS_OK;
}

/* Where a bite's rows are packed to: from row_begin on, of so many. */
struct place {
    void *data, *more;
    uint32_t rows, row_begin;
};

static enum status run_linear(const struct reader *reader, const struct weight_task *task,
                              unsigned char *stage, const struct place *place, struct error *err) {
    const unsigned char *data, *groups;
    size_t stride;
    unsigned char *scales = stage + staged_data_bytes(task);
    enum status status = stage_values(reader, task, stage, &data, &stride, err);
    if (status == STATUS_OK && task->format == LINEAR_INT4)
        status = stage_rows(reader, task, true, scales, &groups, err);
    if (status != STATUS_OK) return status;
    bool finite = true;
    switch (task->format) {
    case LINEAR_F32:
    case LINEAR_BF16:
        finite = linear_pack_rows(task->format, place->data, place->rows, task->column_count, data,
                                  stride, place->row_begin, task->row_count);
        break;
    case LINEAR_INT4:
        linear_pack_int4(place->data, place->more, place->rows, task->column_count, data, stride,
                         (const bf16 *)groups, weight_task_group_grid(task).stride,
                         place->row_begin, task->row_count);
        break;
    case LINEAR_FP8:
        finite = linear_pack_fp8(
            place->data, place->more, place->rows, task->column_count,
            task->column_begin % FP8_BLOCK, data, stride, (const float *)(const void *)scales,
            weight_task_block_grid(task).stride, place->row_begin, task->row_count);
        break;
    }
    if (finite) return STATUS_OK;
    status = check_rows(reader, task, false, stage, err);
    CHECK(status != STATUS_OK); /* widening and packing make no value infinite */
    return status;
}

/* A head's rows are N of W_UK, [N, R], and V of W_UV, [V, R]. */
static enum status run_kv_b(const struct reader *reader, const struct weight_task *task,
                            unsigned char *stage, const struct place *place, struct error *err) {
    const unsigned char *rows;
    size_t stride;
    enum status status = stage_values(reader, task, stage, &rows, &stride, err);
    if (status != STATUS_OK) return status;
    uint32_t value_dim = task->rows - task->nope_dim;
    linear_pack_transposed(task->format, place->data, task->columns, task->nope_dim, rows, stride);
    (void)linear_pack_rows(task->format, place->more, value_dim, task->columns,
                           rows + task->nope_dim * stride, stride, 0, value_dim); /* looked at */
    return STATUS_OK;
}

static enum status run_rows(const struct reader *reader, const struct weight_task *task,
                            unsigned char *stage, const struct place *place, struct error *err) {
    const unsigned char *rows;
    size_t stride;
    enum status status = stage_values(reader, task, stage, &rows, &stride, err);
    if (status == STATUS_OK)
        memcpy((unsigned char *)place->data + place->row_begin * stride, rows,
               task->row_count * stride);
    return status;
}

static enum status pack_bite(const struct reader *reader, const struct weight_task *bite,
                             unsigned char *stage, const struct place *place, struct error *err) {
    switch (bite->kind) {
    case WEIGHT_TASK_LINEAR: return run_linear(reader, bite, stage, place, err);
    case WEIGHT_TASK_KV_B: return run_kv_b(reader, bite, stage, place, err);
    case WEIGHT_TASK_ROWS: break;
    }
    return run_rows(reader, bite, stage, place, err);
}

/* On the host in its place among the rows; for a device by itself, as a weight of so many rows: it
 * is whole panels of the whole, or its end. */
static enum status run_bite(const struct reader *reader, const struct weight_task *bite,
                            const struct desk *desk, struct error *err) {
    if (!desk->there)
        return pack_bite(reader, bite, desk->stage,
                         &(struct place){.data = bite->data,
                                         .more = bite->more,
                                         .rows = bite->rows,
                                         .row_begin = bite->row_begin},
                         err);
    const struct device_ops *ops = reader->device->ops;
    const struct packed packed = packed_of(bite);
    unsigned char *memory = ops->stage_memory(desk->there);
    /* Fresh memory of the host is zero where no row is. */
    memset(memory, 0, packed.data_bytes + packed.more_bytes);
    enum status status = pack_bite(reader, bite, desk->stage,
                                   &(struct place){.data = memory,
                                                   .more = memory + packed.data_bytes,
                                                   .rows = bite->row_count},
                                   err);
    if (status == STATUS_OK)
        status = ops->stage_send(desk->there, 0, packed.data_bytes,
                                 (unsigned char *)bite->data + packed.data_at, err);
    if (status == STATUS_OK && packed.more_bytes > 0)
        status = ops->stage_send(desk->there, packed.data_bytes, packed.more_bytes,
                                 (unsigned char *)bite->more + packed.more_at, err);
    return status;
}

static enum status run_task(struct reader *reader, const struct weight_task *task,
                            const struct desk *desk, struct error *err) {
    struct weight_task bite = weight_task_first_bite(task);
    enum status status;
    do {
        status = run_bite(reader, &bite, desk, err);
    } while (status == STATUS_OK && weight_task_next_bite(task, &bite));
    if (status == STATUS_OK) atomic_fetch_add(&reader->progress->bytes, weight_task_bytes(task));
    return status;
}
