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
#include "rig.h"

#define CONTEXT_LEN   256u
#define STEP_ROWS_MAX 192u
#define PROMPT_TOKENS 75u
#define NEW_TOKENS    24u
#define SLOT          9u
#define TOP           RIG_DRAFT_TOP
#define LEN           7u
#define HIDDEN        256u
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

struct kind {
    const char *name;
    const char *dtype;
    uint32_t layers, heads, kv_heads, head_dim, width, block;
    uint32_t tap[NAIVE_DRAFTER_TAPS_MAX], tap_count;
    uint32_t window[NAIVE_DRAFTER_LAYERS_MAX];
    bool causal[NAIVE_DRAFTER_LAYERS_MAX];
    double amplitude, yarn_factor, yarn_context;
    const char *more;   /* of the config */
    const char *dflash; /* of dflash_config */
};

static const struct kind kinds[] = {
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

static void fill(struct tensor_store *store, const char *dtype, int layer, const char *module,
                 uint32_t rows, uint32_t columns) {
    char name[STORE_NAME_BYTES];
    if (layer < 0)
        snprintf(name, sizeof name, "%s.weight", module);
    else
        snprintf(name, sizeof name, "layers.%d.%s.weight", layer, module);
    struct store_tensor *tensor = tensor_store_add(store, name, dtype, rows, columns);
    size_t count = (size_t)(rows > 0 ? rows : 1) * columns;
    for (size_t i = 0; i < count; i++) {
        double unit = (double)(hash_mix(store->count * 1000003 + i) >> 11) / 0x1p53 * 2 - 1;
        float value = (float)(rows > 0 ? 1.5 / sqrt(columns) * unit : 1 + 0.2 * unit);
        if (strcmp(dtype, "BF16") == 0)
            ((uint16_t *)tensor->data)[i] = bf16_from_f32(value);
        else
            ((float *)tensor->data)[i] = value;
    }
}

static struct tensor_store *make_store(const struct kind *kind) {
    struct tensor_store *store = tensor_store_create();
    uint32_t q_dim = kind->heads * kind->head_dim, kv_dim = kind->kv_heads * kind->head_dim;
    fill(store, kind->dtype, -1, "fc", HIDDEN, kind->tap_count * HIDDEN);
    fill(store, "BF16", -1, "hidden_norm", 0, HIDDEN);
    fill(store, "F32", -1, "norm", 0, HIDDEN);
    for (int l = 0; l < (int)kind->layers; l++) {
        fill(store, "BF16", l, "input_layernorm", 0, HIDDEN);
        fill(store, "BF16", l, "post_attention_layernorm", 0, HIDDEN);
        fill(store, "BF16", l, "self_attn.q_norm", 0, kind->head_dim);
        fill(store, "F32", l, "self_attn.k_norm", 0, kind->head_dim);
        fill(store, kind->dtype, l, "self_attn.q_proj", q_dim, HIDDEN);
        fill(store, kind->dtype, l, "self_attn.k_proj", kv_dim, HIDDEN);
        fill(store, kind->dtype, l, "self_attn.v_proj", kv_dim, HIDDEN);
        fill(store, kind->dtype, l, "self_attn.o_proj", HIDDEN, q_dim);
        fill(store, kind->dtype, l, "mlp.gate_proj", kind->width, HIDDEN);
        fill(store, kind->dtype, l, "mlp.up_proj", kind->width, HIDDEN);
        fill(store, kind->dtype, l, "mlp.down_proj", HIDDEN, kind->width);
    }
    return store;
}

static void write_drafter(const struct kind *kind, const struct tensor_store *store,
                          char folder[64]) {
    char config[2048], taps[64] = "";
    for (uint32_t i = 0; i < kind->tap_count; i++)
        snprintf(taps + strlen(taps), sizeof taps - strlen(taps), "%s%u", i ? "," : "",
                 kind->tap[i]);
    int length = snprintf(config, sizeof config,
                          "{\"architectures\":[\"DFlashDraftModel\"],\"hidden_size\":%u,"
                          "\"num_hidden_layers\":%u,\"num_attention_heads\":%u,"
                          "\"num_key_value_heads\":%u,\"head_dim\":%u,\"intermediate_size\":%u,"
                          "\"rms_norm_eps\":1e-5,%s\"dflash_config\":{\"mask_token_id\":4094,"
                          "\"block_size\":%u,\"target_layer_ids\":[%s]%s}}",
                          HIDDEN, kind->layers, kind->heads, kind->kv_heads, kind->head_dim,
                          kind->width, kind->more, kind->block, taps, kind->dflash);
    folder_create(folder);
    folder_write(folder, "config.json", config, (size_t)length);
    tensor_store_write(store, folder, 1);
}

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

static void check_kind(const struct kind *kind, const struct tensor_store *target) {
    char folder[64];
    struct tensor_store *store = make_store(kind);
    struct guesses *guesses = rig_shared_alloc(sizeof *guesses);
    struct guesses *other = rig_shared_alloc(sizeof *other);
    write_drafter(kind, store, folder);
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
    struct tensor_store *store = make_store(&kinds[0]);
    struct store_tensor *norm = tensor_store_find(store, "norm.weight");
    memset(norm->data, 0, norm->bytes);
    write_drafter(&kinds[0], store, folder);
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
        cmocka_unit_test(test_who_asks_is_answered),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
