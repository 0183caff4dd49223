/* The exactness contract: the logits of a token are a function of its prefix, to the last bit.
 *
 * One text is run in many shapes (ranks, threads, chunks of the prompt, company in the batch, page
 * sizes) and then continued by tokens drawn, random and greedy by turns, with penalties or without.
 * Every shape must give the bits of the first, on every rank. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "golden_data.h"
#include "rig.h"

#define PROMPT_TOKENS 150u
#define DRAWN_TOKENS  6u
#define ROWS          (PROMPT_TOKENS + DRAWN_TOKENS - 1)
#define COMPANIONS    3u
#define STEP_ROWS_MAX (PROMPT_TOKENS + COMPANIONS * 40u)
#define VOCAB_MAX     8192u

struct shape {
    const char *name;
    uint32_t tp, threads;
    uint32_t chunk; /* prompt tokens a step */
    bool company;   /* other sequences in every step */
    uint32_t page_tok;
    enum kv_dtype kv_dtype;
    const struct rig_penalties *penalties;
    enum activation_dtype activation_dtype;
};

/* What a run left; in memory shared by its ranks. */
struct trace {
    const struct shape *shape;
    uint64_t rank_hash[TP_MAX]; /* of all logits and tokens, as each rank saw them */
    uint32_t token[DRAWN_TOKENS];
    uint32_t vocab;
    float logits[ROWS][VOCAB_MAX]; /* rank 0's */
};

static const uint32_t *text;
static enum prefill_form form; /* of the shapes that are run */

/* Sequences that share the batch: they begin at other times and end at others. */
static uint32_t add_company(uint32_t step, struct rig_piece *piece) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < COMPANIONS; i++) {
        uint32_t rows = 1 + (step * 7 + i * 13) % 40;
        if ((step + i) % 4 == 3) continue;
        piece[count++] = (struct rig_piece){.slot = 1 + i,
                                            .token = text + 1000 * (i + 1) + step,
                                            .count = step < 4 ? rows : 1,
                                            .wants = (step & 1) != 0,
                                            .temperature = 1,
                                            .seed = i};
    }
    return count;
}

/* One step with `count` tokens of the text at stake; returns the token drawn. */
static uint32_t step_once(struct rig *rig, const struct shape *shape, const uint32_t *token,
                          uint32_t count, uint32_t position, bool random, const float *captured,
                          struct trace *trace, uint32_t rank) {
    struct rig_piece piece[1 + COMPANIONS];
    uint32_t before = 0, pieces = 0;
    if (shape->company) pieces = add_company((uint32_t)rig->step, piece);
    for (uint32_t i = 0; i < pieces; i++)
        before += piece[i].count;
    piece[pieces++] = (struct rig_piece){.slot = 9,
                                         .token = token,
                                         .count = count,
                                         .wants = position + count >= PROMPT_TOKENS,
                                         .temperature = random ? 2 : 0,
                                         .seed = 1234,
                                         .penalties = shape->penalties};
    struct step_result result = rig_step(rig, piece, pieces);
    size_t row_bytes = trace->vocab * sizeof(float);
    for (uint32_t row = 0; row < count; row++) {
        const float *logits = captured + (size_t)(before + row) * trace->vocab;
        trace->rank_hash[rank] = hash_bytes(logits, row_bytes, trace->rank_hash[rank]);
        if (rank == 0) memcpy(trace->logits[position + row], logits, row_bytes);
    }
    const struct result_sequence *mine = &result.sequence[pieces - 1];
    if (mine->token_count == 0) return 0;
    uint32_t drawn = result.token[mine->token_begin];
    trace->rank_hash[rank] = hash_chain(trace->rank_hash[rank], drawn);
    return drawn;
}

static void run_rank(struct rig *rig, uint32_t rank, void *user) {
    struct trace *trace = user;
    const struct shape *shape = trace->shape;
    trace->vocab = rig_vocab(rig); /* the same from every rank */
    float *captured = malloc((size_t)STEP_ROWS_MAX * rig_vocab(rig) * sizeof(float));
    if (!captured || rig_vocab(rig) > VOCAB_MAX) exit(1);
    engine_capture_logits(rig->engine, captured);
    uint32_t position = 0, token = 0;
    while (position < PROMPT_TOKENS) {
        uint32_t left = PROMPT_TOKENS - position;
        uint32_t count = shape->chunk < left ? shape->chunk : left;
        token = step_once(rig, shape, text + position, count, position, true, captured, trace,
                          rank);
        position += count;
    }
    for (uint32_t drawn = 0; drawn < DRAWN_TOKENS; drawn++) {
        if (rank == 0) trace->token[drawn] = token;
        if (drawn + 1 == DRAWN_TOKENS) break;
        token = step_once(rig, shape, &token, 1, position++, drawn % 2 != 0, captured, trace, rank);
    }
    free(captured);
}

