/* Root-mean-square norm (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, eq. 4),
 * of a residual stream to which something was added, in one pass over it, or of rows as they are:
 *
 *     s[t,i] = x[t,i] + add[t,i]       without add: x[t,i]
 *     y[t,i] = (s[t,i] * r) * w[i],    r = 1 / sqrt(sum_i s[t,i]^2 / D + eps)
 *
 * Order of the sum: sixteen partial sums, lane l taking i = l, l+16, ... in ascending order by
 * fma, then added as a binary tree: lanes 8 apart, 4, 2, 1. The fast variants agree with it to the
 * bit on every instruction set; the CUDA variant sums in another order, tolerance 2e-6 relative. */
#ifndef ESPALIER_RMS_NORM_H
#define ESPALIER_RMS_NORM_H

#include "kernel.h"

struct rms_norm_args {
    const float *x; /* [T, D], rows x_stride floats apart */
    size_t x_stride;
    const float *add;    /* [T, D] likewise; NULL: none */
    float *sum;          /* [T, D] likewise: s, may be x itself; where there is an add */
    const float *weight; /* [D] */
    float *y;            /* [T, D], rows y_stride floats apart; may be x itself, but not s */
    size_t y_stride;
    uint32_t rows; /* T */
    uint32_t dim;  /* D, a multiple of 16 */
    float eps;
};

void rms_norm_ref(const struct rms_norm_args *args, struct kernel_ctx *ctx);
void rms_norm_cpu(const struct rms_norm_args *args, struct kernel_ctx *ctx);
void rms_norm_cuda(const struct rms_norm_args *args, struct kernel_ctx *ctx);

#endif
