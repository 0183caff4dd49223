#include "worker_config.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cpus.h"
#include "flags.h"

#define PROGRAM_NAME "espalier-worker"

/* ---- who this process is ------------------------------------------------------------------- */

static const struct {
    const char *rank, *size; /* size NULL: it has none */
} sources[] = {
    {"RANK", "WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMIX_RANK", NULL},
    {"PMI_RANK", "PMI_SIZE"},
    {"SLURM_PROCID", "SLURM_NTASKS"},
    {"LWS_WORKER_INDEX", "LWS_GROUP_SIZE"}, /* Kubernetes, LeaderWorkerSet */
};
#define SOURCE_COUNT (sizeof sources / sizeof *sources)

/* What is known of a number, and from where. */
struct opinion {
    const char *source; /* NULL: none yet */
    uint32_t value;
};

static enum status parse_number(const char *name, const char *text, uint32_t *value_out,
                                struct error *err) {
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || value > 65535)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s: found \"%s\", accepted: an integer from 0 to 65535", name, text);
    *value_out = (uint32_t)value;
    return STATUS_OK;
}

/* Hear one variable: the first opinion stands, later ones must agree with it. */
static enum status hear(worker_config_lookup_fn *lookup, const char *name, struct opinion *opinion,
                        struct error *err) {
    const char *text = lookup(name);
    if (!text) return STATUS_OK;
    uint32_t value = 0;
    enum status status = parse_number(name, text, &value, err);
    if (status != STATUS_OK) return status;
    if (opinion->source && opinion->value != value)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s is %u and %s is %u, accepted: sources that agree, or --rank and --tp",
                         opinion->source, opinion->value, name, value);
    if (!opinion->source) *opinion = (struct opinion){name, value};
    return STATUS_OK;
}

enum status worker_config_identify(worker_config_lookup_fn *lookup,
                                   struct worker_identity *identity, struct error *err) {
    struct opinion rank = {0}, size = {0};
    if (identity->has_rank) rank = (struct opinion){"--rank", identity->rank};
    if (identity->has_tp || identity->has_rank) size = (struct opinion){"--tp", identity->tp};
    for (size_t i = 0; i < SOURCE_COUNT && !identity->has_rank; i++) {
        enum status status = hear(lookup, sources[i].rank, &rank, err);
        if (status == STATUS_OK && sources[i].size && lookup(sources[i].rank))
            status = hear(lookup, sources[i].size, &size, err);
        if (status != STATUS_OK) return status;
    }
    if (!size.source) size = (struct opinion){"--tp", identity->tp};
    if (!rank.source) {
        if (size.value != 1)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "--rank: found nothing, nor RANK, OMPI_COMM_WORLD_RANK, PMIX_RANK, "
                             "PMI_RANK, SLURM_PROCID or LWS_WORKER_INDEX; accepted: 0 to %u",
                             size.value - 1);
        rank = (struct opinion){"--rank", 0};
    }
    if (size.value < 1 || size.value > TP_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: found %u, accepted: 1 to %u",
                         size.source, size.value, TP_MAX);
    if (rank.value >= size.value)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: found %u, accepted: below %u, the %s",
                         rank.source, rank.value, size.value, size.source);
    identity->rank = rank.value;
    identity->tp = size.value;
    return STATUS_OK;
}

/* ---- the command line ---------------------------------------------------------------------- */

struct raw_flags {
    const char *run_dir, *endpoint;
    const char *device, *numa, *log_level;
    uint32_t linger_s, connect_timeout_s;
    uint32_t rank, tp;
};

static const char *environment(const char *name) {
    return getenv(name);
}

static bool is_given(const struct option *table, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(table[i].name, name) == 0) return table[i].given != NULL;
    return false;
}

static enum status finish(struct worker_config *config, const struct raw_flags *raw,
                          struct error *err) {
    if (!config->model_path)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--model-path: found nothing, accepted: a Hugging Face folder");
    enum status status = run_dir_choose(raw->run_dir, &config->run_dir, err);
    if (status != STATUS_OK) return status;
    run_dir_worker_endpoint(&config->run_dir, config->endpoint);
    if (raw->endpoint) snprintf(config->endpoint, sizeof config->endpoint, "%s", raw->endpoint);
    config->linger_ms = raw->linger_s * 1000;
    config->connect_timeout_ms = raw->connect_timeout_s * 1000;
    log_level_parse(raw->log_level, &config->log_level);
    return STATUS_OK;
}

static enum status plan_numa(struct worker_config *config, const char *flag, struct error *err) {
    const struct numa_allowed allowed = numa_allowed();
    struct numa_request request = {.mode = NUMA_NODE, .rank = config->rank, .tp = config->tp};
    if (strcmp(flag, "auto") == 0)
        request.mode = NUMA_AUTO;
    else if (strcmp(flag, "off") == 0)
        request.mode = NUMA_OFF;
    else
        request.node = (uint32_t)strtoul(flag, NULL, 10); /* digits, in range: the table's row */
    return numa_plan(NUMA_ROOT, &allowed, &request, &config->numa, err);
}

