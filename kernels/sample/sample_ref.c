#include "sample/sample.h"

#include <float.h>
#include <math.h>
#include <string.h>

static float clean(float value) {
    if (isnan(value)) return -INFINITY;
    return value > FLT_MAX ? FLT_MAX : value;
}

static float read_logit(const struct sample_args *args, uint32_t id) {
    return clean(args->logits[id]);
}

/* The id of the greatest logit among those whose flag is `from`; vocab if there is none. */
static uint32_t greatest(const float *logits, uint32_t vocab, const uint8_t *flag, uint8_t from) {
    uint32_t best = vocab;
    for (uint32_t id = 0; id < vocab; id++)
        if (flag[id] == from && (best == vocab || clean(logits[id]) > clean(logits[best])))
            best = id;
    return best;
}

/* exp(x) for x <= 0 = 2^n exp(r), n the integer nearest to x / ln 2. */
static float e(float x) {
    if (x < -105.0f) x = -105.0f;
    float n = (float)rint((double)x * (double)0x1.715476p+0f);
    float r = fmaf(n, -0x1.7f7d1cp-20f, fmaf(n, -0x1.62e4p-1f, x)), p = 1.0f / 5040;
    const float coefficient[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    for (int i = 0; i < 7; i++)
        p = fmaf(p, r, coefficient[i]);
    return ldexpf(p, (int)n);
}

static double weight(const struct sample_args *args, uint32_t id, float max) {
    float x = (read_logit(args, id) - max) / args->params.temperature;
    return rint((double)e(x) * 0x1p32) / 0x1p32;
}

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static double gumbel(const struct sample_args *args, uint32_t id) {
    const uint64_t c = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t row = mix(args->params.seed + c);
    row = mix((row ^ args->params.choice) + c);
    row = mix((row ^ args->position) + c);
    uint64_t bits = mix(row + ((uint64_t)id + 1) * c);
    double u = (double)(2 * (bits >> 12) + 1) / 0x1p53;
    return -log(-log(u));
}

enum { OUT, IN, NUCLEUS };

static uint32_t draw(const struct sample_args *args, uint8_t *flag) {
    const struct sample_params *params = &args->params;
    uint32_t vocab = args->vocab;
    memset(flag, IN, vocab);
    uint32_t top = greatest(args->logits, vocab, flag, IN);
    if (params->temperature == 0.0f || read_logit(args, top) == -INFINITY) return top;
    double temperature = params->temperature, zmax = read_logit(args, top) / temperature;
    float max = read_logit(args, top);

    if (params->top_k > 0 && params->top_k < vocab) {
        memset(flag, OUT, vocab);
        for (uint32_t k = 0; k < params->top_k; k++)
            flag[greatest(args->logits, vocab, flag, OUT)] = IN;
    }
    if (params->top_p < 1.0f) {
        double total = 0.0, mass = 0.0;
        for (uint32_t id = 0; id < vocab; id++)
            if (flag[id] == IN) total += weight(args, id, max);
        do {
            uint32_t id = greatest(args->logits, vocab, flag, IN);
            if (id == vocab) break;
            flag[id] = NUCLEUS;
            mass += weight(args, id, max);
        } while (mass < (double)params->top_p * total);
        for (uint32_t id = 0; id < vocab; id++)
            flag[id] = flag[id] == NUCLEUS ? IN : OUT;
    }

    for (uint32_t id = 0; id < vocab && params->min_p > 0.0f; id++)
        if (read_logit(args, id) / temperature - zmax < log((double)params->min_p)) flag[id] = OUT;

    uint32_t token = 0;
    double best = -INFINITY;
    for (uint32_t id = 0; id < vocab; id++) {
        double key = read_logit(args, id) / temperature + gumbel(args, id);
        if (flag[id] == IN && key > best) {
            best = key;
            token = id;
        }
    }
    return token;
}

static double log_sum_exp(const float *logits, uint32_t vocab) {
    float max = -INFINITY;
    for (uint32_t id = 0; id < vocab; id++)
        max = clean(logits[id]) > max ? clean(logits[id]) : max;
    if (max == -INFINITY) return 0.0;
    double lane[16] = {0};
    for (uint32_t id = 0; id < vocab; id++)
        lane[id % 16] += (double)e(clean(logits[id]) - max);
    for (int i = 0; i < 8; i++)
        lane[i] += lane[i + 8];
    for (int i = 0; i < 4; i++)
        lane[i] += lane[i + 4];
    return (double)max + log((lane[0] + lane[2]) + (lane[1] + lane[3]));
}

void sample_ref(const struct sample_args *args, struct kernel_ctx *ctx) {
    KERNEL_CHECK(args->vocab >= 1 && args->top_count <= SAMPLE_TOP_MAX);
    KERNEL_CHECK(args->top_count <= args->vocab && (args->logprob || args->top_count == 0));
    KERNEL_CHECK(args->params.temperature >= 0.0f && args->params.top_p > 0.0f);
    KERNEL_CHECK(args->params.min_p >= 0.0f && args->params.min_p <= 1.0f);
    KERNEL_CHECK(ctx->scratch_bytes >= sample_scratch_bytes(args->vocab));
    uint8_t *flag = ctx->scratch; /* [vocab] */

    *args->token = draw(args, flag);
    if (!args->logprob) return;
    const float *said = args->model_logits;
    double lse = log_sum_exp(said, args->vocab);
    *args->logprob = (float)(clean(said[*args->token]) - lse);
    memset(flag, IN, args->vocab);
    for (uint32_t i = 0; i < args->top_count; i++) {
        args->top_token[i] = greatest(said, args->vocab, flag, IN);
        args->top_logprob[i] = (float)(clean(said[args->top_token[i]]) - lse);
        flag[args->top_token[i]] = OUT;
    }
}
