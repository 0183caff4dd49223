#include "core_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "text/vocab.h"

/* Memory asked for while this is set is a failure (the linker sends the core's calls here). */
static bool in_core_step;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __wrap_free(void *memory);

void *__wrap_malloc(size_t bytes) {
    CHECK(!in_core_step);
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes) {
    CHECK(!in_core_step);
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes) {
    CHECK(!in_core_step);
    return __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    CHECK(!in_core_step);
    return __real_aligned_alloc(alignment, bytes);
}

void __wrap_free(void *memory) {
    CHECK(!in_core_step);
    __real_free(memory);
}

static void put_base64(FILE *file, const char *text, size_t bytes, unsigned rank) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < bytes; i += 3) {
        unsigned bits = 0;
        for (size_t j = 0; j < 3; j++)
            bits = bits << 8 | (i + j < bytes ? (unsigned char)text[i + j] : 0);
        for (size_t j = 0; j < 4; j++)
            fputc(i + j > bytes ? '=' : digit[bits >> (18 - 6 * j) & 63], file);
    }
    fprintf(file, " %u\n", rank);
}

static FILE *open_file(const char *path) {
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    return file;
}

/* The vocabulary of the enum, through its own files. Loaded once. */
static const struct vocab *test_vocab(void) {
    static struct vocab *vocab;
    if (vocab) return vocab;
    char folder[] = "/tmp/espalier-core-XXXXXX", model[64], config[64];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(model, sizeof model, "%s/model", folder);
    snprintf(config, sizeof config, "%s/config", folder);
    FILE *file = open_file(model);
    for (unsigned byte = 0; byte < 256; byte++)
        put_base64(file, &(char){(char)byte}, 1, byte);
    put_base64(file, "the ", 4, WORLD_THE);
    put_base64(file, "ab", 2, WORLD_AB);
    put_base64(file, "END", 3, WORLD_STOP_WORD);
    fclose(file);
    file = open_file(config);
    const struct {
        unsigned id;
        const char *name;
        bool special;
    } added[] = {{WORLD_EOS, "[EOS]", true},
                 {WORLD_THINK, "<think>", false},
                 {WORLD_THINK_END, "</think>", false},
                 {WORLD_TOOLS, "<|tool_calls_section_begin|>", false},
                 {WORLD_TOOLS_END, "<|tool_calls_section_end|>", false},
                 {WORLD_HIDDEN, "<|hidden|>", true}};
    fprintf(file, "{\"added_tokens_decoder\": {");
    for (size_t i = 0; i < sizeof added / sizeof added[0]; i++)
        fprintf(file, "%s\"%u\": {\"content\": \"%s\", \"special\": %s}", i ? ", " : "",
                added[i].id, added[i].name, added[i].special ? "true" : "false");
    fprintf(file, "}}");
    fclose(file);
    struct error err;
    if (vocab_load(model, config, &vocab, &err) != STATUS_OK) fail_msg("%s", err.text);
    unlink(model);
    unlink(config);
    rmdir(folder);
    return vocab;
}

void world_init(struct world *world) {
    static const uint32_t choice[] = {
        'a',      'b', 'c', 'd', 'e', ' ', 'E', 'N', 'D', '.', WORLD_THE, WORLD_AB, WORLD_STOP_WORD,
        WORLD_EOS};
    fake_choice = choice;
    fake_choice_count = sizeof choice / sizeof choice[0];
    memset(world, 0, sizeof *world);
    world->now_ns = 1000 * WORLD_MS;
    world->spec = (struct model_spec){
        .model_type = "fake",
        .vocab = WORLD_VOCAB,
        .stop_token = {WORLD_EOS},
        .stop_token_count = 1,
    };
    world->options = (struct core_options){
        .vocab = test_vocab(),
        .model_fingerprint = WORLD_FINGERPRINT,
        .boot_id = 9,
        .pid = 1,
        .process_start = 2,
        .tp = 1,
        .context_len = 96,
        .page_tok = 4,
        .page_count = 48,
        .max_running_requests = 8,
        .max_queued_requests = 8,
        .chunked_prefill_size = 16,
        .speculative_tree_rows = 16,
        .heartbeat_ms = 100,
        .step_timeout_ms = 1000,
        .load_timeout_ms = 1000,
        .rejoin_timeout_ms = 5000,
    };
}

