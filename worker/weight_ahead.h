/* Asks the kernel for what coming tasks will read while the present ones are packed, so that the
 * disk never waits for us. Where the files are in the page cache nothing is asked: a look at the
 * first byte of a task tells, and it costs one call.
 */
#ifndef ESPALIER_WEIGHT_AHEAD_H
#define ESPALIER_WEIGHT_AHEAD_H

#include <stdatomic.h>

#include "weight_task.h"

struct weight_ahead {
    const struct weight_task *task; /* [task_count], in the order of the files */
    uint32_t task_count;
    const int *fd;         /* by file */
    _Atomic uint32_t next; /* task nobody has asked for */
    atomic_bool cold;      /* something was not in the page cache: it is asked for from then on */
};

/* Before task `idx` is read; any thread. */
void weight_ahead_of(struct weight_ahead *ahead, uint32_t idx);

#endif
