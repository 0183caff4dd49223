#include "kv_store/kv_store.h"

#include <stdbool.h>
#include <string.h>

#include "e4m3_ref.h"

/* 128 latents, or as many as there are, into their codes and their scale. */
static void store_group(const float *latent, size_t count, uint8_t *code, float *scale) {
    float s = 0x1p-117f;
    bool is_finite = true;
    for (size_t i = 0; i < count; i++)
        is_finite = is_finite && isfinite(latent[i]);
    for (size_t i = 0; i < count && is_finite; i++)
        while (fabsf(latent[i]) > 448 * s)
            s = 2 * s;
    for (size_t i = 0; i < count; i++)
        code[i] = is_finite ? e4m3_nearest(latent[i] / s) : 0;
    *scale = is_finite ? s : NAN;
}

static void store_fp8(const struct kv_store_args *args, const float *latent, const float *rope_key,
                      size_t slot) {
    size_t latent_dim = args->latent_dim, rope_dim = args->rope_dim;
    size_t groups = (latent_dim + 127) / 128;
    size_t used = latent_dim + 4 * groups + 2 * rope_dim, bytes = (used + 15) / 16 * 16;
    uint8_t *code = (uint8_t *)args->kv + slot * bytes;
    float *scale = (float *)(void *)(code + latent_dim);
    bf16 *rope = (bf16 *)(void *)(scale + groups);
    for (size_t g = 0; g < groups; g++) {
        size_t begin = g * 128, left = latent_dim - begin;
        store_group(latent + begin, left < 128 ? left : 128, code + begin, &scale[g]);
    }
    for (size_t i = 0; i < rope_dim; i++)
        rope[i] = bf16_from_f32(rope_key[i]);
    memset(code + used, 0, bytes - used);
}

void kv_store_ref(const struct kv_store_args *args, struct kernel_ctx *ctx) {
    (void)ctx;
    size_t dim = (size_t)args->latent_dim + args->rope_dim;
    for (size_t t = 0; t < args->rows; t++) {
        if (args->slot[t] == KV_SLOT_NONE) continue;
        const float *latent = args->latent + t * args->latent_stride;
        const float *rope_key = args->rope_key + t * args->rope_stride;
        if (args->kv_dtype == KERNEL_FP8) {
            store_fp8(args, latent, rope_key, args->slot[t]);
            continue;
        }
        for (size_t i = 0; i < dim; i++) {
            float value = i < args->latent_dim ? latent[i] : rope_key[i - args->latent_dim];
            size_t at = args->slot[t] * dim + i;
            if (args->kv_dtype == KERNEL_F32)
                ((float *)args->kv)[at] = value;
            else
                ((bf16 *)args->kv)[at] = bf16_from_f32(value);
        }
    }
}
