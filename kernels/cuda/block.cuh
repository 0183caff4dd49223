/* What the small kernels share: rows of elements dealt to threads, and sums of a block. */
#ifndef ESPALIER_BLOCK_CUH
#define ESPALIER_BLOCK_CUH

#include "cuda/device.cuh"

#define BLOCK_THREADS 256u /* of kernels with one thread an element */

/* Blocks of BLOCK_THREADS that have a thread for each of `count` elements. */
static inline uint32_t block_count(size_t count) {
    return (uint32_t)((count + BLOCK_THREADS - 1) / BLOCK_THREADS);
}

DEVICE_INLINE size_t block_element(void) {
    return (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
}

/* op over the values of all Threads, a power of two, by a binary tree: the same result in every
 * thread and at every time. shared: [Threads], free again when this returns. */
template <uint32_t Threads, typename Value, typename Op>
DEVICE_INLINE Value block_reduce(Value value, Value *shared, Op op) {
    shared[threadIdx.x] = value;
    device_barrier();
    for (uint32_t apart = Threads / 2; apart > 0; apart /= 2) {
        if (threadIdx.x < apart)
            shared[threadIdx.x] = op(shared[threadIdx.x], shared[threadIdx.x + apart]);
        device_barrier();
    }
    Value result = shared[0];
    device_barrier();
    return result;
}

struct block_add {
    template <typename Value> DEVICE_INLINE Value operator()(Value a, Value b) const {
        return a + b;
    }
};

struct block_max {
    template <typename Value> DEVICE_INLINE Value operator()(Value a, Value b) const {
        return a > b ? a : b;
    }
};

#endif
