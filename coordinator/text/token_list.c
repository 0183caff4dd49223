#include "text/token_list.h"

#include <stdlib.h>

#define CAPACITY_MIN 64u

static bool grow(struct token_list *list);

void token_list_init(struct token_list *list, size_t count_max) {
    *list = (struct token_list){.count_max = count_max};
}

void token_list_deinit(struct token_list *list) {
    free(list->ids);
    *list = (struct token_list){0};
}

void token_list_push(struct token_list *list, uint32_t id) {
    if (list->full) return;
    if (list->count == list->capacity && !grow(list)) {
        list->full = true;
        return;
    }
    list->ids[list->count++] = id;
}

static bool grow(struct token_list *list) {
    if (list->count == list->count_max) return false;
    size_t capacity = list->capacity < CAPACITY_MIN ? CAPACITY_MIN : list->capacity * 2;
    if (capacity > list->count_max) capacity = list->count_max;
    uint32_t *ids = realloc(list->ids, capacity * sizeof *ids);
    if (!ids) return false;
    list->ids = ids;
    list->capacity = capacity;
    return true;
}
