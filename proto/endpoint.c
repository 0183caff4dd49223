#include "endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define LISTEN_BACKLOG    128
#define LOCK_ATTEMPTS     16 /* against an owner that removes the lock file while we open it */
#define LOCK_SUFFIX       ".lock"
#define LOCK_PATH_BYTES   (ENDPOINT_PATH_MAX + sizeof LOCK_SUFFIX)
#define PORT_DIGITS_MAX   5
#define HOST_NAME_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-"

_Static_assert(sizeof((struct sockaddr_un *)0)->sun_path == ENDPOINT_PATH_MAX + 1,
               "a path fits sockaddr_un");

/* ============================== parsing ======================================================= */

static enum status parse_ipc(const char *text, const char *path, struct endpoint *endpoint,
                             struct error *err) {
    size_t size = strlen(path);
    const char *name = strrchr(path, '/');
    if (path[0] != '/' || name[1] == '\0' || name == path || size > ENDPOINT_PATH_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "endpoint: found \"%.120s\" (%zu bytes of path), accepted: "
                         "ipc:///DIRECTORY/NAME with a path of at most %u bytes",
                         text, size, ENDPOINT_PATH_MAX);
    memcpy(endpoint->path, path, size + 1);
    endpoint->scheme = ENDPOINT_IPC;
    endpoint->local = true;
    return STATUS_OK;
}

static bool port_is_valid(const char *text, bool zero_is_valid) {
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > PORT_DIGITS_MAX || text[digits] != '\0') return false;
    unsigned long port = strtoul(text, NULL, 10);
    return port <= UINT16_MAX && (port > 0 || zero_is_valid);
}

/* Reads the host's form; false where it is none that `use` may have. */
static bool host_is_valid(struct endpoint *endpoint, enum endpoint_use use) {
    struct in_addr in;
    struct in6_addr in6;
    if (endpoint->ipv6) {
        if (inet_pton(AF_INET6, endpoint->host, &in6) != 1) return false;
        endpoint->local = IN6_IS_ADDR_LOOPBACK(&in6);
        return true;
    }
    if (inet_pton(AF_INET, endpoint->host, &in) == 1) {
        endpoint->local = ntohl(in.s_addr) >> 24 == 127;
        return true;
    }
    if (use == ENDPOINT_BIND) return strcmp(endpoint->host, "*") == 0;
    endpoint->local = strcmp(endpoint->host, "localhost") == 0;
    return endpoint->host[strspn(endpoint->host, HOST_NAME_LETTERS)] == '\0';
}

static enum status parse_tcp(const char *text, const char *rest, enum endpoint_use use,
                             struct endpoint *endpoint, struct error *err) {
    const char *colon = strrchr(rest, ':');
    size_t host_bytes = colon == NULL ? 0 : (size_t)(colon - rest);
    bool ok = host_bytes > 0 && host_bytes <= ENDPOINT_HOST_MAX &&
              port_is_valid(colon + 1, use == ENDPOINT_BIND);
    endpoint->scheme = ENDPOINT_TCP;
    endpoint->ipv6 = ok && host_bytes > 2 && rest[0] == '[' && colon[-1] == ']';
    if (endpoint->ipv6) {
        rest++;
        host_bytes -= 2;
    }
    if (ok) memcpy(endpoint->host, rest, host_bytes);
    if (ok && host_is_valid(endpoint, use)) return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT, "endpoint: found \"%.120s\", accepted: %s", text,
                     use == ENDPOINT_BIND
                         ? "tcp://IPV4:PORT, tcp://[IPV6]:PORT or tcp://*:PORT, port 0 for any"
                         : "tcp://HOST:PORT, an IPv6 address in brackets");
}

enum status endpoint_parse(const char *text, enum endpoint_use use, struct endpoint *endpoint_out,
                           struct error *err) {
    memset(endpoint_out, 0, sizeof *endpoint_out);
    if (strncmp(text, "ipc://", 6) == 0) return parse_ipc(text, text + 6, endpoint_out, err);
    if (strncmp(text, "tcp://", 6) == 0) return parse_tcp(text, text + 6, use, endpoint_out, err);
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "endpoint: found \"%.120s\", accepted: ipc:///PATH or tcp://HOST:PORT", text);
}

/* ============================== claiming ====================================================== */

static enum status refuse(struct error *err, const char *action, const char *path) {
    enum status status = errno == EACCES || errno == EPERM ? STATUS_PERMISSION_DENIED
                                                           : STATUS_UNAVAILABLE;
    return error_set(err, status, "cannot %s %s: %s", action, path, strerror(errno));
}

