/* How often durations lay in which range, for people who draw them.
 *
 *     bounds     1 us, 2 us, 5 us, 10 us, ... 500 s, and beyond
 *
 * One ladder for everything from a collective to a whole request, so that counts of different
 * processes may be added. A value: copied, added, cleared; no memory. One owner.
 */
#ifndef ESPALIER_BASE_HISTOGRAM_H
#define ESPALIER_BASE_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BOUNDS 27u /* three a decade, nine decades */

struct histogram {
    uint64_t count[HISTOGRAM_BOUNDS + 1]; /* by the first bound that is not below; the last: none */
    uint64_t sum_ns;
};

/* The bound of bucket idx below HISTOGRAM_BOUNDS; it belongs to the bucket. */
uint64_t histogram_bound_ns(uint32_t idx);

void histogram_take(struct histogram *histogram, uint64_t ns);
void histogram_add(struct histogram *histogram, const struct histogram *other);
uint64_t histogram_count(const struct histogram *histogram);

#endif
