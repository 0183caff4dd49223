/* Perplexity of held-out text against the reference's, window by window as ref.py cuts them: with
 * an f32 cache, and with bf16, whose rounding must not cost more than the same half percent. Then
 * with an fp8 cache, with activations rounded to bf16 and to int8, and with prefill in the expanded
 * form, each with limits of its own: how much the perplexity changes, and the divergence from the
 * distributions of f32 activations.
 *
 * The first windows in a short run; all with --all or ESPALIER_TEST_LONG set. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "golden_data.h"
#include "rig.h"

#define WINDOW_TOKENS  1024u
#define SHORT_WINDOWS  4u
#define RELATIVE_ERROR 0.005

/* What rounding may cost. */
struct cost {
    double perplexity; /* relative */
    double divergence; /* Kullback-Leibler, in nats, mean of a window's rows */
};
static const struct cost bf16_cost = {0.001, 2e-4}, int8_cost = {0.002, 4e-4};
/* The cache's rounding costs 4.4e-4 nats; to one side, not to nearest, it would be fourfold. */
static const struct cost fp8_cost = {0.002, 1e-3};

static bool all_windows;

/* ln of the sum of exp. */
static double log_sum(const float *logits, uint32_t vocab) {
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        if ((double)logits[i] > max) max = (double)logits[i];
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - max);
    return max + log(sum);
}

/* With f32 activations, for the others: the last perplexity, and the logits of the first window. */
static double exact_perplexity;
static float *exact_logits;

/* From softmax(exact) to softmax(rounded), mean of the rows. */
static double divergence(const float *exact, const float *rounded, uint32_t rows, uint32_t vocab) {
    double sum = 0;
    for (uint32_t row = 0; row < rows; row++, exact += vocab, rounded += vocab) {
        double shift = log_sum(exact, vocab), rounded_shift = log_sum(rounded, vocab);
        for (uint32_t i = 0; i < vocab; i++) {
            double log_p = (double)exact[i] - shift;
            sum += exp(log_p) * (log_p - ((double)rounded[i] - rounded_shift));
        }
    }
    return sum / rows;
}

static void check_cost(const struct cost *limit, double perplexity, double divergence) {
    double change = perplexity / exact_perplexity - 1;
    print_message("changed by %+.4f %%, divergence %.2e nats\n", 100 * change, divergence);
    assert_true(fabs(change) < limit->perplexity);
    assert_true(divergence < limit->divergence);
}

/* limit: NULL for what the others are held against. */
static void check_perplexity(enum kv_dtype kv_dtype, enum activation_dtype activation,
                             enum prefill_form form, const struct cost *limit) {
    const uint32_t *ids;
    const struct golden_window *windows;
    uint32_t id_count = golden_data_heldout(&ids), count = golden_data_windows(&windows);
    if (!all_windows && count > SHORT_WINDOWS) count = SHORT_WINDOWS;
    const struct rig_options options = {.tp = 1,
                                        .threads = 2,
                                        .page_tok = 64,
                                        .max_rows = WINDOW_TOKENS,
                                        .context_len = WINDOW_TOKENS,
                                        .kv_dtype = kv_dtype,
                                        .activation_dtype = activation,
                                        .prefill_form = form};
    struct rig *rig = rig_open(&options, 0, NULL);
    uint32_t vocab = rig_vocab(rig);
    float *logits = malloc((size_t)WINDOW_TOKENS * vocab * sizeof(float));
    if (!exact_logits) exact_logits = malloc((size_t)WINDOW_TOKENS * vocab * sizeof(float));
    assert_non_null(logits);
    assert_non_null(exact_logits);
    engine_capture_logits(rig->engine, logits);

    double nll = 0, reference = 0, from_exact = 0;
    uint32_t tokens = 0;
    for (uint32_t w = 0; w < count; w++) {
        assert_in_range(windows[w].tokens, 1, WINDOW_TOKENS);
        assert_in_range(windows[w].begin + windows[w].tokens, 1, id_count - 1);
        const uint32_t *window = ids + windows[w].begin;
        struct rig_piece piece = {.token = window, .count = windows[w].tokens};
        rig_step(rig, &piece, 1);
        rig_forget(rig, 0);
        for (uint32_t row = 0; row < windows[w].tokens; row++) {
            const float *of_row = logits + (size_t)row * vocab;
            nll += log_sum(of_row, vocab) - (double)of_row[window[row + 1]];
        }
        if (w == 0 && !limit)
            memcpy(exact_logits, logits, (size_t)windows[w].tokens * vocab * sizeof(float));
        else if (w == 0)
            from_exact = divergence(exact_logits, logits, windows[w].tokens, vocab);
        reference += windows[w].nll;
        tokens += windows[w].tokens;
    }
    double ours = exp(nll / tokens), theirs = exp(reference / tokens);
    print_message("%u tokens: perplexity %.4f, the reference has %.4f (%+.4f %%)\n", tokens, ours,
                  theirs, 100 * (ours / theirs - 1));
    assert_true(fabs(ours / theirs - 1) < RELATIVE_ERROR);
    if (limit)
        check_cost(limit, ours, from_exact);
    else
        exact_perplexity = ours;
    free(logits);
    rig_close(&rig);
}

static void test_f32_cache(void **state) {
    (void)state;
    check_perplexity(KV_F32, ACTIVATION_F32, PREFILL_ABSORBED, NULL);
}

static void test_bf16_cache(void **state) {
    (void)state;
    check_perplexity(KV_BF16, ACTIVATION_F32, PREFILL_ABSORBED, NULL);
}

static void test_bf16_activations(void **state) {
    (void)state;
    check_perplexity(KV_BF16, ACTIVATION_BF16, PREFILL_ABSORBED, &bf16_cost);
}

static void test_fp8_cache(void **state) {
    (void)state;
    check_perplexity(KV_FP8, ACTIVATION_F32, PREFILL_ABSORBED, &fp8_cost);
}

static void test_fp8_cache_bf16_activations(void **state) {
    (void)state;
    check_perplexity(KV_FP8, ACTIVATION_BF16, PREFILL_ABSORBED, &fp8_cost);
}

static void test_int8_activations(void **state) {
    (void)state;
    check_perplexity(KV_BF16, ACTIVATION_INT8, PREFILL_ABSORBED, &int8_cost);
}

static void test_expanded_prefill(void **state) {
    (void)state;
    check_perplexity(KV_BF16, ACTIVATION_BF16, PREFILL_EXPANDED, &bf16_cost);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_f32_cache),
                                       cmocka_unit_test(test_bf16_cache),
                                       cmocka_unit_test(test_fp8_cache),
                                       cmocka_unit_test(test_bf16_activations),
                                       cmocka_unit_test(test_fp8_cache_bf16_activations),
                                       cmocka_unit_test(test_int8_activations),
                                       cmocka_unit_test(test_expanded_prefill)};
    all_windows = (argc > 1 && strcmp(argv[1], "--all") == 0) || getenv("ESPALIER_TEST_LONG");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(exact_logits);
    return failed;
}
