/* The first half of loading: names become fields, and a list of tasks for weight_reader; the two
 * walks are weight_plan's. */
#include "weights.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"
#include "device.h"
#include "shard.h"
#include "weight_plan.h"

struct planner {
    const struct model_spec *spec;
    uint32_t rank, tp;
    uint32_t layout; /* where the last tensor was found */
    struct weight_plan plan;
};

/* A weight as the checkpoint stores it, this rank's slice chosen, its shape checked. */
struct stored {
    enum linear_format format;
    struct shard_slice slice;
    struct weight_part part;
};

/* `weights` is first, so that the caller's pointer is this one's. */
struct loaded {
    struct weights weights;
    struct device *device; /* whose memory; NULL: the host's */
    void *memory;          /* of all packed weights, vectors and the embedding */
    size_t memory_bytes;
    struct moe_expert *experts; /* [layers, E] */
    void *experts_there;        /* on the device; NULL on the host */
};

static void plan_model(struct planner *planner, struct loaded *loaded);
static void check_unclaimed(struct planner *planner);
static void take_memory(struct planner *planner, struct loaded *loaded);
static enum status place_experts(struct loaded *loaded, struct error *err);

enum status weights_load(struct device *device, const struct model_spec *spec,
                         const struct safetensors *checkpoint, uint32_t rank, uint32_t tp,
                         uint32_t threads, struct weights_progress *progress,
                         struct weights **weights_out, struct error *err) {
    enum status status = model_spec_check_tp(spec, tp, err);
    if (status != STATUS_OK) return status;
    CHECK(rank < tp);
    struct loaded *loaded = calloc(1, sizeof *loaded);
    CHECK(loaded);
    struct weights *weights = &loaded->weights;
    loaded->device = device;
    weights->spec = *spec;
    weights->layer = calloc(spec->layers, sizeof *weights->layer);
    loaded->experts = calloc((size_t)spec->layers * spec->experts, sizeof *loaded->experts);
    struct planner planner = {.spec = spec, .rank = rank, .tp = tp};
    weight_plan_init(&planner.plan, checkpoint, err);
    planner.plan.device = device;
    CHECK(weights->layer && loaded->experts);

    plan_model(&planner, loaded);
    check_unclaimed(&planner);
    take_memory(&planner, loaded);
    plan_model(&planner, loaded);
    status = weight_plan_run(&planner.plan, threads, progress, loaded->memory,
                             loaded->memory_bytes);
    weight_plan_deinit(&planner.plan);
    if (status == STATUS_OK) status = place_experts(loaded, err);
    if (status != STATUS_OK) {
        weights_destroy(&weights);
        return status;
    }
    *weights_out = weights;
    return STATUS_OK;
}

void weights_destroy(struct weights **weights) {
    struct loaded *loaded = (struct loaded *)*weights;
    if (!loaded) return;
    if (loaded->device) {
        device_give(loaded->device, loaded->experts_there);
        device_give(loaded->device, loaded->memory);
    } else if (loaded->memory) {
        munmap(loaded->memory, loaded->memory_bytes);
    }
    free(loaded->experts);
    free(loaded->weights.layer);
    free(loaded);
    *weights = NULL;
}

static void take_memory(struct planner *planner, struct loaded *loaded) {
    char what[32];
    snprintf(what, sizeof what, "weights of rank %u", planner->rank);
    loaded->memory = weight_plan_take_memory(&planner->plan, what, &loaded->memory_bytes);
    if (!loaded->memory) return;
    /* Fewer TLB misses; fine without. */
    if (!loaded->device) (void)madvise(loaded->memory, loaded->memory_bytes, MADV_HUGEPAGE);
    const struct model_spec *spec = planner->spec;
    loaded->weights.bytes = loaded->memory_bytes + sizeof *loaded +
                            spec->layers * sizeof *loaded->weights.layer +
                            (uint64_t)spec->layers * spec->experts * sizeof *loaded->experts;
}

