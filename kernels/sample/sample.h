/* Draw one token from one row of logits. The token is a function of (logits, parameters, seed,
 * choice, position) and nothing else, so speculation, batching and TP size cannot change it.
 *
 * temperature 0: the greatest logit, ties to the lowest id. Otherwise, with max the greatest logit,
 * z = logit / temperature and zmax of the greatest in double, and a weight for each token
 *     w = e((logit - max) / temperature) in f32, rounded to the nearest multiple of 2^-32:
 *   1. top_k: the k greatest logits stay (ties to the lowest id); 0, or k >= vocab: all.
 *   2. top_p: of those, in descending order (ties to the lowest id), the shortest prefix whose
 *      weights sum to at least top_p * total in double, total being the sum of step 1's; 1: all. At
 *      least one. Sums of such weights are exact, so their order is nobody's business.
 *   3. min_p: of those, the ones with z - zmax >= ln(min_p), that is p >= min_p; 0: all.
 *   4. the token maximising z + g(id) in double, ties to the lowest id: Gumbel noise g = -ln(-ln
 * u). (Gumbel-max: Maddison, Tarlow and Minka, "A* Sampling", 2014, section 2.)
 *
 * e is exp as f32x16_exp of simd/f32x16_math.h has it, to 2 units in the last place: the same bits
 * everywhere. ln is within 2 units of the natural logarithm in double, and our own too.
 *
 * The noise. With 64-bit wrapping arithmetic, C = 0x9e3779b97f4a7c15 and
 *     mix(x):  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;  x = (x ^ x >> 27) * 0x94d049bb133111eb;
 *              x ^ x >> 31
 *     row     = mix((mix((mix(seed + C) ^ choice) + C) ^ position) + C)
 *     bits    = mix(row + (id + 1) * C)              draw id of a SplitMix64 stream seeded by row
 *     u       = (2 * (bits >> 12) + 1) / 2^53        exact, and strictly between 0 and 1
 * (SplitMix64: Steele, Lea and Flood, OOPSLA 2014.)
 *
 * Log-probabilities are of the untouched distribution softmax(model_logits): those before penalties
 * and bias (penalize.h), as vLLM's raw_logprobs. ln p = logit - lse, lse = max + ln(sum of e(logit
 * - max)), summed in double in sixteen lanes by id mod 16, lanes then added 8 apart, 4, 2, 1.
 *
 * Logits are finite, or -inf for what must not be drawn. A NaN reads as -inf and +inf as FLT_MAX.
 * If all are -inf, the token is 0 and lse counts as 0.
 *
 * The CUDA variant draws the same tokens. It sums lse in multiples of 2^-44, for at most 2^20
 * tokens: log-probabilities within 1e-6. */
#ifndef ESPALIER_SAMPLE_H
#define ESPALIER_SAMPLE_H

#include "kernel.h"

#define SAMPLE_TOP_MAX 20u

struct sample_params {
    float temperature; /* >= 0 */
    float top_p;       /* (0, 1] */
    uint32_t top_k;    /* 0 for no limit */
    float min_p;       /* [0, 1] */
    uint32_t choice;   /* index among the n choices of a request */
    uint64_t seed;
};

struct sample_args {
    const float *logits;       /* [vocab] to draw from */
    const float *model_logits; /* [vocab] that log-probabilities are of; may be logits */
    uint32_t vocab;
    struct sample_params params;
    uint64_t position;   /* absolute position the token will take */
    uint32_t top_count;  /* alternatives wanted, at most SAMPLE_TOP_MAX */
    uint32_t *token;     /* out */
    float *logprob;      /* out: of the token; NULL if not wanted (then top_count is 0) */
    uint32_t *top_token; /* [top_count] out, most probable first, ties to the lowest id */
    float *top_logprob;  /* [top_count] out */
};

/* The scratch a call needs: grows with the vocabulary, not with rows or context. */
size_t sample_scratch_bytes(uint32_t vocab);

void sample_ref(const struct sample_args *args, struct kernel_ctx *ctx);
void sample_cpu(const struct sample_args *args, struct kernel_ctx *ctx);
void sample_cuda(const struct sample_args *args, struct kernel_ctx *ctx);

#endif