/* flag: cpu, cuda or cuda:N, the table's row says so. Ranks of one machine have a GPU each. */
static enum status choose_device(struct worker_config *config, const char *flag,
                                 struct error *err) {
    config->cuda = strcmp(flag, "cpu") != 0;
    const char *colon = strchr(flag, ':');
    config->gpu = colon ? (uint32_t)strtoul(colon + 1, NULL, 10) : config->rank;
    if (!config->cuda || config->device_bytes == 0) return STATUS_OK;
    return error_set(err, STATUS_FAILED_PRECONDITION,
                     "--device-memory: found %" PRIu64 " with --device cuda, accepted: none; a GPU "
                     "says itself how much it has",
                     config->device_bytes);
}

/* What is well said but cannot be had: exit code 78, not 64. */
static enum status check(struct worker_config *config, const struct raw_flags *raw,
                         struct worker_identity *identity, struct error *err) {
    enum status status = worker_config_identify(environment, identity, err);
    if (status != STATUS_OK) return status;
    config->rank = identity->rank;
    config->tp = identity->tp;
    status = choose_device(config, raw->device, err);
    if (status != STATUS_OK) return status;
    status = plan_numa(config, raw->numa, err);
    if (status == STATUS_OK && config->threads == 0)
        config->threads = cpus_share(config->numa.cpu_count, config->numa.ranks, config->tp);
    return status;
}

bool worker_config_parse(int argc, char *const *argv, struct worker_config *config_out,
                         int *exit_code_out) {
    struct worker_config config = {.probe_address = "127.0.0.1:0"};
    struct raw_flags raw = {
        .device = "cpu", .numa = "auto", .log_level = "info", .connect_timeout_s = 60, .tp = 1};
    struct option table[] = {
        FLAG_MODEL_PATH(&config.model_path),
        FLAG_DRAFT_MODEL_PATH(&config.draft_model_path),
        FLAG_DRAFT_WINDOW(&config.draft_window),
        {.name = "--rank",
         .type = OPTION_COUNT,
         .value = &raw.rank,
         .min = 0,
         .max = TP_MAX - 1,
         .fallback = "RANK, OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK, SLURM_PROCID or "
                     "LWS_WORKER_INDEX",
         .help = "which part of the model this process holds"},
        FLAG_TP(&raw.tp),
        FLAG_DEVICE(&raw.device),
        FLAG_THREADS(&config.threads),
        FLAG_NUMA(&raw.numa),
        FLAG_DEVICE_MEMORY(&config.device_bytes),
        FLAG_RUN_DIR(&raw.run_dir),
        FLAG_WORKER_ENDPOINT(&raw.endpoint),
        {.name = "--linger",
         .type = OPTION_COUNT,
         .value = &raw.linger_s,
         .min = 0,
         .max = 86400,
         .argument = "SECONDS",
         .fallback = "0",
         .help = "outlive the coordinator so long, weights loaded, waiting for the next one"},
        {.name = "--connect-timeout",
         .type = OPTION_COUNT,
         .value = &raw.connect_timeout_s,
         .min = 1,
         .max = 86400,
         .argument = "SECONDS",
         .fallback = "60",
         .help = "how long to look for the first coordinator"},
        FLAG_CURVE_KEYS(&config.curve_keys, 0),
        FLAG_PROBE_ADDRESS(&config.probe_address),
        FLAG_LOG_DIR(&config.log_dir),
        FLAG_LOG_LEVEL(&raw.log_level),
    };
    const size_t count = sizeof table / sizeof *table;
    const struct options_program program = {
        .name = PROGRAM_NAME,
        .usage = "--model-path DIR [flags]",
        .summary = "Holds one rank's part of the model and computes what the coordinator plans.",
        .option = table,
        .option_count = (uint32_t)count,
    };
    struct options_result result;
    if (!options_take(&program, argc, argv, &result, exit_code_out)) return false;
    struct worker_identity identity = {.has_rank = is_given(table, count, "--rank"),
                                       .has_tp = is_given(table, count, "--tp"),
                                       .rank = raw.rank,
                                       .tp = raw.tp};
    struct error err;
    int refusal = EXIT_CODE_USAGE;
    enum status status = finish(&config, &raw, &err);
    if (status == STATUS_OK) {
        refusal = EXIT_CODE_CONFIG;
        status = check(&config, &raw, &identity, &err);
    }
    if (status != STATUS_OK) {
        *exit_code_out = options_refuse(PROGRAM_NAME, refusal, &err);
        return false;
    }
    *config_out = config;
    return true;
}
