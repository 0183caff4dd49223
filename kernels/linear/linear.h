/* y = x W^T for weights in their stored precision, activations f32 or rounded to bf16.
 *
 *     y[b,t,n] = tree over segments s of ( add[s,b,t,n] + dot_s(x[b,t,:], W[b,n,:]) )
 *
 * Order of the sums. A segment is k in [s*K/S, (s+1)*K/S), S = segments. Within it, activation F32:
 *   F32, BF16: one accumulator, from zero, k ascending, acc = fma(x[k], w[n,k], acc).
 *   INT4:      for each group of 32 inputs, ascending, cut off at the segment's ends: part from
 *              zero, part = fma(x[k], q, part) for k ascending; then acc = fma(part, scale, acc).
 *   FP8:       as F32, with w = value * scale, rounded to f32: what the weight is when dequantised.
 * Activation BF16, for weights BF16, INT4 and FP8: x is rounded to bf16, to nearest even, and the
 * inputs come in pairs (k, k + 1), k even, the second first:
 *              acc = fma(x[k+1], w[n,k+1], acc); acc = fma(x[k], w[n,k], acc)
 *              A pair that a segment cuts has a zero for the input outside. Subnormal numbers are
 *              zero, as operands and as results of each fma, that with `scale` included. This is
 *              what AVX-512 BF16 computes (kernels/simd/f32x16.h).
 *   FP8:       as INT4, with the weight's blocks for groups and the codes' values, which bf16 holds
 *              exactly, for q. Blocks may begin at odd k: one cuts pairs as a segment does.
 * Activation INT8, for weights INT4: the 32 inputs of a group share a scale too. With a the
 * greatest |x| among them, in f32: scale_x = a / 127;  q_x = x * (127 / a), to the nearest integer,
 * ties to even acc = fma(sum of q_x * q, scale_x * scale, acc) The sum is one of integers, of the
 * inputs that the segment has of the group; q_x and scale_x are those of the whole group. A group
 * with a below 2^-100 is zero; one that is not finite makes NaN. It is coarser than bf16: half a
 * step is 0.4 % of a. Segments are added as a binary tree, neighbours first:
 * ((0+1)+(2+3))+((4+5)+(6+7)). A rank that owns eight / n segments of a split product so leaves a
 * sum that an all-reduce, which adds ranks by the same tree, completes to the bits of n = 1. `add`,
 * where not NULL, is added in front of each segment's dot product: how routed and shared experts
 * meet before the tree.
 *
 * Weights are finite. They are packed once at load (linear_pack.h) in panels of 32 outputs; the
 * last panel is padded with zeros, and of BF16 the last pair:
 *   F32:       data[b][panel][k][32]            element (n, k) at [n/32][k][n%32]
 *   BF16:      data[b][panel][k/2][32][2]       element (n, k) at [n/32][k/2][n%32][k%2]
 *   INT4:      data[b][panel][k/4][16][4 bytes] byte (j, 2 e + h): input 4(k/4) + 2 h + e of output
 *              scale[b][panel][k/32][32] bf16   j in the low nibble, of output j + 16 in the high;
 *                                               value nibble - 8
 *   FP8:       data[b][panel][k][32] e4m3 (finite ones only: no code is an infinity, 0x7f and 0xff
 *              are NaN); scale[b][panel][k/128 + 2][32] f32, of magnitudes below 2^119. Blocks are
 *              cut in the whole tensor, of which the weight may be a slice: input k is in block
 *              (block_begin + k) / 128 of its panel.
 *
 * The fast variants agree with the order above to the bit on every instruction set, for any number
 * of rows. Tolerance of other devices against the reference: 2e-5 * sqrt(K) * |x| * |w|. */
#ifndef ESPALIER_LINEAR_H
#define ESPALIER_LINEAR_H

#include <stdbool.h>

#include "kernel.h"

/* Inputs are copied for the fast variants in chunks of this many, and their rows of bf16 are padded
 * to whole ones; a group of INT4 weights is one. */
#define LINEAR_CHUNK 32u

enum linear_format { LINEAR_F32, LINEAR_BF16, LINEAR_INT4, LINEAR_FP8 };

struct linear_weight {
    const void *data;  /* packed, 64-byte aligned */
    const void *scale; /* packed; NULL unless INT4 or FP8 */
    enum linear_format format;
    uint32_t n;           /* outputs */
    uint32_t k;           /* inputs: a multiple of 32 for INT4 */
    uint32_t block_begin; /* FP8: where input 0 stands in its block, below 128 */
};

struct linear_args {
    const float *x;              /* [batch, T, K] */
    size_t x_stride;             /* floats from row to row */
    size_t x_batch_stride;       /* floats from batch to batch */
    struct linear_weight weight; /* of batch 0; the others follow (linear_data_bytes) */
    float *y;                    /* [batch, T, N] */
    size_t y_stride;
    size_t y_batch_stride;
    const float *add;             /* [segments, T, N] dense, or NULL; only with batch 1 */
    uint32_t rows;                /* T */
    uint32_t batch;               /* 1 unless a product per head */
    uint32_t segments;            /* 1, 2, 4 or 8; divides K */
    enum kernel_dtype activation; /* one that the format takes */
};

/* Bytes of the packed data and of the packed scales (0 unless INT4 or FP8) of one batch entry; data
 * of batch b begins b * linear_data_bytes after data, its scales b * linear_scale_bytes after. */
size_t linear_data_bytes(enum linear_format format, uint32_t n, uint32_t k);
size_t linear_scale_bytes(enum linear_format format, uint32_t n, uint32_t k);

/* Blocks that k inputs touch at most, wherever the first one stands. */
static inline size_t linear_fp8_blocks(uint32_t k) {
    return (size_t)k / FP8_BLOCK + 2;
}

/* The narrowest activation that weights of this format take, but none narrower than `wanted`. */
static inline enum kernel_dtype linear_activation(enum linear_format format,
                                                  enum kernel_dtype wanted) {
    if (format == LINEAR_INT4) return wanted;
    if (format == LINEAR_F32) return KERNEL_F32;
    return wanted == KERNEL_INT8 ? KERNEL_BF16 : wanted;
}

/* Bytes of a row of k activations as the fast variants take them, padded; of f32 as they are. */
size_t linear_row_bytes(enum kernel_dtype activation, uint32_t k);

/* Workspace of the fast variant; rows: of all batches together. */
size_t linear_scratch_bytes(enum kernel_dtype activation, size_t rows, uint32_t k);

void linear_ref(const struct linear_args *args, struct kernel_ctx *ctx);
void linear_cpu(const struct linear_args *args, struct kernel_ctx *ctx);

#endif
