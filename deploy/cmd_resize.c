#include "cmd_resize.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "flags.h"
#include "session.h"

#define PROGRAM_NAME "espalier resize"

static const char *phase_words(enum resize_phase phase) {
    switch (phase) {
    case RESIZE_WAITING: return "waiting for the steps in flight";
    case RESIZE_CHANGING: return "on its way to all ranks";
    case RESIZE_UNDOING: return "undone";
    case RESIZE_DONE: return "done";
    case RESIZE_SIZING: return "asking every rank what the fraction holds";
    }
    return "";
}

static uint64_t tokens(const struct resize_progress *progress, uint32_t page_count) {
    return (uint64_t)page_count * progress->page_tok;
}

/* Steps to a person at a terminal, on the error stream; what came of it, for scripts too, on the
 * other. */
static bool show(void *user, const struct resize_progress *progress) {
    (void)user;
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "%" PRIu64 " -> %" PRIu64 " tokens: %s\n",
                tokens(progress, progress->pages_before), tokens(progress, progress->pages_wanted),
                phase_words(progress->phase));
    if (progress->phase != RESIZE_DONE) return true;
    printf("max_total_num_tokens=%" PRIu64 " (was %" PRIu64 "), max_running_requests=%u; "
           "%" PRIu64 " tokens evicted, %" PRIu64 " moved, %u requests sent back to wait\n",
           tokens(progress, progress->pages_now), tokens(progress, progress->pages_before),
           progress->max_running_requests, tokens(progress, progress->pages_evicted),
           tokens(progress, progress->pages_moved), progress->requests_retracted);
    return true;
}

static int resize(void *user, struct client *client) {
    struct error err;
    if (client_resize(client, user, show, NULL, &err) != STATUS_OK)
        return session_failed(PROGRAM_NAME, &err);
    return EXIT_CODE_OK;
}

static enum status check(const struct resize_request *request, struct error *err) {
    if (request->tokens > 0 && request->mem_fraction > 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "found --tokens and --mem-fraction-static, accepted: one of them");
    if (request->tokens > 0 || request->mem_fraction > 0 || request->max_running_requests > 0)
        return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "found neither --tokens nor --mem-fraction-static nor "
                     "--max-running-requests, accepted: a size of the pool, of the batch, or both");
}

int cmd_resize(int argc, char *const *argv) {
    struct session_flags session = {0};
    struct resize_request request = {.tokens = 0};
    double mem_fraction = 0;
    struct option table[] = {
        {.name = "--tokens",
         .aliases = "--max-total-tokens",
         .type = OPTION_COUNT,
         .value = &request.tokens,
         .min = 1,
         .max = 1u << 26,
         .argument = "TOKENS",
         .help = "what the token pool is to hold, up to whole pages"},
        {.name = "--mem-fraction-static",
         .aliases = "--gpu-memory-utilization",
         .type = OPTION_REAL,
         .value = &mem_fraction,
         .real_min = 0.01,
         .real_max = 1.0,
         .argument = "F",
         .help = "instead: as many as fit, where weights and pool may take so much of what every "
                 "rank had before the load"},
        {.name = "--max-running-requests",
         .type = OPTION_COUNT,
         .value = &request.max_running_requests,
         .min = 1,
         .max = PLAN_SEQS_MAX,
         .help = "how many requests may have a place in the batch"},
        {.name = "--force",
         .type = OPTION_SWITCH,
         .value = &request.force,
         .help = "send requests back to wait where the rest does not suffice"},
        FLAG_RUN_DIR(&session.run_dir),
        SESSION_FLAG_ENDPOINT(&session.endpoint),
        SESSION_FLAG_CURVE_KEYS(&session.curve_keys),
    };
    const struct options_program program = {
        .name = PROGRAM_NAME,
        .usage = "[--tokens N | --mem-fraction-static F] [--max-running-requests N] [flags]",
        .summary = "Changes the size of a group's token pool, or of its batch, while it serves; "
                   "weights stay where they are.",
        .option = table,
        .option_count = sizeof table / sizeof *table,
    };
    struct options_result result;
    int exit_code;
    if (!options_take(&program, argc, argv, &result, &exit_code)) return exit_code;
    request.mem_fraction = (uint32_t)(mem_fraction * FRACTION_ONE + 0.5);
    struct error err;
    if (check(&request, &err) != STATUS_OK)
        return options_refuse(PROGRAM_NAME, EXIT_CODE_USAGE, &err);
    return session_attach(PROGRAM_NAME, &session, resize, &request);
}
