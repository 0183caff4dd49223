#include "run_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/limits.h"
#include "process.h"

#define LOCK_TRIES_MAX  16
#define READY_BYTES_MAX 1024u

enum status run_dir_choose(const char *path, struct run_dir *dir_out, struct error *err) {
    dir_out->lock_fd = -1;
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    char fallback[256];
    if (!path) {
        if (runtime && *runtime == '/')
            snprintf(fallback, sizeof fallback, "%s/espalier", runtime);
        else
            snprintf(fallback, sizeof fallback, "/tmp/espalier-%u", (unsigned)getuid());
        path = fallback;
    }
    if (*path != '/' || strlen(path) > RUN_DIR_PATH_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--run-dir: found \"%s\", accepted: an absolute path of at most %u bytes",
                         path, RUN_DIR_PATH_MAX);
    snprintf(dir_out->path, sizeof dir_out->path, "%s", path);
    return STATUS_OK;
}

/* Of what may become right by another path, and of what only by other rights. */
static enum status status_of(int code) {
    return code == EACCES || code == EPERM || code == EROFS ? STATUS_PERMISSION_DENIED
                                                            : STATUS_INVALID_ARGUMENT;
}

enum status run_dir_create(const struct run_dir *dir, struct error *err) {
    if (mkdir(dir->path, 0700) != 0 && errno != EEXIST)
        return error_set(err, status_of(errno), "--run-dir: found \"%s\", which cannot be made: %s",
                         dir->path, strerror(errno));
    struct stat info;
    if (lstat(dir->path, &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid() ||
        (info.st_mode & 0077) != 0)
        return error_set(err, STATUS_PERMISSION_DENIED,
                         "--run-dir: found \"%s\", accepted: a directory of mode 0700 that is "
                         "our own",
                         dir->path);
    return STATUS_OK;
}

static void file_path(const struct run_dir *dir, const char *name, char out[RUN_DIR_FILE_MAX]) {
    snprintf(out, RUN_DIR_FILE_MAX, "%s/%s", dir->path, name);
}

/* The lock is on the file that lies there now, not on one that its last holder has removed. */
static bool is_linked(int fd, const char *path) {
    struct stat held, named;
    return fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_ino == named.st_ino &&
           held.st_dev == named.st_dev;
}

enum status run_dir_lock(struct run_dir *dir, struct error *err) {
    char path[RUN_DIR_FILE_MAX];
    file_path(dir, "lock", path);
    for (int tries = 0; tries < LOCK_TRIES_MAX; tries++) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return error_set(err, status_of(errno), "--run-dir: cannot open \"%s\": %s", path,
                             strerror(errno));
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            close(fd);
            return error_set(err, STATUS_ALREADY_EXISTS,
                             "--run-dir: found \"%s\", where another coordinator runs; accepted: "
                             "another directory",
                             dir->path);
        }
        if (is_linked(fd, path)) {
            dir->lock_fd = fd;
            return STATUS_OK;
        }
        close(fd);
    }
    return error_set(err, STATUS_UNAVAILABLE, "--run-dir: \"%s\" is removed again and again", path);
}

void run_dir_unlock(struct run_dir *dir) {
    if (dir->lock_fd < 0) return;
    char path[RUN_DIR_FILE_MAX];
    file_path(dir, "lock", path);
    unlink(path);
    close(dir->lock_fd);
    dir->lock_fd = -1;
}

void run_dir_client_endpoint(const struct run_dir *dir, char out[RUN_DIR_ENDPOINT_MAX]) {
    snprintf(out, RUN_DIR_ENDPOINT_MAX, "ipc://%s/client.sock", dir->path);
}

void run_dir_worker_endpoint(const struct run_dir *dir, char out[RUN_DIR_ENDPOINT_MAX]) {
    snprintf(out, RUN_DIR_ENDPOINT_MAX, "ipc://%s/worker.sock", dir->path);
}

static void ready_path(const struct run_dir *dir, int who, const char *suffix,
                       char out[RUN_DIR_FILE_MAX]) {
    if (who == RUN_DIR_COORDINATOR)
        snprintf(out, RUN_DIR_FILE_MAX, "%s/coordinator.ready%s", dir->path, suffix);
    else
        snprintf(out, RUN_DIR_FILE_MAX, "%s/worker-%d.ready%s", dir->path, who, suffix);
}

