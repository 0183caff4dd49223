/* The engine's contract beyond right logits: bad plans are refused by name and change nothing,
 * slots start anew, prefixes are shared by pages and copies, groups come and go, results say what
 * was asked for. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/hash.h"
#include "golden_data.h"
#include "rig.h"

#define PAGE_TOK    4u
#define CONTEXT_LEN 64u
#define ROWS_MAX    48u

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

static const uint32_t *text;
static float *captured; /* [ROWS_MAX, vocab] of the last step */

static struct rig *open_rig(bool shadow_hash) {
    const struct rig_options options = {.tp = 1,
                                        .threads = 1,
                                        .page_tok = PAGE_TOK,
                                        .max_rows = ROWS_MAX,
                                        .context_len = CONTEXT_LEN,
                                        .kv_dtype = KV_F32,
                                        .shadow_hash = shadow_hash};
    struct rig *rig = rig_open(&options, 0, NULL);
    engine_capture_logits(rig->engine, captured);
    return rig;
}

static int set_up(void **state) {
    (void)state;
    golden_data_heldout(&text);
    captured = malloc((size_t)ROWS_MAX * MODEL_VOCAB_MAX * sizeof(float));
    return captured ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    free(captured);
    return 0;
}

/* ============================== bad plans ===================================================== */

/* The plan that is spoiled: step 2, slot 3 goes on by 2 tokens, slot 5 begins with 6; with a copy
 * and a release. */
struct spoiled {
    struct step_plan *plan;
    struct plan_sequence *going_on, *new;
    struct page_extent *extent;
    struct page_copy *copy;
    uint32_t *release;
    uint32_t *token, *parent; /* parent: of spoil_tree */
    struct logit_bias *bias;  /* of the new one, three */
    uint32_t page_count;
};

/* Slot 5 as a tree: a root with two children, the first of which has three. */
static void spoil_tree(struct spoiled *it) {
    static uint32_t parent[8];
    const uint32_t of_rows[8] = {PLAN_NO_PARENT, 0, PLAN_NO_PARENT, 0, 0, 1, 1, 1};
    memcpy(parent, of_rows, sizeof parent);
    it->plan->parent = it->parent = parent;
    it->new->kind = PLAN_TREE;
}

#define SPOIL(name, statement)                                                                     \
    static void name(struct spoiled *it) {                                                         \
        statement;                                                                                 \
    }

