/* One event at a time: it reaches its module, then time is looked at, then as many steps are
 * planned as may be in flight: COMMIT_STEPS_MAX, or one without overlap. Whatever ends the
 * generation, or the process, is carried out here, in one place, because it concerns all modules.
 *
 *   core_step:  event ─▶ on_*  ─▶ check_time ─▶ advance (gather, plan, finish) ─▶ arm_timer
 */
#include "core.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/log.h"
#include "commit.h"
#include "core_options.h"
#include "effect_buf.h"
#include "examine.h"
#include "intake.h"
#include "overview.h"
#include "reply.h"
#include "request.h"
#include "resize.h"
#include "roster.h"
#include "scheduler.h"

#define NEVER INT64_MAX

struct core {
    struct arena memory; /* everything below that is an array lies in it */
    struct core_options options;
    struct roster roster;
    struct request_table requests;
    struct scheduler scheduler;
    struct commit commit;
    struct resize resize;
    struct examine examine;
    struct reply_context reply_context;
    struct effect_buf effects;
    struct overview overview;
    int64_t now_ns, start_ns; /* of the last event, and of the first; 0: none yet */
    int64_t timer_ns;         /* a tick will come by then; NEVER: none asked for */
    uint64_t step;            /* of this generation */
    bool draining, exited;
    bool pool_checked; /* since the last step */
    int64_t drain_deadline_ns;
};

/* The sum of all holders; address space, touched as it is used. */
static size_t memory_bytes(const struct core_options *options) {
    return request_memory(options) +   /* what was asked, prompts, replies */
           scheduler_memory(options) + /* pages, page tables, the plan */
           commit_memory(options) +    /* rank 0's payload */
           resize_memory(options) +    /* pages that move */
           examine_memory(options) +   /* pages that are looked at */
           effect_buf_memory(options);
}

enum status core_create(const struct core_options *options, struct core **core_out,
                        struct error *err) {
    enum status status = core_options_check(options, err);
    if (status == STATUS_OK) status = core_options_check_memory(memory_bytes(options), err);
    if (status != STATUS_OK) return status;
    struct core *core = calloc(1, sizeof *core);
    CHECK(core != NULL);
    core->options = *options;
    core->options.page_cap = core_page_cap(options);
    core->options.max_running_cap = core_running_cap(options);
    core->timer_ns = NEVER;
    core->drain_deadline_ns = NEVER;
    core->reply_context = (struct reply_context){
        .vocab = options->vocab,
        .marks = channel_marks_find(options->vocab),
        .stop_token = options->spec->stop_token,
        .stop_token_count = options->spec->stop_token_count,
    };
    options = &core->options;
    arena_init(&core->memory, memory_bytes(options));
    roster_init(&core->roster, options);
    request_table_init(&core->requests, options, &core->memory);
    scheduler_init(&core->scheduler, options, &core->requests, &core->memory);
    commit_init(&core->commit, options, &core->memory);
    resize_init(&core->resize,
                &(struct resize_parts){.options = &core->options,
                                       .scheduler = &core->scheduler,
                                       .roster = &core->roster,
                                       .effects = &core->effects},
                &core->memory);
    examine_init(&core->examine, &core->options, &core->memory);
    overview_init(&core->overview, &(struct overview_parts){.options = &core->options,
                                                            .roster = &core->roster,
                                                            .requests = &core->requests,
                                                            .scheduler = &core->scheduler,
                                                            .commit = &core->commit,
                                                            .draining = &core->draining,
                                                            .start_ns = &core->start_ns});
    effect_buf_init(&core->effects, options, &core->memory);
    *core_out = core;
    return STATUS_OK;
}

void core_destroy(struct core **core) {
    if (!*core) return;
    request_table_deinit(&(*core)->requests);
    arena_deinit(&(*core)->memory);
    free(*core);
    *core = NULL;
}

