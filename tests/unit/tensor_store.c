#include "tensor_store.h"

#include <ftw.h>
#include <json-c/json.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct tensor_store *tensor_store_create(void) {
    struct tensor_store *store = calloc(1, sizeof *store);
    assert_non_null(store);
    return store;
}

void tensor_store_destroy(struct tensor_store *store) {
    for (uint32_t i = 0; i < store->count; i++)
        free(store->tensor[i].data);
    free(store);
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static uint32_t value_bytes(const char *dtype) {
    if (strcmp(dtype, "F8_E4M3") == 0) return 1;
    return strcmp(dtype, "BF16") == 0 || strcmp(dtype, "F16") == 0 ? 2 : 4;
}

/* Random bits, with an exponent that is neither zero nor all ones; scales are not negative. */
static void fill(struct store_tensor *tensor, uint64_t seed) {
    bool is_scale = strstr(tensor->name, "weight_scale") != NULL;
    uint64_t state = seed;
    if (strcmp(tensor->dtype, "F8_E4M3") == 0) {
        for (uint64_t i = 0; i < tensor->bytes; i++)
            tensor->data[i] = (uint8_t)(next_random(&state) & 0xf7);
    } else if (value_bytes(tensor->dtype) == 2) {
        uint16_t *value = (uint16_t *)tensor->data;
        for (uint64_t i = 0; i < tensor->bytes / 2; i++)
            value[i] = (uint16_t)((next_random(&state) & (is_scale ? 0x07ff : 0x87ff)) | 0x3800);
    } else {
        uint32_t *value = (uint32_t *)tensor->data;
        uint32_t keep = strcmp(tensor->dtype, "F32") == 0 ? 0x87ffffff : 0xffffffff;
        uint32_t set = strcmp(tensor->dtype, "F32") == 0 ? 0x38000000 : 0;
        if (is_scale && set != 0) keep = 0x07ffffff;
        for (uint64_t i = 0; i < tensor->bytes / 4; i++)
            value[i] = ((uint32_t)(next_random(&state) << 8 ^ next_random(&state)) & keep) | set;
    }
}

struct store_tensor *tensor_store_add(struct tensor_store *store, const char *name,
                                      const char *dtype, uint32_t rows, uint32_t columns) {
    assert_true(store->count < STORE_TENSORS_MAX);
    struct store_tensor *tensor = &store->tensor[store->count++];
    *tensor = (struct store_tensor){.dims = rows ? 2 : 1};
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    snprintf(tensor->dtype, sizeof tensor->dtype, "%s", dtype);
    tensor->shape[0] = rows ? rows : columns;
    tensor->shape[1] = columns;
    tensor->bytes = (uint64_t)(rows ? rows : 1) * columns * value_bytes(dtype);
    tensor->data = malloc(tensor->bytes + 1);
    assert_non_null(tensor->data);
    fill(tensor, store->count);
    return tensor;
}

struct store_tensor *tensor_store_find(struct tensor_store *store, const char *name) {
    for (uint32_t i = 0; i < store->count; i++)
        if (strcmp(store->tensor[i].name, name) == 0) return &store->tensor[i];
    return NULL;
}

void tensor_store_remove(struct tensor_store *store, const char *name) {
    struct store_tensor *tensor = tensor_store_find(store, name);
    assert_non_null(tensor);
    free(tensor->data);
    *tensor = store->tensor[--store->count];
}

char *file_text(const char *path, size_t *bytes_out) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long bytes = ftell(file);
    assert_true(bytes >= 0);
    rewind(file);
    char *text = malloc((size_t)bytes + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)bytes, file), bytes);
    text[bytes] = '\0';
    fclose(file);
    if (bytes_out) *bytes_out = (size_t)bytes;
    return text;
}

static struct json_object *get(struct json_object *object, const char *name) {
    struct json_object *value = NULL;
    assert_true(json_object_object_get_ex(object, name, &value));
    return value;
}

