#include "sim_worker.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "sim_model.h"
#include "sim_random.h"

static void __attribute__((format(printf, 2, 3)))
complain(struct sim_worker *worker, const char *format, ...);
static void forget_slot(struct sim_worker *worker, uint32_t slot_idx);
static void check_plan(struct sim_worker *worker, const struct step_plan *plan);
static void check_budget(struct sim_worker *worker, const struct step_plan *plan);
static void copy_pages(struct sim_worker *worker, const struct step_plan *plan);
static void take_table(struct sim_worker *worker, const struct step_plan *plan,
                       const struct plan_sequence *sequence);
static void count_users(struct sim_worker *worker, const struct step_plan *plan);
static void check_prefix(struct sim_worker *worker, const struct plan_sequence *sequence);
static void write_rows(struct sim_worker *worker, const struct step_plan *plan,
                       const struct plan_sequence *sequence);
static void answer(struct sim_worker *worker, const struct step_plan *plan,
                   const struct plan_sequence *sequence, struct step_result *result);

void sim_worker_start(struct sim_worker *worker, uint32_t rank, uint32_t chunk_tok_max) {
    memset(worker, 0, sizeof *worker);
    worker->rank = rank;
    worker->chunk_tok_max = chunk_tok_max;
}

void sim_worker_welcome(struct sim_worker *worker, const struct control_welcome *welcome) {
    CHECK(welcome->page_cap <= SIM_WORKER_PAGES && welcome->max_sequences <= SIM_WORKER_SLOTS);
    CHECK(welcome->page_cap * welcome->page_tok <= SIM_WORKER_PLACES);
    worker->limits = *welcome;
}

void sim_worker_join(struct sim_worker *worker, uint64_t generation) {
    for (uint32_t slot = 0; slot < SIM_WORKER_SLOTS; slot++)
        if (worker->slot[slot].live) forget_slot(worker, slot);
    memset(worker->place, 0xEE, sizeof worker->place);
    worker->generation = generation;
    worker->step = 0;
}

void sim_worker_resize(struct sim_worker *worker, const struct control_resize *resize, bool fails) {
    uint32_t page_tok = worker->limits.page_tok, old = worker->limits.page_count;
    if (resize->page_count > worker->limits.page_cap)
        complain(worker, "%u pages, at most %u", resize->page_count, worker->limits.page_cap);
    for (uint32_t i = 0; i < resize->move_count && worker->complaint[0] == '\0'; i++) {
        struct page_move move = resize->move[i];
        if (move.source >= old || move.source < resize->page_count ||
            move.target >= resize->page_count) {
            complain(worker, "move of page %u to %u, of %u", move.source, move.target, old);
            return;
        }
        memcpy(&worker->place[move.target * page_tok], &worker->place[move.source * page_tok],
               page_tok * sizeof worker->place[0]);
    }
    if (fails || worker->complaint[0] != '\0') return;
    uint32_t from = resize->page_count < old ? resize->page_count : old;
    uint32_t to = resize->page_count < old ? old : resize->page_count;
    memset(&worker->place[from * page_tok], 0xEE, (to - from) * page_tok * sizeof worker->place[0]);
    worker->limits.page_count = resize->page_count;
}

struct step_result sim_worker_run(struct sim_worker *worker, const struct step_plan *plan) {
    struct step_result result = {
        .generation = plan->generation,
        .step = plan->step,
        .rank = worker->rank,
        .state_hash = STEP_STATE_HASH_EMPTY,
        .compute_ns = 1000,
        .sequence = worker->drawn,
        .token = worker->token,
        .logprob = worker->logprob,
        .draft_lse = worker->draft_lse,
        .candidate = worker->candidate,
        .draft_top = plan->draft_top,
    };
    check_plan(worker, plan);
    worker->step = plan->step;
    copy_pages(worker, plan);
    for (uint32_t i = 0; i < plan->release_count; i++)
        forget_slot(worker, plan->release[i]);
    for (uint32_t i = 0; i < plan->sequence_count && worker->complaint[0] == '\0'; i++)
        take_table(worker, plan, &plan->sequence[i]);
    count_users(worker, plan);
    for (uint32_t i = 0; i < plan->sequence_count && worker->complaint[0] == '\0'; i++)
        check_prefix(worker, &plan->sequence[i]);
    for (uint32_t i = 0; i < plan->sequence_count && worker->complaint[0] == '\0'; i++)
        write_rows(worker, plan, &plan->sequence[i]);
    for (uint32_t i = 0; i < plan->sequence_count && worker->complaint[0] == '\0'; i++)
        answer(worker, plan, &plan->sequence[i], &result);
    return result;
}

