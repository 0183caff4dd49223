/* What gqa_block takes of a block's shared memory on a GPU: a pure function of the heads' size. */
#ifndef ESPALIER_GQA_BLOCK_CUDA_H
#define ESPALIER_GQA_BLOCK_CUDA_H

#include "gqa_block/gqa_block.h"

#define GQA_CUDA_QUERIES 16u /* of a block */
#define GQA_CUDA_TOKS    32u /* at a time */

/* Queries and outputs [QUERIES, C] each, keys or values [TOKS, C + 1], weights [QUERIES, TOKS],
 * three of [QUERIES]. */
static inline size_t gqa_block_cuda_shared_bytes(uint32_t head_dim) {
    return (2 * GQA_CUDA_QUERIES * head_dim + GQA_CUDA_TOKS * (head_dim + 1) +
            GQA_CUDA_QUERIES * GQA_CUDA_TOKS + 3 * GQA_CUDA_QUERIES) *
           sizeof(float);
}

/* The largest C that a device takes. */
static inline uint32_t gqa_block_cuda_head_dim_max(const struct kernel_device *device) {
    uint32_t head_dim = 0;
    while (gqa_block_cuda_shared_bytes(head_dim + 16) <= device->shared_bytes_max)
        head_dim += 16;
    return head_dim;
}

#endif
