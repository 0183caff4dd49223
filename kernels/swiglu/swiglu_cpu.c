#include "swiglu/swiglu.h"

#include "simd/f32x16_math.h"
#include "simd/isa.h"
#include "simd/rows.h"

static void run_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    const struct rows *rows = arg;
    const struct swiglu_args *args = rows->args;
    uint32_t dim = args->dim;
    for (size_t t = rows_begin(rows, task); t < rows_end(rows, task); t++) {
        const float *gate = args->gate_up + t * args->gate_up_stride;
        const float *up = gate + dim;
        float *y = args->y + t * args->y_stride;
        uint32_t i = 0;
        for (; i + 16 <= dim; i += 16)
            f32x16_store(y + i, f32x16_swiglu(f32x16_load(gate + i), f32x16_load(up + i)));
        if (i < dim)
            f32x16_store_part(y + i,
                              f32x16_swiglu(f32x16_load_part(gate + i, dim - i),
                                            f32x16_load_part(up + i, dim - i)),
                              dim - i);
    }
}

CPU_OP(swiglu) {
    struct rows rows = rows_split(args, args->rows, 4 * (size_t)args->dim);
    team_run(ctx->team, run_task, &rows, rows_tasks(&rows));
}
