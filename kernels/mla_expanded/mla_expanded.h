/* Multi-head latent attention in its expanded form over a paged cache, for chunks of many rows
 * (DeepSeek-V2, arXiv 2405.04434, section 2.1): each head's keys and values are made from the
 * latents, a block of tokens at a time, and serve all rows of the chunk.
 *
 *     k(h,j,:) = W_UK[h]^T c_j | r_j          N + P wide       v(h,j,:) = W_UV[h] c_j
 *     score(t,h,j) = q(t,h,:) . k(h,j,:) * scale
 *     o(t,h,:) = sum_j softmax_j(score) v(h,j,:)
 *
 * which is what mla_tree computes between the products with W_UK and W_UV, bracketed otherwise: a
 * score costs N + P products instead of R + P, a value V instead of R, and every token R (N + V)
 * once a chunk. The bits are not mla_tree's: a caller that takes now one and now the other gives up
 * that a row's logits depend on its prefix alone. Within this op they do.
 *
 * Row i of a sequence with s committed tokens sees the positions [0, s + i]; trees are not taken.
 *
 * Order of the sums, a function of positions alone. Products are those of linear.h with the op's
 * activation: of a key over R; of a score over N + P, then times scale; of a value over R; of o
 * over the 128 positions of a block (cut at multiples of 128), where those that the row does not
 * see have p = 0. With activation BF16 keys and values are rounded to bf16, as are q and p. In a
 * block p_j = exp(score_j - m), m its greatest; l is the sum of p in sixteen partial sums (lane j %
 * 16), added as in rms_norm.h. Blocks are merged and divided as in mla_tree.h.
 *
 * The fast variants use kernels/simd exp and agree to the bit among themselves; the reference uses
 * libm's: tolerance 1e-5 of max|v|, with activation BF16 2^-8 of it. */
#ifndef ESPALIER_MLA_EXPANDED_H
#define ESPALIER_MLA_EXPANDED_H

#include "linear/linear.h"
#include "mla_tree/mla_tree.h"

struct mla_expanded_args {
    const float *q; /* [T, H, N + P], the last P rotated; rows and heads by the strides below */
    size_t q_row_stride;
    size_t q_head_stride;
    const void *kv; /* [slots] of this layer, as kv_store.h; rows of this step already stored */
    enum kernel_dtype kv_dtype;
    struct linear_weight w_uk;            /* batch H of [R, N] */
    struct linear_weight w_uv;            /* batch H of [V, R]; both F32 or both BF16 */
    const struct mla_sequence *sequences; /* [sequence_count], chains with disjoint row ranges */
    uint32_t sequence_count;
    float *out;          /* [T, H, V] dense */
    uint32_t heads;      /* H */
    uint32_t latent_dim; /* R, a multiple of 16 */
    uint32_t rope_dim;   /* P, a multiple of 16 */
    uint32_t nope_dim;   /* N, even */
    uint32_t value_dim;  /* V */
    uint32_t page_tok;
    float scale;
    enum kernel_dtype activation; /* BF16 only with BF16 weights, not with an f32 cache */
};

/* Does a chunk take fewer operations in this form, its products with W_UK and W_UV included? */
bool mla_expanded_pays(const struct mla_expanded_args *args, const struct mla_sequence *chunk);

/* Workspace for `threads` threads and chunks of at most `rows` rows, whatever the activation;
 * independent of the context. */
size_t mla_expanded_scratch_bytes(uint32_t threads, uint32_t rows, uint32_t latent_dim,
                                  uint32_t rope_dim, uint32_t nope_dim, uint32_t value_dim);

void mla_expanded_ref(const struct mla_expanded_args *args, struct kernel_ctx *ctx);
void mla_expanded_cpu(const struct mla_expanded_args *args, struct kernel_ctx *ctx);

#endif
