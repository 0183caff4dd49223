/* The embedded model and one as DeepSeek-V3 is by the GPU's kernels, emulated: every op of a step
 * in its place, at TP 1 to 8, with chunks, page borders and a draft tree, from a cache in bf16 and
 * in fp8, against the same steps on the CPU: the same tokens. Memory is the device's, which nobody
 * may touch between waits; ranks meet by NCCL's calls. The rungs of the self-test are climbed
 * through it, and pages looked at. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm_nccl.h"
#include "golden_data.h"
#include "gpu.h"
#include "rig.h"
#include "simt_cuda.h"
#include "simt_worlds.h"
#include "tensor_store.h"
#include "v3_model.h"

#define ROWS_MAX   32u
#define CONTEXT    128u
#define STEPS      6u
#define TOKENS_MAX 64u
#define VOCAB      4096u

/* Of the largest logit: queries, weights of attention and experts in bf16. A code is another one
 * where the least difference of a latent moves it over the middle between two. */
#define LOGIT_ERROR       2e-2
#define LOGIT_ERROR_FP8   3e-2
#define LOGPROB_ERROR     0.1f
#define LOGPROB_ERROR_FP8 0.3f

/* Between the best two logits of random weights, which need not be far apart as those of a trained
 * model: twice what kernels differ by. */
#define RANDOM_MARGIN 0.05f

/* What a run leaves, in memory that its ranks share. */
struct trace {
    const char *model; /* folder; NULL: the embedded one */
    uint32_t ahead[2]; /* what slot 0 says next after the steps, guessed for the tree */
    uint32_t token[TOKENS_MAX], token_count;
    float logprob[TOKENS_MAX];      /* of each, over the vocabulary of all ranks */
    float margin[TOKENS_MAX];       /* between the best two logits */
    uint32_t steps;                 /* of single rows; fewer than all: nothing behind them */
    uint32_t rows;                  /* of the first step, and */
    float logits[ROWS_MAX * VOCAB]; /* their logits */
    bool failed;
    char text[SIMT_TEXT_BYTES];
    struct simt_schedule schedule;
};

static struct device *open_device(void) {
    struct device *device;
    struct error err;
    if (gpu_open(0, &device, &err) == STATUS_OK) return device;
    fprintf(stderr, "%s\n", err.text);
    exit(1);
}

static void keep(struct trace *trace, const struct step_result *result) {
    uint32_t apart = result->token_count > 0 ? result->logprob_count / result->token_count : 0;
    for (uint32_t i = 0; i < result->token_count && trace->token_count < TOKENS_MAX; i++) {
        const struct token_logprob *own = result->logprob + i * apart;
        trace->logprob[trace->token_count] = own->logprob;
        trace->margin[trace->token_count] = own[1].logprob - own[2].logprob;
        trace->token[trace->token_count++] = result->token[i];
    }
}

/* What operators ask of a rank between steps. A layer is copied that is longer than the stride of
 * any copy may be. */
static void look(struct rig *rig) {
    static const uint32_t page[] = {0, 5, 1, 9, 12, 3, 7, 8};
    const struct control_examine order = {
        .generation = 7, .page = page, .page_count = 8, .rows = 4};
    struct examine_report report;
    struct error err;
    uint64_t *hash;
    struct simt_device plugged = simt_device_default;
    plugged.pitch_bytes_max = 4096;
    simt_cuda_plug(&plugged);
    if (engine_examine(rig->engine, &order, &report, &hash, &err) != STATUS_OK ||
        report.hash_count != 8 || report.attention_ns == 0 || report.read_ns == 0 ||
        strcmp(report.device, rig->device ? "emulated device" : report.device) != 0) {
        fprintf(stderr, "examine: %s\n", err.text);
        exit(1);
    }
    free(hash);
    simt_cuda_plug(&simt_device_default);
}

