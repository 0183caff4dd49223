/* What sample promises of its draws: their distribution, what filters leave, what they depend on,
 * and that nothing is drawn which cannot be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "penalize/penalize.h"
#include "rig.h"
#include "sample/sample.h"

/* Draws follow the filtered distribution: Pearson's statistic over 40,000 seeds, against the
 * 0.1 % point. The seeds are fixed, so this cannot fail by chance tomorrow. */
static void test_sample_distribution(void **state) {
    (void)state;
    enum { VOCAB = 12, DRAWS = 40000 };
    static const float logits[VOCAB] = {1, 0, 2, -1, 1, 0.5f, -2, 2.5f, 0, 1.5f, -0.5f, 0.25f};
    static const struct {
        float temperature, top_p;
        uint32_t top_k, survivors;
        double limit; /* of chi-square with survivors - 1 degrees of freedom */
        float min_p;
    } cases[] = {{1.0f, 1.0f, 0, 12, 31.3, 0},
                 {0.7f, 1.0f, 4, 4, 16.3, 0},
                 {1.3f, 0.8f, 0, 6, 20.5, 0},
                 {1.0f, 1.0f, 0, 5, 18.5, 0.2f}};
    uint32_t scratch[4 * VOCAB];
    struct kernel_ctx ctx = {.scratch = scratch, .scratch_bytes = sizeof(scratch)};
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        uint32_t count[VOCAB] = {0};
        for (uint32_t i = 0; i < DRAWS; i++) {
            uint32_t token;
            struct sample_args args = {.logits = logits,
                                       .model_logits = logits,
                                       .vocab = VOCAB,
                                       .params = {.temperature = cases[c].temperature,
                                                  .top_p = cases[c].top_p,
                                                  .top_k = cases[c].top_k,
                                                  .min_p = cases[c].min_p,
                                                  .choice = i % 3,
                                                  .seed = i},
                                       .position = i / 7,
                                       .token = &token};
            sample_cpu(&args, &ctx);
            count[token]++;
        }
        double total = 0, chi = 0;
        uint32_t survivors = 0;
        for (uint32_t id = 0; id < VOCAB; id++)
            if (count[id] > 0) total += exp((double)logits[id] / (double)cases[c].temperature);
        for (uint32_t id = 0; id < VOCAB; id++) {
            if (count[id] == 0) continue;
            double p = exp((double)logits[id] / (double)cases[c].temperature) / total;
            chi += (count[id] - DRAWS * p) * (count[id] - DRAWS * p) / (DRAWS * p);
            survivors++;
        }
        assert_int_equal(survivors, cases[c].survivors);
        if (chi > cases[c].limit) fail_msg("case %zu: chi-square %.1f", c, chi);
    }
}

/* Draws of a penalized row follow the distribution of its formula, and its log-probabilities the
 * model's. */
