/* Weights that are loaded into an emulated device, a bounded stage at a time: bit for bit those of
 * the host, padding included, of every rank and format, and a drafter's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "drafter_weights.h"
#include "gpu.h"

#define MODEL_OF(below) ESPALIER_SOURCE_DIR "/" below

static struct weights *load(struct device *device, const char *model, uint32_t rank, uint32_t tp) {
    struct model_spec spec;
    struct safetensors *checkpoint;
    struct weights_progress progress = {0};
    struct weights *weights = NULL;
    struct error err;
    enum status status = model_spec_load(model, &spec, &err);
    if (status == STATUS_OK) status = safetensors_open(model, &checkpoint, &err);
    if (status == STATUS_OK)
        status = weights_load(device, &spec, checkpoint, rank, tp, 3, &progress, &weights, &err);
    if (status != STATUS_OK) fail_msg("%s", err.text);
    assert_true(progress.bytes > 0 && progress.bytes == progress.bytes_total);
    safetensors_close(&checkpoint);
    return weights;
}

/* One array of both, and where. */
struct comparison {
    struct device *device;
    char where[96];
};

static void compare(const struct comparison *comparison, const char *what, const void *there,
                    const void *here, size_t bytes) {
    const void *look;
    struct error err;
    if (bytes == 0) return;
    assert_int_equal(device_look(comparison->device, there, bytes, &look, &err), STATUS_OK);
    for (size_t i = 0; i < bytes; i++)
        if (((const uint8_t *)look)[i] != ((const uint8_t *)here)[i])
            fail_msg("%s: %s differs at byte %zu of %zu", comparison->where, what, i, bytes);
    device_looked(comparison->device, look);
}

static void compare_linear(const struct comparison *comparison, const char *what,
                           const struct linear_weight *there, const struct linear_weight *here,
                           uint32_t batch) {
    assert_int_equal(there->format, here->format);
    assert_true(there->n == here->n && there->k == here->k);
    compare(comparison, what, there->data, here->data,
            batch * linear_data_bytes(here->format, here->n, here->k));
    compare(comparison, what, there->scale, here->scale,
            batch * linear_scale_bytes(here->format, here->n, here->k));
}

static void compare_layer(const struct comparison *comparison, const struct weights *weights,
                          const struct layer_weights *there, const struct layer_weights *here) {
    const struct model_spec *spec = &weights->spec;
    compare(comparison, "input_norm", there->input_norm, here->input_norm, spec->hidden * 4u);
    if (spec->q_rank > 0) compare_linear(comparison, "q_a", &there->q_a, &here->q_a, 1);
    compare_linear(comparison, "q_b", &there->q_b, &here->q_b, 1);
    compare_linear(comparison, "kv_a", &there->kv_a, &here->kv_a, 1);
    compare_linear(comparison, "w_uk", &there->w_uk, &here->w_uk, weights->heads);
    compare_linear(comparison, "w_uv", &there->w_uv, &here->w_uv, weights->heads);
    compare_linear(comparison, "o", &there->o, &here->o, 1);
    compare_linear(comparison, "gate_up", &there->mlp_gate_up, &here->mlp_gate_up, 1);
    compare_linear(comparison, "down", &there->mlp_down, &here->mlp_down, 1);
    if (here->dense) return;
    compare_linear(comparison, "router", &there->router, &here->router, 1);
    if (here->router_bias)
        compare(comparison, "bias", there->router_bias, here->router_bias, spec->experts * 4u);
    for (uint32_t e = 0; e < spec->experts; e++) {
        compare_linear(comparison, "expert gate_up", &there->experts[e].gate_up,
                       &here->experts[e].gate_up, 1);
        compare_linear(comparison, "expert down", &there->experts[e].down, &here->experts[e].down,
                       1);
    }
    compare(comparison, "experts", there->experts_of_ops, there->experts,
            spec->experts * sizeof *there->experts);
}

