#include "fake_group.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"

struct fake_script fake_script[FAKE_SCRIPTS];
const uint32_t *fake_choice;
uint32_t fake_choice_count;

/* A mix of our own, so that a mistake in the project's hashes would not cancel out. */
static uint64_t scramble(uint64_t x) {
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 29;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ (x >> 32);
}

static uint64_t mark_of(uint32_t token, uint32_t position) {
    return scramble(((uint64_t)position << 32 | token) + 1);
}

static uint32_t choose(uint64_t fold, float temperature, uint64_t seed) {
    if (temperature > 0) fold = scramble(fold ^ scramble(seed + 77));
    return fake_choice[fold % fake_choice_count];
}

uint64_t fake_seed(uint64_t seed, uint32_t choice) {
    return choice == 0 ? seed : scramble(seed + choice);
}

uint32_t fake_draw(const uint32_t *token, uint32_t count, float temperature, uint64_t seed) {
    uint64_t fold = 0;
    for (uint32_t position = 0; position < count; position++)
        fold = scramble(fold + mark_of(token[position], position));
    return choose(fold, temperature, seed);
}

struct token_logprob fake_logprob(uint32_t token, uint32_t index) {
    return (struct token_logprob){.token = token + index, .logprob = -(float)index - 0.25f};
}

void fake_worker_init(struct fake_worker *worker, uint32_t rank, uint32_t tp, struct worker_id id) {
    memset(worker, 0, sizeof *worker);
    worker->rank = rank;
    worker->tp = tp;
    worker->id = id;
}

struct fake_reply *fake_worker_push(struct fake_worker *worker, enum worker_message_type type) {
    CHECK(worker->reply_count < FAKE_REPLIES);
    uint32_t at = (worker->reply_begin + worker->reply_count++) % FAKE_REPLIES;
    struct fake_reply *reply = &worker->reply[at];
    memset(reply, 0, sizeof *reply);
    reply->message.type = type;
    return reply;
}

const struct fake_reply *fake_worker_pop(struct fake_worker *worker) {
    if (worker->reply_count == 0) return NULL;
    const struct fake_reply *reply = &worker->reply[worker->reply_begin];
    worker->reply_begin = (worker->reply_begin + 1) % FAKE_REPLIES;
    worker->reply_count--;
    return reply;
}

void fake_worker_hello(struct fake_worker *worker, uint64_t fingerprint) {
    fake_worker_push(worker, WORKER_HELLO)->message.hello = (struct worker_hello){
        .wire_version = WIRE_VERSION,
        .rank = worker->rank,
        .tp = worker->tp,
        .pid = 1000 + worker->id.value,
        .process_start = 5,
        .model_fingerprint = fingerprint,
        .device = "fake",
        .probe = "127.0.0.1:1",
        .draft_fingerprint = worker->draft_len > 0 ? 77 : 0,
        .draft_len = worker->draft_len,
    };
}

static void __attribute__((format(printf, 2, 3)))
complain(struct fake_worker *worker, const char *format, ...) {
    if (worker->complaint[0] != '\0') return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(worker->complaint, sizeof worker->complaint, format, arguments);
    va_end(arguments);
}

static void append_pages(struct fake_worker *worker, struct fake_slot *slot,
                         const struct step_plan *plan, const struct plan_sequence *sequence) {
    for (uint32_t i = 0; i < sequence->extent_count; i++) {
        struct page_extent extent = plan->extent[sequence->extent_begin + i];
        for (uint32_t j = 0; j < extent.page_count; j++) {
            uint32_t page = extent.first_page + j;
            if (page >= worker->limits.page_count) complain(worker, "page %u", page);
            slot->page[slot->page_count++] = page;
        }
    }
}

static uint64_t *place_at(struct fake_worker *worker, const struct fake_slot *slot,
                          uint32_t position) {
    uint32_t page_tok = worker->limits.page_tok;
    return &worker->place[slot->page[position / page_tok] * page_tok + position % page_tok];
}

static bool is_shared(const struct fake_worker *worker, const struct fake_slot *slot,
                      uint32_t page) {
    for (uint32_t i = 0; i < FAKE_SEQS; i++) {
        const struct fake_slot *other = &worker->slot[i];
        if (other == slot || !other->live) continue;
        for (uint32_t j = 0; j < other->page_count; j++)
            if (other->page[j] == page) return true;
    }
    return false;
}

