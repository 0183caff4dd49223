/* Rows are sorted by expert, then two rounds of tasks:
 *
 *     gate and up:  an expert x a group of columns of F, all rows of the expert -> activation
 *     down:         a group of columns of D, experts ascending, their rows      -> y
 *
 * In the second round a task owns its columns of y for every row and meets the experts in order,
 * so that a row's sum is in order whoever runs it. Either way a weight is read once a step. */
#include "moe_experts/moe_experts.h"

#include "linear/linear_tile.h"
#include "moe_experts/moe_experts_scratch.h"
#include "simd/f32x16_math.h"
#include "simd/rows.h"

#define TASKS_A_THREAD 4u

/* The up rows of a group of gate panels need not begin at a panel: one more may be touched. */
#define GATE_PANELS (LINEAR_TILE_PANELS - 1u)

#define Y_CACHE_BYTES (512u << 10)

struct job {
    const struct moe_experts_args *args;
    struct moe_experts_scratch scratch;
    uint32_t active_count;
    uint32_t group_panels; /* of a task of the round */
    uint32_t group_count;
};

static uint32_t sort_by_expert(const struct moe_experts_args *args,
                               struct moe_experts_scratch *scratch);
static uint32_t down_panels(const struct moe_experts_args *args);
static void plan_groups(struct job *job, uint32_t panels, uint32_t group_max, uint32_t others,
                        uint32_t threads);
static void run_narrow(void *arg, uint32_t task, uint32_t thread);
static void run_gate_up(void *arg, uint32_t task, uint32_t thread);
static void store_activation(const struct linear_rows *rows, uint32_t r, uint32_t begin,
                             const struct linear_tile *gate, const struct linear_tile *up,
                             uint32_t up_shift, uint32_t columns);
static void run_down(void *arg, uint32_t task, uint32_t thread);
static void ask_for_sums(const struct moe_experts_args *args, uint32_t panel, const uint32_t *pair,
                         uint32_t row_count);
static void add_weighted(const struct moe_experts_args *args, const struct linear_tile *tile,
                         uint32_t p, uint32_t panel, const uint32_t *pair, uint32_t row_count);

CPU_OP(moe_experts) {
    uint32_t segments = args->segments;
    KERNEL_CHECK(segments == 1 || segments == 2 || segments == 4 || segments == 8);
    KERNEL_CHECK(args->width % segments == 0);
    if (args->rows == 0) return;

    struct job job = {.args = args};
    size_t bytes = moe_experts_scratch_lay(&job.scratch, ctx->scratch, args);
    KERNEL_CHECK(bytes <= ctx->scratch_bytes);
    job.active_count = sort_by_expert(args, &job.scratch);
    if (args->activation != KERNEL_F32) {
        struct rows rows = rows_split(&job, args->rows, args->dim);
        team_run(ctx->team, run_narrow, &rows, rows_tasks(&rows));
    }

    uint32_t threads = team_threads(ctx->team);
    plan_groups(&job, divide_up(args->width, KERNEL_PANEL), GATE_PANELS, job.active_count, threads);
    team_run(ctx->team, run_gate_up, &job, job.active_count * job.group_count);
    plan_groups(&job, divide_up(args->dim, KERNEL_PANEL), down_panels(args), 1, threads);
    team_run(ctx->team, run_down, &job, job.group_count);
}

/* Counting sort; how many experts have rows. */
static uint32_t sort_by_expert(const struct moe_experts_args *args,
                               struct moe_experts_scratch *scratch) {
    uint32_t pairs = args->rows * args->topk, active = 0;
    uint32_t *begin = scratch->pair_begin;
    memset(begin, 0, ((size_t)args->expert_count + 1) * sizeof(*begin));
    for (uint32_t i = 0; i < pairs; i++) {
        KERNEL_CHECK(args->expert[i] < args->expert_count);
        begin[args->expert[i] + 1]++;
    }
    for (uint32_t e = 0; e < args->expert_count; e++) {
        const struct moe_expert *expert = &args->experts[e];
        if (begin[e + 1] > 0) {
            KERNEL_CHECK(expert->gate_up.n == 2 * args->width && expert->gate_up.k == args->dim);
            KERNEL_CHECK(expert->down.n == args->dim && expert->down.k == args->width);
            KERNEL_CHECK(linear_activation(expert->gate_up.format, args->activation) ==
                         args->activation);
            KERNEL_CHECK(linear_activation(expert->down.format, args->activation) ==
                         args->activation);
            KERNEL_CHECK(expert->gate_up.format != LINEAR_INT4 || args->dim % INT4_GROUP == 0);
            KERNEL_CHECK(expert->down.format != LINEAR_INT4 || args->width % INT4_GROUP == 0);
            scratch->active[active++] = e;
        }
        begin[e + 1] += begin[e];
    }
    for (uint32_t i = 0; i < pairs; i++)
        scratch->pair[begin[args->expert[i]]++] = i;
    /* Filling moved every begin to its end, which is the next one's begin. */
    memmove(begin + 1, begin, args->expert_count * sizeof(*begin));
    begin[0] = 0;
    return active;
}