static void on_call(struct core *core, const struct event *event);
static void on_cancel(struct core *core, const struct event *event);
static void on_job_done(struct core *core, const struct event *event);
static void on_worker_message(struct core *core, const struct event *event);
static void on_drain(struct core *core, const struct event *event);
static void on_flush(struct core *core, const struct event *event);
static void on_resize(struct core *core, const struct event *event);
static void on_examine(struct core *core, const struct event *event);
static void follow_roster(struct core *core);
static void check_time(struct core *core);
static void advance(struct core *core);
static void arm_timer(struct core *core);

struct effects core_step(struct core *core, const struct event *event) {
    CHECK(event->now_ns > 0);
    effect_buf_reset(&core->effects);
    if (core->start_ns == 0) core->start_ns = event->now_ns;
    if (event->now_ns > core->now_ns) core->now_ns = event->now_ns;
    switch (event->type) {
    case EVENT_TICK: break;
    case EVENT_CALL: on_call(core, event); break;
    case EVENT_CANCEL: on_cancel(core, event); break;
    case EVENT_JOB_DONE: on_job_done(core, event); break;
    case EVENT_WORKER_MESSAGE: on_worker_message(core, event); break;
    case EVENT_WORKER_LOST:
        roster_lost(&core->roster, &core->effects, event->worker.worker, core->now_ns);
        break;
    case EVENT_DRAIN: on_drain(core, event); break;
    case EVENT_FLUSH: on_flush(core, event); break;
    case EVENT_RESIZE: on_resize(core, event); break;
    case EVENT_EXAMINE: on_examine(core, event); break;
    }
    follow_roster(core);
    check_time(core);
    advance(core);
    arm_timer(core);
    return (struct effects){.effect = core->effects.effect, .count = core->effects.count};
}

static void end_request(struct core *core, struct request *request, enum status status,
                        enum finish_reason finish, const char *text) {
    struct scheduler_ending ending = {.status = status, .finish = finish, .text = text};
    scheduler_end_call(&core->scheduler, request, &ending, &core->effects, core->now_ns);
}

static void refuse_call(struct core *core, const struct event *event, enum status status,
                        const char *text) {
    effect_buf_end(&core->effects, event->call.call, status, text, NULL);
}

static void end_unfit(struct core *core, struct request *request, const struct error *err) {
    const char *text = effect_buf_text(&core->effects, "%s", err->text);
    end_request(core, request, err->code, FINISH_ERROR, text);
}

static void take_prompt(struct core *core, struct request *request,
                        const struct intake_prompt *prompt) {
    struct error err;
    if (intake_prompt(&core->requests, request, &core->options, prompt, &err) != STATUS_OK)
        end_unfit(core, request, &err);
    else
        scheduler_enqueue(&core->scheduler, request);
}

static void on_call(struct core *core, const struct event *event) {
    const struct generate_request *call = event->call.request;
    CHECK(request_of_call(&core->requests, event->call.call) == NULL);
    if (core->draining || core->exited) {
        refuse_call(core, event, STATUS_UNAVAILABLE, "draining: no new calls are accepted");
        return;
    }
    if (request_queue_count(&core->requests) >= core->options.max_queued_requests) {
        refuse_call(core, event, STATUS_RESOURCE_EXHAUSTED,
                    effect_buf_text(&core->effects,
                                    "the queue is full: %u requests wait "
                                    "(--max-queued-requests)",
                                    core->options.max_queued_requests));
        return;
    }
    struct request *request = request_open(&core->requests, event->call.call,
                                           call->choice_count > 1 ? call->choice_count : 1,
                                           core->now_ns);
    struct intake_origin origin = {
        .tenant = event->call.tenant,
        .idempotency_key = event->call.idempotency_key,
        .priority = event->call.priority,
        .random = event->call.random,
    };
    struct error err;
    if (intake_wish(&core->requests, request, call, &origin, &err) != STATUS_OK) {
        end_unfit(core, request, &err);
    } else if (call->prompt_kind == PROMPT_TOKENS) {
        struct intake_prompt prompt = {
            .token = call->prompt_token,
            .count = call->prompt_token_count,
            .in_reasoning = channel_in_reasoning(&core->reply_context.marks, call->prompt_token,
                                                 call->prompt_token_count),
        };
        take_prompt(core, request, &prompt);
    } else {
        effect_buf_job(&core->effects, request_job(request), call->prompt_kind, call->prompt_text);
    }
}

