#include "sim_client.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "codec.h"
#include "sim_cluster.h"

#define STEPS_IN_FLIGHT_MAX 2 /* of the core */

struct sim_client_totals sim_client_totals;

static void finish(struct sim_cluster *cluster, struct sim_call *call, enum status status,
                   const char *text);
static void expect_ok(const struct sim_cluster *cluster, const struct sim_call *call,
                      const struct generate_summary *summary);
static void expect_choices(const struct sim_cluster *cluster, const struct sim_call *call,
                           const struct generate_summary *summary);
static void expect_excuse(const struct sim_cluster *cluster, const struct sim_call *call,
                          const char *text);
static bool has_twin(const struct sim_cluster *cluster, const struct sim_call *call);

static unsigned number(const struct sim_cluster *cluster, const struct sim_call *call) {
    return (unsigned)(call - cluster->client.call);
}

/* Call slots are used again as soon as they are free, as the rpc server does. */
static struct pool_id take_slot(struct sim_client *client) {
    uint32_t slot = 0;
    while (client->slot_generation[slot] % 2 == 1)
        slot++;
    return (struct pool_id){.slot = slot, .generation = ++client->slot_generation[slot]};
}

static uint64_t seed_of(const struct sim_call *call) {
    return call->request.sampling.has_seed ? call->request.sampling.seed : call->random;
}

static uint32_t pool_tok(const struct core_options *options) {
    return options->page_count * options->page_tok;
}

/* Prompt and reply end here at the latest; 0: the request can never be served. */
static uint32_t limit_of(const struct core_options *options, const struct sim_call *call) {
    uint32_t wanted = call->request.max_tokens, most = options->context_len;
    if (call->prompt_count >= most) return 0;
    uint32_t limit = wanted == 0 ? pool_tok(options) : call->prompt_count + wanted;
    if (wanted == 0 && call->prompt_count >= pool_tok(options)) return 0;
    if (limit > most) limit = most;
    return limit <= pool_tok(options) ? limit : 0;
}

struct bytes sim_client_encode(struct sim_cluster *cluster, const struct sim_call *call) {
    const struct header header = {
        .version = WIRE_VERSION,
        .kind = FRAME_CALL,
        .call_id = 1,
        .method = METHOD_GENERATE,
        .tenant = call->tenant,
        .idempotency_key = call->key,
        .priority = call->priority,
        .credits = 1,
    };
    struct arena *arena = &cluster->wire;
    arena_reset(arena);
    struct bytes head = codec_encode_header(&header, arena);
    struct bytes body = codec_encode_generate_request(&call->request, arena);
    uint32_t head_bytes = (uint32_t)head.size;
    size_t bytes = sizeof head_bytes + head.size + body.size;
    uint8_t *wire = arena_alloc(arena, bytes);
    CHECK(wire != NULL);
    memcpy(wire, &head_bytes, sizeof head_bytes);
    memcpy(wire + sizeof head_bytes, head.data, head.size);
    memcpy(wire + sizeof head_bytes + head.size, body.data, body.size);
    return (struct bytes){.data = wire, .size = bytes};
}

static enum status decode_call(struct sim_cluster *cluster, struct bytes wire,
                               struct header *header, struct generate_request *request,
                               struct error *err) {
    uint32_t head_bytes;
    memcpy(&head_bytes, wire.data, sizeof head_bytes);
    struct bytes head = {.data = wire.data + sizeof head_bytes, .size = head_bytes};
    struct bytes body = {.data = head.data + head.size,
                         .size = wire.size - sizeof head_bytes - head.size};
    arena_reset(&cluster->lent);
    enum status status = codec_decode_header(head, &cluster->lent, header, err);
    if (status != STATUS_OK) return status;
    return codec_decode_generate_request(body, &cluster->lent, request, err);
}

static void run_alone(const struct sim_cluster *cluster, struct sim_call *call, uint32_t choice) {
    const struct sim_model_wish wish = {.request = &call->request,
                                        .prompt = call->prompt,
                                        .prompt_count = call->prompt_count,
                                        .in_reasoning = call->in_reasoning,
                                        .seed = seed_of(call),
                                        .choice = choice,
                                        .tok_limit = limit_of(&cluster->options, call)};
    if (wish.tok_limit > 0 && !call->has_bad_token)
        sim_model_serial(&wish, &call->choice[choice].expected);
}