enum status run_dir_publish(const struct run_dir *dir, int who, const struct ready_file *ready,
                            struct error *err) {
    char path[RUN_DIR_FILE_MAX], temporary[RUN_DIR_FILE_MAX], suffix[24];
    snprintf(suffix, sizeof suffix, ".%d", (int)getpid());
    ready_path(dir, who, "", path);
    ready_path(dir, who, suffix, temporary);
    char text[READY_BYTES_MAX];
    int length = snprintf(text, sizeof text,
                          "pid=%" PRIu64 "\nstart=%" PRIu64
                          "\nendpoint=%s\nworkers=%s\nprobe=%s\nboot=%s\n",
                          ready->pid, ready->process_start, ready->endpoint, ready->workers,
                          ready->probe, ready->boot);
    CHECK(length > 0 && (size_t)length < sizeof text);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool written = fd >= 0 && write(fd, text, (size_t)length) == (ssize_t)length;
    if (fd >= 0) written = close(fd) == 0 && written;
    if (written && rename(temporary, path) == 0) return STATUS_OK;
    int cause = errno;
    unlink(temporary);
    return error_set(err, STATUS_UNAVAILABLE, "cannot write \"%s\": %s", path, strerror(cause));
}

void run_dir_withdraw(const struct run_dir *dir, int who) {
    char path[RUN_DIR_FILE_MAX];
    ready_path(dir, who, "", path);
    unlink(path);
}

/* The rest of the line that begins with `key=`, cut at out_bytes; false where there is none. */
static bool field(const char *text, const char *key, char *out, size_t out_bytes) {
    size_t key_bytes = strlen(key);
    for (const char *line = text; *line;) {
        size_t line_bytes = strcspn(line, "\n");
        if (line_bytes > key_bytes && memcmp(line, key, key_bytes) == 0 && line[key_bytes] == '=') {
            snprintf(out, out_bytes, "%.*s", (int)(line_bytes - key_bytes - 1),
                     line + key_bytes + 1);
            return true;
        }
        line += line_bytes;
        line += *line == '\n';
    }
    return false;
}

static bool parse_ready(const char *text, struct ready_file *ready_out) {
    char pid[24], start[24];
    bool whole = field(text, "pid", pid, sizeof pid) && field(text, "start", start, sizeof start) &&
                 field(text, "endpoint", ready_out->endpoint, sizeof ready_out->endpoint) &&
                 field(text, "workers", ready_out->workers, sizeof ready_out->workers) &&
                 field(text, "probe", ready_out->probe, sizeof ready_out->probe) &&
                 field(text, "boot", ready_out->boot, sizeof ready_out->boot);
    if (!whole) return false;
    ready_out->pid = strtoull(pid, NULL, 10);
    ready_out->process_start = strtoull(start, NULL, 10);
    return ready_out->pid > 0 && ready_out->pid <= INT32_MAX;
}

enum status run_dir_find(const struct run_dir *dir, int who, struct ready_file *ready_out,
                         struct error *err) {
    char path[RUN_DIR_FILE_MAX];
    ready_path(dir, who, "", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return error_set(err, STATUS_UNAVAILABLE, "nothing runs in %s: no %s", dir->path,
                         path + strlen(dir->path) + 1);
    char text[READY_BYTES_MAX];
    ssize_t bytes = read(fd, text, sizeof text - 1);
    close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    if (!parse_ready(text, ready_out))
        return error_set(err, STATUS_DATA_LOSS, "%s is not a ready file", path);
    if (process_start_time((pid_t)ready_out->pid) != ready_out->process_start)
        return error_set(err, STATUS_UNAVAILABLE,
                         "%s was left by process %" PRIu64 ", which is gone", path, ready_out->pid);
    return STATUS_OK;
}

bool run_dir_log_path(const struct run_dir *dir, const char *log_dir, int who, char *out,
                      size_t out_bytes) {
    const char *folder = log_dir ? log_dir : dir->path;
    int length = who == RUN_DIR_COORDINATOR
                     ? snprintf(out, out_bytes, "%s/coordinator.log", folder)
                     : snprintf(out, out_bytes, "%s/worker-%d.log", folder, who);
    return length > 0 && (size_t)length < out_bytes;
}

static void remove_logs(const struct run_dir *dir, int who) {
    char path[RUN_DIR_FILE_MAX], before[RUN_DIR_FILE_MAX + 2];
    if (!run_dir_log_path(dir, NULL, who, path, sizeof path)) return;
    snprintf(before, sizeof before, "%s.1", path);
    unlink(path);
    unlink(before);
}

void run_dir_sweep(const struct run_dir *dir) {
    static const char *const names[] = {"client.sock", "client.sock.lock", "worker.sock",
                                        "worker.sock.lock"};
    struct run_dir locked = *dir;
    struct error err;
    if (run_dir_lock(&locked, &err) != STATUS_OK) return;
    char path[RUN_DIR_FILE_MAX];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        file_path(dir, names[i], path);
        unlink(path);
    }
    for (int who = RUN_DIR_COORDINATOR; who < (int)TP_MAX; who++) {
        run_dir_withdraw(dir, who);
        remove_logs(dir, who);
    }
    run_dir_unlock(&locked);
}

void run_dir_remove(const struct run_dir *dir) {
    run_dir_sweep(dir);
    rmdir(dir->path);
}
