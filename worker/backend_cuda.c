#include "backend_cuda.h"

#include "candidates.h"
#include "drafter.h"
#include "gqa_block/gqa_block_cuda.h"
#include "linear/linear_cuda.h"
#include "mla_tree/mla_tree_cuda.h"
#include "moe_experts/moe_experts_cuda.h"

const struct backend backend_cuda = {
#define X(op) .op = op##_cuda,
    BACKEND_OPS(X)
#undef X
};

/* A walk over the products of a model, and of its drafter. */
struct need {
    const struct weights *weights;
    const struct drafter_weights *drafter; /* NULL: there is none */
    const struct device_bounds *bounds;
    const struct kernel_device *device;
    size_t bytes;
};

static void need_bytes(struct need *need, size_t bytes) {
    if (bytes > need->bytes) need->bytes = bytes;
}

static enum status check_types(const struct device_bounds *bounds, struct error *err) {
    if (bounds->activation == KERNEL_INT8)
        return error_set(err, STATUS_UNIMPLEMENTED,
                         "--device cuda: --activation-dtype int8, accepted: f32 and bf16");
    if (bounds->kv_dtype == KERNEL_F32)
        return error_set(err, STATUS_UNIMPLEMENTED,
                         "--device cuda: --kv-cache-dtype f32, accepted: bf16 and fp8");
    return STATUS_OK;
}

/* product: all but its rows, as the model asks for it. More rows need more, except where the
 * launch stops splitting them over blocks. */
static enum status need_linear(struct need *need, const struct linear_args *product,
                               uint32_t rows_max, struct error *err) {
    struct linear_args args = *product;
    if (args.weight.n == 0) return STATUS_OK;
    if (!linear_cuda_takes(&args))
        return error_set(err, STATUS_UNIMPLEMENTED,
                         "--device cuda: FP8 weights whose blocks begin at input %u, accepted: at "
                         "multiples of 32",
                         args.weight.block_begin);
    args.rows = min_u32(rows_max, LINEAR_CUDA_FEW_ROWS);
    need_bytes(need, linear_cuda_plan(&args, need->device).scratch_bytes);
    args.rows = rows_max;
    need_bytes(need, linear_cuda_plan(&args, need->device).scratch_bytes);
    return STATUS_OK;
}

static enum status need_attention(struct need *need, struct error *err) {
    const struct weights *weights = need->weights;
    struct mla_tree_args args = {.kv_dtype = need->bounds->kv_dtype,
                                 .heads = weights->heads,
                                 .latent_dim = weights->spec.kv_rank,
                                 .rope_dim = weights->spec.rope_dim,
                                 .sequence_count = need->bounds->sequences_max,
                                 .rows_max = need->bounds->rows_max,
                                 .positions_max = need->bounds->positions_max};
    if (!mla_tree_cuda_takes(&args))
        return error_set(err, STATUS_UNIMPLEMENTED,
                         "--device cuda: latents of %u + %u, accepted: 512 + 64 and 128 + 32",
                         args.latent_dim, args.rope_dim);
    need_bytes(need, mla_tree_cuda_scratch_bytes_max(&args, need->device));
    return STATUS_OK;
}

/* A launch is for one format. */
static enum status check_formats(const struct moe_expert *experts, uint32_t count,
                                 struct error *err) {
    static const char *const names[] = {
        [LINEAR_F32] = "F32", [LINEAR_BF16] = "BF16", [LINEAR_INT4] = "INT4", [LINEAR_FP8] = "FP8"};
    for (uint32_t e = 1; e < count; e++) {
        enum linear_format found = experts[e].gate_up.format, first = experts[0].gate_up.format;
        if (found == first) {
            found = experts[e].down.format;
            first = experts[0].down.format;
        }
        if (found != first)
            return error_set(err, STATUS_UNIMPLEMENTED,
                             "--device cuda: expert %u in %s where expert 0 is in %s, accepted: "
                             "one format",
                             e, names[found], names[first]);
    }
    return STATUS_OK;
}