static const char *cancel_text(enum status reason) {
    switch (reason) {
    case STATUS_CANCELLED: return "cancelled by the client";
    case STATUS_DEADLINE_EXCEEDED: return "the deadline has passed";
    case STATUS_RESOURCE_EXHAUSTED: return "the client reads too slowly";
    default: return status_name(reason);
    }
}

static void on_cancel(struct core *core, const struct event *event) {
    const char *text = cancel_text(event->cancel.reason);
    if (resize_cancel(&core->resize, event->cancel.call, event->cancel.reason) ||
        examine_cancel(&core->examine, &core->effects, event->cancel.call, event->cancel.reason))
        return;
    struct request *request = request_of_call(&core->requests, event->cancel.call);
    if (!request) return; /* it ended while the cancel was on its way */
    end_request(core, request, event->cancel.reason, FINISH_CANCELLED, text);
}

static void on_job_done(struct core *core, const struct event *event) {
    struct request *request = request_of_job(&core->requests, event->job_done.job);
    if (!request) return; /* cancelled meanwhile */
    if (event->job_done.status != STATUS_OK) {
        end_request(core, request, event->job_done.status, FINISH_ERROR,
                    effect_buf_text(&core->effects, "%s", event->job_done.text));
        return;
    }
    struct intake_prompt prompt = {
        .token = event->job_done.token,
        .count = event->job_done.token_count,
        .in_reasoning = event->job_done.in_reasoning,
    };
    take_prompt(core, request, &prompt);
}

/* What is wrong with an answer, and whose that is; NULL: nothing. */
static const char *take_step_result(struct core *core, uint32_t *rank,
                                    const struct step_result *result, struct error *err) {
    struct speculation *speculation = &core->scheduler.speculation;
    if (commit_take(&core->commit, speculation, *rank, result, rank, err) != STATUS_OK)
        return err->text;
    if (!commit_is_complete(&core->commit)) return NULL;
    if (commit_apply(&core->commit, &core->scheduler, &core->reply_context, &core->effects,
                     core->now_ns, rank, err) != STATUS_OK)
        return err->text;
    return NULL;
}

static const char *take_resized(struct core *core, uint32_t rank,
                                const struct worker_message *message) {
    const struct worker_resized *resized = &message->resized;
    const char *unasked = "it answers a resize that was not asked for";
    if (message->type == WORKER_SIZED) {
        if (!resize_take_size(&core->resize, rank, &message->sized, core->now_ns)) return unasked;
    } else {
        bool done = resized->status == STATUS_OK;
        if (done) roster_note_free(&core->roster, rank, resized->free_bytes);
        if (!resize_take(&core->resize, rank, resized, core->now_ns))
            return done ? unasked : resized->text;
    }
    if (core->resize.state == RESIZE_STATE_IDLE) /* all ranks hold what it has left */
        roster_hold_pages(&core->roster, core->options.page_count);
    return NULL;
}

/* What a rank says to what all were sent: a plan, an order, a question. Where it cannot be
 * believed, the generation is over. */
static void on_answer(struct core *core, struct worker_id worker,
                      const struct worker_message *message) {
    uint32_t rank;
    if (!roster_answer_rank(&core->roster, &core->effects, worker, message, core->now_ns, &rank))
        return;
    struct error err;
    const char *objection = NULL;
    if (message->type == WORKER_STEP_RESULT)
        objection = take_step_result(core, &rank, &message->step_result, &err);
    else if (message->type != WORKER_EXAMINED)
        objection = take_resized(core, rank, message);
    else if (!examine_take(&core->examine, &core->effects, rank, &message->examined))
        objection = "it answers an examination that was not asked for";
    if (objection) roster_fail(&core->roster, &core->effects, rank, objection, core->now_ns);
}

