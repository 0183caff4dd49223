/* A look at what this rank's pages hold, and at how fast they are read, while nothing computes.
 * Nothing is changed. Thread: the compute thread. */
#ifndef ESPALIER_INSPECTION_H
#define ESPALIER_INSPECTION_H

#include "model.h"

struct kernel_team;

/* A hash of each page over all layers, of several together where there are more than a report
 * holds. *hash_out is the caller's to free, and report_out->hash is it. INVALID_ARGUMENT: a page
 * the pool has not. */
enum status inspection_hash(const struct kv_pool *pool, struct kernel_team *team,
                            const struct control_examine *order, struct examine_report *report_out,
                            uint64_t **hash_out, struct error *err) MUST_USE;

/* Time the attention of order->rows rows of one tree over the pages, and a plain read of the same
 * bytes by the same threads, on a device by a copy within it: each layer by layer, the fastest of
 * several. Leaves the times at zero where the pages hold no more than the rows. Takes no more than
 * a second, or one layer. */
enum status inspection_time(const struct model *model, uint32_t max_rows,
                            const struct control_examine *order, struct examine_report *report_out,
                            struct error *err) MUST_USE;

/* And a sum over the ranks as wide as a decode row's. All ranks must call. */
enum status inspection_time_sum(const struct model *model, struct comm *comm,
                                struct examine_report *report_out, struct error *err) MUST_USE;

#endif
