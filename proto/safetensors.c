/* Opening goes through the folder once: find the files, read each header (tensor_header), enter all
 * names in one hash table, and last compare the table with the index. Names point into the header
 * texts, which the set keeps. */
#include "safetensors.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "file.h"
#include "json_scan.h"
#include "tensor_header.h"

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE  "model.safetensors.index.json"

#define INDEX_BYTES_MAX     (256u << 20)
#define HEADERS_BYTES_MAX   (UINT64_C(1) << 30) /* of all files together */
#define TENSORS_MAX         (1u << 22)          /* of all files together */
#define FILE_NAME_BYTES_MAX 255u

struct data_file {
    const char *name; /* in the folder; in the index text, or a constant */
    char *path;
    char *header_text; /* the tensors' names point into it */
    struct file_state state;
};

/* One line of the index: this name should be in this file. */
struct listing {
    const char *name;
    uint32_t file;
};

struct safetensors {
    struct tensor_info *tensor;
    uint32_t count;
    uint32_t *slot; /* [slot_mask + 1] of tensor index + 1, 0 for none; linear probing */
    uint32_t slot_mask;
    struct data_file *file;
    uint32_t file_count, file_capacity;
    char *index_text; /* NULL where the checkpoint is a single file */
    struct listing *listing;
    uint32_t listing_count, listing_capacity;
    uint64_t headers_bytes;
};

static enum status read_index(struct safetensors *set, const char *directory, struct error *err);
static enum status add_file(struct safetensors *set, const char *directory, const char *name,
                            struct error *err);
static enum status add_tensors(struct safetensors *set, uint32_t file, struct error *err);
static enum status enter_names(struct safetensors *set, struct error *err);
static enum status check_index(const struct safetensors *set, struct error *err);

static char *join_path(const char *directory, const char *name) {
    char *path = NULL;
    CHECK(asprintf(&path, "%s/%s", directory, name) >= 0);
    return path;
}

enum status safetensors_open(const char *directory, struct safetensors **set_out,
                             struct error *err) {
    struct safetensors *set = calloc(1, sizeof *set);
    CHECK(set);
    char *single = join_path(directory, SINGLE_FILE);
    struct stat info;
    bool is_single = lstat(single, &info) == 0; /* a broken link is then refused by its name */
    free(single);
    enum status status = is_single ? add_file(set, directory, SINGLE_FILE, err)
                                   : read_index(set, directory, err);
    for (uint32_t i = 0; status == STATUS_OK && i < set->file_count; i++)
        status = add_tensors(set, i, err);
    if (status == STATUS_OK) status = enter_names(set, err);
    if (status == STATUS_OK) status = check_index(set, err);
    if (status != STATUS_OK) {
        safetensors_close(&set);
        return status;
    }
    *set_out = set;
    return STATUS_OK;
}

void safetensors_close(struct safetensors **set_ptr) {
    struct safetensors *set = *set_ptr;
    if (!set) return;
    for (uint32_t i = 0; i < set->file_count; i++) {
        free(set->file[i].path);
        free(set->file[i].header_text);
    }
    free(set->file);
    free(set->tensor);
    free(set->slot);
    free(set->listing);
    free(set->index_text);
    free(set);
    *set_ptr = NULL;
}

static uint64_t hash_name(const char *name) {
    return hash_bytes(name, strlen(name), HASH_CHAIN_EMPTY);
}

const struct tensor_info *safetensors_find(const struct safetensors *set, const char *name) {
    uint32_t at = (uint32_t)hash_name(name) & set->slot_mask;
    for (; set->slot[at]; at = (at + 1) & set->slot_mask) {
        const struct tensor_info *tensor = &set->tensor[set->slot[at] - 1];
        if (strcmp(tensor->name, name) == 0) return tensor;
    }
    return NULL;
}

uint32_t safetensors_count(const struct safetensors *set) {
    return set->count;
}

const struct tensor_info *safetensors_at(const struct safetensors *set, uint32_t idx) {
    CHECK(idx < set->count);
    return &set->tensor[idx];
}

uint32_t safetensors_file_count(const struct safetensors *set) {
    return set->file_count;
}

const char *safetensors_path(const struct safetensors *set, uint32_t file) {
    CHECK(file < set->file_count);
    return set->file[file].path;
}

const struct file_state *safetensors_state(const struct safetensors *set, uint32_t file) {
    CHECK(file < set->file_count);
    return &set->file[file].state;
}

