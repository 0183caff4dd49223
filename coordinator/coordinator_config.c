#include "coordinator_config.h"

#include <string.h>

#include "flags.h"
#include "memory_info.h"
#include "memory_plan.h"
#include "step_plan.h"

#define PROGRAM_NAME "espalier-coordinator"
#define NO_READY_FD  UINT32_MAX

#define READY_FD_MAX 1024u

/* The targets of those flags whose values need a second look before they are configuration. */
struct raw_flags {
    const char *run_dir;
    const char *client_endpoint, *worker_endpoint;
    const char *kv_cache_dtype;
    const char *activation_dtype;
    const char *prefill_form;
    const char *schedule_policy;
    const char *metrics_compat;
    const char *speculative_algorithm;
    const char *log_level;
    uint32_t drain_timeout_s;
    uint32_t ready_fd;
};

/* The flag's table has let nothing else through. */
static enum schedule_policy policy_of(const char *name) {
    if (strcmp(name, "shortest") == 0) return SCHEDULE_SHORTEST;
    if (strcmp(name, "longest-prefix") == 0) return SCHEDULE_LONGEST_PREFIX;
    if (strcmp(name, "priority") == 0) return SCHEDULE_PRIORITY;
    return SCHEDULE_FCFS;
}

static enum metrics_compat compat_of(const char *name) {
    if (strcmp(name, "sglang") == 0) return METRICS_SGLANG;
    return strcmp(name, "vllm") == 0 ? METRICS_VLLM : METRICS_OWN;
}

static enum activation_dtype activation_of(const char *name) {
    if (strcmp(name, "f32") == 0) return ACTIVATION_F32;
    return strcmp(name, "int8") == 0 ? ACTIVATION_INT8 : ACTIVATION_BF16;
}

static enum speculative_algorithm algorithm_of(const char *name) {
    if (strcmp(name, "suffix") == 0) return SPECULATE_SUFFIX;
    if (strcmp(name, "dflash") == 0) return SPECULATE_DFLASH;
    if (strcmp(name, "auto") == 0) return SPECULATE_AUTO;
    return SPECULATE_NONE;
}

static enum status finish(struct coordinator_config *config, const struct raw_flags *raw,
                          struct error *err) {
    if (!config->model_path)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--model-path: found nothing, accepted: a Hugging Face folder");
    enum status status = run_dir_choose(raw->run_dir, &config->run_dir, err);
    if (status != STATUS_OK) return status;
    run_dir_client_endpoint(&config->run_dir, config->client_endpoint);
    run_dir_worker_endpoint(&config->run_dir, config->worker_endpoint);
    if (raw->client_endpoint)
        snprintf(config->client_endpoint, sizeof config->client_endpoint, "%s",
                 raw->client_endpoint);
    if (raw->worker_endpoint)
        snprintf(config->worker_endpoint, sizeof config->worker_endpoint, "%s",
                 raw->worker_endpoint);
    config->kv_dtype = kv_dtype_of_name(raw->kv_cache_dtype);
    config->activation_dtype = activation_of(raw->activation_dtype);
    config->prefill_form = strcmp(raw->prefill_form, "expanded") == 0 ? PREFILL_EXPANDED
                                                                      : PREFILL_ABSORBED;
    config->schedule_policy = policy_of(raw->schedule_policy);
    config->metrics_compat = compat_of(raw->metrics_compat);
    config->speculative_algorithm = algorithm_of(raw->speculative_algorithm);
    config->drain_timeout_ms = raw->drain_timeout_s * 1000;
    config->ready_fd = raw->ready_fd == NO_READY_FD ? -1 : (int)raw->ready_fd;
    log_level_parse(raw->log_level, &config->log_level);
    return STATUS_OK;
}