void sim_client_arrive(struct sim_cluster *cluster, uint32_t call_idx, struct bytes bytes) {
    struct sim_call *call = &cluster->client.call[call_idx];
    struct header header;
    struct generate_request request;
    struct error err;
    call->id = take_slot(&cluster->client);
    call->arrived = true;
    call->arrived_ns = cluster->now_ns + cluster->skew_ns;
    call->came_ns = cluster->now_ns;
    sim_client_totals.calls++;
    sim_cluster_say(
        cluster, "call %u: %u prompt tokens, max_tokens %u, %u choices, tenant \"%s\" key \"%s\"",
        call_idx, call->prompt_count, call->request.max_tokens, call->choice_count, call->tenant,
        call->key);
    if (decode_call(cluster, bytes, &header, &request, &err) != STATUS_OK) {
        if (!call->is_malformed) sim_cluster_fail(cluster, "a good call is refused: %s", err.text);
        sim_client_totals.refused_by_codec++;
        call->ended = true;
        cluster->client.slot_generation[call->id.slot]++;
        return;
    }
    if (call->is_malformed) sim_cluster_fail(cluster, "call %u is malformed and passes", call_idx);
    for (uint32_t i = 0; i < call->choice_count; i++)
        run_alone(cluster, call, i);
    struct event event = {.type = EVENT_CALL};
    event.call.call = call->id;
    event.call.request = &request;
    event.call.priority = header.priority;
    event.call.tenant = header.tenant;
    event.call.idempotency_key = header.idempotency_key;
    event.call.random = call->random;
    bool is_twin = has_twin(cluster, call), is_late = cluster->draining;
    cluster->client.arriving = call;
    sim_cluster_event(cluster, &event);
    cluster->client.arriving = NULL;
    if (is_twin && !call->ended) sim_cluster_fail(cluster, "call %u runs twice", call_idx);
    if (is_late && !call->ended)
        sim_cluster_fail(cluster, "call %u is accepted in a drain", call_idx);
}

void sim_client_cancel(struct sim_cluster *cluster, uint32_t call_idx, enum status reason) {
    struct sim_call *call = &cluster->client.call[call_idx];
    if (!call->arrived || (call->ended && !call->cancels_again)) return;
    bool live = !call->ended;
    sim_cluster_say(cluster, "call %u: cancelled, %s", call_idx, status_name(reason));
    call->cancelled = true;
    call->cancel_as = reason;
    struct event event = {.type = EVENT_CANCEL};
    event.cancel.call = call->id;
    event.cancel.reason = reason;
    sim_cluster_event(cluster, &event);
    if (!call->ended) sim_cluster_fail(cluster, "call %u is cancelled and goes on", call_idx);
    if (live && call->status != reason)
        sim_cluster_fail(cluster, "call %u: cancelled as %s, ended as %s", call_idx,
                         status_name(reason), status_name(call->status));
}

void sim_client_tokenize(struct sim_cluster *cluster, const struct effect *effect) {
    struct sim_call *call = cluster->client.arriving;
    bool right = call && call->request.prompt_kind == effect->job.kind &&
                 effect->job.text.size == call->prompt_count &&
                 memcmp(effect->job.text.data, call->text, call->prompt_count) == 0;
    if (!right) sim_cluster_fail(cluster, "a job for a text that nobody sent");
    struct sim_item item = {.kind = SIM_ITEM_JOB, .who = number(cluster, call)};
    item.value = effect->job.job;
    sim_cluster_put(cluster, sim_cluster_chance_us(cluster, 30000), item, (struct bytes){0});
}

void sim_client_job(struct sim_cluster *cluster, uint32_t call_idx, uint64_t job) {
    struct sim_call *call = &cluster->client.call[call_idx];
    struct event event = {.type = EVENT_JOB_DONE};
    event.job_done.job = job;
    event.job_done.status = call->job_fails ? STATUS_INTERNAL : STATUS_OK;
    event.job_done.text = call->job_fails ? "no memory for a tokenizer" : "";
    event.job_done.token = call->prompt;
    event.job_done.token_count = call->prompt_count;
    event.job_done.in_reasoning = call->in_reasoning;
    sim_cluster_event(cluster, &event);
}

static struct sim_call *call_of(struct sim_cluster *cluster, struct pool_id id) {
    struct sim_client *client = &cluster->client;
    for (uint32_t i = 0; i < client->call_count; i++) {
        struct sim_call *call = &client->call[i];
        if (!call->arrived || !pool_id_equal(call->id, id)) continue;
        if (call->ended) sim_cluster_fail(cluster, "call %u has ended, and there is more", i);
        return call;
    }
    sim_cluster_fail(cluster, "an effect for call %u/%u, which never was", id.slot, id.generation);
}

