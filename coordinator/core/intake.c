#include "intake.h"

#include <string.h>

#include "base/check.h"
#include "base/hash.h"

static bool is_named(const char *name) {
    return name && name[0] != '\0';
}

uint64_t intake_salt(const char *tenant) {
    return is_named(tenant) ? hash_bytes(tenant, strlen(tenant), 1) : 0;
}

/* A key is its tenant's own. Only live requests have one: when its call has ended, so has the key's
 * meaning, and a client that missed the end asks again. */
static enum status take_key(struct request_table *table, struct request *request, const char *key,
                            struct error *err) {
    if (!is_named(key)) return STATUS_OK;
    uint64_t id = hash_bytes(key, strlen(key), request->salt);
    if (id_index_find(&table->keys, id) != ID_INDEX_NONE) {
        return error_set(err, STATUS_ALREADY_EXISTS,
                         "a call with the idempotency key '%s' is live; it is not run twice", key);
    }
    id_index_put(&table->keys, id, request->id.slot);
    request->is_idempotent = true;
    return STATUS_OK;
}

enum status intake_wish(struct request_table *table, struct request *request,
                        const struct generate_request *call, const struct intake_origin *origin,
                        struct error *err) {
    CHECK(call->stop_token_count <= STOP_TOKENS_MAX && call->top_logprobs <= TOP_LOGPROBS_MAX);
    CHECK(call->sampling.logit_bias_count <= LOGIT_BIAS_MAX);
    request->sampling = call->sampling;
    request->sampling.logit_bias = NULL;
    for (uint32_t i = 0; i < call->sampling.logit_bias_count; i++)
        request->logit_bias[i] = call->sampling.logit_bias[i];
    request->seed = call->sampling.has_seed ? call->sampling.seed : origin->random;
    request->max_tokens = call->max_tokens;
    request->priority = origin->priority;
    request->salt = intake_salt(origin->tenant);
    request->logprobs = call->logprobs;
    request->top_logprobs = call->logprobs ? call->top_logprobs : 0;

    struct reply_wish *wish = &request->wish;
    wish->ignore_eos = call->ignore_eos;
    wish->keep_special = call->keep_special;
    wish->stop_token_count = call->stop_token_count;
    for (uint32_t i = 0; i < call->stop_token_count; i++)
        wish->stop_token[i] = call->stop_token[i];
    stop_set_init(&wish->stop, call->include_stop);
    for (uint32_t i = 0; i < call->stop_count; i++) {
        enum status status = stop_set_add(&wish->stop, call->stop[i], strlen(call->stop[i]), err);
        if (status != STATUS_OK) return status;
    }
    return take_key(table, request, origin->idempotency_key, err);
}

static enum status check_ids(const struct core_options *options, const struct intake_prompt *prompt,
                             struct error *err) {
    if (prompt->count == 0) {
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "the prompt is empty; at least one token is needed");
    }
    for (uint32_t i = 0; i < prompt->count; i++) {
        if (prompt->token[i] < options->spec->vocab) continue;
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "prompt token %u is %u; the model's vocabulary has ids below %u", i,
                         prompt->token[i], options->spec->vocab);
    }
    return STATUS_OK;
}

static enum status check_choices(const struct core_options *options, uint32_t choice_count,
                                 struct error *err) {
    if (choice_count <= options->max_running_requests) return STATUS_OK;
    return error_set(err, STATUS_OUT_OF_RANGE,
                     "the call wants %u choices; the group runs %u sequences at once "
                     "(--max-running-requests): it can never fit",
                     choice_count, options->max_running_requests);
}

static enum status check_bias(const struct core_options *options, const struct request *request,
                              struct error *err) {
    uint32_t count = request->sampling.logit_bias_count;
    if (count == 0) return STATUS_OK;
    uint32_t greatest = request->logit_bias[count - 1].token; /* they ascend */
    if (greatest < options->spec->vocab) return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "logit_bias names token %u; the model's vocabulary has ids below %u", greatest,
                     options->spec->vocab);
}

/* How long prompt and reply may get together, or why they cannot be. A reply is cut at the context
 * by design; only what the caller named can exceed the pool. */
static enum status find_limit(const struct core_options *options, uint32_t prompt_count,
                              uint32_t max_tokens, uint32_t *limit_out, struct error *err) {
    uint64_t pool_tok = (uint64_t)options->page_count * options->page_tok;
    if (prompt_count >= options->context_len) {
        return error_set(err, STATUS_OUT_OF_RANGE,
                         "the prompt has %u tokens and needs room for one more; the context holds "
                         "%u (--context-length)",
                         prompt_count, options->context_len);
    }
    uint64_t limit = (uint64_t)prompt_count + max_tokens;
    if (max_tokens == 0) limit = prompt_count < pool_tok ? pool_tok : (uint64_t)prompt_count + 1;
    if (limit > options->context_len) limit = options->context_len;
    if (limit > pool_tok) {
        return error_set(err, STATUS_OUT_OF_RANGE,
                         "prompt and reply need %llu tokens (%u + %llu); the pool holds %llu "
                         "(--max-total-tokens): it can never fit",
                         (unsigned long long)limit, prompt_count,
                         (unsigned long long)(limit - prompt_count), (unsigned long long)pool_tok);
    }
    *limit_out = (uint32_t)limit;
    return STATUS_OK;
}

enum status intake_prompt(struct request_table *table, struct request *request,
                          const struct core_options *options, const struct intake_prompt *prompt,
                          struct error *err) {
    enum status status = check_ids(options, prompt, err);
    if (status == STATUS_OK) status = check_bias(options, request, err);
    if (status != STATUS_OK) return status;
    status = check_choices(options, request->choice_count, err);
    if (status != STATUS_OK) return status;
    status = find_limit(options, prompt->count, request->max_tokens, &request->tok_limit, err);
    if (status != STATUS_OK) return status;
    if (!request_prompt_fits(table, prompt->count)) {
        return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                         "the prompt has %u tokens; waiting prompts already fill %u of %u blocks "
                         "of %u tokens (--max-queued-tokens)",
                         prompt->count, table->waiting_blocks, table->waiting_blocks_max,
                         TOKEN_TAPE_BLOCK_TOK);
    }
    request->prompt_count = prompt->count;
    token_tape_append(&table->tapes, &request->tape, prompt->token, prompt->count);
    reply_init(&request->reply, &request->wish, prompt->in_reasoning, request->choice_count > 1);
    return STATUS_OK;
}
