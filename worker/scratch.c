#include "scratch.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "device.h"
#include "memory_fill.h"
#include "mla_expanded/mla_expanded.h"
#include "mla_tree/mla_tree.h"
#include "sample/sample.h"

#define SCRATCH_ALIGN 64u

/* The same walk measures (base NULL) and places. */
struct layout {
    uint8_t *base;
    size_t at;
};

static size_t lay_out(struct scratch *scratch, uint8_t *base, const struct weights *weights,
                      size_t rows);
static size_t lay_out_attention(struct scratch *scratch, struct layout layout,
                                const struct weights *weights, size_t rows);
static size_t lay_out_mlp(struct scratch *scratch, struct layout layout,
                          const struct weights *weights, size_t rows);
static size_t lay_out_head(struct scratch *scratch, struct layout layout,
                           const struct weights *weights);
static size_t cpu_workspace_bytes(const struct weights *weights, uint32_t rows, uint32_t threads);
static uint32_t widest_input(const struct weights *weights);
static void *take(struct layout *layout, size_t count, size_t element_bytes);
static size_t max_size(size_t a, size_t b);

/* Huge pages, as the rows of a tile are pages apart. */
static bool fill(void *memory, size_t bytes) {
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    return memory_fill(memory, bytes);
}

enum status scratch_init(struct scratch *scratch, const struct weights *weights, uint32_t rows_max,
                         uint32_t threads, struct error *err) {
    *scratch = (struct scratch){.workspace_bytes = cpu_workspace_bytes(weights, rows_max, threads)};
    size_t bytes = lay_out(scratch, NULL, weights, rows_max);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || !fill(memory, bytes)) {
        int cause = errno;
        if (memory != MAP_FAILED) munmap(memory, bytes);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                         "%zu bytes for activations of steps of %u rows: %s", bytes, rows_max,
                         strerror(cause));
    }
    lay_out(scratch, memory, weights, rows_max);
    scratch->memory = memory;
    scratch->bytes = bytes;
    return STATUS_OK;
}

enum status scratch_init_on(struct scratch *scratch, struct device *device,
                            const struct weights *weights, uint32_t rows_max,
                            size_t workspace_bytes, struct error *err) {
    *scratch = (struct scratch){.device = device, .workspace_bytes = workspace_bytes};
    size_t bytes = lay_out(scratch, NULL, weights, rows_max);
    enum status status = device_take(device, bytes, "activations", &scratch->memory, err);
    if (status != STATUS_OK) return status;
    lay_out(scratch, scratch->memory, weights, rows_max);
    scratch->bytes = bytes;
    return STATUS_OK;
}

void scratch_deinit(struct scratch *scratch) {
    if (scratch->device)
        device_give(scratch->device, scratch->memory);
    else if (scratch->memory)
        munmap(scratch->memory, scratch->bytes);
    *scratch = (struct scratch){0};
}

static size_t lay_out(struct scratch *scratch, uint8_t *base, const struct weights *weights,
                      size_t rows) {
    const struct model_spec *spec = &weights->spec;
    struct layout layout = {.base = base};
    scratch->x = take(&layout, rows * spec->hidden, sizeof(float));
    scratch->h = take(&layout, rows * spec->hidden, sizeof(float));
    scratch->delta = take(&layout, rows * spec->hidden, sizeof(float));
    scratch->cos_sin = take(&layout, rows * spec->rope_dim, sizeof(float));
    scratch->workspace = take(&layout, scratch->workspace_bytes, 1);
    size_t end = lay_out_attention(scratch, layout, weights, rows);
    end = max_size(end, lay_out_mlp(scratch, layout, weights, rows));
    return max_size(end, lay_out_head(scratch, layout, weights));
}

