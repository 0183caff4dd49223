/* One row of logits as a request wants them changed before a token is drawn: by what its own path
 * holds, and by its bias.
 *
 * A path is every token before the one to be drawn: the prompt, then the reply. With n how often a
 * token is in the reply, all in f32, every operation rounded, in this order:
 *   1. x += bias                               of a token that has one
 *   2. x = x > 0 ? x / repetition : x * repetition       of a token in the prompt or the reply
 *   3. x = x - frequency * n;  x = x - presence          of a token in the reply
 * Tokens without any of these keep their bits.
 *
 * Sources: 2 is Keskar et al., "CTRL", 2019, section 4.1, with negative logits multiplied, as in
 * transformers' RepetitionPenaltyLogitsProcessor; 3 is that of OpenAI's API ("How should I set
 * parameters", presence and frequency penalties); the order is vLLM's.
 *
 * What an infinity or a NaN becomes, sample reads as it reads any. */
#ifndef ESPALIER_PENALIZE_H
#define ESPALIER_PENALIZE_H

#include "kernel.h"

/* Tokens of a path that counts do not cover yet: a draft tree's at most. */
#define PENALIZE_TAIL_MAX 64u

/* What a path holds of one token, in one number: PENALIZE_REPLY_ONE for each time in the reply, and
 * PENALIZE_PROMPT once where it is in the prompt. 0: it is nowhere. */
#define PENALIZE_PROMPT    1u
#define PENALIZE_REPLY_ONE 2u

struct penalize_bias {
    uint32_t token;
    float value;
};

struct penalize_args {
    const float *logits;   /* [vocab] */
    uint32_t vocab;        /* V */
    const uint32_t *count; /* [V] of the path up to the tail; NULL: no penalties, bias alone */
    const uint32_t *tail;  /* [tail_count] the rest of the path, all of it reply */
    uint32_t tail_count;   /* at most PENALIZE_TAIL_MAX */
    const struct penalize_bias *bias; /* [bias_count], token ids ascending */
    uint32_t bias_count;
    float repetition; /* > 0; 1: none */
    float presence;
    float frequency;
    float *out; /* [V] */
};

void penalize_ref(const struct penalize_args *args, struct kernel_ctx *ctx);
void penalize_cpu(const struct penalize_args *args, struct kernel_ctx *ctx);
void penalize_cuda(const struct penalize_args *args, struct kernel_ctx *ctx);

#endif
