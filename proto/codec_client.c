/* The bodies of clients' calls. */
#include <float.h>

#include "codec.h"
#include "wire.h"

static struct sampling get_sampling(struct wire_reader *reader, const Espalier__Sampling *in);
static const char *const *get_stops(struct wire_reader *reader, const Espalier__GenerateRequest *in,
                                    uint32_t *count_out);
static void get_choices(struct wire_reader *reader, const Espalier__GenerateSummary *in,
                        struct generate_summary *message);
static void get_speculated(struct wire_reader *reader, const Espalier__Snapshot *in,
                           struct speculation_counts *counts);
static const struct rank_status *get_ranks(struct wire_reader *reader, const Espalier__Snapshot *in,
                                           uint32_t *count_out);

/* --- Generate ------------------------------------------------------------------------------- */

struct bytes codec_encode_generate_request(const struct generate_request *message,
                                           struct arena *arena) {
    Espalier__Sampling sampling = ESPALIER__SAMPLING__INIT;
    sampling.temperature = message->sampling.temperature;
    sampling.top_p = message->sampling.top_p;
    sampling.top_k = message->sampling.top_k;
    sampling.min_p = message->sampling.min_p;
    sampling.repetition_penalty = message->sampling.repetition_penalty;
    sampling.presence_penalty = message->sampling.presence_penalty;
    sampling.frequency_penalty = message->sampling.frequency_penalty;
    uint32_t biases = message->sampling.logit_bias_count;
    sampling.n_logit_bias_token = sampling.n_logit_bias_value = biases;
    wire_put_biases(arena, message->sampling.logit_bias, biases, &sampling.logit_bias_token,
                    &sampling.logit_bias_value);
    if (message->sampling.has_seed) {
        sampling.seed_given_case = ESPALIER__SAMPLING__SEED_GIVEN_SEED;
        sampling.seed = message->sampling.seed;
    }
    Espalier__GenerateRequest out = ESPALIER__GENERATE_REQUEST__INIT;
    out.prompt_kind = (Espalier__PromptKind)message->prompt_kind;
    out.prompt_text = wire_put_bytes(message->prompt_text);
    out.n_prompt_token = message->prompt_token_count;
    out.prompt_token = wire_put_u32(message->prompt_token);
    out.max_tokens = message->max_tokens;
    out.sampling = &sampling;
    out.n_stop = message->stop_count;
    out.stop = wire_put_alloc(arena, message->stop_count, sizeof *out.stop);
    for (uint32_t i = 0; i < message->stop_count; i++)
        out.stop[i] = wire_put_text(message->stop[i]);
    out.n_stop_token = message->stop_token_count;
    out.stop_token = wire_put_u32(message->stop_token);
    out.include_stop = message->include_stop;
    out.ignore_eos = message->ignore_eos;
    out.keep_special = message->keep_special;
    out.logprobs = message->logprobs;
    out.top_logprobs = message->top_logprobs;
    out.choice_count = message->choice_count;
    return wire_pack(arena, &out.base);
}

