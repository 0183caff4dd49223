/* Multi-head latent attention in its absorbed form over a paged cache, for chains and trees
 * (DeepSeek-V2, arXiv 2405.04434, section 2.1.2 and appendix C). One shared latent serves every
 * head as key (R + P wide) and as value (its first R):
 *
 *     score(t,h,j) = (q_latent[t,h,:] . c_j + q_rope[t,h,:] . r_j) * scale
 *     o[t,h,:]     = sum_j softmax_j(score) c_j
 *
 * Which j. Row i of a sequence with s committed tokens, written at cache slot s + i, attends to
 * [0, s) and to its own path: itself and its ancestors in the tree. A chain is the tree in which
 * row i - 1 is the parent of row i, of any length; a tree has at most 64 rows and says who the
 * ancestors are in one 64-bit mask a row (bit i set for itself). The path is laid out as if it
 * were the sequence: its d-th member has position s + d.
 *
 *     position  0 ................ s-1 | s  s+1 ... s+depth
 *     slot      0 ................ s-1 | s + path[0], s + path[1], ... (ascending mask bits)
 *
 * Order of the sums, a function of positions alone: positions are cut into blocks of 128 at
 * multiples of 128. In a block, activation F32: dot products by fma with sixteen partial sums (lane
 * l takes element l, l+16, ... of the latent and then of the rope part), added as in rms_norm.h;
 * block maximum m; weights p_j = exp(score_j - m); l = sum of p_j in sixteen partial sums (lane
 * j % 16), added likewise; o = fma(p_j, c_j, o), j ascending from zero.
 *
 * Activation BF16, with a bf16 or fp8 cache: q is rounded to bf16. Lane l takes pairs of elements,
 * pair l, l+16, ... of the latent and then of the rope part, the second of a pair first; the sum of
 * the lanes, times scale, is fma(sum, scale, 0). p_j is rounded to bf16 before it is summed; o
 * takes the tokens in pairs, the second first, a missing one with the weight 0. In scores and o
 * subnormal numbers are zero, as operands and as results. Roundings are to nearest even, and this
 * is what AVX-512 BF16 computes (kernels/simd/f32x16.h).
 *
 * Blocks are merged in ascending order:
 *     M' = max(M, m);  a = exp(M - M'), b = exp(m - M');  L = fma(L, a, l * b);  O = fma(O, a, o*b)
 * and at the end o = O / L, by division. So a tree row has the bits of the same tokens as a chain,
 * and a chunk the bits of single rows. Reading bf16 and fp8 is exact. The fast variants use
 * kernels/simd exp and agree to the bit among themselves; the reference uses libm's: tolerance 1e-5
 * of max|c|, with activation BF16 2^-8 of it, for a p_j may be rounded the other way.
 *
 * The CUDA variant rounds queries and weights p to bf16 and sums in another order: tolerance 1e-2
 * of max|c|. It is split over positions (FlashDecoding; mla_tree_cuda.h) and takes bf16 caches, and
 * fp8 ones with the bits of bf16 caches of the same values.
 */
#ifndef ESPALIER_MLA_TREE_H
#define ESPALIER_MLA_TREE_H

#include "kernel.h"

#define MLA_BLOCK_TOK 128u

struct mla_sequence {
    uint32_t row_begin; /* its rows in [0, T) */
    uint32_t row_count;
    uint32_t committed;   /* s: tokens before row 0 */
    const uint32_t *page; /* page table: token x is at page[x / page_tok], offset x % page_tok */
    const uint64_t *ancestors; /* [row_count] of a tree, NULL for a chain */
};

struct mla_tree_args {
    const float *q_latent; /* [T, H, R] dense */
    const float *q_rope;   /* [T, H, P], rotated; rows and heads by the strides below */
    size_t q_rope_row_stride;
    size_t q_rope_head_stride;
    const void *kv; /* [slots] of this layer, as kv_store.h; rows of this step already stored */
    enum kernel_dtype kv_dtype;
    const struct mla_sequence *sequences; /* [sequence_count], disjoint row ranges */
    uint32_t sequence_count;
    float *out;          /* [T, H, R] dense */
    uint32_t heads;      /* H */
    uint32_t latent_dim; /* R, a multiple of 16 */
    uint32_t rope_dim;   /* P, a multiple of 16 */
    uint32_t page_tok;
    float scale;
    enum kernel_dtype activation; /* BF16 not with an f32 cache; R, P then multiples of 32 */
    /* What a launch on a device is sized for, since it may be captured once and run with other
     * sequences: row_count and committed + row_count of every sequence are at most these. The
     * arrays above then lie in device memory. Not read by the reference and the CPU's variant. */
    uint32_t rows_max;
    uint32_t positions_max;
};

/* Workspace of the fast variant for `threads` threads; independent of rows and of context. */
size_t mla_tree_scratch_bytes(uint32_t threads, uint32_t latent_dim, uint32_t rope_dim);

/* How often the fast variant reads what sequence number `sequence` has committed: once, unless its
 * rows times heads are more than a pass serves. */
uint32_t mla_tree_passes(const struct mla_tree_args *args, uint32_t sequence);

void mla_tree_ref(const struct mla_tree_args *args, struct kernel_ctx *ctx);
void mla_tree_cpu(const struct mla_tree_args *args, struct kernel_ctx *ctx);

#endif
