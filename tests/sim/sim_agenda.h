/* What will happen, by virtual time; what was put in first goes first where times are equal.
 *
 * An item may carry bytes: a message on its way. They belong to the agenda until the item is taken,
 * then to the taker, who gives them back with sim_agenda_free.
 */
#ifndef ESPALIER_SIM_AGENDA_H
#define ESPALIER_SIM_AGENDA_H

#include <stdbool.h>

#include "base/bytes.h"

#define SIM_AGENDA_ITEMS 8192u

struct sim_item {
    int64_t at_ns;
    uint64_t order;
    int kind; /* the owner's enum */
    uint32_t who, what;
    uint64_t value;
    uint8_t *data; /* NULL: none */
    size_t bytes;
};

struct sim_agenda {
    struct sim_item item[SIM_AGENDA_ITEMS]; /* a heap, the next one first */
    uint32_t count;
    uint64_t order;
};

/* A copy of item, and of the bytes given. */
void sim_agenda_put(struct sim_agenda *agenda, struct sim_item item, struct bytes bytes);

/* False: nothing will happen. */
bool sim_agenda_take(struct sim_agenda *agenda, struct sim_item *item_out);
void sim_agenda_free(struct sim_item *item);
void sim_agenda_clear(struct sim_agenda *agenda);

#endif
