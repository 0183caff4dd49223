/* What one thread of the fast variant works in. Private to gqa_block. */
#ifndef ESPALIER_GQA_BLOCK_SCRATCH_H
#define ESPALIER_GQA_BLOCK_SCRATCH_H

#include "gqa_block/gqa_block.h"

/* Floats of a thread's part: keys and values of 64 tokens [2, 64, C], then each query's maximum and
 * sum. */
static inline size_t gqa_block_scratch_floats(uint32_t head_dim) {
    return 2 * (size_t)GQA_BLOCK_TOK * head_dim + 2 * (size_t)GQA_QUERIES_MAX;
}

#endif
