/* How linear is laid out on a GPU: a pure function of shapes and of the device.
 *
 *     prepare   x as bf16, segment by segment; with activation F32 as three bf16 whose sum it is
 *     product   a block: 64 outputs x 32 rows x one of `splits` parts of a segment's inputs, its
 *               warps a quarter each
 *     merge     parts in ascending order, `add`, the tree of segments; not where there is one part
 *
 * Weights BF16 with activation BF16, 256 rows or more, and segments of whole eights of inputs,
 * where the device has cuBLASLt:
 *
 *     round     x as bf16, by rows
 *     unpack    a slab of the weight, some panels of all batches, by rows
 *     product   by cuBLASLt, one for each segment of the slab; then the next slab
 *     merge     as above; not where there is one segment and no `add`
 *
 * Weights BF16, INT4 and FP8 are streamed as linear_pack laid them out, once for every 32 rows; the
 * next 32 read them from the L2 cache. F32 weights are read once a row, by a kernel for the few and
 * small ones that models have. Sums are of exact products, in f32: the tolerance is the header's,
 * whatever the activation. A row's result does not depend on the others, to the bit, but on whether
 * there are more than 64, and by cuBLASLt on how many there are. */
#ifndef ESPALIER_LINEAR_CUDA_H
#define ESPALIER_LINEAR_CUDA_H

#include "linear/linear.h"

#define LINEAR_CUDA_FEW_ROWS 64u
#define LINEAR_CUDA_WARPS    4u /* of a block */

/* From here on by cuBLASLt, and how much of a weight is unpacked for it at a time: what caches of
 * 50 MB keep until it has been read (docs/decisions/0015). */
#define LINEAR_CUDA_MANY_ROWS 256u
#ifndef LINEAR_CUDA_SLAB_BYTES
#define LINEAR_CUDA_SLAB_BYTES ((size_t)32 << 20)
#endif

struct linear_cuda_shape {
    uint32_t parts;         /* bf16s that a value of x is cut into */
    uint32_t splits;        /* of a segment's inputs, over blocks */
    uint32_t segment_steps; /* of 32 inputs, that a segment touches at most */
    uint32_t slab_outputs;  /* whole panels, of each batch; 0: not by cuBLASLt */
    bool is_direct;         /* products go to y, without a merge */
    size_t scratch_bytes;   /* device memory */
};

/* FP8 weights whose blocks begin at a multiple of 32 inputs, and all others; not INT8 activations.
 */
bool linear_cuda_takes(const struct linear_args *args);

struct linear_cuda_shape linear_cuda_plan(const struct linear_args *args,
                                          const struct kernel_device *device);

/* Scratch of a product by cuBLASLt. */
struct linear_cuda_room {
    bf16 *x;         /* [batch, rows, k] */
    bf16 *slab;      /* [batch, slab_outputs, k] */
    float *sums;     /* [segments, batch, rows, n], where products do not go to y */
    void *workspace; /* the library's */
};

/* At `scratch`, which may be NULL to measure; returns its bytes. */
size_t linear_cuda_lay_out(const struct linear_args *args, const struct linear_cuda_shape *plan,
                           void *scratch, struct linear_cuda_room *room_out);

/* ctx->device and ctx->stream as kernel.h says; ctx->scratch is device memory. */
void linear_cuda(const struct linear_args *args, struct kernel_ctx *ctx);

#endif
