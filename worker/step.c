#include "step.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "kv_shadow.h"
#include "penalties.h"
#include "slot_table.h"

/* What a plan does with a slot; kept while it is checked. */
enum slot_use { SLOT_UNTOUCHED, SLOT_RELEASED, SLOT_RUNS };

struct step {
    struct step_limits limits;
    struct slot_table slots;
    struct kv_shadow *shadow;
    struct penalties *penalties;
    uint64_t generation, last;
    uint64_t checks;         /* plans checked: what stamps are made of */
    enum slot_use *slot_use; /* [slot_count] */
    uint64_t *page_written;  /* [page_cap] the last check that saw rows put into the page */
    struct step_batch batch;
    struct step_final final;
};

/* One sequence under check, with what a message about it needs. */
struct checked {
    struct step *step;
    const struct step_plan *plan;
    const struct plan_sequence *sequence;
    uint32_t idx;
};

static uint32_t pages_for(const struct step_limits *limits, uint32_t tok_count);
static enum status check_sizes(const struct step *step, const struct step_plan *plan,
                               struct error *err);
static enum status check_copies(const struct step *step, const struct step_plan *plan,
                                struct error *err);
static enum status check_releases(struct step *step, const struct step_plan *plan,
                                  struct error *err);
static enum status check_sequence(const struct checked *checked, uint32_t row_begin,
                                  struct error *err);
static enum status check_asks(const struct checked *checked, struct error *err);
static enum status check_penalties(const struct checked *checked, struct error *err);
static enum status check_continues(const struct checked *checked, struct error *err);
static enum status check_tokens(const struct checked *checked, struct error *err);
static enum status check_tree(const struct checked *checked, struct error *err);
static enum status check_draft(const struct checked *checked, struct error *err);
static enum status check_pages(const struct checked *checked, struct error *err);
static enum status check_targets(const struct checked *checked, struct error *err);
static enum status claim_page(const struct checked *checked, uint32_t page, struct error *err);
static enum status refuse(const struct checked *checked, enum status status, struct error *err,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));
static uint32_t length_of(const struct checked *checked);
static enum status place_rows(struct step *step, const struct step_plan *plan, uint32_t idx,
                              struct error *err);
static void commit_row(struct step *step, uint32_t row, struct slot_state *state, uint32_t place);
static void commit_chain(struct step *step, const struct plan_sequence *sequence);
static uint32_t commit_tree(struct step *step, const struct plan_sequence *sequence, uint32_t idx,
                            const uint32_t *drawn, uint32_t drawn_count);
static uint32_t slot_at(const struct step *step, const struct slot_state *state, uint32_t place);
static enum status check_shadow(struct step *step, const struct step_plan *plan, struct error *err);

enum status step_create(const struct step_limits *limits, struct kv_shadow *shadow,
                        struct penalties *penalties, struct step **step_out, struct error *err) {
    struct step *step = calloc(1, sizeof *step);
    if (!step) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a step");
    step->limits = *limits;
    step->shadow = shadow;
    step->penalties = penalties;
    step->slot_use = calloc(limits->slot_count, sizeof *step->slot_use);
    step->page_written = calloc(limits->page_cap, sizeof *step->page_written);
    step->batch.token = calloc(limits->rows_max, sizeof *step->batch.token);
    step->batch.position = calloc(limits->rows_max, sizeof *step->batch.position);
    step->batch.kv_slot = calloc(limits->rows_max, sizeof *step->batch.kv_slot);
    step->batch.sequence = calloc(limits->slot_count, sizeof *step->batch.sequence);
    step->batch.tree = calloc(limits->slot_count, sizeof *step->batch.tree);
    step->batch.copy = calloc(PLAN_EXTENTS_MAX, sizeof *step->batch.copy);
    step->final.row = calloc(limits->rows_max, sizeof *step->final.row);
    step->final.position = calloc(limits->rows_max, sizeof *step->final.position);
    step->final.kv_slot = calloc(limits->rows_max, sizeof *step->final.kv_slot);
    step->final.prefix_before = calloc(limits->rows_max, sizeof *step->final.prefix_before);
    step->final.prefix_with = calloc(limits->rows_max, sizeof *step->final.prefix_with);
    step->final.move = calloc(limits->rows_max, sizeof *step->final.move);
    /* A table never holds more pages than the pool, nor than the longest context and a tree. */
    uint32_t page_cap = pages_for(limits, limits->context_len + TREE_ROWS_MAX);
    if (page_cap > limits->page_cap) page_cap = limits->page_cap;
    enum status status = slot_table_init(&step->slots, limits->slot_count, page_cap, err);
    if (status == STATUS_OK &&
        (!step->slot_use || !step->page_written || !step->batch.token || !step->batch.position ||
         !step->batch.kv_slot || !step->batch.sequence || !step->batch.tree || !step->batch.copy ||
         !step->final.row || !step->final.position || !step->final.kv_slot || !step->final.move ||
         !step->final.prefix_before || !step->final.prefix_with))
        status = error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for steps of %u rows",
                           limits->rows_max);
    if (status != STATUS_OK)
        step_destroy(&step);
    else
        *step_out = step;
    return status;
}

