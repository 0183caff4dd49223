#include "shard.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"

/* Indexed by enum shard_tensor. */
static const struct {
    enum { OF_MODEL, OF_LAYER, OF_EXPERT } scope;
    const char *name; /* below the layer's or expert's prefix */
    enum shard_split split;
} tensors[SHARD_TENSOR_COUNT] = {
    [SHARD_EMBED] = {OF_MODEL, "model.embed_tokens", SHARD_ROWS},
    [SHARD_HEAD] = {OF_MODEL, "lm_head", SHARD_ROWS},
    [SHARD_FINAL_NORM] = {OF_MODEL, "model.norm", SHARD_WHOLE},
    [SHARD_INPUT_NORM] = {OF_LAYER, "input_layernorm", SHARD_WHOLE},
    [SHARD_POST_NORM] = {OF_LAYER, "post_attention_layernorm", SHARD_WHOLE},
    [SHARD_Q_PROJ] = {OF_LAYER, "self_attn.q_proj", SHARD_ROWS},
    [SHARD_Q_A] = {OF_LAYER, "self_attn.q_a_proj", SHARD_WHOLE},
    [SHARD_Q_A_NORM] = {OF_LAYER, "self_attn.q_a_layernorm", SHARD_WHOLE},
    [SHARD_Q_B] = {OF_LAYER, "self_attn.q_b_proj", SHARD_ROWS},
    [SHARD_KV_A] = {OF_LAYER, "self_attn.kv_a_proj_with_mqa", SHARD_WHOLE},
    [SHARD_KV_A_NORM] = {OF_LAYER, "self_attn.kv_a_layernorm", SHARD_WHOLE},
    [SHARD_KV_B] = {OF_LAYER, "self_attn.kv_b_proj", SHARD_ROWS},
    [SHARD_O] = {OF_LAYER, "self_attn.o_proj", SHARD_COLUMNS},
    [SHARD_DENSE_GATE] = {OF_LAYER, "mlp.gate_proj", SHARD_ROWS},
    [SHARD_DENSE_UP] = {OF_LAYER, "mlp.up_proj", SHARD_ROWS},
    [SHARD_DENSE_DOWN] = {OF_LAYER, "mlp.down_proj", SHARD_COLUMNS},
    [SHARD_ROUTER] = {OF_LAYER, "mlp.gate", SHARD_WHOLE},
    [SHARD_ROUTER_BIAS] = {OF_LAYER, "mlp.gate.e_score_correction_bias", SHARD_WHOLE},
    [SHARD_SHARED_GATE] = {OF_LAYER, "mlp.shared_experts.gate_proj", SHARD_ROWS},
    [SHARD_SHARED_UP] = {OF_LAYER, "mlp.shared_experts.up_proj", SHARD_ROWS},
    [SHARD_SHARED_DOWN] = {OF_LAYER, "mlp.shared_experts.down_proj", SHARD_COLUMNS},
    [SHARD_EXPERT_GATE] = {OF_EXPERT, "gate_proj", SHARD_ROWS},
    [SHARD_EXPERT_UP] = {OF_EXPERT, "up_proj", SHARD_ROWS},
    [SHARD_EXPERT_DOWN] = {OF_EXPERT, "down_proj", SHARD_COLUMNS},
};

void shard_name(enum shard_tensor tensor, uint32_t layer, uint32_t expert, char *name_out,
                uint32_t name_bytes) {
    CHECK(tensor < SHARD_TENSOR_COUNT);
    const char *name = tensors[tensor].name;
    int length = 0;
    switch (tensors[tensor].scope) {
    case OF_MODEL: length = snprintf(name_out, name_bytes, "%s", name); break;
    case OF_LAYER:
        length = snprintf(name_out, name_bytes, "model.layers.%u.%s", layer, name);
        break;
    case OF_EXPERT:
        length = snprintf(name_out, name_bytes, "model.layers.%u.mlp.experts.%u.%s", layer, expert,
                          name);
        break;
    }
    CHECK(length > 0 && (uint32_t)length < name_bytes);
}

