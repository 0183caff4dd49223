/* How long replies get, learned from those that have finished.
 *
 * A reply may be as long as its max_tokens, and most end long before. Reserving all of it leaves
 * the pool idle; reserving none of it runs short. The estimate is the mean of what was seen plus
 * four mean deviations (the rule of TCP's retransmission timer; Jacobson, "Congestion avoidance and
 * control", 1988), all that was asked for until enough was seen, and more after every shortage.
 */
#ifndef ESPALIER_OUTPUT_ESTIMATE_H
#define ESPALIER_OUTPUT_ESTIMATE_H

#include <stdint.h>

struct output_estimate {
    uint32_t mean_x8, deviation_x4; /* in eighths and quarters of a token */
    uint32_t seen;                  /* replies, up to what is enough */
    uint32_t margin;                /* tokens added after shortages; fades with every finish */
};

/* A reply has ended by itself or at its limit. */
void output_estimate_take(struct output_estimate *estimate, uint32_t tok_count);

/* The pool ran short: the estimate was too low. */
void output_estimate_raise(struct output_estimate *estimate);

/* What to expect of a reply of at most tok_limit tokens that has tok_count already. Never less than
 * tok_count, never more than tok_limit. */
uint32_t output_estimate_of(const struct output_estimate *estimate, uint32_t tok_count,
                            uint32_t tok_limit);

#endif