SPOIL(other_generation, it->plan->generation++)
SPOIL(same_step_again, it->plan->step--)
SPOIL(step_skipped, it->plan->step++)
SPOIL(too_many_rows, it->plan->row_count = ROWS_MAX + 1)
SPOIL(too_many_sequences, it->plan->sequence_count = RIG_SLOTS + 1)
SPOIL(too_many_copies, it->plan->copy_count = PLAN_EXTENTS_MAX + 1)
SPOIL(too_many_extents, it->plan->extent_count = PLAN_EXTENTS_MAX + 1)
SPOIL(token_past_vocab, it->token[1] = UINT32_MAX - 1)
SPOIL(drawn_among_others, it->token[1] = PLAN_TOKEN_DRAWN)
SPOIL(rows_of_nobody, it->plan->sequence_count = 1)
SPOIL(copy_source, it->copy->source = it->page_count)
SPOIL(copy_target, it->copy->target = UINT32_MAX)
SPOIL(copy_onto_itself, it->copy->target = it->copy->source)
SPOIL(copy_too_long, it->copy->tok_count = PAGE_TOK + 1)
SPOIL(release_of_no_slot, *it->release = RIG_SLOTS)
SPOIL(release_of_running, *it->release = it->going_on->slot)
SPOIL(no_such_slot, it->new->slot = RIG_SLOTS)
SPOIL(slot_twice, it->new->slot = it->going_on->slot)
SPOIL(no_rows, it->going_on->row_count = 0)
SPOIL(rows_overlap, it->new->row_begin--)
SPOIL(rows_overflow, it->new->row_count = UINT32_MAX)
SPOIL(tree_without_parents, it->new->kind = PLAN_TREE)
SPOIL(unknown_kind, it->new->kind = (enum plan_kind)2)
SPOIL(tree_of_nothing, spoil_tree(it); it->new->want = PLAN_WANT_NOTHING)
SPOIL(tree_of_twins, spoil_tree(it); it->token[7] = it->token[6]; it->parent[7] = it->parent[6])
SPOIL(tree_of_its_own_parent, spoil_tree(it); it->parent[4] = 4)
SPOIL(tree_past_context, spoil_tree(it); it->new->committed = CONTEXT_LEN - 2)
SPOIL(draft_without_drafter, it->new->draft_len = 1)
SPOIL(mask, it->new->mask_id = 1)
SPOIL(unknown_want, it->new->want = (enum plan_want)2)
SPOIL(committed_more, it->going_on->committed++)
SPOIL(committed_past_context, it->new->committed = CONTEXT_LEN - 5)
SPOIL(committed_huge, it->new->committed = UINT32_MAX)
SPOIL(other_hash, it->going_on->prefix_hash ^= 1)
SPOIL(hash_of_nothing, it->new->prefix_hash ^= 1)
SPOIL(page_base_less, it->going_on->page_base--)
SPOIL(page_base_of_new, it->new->page_base = 1)
SPOIL(extents_past_end, it->new->extent_begin++)
SPOIL(extents_huge, it->new->extent_count = UINT32_MAX)
SPOIL(page_past_pool, it->extent[it->new->extent_begin].first_page = it->page_count)
SPOIL(pages_past_pool, it->extent[it->new->extent_begin].page_count = it->page_count)
SPOIL(pages_overflow, it->extent[it->new->extent_begin].page_count = UINT32_MAX)
SPOIL(page_missing, it->new->extent_count--)
SPOIL(page_of_both, it->extent[it->new->extent_begin] = it->extent[it->going_on->extent_begin])
SPOIL(page_twice, it->extent[it->new->extent_begin + 1] = it->extent[it->new->extent_begin])
SPOIL(cold, it->new->temperature = -1)
SPOIL(hot, it->new->temperature = INFINITY)
SPOIL(no_temperature, it->new->temperature = NAN)
SPOIL(no_nucleus, it->new->top_p = 0)
SPOIL(nucleus_past_one, it->new->top_p = 1.5f)
SPOIL(no_number_of_nucleus, it->new->top_p = NAN)
SPOIL(least_past_one, it->new->min_p = 1.5f)
SPOIL(too_many_logprobs, it->new->top_logprobs = TOP_LOGPROBS_MAX + 1)
SPOIL(repetition_below_none, it->new->repetition_penalty = -1)
SPOIL(repetition_no_number, it->new->repetition_penalty = NAN)
SPOIL(presence_no_number, it->new->presence_penalty = NAN)
SPOIL(frequency_infinite, it->new->frequency_penalty = -INFINITY)
SPOIL(penalties_too_late, it->going_on->presence_penalty = 1)
SPOIL(bias_too_late, it->going_on->bias_count = 1)
SPOIL(biases_past_end, it->new->bias_begin = 1)
SPOIL(biases_huge, it->new->bias_begin = UINT32_MAX)
SPOIL(bias_past_vocab, it->bias[2].token = MODEL_VOCAB_MAX)
SPOIL(bias_twice, it->bias[1].token = it->bias[0].token)
SPOIL(bias_no_number, it->bias[0].value = NAN)

