/* The embedded model by the GPU's kernels, emulated: every op of a step in its place, at TP 1 and
 * 2, with chunks, page borders and a draft tree, against the same steps on the CPU: the same
 * tokens, greedy and drawn. Memory is the host's here, and the ranks' sums are those of shared
 * memory. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend_cuda.h"
#include "golden_data.h"
#include "rig.h"
#include "simt_worlds.h"

#define ROWS_MAX   32u
#define CONTEXT    128u
#define STEPS      6u
#define TOKENS_MAX 64u
#define VOCAB      4096u
#define LOGIT_ERROR                                                                                \
    2e-2 /* of the largest logit: queries, weights of attention and experts in bf16 */

/* What a run leaves, in memory that its ranks share. */
struct trace {
    uint32_t token[TOKENS_MAX], token_count;
    uint32_t rows;                  /* of the first step, and */
    float logits[ROWS_MAX * VOCAB]; /* their logits */
    bool failed;
    char text[SIMT_TEXT_BYTES];
    struct simt_schedule schedule;
};

static size_t workspace_bytes(const struct weights *weights, const struct rig_options *options) {
    const struct backend_cuda_bounds bounds = {.rows_max = options->max_rows,
                                               .sequences_max = RIG_SLOTS,
                                               .positions_max = options->context_len,
                                               .activation = KERNEL_F32,
                                               .kv_dtype = KERNEL_BF16};
    size_t bytes;
    struct error err;
    enum status status = backend_cuda_workspace_bytes(weights, &bounds, options->device, &bytes,
                                                      &err);
    if (status != STATUS_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    return bytes;
}

static void keep(struct trace *trace, const struct step_result *result) {
    for (uint32_t i = 0; i < result->token_count && trace->token_count < TOKENS_MAX; i++)
        trace->token[trace->token_count++] = result->token[i];
}

/* A prompt in two chunks beside another, then single rows, then a tree beside one. */
static void drive(struct rig *rig, uint32_t rank, void *user) {
    struct trace *trace = user;
    static struct simt_report report;
    const struct golden_prompt *golden;
    uint32_t next[2];
    if (golden_data_prompts(&golden) < 2) exit(1);
    const uint32_t chunk = golden[0].id_count / 2 + 1;
    simt_begin(trace->schedule, &report);
    if (rank == 0) engine_capture_logits(rig->engine, trace->logits);
    float *elsewhere = NULL;
    if (rank != 0) {
        elsewhere = malloc(sizeof trace->logits);
        engine_capture_logits(rig->engine, elsewhere);
    }
    struct rig_piece piece[2] = {
        {.slot = 0, .token = golden[0].id, .count = chunk},
        {.slot = 3, .token = golden[1].id, .count = golden[1].id_count, .wants = true}};
    struct trace mine = {.token_count = 0};
    struct step_result result = rig_step(rig, piece, 2);
    keep(&mine, &result);
    if (rank == 0) trace->rows = piece[0].count + piece[1].count;
    engine_capture_logits(rig->engine, NULL);
    next[1] = result.token[result.sequence[1].token_begin];
    piece[0] = (struct rig_piece){.slot = 0,
                                  .token = golden[0].id + chunk,
                                  .count = golden[0].id_count - chunk,
                                  .wants = true};
    piece[1] = (struct rig_piece){.slot = 3, .token = &next[1], .count = 1, .wants = true};
    for (uint32_t step = 0; step < STEPS; step++) {
        result = rig_step(rig, piece, 2);
        keep(&mine, &result);
        for (uint32_t i = 0; i < 2; i++)
            next[i] = result.token[result.sequence[i].token_begin];
        piece[0].token = &next[0];
        piece[0].count = 1;
    }
    /* The reference's next tokens among wrong ones: two are accepted, and move in the cache, which
     * the last step reads. */
    const uint32_t *ahead = golden[0].greedy + STEPS;
    const uint32_t guess[5] = {next[0], 11, ahead[0], 12, ahead[1]};
    const uint32_t parent[5] = {UINT32_MAX, 0, 0, 1, 2};
    piece[0] = (struct rig_piece){
        .slot = 0, .token = guess, .count = 5, .wants = true, .parent = parent};
    result = rig_step(rig, piece, 2);
    keep(&mine, &result);
    for (uint32_t i = 0; i < 2; i++)
        next[i] = result.token[result.sequence[i].token_begin + result.sequence[i].token_count - 1];
    piece[0] = (struct rig_piece){.slot = 0, .token = &next[0], .count = 1, .wants = true};
    result = rig_step(rig, piece, 2);
    keep(&mine, &result);
    free(elsewhere);
    if (rank != 0) return;
    memcpy(trace->token, mine.token, sizeof mine.token);
    trace->token_count = mine.token_count;
    trace->failed = report.failed;
    memcpy(trace->text, report.text, sizeof report.text);
}

static struct trace *run(uint32_t tp, bool emulated, size_t schedule) {
    struct trace *trace = rig_shared_alloc(sizeof *trace);
    trace->schedule = simt_schedules[schedule].schedule;
    struct rig_options options = {.tp = tp,
                                  .threads = 1,
                                  .page_tok = 16,
                                  .max_rows = ROWS_MAX,
                                  .context_len = CONTEXT,
                                  .kv_dtype = KV_BF16,
                                  .shadow_hash = true};
    if (emulated) {
        options.backend = &backend_cuda;
        options.device = &simt_devices[1];
        options.workspace_bytes = workspace_bytes;
    }
    rig_fork_ranks(&options, drive, trace);
    if (trace->failed) fail_msg("%s", trace->text);
    return trace;
}

static void check_logits(const struct trace *got, const struct trace *want) {
    double worst = 0, largest = 0;
    for (uint32_t i = 0; i < want->rows * VOCAB; i++) {
        double difference = fabs((double)got->logits[i] - (double)want->logits[i]);
        largest = fmax(largest, fabs((double)want->logits[i]));
        if (!(difference <= worst)) worst = difference;
    }
    print_message("logits differ by at most %.2g of %.3g\n", worst, largest);
    assert_true(worst <= LOGIT_ERROR * largest);
    assert_true(worst > 0); /* other kernels, other sums: the same bits would be the same ones */
}

static void tokens_are_the_cpus(void **state) {
    (void)state;
    struct trace *want = run(1, false, 0);
    assert_int_equal(want->token_count, 1 + 2 * STEPS + (3 + 1) + 2);
    for (uint32_t tp = 1; tp <= 2; tp++) {
        struct trace *got = run(tp, true, tp % SIMT_ORDER_COUNT);
        check_logits(got, want);
        assert_int_equal(got->token_count, want->token_count);
        assert_memory_equal(got->token, want->token, want->token_count * sizeof want->token[0]);
        rig_shared_free(got, sizeof *got);
    }
    rig_shared_free(want, sizeof *want);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_are_the_cpus)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