void world_start(struct world *world) {
    world->options.spec = &world->spec;
    struct error err;
    if (core_create(&world->options, &world->core, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void expect_no_complaint(const struct world *world) {
    for (uint32_t rank = 0; rank < world->options.tp; rank++)
        if (world->worker[rank].complaint[0] != '\0')
            fail_msg("rank %u: %s", rank, world->worker[rank].complaint);
}

void world_stop(struct world *world) {
    expect_no_complaint(world);
    core_destroy(&world->core);
}

static struct world_call *call_of(struct world *world, struct pool_id id) {
    assert_in_range(id.slot, 0, world->call_count - 1);
    struct world_call *call = &world->call[id.slot];
    assert_int_equal(call->id.generation, id.generation);
    assert_false(call->ended); /* no data after the end, and one end */
    return call;
}

static void take_delta(struct world *world, struct pool_id id, const struct generate_delta *delta) {
    struct world_call *call = call_of(world, id);
    assert_true(delta->token_count > 0 || delta->text.size > 0);
    assert_true(call->token_count + delta->token_count <= WORLD_TOKENS);
    assert_in_range(delta->choice, 0, WORLD_CHOICES - 1);
    assert_int_equal(call->choice[delta->choice].finish, FINISH_NONE);
    call->choice[delta->choice].finish = delta->finish_reason;
    for (uint32_t i = 0; i < delta->token_count; i++) {
        uint32_t at = call->choice[delta->choice].token_count++;
        call->token[call->token_count++] = delta->token[i];
        call->choice[delta->choice].token[at] = delta->token[i];
    }
    for (uint32_t i = 0; i < delta->logprob_count; i++)
        if (call->logprob_count < WORLD_TOKENS)
            call->logprob[call->logprob_count++] = delta->logprob[i];
    size_t *bytes = &call->text_bytes[delta->channel];
    assert_true(*bytes + delta->text.size < WORLD_TEXT);
    if (delta->text.size > 0)
        memcpy(call->text[delta->channel] + *bytes, delta->text.data, delta->text.size);
    *bytes += delta->text.size;
    call->deltas++;
}

static void take_end(struct world *world, const struct effect *effect) {
    if (effect->call_end.call.slot == WORLD_RESIZE_SLOT) {
        assert_false(world->resize.ended);
        world->resize.ended = true;
        world->resize.status = effect->call_end.status;
        snprintf(world->resize.text, sizeof world->resize.text, "%s", effect->call_end.text);
        return;
    }
    if (effect->call_end.call.slot == WORLD_EXAMINE_SLOT) {
        assert_false(world->examine.ended);
        world->examine.ended = true;
        world->examine.status = effect->call_end.status;
        snprintf(world->examine.text, sizeof world->examine.text, "%s", effect->call_end.text);
        return;
    }
    struct world_call *call = call_of(world, effect->call_end.call);
    call->ended = true;
    call->status = effect->call_end.status;
    snprintf(call->status_text, sizeof call->status_text, "%s", effect->call_end.text);
    call->has_summary = effect->call_end.summary != NULL;
    if (call->has_summary) call->summary = *effect->call_end.summary;
}

static void take_report(struct world *world, const struct effect *effect) {
    const struct examine_report *report = &effect->examined.report;
    struct world_examine *examine = &world->examine;
    assert_int_equal(effect->examined.call.slot, WORLD_EXAMINE_SLOT);
    assert_false(examine->ended);
    assert_true(report->rank < world->options.tp && report->hash_count <= WORLD_HASHES);
    examine->reports |= 1u << report->rank;
    examine->page_count = report->page_count;
    examine->rows = (uint32_t)report->attention_bytes;
    if (report->hash_count > 0)
        memcpy(examine->hash[report->rank], report->hash,
               report->hash_count * sizeof *report->hash);
}

static struct fake_worker *worker_of(struct world *world, struct worker_id id) {
    for (uint32_t rank = 0; rank < FAKE_RANKS; rank++)
        if (world->worker[rank].id.value == id.value) return &world->worker[rank];
    return world->stranger.id.value == id.value ? &world->stranger : NULL;
}

static void mix(struct world *world, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        world->effect_hash = (world->effect_hash ^ at[i]) * UINT64_C(0x100000001b3);
}

static void mix_plan(struct world *world, const struct step_plan *plan) {
    mix(world, &plan->step, sizeof plan->step);
    mix(world, plan->token, plan->row_count * sizeof *plan->token);
    for (uint32_t i = 0; i < plan->sequence_count; i++) { /* by field: padding has no value */
        const struct plan_sequence *sequence = &plan->sequence[i];
        mix(world, &sequence->slot, sizeof sequence->slot);
        mix(world, &sequence->row_count, sizeof sequence->row_count);
        mix(world, &sequence->prefix_hash, sizeof sequence->prefix_hash);
        mix(world, &sequence->page_base, sizeof sequence->page_base);
        mix(world, &sequence->want, sizeof sequence->want);
        mix(world, &sequence->seed, sizeof sequence->seed);
    }
    mix(world, plan->extent, plan->extent_count * sizeof *plan->extent);
    mix(world, plan->copy, plan->copy_count * sizeof *plan->copy);
    mix(world, plan->release, plan->release_count * sizeof *plan->release);
}

static void carry_out(struct world *world, const struct effect *effect) {
    struct fake_worker *worker;
    mix(world, &effect->type, sizeof effect->type);
    switch (effect->type) {
    case EFFECT_SEND_WORKER:
        mix(world, &effect->send_worker.message->type, sizeof(enum control_message_type));
        if (effect->send_worker.message->type == CONTROL_STEP_PLAN)
            mix_plan(world, &effect->send_worker.message->step_plan);
        worker = worker_of(world, effect->send_worker.worker);
        if (worker) fake_worker_take(worker, effect->send_worker.message);
        break;
    case EFFECT_DROP_WORKER:
        world->dropped_count++;
        world->dropped = effect->drop_worker.worker;
        worker = worker_of(world, effect->drop_worker.worker);
        if (worker) worker->id = (struct worker_id){0};
        break;
    case EFFECT_CALL_DATA:
        mix(world, effect->call_data.delta.text.data, effect->call_data.delta.text.size);
        take_delta(world, effect->call_data.call, &effect->call_data.delta);
        break;
    case EFFECT_CALL_END:
        mix(world, effect->call_end.text, strlen(effect->call_end.text));
        take_end(world, effect);
        break;
    case EFFECT_JOB_TOKENIZE: {
        struct world_call *call = &world->call[world->call_count - 1];
        call->job_pending = true;
        call->job = effect->job.job;
        call->job_kind = effect->job.kind;
        break;
    }
    case EFFECT_TIMER: world->timer_ns = effect->timer.at_ns; break;
    case EFFECT_LOG: {
        size_t used = strlen(world->log);
        mix(world, effect->log.text, strlen(effect->log.text));
        snprintf(world->log + used, sizeof world->log - used, "%s %s\n", effect->log.event,
                 effect->log.text);
        break;
    }
    case EFFECT_RESIZE:
        assert_int_equal(effect->resize.call.slot, WORLD_RESIZE_SLOT);
        assert_false(world->resize.ended);
        world->resize.progress = effect->resize.progress;
        world->resize.phases |= 1u << effect->resize.progress.phase;
        break;
    case EFFECT_EXAMINED: take_report(world, effect); break;
    case EFFECT_EXIT:
        assert_false(world->exited);
        world->exited = true;
        world->exit_code = effect->exit.code;
        snprintf(world->exit_text, sizeof world->exit_text, "%s", effect->exit.text);
        break;
    }
}

void world_step(struct world *world, struct event event) {
    event.now_ns = world->now_ns;
    world->log[0] = '\0';
    in_core_step = true;
    struct effects effects = core_step(world->core, &event);
    in_core_step = false;
    if (world->lent) memset(world->lent, 0xA5, world->lent_bytes);
    world->lent = NULL;
    for (uint32_t i = 0; i < effects.count; i++)
        carry_out(world, &effects.effect[i]);
    core_check(world->core);
}

void world_tick(struct world *world, int64_t advance_ns) {
    while (advance_ns > 1000 * WORLD_MS) {
        world->now_ns += 1000 * WORLD_MS;
        advance_ns -= 1000 * WORLD_MS;
        world_step(world, (struct event){.type = EVENT_TICK});
    }
    world->now_ns += advance_ns;
    world_step(world, (struct event){.type = EVENT_TICK});
}

void world_launch(struct world *world, uint32_t rank) {
    struct worker_id id = {.value = ++world->worker_ids};
    fake_worker_init(&world->worker[rank], rank, world->options.tp, id);
    world->worker[rank].draft_len = world->draft_len[rank];
    world->worker[rank].draft_luck = world->draft_luck;
    fake_worker_hello(&world->worker[rank], WORLD_FINGERPRINT);
}

void world_kill(struct world *world, uint32_t rank) {
    struct worker_id id = world->worker[rank].id;
    expect_no_complaint(world);
    fake_worker_init(&world->worker[rank], rank, world->options.tp, (struct worker_id){0});
    struct event event = {.type = EVENT_WORKER_LOST};
    event.worker.worker = id;
    world_step(world, event);
}

/* The reply's own copies: the step may make the worker answer into the same ring. */
static struct worker_message message_of(struct fake_reply *reply) {
    struct worker_message message = reply->message;
    if (message.type == WORKER_STEP_RESULT) {
        message.step_result.sequence = reply->sequence;
        message.step_result.token = reply->token;
        message.step_result.logprob = reply->logprob;
        message.step_result.draft_lse = reply->draft_lse;
        message.step_result.candidate = reply->candidate;
    }
    if (message.type == WORKER_GROUP_KEY) message.group_key.key.data = reply->key;
    return message;
}

static void send_as(struct world *world, struct worker_id id,
                    const struct worker_message *message) {
    struct event event = {.type = EVENT_WORKER_MESSAGE};
    event.worker.worker = id;
    event.worker.message = message;
    world_step(world, event);
}

static bool deliver_from(struct world *world, struct fake_worker *worker) {
    struct worker_id id = worker->id;
    const struct fake_reply *reply = fake_worker_pop(worker);
    if (!reply) return false;
    struct fake_reply copy = *reply;
    struct worker_message message = message_of(&copy);
    world->lent = &copy;
    world->lent_bytes = sizeof copy;
    send_as(world, id, &message);
    return true;
}

void world_message(struct world *world, uint32_t rank, const struct worker_message *message) {
    send_as(world, world->worker[rank].id, message);
}

struct worker_message *world_take_answer(struct world *world, uint32_t rank) {
    const struct fake_reply *reply = fake_worker_pop(&world->worker[rank]);
    if (!reply) return NULL;
    struct fake_reply *own = &world->worker[rank].reply[reply - world->worker[rank].reply];
    own->message = message_of(own);
    return &own->message;
}

bool world_deliver(struct world *world, uint32_t rank) {
    return deliver_from(world, &world->worker[rank]);
}

void world_settle(struct world *world) {
    bool busy = true;
    for (uint32_t round = 0; busy; round++) {
        assert_true(round < 10000);
        busy = deliver_from(world, &world->stranger);
        for (uint32_t rank = 0; rank < world->options.tp; rank++)
            busy = world_deliver(world, rank) || busy;
    }
    expect_no_complaint(world);
}

void world_recover(struct world *world) {
    world_settle(world);
    world_tick(world, world->options.heartbeat_ms * WORLD_MS);
    world_settle(world);
}

void world_serve(struct world *world) {
    for (uint32_t rank = 0; rank < world->options.tp; rank++)
        world_launch(world, rank);
    world_settle(world);
    assert_int_equal(core_health(world->core, "", world->now_ns).health, HEALTH_SERVING);
}

struct generate_request world_request(const uint32_t *prompt, uint32_t count, uint32_t max_tokens) {
    return (struct generate_request){
        .prompt_kind = PROMPT_TOKENS,
        .prompt_token = prompt,
        .prompt_token_count = count,
        .max_tokens = max_tokens,
        .sampling = {.top_p = 1.0f},
    };
}

struct world_call *world_call(struct world *world, const struct generate_request *request) {
    assert_true(world->call_count < WORLD_CALLS);
    uint32_t slot = world->call_count++;
    struct world_call *call = &world->call[slot];
    *call = (struct world_call){.used = true, .id = {.slot = slot, .generation = 2 * slot + 1}};
    static struct {
        struct generate_request request;
        uint32_t token[16384];
    } lent;
    assert_true(request->prompt_token_count <= sizeof lent.token / sizeof lent.token[0]);
    lent.request = *request;
    lent.request.prompt_token = lent.token;
    if (request->prompt_token_count > 0)
        memcpy(lent.token, request->prompt_token, request->prompt_token_count * sizeof(uint32_t));
    world->lent = &lent;
    world->lent_bytes = sizeof lent.request + request->prompt_token_count * sizeof(uint32_t);
    struct event event = {.type = EVENT_CALL};
    event.call.call = call->id;
    event.call.request = &lent.request;
    event.call.random = 1234 + slot;
    event.call.tenant = world->next_tenant;
    event.call.idempotency_key = world->next_key;
    event.call.priority = world->next_priority;
    world_step(world, event);
    return call;
}

void world_cancel(struct world *world, struct world_call *call, enum status reason) {
    struct event event = {.type = EVENT_CANCEL};
    event.cancel.call = call->id;
    event.cancel.reason = reason;
    world_step(world, event);
}

void world_job_done(struct world *world, struct world_call *call, const uint32_t *token,
                    uint32_t count, bool in_reasoning) {
    struct event event = {.type = EVENT_JOB_DONE};
    event.job_done.job = call->job;
    event.job_done.status = STATUS_OK;
    event.job_done.text = "";
    event.job_done.token = token;
    event.job_done.token_count = count;
    event.job_done.in_reasoning = in_reasoning;
    call->job_pending = false;
    world_step(world, event);
}

void world_examine(struct world *world, const uint32_t *token, uint32_t token_count,
                   uint32_t rows) {
    struct event event = {.type = EVENT_EXAMINE};
    event.examine.call.slot = WORLD_EXAMINE_SLOT;
    event.examine.token = token;
    event.examine.token_count = token_count;
    event.examine.rows = rows;
    world->examine = (struct world_examine){.ended = false};
    world_step(world, event);
}

void world_resize(struct world *world, uint32_t tokens, uint32_t running, bool force) {
    struct event event = {.type = EVENT_RESIZE};
    event.resize.call.slot = WORLD_RESIZE_SLOT;
    event.resize.request = (struct resize_request){
        .tokens = tokens, .max_running_requests = running, .force = force};
    world->resize = (struct world_resize){.ended = false};
    world_step(world, event);
}

void world_resize_by_memory(struct world *world, uint32_t mem_fraction) {
    struct event event = {.type = EVENT_RESIZE};
    event.resize.call.slot = WORLD_RESIZE_SLOT;
    event.resize.request = (struct resize_request){.mem_fraction = mem_fraction};
    world->resize = (struct world_resize){.ended = false};
    world_step(world, event);
}

void world_drain(struct world *world, int64_t deadline_ns) {
    struct event event = {.type = EVENT_DRAIN};
    event.drain.deadline_ns = deadline_ns;
    world_step(world, event);
}

struct stream {
    uint32_t token[WORLD_TOKENS];
    uint32_t count;
    char text[WORLD_TEXT]; /* all of it, as if no stop string were held */
    bool stopped;
};

static const char *text_of(uint32_t token) {
    static char one[2];
    switch (token) {
    case WORLD_THE: return "the ";
    case WORLD_AB: return "ab";
    case WORLD_STOP_WORD: return "END";
    case WORLD_EOS: return "";
    default: one[0] = (char)token; return one;
    }
}

/* Cut the text where the first stop string ends it. False: there is none. */
static bool cut_at_stop(const struct generate_request *request, char *text) {
    const char *end = NULL;
    size_t length = 0;
    for (uint32_t i = 0; i < request->stop_count; i++) {
        const char *found = strstr(text, request->stop[i]);
        if (!found) continue;
        size_t bytes = strlen(request->stop[i]);
        if (end && found + bytes > end) continue;
        if (end && found + bytes == end && bytes <= length) continue;
        end = found + bytes;
        length = bytes;
    }
    if (!end) return false;
    text[(size_t)(end - text) - (request->include_stop ? 0 : length)] = '\0';
    return true;
}

static bool is_stop(const struct generate_request *request, uint32_t token) {
    if (request->ignore_eos) return false;
    for (uint32_t i = 0; i < request->stop_token_count; i++)
        if (request->stop_token[i] == token) return true;
    return token == WORLD_EOS;
}

/* What a request alone gives, from the prompt and the rules, without the core. */
static void expect_alone(const struct world *world, const struct generate_request *request,
                         uint64_t seed, struct stream *stream) {
    uint32_t all[WORLD_TOKENS], count = request->prompt_token_count;
    uint32_t limit = world->options.context_len;
    uint32_t pool_tok = world->options.page_count * world->options.page_tok;
    if (request->max_tokens && (uint64_t)count + request->max_tokens < limit)
        limit = count + request->max_tokens;
    if (limit > pool_tok) limit = pool_tok;
    memcpy(all, request->prompt_token, count * sizeof *all);
    memset(stream, 0, sizeof *stream);
    while (count < limit && !stream->stopped) {
        uint32_t token = fake_draw(all, count, request->sampling.temperature, seed);
        stream->token[stream->count++] = token;
        all[count++] = token;
        stream->stopped = is_stop(request, token);
        if (stream->stopped) return;
        size_t bytes = strlen(stream->text);
        snprintf(stream->text + bytes, sizeof stream->text - bytes, "%s", text_of(token));
        stream->stopped = cut_at_stop(request, stream->text);
    }
}

void world_expect_stream(const struct world *world, const struct world_call *call,
                         const struct generate_request *request) {
    static struct stream stream;
    uint64_t seed = request->sampling.has_seed ? request->sampling.seed : 1234 + call->id.slot;
    expect_alone(world, request, seed, &stream);
    assert_true(call->ended);
    assert_in_range(call->token_count, 0, stream.count);
    assert_memory_equal(call->token, stream.token, call->token_count * sizeof *call->token);
    size_t bytes = call->text_bytes[CHANNEL_CONTENT];
    assert_in_range(bytes, 0, strlen(stream.text));
    assert_memory_equal(call->text[CHANNEL_CONTENT], stream.text, bytes);
    if (call->status != STATUS_OK) return;
    assert_string_equal(call->status_text, "");
    assert_int_equal(call->token_count, stream.count);
    assert_int_equal(bytes, strlen(stream.text));
    assert_int_equal(call->summary.finish_reason, stream.stopped ? FINISH_STOP : FINISH_LENGTH);
    assert_int_equal(call->summary.completion_tokens, stream.count);
    assert_int_equal(call->summary.prompt_tokens, request->prompt_token_count);
    assert_int_equal(call->summary.seed, seed);
}

void world_expect_text(const struct world_call *call, enum channel channel, const char *text) {
    assert_int_equal(call->text_bytes[channel], strlen(text));
    assert_memory_equal(call->text[channel], text, strlen(text));
}

void world_expect_idle(struct world *world) {
    struct snapshot snapshot = core_snapshot(world->core, world->now_ns);
    assert_int_equal(snapshot.pages_free + snapshot.pages_cached, snapshot.pages_total);
    assert_int_equal(snapshot.requests_running, 0);
    assert_int_equal(snapshot.requests_waiting, 0);
}

uint64_t world_random(uint64_t *state) {
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}
