#include "output_estimate.h"

#define SEEN_ENOUGH  8u
#define TOK_MAX      (1u << 24) /* sums below do not overflow */
#define LEAST_MARGIN 16u

void output_estimate_take(struct output_estimate *estimate, uint32_t tok_count) {
    if (tok_count > TOK_MAX) tok_count = TOK_MAX;
    estimate->margin -= (estimate->margin + 7) / 8;
    if (estimate->seen == 0) {
        estimate->mean_x8 = tok_count * 8;
        estimate->deviation_x4 = tok_count * 2;
        estimate->seen = 1;
        return;
    }
    uint32_t mean = estimate->mean_x8 / 8;
    uint32_t off = tok_count > mean ? tok_count - mean : mean - tok_count;
    estimate->mean_x8 += tok_count - mean; /* modulo 2^32 where it falls */
    estimate->deviation_x4 += off - estimate->deviation_x4 / 4;
    if (estimate->seen < SEEN_ENOUGH) estimate->seen++;
}

void output_estimate_raise(struct output_estimate *estimate) {
    uint32_t more = (estimate->mean_x8 / 8 + estimate->margin) / 2 + LEAST_MARGIN;
    if (estimate->margin < TOK_MAX) estimate->margin += more;
}

uint32_t output_estimate_of(const struct output_estimate *estimate, uint32_t tok_count,
                            uint32_t tok_limit) {
    if (estimate->seen < SEEN_ENOUGH) return tok_limit;
    uint32_t expected = estimate->mean_x8 / 8 + estimate->deviation_x4 + estimate->margin;
    if (expected < tok_count) expected = tok_count;
    return expected < tok_limit ? expected : tok_limit;
}
