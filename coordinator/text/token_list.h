/* Token ids that grow up to a bound; like text_buf, asked once at the end whether all fitted. */
#ifndef ESPALIER_TOKEN_LIST_H
#define ESPALIER_TOKEN_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct token_list {
    uint32_t *ids; /* [count], owned; NULL while empty */
    size_t count;
    size_t capacity;
    size_t count_max;
    bool full; /* an id did not fit, or memory was refused; nothing is added from then on */
};

void token_list_init(struct token_list *list, size_t count_max);
void token_list_deinit(struct token_list *list);
void token_list_push(struct token_list *list, uint32_t id);

#endif
