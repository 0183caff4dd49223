/* Does it pay to ask the workers' drafter?
 *
 *   rest ──▶ trial ──▶ it pays: another one ─┐
 *    ▲         ▲───────────────────────────────┘
 *    └─────────┴──▶ it does not: rest, longer each time
 *
 * A draft costs a step time whether its guesses are verified or not, and a plan that waits for one
 * is not made ahead. That it is worth that depends on the machine, the load and the text; so it is
 * asked for in a few steps, and these are judged together: expected tokens by time, with the
 * drafter's guesses, the draft's own time included, against what the step would have been without
 * them. All requests have one trial, for they share the steps. A value; one owner.
 */
#ifndef ESPALIER_DRAFT_TRIAL_H
#define ESPALIER_DRAFT_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

/* A step that was to be planned, with and without what was drafted. */
struct draft_trial_step {
    double tokens, ns;
    double plain_tokens, plain_ns; /* no time is known where it is 0 */
};

struct draft_trial {
    struct draft_trial_step sum; /* of the trial so far */
    uint32_t steps;              /* in it */
    uint32_t rest, rest_next;    /* steps */
};

void draft_trial_init(struct draft_trial *trial);

/* Rows that draw are to be drafted behind. */
bool draft_trial_is_on(const struct draft_trial *trial);

/* A step with rows that draw was planned. */
void draft_trial_pass(struct draft_trial *trial);

/* Drafts came, and this is what they would bring. */
void draft_trial_take(struct draft_trial *trial, const struct draft_trial_step *step);

#endif
