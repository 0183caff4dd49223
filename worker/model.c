#include "model.h"

#include <string.h>

#include "attention.h"
#include "drafter.h"
#include "moe.h"

static enum status add_sum(const struct model *model, float *share, const float *norm,
                           uint32_t rows, struct comm *comm, struct error *err);

struct model_shape model_shape_of(const struct step_batch *batch) {
    struct model_shape shape = {.rows = batch->rows, .sequences = batch->sequence_count};
    for (uint32_t i = 0; i < batch->sequence_count; i++) {
        const struct mla_sequence *sequence = &batch->sequence[i];
        shape.rows_max = max_u32(shape.rows_max, sequence->row_count);
        shape.positions_max = max_u32(shape.positions_max,
                                      sequence->committed + sequence->row_count);
    }
    return shape;
}

_Static_assert(KV_SLOT_NONE == UINT32_MAX, "words of ones are no slot");

/* count words, and behind them room for `all`, filled with ones: no token, and no slot. */
static const uint32_t *put_words(const struct model *model, const uint32_t *word, uint32_t count,
                                 uint32_t all) {
    const void *there;
    uint32_t *here = device_room(model->device, all * sizeof *here, &there);
    if (count > 0) memcpy(here, word, count * sizeof *here);
    memset(here + count, 0xff, (all - count) * sizeof *here);
    return there;
}

static struct model_sequences put_sequences(const struct model *model,
                                            const struct mla_sequence *sequence, uint32_t count,
                                            const struct model_shape *shape) {
    struct model_sequences put = {.sent = sequence,
                                  .of_ops = sequence,
                                  .count = shape->sequences,
                                  .rows_max = shape->rows_max,
                                  .positions_max = shape->positions_max};
    if (!model->device) return put;
    struct mla_sequence *there = device_room(model->device, shape->sequences * sizeof *there,
                                             (const void **)&put.of_ops);
    memset(there, 0, shape->sequences * sizeof *there);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t positions = sequence[i].committed + sequence[i].row_count;
        size_t pages = divide_up(positions, model->page_tok);
        there[i] = sequence[i];
        there[i].page = device_put(model->device, sequence[i].page, pages * sizeof(uint32_t));
        if (sequence[i].ancestors)
            there[i].ancestors = device_put(model->device, sequence[i].ancestors,
                                            sequence[i].row_count * sizeof(uint64_t));
    }
    put.sent = there;
    return put;
}

struct model_input model_put(const struct model *model, const struct step_batch *batch,
                             const struct model_shape *shape) {
    const uint32_t rope_dim = model->weights->spec.rope_dim;
    float *angles = model->scratch->cos_sin;
    struct model_input input = {
        .rows = shape->rows, .token = batch->token, .kv_slot = batch->kv_slot, .cos_sin = angles};
    if (model->device) {
        size_t own = (size_t)batch->rows * rope_dim, all = (size_t)shape->rows * rope_dim;
        angles = device_room(model->device, all * sizeof *angles, (const void **)&input.cos_sin);
        memset(angles + own, 0, (all - own) * sizeof *angles);
        input.token = put_words(model, batch->token, batch->rows, shape->rows);
        input.kv_slot = put_words(model, batch->kv_slot, batch->rows, shape->rows);
        input.row_count = device_put(model->device, &batch->rows, sizeof batch->rows);
    }
    rope_angles(angles, batch->position, batch->rows, model->inv_freq, rope_dim);
    input.sequences = put_sequences(model, batch->sequence, batch->sequence_count, shape);
    return input;
}

struct model_sequences model_put_sequences(const struct model *model,
                                           const struct mla_sequence *sequence, uint32_t count) {
    const struct step_batch alone = {.sequence = (struct mla_sequence *)(uintptr_t)sequence,
                                     .sequence_count = count};
    const struct model_shape shape = model_shape_of(&alone);
    return put_sequences(model, sequence, count, &shape);
}

size_t model_input_bytes(const struct model_spec *spec, const struct device_bounds *bounds,
                         uint32_t page_tok) {
    size_t row_bytes = 2 * sizeof(uint32_t) + spec->rope_dim * sizeof(float);
    size_t sequence_bytes = sizeof(struct mla_sequence) + TREE_ROWS_MAX * sizeof(uint64_t) +
                            divide_up(bounds->positions_max, page_tok) * sizeof(uint32_t) +
                            2 * DEVICE_INPUT_ALIGN;
    return bounds->rows_max * row_bytes + bounds->sequences_max * sequence_bytes +
           sizeof(uint32_t) + 5 * DEVICE_INPUT_ALIGN;
}

