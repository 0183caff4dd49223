#include "examine.h"

#include "base/check.h"
#include "intake.h"

static uint32_t pages_max(const struct core_options *options) {
    uint32_t page_cap = core_page_cap(options);
    return page_cap < EXAMINE_PAGES_MAX ? page_cap : EXAMINE_PAGES_MAX;
}

size_t examine_memory(const struct core_options *options) {
    return pages_max(options) * (sizeof(uint32_t) + sizeof(struct page_ref)) + 2 * ARENA_ALIGN;
}

void examine_init(struct examine *examine, const struct core_options *options,
                  struct arena *memory) {
    *examine = (struct examine){.options = options, .page_max = pages_max(options)};
    roll_call_init(&examine->roll, options);
    examine->page = arena_alloc(memory, examine->page_max * sizeof *examine->page);
    examine->ref = arena_alloc(memory, examine->page_max * sizeof *examine->ref);
    CHECK(examine->page && examine->ref);
}

static void end(struct examine *examine, struct effect_buf *effects, enum status status,
                const char *text) {
    if (examine->has_call) effect_buf_end(effects, examine->call, status, text, NULL);
    examine->has_call = false;
    roll_call_close(&examine->roll);
}

/* Which pages; returns how many. */
static uint32_t choose_pages(struct examine *examine, const struct radix *radix,
                             const struct event *event) {
    const uint32_t *token = event->examine.token;
    uint32_t tok_count = event->examine.token_count;
    if (tok_count == 0) return radix_pages(radix, examine->page, examine->page_max);
    uint64_t most_tok = (uint64_t)examine->page_max * examine->options->page_tok;
    if (tok_count > most_tok) tok_count = (uint32_t)most_tok;
    struct radix_match match = radix_match(radix, intake_salt(event->examine.tenant), token,
                                           tok_count, examine->ref);
    for (uint32_t i = 0; i < match.page_count; i++)
        examine->page[i] = examine->ref[i].page;
    return match.page_count;
}

static enum status judge(const struct examine *examine, const struct roster *roster,
                         struct error *err) {
    if (examine->has_call)
        return error_set(err, STATUS_ABORTED, "another examination is under way");
    if (roster_is_serving(roster)) return STATUS_OK;
    return error_set(err, STATUS_UNAVAILABLE, "no group serves: %s", roster->reason);
}

void examine_begin(struct examine *examine, const struct radix *radix, const struct roster *roster,
                   struct effect_buf *effects, const struct event *event) {
    struct error err;
    enum status status = judge(examine, roster, &err);
    if (status != STATUS_OK) {
        effect_buf_end(effects, event->examine.call, status,
                       effect_buf_text(effects, "%s", err.text), NULL);
        return;
    }
    examine->call = event->examine.call;
    examine->has_call = true;
    struct control_message *message = effect_buf_message(effects, CONTROL_EXAMINE);
    message->examine = (struct control_examine){
        .generation = roster->generation,
        .number = roll_call_begin(&examine->roll, event->now_ns),
        .page = examine->page,
        .page_count = choose_pages(examine, radix, event),
        .rows = event->examine.rows,
    };
    roster_broadcast(roster, effects, message);
}

static void take_report(struct examine *examine, struct effect_buf *effects, uint32_t rank,
                        const struct worker_examined *examined) {
    if (examined->status != STATUS_OK) {
        end(examine, effects, examined->status,
            effect_buf_text(effects, "rank %u: %s", rank, examined->text));
        return;
    }
    effect_buf_examined(effects, examine->call, rank, &examined->report);
}

bool examine_take(struct examine *examine, struct effect_buf *effects, uint32_t rank,
                  const struct worker_examined *examined) {
    struct roll_call *roll = &examine->roll;
    if (examined->number > roll->number) return false;
    if (examined->number < roll->number || !roll->is_open) return true; /* of one given up */
    if (!roll_call_take(roll, rank, examined->number)) return false;
    if (examine->has_call) take_report(examine, effects, rank, examined);
    if (!roll->is_open) end(examine, effects, STATUS_OK, "");
    return true;
}

bool examine_cancel(struct examine *examine, struct effect_buf *effects, struct pool_id call,
                    enum status reason) {
    if (!examine->has_call || !pool_id_equal(call, examine->call)) return false;
    effect_buf_end(effects, call, reason, "not all ranks have answered", NULL);
    examine->has_call = false;
    return true;
}

void examine_abandon(struct examine *examine, struct effect_buf *effects, const char *reason) {
    end(examine, effects, STATUS_UNAVAILABLE, reason);
}
