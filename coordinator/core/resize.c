#include "resize.h"

#include <stdio.h>

#include "base/check.h"
#include "base/log.h"

static uint32_t moves_max(const struct core_options *options) {
    uint32_t page_cap = core_page_cap(options);
    return page_cap < RESIZE_MOVES_MAX ? page_cap : RESIZE_MOVES_MAX;
}

size_t resize_memory(const struct core_options *options) {
    return moves_max(options) * sizeof(struct page_move) + ARENA_ALIGN;
}

void resize_init(struct resize *resize, const struct resize_parts *parts, struct arena *memory) {
    *resize = (struct resize){
        .parts = *parts,
        .move = arena_alloc(memory, moves_max(parts->options) * sizeof *resize->move),
    };
    roll_call_init(&resize->roll, parts->options);
    CHECK(resize->move != NULL);
}

bool resize_holds_plans(const struct resize *resize) {
    return resize->state == RESIZE_STATE_HOLDING;
}

/* ============================== telling ======================================================= */

static void tell(struct resize *resize, enum resize_phase phase) {
    resize->progress.phase = phase;
    resize->progress.pages_now = resize->parts.options->page_count;
    resize->progress.max_running_requests = resize->parts.options->max_running_requests;
    if (resize->has_call) effect_buf_resize(resize->parts.effects, resize->call, &resize->progress);
}

static void end(struct resize *resize, enum status status, const char *text) {
    const struct resize_progress *progress = &resize->progress;
    uint64_t page_tok = progress->page_tok;
    effect_buf_log(
        resize->parts.effects, status == STATUS_OK ? LOG_LEVEL_INFO : LOG_LEVEL_WARN, "resized",
        "status=%s max_total_num_tokens=%llu before=%llu max_running_requests=%u "
        "evicted=%u moved=%u retracted=%u reason=\"%s\"",
        status_name(status), (unsigned long long)(progress->pages_now * page_tok),
        (unsigned long long)(progress->pages_before * page_tok), progress->max_running_requests,
        progress->pages_evicted, progress->pages_moved, progress->requests_retracted, text);
    if (resize->has_call) effect_buf_end(resize->parts.effects, resize->call, status, text, NULL);
    resize->has_call = false;
    resize->state = RESIZE_STATE_IDLE;
    roll_call_close(&resize->roll);
}

static void finish(struct resize *resize) {
    struct core_options *options = resize->parts.options;
    const struct resize_request *request = &resize->request;
    if (request->max_running_requests > 0)
        options->max_running_requests = request->max_running_requests;
    if (request->mem_fraction > 0 || request->tokens > 0)
        options->mem_fraction = request->mem_fraction;
    tell(resize, RESIZE_DONE);
    end(resize, STATUS_OK, "");
}

/* ============================== refusing ====================================================== */

static unsigned long long tokens(const struct core_options *options, uint64_t page_count) {
    return (unsigned long long)(page_count * options->page_tok);
}

static void describe_tokens(struct resize *resize) {
    snprintf(resize->found, sizeof resize->found, "--tokens: found %u", resize->request.tokens);
}

static void describe_fraction(struct resize *resize) {
    snprintf(resize->found, sizeof resize->found,
             "--mem-fraction-static: found %.6g, a pool of %llu tokens on rank %u",
             (double)resize->request.mem_fraction / FRACTION_ONE,
             tokens(resize->parts.options, resize->memory.page_count), resize->memory.rank);
}

/* What would hold a request of the context. */
static void describe_enough(const struct resize *resize, char *out, size_t bytes) {
    if (resize->request.tokens > 0)
        snprintf(out, bytes, "%u or more", resize->parts.options->context_len);
    else if (resize->memory.fraction_needed > 0)
        snprintf(out, bytes, "%.3f or more", (double)resize->memory.fraction_needed / FRACTION_ONE);
    else
        snprintf(out, bytes, "ranks with more --device-memory");
}

