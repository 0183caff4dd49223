/* What the back end of GPUs says of a model before it is loaded onto one: how much workspace a step
 * may need, to the byte against every call that the forward pass and a drafter make, and which
 * models it does not take. Weights have shapes alone: nothing here is computed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <string.h>

#include "backend_cuda.h"
#include "candidates.h"
#include "drafter.h"
#include "linear/linear_cublaslt.h"
#include "linear/linear_cuda.h"
#include "mla_tree/mla_tree_cuda.h"
#include "moe_experts/moe_experts_cuda.h"
#include "simt_worlds.h"

#define EXPERTS_MAX 1024u
#define LAYERS      2u /* a dense one, and one of experts */

/* Of a rank. */
struct shape {
    uint32_t tp, hidden, q_rank, heads, mlp_width, shared_width, experts, topk, expert_width, vocab;
    enum linear_format expert_format;
};

/* Among them such as need most for the router, and for the shared expert behind the routed ones. */
static const struct shape shapes[] = {
    {1, 256, 64, 16, 512, 64, 16, 4, 64, 512, LINEAR_INT4},
    {8, 64, 64, 1, 64, 8192, 8, 1, 32, 64, LINEAR_INT4},
    {8, 64, 64, 1, 64, 64, 1024, 1, 32, 64, LINEAR_BF16},
    {2, 64, 64, 1, 64, 64, 8, 1, 32, 16384, LINEAR_FP8},
    {4, 64, 64, 128, 64, 64, 8, 1, 32, 64, LINEAR_INT4},
    {8, 2048, 64, 1, 16384, 64, 8, 1, 32, 64, LINEAR_INT4},
    {8, 64, 2048, 1, 64, 0, 8, 1, 32, 64, LINEAR_INT4}, /* no shared expert */
};

/* Of a drafter on a rank. Each but the last needs most for another product. */
struct draft_shape {
    uint32_t taps_dim, q_dim, kv_dim, width;
};

static const struct draft_shape draft_shapes[] = {
    {65536, 64, 64, 64}, {64, 65536, 64, 64}, {64, 64, 65536, 64},
    {64, 64, 64, 65536}, {64, 64, 64, 64},
};

struct model_of {
    struct weights weights;
    struct layer_weights layer[LAYERS];
    struct moe_expert expert[EXPERTS_MAX];
    struct drafter_weights drafter;
    struct drafter_layer_weights draft_layer[LAYERS];
};

static struct linear_weight weight(enum linear_format format, uint32_t n, uint32_t k) {
    return (struct linear_weight){.format = format, .n = n, .k = k};
}

static void make(struct model_of *model, const struct shape *shape) {
    const uint32_t latent = 128, rope = 32, nope = 128, value = 128;
    memset(model, 0, sizeof *model);
    model->weights = (struct weights){.spec = {.layers = LAYERS,
                                               .hidden = shape->hidden,
                                               .kv_rank = latent,
                                               .rope_dim = rope,
                                               .experts = shape->experts,
                                               .topk = shape->topk,
                                               .vocab = shape->vocab * shape->tp},
                                      .tp = shape->tp,
                                      .heads = shape->heads,
                                      .expert_width = shape->expert_width,
                                      .head = weight(LINEAR_BF16, shape->vocab, shape->hidden),
                                      .layer = model->layer};
    for (uint32_t l = 0; l < LAYERS; l++) {
        struct layer_weights *layer = &model->layer[l];
        uint32_t width = l == 0 ? shape->mlp_width : shape->shared_width;
        layer->q_a = weight(LINEAR_BF16, shape->q_rank, shape->hidden);
        layer->q_b = weight(LINEAR_BF16, shape->heads * (nope + rope), shape->q_rank);
        layer->kv_a = weight(LINEAR_BF16, latent + rope, shape->hidden);
        layer->w_uk = weight(LINEAR_BF16, latent, nope);
        layer->w_uv = weight(LINEAR_BF16, value, latent);
        layer->o = weight(LINEAR_BF16, shape->hidden, shape->heads * value);
        if (width > 0) layer->mlp_gate_up = weight(LINEAR_BF16, 2 * width, shape->hidden);
        if (width > 0) layer->mlp_down = weight(LINEAR_BF16, shape->hidden, width);
        layer->dense = l == 0;
    }
    model->layer[1].router = weight(LINEAR_BF16, shape->experts, shape->hidden);
    model->layer[1].experts = model->expert;
    for (uint32_t e = 0; e < shape->experts; e++)
        model->expert[e] = (struct moe_expert){
            .gate_up = weight(shape->expert_format, 2 * shape->expert_width, shape->hidden),
            .down = weight(shape->expert_format, shape->hidden, shape->expert_width)};
}

