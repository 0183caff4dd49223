/* A plan on the wire is a set of tables, each a set of columns of one length:
 *
 *     rows:      token, parent                extents:  first_page, page_count
 *     sequences: slot, kind, row_begin, ...   copies:   source, target, tok_count
 *     biases:    token, value
 *
 * Sequences own consecutive rows, extents and biases, in their order. So a reader that walks
 * them once with three running ends has proved that the ranges are within the arrays, disjoint and
 * dense. */
#include "codec_step.h"

#include <float.h>
#include <string.h>

/* name, C type on the wire: the columns of the sequence table of a plan. */
#define SEQUENCE_COLUMNS(X)                                                                        \
    X(slot, uint32_t)                                                                              \
    X(kind, Espalier__PlanKind)                                                                    \
    X(row_begin, uint32_t)                                                                         \
    X(row_count, uint32_t)                                                                         \
    X(committed, uint32_t)                                                                         \
    X(prefix_hash, uint64_t)                                                                       \
    X(page_base, uint32_t)                                                                         \
    X(extent_begin, uint32_t)                                                                      \
    X(extent_count, uint32_t)                                                                      \
    X(want, Espalier__PlanWant)                                                                    \
    X(logprobs, protobuf_c_boolean)                                                                \
    X(top_logprobs, uint32_t)                                                                      \
    X(temperature, float)                                                                          \
    X(top_p, float)                                                                                \
    X(top_k, uint32_t)                                                                             \
    X(choice, uint32_t)                                                                            \
    X(seed, uint64_t)                                                                              \
    X(mask_id, uint32_t)                                                                           \
    X(min_p, float)                                                                                \
    X(repetition_penalty, float)                                                                   \
    X(presence_penalty, float)                                                                     \
    X(frequency_penalty, float)                                                                    \
    X(reply_begin, uint32_t)                                                                       \
    X(bias_begin, uint32_t)                                                                        \
    X(bias_count, uint32_t)                                                                        \
    X(draft_len, uint32_t)

/* The columns of the sequence table of a result, all uint32_t. */
#define RESULT_COLUMNS(X)                                                                          \
    X(slot)                                                                                        \
    X(token_begin)                                                                                 \
    X(token_count)                                                                                 \
    X(draft_begin)                                                                                 \
    X(draft_count)

/* A set of slots, to see one named twice. */
struct slot_set {
    uint64_t bits[PLAN_SEQS_MAX / 64];
};

static void put_sequences(struct arena *arena, const struct step_plan *plan,
                          Espalier__StepPlan *out);
static void put_pages(struct arena *arena, const struct step_plan *plan, Espalier__StepPlan *out);
static void put_drafts(struct arena *arena, const struct step_result *result,
                       Espalier__StepResult *out);
static void judge_tokens(struct wire_reader *reader, const uint32_t *token, uint32_t count);
static void get_pages(struct wire_reader *reader, const Espalier__StepPlan *in,
                      struct step_plan *plan);
static void get_release(struct wire_reader *reader, const Espalier__StepPlan *in,
                        struct step_plan *plan);
static void get_sequences(struct wire_reader *reader, const Espalier__StepPlan *in,
                          struct step_plan *plan);
static void judge_rows(struct wire_reader *reader, const struct step_plan *plan,
                       const struct plan_sequence *sequence);
static void judge_tree(struct wire_reader *reader, const struct step_plan *plan,
                       const struct plan_sequence *sequence);
static void judge_pages(struct wire_reader *reader, const struct step_plan *plan,
                        const struct plan_sequence *sequence);
static void judge_bias(struct wire_reader *reader, const struct step_plan *plan,
                       const struct plan_sequence *sequence);
static void judge_sampling(struct wire_reader *reader, const struct plan_sequence *sequence);
static void judge_draft(struct wire_reader *reader, const struct step_plan *plan,
                        const struct plan_sequence *sequence, uint32_t *position_count);