enum status codec_decode_generate_request(struct bytes wire, struct arena *arena,
                                          struct generate_request *message_out, struct error *err) {
    struct wire_reader reader;
    const Espalier__GenerateRequest *in = wire_unpack(&reader, "request",
                                                      &espalier__generate_request__descriptor, wire,
                                                      FRAME_BODY_BYTES_MAX, arena, err);
    if (!in) return reader.status;
    enum prompt_kind kind = (enum prompt_kind)wire_enum(
        &reader, "prompt_kind", (int)in->prompt_kind, PROMPT_TEXT, PROMPT_CHAT);
    bool of_tokens = kind == PROMPT_TOKENS;
    uint32_t tokens = wire_count(&reader, "prompt_token", in->n_prompt_token, of_tokens ? 1 : 0,
                                 of_tokens ? CONTEXT_TOK_MAX : 0);
    uint32_t stop_tokens = wire_count(&reader, "stop_token", in->n_stop_token, 0, STOP_TOKENS_MAX);
    wire_each_u32(&reader, "prompt_token", in->prompt_token, tokens, MODEL_VOCAB_MAX - 1);
    wire_each_u32(&reader, "stop_token", in->stop_token, stop_tokens, MODEL_VOCAB_MAX - 1);
    *message_out = (struct generate_request){
        .prompt_kind = kind,
        .prompt_text = wire_utf8(&reader, "prompt_text", in->prompt_text, of_tokens ? 0 : 1,
                                 of_tokens ? 0 : PROMPT_BYTES_MAX),
        .prompt_token = tokens ? in->prompt_token : NULL,
        .prompt_token_count = tokens,
        .max_tokens = wire_u32(&reader, "max_tokens", in->max_tokens, 0, CONTEXT_TOK_MAX),
        .stop_token = stop_tokens ? in->stop_token : NULL,
        .stop_token_count = stop_tokens,
        .include_stop = in->include_stop != 0,
        .ignore_eos = in->ignore_eos != 0,
        .keep_special = in->keep_special != 0,
        .logprobs = in->logprobs != 0,
        .top_logprobs = wire_u32(&reader, "top_logprobs", in->top_logprobs, 0,
                                 in->logprobs ? TOP_LOGPROBS_MAX : 0),
        .choice_count = wire_u32(&reader, "choice_count", in->choice_count, 0, CHOICES_MAX),
    };
    if (kind == PROMPT_CHAT) wire_no_nul(&reader, "prompt_text", message_out->prompt_text);
    message_out->stop = get_stops(&reader, in, &message_out->stop_count);
    message_out->sampling = get_sampling(&reader, in->sampling);
    return reader.status;
}

static struct sampling get_sampling(struct wire_reader *reader, const Espalier__Sampling *in) {
    wire_enter(reader, "request.sampling", WIRE_NO_INDEX);
    if (!in) {
        wire_refuse(reader, NULL, "absent, accepted one");
        return (struct sampling){0};
    }
    bool has_seed = in->seed_given_case == ESPALIER__SAMPLING__SEED_GIVEN_SEED;
    uint32_t biases = wire_count(reader, "logit_bias", in->n_logit_bias_token, 0, LOGIT_BIAS_MAX);
    wire_same_count(reader, "logit_bias_value", in->n_logit_bias_value, biases);
    const struct logit_bias *bias = wire_biases(reader, "logit_bias", in->logit_bias_token,
                                                in->logit_bias_value, biases);
    if (!reader->status) wire_bias_order(reader, "logit_bias", bias, biases);
    wire_penalties(reader, in->repetition_penalty, in->presence_penalty, in->frequency_penalty);
    return (struct sampling){
        .temperature = wire_float(reader, "temperature", in->temperature, 0, FLT_MAX),
        .top_p = wire_top_p(reader, in->top_p, false),
        .top_k = wire_u32(reader, "top_k", in->top_k, 0, MODEL_VOCAB_MAX),
        .min_p = wire_float(reader, "min_p", in->min_p, 0, 1),
        .repetition_penalty = in->repetition_penalty,
        .presence_penalty = in->presence_penalty,
        .frequency_penalty = in->frequency_penalty,
        .logit_bias = bias,
        .logit_bias_count = biases,
        .has_seed = has_seed,
        .seed = has_seed ? in->seed : 0,
    };
}

static const char *const *get_stops(struct wire_reader *reader, const Espalier__GenerateRequest *in,
                                    uint32_t *count_out) {
    uint32_t count = wire_count(reader, "stop", in->n_stop, 0, STOP_STRINGS_MAX);
    const char **stop = wire_alloc(reader, count, sizeof *stop);
    for (uint32_t i = 0; i < count && !reader->status; i++) {
        wire_enter(reader, "request.stop", i);
        stop[i] = wire_text(reader, NULL, in->stop[i], 1, STOP_STRING_BYTES_MAX);
    }
    *count_out = count;
    return stop;
}

