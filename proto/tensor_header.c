#include "tensor_header.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file.h"
#include "json_scan.h"

#define LENGTH_BYTES        8u /* of the number in front of the JSON */
#define TENSORS_OF_FILE_MAX (1u << 20)
#define NAME_BYTES_MAX      255u
#define ELEMENTS_MAX        (UINT64_C(1) << 48)

static const struct {
    const char *name;
    enum tensor_dtype dtype;
    uint32_t bits;
} dtypes[] = {
    {"BF16", TENSOR_BF16, 16},    {"I32", TENSOR_I32, 32},        {"F32", TENSOR_F32, 32},
    {"F16", TENSOR_F16, 16},      {"F8_E4M3", TENSOR_F8_E4M3, 8}, {"I64", TENSOR_I64, 64},
    {"F64", TENSOR_OTHER, 64},    {"U64", TENSOR_OTHER, 64},      {"U32", TENSOR_OTHER, 32},
    {"I16", TENSOR_OTHER, 16},    {"U16", TENSOR_OTHER, 16},      {"I8", TENSOR_OTHER, 8},
    {"U8", TENSOR_OTHER, 8},      {"BOOL", TENSOR_OTHER, 8},      {"C64", TENSOR_OTHER, 64},
    {"F8_E5M2", TENSOR_OTHER, 8}, {"F8_E8M0", TENSOR_OTHER, 8},   {"F6_E2M3", TENSOR_OTHER, 6},
    {"F6_E3M2", TENSOR_OTHER, 6}, {"F4", TENSOR_OTHER, 4},
};

/* A header being read. */
struct reading {
    const char *path;
    struct tensor_header header;
    struct json_scan scan;
    uint64_t data_at;    /* of the data in the file */
    uint64_t data_bytes; /* behind the header, as the file really is */
    struct error *err;
};

/* What a header says of one tensor, before it is believed. */
struct claim {
    const char *dtype;
    uint64_t begin, end;
    uint64_t shape[SAFETENSORS_DIMS_MAX];
    uint32_t dims;
    bool has_dtype, has_shape, has_offsets;
};

static enum status read_text(struct reading *reading, int fd, uint64_t file_bytes);
static enum status scan_tensors(struct reading *reading);
static enum status scan_tensor(struct reading *reading, const char *name);
static bool scan_field(struct json_scan *scan, struct claim *claim);
static enum status check_claim(const struct reading *reading, const char *name,
                               const struct claim *claim, struct tensor_info *tensor_out);
static enum status check_tiling(const struct reading *reading);

enum status tensor_header_read(const char *path, struct tensor_header *header_out,
                               struct error *err) {
    struct reading reading = {.path = path, .err = err};
    int fd;
    uint64_t file_bytes;
    enum status status = file_open(path, &fd, &file_bytes, err);
    if (status != STATUS_OK) return status;
    reading.header.state = file_state_of(fd);
    status = read_text(&reading, fd, file_bytes);
    close(fd);
    if (status == STATUS_OK) status = scan_tensors(&reading);
    if (status == STATUS_OK) status = check_tiling(&reading);
    if (status != STATUS_OK) {
        tensor_header_deinit(&reading.header);
        return status;
    }
    *header_out = reading.header;
    return STATUS_OK;
}

void tensor_header_deinit(struct tensor_header *header) {
    free(header->text);
    free(header->tensor);
    *header = (struct tensor_header){0};
}

static enum status no_memory(const struct reading *reading) {
    return error_set(reading->err, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for its header",
                     reading->path);
}

static enum status scan_error(const struct reading *reading) {
    return error_set(reading->err, STATUS_INVALID_ARGUMENT,
                     "%s: the header is not valid at byte %zu: %s", reading->path, reading->scan.at,
                     reading->scan.fault);
}

__attribute__((format(printf, 3, 4))) static enum status
tensor_error(const struct reading *reading, const char *name, const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return error_set(reading->err, STATUS_INVALID_ARGUMENT, "%s: tensor %.200s: %s", reading->path,
                     name, text);
}

