/* Reading regular files of unknown quality: whole and bounded, or exact ranges.
 *
 * Weights and configs come from disks that fill up, folders that are half copied and mounts that
 * go away. Every outcome is a status with one line that names the path; nothing here maps a file,
 * so a file that shrinks while it is read is a short read and never a SIGBUS. Any thread.
 */
#ifndef ESPALIER_FILE_H
#define ESPALIER_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Open a regular file (a link to one is fine) for reading; the caller closes fd_out. NOT_FOUND,
 * PERMISSION_DENIED, RESOURCE_EXHAUSTED (descriptors), INVALID_ARGUMENT (a folder, a pipe, a loop
 * of links). */
enum status file_open(const char *path, int *fd_out, uint64_t *bytes_out,
                      struct error *err) MUST_USE;

/* Exactly [offset, offset + bytes) of an open file; path is for the message. DATA_LOSS where the
 * file ends before that or the device fails. */
enum status file_read_at(int fd, const char *path, void *out, uint64_t bytes, uint64_t offset,
                         struct error *err) MUST_USE;

/* Which file this is, and of when: enough to see that it was written to, cut or replaced. */
struct file_state {
    uint64_t device, inode, bytes;
    int64_t modified_ns;
};
struct file_state file_state_of(int fd);

/* Whether the path still names that file, as it was. */
bool file_is_as_before(const char *path, const struct file_state *before);

/* DATA_LOSS where an open file is not as it was; err says how it differs. */
enum status file_check_unchanged(int fd, const char *path, const struct file_state *before,
                                 struct error *err) MUST_USE;

/* PERMISSION_DENIED where the open file is neither ours nor root's, or its mode has a bit of
 * `forbidden`; accepted: what to say of the mode instead. */
enum status file_check_owner(int fd, const char *path, uint32_t forbidden, const char *accepted,
                             struct error *err) MUST_USE;

/* A whole file of at most bytes_max bytes, with a NUL behind it; the caller frees text_out. */
enum status file_read_all(const char *path, uint64_t bytes_max, char **text_out,
                          uint64_t *bytes_out, struct error *err) MUST_USE;

#endif
