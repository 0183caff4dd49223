/* One line an event, key=value, on stderr and in a file where one is kept:
 *
 *   2026-11-29T20:05:34.123Z level=info comp=worker rank=3 boot=5f3a... event=weights_loaded ...
 *
 * Every line carries the boot id, so that a search for errors can be bounded to this boot. A line
 * is one write(2), so lines of several processes on one descriptor do not mix. Any thread.
 */
#ifndef ESPALIER_LOG_H
#define ESPALIER_LOG_H

#include <stdbool.h>

enum log_level {
    LOG_LEVEL_DEBUG,
    LOG_LEVEL_INFO,
    LOG_LEVEL_WARN,
    LOG_LEVEL_ERROR,
    LOG_LEVEL_FATAL, /* the process's last line (check.h) */
};

#define LOG_RANK_NONE (-1)
#define BOOT_ID_LEN   16 /* hexadecimal digits */

/* Set once, before threads start. rank: LOG_RANK_NONE where there is none. boot_id is copied. */
void log_init(const char *component, int rank, const char *boot_id);

/* Another boot from now on: a process that outlives its coordinator belongs to the next one's. */
void log_set_boot(const char *boot_id);
void log_set_level(enum log_level minimum);

/* Keep the lines in a file as well, from now on: appended, mode 0600. It and the one before it,
 * named with ".1", have at most LOG_FILE_BYTES_MAX each. False, with errno, where it cannot be
 * opened. path is copied. */
#define LOG_FILE_BYTES_MAX (4u << 20)
#define LOG_PATH_BYTES_MAX 4096u
bool log_keep(const char *path);

/* "debug", "info", "warn" or "error" to a level. False where it is none of these. */
bool log_level_parse(const char *name, enum log_level *level_out);

/* Write BOOT_ID_LEN random hexadecimal digits and a NUL. */
void log_make_boot_id(char boot_id_out[BOOT_ID_LEN + 1]);

/* format: `key=value key="text"` pairs. Newlines in the result are written as spaces. */
void log_write(enum log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A line that keeps words operators already grep for: no level, no event; the boot id is added at
 * its end. `prefix` ("TP3") may be empty. */
void log_plain(const char *prefix, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_debug(event, ...) log_write(LOG_LEVEL_DEBUG, event, __VA_ARGS__)
#define log_info(event, ...)  log_write(LOG_LEVEL_INFO, event, __VA_ARGS__)
#define log_warn(event, ...)  log_write(LOG_LEVEL_WARN, event, __VA_ARGS__)
#define log_error(event, ...) log_write(LOG_LEVEL_ERROR, event, __VA_ARGS__)

#endif