static void make_drafter(struct model_of *model, const struct draft_shape *shape) {
    const uint32_t hidden = model->weights.spec.hidden;
    model->drafter = (struct drafter_weights){.spec = {.layers = LAYERS, .head_dim = 64},
                                              .tp = model->weights.tp,
                                              .fc = weight(LINEAR_BF16, hidden, shape->taps_dim),
                                              .layer = model->draft_layer};
    for (uint32_t l = 0; l < LAYERS; l++)
        model->draft_layer[l] = (struct drafter_layer_weights){
            .q = weight(LINEAR_BF16, shape->q_dim, hidden),
            .k = weight(LINEAR_BF16, shape->kv_dim, hidden),
            .v = weight(LINEAR_BF16, shape->kv_dim, hidden),
            .o = weight(LINEAR_BF16, hidden, shape->q_dim),
            .gate_up = weight(LINEAR_BF16, 2 * shape->width, hidden),
            .down = weight(LINEAR_BF16, hidden, shape->width)};
}

static const struct device_bounds few = {.rows_max = 96,
                                         .sequences_max = 9,
                                         .positions_max = 700,
                                         .activation = KERNEL_BF16,
                                         .kv_dtype = KERNEL_BF16};

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* What the calls of a step of `rows` rows need, as worker/attention.c, moe.c and sampler.c make
 * them. */
static size_t needed(const struct weights *weights, const struct device_bounds *bounds,
                     uint32_t rows, const struct kernel_device *device) {
    static const float routed;
    const uint32_t segments = 8 / weights->tp;
    size_t bytes = 0;
    for (uint32_t l = 0; l < LAYERS; l++) {
        const struct layer_weights *layer = &weights->layer[l];
        const struct {
            const struct linear_weight *weight;
            uint32_t batch, segments;
            const float *add;
            bool is_f32;
        } calls[] = {{&layer->q_a, 1, 1, NULL, false},
                     {&layer->q_b, 1, 1, NULL, false},
                     {&layer->kv_a, 1, 1, NULL, false},
                     {&layer->w_uk, weights->heads, 1, NULL, false},
                     {&layer->w_uv, weights->heads, 1, NULL, false},
                     {&layer->o, 1, segments, NULL, false},
                     {&layer->mlp_gate_up, 1, 1, NULL, false},
                     {&layer->mlp_down, 1, segments, layer->dense ? NULL : &routed, false},
                     {&layer->router, 1, 1, NULL, true},
                     {&weights->head, 1, 1, NULL, false}};
        for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
            const struct linear_args args = {.weight = *calls[i].weight,
                                             .rows = rows,
                                             .batch = calls[i].batch,
                                             .segments = calls[i].segments,
                                             .add = calls[i].add,
                                             .activation = calls[i].is_f32 ? KERNEL_F32
                                                                           : bounds->activation};
            if (args.weight.n > 0)
                bytes = larger(bytes, linear_cuda_plan(&args, device).scratch_bytes);
        }
    }
    const struct moe_expert *experts = weights->layer[1].experts;
    const struct moe_experts_args routed_args = {.gate_up_format = experts->gate_up.format,
                                                 .down_format = experts->down.format,
                                                 .rows = rows,
                                                 .topk = weights->spec.topk,
                                                 .expert_count = weights->spec.experts,
                                                 .dim = weights->spec.hidden,
                                                 .width = weights->expert_width,
                                                 .segments = segments};
    bytes = larger(bytes, moe_experts_cuda_plan(&routed_args, device).scratch_bytes);
    for (uint32_t sequences = 1; sequences <= bounds->sequences_max; sequences++) {
        const struct mla_tree_args args = {.kv_dtype = bounds->kv_dtype,
                                           .heads = weights->heads,
                                           .latent_dim = weights->spec.kv_rank,
                                           .rope_dim = weights->spec.rope_dim,
                                           .rows_max = rows,
                                           .sequence_count = sequences,
                                           .positions_max = bounds->positions_max};
        bytes = larger(bytes, mla_tree_cuda_plan(&args, device).scratch_bytes);
    }
    return bytes;
}

