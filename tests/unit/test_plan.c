/* What `espalier plan` makes of a case, an intent and a log. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "plan_calibrate.h"
#include "plan_case.h"

#define KIMI   ESPALIER_SOURCE_DIR "/tests/unit/configs/kimi-k2.6"
#define DFLASH ESPALIER_SOURCE_DIR "/tests/unit/configs/kimi-k2.6-dflash"
#define GIB    1073741824.0

/* Kimi K2.6 and its drafter on a rank of eight, everything else open. */
static struct plan_case *kimi(void) {
    struct plan_case *c = calloc(1, sizeof *c);
    assert_non_null(c);
    *c = (struct plan_case){.request = {.layout = MEMORY_AS_STORED,
                                        .kv = KV_BF16,
                                        .tp = 8,
                                        .threads = 1,
                                        .context_len = 200000,
                                        .page_tok = 1},
                            .running = 8,
                            .running_cap = 1, /* as many as run */
                            .chunk_tok = 512,
                            .tree_rows = 1};
    struct error err;
    if (model_spec_load(KIMI, &c->spec, &err) != STATUS_OK) fail_msg("%s", err.text);
    static struct drafter_spec drafter;
    if (drafter_spec_load(DFLASH, &c->spec, &drafter, &err) != STATUS_OK) fail_msg("%s", err.text);
    c->request.draft = &drafter;
    return c;
}

static void make(struct plan_case *c) {
    struct error err;
    if (plan_case_make(c, &err) != STATUS_OK) fail_msg("%s", err.text);
}

/* ---- intent -------------------------------------------------------------------------------- */

static void test_intent_is_read(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint32_t count; /* 0: refused */
        uint64_t tok_count;
    } rows[] = {
        {"200k", 1, 200000},
        {"200,000", 1, 200000},
        {"8x25k", 8, 25000},
        {"8x25,000", 8, 25000},
        {"2x128K", 2, 131072},
        {"1m", 1, 1000000},
        {"1", 1, 1},
        {"1024x1", 1024, 1},
        {"", 0, 0},
        {"x25k", 0, 0},
        {"8x", 0, 0},
        {"8x25kk", 0, 0},
        {"0x25k", 0, 0},
        {"8x0", 0, 0},
        {"-1", 0, 0},
        {"1025x1", 0, 0},
        {"5m", 0, 0},
        {"8X25k", 0, 0},
        {"1.5k", 0, 0},
        {"8x25k ", 0, 0},
        {"18446744073709551615", 0, 0},
        {"99999999999999999999x1", 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct plan_want want = {0};
        struct error err;
        enum status status = plan_want_parse(rows[i].text, &want, &err);
        if (rows[i].count == 0) {
            assert_int_equal(status, STATUS_INVALID_ARGUMENT);
            assert_non_null(strstr(err.text, "--want: found"));
            continue;
        }
        if (status != STATUS_OK) fail_msg("%s: %s", rows[i].text, err.text);
        assert_int_equal(want.count, rows[i].count);
        assert_int_equal(want.tok_count, rows[i].tok_count);
    }
}

/* An answer's flags, planned again, hold what was wanted; one thousandth less does not. */
static void test_an_answer_holds(void **state) {
    (void)state;
    static const char *const texts[] = {"8x25k", "200k", "64x3000", "1x1", "3x70001"};
    struct plan_case *c = kimi();
    c->request.free_bytes = (uint64_t)(93.728 * GIB);
    for (uint32_t page_tok = 1; page_tok <= 64; page_tok *= 64)
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            c->request.page_tok = page_tok;
            make(c);
            struct plan_want want;
            struct plan_answer answer;
            struct error err;
            assert_int_equal(plan_want_parse(texts[i], &want, &err), STATUS_OK);
            assert_int_equal(plan_want_answer(c, &want, &answer, &err), STATUS_OK);
            assert_true(answer.fits && answer.fits_as_fp8);
            assert_int_equal(answer.fitting_count, want.count);
            assert_int_equal(answer.fitting_tok, want.tok_count);
            struct plan_case *started = kimi();
            started->request = c->request;
            started->running = want.count;
            started->request.context_len = (uint32_t)want.tok_count;
            started->request.fraction = answer.fraction;
            make(started);
            uint64_t each = memory_plan_request_tok(&started->request, want.tok_count);
            assert_true(started->plan.pool_tok >= want.count * each);
            assert_int_equal(started->plan.shortfall_bytes, 0);
            started->request.fraction = answer.fraction - 0.001;
            make(started);
            assert_true(started->plan.pool_tok < want.count * each);
            free(started);
        }
    free(c);
}

