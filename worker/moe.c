#include "moe.h"

static float *gated_mlp(const struct model *model, const struct layer_weights *layer, uint32_t rows,
                        uint32_t width, const float *add);
static enum kernel_dtype experts_activation(const struct model *model,
                                            const struct layer_weights *layer);
static void route(const struct model *model, const struct layer_weights *layer,
                  const struct model_input *input);
static float *sum_segments(const struct model *model, uint32_t rows);

float *moe_dense_forward(const struct model *model, const struct layer_weights *layer,
                         uint32_t rows) {
    return gated_mlp(model, layer, rows, model->weights->mlp_width, NULL);
}

/* The routed experts leave their segments apart, and the shared expert's down projection takes
 * them in front of its own: so both are summed by one tree, whatever the number of ranks. */
float *moe_routed_forward(const struct model *model, const struct layer_weights *layer,
                          const struct model_input *input) {
    const struct weights *weights = model->weights;
    const uint32_t rows = input->rows;
    struct scratch *s = model->scratch;
    route(model, layer, input);
    model->backend->moe_experts(
        &(struct moe_experts_args){.x = s->h,
                                   .expert = s->expert,
                                   .weight = s->expert_weight,
                                   .experts = layer->experts_of_ops,
                                   .y = s->expert_y,
                                   .rows = rows,
                                   .topk = weights->spec.topk,
                                   .expert_count = weights->spec.experts,
                                   .dim = weights->spec.hidden,
                                   .width = weights->expert_width,
                                   .segments = model->segments,
                                   .activation = experts_activation(model, layer),
                                   .gate_up_format = layer->experts[0].gate_up.format,
                                   .down_format = layer->experts[0].down.format},
        model->ctx);
    if (layer->mlp_down.n == 0) return sum_segments(model, rows);
    return gated_mlp(model, layer, rows, weights->shared_width, s->expert_y);
}

/* add: [segments, T, D], or NULL. */
static float *gated_mlp(const struct model *model, const struct layer_weights *layer, uint32_t rows,
                        uint32_t width, const float *add) {
    struct scratch *s = model->scratch;
    model_linear(model, s->h, &layer->mlp_gate_up, s->gate_up, rows, 1, NULL);
    model->backend->swiglu(&(struct swiglu_args){.gate_up = s->gate_up,
                                                 .gate_up_stride = (size_t)2 * width,
                                                 .y = s->act,
                                                 .y_stride = width,
                                                 .rows = rows,
                                                 .dim = width},
                           model->ctx);
    model_linear(model, s->act, &layer->mlp_down, s->delta, rows, model->segments, add);
    return s->delta;
}

/* What all experts of the layer take: their weights may differ in format. */
static enum kernel_dtype experts_activation(const struct model *model,
                                            const struct layer_weights *layer) {
    enum kernel_dtype activation = model->activation;
    for (uint32_t e = 0; e < model->weights->spec.experts; e++) {
        activation = linear_activation(layer->experts[e].gate_up.format, activation);
        activation = linear_activation(layer->experts[e].down.format, activation);
    }
    return activation;
}

/* Always in f32: which experts a row meets should not hang on a rounding. */
static void route(const struct model *model, const struct layer_weights *layer,
                  const struct model_input *input) {
    const struct model_spec *spec = &model->weights->spec;
    struct scratch *s = model->scratch;
    model->backend->linear(&(struct linear_args){.x = s->h,
                                                 .x_stride = spec->hidden,
                                                 .weight = layer->router,
                                                 .y = s->router_logits,
                                                 .y_stride = spec->experts,
                                                 .rows = input->rows,
                                                 .batch = 1,
                                                 .segments = 1},
                           model->ctx);
    model->backend->moe_route(
        &(struct moe_route_args){.logits = s->router_logits,
                                 .bias = layer->router_bias,
                                 .expert = s->expert,
                                 .weight = s->expert_weight,
                                 .rows = input->rows,
                                 .row_count = input->row_count,
                                 .experts = spec->experts,
                                 .topk = spec->topk,
                                 .groups = spec->groups,
                                 .topk_groups = spec->topk_groups,
                                 .scoring = spec->scoring == MODEL_SCORING_SIGMOID ? MOE_SIGMOID
                                                                                   : MOE_SOFTMAX,
                                 .renormalize = spec->renormalize,
                                 .scale = spec->routed_scale},
        model->ctx);
}

/* The tree of kernels/linear over the segments, where no linear follows: neighbours first. */
static float *sum_segments(const struct model *model, uint32_t rows) {
    float *y = model->scratch->expert_y;
    size_t count = (size_t)rows * model->weights->spec.hidden;
    for (uint32_t width = 1; width < model->segments; width *= 2)
        for (uint32_t s = 0; s + width < model->segments; s += 2 * width)
            model->backend->add(&(struct add_args){.x = y + s * count,
                                                   .y = y + (s + width) * count,
                                                   .count = count},
                                model->ctx);
    return y;
}
