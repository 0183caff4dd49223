#include "admission.h"

#include "base/check.h"

/* What one unit of a policy's measure weighs, in milliseconds of waiting. */
#define AGEING_MS_PER_TOK      1
#define AGEING_MS_PER_PRIORITY 10000

/* Waiting requests whose cached prefix is looked up anew in a round. */
#define REFRESH_COUNT 4u

enum class { CLASS_RETRACTED, CLASS_FRESH };

size_t admission_memory(const struct core_options *options) {
    return options->context_len * sizeof(uint32_t) + ARENA_ALIGN;
}

void admission_init(struct admission *admission, const struct core_options *options,
                    struct request_table *table, struct seq_pages *pages, struct arena *memory) {
    *admission = (struct admission){
        .options = options,
        .table = table,
        .pages = pages,
        .token = arena_alloc(memory, options->context_len * sizeof *admission->token),
    };
    CHECK(admission->token != NULL);
}

static const uint32_t *read_tape(struct admission *admission, const struct request *request) {
    CHECK(request->tape.count <= admission->options->context_len);
    token_tape_read(&admission->table->tapes, &request->tape, 0, request->tape.count,
                    admission->token);
    return admission->token;
}

static uint32_t cached_prefix(struct admission *admission, const struct request *request) {
    const uint32_t *token = read_tape(admission, request);
    struct radix_match match = radix_match(&admission->pages->radix, request->salt, token,
                                           request->tape.count - 1, NULL);
    return match.page_count * admission->pages->page_tok;
}

static int64_t key_of(struct admission *admission, const struct request *request) {
    int64_t since_ms = request->arrival_ns / EVENT_NS_PER_MS;
    switch (admission->options->schedule_policy) {
    case SCHEDULE_FCFS: break;
    case SCHEDULE_SHORTEST: return since_ms + (int64_t)request->prompt_count * AGEING_MS_PER_TOK;
    case SCHEDULE_LONGEST_PREFIX:
        return since_ms - (int64_t)cached_prefix(admission, request) * AGEING_MS_PER_TOK;
    case SCHEDULE_PRIORITY: return since_ms - (int64_t)request->priority * AGEING_MS_PER_PRIORITY;
    }
    return 0;
}

void admission_enqueue(struct admission *admission, struct request *request) {
    struct request_table *table = admission->table;
    bool fresh = request->state == REQUEST_QUEUED;
    struct wait_order order = {
        .class = fresh ? CLASS_FRESH : CLASS_RETRACTED,
        .key = fresh ? key_of(admission, request) : 0,
        .seq = fresh ? table->known++ : request->arrival,
    };
    request_wait(table, request, &order);
}

/* What the cache has of a prompt changes while it waits: a few keys a round are made anew. They are
 * chosen before any is moved, for moving one moves others. */
static void refresh(struct admission *admission) {
    struct request_table *table = admission->table;
    struct wait_queue *queue = &table->queue;
    uint32_t chosen[REFRESH_COUNT], count = 0;
    for (; count < REFRESH_COUNT && count < queue->count; count++)
        chosen[count] = queue->heap[admission->refresh_at++ % queue->count];
    for (uint32_t i = 0; i < count; i++) {
        struct wait_order order = queue->order[chosen[i]];
        if (order.class != CLASS_FRESH) continue;
        order.key = key_of(admission, &table->request[chosen[i]]);
        wait_queue_remove(queue, chosen[i]);
        wait_queue_put(queue, chosen[i], &order);
    }
}

/* Pages for so many tokens of the request, and of each choice that is to join it, beyond the pages
 * that they will share. */
static uint32_t pages_for(const struct admission *admission, const struct request *request,
                          uint32_t tok_count) {
    uint32_t page_count = seq_pages_for(admission->pages, tok_count);
    uint32_t shared = (request->prompt_count - 1) / admission->pages->page_tok;
    return page_count + request->to_join * (page_count - shared);
}

/* Pages a request is expected to need, those it has included. */
static uint32_t pages_expected(const struct admission *admission, const struct request *request) {
    uint32_t drawn = request_drawn_count(request);
    uint32_t reply = output_estimate_of(&admission->estimate, drawn + 1,
                                        request->tok_limit - request->prompt_count);
    return pages_for(admission, request, request->prompt_count + reply);
}

uint32_t admission_pages_most(const struct admission *admission, const struct request *request) {
    return pages_for(admission, request, request->tok_limit);
}

static void count_running(struct admission *admission, const struct request *request) {
    uint32_t expected = pages_expected(admission, request);
    uint32_t page_count = admission->pages->slot[request->seq_slot].page_count;
    if (expected > page_count) admission->pages_wanted += expected - page_count;
    if (request->state == REQUEST_PREFILL)
        admission->prefill_tok += request->prefill_end - request->committed + request->to_join;
}