void step_destroy(struct step **step) {
    if (!*step) return;
    slot_table_deinit(&(*step)->slots);
    free((*step)->slot_use);
    free((*step)->page_written);
    free((*step)->batch.token);
    free((*step)->batch.position);
    free((*step)->batch.kv_slot);
    free((*step)->batch.sequence);
    free((*step)->batch.tree);
    free((*step)->batch.copy);
    free((*step)->final.row);
    free((*step)->final.position);
    free((*step)->final.kv_slot);
    free((*step)->final.prefix_before);
    free((*step)->final.prefix_with);
    free((*step)->final.move);
    free(*step);
    *step = NULL;
}

void step_restart(struct step *step, uint64_t generation) {
    slot_table_clear(&step->slots);
    step->generation = generation;
    step->last = 0;
}

void step_resize(struct step *step, uint32_t page_count) {
    CHECK(page_count <= step->limits.page_cap);
    step->limits.page_count = page_count;
}

enum status step_check(struct step *step, const struct step_plan *plan, struct error *err) {
    step->checks++;
    memset(step->slot_use, 0, step->limits.slot_count * sizeof *step->slot_use);
    if (plan->generation != step->generation)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "a plan of generation %" PRIu64 ", this rank is in %" PRIu64,
                         plan->generation, step->generation);
    if (plan->step != step->last + 1)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "a plan for step %" PRIu64 ", this rank is at %" PRIu64, plan->step,
                         step->last);
    enum status status = check_sizes(step, plan, err);
    if (status == STATUS_OK) status = check_copies(step, plan, err);
    if (status == STATUS_OK) status = check_releases(step, plan, err);
    uint32_t row_begin = 0, positions = 0;
    for (uint32_t i = 0; i < plan->sequence_count && status == STATUS_OK; i++) {
        struct checked checked = {
            .step = step, .plan = plan, .sequence = &plan->sequence[i], .idx = i};
        status = check_sequence(&checked, row_begin, err);
        row_begin += plan->sequence[i].row_count;
        positions += plan->sequence[i].draft_len;
    }
    if (status == STATUS_OK && positions > DRAFT_POSITIONS_MAX)
        status = error_set(err, STATUS_INVALID_ARGUMENT, "plan: drafts of %u tokens, at most %u",
                           positions, DRAFT_POSITIONS_MAX);
    if (status == STATUS_OK && row_begin != plan->row_count)
        status = error_set(err, STATUS_INVALID_ARGUMENT,
                           "plan: %u rows, of which its sequences have %u", plan->row_count,
                           row_begin);
    return status;
}