/* As many as leave a task's columns of y in the second-level cache while all experts pass. */
static uint32_t down_panels(const struct moe_experts_args *args) {
    size_t panel_bytes = (size_t)args->segments * args->rows * KERNEL_PANEL * sizeof(float);
    size_t panels = Y_CACHE_BYTES / panel_bytes;
    return panels < 1 ? 1 : panels < LINEAR_TILE_PANELS ? (uint32_t)panels : LINEAR_TILE_PANELS;
}

static void plan_groups(struct job *job, uint32_t panels, uint32_t group_max, uint32_t others,
                        uint32_t threads) {
    uint32_t wanted = threads == 1 ? 1 : threads * TASKS_A_THREAD;
    job->group_panels = group_max;
    while (job->group_panels > 1 && others * divide_up(panels, job->group_panels) < wanted)
        job->group_panels--;
    job->group_count = divide_up(panels, job->group_panels);
}

static void run_narrow(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    const struct rows *rows = arg;
    const struct job *job = rows->args;
    const struct moe_experts_args *args = job->args;
    const size_t row_bytes = linear_row_bytes(args->activation, args->dim);
    for (size_t t = rows_begin(rows, task); t < rows_end(rows, task); t++)
        linear_tile_narrow(args->activation, job->scratch.x + t * row_bytes,
                           linear_row_bytes(args->activation, LINEAR_CHUNK),
                           args->x + t * args->dim, args->dim);
}

/* Row t of x, as products take it. */
static const void *x_of(const struct job *job, size_t t) {
    const struct moe_experts_args *args = job->args;
    if (args->activation == KERNEL_F32) return args->x + t * args->dim;
    return job->scratch.x + t * linear_row_bytes(args->activation, args->dim);
}

/* The activations of `count` pairs of an expert: narrow ones are packed, a block together. */
static struct linear_rows activations(const struct job *job, size_t pair_begin, uint32_t count) {
    const struct moe_experts_args *args = job->args;
    struct linear_rows rows = {.dtype = args->activation, .count = count};
    const size_t row_bytes = linear_row_bytes(args->activation, args->width);
    if (args->activation != KERNEL_F32)
        rows.packed = job->scratch.activation + pair_begin * row_bytes;
    else
        for (uint32_t r = 0; r < count; r++)
            rows.row[r] = job->scratch.activation + (pair_begin + r) * row_bytes;
    return rows;
}

static void run_gate_up(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    const struct job *job = arg;
    const struct moe_experts_args *args = job->args;
    uint32_t e = job->scratch.active[task / job->group_count];
    const struct linear_weight *weight = &args->experts[e].gate_up;
    uint32_t pair_begin = job->scratch.pair_begin[e];
    uint32_t rows = job->scratch.pair_begin[e + 1] - pair_begin;
    uint32_t block_rows = linear_tile_block_rows(rows);

    uint32_t begin = task % job->group_count * job->group_panels * KERNEL_PANEL;
    uint32_t columns = min_u32(args->width - begin, job->group_panels * KERNEL_PANEL);
    uint32_t up_panel = (args->width + begin) / KERNEL_PANEL;
    uint32_t up_shift = (args->width + begin) % KERNEL_PANEL;
    for (uint32_t row = 0; row < rows; row += block_rows) {
        struct linear_rows x = {.dtype = args->activation,
                                .count = min_u32(rows - row, block_rows)};
        for (uint32_t r = 0; r < x.count; r++)
            x.row[r] = x_of(job, job->scratch.pair[pair_begin + row + r] / args->topk);
        struct linear_tile gate, up;
        linear_tile_dot(&gate, weight, begin / KERNEL_PANEL, divide_up(columns, KERNEL_PANEL), 1,
                        &x);
        linear_tile_dot(&up, weight, up_panel, divide_up(up_shift + columns, KERNEL_PANEL), 1, &x);
        struct linear_rows a = activations(job, pair_begin + row, x.count);
        for (uint32_t r = 0; r < x.count; r++)
            store_activation(&a, r, begin, &gate, &up, up_shift, columns);
    }
}

