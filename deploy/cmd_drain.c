#include "cmd_drain.h"

#include <stdio.h>

#include "flags.h"
#include "session.h"

#define PROGRAM_NAME "espalier drain"

static int drain(void *user, struct client *client) {
    const uint32_t *timeout_s = user;
    struct error err;
    if (client_drain(client, &(struct drain_request){.timeout_ms = *timeout_s * 1000}, &err) !=
        STATUS_OK)
        return session_failed(PROGRAM_NAME, &err);
    puts("drained");
    return EXIT_CODE_OK;
}

int cmd_drain(int argc, char *const *argv) {
    struct session_flags session = {0};
    uint32_t timeout_s = 30;
    struct option table[] = {
        {.name = "--timeout",
         .type = OPTION_COUNT,
         .value = &timeout_s,
         .min = 0,
         .max = 86400,
         .argument = "SECONDS",
         .fallback = "30",
         .help = "how long running requests may take to finish"},
        FLAG_RUN_DIR(&session.run_dir),
        SESSION_FLAG_ENDPOINT(&session.endpoint),
        SESSION_FLAG_CURVE_KEYS(&session.curve_keys),
    };
    const struct options_program program = {
        .name = PROGRAM_NAME,
        .usage = "[flags]",
        .summary = "Lets a group finish what runs, accept nothing new, and end.",
        .option = table,
        .option_count = sizeof table / sizeof *table,
    };
    struct options_result result;
    int exit_code;
    if (!options_take(&program, argc, argv, &result, &exit_code)) return exit_code;
    return session_attach(PROGRAM_NAME, &session, drain, &timeout_s);
}
