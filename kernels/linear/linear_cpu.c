/* A task is a group of panels times a part of the rows, in one batch entry; it owns its piece of
 * y. Steps with few rows have one part, so that a weight is read from memory once; only where
 * panels alone do not feed the threads are rows parted too. */
#include "linear/linear.h"

#include "linear/linear_tile.h"
#include "simd/f32x16.h"
#include "simd/rows.h"

/* Tasks wanted per thread, to even out threads of different luck. */
#define TASKS_A_THREAD 4u

struct job {
    const struct linear_args *args;
    char *narrowed;        /* [batch] T rows, packed a block of rows at a time, unless F32 */
    uint32_t panels;       /* of a batch entry */
    uint32_t group_panels; /* of a task */
    uint32_t group_count;  /* of a batch entry */
    uint32_t part_rows;    /* of a task */
    uint32_t part_count;
    uint32_t block_rows; /* of a tile */
};

static struct job plan(const struct linear_args *args, uint32_t threads);
static void run_narrow(void *arg, uint32_t task, uint32_t thread);
static void run_task(void *arg, uint32_t task, uint32_t thread);
static void run_block(const struct job *job, const struct linear_weight *weight, uint32_t batch,
                      uint32_t panel_begin, uint32_t panel_count, uint32_t row_begin);
static void ask_for_sums(const struct linear_args *args, const float *y, uint32_t row_begin,
                         uint32_t panel, uint32_t row_count);
static void finish_panel(const struct linear_args *args, const struct linear_tile *tile, uint32_t p,
                         float *y, const float *add, uint32_t columns, uint32_t row_count);

static uint32_t panel_width(const struct linear_weight *weight, uint32_t panel) {
    return min_u32(weight->n - panel * KERNEL_PANEL, KERNEL_PANEL);
}

CPU_OP(linear) {
    uint32_t segments = args->segments, k = args->weight.k;
    KERNEL_CHECK(segments == 1 || segments == 2 || segments == 4 || segments == 8);
    KERNEL_CHECK(k % segments == 0);
    KERNEL_CHECK(args->weight.format != LINEAR_INT4 || k % INT4_GROUP == 0);
    KERNEL_CHECK(!args->add || args->batch == 1);
    KERNEL_CHECK(linear_activation(args->weight.format, args->activation) == args->activation);
    size_t all_rows = (size_t)args->batch * args->rows;
    KERNEL_CHECK(ctx->scratch_bytes >= linear_scratch_bytes(args->activation, all_rows, k));
    if (args->rows == 0 || args->weight.n == 0) return;

    struct job job = plan(args, team_threads(ctx->team));
    if (args->activation != KERNEL_F32) {
        job.narrowed = ctx->scratch;
        struct rows rows = rows_split(&job, args->batch * args->rows, k);
        team_run(ctx->team, run_narrow, &rows, rows_tasks(&rows));
    }
    team_run(ctx->team, run_task, &job, args->batch * job.group_count * job.part_count);
}

static struct job plan(const struct linear_args *args, uint32_t threads) {
    struct job job = {.args = args, .part_rows = args->rows, .part_count = 1};
    uint32_t wanted = threads == 1 ? 1 : threads * TASKS_A_THREAD;
    job.panels = divide_up(args->weight.n, KERNEL_PANEL);
    job.group_panels = LINEAR_TILE_PANELS;
    while (job.group_panels > 1 && args->batch * divide_up(job.panels, job.group_panels) < wanted)
        job.group_panels /= 2;
    job.group_count = divide_up(job.panels, job.group_panels);
    job.block_rows = linear_tile_block_rows(args->rows);

    uint32_t blocks = divide_up(args->rows, job.block_rows);
    uint32_t parts = min_u32(divide_up(wanted, args->batch * job.group_count), blocks);
    job.part_rows = divide_up(blocks, parts) * job.block_rows;
    job.part_count = divide_up(args->rows, job.part_rows);
    return job;
}

static uint32_t rows_of_block(const struct job *job, uint32_t row_begin) {
    return min_u32(job->args->rows - row_begin, job->block_rows);
}

static char *narrowed_block(const struct job *job, uint32_t batch, uint32_t row_begin) {
    const struct linear_args *args = job->args;
    size_t row = (size_t)batch * args->rows + row_begin;
    return job->narrowed + row * linear_row_bytes(args->activation, args->weight.k);
}

static void run_narrow(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    const struct rows *rows = arg;
    const struct job *job = rows->args;
    const struct linear_args *args = job->args;
    const size_t chunk_bytes = linear_row_bytes(args->activation, LINEAR_CHUNK);
    for (uint32_t i = rows_begin(rows, task); i < rows_end(rows, task); i++) {
        uint32_t batch = i / args->rows, row = i % args->rows, in_block = row % job->block_rows;
        linear_tile_narrow(args->activation,
                           narrowed_block(job, batch, row - in_block) + in_block * chunk_bytes,
                           rows_of_block(job, row - in_block) * chunk_bytes,
                           args->x + batch * args->x_batch_stride + row * args->x_stride,
                           args->weight.k);
    }
}

static void run_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    const struct job *job = arg;
    uint32_t part = task % job->part_count;
    uint32_t group = task / job->part_count % job->group_count;
    uint32_t batch = task / job->part_count / job->group_count;

    struct linear_weight weight = job->args->weight;
    size_t data_bytes = linear_data_bytes(weight.format, weight.n, weight.k);
    size_t scale_bytes = linear_scale_bytes(weight.format, weight.n, weight.k);
    weight.data = (const char *)weight.data + batch * data_bytes;
    if (weight.scale) weight.scale = (const char *)weight.scale + batch * scale_bytes;

    uint32_t panel_begin = group * job->group_panels;
    uint32_t panel_count = min_u32(job->panels - panel_begin, job->group_panels);
    uint32_t row_end = min_u32((part + 1) * job->part_rows, job->args->rows);
    for (uint32_t row = part * job->part_rows; row < row_end; row += job->block_rows)
        run_block(job, &weight, batch, panel_begin, panel_count, row);
}

