#include "memory_info.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGES_AT_ONCE 4096u

uint64_t memory_info_available(void) {
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file) return 0;
    unsigned long long kib = 0;
    char line[256];
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) break;
    fclose(file);
    return (uint64_t)kib * 1024;
}

uint64_t memory_info_resident(const void *memory, size_t bytes) {
    const uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = (uintptr_t)memory, end = begin + bytes;
    uint64_t resident = 0;
    for (uintptr_t at = begin / page_bytes * page_bytes; at < end;) {
        unsigned char state[PAGES_AT_ONCE];
        uintptr_t pages = (end - at + page_bytes - 1) / page_bytes;
        if (pages > PAGES_AT_ONCE) pages = PAGES_AT_ONCE;
        if (mincore((void *)at, pages * page_bytes, state) != 0) return resident;
        for (uintptr_t i = 0; i < pages; i++, at += page_bytes) {
            if (!(state[i] & 1)) continue;
            uintptr_t from = at > begin ? at : begin, to = at + page_bytes;
            resident += (to < end ? to : end) - from;
        }
    }
    return resident;
}

uint64_t memory_info_process_resident(void) {
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    if (!file) return 0;
    unsigned long long kib = 0;
    char line[256];
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "Rss: %llu kB", &kib) == 1) break;
    fclose(file);
    return (uint64_t)kib * 1024;
}
