/* Where kernels are tried: the devices that launches are planned for, and the schedules that must
 * not show in a result. */
#ifndef ESPALIER_SIMT_WORLDS_H
#define ESPALIER_SIMT_WORLDS_H

#include <stdlib.h>
#include <string.h>

#include "kernel.h"
#include "simt.h"

#define SIMT_SM90_SHARED_BYTES  232448u
#define SIMT_SM120_SHARED_BYTES 101376u
#define SIMT_DEVICES            3

static const struct kernel_device simt_devices[SIMT_DEVICES] = {
    {.multiprocessors = 1, .shared_bytes_max = SIMT_SM120_SHARED_BYTES},
    {.multiprocessors = 188, .shared_bytes_max = SIMT_SM120_SHARED_BYTES},
    {.multiprocessors = 132, .shared_bytes_max = SIMT_SM90_SHARED_BYTES, .has_wgmma = true},
};

static const struct {
    const char *name;
    struct simt_schedule schedule;
} simt_schedules[SIMT_ORDER_COUNT] = {{"round-robin", {SIMT_ROUND_ROBIN, 0}},
                                      {"greedy-warp", {SIMT_GREEDY_WARP, 1}},
                                      {"random", {SIMT_RANDOM, 2}}};

/* ESPALIER_SIMT_SCHEDULE: one schedule alone, for mutants.sh. */
static inline bool simt_is_wanted(size_t schedule) {
    const char *only = getenv("ESPALIER_SIMT_SCHEDULE");
    return only == NULL || strcmp(only, simt_schedules[schedule].name) == 0;
}

#endif