static void on_worker_message(struct core *core, const struct event *event) {
    const struct worker_message *message = event->worker.message;
    switch (message->type) {
    case WORKER_STEP_RESULT:
    case WORKER_RESIZED:
    case WORKER_SIZED:
    case WORKER_EXAMINED: on_answer(core, event->worker.worker, message); return;
    default:
        roster_message(&core->roster, &core->effects, event->worker.worker, message, core->now_ns);
    }
}

static void on_drain(struct core *core, const struct event *event) {
    int64_t deadline_ns = event->drain.deadline_ns;
    if (!core->draining) {
        effect_buf_log(&core->effects, LOG_LEVEL_INFO, "draining", "running=%u waiting=%u",
                       core->requests.running.count, request_queue_count(&core->requests));
    }
    core->draining = true;
    if (deadline_ns < core->drain_deadline_ns) core->drain_deadline_ns = deadline_ns;
}

static void on_flush(struct core *core, const struct event *event) {
    struct radix *radix = &core->scheduler.pages.radix;
    uint32_t dropped;
    if (event->flush.token_count == 0) {
        dropped = radix_withdraw_all(radix);
    } else {
        dropped = radix_withdraw(radix, intake_salt(event->flush.tenant), event->flush.token,
                                 event->flush.token_count);
    }
    effect_buf_log(&core->effects, LOG_LEVEL_INFO, "flushed", "pages=%u tokens_given=%u", dropped,
                   event->flush.token_count);
}

static void on_resize(struct core *core, const struct event *event) {
    if (core->draining || core->exited) {
        effect_buf_end(&core->effects, event->resize.call, STATUS_UNAVAILABLE,
                       "draining: the size stays", NULL);
        return;
    }
    resize_begin(&core->resize, event);
}

static void on_examine(struct core *core, const struct event *event) {
    if (core->draining || core->exited) {
        effect_buf_end(&core->effects, event->examine.call, STATUS_UNAVAILABLE,
                       "draining: nothing is examined", NULL);
        return;
    }
    examine_begin(&core->examine, &core->scheduler.pages.radix, &core->roster, &core->effects,
                  event);
}

/* End every call that still runs or waits. */
static void end_all(struct core *core, const struct scheduler_ending *ending) {
    scheduler_end_generation(&core->scheduler, ending, &core->effects, core->now_ns);
    commit_forget(&core->commit);
    resize_abandon(&core->resize, ending->text);
    examine_abandon(&core->examine, &core->effects, ending->text);
    struct request_table *requests = &core->requests;
    for (uint32_t slot = pool_next_used(&requests->pool, 0); slot != POOL_NO_SLOT;
         slot = pool_next_used(&requests->pool, slot + 1))
        scheduler_end_call(&core->scheduler, &requests->request[slot], ending, &core->effects,
                           core->now_ns);
}

static void exit_now(struct core *core, int code, const char *text) {
    struct scheduler_ending ending = {
        .status = STATUS_UNAVAILABLE,
        .finish = FINISH_ERROR,
        .text = text,
    };
    end_all(core, &ending);
    roster_shutdown(&core->roster, &core->effects, core->now_ns);
    effect_buf_exit(&core->effects, code, text);
    core->exited = true;
}

static void log_lost_step(struct core *core) {
    char plan[EFFECT_BUF_TEXT_BYTES_MAX];
    step_plan_print(&commit_first(&core->commit)->plan->plan, plan, sizeof plan);
    effect_buf_log(&core->effects, LOG_LEVEL_WARN, "step_lost", "%s", plan);
}