static void run_shape(const struct shape *shape, struct trace *trace) {
    const struct rig_options options = {.tp = shape->tp,
                                        .threads = shape->threads,
                                        .page_tok = shape->page_tok,
                                        .max_rows = STEP_ROWS_MAX,
                                        .context_len = 512,
                                        .kv_dtype = shape->kv_dtype,
                                        .activation_dtype = shape->activation_dtype,
                                        .prefill_form = form,
                                        .shadow_hash = true};
    memset(trace, 0, sizeof *trace);
    trace->shape = shape;
    rig_fork_ranks(&options, run_rank, trace);
}

static void compare(const struct trace *trace, const struct trace *reference) {
    const char *name = trace->shape->name;
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t i = 0; i < trace->vocab; i++)
            if (memcmp(&trace->logits[row][i], &reference->logits[row][i], sizeof(float)) != 0)
                fail_msg("%s: logit %u of token %u is %a, and %a in '%s'", name, i, row,
                         (double)trace->logits[row][i], (double)reference->logits[row][i],
                         reference->shape->name);
    for (uint32_t i = 0; i < DRAWN_TOKENS; i++)
        if (trace->token[i] != reference->token[i])
            fail_msg("%s: drawn token %u is %u, and %u in '%s'", name, i, trace->token[i],
                     reference->token[i], reference->shape->name);
    for (uint32_t rank = 0; rank < trace->shape->tp; rank++)
        if (trace->rank_hash[rank] != reference->rank_hash[0])
            fail_msg("%s: rank %u saw other logits or tokens", name, rank);
}

/* The first shape is what the others are held against. */
static void check_shapes(const struct shape *shapes, size_t count) {
    struct trace *reference = rig_shared_alloc(sizeof *reference);
    struct trace *trace = rig_shared_alloc(sizeof *trace);
    golden_data_heldout(&text);
    run_shape(&shapes[0], reference);
    for (size_t i = 1; i < count; i++) {
        run_shape(&shapes[i], trace);
        compare(trace, reference);
    }
    rig_shared_free(reference, sizeof *reference);
    rig_shared_free(trace, sizeof *trace);
}

#define CHECK_SHAPES(shapes) check_shapes(shapes, sizeof(shapes) / sizeof(shapes)[0])

static void test_ranks(void **state) {
    (void)state;
    const struct shape shapes[] = {
        {"alone, one piece", 1, 1, PROMPT_TOKENS, false, 64, KV_F32, NULL, ACTIVATION_F32},
        {"two ranks", 2, 1, PROMPT_TOKENS, false, 64, KV_F32, NULL, ACTIVATION_F32},
        {"four ranks", 4, 1, PROMPT_TOKENS, false, 64, KV_F32, NULL, ACTIVATION_F32},
        {"eight ranks", 8, 1, PROMPT_TOKENS, false, 64, KV_F32, NULL, ACTIVATION_F32},
    };
    CHECK_SHAPES(shapes);
}

static void test_threads_chunks_pages_company(void **state) {
    (void)state;
    const struct shape shapes[] = {
        {"alone, one piece", 1, 1, PROMPT_TOKENS, false, 64, KV_F32, NULL, ACTIVATION_F32},
        {"two threads", 1, 2, PROMPT_TOKENS, false, 64, KV_F32, NULL, ACTIVATION_F32},
        {"three threads, company", 1, 3, PROMPT_TOKENS, true, 64, KV_F32, NULL, ACTIVATION_F32},
        {"chunks of 1", 1, 1, 1, false, 64, KV_F32, NULL, ACTIVATION_F32},
        {"chunks of 7, pages of 1", 1, 2, 7, false, 1, KV_F32, NULL, ACTIVATION_F32},
        {"chunks of 64, company, pages of 16", 1, 1, 64, true, 16, KV_F32, NULL, ACTIVATION_F32},
        {"chunks of 7, company, pages of 128", 1, 1, 7, true, 128, KV_F32, NULL, ACTIVATION_F32},
    };
    CHECK_SHAPES(shapes);
}

static void test_all_at_once(void **state) {
    (void)state;
    const struct shape shapes[] = {
        {"alone, one piece", 1, 1, PROMPT_TOKENS, false, 64, KV_F32, NULL, ACTIVATION_F32},
        {"two ranks of two threads, chunks of 64, company", 2, 2, 64, true, 16, KV_F32, NULL,
         ACTIVATION_F32},
        {"four ranks, chunks of 7, pages of 1", 4, 1, 7, true, 1, KV_F32, NULL, ACTIVATION_F32},
        {"eight ranks, chunks of 1", 8, 1, 1, false, 64, KV_F32, NULL, ACTIVATION_F32},
    };
    CHECK_SHAPES(shapes);
}

