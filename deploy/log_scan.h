/* The log lines of one boot, out of files that may hold several: in time's order, or its errors
 * alone, those of the rank that failed first before the others'.
 *
 * A line belongs to a boot by its `boot=` field; others are not looked at. An error is a line of
 * level error or fatal, and one that says that a rank or the group was lost. It is held against the
 * rank that its reason names last, since survivors complain of the one that died, else against the
 * rank that wrote it.
 */
#ifndef ESPALIER_LOG_SCAN_H
#define ESPALIER_LOG_SCAN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/log.h"
#include "base/status.h"
#include "run_dir.h"

#define LOG_SCAN_NO_RANK (-1) /* the coordinator, or nobody's */

struct log_scan_line {
    const char *text; /* without its newline; owned by the scan */
    int rank;         /* that it is held against, or that wrote it */
    bool is_error;
    uint32_t order; /* of reading */
};

struct log_scan {
    char boot[BOOT_ID_LEN + 1]; /* empty until known */
    char *text[64];             /* what was read, owned */
    uint32_t text_count;
    struct log_scan_line *line; /* of all boots before log_scan_finish, of the one after it */
    uint32_t line_count, line_capacity;
    uint32_t error_count;
    int first_failing_rank; /* LOG_SCAN_NO_RANK: no error, or not a rank's */
    char since[32];         /* when the boot's first line was written; empty: there is none */
};

void log_scan_init(struct log_scan *scan);
void log_scan_deinit(struct log_scan *scan);

/* Read a file, or standard input for "-". NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED (it has
 * more than LOG_SCAN_BYTES_MAX). */
#define LOG_SCAN_BYTES_MAX (64u << 20)
enum status log_scan_read(struct log_scan *scan, const char *path, struct error *err) MUST_USE;

/* The same of an open stream; name is for the message. */
enum status log_scan_read_stream(struct log_scan *scan, FILE *stream, const char *name,
                                 struct error *err) MUST_USE;

/* Read what the processes of a group keep: in log_dir, or for NULL in the run directory. NOT_FOUND
 * where there is nothing. */
enum status log_scan_read_group(struct log_scan *scan, const struct run_dir *dir,
                                const char *log_dir, struct error *err) MUST_USE;

/* Keep the lines of `boot`, or for NULL of the boot whose line is the latest, and put them in
 * order. */
void log_scan_finish(struct log_scan *scan, const char *boot);

/* Put the errors alone in scan->line: by rank, the one that failed first before the others. */
void log_scan_keep_errors(struct log_scan *scan);

#endif
