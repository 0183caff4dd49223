/* The model is walked as the loader walks it (worker/weights): the same tensors, the same fusions,
 * the same padding. A test holds the two together, byte for byte.
 *
 * The walk keeps its first failure in the pricer and does nothing more after it. */
#include "memory_weights.h"

#include "shard.h"

#define PANEL_ROWS  32u  /* outputs that lie side by side (kernels/kernel.h) */
#define ALIGN_BYTES 64u  /* of every weight in memory */
#define INT4_GROUP  32u  /* inputs that share a scale */
#define FP8_BLOCK   128u /* likewise, and outputs */
#define BF16_BYTES  2u
#define F32_BYTES   4u

enum stored { STORED_BF16, STORED_F16, STORED_F32, STORED_FP8, STORED_INT4 };

struct pricer {
    const struct memory_request *request;
    struct memory_plan *plan;
    uint32_t layout; /* of names, for shard_find */
    enum status status;
    struct error *err;
};

static bool is_expert(enum shard_tensor tensor) {
    return tensor == SHARD_EXPERT_GATE || tensor == SHARD_EXPERT_UP || tensor == SHARD_EXPERT_DOWN;
}

/* What published quantizations leave alone. */
static bool is_plain(enum shard_tensor tensor) {
    switch (tensor) {
    case SHARD_EMBED:
    case SHARD_HEAD:
    case SHARD_FINAL_NORM:
    case SHARD_INPUT_NORM:
    case SHARD_POST_NORM:
    case SHARD_Q_A_NORM:
    case SHARD_KV_A_NORM:
    case SHARD_ROUTER:
    case SHARD_ROUTER_BIAS: return true;
    default: return false;
    }
}

/* What published checkpoints of this quantization hold. */
static enum stored stored_by_config(const struct model_spec *spec, enum shard_tensor tensor) {
    if (tensor == SHARD_ROUTER_BIAS) return STORED_F32;
    if (spec->quantization == MODEL_QUANT_FP8_BLOCK128 && !is_plain(tensor)) return STORED_FP8;
    if (spec->quantization == MODEL_QUANT_INT4_GROUP32 && is_expert(tensor)) return STORED_INT4;
    return STORED_BF16;
}

static enum stored stored_of_dtype(struct pricer *pricer, const struct tensor_info *tensor) {
    switch (tensor->dtype) {
    case TENSOR_BF16: return STORED_BF16;
    case TENSOR_F16: return STORED_F16;
    case TENSOR_F32: return STORED_F32;
    case TENSOR_F8_E4M3: return STORED_FP8;
    default: break;
    }
    pricer->status = error_set(pricer->err, STATUS_INVALID_ARGUMENT,
                               "tensor %s: found dtype %s, accepted BF16, F16, F32 or F8_E4M3",
                               tensor->name, tensor_dtype_name(tensor->dtype));
    return STORED_BF16;
}

static enum stored find_stored(struct pricer *pricer, enum shard_tensor tensor, uint32_t layer,
                               uint32_t expert) {
    const struct safetensors *headers = pricer->request->tensors;
    if (!headers) return stored_by_config(pricer->request->spec, tensor);
    char module[SHARD_NAME_BYTES];
    shard_name(tensor, layer, expert, module, sizeof module);
    const char *suffix = tensor == SHARD_ROUTER_BIAS ? "" : ".weight";
    if (is_expert(tensor) && shard_find(headers, module, ".weight_packed", &pricer->layout))
        return STORED_INT4;
    const struct tensor_info *found = shard_find(headers, module, suffix, &pricer->layout);
    if (found) return stored_of_dtype(pricer, found);
    if (shard_find(headers, module, ".weight_packed", &pricer->layout)) return STORED_INT4;
    if (pricer->status == STATUS_OK)
        pricer->status = error_set(pricer->err, STATUS_NOT_FOUND,
                                   "the checkpoint lacks tensor %s%s, which config.json calls for",
                                   module, suffix);
    return STORED_BF16;
}