/* Carry out what became of the group. */
static void follow_roster(struct core *core) {
    enum roster_news news = roster_take_news(&core->roster);
    if (news == ROSTER_NO_NEWS) return;
    if (core->commit.count > 0) log_lost_step(core);
    const char *text = effect_buf_text(&core->effects, "the worker group is lost: %s",
                                       core->roster.reason);
    if (news == ROSTER_EXIT) {
        exit_now(core, EXIT_CODE_GROUP_LOST, text);
        return;
    }
    struct scheduler_ending ending = {
        .status = STATUS_UNAVAILABLE,
        .finish = FINISH_ERROR,
        .text = text,
    };
    scheduler_end_generation(&core->scheduler, &ending, &core->effects, core->now_ns);
    commit_forget(&core->commit);
    resize_abandon(&core->resize, text);
    examine_abandon(&core->examine, &core->effects, text);
    core->step = 0;
}

static void check_roll(struct core *core, struct roll_call *roll, const char *text) {
    const struct commit_step *first = commit_first(&core->commit);
    if (first) roll_call_hold(roll, first->sent_ns, core->now_ns);
    if (roll_call_due_ns(roll) > core->now_ns) return;
    roster_fail(&core->roster, &core->effects, roll_call_late_rank(roll), text, core->now_ns);
    follow_roster(core);
}

static void check_time(struct core *core) {
    if (core->exited) return;
    if (core->timer_ns <= core->now_ns) core->timer_ns = NEVER;
    struct roster_step step;
    roster_tick(&core->roster, &core->effects, overview_step(&core->overview, &step), core->now_ns);
    follow_roster(core);
    if (core->exited) return;
    check_roll(core, &core->resize.roll, "it does not answer the order to resize (--step-timeout)");
    check_roll(core, &core->examine.roll,
               "it does not answer the order to examine (--step-timeout)");
}

/* When nothing runs, nothing may be held. */
static void check_pool(struct core *core) {
    const struct token_pool *pool = &core->scheduler.pages.pool;
    if (core->pool_checked || core->commit.count > 0 || core->requests.running.count > 0) return;
    core->pool_checked = true;
    if (token_pool_is_whole(pool) && pool->pinned_count == 0) return;
    const char *dump = effect_buf_text(&core->effects,
                                       "the token pool is not whole: free=%u cached=%u pinned=%u "
                                       "total=%u in_tree=%llu",
                                       pool->free_count, pool->cached_count, pool->pinned_count,
                                       pool->page_count,
                                       (unsigned long long)core->scheduler.pages.radix.kept_count);
    effect_buf_log(&core->effects, LOG_LEVEL_ERROR, "pool_broken", "%s", dump);
    exit_now(core, EXIT_CODE_INVARIANT, dump);
}

/* False: there is nothing to send. */
static bool send_plan(struct core *core) {
    struct scheduler_wish wish = {
        .generation = core->roster.generation,
        .step = core->step + 1,
        .now_ns = core->now_ns,
        .ahead = core->commit.count > 0,
        .context = &core->reply_context,
    };
    core->scheduler.speculation.draft_len = roster_draft_len(&core->roster);
    const struct step_plan_buf *plan = scheduler_plan(&core->scheduler, &wish);
    if (!plan) return false;
    core->step++;
    core->pool_checked = false;
    commit_expect(&core->commit, plan, core->now_ns);
    struct control_message *message = effect_buf_message(&core->effects, CONTROL_STEP_PLAN);
    message->step_plan = plan->plan;
    roster_broadcast(&core->roster, &core->effects, message);
    return true;
}

/* Have as many steps in flight as may be. */
static void send_plans(struct core *core) {
    uint32_t steps = core->options.overlap_steps ? COMMIT_STEPS_MAX : 1;
    if (core->commit.count == 0) resize_advance(&core->resize, core->now_ns);
    while (!resize_holds_plans(&core->resize) && core->commit.count < steps && send_plan(core))
        continue;
}

