#include "slot_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"
#include "base/hash.h"

static size_t pages_bytes(const struct slot_table *table);

enum status slot_table_init(struct slot_table *table, uint32_t slot_count, uint32_t page_cap,
                            struct error *err) {
    *table = (struct slot_table){.slot_count = slot_count, .page_cap = page_cap};
    table->slot = calloc(slot_count, sizeof *table->slot);
    if (!table->slot)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %u slots", slot_count);
    void *pages = mmap(NULL, pages_bytes(table), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) {
        enum status status = error_set(err, STATUS_RESOURCE_EXHAUSTED,
                                       "page tables of %zu bytes: %s", pages_bytes(table),
                                       strerror(errno));
        slot_table_deinit(table);
        return status;
    }
    table->pages = pages;
    for (uint32_t i = 0; i < slot_count; i++)
        table->slot[i].page = table->pages + (size_t)i * page_cap;
    slot_table_clear(table);
    return STATUS_OK;
}

void slot_table_deinit(struct slot_table *table) {
    if (table->pages) munmap(table->pages, pages_bytes(table));
    free(table->slot);
    *table = (struct slot_table){0};
}

void slot_table_clear(struct slot_table *table) {
    for (uint32_t i = 0; i < table->slot_count; i++)
        slot_table_forget(table, i);
}

void slot_table_forget(struct slot_table *table, uint32_t slot) {
    table->slot[slot].committed = 0;
    table->slot[slot].page_count = 0;
    table->slot[slot].has_drawn = false;
    table->slot[slot].prefix_hash = HASH_CHAIN_EMPTY;
}

void slot_table_append(struct slot_table *table, uint32_t slot, uint32_t first, uint32_t count) {
    struct slot_state *state = &table->slot[slot];
    CHECK(count <= table->page_cap - state->page_count);
    for (uint32_t i = 0; i < count; i++)
        state->page[state->page_count++] = first + i;
}

static size_t pages_bytes(const struct slot_table *table) {
    return (size_t)table->slot_count * table->page_cap * sizeof *table->pages;
}
