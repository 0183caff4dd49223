/* The workspace of gqa_block, the same for every instruction set. */
#include "gqa_block/gqa_block_scratch.h"

size_t gqa_block_scratch_bytes(uint32_t threads, uint32_t head_dim) {
    return threads * gqa_block_scratch_floats(head_dim) * sizeof(float);
}