/* When the request that has waited longest will have waited too long. */
static int64_t queue_due_ns(const struct core *core) {
    uint32_t first = core->requests.arrivals.first;
    if (core->options.queue_timeout_ms == 0 || first == REQUEST_NONE) return NEVER;
    return core->requests.request[first].arrival_ns +
           core->options.queue_timeout_ms * EVENT_NS_PER_MS;
}

static void end_overdue(struct core *core) {
    const char *text = NULL;
    while (queue_due_ns(core) <= core->now_ns) {
        if (!text) {
            text = effect_buf_text(&core->effects,
                                   "the server is busy: the call has waited for %u ms "
                                   "(--queue-timeout)",
                                   core->options.queue_timeout_ms);
        }
        struct request *request = request_first(&core->requests, &core->requests.arrivals);
        end_request(core, request, STATUS_RESOURCE_EXHAUSTED, FINISH_ERROR, text);
    }
}

/* What a rank's memory cannot hold, and what would make it fit. */
static void refuse_short_pool(struct core *core, const struct roster_memory *memory) {
    const struct core_options *options = &core->options;
    unsigned long long pool_tok = (unsigned long long)memory->page_count * options->page_tok;
    char fraction[64] = "";
    if (memory->fraction_needed > 0)
        snprintf(fraction, sizeof fraction, "--mem-fraction-static %.3f, ",
                 (double)memory->fraction_needed / FRACTION_ONE);
    const char *text = effect_buf_text(
        &core->effects,
        "rank %u has memory for %llu tokens, which holds no request of --context-length %u; "
        "accepted: %s--context-length %llu or less, more --device-memory, or --allow-short-pool",
        memory->rank, pool_tok, options->context_len, fraction, pool_tok);
    effect_buf_log(&core->effects, LOG_LEVEL_ERROR, "pool_short", "reason=\"%s\"", text);
    exit_now(core, EXIT_CODE_CONFIG, text);
}

/* Requests that were let in while the pool was thought larger. */
static void end_too_long(struct core *core) {
    uint64_t pool_tok = (uint64_t)core->options.page_count * core->options.page_tok;
    struct request_table *requests = &core->requests;
    for (uint32_t slot = pool_next_used(&requests->pool, 0); slot != POOL_NO_SLOT;
         slot = pool_next_used(&requests->pool, slot + 1)) {
        struct request *request = &requests->request[slot];
        if (request->tok_limit <= pool_tok) continue;
        end_request(core, request, STATUS_OUT_OF_RANGE, FINISH_ERROR,
                    effect_buf_text(&core->effects,
                                    "prompt and reply need up to %u tokens; the pool, which a "
                                    "rank's memory has made smaller, holds %llu",
                                    request->tok_limit, (unsigned long long)pool_tok));
    }
}

/* The rank with the least memory rules. Between generations no page is in use. */
static void settle_pool(struct core *core) {
    struct roster_memory memory;
    struct core_options *options = &core->options;
    if (!roster_memory(&core->roster, &memory)) return;
    if (memory.page_count >= options->page_count) return;
    uint64_t pool_tok = (uint64_t)memory.page_count * options->page_tok;
    if (pool_tok < options->context_len && !options->allow_short_pool) {
        refuse_short_pool(core, &memory);
        return;
    }
    effect_buf_log(&core->effects, LOG_LEVEL_INFO, "pool_settled",
                   "rank=%u tokens=%llu at_most_tokens=%llu", memory.rank,
                   (unsigned long long)pool_tok,
                   (unsigned long long)options->page_count * options->page_tok);
    token_pool_resize(&core->scheduler.pages.pool, memory.page_count);
    options->page_count = memory.page_count;
    end_too_long(core);
}

static void advance(struct core *core) {
    if (core->exited) return;
    if (core->draining) {
        bool empty = core->requests.pool.used_count == 0;
        if (empty || core->drain_deadline_ns <= core->now_ns) {
            exit_now(core, EXIT_CODE_OK, empty ? "drained" : "cut by the deadline of the drain");
            return;
        }
    }
    end_overdue(core);
    settle_pool(core);
    if (core->exited) return;
    roster_gather(&core->roster, &core->effects, core->now_ns);
    if (!roster_is_serving(&core->roster)) return;
    scheduler_admit(&core->scheduler); /* at once, so that a burst fills slots before the queue */
    send_plans(core);
    check_pool(core);
}