static void complain(struct sim_worker *worker, const char *format, ...) {
    if (worker->complaint[0] != '\0') return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(worker->complaint, sizeof worker->complaint, format, arguments);
    va_end(arguments);
}

static void forget_slot(struct sim_worker *worker, uint32_t slot_idx) {
    if (slot_idx >= SIM_WORKER_SLOTS || !worker->slot[slot_idx].live) {
        complain(worker, "release of slot %u, which is not in use", slot_idx);
        return;
    }
    worker->slot[slot_idx].live = false;
}

static void check_plan(struct sim_worker *worker, const struct step_plan *plan) {
    if (plan->generation != worker->generation)
        complain(worker, "a plan of generation %u in generation %u", (unsigned)plan->generation,
                 (unsigned)worker->generation);
    if (plan->step != worker->step + 1)
        complain(worker, "step %u after step %u", (unsigned)plan->step, (unsigned)worker->step);
    for (uint32_t i = 0; i < plan->row_count; i++)
        if (plan->token[i] >= SIM_TOKEN_VOCAB && plan->token[i] != PLAN_TOKEN_DRAWN)
            complain(worker, "row %u: a token beyond the end", i);
    uint32_t bias_end = 0;
    for (uint32_t i = 0; i < plan->sequence_count; i++) {
        const struct plan_sequence *sequence = &plan->sequence[i];
        if (sequence->bias_begin != bias_end ||
            (sequence->bias_count > 0 && sequence->page_base > 0))
            complain(worker, "slot %u: biases %u and %u on", sequence->slot, sequence->bias_begin,
                     sequence->bias_count);
        bias_end += sequence->bias_count;
        if (sequence->kind == PLAN_TREE && sequence->row_count > worker->tree_rows_max)
            complain(worker, "slot %u: a tree of %u rows", sequence->slot, sequence->row_count);
        if (sequence->draft_len > worker->draft_len)
            complain(worker, "slot %u: drafts %u tokens", sequence->slot, sequence->draft_len);
    }
    if (bias_end != plan->bias_count) complain(worker, "biases of nobody");
    for (uint32_t i = 0; i < plan->extent_count; i++)
        if (plan->extent[i].first_page + plan->extent[i].page_count > worker->limits.page_count)
            complain(worker, "extent %u ends beyond the pool", i);
    check_budget(worker, plan);
}

/* A sequence that draws and has one row is a decode row, or a chunk of one token: the budget of
 * prompts is exceeded for certain only by what is neither. */
static void check_budget(struct sim_worker *worker, const struct step_plan *plan) {
    const struct control_welcome *limits = &worker->limits;
    uint32_t decode_rows = 0;
    for (uint32_t i = 0; i < plan->sequence_count; i++) {
        const struct plan_sequence *sequence = &plan->sequence[i];
        if (sequence->kind == PLAN_TREE || sequence->row_count == 1)
            decode_rows += sequence->want == PLAN_WANT_TOKEN ? sequence->row_count : 0;
    }
    uint32_t chunk_rows = plan->row_count - decode_rows;
    if (plan->row_count > limits->max_rows)
        complain(worker, "%u rows, at most %u", plan->row_count, limits->max_rows);
    if (plan->sequence_count > limits->max_sequences)
        complain(worker, "%u sequences, at most %u", plan->sequence_count, limits->max_sequences);
    if (chunk_rows > worker->chunk_tok_max)
        complain(worker, "%u rows of prompts, at most %u", chunk_rows, worker->chunk_tok_max);
}