static void check_sequence(struct fake_worker *worker, const struct step_plan *plan,
                           const struct plan_sequence *sequence) {
    const struct fake_slot *slot = &worker->slot[sequence->slot];
    uint32_t end = sequence->committed + sequence->row_count, page_tok = worker->limits.page_tok;
    if (sequence->committed != slot->committed || sequence->prefix_hash != slot->prefix_hash)
        complain(worker, "slot %u: committed %u is not %u, or its hash", sequence->slot,
                 sequence->committed, slot->committed);
    for (uint32_t row = 0; row < sequence->row_count; row++)
        if (is_shared(worker, slot, slot->page[(sequence->committed + row) / page_tok]))
            complain(worker, "slot %u writes to a page that another slot reads", sequence->slot);
    /* A tree may have had more rows than were committed: its pages stay. */
    if (slot->page_count != (slot->row_end + page_tok - 1) / page_tok)
        complain(worker, "slot %u: %u pages for %u tokens", sequence->slot, slot->page_count,
                 slot->row_end);
    if (end > worker->limits.context_len)
        complain(worker, "slot %u: %u tokens", sequence->slot, end);
    if (sequence->row_count == 0 || sequence->row_begin + sequence->row_count > plan->row_count)
        complain(worker, "slot %u: rows", sequence->slot);
    if (sequence->mask_id != PLAN_NO_MASK) complain(worker, "slot %u: a mask", sequence->slot);
    if (sequence->draft_len > worker->draft_len)
        complain(worker, "slot %u: drafts %u tokens", sequence->slot, sequence->draft_len);
}

/* The token drawn where the marks read so far fold to this; the how manieth it is of its slot. */
static uint32_t draw_at(uint64_t fold, const struct plan_sequence *sequence, uint32_t drawn) {
    uint64_t script = sequence->seed - FAKE_SCRIPT_SEED;
    if (script >= FAKE_SCRIPTS)
        return choose(fold, sequence->temperature, fake_seed(sequence->seed, sequence->choice));
    const struct fake_script *lines = &fake_script[script];
    return lines->token[drawn < lines->count ? drawn : lines->count - 1];
}

static uint64_t fold_committed(struct fake_worker *worker, const struct fake_slot *slot) {
    uint64_t fold = 0;
    for (uint32_t position = 0; position < slot->committed; position++)
        fold = scramble(fold + *place_at(worker, slot, position));
    return fold;
}

/* Guesses behind the slot's last token: the right one among others, or not at all. */
static void answer_draft(struct fake_worker *worker, const struct plan_sequence *sequence,
                         uint32_t top, struct fake_reply *reply) {
    struct step_result *result = &reply->message.step_result;
    struct result_sequence *own = &reply->sequence[result->sequence_count - 1];
    struct fake_slot *slot = &worker->slot[sequence->slot];
    own->draft_begin = result->draft_count;
    uint64_t fold = fold_committed(worker, slot), luck = scramble(fold + 99);
    if (result->draft_count + sequence->draft_len > FAKE_DRAFTS || luck % 16 == 0) return;
    own->draft_count = sequence->draft_len;
    result->draft_top = top;
    uint32_t token = slot->token;
    for (uint32_t i = 0; i < sequence->draft_len; i++) {
        fold = scramble(fold + mark_of(token, slot->committed + i));
        token = draw_at(fold, sequence, slot->drawn + i);
        luck = scramble(luck);
        uint32_t right = luck >> 16 & 7 ? 0 : (uint32_t)(luck >> 8) % top;
        if (luck % 8 >= worker->draft_luck) right = top;
        for (uint32_t rank = 0; rank < top; rank++)
            reply->candidate[result->draft_count * top + rank] = (struct draft_candidate){
                .token = rank == right ? token : 263 + (uint32_t)(luck >> 32) % 15 * 16 + rank,
                .logit = 3 - (float)rank * 0.5f};
        reply->draft_lse[result->draft_count++] = 3.5f;
    }
}

static void answer_token(struct fake_worker *worker, const struct plan_sequence *sequence,
                         struct fake_reply *reply, uint32_t token) {
    struct step_result *result = &reply->message.step_result;
    struct fake_slot *slot = &worker->slot[sequence->slot];
    slot->drawn++;
    slot->token = token;
    if (worker->rank != 0) return;
    reply->sequence[result->sequence_count - 1].token_count++;
    reply->token[result->token_count++] = token;
    if (!sequence->logprobs) return;
    for (uint32_t i = 0; i <= sequence->top_logprobs; i++)
        reply->logprob[result->logprob_count++] = fake_logprob(token, i);
}