static void get_drafts(struct wire_reader *reader, const Espalier__StepResult *in,
                       struct step_result *result);
static uint32_t get_slot(struct wire_reader *reader, const char *field, uint32_t slot,
                         struct slot_set *seen);

/* --- writing -------------------------------------------------------------------------------- */

void codec_step_put_plan(struct arena *arena, const struct step_plan *plan,
                         Espalier__StepPlan *out) {
    out->generation = plan->generation;
    out->step = plan->step;
    out->n_token = plan->row_count;
    out->token = wire_put_u32(plan->token);
    out->n_parent = plan->parent ? plan->row_count : 0;
    out->parent = wire_put_u32(plan->parent);
    out->n_release = plan->release_count;
    out->release = wire_put_u32(plan->release);
    out->draft_top = plan->draft_top;
    put_pages(arena, plan, out);
    put_sequences(arena, plan, out);
    out->n_bias_token = out->n_bias_value = plan->bias_count;
    wire_put_biases(arena, plan->bias, plan->bias_count, &out->bias_token, &out->bias_value);
}

static void put_pages(struct arena *arena, const struct step_plan *plan, Espalier__StepPlan *out) {
    uint32_t count = plan->extent_count;
    out->n_extent_first_page = out->n_extent_page_count = count;
    out->extent_first_page = wire_put_alloc(arena, count, sizeof(uint32_t));
    out->extent_page_count = wire_put_alloc(arena, count, sizeof(uint32_t));
    for (uint32_t i = 0; i < count; i++) {
        out->extent_first_page[i] = plan->extent[i].first_page;
        out->extent_page_count[i] = plan->extent[i].page_count;
    }
    count = plan->copy_count;
    out->n_copy_source = out->n_copy_target = out->n_copy_tok_count = count;
    out->copy_source = wire_put_alloc(arena, count, sizeof(uint32_t));
    out->copy_target = wire_put_alloc(arena, count, sizeof(uint32_t));
    out->copy_tok_count = wire_put_alloc(arena, count, sizeof(uint32_t));
    for (uint32_t i = 0; i < count; i++) {
        out->copy_source[i] = plan->copy[i].source;
        out->copy_target[i] = plan->copy[i].target;
        out->copy_tok_count[i] = plan->copy[i].tok_count;
    }
}

static void put_sequences(struct arena *arena, const struct step_plan *plan,
                          Espalier__StepPlan *out) {
    uint32_t count = plan->sequence_count;
#define X(name, type)                                                                              \
    out->n_sequence_##name = count;                                                                \
    out->sequence_##name = wire_put_alloc(arena, count, sizeof(type));                             \
    for (uint32_t i = 0; i < count; i++)                                                           \
        out->sequence_##name[i] = (type)plan->sequence[i].name;
    SEQUENCE_COLUMNS(X)
#undef X
}

void codec_step_put_result(struct arena *arena, const struct step_result *result,
                           Espalier__StepResult *out) {
    out->generation = result->generation;
    out->step = result->step;
    out->rank = result->rank;
    out->state_hash = result->state_hash;
    out->compute_ns = result->compute_ns;
    out->idle_ns = result->idle_ns;
    out->n_token = result->token_count;
    out->token = wire_put_u32(result->token);

    uint32_t count = result->logprob_count;
    out->n_logprob_token = out->n_logprob_value = count;
    wire_put_logprobs(arena, result->logprob, count, &out->logprob_token, &out->logprob_value);

    count = result->sequence_count;
#define X(name)                                                                                    \
    out->n_sequence_##name = count;                                                                \
    out->sequence_##name = wire_put_alloc(arena, count, sizeof(uint32_t));                         \
    for (uint32_t i = 0; i < count; i++)                                                           \
        out->sequence_##name[i] = result->sequence[i].name;
    RESULT_COLUMNS(X)
#undef X
    put_drafts(arena, result, out);
}

