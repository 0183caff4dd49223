/* From the residual stream to tokens: final norm and head on the rows that ask, logits of the whole
 * vocabulary on every rank, and the same draw on every rank.
 *
 *     x [T,D] ─ rows that ask, norm ─▶ [B,D] ─ head ─▶ [B, vocab / tp] ─ all-gather ─▶ [vocab]
 *             ─ penalize, sample ─▶ token, log-probabilities    in blocks of B rows
 *
 * Owner: the engine. One thread.
 */
#ifndef ESPALIER_SAMPLER_H
#define ESPALIER_SAMPLER_H

#include "model.h"
#include "penalties.h"

struct sampler;

/* Of a plan. penalties: borrowed, and up to date with every plan that is drawn. */
enum status sampler_create(uint32_t sequences_max, uint32_t rows_max,
                           const struct penalties *penalties, struct sampler **sampler_out,
                           struct error *err) MUST_USE;
void sampler_destroy(struct sampler **sampler);

/* Draw for every sequence of the plan that wants a token, of a chain at its last row, of a tree
 * along its walk, and fill the payload of result_out: an entry a sequence, in plan order. Borrowed
 * until the next call. */
enum status sampler_draw(struct sampler *sampler, const struct model *model,
                         const struct step_plan *plan, const struct step_batch *batch,
                         struct comm *comm, struct step_result *result_out,
                         struct error *err) MUST_USE;

/* The logits of rows [0, rows) of scratch->x: out [rows, vocab]. */
enum status sampler_logits(const struct model *model, uint32_t rows, struct comm *comm, float *out,
                           struct error *err) MUST_USE;

#endif
