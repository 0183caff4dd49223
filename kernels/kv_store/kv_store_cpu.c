#include "kv_store/kv_store.h"

#include <math.h>
#include <string.h>

#include "simd/isa.h"
#include "simd/rows.h"

static void narrow(bf16 *restrict to, const float *restrict from, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        to[i] = bf16_from_f32(from[i]);
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The greatest of them without their signs, as bits: what is not finite is above what is. */
static uint32_t greatest_of(const float *value, uint32_t count) {
    uint32_t greatest = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &value[i], sizeof bits);
        greatest = max_u32(greatest, bits & 0x7fffffffu);
    }
    return greatest;
}

/* Returns the scale. A power of two s with c <= 448 s, of c = 2^e d: 2^(e - 8), or twice that where
 * the digits d are beyond 1.75. */
static float store_group(const float *restrict latent, uint32_t count, uint8_t *restrict code) {
    uint32_t greatest = greatest_of(latent, count);
    if (greatest >= F32_NOT_FINITE) {
        memset(code, 0, count);
        return NAN;
    }
    uint32_t exponent = max_u32((greatest + 0x1fffffu) >> 23, 127 + 8 - 117) - 8;
    float divisor = float_of((254 - exponent) << 23);
    for (uint32_t i = 0; i < count; i++)
        code[i] = e4m3_from_f32(latent[i] * divisor);
    return float_of(exponent << 23);
}

static void store_fp8(const struct kv_store_args *args, const float *latent, const float *rope_key,
                      uint32_t slot) {
    uint32_t latent_dim = args->latent_dim;
    size_t bytes = kv_tok_bytes(KERNEL_FP8, latent_dim, args->rope_dim);
    uint8_t *code = (uint8_t *)args->kv + slot * bytes;
    float *scale = (void *)(code + latent_dim);
    size_t rope_at = kv_fp8_rope_at(latent_dim), end = rope_at + args->rope_dim * sizeof(bf16);
    for (uint32_t begin = 0; begin < latent_dim; begin += KV_FP8_GROUP)
        scale[begin / KV_FP8_GROUP] = store_group(
            latent + begin, min_u32(latent_dim - begin, KV_FP8_GROUP), code + begin);
    narrow((void *)(code + rope_at), rope_key, args->rope_dim);
    memset(code + end, 0, bytes - end);
}

static void run_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    const struct rows *rows = arg;
    const struct kv_store_args *args = rows->args;
    uint32_t latent_dim = args->latent_dim, rope_dim = args->rope_dim;
    for (size_t t = rows_begin(rows, task); t < rows_end(rows, task); t++) {
        if (args->slot[t] == KV_SLOT_NONE) continue;
        const float *latent = args->latent + t * args->latent_stride;
        const float *rope_key = args->rope_key + t * args->rope_stride;
        size_t at = (size_t)args->slot[t] * ((size_t)latent_dim + rope_dim);
        if (args->kv_dtype == KERNEL_FP8) {
            store_fp8(args, latent, rope_key, args->slot[t]);
        } else if (args->kv_dtype == KERNEL_F32) {
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
    KERNEL_CHECK(args->kv_dtype != KERNEL_FP8 ||
                 (args->latent_dim % 16 == 0 && args->rope_dim % 16 == 0));
    struct rows rows = rows_split(args, args->rows, (size_t)args->latent_dim + args->rope_dim);
    team_run(ctx->team, run_task, &rows, rows_tasks(&rows));
}