static enum status check_running(const struct core_options *options, uint32_t wanted,
                                 struct error *err) {
    uint32_t cap = core_running_cap(options);
    if (options->max_step_rows > 0 && options->max_step_rows < cap) cap = options->max_step_rows;
    if (wanted <= cap) return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--max-running-requests: found %u, accepted: 1 to %u, what workers were "
                     "started for (--max-running-cap)",
                     wanted, cap);
}

static enum status check_pages(const struct resize *resize, uint32_t page_count,
                               struct error *err) {
    const struct core_options *options = resize->parts.options;
    uint32_t page_cap = core_page_cap(options);
    if (page_count > page_cap)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s, accepted: up to %llu, what the coordinator was started for "
                         "(--max-total-tokens-cap)",
                         resize->found, tokens(options, page_cap));
    bool short_is_fine = options->allow_short_pool && page_count > 0;
    if (short_is_fine || tokens(options, page_count) >= options->context_len) return STATUS_OK;
    char enough[64];
    describe_enough(resize, enough, sizeof enough);
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "%s, which holds no request of the context length %u; accepted: %s, or a "
                     "coordinator with --allow-short-pool",
                     resize->found, options->context_len, enough);
}

/* What lives must be able to end in a smaller pool, and what runs must fit it as it is. */
static enum status check_requests(const struct resize *resize, uint32_t page_count,
                                  struct error *err) {
    const struct scheduler *scheduler = resize->parts.scheduler;
    const struct core_options *options = scheduler->options;
    uint32_t least = scheduler_pages_least(scheduler);
    uint32_t pinned = scheduler->pages.pool.pinned_count;
    if (page_count < least)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "%s; a request that runs or waits may need %llu alone; accepted: --tokens "
                         "%llu or more",
                         resize->found, tokens(options, least), tokens(options, least));
    if (page_count < pinned && !resize->request.force)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "%s; running requests use %llu; accepted: --tokens %llu or more, or "
                         "--force, which sends requests back to wait",
                         resize->found, tokens(options, pinned), tokens(options, pinned));
    return STATUS_OK;
}

static enum status check_size(const struct resize *resize, uint32_t page_count, struct error *err) {
    enum status status = check_pages(resize, page_count, err);
    if (status == STATUS_OK && page_count < resize->parts.options->page_count)
        status = check_requests(resize, page_count, err);
    return status;
}

static enum status check_asked(const struct resize *resize, const struct resize_request *request,
                               struct error *err) {
    if (resize->state != RESIZE_STATE_IDLE)
        return error_set(err, STATUS_ABORTED, "another resize is under way");
    if (request->tokens > 0 && request->mem_fraction > 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--tokens %u and --mem-fraction-static %.6g, accepted: one of them",
                         request->tokens, (double)request->mem_fraction / FRACTION_ONE);
    if (request->tokens == 0 && request->mem_fraction == 0 && request->max_running_requests == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "neither tokens nor mem_fraction nor max_running_requests; accepted: a "
                         "size of the pool, one of the batch, or both");
    return check_running(resize->parts.options, request->max_running_requests, err);
}

static enum status check_serving(const struct resize *resize, struct error *err) {
    const struct roster *roster = resize->parts.roster;
    if (roster_is_serving(roster)) return STATUS_OK;
    return error_set(err, STATUS_UNAVAILABLE, "no group serves: %s", roster->reason);
}

/* ============================== asking ======================================================== */

/* A message of a new number to every rank, whose answers are owed from now on. */
static struct control_message *question(struct resize *resize, enum resize_state state,
                                        enum control_message_type type, int64_t now_ns) {
    resize->state = state;
    roll_call_begin(&resize->roll, now_ns);
    return effect_buf_message(resize->parts.effects, type);
}

static void ask_size(struct resize *resize, int64_t now_ns) {
    struct control_message *message = question(resize, RESIZE_STATE_SIZING, CONTROL_SIZE, now_ns);
    message->size = (struct control_size){
        .generation = resize->parts.roster->generation,
        .number = resize->roll.number,
        .mem_fraction = resize->request.mem_fraction,
    };
    roster_broadcast(resize->parts.roster, resize->parts.effects, message);
    tell(resize, RESIZE_SIZING);
}