const struct tensor_info *shard_find(const struct safetensors *checkpoint, const char *module,
                                     const char *suffix, uint32_t *layout) {
    static const struct {
        const char *prefix;
        bool drop_model;
    } layouts[] = {{"", false}, {"language_model.", false}, {"language_model.", true}};
    static const char inner[] = "model.";
    const uint32_t count = sizeof layouts / sizeof *layouts;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = (*layout + i) % count;
        const char *tail = module;
        if (layouts[at].drop_model && strncmp(module, inner, sizeof inner - 1) == 0)
            tail = module + sizeof inner - 1;
        char name[SHARD_NAME_BYTES];
        int length = snprintf(name, sizeof name, "%s%s%s", layouts[at].prefix, tail, suffix);
        CHECK(length > 0 && (uint32_t)length < sizeof name);
        const struct tensor_info *tensor = safetensors_find(checkpoint, name);
        if (!tensor) continue;
        *layout = at;
        return tensor;
    }
    return NULL;
}

struct size {
    uint32_t rows, columns;
};

static struct size whole_size(const struct model_spec *spec, enum shard_tensor tensor) {
    uint32_t query_dim = spec->heads * (spec->nope_dim + spec->rope_dim);
    uint32_t shared_width = spec->shared_experts * spec->expert_width;
    switch (tensor) {
    case SHARD_EMBED:
    case SHARD_HEAD: return (struct size){spec->vocab, spec->hidden};
    case SHARD_FINAL_NORM:
    case SHARD_INPUT_NORM:
    case SHARD_POST_NORM: return (struct size){1, spec->hidden};
    case SHARD_Q_PROJ: return (struct size){query_dim, spec->hidden};
    case SHARD_Q_A: return (struct size){spec->q_rank, spec->hidden};
    case SHARD_Q_A_NORM: return (struct size){1, spec->q_rank};
    case SHARD_Q_B: return (struct size){query_dim, spec->q_rank};
    case SHARD_KV_A: return (struct size){spec->kv_rank + spec->rope_dim, spec->hidden};
    case SHARD_KV_A_NORM: return (struct size){1, spec->kv_rank};
    case SHARD_KV_B:
        return (struct size){spec->heads * (spec->nope_dim + spec->value_dim), spec->kv_rank};
    case SHARD_O: return (struct size){spec->hidden, spec->heads * spec->value_dim};
    case SHARD_DENSE_GATE:
    case SHARD_DENSE_UP: return (struct size){spec->dense_width, spec->hidden};
    case SHARD_DENSE_DOWN: return (struct size){spec->hidden, spec->dense_width};
    case SHARD_ROUTER: return (struct size){spec->experts, spec->hidden};
    case SHARD_ROUTER_BIAS: return (struct size){1, spec->experts};
    case SHARD_SHARED_GATE:
    case SHARD_SHARED_UP: return (struct size){shared_width, spec->hidden};
    case SHARD_SHARED_DOWN: return (struct size){spec->hidden, shared_width};
    case SHARD_EXPERT_GATE:
    case SHARD_EXPERT_UP: return (struct size){spec->expert_width, spec->hidden};
    case SHARD_EXPERT_DOWN: return (struct size){spec->hidden, spec->expert_width};
    case SHARD_TENSOR_COUNT: break; /* no tensor; the caller checks */
    }
    return (struct size){0, 0};
}

struct shard_slice shard_slice(const struct model_spec *spec, enum shard_tensor tensor,
                               uint32_t rank, uint32_t tp) {
    CHECK(tensor < SHARD_TENSOR_COUNT && rank < tp);
    struct size size = whole_size(spec, tensor);
    struct shard_slice slice = {
        .split = tensors[tensor].split,
        .rows = size.rows,
        .columns = size.columns,
        .row_count = size.rows,
        .column_count = size.columns,
    };
    if (slice.split == SHARD_ROWS) {
        CHECK(size.rows % tp == 0);
        slice.row_count = size.rows / tp;
        slice.row_begin = rank * slice.row_count;
    } else if (slice.split == SHARD_COLUMNS) {
        CHECK(size.columns % tp == 0);
        slice.column_count = size.columns / tp;
        slice.column_begin = rank * slice.column_count;
    }
    return slice;
}
