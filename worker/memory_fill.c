#include "memory_fill.h"

#include <errno.h>
#include <sys/mman.h>

bool memory_fill(void *memory, size_t bytes) {
    return madvise(memory, bytes, MADV_POPULATE_WRITE) == 0 || errno == EINVAL;
}
