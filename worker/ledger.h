/* A rank's memory: what was planned (memory_plan), and what is there by the kernel's accounting.
 *
 *     ledger_init      before anything is loaded: what the rank has
 *     ledger_plan      before the engine is made: how many pages its memory holds
 *     ledger_measure   once it is there, again in its first group, and after a resize
 *     ledger_log       predicted against measured, a line each; a line off by more than 3 % is a
 *                      warning that names it; what no line explains is told as such
 *     ledger_size      what a fraction of the memory would hold instead
 *     ledger_replan    for another size of the pool
 *
 * A GPU's memory is what it says itself. With --device-memory a rank has so much, whatever the
 * machine has: on the CPU it stands for a card. Thread: the compute thread.
 */
#ifndef ESPALIER_LEDGER_H
#define ESPALIER_LEDGER_H

#include "checkpoint.h"
#include "engine.h"
#include "memory_plan.h"

struct ledger_rank {
    const struct checkpoint *checkpoint;      /* borrowed for the ledger's life */
    const struct checkpoint_drafter *drafter; /* likewise; NULL: none */
    uint32_t tp, threads;
    uint64_t device_bytes;    /* that the rank has; 0: as much as the machine */
    struct device *device;    /* borrowed likewise; NULL: the host */
    uint64_t workspace_bytes; /* that its ops need, a drafter's too; 0 on the host */
};

struct ledger {
    struct ledger_rank rank;
    uint64_t before_bytes;         /* the rank's memory before the load */
    struct memory_request request; /* points at the checkpoint */
    struct memory_plan plan;
    uint32_t pages_had; /* the most so far: what was had can be had again */
    uint64_t measured[MEMORY_LINE_COUNT];
    uint64_t
        process_bytes; /* resident, of the whole process; on a device: gone since it was opened */
};

/* Before weights are loaded: the fraction is of what is free then. */
void ledger_init(struct ledger *ledger, const struct ledger_rank *rank);

/* Plan for what `welcome` asks. RESOURCE_EXHAUSTED where the memory holds no page, with what it
 * would have to be. */
enum status ledger_plan(struct ledger *ledger, const struct control_welcome *welcome,
                        struct error *err) MUST_USE;

uint32_t ledger_page_count(const struct ledger *ledger);

/* The fraction that one request of the context needs, in units of FRACTION_ONE; 0 where the pool
 * holds one, or no fraction would. */
uint32_t ledger_fraction_needed(const struct ledger *ledger);

/* The pages that the fraction, in units of FRACTION_ONE, would hold (0: not one), and the fraction
 * that a request of the context needs, as above. Changes nothing. */
void ledger_size(const struct ledger *ledger, uint32_t mem_fraction, uint32_t *page_count_out,
                 uint32_t *fraction_needed_out);

/* Plan for another size of the pool. RESOURCE_EXHAUSTED, and the plan that was, where a larger one
 * does not fit what the rank has: on the CPU nothing else would stop it. */
enum status ledger_replan(struct ledger *ledger, uint32_t page_count, struct error *err) MUST_USE;

/* drafter: NULL without one. */
void ledger_measure(struct ledger *ledger, const struct weights *weights,
                    const struct drafter_weights *drafter, const struct engine *engine);

/* Left of the rank's memory by what was measured, or of the machine's. */
uint64_t ledger_free_bytes(const struct ledger *ledger);

void ledger_log(const struct ledger *ledger);

/* After a resize: what may have changed, measured and told anew. */
void ledger_measure_engine(struct ledger *ledger, const struct engine *engine);
void ledger_log_pool(const struct ledger *ledger);

#endif
