/* From the residual stream to tokens: final norm and head on the rows that ask, logits of the whole
 * vocabulary on every rank, and the same draw on every rank.
 *
 *     x [T,D] ─ rows that ask, norm ─▶ [B,D] ─ head ─▶ [B, vocab / tp] ─ all-gather ─▶ [vocab]
 *             ─ penalize, sample ─▶ token, log-probabilities    in blocks of B rows
 *
 * On the host a tree's rows are drawn one by one, as the walk comes to them. On a device all that a
 * walk may come to are drawn before any is known, and waited for once, at the end of the step.
 *
 * Owner: the engine. One thread.
 */
#ifndef ESPALIER_SAMPLER_H
#define ESPALIER_SAMPLER_H

#include "model.h"
#include "penalties.h"

struct sampler;

struct sampler_shape {
    struct device *device;            /* whose memory ops work on; NULL: the host's */
    uint32_t sequences_max, rows_max; /* of a plan */
};

/* penalties: borrowed, and up to date with every plan that is drawn. */
enum status sampler_create(const struct sampler_shape *shape, const struct penalties *penalties,
                           struct sampler **sampler_out, struct error *err) MUST_USE;
void sampler_destroy(struct sampler **sampler);

/* Bytes that one step's draws put into its input. */
size_t sampler_input_bytes(uint32_t vocab, const struct device_bounds *bounds);

/* How many of a sequence's rows, its last ones, have logits that are needed. */
uint32_t sampler_rows(const struct plan_sequence *sequence);

/* Logits of rows [0, rows) of scratch->x, SCRATCH_HEAD_ROWS at most, the same on all ranks:
 * scratch->head_logits, laid out for so many rows. */
enum status sampler_head(const struct model *model, uint32_t rows, struct comm *comm,
                         struct error *err) MUST_USE;

/* Draw for every sequence of the plan that wants a token, of a chain at its last row, of a tree
 * along its walk, and fill the payload of result_out: an entry a sequence, in plan order. Borrowed
 * until the next call. head_rows: 0, or those of sampler_head, if it was called; all rows of the
 * plan then ask. */
enum status sampler_draw(struct sampler *sampler, const struct model *model,
                         const struct step_plan *plan, const struct step_batch *batch,
                         uint32_t head_rows, struct comm *comm, struct step_result *result_out,
                         struct error *err) MUST_USE;

/* The logits of rows [0, rows) of scratch->x: out [rows, vocab]. */
enum status sampler_logits(const struct model *model, uint32_t rows, struct comm *comm, float *out,
                           struct error *err) MUST_USE;

#endif
