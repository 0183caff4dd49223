/* How far a group is with its weights, and with the tests before it is ready: one bar for all
 * ranks, on standard error.
 *
 *     loading [##########----------]  52 %  10.4/19.9 MB  41.2 MB/s  0:01 left  0/2 ranks
 *     self-test: pool, 43 % on rank 1; 1/2 ranks loaded
 *
 * On a terminal the line is redrawn; elsewhere a line is printed every few seconds. */
#ifndef ESPALIER_LOAD_BAR_H
#define ESPALIER_LOAD_BAR_H

#include <stdbool.h>
#include <stdint.h>

#include "message.h"

struct load_bar {
    bool terminal;
    bool drawn; /* there is a line to wipe */
    int64_t begin_ns;
    int64_t printed_ns;
};

void load_bar_init(struct load_bar *bar);
void load_bar_show(struct load_bar *bar, const struct snapshot *snapshot);

/* Take the bar away. */
void load_bar_finish(struct load_bar *bar);

/* The text of the bar, without control characters; columns bounds it. */
void load_bar_format(const struct snapshot *snapshot, uint64_t elapsed_ns, unsigned columns,
                     char *out, uint32_t out_bytes);

#endif
