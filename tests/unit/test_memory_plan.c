/* The plan against figures that were seen, against arithmetic done elsewhere, and against what the
 * worker really takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "memory_plan.h"
#include "model_fixture.h"
#include "scratch.h"
#include "slot_table.h"
#include "weights.h"

#define KIMI     ESPALIER_SOURCE_DIR "/tests/unit/configs/kimi-k2.6"
#define DFLASH   ESPALIER_SOURCE_DIR "/tests/unit/configs/kimi-k2.6-dflash"
#define EMBEDDED ESPALIER_SOURCE_DIR "/deploy/model"
#define GIB      1073741824.0

static void must(enum status status, const struct error *err) {
    if (status != STATUS_OK) fail_msg("%s: %s", status_name(status), err->text);
}

static struct model_spec spec_of(const char *folder) {
    struct model_spec spec;
    struct error err;
    must(model_spec_load(folder, &spec, &err), &err);
    return spec;
}

static const struct drafter_spec *dflash(const struct model_spec *target) {
    static struct drafter_spec spec;
    struct error err;
    must(drafter_spec_load(DFLASH, target, &spec, &err), &err);
    return &spec;
}

static struct memory_plan plan_of(const struct memory_request *request) {
    struct memory_plan plan;
    struct error err;
    must(memory_plan_make(request, &plan, &err), &err);
    return plan;
}

/* Eight cards of 96 GB, Kimi K2.6 in INT4 and its drafter, single-token pages: a service that was
 * started three times until its pool held what had been promised. */
static struct memory_request history(const struct model_spec *spec, double fraction,
                                     uint32_t max_running) {
    return (struct memory_request){
        .spec = spec,
        .draft = dflash(spec),
        .draft_as_target_layers = true,
        .layout = MEMORY_AS_STORED,
        .kv = KV_BF16,
        .tp = 8,
        .threads = 1,
        .context_len = 200000,
        .page_tok = 1,
        .max_running = max_running,
        .step_rows = 8192,
        .free_bytes = (uint64_t)(93.728 * GIB),
        .fraction = fraction,
        .resident_bytes = (uint64_t)(72.399 * GIB),
    };
}

static void expect_near(uint64_t found, uint64_t wanted, uint64_t slack, const char *what) {
    uint64_t off = found > wanted ? found - wanted : wanted - found;
    if (off > slack)
        fail_msg("%s: %llu, wanted %llu", what, (unsigned long long)found,
                 (unsigned long long)wanted);
}

static void test_three_boots(void **state) {
    (void)state;
    const struct model_spec spec = spec_of(KIMI);
    static const struct {
        double fraction;
        uint32_t max_running;
        uint64_t tokens;
        double headroom_gib;
    } boots[] = {{0.85, 64, 101134, 14.06}, {0.92, 8, 192406, 7.50}, {0.94, 8, 218484, 5.62}};
    for (size_t i = 0; i < sizeof boots / sizeof *boots; i++) {
        struct memory_request request = history(&spec, boots[i].fraction, boots[i].max_running);
        struct memory_plan plan = plan_of(&request);
        assert_int_equal(plan.token_bytes, 77184);
        expect_near(plan.pool_tok, boots[i].tokens, 2, "pool");
        assert_true((double)plan.headroom_bytes / GIB > boots[i].headroom_gib - 0.005);
        assert_true((double)plan.headroom_bytes / GIB < boots[i].headroom_gib + 0.005);
    }
}

/* What was seen free at the end, 4.38 GB, against the headroom: the lines explain a part. */
static void test_residual_of_the_last_boot(void **state) {
    (void)state;
    const struct model_spec spec = spec_of(KIMI);
    struct memory_request request = history(&spec, 0.94, 8);
    struct memory_plan plan = plan_of(&request);
    double gone_gib = (double)plan.headroom_bytes / GIB - 4.38;
    assert_true(gone_gib > 1.235 && gone_gib < 1.25);
    assert_int_equal(plan.line[MEMORY_PAGE_TABLE], UINT64_C(4) * 8 * 200064);
    assert_int_equal(plan.shortfall_bytes, 0);
}

static void test_other_prices_on_the_same_machine(void **state) {
    (void)state;
    const struct model_spec spec = spec_of(KIMI);
    struct memory_request request = history(&spec, 0.94, 8);
    request.draft_as_target_layers = false;
    struct memory_plan plan = plan_of(&request);
    assert_int_equal(plan.token_bytes, 70272 + 3072);
    expect_near(plan.pool_tok, 229922, 2, "a drafter's true price");

    request.kv = KV_FP8;
    plan = plan_of(&request);
    assert_int_equal(plan.token_bytes, 40016 + 3072);
    expect_near(plan.pool_tok, 391372, 2, "fp8");
    struct model_spec odd = spec; /* a short group's scale, and zeros to a multiple of 16 */
    odd.kv_rank = 144;
    odd.rope_dim = 16;
    request.spec = &odd;
    request.draft = NULL;
    assert_int_equal(plan_of(&request).token_bytes, 192 * odd.layers);

    /* The fraction does not look at running requests; what it leaves has to hold them. */
    request = history(&spec, 0.94, 64);
    struct memory_plan many = plan_of(&request);
    expect_near(many.pool_tok, 218484, 2, "64 running");
    assert_int_equal(many.line[MEMORY_PAGE_TABLE], UINT64_C(4) * 64 * 200064);
    request.draft = NULL;
    assert_int_equal(plan_of(&request).token_bytes, 70272);
}

