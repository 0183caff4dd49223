/* Memory by the kernel's own accounting: of the machine, and of this process. */
#ifndef ESPALIER_MEMORY_INFO_H
#define ESPALIER_MEMORY_INFO_H

#include <stddef.h>
#include <stdint.h>

/* MemAvailable of /proc/meminfo, in bytes; 0 where it cannot be read. */
uint64_t memory_info_available(void);

/* Bytes of [memory, memory + bytes) that have memory behind them now (mincore). The range may begin
 * and end within a page. */
uint64_t memory_info_resident(const void *memory, size_t bytes);

/* Rss of /proc/self/smaps_rollup; 0 where it cannot be read. Slow: the kernel walks page tables. */
uint64_t memory_info_process_resident(void);

#endif