static void begin_answer(const struct fake_worker *worker, const struct plan_sequence *sequence,
                         struct fake_reply *reply) {
    struct step_result *result = &reply->message.step_result;
    if (worker->rank != 0) return;
    reply->sequence[result->sequence_count++] = (struct result_sequence){
        .slot = sequence->slot,
        .token_begin = result->token_count,
        .draft_begin = result->draft_count,
    };
}

/* All rows write, one place each; then the walk, by the definition: from the root to the row that
 * was drawn and stands behind it. */
static void run_tree(struct fake_worker *worker, const struct step_plan *plan,
                     const struct plan_sequence *sequence, struct fake_reply *reply) {
    struct fake_slot *slot = &worker->slot[sequence->slot];
    const uint32_t *token = plan->token + sequence->row_begin;
    const uint32_t *parent = plan->parent + sequence->row_begin;
    uint32_t depth[TREE_ROWS_MAX] = {0}, begin = slot->committed;
    worker->trees++;
    if (sequence->want != PLAN_WANT_TOKEN || !slot->has_token || token[0] != slot->token)
        complain(worker, "slot %u: a tree whose root was not drawn", sequence->slot);
    for (uint32_t row = 0; row < sequence->row_count; row++) {
        if (row > 0 && parent[row] >= row) {
            complain(worker, "slot %u: parent %u of row %u", sequence->slot, parent[row], row);
            return;
        }
        if (row > 0) depth[row] = depth[parent[row]] + 1;
        *place_at(worker, slot, begin + row) = mark_of(token[row], begin + depth[row]);
    }
    uint64_t fold = fold_committed(worker, slot);
    for (uint32_t row = 0, next = 0; next != PLAN_NO_PARENT; row = next) {
        uint64_t mark = *place_at(worker, slot, begin + row);
        fold = scramble(fold + mark);
        *place_at(worker, slot, slot->committed) = mark;
        slot->prefix_hash = hash_chain(slot->prefix_hash, token[row]);
        slot->committed++;
        uint32_t drawn = draw_at(fold, sequence, slot->drawn);
        answer_token(worker, sequence, reply, drawn);
        next = PLAN_NO_PARENT;
        for (uint32_t child = 1; child < sequence->row_count; child++)
            if (parent[child] == row && token[child] == drawn) next = child;
        worker->guesses_right += next != PLAN_NO_PARENT;
    }
    for (uint32_t at = slot->committed; at < begin + sequence->row_count; at++)
        *place_at(worker, slot, at) = 0xdead;
}

/* Rows that are certain; a token drawn behind the last. */
static void run_chain(struct fake_worker *worker, const struct step_plan *plan,
                      const struct plan_sequence *sequence, struct fake_reply *reply) {
    struct fake_slot *slot = &worker->slot[sequence->slot];
    for (uint32_t row = 0; row < sequence->row_count; row++) {
        uint32_t token = plan->token[sequence->row_begin + row];
        if (token == PLAN_TOKEN_DRAWN) {
            if (!slot->has_token || sequence->row_count != 1)
                complain(worker, "slot %u: no token was drawn", sequence->slot);
            token = slot->token;
            worker->rows_drawn++;
        }
        *place_at(worker, slot, slot->committed) = mark_of(token, slot->committed);
        slot->prefix_hash = hash_chain(slot->prefix_hash, token);
        slot->committed++;
    }
    if (sequence->want == PLAN_WANT_TOKEN)
        answer_token(worker, sequence, reply,
                     draw_at(fold_committed(worker, slot), sequence, slot->drawn));
}