static void copy_pages(struct sim_worker *worker, const struct step_plan *plan) {
    uint32_t page_tok = worker->limits.page_tok;
    for (uint32_t i = 0; i < plan->copy_count && worker->complaint[0] == '\0'; i++) {
        struct page_copy copy = plan->copy[i];
        if (copy.source >= worker->limits.page_count || copy.target >= worker->limits.page_count ||
            copy.tok_count > page_tok) {
            complain(worker, "copy %u is outside the pool", i);
            return;
        }
        memcpy(&worker->place[copy.target * page_tok], &worker->place[copy.source * page_tok],
               copy.tok_count * sizeof worker->place[0]);
    }
}

/* The slot's table as the plan wants it: page_base pages it has, then the extents. */
static void take_table(struct sim_worker *worker, const struct step_plan *plan,
                       const struct plan_sequence *sequence) {
    if (sequence->slot >= worker->limits.max_sequences) {
        complain(worker, "slot %u", sequence->slot);
        return;
    }
    struct sim_slot *slot = &worker->slot[sequence->slot];
    if (sequence->page_base == 0) {
        if (slot->live)
            complain(worker, "slot %u starts anew and was not released", sequence->slot);
        slot->live = true;
        slot->has_drawn = false;
        slot->page_count = 0;
        slot->bias = sim_model_bias(plan->bias + sequence->bias_begin, sequence->bias_count);
        slot->committed = sequence->committed;
        slot->prefix_hash = sequence->committed == 0 ? HASH_CHAIN_EMPTY : sequence->prefix_hash;
    }
    if (!slot->live || slot->page_count != sequence->page_base) {
        complain(worker, "slot %u: page_base %u, its table has %u", sequence->slot,
                 sequence->page_base, slot->page_count);
        return;
    }
    for (uint32_t i = 0; i < sequence->extent_count; i++) {
        struct page_extent extent = plan->extent[sequence->extent_begin + i];
        for (uint32_t page = 0; page < extent.page_count; page++) {
            CHECK(slot->page_count < SIM_WORKER_TABLE);
            slot->page[slot->page_count++] = extent.first_page + page;
        }
    }
    uint32_t end = sequence->committed + sequence->row_count, page_tok = worker->limits.page_tok;
    if (end > worker->limits.context_len)
        complain(worker, "slot %u: %u tokens", sequence->slot, end);
    if (slot->page_count < (end + page_tok - 1) / page_tok)
        complain(worker, "slot %u: %u pages for %u tokens", sequence->slot, slot->page_count, end);
}

/* Whoever writes a page must be its only user within the step. */
static void count_users(struct sim_worker *worker, const struct step_plan *plan) {
    memset(worker->page_users, 0, sizeof worker->page_users);
    for (uint32_t i = 0; i < plan->sequence_count && worker->complaint[0] == '\0'; i++) {
        const struct sim_slot *slot = &worker->slot[plan->sequence[i].slot];
        for (uint32_t page = 0; page < slot->page_count; page++)
            worker->page_users[slot->page[page]]++;
    }
}

static struct sim_place *place_at(struct sim_worker *worker, const struct sim_slot *slot,
                                  uint32_t position) {
    uint32_t page_tok = worker->limits.page_tok;
    return &worker->place[slot->page[position / page_tok] * page_tok + position % page_tok];
}

static void check_prefix(struct sim_worker *worker, const struct plan_sequence *sequence) {
    const struct sim_slot *slot = &worker->slot[sequence->slot];
    if (sequence->committed != slot->committed || sequence->prefix_hash != slot->prefix_hash) {
        complain(worker, "slot %u: the plan continues %u tokens, %u are held, or their hash",
                 sequence->slot, sequence->committed, slot->committed);
        return;
    }
    if (slot->committed == 0) return;
    if (place_at(worker, slot, slot->committed - 1)->wire != slot->prefix_hash)
        complain(worker, "slot %u: its pages do not hold the prefix of %u tokens", sequence->slot,
                 slot->committed);
}

/* A row may say "the token drawn last"; then it must be alone, and there must be one. */
static uint32_t token_at(struct sim_worker *worker, const struct step_plan *plan,
                         const struct plan_sequence *sequence, uint32_t row) {
    const struct sim_slot *slot = &worker->slot[sequence->slot];
    uint32_t token = plan->token[sequence->row_begin + row];
    if (token != PLAN_TOKEN_DRAWN) return token;
    if (!slot->has_drawn || sequence->row_count != 1)
        complain(worker, "slot %u: a row for a token that was not drawn", sequence->slot);
    worker->rows_ahead++;
    return slot->drawn;
}

