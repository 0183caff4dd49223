#include "simt_memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernel.h"

#define POISON    0xff
#define ALIGNMENT 256u

enum kind { KIND_DEVICE, KIND_PINNED, KIND_RESERVED };

struct range {
    struct range *next;
    enum kind kind;
    unsigned char *begin;
    size_t bytes;         /* that may be touched; of reserved space those mapped and allowed */
    size_t mapped_bytes;  /* of reserved space: mapped, perhaps not allowed yet */
    uint32_t borrowers;   /* of device memory */
    unsigned char *space; /* what the system gave */
    size_t space_bytes;
};

static struct range *ranges;
static uint64_t device_bytes;
static uint32_t open_count;

static size_t page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Whole pages of what may be touched. */
static void protect(const struct range *range, int protection) {
    size_t page = page_bytes();
    uintptr_t begin = (uintptr_t)range->begin / page * page;
    uintptr_t end = ((uintptr_t)range->begin + range->bytes + page - 1) / page * page;
    KERNEL_CHECK(mprotect((void *)begin, end - begin, protection) == 0);
}

static void protect_all(int protection) {
    for (const struct range *range = ranges; range != NULL; range = range->next)
        if (range->kind != KIND_PINNED && range->bytes > 0) protect(range, protection);
}

void simt_memory_open(void) {
    if (open_count++ == 0) protect_all(PROT_READ | PROT_WRITE);
}

void simt_memory_close(void) {
    if (--open_count == 0) protect_all(PROT_NONE);
}

static struct range *add_range(enum kind kind, size_t space_bytes) {
    struct range *range = calloc(1, sizeof *range);
    KERNEL_CHECK(range != NULL);
    range->kind = kind;
    range->space_bytes = space_bytes;
    range->space = mmap(NULL, space_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                        -1, 0);
    KERNEL_CHECK(range->space != MAP_FAILED);
    range->begin = range->space;
    range->next = ranges;
    ranges = range;
    return range;
}

static bool drop_range(const void *begin, enum kind kind) {
    struct range **link = &ranges;
    while (*link != NULL && ((*link)->begin != begin || (*link)->kind != kind))
        link = &(*link)->next;
    struct range *range = *link;
    if (range == NULL) return false;
    *link = range->next;
    munmap(range->space, range->space_bytes);
    free(range);
    return true;
}

static struct range *find_range(const void *address, size_t bytes) {
    const unsigned char *at = address;
    for (struct range *range = ranges; range != NULL; range = range->next)
        if (at >= range->begin && at + bytes <= range->begin + range->bytes) return range;
    return NULL;
}

/* Its last byte lies at the end of a page, the alignment aside, and the next page is closed. */
void *simt_memory_allocate(size_t bytes, size_t device_bytes_max, bool pinned) {
    if (!pinned && device_bytes + bytes > device_bytes_max) return NULL;
    size_t page = page_bytes(), aligned = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    size_t whole = (aligned + page - 1) / page * page;
    struct range *range = add_range(pinned ? KIND_PINNED : KIND_DEVICE, whole + page);
    range->begin = range->space + whole - aligned;
    range->bytes = bytes;
    if (bytes > 0) {
        protect(range, PROT_READ | PROT_WRITE);
        memset(range->begin, POISON, bytes);
        if (!pinned && open_count == 0) protect(range, PROT_NONE);
    }
    if (!pinned) device_bytes += bytes;
    return range->begin;
}

bool simt_memory_release(void *memory, bool pinned) {
    const struct range *range = find_range(memory, 0);
    size_t bytes = range != NULL ? range->bytes : 0;
    if (range != NULL && range->borrowers > 0) return false;
    if (!drop_range(memory, pinned ? KIND_PINNED : KIND_DEVICE)) return false;
    if (!pinned) device_bytes -= bytes;
    return true;
}

static struct range *find_lendable(const void *memory) {
    struct range *range = find_range(memory, 0);
    return range != NULL && range->kind == KIND_DEVICE && range->begin == memory ? range : NULL;
}

bool simt_memory_borrow(void *memory) {
    struct range *range = find_lendable(memory);
    if (range != NULL) range->borrowers++;
    return range != NULL;
}

bool simt_memory_give_back(void *memory) {
    struct range *range = find_lendable(memory);
    if (range == NULL || range->borrowers == 0) return false;
    range->borrowers--;
    return true;
}

bool simt_memory_is_device(const void *address, size_t bytes) {
    const struct range *range = find_range(address, bytes);
    return range != NULL && range->kind != KIND_PINNED;
}

bool simt_memory_is_pinned(const void *address, size_t bytes) {
    const struct range *range = find_range(address, bytes);
    return range != NULL && range->kind == KIND_PINNED;
}

uint64_t simt_memory_device_bytes(void) {
    return device_bytes;
}

/* ============================== reserved space ================================================ */

void *simt_memory_reserve(size_t bytes) {
    return add_range(KIND_RESERVED, bytes)->begin;
}

static struct range *find_space(const void *at) {
    const unsigned char *address = at;
    for (struct range *range = ranges; range != NULL; range = range->next)
        if (range->kind == KIND_RESERVED && address >= range->space &&
            address < range->space + range->space_bytes)
            return range;
    return NULL;
}

bool simt_memory_unreserve(void *begin) {
    const struct range *range = find_space(begin);
    return range != NULL && range->mapped_bytes == 0 && drop_range(begin, KIND_RESERVED);
}

bool simt_memory_make(size_t bytes, size_t device_bytes_max) {
    if (bytes % SIMT_MEMORY_GRANULE != 0 || device_bytes + bytes > device_bytes_max) return false;
    device_bytes += bytes;
    return true;
}

void simt_memory_unmake(size_t bytes) {
    device_bytes -= bytes;
}

bool simt_memory_map(void *at, size_t bytes) {
    struct range *range = find_space(at);
    if (range == NULL || at != range->space + range->mapped_bytes ||
        range->mapped_bytes + bytes > range->space_bytes)
        return false;
    range->mapped_bytes += bytes;
    return true;
}

bool simt_memory_allow(void *at, size_t bytes) {
    struct range *range = find_space(at);
    if (range == NULL || at != range->space + range->bytes ||
        range->bytes + bytes > range->mapped_bytes)
        return false;
    range->bytes += bytes;
    protect(range, PROT_READ | PROT_WRITE);
    memset(at, POISON, bytes);
    if (open_count == 0) protect(range, PROT_NONE);
    return true;
}

bool simt_memory_unmap(void *at, size_t bytes) {
    struct range *range = find_space(at);
    if (range == NULL || (unsigned char *)at + bytes != range->space + range->mapped_bytes)
        return false;
    range->mapped_bytes -= bytes;
    if (range->bytes > range->mapped_bytes) range->bytes = range->mapped_bytes;
    KERNEL_CHECK(mprotect(at, bytes, PROT_NONE) == 0);
    return true;
}