static enum status read_text(struct reading *reading, int fd, uint64_t file_bytes) {
    uint64_t bytes; /* little-endian, as every machine this runs on */
    if (file_bytes < LENGTH_BYTES)
        return error_set(reading->err, STATUS_INVALID_ARGUMENT,
                         "%s: is %" PRIu64 " bytes long, too short for a header", reading->path,
                         file_bytes);
    enum status status = file_read_at(fd, reading->path, &bytes, sizeof bytes, 0, reading->err);
    if (status != STATUS_OK) return status;
    if (bytes > SAFETENSORS_HEADER_BYTES_MAX || bytes > file_bytes - LENGTH_BYTES)
        return error_set(reading->err, STATUS_INVALID_ARGUMENT,
                         "%s: header length %" PRIu64 "; accepted: at most %u, and at most the "
                         "%" PRIu64 " bytes that follow it",
                         reading->path, bytes, SAFETENSORS_HEADER_BYTES_MAX,
                         file_bytes - LENGTH_BYTES);
    reading->header.text = malloc(bytes + 1);
    if (!reading->header.text) return no_memory(reading);
    reading->header.text_bytes = bytes;
    reading->data_at = LENGTH_BYTES + bytes;
    reading->data_bytes = file_bytes - reading->data_at;
    return file_read_at(fd, reading->path, reading->header.text, bytes, LENGTH_BYTES, reading->err);
}

static enum status scan_tensors(struct reading *reading) {
    struct json_scan *scan = &reading->scan;
    json_scan_init(scan, reading->header.text, reading->header.text_bytes);
    if (!json_scan_take(scan, '{')) return scan_error(reading);
    for (uint64_t i = 0;; i++) {
        bool more;
        char *name;
        if (!json_scan_more(scan, '}', i, &more)) return scan_error(reading);
        if (!more) break;
        if (!json_scan_string(scan, &name) || !json_scan_take(scan, ':'))
            return scan_error(reading);
        if (strcmp(name, "__metadata__") == 0) {
            if (!json_scan_skip(scan)) return scan_error(reading);
            continue;
        }
        enum status status = scan_tensor(reading, name);
        if (status != STATUS_OK) return status;
    }
    return json_scan_finish(scan) ? STATUS_OK : scan_error(reading);
}

/* Room for one more tensor. */
static enum status reserve(struct reading *reading, const char *name) {
    struct tensor_header *header = &reading->header;
    if (header->count < header->capacity) return STATUS_OK;
    if (header->count == TENSORS_OF_FILE_MAX)
        return tensor_error(reading, name, "is one more than %u in a file", TENSORS_OF_FILE_MAX);
    uint32_t capacity = header->capacity ? 2 * header->capacity : 64;
    struct tensor_info *more = realloc(header->tensor, capacity * sizeof *more);
    if (!more) return no_memory(reading);
    header->tensor = more;
    header->capacity = capacity;
    return STATUS_OK;
}

static enum status scan_tensor(struct reading *reading, const char *name) {
    struct json_scan *scan = &reading->scan;
    struct claim claim = {0};
    size_t length = strlen(name);
    if (length == 0 || length > NAME_BYTES_MAX)
        return tensor_error(reading, name, "name is %zu bytes long; accepted: 1..%u", length,
                            NAME_BYTES_MAX);
    if (!json_scan_take(scan, '{')) return scan_error(reading);
    for (uint64_t i = 0;; i++) {
        bool more;
        if (!json_scan_more(scan, '}', i, &more)) return scan_error(reading);
        if (!more) break;
        if (!scan_field(scan, &claim)) return scan_error(reading);
    }
    if (!claim.has_dtype || !claim.has_shape || !claim.has_offsets)
        return tensor_error(reading, name, "lacks dtype, shape or data_offsets");
    enum status status = reserve(reading, name);
    if (status != STATUS_OK) return status;
    status = check_claim(reading, name, &claim, &reading->header.tensor[reading->header.count]);
    if (status == STATUS_OK) reading->header.count++;
    return status;
}

static bool scan_shape(struct json_scan *scan, struct claim *claim) {
    if (!json_scan_take(scan, '[')) return false;
    for (uint32_t i = 0;; i++) {
        bool more;
        uint64_t size;
        if (!json_scan_more(scan, ']', i, &more)) return false;
        if (!more) return true;
        if (!json_scan_count(scan, &size)) return false;
        if (i < SAFETENSORS_DIMS_MAX) claim->shape[i] = size;
        claim->dims = i + 1;
    }
}

static bool scan_offsets(struct json_scan *scan, struct claim *claim) {
    return json_scan_take(scan, '[') && json_scan_count(scan, &claim->begin) &&
           json_scan_take(scan, ',') && json_scan_count(scan, &claim->end) &&
           json_scan_take(scan, ']');
}