/* The place of a row at this position, behind a prefix. */
static struct sim_place place_behind(struct sim_place before, uint32_t token, uint32_t position) {
    return (struct sim_place){.wire = hash_chain(before.wire, token),
                              .own = sim_model_extend(before.own, token, position)};
}

static struct sim_place *place_to_write(struct sim_worker *worker,
                                        const struct plan_sequence *sequence, uint32_t at) {
    const struct sim_slot *slot = &worker->slot[sequence->slot];
    uint32_t page = slot->page[at / worker->limits.page_tok];
    if (worker->page_users[page] != 1)
        complain(worker, "slot %u writes page %u, which another sequence uses too", sequence->slot,
                 page);
    return place_at(worker, slot, at);
}

/* A chain's rows are committed as they are written; a tree's root must be what was drawn last, and
 * each other row stands behind its parent, wherever it is written. */
static void write_rows(struct sim_worker *worker, const struct step_plan *plan,
                       const struct plan_sequence *sequence) {
    struct sim_slot *slot = &worker->slot[sequence->slot];
    uint32_t begin = slot->committed, depth[TREE_ROWS_MAX] = {0};
    bool is_tree = sequence->kind == PLAN_TREE;
    struct sim_place last = {.wire = slot->prefix_hash, .own = SIM_MODEL_START};
    if (begin > 0) last.own = place_at(worker, slot, begin - 1)->own;
    if (is_tree && slot->has_drawn && plan->token[sequence->row_begin] != slot->drawn)
        complain(worker, "slot %u: a tree on another root than was drawn", sequence->slot);
    for (uint32_t row = 0; row < sequence->row_count; row++) {
        uint32_t token = token_at(worker, plan, sequence, row), position = begin + row;
        struct sim_place before = last;
        if (is_tree && row > 0) {
            uint32_t parent = plan->parent[sequence->row_begin + row];
            depth[row] = depth[parent] + 1;
            position = begin + depth[row];
            before = *place_at(worker, slot, begin + parent);
        }
        struct sim_place *place = place_to_write(worker, sequence, begin + row);
        *place = place_behind(before, token, position);
        if (!is_tree) last = *place;
    }
    if (is_tree) return;
    slot->committed += sequence->row_count;
    slot->prefix_hash = last.wire;
}

/* ---- what is drawn ----------------------------------------------------------------------------
 */

/* A place may be drawn behind: what attention has read up to it. */
static uint64_t fold_committed(struct sim_worker *worker, const struct sim_slot *slot) {
    uint64_t fold = 0;
    for (uint32_t position = 0; position < slot->committed; position++)
        fold = sim_model_fold(fold, place_at(worker, slot, position)->own);
    return fold;
}

static uint32_t draw(const struct sim_slot *slot, const struct plan_sequence *sequence,
                     uint64_t fold) {
    const struct sim_model_sampling sampling = {.temperature = sequence->temperature,
                                                .top_p = sequence->top_p,
                                                .top_k = sequence->top_k,
                                                .choice = sequence->choice,
                                                .seed = sequence->seed,
                                                .repetition_penalty = sequence->repetition_penalty,
                                                .presence_penalty = sequence->presence_penalty,
                                                .frequency_penalty = sequence->frequency_penalty,
                                                .reply_begin = sequence->reply_begin,
                                                .bias = slot->bias};
    return sim_model_draw(fold, &sampling);
}

static void answer_token(struct sim_worker *worker, const struct plan_sequence *sequence,
                         struct step_result *result, uint32_t token) {
    worker->slot[sequence->slot].drawn = token;
    if (worker->rank != 0) return;
    CHECK(result->token_count < SIM_WORKER_TOKENS);
    worker->drawn[result->sequence_count - 1].token_count++;
    worker->token[result->token_count++] = token;
    if (!sequence->logprobs) return;
    for (uint32_t i = 0; i <= sequence->top_logprobs; i++)
        worker->logprob[result->logprob_count++] = sim_model_logprob(token, i);
}

