#include "codec_samples.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"

static void sample_plan(struct sample_source *source, struct step_plan *plan);
static void sample_result(struct sample_source *source, struct step_result *result);
static bool same_plan(const struct step_plan *a, const struct step_plan *b);
static bool same_result(const struct step_result *a, const struct step_result *b);

/* --- numbers, text, arrays ------------------------------------------------------------------ */

static uint64_t next(struct sample_source *source) {
    source->state += UINT64_C(0x9e3779b97f4a7c15);
    return hash_mix(source->state);
}

uint64_t sample_number(struct sample_source *source, uint64_t min, uint64_t max) {
    uint64_t pick = next(source), span = max - min;
    switch (pick % 8) {
    case 0: return min;
    case 1: return max;
    case 2: return min + (span ? next(source) % (span < 200 ? span : 200) : 0);
    default: return span == UINT64_MAX ? next(source) : min + next(source) % (span + 1);
    }
}

static uint32_t number(struct sample_source *source, uint32_t min, uint32_t max) {
    return (uint32_t)sample_number(source, min, max);
}

static bool coin(struct sample_source *source) {
    return next(source) % 2 == 1;
}

static uint64_t any(struct sample_source *source) {
    return sample_number(source, 0, UINT64_MAX);
}

static float real(struct sample_source *source, float min, float max) {
    float part = (float)(next(source) % 10001) / 10000.0f;
    return min + (max - min) * part;
}

static void *array(struct sample_source *source, size_t count, size_t size) {
    void *memory = arena_calloc(source->arena, count, size);
    CHECK(memory != NULL);
    return count ? memory : NULL;
}

static struct bytes text_bytes(struct sample_source *source, uint32_t min, uint32_t max) {
    static const char *const character[] = {"a", "Z",  "\n",           "\x7f", "é",
                                            "ß", "水", "\xEF\xBF\xBF", "🌳",    "\xF4\x8F\xBF\xBF"};
    uint32_t bytes = coin(source) ? number(source, min, max < min + 20 ? max : min + 20)
                                  : number(source, min, max < 1000 ? max : 1000);
    char *text = array(source, bytes + 1u, 1);
    uint32_t used = 0;
    while (used < bytes) {
        const char *one = character[next(source) % 10];
        size_t length = strlen(one);
        if (length > bytes - used) one = "x", length = 1;
        memcpy(text + used, one, length);
        used += (uint32_t)length;
    }
    return (struct bytes){.data = (const uint8_t *)text, .size = bytes};
}

static const char *text(struct sample_source *source, uint32_t min, uint32_t max) {
    return (const char *)text_bytes(source, min, max).data;
}

static const uint32_t *ids(struct sample_source *source, uint32_t count, uint32_t max) {
    uint32_t *id = array(source, count, sizeof *id);
    for (uint32_t i = 0; i < count; i++)
        id[i] = number(source, 0, max);
    return id;
}

static const struct token_logprob *logprobs(struct sample_source *source, uint32_t count) {
    struct token_logprob *logprob = array(source, count, sizeof *logprob);
    for (uint32_t i = 0; i < count; i++) {
        logprob[i].token = number(source, 0, MODEL_VOCAB_MAX - 1);
        logprob[i].logprob = real(source, -1e30f, 0);
    }
    return logprob;
}

static const struct logit_bias *biases(struct sample_source *source, uint32_t count) {
    struct logit_bias *bias = array(source, count, sizeof *bias);
    for (uint32_t i = 0; i < count; i++) {
        bias[i].token = (i == 0 ? 0 : bias[i - 1].token + 1) + number(source, 0, 500);
        bias[i].value = real(source, -LOGIT_BIAS_VALUE_MAX, LOGIT_BIAS_VALUE_MAX);
    }
    return bias;
}