/* One field into *claim. A field that is unknown or there twice is a fault too. */
static bool scan_field(struct json_scan *scan, struct claim *claim) {
    char *key, *dtype;
    if (!json_scan_string(scan, &key) || !json_scan_take(scan, ':')) return false;
    if (strcmp(key, "dtype") == 0 && !claim->has_dtype) {
        claim->has_dtype = json_scan_string(scan, &dtype);
        if (claim->has_dtype) claim->dtype = dtype;
        return claim->has_dtype;
    }
    if (strcmp(key, "shape") == 0 && !claim->has_shape)
        return claim->has_shape = scan_shape(scan, claim);
    if (strcmp(key, "data_offsets") == 0 && !claim->has_offsets)
        return claim->has_offsets = scan_offsets(scan, claim);
    scan->fault = "expected dtype, shape and data_offsets, each once";
    return false;
}

/* Does the claim hold together, and does the file have those bytes? */
static enum status check_claim(const struct reading *reading, const char *name,
                               const struct claim *claim, struct tensor_info *tensor_out) {
    const uint32_t kinds = sizeof dtypes / sizeof *dtypes;
    uint32_t kind = 0;
    while (kind < kinds && strcmp(dtypes[kind].name, claim->dtype) != 0)
        kind++;
    if (kind == kinds)
        return tensor_error(reading, name,
                            "dtype \"%.40s\" is none of the format's (BF16, F32, "
                            "I32, ...)",
                            claim->dtype);
    if (claim->dims > SAFETENSORS_DIMS_MAX)
        return tensor_error(reading, name, "has %u dimensions; at most %u are accepted",
                            claim->dims, SAFETENSORS_DIMS_MAX);
    uint64_t elements = 1;
    for (uint32_t d = 0; d < claim->dims; d++)
        if (__builtin_mul_overflow(elements, claim->shape[d], &elements) || elements > ELEMENTS_MAX)
            return tensor_error(reading, name, "shape is absurdly large");
    if (claim->begin > claim->end || claim->end > reading->data_bytes)
        return tensor_error(reading, name,
                            "data_offsets [%" PRIu64 ", %" PRIu64 "] do not lie in the %" PRIu64
                            " data bytes of the file",
                            claim->begin, claim->end, reading->data_bytes);
    uint64_t bytes = (elements * dtypes[kind].bits + 7) / 8;
    if (claim->end - claim->begin != bytes)
        return tensor_error(
            reading, name, "data_offsets span %" PRIu64 " bytes, but shape and dtype need %" PRIu64,
            claim->end - claim->begin, bytes);
    *tensor_out = (struct tensor_info){.name = name,
                                       .dtype = dtypes[kind].dtype,
                                       .dtype_name = dtypes[kind].name,
                                       .dims = claim->dims,
                                       .offset = reading->data_at + claim->begin,
                                       .bytes = bytes};
    memcpy(tensor_out->shape, claim->shape, sizeof tensor_out->shape);
    return STATUS_OK;
}

static int by_offset(const void *left, const void *right) {
    const struct tensor_info *a = *(const struct tensor_info *const *)left;
    const struct tensor_info *b = *(const struct tensor_info *const *)right;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

/* In order of offset each tensor must begin where the one before ended, and the last end with the
 * file. */
static enum status check_tiling(const struct reading *reading) {
    const struct tensor_header *header = &reading->header;
    const struct tensor_info **order = malloc((header->count + 1) * sizeof *order);
    if (!order) return no_memory(reading);
    for (uint32_t i = 0; i < header->count; i++)
        order[i] = &header->tensor[i];
    qsort(order, header->count, sizeof *order, by_offset);
    enum status status = STATUS_OK;
    uint64_t at = reading->data_at;
    for (uint32_t i = 0; i < header->count && status == STATUS_OK; i++) {
        if (order[i]->offset < at)
            status = tensor_error(reading, order[i]->name, "overlaps tensor %.120s",
                                  order[i - 1]->name);
        else if (order[i]->offset > at)
            status = tensor_error(reading, order[i]->name, "follows a hole of %" PRIu64 " bytes",
                                  order[i]->offset - at);
        at = order[i]->offset + order[i]->bytes;
    }
    free(order);
    uint64_t end = reading->data_at + reading->data_bytes;
    if (status == STATUS_OK && at != end)
        status = error_set(reading->err, STATUS_INVALID_ARGUMENT,
                           "%s: %" PRIu64 " bytes behind the last tensor belong to none",
                           reading->path, end - at);
    return status;
}