static const struct {
    void (*spoil)(struct spoiled *it);
    enum status status;
    const char *says;
} BAD[] = {
    {other_generation, STATUS_FAILED_PRECONDITION, "generation 8, this rank is in 7"},
    {same_step_again, STATUS_FAILED_PRECONDITION, "for step 1, this rank is at 1"},
    {step_skipped, STATUS_FAILED_PRECONDITION, "for step 3, this rank is at 1"},
    {too_many_rows, STATUS_INVALID_ARGUMENT, "49 rows, at most 48"},
    {too_many_sequences, STATUS_INVALID_ARGUMENT, "17 sequences, at most 16"},
    {too_many_copies, STATUS_INVALID_ARGUMENT, "65537 copies"},
    {too_many_extents, STATUS_INVALID_ARGUMENT, "65537 extents"},
    {token_past_vocab, STATUS_INVALID_ARGUMENT, "row 1 has token 4294967294"},
    {drawn_among_others, STATUS_INVALID_ARGUMENT, "row 1 is the token drawn last, of 2 rows"},
    {rows_of_nobody, STATUS_INVALID_ARGUMENT, "8 rows, of which its sequences have 2"},
    {copy_source, STATUS_INVALID_ARGUMENT, "copy 0 from page"},
    {copy_target, STATUS_INVALID_ARGUMENT, "to page 4294967295"},
    {copy_onto_itself, STATUS_INVALID_ARGUMENT, "copy 0 from page"},
    {copy_too_long, STATUS_INVALID_ARGUMENT, "copy 0 of 5 tokens, a page has 4"},
    {release_of_no_slot, STATUS_INVALID_ARGUMENT, "release of slot 16, there are 16"},
    {release_of_running, STATUS_FAILED_PRECONDITION,
     "sequence 0 (slot 3): page_base 3, this rank holds 0 pages"},
    {no_such_slot, STATUS_INVALID_ARGUMENT, "sequence 1 (slot 16): no such slot"},
    {slot_twice, STATUS_INVALID_ARGUMENT, "sequence 1 (slot 3): the slot runs twice"},
    {no_rows, STATUS_INVALID_ARGUMENT, "rows 0 and 0 on"},
    {rows_overlap, STATUS_INVALID_ARGUMENT, "rows 1 and 6 on"},
    {rows_overflow, STATUS_INVALID_ARGUMENT, "rows 2 and 4294967295 on"},
    {tree_without_parents, STATUS_INVALID_ARGUMENT,
     "sequence 1 (slot 5): a tree, and the plan has no parents"},
    {unknown_kind, STATUS_INVALID_ARGUMENT, "sequence 1 (slot 5): kind 2"},
    {tree_of_nothing, STATUS_INVALID_ARGUMENT, "a tree that wants no token"},
    {tree_of_twins, STATUS_INVALID_ARGUMENT, "slot 5): row 5: token"},
    {tree_of_its_own_parent, STATUS_INVALID_ARGUMENT, "slot 5): row 2: parent 4"},
    {tree_past_context, STATUS_INVALID_ARGUMENT, "3 rows after 62 tokens, the context is 64"},
    {draft_without_drafter, STATUS_INVALID_ARGUMENT, "a draft of 1 tokens, at most 0 here"},
    {mask, STATUS_UNIMPLEMENTED, "sequence 1 (slot 5): mask 1"},
    {unknown_want, STATUS_INVALID_ARGUMENT, "wants 2"},
    {committed_more, STATUS_FAILED_PRECONDITION, "committed 13, this rank holds 12"},
    {committed_past_context, STATUS_INVALID_ARGUMENT, "6 rows after 59 tokens, the context is 64"},
    {committed_huge, STATUS_INVALID_ARGUMENT, "after 4294967295 tokens"},
    {other_hash, STATUS_FAILED_PRECONDITION, "sequence 0 (slot 3): prefix_hash"},
    {hash_of_nothing, STATUS_INVALID_ARGUMENT, "of no tokens"},
    {page_base_less, STATUS_FAILED_PRECONDITION, "page_base 2, this rank holds 3 pages"},
    {page_base_of_new, STATUS_FAILED_PRECONDITION, "page_base 1, this rank holds 0 pages"},
    {extents_past_end, STATUS_INVALID_ARGUMENT, "extents 2 and 2 on, the plan has 3"},
    {extents_huge, STATUS_INVALID_ARGUMENT, "extents 1 and 4294967295 on"},
    {page_past_pool, STATUS_INVALID_ARGUMENT, "the pool has"},
    {pages_past_pool, STATUS_INVALID_ARGUMENT, "the pool has"},
    {pages_overflow, STATUS_INVALID_ARGUMENT, "and 4294967295 on, the pool has"},
    {page_missing, STATUS_INVALID_ARGUMENT, "1 pages where its rows need 2"},
    {page_of_both, STATUS_INVALID_ARGUMENT, "takes rows twice"},
    {page_twice, STATUS_INVALID_ARGUMENT, "takes rows twice"},
    {cold, STATUS_INVALID_ARGUMENT, "temperature -1"},
    {hot, STATUS_INVALID_ARGUMENT, "temperature inf"},
    {no_temperature, STATUS_INVALID_ARGUMENT, "temperature"},
    {no_nucleus, STATUS_INVALID_ARGUMENT, "top_p 0"},
    {nucleus_past_one, STATUS_INVALID_ARGUMENT, "top_p 1.5"},
    {no_number_of_nucleus, STATUS_INVALID_ARGUMENT, "top_p"},
    {least_past_one, STATUS_INVALID_ARGUMENT, "min_p 1.5"},
    {too_many_logprobs, STATUS_INVALID_ARGUMENT, "top_logprobs 21, at most 20"},
    {repetition_below_none, STATUS_INVALID_ARGUMENT, "repetition_penalty -1, of 0 to 100"},
    {repetition_no_number, STATUS_INVALID_ARGUMENT, "repetition_penalty nan"},
    {presence_no_number, STATUS_INVALID_ARGUMENT, "penalties nan (presence)"},
    {frequency_infinite, STATUS_INVALID_ARGUMENT, "-inf (frequency)"},
    {penalties_too_late, STATUS_FAILED_PRECONDITION,
     "sequence 0 (slot 3): penalties, and the slot began without"},
    {bias_too_late, STATUS_INVALID_ARGUMENT, "1 biases, and the slot does not begin here"},
    {biases_past_end, STATUS_INVALID_ARGUMENT, "biases 1 and 3 on, the plan has 3"},
    {biases_huge, STATUS_INVALID_ARGUMENT, "biases 4294967295 and 3 on"},
    {bias_past_vocab, STATUS_INVALID_ARGUMENT, "bias 2: token 1048576 by"},
    {bias_twice, STATUS_INVALID_ARGUMENT, "bias 1: token 5 by"},
    {bias_no_number, STATUS_INVALID_ARGUMENT, "bias 0: token 5 by nan"},
};

#define COMMITTED 12u /* tokens of slot 3: three full pages, so that it goes on in a new one */

static const struct rig_piece *first_piece(void) {
    static struct rig_piece piece;
    piece = (struct rig_piece){.slot = 3, .token = text, .count = COMMITTED};
    return &piece;
}