uint64_t safetensors_fingerprint(const struct safetensors *set) {
    /* A sum, so that the order in which files are named does not matter; and file names, not
     * paths, so that copies of a checkpoint are equal. */
    uint64_t sum = 0;
    for (uint32_t i = 0; i < set->count; i++) {
        const struct tensor_info *tensor = &set->tensor[i];
        uint64_t hash = hash_chain(hash_name(set->file[tensor->file].name),
                                   hash_name(tensor->name));
        hash = hash_chain(hash, tensor->dtype);
        hash = hash_chain(hash, tensor->dims);
        for (uint32_t d = 0; d < tensor->dims; d++)
            hash = hash_chain(hash, tensor->shape[d]);
        sum += hash_chain(hash, tensor->offset);
    }
    return hash_chain(sum, set->count);
}

const char *tensor_dtype_name(enum tensor_dtype dtype) {
    switch (dtype) {
    case TENSOR_F32: return "F32";
    case TENSOR_F16: return "F16";
    case TENSOR_BF16: return "BF16";
    case TENSOR_F8_E4M3: return "F8_E4M3";
    case TENSOR_I32: return "I32";
    case TENSOR_I64: return "I64";
    case TENSOR_OTHER: break;
    }
    return "another dtype";
}

/* Room for one more item in a growing array: its new place, or NULL without memory. */
static void *grow(void *items, uint32_t count, uint32_t *capacity, size_t item_bytes) {
    if (count < *capacity) return items;
    uint32_t wanted = *capacity ? *capacity * 2 : 64;
    void *more = realloc(items, wanted * item_bytes);
    if (more) *capacity = wanted;
    return more;
}

static enum status no_memory(struct error *err) {
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the headers of the checkpoint");
}

static enum status json_fault(const struct json_scan *scan, const char *path, const char *what,
                              struct error *err) {
    return error_set(err, STATUS_INVALID_ARGUMENT, "%s: %s is not valid at byte %zu: %s", path,
                     what, scan->at, scan->fault);
}

static enum status add_file(struct safetensors *set, const char *directory, const char *name,
                            struct error *err) {
    if (set->file_count == SAFETENSORS_FILES_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s/%s: names more than %u files", directory,
                         INDEX_FILE, SAFETENSORS_FILES_MAX);
    void *files = grow(set->file, set->file_count, &set->file_capacity, sizeof *set->file);
    if (!files) return no_memory(err);
    set->file = files;
    set->file[set->file_count++] = (struct data_file){
        .name = name, .path = join_path(directory, name), .header_text = NULL};
    return STATUS_OK;
}

/* A file of the folder itself: an index must not lead the reader elsewhere. */
static bool is_plain_file_name(const char *name) {
    size_t length = strlen(name);
    return length > 0 && length <= FILE_NAME_BYTES_MAX && name[0] != '.' && !strchr(name, '/');
}

/* The file's number, added if it is new. Neighbours in the index mostly share a file, so the last
 * answer is tried first. */
static enum status file_number(struct safetensors *set, const char *directory, const char *name,
                               uint32_t *file, struct error *err) {
    if (*file < set->file_count && strcmp(set->file[*file].name, name) == 0) return STATUS_OK;
    for (*file = 0; *file < set->file_count; ++*file)
        if (strcmp(set->file[*file].name, name) == 0) return STATUS_OK;
    if (!is_plain_file_name(name))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s/%s: weight_map names the file \"%.200s\"; accepted: a file name "
                         "without a folder",
                         directory, INDEX_FILE, name);
    return add_file(set, directory, name, err);
}

static enum status add_listing(struct safetensors *set, const char *name, uint32_t file,
                               struct error *err) {
    if (set->listing_count == TENSORS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: names more than %u tensors", INDEX_FILE,
                         TENSORS_MAX);
    void *listings = grow(set->listing, set->listing_count, &set->listing_capacity,
                          sizeof *set->listing);
    if (!listings) return no_memory(err);
    set->listing = listings;
    set->listing[set->listing_count++] = (struct listing){.name = name, .file = file};
    return STATUS_OK;
}

static enum status read_weight_map(struct safetensors *set, const char *directory, const char *path,
                                   struct json_scan *scan, struct error *err) {
    bool more;
    uint32_t file = 0;
    if (!json_scan_take(scan, '{')) return json_fault(scan, path, "weight_map", err);
    for (uint64_t i = 0;; i++) {
        char *name, *file_name;
        if (!json_scan_more(scan, '}', i, &more)) return json_fault(scan, path, "weight_map", err);
        if (!more) return STATUS_OK;
        if (!json_scan_string(scan, &name) || !json_scan_take(scan, ':') ||
            !json_scan_string(scan, &file_name))
            return json_fault(scan, path, "weight_map", err);
        enum status status = file_number(set, directory, file_name, &file, err);
        if (status == STATUS_OK) status = add_listing(set, name, file, err);
        if (status != STATUS_OK) return status;
    }
}

