/* A pass over the vocabulary looks at sixteen logits at once, and at single ones only where the
 * greatest of the sixteen may matter. Nothing is sorted: where a filter cuts is found digit by
 * digit, by the weight of all tokens that share a digit. A token's noise costs two logarithms,
 * which are taken only where a bound on it says that the token may win. */
#include "sample/sample.h"

#include <float.h>
#include <stdbool.h>

#include "simd/f32x16_math.h"
#include "simd/isa.h"

/* Tokens that stay, ascending, in the workspace. */
struct kept {
    uint32_t *id;    /* [count] */
    float *weight;   /* [count] */
    uint32_t *digit; /* [count], of 32 bits, and */
    uint32_t *place; /* [count] to work with */
    uint32_t count;
};

static f32x16 load_clean(const float *logits, uint32_t id, uint32_t end);
static float max_lane(f32x16 v);
static uint32_t argmax(const float *logits, uint32_t vocab);
static void keep_top_k(const struct sample_args *args, struct kept *kept);
static void keep_top_p(const struct sample_args *args, struct kept *kept, bool all);
static uint32_t draw(const struct sample_args *args, const struct kept *kept, bool all);
static void write_logprobs(const struct sample_args *args);

static float clean(float logit) {
    if (isnan(logit)) return -INFINITY;
    return logit > FLT_MAX ? FLT_MAX : logit;
}

/* The bits of a float ascend with it once those of negative numbers are inverted and the sign of
 * the others is set. */
