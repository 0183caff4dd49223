/* Checkpoints for tests: a list of tensors in memory that can be filled at random, written as a
 * folder of safetensors files, or read from one. Shares no code with the loader: reading goes
 * through json-c and fread. Failures are cmocka assertions. */
#ifndef ESPALIER_TENSOR_STORE_H
#define ESPALIER_TENSOR_STORE_H

#include <stddef.h>
#include <stdint.h>

#define STORE_TENSORS_MAX 2048u
#define STORE_NAME_BYTES  160u

struct store_tensor {
    char name[STORE_NAME_BYTES];
    char dtype[8]; /* "BF16", "F16", "F32", "F8_E4M3", "I32" */
    uint32_t dims;
    uint64_t shape[4];
    uint64_t bytes;
    uint8_t *data;
};

struct tensor_store {
    struct store_tensor tensor[STORE_TENSORS_MAX];
    uint32_t count;
};

/* On the heap: a store is large. */
struct tensor_store *tensor_store_create(void);
void tensor_store_destroy(struct tensor_store *store);

/* Add a tensor of random finite values (any bits for I32); rows 0 makes a vector. */
struct store_tensor *tensor_store_add(struct tensor_store *store, const char *name,
                                      const char *dtype, uint32_t rows, uint32_t columns);

/* NULL where there is none. */
struct store_tensor *tensor_store_find(struct tensor_store *store, const char *name);
void tensor_store_remove(struct tensor_store *store, const char *name);

/* Read every tensor of a folder that has an index, or add those of one file. */
void tensor_store_read(struct tensor_store *store, const char *directory);
void tensor_store_read_file(struct tensor_store *store, const char *path);

/* One file: model.safetensors. More: shards in turn, and an index. */
void tensor_store_write(const struct tensor_store *store, const char *directory,
                        uint32_t file_count);

/* A new empty folder under /tmp; folder_remove takes what is in it along. */
void folder_create(char path_out[64]);
void folder_remove(const char *path);
void folder_write(const char *folder, const char *name, const void *data, size_t bytes);

/* The whole file and a NUL; freed by the caller. */
char *file_text(const char *path, size_t *bytes_out);

#endif
