#include "golden_data.h"

#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>

#include "rig.h"

static void read_prompts(void);
static void read_windows(void);
static void read_drafts(void);
static struct json_object *read_file(const char *below);
static struct json_object *field(struct json_object *object, const char *name);
static uint32_t *read_ids(struct json_object *array, uint32_t *count_out);
static void *allocate(size_t count, size_t size);

/* Read once; static, so that they are still somebody's when the process ends. */
static struct {
    struct json_object *prompts_file; /* holds the prompts' texts */
    struct golden_prompt *prompts;
    struct golden_window *windows;
    struct golden_draft *drafts;
    uint32_t *heldout;
    uint32_t prompt_count, window_count, draft_count, heldout_count;
} data;

uint32_t golden_data_prompts(const struct golden_prompt **prompts_out) {
    if (!data.prompts) read_prompts();
    *prompts_out = data.prompts;
    return data.prompt_count;
}

uint32_t golden_data_heldout(const uint32_t **ids_out) {
    if (!data.heldout) {
        struct json_object *file = read_file("tests/golden/data/heldout_tokens.json");
        data.heldout = read_ids(file, &data.heldout_count);
        json_object_put(file);
    }
    *ids_out = data.heldout;
    return data.heldout_count;
}

uint32_t golden_data_windows(const struct golden_window **windows_out) {
    if (!data.windows) read_windows();
    *windows_out = data.windows;
    return data.window_count;
}

uint32_t golden_data_drafts(const struct golden_draft **drafts_out) {
    if (!data.drafts) read_drafts();
    *drafts_out = data.drafts;
    return data.draft_count;
}

static void read_prompts(void) {
    data.prompts_file = read_file("tests/golden/data/golden.json");
    struct json_object *list = field(data.prompts_file, "prompts");
    data.prompt_count = (uint32_t)json_object_array_length(list);
    data.prompts = allocate(data.prompt_count, sizeof *data.prompts);
    for (uint32_t i = 0; i < data.prompt_count; i++) {
        struct json_object *item = json_object_array_get_idx(list, i);
        struct golden_prompt *prompt = &data.prompts[i];
        prompt->kind = json_object_get_string(field(item, "kind"));
        prompt->prompt = json_object_get_string(field(item, "prompt"));
        prompt->id = read_ids(field(item, "prompt_ids"), &prompt->id_count);
        prompt->greedy = read_ids(field(item, "greedy_ids"), &prompt->greedy_count);
        for (uint32_t top = 0; top < GOLDEN_TOP; top++) {
            struct json_object *pair = json_object_array_get_idx(field(item, "top5"), top);
            struct json_object *id = json_object_array_get_idx(pair, 0);
            prompt->top_id[top] = (uint32_t)json_object_get_int(id);
            prompt->top_logit[top] = json_object_get_double(json_object_array_get_idx(pair, 1));
        }
    }
}

static void read_windows(void) {
    struct json_object *file = read_file("tests/golden/data/perplexity.json");
    struct json_object *list = field(file, "windows");
    data.window_count = (uint32_t)json_object_array_length(list);
    data.windows = allocate(data.window_count, sizeof *data.windows);
    for (uint32_t i = 0; i < data.window_count; i++) {
        struct json_object *item = json_object_array_get_idx(list, i);
        data.windows[i].begin = (uint32_t)json_object_get_int(field(item, "begin"));
        data.windows[i].tokens = (uint32_t)json_object_get_int(field(item, "tokens"));
        data.windows[i].nll = json_object_get_double(field(item, "nll"));
    }
    json_object_put(file);
}

static void read_drafts(void) {
    struct json_object *file = read_file("tests/golden/data/drafter_golden.json");
    struct json_object *list = field(file, "cases");
    data.draft_count = (uint32_t)json_object_array_length(list);
    data.drafts = allocate(data.draft_count, sizeof *data.drafts);
    for (uint32_t i = 0; i < data.draft_count; i++) {
        struct json_object *item = json_object_array_get_idx(list, i);
        struct golden_draft *draft = &data.drafts[i];
        uint32_t count;
        draft->id = read_ids(field(item, "ids"), &count);
        draft->root = (uint32_t)json_object_get_int(field(item, "root_position"));
        for (uint32_t at = 0; at < GOLDEN_DRAFT_LEN; at++) {
            struct json_object *top = json_object_array_get_idx(field(item, "draft_top"), at);
            struct json_object *logit = json_object_array_get_idx(field(item, "draft_top_logit"),
                                                                  at);
            draft->lse[at] = json_object_get_double(
                json_object_array_get_idx(field(item, "draft_lse"), at));
            for (uint32_t k = 0; k < GOLDEN_DRAFT_TOP; k++) {
                draft->top[at][k] = (uint32_t)json_object_get_int(
                    json_object_array_get_idx(top, k));
                draft->top_logit[at][k] = json_object_get_double(
                    json_object_array_get_idx(logit, k));
            }
        }
    }
    json_object_put(file);
}

static struct json_object *read_file(const char *below) {
    struct json_object *root = json_object_from_file(rig_path(below));
    if (root) return root;
    fprintf(stderr, "golden_data: %s: %s\n", below, json_util_get_last_err());
    exit(1);
}

static struct json_object *field(struct json_object *object, const char *name) {
    struct json_object *value = NULL;
    if (json_object_object_get_ex(object, name, &value)) return value;
    fprintf(stderr, "golden_data: a field '%s' is missing\n", name);
    exit(1);
}

static uint32_t *read_ids(struct json_object *array, uint32_t *count_out) {
    *count_out = (uint32_t)json_object_array_length(array);
    uint32_t *ids = allocate(*count_out, sizeof *ids);
    for (uint32_t i = 0; i < *count_out; i++)
        ids[i] = (uint32_t)json_object_get_int(json_object_array_get_idx(array, i));
    return ids;
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (memory) return memory;
    fprintf(stderr, "golden_data: no memory\n");
    exit(1);
}
