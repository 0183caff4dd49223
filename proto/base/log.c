#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"

#define LOG_LINE_MAX 2048

static struct {
    char component[24];
    int rank;
    enum log_level minimum;
} logger = {"espalier", LOG_RANK_NONE, LOG_LEVEL_INFO};

static struct {
    pthread_mutex_t lock;
    char id[BOOT_ID_LEN + 1];
} boot = {PTHREAD_MUTEX_INITIALIZER, "-"};

/* The kept file. The descriptor is replaced when the file is full, hence the lock. */
static struct {
    pthread_mutex_t lock;
    char path[LOG_PATH_BYTES_MAX];
    int fd;
    size_t bytes;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static const char *const level_names[] = {"debug", "info", "warn", "error", "fatal"};

void log_init(const char *component, int rank, const char *boot_id) {
    snprintf(logger.component, sizeof logger.component, "%s", component);
    logger.rank = rank;
    log_set_boot(boot_id);
}

void log_set_boot(const char *boot_id) {
    pthread_mutex_lock(&boot.lock);
    snprintf(boot.id, sizeof boot.id, "%s", boot_id);
    pthread_mutex_unlock(&boot.lock);
}

void log_set_level(enum log_level minimum) {
    logger.minimum = minimum;
}

bool log_level_parse(const char *name, enum log_level *level_out) {
    for (size_t i = 0; i < sizeof level_names / sizeof *level_names; i++) {
        if (strcmp(name, level_names[i]) != 0) continue;
        *level_out = (enum log_level)i;
        return true;
    }
    return false;
}

void log_make_boot_id(char boot_id_out[BOOT_ID_LEN + 1]) {
    uint64_t bits;
    CHECK(getrandom(&bits, sizeof bits, 0) == (ssize_t)sizeof bits);
    snprintf(boot_id_out, BOOT_ID_LEN + 1, "%016llx", (unsigned long long)bits);
}

/* Append to line[0, *length), never past LOG_LINE_MAX - 1: one byte is kept for the newline. */
static void append(char *line, size_t *length, const char *format, va_list args) {
    size_t room = LOG_LINE_MAX - 1 - *length;
    int wanted = vsnprintf(line + *length, room, format, args);
    if (wanted < 0) return;
    *length += (size_t)wanted < room ? (size_t)wanted : room - 1;
}

__attribute__((format(printf, 3, 4))) static void appendf(char *line, size_t *length,
                                                          const char *format, ...) {
    va_list args;
    va_start(args, format);
    append(line, length, format, args);
    va_end(args);
}

static void append_boot(char *line, size_t *length) {
    pthread_mutex_lock(&boot.lock);
    appendf(line, length, " boot=%s", boot.id);
    pthread_mutex_unlock(&boot.lock);
}

static void append_time(char *line, size_t *length) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct tm utc;
    gmtime_r(&now.tv_sec, &utc);
    *length += strftime(line + *length, LOG_LINE_MAX - 1 - *length, "%Y-%m-%dT%H:%M:%S", &utc);
    appendf(line, length, ".%03dZ", (int)(now.tv_nsec / 1000000));
}

static bool open_kept(void) {
    kept.fd = open(kept.path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct stat is;
    kept.bytes = kept.fd >= 0 && fstat(kept.fd, &is) == 0 ? (size_t)is.st_size : 0;
    return kept.fd >= 0;
}

bool log_keep(const char *path) {
    if (strlen(path) >= sizeof kept.path) {
        errno = ENAMETOOLONG;
        return false;
    }
    pthread_mutex_lock(&kept.lock);
    if (kept.fd >= 0) close(kept.fd);
    snprintf(kept.path, sizeof kept.path, "%s", path);
    bool opened = open_kept();
    pthread_mutex_unlock(&kept.lock);
    return opened;
}

/* The full file becomes the one before; what was that is gone. */
static void turn_over(void) {
    char before[LOG_PATH_BYTES_MAX + 2];
    snprintf(before, sizeof before, "%s.1", kept.path);
    close(kept.fd);
    (void)rename(kept.path, before);
    (void)open_kept();
}

static void emit_kept(const char *line, size_t length) {
    pthread_mutex_lock(&kept.lock);
    if (kept.fd >= 0 && kept.bytes + length > LOG_FILE_BYTES_MAX) turn_over();
    if (kept.fd >= 0 && write(kept.fd, line, length) > 0) kept.bytes += length;
    pthread_mutex_unlock(&kept.lock);
}

static void emit(char *line, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (line[i] == '\n') line[i] = ' ';
    line[length++] = '\n';
    /* A log that cannot be written (full disk, closed pipe) must not stop the service. */
    ssize_t ignored = write(STDERR_FILENO, line, length);
    (void)ignored;
    emit_kept(line, length);
}

void log_write(enum log_level level, const char *event, const char *format, ...) {
    if (level < logger.minimum) return;
    char line[LOG_LINE_MAX];
    size_t length = 0;
    append_time(line, &length);
    appendf(line, &length, " level=%s comp=%s", level_names[level], logger.component);
    if (logger.rank != LOG_RANK_NONE) appendf(line, &length, " rank=%d", logger.rank);
    append_boot(line, &length);
    appendf(line, &length, " event=%s ", event);
    va_list args;
    va_start(args, format);
    append(line, &length, format, args);
    va_end(args);
    emit(line, length);
}

void log_plain(const char *prefix, const char *format, ...) {
    char line[LOG_LINE_MAX];
    size_t length = 0;
    append_time(line, &length);
    appendf(line, &length, " %s%s", prefix, *prefix ? " " : "");
    va_list args;
    va_start(args, format);
    append(line, &length, format, args);
    va_end(args);
    append_boot(line, &length);
    emit(line, length);
}
