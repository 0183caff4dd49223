/* How prompts are cut into chunks.
 *
 * A step has a budget of prompt tokens, and never more than the rows that decoding leaves. Prompts
 * take from it in the order of admission, each as much as it needs: the first gets to its first
 * token soonest, and what it leaves over goes to the next, so several are under way in one step.
 * Of a budget that the first prompt alone would spend, a quarter is kept for prompts that end with
 * it: a short one does not wait behind the many chunks of a long one. Decode rows are never held
 * back for prompts.
 */
#ifndef ESPALIER_PREFILL_H
#define ESPALIER_PREFILL_H

#include "request.h"

struct prefill_budget {
    uint32_t tok_left; /* of the step */
    uint32_t tok_kept; /* of those, for prompts that end with them */
};

/* first_tok: what the prompt admitted first lacks. is_alone: no other prompt is under way. */
struct prefill_budget prefill_begin(uint32_t tok_budget, uint32_t first_tok, bool is_alone);

/* The rows of the request's next chunk, taken from the budget; 0 where nothing is left for it.
 * tok_max: what its pages hold. */
uint32_t prefill_cut(struct prefill_budget *budget, const struct request *request,
                     uint32_t tok_max);

#endif
