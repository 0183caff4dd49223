/* The second half of loading: a list of tasks, worked off by several threads.
 *
 *   checkpoint file ──pread──▶ stage (one a thread) ──check, pack──▶ the weights' memory, or
 *         ▲                                                          pinned memory (one a thread)
 *         │                                                          ──copy──▶ the device's
 *         └── asked for ahead of time where it is not in the page cache (weight_ahead)
 *
 * Tasks write disjoint bytes; which thread runs which changes nothing. The planner is weights.c.
 */
#ifndef ESPALIER_WEIGHT_READER_H
#define ESPALIER_WEIGHT_READER_H

#include "weight_task.h"
#include "weights.h"

/* Run all tasks, in the order of the files they read (the list is sorted). The first failure stops
 * every thread and is the result. CANCELLED where progress->cancel was set. */
enum status weight_reader_run(struct device *device, const struct safetensors *checkpoint,
                              struct weight_task *tasks, uint32_t task_count, uint32_t threads,
                              struct weights_progress *progress, struct error *err) MUST_USE;

#endif