/* The self-test leaves zeros: no page differs from another. */
static void expect_a_wiped_pool(struct rig *rig) {
    static const uint32_t page[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    const uint32_t count = sizeof page / sizeof page[0];
    const struct control_examine order = {.page = page, .page_count = count};
    struct examine_report report;
    struct error err;
    uint64_t *hash;
    enum status status = engine_examine(rig->engine, &order, &report, &hash, &err);
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++)
        if (hash[i] != hash[0]) status = error_set(&err, STATUS_DATA_LOSS, "page %u differs", i);
    if (status != STATUS_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    free(hash);
}

static void climb(struct rig *rig) {
    struct self_test_progress progress = {0};
    struct error err;
    enum status status = engine_self_test(rig->engine, &progress, &err);
    if (status == STATUS_OK) status = engine_test_group(rig->engine, &progress, &err);
    if (status == STATUS_OK) {
        expect_a_wiped_pool(rig);
        return;
    }
    fprintf(stderr, "%s\n", err.text);
    exit(1);
}

static void verify_tree(struct rig *rig, const uint32_t ahead[2], struct rig_piece piece[2],
                        uint32_t next[2], struct trace *mine) {
    /* The next tokens among wrong ones: two are accepted, and move in the cache, which the last
     * step reads. */
    const uint32_t guess[5] = {next[0], 11, ahead[0], 12, ahead[1]};
    const uint32_t parent[5] = {UINT32_MAX, 0, 0, 1, 2};
    piece[0] = (struct rig_piece){
        .slot = 0, .token = guess, .count = 5, .wants = true, .parent = parent};
    struct step_result result = rig_step(rig, piece, 2);
    keep(mine, &result);
    for (uint32_t i = 0; i < 2; i++)
        next[i] = result.token[result.sequence[i].token_begin + result.sequence[i].token_count - 1];
    piece[0] = (struct rig_piece){.slot = 0, .token = &next[0], .count = 1, .wants = true};
    result = rig_step(rig, piece, 2);
    keep(mine, &result);
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
    climb(rig);
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
    for (uint32_t step = 0; step < trace->steps; step++) {
        result = rig_step(rig, piece, 2);
        keep(&mine, &result);
        for (uint32_t i = 0; i < 2; i++)
            next[i] = result.token[result.sequence[i].token_begin];
        piece[0].token = &next[0];
        piece[0].count = 1;
    }
    if (trace->steps == STEPS) verify_tree(rig, trace->ahead, piece, next, &mine);
    look(rig);
    free(elsewhere);
    if (rank != 0) return;
    memcpy(trace->token, mine.token, sizeof mine.token);
    memcpy(trace->logprob, mine.logprob, sizeof mine.logprob);
    memcpy(trace->margin, mine.margin, sizeof mine.margin);
    trace->token_count = mine.token_count;
    trace->failed = report.failed;
    memcpy(trace->text, report.text, sizeof report.text);
}

static struct trace *run_of(const char *model, uint32_t steps, const uint32_t ahead[2]) {
    struct trace *trace = rig_shared_alloc(sizeof *trace);
    trace->model = model;
    trace->steps = steps;
    if (ahead) memcpy(trace->ahead, ahead, sizeof trace->ahead);
    return trace;
}

static void run(struct trace *trace, uint32_t tp, enum kv_dtype kv_dtype, bool emulated,
                size_t schedule) {
    trace->schedule = simt_schedules[schedule].schedule;
    struct rig_options options = {.model = trace->model,
                                  .tp = tp,
                                  .threads = 1,
                                  .page_tok = 16,
                                  .max_rows = ROWS_MAX,
                                  .context_len = CONTEXT,
                                  .kv_dtype = kv_dtype,
                                  .shadow_hash = true};
    if (emulated) {
        options.open_device = open_device;
        options.comm = &comm_nccl;
    }
    rig_fork_ranks(&options, drive, trace);
    if (trace->failed) fail_msg("%s", trace->text);
}

static void check_logits(const struct trace *got, const struct trace *want, double tolerance) {
    double worst = 0, largest = 0;
    for (uint32_t i = 0; i < want->rows * VOCAB; i++) {
        double difference = fabs((double)got->logits[i] - (double)want->logits[i]);
        largest = fmax(largest, fabs((double)want->logits[i]));
        if (!(difference <= worst)) worst = difference;
    }
    print_message("logits differ by at most %.2g of %.3g\n", worst, largest);
    assert_true(worst <= tolerance * largest);
    assert_true(worst > 0); /* other kernels, other sums: the same bits would be the same ones */
}

/* What the CPU says, by such margins, is said by GPUs, of groups of these sizes (ended by 0). */
static void check_tokens(const char *model, enum kv_dtype kv_dtype, const uint32_t *tp,
                         float least_margin) {
    struct trace *plain = run_of(model, STEPS + 2, NULL);
    run(plain, 1, kv_dtype, false, 0);
    assert_int_equal(plain->token_count, 1 + 2 * (STEPS + 2));
    const uint32_t ahead[2] = {plain->token[1 + 2 * STEPS], plain->token[1 + 2 * (STEPS + 1)]};
    struct trace *want = run_of(model, STEPS, ahead);
    run(want, 1, kv_dtype, false, 0);
    assert_int_equal(want->token_count, 1 + 2 * STEPS + (3 + 1) + 2);
    for (uint32_t i = 0; i < want->token_count; i++)
        assert_true(want->margin[i] >= least_margin);
    for (; *tp > 0; tp++) {
        struct trace *got = run_of(model, *tp > 2 ? 1 : STEPS, ahead);
        run(got, *tp, kv_dtype, true, *tp % SIMT_ORDER_COUNT);
        check_logits(got, want, kv_dtype == KV_FP8 ? LOGIT_ERROR_FP8 : LOGIT_ERROR);
        assert_int_equal(got->token_count, *tp > 2 ? 1 + 2 : want->token_count);
        assert_memory_equal(got->token, want->token, got->token_count * sizeof want->token[0]);
        for (uint32_t i = 0; i < got->token_count; i++)
            assert_true(fabsf(got->logprob[i] - want->logprob[i]) <=
                        (kv_dtype == KV_FP8 ? LOGPROB_ERROR_FP8 : LOGPROB_ERROR));
        rig_shared_free(got, sizeof *got);
    }
    rig_shared_free(plain, sizeof *plain);
    rig_shared_free(want, sizeof *want);
}

static void tokens_are_the_cpus(void **state) {
    (void)state;
    check_tokens(NULL, KV_BF16, (const uint32_t[]){1, 2, 4, 0}, 0.0f);
}

static void tokens_from_records_are_the_cpus(void **state) {
    (void)state;
    check_tokens(NULL, KV_FP8, (const uint32_t[]){1, 0}, 0.0f);
}

static void another_model_says_what_it_does_on_the_cpu(void **state) {
    (void)state;
    char folder[64];
    v3_model_write(folder);
    check_tokens(folder, KV_BF16, (const uint32_t[]){1, 2, 8, 0}, RANDOM_MARGIN);
    check_tokens(folder, KV_FP8, (const uint32_t[]){2, 0}, RANDOM_MARGIN);
    folder_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_the_cpus), cmocka_unit_test(tokens_from_records_are_the_cpus),
        cmocka_unit_test(another_model_says_what_it_does_on_the_cpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
