#include "draft_heap.h"

#include "base/check.h"

static bool is_before(const struct draft_heap_entry *a, const struct draft_heap_entry *b) {
    if (a->weight != b->weight) return a->weight > b->weight;
    if (a->depth != b->depth) return a->depth < b->depth;
    if (a->rank != b->rank) return a->rank < b->rank;
    return a->parent < b->parent;
}

void draft_heap_push(struct draft_heap *heap, const struct draft_heap_entry *entry) {
    CHECK(heap->count < DRAFT_HEAP_MAX);
    uint32_t at = heap->count++;
    for (uint32_t above; at > 0 && is_before(entry, &heap->entry[above = (at - 1) / 2]); at = above)
        heap->entry[at] = heap->entry[above];
    heap->entry[at] = *entry;
}

bool draft_heap_pop(struct draft_heap *heap, struct draft_heap_entry *entry_out) {
    if (heap->count == 0) return false;
    *entry_out = heap->entry[0];
    struct draft_heap_entry last = heap->entry[--heap->count];
    uint32_t at = 0;
    for (uint32_t child; (child = 2 * at + 1) < heap->count; at = child) {
        if (child + 1 < heap->count && is_before(&heap->entry[child + 1], &heap->entry[child]))
            child++;
        if (!is_before(&heap->entry[child], &last)) break;
        heap->entry[at] = heap->entry[child];
    }
    heap->entry[at] = last;
    return true;
}