static void put_drafts(struct arena *arena, const struct step_result *result,
                       Espalier__StepResult *out) {
    uint32_t count = result->draft_count;
    out->draft_ns = result->draft_ns;
    out->draft_top = result->draft_top;
    out->n_draft_lse = count;
    out->draft_lse = wire_put_alloc(arena, count, sizeof(float));
    if (count > 0) memcpy(out->draft_lse, result->draft_lse, count * sizeof(float));
    count *= result->draft_top;
    out->n_candidate_token = out->n_candidate_logit = count;
    out->candidate_token = wire_put_alloc(arena, count, sizeof(uint32_t));
    out->candidate_logit = wire_put_alloc(arena, count, sizeof(float));
    for (uint32_t i = 0; i < count; i++) {
        out->candidate_token[i] = result->candidate[i].token;
        out->candidate_logit[i] = result->candidate[i].logit;
    }
}

/* --- reading a plan ------------------------------------------------------------------------- */

void codec_step_get_plan(struct wire_reader *reader, const Espalier__StepPlan *in,
                         struct step_plan *plan) {
    wire_enter(reader, "plan", WIRE_NO_INDEX);
    *plan = (struct step_plan){
        .generation = wire_u64(reader, "generation", in->generation, 1, UINT64_MAX),
        .step = wire_u64(reader, "step", in->step, 1, UINT64_MAX),
        .row_count = wire_count(reader, "token", in->n_token, 1, PLAN_ROWS_MAX),
        .token = in->token,
        .parent = in->n_parent ? in->parent : NULL,
        .draft_top = wire_u32(reader, "draft_top", in->draft_top, 0, DRAFT_TOP_MAX),
    };
    judge_tokens(reader, in->token, plan->row_count);
    if (in->n_parent) wire_same_count(reader, "parent", in->n_parent, plan->row_count);
    get_pages(reader, in, plan);
    get_release(reader, in, plan);
    plan->bias_count = wire_count(reader, "bias", in->n_bias_token, 0, PLAN_BIASES_MAX);
    wire_same_count(reader, "bias_value", in->n_bias_value, plan->bias_count);
    plan->bias = wire_biases(reader, "bias", in->bias_token, in->bias_value, plan->bias_count);
    get_sequences(reader, in, plan);
}

/* A token of the vocabulary, or the one drawn last; judge_rows says where that may stand. */
static void judge_tokens(struct wire_reader *reader, const uint32_t *token, uint32_t count) {
    for (uint32_t row = 0; row < count && !reader->status; row++)
        if (token[row] >= MODEL_VOCAB_MAX && token[row] != PLAN_TOKEN_DRAWN)
            wire_refuse(reader, "token", "%u at [%u], accepted 0..%u", token[row], row,
                        MODEL_VOCAB_MAX - 1);
}

static void get_pages(struct wire_reader *reader, const Espalier__StepPlan *in,
                      struct step_plan *plan) {
    uint32_t extents = wire_count(reader, "extent", in->n_extent_first_page, 0, PLAN_EXTENTS_MAX);
    wire_same_count(reader, "extent_page_count", in->n_extent_page_count, extents);
    uint32_t copies = wire_count(reader, "copy", in->n_copy_source, 0, PLAN_EXTENTS_MAX);
    wire_same_count(reader, "copy_target", in->n_copy_target, copies);
    wire_same_count(reader, "copy_tok_count", in->n_copy_tok_count, copies);
    struct page_extent *extent = wire_alloc(reader, extents, sizeof *extent);
    struct page_copy *copy = wire_alloc(reader, copies, sizeof *copy);

    for (uint32_t i = 0; i < extents && !reader->status; i++) {
        wire_enter(reader, "plan.extent", i);
        uint32_t first = wire_u32(reader, "first_page", in->extent_first_page[i], 0,
                                  KV_PAGES_MAX - 1);
        extent[i].first_page = first;
        extent[i].page_count = wire_u32(reader, "page_count", in->extent_page_count[i], 1,
                                        KV_PAGES_MAX - first);
    }
    for (uint32_t i = 0; i < copies && !reader->status; i++) {
        wire_enter(reader, "plan.copy", i);
        copy[i].source = wire_u32(reader, "source", in->copy_source[i], 0, KV_PAGES_MAX - 1);
        copy[i].target = wire_u32(reader, "target", in->copy_target[i], 0, KV_PAGES_MAX - 1);
        copy[i].tok_count = wire_u32(reader, "tok_count", in->copy_tok_count[i], 1,
                                     KV_PAGE_TOK_MAX);
        if (copy[i].source == copy[i].target)
            wire_refuse(reader, "target", "%u, the source, accepted another page", copy[i].target);
    }
    wire_enter(reader, "plan", WIRE_NO_INDEX);
    plan->extent = extent;
    plan->extent_count = extents;
    plan->copy = copy;
    plan->copy_count = copies;
}

