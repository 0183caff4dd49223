#include "allow_list.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log_limit.h"
#include "curve_keys.h"
#include "file.h"

#define FILE_BYTES_MAX (1u << 20)
#define BLANKS         " \t\r"

/* A file written again within the grain of its time stamp looks unchanged: until a stamp is so old
 * it proves nothing. */
#define STAMP_GRAIN_NS (2 * NS_PER_S)

struct entry {
    uint8_t key[ALLOW_LIST_KEY_BYTES];
};

struct allow_list {
    char *path;
    struct entry *entry;
    uint32_t count;
    struct file_state state; /* of what was read last, well or not */
    bool settled;            /* and its stamp was old enough then */
    struct log_limit broken_lines;
};

/* ---- a file's text ------------------------------------------------------------------------- */

static enum status parse_line(const char *path, uint32_t number, const char *line,
                              uint8_t key_out[ALLOW_LIST_KEY_BYTES], struct error *err) {
    size_t bytes = strcspn(line, BLANKS "\n");
    char key[CURVE_KEY_TEXT_LEN + 1] = "";
    if (bytes == CURVE_KEY_TEXT_LEN) memcpy(key, line, bytes);
    if (curve_keys_is_key(key) && zmq_z85_decode(key_out, key) != NULL) return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "%s: line %u: found \"%.*s\", accepted: a public key, %u characters of Z85, "
                     "and a name for it",
                     path, number, (int)(bytes < 48 ? bytes : 48), line, CURVE_KEY_TEXT_LEN);
}

/* A hash mark is a character of keys too, but never the first: as a digit it is too great there. */
static bool is_blank(const char *line) {
    return *line == '\0' || *line == '\n' || *line == '#';
}

static enum status parse(const char *path, const char *text, struct entry **entry_out,
                         uint32_t *count_out, struct error *err) {
    size_t lines = 1;
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    struct entry *entry = calloc(lines, sizeof *entry);
    CHECK(entry);
    uint32_t count = 0, number = 0;
    enum status status = STATUS_OK;
    for (const char *line = text; *line && status == STATUS_OK; line += *line == '\n') {
        const char *begin = line + strspn(line, BLANKS);
        number++;
        if (!is_blank(begin) && count == ALLOW_LIST_KEYS_MAX)
            status = error_set(err, STATUS_INVALID_ARGUMENT, "%s: line %u: accepted: %u keys", path,
                               number, ALLOW_LIST_KEYS_MAX);
        else if (!is_blank(begin))
            status = parse_line(path, number, begin, entry[count++].key, err);
        line += strcspn(line, "\n");
    }
    if (status != STATUS_OK) {
        free(entry);
        return status;
    }
    *entry_out = entry;
    *count_out = count;
    return STATUS_OK;
}

/* ---- the file ------------------------------------------------------------------------------ */

static bool stamp_is_old(const struct file_state *state) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec - state->modified_ns > STAMP_GRAIN_NS;
}

enum status allow_list_reread(struct allow_list *list, struct error *err) {
    int fd;
    uint64_t bytes;
    enum status status = file_open(list->path, &fd, &bytes, err);
    if (status != STATUS_OK) return status;
    list->state = file_state_of(fd);
    list->settled = stamp_is_old(&list->state);
    status = file_check_owner(fd, list->path, 0022, "mode 0644", err);
    char *text = NULL;
    if (status == STATUS_OK && bytes > FILE_BYTES_MAX)
        status = error_set(err, STATUS_INVALID_ARGUMENT, "%s: found %llu bytes, accepted: %u",
                           list->path, (unsigned long long)bytes, FILE_BYTES_MAX);
    if (status == STATUS_OK) {
        text = calloc(1, bytes + 1);
        CHECK(text);
        status = file_read_at(fd, list->path, text, bytes, 0, err);
    }
    close(fd);
    struct entry *entry;
    uint32_t count;
    if (status == STATUS_OK) status = parse(list->path, text, &entry, &count, err);
    free(text);
    if (status != STATUS_OK) return status;
    free(list->entry);
    list->entry = entry;
    list->count = count;
    return STATUS_OK;
}

static bool is_as_read(const struct allow_list *list) {
    return list->settled && file_is_as_before(list->path, &list->state);
}

/* ---- the list ------------------------------------------------------------------------------ */

enum status allow_list_open(const char *path, struct allow_list **list_out, struct error *err) {
    struct allow_list *list = calloc(1, sizeof *list);
    CHECK(list);
    list->path = strdup(path);
    CHECK(list->path);
    enum status status = allow_list_reread(list, err);
    if (status == STATUS_OK && list->count == 0)
        status = error_set(err, STATUS_INVALID_ARGUMENT,
                           "%s: found no key, accepted: at least one, else nobody can connect",
                           path);
    if (status != STATUS_OK) allow_list_close(&list);
    *list_out = list;
    return status;
}

void allow_list_close(struct allow_list **list) {
    free((*list)->path);
    free((*list)->entry);
    free(*list);
    *list = NULL;
}

bool allow_list_holds(struct allow_list *list, const uint8_t key[ALLOW_LIST_KEY_BYTES]) {
    struct error err;
    if (!is_as_read(list) && allow_list_reread(list, &err) != STATUS_OK)
        log_limited(&list->broken_lines, clock_now_ns(), LOG_LEVEL_WARN, "allow_list_not_read",
                    "keys_kept=%u reason=\"%s\"", list->count, err.text);
    for (uint32_t i = 0; i < list->count; i++)
        if (memcmp(list->entry[i].key, key, ALLOW_LIST_KEY_BYTES) == 0) return true;
    return false;
}

const char *allow_list_path(const struct allow_list *list) {
    return list->path;
}

uint32_t allow_list_count(const struct allow_list *list) {
    return list->count;
}