/* Which experts there are is itself read by an op. */
static enum status place_experts(struct loaded *loaded, struct error *err) {
    const struct model_spec *spec = &loaded->weights.spec;
    size_t count = (size_t)spec->layers * spec->experts;
    enum status status = STATUS_OK;
    if (loaded->device && count > 0) {
        size_t bytes = count * sizeof *loaded->experts;
        status = device_take(loaded->device, bytes, "experts", &loaded->experts_there, err);
        if (status == STATUS_OK)
            status = device_write(loaded->device, loaded->experts_there, loaded->experts, bytes,
                                  err);
    }
    const struct moe_expert *first = loaded->device ? loaded->experts_there : loaded->experts;
    for (uint32_t layer = 0; layer < spec->layers && status == STATUS_OK; layer++)
        loaded->weights.layer[layer].experts_of_ops = first + (size_t)layer * spec->experts;
    return status;
}

/* The tensor `module` + `suffix` in whichever layout the checkpoint has, claimed; NULL if there is
 * none. */
static const struct tensor_info *find(struct planner *planner, const char *module,
                                      const char *suffix) {
    const struct tensor_info *tensor = shard_find(planner->plan.checkpoint, module, suffix,
                                                  &planner->layout);
    if (tensor) weight_plan_claim(&planner->plan, tensor);
    return tensor;
}

static void fail_missing(struct planner *planner, const char *module, const char *suffix) {
    const char *path = safetensors_path(planner->plan.checkpoint, 0);
    int folder_bytes = (int)(strrchr(path, '/') - path);
    bool is_alone = safetensors_file_count(planner->plan.checkpoint) == 1;
    planner->plan.status = error_set(
        planner->plan.err, STATUS_NOT_FOUND, "%.*s: lacks tensor %s%s, which config.json calls for",
        is_alone ? (int)strlen(path) : folder_bytes, path, module, suffix);
}

/* X.weight in BF16, F16 or F32. */
static void find_plain(struct planner *planner, const char *module, const char *accepted,
                       struct stored *stored) {
    const struct tensor_info *tensor = find(planner, module, ".weight");
    if (!tensor) {
        fail_missing(planner, module, ".weight");
        return;
    }
    weight_plan_check_dtype(&planner->plan, tensor, weight_plan_is_plain(tensor), accepted);
    weight_plan_check_shape(&planner->plan, tensor, stored->slice.rows, stored->slice.columns,
                            false);
    stored->format = tensor->dtype == TENSOR_BF16 ? LINEAR_BF16 : LINEAR_F32;
    stored->part.data = tensor;
}

/* Does config.json announce the quantization that `tensor` has? */
static bool check_announced(struct planner *planner, const struct tensor_info *tensor,
                            const char *name, enum model_quantization quantization) {
    if (planner->spec->quantization == quantization) return true;
    planner->plan.status = error_set(planner->plan.err, STATUS_INVALID_ARGUMENT,
                                     "%s: tensor %s: is %s, which the quantization_config of "
                                     "config.json does not announce",
                                     safetensors_path(planner->plan.checkpoint, tensor->file),
                                     tensor->name, name);
    return false;
}

/* X.weight in F8_E4M3 with X.weight_scale_inv, by which it is multiplied, whatever the name says.
 * False where X.weight is none such. */
static bool find_fp8(struct planner *planner, const char *module, struct stored *stored) {
    const struct tensor_info *codes = find(planner, module, ".weight");
    if (!codes || codes->dtype != TENSOR_F8_E4M3) return false;
    const struct tensor_info *scale = find(planner, module, ".weight_scale_inv");
    if (!scale) {
        fail_missing(planner, module, ".weight_scale_inv");
        return true;
    }
    if (!check_announced(planner, codes, "FP8", MODEL_QUANT_FP8_BLOCK128)) return true;
    const struct shard_slice *slice = &stored->slice;
    weight_plan_check_dtype(&planner->plan, scale, scale->dtype == TENSOR_F32, "F32");
    weight_plan_check_shape(&planner->plan, codes, slice->rows, slice->columns, false);
    weight_plan_check_shape(&planner->plan, scale, (slice->rows + FP8_BLOCK - 1) / FP8_BLOCK,
                            (slice->columns + FP8_BLOCK - 1) / FP8_BLOCK, false);
    stored->format = LINEAR_FP8;
    stored->part.data = codes;
    stored->part.scale = scale;
    return true;
}

