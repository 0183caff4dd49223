/* Loading: the whole file is in memory, tokens are decoded one after another into one block of
 * bytes, and an open-addressing table of ids finds them again. A token's end is the next one's
 * start, so a token costs four bytes beside its own. */
#include "text/vocab.h"

#include <errno.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/limits.h"

#define FILE_BYTES_MAX  (64u << 20)
#define CONFIG_DEPTH    16
#define RESERVED_FORMAT "<|reserved_token_%u|>"
#define HASH_SEED       UINT64_C(0x7a1)

struct vocab {
    char *bytes;     /* all tokens, in id order */
    uint32_t *begin; /* [size + 1]: token id is bytes[begin[id], begin[id + 1]) */
    uint32_t *slots; /* [slot_mask + 1]: base ids by hash; VOCAB_NO_ID where free */
    uint32_t slot_mask;
    uint32_t base_count;
    bool hidden[VOCAB_SPECIALS];
};

struct file {
    const char *path;
    char *data; /* [bytes + 1], owned, NUL at its end */
    size_t bytes;
};

static enum status file_read(struct file *file, const char *path, struct error *err);
static enum status load_base(struct vocab *vocab, const struct file *file, struct error *err);
static enum status load_specials(struct vocab *vocab, const struct file *file, struct error *err);

enum status vocab_load(const char *model_path, const char *config_path, struct vocab **vocab_out,
                       struct error *err) {
    struct file model = {0}, config = {0};
    struct vocab *vocab = calloc(1, sizeof *vocab);
    CHECK(vocab);
    enum status status = file_read(&model, model_path, err);
    if (status == STATUS_OK) status = file_read(&config, config_path, err);
    if (status == STATUS_OK) status = load_base(vocab, &model, err);
    if (status == STATUS_OK) status = load_specials(vocab, &config, err);
    free(model.data);
    free(config.data);
    if (status != STATUS_OK) {
        vocab_destroy(vocab);
        return status;
    }
    *vocab_out = vocab;
    return STATUS_OK;
}

void vocab_destroy(struct vocab *vocab) {
    if (!vocab) return;
    free(vocab->bytes);
    free(vocab->begin);
    free(vocab->slots);
    free(vocab);
}

uint32_t vocab_size(const struct vocab *vocab) {
    return vocab->base_count + VOCAB_SPECIALS;
}

const char *vocab_bytes(const struct vocab *vocab, uint32_t id, uint32_t *bytes_out) {
    CHECK(id < vocab_size(vocab));
    *bytes_out = vocab->begin[id + 1] - vocab->begin[id];
    return vocab->bytes + vocab->begin[id];
}

/* The slot that holds this byte string, or the free slot where it would go. */
static uint32_t find_slot(const struct vocab *vocab, const char *data, size_t bytes) {
    uint32_t slot = (uint32_t)hash_bytes(data, bytes, HASH_SEED) & vocab->slot_mask;
    for (;; slot = (slot + 1) & vocab->slot_mask) { /* ends: at most half of the slots are used */
        uint32_t id = vocab->slots[slot];
        if (id == VOCAB_NO_ID) return slot;
        uint32_t begin = vocab->begin[id];
        if (vocab->begin[id + 1] - begin == bytes && !memcmp(vocab->bytes + begin, data, bytes))
            return slot;
    }
}

uint32_t vocab_find(const struct vocab *vocab, const char *data, size_t bytes) {
    if (bytes > VOCAB_TOKEN_BYTES_MAX) return VOCAB_NO_ID;
    return vocab->slots[find_slot(vocab, data, bytes)];
}

uint32_t vocab_special(const struct vocab *vocab, const char *name) {
    size_t name_bytes = strlen(name);
    for (uint32_t id = vocab->base_count; id < vocab_size(vocab); id++) {
        uint32_t bytes;
        const char *data = vocab_bytes(vocab, id, &bytes);
        if (bytes == name_bytes && !memcmp(data, name, bytes)) return id;
    }
    return VOCAB_NO_ID;
}

