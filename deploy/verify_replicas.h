/* What the ranks found when they examined the same pages, and which of them is wrong: latents are
 * replicated, so every rank's hashes are the same. */
#ifndef ESPALIER_VERIFY_REPLICAS_H
#define ESPALIER_VERIFY_REPLICAS_H

#include <stdbool.h>

#include "message.h"

#define VERIFY_NO_RANK UINT32_MAX

struct verify_replicas {
    struct examine_report report[TP_MAX]; /* by rank; their hashes are owned */
    char device[TP_MAX][64];
    uint32_t rank_count; /* ranks that reported: 0 to rank_count - 1, once all have */
};

void verify_replicas_init(struct verify_replicas *replicas);
void verify_replicas_deinit(struct verify_replicas *replicas);

/* A client_examine_fn, user being the replicas. */
bool verify_replicas_take(void *user, const struct examine_report *report);

/* Where the ranks differ. */
struct verify_difference {
    uint32_t hash_idx;   /* the first hash that is not the same everywhere */
    uint32_t hash_count; /* so many are not */
    uint32_t rank;       /* the one that most others speak against; VERIFY_NO_RANK: no majority */
    uint32_t other;      /* the first rank that differs from rank 0 there */
};

/* False: they do not. */
bool verify_replicas_differ(const struct verify_replicas *replicas,
                            struct verify_difference *difference_out);

/* Of ranks without a majority: whose pages are not what the same prefix gave when it was computed
 * again. VERIFY_NO_RANK: that cannot be told either. */
uint32_t verify_replicas_judge(const struct verify_replicas *before,
                               const struct verify_replicas *again, uint32_t hash_idx);

#endif