/* A rank's inputs must be whole groups of those that share a scale. */
static void fail_groups(struct planner *planner, const struct tensor_info *packed,
                        const struct shard_slice *slice) {
    const char *path = safetensors_path(planner->plan.checkpoint, packed->file);
    if (slice->columns % INT4_GROUP != 0) {
        planner->plan.status = error_set(
            planner->plan.err, STATUS_UNIMPLEMENTED,
            "%s: tensor %s: is INT4 with %u inputs; accepted: a multiple "
            "of %u",
            path, packed->name, slice->columns, INT4_GROUP);
        return;
    }
    char sizes[16] = "1";
    for (uint32_t tp = 2; slice->columns % (tp * INT4_GROUP) == 0; tp *= 2)
        snprintf(sizes + strlen(sizes), sizeof sizes - strlen(sizes), ", %u", tp);
    planner->plan.status = error_set(
        planner->plan.err, STATUS_INVALID_ARGUMENT,
        "%s: tensor %s: tp %u would split the groups of %u of its %u INT4 "
        "inputs; accepted tp: %s",
        path, packed->name, planner->tp, INT4_GROUP, slice->columns, sizes);
}

/* X.weight_packed with X.weight_scale. X.weight_shape holds rubbish in some checkpoints: it is
 * claimed and not read. False where there is no X.weight_packed. */
static bool find_int4(struct planner *planner, const char *module, struct stored *stored) {
    const struct tensor_info *packed = find(planner, module, ".weight_packed");
    if (!packed) return false;
    const struct tensor_info *scale = find(planner, module, ".weight_scale");
    (void)find(planner, module, ".weight_shape");
    if (!scale) {
        fail_missing(planner, module, ".weight_scale");
        return true;
    }
    if (!check_announced(planner, packed, "INT4", MODEL_QUANT_INT4_GROUP32)) return true;
    const struct shard_slice *slice = &stored->slice;
    if (slice->columns % INT4_GROUP != 0 || slice->column_count % INT4_GROUP != 0) {
        fail_groups(planner, packed, slice);
        return true;
    }
    weight_plan_check_dtype(&planner->plan, packed, packed->dtype == TENSOR_I32, "I32");
    weight_plan_check_dtype(&planner->plan, scale, scale->dtype == TENSOR_BF16, "BF16");
    weight_plan_check_shape(&planner->plan, packed, slice->rows, slice->columns / 8, false);
    weight_plan_check_shape(&planner->plan, scale, slice->rows, slice->columns / INT4_GROUP, false);
    stored->format = LINEAR_INT4;
    stored->part.data = packed;
    stored->part.scale = scale;
    return true;
}

enum accepted_formats { ACCEPT_PLAIN, ACCEPT_FP8_TOO, ACCEPT_ALL };

/* The module as stored; nothing is in *stored where planner->plan.status is not OK. */
static void find_stored(struct planner *planner, enum shard_tensor tensor, uint32_t layer,
                        uint32_t expert, enum accepted_formats accepted, struct stored *stored) {
    char module[SHARD_NAME_BYTES];
    shard_name(tensor, layer, expert, module, sizeof module);
    *stored = (struct stored){
        .slice = shard_slice(planner->spec, tensor, planner->rank, planner->tp)};
    stored->part.row_begin = stored->slice.row_begin;
    stored->part.row_count = stored->slice.row_count;
    if (accepted == ACCEPT_ALL && find_int4(planner, module, stored)) return;
    if (accepted != ACCEPT_PLAIN && find_fp8(planner, module, stored)) return;
    find_plain(planner, module,
               accepted == ACCEPT_PLAIN ? "BF16, F16 or F32" : "BF16, F16, F32 or F8_E4M3", stored);
}

