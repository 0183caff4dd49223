/* One block, a thousand threads, some passes over the row, which stays in the second-level cache.
 *
 * What the filters keep is always a prefix of the tokens in descending order: one cut (select.cuh).
 * Double precision is slow here, so the noise is first taken in f32 with a bound on its error, and
 * in double only for the few tokens that the bound cannot tell from the winner. */
extern "C" {
#include "sample/sample.h"
}

#include "cuda/select.cuh"

#define GOLDEN       0x9e3779b97f4a7c15ull
#define WEIGHT_ONE   0x1p32f /* weights are whole multiples of its inverse */
#define LSE_ONE      0x1p44f /* so are the terms of log-sum-exp; 2^20 of them fit 64 bits */
#define SUMMANDS_MAX (1u << 20)

/* One of two tokens: the greater key, the lower id. */
struct winner {
    double key;
    uint32_t id;
};

struct better {
    DEVICE_INLINE struct winner operator()(struct winner a, struct winner b) const {
        if (a.key != b.key) return a.key > b.key ? a : b;
        return a.id < b.id ? a : b;
    }
};

static __device__ uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* u * 2^53 of a token. */
static __device__ uint64_t noise_of(uint64_t row, uint32_t id) {
    return 2 * (mix(row + ((uint64_t)id + 1) * GOLDEN) >> 12) + 1;
}

static __device__ struct winner greatest(const float *logits, uint32_t vocab,
                                         struct select_memory *memory) {
    struct winner mine = {-(double)INFINITY, 0xffffffffu};
    float best = -INFINITY;
    for (uint32_t id = threadIdx.x; id < vocab; id += SELECT_THREADS) {
        float logit = math_logit(logits[id]);
        if (mine.id != 0xffffffffu && logit <= best) continue;
        best = logit;
        mine.id = id;
    }
    mine.key = (double)best;
    return select_reduce(memory, mine, better());
}

/* ============================== filters ======================================================= */

static __device__ uint64_t weight_of(const struct sample_args &args, uint32_t id, float max) {
    float x = (math_logit(args.logits[id]) - max) / args.params.temperature;
    return (uint64_t)rintf(math_exp(x) * WEIGHT_ONE);
}

static __device__ struct select_cut filter(const struct sample_args &args, float max,
                                           struct select_memory *memory) {
    const struct sample_params &params = args.params;
    struct select_cut cut = {0, 0xffffffffu};
    auto digits_of = [&](uint32_t id) { return math_digits(math_logit(args.logits[id])); };
    if (params.top_k > 0 && params.top_k < args.vocab)
        cut = select_prefix(
            memory, args.vocab, digits_of, [](uint32_t) { return (uint64_t)1; }, params.top_k);
    if (params.top_p >= 1.0f) return cut;
    auto mass_of = [&](uint32_t id) {
        return select_keeps(cut, digits_of(id), id) ? weight_of(args, id, max) : (uint64_t)0;
    };
    uint64_t total = 0;
    for (uint32_t id = threadIdx.x; id < args.vocab; id += SELECT_THREADS)
        total += mass_of(id);
    total = select_reduce(memory, total, block_add());
    double wanted = ceil((double)params.top_p * (double)total);
    return select_prefix(memory, args.vocab, digits_of, mass_of,
                         wanted < 1 ? (uint64_t)1 : (uint64_t)wanted);
}

/* What min_p asks of a token: z - zmax >= least, in double. */
struct edge {
    float max;
    double zmax, least;
};

static __device__ struct edge find_edge(const struct sample_args &args, float max) {
    struct edge edge = {max, (double)max / (double)args.params.temperature, -(double)INFINITY};
    if (args.params.min_p > 0) edge.least = math_ln((double)args.params.min_p);
    return edge;
}

static __device__ bool is_above(const struct sample_args &args, const struct edge &edge,
                                float logit) {
    if (args.params.min_p <= 0) return true;
    float temperature = args.params.temperature;
    float distance = (logit - edge.max) / temperature - (float)edge.least;
    float error = 1e-4f + 1e-6f * (fabsf(logit) + fabsf(edge.max)) / temperature;
    if (distance > error) return true;
    if (distance < -error) return false;
    return (double)logit / (double)temperature - edge.zmax >= edge.least;
}

/* ============================== the draw ====================================================== */

/* What f32 says of a token, and by how much it may be wrong. */
struct estimate {
    float key, error;
};

static __device__ struct estimate estimate_key(const struct sample_args &args, uint32_t id,
                                               uint64_t noise) {
    float z = math_logit(args.logits[id]) / args.params.temperature;
    float rest = (float)(((uint64_t)1 << 53) - noise) * 0x1p-53f; /* 1 - u */
    float y = rest < 0.5f ? -log1pf(-rest) : -logf((float)noise * 0x1p-53f);
    struct estimate its = {z - logf(y), 1e-4f + 1e-6f * fabsf(z)};
    return its;
}