static void compare_rank(const char *model, uint32_t rank, uint32_t tp) {
    struct comparison comparison;
    struct error err;
    assert_int_equal(gpu_open(0, &comparison.device, &err), STATUS_OK);
    struct weights *there = load(comparison.device, model, rank, tp);
    struct weights *here = load(NULL, model, rank, tp);
    assert_int_equal(there->bytes, here->bytes);
    snprintf(comparison.where, sizeof comparison.where, "rank %u of %u", rank, tp);
    size_t value_bytes = here->embed_dtype == KERNEL_BF16 ? sizeof(bf16) : sizeof(float);
    compare(&comparison, "embed", there->embed, here->embed,
            (size_t)here->vocab_count * here->spec.hidden * value_bytes);
    compare(&comparison, "final_norm", there->final_norm, here->final_norm, here->spec.hidden * 4u);
    compare_linear(&comparison, "head", &there->head, &here->head, 1);
    for (uint32_t l = 0; l < here->spec.layers; l++) {
        snprintf(comparison.where, sizeof comparison.where, "rank %u of %u, layer %u", rank, tp, l);
        compare_layer(&comparison, here, &there->layer[l], &here->layer[l]);
    }
    weights_destroy(&here);
    weights_destroy(&there);
    device_close(&comparison.device);
}

static void they_are_the_hosts(void **state) {
    (void)state;
    static const char *const models[] = {
        MODEL_OF("deploy/model"), MODEL_OF("tests/golden/checkpoints/k2-fp8"),
        MODEL_OF("tests/golden/checkpoints/f16"), MODEL_OF("tests/golden/checkpoints/v2-lite")};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (uint32_t tp = 1; tp <= (i == 0 ? 8u : 2u); tp *= 2)
            for (uint32_t rank = 0; rank<tp; rank += tp> 1 ? tp - 1 : 1)
                compare_rank(models[i], rank, tp);
}

static struct drafter_weights *load_drafter(struct device *device, uint32_t rank, uint32_t tp) {
    const char *folder = MODEL_OF("deploy/drafter");
    struct model_spec target;
    struct drafter_spec spec;
    struct safetensors *checkpoint;
    struct weights_progress progress = {0};
    struct drafter_weights *weights = NULL;
    struct error err;
    enum status status = model_spec_load(MODEL_OF("deploy/model"), &target, &err);
    if (status == STATUS_OK) status = drafter_spec_load(folder, &target, &spec, &err);
    if (status == STATUS_OK) status = safetensors_open(folder, &checkpoint, &err);
    if (status == STATUS_OK)
        status = drafter_weights_load(device, &spec, checkpoint, rank, tp, 2, &progress, &weights,
                                      &err);
    if (status != STATUS_OK) fail_msg("%s", err.text);
    safetensors_close(&checkpoint);
    return weights;
}

static void compare_draft_layer(const struct comparison *comparison,
                                const struct drafter_spec *spec,
                                const struct drafter_layer_weights *there,
                                const struct drafter_layer_weights *here) {
    compare(comparison, "input_norm", there->input_norm, here->input_norm, spec->hidden * 4u);
    compare(comparison, "post_norm", there->post_norm, here->post_norm, spec->hidden * 4u);
    compare(comparison, "q_norm", there->q_norm, here->q_norm, spec->head_dim * 4u);
    compare(comparison, "k_norm", there->k_norm, here->k_norm, spec->head_dim * 4u);
    compare_linear(comparison, "q", &there->q, &here->q, 1);
    compare_linear(comparison, "k", &there->k, &here->k, 1);
    compare_linear(comparison, "v", &there->v, &here->v, 1);
    compare_linear(comparison, "o", &there->o, &here->o, 1);
    compare_linear(comparison, "gate_up", &there->gate_up, &here->gate_up, 1);
    compare_linear(comparison, "down", &there->down, &here->down, 1);
}

static void a_drafters_are_too(void **state) {
    (void)state;
    for (uint32_t tp = 1; tp <= 8; tp *= 2) {
        struct comparison comparison = {.where = "drafter"};
        struct error err;
        assert_int_equal(gpu_open(0, &comparison.device, &err), STATUS_OK);
        struct drafter_weights *there = load_drafter(comparison.device, tp - 1, tp);
        struct drafter_weights *here = load_drafter(NULL, tp - 1, tp);
        const struct drafter_spec *spec = &here->spec;
        assert_int_equal(there->bytes, here->bytes);
        compare_linear(&comparison, "fc", &there->fc, &here->fc, 1);
        compare(&comparison, "hidden_norm", there->hidden_norm, here->hidden_norm,
                spec->hidden * 4u);
        compare(&comparison, "norm", there->norm, here->norm, spec->hidden * 4u);
        for (uint32_t l = 0; l < spec->layers; l++)
            compare_draft_layer(&comparison, spec, &there->layer[l], &here->layer[l]);
        drafter_weights_destroy(&here);
        drafter_weights_destroy(&there);
        device_close(&comparison.device);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_are_the_hosts),
        cmocka_unit_test(a_drafters_are_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