static void test_penalized_distribution(void **state) {
    (void)state;
    enum { VOCAB = 6, DRAWS = 40000 };
    static const float logits[VOCAB] = {1, -1, 2, 0, 1.5f, -0.5f};
    static const uint32_t count[VOCAB] = {PENALIZE_PROMPT,
                                          PENALIZE_PROMPT,
                                          PENALIZE_REPLY_ONE,
                                          0,
                                          PENALIZE_PROMPT + 3 * PENALIZE_REPLY_ONE,
                                          0};
    static const struct penalize_bias bias[] = {{3, 0.75f}};
    static const uint32_t tail[] = {5, 2};
    const double z[VOCAB] = {1 / 1.25,
                             -1 * 1.25,
                             2 / 1.25 - 0.5 * 2 - 0.25,
                             0.75,
                             1.5 / 1.25 - 0.5 * 3 - 0.25,
                             -0.5 * 1.25 - 0.5 - 0.25};
    float changed[VOCAB];
    uint32_t scratch[4 * VOCAB];
    struct kernel_ctx ctx = {.scratch = scratch, .scratch_bytes = sizeof(scratch)};
    penalize_cpu(&(struct penalize_args){.logits = logits,
                                         .vocab = VOCAB,
                                         .count = count,
                                         .tail = tail,
                                         .tail_count = 2,
                                         .bias = bias,
                                         .bias_count = 1,
                                         .repetition = 1.25f,
                                         .presence = 0.25f,
                                         .frequency = 0.5f,
                                         .out = changed},
                 &ctx);
    uint32_t seen[VOCAB] = {0};
    double total = 0, model_total = 0, chi = 0;
    for (uint32_t id = 0; id < VOCAB; id++) {
        total += exp(z[id]);
        model_total += exp((double)logits[id]);
    }
    for (uint32_t i = 0; i < DRAWS; i++) {
        uint32_t token;
        float logprob;
        struct sample_args args = {.logits = changed,
                                   .model_logits = logits,
                                   .vocab = VOCAB,
                                   .params = {.temperature = 1, .top_p = 1, .seed = i},
                                   .position = i % 11,
                                   .token = &token,
                                   .logprob = &logprob};
        sample_cpu(&args, &ctx);
        assert_true(fabs((double)logprob - (double)logits[token] + log(model_total)) < 1e-6);
        seen[token]++;
    }
    for (uint32_t id = 0; id < VOCAB; id++) {
        double wanted = DRAWS * exp(z[id]) / total;
        chi += (seen[id] - wanted) * (seen[id] - wanted) / wanted;
    }
    if (chi > 20.5) fail_msg("chi-square %.1f", chi); /* the 0.1 % point of 5 degrees */
}

/* Draw after draw as the reference: filters cut at ties, at zeros of both signs, at a mass that is
 * reached exactly. */
static void test_sample_filters(void **state) {
    (void)state;
    enum { VOCAB = 24, DRAWS = 200 };
    static const struct {
        float temperature, top_p;
        uint32_t top_k;
    } filters[] = {{1.0f, 0.5f, 0},   {1.0f, 0.25f, 0},  {30.0f, 1.0f, 7},  {30.0f, 1.0f, 12},
                   {30.0f, 0.5f, 8},  {2.0f, 0.75f, 0},  {30.0f, 1.0f, 17}, {30.0f, 0.9f, 24},
                   {1.0f, 1.0f, 0},   {0.01f, 1.0f, 0},  {1e6f, 1.0f, 0},   {1e-30f, 1.0f, 0},
                   {1e-30f, 0.5f, 0}, {0.05f, 0.999f, 5}};
    float logits[3][VOCAB];
    for (int i = 0; i < VOCAB; i++) {
        logits[0][i] = 1.0f; /* all equal: a half of the mass is half of them */
        logits[1][i] = i % 3 == 0 ? 0.0f : i % 3 == 1 ? -0.0f : (float)(i % 4);
        logits[2][i] = (float)(i * 7 % VOCAB) * 0.125f - 1.5f;
    }
    uint32_t scratch[4 * VOCAB];
    struct kernel_ctx ctx = {.scratch = scratch, .scratch_bytes = sizeof(scratch)};
    for (size_t l = 0; l < 3; l++) {
        for (size_t f = 0; f < sizeof(filters) / sizeof(filters[0]); f++) {
            for (uint32_t seed = 0; seed < DRAWS; seed++) {
                uint32_t want, got;
                struct sample_args args = {.logits = logits[l],
                                           .model_logits = logits[l],
                                           .vocab = VOCAB,
                                           .params = {.temperature = filters[f].temperature,
                                                      .top_p = filters[f].top_p,
                                                      .top_k = filters[f].top_k,
                                                      .seed = seed},
                                           .token = &want};
                sample_ref(&args, &ctx);
                args.token = &got;
                sample_cpu(&args, &ctx);
                if (got != want)
                    fail_msg("logits %zu, filter %zu, seed %u: %u, expected %u", l, f, seed, got,
                             want);
            }
        }
    }
}

