/* The pairs are independent and few; what matters is that threads share the rows of a prompt. */
#include "rope/rope.h"

#include "simd/isa.h"
#include "simd/rows.h"

static void rotate_interleaved(float *restrict x, const float *restrict cosines,
                               const float *restrict sines, uint32_t half) {
    for (uint32_t i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cosines[i] - b * sines[i];
        x[2 * i + 1] = a * sines[i] + b * cosines[i];
    }
}

static void rotate_halves(float *restrict x, const float *restrict cosines,
                          const float *restrict sines, uint32_t half) {
    for (uint32_t i = 0; i < half; i++) {
        float a = x[i], b = x[half + i];
        x[i] = a * cosines[i] - b * sines[i];
        x[half + i] = a * sines[i] + b * cosines[i];
    }
}

static void run_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    const struct rows *rows = arg;
    const struct rope_args *args = rows->args;
    uint32_t half = args->dim / 2;
    for (size_t t = rows_begin(rows, task); t < rows_end(rows, task); t++) {
        const float *cosines = args->cos_sin + t * args->dim;
        for (size_t h = 0; h < args->heads; h++) {
            float *x = args->x + t * args->row_stride + h * args->head_stride;
            if (args->halves)
                rotate_halves(x, cosines, cosines + half, half);
            else
                rotate_interleaved(x, cosines, cosines + half, half);
        }
    }
}

CPU_OP(rope) {
    KERNEL_CHECK(args->dim % 2 == 0);
    struct rows rows = rows_split(args, args->rows, (size_t)args->heads * args->dim);
    team_run(ctx->team, run_task, &rows, rows_tasks(&rows));
}
