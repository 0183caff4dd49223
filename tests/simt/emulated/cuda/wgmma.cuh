/* kernels/cuda/wgmma.cuh for the CPU: the same names, by the emulator (tests/simt/simt.h). */
#ifndef ESPALIER_WGMMA_CUH
#define ESPALIER_WGMMA_CUH

#include "cuda/device.cuh"
#include "cuda/wgmma_tile.cuh"

template <uint32_t Count> DEVICE_INLINE void device_wgmma_fence(float (&d)[Count]) {
    simt_wgmma_fence(d, Count);
}

template <enum wgmma_side Side, uint32_t Count>
DEVICE_INLINE void device_wgmma(float (&d)[Count], uint64_t a, uint64_t b, bool adds) {
    simt_wgmma(d, Count, a, b, Side == WGMMA_LINE_IS_STEP, adds);
}

DEVICE_INLINE void device_wgmma_commit(void) {
    simt_wgmma_commit();
}

template <int Pending, uint32_t Count> DEVICE_INLINE void device_wgmma_wait(float (&d)[Count]) {
    (void)d;
    simt_wgmma_wait(Pending);
}

DEVICE_INLINE void device_async_fence(void) {
    simt_async_proxy_fence();
}

#endif