static void get_release(struct wire_reader *reader, const Espalier__StepPlan *in,
                        struct step_plan *plan) {
    struct slot_set released = {0};
    plan->release_count = wire_count(reader, "release", in->n_release, 0, PLAN_SEQS_MAX);
    plan->release = plan->release_count ? in->release : NULL;
    for (uint32_t i = 0; i < plan->release_count && !reader->status; i++) {
        wire_enter(reader, "plan.release", i);
        get_slot(reader, NULL, in->release[i], &released);
    }
    wire_enter(reader, "plan", WIRE_NO_INDEX);
}

static void get_sequences(struct wire_reader *reader, const Espalier__StepPlan *in,
                          struct step_plan *plan) {
    uint32_t count = wire_count(reader, "sequence", in->n_sequence_slot, 1, PLAN_SEQS_MAX);
#define X(name, type) wire_same_count(reader, "sequence_" #name, in->n_sequence_##name, count);
    SEQUENCE_COLUMNS(X)
#undef X
    struct plan_sequence *sequences = wire_alloc(reader, count, sizeof *sequences);
    struct slot_set planned = {0};
    uint32_t row_end = 0, extent_end = 0, bias_end = 0, position_count = 0;
    for (uint32_t i = 0; i < count && !reader->status; i++) {
        wire_enter(reader, "plan.sequence", i);
        struct plan_sequence *sequence = &sequences[i];
        *sequence = (struct plan_sequence){
            .slot = get_slot(reader, "slot", in->sequence_slot[i], &planned),
            .kind = (enum plan_kind)wire_enum(reader, "kind", (int)in->sequence_kind[i], PLAN_CHAIN,
                                              PLAN_TREE),
            .row_begin = in->sequence_row_begin[i],
            .row_count = in->sequence_row_count[i],
            .committed = in->sequence_committed[i],
            .prefix_hash = in->sequence_prefix_hash[i],
            .page_base = in->sequence_page_base[i],
            .extent_begin = in->sequence_extent_begin[i],
            .extent_count = in->sequence_extent_count[i],
            .want = (enum plan_want)wire_enum(reader, "want", (int)in->sequence_want[i],
                                              PLAN_WANT_NOTHING, PLAN_WANT_TOKEN),
            .logprobs = in->sequence_logprobs[i] != 0,
            .top_logprobs = in->sequence_top_logprobs[i],
            .temperature = in->sequence_temperature[i],
            .top_p = in->sequence_top_p[i],
            .top_k = in->sequence_top_k[i],
            .choice = in->sequence_choice[i],
            .seed = in->sequence_seed[i],
            .mask_id = in->sequence_mask_id[i],
            .min_p = in->sequence_min_p[i],
            .repetition_penalty = in->sequence_repetition_penalty[i],
            .presence_penalty = in->sequence_presence_penalty[i],
            .frequency_penalty = in->sequence_frequency_penalty[i],
            .reply_begin = in->sequence_reply_begin[i],
            .bias_begin = in->sequence_bias_begin[i],
            .bias_count = in->sequence_bias_count[i],
            .draft_len = in->sequence_draft_len[i],
        };
        judge_sampling(reader, sequence);
        judge_draft(reader, plan, sequence, &position_count);
        wire_u32(reader, "row_count", sequence->row_count, 1,
                 sequence->kind == PLAN_TREE ? TREE_ROWS_MAX : PLAN_ROWS_MAX);
        wire_range(reader, "row_begin", "row_count", sequence->row_begin, sequence->row_count,
                   plan->row_count, &row_end);
        wire_range(reader, "extent_begin", "extent_count", sequence->extent_begin,
                   sequence->extent_count, plan->extent_count, &extent_end);
        wire_range(reader, "bias_begin", "bias_count", sequence->bias_begin, sequence->bias_count,
                   plan->bias_count, &bias_end);
        if (!reader->status) judge_rows(reader, plan, sequence);
        if (!reader->status) judge_pages(reader, plan, sequence);
        if (!reader->status) judge_bias(reader, plan, sequence);
    }
    wire_enter(reader, "plan", WIRE_NO_INDEX);
    wire_range_end(reader, "rows", row_end, plan->row_count);
    wire_range_end(reader, "extents", extent_end, plan->extent_count);
    wire_range_end(reader, "biases", bias_end, plan->bias_count);
    plan->sequence = sequences;
    plan->sequence_count = count;
}

