/* Starting a kernel. A launch that fails ends the process with code 70 and the kernel's name: the
 * shapes were checked before, so it is a bug or a dead device, and either ends the worker. */
#ifndef ESPALIER_LAUNCH_CUH
#define ESPALIER_LAUNCH_CUH

#include <cuda_runtime.h>
#include <stdio.h>

extern "C" {
#include "kernel.h"
}

static inline void launch_check(cudaError_t error, const void *kernel) {
    const char *name = "a kernel";
    char text[256];
    if (error == cudaSuccess) return;
    (void)cudaFuncGetName(&name, kernel);
    snprintf(text, sizeof text, "launching %s: %s", name, cudaGetErrorString(error));
    kernel_check_failed(text, __FILE__, __LINE__);
}

template <typename Args>
static inline void launch(void (*kernel)(Args), dim3 grid, uint32_t threads, size_t shared_bytes,
                          const struct kernel_ctx *ctx, const Args &args) {
    launch_check(cudaFuncSetAttribute((const void *)kernel,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)shared_bytes),
                 (const void *)kernel);
    kernel<<<grid, threads, shared_bytes, (cudaStream_t)ctx->stream>>>(args);
    launch_check(cudaGetLastError(), (const void *)kernel);
}

#endif
