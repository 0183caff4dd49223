#include "swiglu/swiglu.h"

#include <math.h>

void swiglu_ref(const struct swiglu_args *args, struct kernel_ctx *ctx) {
    (void)ctx;
    for (size_t t = 0; t < args->rows; t++) {
        const float *gate = args->gate_up + t * args->gate_up_stride;
        const float *up = gate + args->dim;
        for (uint32_t i = 0; i < args->dim; i++)
            args->y[t * args->y_stride + i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
    }
}
