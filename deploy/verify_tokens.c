#include "verify_tokens.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "file.h"

#define FILE_BYTES_MAX (1u << 20)

static void print_head(const struct verify_tokens_of *of, char *out, size_t bytes) {
    snprintf(out, bytes, "%016" PRIx64 " %s %s ", of->fingerprint, kv_dtype_name(of->kv),
             activation_dtype_name(of->activation));
}

static enum status parse_ids(const char *path, char *text, struct verify_tokens *tokens,
                             struct error *err) {
    char *rest;
    tokens->count = 0;
    for (char *word = strtok_r(text, " \t", &rest); word && word[0] != '#';
         word = strtok_r(NULL, " \t", &rest)) {
        char *end;
        unsigned long id = strtoul(word, &end, 10);
        if (word[0] < '0' || word[0] > '9' || *end != '\0' || id >= MODEL_VOCAB_MAX ||
            tokens->count == VERIFY_TOKENS_MAX)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "%s: found \"%s\" after %u tokens, accepted: up to %u token ids", path,
                             word, tokens->count, VERIFY_TOKENS_MAX);
        tokens->token[tokens->count++] = (uint32_t)id;
    }
    return STATUS_OK;
}

/* The lines of a file, one text; "" where there is none. The caller frees it. */
static enum status read_lines(const char *path, char **text_out, struct error *err) {
    uint64_t bytes;
    if (access(path, F_OK) == 0) return file_read_all(path, FILE_BYTES_MAX, text_out, &bytes, err);
    *text_out = strdup("");
    CHECK(*text_out);
    return STATUS_OK;
}

enum status verify_tokens_find(const char *path, const struct verify_tokens_of *of,
                               struct verify_tokens *tokens_out, struct error *err) {
    char head[64], *text;
    tokens_out->count = 0;
    print_head(of, head, sizeof head);
    enum status status = read_lines(path, &text, err);
    if (status != STATUS_OK) return status;
    char *at = text;
    for (char *line; status == STATUS_OK && (line = strsep(&at, "\n")) != NULL;)
        if (strncmp(line, head, strlen(head)) == 0)
            status = parse_ids(path, line + strlen(head), tokens_out, err);
    free(text);
    return status;
}

static void write_lines(FILE *file, char *text, const char *head,
                        const struct verify_tokens *tokens) {
    char *at = text;
    for (char *line; (line = strsep(&at, "\n")) != NULL;)
        if (line[0] != '\0' && strncmp(line, head, strlen(head)) != 0) fprintf(file, "%s\n", line);
    fprintf(file, "%.*s", (int)strlen(head) - 1, head);
    for (uint32_t i = 0; i < tokens->count; i++)
        fprintf(file, " %u", tokens->token[i]);
    putc('\n', file);
}

enum status verify_tokens_record(const char *path, const struct verify_tokens_of *of,
                                 const struct verify_tokens *tokens, struct error *err) {
    char head[64], *text;
    print_head(of, head, sizeof head);
    enum status status = read_lines(path, &text, err);
    if (status != STATUS_OK) return status;
    /* Beside it first: a disk that is full must not cost what was recorded of other models. */
    char *fresh = NULL;
    CHECK(asprintf(&fresh, "%s.new", path) >= 0);
    FILE *file = fopen(fresh, "we");
    bool written = file != NULL;
    if (file) write_lines(file, text, head, tokens);
    if (file) written = ferror(file) == 0;
    if (file && fclose(file) != 0) written = false;
    written = written && rename(fresh, path) == 0;
    int write_errno = errno;
    if (file && !written) unlink(fresh);
    free(fresh);
    free(text);
    if (written) return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--record: found %s (%s), accepted: a file that can be written", path,
                     strerror(write_errno));
}
