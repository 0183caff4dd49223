/* As weights.c, of a drafter: names become fields and tasks. */
#include "drafter_weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"
#include "device.h"
#include "weight_plan.h"

#define NAME_MAX_BYTES 96u
#define NO_LAYER       UINT32_MAX

enum split { WHOLE, ROWS, COLUMNS };

struct planner {
    uint32_t rank, tp;
    struct weight_plan plan;
};

/* `weights` is first, so that the caller's pointer is this one's. */
struct loaded {
    struct drafter_weights weights;
    struct device *device; /* whose memory; NULL: the host's */
    void *memory;
    size_t memory_bytes;
};

static void plan_drafter(struct planner *planner, struct drafter_weights *weights);
static void check_unclaimed(struct planner *planner);

enum status drafter_weights_load(struct device *device, const struct drafter_spec *spec,
                                 const struct safetensors *checkpoint, uint32_t rank, uint32_t tp,
                                 uint32_t threads, struct weights_progress *progress,
                                 struct drafter_weights **weights_out, struct error *err) {
    CHECK(rank < tp);
    struct loaded *loaded = calloc(1, sizeof *loaded);
    CHECK(loaded);
    struct drafter_weights *weights = &loaded->weights;
    loaded->device = device;
    *weights = (struct drafter_weights){.spec = *spec,
                                        .rank = rank,
                                        .tp = tp,
                                        .heads = spec->heads / tp,
                                        .kv_heads = spec->kv_heads / tp,
                                        .width = spec->width / tp,
                                        .layer = calloc(spec->layers, sizeof *weights->layer)};
    CHECK(weights->layer);
    struct planner planner = {.rank = rank, .tp = tp};
    weight_plan_init(&planner.plan, checkpoint, err);
    planner.plan.device = device;

    plan_drafter(&planner, weights);
    check_unclaimed(&planner);
    loaded->memory = weight_plan_take_memory(&planner.plan, "drafter's weights",
                                             &loaded->memory_bytes);
    weights->bytes = loaded->memory_bytes;
    plan_drafter(&planner, weights);
    enum status status = weight_plan_run(&planner.plan, threads, progress, loaded->memory,
                                         loaded->memory_bytes);
    weight_plan_deinit(&planner.plan);
    if (status != STATUS_OK) {
        drafter_weights_destroy(&weights);
        return status;
    }
    *weights_out = weights;
    return STATUS_OK;
}

void drafter_weights_destroy(struct drafter_weights **weights) {
    struct loaded *loaded = (struct loaded *)*weights;
    if (!loaded) return;
    if (loaded->device)
        device_give(loaded->device, loaded->memory);
    else if (loaded->memory)
        munmap(loaded->memory, loaded->memory_bytes);
    free(loaded->weights.layer);
    free(loaded);
    *weights = NULL;
}

/* The tensor of a layer (NO_LAYER: of the model), claimed and of this shape; rows 0: a vector. */
static const struct tensor_info *find(struct planner *planner, uint32_t layer, const char *module,
                                      uint32_t rows, uint32_t columns) {
    if (planner->plan.status != STATUS_OK) return NULL;
    char name[NAME_MAX_BYTES];
    if (layer == NO_LAYER)
        snprintf(name, sizeof name, "%s.weight", module);
    else
        snprintf(name, sizeof name, "layers.%u.%s.weight", layer, module);
    const struct tensor_info *tensor = safetensors_find(planner->plan.checkpoint, name);
    if (!tensor) {
        planner->plan.status = error_set(
            planner->plan.err, STATUS_NOT_FOUND,
            "the drafter's checkpoint lacks tensor %s, which config.json "
            "calls for",
            name);
        return NULL;
    }
    weight_plan_claim(&planner->plan, tensor);
    weight_plan_check_dtype(&planner->plan, tensor, weight_plan_is_plain(tensor),
                            "BF16, F16 or F32");
    weight_plan_check_shape(&planner->plan, tensor, rows, columns, rows == 0);
    return planner->plan.status == STATUS_OK ? tensor : NULL;
}

/* Fill task->part[part] and the columns from a tensor of [rows, columns], this rank's slice. */
static void add_part(struct planner *planner, struct weight_task *task, uint32_t layer,
                     const char *module, uint32_t rows, uint32_t columns, enum split split) {
    const struct tensor_info *tensor = find(planner, layer, module, rows, columns);
    if (!tensor) return;
    enum linear_format format = tensor->dtype == TENSOR_BF16 ? LINEAR_BF16 : LINEAR_F32;
    if (task->part_count > 0 && task->part[0].data->dtype != tensor->dtype) {
        planner->plan.status = error_set(
            planner->plan.err, STATUS_UNIMPLEMENTED,
            "tensors %s and %s are stored in different formats; accepted: "
            "the same for both",
            task->part[0].data->name, tensor->name);
        return;
    }
    uint32_t row_share = split == ROWS ? rows / planner->tp : rows;
    uint32_t column_share = split == COLUMNS ? columns / planner->tp : columns;
    task->kind = WEIGHT_TASK_LINEAR;
    task->format = format;
    task->columns = columns;
    task->column_begin = split == COLUMNS ? planner->rank * column_share : 0;
    task->column_count = column_share;
    task->rows += row_share;
    task->part[task->part_count++] = (struct weight_part){
        .data = tensor,
        .row_begin = split == ROWS ? planner->rank * row_share : 0,
        .row_count = row_share};
}

