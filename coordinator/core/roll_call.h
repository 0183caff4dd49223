/* Who has answered what all ranks were asked: an order, or a question.
 *
 *     closed ── begin: a new number ──▶ open ── the last rank has answered, or close ──▶ closed
 *
 * Ranks do in their turn what they are asked, behind the steps that left before: while one of those
 * is in flight, their time does not count. Its progress is the roster's business.
 */
#ifndef ESPALIER_ROLL_CALL_H
#define ESPALIER_ROLL_CALL_H

#include "core.h"

struct roll_call {
    const struct core_options *options;
    bool is_open;
    uint32_t number; /* of the last asking; none was before the first */
    bool answered[TP_MAX];
    uint32_t answered_count;
    int64_t asked_ns, since_ns; /* the ranks' time counts since */
};

void roll_call_init(struct roll_call *roll, const struct core_options *options);

/* Ask anew. Returns the number that answers must have. */
uint32_t roll_call_begin(struct roll_call *roll, int64_t now_ns);

/* A rank has answered; the last one closes. False: it owes no answer with this number. */
bool roll_call_take(struct roll_call *roll, uint32_t rank, uint32_t number);

/* Nothing is owed any more. */
void roll_call_close(struct roll_call *roll);

/* A step is in flight that left at sent_ns. */
void roll_call_hold(struct roll_call *roll, int64_t sent_ns, int64_t now_ns);

/* When answers are overdue; INT64_MAX: none is owed. */
int64_t roll_call_due_ns(const struct roll_call *roll);

/* The first rank that owes one; it must be open. */
uint32_t roll_call_late_rank(const struct roll_call *roll);

#endif