struct bytes codec_encode_generate_delta(const struct generate_delta *message,
                                         struct arena *arena) {
    Espalier__GenerateDelta out = ESPALIER__GENERATE_DELTA__INIT;
    out.channel = (Espalier__Channel)message->channel;
    out.text = wire_put_bytes(message->text);
    out.n_token = message->token_count;
    out.token = wire_put_u32(message->token);
    out.n_logprob_token = out.n_logprob_value = message->logprob_count;
    wire_put_logprobs(arena, message->logprob, message->logprob_count, &out.logprob_token,
                      &out.logprob_value);
    out.choice = message->choice;
    out.finish_reason = (Espalier__FinishReason)message->finish_reason;
    return wire_pack(arena, &out.base);
}

enum status codec_decode_generate_delta(struct bytes wire, struct arena *arena,
                                        struct generate_delta *message_out, struct error *err) {
    struct wire_reader reader;
    const Espalier__GenerateDelta *in = wire_unpack(&reader, "delta",
                                                    &espalier__generate_delta__descriptor, wire,
                                                    FRAME_BODY_BYTES_MAX, arena, err);
    if (!in) return reader.status;
    uint32_t tokens = wire_count(&reader, "token", in->n_token, 0, PLAN_ROWS_MAX);
    uint32_t logprobs = wire_count(&reader, "logprob_token", in->n_logprob_token, 0,
                                   tokens * (1 + TOP_LOGPROBS_MAX));
    if (tokens && logprobs % tokens)
        wire_refuse(&reader, "logprob_token", "%u elements, accepted a multiple of %u tokens",
                    logprobs, tokens);
    wire_each_u32(&reader, "token", in->token, tokens, MODEL_VOCAB_MAX - 1);
    *message_out = (struct generate_delta){
        .channel = (enum channel)wire_enum(&reader, "channel", (int)in->channel, CHANNEL_CONTENT,
                                           CHANNEL_TOOL),
        .text = wire_utf8(&reader, "text", in->text, 0, FRAME_BODY_BYTES_MAX),
        .token = tokens ? in->token : NULL,
        .token_count = tokens,
        .logprob = wire_logprobs(&reader, in->logprob_token, logprobs, in->logprob_value,
                                 in->n_logprob_value),
        .logprob_count = logprobs,
        .choice = wire_u32(&reader, "choice", in->choice, 0, CHOICES_MAX - 1),
        .finish_reason = (enum finish_reason)wire_enum(
            &reader, "finish_reason", (int)in->finish_reason, FINISH_NONE, FINISH_ERROR),
    };
    return reader.status;
}

struct bytes codec_encode_generate_summary(const struct generate_summary *message,
                                           struct arena *arena) {
    Espalier__GenerateSummary out = ESPALIER__GENERATE_SUMMARY__INIT;
    out.finish_reason = (Espalier__FinishReason)message->finish_reason;
    out.prompt_tokens = message->prompt_tokens;
    out.completion_tokens = message->completion_tokens;
    out.cached_tokens = message->cached_tokens;
    out.freed_tokens = message->freed_tokens;
    out.seed = message->seed;
    out.queue_ns = message->queue_ns;
    out.first_token_ns = message->first_token_ns;
    out.total_ns = message->total_ns;
    uint32_t count = message->choice_count;
    Espalier__ChoiceSummary *choices = wire_put_alloc(arena, count, sizeof *choices);
    out.n_choice = count;
    out.choice = wire_put_alloc(arena, count, sizeof *out.choice);
    for (uint32_t i = 0; i < count; i++) {
        const struct choice_summary *choice = &message->choice[i];
        choices[i] = (Espalier__ChoiceSummary)ESPALIER__CHOICE_SUMMARY__INIT;
        choices[i].finish_reason = (Espalier__FinishReason)choice->finish_reason;
        choices[i].completion_tokens = choice->completion_tokens;
        choices[i].cached_tokens = choice->cached_tokens;
        choices[i].freed_tokens = choice->freed_tokens;
        out.choice[i] = &choices[i];
    }
    return wire_pack(arena, &out.base);
}