static const struct rig_piece *second_pieces(void) {
    static struct rig_piece piece[2];
    piece[0] = (struct rig_piece){.slot = 3, .token = text + COMMITTED, .count = 2, .wants = true};
    static const struct logit_bias bias[] = {{5, 1}, {6, 2}, {9, -3}};
    static const struct rig_penalties biased = {.bias = bias, .bias_count = 3};
    piece[1] = (struct rig_piece){
        .slot = 5, .token = text + 50, .count = 6, .wants = true, .penalties = &biased};
    return piece;
}

/* The pool's last pages are never handed out in these tests. */
static struct spoiled second_plan(struct rig *rig) {
    static struct page_copy copy;
    static uint32_t release;
    struct step_plan *plan = rig_plan(rig, second_pieces(), 2);
    copy = (struct page_copy){
        .source = rig->page_count - 1, .target = rig->page_count - 2, .tok_count = 1};
    release = 9;
    plan->copy = &copy;
    plan->copy_count = 1;
    plan->release = &release;
    plan->release_count = 1;
    struct plan_sequence *sequence = (struct plan_sequence *)plan->sequence;
    return (struct spoiled){.plan = plan,
                            .going_on = &sequence[0],
                            .new = &sequence[1],
                            .extent = (struct page_extent *)plan->extent,
                            .copy = &copy,
                            .release = &release,
                            .token = (uint32_t *)plan->token,
                            .bias = (struct logit_bias *)plan->bias,
                            .page_count = rig->page_count};
}

