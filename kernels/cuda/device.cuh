/* The instructions our kernels use beyond plain CUDA C++, each behind a function, so that kernel
 * source has no inline PTX and no #ifdef. tests/simt/emulated/cuda/device.cuh has the same names
 * for the CPU: kernels include "cuda/device.cuh" and the include path decides.
 *
 * All exist on sm_90a and sm_120a (PTX ISA 8.8): mma.sync (9.7.14), ldmatrix (9.7.14.5), cp.async
 * (9.7.9.25), arithmetic on pairs of bf16 (9.7.4). Warp-wide functions need all 32 lanes; addresses
 * of shared memory are 16-byte aligned. */
#ifndef ESPALIER_DEVICE_CUH
#define ESPALIER_DEVICE_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "cuda/launch.cuh"

#define DEVICE_INLINE __device__ __forceinline__

/* The block's dynamic shared memory, 1,024-byte aligned. */
DEVICE_INLINE unsigned char *device_shared(void) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    return shared_memory;
}

DEVICE_INLINE uint32_t device_shared_address(const void *shared) {
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* 16 bytes from global to shared memory, in the background; zeros where not `wanted`. Seen by this
 * thread after device_copy_wait, by others after a barrier that follows it. */
DEVICE_INLINE void device_copy16(void *shared, const void *global, bool wanted) {
    uint32_t bytes = wanted ? 16 : 0;
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(device_shared_address(shared)),
        "l"(global), "r"(bytes));
}

/* Close the group of this thread's copies begun since the last. */
DEVICE_INLINE void device_copy_commit(void) {
    asm volatile("cp.async.commit_group;");
}

/* Wait until at most `Pending` groups of this thread are under way. */
template <int Pending> DEVICE_INLINE void device_copy_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/* 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8, and
 * receives of each matrix the elements [l / 4][2 * (l % 4) .. +2). */
DEVICE_INLINE void device_load_matrix_x4(uint32_t out[4], const void *shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(device_shared_address(shared_row))
                 : "memory");
}

/* Two matrices: lanes 0 to 15 give the addresses, those of the others are not used. */
DEVICE_INLINE void device_load_matrix_x2(uint32_t out[2], const void *shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(out[0]), "=r"(out[1])
                 : "r"(device_shared_address(shared_row))
                 : "memory");
}

/* The same, transposed: lane l receives the elements [2 * (l % 4) .. +2)[l / 4]. */
DEVICE_INLINE void device_load_matrix_x4_transposed(uint32_t out[4], const void *shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(device_shared_address(shared_row))
                 : "memory");
}

/* d[16, 8] += a[16, 16] b[16, 8]; bf16 operands, f32 sums. */
DEVICE_INLINE void device_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Bytes of shared memory. All lanes of a warp do it, so that bank conflicts can be counted. */
DEVICE_INLINE void device_load16(uint32_t out[4], const void *shared) {
    uint4 value = *(const uint4 *)shared;
    out[0] = value.x, out[1] = value.y, out[2] = value.z, out[3] = value.w;
}

DEVICE_INLINE void device_load8(uint32_t out[2], const void *shared) {
    uint2 value = *(const uint2 *)shared;
    out[0] = value.x, out[1] = value.y;
}

DEVICE_INLINE uint32_t device_load4(const void *shared) {
    return *(const uint32_t *)shared;
}

/* Four bytes to shared memory, where products of a warpgroup read them (wgmma.cuh). */
DEVICE_INLINE void device_store4(void *shared, uint32_t value) {
    *(uint32_t *)shared = value;
}

/* Pairs of bf16, sums and products rounded to nearest even; subnormal numbers count. */
DEVICE_INLINE uint32_t device_add_bf16x2(uint32_t a, uint32_t b) {
    uint32_t sum;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

DEVICE_INLINE uint32_t device_multiply_bf16x2(uint32_t a, uint32_t b) {
    uint32_t product;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

/* d[16, 8] = a[16, 16] b[16, 8]. */
DEVICE_INLINE void device_mma_bf16_first(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
}

/* Two floats rounded to bf16, to nearest, ties to even; `low` in the lower half. */
DEVICE_INLINE uint32_t device_pack_bf16(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

DEVICE_INLINE float device_low_bf16(uint32_t packed) {
    return __uint_as_float(packed << 16);
}

DEVICE_INLINE float device_high_bf16(uint32_t packed) {
    return __uint_as_float(packed & 0xffff0000u);
}

/* A bf16 and back; to nearest, ties to even. */
DEVICE_INLINE float device_from_bf16(bf16 value) {
    return __uint_as_float((uint32_t)value << 16);
}

DEVICE_INLINE bf16 device_to_bf16(float value) {
    uint16_t rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
}

/* The nearest e4m3 to a number of at most 448, ties to even. */
DEVICE_INLINE uint8_t device_to_e4m3(float value) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return (uint8_t)pair;
}

/* 2^x to about 2 ulp; 0 for x = -infinity. */
DEVICE_INLINE float device_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE_INLINE float device_shuffle_xor(float value, uint32_t lane_mask) {
    return __shfl_xor_sync(0xffffffffu, value, (int)lane_mask);
}

/* Shared or global memory; the order of several is not said. */
DEVICE_INLINE void device_atomic_add(uint64_t *at, uint64_t value) {
    atomicAdd((unsigned long long *)at, (unsigned long long)value);
}

/* What was there before. */
DEVICE_INLINE uint32_t device_atomic_add(uint32_t *at, uint32_t value) {
    return atomicAdd(at, value);
}

DEVICE_INLINE void device_barrier(void) {
    __syncthreads();
}

/* One of 15 barriers, 1 to 15, of `threads` threads, of which those that only signal do not wait.
 * Who meets has seen what those that signalled had written. All lanes of a warp do the same. */
DEVICE_INLINE void device_meet(uint32_t id, uint32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

DEVICE_INLINE void device_signal(uint32_t id, uint32_t threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* The warp's lanes meet and see each other's writes, and the copies each has waited for. */
DEVICE_INLINE void device_warp_barrier(void) {
    __syncwarp();
}

/* ---- memory that devices share -----------------------------------------------------------------
 *
 * Scope .sys of the memory model: other GPUs and the host. What a block wrote before a barrier and
 * a release behind it, another block has seen behind an acquire that read the word, and a barrier.
 */

/* Four floats at a time, 16-byte aligned; never from a cache that others do not write. */
DEVICE_INLINE void device_share_store(float *to, float4 value) {
    asm volatile("st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(value.x),
                 "f"(value.y), "f"(value.z), "f"(value.w)
                 : "memory");
}

DEVICE_INLINE float4 device_share_load(const float *from) {
    float4 value;
    asm volatile("ld.relaxed.sys.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
}

DEVICE_INLINE void device_store_release(uint32_t *at, uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

DEVICE_INLINE uint32_t device_load_acquire(const uint32_t *at) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

/* A word alone, which says nothing of others. */
DEVICE_INLINE void device_store_relaxed(uint32_t *at, uint32_t value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

DEVICE_INLINE uint32_t device_load_relaxed(const uint32_t *at) {
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

/* Between two looks at what another device is to write: for some tens of nanoseconds at most. */
DEVICE_INLINE void device_pause(void) {
    __nanosleep(20);
}

/* A clock that all multiprocessors share, in steps of about a microsecond. */
DEVICE_INLINE uint64_t device_time_ns(void) {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

#endif
