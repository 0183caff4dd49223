/* y = silu(gate) * up, silu(g) = g / (1 + exp(-g))  (Shazeer, "GLU Variants Improve Transformer",
 * 2020). The fast variants agree to the bit among themselves; the reference uses libm's exp:
 * tolerance 2e-6 relative. */
#ifndef ESPALIER_SWIGLU_H
#define ESPALIER_SWIGLU_H

#include "kernel.h"

struct swiglu_args {
    const float *gate_up; /* [T, 2 F]: gate (F), then up (F) */
    size_t gate_up_stride;
    float *y; /* [T, F] */
    size_t y_stride;
    uint32_t rows; /* T */
    uint32_t dim;  /* F */
};

void swiglu_ref(const struct swiglu_args *args, struct kernel_ctx *ctx);
void swiglu_cpu(const struct swiglu_args *args, struct kernel_ctx *ctx);
void swiglu_cuda(const struct swiglu_args *args, struct kernel_ctx *ctx);

#endif
