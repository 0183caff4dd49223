#include "scheduler.h"

#include "base/check.h"
#include "base/hash.h"
#include "effect_buf.h"
#include "prefill.h"

/* Prompt tokens of a step at least, whatever its target. */
#define CHUNK_LEAST 8u

static uint32_t min(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

size_t scheduler_memory(const struct core_options *options) {
    size_t slots = core_running_cap(options);
    return seq_pages_memory(options) + admission_memory(options) + speculation_memory(options) +
           SCHEDULER_PLANS * step_plan_memory(options) + 2 * slots * sizeof(uint32_t) +
           (size_t)2 * ARENA_ALIGN;
}

void scheduler_init(struct scheduler *scheduler, const struct core_options *options,
                    struct request_table *table, struct arena *memory) {
    uint32_t slots = core_running_cap(options);
    *scheduler = (struct scheduler){
        .options = options,
        .table = table,
        .seq_owner = arena_alloc(memory, slots * sizeof(uint32_t)),
        .release = arena_alloc(memory, slots * sizeof(uint32_t)),
    };
    CHECK(scheduler->seq_owner && scheduler->release);
    for (uint32_t slot = 0; slot < slots; slot++)
        scheduler->seq_owner[slot] = REQUEST_NONE;
    seq_pages_init(&scheduler->pages, options, memory);
    admission_init(&scheduler->admission, options, table, &scheduler->pages, memory);
    cost_model_init(&scheduler->cost);
    speculation_init(&scheduler->speculation, options, memory);
    for (uint32_t i = 0; i < SCHEDULER_PLANS; i++)
        step_plan_init(&scheduler->plans[i], options, memory);
    scheduler->plan = &scheduler->plans[0];
}

void scheduler_enqueue(struct scheduler *scheduler, struct request *request) {
    admission_enqueue(&scheduler->admission, request);
}

/* There is one: fewer run than may at most. */
static uint32_t free_slot(const struct scheduler *scheduler, uint32_t from) {
    while (scheduler->seq_owner[from] != REQUEST_NONE)
        from++;
    CHECK(from < core_running_cap(scheduler->options));
    return from;
}

/* Guesses come from what the request has so far. */
static void open_speculation(struct scheduler *scheduler, const struct request *request) {
    uint32_t *token = scheduler->admission.token;
    uint32_t count = min(speculation_history_tok(&scheduler->speculation), request->tape.count);
    if (count > 0)
        token_tape_read(&scheduler->table->tapes, &request->tape, request->tape.count - count,
                        count, token);
    speculation_open(&scheduler->speculation, request->seq_slot, request->salt, token, count);
}

void scheduler_admit(struct scheduler *scheduler) {
    struct request_table *table = scheduler->table;
    uint32_t running_max = scheduler->options->max_running_requests, slot = 0;
    if (table->queue.count == 0 || table->running.count >= running_max) return;
    struct admission_held held = {.count = 0};
    admission_begin(&scheduler->admission);
    while (table->running.count < running_max) {
        slot = free_slot(scheduler, slot);
        struct request *request = admission_next(&scheduler->admission, slot, &held);
        if (!request) break;
        scheduler->seq_owner[slot] = request->id.slot;
        open_speculation(scheduler, request);
    }
    admission_finish(&scheduler->admission, &held);
}

/* ============================== planning ====================================================== */

static bool waits_for_result(struct scheduler *scheduler, const struct reply_context *context);
static bool make_room(struct scheduler *scheduler, bool ahead);
static void choose_guesses(struct scheduler *scheduler, const struct reply_context *context);
static void add_decodes(struct scheduler *scheduler, int64_t now_ns);
static void add_chunks(struct scheduler *scheduler, int64_t now_ns);

const struct step_plan_buf *scheduler_plan(struct scheduler *scheduler,
                                           const struct scheduler_wish *wish) {
    if (scheduler->table->running.count == 0) return NULL;
    if (wish->ahead && waits_for_result(scheduler, wish->context)) return NULL;
    if (!make_room(scheduler, wish->ahead)) return NULL;
    struct step_plan_buf *last = scheduler->plan;
    scheduler->plan = &scheduler->plans[last == &scheduler->plans[0]];
    step_plan_begin(scheduler->plan, wish->generation, wish->step);
    for (uint32_t i = 0; i < scheduler->release_count; i++)
        step_plan_release(scheduler->plan, scheduler->release[i]);
    if (!wish->ahead) choose_guesses(scheduler, wish->context);
    add_decodes(scheduler, wish->now_ns);
    add_chunks(scheduler, wish->now_ns);
    if (scheduler->plan->plan.row_count == 0) {
        CHECK(wish->ahead);
        scheduler->plan = last;
        return NULL;
    }
    scheduler->release_count = 0;
    return scheduler->plan;
}

/* Whether the request's next row is one that is decoded: its last token, or the one being drawn. */
static bool is_decoding(const struct request *request) {
    if (request->state == REQUEST_LEAVING) return false;
    if (!request_is_drawing(request)) return request->state == REQUEST_DECODE;
    return request->tape.count + 1 < request->tok_limit; /* else it ends with that token */
}

/* Whether a chunk of it can be computed. */
static bool is_prefilling(const struct request *request) {
    return request->state == REQUEST_PREFILL && request_planned(request) < request->prefill_end;
}

/* What a tree behind the request's last known token may be. Its rows lie where tokens may. */
static struct draft_bounds bounds_of(const struct scheduler *scheduler,
                                     const struct request *request,
                                     const struct reply_context *context) {
    uint32_t left = request->tok_limit - request->tape.count; /* tokens that may be drawn */
    uint32_t node_max = scheduler->options->speculative_tree_rows - 1;
    struct draft_bounds bounds = {
        .node_max = left < node_max ? left : node_max,
        .depth_max = left > 0 ? left - 1 : 0,
    };
    if (request->wish.ignore_eos) return bounds;
    bounds.stop_token[0] = context->stop_token;
    bounds.stop_token_count[0] = context->stop_token_count;
    bounds.stop_token[1] = request->wish.stop_token;
    bounds.stop_token_count[1] = request->wish.stop_token_count;
    return bounds;
}

/* Somebody's next rows are to be guesses behind a token that is not known yet. Then the step waits
 * for it: two that had half of the rows each would cost more than one. */
static bool waits_for_result(struct scheduler *scheduler, const struct reply_context *context) {
    struct request_table *table = scheduler->table;
    if (scheduler->options->speculative_algorithm == SPECULATE_NONE) return false;
    for (struct request *request = request_first(table, &table->running); request;
         request = request_next(table, request)) {
        if (!request_is_drawing(request) || !is_decoding(request)) continue;
        struct draft_bounds bounds = bounds_of(scheduler, request, context);
        if (speculation_waits(&scheduler->speculation, request->seq_slot, &bounds)) return true;
    }
    return false;
}

static struct request *oldest(struct scheduler *scheduler) {
    struct request_table *table = scheduler->table;
    struct request *found = NULL;
    for (struct request *request = request_first(table, &table->running); request;
         request = request_next(table, request))
        if (request->state != REQUEST_LEAVING && (!found || request->arrival < found->arrival))
            found = request;
    return found;
}

/* Pages the step cannot do without: for the next row of whoever decodes, and of the oldest. */
static uint32_t pages_needed(struct scheduler *scheduler, const struct request *first) {
    struct request_table *table = scheduler->table;
    uint32_t needed = 0;
    for (struct request *request = request_first(table, &table->running); request;
         request = request_next(table, request)) {
        bool is_first = request == first && is_prefilling(request);
        if (!is_first && !is_decoding(request)) continue;
        needed += seq_pages_for(&scheduler->pages, request_planned(request) + 1) >
                  scheduler->pages.slot[request->seq_slot].page_count;
    }
    return needed;
}

/* How much would be lost, and gained: the pages that are the request's own. */
struct victim {
    struct request *request;
    uint32_t own_pages;
};

/* Whoever was spared so far goes before one that was not; then one that gives enough before one
 * that does not; then what is computed again the soonest; then the younger. */
static bool loses_less(struct victim a, struct victim b, uint32_t missing) {
    if (!b.request) return true;
    if (a.request->retractions != b.request->retractions)
        return a.request->retractions < b.request->retractions;
    bool a_gives = a.own_pages >= missing, b_gives = b.own_pages >= missing;
    if (a_gives != b_gives) return a_gives;
    if (a.own_pages != b.own_pages) return (a.own_pages < b.own_pages) == a_gives;
    return a.request->arrival > b.request->arrival;
}

static struct request *choose_victim(struct scheduler *scheduler, const struct request *spared,
                                     uint32_t missing) {
    struct request_table *table = scheduler->table;
    struct victim chosen = {.request = NULL};
    for (struct request *request = request_first(table, &table->running); request;
         request = request_next(table, request)) {
        if (request == spared || request->state == REQUEST_LEAVING || request->in_steps > 0)
            continue;
        struct victim victim = {
            .request = request,
            .own_pages = seq_pages_own(&scheduler->pages, request->seq_slot),
        };
        if (loses_less(victim, chosen, missing)) chosen = victim;
    }
    return chosen.request;
}

static void give_up_slot(struct scheduler *scheduler, struct request *request) {
    speculation_close(&scheduler->speculation, request->seq_slot);
    seq_pages_close(&scheduler->pages, request->seq_slot);
    scheduler->seq_owner[request->seq_slot] = REQUEST_NONE;
    /* Workers know a slot from its first plan on. */
    if (request->page_sent > 0) scheduler->release[scheduler->release_count++] = request->seq_slot;
    request->seq_slot = REQUEST_NONE;
    request->page_sent = 0;
}

static void retract(struct scheduler *scheduler, struct request *request) {
    give_up_slot(scheduler, request);
    request->committed = 0;
    request->prefix_hash = HASH_CHAIN_EMPTY;
    admission_enqueue(&scheduler->admission, request);
    output_estimate_raise(&scheduler->admission.estimate);
    scheduler->table->totals.retractions++;
}

/* A copy reads a page besides those of its sequence: where that is one too many, its tokens are
 * computed. */
static void forgo_copy(struct scheduler *scheduler, struct request *request) {
    struct seq_pages_start start;
    bool forgone = seq_pages_forgo_copy(&scheduler->pages, request->seq_slot, &start);
    CHECK(forgone && request->in_steps == 0);
    request->committed = start.tok_count;
    request->prefix_hash = start.prefix_hash;
}

/* Retract until whoever decodes, and the oldest, can go on. False: not without retracting somebody
 * whom a step in flight may name. */
static bool make_room(struct scheduler *scheduler, bool ahead) {
    struct request *first = oldest(scheduler);
    if (!first) return !ahead; /* all are leaving */
    uint32_t room, needed;
    while (needed = pages_needed(scheduler, first), room = seq_pages_room(&scheduler->pages),
           needed > room) {
        if (ahead) return false;
        struct request *victim = choose_victim(scheduler, first, needed - room);
        if (victim)
            retract(scheduler, victim);
        else
            forgo_copy(scheduler, first); /* else it fits the pool alone */
    }
    if (!is_prefilling(first)) return true;
    bool grown = seq_pages_grow(&scheduler->pages, first->seq_slot, request_planned(first) + 1);
    CHECK(grown); /* before others take what it needs */
    return true;
}

/* What the worker lacks of the slot's table: all of it, where it begins or has moved. */
static void restart_moved(struct scheduler *scheduler, struct request *request) {
    struct seq_pages_slot *slot = &scheduler->pages.slot[request->seq_slot];
    if (!slot->moved) return;
    CHECK(request->in_steps == 0);
    slot->moved = false;
    if (request->page_sent > 0) step_plan_release(scheduler->plan, request->seq_slot);
    request->page_sent = 0;
}

static void add_copy(struct scheduler *scheduler, const struct request *request) {
    const struct seq_pages_slot *slot = &scheduler->pages.slot[request->seq_slot];
    const struct page_ref *table = seq_pages_table(&scheduler->pages, request->seq_slot);
    if (slot->copy_tok == 0 || request->page_sent > 0) return;
    step_plan_copy(scheduler->plan,
                   &(struct page_copy){
                       .source = slot->copy_source.page,
                       .target = table[request->committed / scheduler->options->page_tok].page,
                       .tok_count = slot->copy_tok,
                   });
}

/* The hash of the prefix that ends where the next rows begin. */
static uint64_t planned_hash(struct scheduler *scheduler, const struct request *request) {
    uint64_t hash = request->prefix_hash;
    uint32_t count = request->rows_in_flight, *token = scheduler->admission.token;
    if (count == 0) return hash;
    token_tape_read(&scheduler->table->tapes, &request->tape, request->committed, count, token);
    for (uint32_t i = 0; i < count; i++)
        hash = hash_chain(hash, token[i]);
    return hash;
}

/* How far the request's step shall draft, when it draws. */
static uint32_t draft_len(struct scheduler *scheduler, const struct request *request) {
    return speculation_draft_len(&scheduler->speculation, request->seq_slot,
                                 scheduler->plan->drafts_max - scheduler->plan->draft_count);
}

/* The tokens of the sequence added last: its tree's, or those of the tape from `begin` on. */
static void write_tokens(struct scheduler *scheduler, const struct request *request,
                         const struct plan_sequence *sequence, uint32_t *token) {
    const struct token_tape_store *tapes = &scheduler->table->tapes;
    uint32_t begin = sequence->committed;
    if (begin == request->tape.count) {
        token[0] = PLAN_TOKEN_DRAWN;
    } else if (sequence->kind == PLAN_CHAIN) {
        token_tape_read(tapes, &request->tape, begin, sequence->row_count, token);
    } else {
        uint32_t root;
        token_tape_read(tapes, &request->tape, begin, 1, &root);
        speculation_rows(&scheduler->speculation, request->seq_slot, root, token,
                         step_plan_parents(scheduler->plan));
    }
}

/* Plan the request's next row_count tokens, and guesses behind them, for which it has pages. False:
 * in the next step. */
static bool add_rows(struct scheduler *scheduler, struct request *request, uint32_t row_count,
                     uint32_t guess_count, int64_t now_ns) {
    uint32_t begin = request_planned(request), end = begin + row_count;
    uint32_t page_end = seq_pages_for(&scheduler->pages, end + guess_count);
    const struct page_ref *table = seq_pages_table(&scheduler->pages, request->seq_slot);
    if (scheduler->pages.slot[request->seq_slot].moved || request->page_sent == 0)
        if (!step_plan_fits(scheduler->plan, table, page_end, request->sampling.logit_bias_count))
            return false;
    restart_moved(scheduler, request);
    add_copy(scheduler, request);
    if (page_end < request->page_sent) page_end = request->page_sent; /* a larger tree's */
    bool draws = end >= request->tape.count;
    struct plan_sequence sequence = {
        .slot = request->seq_slot,
        .kind = guess_count > 0 ? PLAN_TREE : PLAN_CHAIN,
        .row_count = row_count + guess_count,
        .committed = begin,
        .prefix_hash = planned_hash(scheduler, request),
        .page_base = request->page_sent,
        .want = draws ? PLAN_WANT_TOKEN : PLAN_WANT_NOTHING,
        .logprobs = draws && request->logprobs,
        .top_logprobs = draws ? request->top_logprobs : 0,
        .temperature = request->sampling.temperature,
        .top_p = request->sampling.top_p,
        .top_k = request->sampling.top_k,
        .min_p = request->sampling.min_p,
        .choice = request->choice,
        .repetition_penalty = request->sampling.repetition_penalty,
        .presence_penalty = request->sampling.presence_penalty,
        .frequency_penalty = request->sampling.frequency_penalty,
        .reply_begin = request->prompt_count,
        .seed = request->seed,
        .mask_id = PLAN_NO_MASK,
        .draft_len = draws ? draft_len(scheduler, request) : 0,
    };
    uint32_t *token = step_plan_add(scheduler->plan, &sequence, table + request->page_sent,
                                    page_end - request->page_sent);
    if (request->page_sent == 0)
        step_plan_add_bias(scheduler->plan, request->logit_bias,
                           request->sampling.logit_bias_count);
    write_tokens(scheduler, request, &sequence, token);
    request->page_sent = page_end;
    request->in_steps++;
    request->rows_in_flight += row_count;
    request_note_step(scheduler->table, request, now_ns);
    return true;
}

/* Tokens that the request's pages can hold, with all the room there is, beyond those committed. */
static uint32_t tokens_that_fit(const struct scheduler *scheduler, const struct request *request) {
    uint64_t page_count = (uint64_t)scheduler->pages.slot[request->seq_slot].page_count +
                          seq_pages_room(&scheduler->pages);
    uint64_t place_count = page_count * scheduler->options->page_tok;
    uint32_t planned = request_planned(request);
    uint64_t tok_count = place_count > planned ? place_count - planned : 0;
    return tok_count < PLAN_ROWS_MAX ? (uint32_t)tok_count : PLAN_ROWS_MAX;
}

static void grow(struct scheduler *scheduler, const struct request *request, uint32_t row_count) {
    bool grown = seq_pages_grow(&scheduler->pages, request->seq_slot,
                                request_planned(request) + row_count);
    CHECK(grown);
}

static void add_decodes(struct scheduler *scheduler, int64_t now_ns) {
    struct request_table *table = scheduler->table;
    /* First everybody's own row, for which make_room has made room. */
    for (struct request *request = request_first(table, &table->running); request;
         request = request_next(table, request))
        if (is_decoding(request)) grow(scheduler, request, 1);
    for (struct request *request = request_first(table, &table->running); request;
         request = request_next(table, request)) {
        if (!is_decoding(request)) continue;
        uint32_t guess_count = speculation_fit(&scheduler->speculation, request->seq_slot,
                                               tokens_that_fit(scheduler, request) - 1);
        if (guess_count > 0) grow(scheduler, request, 1 + guess_count);
        if (!add_rows(scheduler, request, 1, guess_count, now_ns))
            speculation_fit(&scheduler->speculation, request->seq_slot, 0);
    }
}

static struct cost_model_step contents(const struct step_plan *plan) {
    struct cost_model_step step = {.rows = plan->row_count};
    for (uint32_t i = 0; i < plan->sequence_count; i++) {
        uint64_t rows = plan->sequence[i].row_count;
        step.looks += rows * plan->sequence[i].committed + rows * (rows + 1) / 2;
    }
    return step;
}

/* Guesses, and the rest of a step's rows, share them where prompts wait. */
static uint32_t guess_room(const struct scheduler *scheduler, uint32_t decode_count,
                           bool prompts_wait) {
    uint32_t room = scheduler->plan->rows_max - decode_count;
    return min(prompts_wait ? room / 2 : room, step_plan_guesses_max(scheduler->options));
}

/* Which guesses follow the rows that are decoded. */
static void choose_guesses(struct scheduler *scheduler, const struct reply_context *context) {
    struct request_table *table = scheduler->table;
    struct cost_model_step step = {.rows = 0};
    bool prompts_wait = false;
    if (scheduler->options->speculative_algorithm == SPECULATE_NONE) return;
    speculation_begin(&scheduler->speculation);
    for (struct request *request = request_first(table, &table->running); request;
         request = request_next(table, request)) {
        prompts_wait = prompts_wait || is_prefilling(request);
        if (!is_decoding(request)) continue;
        struct draft_bounds bounds = bounds_of(scheduler, request, context);
        speculation_guess(&scheduler->speculation, request->seq_slot, &bounds, request->committed);
        step.rows++;
        step.looks += request->committed + 1;
    }
    speculation_choose(&scheduler->speculation, &scheduler->cost, step,
                       guess_room(scheduler, step.rows, prompts_wait));
}

/* Chunks make nobody wait where nobody decodes. A few tokens are computed in any case: a target
 * that cannot be kept must not stop prompts. */
static uint32_t keep_to_target(const struct scheduler *scheduler, uint32_t committed,
                               uint32_t budget) {
    const struct step_plan *plan = &scheduler->plan->plan;
    if (scheduler->options->target_step_ms == 0 || plan->row_count == 0) return budget;
    uint64_t target_ns = (uint64_t)scheduler->options->target_step_ms * EVENT_NS_PER_MS;
    uint32_t rows = cost_model_rows(&scheduler->cost, contents(plan), committed, budget, target_ns);
    uint32_t least = min(CHUNK_LEAST, budget);
    return rows > least ? rows : least;
}

static struct prefill_budget begin_chunks(struct scheduler *scheduler) {
    struct request_table *table = scheduler->table;
    uint32_t first_tok = 0, first_committed = 0, count = 0;
    for (struct request *request = request_first(table, &table->running); request;
         request = request_next(table, request)) {
        if (!is_prefilling(request)) continue;
        if (count++ > 0) continue;
        first_tok = request->prefill_end - request_planned(request);
        first_committed = request_planned(request);
    }
    uint32_t budget = min(scheduler->options->chunked_prefill_size,
                          scheduler->plan->rows_max - scheduler->plan->plan.row_count);
    budget = keep_to_target(scheduler, first_committed, budget);
    return prefill_begin(budget, first_tok, count <= 1);
}

static void add_chunks(struct scheduler *scheduler, int64_t now_ns) {
    struct request_table *table = scheduler->table;
    struct prefill_budget budget = begin_chunks(scheduler);
    for (struct request *request = request_first(table, &table->running); request;
         request = request_next(table, request)) {
        if (!is_prefilling(request)) continue;
        uint32_t row_count = prefill_cut(&budget, request, tokens_that_fit(scheduler, request));
        if (row_count == 0) continue;
        grow(scheduler, request, row_count);
        add_rows(scheduler, request, row_count, 0, now_ns);
    }
}

/* ============================== what a step has done ========================================== */

struct request *scheduler_owner(struct scheduler *scheduler, uint32_t seq_slot) {
    CHECK(seq_slot < core_running_cap(scheduler->options));
    CHECK(scheduler->seq_owner[seq_slot] != REQUEST_NONE);
    return &scheduler->table->request[scheduler->seq_owner[seq_slot]];
}

/* Tokens [begin, end) are computed; those before committed_max for a second time. */
static void count_tokens(struct request_totals *totals, const struct request *request,
                         uint32_t begin, uint32_t end) {
    uint32_t known = min(end, request->committed_max);
    if (known > begin) totals->tokens_recomputed += known - begin;
    uint32_t fresh = known > begin ? known : begin, prompt_end = min(end, request->prompt_count);
    if (prompt_end > fresh) totals->tokens_prompt += prompt_end - fresh;
}

static void publish(struct scheduler *scheduler, const struct request *request) {
    struct seq_pages *pages = &scheduler->pages;
    uint32_t begin = seq_pages_published(pages, request->seq_slot);
    uint32_t end = request->committed - request->committed % pages->page_tok;
    if (!pages->uses_cache || end <= begin) return;
    uint32_t *token = scheduler->admission.token;
    token_tape_read(&scheduler->table->tapes, &request->tape, begin, end - begin, token);
    seq_pages_publish(pages, request->seq_slot, token, end, request->in_steps == 0);
}

/* The other choices of the call begin where its prompt ends, in the slots kept for them. */
static void let_join(struct scheduler *scheduler, struct request *first) {
    uint32_t slot = 0;
    while (first->to_join > 0) {
        slot = free_slot(scheduler, slot);
        struct request *request = admission_join(&scheduler->admission, first, slot);
        scheduler->seq_owner[slot] = request->id.slot;
        open_speculation(scheduler, request);
    }
}

void scheduler_land(struct request *request, uint32_t row_count) {
    CHECK(request->in_steps > 0 && request->rows_in_flight >= row_count);
    request->in_steps--;
    request->rows_in_flight -= row_count;
}

void scheduler_advance(struct scheduler *scheduler, struct request *request, uint32_t row_count,
                       uint64_t prefix_hash) {
    uint32_t end = request->committed + row_count;
    if (end > request->tape.count) return; /* the row too many of one that has ended */
    count_tokens(&scheduler->table->totals, request, request->committed, end);
    request->committed = end;
    request->prefix_hash = prefix_hash;
    if (end > request->committed_max) request->committed_max = end;
    seq_pages_copied(&scheduler->pages, request->seq_slot);
    publish(scheduler, request);
    if (request->to_join > 0 && end == request->prefill_end) let_join(scheduler, request);
}

/* Sequences that draft, and whether every row draws. */
static uint32_t count_drafts(const struct step_plan *plan, bool *all_draw_out) {
    uint32_t draft_count = 0;
    *all_draw_out = true;
    for (uint32_t i = 0; i < plan->sequence_count; i++) {
        const struct plan_sequence *sequence = &plan->sequence[i];
        draft_count += sequence->draft_len > 0;
        bool draws = sequence->want == PLAN_WANT_TOKEN &&
                     (sequence->kind == PLAN_TREE || sequence->row_count == 1);
        *all_draw_out = *all_draw_out && draws;
    }
    return draft_count;
}

void scheduler_measure(struct scheduler *scheduler, const struct step_plan *plan,
                       const struct scheduler_times *times) {
    bool all_draw;
    uint32_t draft_count = count_drafts(plan, &all_draw);
    uint64_t verify_ns = times->compute_ns > times->draft_ns ? times->compute_ns - times->draft_ns
                                                             : 0;
    cost_model_take(&scheduler->cost, contents(plan), verify_ns);
    if (all_draw) cost_model_take_drawing(&scheduler->cost, contents(plan), verify_ns);
    speculation_measure(&scheduler->speculation, times->draft_ns, draft_count, times->gap_ns);
}

uint64_t scheduler_expects_ns(const struct scheduler *scheduler, const struct step_plan *plan) {
    return cost_model_of(&scheduler->cost, contents(plan));
}

void scheduler_end(struct scheduler *scheduler, struct request *request,
                   const struct scheduler_ending *ending, struct effect_buf *effects,
                   int64_t now_ns) {
    request_end(scheduler->table, request, effects, ending->status, ending->finish, ending->text,
                now_ns);
    if (ending->status == STATUS_OK)
        output_estimate_take(&scheduler->admission.estimate, request_drawn_count(request));
    if (request->in_steps > 0)
        request_set_state(scheduler->table, request, REQUEST_LEAVING);
    else
        scheduler_retire(scheduler, request);
}

/* What a reply was may come again. */
static void learn_reply(struct scheduler *scheduler, const struct request *request) {
    uint32_t *token = scheduler->admission.token, count = request_drawn_count(request);
    if (!speculation_learns(&scheduler->speculation) || count == 0) return;
    token_tape_read(&scheduler->table->tapes, &request->tape, request->tape.count - count, count,
                    token);
    speculation_learn(&scheduler->speculation, request->seq_slot, token, count);
}

void scheduler_end_call(struct scheduler *scheduler, struct request *request,
                        const struct scheduler_ending *ending, struct effect_buf *effects,
                        int64_t now_ns) {
    struct pool_id call = request->call;
    for (; request; request = request_of_call(scheduler->table, call))
        scheduler_end(scheduler, request, ending, effects, now_ns);
}

void scheduler_retire(struct scheduler *scheduler, struct request *request) {
    CHECK(request->in_steps == 0);
    if (request->seq_slot != REQUEST_NONE) {
        learn_reply(scheduler, request);
        give_up_slot(scheduler, request);
    }
    request_set_state(scheduler->table, request, REQUEST_FREE);
}

void scheduler_end_generation(struct scheduler *scheduler, const struct scheduler_ending *ending,
                              struct effect_buf *effects, int64_t now_ns) {
    struct request_table *table = scheduler->table;
    while (table->running.count > 0) {
        struct request *request = request_first(table, &table->running);
        request->in_steps = request->rows_in_flight = 0;
        if (request->state == REQUEST_LEAVING)
            scheduler_retire(scheduler, request);
        else
            scheduler_end_call(scheduler, request, ending, effects, now_ns);
    }
    scheduler->release_count = 0;
    seq_pages_forget_all(&scheduler->pages);
}

/* ============================== another size ================================================== */

/* A reply without a length of its own takes what there is; any needs room for its next token. */
static uint32_t tokens_least(const struct request *request) {
    if (request->state == REQUEST_QUEUED) return 0;
    return request->max_tokens == 0 ? request->tape.count + 1 : request->tok_limit;
}

uint32_t scheduler_pages_least(const struct scheduler *scheduler) {
    const struct request_table *table = scheduler->table;
    uint32_t tok_count = 0;
    for (uint32_t slot = pool_next_used(&table->pool, 0); slot != POOL_NO_SLOT;
         slot = pool_next_used(&table->pool, slot + 1)) {
        uint32_t least = tokens_least(&table->request[slot]);
        if (least > tok_count) tok_count = least;
    }
    return seq_pages_for(&scheduler->pages, tok_count);
}

static void shorten_replies(struct scheduler *scheduler, uint32_t page_count) {
    struct request_table *table = scheduler->table;
    uint64_t pool_tok = (uint64_t)page_count * scheduler->options->page_tok;
    for (uint32_t slot = pool_next_used(&table->pool, 0); slot != POOL_NO_SLOT;
         slot = pool_next_used(&table->pool, slot + 1)) {
        struct request *request = &table->request[slot];
        if (request->tok_limit > pool_tok) request->tok_limit = (uint32_t)pool_tok;
    }
}

static uint32_t retract_until_it_fits(struct scheduler *scheduler, uint32_t page_count) {
    const struct token_pool *pool = &scheduler->pages.pool;
    struct request *first = oldest(scheduler);
    uint32_t retracted = 0;
    while (pool->pinned_count > page_count) {
        struct request *victim = choose_victim(scheduler, first, pool->pinned_count - page_count);
        if (victim) {
            retract(scheduler, victim);
            retracted++;
        } else {
            forgo_copy(scheduler, first); /* else it fits the pool alone */
        }
    }
    return retracted;
}

static uint32_t retract_scattered(struct scheduler *scheduler) {
    struct request_table *table = scheduler->table;
    uint32_t runs_max = step_plan_runs_max(scheduler->options), retracted = 0;
    struct request *next;
    for (struct request *request = request_first(table, &table->running); request; request = next) {
        next = request_next(table, request);
        if (!scheduler->pages.slot[request->seq_slot].moved) continue;
        if (seq_pages_runs(&scheduler->pages, request->seq_slot) <= runs_max) continue;
        retract(scheduler, request);
        retracted++;
    }
    return retracted;
}

struct scheduler_resized scheduler_resize(struct scheduler *scheduler, uint32_t page_count,
                                          struct page_move *move_out) {
    struct scheduler_resized resized = {.retracted = 0};
    if (page_count < scheduler->pages.pool.page_count) {
        shorten_replies(scheduler, page_count);
        resized.retracted = retract_until_it_fits(scheduler, page_count);
    }
    resized.pages = seq_pages_resize(&scheduler->pages, page_count, move_out);
    resized.retracted += retract_scattered(scheduler);
    return resized;
}

/* ============================== looking ======================================================= */

static const struct request *running_at(const struct scheduler *scheduler, uint32_t slot) {
    const struct request_table *table = scheduler->table;
    return slot == REQUEST_NONE ? NULL : &table->request[slot];
}

uint64_t scheduler_pages_promised(const struct scheduler *scheduler) {
    uint64_t promised = 0;
    const struct request *request = running_at(scheduler, scheduler->table->running.first);
    for (; request; request = running_at(scheduler, request->next))
        promised += admission_pages_most(&scheduler->admission, request);
    return promised;
}

uint64_t scheduler_tokens_unused(const struct scheduler *scheduler) {
    uint64_t unused = 0;
    const struct request *request = running_at(scheduler, scheduler->table->running.first);
    for (; request; request = running_at(scheduler, request->next)) {
        const struct seq_pages_slot *slot = &scheduler->pages.slot[request->seq_slot];
        uint64_t places = (uint64_t)slot->page_count * scheduler->options->page_tok;
        if (places > request->committed) unused += places - request->committed;
    }
    return unused;
}

void scheduler_check(const struct scheduler *scheduler) {
    const struct request_table *table = scheduler->table;
    uint32_t owned = 0;
    for (uint32_t slot = 0; slot < core_running_cap(scheduler->options); slot++) {
        bool has_owner = scheduler->seq_owner[slot] != REQUEST_NONE;
        CHECK(scheduler->pages.slot[slot].open == has_owner);
        if (!has_owner) continue;
        const struct request *request = &table->request[scheduler->seq_owner[slot]];
        CHECK(request->seq_slot == slot);
        CHECK(request->page_sent <= scheduler->pages.slot[slot].page_count);
        owned++;
    }
    CHECK(owned == table->running.count);
    CHECK(owned + table->retracted_count + table->joining_count <=
          core_running_cap(scheduler->options));
    CHECK(scheduler->release_count <= core_running_cap(scheduler->options));
    seq_pages_check(&scheduler->pages);
}