enum status model_forward(const struct model *model, const struct model_input *input,
                          struct comm *comm, struct error *err) {
    const struct weights *weights = model->weights;
    struct scratch *s = model->scratch;
    const uint32_t rows = input->rows, dim = weights->spec.hidden;

    model->backend->embed(&(struct embed_args){.id = input->token,
                                               .table = weights->embed,
                                               .table_dtype = weights->embed_dtype,
                                               .vocab_begin = weights->vocab_begin,
                                               .vocab_count = weights->vocab_count,
                                               .y = s->x,
                                               .rows = rows,
                                               .dim = dim},
                          model->ctx);
    enum status status = comm_all_reduce(comm, s->x, (size_t)rows * dim, err);
    if (status != STATUS_OK) return error_wrap(err, status, "embedding");

    model_norm(model, s->x, weights->layer[0].input_norm, s->h, rows);
    for (uint32_t l = 0; l < weights->spec.layers; l++) {
        const struct layer_weights *layer = &weights->layer[l];
        bool is_last = l + 1 == weights->spec.layers;

        float *share = attention_forward(model, layer, kv_pool_layer(model->kv, l), input);
        status = add_sum(model, share, layer->post_norm, rows, comm, err);
        if (status != STATUS_OK) return error_wrap(err, status, "attention of layer %u", l);

        share = layer->dense ? moe_dense_forward(model, layer, rows)
                             : moe_routed_forward(model, layer, input);
        /* Behind the last one the rows that ask are normed alone (sampler.h). */
        status = add_sum(model, share, is_last ? NULL : weights->layer[l + 1].input_norm, rows,
                         comm, err);
        if (status != STATUS_OK) return error_wrap(err, status, "MLP of layer %u", l);

        if (model->drafter) status = drafter_tap(model->drafter, l, s->x, rows, err);
        if (status != STATUS_OK) return status;
        size_t count = (size_t)rows * dim;
        if (model->capture)
            status = device_read(model->device, model->capture + l * count, s->x,
                                 count * sizeof(float), err);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

void model_norm(const struct model *model, const float *x, const float *weight, float *y,
                uint32_t rows) {
    const struct model_spec *spec = &model->weights->spec;
    model->backend->rms_norm(&(struct rms_norm_args){.x = x,
                                                     .x_stride = spec->hidden,
                                                     .weight = weight,
                                                     .y = y,
                                                     .y_stride = spec->hidden,
                                                     .rows = rows,
                                                     .dim = spec->hidden,
                                                     .eps = spec->norm_eps},
                             model->ctx);
}

enum kernel_dtype model_activation(const struct model *model, const struct linear_weight *weight) {
    return linear_activation(weight->format, model->activation);
}

void model_linear(const struct model *model, const float *x, const struct linear_weight *weight,
                  float *y, uint32_t rows, uint32_t segments, const float *add) {
    model->backend->linear(&(struct linear_args){.x = x,
                                                 .x_stride = weight->k,
                                                 .weight = *weight,
                                                 .y = y,
                                                 .y_stride = weight->n,
                                                 .add = add,
                                                 .rows = rows,
                                                 .batch = 1,
                                                 .segments = segments,
                                                 .activation = model_activation(model, weight)},
                           model->ctx);
}

enum status model_add_sum(const struct model *model, const struct model_sum *sum, uint32_t rows,
                          struct comm *comm, struct error *err) {
    const size_t count = (size_t)rows * sum->dim;
    enum status status = comm_all_reduce(comm, sum->share, count, err);
    if (status != STATUS_OK) return status;
    if (sum->weight)
        model->backend->rms_norm(&(struct rms_norm_args){.x = sum->x,
                                                         .x_stride = sum->dim,
                                                         .add = sum->share,
                                                         .sum = sum->x,
                                                         .weight = sum->weight,
                                                         .y = sum->h,
                                                         .y_stride = sum->dim,
                                                         .rows = rows,
                                                         .dim = sum->dim,
                                                         .eps = sum->eps},
                                 model->ctx);
    else
        model->backend->add(&(struct add_args){.x = sum->x, .y = sum->share, .count = count},
                            model->ctx);
    return STATUS_OK;
}

/* The sum into this model's own stream. */
static enum status add_sum(const struct model *model, float *share, const float *norm,
                           uint32_t rows, struct comm *comm, struct error *err) {
    const struct model_spec *spec = &model->weights->spec;
    const struct scratch *s = model->scratch;
    return model_add_sum(model,
                         &(struct model_sum){.share = share,
                                             .x = s->x,
                                             .weight = norm,
                                             .h = s->h,
                                             .dim = spec->hidden,
                                             .eps = spec->norm_eps},
                         rows, comm, err);
}
