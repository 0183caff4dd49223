#include "embed/embed.h"

#include "simd/f32x16.h"
#include "simd/isa.h"
#include "simd/rows.h"

/* Adding zero makes a negative zero positive. */
static void copy_f32(float *y, const float *row, uint32_t dim) {
    for (uint32_t i = 0; i < dim; i++)
        y[i] = row[i] + 0.0f;
}

static void copy_bf16(float *y, const bf16 *row, uint32_t dim) {
    uint32_t i = 0;
    for (; i + 16 <= dim; i += 16)
        f32x16_store(y + i, f32x16_add(f32x16_load_bf16(row + i), f32x16_zero()));
    for (; i < dim; i++)
        y[i] = bf16_to_f32(row[i]) + 0.0f;
}

static void run_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    const struct rows *rows = arg;
    const struct embed_args *args = rows->args;
    for (size_t t = rows_begin(rows, task); t < rows_end(rows, task); t++) {
        float *y = args->y + t * args->dim;
        uint32_t idx = args->id[t] - args->vocab_begin;
        if (args->id[t] < args->vocab_begin || idx >= args->vocab_count) {
            memset(y, 0, args->dim * sizeof(float));
            continue;
        }
        if (args->table_dtype == KERNEL_F32)
            copy_f32(y, (const float *)args->table + (size_t)idx * args->dim, args->dim);
        else
            copy_bf16(y, (const bf16 *)args->table + (size_t)idx * args->dim, args->dim);
    }
}

CPU_OP(embed) {
    struct rows rows = rows_split(args, args->rows, args->dim);
    team_run(ctx->team, run_task, &rows, rows_tasks(&rows));
}