/* Where it does not fit, what is offered instead does, and a step further does not. */
static void test_an_alternative_fits(void **state) {
    (void)state;
    struct plan_case *c = kimi();
    c->request.free_bytes = (uint64_t)(93.728 * GIB);
    make(c);
    struct plan_want want = {.count = 4, .tok_count = 200000}, other;
    struct plan_answer answer, again;
    struct error err;
    assert_int_equal(plan_want_answer(c, &want, &answer, &err), STATUS_OK);
    assert_true(!answer.fits && !answer.fits_as_fp8);
    assert_int_equal(answer.fitting_count, 1);
    other = (struct plan_want){4, answer.fitting_tok};
    assert_int_equal(plan_want_answer(c, &other, &again, &err), STATUS_OK);
    assert_true(again.fits);
    other.tok_count++;
    assert_int_equal(plan_want_answer(c, &other, &again, &err), STATUS_OK);
    assert_true(!again.fits);
    other = (struct plan_want){2, 200000};
    assert_int_equal(plan_want_answer(c, &other, &again, &err), STATUS_OK);
    assert_true(!again.fits && again.fits_as_fp8);
    other = (struct plan_want){1, 262145};
    assert_int_equal(plan_want_answer(c, &other, &again, &err), STATUS_INVALID_ARGUMENT);
    free(c);
}

/* Memory for exactly two requests holds two; a byte less holds one. */
static void test_requests_fit_to_the_byte(void **state) {
    (void)state;
    struct plan_case *c = kimi(), *two = kimi();
    two->running = 2;
    two->request.pool_tok = 400000;
    make(two);
    c->request.free_bytes = two->plan.resident_bytes + two->plan.pool_bytes + two->plan.other_bytes;
    make(c);
    const struct plan_want want = {.count = 5, .tok_count = 200000};
    struct plan_answer answer;
    struct error err;
    assert_int_equal(plan_want_answer(c, &want, &answer, &err), STATUS_OK);
    assert_int_equal(answer.fitting_count, 2);
    c->request.free_bytes--;
    make(c);
    assert_int_equal(plan_want_answer(c, &want, &answer, &err), STATUS_OK);
    assert_int_equal(answer.fitting_count, 1);
    free(two);
    free(c);
}

static int64_t knob(const struct plan_case *c, const char *text) {
    struct plan_knob knobs[PLAN_KNOBS_MAX];
    uint32_t count = plan_case_knobs(c, knobs);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(knobs[i].text, text) == 0) return knobs[i].tokens;
    fail_msg("no knob %s", text);
    return 0;
}