static void test_smallest_fraction(void **state) {
    (void)state;
    const struct model_spec spec = spec_of(KIMI);
    struct memory_request request = history(&spec, 0.85, 8);
    struct memory_plan plan = plan_of(&request);
    double fraction = memory_plan_fraction_for(&request, &plan, 200000);
    assert_true(fraction > 0.9255 && fraction < 0.9265);
    request.fraction = fraction;
    assert_true(plan_of(&request).pool_tok >= 200000);
    request.fraction = fraction - 0.001;
    assert_true(plan_of(&request).pool_tok < 200000);
}

/* Module by module, as reckoned from the published tensor list. */
static void test_kimi_weights(void **state) {
    (void)state;
    static const uint64_t wanted[] = {
        [MEMORY_EXPERTS] = 63417876480,      [MEMORY_EXPERT_SCALES] = 7927234560,
        [MEMORY_ATTN_DOWN] = 1846935552,     [MEMORY_ATTN_Q] = 287834112,
        [MEMORY_ATTN_KV] = 127926272,        [MEMORY_ATTN_OUT] = 895483904,
        [MEMORY_SHARED_EXPERTS] = 660602880, [MEMORY_DENSE] = 99090432,
        [MEMORY_ROUTER] = 330393600,         [MEMORY_NORMS] = 2013184,
        [MEMORY_EMBED] = 293601280,          [MEMORY_HEAD] = 293601280,
    };
    const struct model_spec spec = spec_of(KIMI);
    struct memory_request request = history(&spec, 0.94, 8);
    request.draft = NULL;
    struct memory_plan plan = plan_of(&request);
    assert_int_equal(plan.parameters, 1026408232448);
    for (size_t line = 0; line < sizeof wanted / sizeof *wanted; line++)
        if (plan.line[line] != wanted[line])
            fail_msg("%s: %llu, wanted %llu", memory_line_info[line].key,
                     (unsigned long long)plan.line[line], (unsigned long long)wanted[line]);
    assert_int_equal(plan.weight_bytes, 76182593536);
}

/* 3,479,277,056 parameters, of which 101,888 are norms, whole on every rank. */
static void test_drafter(void **state) {
    (void)state;
    const struct model_spec spec = spec_of(KIMI);
    struct memory_request request = history(&spec, 0.94, 8);
    request.draft_as_target_layers = false;
    struct memory_plan plan = plan_of(&request);
    assert_int_equal(plan.line[MEMORY_DRAFT_WEIGHTS],
                     2 * ((UINT64_C(3479277056) - 101888) / 8 + 101888));
    assert_int_equal(plan.draft_token_bytes, 3072);
    assert_int_equal(plan.line[MEMORY_KV_DRAFT], 3072 * plan.pool_tok);
    request.tp = 1;
    assert_int_equal(plan_of(&request).line[MEMORY_DRAFT_WEIGHTS], UINT64_C(2) * 3479277056);
    assert_int_equal(plan_of(&request).draft_token_bytes, 8 * 3072);
}

/* Without a fraction everything has its place, and one page more has not. */
static void test_all_that_fits(void **state) {
    (void)state;
    const struct model_spec spec = spec_of(EMBEDDED);
    struct memory_request request = {.spec = &spec,
                                     .layout = MEMORY_PANELS,
                                     .tp = 2,
                                     .threads = 1,
                                     .context_len = 4096,
                                     .page_tok = 64,
                                     .max_running = 8,
                                     .step_rows = 520};
    for (uint64_t mib = 8; mib <= 256; mib += 8) {
        request.free_bytes = mib << 20;
        struct memory_plan plan = plan_of(&request);
        assert_int_equal(plan.pool_tok % 64, 0);
        assert_int_equal(plan.pool_bytes, memory_plan_kv_bytes(&request, plan.pool_tok));
        uint64_t room = request.free_bytes - request.free_bytes / 64;
        uint64_t table = 4 * 8 * (4096 + 64) / 64;
        uint64_t rest = plan.line[MEMORY_ACTIVATIONS] + plan.line[MEMORY_WORKSPACE] +
                        plan.line[MEMORY_COMM] + table;
        if (plan.pool_tok > 0) {
            assert_true(plan.weight_bytes + rest + plan.pool_bytes <= room);
            assert_int_equal(plan.shortfall_bytes, 0);
        } else {
            assert_true(plan.weight_bytes + rest + memory_plan_kv_bytes(&request, 64) > room);
        }
        assert_true(plan.weight_bytes + rest + memory_plan_kv_bytes(&request, plan.pool_tok + 64) >
                    room);
    }
}