static void test_bf16_cache(void **state) {
    (void)state;
    const struct shape shapes[] = {
        {"bf16, alone, one piece", 1, 1, PROMPT_TOKENS, false, 64, KV_BF16, NULL, ACTIVATION_F32},
        {"bf16, four ranks, chunks of 7, company", 4, 1, 7, true, 16, KV_BF16, NULL,
         ACTIVATION_F32},
        {"bf16, two ranks of two threads, pages of 1", 2, 2, 64, true, 1, KV_BF16, NULL,
         ACTIVATION_F32},
    };
    CHECK_SHAPES(shapes);
}

static void test_fp8_cache(void **state) {
    (void)state;
    const enum activation_dtype f32 = ACTIVATION_F32, rounded = ACTIVATION_BF16;
    const struct shape shapes[] = {
        {"fp8, alone, one piece", 1, 1, PROMPT_TOKENS, false, 64, KV_FP8, NULL, f32},
        {"fp8, two threads, chunks of 1", 1, 2, 1, false, 16, KV_FP8, NULL, f32},
        {"fp8, two ranks of two threads, pages of 1", 2, 2, 64, true, 1, KV_FP8, NULL, f32},
        {"fp8, eight ranks, chunks of 7, company", 8, 1, 7, true, 16, KV_FP8, NULL, f32},
    };
    CHECK_SHAPES(shapes);
    const struct shape rounded_shapes[] = {
        {"fp8, rounded, alone, one piece", 1, 1, PROMPT_TOKENS, false, 64, KV_FP8, NULL, rounded},
        {"fp8, rounded, two ranks, chunks of 1", 2, 2, 1, true, 1, KV_FP8, NULL, rounded},
        {"fp8, rounded, eight ranks, company", 8, 1, 7, true, 16, KV_FP8, NULL, rounded},
    };
    CHECK_SHAPES(rounded_shapes);
}

/* Token 100 is drawn wherever it may be, until it has been too often. */
static const struct logit_bias bias[] = {{7, -100}, {100, 30}, {4000, 12.5f}};
static const struct rig_penalties penalties = {.repetition = 1.3f,
                                               .presence = 1.5f,
                                               .frequency = 2,
                                               .reply_begin = PROMPT_TOKENS,
                                               .bias = bias,
                                               .bias_count = 3};

static float penalized(float logit, uint32_t id, const struct trace *trace, uint32_t drawn) {
    bool in_path = false;
    uint32_t in_reply = 0;
    for (uint32_t i = 0; i < 3; i++)
        if (bias[i].token == id) logit += bias[i].value;
    for (uint32_t i = 0; i < PROMPT_TOKENS; i++)
        in_path |= text[i] == id;
    for (uint32_t i = 0; i < drawn; i++)
        in_reply += trace->token[i] == id;
    if (in_path || in_reply > 0) logit = logit > 0 ? logit / 1.3f : logit * 1.3f;
    return in_reply == 0 ? logit : logit - 2.0f * (float)in_reply - 1.5f;
}

/* The greedy draws of a run, from the logits it left. */
static void check_greedy(const struct trace *trace) {
    for (uint32_t drawn = 1; drawn < DRAWN_TOKENS; drawn += 2) {
        const float *logits = trace->logits[PROMPT_TOKENS - 1 + drawn];
        uint32_t best = 0;
        for (uint32_t id = 1; id < trace->vocab; id++)
            if (penalized(logits[id], id, trace, drawn) >
                penalized(logits[best], best, trace, drawn))
                best = id;
        assert_int_equal(trace->token[drawn], best);
    }
}

static void test_penalties(void **state) {
    (void)state;
    const struct shape shapes[] = {
        {"penalties, alone, one piece", 1, 1, PROMPT_TOKENS, false, 64, KV_F32, &penalties,
         ACTIVATION_F32},
        {"penalties, two ranks, chunks of 64, company", 2, 2, 64, true, 16, KV_F32, &penalties,
         ACTIVATION_F32},
        {"penalties, four ranks, chunks of 7", 4, 1, 7, false, 1, KV_F32, &penalties,
         ACTIVATION_F32},
        {"penalties, eight ranks, chunks of 1, company", 8, 1, 1, true, 64, KV_F32, &penalties,
         ACTIVATION_F32},
    };
    CHECK_SHAPES(shapes);
    struct trace *trace = rig_shared_alloc(sizeof *trace);
    run_shape(&shapes[0], trace);
    check_greedy(trace);
    rig_shared_free(trace, sizeof *trace);
}