static void take_token(struct sim_cluster *cluster, struct sim_call *call,
                       struct sim_choice *choice, uint32_t token) {
    const struct sim_model_stream *expected = &choice->expected;
    uint32_t at = choice->token_count;
    if (at >= expected->count || expected->token[at] != token)
        sim_cluster_fail(cluster, "call %u, choice %u: token %u is %u; alone it is %u, of %u",
                         number(cluster, call), (unsigned)(choice - call->choice), at, token,
                         expected->token[at < expected->count ? at : 0], expected->count);
    choice->token[choice->token_count++] = token;
    call->token_count++;
    sim_client_totals.tokens++;
}

static void take_logprobs(struct sim_cluster *cluster, struct sim_call *call,
                          const struct generate_delta *delta) {
    uint32_t each = call->request.logprobs ? 1 + call->request.top_logprobs : 0;
    bool right = delta->logprob_count == each * delta->token_count;
    for (uint32_t i = 0; right && i < delta->logprob_count; i++) {
        struct token_logprob wanted = sim_model_logprob(delta->token[i / each], i % each);
        right = delta->logprob[i].token == wanted.token &&
                delta->logprob[i].logprob == wanted.logprob;
    }
    if (!right) sim_cluster_fail(cluster, "call %u: wrong logprobs", number(cluster, call));
}

/* A choice says that it ends once, with its last token, and only where there are several. */
static void take_finish(struct sim_cluster *cluster, const struct sim_call *call,
                        struct sim_choice *choice, enum finish_reason finish) {
    if (choice->finish != FINISH_NONE)
        sim_cluster_fail(cluster, "call %u: more of a choice that has ended",
                         number(cluster, call));
    bool is_last = call->choice_count > 1 && choice->token_count == choice->expected.count;
    if (finish != (is_last ? choice->expected.finish : FINISH_NONE))
        sim_cluster_fail(cluster, "call %u: finish %d after %u tokens of %u", number(cluster, call),
                         (int)finish, choice->token_count, choice->expected.count);
    choice->finish = finish;
}

static void take_delta(struct sim_cluster *cluster, struct sim_call *call,
                       const struct generate_delta *delta) {
    if (delta->channel >= SIM_MODEL_CHANNELS || delta->choice >= call->choice_count)
        sim_cluster_fail(cluster, "call %u: channel %d of choice %u", number(cluster, call),
                         delta->channel, delta->choice);
    struct sim_choice *choice = &call->choice[delta->choice];
    for (uint32_t i = 0; i < delta->token_count; i++)
        take_token(cluster, call, choice, delta->token[i]);
    sim_client_totals.joined += delta->token_count > 1;
    take_logprobs(cluster, call, delta);
    const char *wanted = choice->expected.text[delta->channel];
    size_t *bytes = &choice->got_bytes[delta->channel];
    bool right = *bytes + delta->text.size <= strlen(wanted) &&
                 (delta->text.size == 0 ||
                  memcmp(wanted + *bytes, delta->text.data, delta->text.size) == 0);
    if (!right)
        sim_cluster_fail(cluster, "call %u: text \"%.*s\" after %zu bytes of \"%s\"",
                         number(cluster, call), (int)delta->text.size, delta->text.data, *bytes,
                         wanted);
    *bytes += delta->text.size;
    take_finish(cluster, call, choice, delta->finish_reason);
}

void sim_client_data(struct sim_cluster *cluster, struct pool_id id,
                     const struct generate_delta *delta) {
    struct sim_call *call = call_of(cluster, id);
    struct generate_delta received;
    struct error err;
    arena_reset(&cluster->wire);
    struct bytes bytes = codec_encode_generate_delta(delta, &cluster->wire);
    if (codec_decode_generate_delta(bytes, &cluster->wire, &received, &err) != STATUS_OK)
        sim_cluster_fail(cluster, "a delta that no client can read: %s", err.text);
    take_delta(cluster, call, &received);
    if (cluster->canary == SIM_CANARY_DELTA && call->token_count >= 3)
        take_delta(cluster, call, &received);
    if (call->token_count >= call->cancel_at && !call->cancelled && !cluster->calm) {
        struct sim_item item = {.kind = SIM_ITEM_CANCEL, .who = number(cluster, call)};
        item.what = call->cancel_as;
        call->cancel_at = UINT32_MAX;
        sim_cluster_put(cluster, sim_cluster_chance_us(cluster, 20000), item, (struct bytes){0});
    }
}