enum status step_begin(struct step *step, const struct step_plan *plan,
                       const struct step_batch **batch_out, struct error *err) {
    struct step_batch *batch = &step->batch;
    batch->rows = plan->row_count;
    batch->sequence_count = plan->sequence_count;
    batch->copy_count = plan->copy_count;
    for (uint32_t i = 0; i < plan->copy_count; i++)
        batch->copy[i] = (struct kv_page_copy){.source = plan->copy[i].source,
                                               .target = plan->copy[i].target,
                                               .tok_count = plan->copy[i].tok_count};
    if (step->shadow) kv_shadow_copy(step->shadow, batch->copy, batch->copy_count);
    penalties_copy(step->penalties, batch->copy, batch->copy_count);
    for (uint32_t i = 0; i < plan->release_count; i++)
        slot_table_forget(&step->slots, plan->release[i]);
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < plan->sequence_count && status == STATUS_OK; i++)
        status = place_rows(step, plan, i, err);
    if (status == STATUS_OK && step->shadow) status = check_shadow(step, plan, err);
    *batch_out = batch;
    return status;
}

const struct step_final *step_commit(struct step *step, const struct step_plan *plan,
                                     const struct step_result *drawn) {
    struct step_final *final = &step->final;
    final->count = final->move_count = 0;
    final->state_hash = STEP_STATE_HASH_EMPTY;
    for (uint32_t i = 0; i < plan->sequence_count; i++) {
        const struct plan_sequence *sequence = &plan->sequence[i];
        const struct result_sequence *result = &drawn->sequence[i];
        struct slot_state *state = &step->slots.slot[sequence->slot];
        const uint32_t *token = drawn->token + result->token_begin;
        state->has_drawn = result->token_count > 0;
        if (state->has_drawn) state->drawn = token[result->token_count - 1];
        uint64_t hash = 0;
        if (sequence->kind == PLAN_TREE) {
            CHECK(commit_tree(step, sequence, i, token, result->token_count) == state->drawn);
            hash = hash_chain(state->prefix_hash, state->drawn);
        } else {
            commit_chain(step, sequence);
            hash = state->prefix_hash;
        }
        final->state_hash = step_state_hash(final->state_hash, sequence->slot, state->committed,
                                            hash);
    }
    step->last = plan->step;
    return final;
}

struct step_end step_end_of(const struct step *step, uint32_t slot) {
    const struct slot_state *state = &step->slots.slot[slot];
    CHECK(state->has_drawn);
    return (struct step_end){.root = state->drawn,
                             .committed = state->committed,
                             .prefix_hash = state->prefix_hash,
                             .page = state->page};
}

const void *step_page_tables(const struct step *step, size_t *bytes_out) {
    *bytes_out = (size_t)step->slots.slot_count * step->slots.page_cap * sizeof *step->slots.pages;
    return step->slots.pages;
}

/* ============================== checks ======================================================== */

static uint32_t pages_for(const struct step_limits *limits, uint32_t tok_count) {
    return (tok_count + limits->page_tok - 1) / limits->page_tok;
}

static enum status check_sizes(const struct step *step, const struct step_plan *plan,
                               struct error *err) {
    const struct step_limits *limits = &step->limits;
    if (plan->row_count > limits->rows_max)
        return error_set(err, STATUS_INVALID_ARGUMENT, "plan: %u rows, at most %u", plan->row_count,
                         limits->rows_max);
    if (plan->sequence_count > limits->slot_count)
        return error_set(err, STATUS_INVALID_ARGUMENT, "plan: %u sequences, at most %u",
                         plan->sequence_count, limits->slot_count);
    if (plan->copy_count > PLAN_EXTENTS_MAX || plan->extent_count > PLAN_EXTENTS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT, "plan: %u copies and %u extents, at most %u",
                         plan->copy_count, plan->extent_count, PLAN_EXTENTS_MAX);
    for (uint32_t row = 0; row < plan->row_count; row++)
        if (plan->token[row] >= limits->vocab && plan->token[row] != PLAN_TOKEN_DRAWN)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "plan: row %u has token %u, the vocabulary has %u", row,
                             plan->token[row], limits->vocab);
    return STATUS_OK;
}

static enum status check_copies(const struct step *step, const struct step_plan *plan,
                                struct error *err) {
    const struct step_limits *limits = &step->limits;
    for (uint32_t i = 0; i < plan->copy_count; i++) {
        const struct page_copy *copy = &plan->copy[i];
        if (copy->source >= limits->page_count || copy->target >= limits->page_count ||
            copy->source == copy->target)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "plan: copy %u from page %u to page %u, of two pages below %u", i,
                             copy->source, copy->target, limits->page_count);
        if (copy->tok_count > limits->page_tok)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "plan: copy %u of %u tokens, a page has %u", i, copy->tok_count,
                             limits->page_tok);
    }
    return STATUS_OK;
}