/* Ask for a tick where none that was asked for comes early enough. One that comes too early does no
 * harm: it finds nothing due and asks again. */
static void arm_timer(struct core *core) {
    if (core->exited) return;
    struct roster_step step;
    int64_t due_ns = roster_due_ns(&core->roster, overview_step(&core->overview, &step));
    if (core->drain_deadline_ns < due_ns) due_ns = core->drain_deadline_ns;
    if (queue_due_ns(core) < due_ns) due_ns = queue_due_ns(core);
    int64_t resize_ns = roll_call_due_ns(&core->resize.roll);
    int64_t examine_ns = roll_call_due_ns(&core->examine.roll);
    if (resize_ns < due_ns) due_ns = resize_ns;
    if (examine_ns < due_ns) due_ns = examine_ns;
    if (due_ns >= core->timer_ns) return;
    core->timer_ns = due_ns;
    effect_buf_timer(&core->effects, due_ns);
}

uint64_t core_free_bytes(const struct core *core) {
    return roster_free_bytes(&core->roster);
}

struct snapshot core_snapshot(struct core *core, int64_t now_ns) {
    return overview_snapshot(&core->overview, now_ns);
}

struct health_reply core_health(struct core *core, const char *service, int64_t now_ns) {
    return overview_health(&core->overview, service, now_ns);
}

bool core_in_trouble(struct core *core, int64_t now_ns) {
    return overview_in_trouble(&core->overview, now_ns);
}

struct core_capacity core_capacity(const struct core *core) {
    return (struct core_capacity){
        .generation = roster_is_serving(&core->roster) ? core->roster.generation : 0,
        .pool_tok = core->options.page_count * core->options.page_tok,
        .max_running_requests = core->options.max_running_requests,
    };
}

struct core_times core_times(const struct core *core) {
    const struct request_times *times = &core->requests.times;
    return (struct core_times){
        .step = &core->commit.step_times,
        .queue = &times->queue,
        .first_token = &times->first_token,
        .inter_token = &times->inter_token,
        .total = &times->total,
    };
}

void core_check(const struct core *core) {
    roster_check(&core->roster);
    request_table_check(&core->requests);
    scheduler_check(&core->scheduler);
    bool serving = roster_is_serving(&core->roster);
    CHECK(serving || (core->commit.count == 0 && core->requests.running.count == 0));
    CHECK(!core->exited || core->requests.pool.used_count == 0);
    CHECK(core->scheduler.pages.pool.page_count == core->options.page_count);
    CHECK(serving || core->resize.state == RESIZE_STATE_IDLE);
    CHECK(core->resize.state != RESIZE_STATE_IDLE || !core->resize.has_call);
    CHECK(core->resize.roll.is_open ==
          (core->resize.state != RESIZE_STATE_IDLE && core->resize.state != RESIZE_STATE_HOLDING));
    CHECK(serving || !core->examine.roll.is_open);
    CHECK(core->examine.roll.is_open || !core->examine.has_call);
    const struct request_table *requests = &core->requests;
    uint32_t in_steps = 0, planned = 0;
    for (uint32_t slot = requests->running.first; slot != REQUEST_NONE;
         slot = requests->request[slot].next) {
        const struct request *request = &requests->request[slot];
        CHECK(request->state != REQUEST_LEAVING || request->in_steps > 0);
        in_steps += request->in_steps;
    }
    for (uint32_t i = 0; i < core->commit.count; i++) {
        uint32_t at = (core->commit.first + i) % COMMIT_STEPS_MAX;
        planned += core->commit.step[at].plan->plan.sequence_count;
    }
    CHECK(in_steps == planned);
}
