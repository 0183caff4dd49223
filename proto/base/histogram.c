#include "base/histogram.h"

#include "base/check.h"

#define FIRST_BOUND_NS UINT64_C(1000)

uint64_t histogram_bound_ns(uint32_t idx) {
    static const uint64_t step[] = {1, 2, 5};
    CHECK(idx < HISTOGRAM_BOUNDS);
    uint64_t bound_ns = FIRST_BOUND_NS * step[idx % 3];
    for (uint32_t decade = 0; decade < idx / 3; decade++)
        bound_ns *= 10;
    return bound_ns;
}

void histogram_take(struct histogram *histogram, uint64_t ns) {
    uint32_t idx = 0;
    while (idx < HISTOGRAM_BOUNDS && histogram_bound_ns(idx) < ns)
        idx++;
    histogram->count[idx]++;
    histogram->sum_ns += ns;
}

void histogram_add(struct histogram *histogram, const struct histogram *other) {
    for (uint32_t idx = 0; idx <= HISTOGRAM_BOUNDS; idx++)
        histogram->count[idx] += other->count[idx];
    histogram->sum_ns += other->sum_ns;
}

uint64_t histogram_count(const struct histogram *histogram) {
    uint64_t count = 0;
    for (uint32_t idx = 0; idx <= HISTOGRAM_BOUNDS; idx++)
        count += histogram->count[idx];
    return count;
}
