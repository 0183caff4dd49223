#include "cpus.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>

/* About 30 to 90 microseconds of pauses: longer than a wake-up of a peer that runs, shorter than
 * what a lost time slice costs. */
#define SPIN_BUDGET 2000u

#define CPU_QUOTA_PATH "/sys/fs/cgroup/cpu.max"

static uint32_t sharers_told; /* 0: not told */

static uint32_t cpus_allowed(void);
static uint32_t cpus_of_quota(void);

uint32_t cpus_share(uint32_t cpus, uint32_t sharers, uint32_t ranks) {
    uint32_t share = cpus / sharers, quota = cpus_of_quota() / ranks;
    if (quota < share) share = quota;
    return share > 0 ? share : 1;
}

void cpus_set_sharers(uint32_t ranks) {
    sharers_told = ranks;
}

uint32_t cpus_spin_budget(uint32_t threads, uint32_t ranks) {
    uint32_t sharers = sharers_told > 0 && sharers_told < ranks ? sharers_told : ranks;
    bool crowded = threads * sharers > cpus_allowed() || threads * ranks > cpus_of_quota();
    return crowded ? 0 : SPIN_BUDGET;
}

static uint32_t cpus_allowed(void) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
    return (uint32_t)CPU_COUNT(&allowed);
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
