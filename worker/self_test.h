/* The rungs that a rank climbs before it is ready: does what it is about to promise work?
 *
 *     attention    the kernel, over synthetic latents at the full length of a context, against
 *                  what a closed form says
 *     pool         every page written and read back, to the last one
 *     collective   sums, a gather and a broadcast of known values, checked by every rank
 *
 * The first two are climbed once an engine is made, the third by each group. A failure is DATA_LOSS
 * with a line that names the rung, and what was found where; the rank is not ready.
 *
 * They use the engine's own memory, of which nothing is in use yet: the scratch of a step, and the
 * pool, which they leave wiped where they wrote words and else with finite numbers; of a device all
 * zeros.
 *
 * Thread: the compute thread; progress may be read by any.
 */
#ifndef ESPALIER_SELF_TEST_H
#define ESPALIER_SELF_TEST_H

#include "model.h"

struct self_test_progress {
    _Atomic uint32_t rung; /* enum self_test */
    _Atomic uint32_t percent;
};

/* Position j holds a code: a sign for each element, hashed from (j, element). A query that is the
 * code of position p weighs p alone, and the sum is the code; one of zeros weighs all positions
 * alike, and the sum is the mean of the codes. So each position is asked for by name or counted,
 * through a page table that runs from the pool's last page backwards, by a tree's rows.
 * context_len: of the longest request; what the pool does not hold is left out. max_rows: of a
 * step. */
enum status self_test_attention(const struct model *model, uint32_t context_len, uint32_t max_rows,
                                struct self_test_progress *progress, struct error *err) MUST_USE;

/* A word every few kilobytes of each page, and each page's last one: all are written before the
 * first is read, so that two pages of one memory are found. name: whose pool, for the error. */
enum status self_test_pool(const struct kv_pool *pool, const char *name,
                           struct self_test_progress *progress, struct error *err) MUST_USE;

/* Statuses of comm.h too. scratch: of a step of max_rows. */
enum status self_test_collective(const struct model *model, uint32_t max_rows, struct comm *comm,
                                 struct error *err) MUST_USE;

#endif