/* ---- against the worker -------------------------------------------------------------------- */

static void check_loaded(const struct memory_request *request, const struct weights *weights) {
    struct memory_plan plan = plan_of(request);
    const struct model_spec *spec = request->spec;
    uint64_t tables = spec->layers * sizeof(struct layer_weights) +
                      (uint64_t)spec->layers * spec->experts * sizeof(struct moe_expert);
    uint64_t loaded = weights->bytes - tables;
    assert_true(loaded > plan.weight_bytes && loaded - plan.weight_bytes < sizeof *weights + 64);
    struct scratch scratch;
    struct error err;
    must(scratch_init(&scratch, weights, request->step_rows, request->threads, &err), &err);
    assert_int_equal(plan.line[MEMORY_ACTIVATIONS] + plan.line[MEMORY_WORKSPACE], scratch.bytes);
    scratch_deinit(&scratch);
}

static void check_folder(const char *folder, uint32_t tp) {
    const struct model_spec spec = spec_of(folder);
    struct safetensors *tensors;
    struct error err;
    must(safetensors_open(folder, &tensors, &err), &err);
    struct weights_progress progress = {0};
    struct weights *weights = NULL;
    enum status loads = weights_load(NULL, &spec, tensors, tp - 1, tp, 2, &progress, &weights,
                                     &err);
    struct memory_request request = {.spec = &spec,
                                     .tensors = tensors,
                                     .layout = MEMORY_PANELS,
                                     .tp = tp,
                                     .threads = tp + 1,
                                     .context_len = 100,
                                     .page_tok = 4,
                                     .max_running = 3,
                                     .step_rows = 37};
    struct memory_plan plan;
    if (loads == STATUS_OK)
        check_loaded(&request, weights);
    else
        assert_int_not_equal(memory_plan_make(&request, &plan, &err), STATUS_OK);
    weights_destroy(&weights);
    safetensors_close(&tensors);
}

static void test_as_the_worker_loads(void **state) {
    (void)state;
    for (uint32_t i = 0; i < model_kind_count; i++) {
        struct tensor_store *store = model_fixture_store(&model_kinds[i]);
        char folder[64];
        model_fixture_write(&model_kinds[i], store, folder);
        for (uint32_t tp = 1; tp <= TP_MAX; tp *= 2)
            check_folder(folder, tp);
        folder_remove(folder);
        tensor_store_destroy(store);
    }
    for (uint32_t tp = 1; tp <= TP_MAX; tp *= 2)
        check_folder(EMBEDDED, tp);
}

static void test_config_alone(void **state) {
    (void)state;
    const struct model_spec spec = spec_of(EMBEDDED);
    struct memory_request request = {.spec = &spec,
                                     .layout = MEMORY_PANELS,
                                     .tp = 2,
                                     .threads = 1,
                                     .context_len = 4096,
                                     .page_tok = 64,
                                     .max_running = 8,
                                     .step_rows = 520,
                                     .free_bytes = 64 << 20};
    struct memory_plan alone = plan_of(&request);
    struct error err;
    struct safetensors *tensors;
    must(safetensors_open(EMBEDDED, &tensors, &err), &err);
    request.tensors = tensors;
    struct memory_plan with_headers = plan_of(&request);
    assert_memory_equal(alone.line, with_headers.line, sizeof alone.line);
    safetensors_close(&tensors);
}

static void test_refusals(void **state) {
    (void)state;
    const struct model_spec spec = spec_of(KIMI);
    struct memory_request request = history(&spec, 0.94, 8);
    struct memory_plan plan;
    struct error err;
    request.tp = 3;
    assert_int_equal(memory_plan_make(&request, &plan, &err), STATUS_INVALID_ARGUMENT);
    request.tp = 8;
    struct safetensors *other;
    must(safetensors_open(EMBEDDED, &other, &err), &err);
    request.tensors = other;
    assert_int_equal(memory_plan_make(&request, &plan, &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, "lacks tensor model.layers.1.mlp.experts.16."));
    safetensors_close(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_three_boots),
        cmocka_unit_test(test_residual_of_the_last_boot),
        cmocka_unit_test(test_other_prices_on_the_same_machine),
        cmocka_unit_test(test_smallest_fraction),
        cmocka_unit_test(test_kimi_weights),
        cmocka_unit_test(test_drafter),
        cmocka_unit_test(test_all_that_fits),
        cmocka_unit_test(test_as_the_worker_loads),
        cmocka_unit_test(test_config_alone),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