static enum status check_releases(struct step *step, const struct step_plan *plan,
                                  struct error *err) {
    for (uint32_t i = 0; i < plan->release_count; i++) {
        if (plan->release[i] >= step->limits.slot_count)
            return error_set(err, STATUS_INVALID_ARGUMENT, "plan: release of slot %u, there are %u",
                             plan->release[i], step->limits.slot_count);
        step->slot_use[plan->release[i]] = SLOT_RELEASED;
    }
    return STATUS_OK;
}

static enum status check_sequence(const struct checked *checked, uint32_t row_begin,
                                  struct error *err) {
    const struct plan_sequence *sequence = checked->sequence;
    const struct step_limits *limits = &checked->step->limits;
    if (sequence->slot >= limits->slot_count)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err, "no such slot, there are %u",
                      limits->slot_count);
    if (checked->step->slot_use[sequence->slot] == SLOT_RUNS)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err, "the slot runs twice in one step");
    if (sequence->row_begin != row_begin || sequence->row_count == 0 ||
        sequence->row_count > checked->plan->row_count - row_begin)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err,
                      "rows %u and %u on; sequences follow each other from 0 to %u",
                      sequence->row_begin, sequence->row_count, checked->plan->row_count);
    if (sequence->kind != PLAN_CHAIN && sequence->kind != PLAN_TREE)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err, "kind %d; 0 and 1 are known",
                      (int)sequence->kind);
    enum status status = STATUS_OK;
    if (sequence->kind == PLAN_TREE) status = check_tree(checked, err);
    if (status != STATUS_OK) return status;
    uint32_t length = length_of(checked);
    if (sequence->committed > limits->context_len ||
        length > limits->context_len - sequence->committed)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err,
                      "%u rows after %u tokens, the context is %u", length, sequence->committed,
                      limits->context_len);
    status = check_asks(checked, err);
    if (status == STATUS_OK) status = check_draft(checked, err);
    if (status == STATUS_OK) status = check_continues(checked, err);
    if (status == STATUS_OK) status = check_penalties(checked, err);
    if (status == STATUS_OK) status = check_tokens(checked, err);
    if (status == STATUS_OK) status = check_pages(checked, err);
    if (status == STATUS_OK) status = check_targets(checked, err);
    checked->step->slot_use[sequence->slot] = SLOT_RUNS;
    return status;
}

static enum status check_tree(const struct checked *checked, struct error *err) {
    const struct plan_sequence *sequence = checked->sequence;
    const struct step_plan *plan = checked->plan;
    if (sequence->row_count > TREE_ROWS_MAX)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err, "a tree of %u rows, at most %u",
                      sequence->row_count, TREE_ROWS_MAX);
    if (!plan->parent)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err, "a tree, and the plan has no parents");
    if (sequence->want != PLAN_WANT_TOKEN)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err, "a tree that wants no token");
    struct error reason;
    enum status status = tree_init(
        &checked->step->batch.tree[checked->idx], plan->token + sequence->row_begin,
        plan->parent + sequence->row_begin, sequence->row_count, &reason);
    return status == STATUS_OK ? status : refuse(checked, status, err, "%s", reason.text);
}

static enum status check_draft(const struct checked *checked, struct error *err) {
    const struct plan_sequence *sequence = checked->sequence;
    uint32_t most = checked->step->limits.draft_len, top = checked->plan->draft_top;
    if (sequence->draft_len == 0) return STATUS_OK;
    if (sequence->draft_len > most)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err,
                      "a draft of %u tokens, at most %u here", sequence->draft_len, most);
    if (top < 1 || top > DRAFT_TOP_MAX || sequence->want != PLAN_WANT_TOKEN)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err,
                      "a draft of %u candidates a position behind %s; 1 to %u behind a token", top,
                      sequence->want == PLAN_WANT_TOKEN ? "a token" : "nothing", DRAFT_TOP_MAX);
    return STATUS_OK;
}