void admission_begin(struct admission *admission) {
    struct request_table *table = admission->table;
    admission->pages_wanted = 0;
    admission->prefill_tok = 0;
    for (struct request *request = request_first(table, &table->running); request;
         request = request_next(table, request))
        if (request->state != REQUEST_LEAVING) count_running(admission, request);
    if (admission->options->schedule_policy == SCHEDULE_LONGEST_PREFIX) refresh(admission);
}

/* Another request computes a prefix of this one's tokens, beyond what the cache has. */
static bool is_being_computed(struct admission *admission, const struct request *request,
                              uint32_t cached_tok) {
    struct request_table *table = admission->table;
    if (!admission->pages->uses_cache) return false;
    for (struct request *other = request_first(table, &table->running); other;
         other = request_next(table, other)) {
        if (other->state != REQUEST_PREFILL || other->salt != request->salt) continue;
        uint32_t common = token_tape_common(&table->tapes, &request->tape, &other->tape);
        if (common == request->tape.count) common--; /* the last one is computed anyway */
        if (common > other->prefill_end) common = other->prefill_end;
        if (common / admission->pages->page_tok > cached_tok / admission->pages->page_tok)
            return true;
    }
    return false;
}

enum verdict { ADMIT, HOLD, NO_ROOM };

static enum verdict judge(struct admission *admission, const struct request *request,
                          uint32_t seq_slot, const uint32_t *token) {
    struct request_table *table = admission->table;
    if (table->running.count == 0) return ADMIT;
    bool fresh = request->retractions == 0;
    uint32_t taken = table->running.count + table->retracted_count + table->joining_count;
    if (fresh && taken + request->choice_count > admission->options->max_running_requests)
        return NO_ROOM;
    struct seq_pages_look look = seq_pages_look(admission->pages, seq_slot, request->salt, token,
                                                request->tape.count);
    if (is_being_computed(admission, request, look.tok_count)) return HOLD;
    uint64_t lacks = request->tape.count - look.tok_count + request->to_join;
    uint32_t tok_max = admission->options->max_prefill_tokens;
    if (tok_max > 0 && admission->prefill_tok > 0 && admission->prefill_tok + lacks > tok_max)
        return NO_ROOM;
    uint64_t slack = table->retracted_count > 0 ? table->running.count : 0;
    uint64_t wanted = admission->pages_wanted + slack + pages_expected(admission, request);
    return wanted - look.in_use <= seq_pages_room(admission->pages) ? ADMIT : NO_ROOM;
}

static void begin_at(struct request *request, uint32_t seq_slot,
                     const struct seq_pages_start *start) {
    if (request->retractions == 0) request->cached_tokens = start->tok_count;
    request->committed = start->tok_count;
    if (request->committed > request->committed_max) request->committed_max = request->committed;
    request->prefix_hash = start->prefix_hash;
    request->prefill_end = request->tape.count;
    request->seq_slot = seq_slot;
    request->page_sent = 0;
}

static void open_pages(struct admission *admission, struct request *request, uint32_t seq_slot,
                       const uint32_t *token) {
    struct seq_pages_start start = seq_pages_open(admission->pages, seq_slot, request->salt, token,
                                                  request->tape.count);
    struct request_totals *totals = &admission->table->totals;
    if (request->retractions == 0) {
        totals->tokens_cached += start.tok_count;
        totals->tokens_looked_up += request->prompt_count;
    }
    begin_at(request, seq_slot, &start);
}

struct request *admission_next(struct admission *admission, uint32_t seq_slot,
                               struct admission_held *held) {
    struct request_table *table = admission->table;
    while (table->queue.count > 0 && held->count < ADMISSION_HELD_MAX) {
        uint32_t slot = wait_queue_first(&table->queue);
        struct request *request = &table->request[slot];
        const uint32_t *token = read_tape(admission, request);
        enum verdict verdict = judge(admission, request, seq_slot, token);
        if (verdict == NO_ROOM) return NULL;
        if (verdict == ADMIT) {
            open_pages(admission, request, seq_slot, token);
            request_set_state(table, request, REQUEST_PREFILL);
            count_running(admission, request);
            return request;
        }
        held->slot[held->count] = slot;
        held->order[held->count++] = table->queue.order[slot];
        wait_queue_remove(&table->queue, slot);
    }
    return NULL;
}

struct request *admission_join(struct admission *admission, struct request *first,
                               uint32_t seq_slot) {
    struct seq_pages *pages = admission->pages;
    first->shared_tok = (first->prompt_count - 1) / pages->page_tok * pages->page_tok;
    struct request *request = request_join(admission->table, first);
    const uint32_t *token = read_tape(admission, request);
    struct seq_pages_start start = seq_pages_fork(pages, seq_slot, first->seq_slot, token,
                                                  request->tape.count);
    begin_at(request, seq_slot, &start);
    request_set_state(admission->table, request, REQUEST_PREFILL);
    return request;
}

void admission_finish(struct admission *admission, const struct admission_held *held) {
    for (uint32_t i = 0; i < held->count; i++)
        wait_queue_put(&admission->table->queue, held->slot[i], &held->order[i]);
}
