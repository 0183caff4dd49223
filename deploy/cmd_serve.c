#include "cmd_serve.h"

#include <stdio.h>

#include "group_flags.h"
#include "group_wait.h"
#include "launcher.h"
#include "session.h"

#define PROGRAM_NAME "espalier serve"

struct serving {
    struct run_dir dir;
    const char *curve_keys; /* a folder, or NULL */
};

/* Shows the load, says that the group is ready, and leaves it running. */
static int show_start(void *user, const int *cancel) {
    const struct serving *serving = user;
    struct session_caller caller;
    struct ready_file ready;
    struct error err;
    enum status status = run_dir_find(&serving->dir, RUN_DIR_COORDINATOR, &ready, &err);
    if (status == STATUS_OK) {
        status = session_caller_init(&caller, ready.endpoint, serving->curve_keys, cancel, &err);
        if (status != STATUS_OK) session_failed(PROGRAM_NAME, &err);
    }
    if (status == STATUS_OK) status = group_wait(&caller.options, true, &err);
    if (status == STATUS_OK)
        fprintf(stderr, "espalier: ready. Try: espalier generate --run-dir %s%s%s \"Hello\"\n",
                serving->dir.path, caller.options.secret_key ? " --curve-keys " : "",
                caller.options.secret_key ? serving->curve_keys : "");
    return LAUNCHER_STAY;
}

int cmd_serve(int argc, char *const *argv) {
    struct group_flags flags = GROUP_FLAGS_DEFAULT;
    struct serving serving = {0};
    const char *run_dir = NULL;
    uint32_t drain_timeout_s = DRAIN_TIMEOUT_S_DEFAULT;
    struct option table[] = {
        GROUP_FLAGS_ROWS(&flags),
        FLAG_RUN_DIR(&run_dir),
        FLAG_CLIENT_ENDPOINT(&flags.unread_text),
        FLAG_WORKER_ENDPOINT(&flags.unread_text),
        FLAG_CURVE_KEYS(&serving.curve_keys, FLAG_BOTH),
        FLAG_PROBE_ADDRESS(&flags.unread_text),
        FLAG_DRAIN_TIMEOUT(&drain_timeout_s),
        FLAG_METRICS_COMPAT(&flags.unread_text),
    };
    const struct options_program program = {
        .name = PROGRAM_NAME,
        .usage = "[flags]",
        .summary = "Starts a coordinator and --tp workers on this machine. Ctrl-C drains.",
        .option = table,
        .option_count = sizeof table / sizeof *table,
    };
    struct options_result result;
    int exit_code;
    if (!options_take(&program, argc, argv, &result, &exit_code)) return exit_code;
    struct error err;
    if (group_flags_check(&flags, &err) != STATUS_OK ||
        run_dir_choose(run_dir, &serving.dir, &err) != STATUS_OK)
        return options_refuse(PROGRAM_NAME, EXIT_CODE_USAGE, &err);

    struct group_arguments arguments;
    group_flags_arguments(&program, &flags, "info", &arguments);
    exit_code = launcher_run(
        &(struct launcher_options){.run_dir = &serving.dir,
                                   .tp = flags.tp,
                                   .coordinator_args = arguments.coordinator,
                                   .coordinator_arg_count = arguments.coordinator_count,
                                   .worker_args = arguments.worker,
                                   .worker_arg_count = arguments.worker_count,
                                   .drain_timeout_ms = drain_timeout_s * 1000,
                                   .work = show_start,
                                   .user = &serving});
    group_flags_free(&arguments);
    run_dir_sweep(&serving.dir);
    return exit_code;
}
