#include "verify_replicas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

void verify_replicas_init(struct verify_replicas *replicas) {
    *replicas = (struct verify_replicas){.rank_count = 0};
}

void verify_replicas_deinit(struct verify_replicas *replicas) {
    for (uint32_t rank = 0; rank < TP_MAX; rank++)
        free((void *)(uintptr_t)replicas->report[rank].hash);
    verify_replicas_init(replicas);
}

bool verify_replicas_take(void *user, const struct examine_report *report) {
    struct verify_replicas *replicas = user;
    struct examine_report *mine = &replicas->report[report->rank];
    uint64_t *hash = calloc(report->hash_count + 1, sizeof *hash);
    CHECK(hash);
    if (report->hash_count > 0) memcpy(hash, report->hash, report->hash_count * sizeof *hash);
    free((void *)(uintptr_t)mine->hash);
    snprintf(replicas->device[report->rank], sizeof replicas->device[0], "%s", report->device);
    *mine = *report;
    mine->hash = hash;
    mine->device = replicas->device[report->rank];
    replicas->rank_count++;
    return true;
}

/* A rank of fewer pages has another hash for those it lacks. */
static uint64_t hash_of(const struct verify_replicas *replicas, uint32_t rank, uint32_t idx) {
    const struct examine_report *report = &replicas->report[rank];
    return idx < report->hash_count ? report->hash[idx] : ~replicas->report[0].hash[idx];
}

static uint32_t count_like(const struct verify_replicas *replicas, uint32_t rank, uint32_t idx) {
    uint32_t count = 0;
    for (uint32_t other = 0; other < replicas->rank_count; other++)
        count += hash_of(replicas, other, idx) == hash_of(replicas, rank, idx);
    return count;
}

/* The first rank that is not among more than half of all that agree; VERIFY_NO_RANK: no such half.
 */
static uint32_t find_outvoted(const struct verify_replicas *replicas, uint32_t idx) {
    uint32_t outvoted = VERIFY_NO_RANK;
    bool majority = false;
    for (uint32_t rank = 0; rank < replicas->rank_count; rank++) {
        if (2 * count_like(replicas, rank, idx) > replicas->rank_count)
            majority = true;
        else if (outvoted == VERIFY_NO_RANK)
            outvoted = rank;
    }
    return majority ? outvoted : VERIFY_NO_RANK;
}

bool verify_replicas_differ(const struct verify_replicas *replicas,
                            struct verify_difference *difference_out) {
    *difference_out = (struct verify_difference){.rank = VERIFY_NO_RANK};
    for (uint32_t idx = 0; idx < replicas->report[0].hash_count; idx++) {
        uint32_t other = 0;
        while (other < replicas->rank_count &&
               hash_of(replicas, other, idx) == hash_of(replicas, 0, idx))
            other++;
        if (other == replicas->rank_count || difference_out->hash_count++ > 0) continue;
        difference_out->hash_idx = idx;
        difference_out->other = other;
        difference_out->rank = find_outvoted(replicas, idx);
    }
    return difference_out->hash_count > 0;
}

uint32_t verify_replicas_judge(const struct verify_replicas *before,
                               const struct verify_replicas *again, uint32_t hash_idx) {
    struct verify_difference difference;
    uint32_t wrong = VERIFY_NO_RANK, wrong_count = 0;
    if (hash_idx >= again->report[0].hash_count || verify_replicas_differ(again, &difference))
        return VERIFY_NO_RANK;
    for (uint32_t rank = 0; rank < before->rank_count; rank++) {
        if (hash_of(before, rank, hash_idx) == again->report[0].hash[hash_idx]) continue;
        wrong = rank;
        wrong_count++;
    }
    return wrong_count < before->rank_count ? wrong : VERIFY_NO_RANK;
}