void tensor_store_read_file(struct tensor_store *store, const char *path) {
    size_t bytes;
    char *file = file_text(path, &bytes);
    uint64_t header_bytes;
    memcpy(&header_bytes, file, sizeof header_bytes);
    const char *data = file + 8 + header_bytes;
    char *text = strndup(file + 8, header_bytes);
    struct json_object *header = json_tokener_parse(text);
    assert_non_null(header);
    json_object_object_foreach(header, name, entry) {
        if (strcmp(name, "__metadata__") == 0) continue;
        assert_true(store->count < STORE_TENSORS_MAX);
        struct store_tensor *tensor = &store->tensor[store->count++];
        snprintf(tensor->name, sizeof tensor->name, "%s", name);
        snprintf(tensor->dtype, sizeof tensor->dtype, "%s",
                 json_object_get_string(get(entry, "dtype")));
        struct json_object *shape = get(entry, "shape");
        tensor->dims = (uint32_t)json_object_array_length(shape);
        for (uint32_t d = 0; d < tensor->dims; d++)
            tensor->shape[d] = (uint64_t)json_object_get_int64(json_object_array_get_idx(shape, d));
        struct json_object *span = get(entry, "data_offsets");
        int64_t begin = json_object_get_int64(json_object_array_get_idx(span, 0));
        int64_t end = json_object_get_int64(json_object_array_get_idx(span, 1));
        tensor->bytes = (uint64_t)(end - begin);
        tensor->data = malloc(tensor->bytes + 1);
        assert_non_null(tensor->data);
        memcpy(tensor->data, data + begin, tensor->bytes);
    }
    json_object_put(header);
    free(text);
    free(file);
}

void tensor_store_read(struct tensor_store *store, const char *directory) {
    char path[512];
    char last[256] = "";
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", directory);
    struct json_object *index = json_object_from_file(path);
    assert_non_null(index);
    json_object_object_foreach(get(index, "weight_map"), name, file) {
        if (tensor_store_find(store, name) || strcmp(last, json_object_get_string(file)) == 0)
            continue;
        snprintf(last, sizeof last, "%s", json_object_get_string(file));
        snprintf(path, sizeof path, "%s/%s", directory, last);
        tensor_store_read_file(store, path);
    }
    json_object_put(index);
}

static void write_file(const struct tensor_store *store, const char *path, uint32_t first,
                       uint32_t step) {
    struct json_object *header = json_object_new_object();
    int64_t at = 0;
    for (uint32_t i = first; i < store->count; i += step) {
        const struct store_tensor *tensor = &store->tensor[i];
        struct json_object *entry = json_object_new_object();
        struct json_object *shape = json_object_new_array();
        struct json_object *span = json_object_new_array();
        for (uint32_t d = 0; d < tensor->dims; d++)
            json_object_array_add(shape, json_object_new_int64((int64_t)tensor->shape[d]));
        json_object_array_add(span, json_object_new_int64(at));
        at += (int64_t)tensor->bytes;
        json_object_array_add(span, json_object_new_int64(at));
        json_object_object_add(entry, "dtype", json_object_new_string(tensor->dtype));
        json_object_object_add(entry, "shape", shape);
        json_object_object_add(entry, "data_offsets", span);
        json_object_object_add(header, tensor->name, entry);
    }
    const char *text = json_object_to_json_string(header);
    uint64_t header_bytes = strlen(text);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(&header_bytes, sizeof header_bytes, 1, file);
    fwrite(text, 1, header_bytes, file);
    for (uint32_t i = first; i < store->count; i += step)
        fwrite(store->tensor[i].data, 1, store->tensor[i].bytes, file);
    assert_int_equal(fclose(file), 0);
    json_object_put(header);
}

void tensor_store_write(const struct tensor_store *store, const char *directory,
                        uint32_t file_count) {
    char path[512];
    if (file_count == 1) {
        snprintf(path, sizeof path, "%s/model.safetensors", directory);
        write_file(store, path, 0, 1);
        return;
    }
    struct json_object *map = json_object_new_object();
    for (uint32_t f = 0; f < file_count; f++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05u-of-%05u.safetensors", f + 1, file_count);
        snprintf(path, sizeof path, "%s/%s", directory, name);
        write_file(store, path, f, file_count);
        for (uint32_t i = f; i < store->count; i += file_count)
            json_object_object_add(map, store->tensor[i].name, json_object_new_string(name));
    }
    struct json_object *index = json_object_new_object();
    json_object_object_add(index, "metadata", json_object_new_object());
    json_object_object_add(index, "weight_map", map);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", directory);
    assert_int_equal(json_object_to_file(path, index), 0);
    json_object_put(index);
}

void folder_create(char path_out[64]) {
    snprintf(path_out, 64, "/tmp/espalier-test-XXXXXX");
    assert_non_null(mkdtemp(path_out));
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk) {
    (void)info, (void)kind, (void)walk;
    return remove(path);
}

void folder_remove(const char *path) {
    assert_int_equal(nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}

void folder_write(const char *folder, const char *name, const void *data, size_t bytes) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}
