/* Sixteen bytes a thread at a time: a row of 7168 is seven blocks, and beyond 32 blocks each takes
 * more, in rounds of what its buffer holds. */
extern "C" {
#include "all_reduce/all_reduce.h"
}

#include "cuda/block.cuh"

#define QUAD           4u  /* floats at a time */
#define LOOKS_AT_CLOCK 64u /* looks at a flag between two at the clock and at the host's word */

struct all_reduce_launch {
    struct all_reduce_args call;
    uint32_t blocks; /* that share it */
};

/* How the wait for a peer ended. Numbers go round: a difference has a sign, a number has none. */
static __device__ uint32_t wait_for(const struct all_reduce_args &call, const uint32_t *flag,
                                    uint32_t number) {
    uint64_t begin_ns = 0;
    for (uint32_t look = 1; (int32_t)(device_load_acquire(flag) - number) < 0; look++) {
        if (look % LOOKS_AT_CLOCK == 0) {
            if (device_load_relaxed(call.abort) != 0) return ALL_REDUCE_ABORTED;
            uint64_t now_ns = device_time_ns();
            if (begin_ns == 0) begin_ns = now_ns;
            if (now_ns - begin_ns >= call.wait_ns) return ALL_REDUCE_LATE;
        }
        device_pause();
    }
    return ALL_REDUCE_WHOLE;
}

/* Tell the likes of this block that it has come, and wait for each. What this block wrote they may
 * read then, and what they wrote this one. False, for the whole block, where one did not come. */
template <uint32_t Ranks>
static __device__ bool meet(const struct all_reduce_args &call, uint32_t number) {
    uint32_t *broken = (uint32_t *)device_shared(), peer = threadIdx.x;
    device_barrier();
    if (peer < Ranks && peer != call.rank) {
        struct all_reduce_exchange *mine = call.exchange[call.rank];
        device_store_release(&call.exchange[peer]->flag[blockIdx.x][call.rank], number);
        uint32_t verdict = wait_for(call, &mine->flag[blockIdx.x][peer], number);
        if (verdict != ALL_REDUCE_WHOLE) {
            device_store_relaxed(call.verdict, verdict | peer << 8);
            device_store_relaxed(&mine->broken, verdict);
            *broken = verdict;
        }
    }
    device_barrier();
    return *broken == ALL_REDUCE_WHOLE;
}

DEVICE_INLINE float4 add_quads(float4 a, float4 b) {
    a.x += b.x, a.y += b.y, a.z += b.z, a.w += b.w;
    return a;
}

/* Neighbours first. */
template <uint32_t Ranks>
static __device__ float4 sum_quad(const struct all_reduce_args &call, uint32_t number,
                                  uint32_t quad) {
    float4 value[Ranks];
#pragma unroll
    for (uint32_t rank = 0; rank < Ranks; rank++)
        value[rank] = device_share_load(
            &call.exchange[rank]->buffer[number % 2][blockIdx.x][quad * QUAD]);
#pragma unroll
    for (uint32_t apart = 1; apart < Ranks; apart *= 2)
#pragma unroll
        for (uint32_t rank = 0; rank < Ranks; rank += 2 * apart)
            value[rank] = add_quads(value[rank], value[rank + apart]);
    return value[0];
}

/* data: of this round, [count]; the last quad may be a part of one. */
static __device__ void write_mine(const struct all_reduce_args &call, const float *data,
                                  uint32_t count, uint32_t number) {
    float *buffer = call.exchange[call.rank]->buffer[number % 2][blockIdx.x];
    for (uint32_t i = threadIdx.x * QUAD; i < count; i += BLOCK_THREADS * QUAD) {
        float4 value;
        value.x = data[i];
        value.y = i + 1 < count ? data[i + 1] : 0.0f;
        value.z = i + 2 < count ? data[i + 2] : 0.0f;
        value.w = i + 3 < count ? data[i + 3] : 0.0f;
        device_share_store(buffer + i, value);
    }
}

static __device__ void store_quad(float *data, uint32_t count, uint32_t i, float4 value) {
    data[i] = value.x;
    if (i + 1 < count) data[i + 1] = value.y;
    if (i + 2 < count) data[i + 2] = value.z;
    if (i + 3 < count) data[i + 3] = value.w;
}