static uint32_t digits_of(float logit) {
    float value = clean(logit) + 0.0f; /* both zeros are one */
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

/* Greater for a greater logit, then for a lower id. */
static uint64_t key_of(float logit, uint32_t id) {
    return (uint64_t)digits_of(logit) << 32 | (0xffffffffu - id);
}

/* x = 2^k m with m near 1, ln m = 2 artanh((m - 1) / (m + 1)) by its series: s^23 / 23 is below
 * half a unit of s for the |s| <= 0.172 there are. x is positive and normal, or zero. */
static double ln(double x) {
    if (x == 0) return -(double)INFINITY;
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    int64_t k = (int64_t)(bits >> 52) - 1023;
    bits = (bits & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1023) << 52;
    double m;
    memcpy(&m, &bits, sizeof(m));
    if (m > 1.4142135623730951) {
        m *= 0.5;
        k++;
    }
    double s = (m - 1) / (m + 1), s2 = s * s, series = 1.0 / 21;
    for (int odd = 19; odd >= 3; odd -= 2)
        series = series * s2 + 1.0 / odd;
    double fraction = 2 * s + 2 * s * (s2 * series);
    return (double)k * 0x1.62e42fefa38p-1 + ((double)k * 0x1.ef35793c7673p-45 + fraction);
}

CPU_OP(sample) {
    const struct sample_params *params = &args->params;
    KERNEL_CHECK(args->vocab >= 1 && args->top_count <= SAMPLE_TOP_MAX);
    KERNEL_CHECK(args->top_count <= args->vocab && (args->logprob || args->top_count == 0));
    KERNEL_CHECK(params->temperature >= 0.0f && params->top_p > 0.0f);
    KERNEL_CHECK(params->min_p >= 0.0f && params->min_p <= 1.0f);
    KERNEL_CHECK(ctx->scratch_bytes >= sample_scratch_bytes(args->vocab));

    *args->token = argmax(args->logits, args->vocab);
    if (params->temperature > 0.0f && clean(args->logits[*args->token]) > -INFINITY) {
        uint32_t *memory = ctx->scratch;
        struct kept kept = {.id = memory,
                            .weight = (float *)(memory + args->vocab),
                            .digit = memory + 2 * (size_t)args->vocab,
                            .place = memory + 3 * (size_t)args->vocab};
        bool by_k = params->top_k > 0 && params->top_k < args->vocab, by_p = params->top_p < 1.0f;
        if (by_k) keep_top_k(args, &kept);
        if (by_p) keep_top_p(args, &kept, !by_k);
        *args->token = draw(args, &kept, !by_k && !by_p);
    }
    if (args->logprob) write_logprobs(args);
}

/* Up to sixteen logits from id on, NaN and infinities read as the header says; -inf behind the
 * end. */
static f32x16 load_clean(const float *logits, uint32_t id, uint32_t end) {
    f32x16 limit = f32x16_set1(FLT_MAX), low = f32x16_set1(-INFINITY);
    /* The limit on the left keeps a NaN, the maximum on the right then drops it. */
    if (end - id >= 16) return f32x16_max(f32x16_min(limit, f32x16_load(logits + id)), low);
    float part[16];
    for (uint32_t i = 0; i < 16; i++)
        part[i] = i < end - id ? logits[id + i] : -INFINITY;
    return f32x16_max(f32x16_min(limit, f32x16_load(part)), low);
}

static float max_lane(f32x16 v) {
    float lane[16];
    f32x16_store(lane, v);
    for (int apart = 8; apart > 0; apart /= 2)
        for (int i = 0; i < apart; i++)
            lane[i] = lane[i] > lane[i + apart] ? lane[i] : lane[i + apart];
    return lane[0];
}

static uint32_t argmax(const float *logits, uint32_t vocab) {
    f32x16 max = f32x16_set1(-INFINITY);
    for (uint32_t id = 0; id < vocab; id += 16)
        max = f32x16_max(load_clean(logits, id, vocab), max);
    float greatest = max_lane(max);
    for (uint32_t id = 0; id < vocab; id++)
        if (clean(logits[id]) == greatest) return id;
    return 0;
}

/* ---- filters ------------------------------------------------------------------------------- */

/* Rounded to a multiple of 2^-32: what lies above 2^-9 is one already, and what lies below is added
 * to a number whose last place that is. */
F32X16_INLINE f32x16 weigh(f32x16 logit, f32x16 max, f32x16 temperature) {
    const f32x16 magic = f32x16_set1(0x1.8p-9f);
    f32x16 p = f32x16_exp(f32x16_div(f32x16_sub(logit, max), temperature));
    f32x16 low = f32x16_min(p, f32x16_set1(0x1p-9f));
    f32x16 rounded = f32x16_sub(f32x16_add(low, magic), magic);
    return f32x16_add(f32x16_sub(p, low), rounded);
}

static double sum_lanes(double lane[16]) {
    for (int apart = 8; apart > 0; apart /= 2)
        for (int i = 0; i < apart; i++)
            lane[i] += lane[i + apart];
    return lane[0];
}

/* The sum of the weights of all tokens. */
static double weigh_all(const struct sample_args *args) {
    f32x16 max = f32x16_set1(clean(args->logits[*args->token]));
    f32x16 temperature = f32x16_set1(args->params.temperature);
    double lane[16] = {0};
    for (uint32_t id = 0; id < args->vocab; id += 16) {
        float weight[16];
        f32x16_store(weight, weigh(load_clean(args->logits, id, args->vocab), max, temperature));
        for (int i = 0; i < 16; i++)
            lane[i] += (double)weight[i];
    }
    return sum_lanes(lane);
}

/* Weights of those kept; returns their sum. */
static double weigh_kept(const struct sample_args *args, struct kept *kept) {
    f32x16 max = f32x16_set1(clean(args->logits[*args->token]));
    f32x16 temperature = f32x16_set1(args->params.temperature);
    double sum = 0;
    for (uint32_t begin = 0; begin < kept->count; begin += 16) {
        uint32_t count = kept->count - begin < 16 ? kept->count - begin : 16;
        float logit[16], weight[16];
        for (uint32_t i = 0; i < 16; i++)
            logit[i] = i < count ? args->logits[kept->id[begin + i]] : -INFINITY;
        f32x16_store(weight, weigh(load_clean(logit, 0, 16), max, temperature));
        for (uint32_t i = 0; i < count; i++) {
            kept->weight[begin + i] = weight[i];
            sum += (double)weight[i];
        }
    }
    return sum;
}

/* Keep the tokens of at least this logit. */
static void keep_from(const struct sample_args *args, float least, struct kept *kept) {
    kept->count = 0;
    for (uint32_t id = 0; id < args->vocab; id += 16) {
        f32x16 logit = load_clean(args->logits, id, args->vocab);
        if (max_lane(logit) < least) continue;
        float lane[16];
        f32x16_store(lane, logit);
        uint32_t end = args->vocab - id < 16 ? args->vocab - id : 16;
        for (uint32_t i = 0; i < end; i++)
            if (lane[i] >= least) kept->id[kept->count++] = id + i;
    }
}

/* Fill mass by the eight bits of a digit at shift, of the tokens at so many places. Two tables take
 * turns, so that a token need not wait for the one before it. */
static void add_masses(const struct kept *kept, uint32_t count, bool weighted, int shift,
                       double mass[256]) {
    double other[256] = {0};
    memset(mass, 0, 256 * sizeof(*mass));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t place = kept->place[i];
        double *table = i % 2 ? other : mass;
        table[kept->digit[place] >> shift & 255] += weighted ? (double)kept->weight[place] : 1;
    }
    for (int i = 0; i < 256; i++)
        mass[i] += other[i];
}

