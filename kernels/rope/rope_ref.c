#include "rope/rope.h"

void rope_ref(const struct rope_args *args, struct kernel_ctx *ctx) {
    (void)ctx;
    KERNEL_CHECK(args->dim % 2 == 0);
    uint32_t half = args->dim / 2;
    for (size_t t = 0; t < args->rows; t++) {
        const float *cosines = args->cos_sin + t * args->dim;
        const float *sines = cosines + half;
        for (size_t h = 0; h < args->heads; h++) {
            float *x = args->x + t * args->row_stride + h * args->head_stride;
            for (uint32_t i = 0; i < half; i++) {
                uint32_t first = args->halves ? i : 2 * i;
                uint32_t second = args->halves ? half + i : 2 * i + 1;
                float a = x[first], b = x[second];
                x[first] = a * cosines[i] - b * sines[i];
                x[second] = a * sines[i] + b * cosines[i];
            }
        }
    }
}
