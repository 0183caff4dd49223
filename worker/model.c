#include "model.h"

#include <string.h>

#include "attention.h"
#include "drafter.h"
#include "moe.h"

static enum status add_sum(const struct model *model, float *share, uint32_t rows,
                           struct comm *comm, struct error *err);

enum status model_forward(const struct model *model, const struct step_batch *batch,
                          struct comm *comm, struct error *err) {
    const struct weights *weights = model->weights;
    struct scratch *s = model->scratch;
    const uint32_t rows = batch->rows, dim = weights->spec.hidden;

    rope_angles(s->cos_sin, batch->position, rows, model->inv_freq, weights->spec.rope_dim);
    model->backend->embed(&(struct embed_args){.id = batch->token,
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

    for (uint32_t l = 0; l < weights->spec.layers; l++) {
        const struct layer_weights *layer = &weights->layer[l];

        model_norm(model, s->x, layer->input_norm, s->h, rows);
        float *share = attention_forward(model, layer, kv_pool_layer(model->kv, l), batch);
        status = add_sum(model, share, rows, comm, err);
        if (status != STATUS_OK) return error_wrap(err, status, "attention of layer %u", l);

        model_norm(model, s->x, layer->post_norm, s->h, rows);
        share = layer->dense ? moe_dense_forward(model, layer, rows)
                             : moe_routed_forward(model, layer, rows);
        status = add_sum(model, share, rows, comm, err);
        if (status != STATUS_OK) return error_wrap(err, status, "MLP of layer %u", l);

        if (model->drafter) drafter_tap(model->drafter, l, s->x, rows);
        size_t count = (size_t)rows * dim;
        if (model->capture) memcpy(model->capture + l * count, s->x, count * sizeof(float));
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

/* x += the sum over ranks of their shares. */
static enum status add_sum(const struct model *model, float *share, uint32_t rows,
                           struct comm *comm, struct error *err) {
    size_t count = (size_t)rows * model->weights->spec.hidden;
    enum status status = comm_all_reduce(comm, share, count, err);
    if (status != STATUS_OK) return status;
    model->backend->add(&(struct add_args){.x = model->scratch->x, .y = share, .count = count},
                        model->ctx);
    return STATUS_OK;
}
