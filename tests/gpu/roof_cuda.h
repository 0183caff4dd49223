/* What a GPU can do at this moment: the roofs that bench_gpu compares with. Neither shares code
 * with the kernels it judges. */
#ifndef ESPALIER_ROOF_CUDA_H
#define ESPALIER_ROOF_CUDA_H

#include "kernel.h"

/* Read `bytes`, a multiple of 16, of device memory once; sink: a word that nothing is written to.
 */
void roof_cuda_read(const void *memory, size_t bytes, uint32_t *sink, struct kernel_ctx *ctx);

/* Products in bf16 by the instruction that multiplies fastest there: of warpgroups, from shared
 * memory, where the device has them, else of warps, on registers alone. `rounds`: of eight products
 * each. Operations: as returned. */
double roof_cuda_multiply(uint32_t rounds, uint32_t *sink, struct kernel_ctx *ctx);

/* Fill memory with numbers that are harmless in every format of weights: bf16s of either sign
 * around 1/64, whose pairs are f32s about as large. */
void roof_cuda_fill(void *memory, size_t bytes, uint64_t seed, struct kernel_ctx *ctx);

#endif
