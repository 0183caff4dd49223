/* What a worker knows about each sequence slot: how much of the sequence is final, the hash of it,
 * and the pages its cache lies in.
 *
 *     slot s:  committed tokens, prefix hash, token drawn | page table: token x is in page[x /
 * page_tok]
 *
 * A table has room for the longest context and the rows of a tree beyond it; room is address space,
 * memory comes as tables grow. Owner: the engine. One thread.
 */
#ifndef ESPALIER_SLOT_TABLE_H
#define ESPALIER_SLOT_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct slot_state {
    uint32_t committed;   /* tokens whose KV is final */
    uint32_t page_count;  /* 0: the slot is free */
    uint64_t prefix_hash; /* hash_chain over them */
    uint32_t drawn;       /* by the slot's last step */
    bool has_drawn;
    uint32_t *page; /* [page_count] of room page_cap */
};

struct slot_table {
    struct slot_state *slot; /* [slot_count] */
    uint32_t slot_count;
    uint32_t page_cap; /* pages of one slot */
    uint32_t *pages;   /* [slot_count, page_cap] */
};

enum status slot_table_init(struct slot_table *table, uint32_t slot_count, uint32_t page_cap,
                            struct error *err) MUST_USE;
void slot_table_deinit(struct slot_table *table);

void slot_table_clear(struct slot_table *table);
void slot_table_forget(struct slot_table *table, uint32_t slot);

/* Append the pages [first, first + count). */
void slot_table_append(struct slot_table *table, uint32_t slot, uint32_t first, uint32_t count);

#endif
