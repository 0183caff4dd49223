#include "sim_agenda.h"

#include <stdlib.h>

#include "base/check.h"

static bool is_sooner(const struct sim_item *a, const struct sim_item *b) {
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void swap(struct sim_item *a, struct sim_item *b) {
    struct sim_item kept = *a;
    *a = *b;
    *b = kept;
}

void sim_agenda_put(struct sim_agenda *agenda, struct sim_item item, struct bytes bytes) {
    CHECK(agenda->count < SIM_AGENDA_ITEMS);
    item.order = agenda->order++;
    item.data = NULL;
    item.bytes = bytes.size;
    if (bytes.data) {
        item.data = malloc(bytes.size + 1);
        CHECK(item.data != NULL);
        memcpy(item.data, bytes.data, bytes.size);
    }
    uint32_t at = agenda->count++;
    agenda->item[at] = item;
    while (at > 0 && is_sooner(&agenda->item[at], &agenda->item[(at - 1) / 2])) {
        swap(&agenda->item[at], &agenda->item[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
}

bool sim_agenda_take(struct sim_agenda *agenda, struct sim_item *item_out) {
    if (agenda->count == 0) return false;
    struct sim_item *heap = agenda->item;
    *item_out = heap[0];
    heap[0] = heap[--agenda->count];
    for (uint32_t at = 0, child = 1; child < agenda->count; child = 2 * at + 1) {
        if (child + 1 < agenda->count && is_sooner(&heap[child + 1], &heap[child])) child++;
        if (!is_sooner(&heap[child], &heap[at])) break;
        swap(&heap[at], &heap[child]);
        at = child;
    }
    return true;
}

void sim_agenda_free(struct sim_item *item) {
    free(item->data);
    item->data = NULL;
}

void sim_agenda_clear(struct sim_agenda *agenda) {
    for (uint32_t i = 0; i < agenda->count; i++)
        sim_agenda_free(&agenda->item[i]);
    agenda->count = 0;
    agenda->order = 0;
}