static enum status check_asks(const struct checked *checked, struct error *err) {
    const struct plan_sequence *sequence = checked->sequence;
    if (sequence->want != PLAN_WANT_NOTHING && sequence->want != PLAN_WANT_TOKEN)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err, "wants %d; 0 and 1 are known",
                      (int)sequence->want);
    if (sequence->mask_id != PLAN_NO_MASK)
        return refuse(checked, STATUS_UNIMPLEMENTED, err, "mask %u; masks are not served",
                      sequence->mask_id);
    if (!(sequence->temperature >= 0) || isinf(sequence->temperature))
        return refuse(checked, STATUS_INVALID_ARGUMENT, err, "temperature %g, at least 0",
                      (double)sequence->temperature);
    if (!(sequence->top_p > 0 && sequence->top_p <= 1))
        return refuse(checked, STATUS_INVALID_ARGUMENT, err, "top_p %g, above 0 and at most 1",
                      (double)sequence->top_p);
    if (!(sequence->min_p >= 0 && sequence->min_p <= 1))
        return refuse(checked, STATUS_INVALID_ARGUMENT, err, "min_p %g, of 0 to 1",
                      (double)sequence->min_p);
    if (sequence->top_logprobs > TOP_LOGPROBS_MAX)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err, "top_logprobs %u, at most %u",
                      sequence->top_logprobs, TOP_LOGPROBS_MAX);
    return STATUS_OK;
}

static enum status check_bias(const struct checked *checked, struct error *err) {
    const struct plan_sequence *sequence = checked->sequence;
    const struct step_plan *plan = checked->plan;
    if (sequence->bias_count == 0) return STATUS_OK;
    if (sequence->page_base > 0)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err,
                      "%u biases, and the slot does not begin here", sequence->bias_count);
    if (sequence->bias_count > LOGIT_BIAS_MAX || sequence->bias_begin > plan->bias_count ||
        sequence->bias_count > plan->bias_count - sequence->bias_begin)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err,
                      "biases %u and %u on, the plan has %u; at most %u", sequence->bias_begin,
                      sequence->bias_count, plan->bias_count, LOGIT_BIAS_MAX);
    const struct logit_bias *bias = plan->bias + sequence->bias_begin;
    for (uint32_t i = 0; i < sequence->bias_count; i++)
        if (bias[i].token >= checked->step->limits.vocab || !isfinite(bias[i].value) ||
            (i > 0 && bias[i].token <= bias[i - 1].token))
            return refuse(checked, STATUS_INVALID_ARGUMENT, err,
                          "bias %u: token %u by %g, of ascending ids below %u", i, bias[i].token,
                          (double)bias[i].value, checked->step->limits.vocab);
    return STATUS_OK;
}

/* A slot's path is counted from its beginning or not at all. */
static enum status check_penalties(const struct checked *checked, struct error *err) {
    const struct plan_sequence *sequence = checked->sequence;
    if (!(sequence->repetition_penalty >= 0 &&
          sequence->repetition_penalty <= REPETITION_PENALTY_MAX))
        return refuse(checked, STATUS_INVALID_ARGUMENT, err, "repetition_penalty %g, of 0 to %g",
                      (double)sequence->repetition_penalty, (double)REPETITION_PENALTY_MAX);
    if (!isfinite(sequence->presence_penalty) || !isfinite(sequence->frequency_penalty))
        return refuse(checked, STATUS_INVALID_ARGUMENT, err,
                      "penalties %g (presence) and %g (frequency), of finite numbers",
                      (double)sequence->presence_penalty, (double)sequence->frequency_penalty);
    if (sequence->page_base > 0 && penalties_are_wanted(sequence) &&
        !penalties_are_counted(checked->step->penalties, sequence->slot))
        return refuse(checked, STATUS_FAILED_PRECONDITION, err,
                      "penalties, and the slot began without");
    if (sequence->kind == PLAN_TREE && sequence->committed < sequence->reply_begin)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err,
                      "a tree at %u, before the reply begins at %u", sequence->committed,
                      sequence->reply_begin);
    return check_bias(checked, err);
}

