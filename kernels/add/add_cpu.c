#include "add/add.h"

#include "simd/f32x16.h"
#include "simd/isa.h"
#include "team.h"

#define TASK_FLOATS 16384u

static void run_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    const struct add_args *args = arg;
    size_t begin = (size_t)task * TASK_FLOATS, end = begin + TASK_FLOATS;
    if (end > args->count) end = args->count;
    size_t i = begin;
    for (; i + 16 <= end; i += 16)
        f32x16_store(args->x + i, f32x16_add(f32x16_load(args->x + i), f32x16_load(args->y + i)));
    for (; i < end; i++)
        args->x[i] = args->x[i] + args->y[i];
}

CPU_OP(add) {
    struct add_args copy = *args;
    team_run(ctx->team, run_task, &copy, (uint32_t)((args->count + TASK_FLOATS - 1) / TASK_FLOATS));
}
