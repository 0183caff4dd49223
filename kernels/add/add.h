/* A sum that no norm follows (rms_norm adds itself): x[i] = x[i] + y[i]. Exact. */
#ifndef ESPALIER_ADD_H
#define ESPALIER_ADD_H

#include "kernel.h"

struct add_args {
    float *x;       /* [count], in and out */
    const float *y; /* [count] */
    size_t count;
};

void add_ref(const struct add_args *args, struct kernel_ctx *ctx);
void add_cpu(const struct add_args *args, struct kernel_ctx *ctx);
void add_cuda(const struct add_args *args, struct kernel_ctx *ctx);

#endif