/* page_base 0 starts the slot anew: what the plan says it holds then comes from the prefix cache,
 * and is not known here. */
static enum status check_continues(const struct checked *checked, struct error *err) {
    const struct plan_sequence *sequence = checked->sequence;
    const struct slot_state *state = &checked->step->slots.slot[sequence->slot];
    bool released = checked->step->slot_use[sequence->slot] == SLOT_RELEASED;
    uint32_t page_count = released ? 0 : state->page_count;
    if (sequence->committed == 0 && sequence->prefix_hash != HASH_CHAIN_EMPTY)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err,
                      "prefix_hash %016" PRIx64 " of no tokens", sequence->prefix_hash);
    if (sequence->page_base == 0) return STATUS_OK;
    if (sequence->page_base != page_count)
        return refuse(checked, STATUS_FAILED_PRECONDITION, err,
                      "page_base %u, this rank holds %u pages", sequence->page_base, page_count);
    if (sequence->committed != state->committed)
        return refuse(checked, STATUS_FAILED_PRECONDITION, err, "committed %u, this rank holds %u",
                      sequence->committed, state->committed);
    if (sequence->prefix_hash != state->prefix_hash)
        return refuse(checked, STATUS_FAILED_PRECONDITION, err,
                      "prefix_hash %016" PRIx64 ", this rank holds %016" PRIx64,
                      sequence->prefix_hash, state->prefix_hash);
    return STATUS_OK;
}

/* Positions that the rows reach at most: a tree is as long as its longest path. */
static uint32_t length_of(const struct checked *checked) {
    const struct plan_sequence *sequence = checked->sequence;
    if (sequence->kind != PLAN_TREE) return sequence->row_count;
    const struct tree *tree = &checked->step->batch.tree[checked->idx];
    uint32_t deepest = 0;
    for (uint32_t row = 0; row < tree->row_count; row++)
        deepest = tree->depth[row] > deepest ? tree->depth[row] : deepest;
    return deepest + 1;
}

/* A drawn token stands for one: alone, and of the step before. */
static enum status check_tokens(const struct checked *checked, struct error *err) {
    const struct plan_sequence *sequence = checked->sequence;
    const uint32_t *token = checked->plan->token + sequence->row_begin;
    for (uint32_t row = 0; row < sequence->row_count; row++)
        if (token[row] == PLAN_TOKEN_DRAWN && sequence->row_count > 1)
            return refuse(checked, STATUS_INVALID_ARGUMENT, err,
                          "row %u is the token drawn last, of %u rows; it must be the only one",
                          row, sequence->row_count);
    bool wants_drawn = token[0] == PLAN_TOKEN_DRAWN;
    if (wants_drawn &&
        (sequence->page_base == 0 || !checked->step->slots.slot[sequence->slot].has_drawn))
        return refuse(checked, STATUS_FAILED_PRECONDITION, err,
                      "the token drawn last, and the step before drew none");
    return STATUS_OK;
}

static enum status check_pages(const struct checked *checked, struct error *err) {
    const struct plan_sequence *sequence = checked->sequence;
    const struct step_plan *plan = checked->plan;
    const struct step_limits *limits = &checked->step->limits;
    if (sequence->extent_begin > plan->extent_count ||
        sequence->extent_count > plan->extent_count - sequence->extent_begin)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err,
                      "extents %u and %u on, the plan has %u", sequence->extent_begin,
                      sequence->extent_count, plan->extent_count);
    uint32_t room = checked->step->slots.page_cap - sequence->page_base;
    uint32_t added = 0;
    for (uint32_t i = 0; i < sequence->extent_count; i++) {
        const struct page_extent *extent = &plan->extent[sequence->extent_begin + i];
        if (extent->first_page >= limits->page_count ||
            extent->page_count > limits->page_count - extent->first_page)
            return refuse(checked, STATUS_INVALID_ARGUMENT, err,
                          "pages %u and %u on, the pool has %u", extent->first_page,
                          extent->page_count, limits->page_count);
        if (extent->page_count > room - added)
            return refuse(checked, STATUS_INVALID_ARGUMENT, err,
                          "more than %u pages, what the context needs",
                          checked->step->slots.page_cap);
        added += extent->page_count;
    }
    uint32_t needed = pages_for(limits, sequence->committed + sequence->row_count);
    if (sequence->page_base + added < needed)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err, "%u pages where its rows need %u",
                      sequence->page_base + added, needed);
    return STATUS_OK;
}

