/* Small random models of every kind the loader accepts (q_proj or q_a, softmax or sigmoid routing,
 * with and without shared experts, BF16, F16, F32, INT4, FP8): the engine against a naive forward
 * pass, and against itself over ranks and chunks, to the bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "naive_model.h"
#include "rig.h"

#define TOKENS    21u
#define VOCAB_MAX 256u
#define TOLERANCE 2e-5 /* of the greatest logit */

struct run {
    uint32_t chunk;
    uint32_t token[TOKENS];
    float logits[TOKENS][VOCAB_MAX]; /* rank 0's */
};

/* A half not far from it: any will do. */
static uint16_t half_near(float value) {
    int exponent;
    double fraction = frexp(fabs((double)value), &exponent) * 2 - 1;
    if (value == 0 || exponent < -13) return 0;
    uint32_t bits = (uint32_t)(exponent + 14) << 10 | (uint32_t)(fraction * 1024);
    return (uint16_t)(bits | (value < 0 ? 0x8000u : 0));
}

/* Weights as a trained model has them, so that sums neither vanish nor explode: norms near 1,
 * matrices of about 1 / sqrt(columns). INT4 and FP8 values stay as they are and their scales
 * follow. */
static void tame(struct tensor_store *store) {
    for (uint32_t t = 0; t < store->count; t++) {
        struct store_tensor *tensor = &store->tensor[t];
        if (strcmp(tensor->dtype, "I32") == 0 || strcmp(tensor->dtype, "F8_E4M3") == 0) continue;
        bool vector = tensor->dims == 1, scale = strstr(tensor->name, "_scale") != NULL;
        bool blocks = strstr(tensor->name, "_scale_inv") != NULL;
        double columns = (double)tensor->shape[1] * (blocks ? 128 : scale ? 32 : 1);
        double size = vector ? 0.2 : 1.5 / sqrt(columns) / (blocks ? 80 : scale ? 8 : 1);
        bool bf16_type = strcmp(tensor->dtype, "BF16") == 0;
        bool f16_type = strcmp(tensor->dtype, "F16") == 0;
        for (uint64_t i = 0; i < tensor->bytes / (bf16_type || f16_type ? 2 : 4); i++) {
            double unit = (double)(hash_mix(t * 1000003 + i) >> 11) / 0x1p53 * 2 - 1;
            float value = (float)(scale ? size * (1 + 0.5 * unit) : size * unit + vector);
            if (bf16_type)
                ((uint16_t *)tensor->data)[i] = bf16_from_f32(value);
            else if (f16_type)
                ((uint16_t *)tensor->data)[i] = half_near(value);
            else
                ((float *)tensor->data)[i] = value;
        }
    }
}

static void run_rank(struct rig *rig, uint32_t rank, void *user) {
    struct run *run = user;
    uint32_t vocab = rig_vocab(rig);
    float captured[TOKENS * VOCAB_MAX];
    engine_capture_logits(rig->engine, captured);
    for (uint32_t position = 0; position < TOKENS; position += run->chunk) {
        uint32_t left = TOKENS - position;
        struct rig_piece piece = {.token = run->token + position,
                                  .count = run->chunk < left ? run->chunk : left};
        rig_step(rig, &piece, 1);
        for (uint32_t row = 0; row < piece.count && rank == 0; row++)
            memcpy(run->logits[position + row], captured + (size_t)row * vocab,
                   vocab * sizeof(float));
    }
}

static void run_shape(const char *folder, uint32_t tp, uint32_t chunk, struct run *run) {
    const struct rig_options options = {.model = folder,
                                        .tp = tp,
                                        .threads = 1,
                                        .page_tok = 16,
                                        .max_rows = TOKENS,
                                        .context_len = 64,
                                        .kv_dtype = KV_F32,
                                        .shadow_hash = true};
    run->chunk = chunk;
    rig_fork_ranks(&options, run_rank, run);
}

static void check_kind(const struct model_kind *kind, struct run *run, struct run *other) {
    struct tensor_store *store = model_fixture_store(kind);
    struct model_spec spec;
    struct error err;
    char folder[64];
    tame(store);
    model_fixture_write(kind, store, folder);
    assert_int_equal(model_spec_load(folder, &spec, &err), STATUS_OK);
    assert_in_range(spec.vocab, 1, VOCAB_MAX);
    for (uint32_t i = 0; i < TOKENS; i++)
        run->token[i] = other->token[i] = (uint32_t)(hash_mix(i) % spec.vocab);

    double *expected = calloc((size_t)TOKENS * spec.vocab, sizeof *expected);
    assert_non_null(expected);
    naive_model_logits(kind, store, &spec, run->token, TOKENS, expected);
    run_shape(folder, 1, TOKENS, run);
    double greatest = 0, worst = 0;
    for (uint32_t row = 0; row < TOKENS; row++)
        for (uint32_t i = 0; i < spec.vocab; i++) {
            double logit = expected[row * spec.vocab + i];
            greatest = fmax(greatest, fabs(logit));
            worst = fmax(worst, fabs(logit - (double)run->logits[row][i]));
        }
    if (!(worst < TOLERANCE * greatest))
        fail_msg("%s: a logit differs by %g, the greatest is %g", kind->name, worst, greatest);

    const struct { uint32_t tp, chunk; } shapes[] = {{2, TOKENS}, {4, 5}, {8, 1}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        run_shape(folder, shapes[s].tp, shapes[s].chunk, other);
        if (memcmp(run->logits, other->logits, sizeof run->logits) != 0)
            fail_msg("%s: %u ranks, chunks of %u: other logits", kind->name, shapes[s].tp,
                     shapes[s].chunk);
    }
    free(expected);
    tensor_store_destroy(store);
    folder_remove(folder);
}

static void test_every_kind(void **state) {
    (void)state;
    struct run *run = rig_shared_alloc(sizeof *run), *other = rig_shared_alloc(sizeof *other);
    for (uint32_t i = 0; i < model_kind_count; i++)
        check_kind(&model_kinds[i], run, other);
    rig_shared_free(run, sizeof *run);
    rig_shared_free(other, sizeof *other);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_kind)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