static void test_knobs(void **state) {
    (void)state;
    struct plan_case *c = kimi();
    c->request.free_bytes = (uint64_t)(93.728 * GIB);
    c->request.resident_bytes = (uint64_t)(72.399 * GIB);
    c->request.fraction = 0.94;
    c->request.draft_as_target_layers = true;
    make(c);
    assert_in_range(knob(c, "--mem-fraction-static +0.01"), 13038, 13039);
    assert_in_range(knob(c, "--draft-pricing true"), 229922 - 218484 - 2, 229922 - 218484 + 2);
    /* A row of a page table of 200,064 entries, and of activations. */
    int64_t running = knob(c, "--max-running-cap +1");
    assert_true(running <= -10 && running >= -20);
    /* Eight rows of activations. */
    assert_true(knob(c, "one more tree row a request") < 0);
    assert_true(knob(c, "--page-size 64") > 0);
    /* Where all that fits is taken, a running request costs the pool what it is said to cost. */
    c->request.fraction = 0;
    make(c);
    int64_t before = (int64_t)c->plan.pool_tok, said = knob(c, "--max-running-cap +1");
    c->running++;
    make(c);
    int64_t cost = (int64_t)c->plan.pool_tok - before;
    assert_true(cost <= said + 1 && cost >= said - 1);
    /* Below the cap a further one costs nothing; the cap is what is laid out. */
    c->running_cap = 32;
    make(c);
    assert_int_equal(c->request.max_running, 32);
    before = (int64_t)c->plan.pool_tok;
    c->running++;
    make(c);
    assert_int_equal(c->plan.pool_tok, before);
    c->running_cap = 0;
    make(c);
    assert_int_equal(c->plan.pool_tok, before);
    free(c);
}

/* ---- calibration --------------------------------------------------------------------------- */

static struct plan_calibration *calibrate(const char *text, struct plan_case *c) {
    char path[] = "/tmp/plan-log-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    struct plan_calibration *k = calloc(1, sizeof *k);
    struct error err;
    assert_non_null(k);
    make(c);
    enum status status = plan_calibrate_read(path, k, &err);
    if (status == STATUS_OK) status = plan_calibrate_fit(k, c, &err);
    unlink(path);
    if (status != STATUS_OK) fail_msg("%s", err.text);
    return k;
}

#define LOADS                                                                                      \
    "[10:00 TP0] Load weight begin. avail mem=93.90 GB\n"                                          \
    "[10:00 TP3] Load weight begin. avail mem=93.73 GB\n"                                          \
    "[10:05 TP3] Load weight end. type=X, avail mem=22.14 GB, mem usage=71.59 GB.\n"               \
    "[10:06 TP3] Load weight end. type=DFlash, avail mem=21.33 GB, mem usage=0.81 GB.\n"           \
    "[10:06 TP0] Load weight end. type=DFlash, avail mem=21.50 GB, mem usage=0.81 GB.\n"
#define ARGS(fraction) "server_args=ServerArgs(mem_fraction_static=" fraction ", tp_size=8)\n"
#define POOL(tokens, running)                                                                      \
    "[10:07 TP0] max_total_num_tokens=" tokens ", chunked_prefill_size=8192, "                     \
    "max_prefill_tokens=16384, max_running_requests=" running ", context_len=200000, "             \
    "available_gpu_mem=4.24 GB\n"

/* Three boots lie on one line, whose slope and intercept give back the machine. */
static void test_three_boots_are_fitted(void **state) {
    (void)state;
    struct plan_case *c = kimi();
    struct plan_calibration *k = calibrate(
        ARGS("0.85") LOADS POOL("101134", "64") ARGS("0.92") LOADS POOL("192406", "8") ARGS("0.94")
            LOADS "[10:07 TP3] Memory pool end. avail mem=4.38 GB\n" POOL("218484", "8"),
        c);
    assert_int_equal(k->boot_count, 3);
    assert_int_equal(k->boot[0].max_running, 64);
    assert_true(k->boot[1].begin_gib == 93.73 && k->boot[1].loaded_gib == 21.33);
    assert_true(k->worst_tok < 1);
    assert_true(k->priced_as_target_layers);
    assert_int_equal(k->token_bytes, 77184);
    assert_true((double)k->free_bytes / GIB > 93.727 && (double)k->free_bytes / GIB < 93.729);
    assert_true((double)k->resident_bytes / GIB > 72.398 &&
                (double)k->resident_bytes / GIB < 72.400);
    double gone = (double)(k->headroom_bytes - k->pool_end_bytes) / GIB;
    assert_true(gone > 1.24 && gone < 1.25);
    /* And the case is planned with them. */
    c->request.fraction = 0.94;
    make(c);
    assert_in_range(c->plan.pool_tok, 218482, 218486);
    free(k);
    free(c);
}

