/* The forward pass: embedding, then for each layer attention and an MLP around the residual stream.
 * docs/MODEL.md has it as numbered lines.
 *
 *     x = embed(token)                                     summed over ranks
 *     for each layer:
 *         x += attention(norm(x))                          o_proj's partial sums, summed over ranks
 *         x += mlp(norm(x))                                down_proj's, likewise
 *
 * Every rank holds all of x; what is split over ranks is inside the blocks (proto/shard.h). All
 * ranks run the same ops in the same order, so their collectives meet.
 *
 * Thread: the compute thread.
 */
#ifndef ESPALIER_MODEL_H
#define ESPALIER_MODEL_H

#include "backend.h"
#include "comm.h"
#include "device.h"
#include "kv_pool.h"
#include "scratch.h"
#include "step.h"

struct drafter;

/* What a forward pass works with; all borrowed from the engine. */
struct model {
    struct device *device; /* whose memory all arrays of ops are; NULL: the host's */
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

/* What the ops of a forward pass are sized for: a step's own, or more. What is behind a step's own
 * fills up: rows of no token and no expert, stored nowhere, and sequences of no rows. */
struct model_shape {
    uint32_t rows; /* T */
    uint32_t sequences;
    uint32_t rows_max, positions_max; /* of a sequence; positions: its own rows included */
};

/* Sequences as they were sent, which point at what ops read, and where ops find them; on the host
 * both are the caller's. */
struct model_sequences {
    const struct mla_sequence *sent, *of_ops; /* [count] */
    uint32_t count;
    uint32_t rows_max, positions_max; /* as a shape's */
};

/* A batch where ops find it: what of it they read. */
struct model_input {
    uint32_t rows;             /* T of the shape */
    const uint32_t *row_count; /* of the batch; NULL on the host, where the shape is its own */
    const uint32_t *token;     /* [T] */
    const uint32_t *kv_slot;   /* [T] */
    const float *cos_sin;      /* [T, P] of the positions */
    struct model_sequences sequences;
};

/* A batch's own. */
struct model_shape model_shape_of(const struct step_batch *batch);

/* Put into the input of the step (device.h), to be sent. On the host valid while the batch is, and
 * the shape is its own. On a device everything but page tables and masks lies where it lay with the
 * same shape before, if nothing was put in front. */
struct model_input model_put(const struct model *model, const struct step_batch *batch,
                             const struct model_shape *shape);
struct model_sequences model_put_sequences(const struct model *model,
                                           const struct mla_sequence *sequence, uint32_t count);

/* Bytes that the largest step puts: so many rows and sequences, of pages for so many positions. */
size_t model_input_bytes(const struct model_spec *spec, const struct device_bounds *bounds,
                         uint32_t page_tok);

/* scratch->x becomes the residual stream after the last layer, [T, D]; the input's rows are in the
 * cache. input->rows > 0. */
enum status model_forward(const struct model *model, const struct model_input *input,
                          struct comm *comm, struct error *err) MUST_USE;

/* x [rows, D] normed into y, with the model's eps. */
void model_norm(const struct model *model, const float *x, const float *weight, float *y,
                uint32_t rows);

/* What ranks add to a residual stream, and the norm behind it. */
struct model_sum {
    float *share;        /* [rows, dim] this rank's; becomes the sum */
    float *x;            /* [rows, dim] the stream */
    const float *weight; /* [dim] of the norm; NULL: none */
    float *h;            /* [rows, dim] norm(x) */
    uint32_t dim;
    float eps;
};

/* x += the sum over ranks of share; then h = norm(x). */
enum status model_add_sum(const struct model *model, const struct model_sum *sum, uint32_t rows,
                          struct comm *comm, struct error *err) MUST_USE;

/* What a product with this weight rounds its activations to. */
enum kernel_dtype model_activation(const struct model *model, const struct linear_weight *weight);

/* y [rows, N] = x [rows, K] W^T, dense rows, the inner dimension in `segments`. */
void model_linear(const struct model *model, const float *x, const struct linear_weight *weight,
                  float *y, uint32_t rows, uint32_t segments, const float *add);

#endif
