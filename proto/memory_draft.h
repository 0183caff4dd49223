/* What a drafter (drafter_spec.h) adds to a rank: its weights, its cache, its activations. The
 * parts of the plan that memory_plan.c does not do itself; not for others. */
#ifndef ESPALIER_MEMORY_DRAFT_H
#define ESPALIER_MEMORY_DRAFT_H

#include "memory_plan.h"

/* All of these: of one rank, and 0 without a drafter. The weights' formats are those of the
 * headers, or BF16 without them. */
uint64_t memory_draft_weight_bytes(const struct memory_request *request);

/* Keys and values of a token in one layer. */
uint64_t memory_draft_record_bytes(const struct memory_request *request);

/* All of it, and of that the workspace of attention, which a device has none of. */
uint64_t memory_draft_scratch_bytes(const struct memory_request *request);
uint64_t memory_draft_workspace_bytes(const struct memory_request *request);

#endif
