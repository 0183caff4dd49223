/* A block a row. Of FP8 a warp a group, four latents a lane. */
#include <string.h>

extern "C" {
#include "kv_store/kv_store.h"
}

#include "cuda/block.cuh"

__global__ void __launch_bounds__(BLOCK_THREADS) kv_store_rows(struct kv_store_args args) {
    uint32_t dim = args.latent_dim + args.rope_dim;
    size_t row = blockIdx.x, at = (size_t)args.slot[row] * dim;
    if (args.slot[row] == KV_SLOT_NONE) return;
    for (uint32_t i = threadIdx.x; i < dim; i += BLOCK_THREADS) {
        float value = i < args.latent_dim
                          ? args.latent[row * args.latent_stride + i]
                          : args.rope_key[row * args.rope_stride + i - args.latent_dim];
        if (args.kv_dtype == KERNEL_F32)
            ((float *)args.kv)[at + i] = value;
        else
            ((bf16 *)args.kv)[at + i] = device_to_bf16(value);
    }
}

struct record_args {
    struct kv_store_args store;
    uint32_t groups, tok_bytes;
};

static __device__ uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static __device__ float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The greatest of a warp's. */
static __device__ uint32_t greatest_of(uint32_t value) {
#pragma unroll
    for (uint32_t apart = WARP_LANES / 2; apart > 0; apart /= 2) {
        uint32_t other = bits_of(device_shuffle_xor(float_of(value), apart));
        value = value > other ? value : other;
    }
    return value;
}

/* The exponent field of the scale, of the greatest as bits without sign: as kv_store_cpu.c has it.
 * 0xff where that is no number, as it is in a NaN. */
static __device__ uint32_t scale_exponent(uint32_t greatest) {
    const uint32_t least = 127 + 8 - 117;
    if (greatest >= F32_NOT_FINITE) return 0xff;
    uint32_t exponent = (greatest + 0x1fffffu) >> 23;
    return (exponent > least ? exponent : least) - 8;
}

static __device__ void store_group(const float *latent, uint32_t count, uint8_t *code,
                                   float *scale) {
    uint32_t lane = threadIdx.x % WARP_LANES, greatest = 0;
    float value[KV_FP8_GROUP / WARP_LANES];
#pragma unroll
    for (uint32_t i = 0; i < KV_FP8_GROUP / WARP_LANES; i++) {
        uint32_t at = i * WARP_LANES + lane;
        value[i] = at < count ? latent[at] : 0.0f;
        uint32_t bits = bits_of(value[i]) & 0x7fffffffu;
        greatest = bits > greatest ? bits : greatest;
    }
    uint32_t exponent = scale_exponent(greatest_of(greatest));
    float divisor = float_of((254 - exponent) << 23);
#pragma unroll
    for (uint32_t i = 0; i < KV_FP8_GROUP / WARP_LANES; i++) {
        uint32_t at = i * WARP_LANES + lane;
        if (at < count) code[at] = exponent == 0xff ? 0 : device_to_e4m3(value[i] * divisor);
    }
    if (lane == 0) *scale = float_of(exponent == 0xff ? 0x7fc00000u : exponent << 23);
}

__global__ void __launch_bounds__(BLOCK_THREADS) kv_store_records(struct record_args record) {
    const struct kv_store_args &args = record.store;
    uint32_t groups = record.groups, tok_bytes = record.tok_bytes;
    size_t row = blockIdx.x;
    if (args.slot[row] == KV_SLOT_NONE) return;
    const float *latent = args.latent + row * args.latent_stride;
    uint8_t *code = (uint8_t *)args.kv + (size_t)args.slot[row] * tok_bytes;
    float *scale = (float *)(code + args.latent_dim);
    bf16 *rope = (bf16 *)(scale + groups);
    for (uint32_t g = threadIdx.x / WARP_LANES; g < groups; g += BLOCK_THREADS / WARP_LANES) {
        uint32_t begin = g * KV_FP8_GROUP, left = args.latent_dim - begin;
        store_group(latent + begin, left < KV_FP8_GROUP ? left : KV_FP8_GROUP, code + begin,
                    &scale[g]);
    }
    uint32_t rope_at = args.latent_dim + groups * (uint32_t)sizeof(float);
    for (uint32_t i = threadIdx.x; i < (tok_bytes - rope_at) / sizeof(bf16); i += BLOCK_THREADS)
        rope[i] = i < args.rope_dim ? device_to_bf16(args.rope_key[row * args.rope_stride + i]) : 0;
}

void kv_store_cuda(const struct kv_store_args *args, struct kernel_ctx *ctx) {
    if (args->rows == 0) return;
    if (args->kv_dtype == KERNEL_FP8)
        launch(kv_store_records, dim3(args->rows), BLOCK_THREADS, 0, ctx,
               record_args{*args, (uint32_t)kv_fp8_groups(args->latent_dim),
                           (uint32_t)kv_tok_bytes(KERNEL_FP8, args->latent_dim, args->rope_dim)});
    else
        launch(kv_store_rows, dim3(args->rows), BLOCK_THREADS, 0, ctx, *args);
}
