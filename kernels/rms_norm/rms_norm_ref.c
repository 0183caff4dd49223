#include "rms_norm/rms_norm.h"

#include <math.h>

void rms_norm_ref(const struct rms_norm_args *args, struct kernel_ctx *ctx) {
    (void)ctx;
    KERNEL_CHECK(args->dim % 16 == 0);
    for (size_t t = 0; t < args->rows; t++) {
        const float *s = args->x + t * args->x_stride;
        float *y = args->y + t * args->y_stride;

        if (args->add) {
            float *sum = args->sum + t * args->x_stride;
            for (uint32_t i = 0; i < args->dim; i++)
                sum[i] = s[i] + args->add[t * args->x_stride + i];
            s = sum;
        }

        float lane[16] = {0};
        for (uint32_t i = 0; i < args->dim; i++)
            lane[i % 16] = fmaf(s[i], s[i], lane[i % 16]);
        for (int apart = 8; apart > 0; apart /= 2)
            for (int l = 0; l < apart; l++)
                lane[l] = lane[l] + lane[l + apart];

        float r = 1.0f / sqrtf(lane[0] / (float)args->dim + args->eps);
        for (uint32_t i = 0; i < args->dim; i++)
            y[i] = (s[i] * r) * args->weight[i];
    }
}
