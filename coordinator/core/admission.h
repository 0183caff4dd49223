/* Who of those that wait is let in, and when.
 *
 * Order: the queue's (wait_queue), by the policy's key when a request is put in; retracted requests
 * come before all others, oldest first. Nobody is let past the first that lacks room, with one
 * exception, below.
 *
 * Room: a request is admitted when the pool has room for what all running requests and itself are
 * expected to need (output_estimate), not for what they may need at most. That is over-committed on
 * purpose and corrected by measurement: the estimate starts at the most, and a shortage raises it.
 * While retracted requests wait, a page for each running one is kept besides, so that what was
 * retracted is not let in only to be retracted again. With nothing running, the first is always
 * let in: intake has seen to it that any request fits the pool alone.
 *
 * A call for several choices is let in whole: it takes a sequence slot and is expected to need
 * pages for each of them from the beginning, so that they can join when the prompt is computed.
 *
 * Sharing: a prompt that begins like one being computed waits until the pages they share are
 * published, and then begins with them, instead of computing them a second time. It waits only
 * while the other runs and every step brings it nearer; those behind it go past.
 */
#ifndef ESPALIER_ADMISSION_H
#define ESPALIER_ADMISSION_H

#include "output_estimate.h"
#include "request.h"
#include "seq_pages.h"

struct admission {
    const struct core_options *options;
    struct request_table *table;
    struct seq_pages *pages;
    struct output_estimate estimate;
    uint32_t *token; /* [context_len]: one tape, read */
    uint32_t refresh_at;
    /* Of running requests, counted at the beginning of a round: */
    uint64_t pages_wanted; /* expected, beyond those they have */
    uint64_t prefill_tok;  /* admitted and not computed */
};

size_t admission_memory(const struct core_options *options);
void admission_init(struct admission *admission, const struct core_options *options,
                    struct request_table *table, struct seq_pages *pages, struct arena *memory);

/* Let a request, whose prompt is known, or which was retracted, wait for its turn. */
void admission_enqueue(struct admission *admission, struct request *request);

/* Count what runs: before the calls of admission_next of one event. O(running). */
void admission_begin(struct admission *admission);

/* The next request to run, in PREFILL and with its pages open in this free slot; NULL: nobody.
 * held (of ADMISSION_HELD_MAX) remembers those that wait for a prefix being computed. */
#define ADMISSION_HELD_MAX 16u
struct admission_held {
    uint32_t slot[ADMISSION_HELD_MAX];
    struct wait_order order[ADMISSION_HELD_MAX];
    uint32_t count;
};
struct request *admission_next(struct admission *admission, uint32_t seq_slot,
                               struct admission_held *held);

/* A further choice of the first's call, in PREFILL behind what the first has computed of the
 * prompt, with its pages open in this free slot. */
struct request *admission_join(struct admission *admission, struct request *first,
                               uint32_t seq_slot);

/* The round is over: those that were held wait where they were. */
void admission_finish(struct admission *admission, const struct admission_held *held);

/* Pages a request may need at most, and the choices that are to join it. */
uint32_t admission_pages_most(const struct admission *admission, const struct request *request);

#endif