/* From the root to the child whose token is drawn, as long as there is one. */
static void walk(struct sim_worker *worker, const struct step_plan *plan,
                 const struct plan_sequence *sequence, struct step_result *result) {
    struct sim_slot *slot = &worker->slot[sequence->slot];
    const uint32_t *token = plan->token + sequence->row_begin;
    const uint32_t *parent = plan->parent + sequence->row_begin;
    uint32_t begin = slot->committed, row = 0;
    uint64_t fold = fold_committed(worker, slot);
    worker->trees++;
    for (bool goes_on = true; goes_on;) {
        struct sim_place place = *place_at(worker, slot, begin + row);
        *place_at(worker, slot, slot->committed++) = place;
        slot->prefix_hash = place.wire;
        fold = sim_model_fold(fold, place.own);
        answer_token(worker, sequence, result, draw(slot, sequence, fold));
        goes_on = false;
        for (uint32_t child = row + 1; child < sequence->row_count && !goes_on; child++)
            if (parent[child] == row && token[child] == slot->drawn) {
                goes_on = true;
                row = child;
            }
        worker->guesses_right += goes_on;
    }
    for (uint32_t at = slot->committed; at < begin + sequence->row_count; at++)
        memset(place_at(worker, slot, at), 0xDD, sizeof(struct sim_place));
}

/* The likeliest first; the right one is among them as luck has it, mostly in front. */
static void answer_draft(struct sim_worker *worker, const struct plan_sequence *sequence,
                         struct step_result *result) {
    const struct sim_slot *slot = &worker->slot[sequence->slot];
    uint32_t top = result->draft_top, token = slot->drawn;
    struct sim_place place = *place_at(worker, slot, slot->committed - 1);
    uint64_t fold = fold_committed(worker, slot), luck = fold;
    struct result_sequence *own = &worker->drawn[result->sequence_count - 1];
    if (result->draft_count + sequence->draft_len > SIM_WORKER_DRAFTS || luck % 16 == 0) return;
    own->draft_count = sequence->draft_len;
    for (uint32_t i = 0; i < sequence->draft_len; i++) {
        place = place_behind(place, token, slot->committed + i);
        fold = sim_model_fold(fold, place.own);
        token = draw(slot, sequence, fold);
        luck = sim_random_mix(luck);
        uint32_t right = luck % 8 > 0 ? 0 : (uint32_t)(luck >> 8) % top;
        if ((luck >> 16) % 10 >= worker->draft_luck) right = top;
        struct draft_candidate *candidate = &worker->candidate[result->draft_count * top];
        uint32_t wrong = SIM_TOKEN_THINK_END + 1 + (uint32_t)(luck >> 24) % 200;
        for (uint32_t rank = 0; rank < top; rank++)
            candidate[rank] = (struct draft_candidate){
                .token = rank == right ? token : wrong + rank, .logit = 2 - 0.5f * (float)rank};
        worker->draft_lse[result->draft_count++] = 2.7f;
    }
}

static void answer(struct sim_worker *worker, const struct step_plan *plan,
                   const struct plan_sequence *sequence, struct step_result *result) {
    struct sim_slot *slot = &worker->slot[sequence->slot];
    bool draws = sequence->want == PLAN_WANT_TOKEN, is_tree = sequence->kind == PLAN_TREE;
    if (draws && worker->rank == 0)
        worker->drawn[result->sequence_count++] = (struct result_sequence){
            .slot = sequence->slot,
            .token_begin = result->token_count,
            .draft_begin = result->draft_count};
    if (is_tree)
        walk(worker, plan, sequence, result);
    else if (draws)
        answer_token(worker, sequence, result, draw(slot, sequence, fold_committed(worker, slot)));
    uint64_t prefix = is_tree ? hash_chain(slot->prefix_hash, slot->drawn) : slot->prefix_hash;
    result->state_hash = step_state_hash(result->state_hash, sequence->slot, slot->committed,
                                         prefix);
    slot->has_drawn = draws;
    if (worker->rank == 0 && sequence->draft_len > 0) answer_draft(worker, sequence, result);
}