static void test_bad_plans_change_nothing(void **state) {
    (void)state;
    struct rig *rig = open_rig(false);
    struct step_result result;
    struct error err;
    rig_step(rig, first_piece(), 1);
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        struct spoiled spoiled = second_plan(rig);
        BAD[i].spoil(&spoiled);
        enum status status = engine_step(rig->engine, spoiled.plan, &result, &err);
        if (status != BAD[i].status || !strstr(err.text, BAD[i].says))
            fail_msg("case %zu ('%s'): %s: %s", i, BAD[i].says, status_name(status), err.text);
        assert_int_equal(engine_progress(rig->engine).step, 1);
    }
    struct spoiled good = second_plan(rig);
    if (rig_run(rig, good.plan, second_pieces(), &result, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    rig_close(&rig);
}

/* Numbers that tend to pass one check and break the next. */
static uint32_t awkward(uint64_t bits) {
    const uint32_t values[] = {0, 1, 2, 3, 5, 11, 12, 13, 63, 64, 65, 1u << 31, UINT32_MAX};
    return values[bits % COUNT_OF(values)];
}

static void test_random_plans_do_no_harm(void **state) {
    (void)state;
    struct rig *rig = open_rig(false);
    struct step_result result;
    struct error err;
    uint64_t bits = 1;
    uint32_t accepted = 0;
    engine_capture_logits(rig->engine, NULL);
    rig_step(rig, first_piece(), 1);
    for (int round = 0; round < 1500; round++) {
        struct spoiled it = second_plan(rig);
        for (int change = 0; change < 1 + round % 3; change++) {
            bits = hash_mix(bits + 1);
            struct plan_sequence *sequence = bits & (1u << 20) ? it.going_on : it.new;
            uint32_t *const fields[] = {
                &sequence->slot,          &sequence->row_begin,     &sequence->row_count,
                &sequence->committed,     &sequence->page_base,     &sequence->extent_begin,
                &sequence->extent_count,  &sequence->top_k,         &sequence->choice,
                &it.plan->row_count,      &it.plan->sequence_count, &it.plan->extent_count,
                &it.extent[0].page_count, &it.extent[1].first_page, &it.extent[2].page_count,
                &it.copy->source,         &it.copy->tok_count,      it.release,
                &sequence->bias_begin,    &sequence->bias_count,    &sequence->reply_begin,
            };
            uint32_t *field = fields[bits % COUNT_OF(fields)];
            uint32_t value = awkward(hash_mix(bits));
            /* Counts of arrays are the decoder's to check: what is counted is there. */
            if (field == &it.plan->row_count && value > 8) value = 8;
            if (field == &it.plan->sequence_count && value > 2) value = 2;
            if (field == &it.plan->extent_count && value > 3) value = 3;
            *field = value;
        }
        if (engine_step(rig->engine, it.plan, &result, &err) != STATUS_OK) continue;
        accepted++;
        rig_restart(rig);
        rig_step(rig, first_piece(), 1);
    }
    assert_in_range(accepted, 50, 1450);
    rig_close(&rig);
}

/* ============================== slots and pages =============================================== */

static const float *last_row(const struct rig *rig, uint32_t rows) {
    return captured + (size_t)(rows - 1) * rig_vocab(rig);
}

/* The logits after text[0, count) on a slot of its own. */
static float *logits_of_text(struct rig *rig, uint32_t slot, uint32_t count) {
    struct rig_piece piece = {.slot = slot, .token = text, .count = count};
    rig_step(rig, &piece, 1);
    size_t bytes = rig_vocab(rig) * sizeof(float);
    float *logits = malloc(bytes);
    assert_non_null(logits);
    memcpy(logits, last_row(rig, count), bytes);
    return logits;
}

static void test_a_slot_starts_anew(void **state) {
    (void)state;
    struct rig *rig = open_rig(true);
    float *fresh = logits_of_text(rig, 0, 9);
    struct rig_piece other = {.slot = 1, .token = text + 100, .count = 30};
    rig_step(rig, &other, 1);
    rig_forget(rig, 1);
    float *again = logits_of_text(rig, 1, 9);
    assert_memory_equal(fresh, again, rig_vocab(rig) * sizeof(float));
    free(fresh);
    free(again);
    rig_close(&rig);
}

/* A slot that begins with a prefix another slot has computed: two full pages shared, and a copy of
 * the two first tokens of the third. */
static void test_a_prefix_is_shared(void **state) {
    (void)state;
    const uint32_t shared = 10, more = 5;
    struct rig *rig = open_rig(true);
    float *fresh = logits_of_text(rig, 0, shared + more);
    struct rig_piece owner = {.slot = 1, .token = text, .count = 12};
    rig_step(rig, &owner, 1);
    struct rig_piece piece = {.slot = 2, .token = text + shared, .count = more};
    const struct step_plan *plan = rig_plan_behind(rig, &piece, owner.slot, text, shared);
    struct step_result result;
    struct error err;
    if (rig_run(rig, plan, &piece, &result, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_memory_equal(fresh, last_row(rig, more), rig_vocab(rig) * sizeof(float));
    free(fresh);
    rig_close(&rig);
}

/* A plan made before the last draw was known: the rank puts in the token it drew. */
static void test_a_drawn_token_is_the_ranks_own(void **state) {
    (void)state;
    struct rig_piece prompt = {.slot = 3, .token = text, .count = 9, .wants = true};
    uint64_t state_hash[2];
    float *logits[2];
    struct error err;
    for (uint32_t ahead = 0; ahead < 2; ahead++) {
        struct rig *rig = open_rig(true);
        struct step_result result = rig_step(rig, &prompt, 1);
        uint32_t drawn = result.token[0];
        struct rig_piece next = {.slot = 3, .token = &drawn, .count = 1, .wants = true};
        struct step_plan *plan = rig_plan(rig, &next, 1);
        if (ahead) ((uint32_t *)plan->token)[0] = PLAN_TOKEN_DRAWN;
        if (rig_run(rig, plan, &next, &result, &err) != STATUS_OK) fail_msg("%s", err.text);
        state_hash[ahead] = result.state_hash;
        logits[ahead] = malloc(rig_vocab(rig) * sizeof(float));
        assert_non_null(logits[ahead]);
        memcpy(logits[ahead], captured, rig_vocab(rig) * sizeof(float));
        rig_close(&rig);
    }
    assert_true(state_hash[0] == state_hash[1]);
    for (uint32_t i = 0; i < 100; i++)
        assert_true(logits[0][i] == logits[1][i]);
    free(logits[0]);
    free(logits[1]);
    /* Where the step before drew nothing, there is nothing to put in. */
    struct rig *rig = open_rig(false);
    prompt.wants = false;
    rig_step(rig, &prompt, 1);
    struct rig_piece next = {.slot = 3, .token = text + 9, .count = 1, .wants = true};
    struct step_plan *plan = rig_plan(rig, &next, 1);
    ((uint32_t *)plan->token)[0] = PLAN_TOKEN_DRAWN;
    struct step_result result;
    assert_int_equal(engine_step(rig->engine, plan, &result, &err), STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(err.text, "drew none"));
    rig_close(&rig);
}

/* A prefix whose first page is of another text; its last page, and so its hash, are right. Only the
 * shadow hashes can know. */
static void test_a_foreign_page_is_seen_by_its_shadow(void **state) {
    (void)state;
    const uint32_t shared = 2 * PAGE_TOK;
    struct rig *rig = open_rig(true);
    const struct rig_piece owners[] = {{.slot = 1, .token = text, .count = shared},
                                       {.slot = 2, .token = text + 7, .count = shared}};
    rig_step(rig, owners, 2);
    struct rig_piece piece = {.slot = 3, .token = text + shared, .count = 3};
    struct page_extent extent[] = {
        {rig->slot[2].page[0], 1}, {rig->slot[1].page[1], 1}, {rig->page_count - 1, 1}};
    struct step_plan *plan = rig_plan(rig, &piece, 1);
    struct plan_sequence *sequence = (struct plan_sequence *)plan->sequence;
    plan->extent = extent;
    plan->extent_count = sequence->extent_count = COUNT_OF(extent);
    sequence->committed = shared;
    sequence->prefix_hash = rig->slot[1].prefix_hash;
    struct step_result result;
    struct error err;
    assert_int_equal(engine_step(rig->engine, plan, &result, &err), STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(err.text, "sequence 0 (slot 3): the cache of token 4"));

    extent[0].first_page = rig->slot[1].page[0];
    assert_int_equal(engine_step(rig->engine, plan, &result, &err), STATUS_OK);
    rig_close(&rig);
}

#define REPLY 8u

static const struct logit_bias reply_bias[] = {{11, 25}};
static const struct rig_penalties reply_penalties = {.repetition = 1.5f,
                                                     .presence = 2,
                                                     .frequency = 2,
                                                     .reply_begin = 15,
                                                     .bias = reply_bias,
                                                     .bias_count = 1};

/* It is the model's, whatever changed the draw. */
static void expect_logprob(const struct rig *rig, const struct step_result *result, uint32_t row) {
    const float *logits = captured + (size_t)row * rig_vocab(rig);
    double sum = 0;
    for (uint32_t id = 0; id < rig_vocab(rig); id++)
        sum += exp((double)logits[id]);
    double expected = (double)logits[result->token[0]] - log(sum);
    assert_true(fabs((double)result->logprob[0].logprob - expected) < 1e-5);
}

/* Draw REPLY tokens behind a piece; ahead: each is put in by the rank itself. */
static void draw_reply(struct rig *rig, struct rig_piece piece, const struct step_plan *first,
                       bool ahead, uint32_t token_out[REPLY]) {
    struct step_result result;
    struct error err;
    for (uint32_t i = 0; i < REPLY; i++) {
        struct step_plan *plan = i == 0 && first ? (struct step_plan *)first
                                                 : rig_plan(rig, &piece, 1);
        if (ahead && i > 0) ((uint32_t *)plan->token)[0] = PLAN_TOKEN_DRAWN;
        if (rig_run(rig, plan, &piece, &result, &err) != STATUS_OK) fail_msg("%s", err.text);
        token_out[i] = result.token[0];
        expect_logprob(rig, &result, piece.count - 1);
        piece.token = &token_out[i];
        piece.count = 1;
    }
}

/* A path is counted however it came to be here: computed, found in the cache in part by a copy,
 * drawn and not yet told, in a slot used before. */
static void test_penalties_are_of_the_path(void **state) {
    (void)state;
    struct rig *rig = open_rig(false);
    uint32_t plain[REPLY], fresh[REPLY], again[REPLY];
    struct rig_piece piece = {.slot = 0, .token = text, .count = 15, .wants = true};
    draw_reply(rig, piece, NULL, false, plain);
    piece.slot = 1;
    piece.penalties = &reply_penalties;
    draw_reply(rig, piece, NULL, false, fresh);
    assert_int_equal(fresh[0], 11);
    assert_memory_not_equal(plain, fresh, sizeof fresh);

    piece.slot = 2;
    draw_reply(rig, piece, NULL, true, again);
    assert_memory_equal(fresh, again, sizeof fresh);
    rig_forget(rig, 2); /* its counts are not those of whoever has the slot next */
    draw_reply(rig, piece, NULL, false, again);
    assert_memory_equal(fresh, again, sizeof fresh);
    rig_forget(rig, 2);
    piece.penalties = NULL;
    draw_reply(rig, piece, NULL, false, again);
    assert_memory_equal(plain, again, sizeof plain);
    rig_close(&rig);
}

/* Two full pages of slot 1, and a copy of the first two tokens of its third. */
static void test_a_shared_prefix_is_counted(void **state) {
    (void)state;
    const uint32_t shared = 10;
    struct rig *rig = open_rig(false);
    uint32_t fresh[REPLY], again[REPLY];
    struct rig_piece piece = {
        .slot = 0, .token = text, .count = 15, .wants = true, .penalties = &reply_penalties};
    draw_reply(rig, piece, NULL, false, fresh);
    struct rig_piece owner = {.slot = 1, .token = text, .count = 12};
    rig_step(rig, &owner, 1);
    piece = (struct rig_piece){.slot = 2,
                               .token = text + shared,
                               .count = 5,
                               .wants = true,
                               .penalties = &reply_penalties};
    struct step_plan *plan = rig_plan_behind(rig, &piece, owner.slot, text, shared);
    struct page_extent *extent = (struct page_extent *)plan->extent, first = extent[0];
    struct step_result result;
    struct error err; /* two pages are exchanged */
    extent[0] = extent[1];
    extent[1] = first;
    assert_int_equal(engine_step(rig->engine, plan, &result, &err), STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(err.text, "sequence 0 (slot 2): the 10 tokens in its pages have the"));
    extent[1] = extent[0];
    extent[0] = first;
    draw_reply(rig, piece, plan, false, again);
    assert_memory_equal(fresh, again, sizeof fresh);
    rig_close(&rig);
}

static void test_a_released_slot_is_forgotten(void **state) {
    (void)state;
    struct rig *rig = open_rig(true);
    const uint32_t slot = 4;
    struct step_result result;
    struct error err;
    struct rig_piece piece = {.slot = slot, .token = text, .count = 5};
    rig_step(rig, &piece, 1);
    struct step_plan *plan = rig_plan(rig, NULL, 0); /* a step of nothing but the release */
    plan->release = &slot;
    plan->release_count = 1;
    if (rig_run(rig, plan, NULL, &result, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_int_equal(result.state_hash, STEP_STATE_HASH_EMPTY);
    piece.count = 1;
    assert_int_equal(engine_step(rig->engine, rig_plan(rig, &piece, 1), &result, &err),
                     STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(err.text, "holds 0 pages"));
    rig_close(&rig);
}

/* ============================== results ======================================================= */

static void test_results_say_what_was_asked_for(void **state) {
    (void)state;
    struct rig *rig = open_rig(false);
    uint32_t vocab = rig_vocab(rig);
    const struct rig_piece piece[] = {
        {.slot = 7, .token = text, .count = 3, .wants = true},
        {.slot = 2, .token = text + 20, .count = 5},
        {.slot = 0, .token = text + 40, .count = 4, .wants = true, .temperature = 1, .seed = 5},
    };
    struct step_result result = rig_step(rig, piece, 3);
    assert_int_equal(result.rank, 0);
    assert_int_equal(result.sequence_count, 3);
    assert_int_equal(result.token_count, 2);
    assert_int_equal(result.logprob_count, 6);
    const uint32_t row[] = {2, 11};
    const uint32_t of_sequence[] = {0, 2};
    for (uint32_t i = 0; i < 2; i++) {
        const struct result_sequence *sequence = &result.sequence[of_sequence[i]];
        assert_int_equal(sequence->slot, piece[of_sequence[i]].slot);
        assert_int_equal(sequence->token_begin, i);
        assert_int_equal(sequence->token_count, 1);
        const float *logits = captured + (size_t)row[i] * vocab;
        double sum = 0;
        uint32_t best = 0;
        for (uint32_t v = 0; v < vocab; v++) {
            sum += exp((double)logits[v]);
            if (logits[v] > logits[best]) best = v;
        }
        const struct token_logprob *logprob = &result.logprob[3 * i];
        assert_int_equal(logprob[0].token, result.token[i]);
        assert_int_equal(logprob[1].token, best);
        assert_true(logprob[1].logprob >= logprob[2].logprob);
        for (uint32_t k = 0; k < 3; k++)
            assert_true(fabs((double)logprob[k].logprob -
                             ((double)logits[logprob[k].token] - log(sum))) < 1e-5);
        if (i == 0) assert_int_equal(result.token[i], best);
    }
    assert_int_equal(result.sequence[1].slot, 2);
    assert_int_equal(result.sequence[1].token_count, 0);
    rig_close(&rig);
}

/* ============================== groups and memory ============================================= */

static void test_groups_come_and_go(void **state) {
    (void)state;
    struct rig *rig = open_rig(false);
    struct step_result result;
    struct error err;
    float *first = logits_of_text(rig, 0, 6);
    struct engine_progress progress = engine_progress(rig->engine);
    assert_int_equal(progress.step, 1);
    assert_true(progress.collective_seq > 0);

    engine_abort(rig->engine);
    struct rig_piece piece = {.slot = 0, .token = text + 6, .count = 1};
    assert_int_equal(engine_step(rig->engine, rig_plan(rig, &piece, 1), &result, &err),
                     STATUS_ABORTED);
    assert_non_null(strstr(err.text, "rank 0 step 2: embedding: "));

    engine_set_group(rig->engine, 0, NULL);
    assert_int_equal(engine_step(rig->engine, rig_plan(rig, &piece, 1), &result, &err),
                     STATUS_FAILED_PRECONDITION);
    engine_abort(rig->engine); /* of no group: nothing to abort */
    assert_int_equal(engine_progress(rig->engine).collective_seq, 0);

    rig_restart(rig);
    float *again = logits_of_text(rig, 0, 6);
    assert_memory_equal(first, again, rig_vocab(rig) * sizeof(float));
    free(first);
    free(again);
    rig_close(&rig);
}

static void *watch(void *arg) {
    const struct engine *engine = arg;
    uint64_t last = 0;
    while (engine_progress(engine).step < 20) {
        uint64_t seen = engine_progress(engine).collective_seq;
        if (seen < last) return (void *)"progress went back";
        last = seen;
    }
    engine_abort(arg);
    return NULL;
}

static void test_another_thread_watches_and_aborts(void **state) {
    (void)state;
    struct rig *rig = open_rig(false);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, watch, rig->engine), 0);
    struct rig_piece piece = {.slot = 0, .token = text, .count = 1};
    struct step_result result;
    struct error err;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < 100000 && status == STATUS_OK; i++) {
        if (rig->slot[0].committed == CONTEXT_LEN) rig_forget(rig, 0);
        status = rig_run(rig, rig_plan(rig, &piece, 1), &piece, &result, &err);
    }
    void *complaint = NULL;
    pthread_join(thread, &complaint);
    assert_null(complaint);
    assert_int_equal(status, STATUS_ABORTED);
    rig_close(&rig);
}

static void test_options_are_checked(void **state) {
    (void)state;
    struct rig *rig = open_rig(false);
    const struct engine_options good = {.threads = 1,
                                        .max_rows = 8,
                                        .max_sequences = 2,
                                        .page_tok = 16,
                                        .page_count = 8,
                                        .context_len = 64,
                                        .kv_dtype = KV_BF16};
    const struct {
        size_t offset;
        uint32_t value;
        enum status status;
        const char *says;
    } cases[] = {
        {offsetof(struct engine_options, threads), 0, STATUS_INVALID_ARGUMENT, "threads is 0"},
        {offsetof(struct engine_options, threads), 1000, STATUS_INVALID_ARGUMENT, "1000, of 1 to"},
        {offsetof(struct engine_options, max_rows), PLAN_ROWS_MAX + 1, STATUS_INVALID_ARGUMENT,
         "max_rows is 8193"},
        {offsetof(struct engine_options, max_sequences), 0, STATUS_INVALID_ARGUMENT,
         "max_sequences is 0"},
        {offsetof(struct engine_options, page_tok), KV_PAGE_TOK_MAX + 1, STATUS_INVALID_ARGUMENT,
         "page_tok is 129"},
        {offsetof(struct engine_options, page_count), 0, STATUS_INVALID_ARGUMENT,
         "page_count is 0"},
        {offsetof(struct engine_options, page_count), KV_PAGES_MAX, STATUS_RESOURCE_EXHAUSTED,
         "a KV pool of 67108864 pages of 16 tokens"},
        {offsetof(struct engine_options, context_len), 1u << 20, STATUS_INVALID_ARGUMENT,
         "context_len is 1048576"},
        {offsetof(struct engine_options, kv_dtype), 7, STATUS_INVALID_ARGUMENT, "kv_dtype is 7"},
        {offsetof(struct engine_options, activation_dtype), 3, STATUS_INVALID_ARGUMENT,
         "activation_dtype is 3"},
        {offsetof(struct engine_options, prefill_form), 2, STATUS_INVALID_ARGUMENT,
         "prefill_form is 2"},
    };
    struct engine *engine = NULL;
    struct error err;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct engine_options options = good;
        memcpy((char *)&options + cases[i].offset, &cases[i].value, sizeof cases[i].value);
        assert_int_equal(engine_create(rig->weights, &options, &engine, &err), cases[i].status);
        if (!strstr(err.text, cases[i].says)) fail_msg("case %zu: %s", i, err.text);
        assert_null(engine);
    }
    assert_int_equal(engine_create(rig->weights, &good, &engine, &err), STATUS_OK);
    const struct model_spec *spec = &rig->weights->spec;
    uint64_t kv_bytes = (uint64_t)spec->layers * 8 * 16 * (spec->kv_rank + spec->rope_dim) * 2;
    assert_true(engine_bytes(engine) >= kv_bytes);
    engine_destroy(&engine);
    assert_null(engine);
    rig_close(&rig);
}

/* What is refused is told too, and so must be a message that is accepted. */
static void test_a_refused_examination_can_be_told(void **state) {
    (void)state;
    struct rig *rig = open_rig(false);
    const uint32_t page = KV_PAGES_MAX;
    const struct control_examine order = {.page = &page, .page_count = 1};
    struct examine_report report;
    uint64_t *hash;
    struct error err;
    assert_int_equal(engine_examine(rig->engine, &order, &report, &hash, &err),
                     STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "is to be examined, of a pool of"));
    assert_null(hash);
    assert_int_equal(report.hash_count, 0);
    assert_int_equal(report.pages_per_hash, 1);
    rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_plans_change_nothing),
        cmocka_unit_test(test_random_plans_do_no_harm),
        cmocka_unit_test(test_a_slot_starts_anew),
        cmocka_unit_test(test_a_prefix_is_shared),
        cmocka_unit_test(test_penalties_are_of_the_path),
        cmocka_unit_test(test_a_shared_prefix_is_counted),
        cmocka_unit_test(test_a_drawn_token_is_the_ranks_own),
        cmocka_unit_test(test_a_foreign_page_is_seen_by_its_shadow),
        cmocka_unit_test(test_a_released_slot_is_forgotten),
        cmocka_unit_test(test_results_say_what_was_asked_for),
        cmocka_unit_test(test_groups_come_and_go),
        cmocka_unit_test(test_another_thread_watches_and_aborts),
        cmocka_unit_test(test_options_are_checked),
        cmocka_unit_test(test_a_refused_examination_can_be_told),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
