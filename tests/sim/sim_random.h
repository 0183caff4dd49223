/* The simulator's only source of chance: a counter and a mix, one stream a seed. */
#ifndef ESPALIER_SIM_RANDOM_H
#define ESPALIER_SIM_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

/* A mix of the simulator's own, so that a mistake in the project's hashes does not cancel out. */
static inline uint64_t sim_random_mix(uint64_t x) {
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 29;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ (x >> 32);
}

struct sim_random {
    uint64_t state;
};

static inline uint64_t sim_random_next(struct sim_random *random) {
    random->state += UINT64_C(0x9e3779b97f4a7c15);
    return sim_random_mix(random->state);
}

/* Of [0, bound); bound > 0. */
static inline uint32_t sim_random_below(struct sim_random *random, uint32_t bound) {
    return (uint32_t)(sim_random_next(random) % bound);
}

/* Of [least, most]. */
static inline uint32_t sim_random_between(struct sim_random *random, uint32_t least,
                                          uint32_t most) {
    return least + sim_random_below(random, most - least + 1);
}

static inline bool sim_random_percent(struct sim_random *random, uint32_t percent) {
    return sim_random_below(random, 100) < percent;
}

#endif
