/* A block-diffusion drafter (DFlash, arXiv 2602.06036): guesses the tokens behind the last one
 * drawn, all in one pass, from what the target thought of the tokens before.
 *
 *     the target's forward pass ── taps ──▶ [T, taps D]
 *     the step commits: which rows are final, and the roots             ─▶ input       drafter_put
 *     rows that became final: norm(fc(taps)) ─▶ keys, values of every layer ─▶ pages   drafter_keep
 *     root, mask, mask ... ─▶ layers, over those pages and itself ─▶ norm, head
 *                          ─▶ at each mask the likeliest tokens, and log-sum-exp      drafter_guess
 *
 * Its cache has the pages of the target's, by the same numbers: shared, copied and given away
 * together. A token's context is written in the step that makes the token final, at the place where
 * the sequence keeps it, so it is there whenever the target's is; what a rejected row thought is
 * never written.
 *
 * Sharded as the target: heads and MLP over ranks, sums by the eight segments and the tree of the
 * exactness contract, so on the host guesses are the same bits whatever the ranks and threads; on
 * a device they are the same on every rank. Of the vocabulary a rank sees its part; the likeliest
 * tokens of the parts are merged, never gathered.
 *
 * Guesses never change what is drawn: a drafter that is wrong, or of another model, costs time.
 *
 * Owner: the engine. One thread.
 */
#ifndef ESPALIER_DRAFTER_H
#define ESPALIER_DRAFTER_H

#include "drafter_weights.h"
#include "kv_pool.h"
#include "model.h"

struct drafter;

/* Rows of one pass: as many blocks as fit, or tokens whose context is written. */
#define DRAFTER_PASS_ROWS 256u

struct drafter_options {
    struct device *device; /* that computes, with the weights in its memory; NULL: the host */
    uint32_t threads;
    uint32_t max_rows; /* of a step */
    uint32_t max_sequences;
    uint32_t page_tok;
    uint32_t page_count;
    uint32_t page_cap; /* what drafter_resize may raise it to */
    enum kernel_dtype kv_dtype;
    uint32_t vocab_count; /* of the target, this rank's; at least DRAFT_TOP_MAX */
    uint32_t window;      /* tokens of context it looks at; 0: all */
    bool shadow_hash;     /* debug: as engine_options */
};

/* weights are borrowed. RESOURCE_EXHAUSTED with the bytes asked for. */
enum status drafter_create(const struct drafter_weights *weights,
                           const struct drafter_options *options, struct drafter **drafter_out,
                           struct error *err) MUST_USE;
void drafter_destroy(struct drafter **drafter);

uint32_t drafter_len(const struct drafter *drafter); /* positions it guesses */
/* Where its memory is, borrowed; the workspace is a part of the scratch, and none on a device,
 * where ops use the model's. */
struct drafter_memory {
    const struct kv_pool *kv;
    const void *scratch, *workspace;
    size_t scratch_bytes, workspace_bytes;
};
struct drafter_memory drafter_memory(const struct drafter *drafter);

uint64_t drafter_bytes(const struct drafter *drafter); /* cache and scratch */

/* Bytes that it puts into the input of one step. */
size_t drafter_input_bytes(const struct drafter_spec *spec, const struct device_bounds *bounds);

/* Behind every layer of the target: x [rows, D] is the residual stream. */
enum status drafter_tap(struct drafter *drafter, uint32_t layer, const float *x, uint32_t rows,
                        struct error *err) MUST_USE;

/* The same copies, as the host and as ops find them. */
void drafter_copy_pages(struct drafter *drafter, const struct model *model,
                        const struct kv_page_copy *copies, const struct kv_page_copy *copies_of_ops,
                        uint32_t count);

/* Its cache has so many pages now, at most page_cap; errors: those of kv_pool_resize. */
enum status drafter_resize(struct drafter *drafter, uint32_t page_count,
                           struct error *err) MUST_USE;

/* What the calls below read of a committed step, put into its input (device.h): to be sent before
 * them. sequences: the step's. Fails where shadow hashes show a foreign cache. */
enum status drafter_put(struct drafter *drafter, const struct step_plan *plan,
                        const struct step *step, const struct step_final *final,
                        const struct model_sequences *sequences, struct error *err) MUST_USE;

/* Keys and values of the rows that the step made final, from its taps. */
enum status drafter_keep(struct drafter *drafter, const struct model *model, struct comm *comm,
                         struct error *err) MUST_USE;

/* Guess for every sequence of the plan that wants it, and add the guesses to the result, which is
 * the same on all ranks; borrowed until the next call. */
enum status drafter_guess(struct drafter *drafter, const struct model *model,
                          const struct step_plan *plan, struct comm *comm,
                          struct step_result *result, struct error *err) MUST_USE;

#endif