/* The parts, one under the other, as one packed weight. */
static struct linear_weight pack(struct planner *planner, const struct stored *stored,
                                 uint32_t part_count) {
    const struct shard_slice *slice = &stored[0].slice;
    struct weight_task task = {.kind = WEIGHT_TASK_LINEAR,
                               .format = stored[0].format,
                               .part_count = part_count,
                               .columns = slice->columns,
                               .column_begin = slice->column_begin,
                               .column_count = slice->column_count};
    for (uint32_t p = 0; p < part_count; p++) {
        task.part[p] = stored[p].part;
        task.rows += stored[p].part.row_count;
    }
    task.data = weight_plan_take(&planner->plan,
                                 linear_data_bytes(task.format, task.rows, task.column_count));
    uint64_t scale_bytes = linear_scale_bytes(task.format, task.rows, task.column_count);
    if (scale_bytes > 0) task.more = weight_plan_take(&planner->plan, scale_bytes);
    weight_plan_add_rows(&planner->plan, &task);
    return (struct linear_weight){.data = task.data,
                                  .scale = task.more,
                                  .format = task.format,
                                  .n = task.rows,
                                  .k = task.column_count,
                                  .block_begin = task.column_begin % FP8_BLOCK};
}

static struct linear_weight plan_linear(struct planner *planner, enum shard_tensor tensor,
                                        uint32_t layer, uint32_t expert,
                                        enum accepted_formats accepted) {
    struct stored stored;
    if (planner->plan.status == STATUS_OK)
        find_stored(planner, tensor, layer, expert, accepted, &stored);
    return planner->plan.status == STATUS_OK ? pack(planner, &stored, 1)
                                             : (struct linear_weight){0};
}

/* Gate rows, then up rows, as one weight: one pass over x serves both. */
static struct linear_weight plan_gate_up(struct planner *planner, enum shard_tensor gate,
                                         enum shard_tensor up, uint32_t layer, uint32_t expert) {
    struct stored stored[2];
    if (planner->plan.status == STATUS_OK)
        find_stored(planner, gate, layer, expert, ACCEPT_ALL, &stored[0]);
    if (planner->plan.status == STATUS_OK)
        find_stored(planner, up, layer, expert, ACCEPT_ALL, &stored[1]);
    if (planner->plan.status == STATUS_OK &&
        stored[0].part.data->dtype != stored[1].part.data->dtype)
        planner->plan.status = error_set(
            planner->plan.err, STATUS_UNIMPLEMENTED,
            "tensors %s and %s are stored in different formats; accepted: "
            "the same for both",
            stored[0].part.data->name, stored[1].part.data->name);
    return planner->plan.status == STATUS_OK ? pack(planner, stored, 2) : (struct linear_weight){0};
}

/* A norm or a bias, in f32. */
static const float *plan_vector(struct planner *planner, enum shard_tensor which, uint32_t layer) {
    if (planner->plan.status != STATUS_OK) return NULL;
    char module[SHARD_NAME_BYTES];
    shard_name(which, layer, 0, module, sizeof module);
    const char *suffix = which == SHARD_ROUTER_BIAS ? "" : ".weight";
    const struct tensor_info *tensor = find(planner, module, suffix);
    uint32_t size = shard_slice(planner->spec, which, planner->rank, planner->tp).columns;
    if (!tensor) {
        fail_missing(planner, module, suffix);
        return NULL;
    }
    weight_plan_check_dtype(&planner->plan, tensor, weight_plan_is_plain(tensor),
                            "BF16, F16 or F32");
    weight_plan_check_shape(&planner->plan, tensor, 1, size, true);
    if (planner->plan.status != STATUS_OK) return NULL;
    struct weight_task task = {
        .kind = WEIGHT_TASK_ROWS,
        .format = LINEAR_F32,
        .part = {{.data = tensor, .row_count = 1}},
        .part_count = 1,
        .columns = size,
        .column_count = size,
        .rows = 1,
        .row_count = 1,
        .data = weight_plan_take(&planner->plan, size * sizeof(float)),
    };
    weight_plan_add(&planner->plan, &task);
    return task.data;
}

/* The embedding keeps its rows: they are looked up, not multiplied. */
static const void *plan_embed(struct planner *planner, enum kernel_dtype *dtype_out) {
    struct stored stored;
    if (planner->plan.status == STATUS_OK)
        find_stored(planner, SHARD_EMBED, 0, 0, ACCEPT_PLAIN, &stored);
    if (planner->plan.status != STATUS_OK) return NULL;
    bool is_bf16 = stored.format == LINEAR_BF16;
    *dtype_out = is_bf16 ? KERNEL_BF16 : KERNEL_F32;
    struct weight_task task = {.kind = WEIGHT_TASK_ROWS,
                               .format = stored.format,
                               .part = {stored.part},
                               .part_count = 1,
                               .columns = stored.slice.columns,
                               .column_count = stored.slice.columns,
                               .rows = stored.slice.row_count};
    task.data = weight_plan_take(&planner->plan, (uint64_t)task.rows * task.columns *
                                                     (is_bf16 ? sizeof(bf16) : sizeof(float)));
    weight_plan_add_rows(&planner->plan, &task);
    return task.data;
}

