/* Grouped-query attention of a block of new rows over a paged cache and over each other: how a
 * block-diffusion drafter looks at its context (DFlash, arXiv 2602.06036; grouping: Ainslie et al.,
 * arXiv 2305.13245).
 *
 *     score(i,h,j) = q[i,h,:] . k_j[g,:] * scale           g = h / (H / G), the head's group
 *     o[i,h,:]     = sum_j softmax_j(score) v_j[g,:]
 *
 * Row i of a sequence with s cached tokens is at position s + i. It sees one stretch of positions:
 *
 *     position   first ...................... s - 1 | s ........ end - 1
 *     keys from  the cache                          | the block's own rows
 *
 *     first = context_begin, or s + i + 1 - window where that is later; window 0: none
 *     end   = s + i + 1 where causal, else s + row_count
 *
 * Order of the sums, a function of positions alone, is that of mla_tree.h: blocks of 64 cut at
 * multiples of 64; dot products by fma in sixteen lanes, added as in rms_norm.h, then scaled; block
 * maximum m; p_j = exp(score_j - m); sums over j ascending from zero, l by addition, o by fma; and
 *     M' = max(M, m);  a = exp(M - M'), b = exp(m - M');  L = fma(L, a, l * b);  O = fma(O, a, o*b)
 * from M = -inf, L = O = 0; at the end o = O / L. Reading bf16 is exact. The fast variants agree to
 * the bit among themselves; the reference uses libm's exp: tolerance 1e-5 of max|v|. The CUDA
 * variant sums in another order, with the same tolerance. */
#ifndef ESPALIER_GQA_BLOCK_H
#define ESPALIER_GQA_BLOCK_H

#include <stdbool.h>

#include "kernel.h"

#define GQA_BLOCK_TOK 64u

/* Rows of a sequence times heads of a group: what one pass over the keys serves. */
#define GQA_QUERIES_MAX 1024u

struct gqa_sequence {
    uint32_t row_begin; /* its rows in [0, T) */
    uint32_t row_count;
    uint32_t committed;     /* s */
    uint32_t context_begin; /* at most s: earlier tokens are not looked at */
    const uint32_t *page;   /* token x is at page[x / page_tok], offset x % page_tok */
};

struct gqa_block_args {
    const float *q; /* [T, H, C] */
    const float *k; /* [T, G, C] of the block's rows */
    const float *v; /* [T, G, C] */
    const void *kv; /* [slots, 2, G, C] of this layer: keys, then values */
    enum kernel_dtype kv_dtype;
    const struct gqa_sequence *sequences; /* [sequence_count], disjoint row ranges */
    uint32_t sequence_count;
    float *out;        /* [T, H, C] */
    uint32_t heads;    /* H, a multiple of G */
    uint32_t kv_heads; /* G */
    uint32_t head_dim; /* C, a multiple of 16 */
    uint32_t page_tok;
    uint32_t window; /* tokens a row sees, its own included; 0: all */
    bool causal;
    float scale;
    /* No sequence has more rows: what a launch on a device is sized for, where the arrays above lie
     * in device memory. Not read by the reference and the CPU's variant. */
    uint32_t rows_max;
};

/* Workspace of the fast variant for `threads` threads; independent of rows and of context. */
size_t gqa_block_scratch_bytes(uint32_t threads, uint32_t head_dim);

void gqa_block_ref(const struct gqa_block_args *args, struct kernel_ctx *ctx);
void gqa_block_cpu(const struct gqa_block_args *args, struct kernel_ctx *ctx);
void gqa_block_cuda(const struct gqa_block_args *args, struct kernel_ctx *ctx);

#endif
