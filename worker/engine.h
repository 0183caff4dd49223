/* The compute half of a worker: everything between a plan and its result, in one object.
 *
 *   plan ─▶ engine_step ─▶ [ check state ─ copies ─ forward ─ draw ─ commit ─ draft ] ─▶ result
 *
 * It owns the KV pool, the scratch, the page table and committed state of every sequence slot; it
 * borrows the weights. It never schedules and never picks a slot: the plan says everything.
 *
 * A step first checks, before any collective, that the plan continues what this rank holds: the
 * generation, the step number (the last one + 1), and for each sequence the committed length and
 * prefix hash. A difference is FAILED_PRECONDITION with a line that names sequence and field: the
 * ranks have parted ways, and going on would end in a deadlock or in wrong tokens.
 *
 * Thread: one (the compute thread) for all calls but engine_abort, engine_progress
 * and engine_numbers; who ends that thread may destroy the engine.
 */
#ifndef ESPALIER_ENGINE_H
#define ESPALIER_ENGINE_H

#include "comm.h"
#include "device.h"
#include "drafter_weights.h"
#include "kv_pool.h"
#include "message.h"
#include "scratch.h"
#include "self_test.h"
#include "weights.h"

struct engine;
struct drafter;

struct engine_options {
    uint32_t threads;       /* of compute, the caller's included */
    uint32_t max_rows;      /* of a step */
    uint32_t max_sequences; /* slots */
    uint32_t page_tok;
    uint32_t page_count;
    uint32_t page_cap; /* what the pool may be resized to */
    uint32_t context_len;
    enum kv_dtype kv_dtype;
    enum activation_dtype activation_dtype;
    enum prefill_form prefill_form;
    const struct drafter_weights *drafter; /* borrowed; NULL: none */
    uint32_t draft_window;                 /* tokens of context that the drafter looks at; 0: all */
    struct device *device; /* that computes, with the weights in its memory; NULL: the CPU */
    bool shadow_hash;      /* debug: keep the prefix hash of every KV slot and check it on read */
};

/* The steps that such an engine runs. */
struct device_bounds engine_bounds(const struct engine_options *options);

/* RESOURCE_EXHAUSTED where memory cannot be had, with the bytes asked for. UNIMPLEMENTED where the
 * device does not take the model or the options. */
enum status engine_create(const struct weights *weights, const struct engine_options *options,
                          struct engine **engine_out, struct error *err) MUST_USE;
void engine_destroy(struct engine **engine);

/* Join a group; sequences, pages and step numbers start anew, weights stay. comm becomes the
 * engine's; NULL leaves the group and closes it. */
void engine_set_group(struct engine *engine, uint64_t generation, struct comm *comm);

/* Run one plan. result_out is borrowed until the next call; its payload is filled on every rank
 * (equal on all), and the caller decides who sends it. On error the group is unusable. */
enum status engine_step(struct engine *engine, const struct step_plan *plan,
                        struct step_result *result_out, struct error *err) MUST_USE;

/* Move whole pages, in order, then have page_count pages; those below both sizes keep their
 * contents otherwise. RESOURCE_EXHAUSTED, and the old size, where memory cannot be had;
 * INVALID_ARGUMENT, and nothing done, where a move or the size is out of bounds. */
enum status engine_resize(struct engine *engine, uint32_t page_count, const struct page_move *move,
                          uint32_t move_count, struct error *err) MUST_USE;

/* Climb the rungs of self_test.h that need no group; nothing may be cached yet. DATA_LOSS names the
 * rung. */
enum status engine_self_test(struct engine *engine, struct self_test_progress *progress,
                             struct error *err) MUST_USE;

/* And the one with the group just joined. */
enum status engine_test_group(struct engine *engine, struct self_test_progress *progress,
                              struct error *err) MUST_USE;

/* Capture the steps of few rows, once the group has been joined, so that they are replayed from
 * then on: nothing on the CPU. All ranks do it, and without it every step is launched op by op. */
enum status engine_capture_steps(struct engine *engine, struct error *err) MUST_USE;

/* Look at what pages hold, between two steps (inspection.h). *report_out points into memory that
 * the caller frees: *hash_out, never NULL unless it failed. */
enum status engine_examine(struct engine *engine, const struct control_examine *order,
                           struct examine_report *report_out, uint64_t **hash_out,
                           struct error *err) MUST_USE;

/* Tests and tools: also leave the logits of every row of the plan, [row_count, vocab], in the
 * caller's buffer; NULL to stop. Steps are not replayed meanwhile, so all ranks do it. */
void engine_capture_logits(struct engine *engine, float *logits);

/* Likewise the residual stream after every layer, [layers, row_count, D]. */
void engine_capture_residual(struct engine *engine, float *residual);

void engine_abort(struct engine *engine); /* any thread: break collectives */

struct engine_progress {
    uint64_t generation, step; /* last finished */
    uint64_t collective_seq;
    uint64_t collective_ns; /* in all-reduces, of all generations */
};
struct engine_progress engine_progress(const struct engine *engine); /* any thread */

/* What operators draw. */
struct engine_numbers {
    struct histogram step_times, all_reduce_times;
    uint64_t kv_bytes, scratch_bytes;
};
struct engine_numbers engine_numbers(const struct engine *engine); /* any thread */

/* Where an engine's memory is. Borrowed; the group's is gone with the group. */
struct engine_memory {
    const struct kv_pool *kv;
    const struct scratch *scratch;
    const struct drafter *drafter;  /* NULL: none */
    const void *page_tables, *comm; /* comm: NULL where there is no group, or one of one */
    size_t page_tables_bytes, comm_bytes;
    uint64_t graph_bytes; /* of the device; nobody says where */
};
struct engine_memory engine_memory(const struct engine *engine);

uint64_t engine_bytes(const struct engine *engine); /* KV pool and scratch */

#endif