/* The draw sees the seed, the choice and the position, and nothing else. */
static void test_sample_inputs(void **state) {
    (void)state;
    enum { VOCAB = 50000 };
    struct rig *rig = rig_create(3);
    float *logits = rig_alloc(rig, VOCAB * sizeof(float)); /* all equal: the noise alone decides */
    struct kernel_ctx ctx = {.scratch = rig_alloc(rig, VOCAB * 16), .scratch_bytes = VOCAB * 16};
    uint32_t token[4];
    for (uint32_t i = 0; i < 4; i++) {
        struct sample_args args = {
            .logits = logits,
            .model_logits = logits,
            .vocab = VOCAB,
            .params = {.temperature = 1.0f, .top_p = 1.0f, .choice = i == 1, .seed = i == 2},
            .position = i == 3,
            .token = &token[i]};
        sample_cpu(&args, &ctx);
        for (uint32_t j = 0; j < i; j++)
            assert_int_not_equal(token[i], token[j]);
    }
    rig_destroy(&rig);
}

/* The noise of the header, backwards. */
static uint64_t unmix(uint64_t x) {
    x ^= x >> 31 ^ x >> 62;
    x *= UINT64_C(0x319642b2d24d8ec3);
    x ^= x >> 27 ^ x >> 54;
    x *= UINT64_C(0x96de1b173f119089);
    return x ^ x >> 30 ^ x >> 60;
}

/* The seed with which token `id` at position 0 of choice 0 gets these bits. */
static uint64_t seed_for(uint64_t bits, uint32_t id) {
    const uint64_t c = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t row = unmix(bits) - (id + 1) * c;
    return unmix(unmix(unmix(row) - c) - c) - c;
}

/* A coin at either end of its range. The least keeps a token that is the only one left, where a
 * coin of 0 would give way to tokens without a chance; the greatest gives none a chance that has
 * none, be it by its logit or by a filter. */
static void test_extreme_coins(void **state) {
    (void)state;
    enum { VOCAB = 40, LEFT = 17 };
    static const uint64_t ends[] = {0, UINT64_MAX};
    uint32_t scratch[4 * VOCAB], token = 0;
    struct kernel_ctx ctx = {.scratch = scratch, .scratch_bytes = sizeof(scratch)};
    for (uint32_t i = 0; i < 4 * VOCAB; i++) {
        uint32_t id = i / 2 % VOCAB, filtered = i / 2 >= VOCAB;
        float logits[VOCAB];
        for (uint32_t other = 0; other < VOCAB; other++)
            logits[other] = filtered ? -1.0f : -INFINITY;
        logits[LEFT] = 1;
        struct sample_args args = {.logits = logits,
                                   .model_logits = logits,
                                   .vocab = VOCAB,
                                   .params = {.temperature = 1,
                                              .top_p = 1,
                                              .top_k = filtered,
                                              .seed = seed_for(ends[i % 2], id)},
                                   .token = &token};
        sample_cpu(&args, &ctx);
        assert_int_equal(token, LEFT);
        sample_ref(&args, &ctx);
        assert_int_equal(token, LEFT);
    }
    /* The coins are where they should be: of two alike, the one with the lesser is not drawn. */
    for (uint32_t i = 0; i < 2; i++) {
        static const float alike[2] = {0, 0};
        struct sample_args args = {.logits = alike,
                                   .model_logits = alike,
                                   .vocab = 2,
                                   .params = {.temperature = 1, .top_p = 1},
                                   .token = &token};
        for (uint32_t id = 0; id < 2; id++) {
            args.params.seed = seed_for(ends[i], id);
            sample_cpu(&args, &ctx);
            assert_int_equal(token, i == 0 ? 1 - id : id);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample_inputs),          cmocka_unit_test(test_sample_distribution),
        cmocka_unit_test(test_penalized_distribution), cmocka_unit_test(test_sample_filters),
        cmocka_unit_test(test_extreme_coins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
