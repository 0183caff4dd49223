#include "cmd_verify.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "printed.h"
#include "session.h"
#include "shipped.h"
#include "verify_climb.h"

#define PROGRAM_NAME "espalier verify"

struct verify {
    struct verify_options options;
    const char *limits_path;
    bool json;
};

static int verify_service(void *user, const struct client_options *client) {
    const struct verify *verify = user;
    struct verify_report report;
    verify_climb(&verify->options, client, &report);
    if (!verify_report_print(&report, verify->json))
        return printed_not(PROGRAM_NAME, EXIT_CODE_FAILED, errno);
    enum verify_rung failed = verify_report_failed(&report);
    if (failed == VERIFY_RUNG_COUNT) return EXIT_CODE_OK;
    fprintf(stderr, PROGRAM_NAME ": rung %s failed: %s\n", verify_rung_name[failed],
            report.rung[failed].text);
    return EXIT_CODE_FAILED;
}

int cmd_verify(int argc, char *const *argv) {
    struct session_flags session = {0};
    struct run_dir dir;
    struct verify verify = {.limits_path = shipped_path(SHIPPED_VERIFY_LIMITS),
                            .options = {.tokens_path = shipped_path(SHIPPED_VERIFY_TOKENS),
                                        .show_progress = isatty(STDERR_FILENO)}};
    struct option table[] = {
        {.name = "--context",
         .type = OPTION_COUNT,
         .value = &verify.options.context_tok,
         .min = 2,
         .max = CONTEXT_TOK_MAX,
         .argument = "TOKENS",
         .fallback = "the service's --context-length, or what fits",
         .help = "tokens of the longest request, prompt and reply together"},
        {.name = "--thresholds",
         .type = OPTION_TEXT,
         .value = &verify.limits_path,
         .argument = "FILE",
         .fallback = "verify.thresholds, as it came with this program",
         .help = "what is still well"},
        {.name = "--tokens",
         .type = OPTION_TEXT,
         .value = &verify.options.tokens_path,
         .argument = "FILE",
         .fallback = "verify.tokens, likewise",
         .help = "recorded tokens to compare with"},
        {.name = "--record",
         .type = OPTION_TEXT,
         .value = &verify.options.record_path,
         .argument = "FILE",
         .help = "record this model's tokens there, instead of comparing them"},
        {.name = "--json", .type = OPTION_SWITCH, .value = &verify.json, .help = "a line of JSON"},
        FLAG_LOG_DIR(&verify.options.log_dir),
        FLAG_RUN_DIR(&session.run_dir),
        SESSION_FLAG_ENDPOINT(&session.endpoint),
        SESSION_FLAG_CURVE_KEYS(&session.curve_keys),
    };
    const struct options_program program = {
        .name = PROGRAM_NAME,
        .usage = "[flags]",
        .summary = "Asks a group that serves whether it can do what it promises, rung by rung: "
                   "ranks, capacity, cache, tokens, a request of the whole length, attention "
                   "against the memory's speed, latency, errors of this boot. Exit code 1 names "
                   "the first that failed. Best on an idle group: beside a load times are the "
                   "load's too.",
        .option = table,
        .option_count = sizeof table / sizeof *table,
    };
    struct options_result result;
    int exit_code;
    struct error err;
    if (!options_take(&program, argc, argv, &result, &exit_code)) return exit_code;
    if (verify_limits_read(verify.limits_path, &verify.options.limits, &err) != STATUS_OK) {
        error_wrap(&err, err.code, "--thresholds");
        return options_refuse(PROGRAM_NAME, EXIT_CODE_CONFIG, &err);
    }
    verify.options.tokens_must_be_there = table[2].given != NULL;
    bool has_logs = verify.options.log_dir || !session.endpoint;
    if (has_logs && run_dir_choose(session.run_dir, &dir, &err) != STATUS_OK)
        return options_refuse(PROGRAM_NAME, EXIT_CODE_USAGE, &err);
    if (has_logs) verify.options.logs = &dir;
    return session_attach_callers(PROGRAM_NAME, &session, verify_service, &verify);
}
