/* The header of one safetensors file, checked against the file.
 *
 *     [u64 little-endian: N] [N bytes of JSON] [data]      tensor bytes at 8 + N + data_offsets
 *
 * Nothing is believed before it is checked: N against the file's size, shape and dtype against the
 * span of bytes, the spans against each other (they tile the data: no overlap, no hole, no rest).
 * Any thread.
 */
#ifndef ESPALIER_TENSOR_HEADER_H
#define ESPALIER_TENSOR_HEADER_H

#include "file.h"
#include "safetensors.h"

struct tensor_header {
    char *text; /* owned; names point into it */
    uint64_t text_bytes;
    struct tensor_info *tensor; /* owned, in the header's order; .file is 0 */
    uint32_t count, capacity;
    struct file_state state; /* of the file when the header was read */
};

/* Statuses and err as safetensors_open. On error nothing is left to free. */
enum status tensor_header_read(const char *path, struct tensor_header *header_out,
                               struct error *err) MUST_USE;
void tensor_header_deinit(struct tensor_header *header);

#endif