static bool same_bytes(struct bytes a, struct bytes b) {
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

/* Arrays of structures without padding. */
static bool same_array(const void *a, const void *b, size_t count, size_t size) {
    return count == 0 || memcmp(a, b, count * size) == 0;
}

#define SAME(field)      (a->field == b->field)
#define SAME_TEXT(field) (strcmp(a->field, b->field) == 0)

/* --- envelope ------------------------------------------------------------------------------- */

void sample_header(struct sample_source *source, struct header *message) {
    *message = (struct header){
        .version = WIRE_VERSION,
        .kind = (enum frame_kind)number(source, FRAME_CALL, FRAME_NOTE),
        .call_id = any(source),
        .generation = any(source),
        .deadline_ms = number(source, 0, UINT32_MAX),
        .idempotency_key = text(source, 0, NAME_BYTES_MAX),
        .tenant = text(source, 0, NAME_BYTES_MAX),
        .priority = (int32_t)number(source, 0, UINT32_MAX),
        .seq = any(source),
        .credits = number(source, 0, CREDITS_MAX),
        .status = (enum status)number(source, 0, STATUS_COUNT - 1),
        .status_text = text(source, 0, LINE_BYTES_MAX),
        .metadata_count = number(source, 0, METADATA_ENTRIES_MAX),
    };
    message->method = message->kind == FRAME_CALL ? text(source, 1, METHOD_BYTES_MAX)
                                                  : text(source, 0, 0);
    struct metadata *metadata = array(source, message->metadata_count, sizeof *metadata);
    for (uint32_t i = 0; i < message->metadata_count; i++) {
        metadata[i].key = i % 2 ? "x-trace-bin" : "a.b_c-9";
        metadata[i].value = text(source, 0, 100); /* all together below FRAME_HEADER_BYTES_MAX */
    }
    message->metadata = metadata;
}

bool same_header(const struct header *a, const struct header *b) {
    for (uint32_t i = 0; i < a->metadata_count && SAME(metadata_count); i++)
        if (!SAME_TEXT(metadata[i].key) || !SAME_TEXT(metadata[i].value)) return false;
    return SAME(version) && SAME(kind) && SAME(call_id) && SAME_TEXT(method) && SAME(generation) &&
           SAME(deadline_ms) && SAME_TEXT(idempotency_key) && SAME_TEXT(tenant) && SAME(priority) &&
           SAME(metadata_count) && SAME(seq) && SAME(credits) && SAME(status) &&
           SAME_TEXT(status_text);
}

/* --- client calls --------------------------------------------------------------------------- */

void sample_generate_request(struct sample_source *source, struct generate_request *message) {
    *message = (struct generate_request){
        .prompt_kind = (enum prompt_kind)number(source, PROMPT_TEXT, PROMPT_CHAT),
        .max_tokens = number(source, 0, CONTEXT_TOK_MAX),
        .sampling = {.temperature = real(source, 0, 4),
                     .top_p = real(source, 0.001f, 1),
                     .top_k = number(source, 0, MODEL_VOCAB_MAX),
                     .min_p = real(source, 0, 1),
                     .repetition_penalty = real(source, 0, REPETITION_PENALTY_MAX),
                     .presence_penalty = real(source, -REPLY_PENALTY_MAX, REPLY_PENALTY_MAX),
                     .frequency_penalty = real(source, -REPLY_PENALTY_MAX, REPLY_PENALTY_MAX),
                     .logit_bias_count = coin(source) ? number(source, 0, LOGIT_BIAS_MAX) : 0,
                     .has_seed = coin(source)},
        .stop_count = number(source, 0, STOP_STRINGS_MAX),
        .choice_count = number(source, 0, CHOICES_MAX),
        .stop_token_count = number(source, 0, STOP_TOKENS_MAX),
        .include_stop = coin(source),
        .ignore_eos = coin(source),
        .keep_special = coin(source),
        .logprobs = coin(source),
    };
    message->sampling.logit_bias = biases(source, message->sampling.logit_bias_count);
    if (message->sampling.has_seed) message->sampling.seed = any(source);
    if (message->logprobs) message->top_logprobs = number(source, 0, TOP_LOGPROBS_MAX);
    if (message->prompt_kind == PROMPT_TOKENS) {
        message->prompt_token_count = 1 + number(source, 0, 500);
        message->prompt_token = ids(source, message->prompt_token_count, MODEL_VOCAB_MAX - 1);
    } else {
        message->prompt_text = text_bytes(source, 1, PROMPT_BYTES_MAX);
    }
    const char **stop = array(source, message->stop_count, sizeof *stop);
    for (uint32_t i = 0; i < message->stop_count; i++)
        stop[i] = text(source, 1, STOP_STRING_BYTES_MAX);
    message->stop = stop;
    message->stop_token = ids(source, message->stop_token_count, MODEL_VOCAB_MAX - 1);
}

bool same_generate_request(const struct generate_request *a, const struct generate_request *b) {
    for (uint32_t i = 0; i < a->stop_count && SAME(stop_count); i++)
        if (!SAME_TEXT(stop[i])) return false;
    return SAME(prompt_kind) && same_bytes(a->prompt_text, b->prompt_text) &&
           SAME(prompt_token_count) &&
           same_array(a->prompt_token, b->prompt_token, a->prompt_token_count, 4) &&
           SAME(max_tokens) && SAME(sampling.temperature) && SAME(sampling.top_p) &&
           SAME(sampling.top_k) && SAME(sampling.min_p) && SAME(sampling.repetition_penalty) &&
           SAME(sampling.presence_penalty) && SAME(sampling.frequency_penalty) &&
           SAME(sampling.logit_bias_count) &&
           same_array(a->sampling.logit_bias, b->sampling.logit_bias, a->sampling.logit_bias_count,
                      sizeof *a->sampling.logit_bias) &&
           SAME(sampling.has_seed) && SAME(sampling.seed) && SAME(stop_count) &&
           SAME(stop_token_count) &&
           same_array(a->stop_token, b->stop_token, a->stop_token_count, 4) && SAME(include_stop) &&
           SAME(ignore_eos) && SAME(keep_special) && SAME(logprobs) && SAME(top_logprobs) &&
           SAME(choice_count);
}

void sample_generate_delta(struct sample_source *source, struct generate_delta *message) {
    *message = (struct generate_delta){
        .channel = (enum channel)number(source, CHANNEL_CONTENT, CHANNEL_TOOL),
        .text = text_bytes(source, 0, 1000),
        .token_count = number(source, 0, 20),
        .choice = number(source, 0, CHOICES_MAX - 1),
        .finish_reason = (enum finish_reason)number(source, FINISH_NONE, FINISH_ERROR),
    };
    message->token = ids(source, message->token_count, MODEL_VOCAB_MAX - 1);
    if (coin(source))
        message->logprob_count = message->token_count * (1 + number(source, 0, TOP_LOGPROBS_MAX));
    message->logprob = logprobs(source, message->logprob_count);
}

bool same_generate_delta(const struct generate_delta *a, const struct generate_delta *b) {
    return SAME(channel) && same_bytes(a->text, b->text) && SAME(token_count) &&
           same_array(a->token, b->token, a->token_count, 4) && SAME(logprob_count) &&
           same_array(a->logprob, b->logprob, a->logprob_count, sizeof *a->logprob) &&
           SAME(choice) && SAME(finish_reason);
}

void sample_generate_summary(struct sample_source *source, struct generate_summary *message) {
    *message = (struct generate_summary){
        .finish_reason = (enum finish_reason)number(source, FINISH_NONE, FINISH_ERROR),
        .prompt_tokens = number(source, 0, CONTEXT_TOK_MAX),
        .completion_tokens = number(source, 0, CONTEXT_TOK_MAX * CHOICES_MAX),
        .seed = any(source),
        .queue_ns = any(source),
        .first_token_ns = any(source),
        .total_ns = any(source),
    };
    message->cached_tokens = number(source, 0, message->prompt_tokens);
    message->freed_tokens = number(source, 0, CONTEXT_TOK_MAX * CHOICES_MAX);
    message->choice_count = coin(source) ? number(source, 2, CHOICES_MAX) : 0;
    for (uint32_t i = 0; i < message->choice_count; i++)
        message->choice[i] = (struct choice_summary){
            .finish_reason = (enum finish_reason)number(source, FINISH_NONE, FINISH_ERROR),
            .completion_tokens = number(source, 0, CONTEXT_TOK_MAX),
            .cached_tokens = number(source, 0, message->prompt_tokens),
            .freed_tokens = number(source, 0, CONTEXT_TOK_MAX),
        };
}

bool same_generate_summary(const struct generate_summary *a, const struct generate_summary *b) {
    return SAME(finish_reason) && SAME(prompt_tokens) && SAME(completion_tokens) &&
           SAME(cached_tokens) && SAME(freed_tokens) && SAME(seed) && SAME(queue_ns) &&
           SAME(first_token_ns) && SAME(total_ns) && SAME(choice_count) &&
           same_array(a->choice, b->choice, a->choice_count, sizeof *a->choice);
}

void sample_watch_request(struct sample_source *source, struct watch_request *message) {
    message->interval_ms = number(source, 0, INTERVAL_MS_MAX);
}

bool same_watch_request(const struct watch_request *a, const struct watch_request *b) {
    return SAME(interval_ms);
}

void sample_snapshot(struct sample_source *source, struct snapshot *message) {
    *message = (struct snapshot){
        .boot_id = any(source),
        .generation = any(source),
        .ready = coin(source),
        .draining = coin(source),
        .reason = text(source, 0, LINE_BYTES_MAX),
        .model = text(source, 0, NAME_BYTES_MAX),
        .tp = number(source, 0, TP_MAX),
        .context_len = number(source, 0, CONTEXT_TOK_MAX),
        .page_tok = number(source, 0, KV_PAGE_TOK_MAX),
        .pages_total = number(source, 0, KV_PAGES_MAX),
        .requests_running = number(source, 0, UINT32_MAX),
        .requests_waiting = number(source, 0, UINT32_MAX),
        .requests_finished = any(source),
        .tokens_prompt = any(source),
        .tokens_generated = any(source),
        .steps = any(source),
        .step_ns_last = any(source),
        .step_ns = any(source),
        .compute_ns = any(source),
        .idle_ns = any(source),
        .uptime_ns = any(source),
        .pages_promised = any(source),
        .tokens_unused = any(source),
        .tokens_looked_up = any(source),
        .tokens_cached = any(source),
        .tokens_recomputed = any(source),
        .evictions = any(source),
        .retractions = any(source),
        .max_running_requests = number(source, 0, UINT32_MAX),
        .has_served = coin(source),
        .speculation = text(source, 0, LINE_BYTES_MAX),
        .speculated = {.trees = any(source), .guesses = any(source)},
        .rank_count = number(source, 0, TP_MAX),
        .model_fingerprint = any(source),
        .context_promised = number(source, 0, CONTEXT_TOK_MAX),
        .kv_dtype = coin(source)   ? KV_F32
                    : coin(source) ? KV_FP8
                                   : KV_BF16,
        .activation_dtype = (enum activation_dtype)number(source, 0, ACTIVATION_INT8),
    };
    for (uint32_t i = 0; i < SPECULATION_DEPTHS; i++)
        message->speculated.accepted[i] = any(source);
    for (uint32_t i = 0; i < SPECULATION_SOURCES; i++) {
        message->speculated.source_guesses[i] = any(source);
        message->speculated.source_accepted[i] = any(source);
    }
    message->pages_free = number(source, 0, message->pages_total);
    message->pages_cached = number(source, 0, message->pages_total - message->pages_free);
    struct rank_status *rank = array(source, message->rank_count, sizeof *rank);
    for (uint32_t i = 0; i < message->rank_count; i++)
        rank[i] = (struct rank_status){
            .rank = (i + 3) % TP_MAX,
            .state = (enum rank_state)number(source, RANK_ABSENT, RANK_LOST),
            .pid = any(source),
            .load_bytes = any(source),
            .load_bytes_total = any(source),
            .load_ns = any(source),
            .heartbeat_age_ns = any(source),
            .step = any(source),
            .probe = text(source, 0, NAME_BYTES_MAX),
            .collective_ns = any(source),
            .trouble = text(source, 0, LINE_BYTES_MAX),
            .self_test = (enum self_test)number(source, SELF_TEST_NONE, SELF_TEST_COLLECTIVE),
            .self_test_percent = number(source, 0, 100),
        };
    message->rank = rank;
}

static bool same_rank(const struct rank_status *a, const struct rank_status *b) {
    return SAME(rank) && SAME(state) && SAME(pid) && SAME(load_bytes) && SAME(load_bytes_total) &&
           SAME(load_ns) && SAME(heartbeat_age_ns) && SAME(step) && SAME_TEXT(probe) &&
           SAME(collective_ns) && SAME_TEXT(trouble) && SAME(self_test) && SAME(self_test_percent);
}

bool same_snapshot(const struct snapshot *a, const struct snapshot *b) {
    for (uint32_t i = 0; i < a->rank_count && SAME(rank_count); i++)
        if (!same_rank(&a->rank[i], &b->rank[i])) return false;
    if (!SAME_TEXT(speculation) ||
        memcmp(&a->speculated, &b->speculated, sizeof a->speculated) != 0)
        return false;
    return SAME(boot_id) && SAME(generation) && SAME(ready) && SAME(draining) &&
           SAME_TEXT(reason) && SAME_TEXT(model) && SAME(tp) && SAME(context_len) &&
           SAME(page_tok) && SAME(pages_total) && SAME(pages_free) && SAME(requests_running) &&
           SAME(requests_waiting) && SAME(requests_finished) && SAME(tokens_prompt) &&
           SAME(tokens_generated) && SAME(steps) && SAME(step_ns_last) && SAME(step_ns) &&
           SAME(compute_ns) && SAME(idle_ns) && SAME(uptime_ns) && SAME(pages_cached) &&
           SAME(pages_promised) && SAME(tokens_unused) && SAME(tokens_looked_up) &&
           SAME(tokens_cached) && SAME(tokens_recomputed) && SAME(evictions) && SAME(retractions) &&
           SAME(max_running_requests) && SAME(has_served) && SAME(rank_count) &&
           SAME(model_fingerprint) && SAME(context_promised) && SAME(kv_dtype) &&
           SAME(activation_dtype);
}

void sample_health_request(struct sample_source *source, struct health_request *message) {
    message->service = text(source, 0, NAME_BYTES_MAX);
}

bool same_health_request(const struct health_request *a, const struct health_request *b) {
    return SAME_TEXT(service);
}

void sample_health_reply(struct sample_source *source, struct health_reply *message) {
    message->health = (enum health)number(source, HEALTH_UNKNOWN, HEALTH_SERVICE_UNKNOWN);
    message->reason = text(source, 0, LINE_BYTES_MAX);
}

bool same_health_reply(const struct health_reply *a, const struct health_reply *b) {
    return SAME(health) && SAME_TEXT(reason);
}

void sample_flush_request(struct sample_source *source, struct flush_request *message) {
    message->token_count = number(source, 0, 12);
    message->token = ids(source, message->token_count, MODEL_VOCAB_MAX - 1);
}

bool same_flush_request(const struct flush_request *a, const struct flush_request *b) {
    return SAME(token_count) && same_array(a->token, b->token, a->token_count, 4);
}

void sample_resize_request(struct sample_source *source, struct resize_request *message) {
    message->tokens = number(source, 0, UINT32_MAX);
    message->max_running_requests = number(source, 0, UINT32_MAX);
    message->force = coin(source);
    message->mem_fraction = number(source, 0, FRACTION_ONE);
}

bool same_resize_request(const struct resize_request *a, const struct resize_request *b) {
    return SAME(tokens) && SAME(max_running_requests) && SAME(force) && SAME(mem_fraction);
}

void sample_resize_progress(struct sample_source *source, struct resize_progress *message) {
    *message = (struct resize_progress){
        .phase = (enum resize_phase)number(source, RESIZE_WAITING, RESIZE_SIZING),
        .page_tok = number(source, 0, KV_PAGE_TOK_MAX),
        .pages_before = number(source, 0, KV_PAGES_MAX),
        .pages_wanted = number(source, 0, KV_PAGES_MAX),
        .pages_now = number(source, 0, KV_PAGES_MAX),
        .pages_evicted = number(source, 0, UINT32_MAX),
        .pages_moved = number(source, 0, UINT32_MAX),
        .requests_retracted = number(source, 0, UINT32_MAX),
        .max_running_requests = number(source, 0, UINT32_MAX),
    };
}

bool same_resize_progress(const struct resize_progress *a, const struct resize_progress *b) {
    return SAME(phase) && SAME(page_tok) && SAME(pages_before) && SAME(pages_wanted) &&
           SAME(pages_now) && SAME(pages_evicted) && SAME(pages_moved) &&
           SAME(requests_retracted) && SAME(max_running_requests);
}

void sample_examine_request(struct sample_source *source, struct examine_request *message) {
    message->token_count = number(source, 0, 12);
    message->token = ids(source, message->token_count, MODEL_VOCAB_MAX - 1);
    message->rows = number(source, 0, TREE_ROWS_MAX);
}

bool same_examine_request(const struct examine_request *a, const struct examine_request *b) {
    return SAME(token_count) && SAME(rows) && same_array(a->token, b->token, a->token_count, 4);
}

void sample_examine_report(struct sample_source *source, struct examine_report *message) {
    *message = (struct examine_report){
        .rank = number(source, 0, TP_MAX - 1),
        .device = text(source, 0, NAME_BYTES_MAX),
        .page_count = number(source, 0, EXAMINE_PAGES_MAX),
        .pages_per_hash = number(source, 1, EXAMINE_PAGES_MAX),
        .hash_count = number(source, 0, 20),
        .attention_bytes = any(source),
        .attention_ns = any(source),
        .read_bytes = any(source),
        .read_ns = any(source),
        .collective_ns = any(source),
    };
    uint64_t *hash = array(source, message->hash_count, sizeof *hash);
    for (uint32_t i = 0; i < message->hash_count; i++)
        hash[i] = any(source);
    message->hash = hash;
}

bool same_examine_report(const struct examine_report *a, const struct examine_report *b) {
    return SAME(rank) && SAME_TEXT(device) && SAME(page_count) && SAME(pages_per_hash) &&
           SAME(hash_count) && same_array(a->hash, b->hash, a->hash_count, 8) &&
           SAME(attention_bytes) && SAME(attention_ns) && SAME(read_bytes) && SAME(read_ns) &&
           SAME(collective_ns);
}

void sample_drain_request(struct sample_source *source, struct drain_request *message) {
    message->timeout_ms = number(source, 0, INTERVAL_MS_MAX);
}

bool same_drain_request(const struct drain_request *a, const struct drain_request *b) {
    return SAME(timeout_ms);
}

/* --- coordinator and worker ----------------------------------------------------------------- */

void sample_worker_message(struct sample_source *source, struct worker_message *message) {
    *message = (struct worker_message){
        .type = (enum worker_message_type)number(source, WORKER_HELLO, WORKER_EXAMINED)};
    switch (message->type) {
    case WORKER_HELLO:
        message->hello = (struct worker_hello){
            .wire_version = number(source, 0, UINT32_MAX),
            .tp = number(source, 1, TP_MAX),
            .pid = sample_number(source, 1, UINT64_MAX),
            .process_start = any(source),
            .model_fingerprint = any(source),
            .device = text(source, 0, NAME_BYTES_MAX),
            .probe = text(source, 0, NAME_BYTES_MAX),
        };
        message->hello.rank = number(source, 0, message->hello.tp - 1);
        if (coin(source)) {
            message->hello.draft_fingerprint = sample_number(source, 1, UINT64_MAX);
            message->hello.draft_len = number(source, 1, DRAFT_LEN_MAX);
        }
        break;
    case WORKER_LOAD_PROGRESS:
        message->load_progress.bytes = any(source);
        message->load_progress.bytes_total = any(source);
        break;
    case WORKER_LOADED:
        message->loaded.bytes = any(source);
        message->loaded.elapsed_ns = any(source);
        message->loaded.page_count = number(source, 0, KV_PAGES_MAX);
        message->loaded.fraction_needed = number(source, 0, FRACTION_ONE);
        message->loaded.free_bytes = any(source);
        break;
    case WORKER_GROUP_KEY:
        message->group_key.generation = sample_number(source, 1, UINT64_MAX);
        message->group_key.key = text_bytes(source, 0, GROUP_KEY_BYTES_MAX);
        break;
    case WORKER_JOINED: message->joined.generation = sample_number(source, 1, UINT64_MAX); break;
    case WORKER_HEARTBEAT:
        message->heartbeat.generation = any(source);
        message->heartbeat.step = any(source);
        message->heartbeat.collective_seq = any(source);
        message->heartbeat.computing = coin(source);
        message->heartbeat.collective_ns = any(source);
        message->heartbeat.self_test = (enum self_test)number(source, SELF_TEST_NONE,
                                                              SELF_TEST_COLLECTIVE);
        message->heartbeat.self_test_percent = number(source, 0, 100);
        break;
    case WORKER_STEP_RESULT: sample_result(source, &message->step_result); break;
    case WORKER_FAULT:
        message->fault.generation = any(source);
        message->fault.step = any(source);
        message->fault.status = (enum status)number(source, 1, STATUS_COUNT - 1);
        message->fault.text = text(source, 0, LINE_BYTES_MAX);
        message->fault.fatal = coin(source);
        break;
    case WORKER_RESIZED:
        message->resized.generation = sample_number(source, 1, UINT64_MAX);
        message->resized.number = number(source, 0, UINT32_MAX);
        message->resized.status = (enum status)number(source, STATUS_OK, STATUS_COUNT - 1);
        message->resized.text = text(source, 0, LINE_BYTES_MAX);
        message->resized.free_bytes = any(source);
        break;
    case WORKER_SIZED:
        message->sized.generation = sample_number(source, 1, UINT64_MAX);
        message->sized.number = number(source, 0, UINT32_MAX);
        message->sized.page_count = number(source, 0, KV_PAGES_MAX);
        message->sized.fraction_needed = number(source, 0, FRACTION_ONE);
        break;
    case WORKER_EXAMINED:
        message->examined.generation = sample_number(source, 1, UINT64_MAX);
        message->examined.number = number(source, 0, UINT32_MAX);
        message->examined.status = (enum status)number(source, STATUS_OK, STATUS_COUNT - 1);
        message->examined.text = text(source, 0, LINE_BYTES_MAX);
        sample_examine_report(source, &message->examined.report);
        break;
    }
}

bool same_worker_message(const struct worker_message *a, const struct worker_message *b) {
    if (!SAME(type)) return false;
    switch (a->type) {
    case WORKER_HELLO:
        return SAME(hello.wire_version) && SAME(hello.rank) && SAME(hello.tp) && SAME(hello.pid) &&
               SAME(hello.process_start) && SAME(hello.model_fingerprint) &&
               SAME_TEXT(hello.device) && SAME_TEXT(hello.probe) && SAME(hello.draft_fingerprint) &&
               SAME(hello.draft_len);
    case WORKER_LOAD_PROGRESS: return SAME(load_progress.bytes) && SAME(load_progress.bytes_total);
    case WORKER_LOADED:
        return SAME(loaded.bytes) && SAME(loaded.elapsed_ns) && SAME(loaded.page_count) &&
               SAME(loaded.fraction_needed) && SAME(loaded.free_bytes);
    case WORKER_GROUP_KEY:
        return SAME(group_key.generation) && same_bytes(a->group_key.key, b->group_key.key);
    case WORKER_JOINED: return SAME(joined.generation);
    case WORKER_HEARTBEAT:
        return SAME(heartbeat.generation) && SAME(heartbeat.step) &&
               SAME(heartbeat.collective_seq) && SAME(heartbeat.computing) &&
               SAME(heartbeat.collective_ns) && SAME(heartbeat.self_test) &&
               SAME(heartbeat.self_test_percent);
    case WORKER_STEP_RESULT: return same_result(&a->step_result, &b->step_result);
    case WORKER_FAULT:
        return SAME(fault.generation) && SAME(fault.step) && SAME(fault.status) &&
               SAME_TEXT(fault.text) && SAME(fault.fatal);
    case WORKER_RESIZED:
        return SAME(resized.generation) && SAME(resized.number) && SAME(resized.status) &&
               SAME_TEXT(resized.text) && SAME(resized.free_bytes);
    case WORKER_SIZED:
        return SAME(sized.generation) && SAME(sized.number) && SAME(sized.page_count) &&
               SAME(sized.fraction_needed);
    case WORKER_EXAMINED:
        return SAME(examined.generation) && SAME(examined.number) && SAME(examined.status) &&
               SAME_TEXT(examined.text) &&
               same_examine_report(&a->examined.report, &b->examined.report);
    }
    return false;
}

static void sample_resize(struct sample_source *source, struct control_resize *resize) {
    *resize = (struct control_resize){
        .generation = sample_number(source, 1, UINT64_MAX),
        .number = number(source, 0, UINT32_MAX),
        .page_count = number(source, 1, KV_PAGES_MAX),
        .move_count = number(source, 0, 20),
    };
    struct page_move *move = array(source, resize->move_count, sizeof *move);
    for (uint32_t i = 0; i < resize->move_count; i++)
        move[i] = (struct page_move){.source = number(source, 0, KV_PAGES_MAX - 1),
                                     .target = number(source, 0, KV_PAGES_MAX - 1)};
    resize->move = move;
}

void sample_control_message(struct sample_source *source, struct control_message *message) {
    *message = (struct control_message){
        .type = (enum control_message_type)number(source, CONTROL_WELCOME, CONTROL_EXAMINE)};
    if (coin(source)) message->type = CONTROL_STEP_PLAN;
    switch (message->type) {
    case CONTROL_WELCOME:
        message->welcome = (struct control_welcome){
            .coordinator_pid = sample_number(source, 1, UINT64_MAX),
            .coordinator_start = any(source),
            .boot_id = any(source),
            .heartbeat_ms = number(source, 1, INTERVAL_MS_MAX),
            .max_rows = number(source, 1, PLAN_ROWS_MAX),
            .max_sequences = number(source, 1, PLAN_SEQS_MAX),
            .page_tok = number(source, 1, KV_PAGE_TOK_MAX),
            .page_count = number(source, 1, KV_PAGES_MAX),
            .page_cap = KV_PAGES_MAX,
            .context_len = number(source, 1, CONTEXT_TOK_MAX),
            .kv_dtype = coin(source)   ? KV_F32
                        : coin(source) ? KV_FP8
                                       : KV_BF16,
            .mem_fraction = number(source, 0, FRACTION_ONE),
            .activation_dtype = (enum activation_dtype)number(source, 0, ACTIVATION_INT8),
            .prefill_form = coin(source) ? PREFILL_EXPANDED : PREFILL_ABSORBED,
            .self_test = coin(source),
        };
        break;
    case CONTROL_REFUSE:
        message->refuse.status = (enum status)number(source, 1, STATUS_COUNT - 1);
        message->refuse.text = text(source, 0, LINE_BYTES_MAX);
        break;
    case CONTROL_PREPARE_GROUP:
        message->group.generation = sample_number(source, 1, UINT64_MAX);
        message->group.size = number(source, 1, TP_MAX);
        break;
    case CONTROL_FORM_GROUP:
        message->group.generation = sample_number(source, 1, UINT64_MAX);
        message->group.size = number(source, 1, TP_MAX);
        message->group.key = text_bytes(source, message->group.size > 1, GROUP_KEY_BYTES_MAX);
        message->group.page_count = number(source, 1, KV_PAGES_MAX);
        break;
    case CONTROL_STEP_PLAN: sample_plan(source, &message->step_plan); break;
    case CONTROL_END_GENERATION:
        message->end_generation.generation = sample_number(source, 1, UINT64_MAX);
        message->end_generation.text = text(source, 0, LINE_BYTES_MAX);
        break;
    case CONTROL_SHUTDOWN: break;
    case CONTROL_RESIZE: sample_resize(source, &message->resize); break;
    case CONTROL_SIZE:
        message->size.generation = sample_number(source, 1, UINT64_MAX);
        message->size.number = number(source, 0, UINT32_MAX);
        message->size.mem_fraction = number(source, 1, FRACTION_ONE);
        break;
    case CONTROL_EXAMINE:
        message->examine = (struct control_examine){
            .generation = sample_number(source, 1, UINT64_MAX),
            .number = number(source, 0, UINT32_MAX),
            .page_count = number(source, 0, 20),
            .rows = number(source, 0, TREE_ROWS_MAX),
        };
        message->examine.page = ids(source, message->examine.page_count, KV_PAGES_MAX - 1);
        break;
    }
}

bool same_control_message(const struct control_message *a, const struct control_message *b) {
    if (!SAME(type)) return false;
    switch (a->type) {
    case CONTROL_WELCOME:
        return SAME(welcome.coordinator_pid) && SAME(welcome.coordinator_start) &&
               SAME(welcome.boot_id) && SAME(welcome.heartbeat_ms) && SAME(welcome.max_rows) &&
               SAME(welcome.max_sequences) && SAME(welcome.page_tok) && SAME(welcome.page_count) &&
               SAME(welcome.context_len) && SAME(welcome.kv_dtype) && SAME(welcome.page_cap) &&
               SAME(welcome.mem_fraction) && SAME(welcome.activation_dtype) &&
               SAME(welcome.self_test) && SAME(welcome.prefill_form);
    case CONTROL_REFUSE: return SAME(refuse.status) && SAME_TEXT(refuse.text);
    case CONTROL_PREPARE_GROUP:
    case CONTROL_FORM_GROUP:
        return SAME(group.generation) && SAME(group.size) &&
               same_bytes(a->group.key, b->group.key) && SAME(group.page_count);
    case CONTROL_STEP_PLAN: return same_plan(&a->step_plan, &b->step_plan);
    case CONTROL_END_GENERATION:
        return SAME(end_generation.generation) && SAME_TEXT(end_generation.text);
    case CONTROL_SHUTDOWN: return true;
    case CONTROL_RESIZE:
        return SAME(resize.generation) && SAME(resize.number) && SAME(resize.page_count) &&
               SAME(resize.move_count) &&
               same_array(a->resize.move, b->resize.move, a->resize.move_count,
                          sizeof *a->resize.move);
    case CONTROL_SIZE: return SAME(size.generation) && SAME(size.number) && SAME(size.mem_fraction);
    case CONTROL_EXAMINE:
        return SAME(examine.generation) && SAME(examine.number) && SAME(examine.page_count) &&
               SAME(examine.rows) &&
               same_array(a->examine.page, b->examine.page, a->examine.page_count, 4);
    }
    return false;
}

/* --- steps ---------------------------------------------------------------------------------- */

static bool is_big(struct sample_source *source) {
    return source->big_one_in && next(source) % source->big_one_in == 0;
}

static void sample_sequence(struct sample_source *source, struct plan_sequence *sequence) {
    bool wants = sequence->kind == PLAN_TREE || coin(source);
    sequence->want = wants ? PLAN_WANT_TOKEN : PLAN_WANT_NOTHING;
    sequence->committed = number(source, 0, CONTEXT_TOK_MAX - sequence->row_count);
    sequence->prefix_hash = any(source);
    if (coin(source))
        sequence->page_base = number(source, 0, CONTEXT_TOK_MAX - PLAN_EXTENTS_MAX * 8);
    sequence->logprobs = coin(source);
    if (sequence->logprobs) sequence->top_logprobs = number(source, 0, TOP_LOGPROBS_MAX);
    sequence->temperature = real(source, 0, 3);
    sequence->top_p = sequence->want == PLAN_WANT_TOKEN ? real(source, 0.01f, 1) : 0;
    sequence->top_k = number(source, 0, MODEL_VOCAB_MAX);
    sequence->choice = number(source, 0, UINT32_MAX);
    sequence->seed = any(source);
    sequence->mask_id = number(source, 0, UINT32_MAX);
    sequence->min_p = real(source, 0, 1);
    sequence->repetition_penalty = real(source, 0, REPETITION_PENALTY_MAX);
    sequence->presence_penalty = real(source, -REPLY_PENALTY_MAX, REPLY_PENALTY_MAX);
    sequence->frequency_penalty = real(source, -REPLY_PENALTY_MAX, REPLY_PENALTY_MAX);
    sequence->reply_begin = number(source, 0, CONTEXT_TOK_MAX);
}

/* Of sequences whose slots begin with this plan. */
static void sample_biases(struct sample_source *source, struct step_plan *plan,
                          struct plan_sequence *sequence, bool big) {
    struct logit_bias *all = array(source, PLAN_BIASES_MAX, sizeof *all);
    for (uint32_t i = 0; i < plan->sequence_count; i++) {
        struct plan_sequence *one = &sequence[i];
        if (big) one->page_base = 0;
        uint32_t most = big ? PLAN_BIASES_MAX / plan->sequence_count : 5;
        one->bias_begin = plan->bias_count;
        one->bias_count = one->page_base > 0 ? 0 : big ? most : number(source, 0, most);
        const struct logit_bias *own = biases(source, one->bias_count);
        for (uint32_t k = 0; k < one->bias_count; k++)
            all[plan->bias_count++] = own[k];
    }
    plan->bias = all;
}

/* Guesses behind what the sequences draw, as many as fit a step. */
static void sample_draft_lens(struct sample_source *source, struct plan_sequence *sequence,
                              uint32_t count) {
    uint32_t each = DRAFT_POSITIONS_MAX / count;
    for (uint32_t i = 0; i < count; i++)
        if (sequence[i].want == PLAN_WANT_TOKEN)
            sequence[i].draft_len = number(source, 0, each < DRAFT_LEN_MAX ? each : DRAFT_LEN_MAX);
}

/* Any tokens, but different ones in a tree. */
static const uint32_t *row_tokens(struct sample_source *source, const struct step_plan *plan) {
    uint32_t *token = array(source, plan->row_count, sizeof *token);
    for (uint32_t i = 0; i < plan->sequence_count; i++) {
        const struct plan_sequence *one = &plan->sequence[i];
        uint32_t first = number(source, 0, MODEL_VOCAB_MAX - TREE_ROWS_MAX);
        for (uint32_t row = 0; row < one->row_count; row++)
            token[one->row_begin + row] = one->kind == PLAN_TREE
                                              ? first + row
                                              : number(source, 0, MODEL_VOCAB_MAX - 1);
    }
    return token;
}

static void sample_plan(struct sample_source *source, struct step_plan *plan) {
    bool big = is_big(source), trees = coin(source);
    uint32_t count = big ? PLAN_SEQS_MAX : number(source, 1, 12);
    uint32_t extent_max = big ? PLAN_EXTENTS_MAX / count : 3;
    *plan = (struct step_plan){
        .generation = sample_number(source, 1, UINT64_MAX),
        .step = sample_number(source, 1, UINT64_MAX),
        .sequence_count = count,
        .copy_count = big ? PLAN_EXTENTS_MAX : number(source, 0, 4),
        .release_count = big ? PLAN_SEQS_MAX : number(source, 0, 4),
    };
    struct plan_sequence *sequence = array(source, count, sizeof *sequence);
    uint32_t *parent = array(source, PLAN_ROWS_MAX, sizeof *parent);
    uint32_t rotation = number(source, 0, PLAN_SEQS_MAX - 1);
    for (uint32_t i = 0; i < count; i++) {
        struct plan_sequence *one = &sequence[i];
        one->slot = (rotation + i * 7) % PLAN_SEQS_MAX; /* 7 and 1024 share no factor */
        one->kind = trees && coin(source) ? PLAN_TREE : PLAN_CHAIN;
        one->row_begin = plan->row_count;
        one->row_count = big ? PLAN_ROWS_MAX / count
                             : number(source, 1, one->kind == PLAN_TREE ? TREE_ROWS_MAX : 100);
        one->extent_begin = plan->extent_count;
        one->extent_count = big ? extent_max : number(source, 0, extent_max);
        sample_sequence(source, one);
        uint32_t *row_parent = parent + plan->row_count;
        row_parent[0] = PLAN_NO_PARENT;
        for (uint32_t row = 1; row < one->row_count; row++)
            row_parent[row] = one->kind == PLAN_TREE ? number(source, 0, row - 1) : row - 1;
        plan->row_count += one->row_count;
        plan->extent_count += one->extent_count;
    }
    sample_biases(source, plan, sequence, big);
    plan->sequence = sequence;
    plan->token = row_tokens(source, plan);
    plan->parent = trees ? parent : NULL;
    plan->draft_top = number(source, 0, DRAFT_TOP_MAX);
    if (plan->draft_top > 0) sample_draft_lens(source, sequence, count);

    struct page_extent *extent = array(source, plan->extent_count, sizeof *extent);
    for (uint32_t i = 0; i < plan->extent_count; i++) {
        extent[i].page_count = number(source, 1, 8);
        extent[i].first_page = number(source, 0, KV_PAGES_MAX - extent[i].page_count);
    }
    plan->extent = extent;
    struct page_copy *copy = array(source, plan->copy_count, sizeof *copy);
    for (uint32_t i = 0; i < plan->copy_count; i++) {
        copy[i].source = number(source, 0, KV_PAGES_MAX - 1);
        copy[i].target = (copy[i].source + 1) % KV_PAGES_MAX;
        copy[i].tok_count = number(source, 1, KV_PAGE_TOK_MAX);
    }
    plan->copy = copy;
    uint32_t *release = array(source, plan->release_count, sizeof *release);
    for (uint32_t i = 0; i < plan->release_count; i++)
        release[i] = (rotation + i * 5) % PLAN_SEQS_MAX;
    plan->release = release;
}

static bool same_sequence(const struct plan_sequence *a, const struct plan_sequence *b) {
    return SAME(slot) && SAME(kind) && SAME(row_begin) && SAME(row_count) && SAME(committed) &&
           SAME(prefix_hash) && SAME(page_base) && SAME(extent_begin) && SAME(extent_count) &&
           SAME(want) && SAME(logprobs) && SAME(top_logprobs) && SAME(temperature) && SAME(top_p) &&
           SAME(top_k) && SAME(choice) && SAME(seed) && SAME(mask_id) && SAME(min_p) &&
           SAME(repetition_penalty) && SAME(presence_penalty) && SAME(frequency_penalty) &&
           SAME(reply_begin) && SAME(bias_begin) && SAME(bias_count) && SAME(draft_len);
}

static bool same_plan(const struct step_plan *a, const struct step_plan *b) {
    if (!SAME(row_count) || !SAME(sequence_count) || !SAME(extent_count) || !SAME(copy_count) ||
        !SAME(release_count) || !SAME(bias_count) || !SAME(draft_top) ||
        (a->parent == NULL) != (b->parent == NULL))
        return false;
    for (uint32_t i = 0; i < a->sequence_count; i++)
        if (!same_sequence(&a->sequence[i], &b->sequence[i])) return false;
    return SAME(generation) && SAME(step) && same_array(a->token, b->token, a->row_count, 4) &&
           (!a->parent || same_array(a->parent, b->parent, a->row_count, 4)) &&
           same_array(a->extent, b->extent, a->extent_count, sizeof *a->extent) &&
           same_array(a->copy, b->copy, a->copy_count, sizeof *a->copy) &&
           same_array(a->release, b->release, a->release_count, 4) &&
           same_array(a->bias, b->bias, a->bias_count, sizeof *a->bias);
}

static void sample_drafts(struct sample_source *source, struct step_result *result) {
    uint32_t top = result->draft_top;
    float *lse = array(source, result->draft_count, sizeof *lse);
    struct draft_candidate *candidate = array(source, (size_t)result->draft_count * top,
                                              sizeof *candidate);
    for (uint32_t i = 0; i < result->draft_count; i++) {
        lse[i] = real(source, -1e30f, 1e30f);
        uint32_t token = number(source, 0, MODEL_VOCAB_MAX - DRAFT_TOP_MAX);
        float logit = real(source, -100, 100);
        for (uint32_t j = 0; j < top; j++) {
            candidate[i * top + j] = (struct draft_candidate){.token = token + j, .logit = logit};
            if (coin(source)) logit -= 1;
        }
    }
    result->draft_lse = lse;
    result->candidate = candidate;
}

static void sample_result(struct sample_source *source, struct step_result *result) {
    bool big = is_big(source);
    *result = (struct step_result){
        .generation = sample_number(source, 1, UINT64_MAX),
        .step = sample_number(source, 1, UINT64_MAX),
        .rank = number(source, 0, TP_MAX - 1),
        .state_hash = any(source),
        .compute_ns = any(source),
        .idle_ns = any(source),
        .draft_ns = any(source),
        .draft_top = big ? DRAFT_TOP_MAX : number(source, 1, DRAFT_TOP_MAX),
        .sequence_count = big ? PLAN_SEQS_MAX : number(source, 0, 12),
    };
    struct result_sequence *sequence = array(source, result->sequence_count, sizeof *sequence);
    for (uint32_t i = 0; i < result->sequence_count; i++) {
        sequence[i].slot = PLAN_SEQS_MAX - 1 - i;
        sequence[i].token_begin = result->token_count;
        sequence[i].token_count = big ? PLAN_ROWS_MAX / PLAN_SEQS_MAX : number(source, 0, 4);
        result->token_count += sequence[i].token_count;
        sequence[i].draft_begin = result->draft_count;
        sequence[i].draft_count = big ? DRAFT_POSITIONS_MAX / PLAN_SEQS_MAX
                                      : number(source, 0, DRAFT_LEN_MAX);
        result->draft_count += sequence[i].draft_count;
    }
    sample_drafts(source, result);
    result->sequence = sequence;
    result->token = ids(source, result->token_count, MODEL_VOCAB_MAX - 1);
    result->logprob_count = result->token_count * (big ? 1 + TOP_LOGPROBS_MAX : 1);
    if (!big && coin(source)) result->logprob_count = 0;
    result->logprob = logprobs(source, result->logprob_count);
}

static bool same_result(const struct step_result *a, const struct step_result *b) {
    return SAME(generation) && SAME(step) && SAME(rank) && SAME(state_hash) && SAME(compute_ns) &&
           SAME(idle_ns) && SAME(sequence_count) &&
           same_array(a->sequence, b->sequence, a->sequence_count, sizeof *a->sequence) &&
           SAME(token_count) && same_array(a->token, b->token, a->token_count, 4) &&
           SAME(logprob_count) &&
           same_array(a->logprob, b->logprob, a->logprob_count, sizeof *a->logprob) &&
           SAME(draft_count) && SAME(draft_top) && SAME(draft_ns) &&
           same_array(a->draft_lse, b->draft_lse, a->draft_count, sizeof *a->draft_lse) &&
           same_array(a->candidate, b->candidate, (size_t)a->draft_count * a->draft_top,
                      sizeof *a->candidate);
}

/* --- by index ------------------------------------------------------------------------------- */

#define X(name, type)                                                                              \
    _Static_assert(sizeof(type) <= SAMPLE_MESSAGE_BYTES_MAX, "room for any message");              \
    static void any_sample_##name(struct sample_source *source, void *message) {                   \
        sample_##name(source, message);                                                            \
    }                                                                                              \
    static bool any_same_##name(const void *a, const void *b) {                                    \
        return same_##name(a, b);                                                                  \
    }                                                                                              \
    static struct bytes any_encode_##name(const void *message, struct arena *arena) {              \
        return codec_encode_##name(message, arena);                                                \
    }                                                                                              \
    static enum status any_decode_##name(struct bytes wire, struct arena *arena, void *message,    \
                                         struct error *err) {                                      \
        return codec_decode_##name(wire, arena, message, err);                                     \
    }
CODEC_TABLE(X)
#undef X

const struct codec_case codec_samples_case[CODEC_CASE_COUNT] = {
#define X(name, type)                                                                              \
    {#name, any_sample_##name, any_same_##name, any_encode_##name, any_decode_##name},
    CODEC_TABLE(X)
#undef X
};
