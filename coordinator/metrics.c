#include "metrics.h"

#include <stdio.h>

#include "base/clock.h"
#include "exposition.h"

/* One number under one name. */
struct line {
    const char *name, *type, *help;
    double value;
};

static void put_lines(struct exposition *out, const char *labels, const struct line *line,
                      size_t count) {
    for (size_t i = 0; i < count; i++) {
        exposition_family(out, line[i].name, line[i].type, line[i].help);
        exposition_value(out, labels, line[i].value);
    }
}

static double seconds(uint64_t ns) {
    return (double)ns / (double)NS_PER_S;
}

static double share(uint64_t part, uint64_t whole) {
    return whole == 0 ? 0 : (double)part / (double)whole;
}

static uint32_t pages_used(const struct snapshot *now) {
    return now->pages_total - now->pages_free - now->pages_cached;
}

static void put_group(struct exposition *out, const struct snapshot *now) {
    const struct line line[] = {
        {"espalier_ready", "gauge", "1 where calls are served.",
         now->ready && now->reason[0] == '\0'},
        {"espalier_draining", "gauge", "1 where no new calls are accepted.", now->draining},
        {"espalier_uptime_seconds", "gauge", "Since the coordinator started.",
         seconds(now->uptime_ns)},
        {"espalier_group_generation", "gauge", "How many groups the workers have formed so far.",
         (double)now->generation},
        {"espalier_context_length_tokens", "gauge", "The longest request, reply included.",
         now->context_len},
        {"espalier_max_running_requests", "gauge", "Requests that may have a place in the batch.",
         now->max_running_requests},
        {"espalier_num_requests_running", "gauge", "Requests that have a place in the batch.",
         now->requests_running},
        {"espalier_num_requests_waiting", "gauge", "Requests that wait for one.",
         now->requests_waiting},
        {"espalier_requests_finished_total", "counter", "Calls that have ended, however they did.",
         (double)now->requests_finished},
        {"espalier_retractions_total", "counter", "Requests sent back to wait for want of room.",
         (double)now->retractions},
        {"espalier_prompt_tokens_total", "counter", "Prompt tokens computed.",
         (double)now->tokens_prompt},
        {"espalier_generation_tokens_total", "counter", "Tokens drawn.",
         (double)now->tokens_generated},
        {"espalier_recomputed_tokens_total", "counter", "Tokens computed again after a retraction.",
         (double)now->tokens_recomputed},
        {"espalier_steps_total", "counter", "Steps that every rank has finished.",
         (double)now->steps},
        {"espalier_step_compute_seconds_total", "counter", "Time in steps on the slowest rank.",
         seconds(now->compute_ns)},
        {"espalier_step_idle_seconds_total", "counter",
         "Time between steps on rank 0 while there was something to do.", seconds(now->idle_ns)},
    };
    put_lines(out, "", line, sizeof line / sizeof *line);
}

static void put_pool(struct exposition *out, const struct snapshot *now) {
    double page_tok = now->page_tok;
    const struct line line[] = {
        {"espalier_kv_pool_capacity_tokens", "gauge", "Tokens the KV pool holds.",
         page_tok * now->pages_total},
        {"espalier_kv_pool_promised_tokens", "gauge",
         "Tokens running requests may need at most; above the capacity it is over-committed.",
         page_tok * (double)now->pages_promised},
        {"espalier_kv_pool_unused_tokens", "gauge", "Places of pages in use that hold no token.",
         (double)now->tokens_unused},
        {"espalier_kv_cache_usage_ratio", "gauge", "Part of the KV pool that requests use.",
         share(pages_used(now), now->pages_total)},
        {"espalier_prefix_cache_queries_total", "counter",
         "Prompt tokens looked up in the prefix cache.", (double)now->tokens_looked_up},
        {"espalier_prefix_cache_hits_total", "counter", "Prompt tokens found there.",
         (double)now->tokens_cached},
        {"espalier_prefix_cache_hit_ratio", "gauge", "Hits by queries since the start.",
         share(now->tokens_cached, now->tokens_looked_up)},
        {"espalier_prefix_cache_evicted_tokens_total", "counter",
         "Tokens that left the prefix cache for want of room.", page_tok * (double)now->evictions},
    };
    exposition_family(out, "espalier_kv_pool_tokens", "gauge", "Tokens of the KV pool by state.");
    exposition_value(out, "state=\"free\"", page_tok * now->pages_free);
    exposition_value(out, "state=\"cached\"", page_tok * now->pages_cached);
    exposition_value(out, "state=\"used\"", page_tok * pages_used(now));
    put_lines(out, "", line, sizeof line / sizeof *line);
}