static void judge_sampling(struct wire_reader *reader, const struct plan_sequence *sequence) {
    wire_u32(reader, "top_logprobs", sequence->top_logprobs, 0,
             sequence->logprobs ? TOP_LOGPROBS_MAX : 0);
    wire_float(reader, "temperature", sequence->temperature, 0, FLT_MAX);
    wire_top_p(reader, sequence->top_p, sequence->want == PLAN_WANT_NOTHING);
    wire_u32(reader, "top_k", sequence->top_k, 0, MODEL_VOCAB_MAX);
    wire_float(reader, "min_p", sequence->min_p, 0, 1);
    wire_penalties(reader, sequence->repetition_penalty, sequence->presence_penalty,
                   sequence->frequency_penalty);
    wire_u32(reader, "reply_begin", sequence->reply_begin, 0, CONTEXT_TOK_MAX);
}

/* Drafts follow a token that is drawn, and all together fit a result. */
static void judge_draft(struct wire_reader *reader, const struct step_plan *plan,
                        const struct plan_sequence *sequence, uint32_t *position_count) {
    bool can_draft = sequence->want == PLAN_WANT_TOKEN && plan->draft_top > 0;
    uint32_t len = wire_u32(reader, "draft_len", sequence->draft_len, 0,
                            can_draft ? DRAFT_LEN_MAX : 0);
    *position_count = wire_u32(reader, "draft_len with those before", *position_count + len, 0,
                               DRAFT_POSITIONS_MAX);
}

/* Rows stay within the context, and each row's parent is known before it. */
static void judge_rows(struct wire_reader *reader, const struct step_plan *plan,
                       const struct plan_sequence *sequence) {
    wire_u32(reader, "committed", sequence->committed, 0, CONTEXT_TOK_MAX - sequence->row_count);
    for (uint32_t row = 0; row < sequence->row_count && sequence->row_count > 1; row++)
        if (plan->token[sequence->row_begin + row] == PLAN_TOKEN_DRAWN)
            wire_refuse(reader, NULL, "row %u: the token drawn last, accepted as the only row",
                        row);
    if (!plan->parent) {
        if (sequence->kind == PLAN_TREE)
            wire_refuse(reader, "kind", "a tree without plan.parent, accepted a chain");
        return;
    }
    if (sequence->kind == PLAN_TREE) {
        judge_tree(reader, plan, sequence);
        return;
    }
    const uint32_t *parent = plan->parent + sequence->row_begin;
    if (parent[0] != PLAN_NO_PARENT)
        wire_refuse(reader, NULL, "row 0: parent %u, accepted %u, none", parent[0], PLAN_NO_PARENT);
    for (uint32_t row = 1; row < sequence->row_count; row++)
        if (parent[row] != row - 1) {
            wire_refuse(reader, NULL, "row %u: parent %u, accepted %u, the row before", row,
                        parent[row], row - 1);
            return;
        }
}

