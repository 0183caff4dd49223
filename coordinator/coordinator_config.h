/* What the coordinator was asked to be: its command line, read once and checked against the
 * model. Nothing else reads flags or the environment. */
#ifndef ESPALIER_COORDINATOR_CONFIG_H
#define ESPALIER_COORDINATOR_CONFIG_H

#include "base/log.h"
#include "checkpoint.h"
#include "core.h"
#include "message.h"
#include "metrics.h"
#include "run_dir.h"

struct coordinator_config {
    struct run_dir run_dir;
    char client_endpoint[RUN_DIR_ENDPOINT_MAX];
    char worker_endpoint[RUN_DIR_ENDPOINT_MAX];
    const char *curve_keys; /* a folder; NULL: none */
    const char *probe_address;
    const char *model_path;
    uint32_t tp;
    uint32_t context_length; /* 0 until resolved: the model's */
    uint32_t page_tok;
    uint32_t max_total_tokens; /* 0 until resolved: one request */
    uint32_t max_total_tokens_cap;
    uint64_t device_bytes; /* of a rank, free before the load; 0: not given */
    double mem_fraction;   /* of it, for weights and pool; 0: all that fits */
    bool allow_short_pool;
    enum kv_dtype kv_dtype;
    enum activation_dtype activation_dtype;
    enum prefill_form prefill_form;
    uint32_t max_running_requests;
    uint32_t max_running_cap; /* 0 until resolved */
    uint32_t max_queued_requests, max_queued_tokens;
    uint32_t queue_timeout_ms;
    enum schedule_policy schedule_policy;
    uint32_t chunked_prefill_size, max_prefill_tokens;
    uint32_t max_step_rows;
    uint32_t target_step_ms;
    enum speculative_algorithm speculative_algorithm;
    uint32_t speculative_tree_rows, speculative_history_tok;
    bool speculative_fixed, speculative_seed_chain;
    bool disable_radix_cache, disable_overlap, no_self_test;
    uint32_t heartbeat_ms;
    uint32_t step_timeout_ms;
    uint32_t load_timeout_ms;
    uint32_t rejoin_timeout_ms;
    uint32_t drain_timeout_ms;
    enum metrics_compat metrics_compat;
    const char *journal; /* NULL: none */
    const char *log_dir; /* NULL: the run directory */
    int ready_fd;        /* closed once the endpoints answer; -1 for none */
    enum log_level log_level;
};

/* False: the program ends with *exit_code_out, and has said why. Strings are argv's. */
bool coordinator_config_parse(int argc, char *const *argv, struct coordinator_config *config_out,
                              int *exit_code_out);

/* Fill in what depends on the model and refuse what it cannot do. INVALID_ARGUMENT. The pool is the
 * one that was asked for, or what a rank's memory holds, or one request; workers who find that
 * theirs holds less have the last word. */
enum status coordinator_config_resolve(struct coordinator_config *config,
                                       const struct checkpoint *checkpoint,
                                       struct error *err) MUST_USE;

/* In units of FRACTION_ONE. */
uint32_t coordinator_config_mem_fraction(const struct coordinator_config *config);

uint32_t coordinator_config_page_count(const struct coordinator_config *config);
uint32_t coordinator_config_page_cap(const struct coordinator_config *config);

#endif
