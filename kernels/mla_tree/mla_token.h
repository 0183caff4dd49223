/* A cached token as products take it, where they cannot take it as it lies in the cache. For the
 * fast variants of mla_tree and mla_expanded; the layouts are kv_store.h's. */
#ifndef ESPALIER_MLA_TOKEN_H
#define ESPALIER_MLA_TOKEN_H

#include "kv_store/kv_store.h"
#include "simd/f32x16.h"

/* Codes come divided by 256, and sixteen of them share a scale. Exact. */
F32X16_INLINE f32x16 mla_token_fp8(const uint8_t *code, float scale) {
    f32x16 value = f32x16_mul(f32x16_load_fp8(code), f32x16_set1(256.0f));
    return f32x16_mul(value, f32x16_set1(scale));
}

F32X16_INLINE void mla_token_widen_bf16(const bf16 *from, size_t count, float *to) {
    for (size_t i = 0; i < count; i += 16)
        f32x16_store(to + i, f32x16_load_bf16(from + i));
}

/* A token of a BF16 or FP8 cache -> to [R + P]. */
F32X16_INLINE void mla_token_to_f32(enum kernel_dtype kv_dtype, const void *tok,
                                    uint32_t latent_dim, uint32_t rope_dim, float *to) {
    if (kv_dtype == KERNEL_BF16) {
        mla_token_widen_bf16(tok, (size_t)latent_dim + rope_dim, to);
        return;
    }
    const uint8_t *code = tok;
    const float *scale = (const void *)(code + latent_dim);
    for (size_t i = 0; i < latent_dim; i += 16)
        f32x16_store(to + i, mla_token_fp8(code + i, scale[i / KV_FP8_GROUP]));
    mla_token_widen_bf16((const void *)(code + kv_fp8_rope_at(latent_dim)), rope_dim,
                         to + latent_dim);
}

/* A token of an FP8 cache -> to [R + P]. */
F32X16_INLINE void mla_token_to_bf16(const void *tok, uint32_t latent_dim, uint32_t rope_dim,
                                     bf16 *to) {
    const uint8_t *code = tok;
    const float *scale = (const void *)(code + latent_dim);
    for (size_t i = 0; i < latent_dim; i += 32) {
        size_t next = i + 16 < latent_dim ? i + 16 : i; /* the last half is stored alone */
        bf16 pair[32];
        bf16x32_store(pair, bf16x32_round(mla_token_fp8(code + i, scale[i / KV_FP8_GROUP]),
                                          mla_token_fp8(code + next, scale[next / KV_FP8_GROUP])));
        memcpy(to + i, pair, (next - i + 16) * sizeof(bf16));
    }
    memcpy(to + latent_dim, code + kv_fp8_rope_at(latent_dim), rope_dim * sizeof(bf16));
}

#endif