/* The walk needs a token at every row of its path. */
static void judge_tree(struct wire_reader *reader, const struct step_plan *plan,
                       const struct plan_sequence *sequence) {
    if (sequence->want != PLAN_WANT_TOKEN)
        wire_refuse(reader, "want", "nothing of a tree, accepted a token");
    struct tree tree;
    struct error err = {0};
    enum status status = tree_init(&tree, plan->token + sequence->row_begin,
                                   plan->parent + sequence->row_begin, sequence->row_count, &err);
    if (status != STATUS_OK) wire_refuse(reader, NULL, "%s", err.text);
}

/* The slot's table does not outgrow what a context of one-token pages takes. */
static void judge_pages(struct wire_reader *reader, const struct step_plan *plan,
                        const struct plan_sequence *sequence) {
    uint64_t pages = sequence->page_base;
    for (uint32_t i = 0; i < sequence->extent_count; i++)
        pages += plan->extent[sequence->extent_begin + i].page_count;
    wire_u64(reader, "page_base with new pages", pages, 0, CONTEXT_TOK_MAX);
}

/* A slot has the bias it began with. */
static void judge_bias(struct wire_reader *reader, const struct step_plan *plan,
                       const struct plan_sequence *sequence) {
    wire_u32(reader, "bias_count", sequence->bias_count, 0,
             sequence->page_base == 0 ? LOGIT_BIAS_MAX : 0);
    if (sequence->bias_count > 0)
        wire_bias_order(reader, "bias", plan->bias + sequence->bias_begin, sequence->bias_count);
}

static uint32_t get_slot(struct wire_reader *reader, const char *field, uint32_t slot,
                         struct slot_set *seen) {
    slot = wire_u32(reader, field, slot, 0, PLAN_SEQS_MAX - 1);
    uint64_t bit = UINT64_C(1) << (slot % 64);
    if (seen->bits[slot / 64] & bit)
        wire_refuse(reader, field, "slot %u for the second time, accepted once", slot);
    seen->bits[slot / 64] |= bit;
    return slot;
}

/* --- reading a result ----------------------------------------------------------------------- */