/* One boot: what was logged gives the price to the last digit that was logged. */
static void test_one_boot_is_fitted(void **state) {
    (void)state;
    struct plan_case *c = kimi();
    struct plan_calibration *k = calibrate(LOADS ARGS("0.94") POOL("229922", "8"), c);
    assert_int_equal(k->boot_count, 1);
    assert_false(k->priced_as_target_layers);
    assert_int_equal(k->token_bytes, 73344);
    assert_true(k->tokens_per_fraction == 0);
    free(k);
    free(c);
}

static void test_own_ledger_is_read(void **state) {
    (void)state;
    struct plan_case *c = kimi();
    struct plan_calibration *k = calibrate(
        "t level=info comp=worker rank=0 boot=x event=memory line=experts predicted_bytes=100 "
        "measured_bytes=110 off_percent=10.0\n"
        "t level=info comp=worker rank=1 boot=x event=memory line=experts predicted_bytes=100 "
        "measured_bytes=120 off_percent=20.0\n"
        "t level=info comp=worker rank=1 boot=x event=memory line=head predicted_bytes=7 "
        "measured_bytes=8 off_percent=9.0\n"
        "t level=info comp=worker rank=1 boot=x event=memory_total resident_bytes=200 "
        "residual_bytes=72 mem_fraction_static=0.5\n"
        "t level=info comp=coordinator boot=x max_total_num_tokens=4096, context_len=1024\n"
        "t level=info comp=worker rank=1 boot=x event=memory_total resident_bytes=200 "
        "residual_bytes=70 mem_fraction_static=0.25\n" /* of a resize */
        "t level=info comp=worker rank=1 boot=y event=memory_total resident_bytes=200 "
        "residual_bytes=72 mem_fraction_static=0.75\n"
        "t level=info comp=coordinator boot=y max_total_num_tokens=8192, context_len=1024\n",
        c);
    assert_int_equal(k->boot_count, 2);
    assert_true(k->boot[0].fraction == 0.5 && k->boot[1].fraction == 0.75);
    assert_true(k->boot[0].pool_tok == 4096 && k->boot[1].pool_tok == 8192);
    assert_true(fabs(k->tokens_per_fraction - 16384) < 1e-6);
    assert_int_equal(k->measured[MEMORY_EXPERTS], 120);
    assert_int_equal(k->predicted[MEMORY_EXPERTS], 100);
    assert_int_equal(k->resident_bytes, 128);
    assert_int_equal(k->residual_bytes, 72);
    free(k);
    free(c);
}

/* A rank's lines say what it held of the model; a plan with fewer ranks holds more. */
static void test_a_log_of_more_ranks_is_refused(void **state) {
    (void)state;
    struct plan_case *c = kimi();
    struct plan_calibration k = {.boot_count = 1, .rank_count = 5};
    struct error err;
    c->request.tp = 4;
    make(c);
    assert_int_equal(plan_calibrate_fit(&k, c, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.text,
                        "--calibrate: found lines of rank 4, accepted: of those below --tp 4");
    k.rank_count = 4;
    assert_int_equal(plan_calibrate_fit(&k, c, &err), STATUS_OK);
    free(c);
}

static void test_other_files_are_refused(void **state) {
    (void)state;
    struct plan_calibration *k = calloc(1, sizeof *k);
    struct error err;
    assert_int_equal(plan_calibrate_read("/nowhere", k, &err), STATUS_NOT_FOUND);
    assert_int_equal(plan_calibrate_read(KIMI "/config.json", k, &err), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "no line about memory"));
    free(k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_intent_is_read),
        cmocka_unit_test(test_an_answer_holds),
        cmocka_unit_test(test_an_alternative_fits),
        cmocka_unit_test(test_requests_fit_to_the_byte),
        cmocka_unit_test(test_knobs),
        cmocka_unit_test(test_three_boots_are_fitted),
        cmocka_unit_test(test_one_boot_is_fitted),
        cmocka_unit_test(test_own_ledger_is_read),
        cmocka_unit_test(test_a_log_of_more_ranks_is_refused),
        cmocka_unit_test(test_other_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
