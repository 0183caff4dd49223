#include "rms_norm/rms_norm.h"

#include "simd/f32x16.h"
#include "simd/isa.h"
#include "simd/rows.h"

/* Returns the row's sum, which is then in the cache. */
static const float *add_row(const struct rms_norm_args *args, size_t t) {
    const float *x = args->x + t * args->x_stride, *add = args->add + t * args->x_stride;
    float *sum = args->sum + t * args->x_stride;
    for (uint32_t i = 0; i < args->dim; i += 16)
        f32x16_store(sum + i, f32x16_add(f32x16_load(x + i), f32x16_load(add + i)));
    return sum;
}

static void run_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    const struct rows *rows = arg;
    const struct rms_norm_args *args = rows->args;
    for (size_t t = rows_begin(rows, task); t < rows_end(rows, task); t++) {
        const float *s = args->x + t * args->x_stride;
        float *y = args->y + t * args->y_stride;
        if (args->add) s = add_row(args, t);
        f32x16 sum = f32x16_zero();
        for (uint32_t i = 0; i < args->dim; i += 16)
            sum = f32x16_fma(f32x16_load(s + i), f32x16_load(s + i), sum);
        f32x16 r = f32x16_set1(1.0f / sqrtf(f32x16_sum(sum) / (float)args->dim + args->eps));
        for (uint32_t i = 0; i < args->dim; i += 16)
            f32x16_store(y + i, f32x16_mul(f32x16_mul(f32x16_load(s + i), r),
                                           f32x16_load(args->weight + i)));
    }
}

CPU_OP(rms_norm) {
    KERNEL_CHECK(args->dim % 16 == 0);
    struct rows rows = rows_split(args, args->rows, args->dim);
    team_run(ctx->team, run_task, &rows, rows_tasks(&rows));
}