bool vocab_is_special(const struct vocab *vocab, uint32_t id) {
    CHECK(id < vocab_size(vocab));
    return id >= vocab->base_count;
}

bool vocab_is_hidden(const struct vocab *vocab, uint32_t id) {
    return vocab_is_special(vocab, id) && vocab->hidden[id - vocab->base_count];
}

static enum status file_read(struct file *file, const char *path, struct error *err) {
    file->path = path;
    FILE *stream = fopen(path, "rb");
    if (!stream) return error_set(err, STATUS_NOT_FOUND, "%s: %s", path, strerror(errno));
    enum status status = STATUS_OK;
    long size = -1;
    if (fseek(stream, 0, SEEK_END) == 0) size = ftell(stream);
    rewind(stream);
    if (size < 0 || (unsigned long)size > FILE_BYTES_MAX) {
        status = error_set(err, STATUS_INVALID_ARGUMENT, "%s: not a file of at most %u bytes", path,
                           FILE_BYTES_MAX);
        goto out_close;
    }
    file->bytes = (size_t)size;
    file->data = malloc(file->bytes + 1);
    CHECK(file->data);
    if (fread(file->data, 1, file->bytes, stream) != file->bytes) {
        status = error_set(err, STATUS_NOT_FOUND, "%s: cannot be read", path);
        goto out_close;
    }
    file->data[file->bytes] = '\0';
out_close:
    fclose(stream);
    return status;
}

static int sextet(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decode text[0, count) into out, which must hold VOCAB_TOKEN_BYTES_MAX. The number of bytes, or
 * 0 where the text is not base64 of 1 to VOCAB_TOKEN_BYTES_MAX bytes. */
static uint32_t decode_base64(const char *text, size_t count, char *out) {
    if (count == 0 || count % 4 != 0 || count / 4 > (VOCAB_TOKEN_BYTES_MAX + 2) / 3) return 0;
    size_t padding = text[count - 1] != '=' ? 0 : text[count - 2] != '=' ? 1 : 2;
    size_t bytes = count / 4 * 3 - padding;
    if (bytes > VOCAB_TOKEN_BYTES_MAX) return 0;
    uint32_t bits = 0;
    size_t written = 0;
    for (size_t i = 0; i < count; i++) {
        int value = i >= count - padding ? 0 : sextet(text[i]);
        if (value < 0) return 0;
        bits = bits << 6 | (uint32_t)value;
        if (i % 4 != 3) continue;
        for (int shift = 16; shift >= 0 && written < bytes; shift -= 8)
            out[written++] = (char)(bits >> shift & 0xFF);
        bits = 0;
    }
    return (uint32_t)bytes;
}

/* The decimal number text[0, count), or UINT32_MAX where it is none below that. */
static uint32_t parse_u32(const char *text, size_t count) {
    uint64_t value = 0;
    if (count == 0 || count > 10) return UINT32_MAX;
    for (size_t i = 0; i < count; i++) {
        if (text[i] < '0' || text[i] > '9') return UINT32_MAX;
        value = value * 10 + (uint64_t)(text[i] - '0');
    }
    return value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

static uint32_t count_lines(const struct file *file) {
    size_t lines = 0;
    for (const char *at = file->data; at < file->data + file->bytes; lines++) {
        const char *end = memchr(at, '\n', (size_t)(file->data + file->bytes - at));
        at = end ? end + 1 : file->data + file->bytes;
    }
    return lines < UINT32_MAX ? (uint32_t)lines : UINT32_MAX;
}

/* Memory for `lines` base tokens and all special ones. Base64 of a token is longer than the token,
 * so the file's size bounds the bytes. */
static void allocate(struct vocab *vocab, uint32_t lines, size_t file_bytes) {
    uint32_t slot_count = 512;
    while (slot_count < 2 * lines)
        slot_count *= 2;
    vocab->slot_mask = slot_count - 1;
    vocab->slots = malloc(slot_count * sizeof *vocab->slots);
    vocab->begin = calloc(lines + VOCAB_SPECIALS + 1, sizeof *vocab->begin);
    vocab->bytes = malloc(file_bytes + VOCAB_SPECIALS * VOCAB_TOKEN_BYTES_MAX);
    CHECK(vocab->slots && vocab->begin && vocab->bytes);
    memset(vocab->slots, 0xFF, slot_count * sizeof *vocab->slots);
}

/* Add the token of one line (without its LF). Its id is the number of tokens before it. */
static enum status add_line(struct vocab *vocab, const struct file *file, const char *line,
                            size_t count, struct error *err) {
    uint32_t id = vocab->base_count;
    unsigned line_number = id + 1;
    const char *space = memchr(line, ' ', count);
    char token[VOCAB_TOKEN_BYTES_MAX];
    uint32_t bytes = space ? decode_base64(line, (size_t)(space - line), token) : 0;
    if (bytes == 0) {
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s:%u: expected base64 of 1 to %u bytes, a space and a rank", file->path,
                         line_number, VOCAB_TOKEN_BYTES_MAX);
    }
    const char *rank = space + 1;
    size_t rank_chars = (size_t)(line + count - rank);
    if (parse_u32(rank, rank_chars) != id) {
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s:%u: expected rank %u, found '%.*s'",
                         file->path, line_number, id, rank_chars < 20 ? (int)rank_chars : 20, rank);
    }
    uint32_t slot = find_slot(vocab, token, bytes);
    if (vocab->slots[slot] != VOCAB_NO_ID) {
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s:%u: same token as on line %u",
                         file->path, line_number, vocab->slots[slot] + 1);
    }
    vocab->slots[slot] = id;
    memcpy(vocab->bytes + vocab->begin[id], token, bytes);
    vocab->begin[id + 1] = vocab->begin[id] + bytes;
    vocab->base_count++;
    return STATUS_OK;
}