enum status codec_decode_generate_summary(struct bytes wire, struct arena *arena,
                                          struct generate_summary *message_out, struct error *err) {
    struct wire_reader reader;
    const Espalier__GenerateSummary *in = wire_unpack(&reader, "summary",
                                                      &espalier__generate_summary__descriptor, wire,
                                                      FRAME_BODY_BYTES_MAX, arena, err);
    if (!in) return reader.status;
    *message_out = (struct generate_summary){
        .finish_reason = (enum finish_reason)wire_enum(
            &reader, "finish_reason", (int)in->finish_reason, FINISH_NONE, FINISH_ERROR),
        .prompt_tokens = wire_u32(&reader, "prompt_tokens", in->prompt_tokens, 0, CONTEXT_TOK_MAX),
        .completion_tokens = wire_u32(&reader, "completion_tokens", in->completion_tokens, 0,
                                      CONTEXT_TOK_MAX * CHOICES_MAX),
        .cached_tokens = wire_u32(&reader, "cached_tokens", in->cached_tokens, 0,
                                  in->prompt_tokens),
        .freed_tokens = wire_u32(&reader, "freed_tokens", in->freed_tokens, 0,
                                 CONTEXT_TOK_MAX * CHOICES_MAX),
        .seed = in->seed,
        .queue_ns = in->queue_ns,
        .first_token_ns = in->first_token_ns,
        .total_ns = in->total_ns,
    };
    get_choices(&reader, in, message_out);
    return reader.status;
}

static void get_choices(struct wire_reader *reader, const Espalier__GenerateSummary *in,
                        struct generate_summary *message) {
    message->choice_count = wire_count(reader, "choice", in->n_choice, 0, CHOICES_MAX);
    for (uint32_t i = 0; i < message->choice_count && !reader->status; i++) {
        wire_enter(reader, "summary.choice", i);
        const Espalier__ChoiceSummary *choice = in->choice[i];
        message->choice[i] = (struct choice_summary){
            .finish_reason = (enum finish_reason)wire_enum(
                reader, "finish_reason", (int)choice->finish_reason, FINISH_NONE, FINISH_ERROR),
            .completion_tokens = wire_u32(reader, "completion_tokens", choice->completion_tokens, 0,
                                          CONTEXT_TOK_MAX),
            .cached_tokens = wire_u32(reader, "cached_tokens", choice->cached_tokens, 0,
                                      in->prompt_tokens),
            .freed_tokens = wire_u32(reader, "freed_tokens", choice->freed_tokens, 0,
                                     CONTEXT_TOK_MAX),
        };
    }
}

/* --- Watch ---------------------------------------------------------------------------------- */

struct bytes codec_encode_watch_request(const struct watch_request *message, struct arena *arena) {
    Espalier__WatchRequest out = ESPALIER__WATCH_REQUEST__INIT;
    out.interval_ms = message->interval_ms;
    return wire_pack(arena, &out.base);
}

enum status codec_decode_watch_request(struct bytes wire, struct arena *arena,
                                       struct watch_request *message_out, struct error *err) {
    struct wire_reader reader;
    const Espalier__WatchRequest *in = wire_unpack(&reader, "watch",
                                                   &espalier__watch_request__descriptor, wire,
                                                   FRAME_BODY_BYTES_MAX, arena, err);
    if (!in) return reader.status;
    *message_out = (struct watch_request){
        .interval_ms = wire_u32(&reader, "interval_ms", in->interval_ms, 0, INTERVAL_MS_MAX),
    };
    return reader.status;
}