static uint64_t aligned(const struct pricer *pricer, uint64_t bytes) {
    if (pricer->request->layout == MEMORY_AS_STORED) return bytes;
    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

static uint64_t ceil_div(uint64_t value, uint64_t by) {
    return (value + by - 1) / by;
}

/* Outputs and inputs of a matrix on this rank, and what its values weigh. */
struct matrix {
    enum stored stored;
    uint64_t n, k;
    uint64_t data_bytes, scale_bytes;
};

static void weigh_as_stored(struct matrix *matrix) {
    uint64_t values = matrix->n * matrix->k;
    switch (matrix->stored) {
    case STORED_INT4:
        matrix->data_bytes = values / 2;
        matrix->scale_bytes = values / INT4_GROUP * BF16_BYTES;
        break;
    case STORED_FP8:
        matrix->data_bytes = values;
        matrix->scale_bytes = ceil_div(matrix->n, FP8_BLOCK) * ceil_div(matrix->k, FP8_BLOCK) *
                              F32_BYTES;
        break;
    case STORED_F32: matrix->data_bytes = values * F32_BYTES; break;
    case STORED_F16:
    case STORED_BF16: matrix->data_bytes = values * BF16_BYTES; break;
    }
}

static void weigh_in_panels(struct matrix *matrix) {
    uint64_t panels = ceil_div(matrix->n, PANEL_ROWS), values = panels * PANEL_ROWS * matrix->k;
    switch (matrix->stored) {
    case STORED_INT4:
        matrix->data_bytes = values / 2;
        matrix->scale_bytes = panels * PANEL_ROWS * (matrix->k / INT4_GROUP) * BF16_BYTES;
        break;
    case STORED_FP8:
        matrix->data_bytes = values;
        matrix->scale_bytes = panels * PANEL_ROWS * (matrix->k / FP8_BLOCK + 2) * F32_BYTES;
        break;
    case STORED_BF16: /* whole pairs of inputs */
        matrix->data_bytes = panels * PANEL_ROWS * (matrix->k + matrix->k % 2) * BF16_BYTES;
        break;
    case STORED_F16:
    case STORED_F32: matrix->data_bytes = values * F32_BYTES; break;
    }
}

static void weigh(const struct pricer *pricer, struct matrix *matrix) {
    if (pricer->request->layout == MEMORY_AS_STORED)
        weigh_as_stored(matrix);
    else
        weigh_in_panels(matrix);
}

static struct shard_slice slice_of(const struct pricer *pricer, enum shard_tensor tensor) {
    return shard_slice(pricer->request->spec, tensor, 0, pricer->request->tp);
}

static void count_parameters(struct pricer *pricer, const struct shard_slice *slice) {
    pricer->plan->parameters += (uint64_t)slice->rows * slice->columns;
}

static void fail_groups(struct pricer *pricer, enum shard_tensor tensor, uint32_t layer,
                        uint32_t expert, uint32_t columns) {
    char module[SHARD_NAME_BYTES];
    shard_name(tensor, layer, expert, module, sizeof module);
    pricer->status = error_set(pricer->err, STATUS_INVALID_ARGUMENT,
                               "--tp: found %u, which cuts the groups of %u inputs that share an "
                               "INT4 scale in %s of %u; accepted: fewer ranks",
                               pricer->request->tp, INT4_GROUP, module, columns);
}

/* `parts` matrices of tensor's size, one under the other. */
static void add_matrix(struct pricer *pricer, enum memory_line line, enum shard_tensor tensor,
                       uint32_t layer, uint32_t expert, uint32_t parts) {
    if (pricer->status != STATUS_OK) return;
    struct shard_slice slice = slice_of(pricer, tensor);
    struct matrix matrix = {.stored = find_stored(pricer, tensor, layer, expert),
                            .n = (uint64_t)slice.row_count * parts,
                            .k = slice.column_count};
    if (matrix.stored == STORED_INT4 && matrix.k % INT4_GROUP != 0) {
        fail_groups(pricer, tensor, layer, expert, slice.columns);
        return;
    }
    weigh(pricer, &matrix);
    enum memory_line scales = line == MEMORY_EXPERTS ? MEMORY_EXPERT_SCALES : line;
    pricer->plan->line[line] += aligned(pricer, matrix.data_bytes);
    pricer->plan->line[scales] += aligned(pricer, matrix.scale_bytes);
    for (uint32_t part = 0; part < parts; part++)
        count_parameters(pricer, &slice);
}

static void add_vector(struct pricer *pricer, enum memory_line line, enum shard_tensor tensor,
                       uint32_t layer) {
    if (pricer->status != STATUS_OK) return;
    struct shard_slice slice = slice_of(pricer, tensor);
    enum stored stored = find_stored(pricer, tensor, layer, 0);
    bool is_wide = stored == STORED_F32 || pricer->request->layout == MEMORY_PANELS;
    pricer->plan->line[line] += aligned(pricer, (uint64_t)slice.columns *
                                                    (is_wide ? F32_BYTES : BF16_BYTES));
    count_parameters(pricer, &slice);
}

/* Looked up, not multiplied: rows as they are; on the CPU f16 becomes f32. */
static void add_embed(struct pricer *pricer) {
    if (pricer->status != STATUS_OK) return;
    struct shard_slice slice = slice_of(pricer, SHARD_EMBED);
    enum stored stored = find_stored(pricer, SHARD_EMBED, 0, 0);
    bool is_wide = stored == STORED_F32 ||
                   (stored == STORED_F16 && pricer->request->layout == MEMORY_PANELS);
    uint64_t values = (uint64_t)slice.row_count * slice.column_count;
    pricer->plan->line[MEMORY_EMBED] += aligned(pricer,
                                                values * (is_wide ? F32_BYTES : BF16_BYTES));
    count_parameters(pricer, &slice);
}

/* On the CPU each head's part lies by itself, keys transposed; FP8 becomes f32 there. */
static void add_kv_b(struct pricer *pricer, uint32_t layer) {
    const struct model_spec *spec = pricer->request->spec;
    if (pricer->request->layout == MEMORY_AS_STORED) {
        add_matrix(pricer, MEMORY_ATTN_KV, SHARD_KV_B, layer, 0, 1);
        return;
    }
    if (pricer->status != STATUS_OK) return;
    struct shard_slice slice = slice_of(pricer, SHARD_KV_B);
    enum stored stored = find_stored(pricer, SHARD_KV_B, layer, 0);
    if (stored == STORED_FP8) stored = STORED_F32;
    uint64_t heads = spec->heads / pricer->request->tp;
    struct matrix keys = {.stored = stored, .n = spec->kv_rank, .k = spec->nope_dim};
    struct matrix values = {.stored = stored, .n = spec->value_dim, .k = spec->kv_rank};
    weigh(pricer, &keys);
    weigh(pricer, &values);
    pricer->plan->line[MEMORY_ATTN_KV] += aligned(pricer, heads * keys.data_bytes) +
                                          aligned(pricer, heads * values.data_bytes);
    count_parameters(pricer, &slice);
}

static void add_attention(struct pricer *pricer, uint32_t layer) {
    if (pricer->request->spec->q_rank > 0) {
        add_matrix(pricer, MEMORY_ATTN_DOWN, SHARD_Q_A, layer, 0, 1);
        add_vector(pricer, MEMORY_NORMS, SHARD_Q_A_NORM, layer);
        add_matrix(pricer, MEMORY_ATTN_Q, SHARD_Q_B, layer, 0, 1);
    } else {
        add_matrix(pricer, MEMORY_ATTN_Q, SHARD_Q_PROJ, layer, 0, 1);
    }
    add_matrix(pricer, MEMORY_ATTN_DOWN, SHARD_KV_A, layer, 0, 1);
    add_vector(pricer, MEMORY_NORMS, SHARD_KV_A_NORM, layer);
    add_kv_b(pricer, layer);
    add_matrix(pricer, MEMORY_ATTN_OUT, SHARD_O, layer, 0, 1);
}

static void add_moe(struct pricer *pricer, uint32_t layer) {
    const struct model_spec *spec = pricer->request->spec;
    add_matrix(pricer, MEMORY_ROUTER, SHARD_ROUTER, layer, 0, 1);
    if (spec->scoring == MODEL_SCORING_SIGMOID)
        add_vector(pricer, MEMORY_ROUTER, SHARD_ROUTER_BIAS, layer);
    if (spec->shared_experts > 0) {
        add_matrix(pricer, MEMORY_SHARED_EXPERTS, SHARD_SHARED_GATE, layer, 0, 2);
        add_matrix(pricer, MEMORY_SHARED_EXPERTS, SHARD_SHARED_DOWN, layer, 0, 1);
    }
    for (uint32_t expert = 0; expert < spec->experts; expert++) {
        add_matrix(pricer, MEMORY_EXPERTS, SHARD_EXPERT_GATE, layer, expert, 2);
        add_matrix(pricer, MEMORY_EXPERTS, SHARD_EXPERT_DOWN, layer, expert, 1);
    }
}

enum status memory_weights_add(const struct memory_request *request, struct memory_plan *plan,
                               struct error *err) {
    const struct model_spec *spec = request->spec;
    struct pricer pricer = {.request = request, .plan = plan, .err = err};
    add_embed(&pricer);
    for (uint32_t layer = 0; layer < spec->layers && pricer.status == STATUS_OK; layer++) {
        add_vector(&pricer, MEMORY_NORMS, SHARD_INPUT_NORM, layer);
        add_attention(&pricer, layer);
        add_vector(&pricer, MEMORY_NORMS, SHARD_POST_NORM, layer);
        if (layer < spec->dense_layers) {
            add_matrix(&pricer, MEMORY_DENSE, SHARD_DENSE_GATE, layer, 0, 2);
            add_matrix(&pricer, MEMORY_DENSE, SHARD_DENSE_DOWN, layer, 0, 1);
        } else {
            add_moe(&pricer, layer);
        }
    }
    add_vector(&pricer, MEMORY_NORMS, SHARD_FINAL_NORM, 0);
    add_matrix(&pricer, MEMORY_HEAD, SHARD_HEAD, 0, 0, 1);
    return pricer.status;
}
