#include "cpus.h"

#include <sched.h>
#include <stdio.h>

/* About 30 to 90 microseconds of pauses: longer than a wake-up of a peer that runs, shorter than
 * what a lost time slice costs. */
#define SPIN_BUDGET 2000u

#define CPU_QUOTA_PATH "/sys/fs/cgroup/cpu.max"

static uint32_t cpus_of_quota(void);

uint32_t cpus_usable(void) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    uint32_t count = 1;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) count = (uint32_t)CPU_COUNT(&allowed);
    uint32_t quota = cpus_of_quota();
    if (quota < count) count = quota;
    return count > 0 ? count : 1;
}

uint32_t cpus_spin_budget(uint32_t threads) {
    return threads > cpus_usable() ? 0 : SPIN_BUDGET;
}

/* Whole CPUs of the quota, rounded up; UINT32_MAX where there is none ("max"). */
static uint32_t cpus_of_quota(void) {
    FILE *file = fopen(CPU_QUOTA_PATH, "re");
    if (!file) return UINT32_MAX;
    unsigned long quota_us = 0, period_us = 0;
    int fields = fscanf(file, "%lu %lu", &quota_us, &period_us);
    fclose(file);
    if (fields != 2 || quota_us == 0 || period_us == 0) return UINT32_MAX;
    unsigned long cpus = (quota_us - 1) / period_us + 1;
    return cpus < UINT32_MAX ? (uint32_t)cpus : UINT32_MAX;
}
