/* The forward pass: embedding, then for each layer attention and an MLP around the residual stream.
 * docs/MODEL.md has it as numbered lines.
 *
 *     x = embed(token)                                     summed over ranks
 *     for each layer:
 *         x += attention(norm(x))                          o_proj's partial sums, summed over ranks
 *         x += mlp(norm(x))                                down_proj's, likewise
 *
 * Every rank holds all of x; what is split over ranks is inside the blocks (worker/shard.h). All
 * ranks run the same ops in the same order, so their collectives meet.
 *
 * Thread: the compute thread.
 */
#ifndef ESPALIER_MODEL_H
#define ESPALIER_MODEL_H

#include "backend.h"
#include "comm.h"
#include "kv_pool.h"
#include "scratch.h"
#include "step.h"

struct drafter;

/* What a forward pass works with; all borrowed from the engine. */
struct model {
    const struct backend *backend;
    struct kernel_ctx *ctx;
    const struct weights *weights;
    struct scratch *scratch;
    struct kv_pool *kv;
    enum kernel_dtype kv_dtype;
    enum kernel_dtype activation; /* of products with weights that take it (linear_activation) */
    enum prefill_form prefill_form;
    uint32_t page_tok;
    uint32_t segments; /* of a split inner dimension on this rank: 8 / tp */
    float softmax_scale;
    const double *inv_freq;  /* [P / 2] */
    struct drafter *drafter; /* that listens to the layers, or NULL */
    float *capture;          /* [layers, T, D] of the residual stream after each layer, or NULL */
};

/* scratch->x becomes the residual stream after the last layer, [T, D]; the batch's rows are in the
 * cache. batch->rows > 0. */
enum status model_forward(const struct model *model, const struct step_batch *batch,
                          struct comm *comm, struct error *err) MUST_USE;

/* x [rows, D] normed into y, with the model's eps. */
void model_norm(const struct model *model, const float *x, const float *weight, float *y,
                uint32_t rows);

/* What a product with this weight rounds its activations to. */
enum kernel_dtype model_activation(const struct model *model, const struct linear_weight *weight);

/* y [rows, N] = x [rows, K] W^T, dense rows, the inner dimension in `segments`. */
void model_linear(const struct model *model, const float *x, const struct linear_weight *weight,
                  float *y, uint32_t rows, uint32_t segments, const float *add);

#endif
