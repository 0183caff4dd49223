/* The folder of curve_keys.h. Nothing that is there is ever written over: a key that was given out
 * must not vanish by a command repeated. */
#include "cmd_keygen.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "curve_keys.h"
#include "options.h"

#define PROGRAM_NAME   "espalier keygen"
#define PATH_BYTES_MAX 4096u
#define NAME_CHARS_MAX 64u
#define LINE_MAX_BYTES (CURVE_KEY_TEXT_LEN + NAME_CHARS_MAX + 4u)
#define NAME_LETTERS   "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

struct folder {
    char path[PATH_BYTES_MAX];
};

static enum status refuse(struct error *err, const char *action, const char *path) {
    enum status status = errno == EACCES || errno == EPERM || errno == EROFS
                             ? STATUS_PERMISSION_DENIED
                             : STATUS_INVALID_ARGUMENT;
    return error_set(err, status, "cannot %s %s: %s", action, path, strerror(errno));
}

static enum status make_folder(const char *path, struct error *err) {
    return mkdir(path, 0700) == 0 || errno == EEXIST ? STATUS_OK : refuse(err, "make", path);
}

/* A file of its own (O_EXCL), or another line of one that is there (O_APPEND). */
static enum status write_line(const struct folder *folder, const char *name, int flags, mode_t mode,
                              const char *first, const char *second, struct error *err) {
    char path[PATH_BYTES_MAX + NAME_MAX], line[LINE_MAX_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder->path, name);
    int length = snprintf(line, sizeof line, "%s%s%s\n", first, *second ? " " : "", second);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, mode);
    if (fd < 0 && errno == EEXIST)
        return error_set(err, STATUS_ALREADY_EXISTS,
                         "found %s, accepted: a folder without keys, or --client NAME to add a "
                         "client to it",
                         path);
    if (fd < 0) return refuse(err, "write", path);
    /* The mode is what was asked for, whatever the umask. */
    bool written = ((flags & O_APPEND) || fchmod(fd, mode) == 0) &&
                   write(fd, line, (size_t)length) == length;
    int cause = errno;
    if (close(fd) != 0 && written) {
        written = false;
        cause = errno;
    }
    explicit_bzero(line, sizeof line);
    errno = cause;
    return written ? STATUS_OK : refuse(err, "write", path);
}

static enum status write_new(const struct folder *folder, const char *name, mode_t mode,
                             const char *text, const char *label, struct error *err) {
    return write_line(folder, name, O_EXCL, mode, text, label, err);
}

/* ---- a group's keys ------------------------------------------------------------------------ */

static enum status make_group(const struct folder *folder, struct error *err) {
    struct curve_pair coordinator, worker, client;
    curve_keys_make(&coordinator);
    curve_keys_make(&worker);
    curve_keys_make(&client);
    const struct {
        const char *name;
        mode_t mode;
        const char *text, *label;
    } files[] = {
        {CURVE_COORDINATOR_SECRET, 0600, coordinator.secret_key, ""},
        {CURVE_COORDINATOR_PUBLIC, 0644, coordinator.public_key, ""},
        {CURVE_WORKER_SECRET, 0600, worker.secret_key, ""},
        {CURVE_WORKERS_ALLOWED, 0644, worker.public_key, "worker"},
        {CURVE_CLIENT_SECRET, 0600, client.secret_key, ""},
        {CURVE_CLIENTS_ALLOWED, 0644, client.public_key, "client"},
    };
    enum status status = make_folder(folder->path, err);
    for (size_t i = 0; i < sizeof files / sizeof *files && status == STATUS_OK; i++)
        status = write_new(folder, files[i].name, files[i].mode, files[i].text, files[i].label,
                           err);
    explicit_bzero(&coordinator, sizeof coordinator);
    explicit_bzero(&worker, sizeof worker);
    explicit_bzero(&client, sizeof client);
    if (status == STATUS_OK)
        printf("%s: keys of a group. Give its --curve-keys a folder with\n"
               "  the coordinator: " CURVE_COORDINATOR_SECRET ", " CURVE_WORKERS_ALLOWED
               ", " CURVE_CLIENTS_ALLOWED "\n"
               "  its workers:     " CURVE_COORDINATOR_PUBLIC ", " CURVE_WORKER_SECRET "\n"
               "  a client:        " CURVE_COORDINATOR_PUBLIC ", " CURVE_CLIENT_SECRET "\n",
               folder->path);
    return status;
}

