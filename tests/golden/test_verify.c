/* Trees of guesses change nothing but how soon tokens come.
 *
 * A text is run and continued by plain decoding, the reference. Then it is continued by trees of
 * guesses, right and wrong ones, in every shape: the tokens drawn, the logits at every row that
 * turns out right, and the log-probabilities must be the bits of the reference, however the ranks,
 * threads, pages and company are; so the cache after each commit is that of plain decoding. And the
 * rows that turn out wrong must have the bits of chains that hold their paths. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "golden_data.h"
#include "rig.h"

#define PROMPT_TOKENS 61u /* the first tree lies across the end of a block of attention */
#define NEW_TOKENS    40u
#define TREE_ROWS     24u
#define STEP_ROWS_MAX 160u
#define CONTEXT_LEN   256u
#define VOCAB         4096u
#define SLOT          9u
#define KV_TOKENS     (PROMPT_TOKENS + NEW_TOKENS)
#define KV_BYTES_MAX  (1u << 20) /* of them, all layers */

struct shape {
    const char *name;
    uint32_t tp, threads;
    uint32_t page_tok;
    enum kv_dtype kv_dtype;
    bool company;   /* a prompt in chunks beside the tree */
    uint32_t right; /* of 16 guesses, how many are those of the reference */
    float temperature;
    const struct rig_penalties *penalties;
};

/* What plain decoding gives; in memory shared with the ranks. */
struct reference {
    uint32_t token[NEW_TOKENS + 1];      /* [0] is drawn by the prompt's last row */
    float logits[NEW_TOKENS + 1][VOCAB]; /* that it was drawn from */
    struct token_logprob logprob[NEW_TOKENS + 1][3];
    uint8_t kv[KV_BYTES_MAX]; /* [layers, KV_TOKENS] of the cache at the end */
};

struct run {
    const struct shape *shape;
    struct reference *reference;
    uint32_t steps;
};

static const uint32_t *text;

static uint32_t below(uint64_t *bits, uint32_t end) {
    *bits = hash_mix(*bits + 1);
    return (uint32_t)((*bits >> 32) * end >> 32);
}

static struct rig_options options_of(const struct shape *shape) {
    return (struct rig_options){.tp = shape->tp,
                                .threads = shape->threads,
                                .page_tok = shape->page_tok,
                                .max_rows = STEP_ROWS_MAX,
                                .context_len = CONTEXT_LEN,
                                .kv_dtype = shape->kv_dtype,
                                .shadow_hash = true};
}

static void require(bool condition, const char *what, const struct shape *shape, uint32_t at) {
    if (condition) return;
    fprintf(stderr, "%s: token %u: %s\n", shape->name, at, what);
    exit(1);
}

static struct rig_piece piece_of(const struct shape *shape, const uint32_t *token, uint32_t count) {
    return (struct rig_piece){.slot = SLOT,
                              .token = token,
                              .count = count,
                              .wants = true,
                              .temperature = shape->temperature,
                              .seed = 99,
                              .penalties = shape->penalties};
}

static void keep_reference(const struct step_result *result, const float *logits,
                           struct reference *reference, uint32_t at) {
    reference->token[at] = result->token[0];
    memcpy(reference->logits[at], logits, sizeof reference->logits[at]);
    memcpy(reference->logprob[at], result->logprob, sizeof reference->logprob[at]);
}

/* What the cache holds of the sequence's token number `tok` in a layer; how many bytes. */
static size_t find_kv(const struct rig *rig, uint32_t layer, uint32_t tok, const uint8_t **at) {
    const struct kv_pool *pool = engine_memory(rig->engine).kv;
    const struct rig_slot *slot = &rig->slot[SLOT];
    uint32_t page_tok = rig->options.page_tok;
    size_t bytes = kv_pool_tok_bytes(pool);
    const uint8_t *kv = kv_pool_layer(pool, layer);
    *at = kv + ((size_t)slot->page[tok / page_tok] * page_tok + tok % page_tok) * bytes;
    return bytes;
}

static void keep_kv(const struct rig *rig, struct reference *reference) {
    size_t used = 0;
    for (uint32_t layer = 0; layer < rig->weights->spec.layers; layer++)
        for (uint32_t tok = 0; tok < KV_TOKENS; tok++) {
            const uint8_t *at;
            size_t bytes = find_kv(rig, layer, tok, &at);
            if (used + bytes > KV_BYTES_MAX) exit(1);
            memcpy(reference->kv + used, at, bytes);
            used += bytes;
        }
}

/* After any commits the cache is what plain decoding leaves, byte by byte. */
static void compare_kv(const struct rig *rig, const struct run *run) {
    size_t used = 0;
    for (uint32_t layer = 0; layer < rig->weights->spec.layers; layer++)
        for (uint32_t tok = 0; tok < KV_TOKENS; tok++) {
            const uint8_t *at;
            size_t bytes = find_kv(rig, layer, tok, &at);
            require(memcmp(run->reference->kv + used, at, bytes) == 0, "another cache", run->shape,
                    tok);
            used += bytes;
        }
}

static void decode_plainly(struct rig *rig, uint32_t rank, void *user) {
    (void)rank;
    struct run *run = user;
    float *captured = malloc((size_t)STEP_ROWS_MAX * VOCAB * sizeof *captured);
    if (!captured) exit(1);
    engine_capture_logits(rig->engine, captured);
    struct rig_piece piece = piece_of(run->shape, text, PROMPT_TOKENS);
    struct step_result result = rig_step(rig, &piece, 1);
    keep_reference(&result, captured + (size_t)(PROMPT_TOKENS - 1) * VOCAB, run->reference, 0);
    for (uint32_t i = 1; i <= NEW_TOKENS; i++) {
        piece = piece_of(run->shape, &run->reference->token[i - 1], 1);
        result = rig_step(rig, &piece, 1);
        keep_reference(&result, captured, run->reference, i);
    }
    keep_kv(rig, run->reference);
    free(captured);
}

/* A tree behind the reference's token `at`: each guess is the reference's next token of its depth,
 * or any, and its parent is any row before it. Siblings differ. Returns the rows. */
static uint32_t grow(const struct run *run, uint64_t *bits, uint32_t at, uint32_t *token,
                     uint32_t *parent) {
    uint32_t depth[TREE_ROWS] = {0}, count = 1;
    token[0] = run->reference->token[at];
    parent[0] = PLAN_NO_PARENT;
    uint32_t wanted = 1 + below(bits, TREE_ROWS);
    for (uint32_t tries = 0; count < wanted && tries < 4 * TREE_ROWS; tries++) {
        uint32_t above = below(bits, 2) ? count - 1 : below(bits, count);
        uint32_t guess = below(bits, VOCAB), next = at + depth[above] + 1;
        if (next <= NEW_TOKENS && below(bits, 16) < run->shape->right)
            guess = run->reference->token[next];
        bool twin = false;
        for (uint32_t row = 1; row < count; row++)
            twin |= parent[row] == above && token[row] == guess;
        if (twin) continue;
        depth[count] = depth[above] + 1;
        token[count] = guess;
        parent[count++] = above;
    }
    return count;
}

/* One step with a tree behind token `at`. Returns how many tokens were drawn. */
static uint32_t verify_once(struct rig *rig, const struct run *run, uint64_t *bits, uint32_t at,
                            const float *captured) {
    const struct reference *reference = run->reference;
    uint32_t token[TREE_ROWS], parent[TREE_ROWS], before = 0, pieces = 0;
    struct rig_piece piece[2];
    if (run->shape->company && rig->slot[2].committed < CONTEXT_LEN - 16) {
        before = 1 + below(bits, 16);
        piece[pieces++] = (struct rig_piece){.slot = 2,
                                             .token = text + 500 + rig->slot[2].committed,
                                             .count = before,
                                             .wants = before % 2 == 0};
    }
    uint32_t rows = grow(run, bits, at, token, parent);
    piece[pieces] = piece_of(run->shape, token, rows);
    piece[pieces++].parent = parent;
    struct step_result result = rig_step(rig, piece, pieces);
    const struct result_sequence *mine = &result.sequence[pieces - 1];
    const struct token_logprob *logprob = result.logprob + (mine->token_begin * 3);
    for (uint32_t i = 0, row = 0; i < mine->token_count; i++) {
        if (at + i + 1 > NEW_TOKENS) return i;
        const float *logits = captured + (size_t)(before + row) * VOCAB;
        require(memcmp(logits, reference->logits[at + i + 1], VOCAB * sizeof *logits) == 0,
                "other logits", run->shape, at + i + 1);
        uint32_t drawn = result.token[mine->token_begin + i];
        require(drawn == reference->token[at + i + 1], "another token", run->shape, at + i + 1);
        require(memcmp(logprob + (size_t)i * 3, reference->logprob[at + i + 1],
                       sizeof reference->logprob[0]) == 0,
                "another log-probability", run->shape, at + i + 1);
        for (uint32_t child = row + 1; child < rows; child++)
            if (parent[child] == row && token[child] == drawn) {
                row = child;
                break;
            }
    }
    return mine->token_count;
}

static void decode_by_trees(struct rig *rig, uint32_t rank, void *user) {
    struct run *run = user;
    float *captured = malloc((size_t)STEP_ROWS_MAX * VOCAB * sizeof *captured);
    if (!captured) exit(1);
    engine_capture_logits(rig->engine, captured);
    struct rig_piece piece = piece_of(run->shape, text, PROMPT_TOKENS);
    rig_step(rig, &piece, 1);
    uint64_t bits = 7; /* the same on every rank */
    uint32_t steps = 0;
    for (uint32_t at = 0; at < NEW_TOKENS; steps++)
        at += verify_once(rig, run, &bits, at, captured);
    compare_kv(rig, run);
    if (rank == 0) run->steps = steps;
    free(captured);
}

/* The first shape's reference serves all: plain decoding is the same in every shape. */
static void check_shapes(const struct shape *shapes, size_t count) {
    struct run *run = rig_shared_alloc(sizeof *run);
    run->reference = rig_shared_alloc(sizeof *run->reference);
    run->shape = &shapes[0];
    struct rig_options options = options_of(run->shape);
    options.tp = options.threads = 1;
    rig_fork_ranks(&options, decode_plainly, run);
    for (size_t i = 0; i < count; i++) {
        run->shape = &shapes[i];
        options = options_of(run->shape);
        rig_fork_ranks(&options, decode_by_trees, run);
        /* Guesses of which so many are right must have saved steps, and wrong ones not. */
        if (run->shape->right >= 12)
            assert_in_range(run->steps, 1, NEW_TOKENS * 3 / 4);
        else if (run->shape->right == 0)
            assert_int_equal(run->steps, NEW_TOKENS);
    }
    rig_shared_free(run->reference, sizeof *run->reference);
    rig_shared_free(run, sizeof *run);
}

#define CHECK_SHAPES(shapes) check_shapes(shapes, sizeof(shapes) / sizeof(shapes)[0])

static void test_greedy(void **state) {
    (void)state;
    const struct shape shapes[] = {
        {"alone", 1, 1, 64, KV_F32, false, 12, 0, NULL},
        {"all wrong", 1, 1, 64, KV_F32, false, 0, 0, NULL},
        {"all right, pages of 1", 1, 2, 1, KV_F32, false, 16, 0, NULL},
        {"two ranks, company", 2, 1, 16, KV_F32, true, 12, 0, NULL},
        {"four ranks of two threads, pages of 7", 4, 2, 7, KV_F32, false, 8, 0, NULL},
        {"eight ranks, company", 8, 1, 64, KV_F32, true, 14, 0, NULL},
    };
    CHECK_SHAPES(shapes);
}

static void test_sampled(void **state) {
    (void)state;
    const struct shape shapes[] = {
        {"sampled, alone", 1, 1, 64, KV_F32, false, 12, 1.5f, NULL},
        {"sampled, all wrong, company", 1, 3, 16, KV_F32, true, 0, 1.5f, NULL},
        {"sampled, eight ranks, pages of 1", 8, 1, 1, KV_F32, false, 12, 1.5f, NULL},
    };
    CHECK_SHAPES(shapes);
}

/* A row's own path is what penalties are of: what was accepted counts, what was not does not. */
static void test_penalized(void **state) {
    (void)state;
    static const struct logit_bias bias[] = {{17, 9}, {18, 9}, {2000, 8.5f}};
    static const struct rig_penalties penalties = {.repetition = 1.4f,
                                                   .presence = 0.5f,
                                                   .frequency = 1.5f,
                                                   .reply_begin = PROMPT_TOKENS,
                                                   .bias = bias,
                                                   .bias_count = 3};
    const struct shape shapes[] = {
        {"penalized, alone", 1, 1, 64, KV_F32, false, 12, 0, &penalties},
        {"penalized, all wrong", 1, 1, 16, KV_F32, false, 0, 0, &penalties},
        {"penalized, two ranks, pages of 1, company", 2, 1, 1, KV_F32, true, 14, 0, &penalties},
    };
    CHECK_SHAPES(shapes);
    const struct shape sampled[] = {
        {"penalized, sampled", 1, 1, 16, KV_F32, false, 12, 1.5f, &penalties},
        {"penalized, sampled, four ranks", 4, 1, 7, KV_F32, false, 12, 1.5f, &penalties},
    };
    CHECK_SHAPES(sampled);
}

static void test_bf16(void **state) {
    (void)state;
    const struct shape shapes[] = {
        {"bf16, alone", 1, 1, 64, KV_BF16, false, 12, 0, NULL},
        {"bf16, two ranks of two threads, company", 2, 2, 16, KV_BF16, true, 10, 0, NULL},
    };
    CHECK_SHAPES(shapes);
}

static void test_fp8(void **state) {
    (void)state;
    const struct shape shapes[] = {
        {"fp8, alone", 1, 1, 64, KV_FP8, false, 12, 0, NULL},
        {"fp8, all wrong, pages of 1", 1, 2, 1, KV_FP8, false, 0, 0, NULL},
        {"fp8, two ranks of two threads, company", 2, 2, 16, KV_FP8, true, 10, 0, NULL},
        {"fp8, eight ranks", 8, 1, 7, KV_FP8, false, 14, 0, NULL},
    };
    CHECK_SHAPES(shapes);
}

/* Penalties count what lies on a row's own path, and no guess beside it. */
static void test_penalties(void **state) {
    (void)state;
    static const struct rig_penalties strong = {
        .repetition = 1.5f, .presence = 1.0f, .frequency = 2.0f, .reply_begin = PROMPT_TOKENS};
    const struct shape shapes[] = {
        {"penalties, alone", 1, 1, 64, KV_F32, false, 12, 0, &strong},
        {"penalties, two ranks, company", 2, 1, 16, KV_F32, true, 10, 0, &strong},
        {"penalties, sampled", 1, 2, 1, KV_F32, false, 14, 1.2f, &strong},
    };
    check_shapes(shapes, 2);
    check_shapes(shapes + 2, 1);
}

/* Every row of a tree, right or wrong, against a chain of its path in a slot of its own. */
static void test_any_row_is_a_chain(void **state) {
    (void)state;
    const struct shape shape = {"any row", 1, 2, 4, KV_F32, false, 0, 0, NULL};
    const struct rig_options options = options_of(&shape);
    const uint32_t token[] = {12, 900, 33, 12, 900, 5, 77, 33, 1};
    const uint32_t parent[] = {PLAN_NO_PARENT, 0, 0, 1, 3, 1, 2, 4, 7};
    enum { ROWS = sizeof token / sizeof *token };
    struct rig *rig = rig_open(&options, 0, NULL);
    float *captured = malloc((size_t)STEP_ROWS_MAX * VOCAB * sizeof *captured);
    float *of_tree = malloc(ROWS * VOCAB * sizeof *of_tree);
    assert_true(captured && of_tree);
    engine_capture_logits(rig->engine, captured);
    struct rig_piece piece = {.slot = 0, .token = text, .count = PROMPT_TOKENS};
    rig_step(rig, &piece, 1);
    piece = (struct rig_piece){
        .slot = 0, .token = token, .count = ROWS, .wants = true, .parent = parent};
    rig_step(rig, &piece, 1);
    memcpy(of_tree, captured, ROWS * VOCAB * sizeof *of_tree);
    for (uint32_t row = 0; row < ROWS; row++) {
        uint32_t path[ROWS], depth = 0, chain[PROMPT_TOKENS + ROWS];
        for (uint32_t at = row; at != PLAN_NO_PARENT; at = parent[at])
            path[depth++] = at;
        memcpy(chain, text, PROMPT_TOKENS * sizeof *chain);
        for (uint32_t i = 0; i < depth; i++)
            chain[PROMPT_TOKENS + i] = token[path[depth - 1 - i]];
        rig_forget(rig, 1);
        piece = (struct rig_piece){.slot = 1, .token = chain, .count = PROMPT_TOKENS + depth};
        rig_step(rig, &piece, 1);
        if (memcmp(captured + (size_t)(PROMPT_TOKENS + depth - 1) * VOCAB, of_tree + row * VOCAB,
                   VOCAB * sizeof(float)) != 0)
            fail_msg("row %u has other logits than its chain", row);
    }
    free(captured);
    free(of_tree);
    rig_close(&rig);
}

/* A plan that comes again is refused, and what it committed stays as it was. */
static void test_a_tree_is_committed_once(void **state) {
    (void)state;
    const struct shape shape = {"once", 1, 1, 4, KV_F32, false, 16, 0, NULL};
    const struct rig_options options = options_of(&shape);
    struct rig *rig = rig_open(&options, 0, NULL);
    struct rig_piece piece = piece_of(&shape, text, PROMPT_TOKENS);
    struct step_result result = rig_step(rig, &piece, 1);
    /* The right guess is the last of three, so that its KV must move. */
    struct rig_piece probe = {.slot = 1, .token = text, .count = PROMPT_TOKENS};
    rig_step(rig, &probe, 1);
    uint32_t root = result.token[0];
    probe = (struct rig_piece){.slot = 1, .token = &root, .count = 1, .wants = true};
    uint32_t right = rig_step(rig, &probe, 1).token[0];
    const uint32_t token[] = {root, right + 1, right + 2, right};
    const uint32_t parent[] = {PLAN_NO_PARENT, 0, 0, 0};
    piece = piece_of(&shape, token, 4);
    piece.parent = parent;
    struct step_plan *plan = rig_plan(rig, &piece, 1);
    struct error err;
    if (rig_run(rig, plan, &piece, &result, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_int_equal(result.token_count, 2);
    uint32_t next = result.token[1];
    assert_int_equal(engine_step(rig->engine, plan, &result, &err), STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(err.text, "a plan for step"));

    probe = (struct rig_piece){.slot = 1, .token = &right, .count = 1, .wants = true};
    assert_int_equal(rig_step(rig, &probe, 1).token[0], next);
    piece = piece_of(&shape, &next, 1);
    uint32_t after = rig_step(rig, &piece, 1).token[0];
    probe = (struct rig_piece){.slot = 1, .token = &next, .count = 1, .wants = true};
    assert_int_equal(rig_step(rig, &probe, 1).token[0], after);
    assert_true(rig->slot[1].prefix_hash == rig->slot[SLOT].prefix_hash);
    rig_close(&rig);
}

static int set_up(void **state) {
    (void)state;
    golden_data_heldout(&text);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_sampled),
        cmocka_unit_test(test_penalized),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_any_row_is_a_chain),
        cmocka_unit_test(test_a_tree_is_committed_once),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
