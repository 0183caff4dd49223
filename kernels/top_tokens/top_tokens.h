/* The likeliest tokens of each row of logits, and what their log-probabilities need: a rank does
 * this for its part of the vocabulary, and only these few numbers travel.
 *
 *     token[t,:], logit[t,:]   the `count` greatest logits, greatest first, ties to the lowest id
 *     max[t,s], sum[t,s]       of segment s: the greatest logit, and the sum of exp(logit - max)
 *
 * Segment s is the ids [s*N/S, (s+1)*N/S), rounded down: eight / n segments on each of n ranks are
 * the eight of one. The sum has sixteen partial sums, lane l taking the segment's elements l, l+16,
 * ... in ascending order by addition, added as in rms_norm.h.
 *
 * A NaN reads as -inf and +inf as FLT_MAX. Where a segment has nothing above -inf its sum is 0. The
 * fast variants agree to the bit among themselves; the reference uses libm's exp: tolerance 2e-6
 * relative of the sums, tokens and logits exact. The CUDA variant sums in another order, with the
 * same tolerance. */
#ifndef ESPALIER_TOP_TOKENS_H
#define ESPALIER_TOP_TOKENS_H

#include "kernel.h"

#define TOP_TOKENS_MAX 64u

struct top_tokens_args {
    const float *logits; /* [T, N], rows logits_stride floats apart */
    size_t logits_stride;
    uint32_t rows;     /* T */
    uint32_t width;    /* N */
    uint32_t id_begin; /* token id of column 0 */
    uint32_t count;    /* 1..TOP_TOKENS_MAX, at most N */
    uint32_t segments; /* S, 1..KERNEL_SEGMENTS */
    uint32_t *token;   /* [T, count] */
    float *logit;      /* [T, count] */
    float *max;        /* [T, S] */
    float *sum;        /* [T, S] */
};

void top_tokens_ref(const struct top_tokens_args *args, struct kernel_ctx *ctx);
void top_tokens_cpu(const struct top_tokens_args *args, struct kernel_ctx *ctx);
void top_tokens_cuda(const struct top_tokens_args *args, struct kernel_ctx *ctx);

#endif
