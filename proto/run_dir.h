/* Where the processes of one group meet on a machine: a directory of mode 0700.
 *
 *     RUN_DIR/lock               flock'ed by the coordinator for its life
 *     RUN_DIR/client.sock        clients' endpoint        (unless --client-endpoint)
 *     RUN_DIR/worker.sock        workers' endpoint        (unless --worker-endpoint)
 *     RUN_DIR/coordinator.ready  key=value lines: what runs here and where it answers
 *     RUN_DIR/worker-N.ready     likewise for rank N
 *     RUN_DIR/coordinator.log    its log lines, and worker-N.log  (unless --log-dir); each with a
 *                                .log.1 before it once it has been full
 *
 * A ready file is written whole (renamed into place) once its process answers, and names the
 * process by pid and start time, so a file left by a killed process is recognised as such.
 */
#ifndef ESPALIER_RUN_DIR_H
#define ESPALIER_RUN_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* An ipc path must fit sockaddr_un, 108 bytes with the NUL, and lock files lie beside it. */
#define RUN_DIR_PATH_MAX     80u
#define RUN_DIR_FILE_MAX     128u
#define RUN_DIR_ENDPOINT_MAX 160u
#define RUN_DIR_COORDINATOR  (-1)

struct run_dir {
    char path[RUN_DIR_PATH_MAX + 1];
    int lock_fd; /* -1: not held */
};

/* The directory for `path`, or for NULL the default: $XDG_RUNTIME_DIR/espalier, else
 * /tmp/espalier-UID. Touches nothing. INVALID_ARGUMENT: too long, not absolute. */
enum status run_dir_choose(const char *path, struct run_dir *dir_out, struct error *err) MUST_USE;

/* Create the directory where it is missing. PERMISSION_DENIED: not ours, or open to others. */
enum status run_dir_create(const struct run_dir *dir, struct error *err) MUST_USE;

/* Take the lock: ALREADY_EXISTS where another process has it. Released with the process. */
enum status run_dir_lock(struct run_dir *dir, struct error *err) MUST_USE;

/* Remove the lock file and let go, while no one else can take it. */
void run_dir_unlock(struct run_dir *dir);

/* "ipc://RUN_DIR/client.sock" and "ipc://RUN_DIR/worker.sock". */
void run_dir_client_endpoint(const struct run_dir *dir, char out[RUN_DIR_ENDPOINT_MAX]);
void run_dir_worker_endpoint(const struct run_dir *dir, char out[RUN_DIR_ENDPOINT_MAX]);

struct ready_file {
    uint64_t pid, process_start;         /* as process_start_time() */
    char endpoint[RUN_DIR_ENDPOINT_MAX]; /* of clients; empty for a worker */
    char workers[RUN_DIR_ENDPOINT_MAX];  /* where workers connect; empty for a worker */
    char probe[64];                      /* "127.0.0.1:41234" */
    char boot[17];
};

/* who: RUN_DIR_COORDINATOR or a rank. */
enum status run_dir_publish(const struct run_dir *dir, int who, const struct ready_file *ready,
                            struct error *err) MUST_USE;
void run_dir_withdraw(const struct run_dir *dir, int who);

/* UNAVAILABLE: no file, or the process it names is gone. DATA_LOSS: a file that is not ours. */
enum status run_dir_find(const struct run_dir *dir, int who, struct ready_file *ready_out,
                         struct error *err) MUST_USE;

/* Where a process keeps its log lines: in log_dir, or for NULL in the run directory. False: the
 * path is too long. */
bool run_dir_log_path(const struct run_dir *dir, const char *log_dir, int who, char *out,
                      size_t out_bytes);

/* Remove what killed processes of ours have left in the directory; nothing where a coordinator
 * runs there. */
void run_dir_sweep(const struct run_dir *dir);

/* Sweep, and remove the directory unless something else is in it. */
void run_dir_remove(const struct run_dir *dir);

#endif
