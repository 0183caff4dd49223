/* Products that warpgroups carry out in the background (wgmma), and what they see of shared memory:
 * what its writers have fenced, and nothing else. When a product reads and adds is its caller's
 * choice, warp by warp, between its issue and the wait for it; a kernel must not depend on it, nor
 * on warps of a group that wait for each other.
 *
 * Functions that may fail return NULL, or what the kernel did wrong. */
#ifndef ESPALIER_SIMT_ASYNC_H
#define ESPALIER_SIMT_ASYNC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "simt.h"

#define SIMT_ASYNC_LANES 128u /* of a warpgroup */

struct simt_async; /* of a block */

struct simt_async *simt_async_create(void);
void simt_async_begin(struct simt_async *async, uint32_t threads, const unsigned char *shared,
                      size_t shared_bytes);

/* The thread is going to write there, or has. */
void simt_async_spoil(struct simt_async *async, const void *at, uint32_t bytes);
void simt_async_wrote(struct simt_async *async, uint32_t thread, const void *at, uint32_t bytes);
void simt_async_publish(struct simt_async *async, uint32_t thread); /* fence.proxy.async */

/* wgmma.fence: its sums are as they are now. */
void simt_async_fence(struct simt_async *async, uint32_t thread, float *sums, uint32_t count);

struct simt_product {
    uint64_t a, b;     /* tiles, as PTX describes them */
    uint32_t count;    /* of a thread's sums: half of the columns */
    bool line_is_step; /* of b: lines are steps of the inner dimension, not columns */
    bool adds;         /* to what the sums were, or they begin at zero */
};

const char *simt_async_issue(struct simt_async *async, uint32_t warp, const struct simt_product *of,
                             float *const sums[SIMT_WARP_LANES]);
void simt_async_commit(struct simt_async *async, uint32_t warp);

/* The warp's oldest product that is under way, if there is one. */
const char *simt_async_run(struct simt_async *async, uint32_t warp);

/* All but the `pending` newest groups, and, when nothing is under way, the sums are handed over. */
const char *simt_async_wait(struct simt_async *async, uint32_t warp, uint32_t pending);

/* The warp ends. */
const char *simt_async_end_warp(const struct simt_async *async, uint32_t warp);

/* So has the last: all warps of a group took part in all of its products. */
const char *simt_async_end(const struct simt_async *async);

#endif