struct bytes codec_encode_snapshot(const struct snapshot *message, struct arena *arena) {
    Espalier__Snapshot out = ESPALIER__SNAPSHOT__INIT;
    out.boot_id = message->boot_id;
    out.generation = message->generation;
    out.ready = message->ready;
    out.draining = message->draining;
    out.reason = wire_put_line(arena, message->reason);
    out.model = wire_put_text(message->model);
    out.tp = message->tp;
    out.context_len = message->context_len;
    out.page_tok = message->page_tok;
    out.pages_total = message->pages_total;
    out.pages_free = message->pages_free;
    out.requests_running = message->requests_running;
    out.requests_waiting = message->requests_waiting;
    out.requests_finished = message->requests_finished;
    out.tokens_prompt = message->tokens_prompt;
    out.tokens_generated = message->tokens_generated;
    out.steps = message->steps;
    out.step_ns_last = message->step_ns_last;
    out.step_ns = message->step_ns;
    out.compute_ns = message->compute_ns;
    out.idle_ns = message->idle_ns;
    out.uptime_ns = message->uptime_ns;
    out.pages_cached = message->pages_cached;
    out.pages_promised = message->pages_promised;
    out.tokens_unused = message->tokens_unused;
    out.tokens_looked_up = message->tokens_looked_up;
    out.tokens_cached = message->tokens_cached;
    out.tokens_recomputed = message->tokens_recomputed;
    out.evictions = message->evictions;
    out.retractions = message->retractions;
    out.max_running_requests = message->max_running_requests;
    out.has_served = message->has_served;
    out.model_fingerprint = message->model_fingerprint;
    out.context_promised = message->context_promised;
    out.kv_dtype = (Espalier__KvDtype)message->kv_dtype;
    out.activation_dtype = (Espalier__ActivationDtype)message->activation_dtype;
    struct speculation_counts counts = message->speculated;
    out.speculation = wire_put_line(arena, message->speculation);
    out.trees = counts.trees;
    out.guesses = counts.guesses;
    out.n_accepted = SPECULATION_DEPTHS;
    out.accepted = counts.accepted;
    out.n_source_guesses = out.n_source_accepted = SPECULATION_SOURCES;
    out.source_guesses = counts.source_guesses;
    out.source_accepted = counts.source_accepted;

    uint32_t count = message->rank_count;
    Espalier__RankStatus *ranks = wire_put_alloc(arena, count, sizeof *ranks);
    out.n_rank = count;
    out.rank = wire_put_alloc(arena, count, sizeof *out.rank);
    for (uint32_t i = 0; i < count; i++) {
        const struct rank_status *rank = &message->rank[i];
        ranks[i] = (Espalier__RankStatus)ESPALIER__RANK_STATUS__INIT;
        ranks[i].rank = rank->rank;
        ranks[i].state = (Espalier__RankState)rank->state;
        ranks[i].pid = rank->pid;
        ranks[i].load_bytes = rank->load_bytes;
        ranks[i].load_bytes_total = rank->load_bytes_total;
        ranks[i].load_ns = rank->load_ns;
        ranks[i].heartbeat_age_ns = rank->heartbeat_age_ns;
        ranks[i].step = rank->step;
        ranks[i].probe = wire_put_text(rank->probe);
        ranks[i].collective_ns = rank->collective_ns;
        ranks[i].trouble = wire_put_line(arena, rank->trouble);
        ranks[i].self_test = (Espalier__SelfTest)rank->self_test;
        ranks[i].self_test_percent = rank->self_test_percent;
        out.rank[i] = &ranks[i];
    }
    return wire_pack(arena, &out.base);
}

