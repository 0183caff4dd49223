/* Products of many rows by NVIDIA's cuBLASLt, for linear_cuda: the library's handle, and the
 * algorithms that it chose, one for each of the last shapes.
 *
 *     y[b] = x[b] w[b]^T     x [batch, rows, k] and w [batch, n, k] bf16, sums and y in f32
 *
 * Who opens a device opens one of these for it; a product allocates nothing and is work of the
 * stream. A call that fails ends the process as a launch does (cuda/launch.cuh). One thread. */
#ifndef ESPALIER_LINEAR_CUBLASLT_H
#define ESPALIER_LINEAR_CUBLASLT_H

#include "kernel.h"

/* Strides and inner dimensions are multiples of so many bf16: addresses of 16 bytes each. */
#define LINEAR_CUBLASLT_UNIT 8u

/* What NVIDIA advises for sm_90, and room to align it. */
#define LINEAR_CUBLASLT_ALIGN           256u
#define LINEAR_CUBLASLT_WORKSPACE_BYTES (((size_t)32 << 20) + LINEAR_CUBLASLT_ALIGN)

struct linear_cublaslt;

/* On the current device. Returns NULL, or what the library says against it. */
const char *linear_cublaslt_open(struct linear_cublaslt **library_out);
void linear_cublaslt_close(struct linear_cublaslt **library);

/* Elements from row to row, and from batch to batch. */
struct linear_cublaslt_shape {
    uint32_t rows, n, k, batch;
    size_t x_stride, x_batch_stride;
    size_t w_stride, w_batch_stride;
    size_t y_stride, y_batch_stride;
};

struct linear_cublaslt_args {
    struct linear_cublaslt_shape shape;
    const bf16 *x, *w; /* 16-byte aligned */
    float *y;          /* 4-byte aligned */
    void *workspace;   /* LINEAR_CUBLASLT_WORKSPACE_BYTES */
};

/* ctx->device and ctx->stream as kernel.h says. */
void linear_cublaslt_multiply(const struct linear_cublaslt_args *args,
                              const struct kernel_ctx *ctx);

#endif