static enum status need_experts(struct need *need, const struct layer_weights *layer,
                                struct error *err) {
    const struct weights *weights = need->weights;
    struct moe_experts_args args = {.experts = layer->experts,
                                    .gate_up_format = layer->experts[0].gate_up.format,
                                    .down_format = layer->experts[0].down.format,
                                    .rows = need->bounds->rows_max,
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
    need_bytes(need, moe_experts_cuda_plan(&args, need->device).scratch_bytes);
    return check_formats(args.experts, args.expert_count, err);
}

/* Of add, a plan asks only whether it is there. */
static const float somewhere;

static enum status need_layer(struct need *need, const struct layer_weights *layer,
                              struct error *err) {
    const struct weights *weights = need->weights;
    const enum kernel_dtype activation = need->bounds->activation;
    const uint32_t segments = KERNEL_SEGMENTS / weights->tp, heads = weights->heads;
    const struct linear_args products[] = {
        {.weight = layer->q_a, .batch = 1, .segments = 1},
        {.weight = layer->q_b, .batch = 1, .segments = 1},
        {.weight = layer->kv_a, .batch = 1, .segments = 1},
        {.weight = layer->w_uk, .batch = heads, .segments = 1},
        {.weight = layer->w_uv, .batch = heads, .segments = 1},
        {.weight = layer->o, .batch = 1, .segments = segments},
        {.weight = layer->mlp_gate_up, .batch = 1, .segments = 1},
        {.weight = layer->mlp_down,
         .batch = 1,
         .segments = segments,
         .add = layer->dense ? NULL : &somewhere}, /* the routed experts' */
    };
    enum status status = STATUS_OK;
    for (size_t i = 0; i < sizeof products / sizeof products[0] && status == STATUS_OK; i++) {
        struct linear_args product = products[i];
        product.activation = linear_activation(product.weight.format, activation);
        status = need_linear(need, &product, need->bounds->rows_max, err);
    }
    if (status != STATUS_OK || layer->dense) return status;
    const struct linear_args router = {.weight = layer->router, .batch = 1, .segments = 1};
    status = need_linear(need, &router, need->bounds->rows_max, err); /* always in f32 */
    return status == STATUS_OK ? need_experts(need, layer, err) : status;
}

/* A drafter's products are all in f32, its head's too, which is the target's. */
static enum status need_drafter(struct need *need, struct error *err) {
    const struct drafter_weights *drafter = need->drafter;
    const uint32_t segments = KERNEL_SEGMENTS / drafter->tp;
    const uint32_t head_dim_max = gqa_block_cuda_head_dim_max(need->device);
    if (drafter->spec.head_dim > head_dim_max)
        return error_set(err, STATUS_UNIMPLEMENTED,
                         "--device cuda: a drafter with a head_dim of %u, accepted: up to %u on "
                         "this GPU",
                         drafter->spec.head_dim, head_dim_max);
    const struct linear_args fc = {.weight = drafter->fc, .batch = 1, .segments = segments};
    const struct linear_args head = {.weight = need->weights->head, .batch = 1, .segments = 1};
    enum status status = need_linear(need, &fc, DRAFTER_PASS_ROWS, err);
    if (status == STATUS_OK) status = need_linear(need, &head, CANDIDATES_ROWS, err);
    for (uint32_t l = 0; l < drafter->spec.layers; l++) {
        const struct drafter_layer_weights *layer = &drafter->layer[l];
        const struct linear_args products[] = {
            {.weight = layer->q, .batch = 1, .segments = 1},
            {.weight = layer->k, .batch = 1, .segments = 1},
            {.weight = layer->v, .batch = 1, .segments = 1},
            {.weight = layer->o, .batch = 1, .segments = segments},
            {.weight = layer->gate_up, .batch = 1, .segments = 1},
            {.weight = layer->down, .batch = 1, .segments = segments},
        };
        for (size_t i = 0; i < sizeof products / sizeof products[0] && status == STATUS_OK; i++)
            status = need_linear(need, &products[i], DRAFTER_PASS_ROWS, err);
    }
    return status == STATUS_OK ? status : error_wrap(err, status, "drafter");
}

enum status backend_cuda_workspace_bytes(const struct kernel_device *device,
                                         const struct weights *weights,
                                         const struct drafter_weights *drafter,
                                         const struct device_bounds *bounds, size_t *bytes_out,
                                         struct error *err) {
    struct need need = {.weights = weights, .drafter = drafter, .bounds = bounds, .device = device};
    const struct linear_args head = {
        .weight = weights->head,
        .batch = 1,
        .segments = 1,
        .activation = linear_activation(weights->head.format, bounds->activation)};
    enum status status = check_types(bounds, err);
    if (status == STATUS_OK) status = need_attention(&need, err);
    for (uint32_t l = 0; l < weights->spec.layers && status == STATUS_OK; l++) {
        status = need_layer(&need, &weights->layer[l], err);
        if (status != STATUS_OK) error_wrap(err, status, "layer %u", l);
    }
    if (status == STATUS_OK) status = need_linear(&need, &head, bounds->rows_max, err);
    if (status == STATUS_OK && drafter) status = need_drafter(&need, err);
    *bytes_out = need.bytes;
    return status;
}