/* The parts, one under the other, as one packed weight. */
static struct linear_weight pack(struct planner *planner, struct weight_task *task) {
    if (planner->plan.status != STATUS_OK) return (struct linear_weight){0};
    task->data = weight_plan_take(&planner->plan,
                                  linear_data_bytes(task->format, task->rows, task->column_count));
    weight_plan_add_rows(&planner->plan, task);
    return (struct linear_weight){
        .data = task->data, .format = task->format, .n = task->rows, .k = task->column_count};
}

static struct linear_weight plan_linear(struct planner *planner, uint32_t layer, const char *module,
                                        uint32_t rows, uint32_t columns, enum split split) {
    struct weight_task task = {0};
    add_part(planner, &task, layer, module, rows, columns, split);
    return pack(planner, &task);
}

static const float *plan_norm(struct planner *planner, uint32_t layer, const char *module,
                              uint32_t size) {
    const struct tensor_info *tensor = find(planner, layer, module, 0, size);
    if (!tensor) return NULL;
    struct weight_task task = {.kind = WEIGHT_TASK_ROWS,
                               .format = LINEAR_F32,
                               .part = {{.data = tensor, .row_count = 1}},
                               .part_count = 1,
                               .columns = size,
                               .column_count = size,
                               .rows = 1,
                               .data = weight_plan_take(&planner->plan, size * sizeof(float))};
    weight_plan_add_rows(&planner->plan, &task);
    return task.data;
}

static void plan_layer(struct planner *planner, uint32_t i, struct drafter_weights *weights) {
    const struct drafter_spec *spec = &weights->spec;
    struct drafter_layer_weights *layer = &weights->layer[i];
    uint32_t hidden = spec->hidden, width = spec->width, dim = spec->head_dim;
    uint32_t q_dim = spec->heads * dim, kv_dim = spec->kv_heads * dim;
    layer->input_norm = plan_norm(planner, i, "input_layernorm", hidden);
    layer->q = plan_linear(planner, i, "self_attn.q_proj", q_dim, hidden, ROWS);
    layer->k = plan_linear(planner, i, "self_attn.k_proj", kv_dim, hidden, ROWS);
    layer->v = plan_linear(planner, i, "self_attn.v_proj", kv_dim, hidden, ROWS);
    layer->q_norm = plan_norm(planner, i, "self_attn.q_norm", dim);
    layer->k_norm = plan_norm(planner, i, "self_attn.k_norm", dim);
    layer->o = plan_linear(planner, i, "self_attn.o_proj", hidden, q_dim, COLUMNS);
    layer->post_norm = plan_norm(planner, i, "post_attention_layernorm", hidden);
    struct weight_task gate_up = {0};
    add_part(planner, &gate_up, i, "mlp.gate_proj", width, hidden, ROWS);
    add_part(planner, &gate_up, i, "mlp.up_proj", width, hidden, ROWS);
    layer->gate_up = pack(planner, &gate_up);
    layer->down = plan_linear(planner, i, "mlp.down_proj", hidden, width, COLUMNS);
}

static void plan_drafter(struct planner *planner, struct drafter_weights *weights) {
    const struct drafter_spec *spec = &weights->spec;
    weights->fc = plan_linear(planner, NO_LAYER, "fc", spec->hidden, spec->tap_count * spec->hidden,
                              COLUMNS);
    weights->hidden_norm = plan_norm(planner, NO_LAYER, "hidden_norm", spec->hidden);
    for (uint32_t i = 0; i < spec->layers; i++)
        plan_layer(planner, i, weights);
    weights->norm = plan_norm(planner, NO_LAYER, "norm", spec->hidden);
}

/* A tensor that nobody asked for belongs to another kind of drafter. */
static void check_unclaimed(struct planner *planner) {
    for (uint32_t i = 0; i < safetensors_count(planner->plan.checkpoint); i++) {
        const struct tensor_info *tensor = safetensors_at(planner->plan.checkpoint, i);
        if (planner->plan.status != STATUS_OK || planner->plan.claimed[i]) continue;
        planner->plan.status = error_set(
            planner->plan.err, STATUS_INVALID_ARGUMENT,
            "%s: tensor %s: is not part of the drafter that config.json "
            "describes",
            safetensors_path(planner->plan.checkpoint, tensor->file), tensor->name);
    }
}
