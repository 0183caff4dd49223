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
#include "tame_weights.h"

#define TOKENS    21u
#define VOCAB_MAX 256u
#define TOLERANCE 2e-5 /* of the greatest logit */

struct run {
    uint32_t chunk;
    uint32_t token[TOKENS];
    float logits[TOKENS][VOCAB_MAX]; /* rank 0's */
};

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
    tame_weights(store);
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
