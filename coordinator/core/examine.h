/* A look at what every rank holds of cached prefixes: which pages, asked of all ranks between the
 * same two steps, and each rank's report passed to the caller as it comes.
 *
 *     IDLE ── EXAMINE to all ──▶ ASKED ── all have answered, or the generation is over ──▶ IDLE
 *
 * Pages in the tree hold committed latents, the same on every rank, and orders and plans reach a
 * worker in the order in which they leave: so it may be asked under load, and costs the steps
 * behind it the time it takes. One at a time. A caller who has left makes room for the next; late
 * answers to him are known by their number, and ignored.
 *
 * No memory after init; the pages live until the next order.
 */
#ifndef ESPALIER_EXAMINE_H
#define ESPALIER_EXAMINE_H

#include "effect_buf.h"
#include "radix.h"
#include "roll_call.h"
#include "roster.h"

struct examine {
    const struct core_options *options;
    struct pool_id call;
    bool has_call;         /* somebody waits for the end */
    struct roll_call roll; /* open: ASKED */
    uint32_t *page;        /* [page_max] */
    struct page_ref *ref;
    uint32_t page_max;
};

size_t examine_memory(const struct core_options *options);
void examine_init(struct examine *examine, const struct core_options *options,
                  struct arena *memory);

/* An Examine call: refuse it, or ask all ranks. */
void examine_begin(struct examine *examine, const struct radix *radix, const struct roster *roster,
                   struct effect_buf *effects, const struct event *event);

/* A rank's answer. False: none is owed with this number. */
bool examine_take(struct examine *examine, struct effect_buf *effects, uint32_t rank,
                  const struct worker_examined *examined);

/* The caller no longer waits. False: it is not this call's. */
bool examine_cancel(struct examine *examine, struct effect_buf *effects, struct pool_id call,
                    enum status reason);

/* The generation is over. */
void examine_abandon(struct examine *examine, struct effect_buf *effects, const char *reason);

#endif