/* Rows go to pages that nobody else writes in this step: two writers would race. */
static enum status check_targets(const struct checked *checked, struct error *err) {
    const struct plan_sequence *sequence = checked->sequence;
    const struct step *step = checked->step;
    const struct slot_state *state = &step->slots.slot[sequence->slot];
    uint32_t begin = sequence->committed / step->limits.page_tok;
    uint32_t end = pages_for(&step->limits, sequence->committed + sequence->row_count);
    enum status status = STATUS_OK;
    for (uint32_t idx = begin; idx < end && idx < sequence->page_base && status == STATUS_OK; idx++)
        status = claim_page(checked, state->page[idx], err);
    uint32_t idx = sequence->page_base;
    for (uint32_t i = 0; i < sequence->extent_count; i++) {
        const struct page_extent *extent = &checked->plan->extent[sequence->extent_begin + i];
        for (uint32_t page = 0; page < extent->page_count && status == STATUS_OK; page++, idx++)
            if (idx >= begin && idx < end)
                status = claim_page(checked, extent->first_page + page, err);
    }
    return status;
}

static enum status claim_page(const struct checked *checked, uint32_t page, struct error *err) {
    uint64_t *written = &checked->step->page_written[page];
    if (*written == checked->step->checks)
        return refuse(checked, STATUS_INVALID_ARGUMENT, err, "page %u takes rows twice in one step",
                      page);
    *written = checked->step->checks;
    return STATUS_OK;
}

static enum status refuse(const struct checked *checked, enum status status, struct error *err,
                          const char *format, ...) {
    char reason[ERROR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return error_set(err, status, "plan: sequence %u (slot %u): %s", checked->idx,
                     checked->sequence->slot, reason);
}

/* ============================== rows ========================================================== */

static enum status place_rows(struct step *step, const struct step_plan *plan, uint32_t idx,
                              struct error *err) {
    const struct plan_sequence *sequence = &plan->sequence[idx];
    struct step_batch *batch = &step->batch;
    struct slot_state *state = &step->slots.slot[sequence->slot];
    if (sequence->page_base == 0) {
        slot_table_forget(&step->slots, sequence->slot);
        state->committed = sequence->committed;
        state->prefix_hash = sequence->prefix_hash;
    }
    for (uint32_t i = 0; i < sequence->extent_count; i++) {
        const struct page_extent *extent = &plan->extent[sequence->extent_begin + i];
        slot_table_append(&step->slots, sequence->slot, extent->first_page, extent->page_count);
    }
    struct tree *tree = sequence->kind == PLAN_TREE ? &batch->tree[idx] : NULL;
    batch->sequence[idx] = (struct mla_sequence){
        .row_begin = sequence->row_begin,
        .row_count = sequence->row_count,
        .committed = sequence->committed,
        .page = state->page,
        .ancestors = tree ? tree->ancestors : NULL,
    };
    if (tree) tree->token = batch->token + sequence->row_begin;
    if (sequence->page_base == 0) {
        enum status status = penalties_begin(step->penalties, plan, sequence, state->page, err);
        if (status != STATUS_OK)
            return error_wrap(err, status, "sequence %u (slot %u)", idx, sequence->slot);
    }
    for (uint32_t row = 0; row < sequence->row_count; row++) {
        uint32_t token = plan->token[sequence->row_begin + row];
        if (token == PLAN_TOKEN_DRAWN) token = state->drawn;
        uint32_t depth = tree ? tree->depth[row] : row;
        batch->token[sequence->row_begin + row] = token;
        batch->position[sequence->row_begin + row] = sequence->committed + depth;
        batch->kv_slot[sequence->row_begin + row] = slot_at(step, state, sequence->committed + row);
        /* Rows of a tree count where the walk comes to them. */
        if (!tree) penalties_add(step->penalties, sequence, sequence->committed + row, token);
    }
    return STATUS_OK;
}

/* The cache slot of a sequence's token number `place`. */
static uint32_t slot_at(const struct step *step, const struct slot_state *state, uint32_t place) {
    uint32_t page_tok = step->limits.page_tok;
    return state->page[place / page_tok] * page_tok + place % page_tok;
}

/* All rows are put down before any cache is checked, so that a row put into another's page shows
 * in this step. */
static enum status check_shadow(struct step *step, const struct step_plan *plan,
                                struct error *err) {
    for (uint32_t i = 0; i < plan->sequence_count; i++) {
        const struct plan_sequence *sequence = &plan->sequence[i];
        const uint32_t *token = step->batch.token + sequence->row_begin;
        uint64_t with[TREE_ROWS_MAX], before = sequence->prefix_hash;
        for (uint32_t row = 0; row < sequence->row_count; row++) {
            uint32_t parent = row - 1;
            if (sequence->kind == PLAN_TREE) parent = step->batch.tree[i].parent[row];
            if (row > 0) before = with[parent % TREE_ROWS_MAX];
            with[row % TREE_ROWS_MAX] = hash_chain(before, token[row]);
            kv_shadow_store(step->shadow, step->batch.kv_slot[sequence->row_begin + row], before,
                            with[row % TREE_ROWS_MAX]);
        }
    }
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < plan->sequence_count && status == STATUS_OK; i++) {
        const struct plan_sequence *sequence = &plan->sequence[i];
        status = kv_shadow_check(step->shadow, step->batch.sequence[i].page, sequence->committed,
                                 sequence->prefix_hash, err);
        if (status != STATUS_OK)
            status = error_wrap(err, status, "sequence %u (slot %u)", i, sequence->slot);
    }
    return status;
}