static void run_sequence(struct fake_worker *worker, const struct step_plan *plan,
                         const struct plan_sequence *sequence, struct fake_reply *reply) {
    if (sequence->slot >= worker->limits.max_sequences) {
        complain(worker, "slot %u", sequence->slot);
        return;
    }
    struct fake_slot *slot = &worker->slot[sequence->slot];
    if (sequence->page_base == 0) {
        if (slot->live)
            complain(worker, "slot %u starts anew and was not released", sequence->slot);
        /* What it begins with was computed for others; the marks will tell whether it was. */
        bool goes_on = sequence->committed > 0;
        uint32_t drawn = goes_on ? slot->drawn : 0;
        *slot = (struct fake_slot){.live = true,
                                   .drawn = drawn,
                                   .token = slot->token,
                                   .has_token = goes_on && slot->has_token,
                                   .committed = sequence->committed,
                                   .prefix_hash = sequence->committed > 0 ? sequence->prefix_hash
                                                                          : HASH_CHAIN_EMPTY};
    }
    if (!slot->live || slot->page_count != sequence->page_base)
        complain(worker, "slot %u: page_base %u", sequence->slot, sequence->page_base);
    append_pages(worker, slot, plan, sequence);
    uint32_t row_end = sequence->committed + sequence->row_count;
    if (row_end > slot->row_end) slot->row_end = row_end;
    check_sequence(worker, plan, sequence);
    if (worker->complaint[0] != '\0') return;
    bool draws = sequence->want == PLAN_WANT_TOKEN, is_tree = sequence->kind == PLAN_TREE;
    if (draws) begin_answer(worker, sequence, reply);
    if (is_tree)
        run_tree(worker, plan, sequence, reply);
    else
        run_chain(worker, plan, sequence, reply);
    struct step_result *result = &reply->message.step_result;
    uint64_t prefix = is_tree ? hash_chain(slot->prefix_hash, slot->token) : slot->prefix_hash;
    result->state_hash = step_state_hash(result->state_hash, sequence->slot, slot->committed,
                                         prefix);
    slot->has_token = draws;
    if (sequence->draft_len > 0 && worker->rank == 0)
        answer_draft(worker, sequence, plan->draft_top, reply);
}

static void copy_page(struct fake_worker *worker, const struct page_copy *copy) {
    uint32_t page_tok = worker->limits.page_tok;
    if (copy->source >= worker->limits.page_count || copy->target >= worker->limits.page_count ||
        copy->source == copy->target || copy->tok_count >= page_tok)
        complain(worker, "copy of page %u to %u", copy->source, copy->target);
    if (is_shared(worker, NULL, copy->target))
        complain(worker, "copy to page %u, which a slot reads", copy->target);
    for (uint32_t i = 0; i < page_tok; i++)
        worker->place[copy->target * page_tok + i] =
            i < copy->tok_count ? worker->place[copy->source * page_tok + i] : 0;
}

static void run_plan(struct fake_worker *worker, const struct step_plan *plan) {
    if (plan->generation != worker->generation || plan->step != worker->step + 1)
        complain(worker, "step %u after %u", (unsigned)plan->step, (unsigned)worker->step);
    if (plan->row_count > worker->limits.max_rows) complain(worker, "%u rows", plan->row_count);
    worker->rows_last = plan->row_count;
    if (plan->row_count > worker->rows_most) worker->rows_most = plan->row_count;
    worker->step = plan->step;
    if (worker->stuck) return;
    struct fake_reply *reply = fake_worker_push(worker, WORKER_STEP_RESULT);
    reply->message.step_result = (struct step_result){
        .generation = plan->generation,
        .step = plan->step,
        .rank = worker->rank,
        .state_hash = STEP_STATE_HASH_EMPTY,
        .compute_ns = worker->cost_row_ns * (1 + plan->row_count),
        .sequence = reply->sequence,
        .token = reply->token,
        .logprob = reply->logprob,
        .draft_lse = reply->draft_lse,
        .candidate = reply->candidate,
    };
    for (uint32_t i = 0; i < plan->release_count; i++) {
        struct fake_slot *slot = &worker->slot[plan->release[i]];
        if (!slot->live) complain(worker, "release of slot %u", plan->release[i]);
        slot->live = false;
    }
    for (uint32_t i = 0; i < plan->copy_count; i++)
        copy_page(worker, &plan->copy[i]);
    for (uint32_t i = 0; i < plan->sequence_count; i++)
        run_sequence(worker, plan, &plan->sequence[i], reply);
}

static void forget_generation(struct fake_worker *worker) {
    memset(worker->slot, 0, sizeof worker->slot);
    worker->step = 0;
}

static void start_group(struct fake_worker *worker, const struct control_group *group) {
    static const uint8_t key[4] = {1, 2, 3, 0};
    if (group->size != worker->tp || group->key.size != sizeof key ||
        memcmp(group->key.data, key, sizeof key) != 0)
        complain(worker, "group of %u", group->size);
    forget_generation(worker);
    worker->generation = group->generation;
    worker->limits.page_count = group->page_count;
    fake_worker_push(worker, WORKER_JOINED)->message.joined.generation = group->generation;
}

