/* What a cache holds, as kv_store.h lays it out. For references alone; the fast variants have
 * mla_tree/mla_token.h. */
#ifndef ESPALIER_KV_VALUE_H
#define ESPALIER_KV_VALUE_H

#include "e4m3_ref.h"
#include "kernel.h"

/* Element i of a slot's latent and rotated key. */
static inline float kv_value(const void *kv, enum kernel_dtype kv_dtype, size_t latent_dim,
                             size_t rope_dim, size_t slot, size_t i) {
    size_t at = slot * (latent_dim + rope_dim) + i;
    if (kv_dtype == KERNEL_F32) return ((const float *)kv)[at];
    if (kv_dtype == KERNEL_BF16) return bf16_to_f32(((const bf16 *)kv)[at]);
    size_t groups = (latent_dim + 127) / 128;
    size_t bytes = (latent_dim + 4 * groups + 2 * rope_dim + 15) / 16 * 16;
    const uint8_t *code = (const uint8_t *)kv + slot * bytes;
    const float *scale = (const float *)(const void *)(code + latent_dim);
    const bf16 *rope = (const bf16 *)(const void *)(scale + groups);
    return i < latent_dim ? e4m3_value(code[i]) * scale[i / 128]
                          : bf16_to_f32(rope[i - latent_dim]);
}

#endif