/* What a drafter's calls of `rows` rows need, as worker/drafter.c and candidates.c make them: all
 * in f32. */
static size_t drafter_needed(const struct model_of *model, uint32_t rows,
                             const struct kernel_device *device) {
    const struct drafter_layer_weights *layer = &model->draft_layer[0];
    const uint32_t segments = 8 / model->weights.tp;
    const struct {
        const struct linear_weight *weight;
        uint32_t segments, rows_max;
    } calls[] = {{&model->drafter.fc, segments, DRAFTER_PASS_ROWS},
                 {&layer->q, 1, DRAFTER_PASS_ROWS},
                 {&layer->k, 1, DRAFTER_PASS_ROWS},
                 {&layer->v, 1, DRAFTER_PASS_ROWS},
                 {&layer->o, segments, DRAFTER_PASS_ROWS},
                 {&layer->gate_up, 1, DRAFTER_PASS_ROWS},
                 {&layer->down, segments, DRAFTER_PASS_ROWS},
                 {&model->weights.head, 1, CANDIDATES_ROWS}};
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        const struct linear_args args = {
            .weight = *calls[i].weight, .rows = rows, .batch = 1, .segments = calls[i].segments};
        if (rows <= calls[i].rows_max)
            bytes = larger(bytes, linear_cuda_plan(&args, device).scratch_bytes);
    }
    return bytes;
}

static void a_drafter_finds_room_too(void **state) {
    (void)state;
    static struct model_of model;
    struct device_bounds bounds = few;
    struct error err;
    size_t bytes, alone;
    bounds.rows_max = 1; /* the target needs less than the drafter's head, whatever it is */
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (size_t s = 0; s < sizeof draft_shapes / sizeof draft_shapes[0]; s++)
            for (size_t d = 0; d < SIMT_DEVICES; d++) {
                make(&model, &shapes[i]);
                make_drafter(&model, &draft_shapes[s]);
                assert_int_equal(backend_cuda_workspace_bytes(&simt_devices[d], &model.weights,
                                                              NULL, &bounds, &alone, &err),
                                 STATUS_OK);
                assert_int_equal(backend_cuda_workspace_bytes(&simt_devices[d], &model.weights,
                                                              &model.drafter, &bounds, &bytes,
                                                              &err),
                                 STATUS_OK);
                size_t all = alone;
                for (uint32_t rows = 1; rows <= DRAFTER_PASS_ROWS; rows++)
                    all = larger(all, drafter_needed(&model, rows, &simt_devices[d]));
                assert_int_equal(bytes, all);
            }
}

static void workspace_is_what_the_greediest_call_needs(void **state) {
    (void)state;
    static struct model_of model;
    struct error err;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (size_t d = 0; d < SIMT_DEVICES; d++)
            for (enum kernel_dtype activation = KERNEL_F32; activation <= KERNEL_BF16;
                 activation++) {
                struct device_bounds bounds = few;
                size_t bytes, all = 0;
                bounds.activation = activation;
                bounds.kv_dtype = d % 2 == 0 ? KERNEL_BF16 : KERNEL_FP8;
                make(&model, &shapes[i]);
                for (uint32_t rows = 1; rows <= bounds.rows_max; rows++)
                    all = larger(all, needed(&model.weights, &bounds, rows, &simt_devices[d]));
                assert_int_equal(backend_cuda_workspace_bytes(&simt_devices[d], &model.weights,
                                                              NULL, &bounds, &bytes, &err),
                                 STATUS_OK);
                assert_int_equal(bytes, all);
            }
}