static size_t lay_out_attention(struct scratch *scratch, struct layout layout,
                                const struct weights *weights, size_t rows) {
    const struct model_spec *spec = &weights->spec;
    size_t row_heads = rows * weights->heads;
    scratch->q_a = take(&layout, rows * spec->q_rank, sizeof(float));
    scratch->q = take(&layout, row_heads * (spec->nope_dim + spec->rope_dim), sizeof(float));
    scratch->kv = take(&layout, rows * (spec->kv_rank + spec->rope_dim), sizeof(float));
    scratch->q_latent = take(&layout, row_heads * spec->kv_rank, sizeof(float));
    scratch->o_latent = take(&layout, row_heads * spec->kv_rank, sizeof(float));
    scratch->o = take(&layout, row_heads * spec->value_dim, sizeof(float));
    return layout.at;
}

static size_t lay_out_mlp(struct scratch *scratch, struct layout layout,
                          const struct weights *weights, size_t rows) {
    const struct model_spec *spec = &weights->spec;
    size_t width = max_size(weights->mlp_width, weights->shared_width);
    size_t segments = KERNEL_SEGMENTS / weights->tp;
    scratch->router_logits = take(&layout, rows * spec->experts, sizeof(float));
    scratch->expert = take(&layout, rows * spec->topk, sizeof(uint32_t));
    scratch->expert_weight = take(&layout, rows * spec->topk, sizeof(float));
    scratch->expert_y = take(&layout, segments * rows * spec->hidden, sizeof(float));
    scratch->gate_up = take(&layout, rows * 2 * width, sizeof(float));
    scratch->act = take(&layout, rows * width, sizeof(float));
    return layout.at;
}

static size_t lay_out_head(struct scratch *scratch, struct layout layout,
                           const struct weights *weights) {
    const struct model_spec *spec = &weights->spec;
    scratch->head_x = take(&layout, (size_t)SCRATCH_HEAD_ROWS * spec->hidden, sizeof(float));
    scratch->head_logits = take(
        &layout, (size_t)weights->tp * SCRATCH_HEAD_ROWS * weights->vocab_count, sizeof(float));
    scratch->row_logits = take(&layout, spec->vocab, sizeof(float));
    scratch->penalized = take(&layout, spec->vocab, sizeof(float));
    return layout.at;
}

static size_t cpu_workspace_bytes(const struct weights *weights, uint32_t rows, uint32_t threads) {
    const struct model_spec *spec = &weights->spec;
    size_t bytes = mla_tree_scratch_bytes(threads, spec->kv_rank, spec->rope_dim);
    bytes = max_size(bytes, mla_expanded_scratch_bytes(threads, rows, spec->kv_rank, spec->rope_dim,
                                                       spec->nope_dim, spec->value_dim));
    bytes = max_size(bytes, moe_experts_scratch_bytes(rows, spec->topk, spec->experts, spec->hidden,
                                                      weights->expert_width));
    /* Rows of INT8 are narrower. */
    bytes = max_size(bytes, linear_scratch_bytes(KERNEL_BF16, rows, widest_input(weights)));
    return max_size(bytes, sample_scratch_bytes(spec->vocab));
}

/* Inputs of the product of a row that has most; of products per head all heads count, each padded
 * to whole chunks. */
static uint32_t widest_input(const struct weights *weights) {
    const struct model_spec *spec = &weights->spec;
    uint32_t widest_head = spec->kv_rank > spec->nope_dim ? spec->kv_rank : spec->nope_dim;
    size_t heads = weights->heads * linear_row_bytes(KERNEL_BF16, widest_head) / sizeof(bf16);
    size_t widest = max_size(heads, (size_t)weights->heads * spec->value_dim);
    widest = max_size(widest, max_size(spec->hidden, spec->q_rank));
    return (uint32_t)max_size(widest, max_size(weights->mlp_width, weights->shared_width));
}

static void *take(struct layout *layout, size_t count, size_t element_bytes) {
    size_t at = layout->at;
    layout->at += (count * element_bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
    return layout->base ? layout->base + at : NULL;
}

static size_t max_size(size_t a, size_t b) {
    return a > b ? a : b;
}