enum status codec_decode_snapshot(struct bytes wire, struct arena *arena,
                                  struct snapshot *message_out, struct error *err) {
    struct wire_reader reader;
    const Espalier__Snapshot *in = wire_unpack(&reader, "snapshot", &espalier__snapshot__descriptor,
                                               wire, FRAME_BODY_BYTES_MAX, arena, err);
    if (!in) return reader.status;
    *message_out = (struct snapshot){
        .boot_id = in->boot_id,
        .generation = in->generation,
        .ready = in->ready != 0,
        .draining = in->draining != 0,
        .reason = wire_text(&reader, "reason", in->reason, 0, LINE_BYTES_MAX),
        .model = wire_text(&reader, "model", in->model, 0, NAME_BYTES_MAX),
        .tp = wire_u32(&reader, "tp", in->tp, 0, TP_MAX),
        .context_len = wire_u32(&reader, "context_len", in->context_len, 0, CONTEXT_TOK_MAX),
        .page_tok = wire_u32(&reader, "page_tok", in->page_tok, 0, KV_PAGE_TOK_MAX),
        .pages_total = wire_u32(&reader, "pages_total", in->pages_total, 0, KV_PAGES_MAX),
        .pages_free = wire_u32(&reader, "pages_free", in->pages_free, 0, in->pages_total),
        .requests_running = in->requests_running,
        .requests_waiting = in->requests_waiting,
        .requests_finished = in->requests_finished,
        .tokens_prompt = in->tokens_prompt,
        .tokens_generated = in->tokens_generated,
        .steps = in->steps,
        .step_ns_last = in->step_ns_last,
        .step_ns = in->step_ns,
        .compute_ns = in->compute_ns,
        .idle_ns = in->idle_ns,
        .uptime_ns = in->uptime_ns,
        .pages_cached = wire_u32(&reader, "pages_cached", in->pages_cached, 0,
                                 in->pages_total - in->pages_free),
        .pages_promised = in->pages_promised,
        .tokens_unused = in->tokens_unused,
        .tokens_looked_up = in->tokens_looked_up,
        .tokens_cached = in->tokens_cached,
        .tokens_recomputed = in->tokens_recomputed,
        .evictions = in->evictions,
        .retractions = in->retractions,
        .max_running_requests = in->max_running_requests,
        .has_served = in->has_served != 0,
        .speculation = wire_text(&reader, "speculation", in->speculation, 0, LINE_BYTES_MAX),
        .model_fingerprint = in->model_fingerprint,
        .context_promised = wire_u32(&reader, "context_promised", in->context_promised, 0,
                                     CONTEXT_TOK_MAX),
        .kv_dtype = (enum kv_dtype)wire_enum(&reader, "kv_dtype", (int)in->kv_dtype, KV_BF16,
                                             KV_FP8),
        .activation_dtype = (enum activation_dtype)wire_enum(&reader, "activation_dtype",
                                                             (int)in->activation_dtype,
                                                             ACTIVATION_F32, ACTIVATION_INT8),
    };
    get_speculated(&reader, in, &message_out->speculated);
    message_out->rank = get_ranks(&reader, in, &message_out->rank_count);
    return reader.status;
}

/* A column of counters that has one length, or is not there. */
static void get_counters(struct wire_reader *reader, const char *field, const uint64_t *value,
                         size_t value_count, uint32_t count, uint64_t *out) {
    if (value_count > 0) wire_same_count(reader, field, value_count, count);
    for (uint32_t i = 0; i < count; i++)
        out[i] = value_count == count ? value[i] : 0;
}

static void get_speculated(struct wire_reader *reader, const Espalier__Snapshot *in,
                           struct speculation_counts *counts) {
    counts->trees = in->trees;
    counts->guesses = in->guesses;
    get_counters(reader, "accepted", in->accepted, in->n_accepted, SPECULATION_DEPTHS,
                 counts->accepted);
    get_counters(reader, "source_guesses", in->source_guesses, in->n_source_guesses,
                 SPECULATION_SOURCES, counts->source_guesses);
    get_counters(reader, "source_accepted", in->source_accepted, in->n_source_accepted,
                 SPECULATION_SOURCES, counts->source_accepted);
}