/* kv_b holds, head by head, N rows that make keys and V rows that make values from the latent. The
 * absorbed form multiplies the query by the first, transposed, and the output by the second. FP8
 * becomes f32, exactly: a head may begin inside a block of scales, each head at another place. */
static void plan_kv_b(struct planner *planner, uint32_t layer, uint32_t heads,
                      struct layer_weights *weights) {
    const struct model_spec *spec = planner->spec;
    struct stored stored;
    if (planner->plan.status == STATUS_OK)
        find_stored(planner, SHARD_KV_B, layer, 0, ACCEPT_FP8_TOO, &stored);
    if (planner->plan.status != STATUS_OK) return;
    if (stored.format == LINEAR_FP8) stored.format = LINEAR_F32;
    uint64_t uk_bytes = linear_data_bytes(stored.format, spec->kv_rank, spec->nope_dim);
    uint64_t uv_bytes = linear_data_bytes(stored.format, spec->value_dim, spec->kv_rank);
    unsigned char *uk = weight_plan_take(&planner->plan, heads * uk_bytes);
    unsigned char *uv = weight_plan_take(&planner->plan, heads * uv_bytes);
    struct weight_task task = {.kind = WEIGHT_TASK_KV_B,
                               .format = stored.format,
                               .part = {stored.part},
                               .part_count = 1,
                               .columns = spec->kv_rank,
                               .column_count = spec->kv_rank,
                               .rows = spec->nope_dim + spec->value_dim,
                               .row_count = spec->nope_dim + spec->value_dim,
                               .nope_dim = spec->nope_dim};
    task.part[0].row_count = task.rows;
    for (uint32_t h = 0; h < heads; h++) {
        task.data = uk ? uk + h * uk_bytes : NULL;
        task.more = uv ? uv + h * uv_bytes : NULL;
        weight_plan_add(&planner->plan, &task);
        task.part[0].row_begin += task.rows;
    }
    weights->w_uk = (struct linear_weight){
        .data = uk, .format = stored.format, .n = spec->kv_rank, .k = spec->nope_dim};
    weights->w_uv = (struct linear_weight){
        .data = uv, .format = stored.format, .n = spec->value_dim, .k = spec->kv_rank};
}

static void plan_attention(struct planner *planner, uint32_t layer, uint32_t heads,
                           struct layer_weights *weights) {
    if (planner->spec->q_rank > 0) {
        weights->q_a = plan_linear(planner, SHARD_Q_A, layer, 0, ACCEPT_ALL);
        weights->q_a_norm = plan_vector(planner, SHARD_Q_A_NORM, layer);
        weights->q_b = plan_linear(planner, SHARD_Q_B, layer, 0, ACCEPT_ALL);
    } else {
        weights->q_b = plan_linear(planner, SHARD_Q_PROJ, layer, 0, ACCEPT_ALL);
    }
    weights->kv_a = plan_linear(planner, SHARD_KV_A, layer, 0, ACCEPT_ALL);
    weights->kv_a_norm = plan_vector(planner, SHARD_KV_A_NORM, layer);
    plan_kv_b(planner, layer, heads, weights);
    weights->o = plan_linear(planner, SHARD_O, layer, 0, ACCEPT_ALL);
}

