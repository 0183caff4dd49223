/* Memory from the system now, not at first use: what it lacks is learned while it can be said. */
#ifndef ESPALIER_MEMORY_FILL_H
#define ESPALIER_MEMORY_FILL_H

#include <stdbool.h>
#include <stddef.h>

/* False, with errno: it lacks some. A kernel too old to know the request gives memory on first use,
 * as ever. */
bool memory_fill(void *memory, size_t bytes);

#endif
