#include "cmd_flush.h"

#include <stdio.h>

#include "flags.h"
#include "session.h"

#define PROGRAM_NAME "espalier flush"

static int flush(void *user, struct client *client) {
    (void)user;
    struct error err;
    if (client_flush(client, &(struct flush_request){.token_count = 0}, &err) != STATUS_OK)
        return session_failed(PROGRAM_NAME, &err);
    puts("flushed");
    return EXIT_CODE_OK;
}

int cmd_flush(int argc, char *const *argv) {
    struct session_flags session = {0};
    struct option table[] = {
        FLAG_RUN_DIR(&session.run_dir),
        SESSION_FLAG_ENDPOINT(&session.endpoint),
        SESSION_FLAG_CURVE_KEYS(&session.curve_keys),
    };
    const struct options_program program = {
        .name = PROGRAM_NAME,
        .usage = "[flags]",
        .summary = "Makes a group forget the prefixes it has cached, of all tenants.",
        .option = table,
        .option_count = sizeof table / sizeof *table,
    };
    struct options_result result;
    int exit_code;
    if (!options_take(&program, argc, argv, &result, &exit_code)) return exit_code;
    return session_attach(PROGRAM_NAME, &session, flush, NULL);
}