static enum status load_base(struct vocab *vocab, const struct file *file, struct error *err) {
    uint32_t lines = count_lines(file);
    if (lines > MODEL_VOCAB_MAX - VOCAB_SPECIALS) {
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: %u lines; at most %u are accepted",
                         file->path, lines, MODEL_VOCAB_MAX - VOCAB_SPECIALS);
    }
    allocate(vocab, lines, file->bytes);
    const char *at = file->data, *file_end = file->data + file->bytes;
    while (at < file_end) {
        const char *end = memchr(at, '\n', (size_t)(file_end - at));
        if (!end) end = file_end;
        enum status status = add_line(vocab, file, at, (size_t)(end - at), err);
        if (status != STATUS_OK) return status;
        at = end + 1;
    }
    /* With every byte a token, any text can be encoded. */
    for (unsigned byte = 0; byte < 256; byte++) {
        char data = (char)byte;
        if (vocab_find(vocab, &data, 1) == VOCAB_NO_ID) {
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "%s:%u: ends without a token for the byte 0x%02X", file->path, lines,
                             byte);
        }
    }
    return STATUS_OK;
}

/* The line of a byte of the file, from 1. */
static unsigned line_at(const struct file *file, size_t offset) {
    unsigned line = 1;
    for (size_t i = 0; i < offset && i < file->bytes; i++)
        line += file->data[i] == '\n';
    return line;
}

/* json-c keeps no positions, so the line of an entry is where its quoted id first stands. */
static unsigned line_of_key(const struct file *file, const char *key) {
    char quoted[32];
    snprintf(quoted, sizeof quoted, "\"%s\"", key);
    const char *found = strstr(file->data, quoted);
    return line_at(file, found ? (size_t)(found - file->data) : 0);
}