/* ============================== commit ======================================================== */

/* Row `row` of the step becomes the slot's token number `place`. */
static void commit_row(struct step *step, uint32_t row, struct slot_state *state, uint32_t place) {
    struct step_final *final = &step->final;
    uint32_t to = slot_at(step, state, place), from = step->batch.kv_slot[row];
    final->prefix_before[final->count] = state->prefix_hash;
    state->prefix_hash = hash_chain(state->prefix_hash, step->batch.token[row]);
    final->prefix_with[final->count] = state->prefix_hash;
    final->row[final->count] = row;
    final->position[final->count] = place;
    final->kv_slot[final->count++] = to;
    penalties_store(step->penalties, to, step->batch.token[row]);
    if (from == to) return;
    final->move[final->move_count++] = (struct kv_slot_move){.from = from, .to = to};
    if (step->shadow) kv_shadow_move(step->shadow, from, to);
}

static void commit_chain(struct step *step, const struct plan_sequence *sequence) {
    struct slot_state *state = &step->slots.slot[sequence->slot];
    for (uint32_t row = 0; row < sequence->row_count; row++)
        commit_row(step, sequence->row_begin + row, state, sequence->committed + row);
    state->committed += sequence->row_count;
}

/* The walk once more, by the tokens drawn along it. Returns the token it ended with. */
static uint32_t commit_tree(struct step *step, const struct plan_sequence *sequence, uint32_t idx,
                            const uint32_t *drawn, uint32_t drawn_count) {
    struct slot_state *state = &step->slots.slot[sequence->slot];
    struct tree_walk walk;
    tree_walk_begin(&walk);
    for (uint32_t i = 0; i < drawn_count; i++)
        tree_walk_take(&walk, &step->batch.tree[idx], drawn[i]);
    CHECK(walk.done && walk.row_count == drawn_count);
    for (uint32_t i = 0; i < walk.row_count; i++) {
        uint32_t row = sequence->row_begin + walk.row[i], place = sequence->committed + i;
        commit_row(step, row, state, place);
        penalties_add(step->penalties, sequence, place, step->batch.token[row]);
    }
    state->committed += walk.row_count;
    return walk.next;
}
