/* How much one core_step can want. An event reaches one handler, then time is looked at, then at
 * most two plans are sent:
 *
 *   sends    a handler answers one worker (WELCOME, REFUSE) or all (FORM_GROUP); the generation may
 *            end (to all), the process may exit (SHUTDOWN to all), two plans may go out (to all)
 *   drops    all ranks at worst, and a stranger
 *   deltas   a step gives running requests a token each, and what guesses were right
 *   ends     one a call, whoever holds it, a resize's, an examination's, and one refusal
 *   resizes  where a resize begins, and how far it is
 *   logs     a handler, the end of a generation, an exit and what they add: a handful
 */
#include "effect_buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "reply.h"
#include "step_plan.h"

#define MESSAGES_MAX 9u /* different ones; a broadcast is one */
#define SENDS_MAX    (6u * TP_MAX + 2u)
#define DROPS_MAX    (TP_MAX + 1u)
#define LOGS_MAX     (8u + 2u * TP_MAX)
#define TEXTS_MAX    (LOGS_MAX + 9u) /* of logs, refusals, ends, the exit, a key */
#define SINGLES      7u              /* job, timer, exit, three of a resize, a report */

static size_t aligned(size_t bytes) {
    return (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

static size_t ends_max(const struct core_options *options) {
    return (size_t)core_running_cap(options) + options->max_queued_requests + 3;
}

static size_t effects_max(const struct core_options *options) {
    return SENDS_MAX + DROPS_MAX + (size_t)step_plan_tokens_max(options) * REPLY_DELTAS_MAX +
           ends_max(options) + LOGS_MAX + SINGLES;
}

static size_t arena_bytes(const struct core_options *options) {
    return MESSAGES_MAX * aligned(sizeof(struct control_message)) +
           (size_t)step_plan_tokens_max(options) * REPLY_DELTAS_MAX *
               aligned(REPLY_DELTA_BYTES_MAX) +
           ends_max(options) * aligned(sizeof(struct generate_summary)) +
           TEXTS_MAX * aligned(EFFECT_BUF_TEXT_BYTES_MAX);
}

size_t effect_buf_memory(const struct core_options *options) {
    return aligned(effects_max(options) * sizeof(struct effect)) + aligned(arena_bytes(options));
}

void effect_buf_init(struct effect_buf *buf, const struct core_options *options,
                     struct arena *memory) {
    *buf = (struct effect_buf){.capacity = (uint32_t)effects_max(options)};
    buf->effect = arena_calloc(memory, buf->capacity, sizeof *buf->effect);
    void *arena_memory = arena_alloc(memory, arena_bytes(options));
    CHECK(buf->effect && arena_memory);
    arena_init_at(&buf->arena, arena_memory, arena_bytes(options));
}

void effect_buf_reset(struct effect_buf *buf) {
    buf->count = 0;
    arena_reset(&buf->arena);
}

static void *take(struct effect_buf *buf, size_t bytes) {
    void *memory = arena_alloc(&buf->arena, bytes);
    CHECK(memory != NULL);
    return memory;
}

static struct effect *push(struct effect_buf *buf, enum effect_type type) {
    CHECK(buf->count < buf->capacity);
    struct effect *effect = &buf->effect[buf->count++];
    *effect = (struct effect){.type = type};
    return effect;
}

struct control_message *effect_buf_message(struct effect_buf *buf, enum control_message_type type) {
    struct control_message *message = take(buf, sizeof *message);
    memset(message, 0, sizeof *message);
    message->type = type;
    return message;
}

void effect_buf_send(struct effect_buf *buf, struct worker_id worker,
                     const struct control_message *message) {
    struct effect *effect = push(buf, EFFECT_SEND_WORKER);
    effect->send_worker.worker = worker;
    effect->send_worker.message = message;
}

void effect_buf_drop(struct effect_buf *buf, struct worker_id worker) {
    push(buf, EFFECT_DROP_WORKER)->drop_worker.worker = worker;
}

char *effect_buf_delta_text(struct effect_buf *buf, size_t bytes) {
    CHECK(bytes <= REPLY_DELTA_BYTES_MAX);
    return take(buf, bytes);
}

/* Arrays that lie one behind the other are one. */
static bool is_behind(const void *last, size_t last_bytes, const void *next, size_t next_bytes) {
    return last_bytes == 0 || next_bytes == 0 || (const char *)last + last_bytes == next;
}

static bool goes_on(const struct generate_delta *last, const struct generate_delta *next) {
    return last->channel == next->channel && last->choice == next->choice &&
           last->finish_reason == FINISH_NONE &&
           is_behind(last->token, last->token_count * sizeof *last->token, next->token,
                     next->token_count * sizeof *next->token) &&
           is_behind(last->logprob, last->logprob_count * sizeof *last->logprob, next->logprob,
                     next->logprob_count * sizeof *next->logprob) &&
           is_behind(last->text.data, aligned(last->text.size), next->text.data, next->text.size);
}

/* The delta put in last, where this one goes on with it; NULL: it does not. */
static struct generate_delta *begun(struct effect_buf *buf, struct pool_id call,
                                    const struct generate_delta *delta) {
    if (buf->count == 0 || buf->effect[buf->count - 1].type != EFFECT_CALL_DATA) return NULL;
    struct effect *last = &buf->effect[buf->count - 1];
    bool is_same = pool_id_equal(last->call_data.call, call);
    return is_same && goes_on(&last->call_data.delta, delta) ? &last->call_data.delta : NULL;
}

/* The text moves up to what it goes on with, and the arena's end with it. */
static void append_text(struct effect_buf *buf, struct bytes *text, struct bytes more) {
    if (text->size == 0) {
        *text = more;
        return;
    }
    uint8_t *begin = (uint8_t *)text->data, *end = begin + text->size;
    arena_resize(&buf->arena, begin, (size_t)(more.data - begin) + more.size);
    memmove(end, more.data, more.size);
    text->size += more.size;
    arena_resize(&buf->arena, begin, text->size);
}

static void append_delta(struct effect_buf *buf, struct generate_delta *last,
                         const struct generate_delta *delta) {
    if (last->token_count == 0) last->token = delta->token;
    if (last->logprob_count == 0) last->logprob = delta->logprob;
    last->token_count += delta->token_count;
    last->logprob_count += delta->logprob_count;
    last->finish_reason = delta->finish_reason;
    if (delta->text.size > 0) append_text(buf, &last->text, delta->text);
}

void effect_buf_data(struct effect_buf *buf, struct pool_id call,
                     const struct generate_delta *delta) {
    struct generate_delta *last = begun(buf, call, delta);
    if (last) {
        append_delta(buf, last, delta);
        return;
    }
    struct effect *effect = push(buf, EFFECT_CALL_DATA);
    effect->call_data.call = call;
    effect->call_data.delta = *delta;
}

void effect_buf_end(struct effect_buf *buf, struct pool_id call, enum status status,
                    const char *text, const struct generate_summary *summary) {
    struct effect *effect = push(buf, EFFECT_CALL_END);
    effect->call_end.call = call;
    effect->call_end.status = status;
    effect->call_end.text = text;
    if (!summary) return;
    struct generate_summary *copy = take(buf, sizeof *copy);
    *copy = *summary;
    effect->call_end.summary = copy;
}

void effect_buf_job(struct effect_buf *buf, uint64_t job, enum prompt_kind kind,
                    struct bytes text) {
    struct effect *effect = push(buf, EFFECT_JOB_TOKENIZE);
    effect->job.job = job;
    effect->job.kind = kind;
    effect->job.text = text;
}

void effect_buf_timer(struct effect_buf *buf, int64_t at_ns) {
    push(buf, EFFECT_TIMER)->timer.at_ns = at_ns;
}

void effect_buf_resize(struct effect_buf *buf, struct pool_id call,
                       const struct resize_progress *progress) {
    struct effect *effect = push(buf, EFFECT_RESIZE);
    effect->resize.call = call;
    effect->resize.progress = *progress;
}

void effect_buf_examined(struct effect_buf *buf, struct pool_id call, uint32_t rank,
                         const struct examine_report *report) {
    struct effect *effect = push(buf, EFFECT_EXAMINED);
    effect->examined.call = call;
    effect->examined.report = *report;
    effect->examined.report.rank = rank;
}

void effect_buf_exit(struct effect_buf *buf, int code, const char *text) {
    struct effect *effect = push(buf, EFFECT_EXIT);
    effect->exit.code = code;
    effect->exit.text = text;
}

static const char *format_text(struct effect_buf *buf, const char *format, va_list arguments) {
    char *text = take(buf, EFFECT_BUF_TEXT_BYTES_MAX);
    vsnprintf(text, EFFECT_BUF_TEXT_BYTES_MAX, format, arguments);
    return text;
}

static void push_log(struct effect_buf *buf, int level, const char *event, const char *text) {
    struct effect *effect = push(buf, EFFECT_LOG);
    effect->log.level = level;
    effect->log.event = event;
    effect->log.text = text;
}

void effect_buf_log(struct effect_buf *buf, int level, const char *event, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    push_log(buf, level, event, format_text(buf, format, arguments));
    va_end(arguments);
}

void effect_buf_log_limited(struct effect_buf *buf, struct log_limit *limit, int64_t now_ns,
                            int level, const char *event, const char *format, ...) {
    uint64_t held_back;
    if (!log_limit_pass(limit, now_ns, &held_back)) return;
    va_list arguments;
    va_start(arguments, format);
    const char *text = format_text(buf, format, arguments);
    va_end(arguments);
    if (held_back > 0)
        text = effect_buf_text(buf, "%s held_back=%llu", text, (unsigned long long)held_back);
    push_log(buf, level, event, text);
}

const char *effect_buf_text(struct effect_buf *buf, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const char *text = format_text(buf, format, arguments);
    va_end(arguments);
    return text;
}

struct bytes effect_buf_copy(struct effect_buf *buf, struct bytes bytes) {
    CHECK(bytes.size <= EFFECT_BUF_TEXT_BYTES_MAX);
    uint8_t *data = take(buf, bytes.size);
    if (bytes.size > 0) memcpy(data, bytes.data, bytes.size);
    return (struct bytes){.data = data, .size = bytes.size};
}
