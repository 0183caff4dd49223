/* Who runs in the next step, and with which pages and slots.
 *
 * A step is one ragged batch: the next row of every request that decodes, then chunks of prompts
 * (prefill.h), under the budgets of rows and of prompt tokens. Whoever waits is let in by
 * admission.h. Pages are taken when rows need them, and published to the prefix cache when the
 * step that filled them has its results.
 *
 * Want of room: admission expects and does not reserve, so decoding may meet a full pool. Then the
 * request that loses least is retracted until the rest has room: it gives up its slot and pages,
 * which stay cached while nobody needs them, waits first in line, and resumes from what survived.
 * The oldest running request is never retracted and always gets a page, so every request becomes
 * the oldest, and finishes.
 *
 * With --target-step-ms, chunks beside decoding rows shrink to what the cost model says will keep
 * the step within it, and grow again when it says so.
 *
 * A step may be planned while the one before it runs (--disable-overlap-schedule: not). A row that
 * decodes then says "the token drawn last" in place of a token that is not known yet. A request
 * that ends with that token has one row too many in flight, whose results are dropped (LEAVING).
 * Nobody is retracted, and no table sent anew, while a step names it.
 *
 * A request's decode row may be the root of a tree of guesses (speculation.h). Its rows lie within
 * the pages that the request may need anyway, and in those there is room for after everybody's own
 * row; they take nobody's place. The tokens of the walk are committed one by one, as if each had
 * had a step of its own.
 *
 * A slot given up is named in the release list of the next plan, which may use it again. Pages
 * given up while a step in flight names them wait for its results (LEAVING).
 */
#ifndef ESPALIER_SCHEDULER_H
#define ESPALIER_SCHEDULER_H

#include "admission.h"
#include "cost_model.h"
#include "request.h"
#include "seq_pages.h"
#include "speculation.h"
#include "step_plan.h"

#define SCHEDULER_PLANS 2u /* steps in flight at most */

struct scheduler {
    const struct core_options *options;
    struct request_table *table;
    struct seq_pages pages;
    struct admission admission;
    struct cost_model cost;
    struct speculation speculation;
    uint32_t *seq_owner; /* [max_running_cap]: a request's slot, or REQUEST_NONE */
    uint32_t *release;   /* [max_running_cap]: given up since the last plan */
    uint32_t release_count;
    struct step_plan_buf plans[SCHEDULER_PLANS]; /* that of a step in flight is left alone */
    struct step_plan_buf *plan;                  /* the last one */
};

size_t scheduler_memory(const struct core_options *options);
void scheduler_init(struct scheduler *scheduler, const struct core_options *options,
                    struct request_table *table, struct arena *memory);

/* The request's prompt is known: let it wait for its turn. */
void scheduler_enqueue(struct scheduler *scheduler, struct request *request);

/* Let in those that wait, while there is room. Only while the group serves. */
void scheduler_admit(struct scheduler *scheduler);

/* What to plan: the next step, now, whether another is in flight, and for stop rules. */
struct scheduler_wish {
    uint64_t generation, step;
    int64_t now_ns;
    bool ahead;
    const struct reply_context *context;
};

/* Plan a step; NULL where there is nothing to do, or nothing that can be done ahead: that which
 * depends on nothing but the token drawn last, and takes nobody's room. */
const struct step_plan_buf *scheduler_plan(struct scheduler *scheduler,
                                           const struct scheduler_wish *wish);

/* The request that has a sequence slot. */
struct request *scheduler_owner(struct scheduler *scheduler, uint32_t seq_slot);

/* A step that named the request has its results; so many of its rows were certain. */
void scheduler_land(struct request *request, uint32_t row_count);

/* It has computed row_count more tokens of the request: their KV is committed on every rank. Where
 * that is its prompt, its call's other choices join it. */
void scheduler_advance(struct scheduler *scheduler, struct request *request, uint32_t row_count,
                       uint64_t prefix_hash);

/* What a step took on the slowest rank, of it for drafting; and how long rank 0 had waited for its
 * plan, where that was made when the step before had its results, else below 0. */
struct scheduler_times {
    uint64_t compute_ns, draft_ns;
    int64_t gap_ns;
};
void scheduler_measure(struct scheduler *scheduler, const struct step_plan *plan,
                       const struct scheduler_times *times);

/* What such a step is expected to take; 0: not known yet. */
uint64_t scheduler_expects_ns(const struct scheduler *scheduler, const struct step_plan *plan);

/* How a request ends. */
struct scheduler_ending {
    enum status status;
    enum finish_reason finish;
    const char *text; /* lives as long as the effects */
};

/* End the request, with its call if it is the last of its choices, and give up what it holds: at
 * once, or when its step's results are in. */
void scheduler_end(struct scheduler *scheduler, struct request *request,
                   const struct scheduler_ending *ending, struct effect_buf *effects,
                   int64_t now_ns);

/* End the request and all other choices of its call. */
void scheduler_end_call(struct scheduler *scheduler, struct request *request,
                        const struct scheduler_ending *ending, struct effect_buf *effects,
                        int64_t now_ns);

/* The request has ended, or ends now, and no step names it: pages, slot and memory return. */
void scheduler_retire(struct scheduler *scheduler, struct request *request);

/* The generation is over: workers forget all slots and pages. End all that ran; those that wait
 * stay. */
void scheduler_end_generation(struct scheduler *scheduler, const struct scheduler_ending *ending,
                              struct effect_buf *effects, int64_t now_ns);

/* Pages below which the pool cannot go: what a request that lives may come to need alone. */
uint32_t scheduler_pages_least(const struct scheduler *scheduler);

/* Have page_count pages (seq_pages_resize), at least the least. Running requests are sent back to
 * wait where their pages would not fit, or would lie in more pieces than a plan carries; those
 * whose reply was to be as long as the pool allows get the new length. */
struct scheduler_resized {
    struct seq_pages_resized pages;
    uint32_t retracted;
};
struct scheduler_resized scheduler_resize(struct scheduler *scheduler, uint32_t page_count,
                                          struct page_move *move_out);

/* Pages that running requests may need at most, and places of their pages without a token. */
uint64_t scheduler_pages_promised(const struct scheduler *scheduler);
uint64_t scheduler_tokens_unused(const struct scheduler *scheduler);

/* CHECK that pages are conserved and no page or slot has two owners. */
void scheduler_check(const struct scheduler *scheduler);

#endif
