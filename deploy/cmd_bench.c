#include "cmd_bench.h"

#include <errno.h>
#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "bench_report.h"
#include "printed.h"
#include "process.h"
#include "session.h"

#define PROGRAM_NAME     "espalier bench"
#define FILES_NEEDED     64u /* by the command, and */
#define FILES_PER_CALLER 24u /* by a connection, its context and loop */
#define REQUESTS_MAX     1000000u

struct bench {
    struct bench_load load;
    bool json;
};

/* ---- one run ------------------------------------------------------------------------------- */

static void show_progress(void *user, uint32_t requests_ended, uint64_t output_tokens,
                          int64_t elapsed_ns) {
    const struct bench *bench = user;
    double elapsed_s = (double)elapsed_ns / (double)NS_PER_S;
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r\033[K%u of %u requests, %llu tokens, %.1f/s", requests_ended,
            bench->load.request_count, (unsigned long long)output_tokens,
            (double)output_tokens / elapsed_s);
}

static void clear_progress(void) {
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
}

/* Counters only: what a snapshot points to is borrowed. */
static bool take_snapshot(void *user, const struct snapshot *snapshot) {
    struct snapshot *out = user;
    *out = *snapshot;
    out->reason = out->model = out->speculation = NULL;
    out->rank = NULL;
    return true;
}

/* Even after an interrupt: the answer comes at once. */
static enum status look(const struct client_options *options, struct snapshot *snapshot_out,
                        struct error *err) {
    struct client_options patient = *options;
    patient.cancel = NULL;
    struct client *client;
    enum status status = client_open(&patient, &client, err);
    if (status != STATUS_OK) return status;
    status = client_watch(client, &(struct watch_request){0}, take_snapshot, snapshot_out, err);
    client_close(&client);
    return status;
}

static int run(void *user, const struct client_options *options) {
    struct bench *bench = user;
    struct snapshot before, after;
    struct bench_load_result result;
    struct bench_report_group group = {0};
    struct error err;
    if (look(options, &before, &err) != STATUS_OK) return session_failed(PROGRAM_NAME, &err);
    bench_load_run(&bench->load, options, show_progress, bench, &result);
    clear_progress();
    if (look(options, &after, &err) == STATUS_OK)
        group = bench_report_group_between(&before, &after);
    bool is_written = bench_report_print(&bench->load, &result, &group, bench->json);
    bool is_whole = result.failed + result.cut_off + result.unsent == 0;
    bench_load_result_deinit(&result);
    if (!is_written) return printed_not(PROGRAM_NAME, EXIT_CODE_FAILED, errno);
    return is_whole ? EXIT_CODE_OK : EXIT_CODE_FAILED;
}

/* ---- the command --------------------------------------------------------------------------- */

/* What no row of the table can say by itself. */
static enum status check_load(const struct bench_load *load, struct error *err) {
    if (load->shared_prefix_tok > load->prompt_tok)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--shared-prefix: found %u, accepted: up to %u, the --prompt-tokens",
                         load->shared_prefix_tok, load->prompt_tok);
    if ((uint64_t)load->request_count * load->max_tokens > BENCH_LOAD_TOKENS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--requests: found %u of %u --tokens each, accepted: up to %u tokens in "
                         "all",
                         load->request_count, load->max_tokens, BENCH_LOAD_TOKENS_MAX);
    return STATUS_OK;
}

static uint64_t draw_seed(void) {
    uint32_t seed; /* short enough to be typed again */
    CHECK(getrandom(&seed, sizeof seed, 0) == sizeof seed);
    return seed;
}

int cmd_bench(int argc, char *const *argv) {
    struct group_flags group = GROUP_FLAGS_DEFAULT;
    struct session_flags session = {0};
    struct bench bench = {.load = {.request_count = 32,
                                   .concurrency = 8,
                                   .prompt_tok = 128,
                                   .max_tokens = 64,
                                   .vocab = 4096,
                                   .seed = draw_seed()}};
    struct bench_load *load = &bench.load;
    double temperature = 0;
    struct option table[] = {
        {.name = "--requests",
         .type = OPTION_COUNT,
         .value = &load->request_count,
         .min = 1,
         .max = REQUESTS_MAX,
         .fallback = "32",
         .help = "so many in all"},
        {.name = "--concurrency",
         .type = OPTION_COUNT,
         .value = &load->concurrency,
         .min = 1,
         .max = BENCH_LOAD_CONCURRENCY_MAX,
         .fallback = "8",
         .help = "so many at a time, each over a connection of its own"},
        {.name = "--prompt-tokens",
         .type = OPTION_COUNT,
         .value = &load->prompt_tok,
         .min = 1,
         .max = CONTEXT_TOK_MAX,
         .fallback = "128",
         .help = "tokens of a prompt"},
        {.name = "--shared-prefix",
         .type = OPTION_COUNT,
         .value = &load->shared_prefix_tok,
         .min = 0,
         .max = CONTEXT_TOK_MAX,
         .argument = "TOKENS",
         .fallback = "0",
         .help = "so many of them, at the beginning, are the same in all prompts"},
        {.name = "--tokens",
         .aliases = "--max-tokens --max-new-tokens -n",
         .type = OPTION_COUNT,
         .value = &load->max_tokens,
         .min = 1,
         .max = CONTEXT_TOK_MAX,
         .fallback = "64",
         .help = "tokens of an answer, whatever is drawn"},
        {.name = "--temperature",
         .type = OPTION_REAL,
         .value = &temperature,
         .real_min = 0,
         .real_max = 100,
         .fallback = "0, the likeliest token always",
         .help = "spread of the draw"},
        {.name = "--vocab",
         .type = OPTION_COUNT,
         .value = &load->vocab,
         .min = 1,
         .max = MODEL_VOCAB_MAX,
         .argument = "IDS",
         .fallback = "4096, those of the embedded model",
         .help = "prompts are drawn from ids below this"},
        {.name = "--seed",
         .type = OPTION_WIDE,
         .value = &load->seed,
         .fallback = "drawn, and shown",
         .help = "the same seed sends the same prompts, and draws the same tokens"},
        {.name = "--json", .type = OPTION_SWITCH, .value = &bench.json, .help = "a line of JSON"},
        FLAG_RUN_DIR(&session.run_dir),
        SESSION_FLAG_ENDPOINT(&session.endpoint),
        SESSION_FLAG_CURVE_KEYS(&session.curve_keys),
        GROUP_FLAGS_ROWS(&group),
    };
    const struct options_program program = {
        .name = PROGRAM_NAME,
        .usage = "[flags]",
        .summary = "Sends requests to a group and shows how fast it answered: as its callers saw "
                   "it, in milliseconds and tokens per second. Flags of a group (--tp, "
                   "--model-path, ...) start one for this call.",
        .option = table,
        .option_count = sizeof table / sizeof *table,
    };
    struct options_result parsed;
    int exit_code;
    struct error err;
    if (!options_take(&program, argc, argv, &parsed, &exit_code)) return exit_code;
    load->temperature = (float)temperature;
    if (check_load(load, &err) != STATUS_OK)
        return options_refuse(PROGRAM_NAME, EXIT_CODE_USAGE, &err);
    if (process_require_files(FILES_NEEDED + FILES_PER_CALLER * load->concurrency, &err) !=
        STATUS_OK)
        return options_refuse(PROGRAM_NAME, EXIT_CODE_CONFIG, &err);
    return session_run_callers(&program, &session, &group, run, &bench);
}
