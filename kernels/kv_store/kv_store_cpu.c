#include "kv_store/kv_store.h"

#include <string.h>

#include "simd/isa.h"
#include "simd/rows.h"

static void narrow(bf16 *restrict to, const float *restrict from, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        to[i] = bf16_from_f32(from[i]);
}

static void run_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    const struct rows *rows = arg;
    const struct kv_store_args *args = rows->args;
    uint32_t latent_dim = args->latent_dim, rope_dim = args->rope_dim;
    for (size_t t = rows_begin(rows, task); t < rows_end(rows, task); t++) {
        const float *latent = args->latent + t * args->latent_stride;
        const float *rope_key = args->rope_key + t * args->rope_stride;
        size_t at = (size_t)args->slot[t] * ((size_t)latent_dim + rope_dim);
        if (args->kv_dtype == KERNEL_F32) {
            float *to = (float *)args->kv + at;
            memcpy(to, latent, latent_dim * sizeof(float));
            memcpy(to + latent_dim, rope_key, rope_dim * sizeof(float));
        } else {
            narrow((bf16 *)args->kv + at, latent, latent_dim);
            narrow((bf16 *)args->kv + at + latent_dim, rope_key, rope_dim);
        }
    }
}

CPU_OP(kv_store) {
    struct rows rows = rows_split(args, args->rows, (size_t)args->latent_dim + args->rope_dim);
    team_run(ctx->team, run_task, &rows, rows_tasks(&rows));
}
