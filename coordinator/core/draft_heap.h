/* The frontier of a best-first search for draft nodes: the heaviest first, and an order among
 * equals that does not depend on how it was built, so that a tree is a function of its candidates:
 * the shallower first, then the lower rank, then the earlier parent. A binary heap in place
 * (Williams, "Algorithm 232", CACM 1964): O(log n) a push and a pop. A value; one owner.
 */
#ifndef ESPALIER_DRAFT_HEAP_H
#define ESPALIER_DRAFT_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#define DRAFT_HEAP_MAX 256u

struct draft_heap_entry {
    double weight;
    uint32_t rank, end, of; /* the source's own; rank orders */
    uint8_t parent, depth;
    bool on_spine;
};

struct draft_heap {
    struct draft_heap_entry entry[DRAFT_HEAP_MAX];
    uint32_t count;
};

void draft_heap_push(struct draft_heap *heap, const struct draft_heap_entry *entry);

/* False: it is empty. */
bool draft_heap_pop(struct draft_heap *heap, struct draft_heap_entry *entry_out);

#endif