/* Of those kept, the least key of the shortest prefix, in descending order, that sums to `wanted`.
 * Each token counts its weight, or one. Their sum is at least that. */
static uint64_t floor_of(const struct sample_args *args, const struct kept *kept, bool weighted,
                         double wanted) {
    uint32_t count = kept->count;
    double covered = 0, mass[256];
    for (uint32_t i = 0; i < count; i++) {
        kept->place[i] = i;
        kept->digit[i] = digits_of(args->logits[kept->id[i]]);
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        add_masses(kept, count, weighted, shift, mass);
        uint32_t cut = 255, left = 0;
        while (cut > 0 && covered + mass[cut] < wanted)
            covered += mass[cut--];
        for (uint32_t i = 0; i < count; i++) {
            uint32_t place = kept->place[i];
            kept->place[left] = place;
            left += (kept->digit[place] >> shift & 255) == cut;
        }
        count = left;
    }
    KERNEL_CHECK(count > 0);
    uint32_t last = 0; /* of equal ones, in the order of ids */
    for (; last + 1 < count; last++) {
        covered += weighted ? (double)kept->weight[kept->place[last]] : 1;
        if (covered >= wanted) break;
    }
    uint32_t id = kept->id[kept->place[last]];
    return key_of(args->logits[id], id);
}

static void drop_below(const struct sample_args *args, uint64_t floor, struct kept *kept) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < kept->count; i++)
        if (key_of(args->logits[kept->id[i]], kept->id[i]) >= floor)
            kept->id[count++] = kept->id[i];
    kept->count = count;
}

static void keep_top_k(const struct sample_args *args, struct kept *kept) {
    keep_from(args, -INFINITY, kept);
    drop_below(args, floor_of(args, kept, false, args->params.top_k), kept);
}

/* What a token weighs that is not worth looking at: all such together weigh less than what top_p
 * leaves out. */
static void keep_top_p(const struct sample_args *args, struct kept *kept, bool all) {
    double top_p = args->params.top_p;
    double total = all ? weigh_all(args) : weigh_kept(args, kept);
    double wanted = top_p * total;
    if (all) {
        double gap = ln((1 - top_p) * total / args->vocab) * (double)args->params.temperature;
        keep_from(args, (float)((double)clean(args->logits[*args->token]) + gap), kept);
        if (weigh_kept(args, kept) < wanted) { /* the last places of gap */
            keep_from(args, -INFINITY, kept);
            weigh_kept(args, kept);
        }
    }
    drop_below(args, floor_of(args, kept, true, wanted), kept);
}

/* ---- the draw ------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

/* u * 2^53 of a token. */
static uint64_t noise_of(uint64_t row, uint32_t id) {
    return 2 * (mix(row + ((uint64_t)id + 1) * GOLDEN) >> 12) + 1;
}

/* The best so far. */
struct winner {
    uint32_t id;
    double key;
};

static void challenge(const struct sample_args *args, struct winner *winner, double least,
                      uint32_t id, uint64_t noise) {
    double z = (double)clean(args->logits[id]) / (double)args->params.temperature;
    if (z < least) return;
    double key = z - ln(-ln((double)noise / 0x1p53));
    if (key < winner->key || (key == winner->key && id > winner->id)) return;
    *winner = (struct winner){.id = id, .key = key};
}