static enum status scan_index(struct safetensors *set, const char *directory, const char *path,
                              struct json_scan *scan, struct error *err) {
    bool more = true;
    bool mapped = false;
    if (!json_scan_take(scan, '{')) return json_fault(scan, path, "the index", err);
    for (uint64_t i = 0;; i++) {
        char *key;
        if (!json_scan_more(scan, '}', i, &more)) return json_fault(scan, path, "the index", err);
        if (!more) break;
        if (!json_scan_string(scan, &key) || !json_scan_take(scan, ':'))
            return json_fault(scan, path, "the index", err);
        if (strcmp(key, "weight_map") != 0) {
            if (!json_scan_skip(scan)) return json_fault(scan, path, "the index", err);
            continue;
        }
        if (mapped)
            return error_set(err, STATUS_INVALID_ARGUMENT, "%s: has two weight_map objects", path);
        mapped = true;
        enum status status = read_weight_map(set, directory, path, scan, err);
        if (status != STATUS_OK) return status;
    }
    if (!json_scan_finish(scan)) return json_fault(scan, path, "the index", err);
    if (set->file_count == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s: weight_map is missing or empty; accepted: {\"tensor\": \"file\"}",
                         path);
    return STATUS_OK;
}

static enum status read_index(struct safetensors *set, const char *directory, struct error *err) {
    char *path = join_path(directory, INDEX_FILE);
    uint64_t bytes = 0;
    enum status status = file_read_all(path, INDEX_BYTES_MAX, &set->index_text, &bytes, err);
    if (status == STATUS_NOT_FOUND)
        error_set(err, status, "%s: holds neither %s nor %s", directory, SINGLE_FILE, INDEX_FILE);
    if (status == STATUS_OK) {
        struct json_scan scan;
        json_scan_init(&scan, set->index_text, bytes);
        status = scan_index(set, directory, path, &scan, err);
    }
    free(path);
    return status;
}

static enum status check_index(const struct safetensors *set, struct error *err) {
    for (uint32_t i = 0; i < set->listing_count; i++) {
        const struct listing *listing = &set->listing[i];
        const struct tensor_info *tensor = safetensors_find(set, listing->name);
        const char *path = set->file[listing->file].path;
        if (!tensor)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "%s: lacks tensor %.200s, which the index says it holds", path,
                             listing->name);
        if (tensor->file != listing->file)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "%s: lacks tensor %.200s, which the index says it holds; it is in %s",
                             path, listing->name, set->file[tensor->file].name);
    }
    return STATUS_OK;
}

/* The tensors of one file, behind those of the files before it. */
static enum status add_tensors(struct safetensors *set, uint32_t file, struct error *err) {
    const char *path = set->file[file].path;
    struct tensor_header header;
    enum status status = tensor_header_read(path, &header, err);
    if (status != STATUS_OK) return status;
    set->file[file].header_text = header.text;
    set->file[file].state = header.state;
    header.text = NULL;
    set->headers_bytes += header.text_bytes;
    if (set->headers_bytes > HEADERS_BYTES_MAX || header.count > TENSORS_MAX - set->count) {
        status = error_set(err, STATUS_INVALID_ARGUMENT,
                           "%s: brings the checkpoint above %" PRIu64 " header bytes or %u tensors",
                           path, HEADERS_BYTES_MAX, TENSORS_MAX);
        goto out_header;
    }
    struct tensor_info *more = realloc(set->tensor,
                                       ((size_t)set->count + header.count + 1) * sizeof *more);
    if (!more) {
        status = no_memory(err);
        goto out_header;
    }
    set->tensor = more;
    for (uint32_t i = 0; i < header.count; i++) {
        set->tensor[set->count] = header.tensor[i];
        set->tensor[set->count++].file = file;
    }
out_header:
    tensor_header_deinit(&header);
    return status;
}

static enum status enter_names(struct safetensors *set, struct error *err) {
    uint32_t slots = 16;
    while (slots < 2 * set->count)
        slots *= 2;
    set->slot = calloc(slots, sizeof *set->slot);
    if (!set->slot) return no_memory(err);
    set->slot_mask = slots - 1;
    for (uint32_t i = 0; i < set->count; i++) {
        const struct tensor_info *tensor = &set->tensor[i];
        uint32_t at = (uint32_t)hash_name(tensor->name) & set->slot_mask;
        for (; set->slot[at]; at = (at + 1) & set->slot_mask) {
            const struct tensor_info *other = &set->tensor[set->slot[at] - 1];
            if (strcmp(other->name, tensor->name) != 0) continue;
            return error_set(err, STATUS_INVALID_ARGUMENT, "%s: tensor %.200s: is already in %s",
                             set->file[tensor->file].path, tensor->name,
                             set->file[other->file].path);
        }
        set->slot[at] = i + 1;
    }
    return STATUS_OK;
}
