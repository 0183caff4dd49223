/* The golden prompts of the embedded model: first logits and 64 greedy tokens against an
 * independent forward pass (ref.py), all prompts in one batch. Where the engine first draws another
 * token, its own two best logits must lie nearer than MARGIN: then both choices are right, and what
 * follows is another text. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "golden_data.h"
#include "rig.h"

#define MARGIN      1e-3
#define LOGIT_ERROR 1e-4
#define ROWS_MAX    1024u

/* One prompt on its way. */
struct walk {
    const struct golden_prompt *golden;
    uint32_t next;  /* token to feed */
    uint32_t drawn; /* equal to the reference so far */
    bool parted;
};

static void top_two(const float *logits, uint32_t vocab, float top_out[2]) {
    top_out[0] = top_out[1] = -INFINITY;
    for (uint32_t i = 0; i < vocab; i++) {
        if (logits[i] > top_out[0]) {
            top_out[1] = top_out[0];
            top_out[0] = logits[i];
        } else if (logits[i] > top_out[1]) {
            top_out[1] = logits[i];
        }
    }
}

static void check_first_logits(const struct golden_prompt *golden, const float *logits) {
    for (uint32_t i = 0; i < GOLDEN_TOP; i++) {
        double difference = fabs((double)logits[golden->top_id[i]] - golden->top_logit[i]);
        if (difference > LOGIT_ERROR)
            fail_msg("'%s': logit of %u is %.6f, the reference has %.6f", golden->prompt,
                     golden->top_id[i], (double)logits[golden->top_id[i]], golden->top_logit[i]);
    }
}

static void check_token(struct walk *walk, uint32_t token, const float *logits, uint32_t vocab) {
    const struct golden_prompt *golden = walk->golden;
    walk->next = token;
    if (walk->parted) return;
    if (token == golden->greedy[walk->drawn]) {
        walk->drawn++;
        return;
    }
    float top[2];
    top_two(logits, vocab, top);
    if ((double)(top[0] - top[1]) >= MARGIN)
        fail_msg("'%s': token %u is %u, the reference has %u; margin %g", golden->prompt,
                 walk->drawn, token, golden->greedy[walk->drawn], (double)(top[0] - top[1]));
    print_message("'%s' parts at token %u, margin %g\n", golden->prompt, walk->drawn,
                  (double)(top[0] - top[1]));
    walk->parted = true;
}

static void test_greedy_tokens(void **state) {
    (void)state;
    const struct golden_prompt *prompts;
    uint32_t count = golden_data_prompts(&prompts);
    assert_in_range(count, 1, RIG_SLOTS);
    const struct rig_options options = {.tp = 1,
                                        .threads = 2,
                                        .page_tok = 64,
                                        .max_rows = ROWS_MAX,
                                        .context_len = 256,
                                        .kv_dtype = KV_F32,
                                        .shadow_hash = true};
    struct rig *rig = rig_open(&options, 0, NULL);
    uint32_t vocab = rig_vocab(rig);
    float *logits = malloc((size_t)ROWS_MAX * vocab * sizeof(float));
    assert_non_null(logits);
    engine_capture_logits(rig->engine, logits);

    struct walk walk[RIG_SLOTS] = {0};
    struct rig_piece piece[RIG_SLOTS];
    uint32_t steps = prompts[0].greedy_count;
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(prompts[i].greedy_count, steps);
        walk[i].golden = &prompts[i];
        piece[i] = (struct rig_piece){
            .slot = i, .token = prompts[i].id, .count = prompts[i].id_count, .wants = true};
    }
    for (uint32_t step = 0; step < steps; step++) {
        struct step_result result = rig_step(rig, piece, count);
        uint32_t row = 0;
        for (uint32_t i = 0; i < count; i++) {
            row += piece[i].count;
            const float *last = logits + (size_t)(row - 1) * vocab;
            if (step == 0) check_first_logits(&prompts[i], last);
            check_token(&walk[i], result.token[result.sequence[i].token_begin], last, vocab);
            piece[i].token = &walk[i].next;
            piece[i].count = 1;
        }
    }
    uint32_t equal = 0;
    for (uint32_t i = 0; i < count; i++)
        equal += !walk[i].parted;
    print_message("%u of %u prompts equal over %u tokens\n", equal, count, steps);
    free(logits);
    rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_greedy_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