/* -ln(-ln u) >= d means 1 - u <= exp(-d): for sixteen tokens at once, with a margin for what f32
 * loses. Where z is so great that double loses noise, all are looked at. args->token is the
 * likeliest, and the first challenger. */
static uint32_t draw(const struct sample_args *args, const struct kept *kept, bool all) {
    uint64_t row = mix(args->params.seed + GOLDEN);
    row = mix((row ^ args->params.choice) + GOLDEN);
    row = mix((row ^ args->position) + GOLDEN);
    float max = clean(args->logits[*args->token]);
    double zmax = (double)max / (double)args->params.temperature;
    double least = zmax + ln((double)args->params.min_p);
    f32x16 maxes = f32x16_set1(max), temperature = f32x16_set1(args->params.temperature);
    struct winner winner = {.id = *args->token, .key = -(double)INFINITY};
    challenge(args, &winner, least, *args->token, noise_of(row, *args->token));

    uint32_t count = all ? args->vocab : kept->count;
    float margin = fabs(zmax) < 0x1p30 ? 1e-3f : INFINITY;
    for (uint32_t begin = 0; begin < count; begin += 16) {
        uint32_t end = count - begin < 16 ? count - begin : 16, id[16];
        float logit[16], most[16];
        uint64_t noise[16];
        for (uint32_t i = 0; i < 16; i++)
            id[i] = all ? begin + i : kept->id[begin + (i < end ? i : 0)];
        for (uint32_t i = 0; i < 16; i++)
            logit[i] = i < end ? args->logits[id[i]] : -INFINITY;
        for (uint32_t i = 0; i < 16; i++)
            noise[i] = noise_of(row, id[i]);
        f32x16 x = f32x16_div(f32x16_sub(load_clean(logit, 0, 16), maxes), temperature);
        f32x16 ahead = f32x16_set1((float)(zmax - winner.key) + margin);
        f32x16_store(most, f32x16_exp(f32x16_add(x, ahead)));
        for (uint32_t i = 0; i < end; i++)
            if ((float)((UINT64_C(1) << 53) - noise[i]) * 0x1p-53f <= most[i])
                challenge(args, &winner, least, id[i], noise[i]);
    }
    return winner.id;
}

/* ---- log-probabilities --------------------------------------------------------------------- */

static double log_sum_exp(const float *logits, uint32_t vocab) {
    float max = clean(logits[argmax(logits, vocab)]);
    if (max == -INFINITY) return 0;
    double lane[16] = {0};
    for (uint32_t id = 0; id < vocab; id += 16) {
        float p[16];
        f32x16_store(p, f32x16_exp(f32x16_sub(load_clean(logits, id, vocab), f32x16_set1(max))));
        for (int i = 0; i < 16; i++)
            lane[i] += (double)p[i];
    }
    return (double)max + ln(sum_lanes(lane));
}

static void write_logprobs(const struct sample_args *args) {
    const float *logits = args->model_logits;
    double lse = log_sum_exp(logits, args->vocab);
    *args->logprob = (float)((double)clean(logits[*args->token]) - lse);

    uint64_t top[SAMPLE_TOP_MAX];
    uint32_t count = 0;
    float least = -INFINITY; /* of a full list */
    for (uint32_t id = 0; id < args->vocab && args->top_count > 0; id++) {
        if (id % 16 == 0 && count == args->top_count &&
            max_lane(load_clean(logits, id, args->vocab)) < least) {
            id += 15;
            continue;
        }
        uint64_t key = key_of(logits[id], id);
        if (count == args->top_count && key < top[count - 1]) continue;
        uint32_t at = count < args->top_count ? count++ : count - 1;
        for (; at > 0 && top[at - 1] < key; at--)
            top[at] = top[at - 1];
        top[at] = key;
        if (count == args->top_count) least = clean(logits[0xffffffffu - (uint32_t)top[count - 1]]);
    }
    for (uint32_t i = 0; i < count; i++) {
        args->top_token[i] = 0xffffffffu - (uint32_t)top[i];
        args->top_logprob[i] = (float)((double)clean(logits[args->top_token[i]]) - lse);
    }
}