void codec_step_get_result(struct wire_reader *reader, const Espalier__StepResult *in,
                           struct step_result *result) {
    wire_enter(reader, "result", WIRE_NO_INDEX);
    uint32_t tokens = wire_count(reader, "token", in->n_token, 0, PLAN_ROWS_MAX);
    uint32_t logprobs = wire_count(reader, "logprob", in->n_logprob_token, 0,
                                   tokens * (1 + TOP_LOGPROBS_MAX));
    uint32_t count = wire_count(reader, "sequence", in->n_sequence_slot, 0, PLAN_SEQS_MAX);
#define X(name) wire_same_count(reader, "sequence_" #name, in->n_sequence_##name, count);
    RESULT_COLUMNS(X)
#undef X
    wire_each_u32(reader, "token", in->token, tokens, MODEL_VOCAB_MAX - 1);
    *result = (struct step_result){
        .generation = wire_u64(reader, "generation", in->generation, 1, UINT64_MAX),
        .step = wire_u64(reader, "step", in->step, 1, UINT64_MAX),
        .rank = wire_u32(reader, "rank", in->rank, 0, TP_MAX - 1),
        .state_hash = in->state_hash,
        .compute_ns = in->compute_ns,
        .idle_ns = in->idle_ns,
        .token = tokens ? in->token : NULL,
        .token_count = tokens,
        .logprob = wire_logprobs(reader, in->logprob_token, logprobs, in->logprob_value,
                                 in->n_logprob_value),
        .logprob_count = logprobs,
    };
    get_drafts(reader, in, result);
    struct result_sequence *sequences = wire_alloc(reader, count, sizeof *sequences);
    struct slot_set seen = {0};
    uint32_t token_end = 0, draft_end = 0;
    for (uint32_t i = 0; i < count && !reader->status; i++) {
        wire_enter(reader, "result.sequence", i);
        sequences[i] = (struct result_sequence){
            .slot = get_slot(reader, "slot", in->sequence_slot[i], &seen),
            .token_begin = in->sequence_token_begin[i],
            .token_count = in->sequence_token_count[i],
            .draft_begin = in->sequence_draft_begin[i],
            .draft_count = wire_u32(reader, "draft_count", in->sequence_draft_count[i], 0,
                                    DRAFT_LEN_MAX),
        };
        wire_range(reader, "token_begin", "token_count", sequences[i].token_begin,
                   sequences[i].token_count, tokens, &token_end);
        wire_range(reader, "draft_begin", "draft_count", sequences[i].draft_begin,
                   sequences[i].draft_count, result->draft_count, &draft_end);
    }
    wire_enter(reader, "result", WIRE_NO_INDEX);
    wire_range_end(reader, "tokens", token_end, tokens);
    wire_range_end(reader, "drafted positions", draft_end, result->draft_count);
    result->sequence = sequences;
    result->sequence_count = count;
}

/* A position's candidates come in one order only. */
static void judge_candidates(struct wire_reader *reader, const struct draft_candidate *candidate,
                             uint32_t count) {
    for (uint32_t i = 1; i < count && !reader->status; i++) {
        const struct draft_candidate *a = &candidate[i - 1], *b = &candidate[i];
        if (a->logit < b->logit || (a->logit == b->logit && a->token >= b->token))
            wire_refuse(reader, "logit", "[%u] out of order, accepted descending, then by token",
                        i);
        for (uint32_t j = 0; j < i; j++)
            if (candidate[j].token == b->token)
                wire_refuse(reader, "token", "%u for the second time, accepted once", b->token);
    }
}

static void get_drafts(struct wire_reader *reader, const Espalier__StepResult *in,
                       struct step_result *result) {
    uint32_t positions = wire_count(reader, "draft_lse", in->n_draft_lse, 0, DRAFT_POSITIONS_MAX);
    uint32_t top = wire_u32(reader, "draft_top", in->draft_top, positions > 0, DRAFT_TOP_MAX);
    uint32_t count = positions * top;
    wire_same_count(reader, "candidate_token", in->n_candidate_token, count);
    wire_same_count(reader, "candidate_logit", in->n_candidate_logit, count);
    wire_each_u32(reader, "candidate_token", in->candidate_token, in->n_candidate_token,
                  MODEL_VOCAB_MAX - 1);
    struct draft_candidate *candidate = wire_alloc(reader, count, sizeof *candidate);
    for (uint32_t i = 0; i < positions && !reader->status; i++) {
        wire_enter(reader, "result.draft", i);
        wire_float(reader, "lse", in->draft_lse[i], -FLT_MAX, FLT_MAX);
        for (uint32_t j = i * top; j < (i + 1) * top; j++)
            candidate[j] = (struct draft_candidate){
                .token = in->candidate_token[j],
                .logit = wire_float(reader, "logit", in->candidate_logit[j], -FLT_MAX, FLT_MAX)};
        judge_candidates(reader, candidate + (size_t)i * top, top);
    }
    wire_enter(reader, "result", WIRE_NO_INDEX);
    result->draft_ns = in->draft_ns;
    result->draft_lse = positions ? in->draft_lse : NULL;
    result->candidate = candidate;
    result->draft_count = positions;
    result->draft_top = top;
}