static enum status check_directory(const char *path, struct error *err) {
    char directory[ENDPOINT_PATH_MAX + 1];
    snprintf(directory, sizeof directory, "%.*s", (int)(strrchr(path, '/') - path), path);
    if (mkdir(directory, 0700) != 0 && errno != EEXIST) return refuse(err, "create", directory);

    struct stat stat;
    if (lstat(directory, &stat) != 0) return refuse(err, "look at", directory);
    if (!S_ISDIR(stat.st_mode) || stat.st_uid != geteuid() || (stat.st_mode & 077) != 0)
        return error_set(err, STATUS_PERMISSION_DENIED,
                         "%s: found %s of uid %u, mode %04o, accepted: a directory of uid %u, "
                         "mode 0700",
                         directory, S_ISDIR(stat.st_mode) ? "a directory" : "no directory",
                         stat.st_uid, stat.st_mode & 07777u, geteuid());
    return STATUS_OK;
}

static void lock_path_of(const char *path, char out[LOCK_PATH_BYTES]) {
    snprintf(out, LOCK_PATH_BYTES, "%s%s", path, LOCK_SUFFIX);
}

/* Whether the locked descriptor is still the file that others would open. */
static bool lock_is_current(int lock_fd, const char *lock_path) {
    struct stat held, named;
    return fstat(lock_fd, &held) == 0 && stat(lock_path, &named) == 0 &&
           held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

static enum status take_lock(const char *path, int *lock_fd_out, struct error *err) {
    char lock_path[LOCK_PATH_BYTES];
    lock_path_of(path, lock_path);
    for (int attempt = 0; attempt < LOCK_ATTEMPTS; attempt++) {
        int fd = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0) return refuse(err, "open", lock_path);
        bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
        if (locked && lock_is_current(fd, lock_path)) {
            *lock_fd_out = fd;
            return STATUS_OK;
        }
        int error = errno;
        close(fd);
        errno = error;
        if (!locked && errno != EWOULDBLOCK) return refuse(err, "lock", lock_path);
        if (!locked) break;
    }
    return error_set(err, STATUS_ALREADY_EXISTS, "ipc://%s: another process listens there", path);
}

/* What a killed owner left; never a file that was not a socket. */
static enum status remove_leftover(const char *path, struct error *err) {
    struct stat stat;
    if (lstat(path, &stat) != 0) return errno == ENOENT ? STATUS_OK : refuse(err, "look at", path);
    if (!S_ISSOCK(stat.st_mode))
        return error_set(err, STATUS_PERMISSION_DENIED,
                         "%s: found a file that is no socket, accepted: a path that is free", path);
    return unlink(path) == 0 ? STATUS_OK : refuse(err, "remove", path);
}

static enum status start_listening(struct endpoint_claim *claim, struct error *err) {
    const char *path = claim->path;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return refuse(err, "make a socket for", path);
    if (bind(fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
        listen(fd, LISTEN_BACKLOG) != 0) {
        enum status status = refuse(err, "listen at", path);
        close(fd);
        return status;
    }
    claim->listen_fd = fd;
    claim->listening = true;
    return STATUS_OK;
}

enum status endpoint_claim(const struct endpoint *endpoint, struct endpoint_claim *claim_out,
                           struct error *err) {
    *claim_out = (struct endpoint_claim){.lock_fd = -1, .listen_fd = -1};
    memcpy(claim_out->path, endpoint->path, sizeof claim_out->path);
    enum status status = check_directory(endpoint->path, err);
    if (status == STATUS_OK) status = take_lock(endpoint->path, &claim_out->lock_fd, err);
    if (status == STATUS_OK) status = remove_leftover(endpoint->path, err);
    if (status == STATUS_OK) status = start_listening(claim_out, err);
    if (status != STATUS_OK) endpoint_release(claim_out);
    return status;
}

void endpoint_release(struct endpoint_claim *claim) {
    if (claim->listen_fd >= 0) close(claim->listen_fd);
    claim->listen_fd = -1;
    if (claim->lock_fd < 0) return;
    char lock_path[LOCK_PATH_BYTES];
    lock_path_of(claim->path, lock_path);
    if (claim->listening) unlink(claim->path);
    unlink(lock_path); /* before the lock goes: afterwards it may be the next owner's */
    close(claim->lock_fd);
    claim->lock_fd = -1;
}
