/* Operators who resize the pool and the batch of a simulated cluster, and whether they are told the
 * truth: one end a call, a size that holds when it says OK, the old one when it does not. */
#ifndef ESPALIER_SIM_RESIZE_H
#define ESPALIER_SIM_RESIZE_H

#include "event.h"

#define SIM_RESIZES     24u
#define SIM_RESIZE_SLOT 0x00ff0000u /* of their calls: no client's */

struct sim_cluster;

struct sim_resize {
    struct resize_request request;
    uint32_t pages_before;
    bool ended, cancelled, done;
};

struct sim_resizes {
    struct sim_resize of[SIM_RESIZES];
    uint32_t count;
    bool may_fail;                      /* on some rank; then no longer, so that it can be undone */
    uint32_t sized_number, sized_least; /* of the last question: what the smallest rank said */
};

/* One resize, of a size that the seed draws; sometimes its caller does not wait for the end. */
void sim_resize_ask(struct sim_cluster *cluster);

/* What a rank says that a fraction of its memory holds. */
uint32_t sim_resize_hold(struct sim_cluster *cluster, uint32_t rank,
                         const struct control_size *question);

/* Effects. False: the call is none of ours. */
bool sim_resize_progress(struct sim_cluster *cluster, struct pool_id call,
                         const struct resize_progress *progress);
bool sim_resize_end(struct sim_cluster *cluster, const struct effect *effect);

bool sim_resize_all_ended(const struct sim_cluster *cluster);
void sim_resize_expect_ended(const struct sim_cluster *cluster);

#endif
