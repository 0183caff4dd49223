/* kernels/cuda/launch.cuh for the CPU: the stream is an emulated one. */
#ifndef ESPALIER_LAUNCH_CUH
#define ESPALIER_LAUNCH_CUH

#include <stdint.h>

extern "C" {
#include "kernel.h"
#include "simt_cuda.h"
}

struct dim3 {
    uint32_t x, y, z;
    dim3(uint32_t x_count, uint32_t y_count = 1, uint32_t z_count = 1)
        : x(x_count), y(y_count), z(z_count) {}
};

template <typename Args> struct launch_call {
    void (*kernel)(Args);
    Args args;
};

template <typename Args> void launch_thread(void *user) {
    const launch_call<Args> *call = (const launch_call<Args> *)user;
    call->kernel(call->args);
}

template <typename Args>
static inline void launch(void (*kernel)(Args), dim3 grid, uint32_t threads, size_t shared_bytes,
                          const struct kernel_ctx *ctx, const Args &args) {
    launch_call<Args> call = {kernel, args};
    struct simt_grid blocks = {grid.x, grid.y, grid.z, threads, shared_bytes};
    simt_cuda_launch(ctx->stream, &blocks, launch_thread<Args>, &call, sizeof call);
}

#endif
