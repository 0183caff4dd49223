/* Processes by identity, not by number: a pid is reused, (pid, start time) is not.
 *
 * Death is learned from the kernel (a pidfd becomes readable), never by polling or by silence.
 */
#ifndef ESPALIER_PROCESS_H
#define ESPALIER_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "base/status.h"

/* Clock ticks after boot when `pid` started (/proc/PID/stat, field 22); 0 if there is none. */
uint64_t process_start_time(pid_t pid);

#define PROCESS_PATH_MAX 4096u

/* `name` as a path from the folder of this program, whether or not anything is there. False: it is
 * too long. */
bool process_path_beside(const char *name, char out[PROCESS_PATH_MAX]);

/* Give the standard streams that we were started without to /dev/null: the next file opened would
 * take their place, and be written to, or closed, in their name. Call first in main. */
void process_fill_standard_streams(void);

/* Writing to a peer that is gone, or beyond RLIMIT_FSIZE, is an error and not the end of the
 * process: a full log must not stop a service. */
void process_let_writes_fail(void);

/* What asks a process to end (SIGTERM, SIGINT, SIGHUP, SIGQUIT) finds it ending, from here to its
 * exit: call before the handlers are taken down, or the next signal ends it by its default action
 * and the exit code is lost. Call from the main thread; threads started before that take signals
 * of their own must be gone. */
void process_end_in_peace(void);

/* Raise this process's limit of open files as far as it may, within reason.
 * FAILED_PRECONDITION where fewer than `needed` remain: the libraries beneath us end the process
 * without a word when they can open no more. */
enum status process_require_files(uint32_t needed, struct error *err) MUST_USE;

/* Die with SIGKILL when the parent dies, and at once if it is not `parent` any more: the answer
 * to a parent that died between fork and this call. Call in the child, from its main thread. */
void process_die_with_parent(pid_t parent);

struct process_watch;

/* Call on_death(user) once, from the loop, when the process (pid, start_time) ends; at the next
 * turn if it already has: no such pid, or the number belongs to a later process. NOT_FOUND where
 * pid cannot be watched (0: it lives in another pid namespace). Thread: that of the loop. */
enum status process_watch_open(uv_loop_t *loop, pid_t pid, uint64_t start_time,
                               void (*on_death)(void *user), void *user,
                               struct process_watch **watch_out, struct error *err) MUST_USE;

/* May be called from on_death. The pointer is nulled; memory goes in the loop's next turn. */
void process_watch_close(struct process_watch **watch);

#endif