/* Check one entry of added_tokens_decoder and keep its name and flag for index id - base_count. */
static enum status read_special(struct vocab *vocab, const struct file *file, const char *key,
                                struct json_object *entry, struct json_object **names,
                                struct error *err) {
    uint32_t id = parse_u32(key, strlen(key));
    if (id < vocab->base_count || id >= vocab_size(vocab)) {
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s:%u: added_tokens_decoder: id '%.20s' is outside [%u, %u)", file->path,
                         line_of_key(file, key), key, vocab->base_count, vocab_size(vocab));
    }
    struct json_object *content = json_object_object_get(entry, "content");
    int bytes = content ? json_object_get_string_len(content) : 0;
    if (!json_object_is_type(content, json_type_string) || bytes < 1 ||
        bytes > (int)VOCAB_TOKEN_BYTES_MAX) {
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s:%u: added_tokens_decoder[%u].content: expected a string of 1 to %u "
                         "bytes",
                         file->path, line_of_key(file, key), id, VOCAB_TOKEN_BYTES_MAX);
    }
    struct json_object *special = json_object_object_get(entry, "special");
    if (special && !json_object_is_type(special, json_type_boolean)) {
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s:%u: added_tokens_decoder[%u].special: expected true or false",
                         file->path, line_of_key(file, key), id);
    }
    uint32_t index = id - vocab->base_count;
    for (uint32_t i = 0; i < VOCAB_SPECIALS; i++) {
        if (!names[i] || strcmp(json_object_get_string(names[i]), json_object_get_string(content)))
            continue;
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s:%u: added_tokens_decoder: %u and %u have the same content", file->path,
                         line_of_key(file, key), vocab->base_count + i, id);
    }
    names[index] = content;
    vocab->hidden[index] = json_object_get_boolean(special);
    return STATUS_OK;
}

static void add_special_name(struct vocab *vocab, uint32_t id, struct json_object *name) {
    char reserved[sizeof RESERVED_FORMAT + 10];
    const char *data = reserved;
    size_t bytes;
    if (name) {
        data = json_object_get_string(name);
        bytes = (size_t)json_object_get_string_len(name);
    } else {
        bytes = (size_t)snprintf(reserved, sizeof reserved, RESERVED_FORMAT, id);
        vocab->hidden[id - vocab->base_count] = true;
    }
    memcpy(vocab->bytes + vocab->begin[id], data, bytes);
    vocab->begin[id + 1] = vocab->begin[id] + (uint32_t)bytes;
}

static enum status load_specials(struct vocab *vocab, const struct file *file, struct error *err) {
    struct json_tokener *tokener = json_tokener_new_ex(CONFIG_DEPTH);
    CHECK(tokener);
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
    struct json_object *config = json_tokener_parse_ex(
        tokener, file->data, (int)file->bytes + 1); /* with the NUL: no more */
    enum json_tokener_error parse_error = json_tokener_get_error(tokener);
    size_t parse_end = json_tokener_get_parse_end(tokener);
    json_tokener_free(tokener);

    enum status status = STATUS_OK;
    struct json_object *names[VOCAB_SPECIALS] = {0};
    struct json_object *added = NULL;
    if (parse_error != json_tokener_success) {
        status = error_set(err, STATUS_INVALID_ARGUMENT, "%s:%u: %s", file->path,
                           line_at(file, parse_end), json_tokener_error_desc(parse_error));
        goto out_put;
    }
    if (!json_object_object_get_ex(config, "added_tokens_decoder", &added) ||
        !json_object_is_type(added, json_type_object)) {
        status = error_set(err, STATUS_INVALID_ARGUMENT,
                           "%s:1: added_tokens_decoder: expected an object of special tokens",
                           file->path);
        goto out_put;
    }
    json_object_object_foreach(added, key, entry) {
        status = read_special(vocab, file, key, entry, names, err);
        if (status != STATUS_OK) goto out_put;
    }
    for (uint32_t i = 0; i < VOCAB_SPECIALS; i++)
        add_special_name(vocab, vocab->base_count + i, names[i]);
out_put:
    json_object_put(config);
    return status;
}
