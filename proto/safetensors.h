/* The tensors of a checkpoint folder: headers only, no data.
 *
 * A folder holds `model.safetensors`, or shards named by `model.safetensors.index.json`. A file is
 *
 *     [u64 little-endian: N] [N bytes of JSON] [data]      tensor bytes at 8 + N + data_offsets
 *
 * Everything in a header is checked against the file's real size before it is believed: length,
 * offsets (no overlap, no hole), shape against bytes, duplicate names, names in the index that no
 * file holds. Header bytes are bounded. Any thread; the set is immutable once open.
 */
#ifndef ESPALIER_SAFETENSORS_H
#define ESPALIER_SAFETENSORS_H

#include <stdint.h>

#include "base/status.h"
#include "file.h"

#define SAFETENSORS_DIMS_MAX         4u
#define SAFETENSORS_HEADER_BYTES_MAX (100u << 20)
#define SAFETENSORS_FILES_MAX        1024u

enum tensor_dtype {
    TENSOR_F32,
    TENSOR_F16,
    TENSOR_BF16,
    TENSOR_F8_E4M3,
    TENSOR_I32,
    TENSOR_I64,
    TENSOR_OTHER, /* a dtype of the format that no weight of ours uses */
};

struct tensor_info {
    const char *name; /* owned by the set */
    enum tensor_dtype dtype;
    const char *dtype_name; /* as the file has it; a constant */
    uint32_t dims;
    uint64_t shape[SAFETENSORS_DIMS_MAX];
    uint32_t file;   /* index for safetensors_path */
    uint64_t offset; /* of its first byte in that file */
    uint64_t bytes;
};

struct safetensors;

/* Read the headers of `directory`. NOT_FOUND, INVALID_ARGUMENT, PERMISSION_DENIED; err names the
 * file and, where it is known, the tensor. */
enum status safetensors_open(const char *directory, struct safetensors **set_out,
                             struct error *err) MUST_USE;
void safetensors_close(struct safetensors **set);

/* By exact name; NULL if there is none. Cost: one hash look-up. */
const struct tensor_info *safetensors_find(const struct safetensors *set, const char *name);

uint32_t safetensors_count(const struct safetensors *set);
const struct tensor_info *safetensors_at(const struct safetensors *set, uint32_t idx);
uint32_t safetensors_file_count(const struct safetensors *set);
const char *safetensors_path(const struct safetensors *set, uint32_t file);

/* Of the file when its header was read: what is read later must be of the same. */
const struct file_state *safetensors_state(const struct safetensors *set, uint32_t file);

/* A hash of all names, shapes, dtypes and offsets: which checkpoint this is, without reading it. */
uint64_t safetensors_fingerprint(const struct safetensors *set);

const char *tensor_dtype_name(enum tensor_dtype dtype);

#endif
