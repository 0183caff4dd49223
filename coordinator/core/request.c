#include "request.h"

#include "base/check.h"
#include "base/hash.h"
#include "effect_buf.h"

/* The budget of waiting prompts: so many tokens a place in the queue, and a few of any length. */
#define WAITING_TOK_EACH   4096u
#define WAITING_LONG_COUNT 4u

/* arrow[from] has bit `to` where the diagram has the arrow. */
#define TO(state) (1u << REQUEST_##state)
static const uint8_t arrow[REQUEST_STATE_COUNT] = {
    [REQUEST_FREE] = TO(QUEUED) | TO(PREFILL),
    [REQUEST_QUEUED] = TO(WAITING) | TO(FREE),
    [REQUEST_WAITING] = TO(PREFILL) | TO(FREE),
    [REQUEST_PREFILL] = TO(DECODE) | TO(WAITING) | TO(LEAVING) | TO(FREE),
    [REQUEST_DECODE] = TO(WAITING) | TO(LEAVING) | TO(FREE),
    [REQUEST_LEAVING] = TO(FREE),
};

static uint32_t capacity(const struct core_options *options) {
    return core_running_cap(options) + options->max_queued_requests;
}

static uint32_t min(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static uint32_t waiting_blocks_max(const struct core_options *options) {
    if (options->max_queued_tokens > 0) return token_tape_blocks(options->max_queued_tokens);
    return options->max_queued_requests *
               token_tape_blocks(min(options->context_len, WAITING_TOK_EACH)) +
           WAITING_LONG_COUNT * token_tape_blocks(options->context_len);
}

/* Prefixes are shared in the pool and not here, so the pool's size bounds nothing. */
static uint32_t admitted_blocks_max(const struct core_options *options) {
    return core_running_cap(options) * token_tape_blocks(options->context_len);
}

size_t request_memory(const struct core_options *options) {
    return capacity(options) * sizeof(struct request) + ARENA_ALIGN + choices_memory(options) +
           2 * id_index_memory(capacity(options)) + wait_queue_memory(capacity(options)) +
           token_tape_memory(waiting_blocks_max(options) + admitted_blocks_max(options));
}

void request_table_init(struct request_table *table, const struct core_options *options,
                        struct arena *memory) {
    static const struct request_list empty = {.first = REQUEST_NONE, .last = REQUEST_NONE};
    *table = (struct request_table){
        .request = arena_calloc(memory, capacity(options), sizeof *table->request),
        .waiting_blocks_max = waiting_blocks_max(options),
        .arrivals = empty,
        .running = empty,
    };
    CHECK(table->request != NULL);
    pool_init(&table->pool, capacity(options));
    choices_init(&table->choices, options, memory);
    id_index_init(&table->calls, capacity(options), memory);
    id_index_init(&table->keys, capacity(options), memory);
    wait_queue_init(&table->queue, capacity(options), memory);
    token_tape_init(&table->tapes, waiting_blocks_max(options) + admitted_blocks_max(options),
                    memory);
}

static uint64_t call_id(struct pool_id call) {
    return (uint64_t)call.generation << 32 | call.slot;
}

void request_table_deinit(struct request_table *table) {
    pool_deinit(&table->pool);
    choices_deinit(&table->choices);
}

static struct pool_id acquire(struct pool *pool) {
    struct pool_id id = pool_acquire(pool);
    CHECK(id.slot != POOL_NO_SLOT);
    return id;
}

struct request *request_open(struct request_table *table, struct pool_id call,
                             uint32_t choice_count, int64_t now_ns) {
    struct pool_id id = acquire(&table->pool);
    struct request *request = &table->request[id.slot];
    *request = (struct request){
        .state = REQUEST_FREE,
        .id = id,
        .call = call,
        .choice_count = choice_count,
        .to_join = choice_count - 1,
        .arrival = table->opened,
        .prev = REQUEST_NONE,
        .next = REQUEST_NONE,
        .tape = TOKEN_TAPE_EMPTY,
        .prefix_hash = HASH_CHAIN_EMPTY,
        .seq_slot = REQUEST_NONE,
        .arrival_ns = now_ns,
    };
    table->opened += choice_count;
    id_index_put(&table->calls, call_id(call), id.slot);
    request_set_state(table, request, REQUEST_QUEUED);
    return request;
}

struct request *request_join(struct request_table *table, struct request *first) {
    CHECK(first->to_join > 0 && first->tape.count == first->prompt_count);
    if (!first->choices)
        first->choices = choices_open(&table->choices, first->choice_count, first->id.slot);
    struct pool_id id = acquire(&table->pool);
    struct request *request = &table->request[id.slot];
    *request = *first;
    request->state = REQUEST_FREE;
    request->id = id;
    request->choice = request->reply.choice = choices_join(first->choices, id.slot);
    request->arrival = first->arrival + request->choice;
    request->to_join = 0;
    request->is_idempotent = false;
    request->seq_slot = REQUEST_NONE;
    request->retractions = request->in_steps = request->rows_in_flight = 0;
    request->committed_max = 0;
    request->tape = TOKEN_TAPE_EMPTY;
    token_tape_copy(&table->tapes, &first->tape, &request->tape);
    first->to_join--;
    table->joining_count--;
    return request;
}

static struct request *live_at(struct request_table *table, struct pool_id id) {
    return pool_is_live(&table->pool, id) ? &table->request[id.slot] : NULL;
}

struct request *request_of_call(struct request_table *table, struct pool_id call) {
    uint32_t slot = id_index_find(&table->calls, call_id(call));
    return slot == ID_INDEX_NONE ? NULL : &table->request[slot];
}

struct request *request_of_job(struct request_table *table, uint64_t job) {
    struct request *request = live_at(table, (struct pool_id){.slot = (uint32_t)(job & UINT32_MAX),
                                                              .generation = (uint32_t)(job >> 32)});
    return request && request->state == REQUEST_QUEUED ? request : NULL;
}

uint64_t request_job(const struct request *request) {
    return (uint64_t)request->id.generation << 32 | request->id.slot;
}

uint32_t request_queue_count(const struct request_table *table) {
    return table->arrivals.count;
}

struct request *request_first(struct request_table *table, const struct request_list *list) {
    return list->first == REQUEST_NONE ? NULL : &table->request[list->first];
}

struct request *request_next(struct request_table *table, const struct request *request) {
    return request->next == REQUEST_NONE ? NULL : &table->request[request->next];
}

bool request_prompt_fits(const struct request_table *table, uint32_t prompt_count) {
    return token_tape_blocks(prompt_count) <= table->waiting_blocks_max - table->waiting_blocks;
}

static void list_append(struct request_table *table, struct request_list *list,
                        struct request *request) {
    request->prev = list->last;
    request->next = REQUEST_NONE;
    if (list->last == REQUEST_NONE)
        list->first = request->id.slot;
    else
        table->request[list->last].next = request->id.slot;
    list->last = request->id.slot;
    list->count++;
}

static void list_remove(struct request_table *table, struct request_list *list,
                        struct request *request) {
    if (request->prev == REQUEST_NONE)
        list->first = request->next;
    else
        table->request[request->prev].next = request->next;
    if (request->next == REQUEST_NONE)
        list->last = request->prev;
    else
        table->request[request->next].prev = request->prev;
    list->count--;
}

static bool was_retracted(const struct request *request) {
    return request->retractions > 0;
}

/* It runs, or did before it was retracted. */
static bool was_admitted(const struct request *request) {
    return request->state >= REQUEST_PREFILL || was_retracted(request);
}

static struct request_list *list_of(struct request_table *table, const struct request *request) {
    switch (request->state) {
    case REQUEST_QUEUED: return &table->arrivals;
    case REQUEST_WAITING: return was_retracted(request) ? NULL : &table->arrivals;
    case REQUEST_PREFILL:
    case REQUEST_DECODE:
    case REQUEST_LEAVING: return &table->running;
    case REQUEST_FREE: break;
    }
    return NULL;
}

static void forget(struct request_table *table, struct request *request) {
    CHECK(request->seq_slot == REQUEST_NONE);
    token_tape_clear(&table->tapes, &request->tape);
    pool_release(&table->pool, request->id);
}

/* What waits is counted: fresh prompts by the blocks they fill, retracted requests by number. */
static void count_waiting(struct request_table *table, const struct request *request, bool enters) {
    uint32_t blocks = token_tape_blocks(request->prompt_count);
    if (was_retracted(request))
        table->retracted_count += enters ? 1 : UINT32_MAX;
    else
        table->waiting_blocks += enters ? blocks : 0 - blocks;
}

void request_set_state(struct request_table *table, struct request *request,
                       enum request_state state) {
    enum request_state from = request->state;
    CHECK(arrow[from] & (1u << state));
    struct request_list *from_list = list_of(table, request);
    if (from == REQUEST_WAITING) {
        wait_queue_remove(&table->queue, request->id.slot);
        count_waiting(table, request, false);
        if (state == REQUEST_PREFILL && !was_retracted(request))
            table->joining_count += request->to_join;
    }
    if (state == REQUEST_WAITING && from != REQUEST_QUEUED) request->retractions++;
    request->state = state;
    struct request_list *to_list = list_of(table, request);
    if (from_list != to_list && from_list) list_remove(table, from_list, request);
    if (from_list != to_list && to_list) list_append(table, to_list, request);
    if (from == REQUEST_QUEUED) table->queued_count--;
    if (state == REQUEST_QUEUED) table->queued_count++;
    if (state == REQUEST_WAITING) count_waiting(table, request, true);
    if (state == REQUEST_FREE) forget(table, request);
}

void request_wait(struct request_table *table, struct request *request,
                  const struct wait_order *order) {
    request_set_state(table, request, REQUEST_WAITING);
    wait_queue_put(&table->queue, request->id.slot, order);
}

static uint64_t since(int64_t begin_ns, int64_t end_ns) {
    return begin_ns == 0 ? 0 : (uint64_t)(end_ns - begin_ns);
}

void request_note_step(struct request_table *table, struct request *request, int64_t now_ns) {
    if (request->first_step_ns != 0) return;
    request->first_step_ns = now_ns;
    histogram_take(&table->times.queue, since(request->arrival_ns, now_ns));
}

void request_note_token(struct request_table *table, struct request *request, int64_t now_ns) {
    if (request->first_token_ns == 0) {
        request->first_token_ns = now_ns;
        histogram_take(&table->times.first_token, since(request->arrival_ns, now_ns));
    } else {
        histogram_take(&table->times.inter_token, since(request->token_ns, now_ns));
    }
    request->token_ns = now_ns;
}

/* Another choice of the request's call, one that has not ended; NULL: there is none. */
static struct request *sibling_of(struct request_table *table, const struct request *request) {
    if (!request->choices) return NULL;
    uint32_t slot = choices_sibling(request->choices, request->choice);
    return slot == CHOICES_NOBODY ? NULL : &table->request[slot];
}

/* What its end gives back: not what it began with and shares with a choice that goes on. */
static uint32_t freed_tokens(const struct request *request, const struct request *sibling) {
    if (request->seq_slot == REQUEST_NONE) return 0;
    uint32_t shared = sibling ? request->shared_tok : 0;
    return request->committed > shared ? request->committed - shared : 0;
}

static struct choice_summary summarize_choice(const struct request *request,
                                              enum finish_reason finish, uint32_t freed) {
    return (struct choice_summary){
        .finish_reason = finish,
        .completion_tokens = request_drawn_count(request),
        .cached_tokens = request->cached_tokens,
        .freed_tokens = freed,
    };
}

/* A sibling stands for the call from now on. */
static void hand_over(struct request_table *table, const struct request *request,
                      struct request *sibling) {
    if (request_of_call(table, request->call) != request) return;
    id_index_move(&table->calls, request->id.slot, sibling->id.slot);
    if (!request->is_idempotent) return;
    id_index_move(&table->keys, request->id.slot, sibling->id.slot);
    sibling->is_idempotent = true;
}

static struct generate_summary summarize(const struct request *request, enum finish_reason finish,
                                         int64_t now_ns) {
    const struct choices *choices = request->choices;
    int64_t arrival_ns = request->arrival_ns;
    int64_t drew_ns = choices ? choices->first_token_ns : request->first_token_ns;
    bool stepped = request->first_step_ns != 0;
    struct generate_summary summary = {
        .finish_reason = finish,
        .prompt_tokens = request->prompt_count,
        .completion_tokens = request_drawn_count(request),
        .cached_tokens = request->cached_tokens,
        .freed_tokens = freed_tokens(request, NULL),
        .seed = request->seed,
        .queue_ns = since(arrival_ns, stepped ? request->first_step_ns : now_ns),
        .first_token_ns = drew_ns != 0 ? since(arrival_ns, drew_ns) : 0,
        .total_ns = since(arrival_ns, now_ns),
    };
    if (choices) {
        choices_summarize(choices, &summary);
    } else if (request->choice_count > 1) { /* the others had not begun */
        summary.choice_count = request->choice_count;
        for (uint32_t i = 0; i < request->choice_count; i++)
            summary.choice[i].finish_reason = finish;
        summary.choice[0] = summarize_choice(request, finish, summary.freed_tokens);
    }
    return summary;
}

/* The last of a call's choices, or the only one. */
static void end_call(struct request_table *table, const struct request *request,
                     struct effect_buf *effects, enum status status, const char *text,
                     const struct generate_summary *summary) {
    table->totals.finished++;
    id_index_remove(&table->calls, request->id.slot);
    if (request->is_idempotent) id_index_remove(&table->keys, request->id.slot);
    effect_buf_end(effects, request->call, status, text, summary);
}

void request_end(struct request_table *table, struct request *request, struct effect_buf *effects,
                 enum status status, enum finish_reason finish, const char *text, int64_t now_ns) {
    CHECK(request->state != REQUEST_FREE && request->state != REQUEST_LEAVING);
    struct request *sibling = sibling_of(table, request);
    if (request->choices) {
        struct choice_summary own = summarize_choice(request, finish,
                                                     freed_tokens(request, sibling));
        choices_leave(request->choices, request->choice, &own, request->first_token_ns);
    }
    if (sibling) {
        hand_over(table, request, sibling);
    } else {
        struct generate_summary summary = summarize(request, finish, now_ns);
        bool is_known = request->state != REQUEST_QUEUED;
        histogram_take(&table->times.total, since(request->arrival_ns, now_ns));
        end_call(table, request, effects, status, text, is_known ? &summary : NULL);
        if (request->choices) choices_close(&table->choices, request->choices);
    }
    request->choices = NULL;
    if (was_admitted(request)) table->joining_count -= request->to_join;
    request->to_join = 0;
}

uint32_t request_drawn_count(const struct request *request) {
    return request->tape.count - request->prompt_count;
}

/* It is where its call's choices say it is. */
static void choice_check(const struct request_table *table, const struct request *request) {
    const struct choices *choices = request->choices;
    CHECK(request->choice < request->choice_count && request->choice_count <= CHOICES_MAX);
    if (!choices) return;
    CHECK(pool_is_live(&table->choices.pool, choices->id) && request->to_join == 0);
    CHECK(choices->member[request->choice] == request->id.slot);
    CHECK(choices->joined_count == choices->count && choices->count == request->choice_count);
}

/* Blocks of the tapes of a list, once its links and each request's own counts are found true. */
static uint32_t list_check(const struct request_table *table, const struct request_list *list,
                           bool running) {
    uint32_t count = 0, blocks = 0, prev = REQUEST_NONE;
    for (uint32_t slot = list->first; slot != REQUEST_NONE; slot = table->request[slot].next) {
        const struct request *request = &table->request[slot];
        CHECK(request->prev == prev && ++count <= list->count);
        CHECK(pool_is_live(&table->pool, request->id));
        CHECK(running == (request->state != REQUEST_WAITING && request->state != REQUEST_QUEUED));
        CHECK(running == (request->seq_slot != REQUEST_NONE));
        CHECK(request->committed <= request->tape.count);
        CHECK(request->state != REQUEST_DECODE || request->committed + 1 == request->tape.count);
        CHECK(request->state != REQUEST_PREFILL || request->committed < request->prefill_end);
        CHECK(request->state != REQUEST_PREFILL || request->prefill_end == request->tape.count);
        choice_check(table, request);
        blocks += token_tape_blocks(request->tape.count);
        prev = slot;
    }
    CHECK(count == list->count && prev == list->last);
    return blocks;
}

void request_table_check(const struct request_table *table) {
    wait_queue_check(&table->queue);
    uint32_t waiting_blocks = list_check(table, &table->arrivals, false);
    uint32_t admitted_blocks = list_check(table, &table->running, true), retracted = 0;
    uint32_t joining = 0;
    for (uint32_t slot = table->running.first; slot != REQUEST_NONE;
         slot = table->request[slot].next)
        joining += table->request[slot].to_join;
    for (uint32_t at = 0; at < table->queue.count; at++) {
        const struct request *request = &table->request[table->queue.heap[at]];
        CHECK(request->state == REQUEST_WAITING && request->seq_slot == REQUEST_NONE);
        if (!was_retracted(request)) continue;
        CHECK(request->committed == 0);
        choice_check(table, request);
        joining += request->to_join;
        admitted_blocks += token_tape_blocks(request->tape.count);
        retracted++;
    }
    CHECK(waiting_blocks == table->waiting_blocks && waiting_blocks <= table->waiting_blocks_max);
    CHECK(table->tapes.free_count + waiting_blocks + admitted_blocks == table->tapes.block_count);
    CHECK(retracted == table->retracted_count && joining == table->joining_count);
    CHECK(table->queue.count + table->queued_count == table->arrivals.count + retracted);
    CHECK(table->arrivals.count + retracted + table->running.count == table->pool.used_count);
}
