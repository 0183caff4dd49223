/* Products of a warpgroup, 128 threads, whose operands lie in shared memory (wgmma, PTX ISA 8.8,
 * 9.7.15). Of sm_90a alone: elsewhere they trap, and no plan may choose a kernel that has them.
 *
 *     device_wgmma_fence(d)           d is as the thread left it
 *     device_wgmma(d, a, b, ...)      any number of products, in the background
 *     device_wgmma_commit()           which wait_group counts
 *     device_wgmma_wait<0>(d)         d may be looked at, and what was read may be overwritten
 *
 * All threads of the group call them together. Between the fence and the wait nobody touches d.
 * Products read shared memory through the asynchronous proxy: whoever wrote there, by copies that
 * it has waited for or by stores, calls device_async_fence before the barrier that the group waits
 * at.
 *
 * A tile in shared memory is made of lines of 128 bytes, 64 bf16s, in eights that begin at
 * multiples of 1,024 bytes. A chunk of 16 bytes of line l lies where chunk number c ^ l % 8 would
 * (the 128-byte swizzle), so that neither a column nor a line meets a bank twice. */
#ifndef ESPALIER_WGMMA_CUH
#define ESPALIER_WGMMA_CUH

#include "cuda/device.cuh"
#include "cuda/wgmma_tile.cuh"

/* How an asm names its first 16, 32, 128 operands, and the sums that they are. */
#define WGMMA_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_NAMES_32                                                                             \
    WGMMA_NAMES_16                                                                                 \
        ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_128                                                                            \
    WGMMA_NAMES_32                                                                                 \
        ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"         \
        ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"         \
        ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"         \
        ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"         \
        ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
        "%111"                                                                                     \
        ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "   \
        "%126, %127"
#define WGMMA_SUMS_8(d, i)                                                                         \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define WGMMA_SUMS_16(d, i)  WGMMA_SUMS_8(d, i), WGMMA_SUMS_8(d, i + 8)
#define WGMMA_SUMS_32(d, i)  WGMMA_SUMS_16(d, i), WGMMA_SUMS_16(d, i + 16)
#define WGMMA_SUMS_64(d, i)  WGMMA_SUMS_32(d, i), WGMMA_SUMS_32(d, i + 32)
#define WGMMA_SUMS_128(d, i) WGMMA_SUMS_64(d, i), WGMMA_SUMS_64(d, i + 64)

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define WGMMA_ASM(...) asm volatile(__VA_ARGS__)
#else
#define WGMMA_ASM(...) __trap()
#endif

/* columns, registers, and the numbers of the operands that follow these */
#define WGMMA_PRODUCT(columns, registers, a_operand, b_operand, adds_operand, turned_operand)      \
    WGMMA_ASM("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #adds_operand ", 0;\n"                    \
              "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 "                    \
              "{" WGMMA_NAMES_##registers "}, %" #a_operand ", %" #b_operand                       \
                                          ", adds, 1, 1, 0, %" #turned_operand ";\n}"              \
              : WGMMA_SUMS_##registers(d, 0)                                                       \
              : "l"(a), "l"(b), "r"((uint32_t)adds), "n"((int)Side))

/* The compiler keeps what it does with these registers on its side of here. */
template <uint32_t Count> DEVICE_INLINE void device_wgmma_pin(float (&d)[Count]) {
#pragma unroll
    for (uint32_t i = 0; i < Count; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

template <uint32_t Count> DEVICE_INLINE void device_wgmma_fence(float (&d)[Count]) {
    device_wgmma_pin(d);
    WGMMA_ASM("wgmma.fence.sync.aligned;" ::: "memory");
}

/* d[64, 2 Count] = a[64, 16] b[16, 2 Count], added to d where `adds`; bf16 operands, f32 sums. a
 * has a query a line, b by Side. Thread t of the group holds of d, in d[4 j + 2 i + n], row
 * t / 32 * 16 + t % 32 / 4 + 8 i and column 8 j + 2 (t % 4) + n. */
template <enum wgmma_side Side, uint32_t Count>
DEVICE_INLINE void device_wgmma(float (&d)[Count], uint64_t a, uint64_t b, bool adds) {
    static_assert(Count == 16 || Count == 32 || Count == 128, "columns");
    if constexpr (Count == 16)
        WGMMA_PRODUCT(32, 16, 16, 17, 18, 19);
    else if constexpr (Count == 32)
        WGMMA_PRODUCT(64, 32, 32, 33, 34, 35);
    else
        WGMMA_PRODUCT(256, 128, 128, 129, 130, 131);
}

DEVICE_INLINE void device_wgmma_commit(void) {
    WGMMA_ASM("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most `Pending` groups of products are under way. */
template <int Pending, uint32_t Count> DEVICE_INLINE void device_wgmma_wait(float (&d)[Count]) {
    WGMMA_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
    device_wgmma_pin(d);
}

DEVICE_INLINE void device_async_fence(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif
