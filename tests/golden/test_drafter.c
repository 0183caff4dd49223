/* Drafts: those of the embedded drafter against the reference, those of small random drafters of
 * every kind against a naive pass, and all of them to the bit whatever the ranks, the threads, the
 * chunks, the company - and whether tokens came one by one, by trees, or from a shared prefix. */
#include <math.h>
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
#include "naive_drafter.h"
#include "random_drafter.h"
#include "rig.h"

#define CONTEXT_LEN   256u
#define STEP_ROWS_MAX 192u
#define PROMPT_TOKENS 75u
#define NEW_TOKENS    24u
#define SLOT          9u
#define TOP           RIG_DRAFT_TOP
#define LEN           7u
#define HIDDEN        RANDOM_DRAFTER_HIDDEN
#define TARGET_LAYERS 6u
#define VOCAB         4096u

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

static const uint32_t *text;
static char embedded[4096]; /* the drafter's folder */

static struct rig_options options_of(uint32_t tp, uint32_t threads, uint32_t page_tok,
                                     enum kv_dtype kv_dtype, const char *drafter) {
    return (struct rig_options){.drafter = drafter,
                                .tp = tp,
                                .threads = threads,
                                .page_tok = page_tok,
                                .max_rows = STEP_ROWS_MAX,
                                .context_len = CONTEXT_LEN,
                                .kv_dtype = kv_dtype,
                                .shadow_hash = true};
}

/* ============================== against the reference ========================================= */

static void test_the_reference_drafts_the_same(void **state) {
    (void)state;
    const struct golden_draft *drafts;
    uint32_t count = golden_data_drafts(&drafts);
    const struct rig_options options = options_of(1, 1, 64, KV_F32, embedded);
    struct rig *rig = rig_open(&options, 0, NULL);
    assert_true(count >= 6);
    for (uint32_t i = 0; i < count; i++) {
        const struct golden_draft *draft = &drafts[i];
        struct rig_piece piece = {.slot = i % RIG_SLOTS,
                                  .token = draft->id,
                                  .count = draft->root,
                                  .wants = true,
                                  .draft_len = LEN};
        struct step_result result = rig_step(rig, &piece, 1);
        assert_int_equal(result.token[0], draft->id[draft->root]);
        assert_int_equal(result.draft_count, LEN);
        assert_int_equal(result.draft_top, TOP);
        for (uint32_t at = 0; at < LEN; at++) {
            assert_true(fabs((double)result.draft_lse[at] - draft->lse[at]) < 3e-4);
            for (uint32_t k = 0; k < TOP; k++) {
                const struct draft_candidate *found = &result.candidate[at * TOP + k];
                assert_true(fabs((double)found->logit - draft->top_logit[at][k]) < 3e-4);
                /* Where the reference has a near tie either may be first. */
                bool tie = (k + 1 < TOP &&
                            draft->top_logit[at][k] - draft->top_logit[at][k + 1] < 6e-4) ||
                           (k > 0 && draft->top_logit[at][k - 1] - draft->top_logit[at][k] < 6e-4);
                if (!tie) assert_int_equal(found->token, draft->top[at][k]);
            }
        }
    }
    rig_close(&rig);
}

/* ============================== against a naive pass ========================================== */

static const struct random_drafter kinds[] = {
    {"full, no layer_types", "BF16", 1, 4, 4, 16, 48, 4, {2}, 1, {0}, {false}, 1, 0, 0, "", ""},
    {"sliding and full, groups of heads",
     "F32",
     2,
     8,
     2,
     32,
     64,
     8,
     {5, 0},
     2,
     {20, 0},
     {true, false},
     1,
     0,
     0,
     "\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":20,",
     ""},
    {"swa of every layer",
     "BF16",
     2,
     4,
     2,
     16,
     40,
     6,
     {1, 3, 4},
     3,
     {9, 9},
     {false, false},
     1,
     0,
     0,
     "",
     ",\"use_swa\":true,\"swa_window_size\":9"},
    {"causal, an amplitude stated",
     "F32",
     2,
     2,
     2,
     48,
     48,
     5,
     {0, 1},
     2,
     {0, 0},
     {true, true},
     1.41589,
     16,
     64,
     "\"is_causal\":true,\"rope_scaling\":{\"rope_type\":\"deepseek_yarn\",\"factor\":16,"
     "\"original_max_position_embeddings\":64,\"attention_factor\":1.41589},",
     ""},
    {"an amplitude of YaRN's own",
     "BF16",
     1,
     2,
     2,
     32,
     32,
     3,
     {4},
     1,
     {0},
     {false},
     1.3465735902799727,
     32,
     128,
     "\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":32,"
     "\"original_max_position_embeddings\":128,\"rope_theta\":10000},",
     ""},
};

/* What a drafter of this kind guesses behind the prompt; and the target's residual stream. */
struct guesses {
    uint32_t root, len;
    float lse[LEN];
    struct draft_candidate candidate[LEN][TOP];
    float residual[TARGET_LAYERS * PROMPT_TOKENS * HIDDEN];
};

static void guess_once(struct rig *rig, uint32_t rank, void *user) {
    struct guesses *guesses = user;
    if (rank == 0) engine_capture_residual(rig->engine, guesses->residual);
    struct rig_piece piece = {.slot = SLOT,
                              .token = text,
                              .count = PROMPT_TOKENS,
                              .wants = true,
                              .draft_len = guesses->len};
    struct step_result result = rig_step(rig, &piece, 1);
    if (result.draft_count != guesses->len || result.draft_top != TOP) exit(1);
    if (rank > 0) return;
    guesses->root = result.token[0];
    memcpy(guesses->lse, result.draft_lse, guesses->len * sizeof *guesses->lse);
    memcpy(guesses->candidate, result.candidate, guesses->len * sizeof *guesses->candidate);
}

static void check_kind(const struct random_drafter *kind, const struct tensor_store *target) {
    char folder[64];
    struct tensor_store *store = random_drafter_store(kind);
    struct guesses *guesses = rig_shared_alloc(sizeof *guesses);
    struct guesses *other = rig_shared_alloc(sizeof *other);
    random_drafter_write(kind, store, folder);
    guesses->len = other->len = kind->block - 1;
    struct rig_options options = options_of(1, 1, 16, KV_F32, folder);
    rig_fork_ranks(&options, guess_once, guesses);

    struct naive_drafter naive = {.store = store,
                                  .target = target,
                                  .hidden = HIDDEN,
                                  .layers = kind->layers,
                                  .heads = kind->heads,
                                  .kv_heads = kind->kv_heads,
                                  .head_dim = kind->head_dim,
                                  .width = kind->width,
                                  .block = kind->block,
                                  .mask_token = 4094,
                                  .vocab = VOCAB,
                                  .tap_count = kind->tap_count,
                                  .eps = 1e-5,
                                  .theta = 10000,
                                  .amplitude = kind->amplitude,
                                  .yarn_factor = kind->yarn_factor,
                                  .yarn_context = kind->yarn_context};
    memcpy(naive.tap, kind->tap, sizeof naive.tap);
    memcpy(naive.window, kind->window, sizeof naive.window);
    memcpy(naive.causal, kind->causal, sizeof naive.causal);
    double *logits = calloc((size_t)LEN * VOCAB, sizeof *logits);
    assert_non_null(logits);
    naive_drafter_logits(&naive, guesses->residual, PROMPT_TOKENS, guesses->root, logits);
    for (uint32_t at = 0; at < guesses->len; at++) {
        double sum = 0, best = -INFINITY;
        for (uint32_t id = 0; id < VOCAB; id++) {
            sum += exp(logits[at * VOCAB + id]);
            best = fmax(best, logits[at * VOCAB + id]);
        }
        if (!(fabs((double)guesses->lse[at] - log(sum)) < 1e-4))
            fail_msg("%s: position %u: log-sum-exp %g, expected %g", kind->name, at,
                     (double)guesses->lse[at], log(sum));
        assert_true(fabs((double)guesses->candidate[at][0].logit - best) < 1e-4);
        for (uint32_t k = 0; k < TOP; k++) {
            const struct draft_candidate *found = &guesses->candidate[at][k];
            double expected = logits[at * VOCAB + found->token];
            if (!(fabs((double)found->logit - expected) < 1e-4))
                fail_msg("%s: position %u: logit %g of token %u, expected %g", kind->name, at,
                         (double)found->logit, found->token, expected);
        }
    }
    for (uint32_t tp = 2; tp <= kind->kv_heads; tp *= 2) {
        options.tp = tp;
        rig_fork_ranks(&options, guess_once, other);
        if (memcmp(guesses, other, offsetof(struct guesses, residual)) != 0)
            fail_msg("%s: %u ranks guess otherwise", kind->name, tp);
    }
    free(logits);
    rig_shared_free(guesses, sizeof *guesses);
    rig_shared_free(other, sizeof *other);
    tensor_store_destroy(store);
    folder_remove(folder);
}

static void test_every_kind(void **state) {
    (void)state;
    struct tensor_store *target = tensor_store_create();
    char model[4096];
    snprintf(model, sizeof model, "%s", rig_path("deploy/model"));
    tensor_store_read(target, model);
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        check_kind(&kinds[i], target);
    tensor_store_destroy(target);
}

/* A drafter that thinks nothing: every token is as likely as any, and the lowest ids come first,
 * from whichever rank. */
static void test_ties_go_to_the_lowest_token(void **state) {
    (void)state;
    char folder[64];
    struct tensor_store *store = random_drafter_store(&kinds[0]);
    struct store_tensor *norm = tensor_store_find(store, "norm.weight");
    memset(norm->data, 0, norm->bytes);
    random_drafter_write(&kinds[0], store, folder);
    struct guesses *guesses = rig_shared_alloc(sizeof *guesses);
    guesses->len = kinds[0].block - 1;
    for (uint32_t tp = 1; tp <= 4; tp *= 2) {
        struct rig_options options = options_of(tp, 1, 16, KV_F32, folder);
        rig_fork_ranks(&options, guess_once, guesses);
        for (uint32_t at = 0; at < guesses->len; at++) {
            assert_true(fabs((double)guesses->lse[at] - log(VOCAB)) < 1e-6);
            for (uint32_t k = 0; k < TOP; k++)
                assert_int_equal(guesses->candidate[at][k].token, k);
        }
    }
    rig_shared_free(guesses, sizeof *guesses);
    tensor_store_destroy(store);
    folder_remove(folder);
}

/* ============================== against itself ================================================ */

struct shape {
    const char *name;
    uint32_t tp, threads, chunk, page_tok;
    enum kv_dtype kv_dtype;
    bool company;
    bool trees; /* the guesses are verified, else tokens come one by one */
};

/* What was guessed behind each token, in memory shared with the ranks. */
struct trace {
    const struct shape *shape;
    uint32_t token[NEW_TOKENS];
    uint64_t guess_hash[TP_MAX][NEW_TOKENS]; /* 0: nothing was guessed there */
    uint32_t steps;
};

static uint64_t hash_guesses(const struct step_result *result,
                             const struct result_sequence *sequence) {
    uint64_t hash = hash_bytes(result->draft_lse + sequence->draft_begin,
                               sequence->draft_count * sizeof *result->draft_lse, HASH_CHAIN_EMPTY);
    return hash_bytes(result->candidate + sequence->draft_begin * TOP,
                      sequence->draft_count * TOP * sizeof *result->candidate, hash);
}

/* The likeliest guesses as a chain, and beside it the second ones of the first three positions. */
static uint32_t grow(const struct step_result *result, const struct result_sequence *sequence,
                     uint32_t root, uint32_t *token, uint32_t *parent) {
    const struct draft_candidate *candidate = result->candidate + sequence->draft_begin * TOP;
    uint32_t rows = 1;
    token[0] = root;
    parent[0] = PLAN_NO_PARENT;
    for (uint32_t at = 0; at < 3; at++) {
        token[rows] = candidate[at * TOP + 1].token; /* before the chain, whose rows then move */
        parent[rows] = at == 0 ? 0 : rows - 1;
        rows++;
        token[rows] = candidate[at * TOP].token;
        parent[rows] = at == 0 ? 0 : rows - 2;
        rows++;
    }
    for (uint32_t at = 3; at < LEN; at++, rows++) {
        token[rows] = candidate[at * TOP].token;
        parent[rows] = rows - 1;
    }
    return rows;
}

static void decode(struct rig *rig, uint32_t rank, void *user) {
    struct trace *trace = user;
    const struct shape *shape = trace->shape;
    uint32_t position = 0, done = 0, token[2 * LEN], parent[2 * LEN], rows = 0;
    while (done < NEW_TOKENS) {
        struct rig_piece piece[2];
        uint32_t pieces = 0, left = PROMPT_TOKENS - position;
        if (shape->company && rig->step % 3 != 2)
            piece[pieces++] = (struct rig_piece){.slot = 1,
                                                 .token = text + 700 + rig->slot[1].committed,
                                                 .count = 3,
                                                 .wants = true,
                                                 .draft_len = 1 + (uint32_t)rig->step % LEN};
        struct rig_piece mine = {.slot = SLOT, .wants = true, .draft_len = LEN};
        if (left > 0) {
            mine.token = text + position;
            mine.count = shape->chunk < left ? shape->chunk : left;
            mine.wants = mine.count == left;
            mine.draft_len = mine.wants ? LEN : 0;
            position += mine.count;
        } else {
            mine.token = token;
            mine.count = rows;
            mine.parent = shape->trees ? parent : NULL;
        }
        piece[pieces++] = mine;
        struct step_result result = rig_step(rig, piece, pieces);
        const struct result_sequence *sequence = &result.sequence[pieces - 1];
        if (sequence->token_count == 0) continue;
        for (uint32_t i = 0; i < sequence->token_count && done < NEW_TOKENS; i++, done++) {
            if (rank == 0) trace->token[done] = result.token[sequence->token_begin + i];
            if (i + 1 == sequence->token_count)
                trace->guess_hash[rank][done] = hash_guesses(&result, sequence);
        }
        if (sequence->draft_count != LEN) exit(1);
        rows = grow(&result, sequence,
                    result.token[sequence->token_begin + sequence->token_count - 1], token, parent);
        if (!shape->trees) rows = 1;
        if (rank == 0) trace->steps++;
    }
}

static void run_shape(const struct shape *shape, struct trace *trace) {
    struct rig_options options = options_of(shape->tp, shape->threads, shape->page_tok,
                                            shape->kv_dtype, embedded);
    memset(trace, 0, sizeof *trace);
    trace->shape = shape;
    rig_fork_ranks(&options, decode, trace);
}

/* Where a shape guessed, it guessed what the first shape did behind the same token. */
static void compare(const struct trace *trace, const struct trace *reference) {
    for (uint32_t i = 0; i < NEW_TOKENS; i++) {
        assert_int_equal(trace->token[i], reference->token[i]);
        for (uint32_t rank = 0; rank < trace->shape->tp; rank++)
            if (trace->guess_hash[rank][i] != 0 &&
                trace->guess_hash[rank][i] != reference->guess_hash[0][i])
                fail_msg("%s: rank %u: other guesses behind token %u", trace->shape->name, rank, i);
    }
    if (trace->shape->trees)
        assert_in_range(trace->steps, 1, NEW_TOKENS - 4); /* trees saved steps */
    else
        assert_int_equal(trace->steps, NEW_TOKENS);
}

static void check_shapes(const struct shape *shapes, size_t count) {
    struct trace *reference = rig_shared_alloc(sizeof *reference);
    struct trace *trace = rig_shared_alloc(sizeof *trace);
    run_shape(&shapes[0], reference);
    for (uint32_t i = 0; i < NEW_TOKENS; i++)
        assert_true(reference->guess_hash[0][i] != 0);
    for (size_t i = 1; i < count; i++) {
        run_shape(&shapes[i], trace);
        compare(trace, reference);
    }
    rig_shared_free(reference, sizeof *reference);
    rig_shared_free(trace, sizeof *trace);
}

static void test_shapes(void **state) {
    (void)state;
    const struct shape shapes[] = {
        {"one by one", 1, 1, PROMPT_TOKENS, 64, KV_F32, false, false},
        {"trees", 1, 1, PROMPT_TOKENS, 64, KV_F32, false, true},
        {"trees, three threads, chunks of 7, pages of 1", 1, 3, 7, 1, KV_F32, false, true},
        {"two ranks, trees, company", 2, 1, 20, 16, KV_F32, true, true},
        {"four ranks, one by one, company", 4, 1, 1, 7, KV_F32, true, false},
        {"eight ranks, trees", 8, 1, PROMPT_TOKENS, 64, KV_F32, false, true},
    };
    check_shapes(shapes, COUNT_OF(shapes));
}

static void test_shapes_bf16(void **state) {
    (void)state;
    const struct shape shapes[] = {
        {"bf16, one by one", 1, 1, PROMPT_TOKENS, 64, KV_BF16, false, false},
        {"bf16, two ranks of two threads, trees, company", 2, 2, 11, 16, KV_BF16, true, true},
    };
    check_shapes(shapes, COUNT_OF(shapes));
}

/* The drafter's own cache is bf16 then. */
static void test_shapes_fp8(void **state) {
    (void)state;
    const struct shape shapes[] = {
        {"fp8, one by one", 1, 1, PROMPT_TOKENS, 64, KV_FP8, false, false},
        {"fp8, two ranks of two threads, trees, company", 2, 2, 11, 16, KV_FP8, true, true},
    };
    check_shapes(shapes, COUNT_OF(shapes));
}

/* A prefix that another slot has computed, two pages of it shared and a part of the third copied:
 * its context comes along. */
static void test_a_shared_prefix_brings_its_context(void **state) {
    (void)state;
    const uint32_t page_tok = 4, shared = 10, more = 5;
    const struct rig_options options = options_of(1, 1, page_tok, KV_F32, embedded);
    struct rig *rig = rig_open(&options, 0, NULL);
    struct rig_piece piece = {
        .slot = 0, .token = text, .count = shared + more, .wants = true, .draft_len = LEN};
    struct step_result result = rig_step(rig, &piece, 1);
    uint64_t fresh = hash_guesses(&result, &result.sequence[0]);
    struct rig_piece owner = {.slot = 1, .token = text, .count = 12};
    rig_step(rig, &owner, 1);
    piece.slot = 2;
    piece.token = text + shared;
    piece.count = more;
    const struct step_plan *plan = rig_plan_behind(rig, &piece, owner.slot, text, shared);
    struct error err;
    if (rig_run(rig, plan, &piece, &result, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_true(hash_guesses(&result, &result.sequence[0]) == fresh);
    rig_close(&rig);
}

/* With a window the guesses are those of a context that begins later; a window as long as the
 * context changes nothing. */
static void test_a_window_cuts_the_context(void **state) {
    (void)state;
    const uint32_t windows[] = {0, PROMPT_TOKENS, PROMPT_TOKENS - 1, 8};
    uint64_t hash[COUNT_OF(windows)];
    for (size_t i = 0; i < COUNT_OF(windows); i++) {
        struct rig_options options = options_of(1, 1, 16, KV_F32, embedded);
        options.draft_window = windows[i];
        struct rig *rig = rig_open(&options, 0, NULL);
        struct rig_piece piece = {
            .slot = SLOT, .token = text, .count = PROMPT_TOKENS, .wants = true, .draft_len = LEN};
        struct step_result result = rig_step(rig, &piece, 1);
        hash[i] = hash_guesses(&result, &result.sequence[0]);
        rig_close(&rig);
    }
    assert_true(hash[0] == hash[1]);
    assert_true(hash[1] != hash[2] && hash[2] != hash[3]);
}

/* More blocks than a pass holds, and more guesses than logits exist of at once: what each sequence
 * gets is what it gets alone. */
static void test_many_guess_at_a_time(void **state) {
    (void)state;
    const struct random_drafter kind = {.dtype = "BF16",
                                        .layers = 1,
                                        .heads = 2,
                                        .kv_heads = 2,
                                        .head_dim = 16,
                                        .width = 32,
                                        .block = 33,
                                        .tap = {2},
                                        .tap_count = 1,
                                        .amplitude = 1,
                                        .more = "",
                                        .dflash = ""};
    char folder[64];
    struct tensor_store *store = random_drafter_store(&kind);
    random_drafter_write(&kind, store, folder);
    const struct rig_options options = options_of(1, 1, 16, KV_F32, folder);
    struct rig *rig = rig_open(&options, 0, NULL);
    struct rig_piece piece[RIG_SLOTS];
    uint64_t together[RIG_SLOTS];
    for (uint32_t i = 0; i < RIG_SLOTS; i++)
        piece[i] = (struct rig_piece){.slot = i,
                                      .token = text + 37 * i,
                                      .count = 2 + i % 3,
                                      .wants = true,
                                      .draft_len = i == 5 ? 0 : kind.block - 1 - i};
    struct step_result result = rig_step(rig, piece, RIG_SLOTS);
    for (uint32_t i = 0; i < RIG_SLOTS; i++)
        together[i] = hash_guesses(&result, &result.sequence[i]);
    rig_restart(rig);
    for (uint32_t i = 0; i < RIG_SLOTS; i++) {
        result = rig_step(rig, &piece[i], 1);
        if (hash_guesses(&result, &result.sequence[0]) != together[i])
            fail_msg("sequence %u guesses otherwise alone", i);
    }
    rig_close(&rig);
    tensor_store_destroy(store);
    folder_remove(folder);
}

/* What was asked for and no more, in the plan's order; bad wishes are refused. */
static void test_who_asks_is_answered(void **state) {
    (void)state;
    const struct rig_options options = options_of(1, 1, 16, KV_F32, embedded);
    struct rig *rig = rig_open(&options, 0, NULL);
    const struct rig_piece piece[] = {
        {.slot = 4, .token = text, .count = 3, .wants = true, .draft_len = 2},
        {.slot = 2, .token = text + 20, .count = 5},
        {.slot = 7, .token = text + 60, .count = 4, .wants = true},
        {.slot = 0, .token = text + 40, .count = 4, .wants = true, .draft_len = LEN},
    };
    struct step_result result = rig_step(rig, piece, 4);
    const uint32_t begin[] = {0, 2, 2, 2}, count[] = {2, 0, 0, LEN};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(result.sequence[i].slot, piece[i].slot);
        assert_int_equal(result.sequence[i].draft_begin, begin[i]);
        assert_int_equal(result.sequence[i].draft_count, count[i]);
    }
    assert_int_equal(result.draft_count, 2 + LEN);
    for (uint32_t at = 0; at < result.draft_count * TOP; at++)
        if (at % TOP > 0)
            assert_true(result.candidate[at - 1].logit > result.candidate[at].logit ||
                        (result.candidate[at - 1].logit == result.candidate[at].logit &&
                         result.candidate[at - 1].token < result.candidate[at].token));

    const struct {
        uint32_t len, top;
        bool wants;
        const char *says;
    } bad[] = {
        {LEN + 1, TOP, true, "a draft of 8 tokens, at most 7 here"},
        {1, 0, true, "a draft of 0 candidates"},
        {1, DRAFT_TOP_MAX + 1, true, "a draft of 17 candidates"},
        {1, TOP, false, "behind nothing"},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct rig_piece next = {.slot = 7, .token = text, .count = 1, .wants = bad[i].wants};
        struct step_plan *plan = rig_plan(rig, &next, 1);
        ((struct plan_sequence *)plan->sequence)->draft_len = bad[i].len;
        plan->draft_top = bad[i].top;
        struct error err;
        assert_int_equal(engine_step(rig->engine, plan, &result, &err), STATUS_INVALID_ARGUMENT);
        if (!strstr(err.text, bad[i].says)) fail_msg("%s", err.text);
    }
    rig_close(&rig);
}

static int set_up(void **state) {
    (void)state;
    golden_data_heldout(&text);
    snprintf(embedded, sizeof embedded, "%s", rig_path("deploy/drafter"));
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_reference_drafts_the_same),
        cmocka_unit_test(test_every_kind),
        cmocka_unit_test(test_ties_go_to_the_lowest_token),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_shapes_bf16),
        cmocka_unit_test(test_shapes_fp8),
        cmocka_unit_test(test_a_shared_prefix_brings_its_context),
        cmocka_unit_test(test_a_window_cuts_the_context),
        cmocka_unit_test(test_many_guess_at_a_time),
        cmocka_unit_test(test_who_asks_is_answered),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
