/* Write latent rows into the paged cache of one layer.
 *
 *     page q, token o:  slot q * page_tok + o, kv_tok_bytes each
 *     F32, BF16:        [ latent (R) | rotated key (P) ]
 *     FP8:              [ codes, R e4m3 | scales, f32, one for each 128 | key, P bf16 | zeros ]
 *
 * slot[t] = q * page_tok + o. f32 as is, bf16 rounded to nearest even. Exact.
 *
 * FP8 is the record that FlashMLA reads and vLLM calls fp8_ds_mla, 656 bytes at Kimi's 512 + 64;
 * zeros make others a multiple of 16. A group of 128 latents (the last may be shorter) has as its
 * scale s the smallest power of two for which no |c| is above 448 s, e4m3's greatest, and at least
 * 2^-117; a code is the e4m3 nearest to c / s, ties to even. So
 *
 *     c = code * s      is exact, also as a bf16, and a normal number or zero
 *
 * and differs from what was stored by at most 2^-4 of it, or 2^-10 s where that is more. A group
 * with a latent that is no finite number has zeros for codes and NaN for its scale: all of it reads
 * as NaN, so that what went wrong stays seen. */
#ifndef ESPALIER_KV_STORE_H
#define ESPALIER_KV_STORE_H

#include "kernel.h"

#define KV_SLOT_NONE UINT32_MAX /* of a row that is stored nowhere */

#define KV_FP8_GROUP 128u
#define KV_FP8_ALIGN 16u

static inline size_t kv_fp8_groups(uint32_t latent_dim) {
    return divide_up(latent_dim, KV_FP8_GROUP);
}

/* Where the rotated key of an FP8 token begins, in bytes; its scales do so at R. */
static inline size_t kv_fp8_rope_at(uint32_t latent_dim) {
    return latent_dim + kv_fp8_groups(latent_dim) * sizeof(float);
}

/* Of a token in a layer. FP8: R and P are multiples of 16. */
static inline size_t kv_tok_bytes(enum kernel_dtype kv_dtype, uint32_t latent_dim,
                                  uint32_t rope_dim) {
    size_t dim = (size_t)latent_dim + rope_dim;
    if (kv_dtype != KERNEL_FP8)
        return dim * (kv_dtype == KERNEL_F32 ? sizeof(float) : sizeof(bf16));
    size_t bytes = kv_fp8_rope_at(latent_dim) + rope_dim * sizeof(bf16);
    return (bytes + KV_FP8_ALIGN - 1) / KV_FP8_ALIGN * KV_FP8_ALIGN;
}

struct kv_store_args {
    const float *latent; /* [T, R], rows latent_stride floats apart */
    size_t latent_stride;
    const float *rope_key; /* [T, P], rows rope_stride floats apart */
    size_t rope_stride;
    void *kv; /* [slots] of this layer */
    enum kernel_dtype kv_dtype;
    const uint32_t *slot; /* [T], distinct; or KV_SLOT_NONE: rows that fill up a captured launch */
    uint32_t rows;        /* T */
    uint32_t latent_dim;  /* R */
    uint32_t rope_dim;    /* P */
};

void kv_store_ref(const struct kv_store_args *args, struct kernel_ctx *ctx);
void kv_store_cpu(const struct kv_store_args *args, struct kernel_ctx *ctx);
void kv_store_cuda(const struct kv_store_args *args, struct kernel_ctx *ctx);

#endif