static __device__ uint32_t draw(const struct sample_args &args, struct winner top,
                                struct select_memory *memory) {
    struct select_cut cut = filter(args, (float)top.key, memory);
    uint64_t row = mix(args.params.seed + GOLDEN);
    row = mix((row ^ args.params.choice) + GOLDEN);
    row = mix((row ^ args.position) + GOLDEN);
    struct edge edge = find_edge(args, (float)top.key);
    auto stays = [&](uint32_t id) {
        float logit = math_logit(args.logits[id]);
        return select_keeps(cut, math_digits(logit), id) && is_above(args, edge, logit);
    };
    /* Below this no token can win. */
    float floor = -INFINITY;
    for (uint32_t id = threadIdx.x; id < args.vocab; id += SELECT_THREADS) {
        if (!stays(id)) continue;
        struct estimate its = estimate_key(args, id, noise_of(row, id));
        floor = fmaxf(floor, its.key - its.error);
    }
    floor = select_reduce(memory, floor, block_max());

    struct winner mine = {-(double)INFINITY, 0xffffffffu};
    for (uint32_t id = threadIdx.x; id < args.vocab; id += SELECT_THREADS) {
        uint64_t noise = noise_of(row, id);
        struct estimate its = estimate_key(args, id, noise);
        if (its.key + its.error < floor || !stays(id)) continue;
        struct winner other = {(double)math_logit(args.logits[id]) /
                                       (double)args.params.temperature -
                                   math_ln(-math_ln((double)noise / 0x1p53)),
                               id};
        mine = better()(mine, other);
    }
    return select_reduce(memory, mine, better()).id;
}

/* ============================== log-probabilities ============================================= */

static __device__ double log_sum_exp(const float *logits, uint32_t vocab, float max,
                                     struct select_memory *memory) {
    uint64_t sum = 0;
    if (max == -INFINITY) return 0.0;
    for (uint32_t id = threadIdx.x; id < vocab; id += SELECT_THREADS)
        sum += (uint64_t)rintf(math_exp(math_logit(logits[id]) - max) * LSE_ONE);
    sum = select_reduce(memory, sum, block_add());
    return (double)max + math_ln((double)sum / (double)LSE_ONE);
}

static __device__ void write_logprobs(const struct sample_args &args, uint32_t token,
                                      struct select_memory *memory) {
    const float *said = args.model_logits;
    float max = (float)greatest(said, args.vocab, memory).key;
    double lse = log_sum_exp(said, args.vocab, max, memory);
    if (threadIdx.x == 0) *args.logprob = (float)((double)math_logit(said[token]) - lse);
    /* Each the greatest of those behind the one before. */
    struct winner last = {(double)INFINITY, 0};
    for (uint32_t i = 0; i < args.top_count; i++) {
        struct winner mine = {-(double)INFINITY, 0xffffffffu};
        for (uint32_t id = threadIdx.x; id < args.vocab; id += SELECT_THREADS) {
            struct winner other = {(double)math_logit(said[id]), id};
            bool behind = other.key < last.key || (other.key == last.key && id > last.id);
            if (behind) mine = better()(mine, other);
        }
        last = select_reduce(memory, mine, better());
        if (threadIdx.x > 0) continue;
        args.top_token[i] = last.id;
        args.top_logprob[i] = (float)(last.key - lse);
    }
}

__global__ void __launch_bounds__(SELECT_THREADS) sample_row(struct sample_args args) {
    struct select_memory *memory = (struct select_memory *)device_shared();
    struct winner top = greatest(args.logits, args.vocab, memory);
    uint32_t token = top.id;
    if (args.params.temperature > 0 && top.key > -(double)INFINITY) token = draw(args, top, memory);
    if (threadIdx.x == 0) *args.token = token;
    if (args.logprob != NULL) write_logprobs(args, token, memory);
}

void sample_cuda(const struct sample_args *args, struct kernel_ctx *ctx) {
    KERNEL_CHECK(args->vocab >= 1 && args->vocab <= SUMMANDS_MAX);
    KERNEL_CHECK(args->top_count <= SAMPLE_TOP_MAX && args->top_count <= args->vocab);
    KERNEL_CHECK(args->logprob != NULL || args->top_count == 0);
    KERNEL_CHECK(args->params.temperature >= 0.0f && args->params.top_p > 0.0f);
    KERNEL_CHECK(args->params.min_p >= 0.0f && args->params.min_p <= 1.0f);
    launch(sample_row, dim3(1), SELECT_THREADS, sizeof(struct select_memory), ctx, *args);
}