/* A family with a sample for each source of guesses. */
static void put_by_source(struct exposition *out, const char *name, const char *help,
                          const uint64_t *count) {
    static const char *const labels[SPECULATION_SOURCES] = {
        "source=\"drafter\"", "source=\"own_text\"", "source=\"shared_text\""};
    exposition_family(out, name, "counter", help);
    for (uint32_t source = 0; source < SPECULATION_SOURCES; source++)
        exposition_count(out, labels[source], count[source]);
}

static void put_speculation(struct exposition *out, const struct speculation_counts *counts) {
    exposition_family(out, "espalier_spec_trees_total", "counter",
                      "Sequences in steps that had guesses verified.");
    exposition_count(out, "", counts->trees);
    put_by_source(out, "espalier_spec_draft_tokens_total", "Guesses verified, by who made them.",
                  counts->source_guesses);
    put_by_source(out, "espalier_spec_accepted_tokens_total",
                  "Guesses that were right, by who made them.", counts->source_accepted);
    exposition_family(out, "espalier_spec_accepted_by_depth_total", "counter",
                      "Trees whose walk came so deep; the last depth counts all deeper ones.");
    for (uint32_t depth = 1; depth <= SPECULATION_DEPTHS; depth++) {
        char labels[EXPOSITION_LABELS_MAX];
        snprintf(labels, sizeof labels, "depth=\"%u\"", depth);
        exposition_count(out, labels, counts->accepted[depth - 1]);
    }
}

static double is_ready(const struct rank_status *rank) {
    return rank->state == RANK_READY && rank->trouble[0] == '\0';
}

static double heartbeat_age(const struct rank_status *rank) {
    return seconds(rank->heartbeat_age_ns);
}

static double step_of(const struct rank_status *rank) {
    return (double)rank->step;
}

static double load_bytes(const struct rank_status *rank) {
    return (double)rank->load_bytes;
}

static double collective(const struct rank_status *rank) {
    return seconds(rank->collective_ns);
}

static void put_ranks(struct exposition *out, const struct snapshot *now) {
    static const struct {
        const char *name, *type, *help;
        double (*value)(const struct rank_status *rank);
    } family[] = {
        {"espalier_rank_ready", "gauge", "1 where the rank is in the group and well.", is_ready},
        {"espalier_rank_heartbeat_age_seconds", "gauge", "Since the rank was last heard.",
         heartbeat_age},
        {"espalier_rank_step", "gauge", "The last step of the generation it has finished.",
         step_of},
        {"espalier_rank_loaded_bytes", "gauge", "Bytes of weights it has read.", load_bytes},
        {"espalier_rank_all_reduce_seconds_total", "counter",
         "Time its process has spent in all-reduces.", collective},
    };
    for (size_t i = 0; i < sizeof family / sizeof *family; i++) {
        exposition_family(out, family[i].name, family[i].type, family[i].help);
        for (uint32_t rank = 0; rank < now->rank_count; rank++) {
            char labels[EXPOSITION_LABELS_MAX];
            snprintf(labels, sizeof labels, "rank=\"%u\"", now->rank[rank].rank);
            exposition_value(out, labels, family[i].value(&now->rank[rank]));
        }
    }
}

static void put_times(struct exposition *out, const struct core_times *times) {
    const struct {
        const char *name, *help;
        const struct histogram *histogram;
    } family[] = {
        {"espalier_step_seconds", "A step, from its plan sent to its result applied.", times->step},
        {"espalier_request_queue_time_seconds", "From a call to its first step.", times->queue},
        {"espalier_time_to_first_token_seconds", "From a call to its first token.",
         times->first_token},
        {"espalier_inter_token_latency_seconds", "From one token of a reply to the next.",
         times->inter_token},
        {"espalier_e2e_request_latency_seconds", "From a call to its end.", times->total},
    };
    for (size_t i = 0; i < sizeof family / sizeof *family; i++) {
        exposition_family(out, family[i].name, "histogram", family[i].help);
        exposition_histogram(out, "", family[i].histogram);
    }
}

/* ---- other servers' names ------------------------------------------------------------------ */

static void put_histogram(struct exposition *out, const char *labels, const char *name,
                          const struct histogram *histogram) {
    exposition_family(out, name, "histogram", "As espalier's of the same name.");
    exposition_histogram(out, labels, histogram);
}