/* Row r of the tiles, columns [begin, begin + columns) of F, into row r of the activations. */
static void store_activation(const struct linear_rows *rows, uint32_t r, uint32_t begin,
                             const struct linear_tile *gate, const struct linear_tile *up,
                             uint32_t up_shift, uint32_t columns) {
    for (uint32_t i = 0; i < columns; i += KERNEL_PANEL) {
        uint32_t count = min_u32(columns - i, KERNEL_PANEL);
        float a[KERNEL_PANEL] = {0};
        for (uint32_t j = 0; j < count; j++) {
            uint32_t at = up_shift + i + j;
            a[j] = up->sum[at / KERNEL_PANEL][r][at % KERNEL_PANEL];
        }
        for (uint32_t half = 0; half < KERNEL_PANEL; half += 16) {
            f32x16 g = f32x16_load(&gate->sum[i / KERNEL_PANEL][r][half]);
            f32x16_store(a + half, f32x16_swiglu(g, f32x16_load(a + half)));
        }
        for (uint32_t j = count; j < KERNEL_PANEL; j++)
            a[j] = 0.0f;
        if (rows->packed) {
            size_t bytes = linear_row_bytes(rows->dtype, LINEAR_CHUNK);
            size_t chunk = (size_t)(begin + i) / LINEAR_CHUNK * rows->count + r;
            linear_tile_narrow(rows->dtype, (char *)rows->packed + chunk * bytes, bytes, a,
                               LINEAR_CHUNK);
        } else
            memcpy((float *)rows->row[r] + begin + i, a, count * sizeof(float));
    }
}

/* Activations that are not copied take a panel at a time, so that the sums of all segments stay in
 * the first-level cache; others are copied for all panels together. */
static void run_down(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    const struct job *job = arg;
    const struct moe_experts_args *args = job->args;
    uint32_t panel_begin = task * job->group_panels;
    uint32_t panel_end = min_u32(divide_up(args->dim, KERNEL_PANEL),
                                 panel_begin + job->group_panels);
    for (uint32_t i = 0; i < job->active_count; i++) {
        uint32_t e = job->scratch.active[i];
        uint32_t pair_begin = job->scratch.pair_begin[e];
        uint32_t rows = job->scratch.pair_begin[e + 1] - pair_begin;
        uint32_t block_rows = linear_tile_block_rows(rows);
        for (uint32_t row = 0; row < rows; row += block_rows) {
            struct linear_rows a = activations(job, pair_begin + row,
                                               min_u32(rows - row, block_rows));
            struct linear_tile tile[KERNEL_SEGMENTS];
            bool copied = !a.packed || linear_tile_widens(a.dtype, a.count);
            uint32_t together = copied ? panel_end - panel_begin : 1;
            for (uint32_t panel = panel_begin; panel < panel_end; panel += together) {
                for (uint32_t p = 0; p < together; p++)
                    ask_for_sums(args, panel + p, job->scratch.pair + pair_begin + row, a.count);
                linear_tile_dot(tile, &args->experts[e].down, panel, together, args->segments, &a);
                for (uint32_t p = 0; p < together; p++)
                    add_weighted(args, tile, p, panel + p, job->scratch.pair + pair_begin + row,
                                 a.count);
            }
        }
    }
}

/* A row's sums are scattered over y; they come while the products are computed. */
static void ask_for_sums(const struct moe_experts_args *args, uint32_t panel, const uint32_t *pair,
                         uint32_t row_count) {
    for (uint32_t r = 0; r < row_count; r++) {
        const float *y = args->y + pair[r] / args->topk * (size_t)args->dim + panel * KERNEL_PANEL;
        for (uint32_t s = 0; s < args->segments; s++, y += (size_t)args->rows * args->dim) {
            __builtin_prefetch(y, 1, 2);
            __builtin_prefetch(y + 16, 1, 2);
        }
    }
}

/* y += weight * dot in panel `panel`, for each pair's row and each segment. A row's first expert
 * finds no sum yet. */
static void add_weighted(const struct moe_experts_args *args, const struct linear_tile *tile,
                         uint32_t p, uint32_t panel, const uint32_t *pair, uint32_t row_count) {
    const uint32_t column = panel * KERNEL_PANEL;
    const uint32_t columns = min_u32(args->dim - column, KERNEL_PANEL);
    for (uint32_t s = 0; s < args->segments; s++) {
        for (uint32_t r = 0; r < row_count; r++) {
            size_t t = pair[r] / args->topk;
            bool first = pair[r] % args->topk == 0;
            f32x16 weight = f32x16_set1(args->weight[pair[r]]);
            float *y = args->y + (s * args->rows + t) * args->dim + column;
            for (uint32_t i = 0; i < columns; i += 16) {
                f32x16 dot = f32x16_load(&tile[s].sum[p][r][i]), sum = f32x16_zero();
                if (columns - i >= 16) {
                    if (!first) sum = f32x16_load(y + i);
                    f32x16_store(y + i, f32x16_fma(weight, dot, sum));
                } else {
                    if (!first) sum = f32x16_load_part(y + i, columns - i);
                    f32x16_store_part(y + i, f32x16_fma(weight, dot, sum), columns - i);
                }
            }
        }
    }
}