/* Rows that are not copied take a panel at a time, so that the sums of all segments stay in the
 * first-level cache; others are copied for all panels together. */
static void run_block(const struct job *job, const struct linear_weight *weight, uint32_t batch,
                      uint32_t panel_begin, uint32_t panel_count, uint32_t row_begin) {
    const struct linear_args *args = job->args;
    struct linear_rows x = {.dtype = args->activation, .count = rows_of_block(job, row_begin)};
    if (args->activation != KERNEL_F32)
        x.packed = narrowed_block(job, batch, row_begin);
    else
        for (uint32_t r = 0; r < x.count; r++)
            x.row[r] = args->x + batch * args->x_batch_stride + (row_begin + r) * args->x_stride;

    struct linear_tile tile[KERNEL_SEGMENTS];
    float *y = args->y + batch * args->y_batch_stride + row_begin * args->y_stride;
    bool copied = !x.packed || linear_tile_widens(x.dtype, x.count);
    uint32_t together = copied ? panel_count : 1;
    for (uint32_t first = 0; first < panel_count; first += together) {
        for (uint32_t p = 0; x.packed && p < together; p++)
            ask_for_sums(args, y, row_begin, panel_begin + first + p, x.count);
        linear_tile_dot(tile, weight, panel_begin + first, together, args->segments, &x);
        for (uint32_t p = 0; p < together; p++) {
            uint32_t n = (panel_begin + first + p) * KERNEL_PANEL;
            const float *add = args->add ? args->add + (size_t)row_begin * weight->n + n : NULL;
            finish_panel(args, tile, p, y + n, add, panel_width(weight, panel_begin + first + p),
                         x.count);
        }
    }
}

/* What a panel's sums meet and where they go is scattered; it comes while they are computed. y: of
 * the first row. */
static void ask_for_sums(const struct linear_args *args, const float *y, uint32_t row_begin,
                         uint32_t panel, uint32_t row_count) {
    const size_t n = args->weight.n, at = (size_t)panel * KERNEL_PANEL;
    for (uint32_t r = 0; r < row_count; r++) {
        __builtin_prefetch(y + r * args->y_stride + at, 1, 2);
        __builtin_prefetch(y + r * args->y_stride + at + 16, 1, 2);
        if (!args->add) continue;
        const float *add = args->add + (row_begin + r) * n + at;
        for (uint32_t s = 0; s < args->segments; s++, add += args->rows * n) {
            __builtin_prefetch(add, 0, 2);
            __builtin_prefetch(add + 16, 0, 2);
        }
    }
}

/* The tree over the segments of sixteen outputs of a row. sum: those of segment 0; add: likewise,
 * or NULL; only `columns` of them are read. `segments` is constant wherever it is passed. */
F32X16_INLINE f32x16 add_segments(const uint32_t segments, const float *sum, const float *add,
                                  size_t add_floats, uint32_t columns) {
    f32x16 part[KERNEL_SEGMENTS];
    F32X16_UNROLL
    for (uint32_t s = 0; s < segments; s++) {
        part[s] = f32x16_load(sum + s * (sizeof(struct linear_tile) / sizeof(float)));
        if (add && columns == 16)
            part[s] = f32x16_add(f32x16_load(add + s * add_floats), part[s]);
        else if (add)
            part[s] = f32x16_add(f32x16_load_part(add + s * add_floats, columns), part[s]);
    }
    if (segments >= 8)
        for (uint32_t s = 0; s < 4; s++)
            part[s] = f32x16_add(part[2 * s], part[2 * s + 1]);
    if (segments >= 4)
        for (uint32_t s = 0; s < 2; s++)
            part[s] = f32x16_add(part[2 * s], part[2 * s + 1]);
    return segments >= 2 ? f32x16_add(part[0], part[1]) : part[0];
}

F32X16_INLINE void finish_rows(const uint32_t segments, const struct linear_args *args,
                               const float (*sum)[KERNEL_PANEL], float *y, const float *add,
                               uint32_t columns, uint32_t row_count) {
    size_t add_floats = (size_t)args->rows * args->weight.n;
    for (uint32_t r = 0; r < row_count; r++) {
        for (uint32_t i = 0; i < columns; i += 16) {
            uint32_t count = columns - i < 16 ? columns - i : 16;
            f32x16 out = add_segments(segments, sum[r] + i, add ? add + i : NULL, add_floats,
                                      count);
            if (count == 16)
                f32x16_store(y + i, out);
            else
                f32x16_store_part(y + i, out, count);
        }
        y += args->y_stride;
        if (add) add += args->weight.n;
    }
}

/* Panel p of the tile into y, where the panel's outputs of the first row begin; add: where they
 * begin in segment 0. */
static void finish_panel(const struct linear_args *args, const struct linear_tile *tile, uint32_t p,
                         float *y, const float *add, uint32_t columns, uint32_t row_count) {
    const float(*sum)[KERNEL_PANEL] = tile->sum[p];
    switch (args->segments) {
    case 8: finish_rows(8, args, sum, y, add, columns, row_count); break;
    case 4: finish_rows(4, args, sum, y, add, columns, row_count); break;
    case 2: finish_rows(2, args, sum, y, add, columns, row_count); break;
    default: finish_rows(1, args, sum, y, add, columns, row_count);
    }
}
