/* Starting a kernel. A launch that fails ends the process with code 70: the shapes were checked
 * before, so it is a bug or a dead device, and either ends the worker. */
#ifndef ESPALIER_LAUNCH_CUH
#define ESPALIER_LAUNCH_CUH

#include <cuda_runtime.h>

extern "C" {
#include "kernel.h"
}

template <typename Args>
static inline void launch(void (*kernel)(Args), dim3 grid, uint32_t threads, size_t shared_bytes,
                          const struct kernel_ctx *ctx, const Args &args) {
    KERNEL_CHECK(cudaFuncSetAttribute((const void *)kernel,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)shared_bytes) == cudaSuccess);
    kernel<<<grid, threads, shared_bytes, (cudaStream_t)ctx->stream>>>(args);
    KERNEL_CHECK(cudaGetLastError() == cudaSuccess);
}

#endif