static const struct rank_status *get_ranks(struct wire_reader *reader, const Espalier__Snapshot *in,
                                           uint32_t *count_out) {
    uint32_t count = wire_count(reader, "rank", in->n_rank, 0, TP_MAX), seen = 0;
    struct rank_status *ranks = wire_alloc(reader, count, sizeof *ranks);
    for (uint32_t i = 0; i < count && !reader->status; i++) {
        wire_enter(reader, "snapshot.rank", i);
        const Espalier__RankStatus *rank = in->rank[i];
        ranks[i] = (struct rank_status){
            .rank = wire_u32(reader, "rank", rank->rank, 0, TP_MAX - 1),
            .state = (enum rank_state)wire_enum(reader, "state", (int)rank->state, RANK_ABSENT,
                                                RANK_LOST),
            .pid = rank->pid,
            .load_bytes = rank->load_bytes,
            .load_bytes_total = rank->load_bytes_total,
            .load_ns = rank->load_ns,
            .heartbeat_age_ns = rank->heartbeat_age_ns,
            .step = rank->step,
            .probe = wire_text(reader, "probe", rank->probe, 0, NAME_BYTES_MAX),
            .collective_ns = rank->collective_ns,
            .trouble = wire_text(reader, "trouble", rank->trouble, 0, LINE_BYTES_MAX),
            .self_test = (enum self_test)wire_enum(reader, "self_test", (int)rank->self_test,
                                                   SELF_TEST_NONE, SELF_TEST_COLLECTIVE),
            .self_test_percent = wire_u32(reader, "self_test_percent", rank->self_test_percent, 0,
                                          100),
        };
        if (seen & 1u << ranks[i].rank)
            wire_refuse(reader, "rank", "%u for the second time, accepted once", ranks[i].rank);
        seen |= 1u << ranks[i].rank;
    }
    *count_out = count;
    return ranks;
}

/* --- Health and Drain ----------------------------------------------------------------------- */

struct bytes codec_encode_health_request(const struct health_request *message,
                                         struct arena *arena) {
    Espalier__HealthRequest out = ESPALIER__HEALTH_REQUEST__INIT;
    out.service = wire_put_text(message->service);
    return wire_pack(arena, &out.base);
}

enum status codec_decode_health_request(struct bytes wire, struct arena *arena,
                                        struct health_request *message_out, struct error *err) {
    struct wire_reader reader;
    const Espalier__HealthRequest *in = wire_unpack(&reader, "health",
                                                    &espalier__health_request__descriptor, wire,
                                                    FRAME_BODY_BYTES_MAX, arena, err);
    if (!in) return reader.status;
    *message_out = (struct health_request){
        .service = wire_text(&reader, "service", in->service, 0, NAME_BYTES_MAX),
    };
    return reader.status;
}

struct bytes codec_encode_health_reply(const struct health_reply *message, struct arena *arena) {
    Espalier__HealthReply out = ESPALIER__HEALTH_REPLY__INIT;
    out.health = (Espalier__Health)message->health;
    out.reason = wire_put_line(arena, message->reason);
    return wire_pack(arena, &out.base);
}

enum status codec_decode_health_reply(struct bytes wire, struct arena *arena,
                                      struct health_reply *message_out, struct error *err) {
    struct wire_reader reader;
    const Espalier__HealthReply *in = wire_unpack(&reader, "health",
                                                  &espalier__health_reply__descriptor, wire,
                                                  FRAME_BODY_BYTES_MAX, arena, err);
    if (!in) return reader.status;
    *message_out = (struct health_reply){
        .health = (enum health)wire_enum(&reader, "health", (int)in->health, HEALTH_UNKNOWN,
                                         HEALTH_SERVICE_UNKNOWN),
        .reason = wire_text(&reader, "reason", in->reason, 0, LINE_BYTES_MAX),
    };
    return reader.status;
}

struct bytes codec_encode_flush_request(const struct flush_request *message, struct arena *arena) {
    Espalier__FlushRequest out = ESPALIER__FLUSH_REQUEST__INIT;
    out.n_token = message->token_count;
    out.token = wire_put_u32(message->token);
    return wire_pack(arena, &out.base);
}

enum status codec_decode_flush_request(struct bytes wire, struct arena *arena,
                                       struct flush_request *message_out, struct error *err) {
    struct wire_reader reader;
    const Espalier__FlushRequest *in = wire_unpack(&reader, "flush",
                                                   &espalier__flush_request__descriptor, wire,
                                                   FRAME_BODY_BYTES_MAX, arena, err);
    if (!in) return reader.status;
    uint32_t count = wire_count(&reader, "token", in->n_token, 0, CONTEXT_TOK_MAX);
    wire_each_u32(&reader, "token", in->token, count, MODEL_VOCAB_MAX - 1);
    *message_out = (struct flush_request){
        .token = count ? in->token : NULL,
        .token_count = count,
    };
    return reader.status;
}

