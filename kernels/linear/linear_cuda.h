/* How linear is laid out on a GPU: a pure function of shapes and of the device.
 *
 *     prepare   x as bf16, segment by segment; with activation F32 as three bf16 whose sum it is
 *     product   a block: 64 outputs x 32 rows x one of `splits` parts of a segment's inputs, its
 *               warps a quarter each
 *     merge     parts in ascending order, `add`, the tree of segments; not where there is one part
 *
 * Weights BF16, INT4 and FP8 are streamed as linear_pack laid them out, once for every 32 rows; the
 * next 32 read them from the L2 cache. F32 weights are read once a row, by a kernel for the few and
 * small ones that models have. Sums are of exact products, in f32: the tolerance is the header's,
 * whatever the activation. A row's result does not depend on the others, to the bit, but on whether
 * there are more than 64. */
#ifndef ESPALIER_LINEAR_CUDA_H
#define ESPALIER_LINEAR_CUDA_H

#include "linear/linear.h"

#define LINEAR_CUDA_FEW_ROWS 64u
#define LINEAR_CUDA_WARPS    4u /* of a block */

struct linear_cuda_shape {
    uint32_t parts;         /* bf16s that a value of x is cut into */
    uint32_t splits;        /* of a segment's inputs, over blocks */
    uint32_t segment_steps; /* of 32 inputs, that a segment touches at most */
    bool is_direct;         /* products go to y, without a merge */
    size_t scratch_bytes;   /* device memory */
};

/* FP8 weights whose blocks begin at a multiple of 32 inputs, and all others; not INT8 activations.
 */
bool linear_cuda_takes(const struct linear_args *args);

struct linear_cuda_shape linear_cuda_plan(const struct linear_args *args,
                                          const struct kernel_device *device);

/* ctx->device and ctx->stream as kernel.h says; ctx->scratch is device memory. */
void linear_cuda(const struct linear_args *args, struct kernel_ctx *ctx);

#endif
