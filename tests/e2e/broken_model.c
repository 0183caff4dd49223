#include "broken_model.h"

#include <fcntl.h>
#include <json-c/json.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "model_fixture.h"

#define TOKENIZER ESPALIER_SOURCE_DIR "/deploy/model/"

static const struct model_kind *kind_named(const char *name) {
    for (uint32_t i = 0; i < model_kind_count; i++)
        if (strcmp(model_kinds[i].name, name) == 0) return &model_kinds[i];
    fail_msg("no kind is called %s", name);
    return NULL;
}

/* ---- before it is written ------------------------------------------------------------------ */

static void set_value(struct store_tensor *tensor, unsigned index, uint32_t bits) {
    size_t bytes = strcmp(tensor->dtype, "F8_E4M3") == 0 ? 1
                   : strcmp(tensor->dtype, "BF16") == 0  ? 2
                                                         : 4;
    assert_true((index + 1) * bytes <= tensor->bytes);
    memcpy(tensor->data + index * bytes, &bits, bytes); /* little-endian */
}

static void break_tensor(struct tensor_store *store, const struct broken_model *broken) {
    struct store_tensor *tensor = broken->where ? tensor_store_find(store, broken->where) : NULL;
    if (broken->how == BROKEN_EXTRA) tensor_store_add(store, broken->where, "BF16", 4, 4);
    if (broken->how < BROKEN_MISSING || broken->how == BROKEN_EXTRA) return;
    if (!tensor) fail_msg("there is no tensor %s", broken->where);
    uint64_t rows = tensor->shape[0];
    switch (broken->how) {
    case BROKEN_MISSING: tensor_store_remove(store, broken->where); break;
    case BROKEN_DTYPE: snprintf(tensor->dtype, sizeof tensor->dtype, "%s", broken->what); break;
    case BROKEN_VALUE: set_value(tensor, broken->index, (uint32_t)broken->number); break;
    case BROKEN_TURNED:
        tensor->shape[0] = tensor->shape[1];
        tensor->shape[1] = rows;
        break;
    case BROKEN_SHAPE: {
        uint64_t row_bytes = tensor->bytes / tensor->shape[tensor->dims - 1];
        tensor->shape[tensor->dims - 1]++;
        tensor->data = realloc(tensor->data, tensor->bytes + row_bytes);
        assert_non_null(tensor->data);
        memset(tensor->data + tensor->bytes, 0, row_bytes);
        tensor->bytes += row_bytes;
        break;
    }
    default: break;
    }
}

/* ---- after it was written ------------------------------------------------------------------ */

static void break_config(const char *folder, const struct broken_model *broken) {
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", folder);
    struct json_object *config = json_object_from_file(path);
    assert_non_null(config);
    if (strcmp(broken->what, "-") == 0) {
        json_object_object_del(config, broken->where);
    } else {
        struct json_object *value = json_tokener_parse(broken->what);
        json_object_object_add(config, broken->where, value);
    }
    assert_int_equal(json_object_to_file(path, config), 0);
    json_object_put(config);
}

/* A file of `count` times the text, closed by nothing. */
static void write_repeated(const char *path, const char *first, const char *text,
                           unsigned long long count, const char *last) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(first, file);
    for (unsigned long long i = 0; i < count; i++)
        fputs(text, file);
    fputs(last, file);
    assert_int_equal(fclose(file), 0);
}

static void write_header(const char *path, const char *header, unsigned long long data_bytes) {
    uint64_t header_bytes = strlen(header);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(&header_bytes, sizeof header_bytes, 1, file);
    fputs(header, file);
    for (unsigned long long i = 0; i < data_bytes; i++)
        fputc(0, file);
    assert_int_equal(fclose(file), 0);
}

static void overwrite(const char *path, size_t at, const void *data, size_t bytes) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void replace(const char *path, const char *what, const char *with) {
    size_t bytes;
    char *text = file_text(path, &bytes);
    char *at = memmem(text, bytes, what, strlen(what));
    if (!at) fail_msg("%s does not hold %s", path, what);
    assert_int_equal(strlen(what), strlen(with));
    overwrite(path, (size_t)(at - text), with, strlen(with));
    free(text);
}

/* A shard's first tensor, under the same name in another shard too: a copy of the whole shard. */
static void copy_shard(const char *folder) {
    char from[128], to[128];
    snprintf(from, sizeof from, "%s/model-00001-of-00002.safetensors", folder);
    snprintf(to, sizeof to, "%s/model-00002-of-00002.safetensors", folder);
    size_t bytes;
    char *text = file_text(from, &bytes);
    FILE *file = fopen(to, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    free(text);
}

/* The file gives way to something else of its name. */
static void put_in_place(const char *path, const struct broken_model *broken) {
    if (access(path, F_OK) == 0) assert_int_equal(unlink(path), 0);
    switch (broken->how) {
    case BROKEN_LOOP: assert_int_equal(symlink(strrchr(path, '/') + 1, path), 0); break;
    case BROKEN_LINK: assert_int_equal(symlink(broken->what, path), 0); break;
    case BROKEN_FOLDER: assert_int_equal(mkdir(path, 0700), 0); break;
    case BROKEN_PIPE: assert_int_equal(mkfifo(path, 0600), 0); break;
    default: break;
    }
}

static void break_file(const char *path, const struct broken_model *broken) {
    uint64_t number = broken->number;
    switch (broken->how) {
    case BROKEN_TEXT: write_repeated(path, broken->what, "", 0, ""); break;
    case BROKEN_NESTED: write_repeated(path, "", "[", number, ""); break;
    case BROKEN_LONG: write_repeated(path, "[0", ",0", number, "]"); break;
    case BROKEN_CUT: assert_int_equal(truncate(path, (off_t)number), 0); break;
    case BROKEN_LONGER: {
        struct stat info;
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(truncate(path, info.st_size + (off_t)number), 0);
        break;
    }
    case BROKEN_SECRET: assert_int_equal(chmod(path, 0), 0); break;
    case BROKEN_LENGTH: overwrite(path, 0, &number, sizeof number); break;
    case BROKEN_HEADER: write_header(path, broken->what, number); break;
    case BROKEN_REPLACED: replace(path, broken->what, broken->with); break;
    default: put_in_place(path, broken); break;
    }
}

static void link_tokenizer(const char *folder) {
    static const char *const names[] = {"tiktoken.model", "tokenizer_config.json"};
    for (int i = 0; i < 2; i++) {
        char from[512], to[128];
        snprintf(from, sizeof from, TOKENIZER "%s", names[i]);
        snprintf(to, sizeof to, "%s/%s", folder, names[i]);
        assert_int_equal(symlink(from, to), 0);
    }
}

void broken_model_make(const struct broken_model *broken, char folder_out[64]) {
    const struct model_kind *kind = kind_named(broken->kind);
    struct tensor_store *store = model_fixture_store(kind);
    break_tensor(store, broken);
    model_fixture_write(kind, store, folder_out);
    tensor_store_destroy(store);
    link_tokenizer(folder_out);
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder_out, broken->where ? broken->where : "");
    if (broken->how == BROKEN_CONFIG)
        break_config(folder_out, broken);
    else if (broken->how == BROKEN_TWICE)
        copy_shard(folder_out);
    else if (broken->how > BROKEN_CONFIG && broken->how < BROKEN_MISSING)
        break_file(path, broken);
    /* The test may give up its rights: others read what a test of root made. */
    assert_int_equal(chmod(folder_out, 0755), 0);
}
