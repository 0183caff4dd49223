#include "core_options.h"

#include "text/vocab.h"

#define QUEUED_MAX       16384u
#define MEMORY_BYTES_MAX (UINT64_C(4) << 30)

static enum status check_range(const char *flag, uint64_t found, uint64_t minimum, uint64_t maximum,
                               struct error *err) {
    if (found >= minimum && found <= maximum) return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT, "%s: found %llu, accepted: %llu to %llu", flag,
                     (unsigned long long)found, (unsigned long long)minimum,
                     (unsigned long long)maximum);
}

enum status core_options_check(const struct core_options *options, struct error *err) {
    const struct {
        const char *flag;
        uint64_t found, minimum, maximum;
    } range[] = {
        {"--tp", options->tp, 1, TP_MAX},
        {"--context-length", options->context_len, 2, CONTEXT_TOK_MAX},
        {"--page-size", options->page_tok, 1, KV_PAGE_TOK_MAX},
        {"pages of the pool", options->page_count, 1, UINT32_MAX / 64},
        {"--max-total-tokens-cap", options->page_cap, 0, KV_PAGES_MAX},
        {"--max-running-requests", options->max_running_requests, 1, PLAN_SEQS_MAX},
        {"--max-running-cap", options->max_running_cap, 0, PLAN_SEQS_MAX},
        {"--max-queued-requests", options->max_queued_requests, 1, QUEUED_MAX},
        {"--chunked-prefill-size", options->chunked_prefill_size, 1, UINT32_MAX},
        {"--max-step-rows", options->max_step_rows, 0, PLAN_ROWS_MAX},
        {"--speculative-algorithm", options->speculative_algorithm, 0, SPECULATE_AUTO},
        {"--speculative-num-draft-tokens", options->speculative_tree_rows,
         options->speculative_algorithm == SPECULATE_NONE ? 0 : 2, TREE_ROWS_MAX},
        {"--speculative-history-tokens", options->speculative_history_tok, 0, CONTEXT_TOK_MAX},
        {"--schedule-policy", options->schedule_policy, 0, SCHEDULE_PRIORITY},
        {"--heartbeat", options->heartbeat_ms, 1, UINT32_MAX},
        {"--step-timeout", options->step_timeout_ms, (uint64_t)2 * options->heartbeat_ms,
         UINT32_MAX},
        {"--load-timeout", options->load_timeout_ms, (uint64_t)2 * options->heartbeat_ms,
         UINT32_MAX},
        {"tokens of the vocabulary", vocab_size(options->vocab), options->spec->vocab, UINT32_MAX},
    };
    for (size_t i = 0; i < sizeof range / sizeof range[0]; i++) {
        enum status status = check_range(range[i].flag, range[i].found, range[i].minimum,
                                         range[i].maximum, err);
        if (status != STATUS_OK) return status;
    }
    if (options->max_step_rows > 0 && options->max_step_rows < options->max_running_requests) {
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--max-step-rows: found %u, accepted: %u or more, a row for each of "
                         "--max-running-requests, or 0",
                         options->max_step_rows, options->max_running_requests);
    }
    uint64_t pool_tok = (uint64_t)options->page_count * options->page_tok;
    if (pool_tok >= options->context_len || options->allow_short_pool) return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "the pool holds %llu tokens and cannot hold one request of --context-length "
                     "%u; raise --max-total-tokens, lower --context-length, or accept it with "
                     "--allow-short-pool",
                     (unsigned long long)pool_tok, options->context_len);
}

enum status core_options_check_memory(size_t memory_bytes, struct error *err) {
    if (memory_bytes <= MEMORY_BYTES_MAX) return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "the coordinator's tables would need %zu bytes, accepted: up to %llu; "
                     "lower --max-running-requests or --context-length, or raise --page-size",
                     memory_bytes, (unsigned long long)MEMORY_BYTES_MAX);
}
