/* kernels/cuda/device.cuh for the CPU: the same names, by the emulator (tests/simt/simt.h). */
#ifndef ESPALIER_DEVICE_CUH
#define ESPALIER_DEVICE_CUH

#include <math.h>
#include <stdint.h>

#include "cuda/launch.cuh"

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __grid_constant__
#define DEVICE_INLINE inline
#define threadIdx     simt_thread_index
#define blockIdx      simt_block_index

struct alignas(8) float2 {
    float x, y;
};

struct alignas(16) float4 {
    float x, y, z, w;
};

struct alignas(8) uint2 {
    uint32_t x, y;
};

struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

DEVICE_INLINE unsigned char *device_shared(void) {
    return simt_shared();
}

DEVICE_INLINE void device_copy16(void *shared, const void *global, bool wanted) {
    simt_copy16(shared, global, wanted);
}

DEVICE_INLINE void device_copy_commit(void) {
    simt_copy_commit();
}

template <int Pending> DEVICE_INLINE void device_copy_wait(void) {
    simt_copy_wait(Pending);
}

DEVICE_INLINE void device_load_matrix_x4(uint32_t out[4], const void *shared_row) {
    simt_load_matrix(out, shared_row, 4, false);
}

DEVICE_INLINE void device_load_matrix_x2(uint32_t out[2], const void *shared_row) {
    simt_load_matrix(out, shared_row, 2, false);
}

DEVICE_INLINE void device_load_matrix_x4_transposed(uint32_t out[4], const void *shared_row) {
    simt_load_matrix(out, shared_row, 4, true);
}

DEVICE_INLINE void device_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    simt_mma_bf16(d, a, b);
}

DEVICE_INLINE void device_mma_bf16_first(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    d[0] = d[1] = d[2] = d[3] = 0.0f;
    simt_mma_bf16(d, a, b);
}

DEVICE_INLINE void device_load16(uint32_t out[4], const void *shared) {
    simt_load(out, shared, 16);
}

DEVICE_INLINE void device_load8(uint32_t out[2], const void *shared) {
    simt_load(out, shared, 8);
}

DEVICE_INLINE uint32_t device_load4(const void *shared) {
    uint32_t out;
    simt_load(&out, shared, 4);
    return out;
}

DEVICE_INLINE void device_store4(void *shared, uint32_t value) {
    simt_store4(shared, value);
}

DEVICE_INLINE uint32_t device_shared_address(const void *shared) {
    return simt_shared_address(shared);
}

DEVICE_INLINE uint32_t device_add_bf16x2(uint32_t a, uint32_t b) {
    uint32_t low = bf16_from_f32(bf16_to_f32((bf16)a) + bf16_to_f32((bf16)b));
    return low |
           (uint32_t)bf16_from_f32(bf16_to_f32((bf16)(a >> 16)) + bf16_to_f32((bf16)(b >> 16)))
               << 16;
}

DEVICE_INLINE uint32_t device_multiply_bf16x2(uint32_t a, uint32_t b) {
    uint32_t low = bf16_from_f32(bf16_to_f32((bf16)a) * bf16_to_f32((bf16)b));
    return low |
           (uint32_t)bf16_from_f32(bf16_to_f32((bf16)(a >> 16)) * bf16_to_f32((bf16)(b >> 16)))
               << 16;
}

DEVICE_INLINE uint32_t device_pack_bf16(float low, float high) {
    return (uint32_t)bf16_from_f32(low) | (uint32_t)bf16_from_f32(high) << 16;
}

DEVICE_INLINE float device_low_bf16(uint32_t packed) {
    return bf16_to_f32((bf16)packed);
}

DEVICE_INLINE float device_high_bf16(uint32_t packed) {
    return bf16_to_f32((bf16)(packed >> 16));
}

DEVICE_INLINE float device_from_bf16(bf16 value) {
    return bf16_to_f32(value);
}

DEVICE_INLINE bf16 device_to_bf16(float value) {
    return bf16_from_f32(value);
}

DEVICE_INLINE uint8_t device_to_e4m3(float value) {
    return e4m3_from_f32(value);
}

DEVICE_INLINE float device_exp2(float x) {
    return exp2f(x);
}

DEVICE_INLINE float device_shuffle_xor(float value, uint32_t lane_mask) {
    return simt_shuffle_xor(value, lane_mask);
}

DEVICE_INLINE void device_atomic_add(uint64_t *at, uint64_t value) {
    *at += value; /* nobody else runs between two meetings */
}

DEVICE_INLINE uint32_t device_atomic_add(uint32_t *at, uint32_t value) {
    uint32_t before = *at;
    *at = before + value;
    return before;
}

DEVICE_INLINE void device_barrier(void) {
    simt_barrier();
}

DEVICE_INLINE void device_meet(uint32_t id, uint32_t threads) {
    simt_meet(id, threads);
}

DEVICE_INLINE void device_signal(uint32_t id, uint32_t threads) {
    simt_signal(id, threads);
}

DEVICE_INLINE void device_warp_barrier(void) {
    simt_warp_barrier();
}

/* ---- memory that devices share --------------------------------------------------------------- */

DEVICE_INLINE void device_share_store(float *to, float4 value) {
    simt_share_store(to, &value.x);
}

DEVICE_INLINE float4 device_share_load(const float *from) {
    float4 value;
    simt_share_load(&value.x, from);
    return value;
}

DEVICE_INLINE void device_store_release(uint32_t *at, uint32_t value) {
    simt_store_release(at, value);
}

DEVICE_INLINE uint32_t device_load_acquire(const uint32_t *at) {
    return simt_load_acquire(at);
}

DEVICE_INLINE void device_store_relaxed(uint32_t *at, uint32_t value) {
    *at = value;
}

DEVICE_INLINE uint32_t device_load_relaxed(const uint32_t *at) {
    return *at;
}

DEVICE_INLINE void device_pause(void) {
    simt_pause();
}

DEVICE_INLINE uint64_t device_time_ns(void) {
    return simt_time();
}

#endif