void sim_client_end(struct sim_cluster *cluster, const struct effect *effect) {
    struct sim_call *call = call_of(cluster, effect->call_end.call);
    if (cluster->canary == SIM_CANARY_END && number(cluster, call) == 0) return;
    struct generate_summary summary = {0};
    if (effect->call_end.summary) {
        struct error err;
        arena_reset(&cluster->wire);
        struct bytes bytes = codec_encode_generate_summary(effect->call_end.summary,
                                                           &cluster->wire);
        if (codec_decode_generate_summary(bytes, &cluster->wire, &summary, &err) != STATUS_OK)
            sim_cluster_fail(cluster, "a summary that no client can read: %s", err.text);
    }
    finish(cluster, call, effect->call_end.status, effect->call_end.text);
    if (effect->call_end.summary) expect_choices(cluster, call, &summary);
    if (call->status != STATUS_OK) {
        expect_excuse(cluster, call, effect->call_end.text);
        return;
    }
    if (!effect->call_end.summary) sim_cluster_fail(cluster, "an OK without a summary");
    expect_ok(cluster, call, &summary);
    sim_examine_keep(cluster, call);
}

static void finish(struct sim_cluster *cluster, struct sim_call *call, enum status status,
                   const char *text) {
    sim_cluster_say(cluster, "call %u: ends %s after %u tokens: %s", number(cluster, call),
                    status_name(status), call->token_count, text);
    call->ended = true;
    call->ended_steps = core_snapshot(cluster->core, cluster->now_ns).steps;
    call->status = status;
    cluster->client.slot_generation[call->id.slot]++;
    sim_client_totals.ended[status]++;
}

/* How many tokens of the prompt another call's choice has, or will have, at its beginning: what was
 * computed may be in the cache also where its client was gone before it was sent. */
static uint32_t common_with(const struct sim_call *call, const struct sim_call *other,
                            const struct sim_choice *choice) {
    const struct sim_model_stream *stream = &choice->expected;
    uint32_t common = 0, end = other->prompt_count + stream->count;
    while (common < end && common + 1 < call->prompt_count) {
        uint32_t token = common < other->prompt_count ? other->prompt[common]
                                                      : stream->token[common - other->prompt_count];
        if (token != call->prompt[common]) break;
        common++;
    }
    return common;
}

/* Tokens of the prompt that may have come from the cache: its longest common prefix with what
 * anybody else of the same tenant had, and always less than all of it. */
static uint32_t cacheable(const struct sim_cluster *cluster, const struct sim_call *call) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < cluster->client.call_count; i++) {
        const struct sim_call *other = &cluster->client.call[i];
        bool is_gone = other->flushed_ns > 0 && other->flushed_ns < call->came_ns;
        if (other == call || !other->arrived || is_gone) continue;
        if (strcmp(other->tenant, call->tenant) != 0) continue;
        for (uint32_t choice = 0; choice < other->choice_count; choice++) {
            uint32_t common = common_with(call, other, &other->choice[choice]);
            if (common > most) most = common;
        }
    }
    return most;
}

/* The others begin with all of the prompt but its last token, whoever computed it. */
static void expect_choice(const struct sim_cluster *cluster, const struct sim_call *call,
                          const struct choice_summary *summary, uint32_t idx) {
    const struct sim_choice *choice = &call->choice[idx];
    bool joined = idx > 0 && choice->token_count > 0;
    bool right = summary->completion_tokens == choice->token_count &&
                 summary->freed_tokens <= call->prompt_count + choice->token_count &&
                 (choice->finish == FINISH_NONE || summary->finish_reason == choice->finish) &&
                 (!joined || summary->cached_tokens == call->prompt_count - 1);
    if (!right)
        sim_cluster_fail(cluster, "call %u, choice %u: a wrong summary (finish %d, %u cached)",
                         number(cluster, call), idx, (int)summary->finish_reason,
                         summary->cached_tokens);
}

static void expect_choices(const struct sim_cluster *cluster, const struct sim_call *call,
                           const struct generate_summary *summary) {
    uint32_t wanted = call->choice_count > 1 ? call->choice_count : 0, freed = 0;
    if (summary->choice_count != wanted)
        sim_cluster_fail(cluster, "call %u: a summary of %u choices", number(cluster, call),
                         summary->choice_count);
    for (uint32_t i = 0; i < wanted; i++) {
        expect_choice(cluster, call, &summary->choice[i], i);
        freed += summary->choice[i].freed_tokens;
    }
    /* What all share is freed once; each has the page begun by itself. */
    uint32_t most = call->prompt_count + call->token_count + wanted * cluster->options.page_tok;
    if (wanted > 0 && (summary->freed_tokens != freed || freed > most))
        sim_cluster_fail(cluster, "call %u: %u tokens freed, of its choices %u, at most %u",
                         number(cluster, call), summary->freed_tokens, freed, most);
}

