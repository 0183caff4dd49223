/* What a look-up in a history of a million tokens costs: processor time of one thread.
 *
 *     bench_suffix
 *
 * The tokens are drawn so that most pairs have been there hundreds of times, as in text; every
 * look-up finds as many occurrences as are looked at and builds the largest tree. */
#include <stdio.h>
#include <time.h>

#include "base/hash.h"
#include "draft_source_suffix.h"

#define HISTORY_TOK (1u << 20)
#define LOOKUPS     2000u

static uint32_t token[HISTORY_TOK];

static double cpu_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void make_text(void) {
    for (uint32_t i = 0; i < HISTORY_TOK; i++) {
        uint64_t dice = hash_mix(i + 1);
        token[i] = (uint32_t)(dice % 100 < 70 ? dice / 100 % 64 : dice / 100 % 5000);
    }
}

int main(void) {
    struct arena memory;
    struct draft_suffix suffix;
    struct draft_calibration calibration;
    struct draft_bounds bounds = {.node_max = DRAFT_NODES_MAX, .depth_max = DRAFT_NODES_MAX};
    arena_init(&memory, draft_suffix_memory(HISTORY_TOK));
    draft_suffix_init(&suffix, HISTORY_TOK, &memory);
    draft_calibration_init(&calibration);
    make_text();
    double begin_us = cpu_us();
    draft_suffix_append(&suffix, 1, token, HISTORY_TOK);
    printf("append  %.1f ns a token\n", (cpu_us() - begin_us) * 1000 / HISTORY_TOK);

    double sum_us = 0, most_us = 0, nodes = 0;
    for (uint32_t i = 0; i < LOOKUPS; i++) {
        const uint32_t *end = token + DRAFT_SUFFIX_MATCH_MAX + i * 7919 % (HISTORY_TOK - 100);
        struct draft_tree tree;
        begin_us = cpu_us();
        draft_suffix_guess(&suffix, DRAFT_SHARED, 1, end - DRAFT_SUFFIX_MATCH_MAX,
                           DRAFT_SUFFIX_MATCH_MAX, &calibration, &bounds, &tree);
        double took_us = cpu_us() - begin_us;
        sum_us += took_us;
        if (took_us > most_us) most_us = took_us;
        nodes += tree.count;
    }
    printf("look-up mean %.1f us, most %.1f us, %.1f guesses\n", sum_us / LOOKUPS, most_us,
           nodes / LOOKUPS);
    arena_deinit(&memory);
    return 0;
}