static void put_sglang(struct exposition *out, const char *labels, const struct snapshot *now,
                       const struct core_times *times) {
    double page_tok = now->page_tok;
    const struct line line[] = {
        {"sglang:num_running_reqs", "gauge", "Running requests.", now->requests_running},
        {"sglang:num_queue_reqs", "gauge", "Waiting requests.", now->requests_waiting},
        {"sglang:num_used_tokens", "gauge", "Tokens in use.", page_tok * pages_used(now)},
        {"sglang:token_usage", "gauge", "Part of the pool in use.",
         share(pages_used(now), now->pages_total)},
        {"sglang:max_total_num_tokens", "gauge", "Tokens of the pool.",
         page_tok * now->pages_total},
        {"sglang:kv_available_tokens", "gauge", "Free tokens.", page_tok * now->pages_free},
        {"sglang:kv_evictable_tokens", "gauge", "Cached tokens.", page_tok * now->pages_cached},
        {"sglang:cache_hit_rate", "gauge", "Prefix cache hits by queries.",
         share(now->tokens_cached, now->tokens_looked_up)},
        {"sglang:prompt_tokens_total", "counter", "Prompt tokens.", (double)now->tokens_prompt},
        {"sglang:generation_tokens_total", "counter", "Tokens drawn.",
         (double)now->tokens_generated},
        {"sglang:num_requests_total", "counter", "Requests ended.", (double)now->requests_finished},
        {"sglang:num_retracted_requests_total", "counter", "Retractions.",
         (double)now->retractions},
        {"sglang:evicted_tokens_total", "counter", "Tokens evicted.",
         page_tok * (double)now->evictions},
    };
    put_lines(out, labels, line, sizeof line / sizeof *line);
    put_histogram(out, labels, "sglang:queue_time_seconds", times->queue);
    put_histogram(out, labels, "sglang:time_to_first_token_seconds", times->first_token);
    put_histogram(out, labels, "sglang:inter_token_latency_seconds", times->inter_token);
    put_histogram(out, labels, "sglang:e2e_request_latency_seconds", times->total);
}

static uint64_t accepted(const struct speculation_counts *counts) {
    uint64_t sum = 0;
    for (uint32_t source = 0; source < SPECULATION_SOURCES; source++)
        sum += counts->source_accepted[source];
    return sum;
}

static void put_vllm(struct exposition *out, const char *labels, const struct snapshot *now,
                     const struct core_times *times) {
    const struct line line[] = {
        {"vllm:num_requests_running", "gauge", "Running requests.", now->requests_running},
        {"vllm:num_requests_waiting", "gauge", "Waiting requests.", now->requests_waiting},
        {"vllm:kv_cache_usage_perc", "gauge", "Part of the pool in use.",
         share(pages_used(now), now->pages_total)},
        {"vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up.",
         (double)now->tokens_looked_up},
        {"vllm:prefix_cache_hits_total", "counter", "Prompt tokens found.",
         (double)now->tokens_cached},
        {"vllm:num_preemptions_total", "counter", "Retractions.", (double)now->retractions},
        {"vllm:prompt_tokens_total", "counter", "Prompt tokens.", (double)now->tokens_prompt},
        {"vllm:generation_tokens_total", "counter", "Tokens drawn.", (double)now->tokens_generated},
        {"vllm:spec_decode_num_drafts_total", "counter", "Trees verified.",
         (double)now->speculated.trees},
        {"vllm:spec_decode_num_draft_tokens_total", "counter", "Guesses verified.",
         (double)now->speculated.guesses},
        {"vllm:spec_decode_num_accepted_tokens_total", "counter", "Guesses that were right.",
         (double)accepted(&now->speculated)},
    };
    put_lines(out, labels, line, sizeof line / sizeof *line);
    put_histogram(out, labels, "vllm:request_queue_time_seconds", times->queue);
    put_histogram(out, labels, "vllm:time_to_first_token_seconds", times->first_token);
    put_histogram(out, labels, "vllm:inter_token_latency_seconds", times->inter_token);
    put_histogram(out, labels, "vllm:e2e_request_latency_seconds", times->total);
}

void metrics_answer(struct core *core, enum metrics_compat compat, int64_t now_ns,
                    struct http_answer *answer) {
    struct exposition out;
    struct snapshot now = core_snapshot(core, now_ns);
    struct core_times times = core_times(core);
    char model[EXPOSITION_LABELS_MAX];
    exposition_begin(&out, answer->body, HTTP_ANSWER_BYTES_MAX);
    exposition_family(&out, "espalier_build_info", "gauge", "The version that runs.");
    exposition_value(&out, exposition_quote("version", ESPALIER_VERSION, model), 1);
    put_group(&out, &now);
    put_pool(&out, &now);
    put_speculation(&out, &now.speculated);
    put_ranks(&out, &now);
    put_times(&out, &times);
    exposition_quote("model_name", now.model, model);
    if (compat == METRICS_SGLANG) put_sglang(&out, model, &now, &times);
    if (compat == METRICS_VLLM) put_vllm(&out, model, &now, &times);
    exposition_answer(&out, answer);
}