static void ask(struct resize *resize, enum resize_state state, uint32_t page_count,
                uint32_t move_count, int64_t now_ns) {
    struct control_message *message = question(resize, state, CONTROL_RESIZE, now_ns);
    message->resize = (struct control_resize){
        .generation = resize->parts.roster->generation,
        .number = resize->roll.number,
        .page_count = page_count,
        .move = resize->move,
        .move_count = move_count,
    };
    roster_broadcast(resize->parts.roster, resize->parts.effects, message);
    tell(resize, state == RESIZE_STATE_ASKED ? RESIZE_CHANGING : RESIZE_UNDOING);
}

static void begin_pages(struct resize *resize, uint32_t page_count, int64_t now_ns) {
    uint32_t before = resize->parts.options->page_count;
    resize->progress.pages_wanted = page_count;
    if (page_count == before) {
        finish(resize);
    } else if (page_count > before) {
        ask(resize, RESIZE_STATE_ASKED, page_count, 0, now_ns);
    } else {
        resize->state = RESIZE_STATE_HOLDING;
        tell(resize, RESIZE_WAITING);
    }
}

static void take_request(struct resize *resize, const struct event *event) {
    resize->call = event->resize.call;
    resize->request = event->resize.request;
    resize->failure = STATUS_OK;
    resize->progress = (struct resize_progress){
        .page_tok = resize->parts.options->page_tok,
        .pages_before = resize->parts.options->page_count,
        .pages_wanted = resize->parts.options->page_count,
    };
    describe_tokens(resize);
}

void resize_begin(struct resize *resize, const struct event *event) {
    const struct resize_request *request = &event->resize.request;
    struct scheduler *scheduler = resize->parts.scheduler;
    struct effect_buf *effects = resize->parts.effects;
    uint32_t page_count = resize->parts.options->page_count;
    struct error err;
    enum status status = check_asked(resize, request, &err);
    if (status == STATUS_OK) {
        take_request(resize, event);
        if (request->tokens > 0) page_count = seq_pages_for(&scheduler->pages, request->tokens);
        if (request->tokens > 0) status = check_size(resize, page_count, &err);
    }
    if (status == STATUS_OK && (request->tokens > 0 || request->mem_fraction > 0))
        status = check_serving(resize, &err);
    if (status != STATUS_OK) {
        effect_buf_end(effects, event->resize.call, status,
                       effect_buf_text(effects, "%s", err.text), NULL);
        return;
    }
    resize->has_call = true;
    if (request->mem_fraction > 0)
        ask_size(resize, event->now_ns);
    else
        begin_pages(resize, page_count, event->now_ns);
}

/* ============================== going on ====================================================== */

static void set_pages(struct resize *resize, uint32_t page_count) {
    struct scheduler_resized resized = scheduler_resize(resize->parts.scheduler, page_count,
                                                        resize->move);
    CHECK(resized.pages.page_count == page_count && resized.pages.moved == 0);
    resize->parts.options->page_count = page_count;
}

static void note_failure(struct resize *resize, enum status status, const char *text) {
    if (resize->failure != STATUS_OK) return;
    resize->failure = status;
    snprintf(resize->failure_text, sizeof resize->failure_text, "%s", text);
}

static void fail(struct resize *resize) {
    tell(resize, RESIZE_UNDOING);
    end(resize, resize->failure,
        effect_buf_text(resize->parts.effects, "%s; the old size stands", resize->failure_text));
}

/* Bring the old size back, here and on every rank that may have another. */
static void undo(struct resize *resize, int64_t now_ns) {
    uint32_t before = resize->progress.pages_before, now = resize->parts.options->page_count;
    bool asked = resize->state != RESIZE_STATE_HOLDING || now != before;
    if (now != before) set_pages(resize, before);
    if (asked)
        ask(resize, RESIZE_STATE_UNDOING, before, 0, now_ns);
    else
        fail(resize);
}

