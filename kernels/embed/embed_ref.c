#include "embed/embed.h"

static float element(const struct embed_args *args, size_t at) {
    if (args->table_dtype == KERNEL_F32) return ((const float *)args->table)[at];
    return bf16_to_f32(((const bf16 *)args->table)[at]);
}

void embed_ref(const struct embed_args *args, struct kernel_ctx *ctx) {
    (void)ctx;
    for (size_t t = 0; t < args->rows; t++) {
        uint32_t id = args->id[t];
        for (size_t i = 0; i < args->dim; i++) {
            float value = 0.0f;
            if (id >= args->vocab_begin && id - args->vocab_begin < args->vocab_count)
                value = element(args, (size_t)(id - args->vocab_begin) * args->dim + i);
            if (value == 0.0f) value = 0.0f; /* a negative zero too */
            args->y[t * args->dim + i] = value;
        }
    }
}