template <uint32_t Ranks>
static __device__ bool one_shot(const struct all_reduce_args &call, float *data, uint32_t count,
                                uint32_t *number) {
    ++*number;
    write_mine(call, data, count, *number);
    if (!meet<Ranks>(call, *number)) return false;
    for (uint32_t quad = threadIdx.x; quad * QUAD < count; quad += BLOCK_THREADS)
        store_quad(data, count, quad * QUAD, sum_quad<Ranks>(call, *number, quad));
    return true;
}

template <uint32_t Ranks>
static __device__ bool two_shot(const struct all_reduce_args &call, float *data, uint32_t count,
                                uint32_t *number) {
    uint32_t quads = (count + QUAD - 1) / QUAD, slice = (quads + Ranks - 1) / Ranks;
    uint32_t begin = call.rank * slice, end = begin + slice < quads ? begin + slice : quads;
    ++*number;
    write_mine(call, data, count, *number);
    if (!meet<Ranks>(call, *number)) return false;
    float *sums = call.exchange[call.rank]->buffer[(*number + 1) % 2][blockIdx.x];
    for (uint32_t quad = begin + threadIdx.x; quad < end; quad += BLOCK_THREADS)
        device_share_store(sums + quad * QUAD, sum_quad<Ranks>(call, *number, quad));
    ++*number;
    if (!meet<Ranks>(call, *number)) return false;
    for (uint32_t quad = threadIdx.x; quad < quads; quad += BLOCK_THREADS) {
        const struct all_reduce_exchange *owner = call.exchange[quad / slice];
        store_quad(data, count, quad * QUAD,
                   device_share_load(&owner->buffer[*number % 2][blockIdx.x][quad * QUAD]));
    }
    return true;
}

/* The arguments stay where a launch puts them, since exchanges are chosen by a number. A block has
 * a multiprocessor for itself, and so registers for what it reads of eight peers at a time. */
template <uint32_t Ranks>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    all_reduce_ranks(const __grid_constant__ struct all_reduce_launch args) {
    const struct all_reduce_args &call = args.call;
    struct all_reduce_exchange *mine = call.exchange[call.rank];
    uint32_t *broken = (uint32_t *)device_shared(), number = mine->meeting[blockIdx.x];
    /* One thread asks for all: another block may break it meanwhile. */
    if (threadIdx.x == 0) *broken = device_load_relaxed(&mine->broken);
    device_barrier();
    if (*broken != ALL_REDUCE_WHOLE) return;
    size_t part = ((call.count + args.blocks - 1) / args.blocks + QUAD - 1) / QUAD * QUAD;
    size_t begin = blockIdx.x * part, end = begin + part < call.count ? begin + part : call.count;
    for (; begin < end; begin += ALL_REDUCE_BLOCK_FLOATS) {
        uint32_t count = (uint32_t)(end - begin < ALL_REDUCE_BLOCK_FLOATS
                                        ? end - begin
                                        : (size_t)ALL_REDUCE_BLOCK_FLOATS);
        bool whole = call.form == ALL_REDUCE_ONE_SHOT
                         ? one_shot<Ranks>(call, call.data + begin, count, &number)
                         : two_shot<Ranks>(call, call.data + begin, count, &number);
        if (!whole) return;
    }
    if (threadIdx.x == 0) mine->meeting[blockIdx.x] = number;
}

void all_reduce_cuda(const struct all_reduce_args *args, struct kernel_ctx *ctx) {
    KERNEL_CHECK(args->rank < args->ranks);
    if (args->count == 0 || args->ranks == 1) return;
    struct all_reduce_launch launched;
    launched.call = *args;
    launched.blocks = min_u32(block_count((args->count + QUAD - 1) / QUAD), ALL_REDUCE_BLOCKS_MAX);
    const dim3 grid(launched.blocks);
    const size_t shared_bytes = 128;
    switch (args->ranks) {
    case 2: launch(all_reduce_ranks<2>, grid, BLOCK_THREADS, shared_bytes, ctx, launched); return;
    case 4: launch(all_reduce_ranks<4>, grid, BLOCK_THREADS, shared_bytes, ctx, launched); return;
    case 8: launch(all_reduce_ranks<8>, grid, BLOCK_THREADS, shared_bytes, ctx, launched); return;
    default: KERNEL_CHECK(!"ranks: 1, 2, 4 or 8");
    }
}