bool coordinator_config_parse(int argc, char *const *argv, struct coordinator_config *config_out,
                              int *exit_code_out) {
    struct coordinator_config config = {
        .probe_address = "127.0.0.1:0",
        .tp = 1,
        .page_tok = 64,
        .max_running_requests = 8,
        .max_total_tokens_cap = MAX_TOTAL_TOKENS_CAP_DEFAULT,
        .max_queued_requests = 256,
        .chunked_prefill_size = 512,
        .speculative_tree_rows = 16,
        .speculative_history_tok = 1u << 20,
        .heartbeat_ms = 250,
        .step_timeout_ms = 60000,
        .load_timeout_ms = 120000,
        .rejoin_timeout_ms = 300000,
    };
    struct raw_flags raw = {.kv_cache_dtype = "bf16",
                            .activation_dtype = "bf16",
                            .prefill_form = "absorbed",
                            .schedule_policy = "fcfs",
                            .metrics_compat = "none",
                            .speculative_algorithm = "none",
                            .log_level = "info",
                            .drain_timeout_s = DRAIN_TIMEOUT_S_DEFAULT,
                            .ready_fd = NO_READY_FD};
    struct option table[] = {
        FLAG_MODEL_PATH(&config.model_path),
        FLAG_TP(&config.tp),
        FLAG_CONTEXT_LENGTH(&config.context_length),
        FLAG_MAX_TOTAL_TOKENS(&config.max_total_tokens),
        FLAG_MEM_FRACTION(&config.mem_fraction),
        FLAG_DEVICE_MEMORY(&config.device_bytes),
        FLAG_ALLOW_SHORT_POOL(&config.allow_short_pool),
        FLAG_MAX_TOTAL_TOKENS_CAP(&config.max_total_tokens_cap),
        FLAG_MAX_RUNNING_REQUESTS(&config.max_running_requests),
        FLAG_MAX_RUNNING_CAP(&config.max_running_cap),
        FLAG_MAX_QUEUED_REQUESTS(&config.max_queued_requests),
        FLAG_MAX_QUEUED_TOKENS(&config.max_queued_tokens),
        FLAG_QUEUE_TIMEOUT(&config.queue_timeout_ms),
        FLAG_SCHEDULE_POLICY(&raw.schedule_policy),
        FLAG_CHUNKED_PREFILL_SIZE(&config.chunked_prefill_size),
        FLAG_MAX_PREFILL_TOKENS(&config.max_prefill_tokens),
        FLAG_MAX_STEP_ROWS(&config.max_step_rows),
        FLAG_TARGET_STEP_MS(&config.target_step_ms),
        FLAG_SPECULATIVE_ALGORITHM(&raw.speculative_algorithm),
        FLAG_SPECULATIVE_NUM_DRAFT_TOKENS(&config.speculative_tree_rows),
        FLAG_SPECULATIVE_FIXED(&config.speculative_fixed),
        FLAG_SPECULATIVE_SEED_CHAIN(&config.speculative_seed_chain),
        FLAG_SPECULATIVE_HISTORY_TOKENS(&config.speculative_history_tok),
        FLAG_DISABLE_OVERLAP(&config.disable_overlap),
        FLAG_NO_SELF_TEST(&config.no_self_test),
        FLAG_DISABLE_RADIX_CACHE(&config.disable_radix_cache),
        FLAG_PAGE_SIZE(&config.page_tok),
        FLAG_KV_CACHE_DTYPE(&raw.kv_cache_dtype),
        FLAG_ACTIVATION_DTYPE(&raw.activation_dtype),
        FLAG_PREFILL_FORM(&raw.prefill_form),
        FLAG_RUN_DIR(&raw.run_dir),
        FLAG_CLIENT_ENDPOINT(&raw.client_endpoint),
        FLAG_WORKER_ENDPOINT(&raw.worker_endpoint),
        FLAG_CURVE_KEYS(&config.curve_keys, 0),
        FLAG_PROBE_ADDRESS(&config.probe_address),
        FLAG_METRICS_COMPAT(&raw.metrics_compat),
        FLAG_DRAIN_TIMEOUT(&raw.drain_timeout_s),
        FLAG_JOURNAL(&config.journal),
        {.name = "--step-timeout",
         .type = OPTION_COUNT,
         .value = &config.step_timeout_ms,
         .min = 100,
         .max = 3600000,
         .argument = "MS",
         .fallback = "60000",
         .help = "a step without result or progress for so long ends the generation"},
        {.name = "--load-timeout",
         .type = OPTION_COUNT,
         .value = &config.load_timeout_ms,
         .min = 100,
         .max = 3600000,
         .argument = "MS",
         .fallback = "120000",
         .help = "a rank that loads weights and reads nothing for so long is lost"},
        {.name = "--rejoin-timeout",
         .type = OPTION_COUNT,
         .value = &config.rejoin_timeout_ms,
         .min = 100,
         .max = 86400000,
         .argument = "MS",
         .fallback = "300000",
         .help = "a lost rank that is not back by then ends the coordinator with code 69"},
        {.name = "--heartbeat",
         .type = OPTION_COUNT,
         .value = &config.heartbeat_ms,
         .min = 10,
         .max = 10000,
         .argument = "MS",
         .fallback = "250",
         .help = "between a worker's heartbeats"},
        {.name = "--ready-fd",
         .type = OPTION_COUNT,
         .value = &raw.ready_fd,
         .min = 3,
         .max = READY_FD_MAX,
         .argument = "FD",
         .help = "an inherited descriptor: a line is written to it once the endpoints answer"},
        FLAG_LOG_DIR(&config.log_dir),
        FLAG_LOG_LEVEL(&raw.log_level),
    };
    const struct options_program program = {
        .name = PROGRAM_NAME,
        .usage = "--model-path DIR [flags]",
        .summary = "Decides what a group of workers computes, and answers its clients.",
        .option = table,
        .option_count = sizeof table / sizeof *table,
    };
    struct options_result result;
    if (!options_take(&program, argc, argv, &result, exit_code_out)) return false;
    struct error err;
    if (finish(&config, &raw, &err) != STATUS_OK) {
        *exit_code_out = options_refuse(PROGRAM_NAME, EXIT_CODE_USAGE, &err);
        return false;
    }
    *config_out = config;
    return true;
}