void resize_advance(struct resize *resize, int64_t now_ns) {
    if (resize->state != RESIZE_STATE_HOLDING) return;
    struct resize_progress *progress = &resize->progress;
    struct error err;
    /* Steps that were in flight may have taken more. */
    if (check_requests(resize, progress->pages_wanted, &err) != STATUS_OK) {
        note_failure(resize, err.code, err.text);
        undo(resize, now_ns);
        return;
    }
    struct scheduler_resized resized = scheduler_resize(resize->parts.scheduler,
                                                        progress->pages_wanted, resize->move);
    resize->parts.options->page_count = resized.pages.page_count;
    progress->pages_evicted += resized.pages.evicted;
    progress->pages_moved += resized.pages.moved;
    progress->requests_retracted += resized.retracted;
    ask(resize, RESIZE_STATE_ASKED, resized.pages.page_count, resized.pages.moved, now_ns);
}

static void all_have_answered(struct resize *resize, int64_t now_ns) {
    const struct resize_progress *progress = &resize->progress;
    uint32_t page_count = resize->parts.options->page_count;
    if (resize->state == RESIZE_STATE_UNDOING) {
        fail(resize);
    } else if (resize->failure != STATUS_OK) {
        undo(resize, now_ns);
    } else if (progress->pages_wanted < page_count) {
        resize->state = RESIZE_STATE_HOLDING; /* the next round of moves */
    } else {
        if (progress->pages_wanted > page_count) set_pages(resize, progress->pages_wanted);
        finish(resize);
    }
}

bool resize_take(struct resize *resize, uint32_t rank, const struct worker_resized *resized,
                 int64_t now_ns) {
    bool owed = resize->state == RESIZE_STATE_ASKED || resize->state == RESIZE_STATE_UNDOING;
    /* What was had before can be had again; a rank where it cannot is of no use. */
    if (resized->status != STATUS_OK && resize->state == RESIZE_STATE_UNDOING) return false;
    if (!owed || !roll_call_take(&resize->roll, rank, resized->number)) return false;
    if (resized->status != STATUS_OK) {
        char text[EFFECT_BUF_TEXT_BYTES_MAX];
        snprintf(text, sizeof text, "rank %u: %s", rank, resized->text);
        note_failure(resize, resized->status, text);
    }
    if (!resize->roll.is_open) all_have_answered(resize, now_ns);
    return true;
}

/* Every rank has said what its memory holds. */
static void begin_sized(struct resize *resize, int64_t now_ns) {
    struct error err;
    describe_fraction(resize);
    if (check_size(resize, resize->memory.page_count, &err) == STATUS_OK)
        begin_pages(resize, resize->memory.page_count, now_ns);
    else
        end(resize, err.code, effect_buf_text(resize->parts.effects, "%s", err.text));
}

bool resize_take_size(struct resize *resize, uint32_t rank, const struct worker_sized *sized,
                      int64_t now_ns) {
    struct roster_memory *memory = &resize->memory;
    bool first = resize->roll.answered_count == 0;
    if (resize->state != RESIZE_STATE_SIZING || !roll_call_take(&resize->roll, rank, sized->number))
        return false;
    if (first || sized->page_count < memory->page_count)
        *memory = (struct roster_memory){.page_count = sized->page_count,
                                         .rank = rank,
                                         .fraction_needed = sized->fraction_needed};
    if (!resize->roll.is_open) begin_sized(resize, now_ns);
    return true;
}

/* ============================== ends from outside ============================================= */

bool resize_cancel(struct resize *resize, struct pool_id call, enum status reason) {
    if (!resize->has_call || !pool_id_equal(call, resize->call)) return false;
    effect_buf_end(resize->parts.effects, call, reason, "the resize goes on", NULL);
    resize->has_call = false;
    return true;
}

void resize_abandon(struct resize *resize, const char *reason) {
    if (resize->state == RESIZE_STATE_IDLE) return;
    if (resize->parts.options->page_count != resize->progress.pages_before)
        set_pages(resize, resize->progress.pages_before);
    resize->progress.pages_now = resize->parts.options->page_count;
    end(resize, STATUS_UNAVAILABLE,
        effect_buf_text(resize->parts.effects, "%s; the old size stands", reason));
}