/* A device's library of products is asked only whether it is there. */
static void products_by_cublaslt_find_room_too(void **state) {
    (void)state;
    static struct model_of model;
    struct error err;
    static const uint32_t rows_max[] = {255, 256, 300};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (size_t r = 0; r < sizeof rows_max / sizeof rows_max[0]; r++) {
            struct kernel_device device = simt_devices[2];
            struct device_bounds bounds = few;
            size_t bytes, all = 0;
            device.cublaslt = (struct linear_cublaslt *)&model;
            bounds.rows_max = rows_max[r];
            make(&model, &shapes[i]);
            for (uint32_t rows = 1; rows <= bounds.rows_max; rows++)
                all = larger(all, needed(&model.weights, &bounds, rows, &device));
            assert_int_equal(
                backend_cuda_workspace_bytes(&device, &model.weights, NULL, &bounds, &bytes, &err),
                STATUS_OK);
            assert_int_equal(bytes, all);
            if (rows_max[r] >= 256) assert_true(bytes > LINEAR_CUBLASLT_WORKSPACE_BYTES);
        }
}

static void refuse(const struct model_of *model, const struct device_bounds *bounds,
                   const char *said) {
    struct error err;
    size_t bytes;
    assert_int_equal(backend_cuda_workspace_bytes(&simt_devices[1], &model->weights,
                                                  &model->drafter, bounds, &bytes, &err),
                     STATUS_UNIMPLEMENTED);
    assert_string_equal(err.text, said);
}

static void what_no_kernel_takes_is_named(void **state) {
    (void)state;
    static struct model_of model;
    struct device_bounds bounds = few;
    make(&model, &shapes[0]);
    bounds.activation = KERNEL_INT8;
    refuse(&model, &bounds, "--device cuda: --activation-dtype int8, accepted: f32 and bf16");
    bounds = few;
    bounds.kv_dtype = KERNEL_F32;
    refuse(&model, &bounds, "--device cuda: --kv-cache-dtype f32, accepted: bf16 and fp8");

    model.weights.spec.kv_rank = 256;
    refuse(&model, &few, "--device cuda: latents of 256 + 32, accepted: 512 + 64 and 128 + 32");

    make(&model, &shapes[0]);
    model.expert[5].down.format = LINEAR_BF16;
    refuse(&model, &few,
           "layer 1: --device cuda: expert 5 in BF16 where expert 0 is in INT4, accepted: one "
           "format");
    make(&model, &shapes[0]);
    model.expert[7].gate_up.format = LINEAR_FP8;
    refuse(&model, &few,
           "layer 1: --device cuda: expert 7 in FP8 where expert 0 is in INT4, accepted: one "
           "format");
    make(&model, &shapes[0]);
    model.weights.expert_width = 48;
    refuse(&model, &few,
           "layer 1: --device cuda: experts of 256 x 48 on this rank, accepted: INT4, BF16 or FP8, "
           "inputs in fours, widths in thirty-twos");

    make(&model, &shapes[0]);
    model.layer[0].mlp_down.format = LINEAR_FP8;
    model.layer[0].mlp_down.block_begin = 48;
    refuse(&model, &few,
           "layer 0: --device cuda: FP8 weights whose blocks begin at input 48, accepted: at "
           "multiples of 32");

    make(&model, &shapes[0]);
    make_drafter(&model, &draft_shapes[0]);
    model.drafter.spec.head_dim = 400;
    refuse(&model, &few,
           "--device cuda: a drafter with a head_dim of 400, accepted: up to 384 on this GPU");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workspace_is_what_the_greediest_call_needs),
        cmocka_unit_test(products_by_cublaslt_find_room_too),
        cmocka_unit_test(a_drafter_finds_room_too),
        cmocka_unit_test(what_no_kernel_takes_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