static void resize(struct fake_worker *worker, const struct control_resize *order) {
    uint32_t page_tok = worker->limits.page_tok;
    for (uint32_t i = 0; i < order->move_count; i++) {
        uint32_t source = order->move[i].source, target = order->move[i].target;
        if (source >= worker->limits.page_count || target >= order->page_count)
            complain(worker, "move of page %u to %u", source, target);
        else
            memcpy(&worker->place[target * page_tok], &worker->place[source * page_tok],
                   page_tok * sizeof worker->place[0]);
    }
    worker->moves += order->move_count;
    if (!worker->cannot_resize) worker->limits.page_count = order->page_count;
    struct fake_reply *reply = fake_worker_push(worker, WORKER_RESIZED);
    reply->message.resized = (struct worker_resized){
        .generation = worker->generation,
        .number = order->number,
        .status = worker->cannot_resize ? STATUS_RESOURCE_EXHAUSTED : STATUS_OK,
        .text = worker->cannot_resize ? "no memory for it" : "",
    };
    worker->cannot_resize = false;
}

/* The fraction of a memory of so many pages, and a page for the weights. */
static void size(struct fake_worker *worker, const struct control_size *question) {
    uint64_t pages = (uint64_t)worker->memory_pages * question->mem_fraction / FRACTION_ONE;
    struct fake_reply *reply = fake_worker_push(worker, WORKER_SIZED);
    reply->message.sized = (struct worker_sized){
        .generation = worker->generation,
        .number = question->number,
        .page_count = pages > 0 ? (uint32_t)pages - 1 : 0,
        .fraction_needed = 500000,
    };
}

static void examine(struct fake_worker *worker, const struct control_examine *order) {
    uint32_t page_tok = worker->limits.page_tok;
    worker->examined = order->number;
    if (worker->stuck) return;
    struct fake_reply *reply = fake_worker_push(worker, WORKER_EXAMINED);
    for (uint32_t i = 0; i < order->page_count; i++) {
        if (order->page[i] >= worker->limits.page_count)
            complain(worker, "page %u is to be examined", order->page[i]);
        else
            reply->hash[i] = hash_bytes(&worker->place[order->page[i] * page_tok],
                                        page_tok * sizeof worker->place[0], 0);
    }
    reply->message.examined = (struct worker_examined){
        .generation = worker->generation,
        .number = order->number,
        .status = worker->cannot_examine ? STATUS_INTERNAL : STATUS_OK,
        .text = worker->cannot_examine ? "the sum is wrong" : "",
        .report = {.rank = worker->rank,
                   .device = "fake",
                   .page_count = order->page_count,
                   .pages_per_hash = 1,
                   .hash = reply->hash,
                   .hash_count = order->page_count,
                   .attention_bytes = order->rows},
    };
    worker->cannot_examine = false;
}

void fake_worker_take(struct fake_worker *worker, const struct control_message *message) {
    struct fake_reply *reply;
    switch (message->type) {
    case CONTROL_WELCOME:
        worker->limits = message->welcome;
        reply = fake_worker_push(worker, WORKER_LOAD_PROGRESS);
        reply->message.load_progress = (struct worker_load_progress){50, 100};
        reply = fake_worker_push(worker, WORKER_LOADED);
        reply->message.loaded = (struct worker_loaded){.bytes = 100, .elapsed_ns = 1000};
        break;
    case CONTROL_REFUSE:
        worker->refused = true;
        snprintf(worker->refusal, sizeof worker->refusal, "%s", message->refuse.text);
        break;
    case CONTROL_PREPARE_GROUP:
        if (worker->rank != 0) complain(worker, "asked for a key");
        reply = fake_worker_push(worker, WORKER_GROUP_KEY);
        memcpy(reply->key, (const uint8_t[]){1, 2, 3, 0}, sizeof reply->key);
        reply->message.group_key = (struct worker_group_key){
            .generation = message->group.generation,
            .key = {.data = reply->key, .size = sizeof reply->key},
        };
        break;
    case CONTROL_FORM_GROUP: start_group(worker, &message->group); break;
    case CONTROL_STEP_PLAN: run_plan(worker, &message->step_plan); break;
    case CONTROL_END_GENERATION: forget_generation(worker); break;
    case CONTROL_SHUTDOWN: worker->shut_down = true; break;
    case CONTROL_RESIZE: resize(worker, &message->resize); break;
    case CONTROL_SIZE: size(worker, &message->size); break;
    case CONTROL_EXAMINE: examine(worker, &message->examine); break;
    }
}
