/* The choices of one call, once there are several: which of them live, and what became of the rest.
 * A choice is a request of its own (request.h), known here by its slot. A set lives as long as one
 * of its choices; all admitted requests together bound their number. No memory after init.
 */
#ifndef ESPALIER_CHOICES_H
#define ESPALIER_CHOICES_H

#include "base/arena.h"
#include "base/pool.h"
#include "core.h"

#define CHOICES_NOBODY UINT32_MAX

struct choices {
    struct pool_id id;
    uint32_t member[CHOICES_MAX]; /* slots; CHOICES_NOBODY: it has ended, or not joined yet */
    uint32_t count, joined_count;
    struct choice_summary summary[CHOICES_MAX]; /* of those that have ended */
    int64_t first_token_ns;                     /* of choice 0, once it has ended */
};

struct choices_store {
    struct pool pool;
    struct choices *choices; /* [max_running_requests] */
};

size_t choices_memory(const struct core_options *options);
void choices_init(struct choices_store *store, const struct core_options *options,
                  struct arena *memory);
void choices_deinit(struct choices_store *store);

/* A set of so many, of which the first has joined; to be closed when all have left. */
struct choices *choices_open(struct choices_store *store, uint32_t count, uint32_t first_slot);
void choices_close(struct choices_store *store, const struct choices *choices);

/* The next one joins; returns which it is. All join before any leaves. */
uint32_t choices_join(struct choices *choices, uint32_t slot);

/* One has ended. */
void choices_leave(struct choices *choices, uint32_t idx, const struct choice_summary *summary,
                   int64_t first_token_ns);

/* The slot of some other that lives. */
uint32_t choices_sibling(const struct choices *choices, uint32_t idx);

/* All have ended: what the call's summary says of them, alone and together. */
void choices_summarize(const struct choices *choices, struct generate_summary *summary);

#endif
