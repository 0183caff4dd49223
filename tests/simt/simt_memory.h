/* Memory of the emulated device, and pinned memory of the host: where it begins and ends, how much
 * there is, who may touch it. Callers hold one lock (simt_cuda.c). */
#ifndef ESPALIER_SIMT_MEMORY_H
#define ESPALIER_SIMT_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIMT_MEMORY_GRANULE ((size_t)64 << 10) /* of what is mapped into reserved space */

/* Device memory is closed to everybody but between these; they nest. */
void simt_memory_open(void);
void simt_memory_close(void);

/* Poisoned, with nothing behind its end. NULL: more than the device has; pinned memory is not
 * counted. */
void *simt_memory_allocate(size_t bytes, size_t device_bytes_max, bool pinned);
bool simt_memory_release(void *memory, bool pinned);

/* Device memory as a peer has it open; it cannot be released before it is given back. */
bool simt_memory_borrow(void *memory);
bool simt_memory_give_back(void *memory);

/* Is all of it of this kind? */
bool simt_memory_is_device(const void *address, size_t bytes);
bool simt_memory_is_pinned(const void *address, size_t bytes);

uint64_t simt_memory_device_bytes(void);

/* Address space, into which granules are mapped from its front and taken back from its end. A
 * granule counts from when it is made, and can be touched once it is mapped and allowed. */
void *simt_memory_reserve(size_t bytes);
bool simt_memory_unreserve(void *begin); /* with nothing mapped */
bool simt_memory_make(size_t bytes, size_t device_bytes_max);
void simt_memory_unmake(size_t bytes);
bool simt_memory_map(void *at, size_t bytes);
bool simt_memory_allow(void *at, size_t bytes);
bool simt_memory_unmap(void *at, size_t bytes);

#endif
