#include "log_scan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/limits.h"

#define TIME_CHARS 24u /* 2026-11-29T20:05:34.123Z */

void log_scan_init(struct log_scan *scan) {
    *scan = (struct log_scan){.first_failing_rank = LOG_SCAN_NO_RANK};
}

void log_scan_deinit(struct log_scan *scan) {
    for (uint32_t i = 0; i < scan->text_count; i++)
        free(scan->text[i]);
    free(scan->line);
    log_scan_init(scan);
}

/* ---- lines --------------------------------------------------------------------------------- */

static bool has_time(const char *text) {
    return strnlen(text, TIME_CHARS) == TIME_CHARS && text[4] == '-' && text[10] == 'T' &&
           text[TIME_CHARS - 1] == 'Z';
}

/* The value of ` key=` where it is followed by a space or the end; NULL where it is not there. */
static const char *field(const char *text, const char *key, size_t *bytes_out) {
    const char *at = strstr(text, key);
    if (!at) return NULL;
    at += strlen(key);
    *bytes_out = strcspn(at, " ");
    return at;
}

static bool is_of_boot(const char *text, const char *boot) {
    size_t bytes;
    const char *at = field(text, " boot=", &bytes);
    return at && bytes == strlen(boot) && memcmp(at, boot, bytes) == 0;
}

static int number_at(const char *text) {
    return *text >= '0' && *text <= '9' ? (int)strtol(text, NULL, 10) : LOG_SCAN_NO_RANK;
}

/* Who wrote it: rank=3, or TP3 of the lines that keep others' words. */
static int writer_of(const char *text) {
    size_t bytes;
    const char *at = field(text, " rank=", &bytes);
    const char *event = strstr(text, " event=");
    if (at && (!event || at < event)) return number_at(at);
    return strncmp(text + TIME_CHARS, " TP", 3) == 0 ? number_at(text + TIME_CHARS + 3)
                                                     : LOG_SCAN_NO_RANK;
}

/* Whom its reason names last. */
static int blamed_by(const char *text) {
    const char *reason = strstr(text, " reason=\"");
    int rank = LOG_SCAN_NO_RANK;
    for (const char *at = reason; at && (at = strstr(at, "rank ")) != NULL; at++) {
        int named = number_at(at + 5);
        if (named != LOG_SCAN_NO_RANK) rank = named;
    }
    return rank;
}

static bool is_error(const char *text) {
    static const char *const marks[] = {" level=error ", " level=fatal ", " event=generation_over ",
                                        " event=rank_lost "};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (strstr(text, marks[i])) return true;
    return false;
}

static void add_line(struct log_scan *scan, const char *text) {
    if (!has_time(text)) return;
    if (scan->line_count == scan->line_capacity) {
        scan->line_capacity = scan->line_capacity ? 2 * scan->line_capacity : 1024;
        scan->line = realloc(scan->line, scan->line_capacity * sizeof *scan->line);
        CHECK(scan->line);
    }
    struct log_scan_line line = {.text = text,
                                 .rank = writer_of(text),
                                 .is_error = is_error(text),
                                 .order = scan->line_count};
    int blamed = line.is_error ? blamed_by(text) : LOG_SCAN_NO_RANK;
    if (blamed != LOG_SCAN_NO_RANK) line.rank = blamed;
    scan->line[scan->line_count++] = line;
}

/* ---- reading ------------------------------------------------------------------------------- */

static enum status read_text(FILE *file, const char *path, char **text_out, struct error *err) {
    size_t bytes = 0, capacity = 1u << 16;
    char *text = malloc(capacity + 1);
    CHECK(text);
    size_t count;
    while ((count = fread(text + bytes, 1, capacity - bytes, file)) > 0) {
        bytes += count;
        if (bytes < capacity) continue;
        if (capacity >= LOG_SCAN_BYTES_MAX) {
            free(text);
            return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: more than %u bytes", path,
                             LOG_SCAN_BYTES_MAX);
        }
        capacity *= 2;
        text = realloc(text, capacity + 1);
        CHECK(text);
    }
    if (ferror(file)) {
        error_set(err, STATUS_UNAVAILABLE, "%s: %s", path, strerror(errno));
        free(text);
        return err->code;
    }
    text[bytes] = '\0';
    *text_out = text;
    return STATUS_OK;
}

static void split(struct log_scan *scan, char *text) {
    for (char *rest = text, *line; (line = strsep(&rest, "\n")) != NULL;)
        add_line(scan, line);
}