/* ---- one more client ----------------------------------------------------------------------- */

static enum status check_name(const char *name, struct error *err) {
    if (name[strspn(name, NAME_LETTERS)] == '\0' && strlen(name) <= NAME_CHARS_MAX &&
        name[0] != '.')
        return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--client: found \"%.80s\", accepted: at most %u letters, digits, dots, "
                     "dashes, no dot first",
                     name, NAME_CHARS_MAX);
}

/* The secret first: a public key that is let in without anybody who has the secret one does no
 * harm, but nor does it any good. */
static enum status add_client(const struct folder *group, const char *name, struct error *err) {
    struct curve_caller known;
    struct folder own;
    enum status status = check_name(name, err);
    if (status == STATUS_OK)
        status = curve_keys_read_server(group->path, known.server_public_key, err);
    if (status != STATUS_OK) return status;
    snprintf(own.path, sizeof own.path, "%s/%s", group->path, name);
    curve_keys_make(&known.own);
    status = make_folder(own.path, err);
    if (status == STATUS_OK)
        status = write_new(&own, CURVE_CLIENT_SECRET, 0600, known.own.secret_key, "", err);
    if (status == STATUS_OK)
        status = write_new(&own, CURVE_COORDINATOR_PUBLIC, 0644, known.server_public_key, "", err);
    if (status == STATUS_OK)
        status = write_line(group, CURVE_CLIENTS_ALLOWED, O_APPEND, 0644, known.own.public_key,
                            name, err);
    explicit_bzero(&known, sizeof known);
    if (status == STATUS_OK)
        printf("%s: the --curve-keys of %s; %s/" CURVE_CLIENTS_ALLOWED " lets it in\n", own.path,
               name, group->path);
    return status;
}

/* ---- the command --------------------------------------------------------------------------- */

static int exit_code_of(enum status status) {
    if (status == STATUS_PERMISSION_DENIED) return EXIT_CODE_PERMISSION;
    return status == STATUS_ALREADY_EXISTS ? EXIT_CODE_FAILED : EXIT_CODE_USAGE;
}

int cmd_keygen(int argc, char *const *argv) {
    const char *client = NULL;
    struct option table[] = {
        {.name = "--client",
         .type = OPTION_TEXT,
         .value = &client,
         .argument = "NAME",
         .help = "add a client to the keys in DIR: its own in DIR/NAME, and a line with its name "
                 "in DIR/" CURVE_CLIENTS_ALLOWED},
    };
    const struct options_program program = {
        .name = PROGRAM_NAME,
        .usage = "[flags] DIR",
        .summary = "Makes keys for a group that is reached over TCP. Writes nothing over.",
        .option = table,
        .option_count = sizeof table / sizeof *table,
        .positional_name = "DIR",
        .positional_max = 1,
    };
    struct options_result result;
    int exit_code;
    if (!options_take(&program, argc, argv, &result, &exit_code)) return exit_code;
    struct error err;
    struct folder folder;
    if (result.positional_count != 1 || snprintf(folder.path, sizeof folder.path, "%s",
                                                 result.positional[0]) >= (int)sizeof folder.path) {
        error_set(&err, STATUS_INVALID_ARGUMENT, "DIR: found %s, accepted: a folder for the keys",
                  result.positional_count ? "a path too long" : "nothing");
        return options_refuse(PROGRAM_NAME, EXIT_CODE_USAGE, &err);
    }
    enum status status = client ? add_client(&folder, client, &err) : make_group(&folder, &err);
    return status == STATUS_OK ? EXIT_CODE_OK
                               : options_refuse(PROGRAM_NAME, exit_code_of(status), &err);
}
