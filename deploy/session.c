#include "session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "group_wait.h"
#include "interrupt.h"

int session_failed(const char *program_name, const struct error *err) {
    fprintf(stderr, "%s: %s: %s\n", program_name, status_name(err->code), err->text);
    return EXIT_CODE_FAILED;
}

/* ---- a group that runs --------------------------------------------------------------------- */

/* The endpoint of the group that the flags name. UNAVAILABLE: none runs there. */
static enum status find(const struct session_flags *flags, char out[RUN_DIR_ENDPOINT_MAX],
                        struct error *err) {
    if (flags->endpoint) {
        snprintf(out, RUN_DIR_ENDPOINT_MAX, "%s", flags->endpoint);
        return STATUS_OK;
    }
    struct run_dir dir;
    struct ready_file ready;
    enum status status = run_dir_choose(flags->run_dir, &dir, err);
    if (status == STATUS_OK) status = run_dir_find(&dir, RUN_DIR_COORDINATOR, &ready, err);
    if (status == STATUS_OK) snprintf(out, RUN_DIR_ENDPOINT_MAX, "%s", ready.endpoint);
    return status;
}

static enum status check_folder(const char *path, struct error *err) {
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return STATUS_OK;
    return error_set(err, STATUS_NOT_FOUND, "--curve-keys: %s: found no folder, accepted: one",
                     path);
}

enum status session_caller_init(struct session_caller *caller, const char *endpoint,
                                const char *curve_keys, const volatile int *cancel,
                                struct error *err) {
    *caller = (struct session_caller){.options = {.endpoint = endpoint, .cancel = cancel}};
    if (!curve_keys) return STATUS_OK;
    if (strncmp(endpoint, "ipc:", 4) == 0) return check_folder(curve_keys, err);
    struct curve_caller *keys = &caller->keys;
    enum status status = curve_keys_read_caller(curve_keys, CURVE_CLIENT_SECRET, keys, err);
    if (status != STATUS_OK) return error_wrap(err, status, "--curve-keys");
    caller->options.server_public_key = keys->server_public_key;
    caller->options.public_key = keys->own.public_key;
    caller->options.secret_key = keys->own.secret_key;
    return STATUS_OK;
}

/* What one client does, in the dress of what many do. */
struct alone {
    const char *program_name;
    session_fn *fn;
    void *user;
};

static int run_alone(void *user, const struct client_options *options) {
    const struct alone *alone = user;
    struct client *client;
    struct error err;
    if (client_open(options, &client, &err) != STATUS_OK)
        return session_failed(alone->program_name, &err);
    int exit_code = alone->fn(alone->user, client);
    client_close(&client);
    return exit_code;
}

int session_attach_callers(const char *program_name, const struct session_flags *flags,
                           session_callers_fn *fn, void *user) {
    char endpoint[RUN_DIR_ENDPOINT_MAX];
    struct session_caller caller;
    struct error err;
    enum status status = find(flags, endpoint, &err);
    if (status == STATUS_OK)
        status = session_caller_init(&caller, endpoint, flags->curve_keys, interrupt_catch(), &err);
    if (status != STATUS_OK) return session_failed(program_name, &err);
    return fn(user, &caller.options);
}

int session_attach(const char *program_name, const struct session_flags *flags, session_fn *fn,
                   void *user) {
    struct alone alone = {program_name, fn, user};
    return session_attach_callers(program_name, flags, run_alone, &alone);
}

/* ---- a group of our own -------------------------------------------------------------------- */

struct own_group {
    char endpoint[RUN_DIR_ENDPOINT_MAX];
    session_callers_fn *fn;
    void *user;
    enum status status; /* of waiting for the group, and why it is not OK */
    struct error err;
};

static int work(void *user, const int *cancel) {
    struct own_group *own = user;
    const struct client_options options = {.endpoint = own->endpoint, .cancel = cancel};
    enum status status = group_wait(&options, isatty(STDERR_FILENO), &own->err);
    if (status == STATUS_CANCELLED) return EXIT_CODE_FAILED;
    own->status = status;
    if (status != STATUS_OK) return EXIT_CODE_FAILED;
    return own->fn(own->user, &options);
}

static enum status make_own_dir(struct run_dir *dir_out, struct error *err) {
    char path[RUN_DIR_PATH_MAX + 1];
    const char *parent = getenv("TMPDIR");
    /* A socket's path is short; so must be that of its directory. */
    if (!parent || strlen(parent) + sizeof "/espalier-XXXXXX" > sizeof path) parent = "/tmp";
    snprintf(path, sizeof path, "%s/espalier-XXXXXX", parent);
    if (!mkdtemp(path))
        return error_set(err, STATUS_UNAVAILABLE, "cannot make a directory in %s: %s", parent,
                         strerror(errno));
    return run_dir_choose(path, dir_out, err);
}

static int run_own(const struct options_program *program, const struct group_flags *group,
                   session_callers_fn *fn, void *user) {
    struct run_dir dir;
    struct error err;
    if (group_flags_check(group, &err) != STATUS_OK)
        return options_refuse(program->name, EXIT_CODE_USAGE, &err);
    if (make_own_dir(&dir, &err) != STATUS_OK) {
        options_refuse(program->name, EXIT_CODE_TEMPORARY, &err);
        return EXIT_CODE_TEMPORARY;
    }
    struct own_group own = {.fn = fn, .user = user};
    run_dir_client_endpoint(&dir, own.endpoint);
    struct group_arguments arguments;
    group_flags_arguments(program, group, "error", &arguments);
    const struct launcher_options options = {.run_dir = &dir,
                                             .tp = group->tp,
                                             .coordinator_args = arguments.coordinator,
                                             .coordinator_arg_count = arguments.coordinator_count,
                                             .worker_args = arguments.worker,
                                             .worker_arg_count = arguments.worker_count,
                                             .foreground = true,
                                             .work = work,
                                             .user = &own};
    int exit_code = launcher_run(&options);
    /* Where the group could not be had, whoever ended it has said why. */
    if (exit_code == EXIT_CODE_FAILED && own.status != STATUS_OK)
        session_failed(program->name, &own.err);
    group_flags_free(&arguments);
    run_dir_remove(&dir);
    return exit_code;
}

int session_run_callers(const struct options_program *program, const struct session_flags *flags,
                        const struct group_flags *group, session_callers_fn *fn, void *user) {
    const char *group_flag = group_flags_given(program);
    bool named = flags->run_dir || flags->endpoint;
    struct error err;
    if (named && group_flag) {
        error_set(&err, STATUS_INVALID_ARGUMENT,
                  "%s: found together with %s, accepted: one of them, since a running group is "
                  "what it is",
                  group_flag, flags->endpoint ? "--endpoint" : "--run-dir");
        return options_refuse(program->name, EXIT_CODE_USAGE, &err);
    }
    if (group_flag) return run_own(program, group, fn, user);
    char endpoint[RUN_DIR_ENDPOINT_MAX];
    struct session_caller caller;
    enum status status = find(flags, endpoint, &err);
    if (status != STATUS_OK && !named) return run_own(program, group, fn, user);
    if (status == STATUS_OK)
        status = session_caller_init(&caller, endpoint, flags->curve_keys, interrupt_catch(), &err);
    return status == STATUS_OK ? fn(user, &caller.options) : session_failed(program->name, &err);
}

int session_run(const struct options_program *program, const struct session_flags *flags,
                const struct group_flags *group, session_fn *fn, void *user) {
    struct alone alone = {program->name, fn, user};
    return session_run_callers(program, flags, group, run_alone, &alone);
}
