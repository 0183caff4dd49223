#include "checkpoint_data.h"

#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define PATH_BYTES 4200u

static const char *file_in(const char *folder, const char *name);
static struct json_object *field(struct json_object *object, const char *name);
static float *read_floats(const char *path, size_t *count_out);
static void *allocate(size_t count, size_t size);

void checkpoint_data_read(const char *folder, struct checkpoint_data *data_out) {
    struct checkpoint_data data = {0};
    struct json_object *root = json_object_from_file(file_in(folder, "golden.json"));
    struct json_object *prompts = field(root, "prompts"), *margin = field(root, "margin");
    data.prompt_count = (uint32_t)json_object_array_length(prompts);
    for (uint32_t p = 0; p < data.prompt_count && p < CHECKPOINT_PROMPTS_MAX; p++) {
        struct json_object *ids = json_object_array_get_idx(prompts, p);
        uint32_t count = (uint32_t)json_object_array_length(ids);
        data.prompt[p].id = allocate(count, sizeof(uint32_t));
        for (uint32_t i = 0; i < count; i++)
            data.prompt[p].id[i] = (uint32_t)json_object_get_int(json_object_array_get_idx(ids, i));
        data.prompt[p].begin = data.rows;
        data.prompt[p].count = count;
        data.rows += count;
    }

    data.layers = (uint32_t)json_object_array_length(margin);
    data.margin = allocate((size_t)data.layers * data.rows, sizeof(double));
    for (uint32_t i = 0; i < data.layers * data.rows; i++) {
        struct json_object *layer = json_object_array_get_idx(margin, i / data.rows);
        data.margin[i] = json_object_get_double(json_object_array_get_idx(layer, i % data.rows));
    }
    size_t logits, residual;
    data.logits = read_floats(file_in(folder, "logits.f32"), &logits);
    data.residual = read_floats(file_in(folder, "residual.f32"), &residual);
    data.vocab = (uint32_t)(logits / data.rows);
    data.hidden = (uint32_t)(residual / data.rows / data.layers);
    json_object_put(root);
    *data_out = data;
}

void checkpoint_data_free(struct checkpoint_data *data) {
    for (uint32_t p = 0; p < data->prompt_count; p++)
        free(data->prompt[p].id);
    free(data->logits);
    free(data->residual);
    free(data->margin);
}

/* In a static buffer. */
static const char *file_in(const char *folder, const char *name) {
    static char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static struct json_object *field(struct json_object *object, const char *name) {
    struct json_object *value = NULL;
    if (object && json_object_object_get_ex(object, name, &value)) return value;
    fprintf(stderr, "checkpoint_data: no %s in a golden.json\n", name);
    exit(1);
}

static float *read_floats(const char *path, size_t *count_out) {
    FILE *file = fopen(path, "rb");
    struct stat stat;
    if (!file || fstat(fileno(file), &stat) != 0) {
        fprintf(stderr, "checkpoint_data: cannot read %s\n", path);
        exit(1);
    }
    *count_out = (size_t)stat.st_size / sizeof(float);
    float *values = allocate(*count_out, sizeof *values);
    if (fread(values, sizeof *values, *count_out, file) != *count_out) exit(1);
    fclose(file);
    return values;
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) exit(1);
    return memory;
}