static void expect_ok(const struct sim_cluster *cluster, const struct sim_call *call,
                      const struct generate_summary *summary) {
    unsigned at = number(cluster, call);
    for (uint32_t i = 0; i < call->choice_count; i++) {
        const struct sim_choice *choice = &call->choice[i];
        const struct sim_model_stream *expected = &choice->expected;
        if (choice->token_count != expected->count)
            sim_cluster_fail(cluster, "call %u ends OK with %u tokens of %u", at,
                             choice->token_count, expected->count);
        for (uint32_t channel = 0; channel < SIM_MODEL_CHANNELS; channel++)
            if (choice->got_bytes[channel] != strlen(expected->text[channel]))
                sim_cluster_fail(cluster, "call %u ends OK and lacks text", at);
    }
    if (summary->finish_reason != call->choice[0].expected.finish ||
        summary->seed != seed_of(call) || summary->prompt_tokens != call->prompt_count ||
        summary->completion_tokens != call->token_count ||
        summary->cached_tokens > cacheable(cluster, call))
        sim_cluster_fail(cluster, "call %u: a wrong summary (finish %d, %u cached)", at,
                         (int)summary->finish_reason, summary->cached_tokens);
}

static bool is_overdue(const struct sim_cluster *cluster, const struct sim_call *call) {
    int64_t waited_ns = cluster->now_ns + cluster->skew_ns - call->arrived_ns;
    uint32_t most_ms = cluster->options.queue_timeout_ms;
    return most_ms > 0 && waited_ns >= most_ms * SIM_MS;
}

/* A live call of the same tenant with the same key. */
static bool has_twin(const struct sim_cluster *cluster, const struct sim_call *call) {
    for (uint32_t i = 0; i < cluster->client.call_count; i++) {
        const struct sim_call *other = &cluster->client.call[i];
        if (other != call && other->arrived && !other->ended && call->key[0] != '\0' &&
            strcmp(other->tenant, call->tenant) == 0 && strcmp(other->key, call->key) == 0)
            return true;
    }
    return false;
}

/* An end that is not OK needs a reason in what happened. */
static void expect_excuse(const struct sim_cluster *cluster, const struct sim_call *call,
                          const char *text) {
    bool excused = false;
    switch (call->status) {
    case STATUS_CANCELLED:
    case STATUS_DEADLINE_EXCEEDED: break;
    case STATUS_UNAVAILABLE:
        excused = (cluster->was_serving && !cluster->is_serving) || cluster->draining ||
                  cluster->is_exiting;
        break;
    case STATUS_RESOURCE_EXHAUSTED:
        excused = call->token_count == 0 && (cluster->was_waiting > 0 || is_overdue(cluster, call));
        break;
    case STATUS_ALREADY_EXISTS: excused = has_twin(cluster, call); break;
    case STATUS_OUT_OF_RANGE:
        excused = limit_of(&cluster->options, call) == 0 ||
                  call->choice_count >
                      core_snapshot(cluster->core, cluster->now_ns).max_running_requests;
        break;
    case STATUS_INVALID_ARGUMENT: excused = call->has_bad_token; break;
    case STATUS_INTERNAL: excused = call->job_fails; break;
    default: break;
    }
    if (call->cancelled && call->status == call->cancel_as) excused = true;
    if (!excused)
        sim_cluster_fail(cluster, "call %u ends as %s without a reason: %s", number(cluster, call),
                         status_name(call->status), text);
}

/* A call may end before the steps that name it do: what they compute is kept after the flush. */
static void note_flush(const struct sim_cluster *cluster, struct sim_call *call, bool is_idle,
                       uint64_t steps) {
    bool over = call->ended && (is_idle || steps >= call->ended_steps + STEPS_IN_FLIGHT_MAX);
    if (over && call->flushed_ns == 0) call->flushed_ns = cluster->now_ns;
}

void sim_client_flushed(struct sim_cluster *cluster) {
    struct snapshot snapshot = core_snapshot(cluster->core, cluster->now_ns);
    for (uint32_t i = 0; i < cluster->client.call_count; i++)
        note_flush(cluster, &cluster->client.call[i], snapshot.requests_running == 0,
                   snapshot.steps);
}

bool sim_client_all_ended(const struct sim_cluster *cluster) {
    for (uint32_t i = 0; i < cluster->client.call_count; i++)
        if (!cluster->client.call[i].ended) return false;
    return true;
}