static void test_bf16_activations(void **state) {
    (void)state;
    const enum activation_dtype rounded = ACTIVATION_BF16;
    const struct shape shapes[] = {
        {"rounded, alone, one piece", 1, 1, PROMPT_TOKENS, false, 64, KV_BF16, NULL, rounded},
        {"rounded, two threads, chunks of 1", 1, 2, 1, false, 64, KV_BF16, NULL, rounded},
        {"rounded, four ranks, company", 4, 1, 7, true, 16, KV_BF16, NULL, rounded},
        {"rounded, two ranks of three threads", 2, 3, 64, true, 1, KV_BF16, NULL, rounded},
        {"rounded, eight ranks", 8, 1, PROMPT_TOKENS, false, 64, KV_BF16, NULL, rounded},
    };
    CHECK_SHAPES(shapes);
}

static void test_int8_activations(void **state) {
    (void)state;
    const enum activation_dtype coarse = ACTIVATION_INT8;
    const struct shape shapes[] = {
        {"int8, alone, one piece", 1, 1, PROMPT_TOKENS, false, 64, KV_BF16, NULL, coarse},
        {"int8, two threads, chunks of 1", 1, 2, 1, false, 64, KV_BF16, NULL, coarse},
        {"int8, two ranks of three threads", 2, 3, 64, true, 1, KV_BF16, NULL, coarse},
        {"int8, four ranks, company", 4, 1, 7, true, 16, KV_BF16, NULL, coarse},
        {"int8, eight ranks", 8, 1, PROMPT_TOKENS, false, 64, KV_BF16, NULL, coarse},
    };
    CHECK_SHAPES(shapes);
}

/* The greatest difference, of the deviation of the first's logits. */
static double difference(const struct trace *a, const struct trace *b) {
    double sum = 0, squares = 0, greatest = 0;
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t i = 0; i < a->vocab; i++) {
            double value = (double)a->logits[row][i];
            greatest = fmax(greatest, fabs(value - (double)b->logits[row][i]));
            sum += value;
            squares += value * value;
        }
    double count = (double)ROWS * a->vocab, mean = sum / count;
    return greatest / sqrt(squares / count - mean * mean);
}

/* The expanded form gives up exactness over chunks and nothing else: the same chunks have the same
 * bits in every shape, and the logits are the absorbed form's but for rounding. */
static void test_expanded_prefill(void **state) {
    (void)state;
    static const struct {
        enum kv_dtype kv;
        enum activation_dtype activation;
        double error_max; /* with bf16 no more than sanity: test_perplexity has the rest */
    } cases[] = {{KV_F32, ACTIVATION_F32, 1e-4},
                 {KV_BF16, ACTIVATION_BF16, 0.5},
                 {KV_FP8, ACTIVATION_BF16, 0.5}};
    struct trace *absorbed = rig_shared_alloc(sizeof *absorbed);
    struct trace *expanded = rig_shared_alloc(sizeof *expanded);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const enum kv_dtype kv = cases[i].kv;
        const enum activation_dtype activation = cases[i].activation;
        const struct shape shapes[] = {
            {"expanded", 1, 1, PROMPT_TOKENS, false, 64, kv, NULL, activation},
            {"expanded, three threads, company", 1, 3, PROMPT_TOKENS, true, 16, kv, NULL,
             activation},
            {"expanded, two ranks, pages of 1", 2, 1, PROMPT_TOKENS, false, 1, kv, NULL,
             activation},
            {"expanded, eight ranks", 8, 2, PROMPT_TOKENS, false, 64, kv, NULL, activation},
        };
        form = PREFILL_EXPANDED;
        CHECK_SHAPES(shapes);
        run_shape(&shapes[0], expanded);
        form = PREFILL_ABSORBED;
        run_shape(&shapes[0], absorbed);
        double error = difference(absorbed, expanded);
        print_message("           the forms differ by %.1e of the deviation\n", error);
        assert_true(error > 0 && error < cases[i].error_max); /* 0: it was not taken */
    }
    rig_shared_free(absorbed, sizeof *absorbed);
    rig_shared_free(expanded, sizeof *expanded);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_threads_chunks_pages_company),
        cmocka_unit_test(test_all_at_once),
        cmocka_unit_test(test_bf16_cache),
        cmocka_unit_test(test_fp8_cache),
        cmocka_unit_test(test_bf16_activations),
        cmocka_unit_test(test_int8_activations),
        cmocka_unit_test(test_expanded_prefill),
        cmocka_unit_test(test_penalties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
