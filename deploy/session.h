/* A client's way to a group, for the commands that talk to one:
 *
 *   --run-dir or --endpoint        the group that runs there
 *   a flag of the group's (--tp)   one of our own, in a directory of its own, gone at the end
 *   neither                        the group of the default directory, else one of our own
 */
#ifndef ESPALIER_SESSION_H
#define ESPALIER_SESSION_H

#include "client.h"
#include "curve_keys.h"
#include "group_flags.h"

struct session_flags {
    const char *run_dir;
    const char *endpoint;
    const char *curve_keys; /* a folder; NULL: none */
};

#define SESSION_FLAG_ENDPOINT(target)                                                              \
    {                                                                                              \
        .name = "--endpoint", .type = OPTION_TEXT, .value = (target), .argument = "ENDPOINT",      \
        .fallback = "of the group in --run-dir", .help = "where the coordinator answers clients"   \
    }

#define SESSION_FLAG_CURVE_KEYS(target) FLAG_CURVE_KEYS(target, 0)

/* What a client of the coordinator at `endpoint` opens with; all of it borrowed from here and from
 * the arguments. The folder is read where the endpoint asks for keys. */
struct session_caller {
    struct curve_caller keys;
    struct client_options options;
};
enum status session_caller_init(struct session_caller *caller, const char *endpoint,
                                const char *curve_keys, const volatile int *cancel,
                                struct error *err) MUST_USE;

/* Called with an open client and, in a group of our own, once that is ready. Returns the exit
 * code. */
typedef int session_fn(void *user, struct client *client);

/* Run fn against the running group that the flags name, or the one of the default directory.
 * Returns the exit code; where none runs, or it cannot be reached, that has been said in one
 * line. */
int session_attach(const char *program_name, const struct session_flags *flags, session_fn *fn,
                   void *user);

/* Find or start the group, run fn against it, stop what was started. Returns the exit code; what
 * goes wrong on the way has been said in one line. */
int session_run(const struct options_program *program, const struct session_flags *flags,
                const struct group_flags *group, session_fn *fn, void *user);

/* The same for what opens clients of its own, as many as it likes: with these options, which are
 * borrowed for the call. */
typedef int session_callers_fn(void *user, const struct client_options *options);
int session_run_callers(const struct options_program *program, const struct session_flags *flags,
                        const struct group_flags *group, session_callers_fn *fn, void *user);

/* session_attach for what opens clients of its own. */
int session_attach_callers(const char *program_name, const struct session_flags *flags,
                           session_callers_fn *fn, void *user);

/* Print `NAME: STATUS: text` and return EXIT_CODE_FAILED. */
int session_failed(const char *program_name, const struct error *err);

#endif
