#include "kv_store/kv_store.h"

void kv_store_ref(const struct kv_store_args *args, struct kernel_ctx *ctx) {
    (void)ctx;
    size_t dim = (size_t)args->latent_dim + args->rope_dim;
    for (size_t t = 0; t < args->rows; t++) {
        for (size_t i = 0; i < dim; i++) {
            float value = i < args->latent_dim
                              ? args->latent[t * args->latent_stride + i]
                              : args->rope_key[t * args->rope_stride + i - args->latent_dim];
            size_t at = args->slot[t] * dim + i;
            if (args->kv_dtype == KERNEL_F32)
                ((float *)args->kv)[at] = value;
            else
                ((bf16 *)args->kv)[at] = bf16_from_f32(value);
        }
    }
}
