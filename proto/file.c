#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"

/* Linux moves at most this many bytes in one call. */
#define READ_BYTES_MAX (UINT64_C(1) << 30)

static enum status status_of_errno(int code) {
    switch (code) {
    case ENOENT: return STATUS_NOT_FOUND;
    case EACCES:
    case EPERM: return STATUS_PERMISSION_DENIED;
    case EMFILE:
    case ENFILE:
    case ENOMEM: return STATUS_RESOURCE_EXHAUSTED;
    case EIO: return STATUS_DATA_LOSS;
    default: return STATUS_INVALID_ARGUMENT;
    }
}

enum status file_open(const char *path, int *fd_out, uint64_t *bytes_out, struct error *err) {
    /* O_NONBLOCK: a named pipe in the place of a file is refused below instead of waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_set(err, status_of_errno(errno), "%s: cannot be opened: %s", path,
                         strerror(errno));
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: is not a regular file", path);
    }
    *fd_out = fd;
    *bytes_out = (uint64_t)info.st_size;
    return STATUS_OK;
}

enum status file_read_at(int fd, const char *path, void *out, uint64_t bytes, uint64_t offset,
                         struct error *err) {
    unsigned char *to = out;
    uint64_t done = 0;
    while (done < bytes) {
        uint64_t want = bytes - done < READ_BYTES_MAX ? bytes - done : READ_BYTES_MAX;
        ssize_t got = pread(fd, to + done, want, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return error_set(err, STATUS_DATA_LOSS, "%s: cannot be read at byte %llu: %s", path,
                             (unsigned long long)(offset + done), strerror(errno));
        if (got == 0)
            return error_set(err, STATUS_DATA_LOSS,
                             "%s: ends at byte %llu, %llu bytes short: it shrank while it was read",
                             path, (unsigned long long)(offset + done),
                             (unsigned long long)(bytes - done));
        done += (uint64_t)got;
    }
    return STATUS_OK;
}

static struct file_state state_of(const struct stat *info) {
    return (struct file_state){.device = info->st_dev,
                               .inode = info->st_ino,
                               .bytes = (uint64_t)info->st_size,
                               .modified_ns = info->st_mtim.tv_sec * NS_PER_S +
                                              info->st_mtim.tv_nsec};
}

struct file_state file_state_of(int fd) {
    struct stat info;
    CHECK(fstat(fd, &info) == 0);
    return state_of(&info);
}

bool file_is_as_before(const char *path, const struct file_state *before) {
    struct stat info;
    if (stat(path, &info) != 0) return false;
    const struct file_state now = state_of(&info);
    return now.device == before->device && now.inode == before->inode &&
           now.bytes == before->bytes && now.modified_ns == before->modified_ns;
}

enum status file_check_unchanged(int fd, const char *path, const struct file_state *before,
                                 struct error *err) {
    struct file_state now = file_state_of(fd);
    if (now.device != before->device || now.inode != before->inode)
        return error_set(err, STATUS_DATA_LOSS,
                         "%s: was replaced by another file while it was read", path);
    if (now.bytes != before->bytes)
        return error_set(err, STATUS_DATA_LOSS, "%s: %s from %llu to %llu bytes while it was read",
                         path, now.bytes < before->bytes ? "shrank" : "grew",
                         (unsigned long long)before->bytes, (unsigned long long)now.bytes);
    if (now.modified_ns != before->modified_ns)
        return error_set(err, STATUS_DATA_LOSS, "%s: was written to while it was read", path);
    return STATUS_OK;
}

enum status file_check_owner(int fd, const char *path, uint32_t forbidden, const char *accepted,
                             struct error *err) {
    struct stat info;
    CHECK(fstat(fd, &info) == 0);
    if ((info.st_uid == geteuid() || info.st_uid == 0) && (info.st_mode & forbidden) == 0)
        return STATUS_OK;
    return error_set(err, STATUS_PERMISSION_DENIED,
                     "%s: found mode %04o, uid %u, accepted: %s, ours (uid %u) or root's", path,
                     info.st_mode & 07777u, info.st_uid, accepted, geteuid());
}

enum status file_read_all(const char *path, uint64_t bytes_max, char **text_out,
                          uint64_t *bytes_out, struct error *err) {
    int fd;
    uint64_t bytes;
    enum status status = file_open(path, &fd, &bytes, err);
    if (status != STATUS_OK) return status;
    if (bytes > bytes_max) {
        status = error_set(err, STATUS_INVALID_ARGUMENT,
                           "%s: is %llu bytes long; at most %llu are accepted", path,
                           (unsigned long long)bytes, (unsigned long long)bytes_max);
        goto out_close;
    }
    char *text = malloc(bytes + 1);
    if (!text) {
        status = error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for %llu bytes", path,
                           (unsigned long long)bytes);
        goto out_close;
    }
    status = file_read_at(fd, path, text, bytes, 0, err);
    if (status != STATUS_OK) {
        free(text);
        goto out_close;
    }
    text[bytes] = '\0';
    *text_out = text;
    *bytes_out = bytes;
out_close:
    close(fd);
    return status;
}
