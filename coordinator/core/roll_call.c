#include "roll_call.h"

#include <string.h>

#include "base/check.h"

void roll_call_init(struct roll_call *roll, const struct core_options *options) {
    *roll = (struct roll_call){.options = options};
}

uint32_t roll_call_begin(struct roll_call *roll, int64_t now_ns) {
    roll->is_open = true;
    roll->answered_count = 0;
    memset(roll->answered, 0, sizeof roll->answered);
    roll->asked_ns = roll->since_ns = now_ns;
    return ++roll->number;
}

bool roll_call_take(struct roll_call *roll, uint32_t rank, uint32_t number) {
    if (!roll->is_open || number != roll->number || roll->answered[rank]) return false;
    roll->answered[rank] = true;
    roll->answered_count++;
    if (roll->answered_count == roll->options->tp) roll_call_close(roll);
    return true;
}

void roll_call_close(struct roll_call *roll) {
    roll->is_open = false;
}

void roll_call_hold(struct roll_call *roll, int64_t sent_ns, int64_t now_ns) {
    if (sent_ns <= roll->asked_ns) roll->since_ns = now_ns;
}

int64_t roll_call_due_ns(const struct roll_call *roll) {
    if (!roll->is_open) return INT64_MAX;
    return roll->since_ns + roll->options->step_timeout_ms * EVENT_NS_PER_MS;
}

uint32_t roll_call_late_rank(const struct roll_call *roll) {
    CHECK(roll->is_open);
    uint32_t rank = 0;
    while (roll->answered[rank])
        rank++;
    return rank;
}
