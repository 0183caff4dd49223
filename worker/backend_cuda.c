#include "backend_cuda.h"

#include "linear/linear_cuda.h"
#include "mla_tree/mla_tree_cuda.h"
#include "moe_experts/moe_experts_cuda.h"

const struct backend backend_cuda = {.name = "cuda",
#define X(op) .op = op##_cuda,
                                     BACKEND_OPS(X)
#undef X
};

/* A walk over the products of a model. */
struct need {
    const struct weights *weights;
    const struct backend_cuda_bounds *bounds;
    const struct kernel_device *device;
    size_t bytes;
};

static void need_bytes(struct need *need, size_t bytes) {
    if (bytes > need->bytes) need->bytes = bytes;
}

/* Few rows are split over more blocks than many, so each number of them is asked. */
static enum status need_linear(struct need *need, const struct linear_weight *weight,
                               uint32_t batch, uint32_t segments, struct error *err) {
    if (weight->n == 0) return STATUS_OK;
    struct linear_args args = {.weight = *weight,
                               .batch = batch,
                               .segments = segments,
                               .add = segments > 1 ? (const float *)need : NULL};
    args.activation = linear_activation(weight->format, need->bounds->activation);
    if (!linear_cuda_takes(&args))
        return error_set(err, STATUS_UNIMPLEMENTED,
                         "--device cuda: FP8 weights whose blocks begin at input %u, accepted: at "
                         "multiples of 32",
                         weight->block_begin);
    for (args.rows = 1; args.rows <= need->bounds->rows_max; args.rows++)
        need_bytes(need, linear_cuda_plan(&args, need->device).scratch_bytes);
    return STATUS_OK;
}

static enum status need_attention(struct need *need, struct error *err) {
    const struct weights *weights = need->weights;
    struct mla_tree_args args = {.heads = weights->heads,
                                 .latent_dim = weights->spec.kv_rank,
                                 .rope_dim = weights->spec.rope_dim,
                                 .positions_max = need->bounds->positions_max};
    bool taken = (args.latent_dim == 512 && args.rope_dim == 64) ||
                 (args.latent_dim == 128 && args.rope_dim == 32);
    if (!taken)
        return error_set(err, STATUS_UNIMPLEMENTED,
                         "--device cuda: latents of %u + %u, accepted: 512 + 64 and 128 + 32",
                         args.latent_dim, args.rope_dim);
    for (args.rows_max = 1; args.rows_max <= need->bounds->rows_max; args.rows_max++)
        for (args.sequence_count = 1; args.sequence_count <= need->bounds->sequences_max;
             args.sequence_count++)
            need_bytes(need, mla_tree_cuda_plan(&args, need->device).scratch_bytes);
    return STATUS_OK;
}

static enum status need_experts(struct need *need, const struct layer_weights *layer,
                                struct error *err) {
    const struct weights *weights = need->weights;
    struct moe_experts_args args = {.experts = layer->experts,
                                    .gate_up_format = layer->experts[0].gate_up.format,
                                    .down_format = layer->experts[0].down.format,
                                    .topk = weights->spec.topk,
                                    .expert_count = weights->spec.experts,
                                    .dim = weights->spec.hidden,
                                    .width = weights->expert_width,
                                    .segments = KERNEL_SEGMENTS / weights->tp};
    if (!moe_experts_cuda_takes(&args))
        return error_set(err, STATUS_UNIMPLEMENTED,
                         "--device cuda: experts of %u x %u on this rank, accepted: INT4, BF16 or "
                         "FP8, inputs in fours, widths in thirty-twos",
                         args.dim, args.width);
    for (args.rows = 1; args.rows <= need->bounds->rows_max; args.rows++)
        need_bytes(need, moe_experts_cuda_plan(&args, need->device).scratch_bytes);
    return STATUS_OK;
}

static enum status need_layer(struct need *need, const struct layer_weights *layer,
                              struct error *err) {
    const struct weights *weights = need->weights;
    const uint32_t segments = KERNEL_SEGMENTS / weights->tp, heads = weights->heads;
    enum status status = need_linear(need, &layer->q_a, 1, 1, err);
    if (status == STATUS_OK) status = need_linear(need, &layer->q_b, 1, 1, err);
    if (status == STATUS_OK) status = need_linear(need, &layer->kv_a, 1, 1, err);
    if (status == STATUS_OK) status = need_linear(need, &layer->w_uk, heads, 1, err);
    if (status == STATUS_OK) status = need_linear(need, &layer->w_uv, heads, 1, err);
    if (status == STATUS_OK) status = need_linear(need, &layer->o, 1, segments, err);
    if (status == STATUS_OK) status = need_linear(need, &layer->mlp_gate_up, 1, 1, err);
    if (status == STATUS_OK) status = need_linear(need, &layer->mlp_down, 1, segments, err);
    if (status == STATUS_OK && !layer->dense) status = need_experts(need, layer, err);
    return status;
}

enum status backend_cuda_workspace_bytes(const struct weights *weights,
                                         const struct backend_cuda_bounds *bounds,
                                         const struct kernel_device *device, size_t *bytes_out,
                                         struct error *err) {
    struct need need = {.weights = weights, .bounds = bounds, .device = device};
    enum status status = need_attention(&need, err);
    for (uint32_t l = 0; l < weights->spec.layers && status == STATUS_OK; l++) {
        status = need_layer(&need, &weights->layer[l], err);
        if (status != STATUS_OK) error_wrap(err, status, "layer %u", l);
    }
    if (status == STATUS_OK) status = need_linear(&need, &weights->head, 1, 1, err);
    need_bytes(&need, sample_scratch_bytes(weights->spec.vocab));
    *bytes_out = need.bytes;
    return status;
}