static void plan_moe(struct planner *planner, uint32_t layer, struct moe_expert *experts,
                     struct layer_weights *weights) {
    const struct model_spec *spec = planner->spec;
    weights->router = plan_linear(planner, SHARD_ROUTER, layer, 0, ACCEPT_PLAIN);
    if (spec->scoring == MODEL_SCORING_SIGMOID)
        weights->router_bias = plan_vector(planner, SHARD_ROUTER_BIAS, layer);
    if (spec->shared_experts > 0) {
        weights->mlp_gate_up = plan_gate_up(planner, SHARD_SHARED_GATE, SHARD_SHARED_UP, layer, 0);
        weights->mlp_down = plan_linear(planner, SHARD_SHARED_DOWN, layer, 0, ACCEPT_ALL);
    }
    for (uint32_t e = 0; e < spec->experts && planner->plan.status == STATUS_OK; e++) {
        experts[e].gate_up = plan_gate_up(planner, SHARD_EXPERT_GATE, SHARD_EXPERT_UP, layer, e);
        experts[e].down = plan_linear(planner, SHARD_EXPERT_DOWN, layer, e, ACCEPT_ALL);
    }
    weights->experts = experts;
}

static void plan_layer(struct planner *planner, uint32_t layer, struct loaded *loaded) {
    struct layer_weights *weights = &loaded->weights.layer[layer];
    weights->input_norm = plan_vector(planner, SHARD_INPUT_NORM, layer);
    plan_attention(planner, layer, loaded->weights.heads, weights);
    weights->post_norm = plan_vector(planner, SHARD_POST_NORM, layer);
    weights->dense = layer < planner->spec->dense_layers;
    if (weights->dense) {
        weights->mlp_gate_up = plan_gate_up(planner, SHARD_DENSE_GATE, SHARD_DENSE_UP, layer, 0);
        weights->mlp_down = plan_linear(planner, SHARD_DENSE_DOWN, layer, 0, ACCEPT_ALL);
    } else {
        plan_moe(planner, layer, loaded->experts + (size_t)layer * planner->spec->experts, weights);
    }
}

static void plan_model(struct planner *planner, struct loaded *loaded) {
    const struct model_spec *spec = planner->spec;
    struct weights *weights = &loaded->weights;
    struct shard_slice rows = shard_slice(spec, SHARD_EMBED, planner->rank, planner->tp);
    weights->rank = planner->rank;
    weights->tp = planner->tp;
    weights->heads = spec->heads / planner->tp;
    weights->mlp_width = spec->dense_width / planner->tp;
    weights->shared_width = spec->shared_experts * spec->expert_width / planner->tp;
    weights->expert_width = spec->expert_width / planner->tp;
    weights->vocab_begin = rows.row_begin;
    weights->vocab_count = rows.row_count;
    weights->embed = plan_embed(planner, &weights->embed_dtype);
    for (uint32_t layer = 0; layer < spec->layers && planner->plan.status == STATUS_OK; layer++)
        plan_layer(planner, layer, loaded);
    weights->final_norm = plan_vector(planner, SHARD_FINAL_NORM, 0);
    weights->head = plan_linear(planner, SHARD_HEAD, 0, 0, ACCEPT_ALL);
}

static bool starts_with(const char **text, const char *prefix) {
    size_t length = strlen(prefix);
    if (strncmp(*text, prefix, length) != 0) return false;
    *text += length;
    return true;
}

/* Parts of a checkpoint that the text model does not need. */
static bool is_skipped(const struct model_spec *spec, const char *name) {
    if (strstr(name, ".rotary_emb.")) return true;
    starts_with(&name, "language_model.");
    if (starts_with(&name, "vision_tower.") || starts_with(&name, "mm_projector.")) return true;
    starts_with(&name, "model.");
    if (!starts_with(&name, "layers.")) return false;
    char *end;
    unsigned long layer = strtoul(name, &end, 10);
    return name[0] >= '0' && name[0] <= '9' && *end == '.' && layer >= spec->layers;
}

static void check_unclaimed(struct planner *planner) {
    if (planner->plan.status != STATUS_OK) return;
    for (uint32_t i = 0; i < safetensors_count(planner->plan.checkpoint); i++) {
        const struct tensor_info *tensor = safetensors_at(planner->plan.checkpoint, i);
        if (planner->plan.claimed[i] || is_skipped(planner->spec, tensor->name)) continue;
        planner->plan.status = error_set(planner->plan.err, STATUS_INVALID_ARGUMENT,
                                         "%s: tensor %s: is not part of the model that config.json "
                                         "describes",
                                         safetensors_path(planner->plan.checkpoint, tensor->file),
                                         tensor->name);
        return;
    }
}