enum status log_scan_read_stream(struct log_scan *scan, FILE *stream, const char *name,
                                 struct error *err) {
    CHECK(scan->text_count < sizeof scan->text / sizeof *scan->text);
    char *text = NULL;
    enum status status = read_text(stream, name, &text, err);
    if (status != STATUS_OK) return status;
    scan->text[scan->text_count++] = text;
    split(scan, text);
    return STATUS_OK;
}

enum status log_scan_read(struct log_scan *scan, const char *path, struct error *err) {
    bool is_input = strcmp(path, "-") == 0;
    FILE *file = is_input ? stdin : fopen(path, "re");
    if (!file)
        return error_set(err, errno == EACCES ? STATUS_PERMISSION_DENIED : STATUS_NOT_FOUND,
                         "%s: %s", path, strerror(errno));
    enum status status = log_scan_read_stream(scan, file, path, err);
    if (!is_input) fclose(file);
    return status;
}

/* ---- order --------------------------------------------------------------------------------- */

static int by_time(const void *a_in, const void *b_in) {
    const struct log_scan_line *a = a_in, *b = b_in;
    int order = strncmp(a->text, b->text, TIME_CHARS);
    if (order != 0) return order;
    return a->order < b->order ? -1 : a->order > b->order;
}

static void find_latest_boot(struct log_scan *scan) {
    for (uint32_t i = scan->line_count; i-- > 0 && scan->boot[0] == '\0';) {
        size_t bytes;
        const char *at = field(scan->line[i].text, " boot=", &bytes);
        if (at && bytes == BOOT_ID_LEN)
            snprintf(scan->boot, sizeof scan->boot, "%.*s", (int)bytes, at);
    }
}

/* The file before, and the file; either may be missing. */
static enum status read_kept(struct log_scan *scan, const char *path, struct error *err) {
    char before[LOG_PATH_BYTES_MAX + 2];
    snprintf(before, sizeof before, "%s.1", path);
    if (access(before, R_OK) == 0) {
        enum status status = log_scan_read(scan, before, err);
        if (status != STATUS_OK) return status;
    }
    return access(path, F_OK) == 0 ? log_scan_read(scan, path, err) : STATUS_OK;
}

enum status log_scan_read_group(struct log_scan *scan, const struct run_dir *dir,
                                const char *log_dir, struct error *err) {
    for (int who = RUN_DIR_COORDINATOR; who < (int)TP_MAX; who++) {
        char path[LOG_PATH_BYTES_MAX];
        if (!run_dir_log_path(dir, log_dir, who, path, sizeof path))
            return error_set(err, STATUS_INVALID_ARGUMENT, "--log-dir: found a path too long");
        enum status status = read_kept(scan, path, err);
        if (status != STATUS_OK) return status;
    }
    if (scan->text_count > 0) return STATUS_OK;
    return error_set(
        err, STATUS_NOT_FOUND,
        "%s: found no logs of a group that runs; give --log-dir, --journald, files, or "
        "- for standard input",
        log_dir ? log_dir : dir->path);
}

void log_scan_finish(struct log_scan *scan, const char *boot) {
    if (scan->line_count > 0) qsort(scan->line, scan->line_count, sizeof *scan->line, by_time);
    if (boot)
        snprintf(scan->boot, sizeof scan->boot, "%s", boot);
    else
        find_latest_boot(scan);
    uint32_t count = 0;
    for (uint32_t i = 0; i < scan->line_count; i++) {
        if (!is_of_boot(scan->line[i].text, scan->boot)) continue;
        scan->line[count++] = scan->line[i];
        if (!scan->line[count - 1].is_error) continue;
        if (scan->error_count++ == 0) scan->first_failing_rank = scan->line[count - 1].rank;
    }
    scan->line_count = count;
    if (count > 0)
        snprintf(scan->since, sizeof scan->since, "%.*s", (int)TIME_CHARS, scan->line[0].text);
}

void log_scan_keep_errors(struct log_scan *scan) {
    struct log_scan_line *sorted = calloc(scan->error_count + 1, sizeof *sorted);
    CHECK(sorted);
    uint32_t count = 0;
    for (uint32_t i = 0; i < scan->line_count; i++) {
        if (!scan->line[i].is_error) continue;
        int rank = scan->line[i].rank;
        for (uint32_t j = i; j < scan->line_count; j++) {
            if (!scan->line[j].is_error || scan->line[j].rank != rank) continue;
            sorted[count++] = scan->line[j];
            scan->line[j].is_error = false; /* taken */
        }
    }
    for (uint32_t i = 0; i < count; i++)
        sorted[i].is_error = true;
    CHECK(count == scan->error_count);
    free(scan->line);
    scan->line = sorted;
    scan->line_count = count;
    scan->line_capacity = scan->error_count + 1;
}