uint32_t coordinator_config_page_count(const struct coordinator_config *config) {
    return config->max_total_tokens / config->page_tok +
           (config->max_total_tokens % config->page_tok != 0);
}

uint32_t coordinator_config_page_cap(const struct coordinator_config *config) {
    uint32_t page_cap = config->max_total_tokens_cap / config->page_tok;
    uint32_t page_count = coordinator_config_page_count(config);
    return page_cap > page_count ? page_cap : page_count;
}

uint32_t coordinator_config_mem_fraction(const struct coordinator_config *config) {
    return (uint32_t)(config->mem_fraction * FRACTION_ONE + 0.5);
}

/* As a worker plans its own (worker/ledger), with what is known here. */
static struct memory_request memory_of(const struct coordinator_config *config,
                                       const struct checkpoint *checkpoint) {
    const struct core_options steps = {.max_running_requests = config->max_running_requests,
                                       .max_running_cap = config->max_running_cap,
                                       .speculative_algorithm = config->speculative_algorithm,
                                       .speculative_tree_rows = config->speculative_tree_rows,
                                       .chunked_prefill_size = config->chunked_prefill_size,
                                       .max_step_rows = config->max_step_rows};
    return (struct memory_request){
        .spec = &checkpoint->spec,
        .tensors = checkpoint->tensors,
        .layout = MEMORY_PANELS,
        .kv = config->kv_dtype,
        .tp = config->tp,
        .threads = 1,
        .context_len = config->context_length,
        .page_tok = config->page_tok,
        .max_running = config->max_running_cap,
        .step_rows = step_plan_rows_max(&steps),
        .free_bytes = config->device_bytes ? config->device_bytes
                                           : memory_info_available() / config->tp,
        .fraction = (double)coordinator_config_mem_fraction(config) / FRACTION_ONE,
    };
}

static enum status refuse_short_memory(const struct memory_request *request,
                                       const struct memory_plan *plan, struct error *err) {
    double fraction = memory_plan_fraction_for(request, plan, request->context_len);
    char wanted[64] = "more memory";
    if (fraction <= 1)
        snprintf(wanted, sizeof wanted, "--mem-fraction-static %.3f or more", fraction);
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--device-memory: found %.1f MiB a rank, which hold a pool of %llu tokens and "
                     "no request of the context length %u; accepted: %s, --context-length %llu or "
                     "less, or --allow-short-pool (see espalier plan)",
                     (double)request->free_bytes / (double)(1u << 20),
                     (unsigned long long)plan->pool_tok, request->context_len, wanted,
                     (unsigned long long)plan->pool_tok);
}

static enum status size_by_memory(struct coordinator_config *config,
                                  const struct checkpoint *checkpoint, struct error *err) {
    const struct memory_request request = memory_of(config, checkpoint);
    struct memory_plan plan;
    enum status status = memory_plan_make(&request, &plan, err);
    if (status != STATUS_OK) return status;
    if (plan.pool_tok == 0 || (plan.pool_tok < config->context_length && !config->allow_short_pool))
        return refuse_short_memory(&request, &plan, err);
    uint64_t pool_tok = plan.pool_tok < POOL_TOK_MAX ? plan.pool_tok : POOL_TOK_MAX;
    config->max_total_tokens = (uint32_t)pool_tok;
    return STATUS_OK;
}

enum status coordinator_config_resolve(struct coordinator_config *config,
                                       const struct checkpoint *checkpoint, struct error *err) {
    const struct model_spec *spec = &checkpoint->spec;
    if (config->context_length == 0) config->context_length = spec->context_max;
    if (config->context_length > spec->context_max)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--context-length: found %u, accepted: 1 to %u, the "
                         "max_position_embeddings of this model",
                         config->context_length, spec->context_max);
    config->max_running_cap = memory_plan_running(config->max_running_requests,
                                                  config->max_running_cap);
    bool by_memory = config->device_bytes > 0 || config->mem_fraction > 0;
    if (config->max_total_tokens == 0 && by_memory) return size_by_memory(config, checkpoint, err);
    if (config->max_total_tokens == 0) config->max_total_tokens = config->context_length;
    uint32_t pool_tok = coordinator_config_page_count(config) * config->page_tok;
    if (pool_tok >= config->context_length) return STATUS_OK;
    if (!config->allow_short_pool)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--max-total-tokens: found %u, which holds no request of the context "
                         "length %u; accepted: %u or more, --context-length %u or less, or "
                         "--allow-short-pool",
                         config->max_total_tokens, config->context_length, config->context_length,
                         pool_tok);
    return STATUS_OK;
}
