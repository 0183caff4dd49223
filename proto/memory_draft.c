/* Sizes follow worker/drafter_weights and worker/drafter; a test holds them together. */
#include "memory_draft.h"

#include <stdio.h>

#define PANEL_ROWS      32u
#define ALIGN_BYTES     64u
#define PASS_ROWS       256u
#define HEAD_ROWS       64u
#define BLOCK_TOK       64u
#define QUERIES_MAX     1024u
#define TENSOR_NAME_MAX 96u
#define NO_LAYER        UINT32_MAX

static uint64_t aligned(uint64_t bytes) {
    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

/* ---- weights ------------------------------------------------------------------------------- */

static enum tensor_dtype stored_as(const struct memory_request *request, uint32_t layer,
                                   const char *module) {
    char name[TENSOR_NAME_MAX];
    if (!request->draft_tensors) return TENSOR_BF16;
    if (layer == NO_LAYER)
        snprintf(name, sizeof name, "%s.weight", module);
    else
        snprintf(name, sizeof name, "layers.%u.%s.weight", layer, module);
    const struct tensor_info *tensor = safetensors_find(request->draft_tensors, name);
    return tensor ? tensor->dtype : TENSOR_BF16;
}

static uint64_t matrix(const struct memory_request *request, uint32_t layer, const char *module,
                       uint64_t rows, uint64_t columns) {
    enum tensor_dtype dtype = stored_as(request, layer, module);
    if (request->layout == MEMORY_AS_STORED) return rows * columns * (dtype == TENSOR_F32 ? 4 : 2);
    uint64_t panel_rows = (rows + PANEL_ROWS - 1) / PANEL_ROWS * PANEL_ROWS;
    return aligned(panel_rows * columns * (dtype == TENSOR_BF16 ? 2 : 4));
}

static uint64_t vector(const struct memory_request *request, uint32_t layer, const char *module,
                       uint64_t size) {
    if (request->layout == MEMORY_PANELS) return aligned(size * sizeof(float));
    return size * (stored_as(request, layer, module) == TENSOR_F32 ? 4 : 2);
}

static uint64_t layer_bytes(const struct memory_request *request, uint32_t layer) {
    const struct drafter_spec *spec = request->draft;
    uint64_t hidden = spec->hidden, width = spec->width / request->tp;
    uint64_t queries = (uint64_t)spec->heads / request->tp * spec->head_dim;
    uint64_t keys = (uint64_t)spec->kv_heads / request->tp * spec->head_dim;
    return vector(request, layer, "input_layernorm", hidden) +
           matrix(request, layer, "self_attn.q_proj", queries, hidden) +
           matrix(request, layer, "self_attn.k_proj", keys, hidden) +
           matrix(request, layer, "self_attn.v_proj", keys, hidden) +
           vector(request, layer, "self_attn.q_norm", spec->head_dim) +
           vector(request, layer, "self_attn.k_norm", spec->head_dim) +
           matrix(request, layer, "self_attn.o_proj", hidden, queries) +
           vector(request, layer, "post_attention_layernorm", hidden) +
           matrix(request, layer, "mlp.gate_proj", 2 * width, hidden) +
           matrix(request, layer, "mlp.down_proj", hidden, width);
}

uint64_t memory_draft_weight_bytes(const struct memory_request *request) {
    const struct drafter_spec *spec = request->draft;
    if (!spec) return 0;
    uint64_t inputs = (uint64_t)spec->tap_count * spec->hidden / request->tp;
    uint64_t bytes = matrix(request, NO_LAYER, "fc", spec->hidden, inputs) +
                     vector(request, NO_LAYER, "hidden_norm", spec->hidden) +
                     vector(request, NO_LAYER, "norm", spec->hidden);
    for (uint32_t layer = 0; layer < spec->layers; layer++)
        bytes += layer_bytes(request, layer);
    return bytes;
}

/* ---- cache and activations ----------------------------------------------------------------- */

uint64_t memory_draft_record_bytes(const struct memory_request *request) {
    if (!request->draft) return 0;
    uint64_t heads = request->draft->kv_heads / request->tp;
    return 2 * heads * request->draft->head_dim * (request->kv == KV_F32 ? 4 : 2);
}

uint64_t memory_draft_workspace_bytes(const struct memory_request *request) {
    if (!request->draft || request->workspace_bytes > 0) return 0;
    uint64_t floats = 2 * (uint64_t)BLOCK_TOK * request->draft->head_dim + 2 * QUERIES_MAX;
    return aligned(request->threads * floats * sizeof(float));
}

static uint64_t floats(uint64_t rows, uint64_t width) {
    return aligned(rows * width * sizeof(float));
}

uint64_t memory_draft_scratch_bytes(const struct memory_request *request) {
    const struct drafter_spec *spec = request->draft;
    if (!spec) return 0;
    uint64_t tp = request->tp, queries = spec->heads / tp * spec->head_dim;
    uint64_t keys = spec->kv_heads / tp * spec->head_dim, width = spec->width / tp;
    uint64_t block_rows = (uint64_t)request->max_running * spec->block;
    uint64_t positions = block_rows - request->max_running;
    if (positions > DRAFT_POSITIONS_MAX) positions = DRAFT_POSITIONS_MAX;
    uint64_t found = tp * positions * 2 * (DRAFT_TOP_MAX + SUM_SEGMENTS / tp) * sizeof(uint32_t);
    return floats(request->step_rows, (uint64_t)spec->tap_count * spec->hidden / tp) +
           floats(request->step_rows, spec->head_dim) + floats(block_rows, spec->head_dim) +
           floats(positions, spec->hidden) + 3 * floats(PASS_ROWS, spec->hidden) +
           2 * floats(PASS_ROWS, queries) + 2 * floats(PASS_ROWS, keys) +
           floats(PASS_ROWS, 2 * width) + floats(PASS_ROWS, width) +
           floats(HEAD_ROWS, request->spec->vocab / tp) + aligned(found) +
           memory_draft_workspace_bytes(request);
}
