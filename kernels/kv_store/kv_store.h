/* Write latent rows into the paged cache of one layer.
 *
 *     page q, token o:  kv[(q * page_tok + o) * (R + P)] = [ latent (R) | rotated key (P) ]
 *
 * slot[t] = q * page_tok + o. f32 as is, bf16 rounded to nearest even. Exact. */
#ifndef ESPALIER_KV_STORE_H
#define ESPALIER_KV_STORE_H

#include "kernel.h"

/* Of a token in a layer. */
static inline size_t kv_tok_bytes(enum kernel_dtype kv_dtype, uint32_t latent_dim,
                                  uint32_t rope_dim) {
    return ((size_t)latent_dim + rope_dim) *
           (kv_dtype == KERNEL_F32 ? sizeof(float) : sizeof(bf16));
}

struct kv_store_args {
    const float *latent; /* [T, R], rows latent_stride floats apart */
    size_t latent_stride;
    const float *rope_key; /* [T, P], rows rope_stride floats apart */
    size_t rope_stride;
    void *kv; /* [slots, R + P] of this layer */
    enum kernel_dtype kv_dtype;
    const uint32_t *slot; /* [T], distinct */
    uint32_t rows;        /* T */
    uint32_t latent_dim;  /* R */
    uint32_t rope_dim;    /* P */
};

void kv_store_ref(const struct kv_store_args *args, struct kernel_ctx *ctx);
void kv_store_cpu(const struct kv_store_args *args, struct kernel_ctx *ctx);
void kv_store_cuda(const struct kv_store_args *args, struct kernel_ctx *ctx);

#endif