struct bytes codec_encode_resize_request(const struct resize_request *message,
                                         struct arena *arena) {
    Espalier__ResizeRequest out = ESPALIER__RESIZE_REQUEST__INIT;
    out.tokens = message->tokens;
    out.max_running_requests = message->max_running_requests;
    out.force = message->force;
    out.mem_fraction = message->mem_fraction;
    return wire_pack(arena, &out.base);
}

enum status codec_decode_resize_request(struct bytes wire, struct arena *arena,
                                        struct resize_request *message_out, struct error *err) {
    struct wire_reader reader;
    const Espalier__ResizeRequest *in = wire_unpack(&reader, "resize",
                                                    &espalier__resize_request__descriptor, wire,
                                                    FRAME_BODY_BYTES_MAX, arena, err);
    if (!in) return reader.status;
    *message_out = (struct resize_request){
        .tokens = in->tokens,
        .max_running_requests = in->max_running_requests,
        .force = in->force != 0,
        .mem_fraction = wire_u32(&reader, "mem_fraction", in->mem_fraction, 0, FRACTION_ONE),
    };
    return reader.status;
}

struct bytes codec_encode_resize_progress(const struct resize_progress *message,
                                          struct arena *arena) {
    Espalier__ResizeProgress out = ESPALIER__RESIZE_PROGRESS__INIT;
    out.phase = (Espalier__ResizePhase)message->phase;
    out.page_tok = message->page_tok;
    out.pages_before = message->pages_before;
    out.pages_wanted = message->pages_wanted;
    out.pages_now = message->pages_now;
    out.pages_evicted = message->pages_evicted;
    out.pages_moved = message->pages_moved;
    out.requests_retracted = message->requests_retracted;
    out.max_running_requests = message->max_running_requests;
    return wire_pack(arena, &out.base);
}

enum status codec_decode_resize_progress(struct bytes wire, struct arena *arena,
                                         struct resize_progress *message_out, struct error *err) {
    struct wire_reader reader;
    const Espalier__ResizeProgress *in = wire_unpack(&reader, "resize progress",
                                                     &espalier__resize_progress__descriptor, wire,
                                                     FRAME_BODY_BYTES_MAX, arena, err);
    if (!in) return reader.status;
    *message_out = (struct resize_progress){
        .phase = (enum resize_phase)wire_enum(&reader, "phase", (int)in->phase, RESIZE_WAITING,
                                              RESIZE_SIZING),
        .page_tok = wire_u32(&reader, "page_tok", in->page_tok, 0, KV_PAGE_TOK_MAX),
        .pages_before = wire_u32(&reader, "pages_before", in->pages_before, 0, KV_PAGES_MAX),
        .pages_wanted = wire_u32(&reader, "pages_wanted", in->pages_wanted, 0, KV_PAGES_MAX),
        .pages_now = wire_u32(&reader, "pages_now", in->pages_now, 0, KV_PAGES_MAX),
        .pages_evicted = in->pages_evicted,
        .pages_moved = in->pages_moved,
        .requests_retracted = in->requests_retracted,
        .max_running_requests = in->max_running_requests,
    };
    return reader.status;
}

struct bytes codec_encode_drain_request(const struct drain_request *message, struct arena *arena) {
    Espalier__DrainRequest out = ESPALIER__DRAIN_REQUEST__INIT;
    out.timeout_ms = message->timeout_ms;
    return wire_pack(arena, &out.base);
}

enum status codec_decode_drain_request(struct bytes wire, struct arena *arena,
                                       struct drain_request *message_out, struct error *err) {
    struct wire_reader reader;
    const Espalier__DrainRequest *in = wire_unpack(&reader, "drain",
                                                   &espalier__drain_request__descriptor, wire,
                                                   FRAME_BODY_BYTES_MAX, arena, err);
    if (!in) return reader.status;
    *message_out = (struct drain_request){
        .timeout_ms = wire_u32(&reader, "timeout_ms", in->timeout_ms, 0, INTERVAL_MS_MAX),
    };
    return reader.status;
}
