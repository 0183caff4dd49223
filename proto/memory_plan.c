#include "memory_plan.h"

#include <math.h>

#include "base/check.h"
#include "base/limits.h"
#include "memory_draft.h"
#include "memory_weights.h"

#define RESERVE_DIVISOR 64u /* of free memory, kept for what no line knows */

/* A layer's pages are mapped in such pieces (worker/kv_pool). */
#define KV_GRANULE (64u << 10)

/* Of a token in an FP8 cache (kernels/kv_store). */
#define FP8_GROUP 128u
#define FP8_ALIGN 16u

/* Of worker/scratch and of the ops' workspaces. */
#define SCRATCH_ALIGN  64u
#define HEAD_ROWS      64u
#define BLOCK_TOK      128u
#define BLOCK_QUERIES  128u
#define BLOCKS_WAITING 8u
#define GROUPS_SPLIT   2u
#define BF16_CHUNK     32u
#define SAMPLE_WORDS   4u
#define PANEL_OUTPUTS  32u
#define EXPANDED_ROWS  12u

/* Of worker/comm_shm. */
#define COMM_SLOT_BYTES  (1u << 20)
#define COMM_PIECE_BYTES ((64u << 10) + 64u)
#define COMM_PIECES      2u

const struct memory_line_info memory_line_info[MEMORY_LINE_COUNT] = {
    [MEMORY_EXPERTS] = {"experts", "routed experts", false, false},
    [MEMORY_EXPERT_SCALES] = {"expert_scales", "their scales", false, false},
    [MEMORY_ATTN_DOWN] = {"attn_down", "q_a, kv_a", true, false},
    [MEMORY_ATTN_Q] = {"attn_q", "q_b", false, false},
    [MEMORY_ATTN_KV] = {"attn_kv", "kv_b", false, false},
    [MEMORY_ATTN_OUT] = {"attn_out", "o_proj", false, false},
    [MEMORY_SHARED_EXPERTS] = {"shared_experts", "shared experts", false, false},
    [MEMORY_DENSE] = {"dense", "dense layers", false, false},
    [MEMORY_ROUTER] = {"router", "router", true, false},
    [MEMORY_NORMS] = {"norms", "norms", true, false},
    [MEMORY_EMBED] = {"embed", "embedding", false, false},
    [MEMORY_HEAD] = {"head", "head", false, false},
    [MEMORY_DRAFT_WEIGHTS] = {"draft_weights", "drafter", false, false},
    [MEMORY_KV_TARGET] = {"kv_target", "KV cache, target", true, false},
    [MEMORY_KV_DRAFT] = {"kv_draft", "KV cache, drafter", false, false},
    [MEMORY_PAGE_TABLE] = {"page_table", "page table", true, true},
    [MEMORY_ACTIVATIONS] = {"activations", "activations", false, false},
    [MEMORY_WORKSPACE] = {"verify_partials", "verify partials", false, false},
    [MEMORY_GRAPHS] = {"graphs", "graphs", false, false},
    [MEMORY_COMM] = {"comm", "comm", true, true},
};

static uint64_t max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* ---- the KV cache -------------------------------------------------------------------------- */

/* Of one layer. */
static uint64_t record_bytes(const struct memory_request *request) {
    const struct model_spec *spec = request->spec;
    uint64_t values = (uint64_t)spec->kv_rank + spec->rope_dim;
    switch (request->kv) {
    case KV_BF16: return values * 2;
    case KV_F32: return values * 4;
    case KV_FP8: break;
    }
    /* Latents as e4m3 with an f32 scale for each 128, the rotated key in bf16 (kv_store.h). */
    uint64_t scales = ((uint64_t)spec->kv_rank + FP8_GROUP - 1) / FP8_GROUP * sizeof(float);
    return (spec->kv_rank + scales + spec->rope_dim * 2ull + FP8_ALIGN - 1) / FP8_ALIGN * FP8_ALIGN;
}

static uint64_t target_token_bytes(const struct memory_request *request) {
    return record_bytes(request) * request->spec->layers;
}

/* By layers, a drafter's layer costs what one of the target's would. */
static uint64_t draft_record_bytes(const struct memory_request *request) {
    if (request->draft_as_target_layers) return record_bytes(request);
    return memory_draft_record_bytes(request);
}

static uint64_t draft_layers(const struct memory_request *request) {
    return request->draft ? request->draft->layers : 0;
}

static uint64_t draft_token_bytes(const struct memory_request *request) {
    return draft_record_bytes(request) * draft_layers(request);
}

static uint64_t granule(const struct memory_request *request) {
    return request->layout == MEMORY_PANELS ? KV_GRANULE : 1;
}

/* Of `layers` layers of records of this size. */
static uint64_t kv_bytes(const struct memory_request *request, uint64_t record, uint64_t layers,
                         uint64_t tok_count) {
    uint64_t unit = granule(request);
    return (record * tok_count + unit - 1) / unit * unit * layers;
}

static uint64_t target_kv_bytes(const struct memory_request *request, uint64_t tok_count) {
    return kv_bytes(request, record_bytes(request), request->spec->layers, tok_count);
}

static uint64_t draft_kv_bytes(const struct memory_request *request, uint64_t tok_count) {
    return kv_bytes(request, draft_record_bytes(request), draft_layers(request), tok_count);
}

uint64_t memory_plan_kv_bytes(const struct memory_request *request, uint64_t tok_count) {
    return target_kv_bytes(request, tok_count) + draft_kv_bytes(request, tok_count);
}

#define RUNNING_CAP_DEFAULT 32u /* as FLAG_MAX_RUNNING_CAP says */

uint32_t memory_plan_running(uint32_t running, uint32_t running_cap) {
    if (running_cap == 0) running_cap = RUNNING_CAP_DEFAULT;
    return running > running_cap ? running : running_cap;
}

uint64_t memory_plan_request_tok(const struct memory_request *request, uint64_t tok_count) {
    return (tok_count + request->page_tok - 1) / request->page_tok * request->page_tok;
}

/* The most whole pages that `bytes` hold. What mapping rounds up is less than a granule a layer, so
 * the search ends after a few pages. */
static uint64_t tokens_in(const struct memory_request *request, uint64_t bytes) {
    uint64_t token_bytes = target_token_bytes(request) + draft_token_bytes(request);
    uint64_t pages = bytes / token_bytes / request->page_tok;
    uint64_t pages_max = KV_PAGES_MAX;
    if (pages > pages_max) pages = pages_max;
    while (pages > 0 && memory_plan_kv_bytes(request, pages * request->page_tok) > bytes)
        pages--;
    return pages * request->page_tok;
}

/* ---- the rest ------------------------------------------------------------------------------ */

/* An array with the others behind it. */
static uint64_t array(uint64_t count, uint64_t element_bytes) {
    return (count * element_bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
}

static uint64_t attention_workspace(const struct memory_request *request) {
    const struct model_spec *spec = request->spec;
    uint64_t threads = request->threads, width = (uint64_t)spec->kv_rank + spec->rope_dim;
    return array(threads, BLOCK_QUERIES * width * sizeof(float)) +
           array(threads * BLOCK_TOK * width, 4) + array(threads * BLOCK_QUERIES * BLOCK_TOK, 4) +
           array(threads * BLOCKS_WAITING * BLOCK_QUERIES * ((uint64_t)spec->kv_rank + 2), 4) +
           array(threads * GROUPS_SPLIT * 2 * BLOCK_QUERIES, 4);
}

/* A block of one head, made from its latents by each thread; f32 or bf16, room for either. */
static uint64_t expanded_workspace(const struct memory_request *request) {
    const struct model_spec *spec = request->spec;
    uint64_t width = (uint64_t)spec->kv_rank + spec->rope_dim;
    uint64_t key = (uint64_t)spec->nope_dim + spec->rope_dim;
    uint64_t panels = ((uint64_t)spec->value_dim + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS;
    uint64_t thread = array((uint64_t)spec->nope_dim * spec->kv_rank, 4) +
                      array(BLOCK_TOK * width, 4) + array(BLOCK_TOK * spec->kv_rank, 4) +
                      array(BLOCK_TOK * key, 4) + array(BLOCK_TOK * panels * PANEL_OUTPUTS, 4) +
                      array(EXPANDED_ROWS * key, 4) + array(EXPANDED_ROWS * BLOCK_TOK, 4) +
                      2 * array(request->step_rows, 4);
    return request->threads * thread;
}

/* Values of a row that is kept as bf16. */
static uint64_t bf16_row(uint64_t count) {
    return (count + BF16_CHUNK - 1) / BF16_CHUNK * BF16_CHUNK;
}

/* Activations are f32 or bf16, as the group is told: room for either. */
static uint64_t experts_workspace(const struct memory_request *request) {
    const struct model_spec *spec = request->spec;
    uint64_t rows = request->step_rows, width = spec->expert_width / request->tp;
    uint64_t pairs = max_u64(rows * spec->topk, 1);
    uint64_t narrow = array(rows * bf16_row(spec->hidden), 2) + array(pairs * bf16_row(width), 2);
    return max_u64(array(pairs * width, 4), narrow) + array(pairs, 4) +
           array((uint64_t)spec->experts + 1, 4) + array(spec->experts, 4);
}

static uint64_t product_workspace(const struct memory_request *request) {
    const struct model_spec *spec = request->spec;
    uint64_t heads = spec->heads / request->tp;
    uint64_t shared = (uint64_t)spec->shared_experts * spec->expert_width;
    uint64_t widest = max_u64(heads * bf16_row(max_u64(spec->kv_rank, spec->nope_dim)),
                              heads * spec->value_dim);
    widest = max_u64(widest, max_u64(spec->hidden, spec->q_rank));
    widest = max_u64(widest, max_u64(spec->dense_width, shared) / request->tp);
    return request->step_rows * bf16_row(widest) * 2;
}

static uint64_t workspace_bytes(const struct memory_request *request) {
    if (request->workspace_bytes > 0) return request->workspace_bytes;
    uint64_t ids = (uint64_t)request->spec->vocab * SAMPLE_WORDS * sizeof(uint32_t);
    uint64_t attention = max_u64(attention_workspace(request), expanded_workspace(request));
    return max_u64(max_u64(attention, experts_workspace(request)),
                   max_u64(product_workspace(request), ids));
}

static uint64_t attention_bytes(const struct memory_request *request) {
    const struct model_spec *spec = request->spec;
    uint64_t rows = request->step_rows, row_heads = rows * (spec->heads / request->tp);
    return array(rows * spec->q_rank, 4) + array(row_heads * (spec->nope_dim + spec->rope_dim), 4) +
           array(rows * (spec->kv_rank + spec->rope_dim), 4) +
           2 * array(row_heads * spec->kv_rank, 4) + array(row_heads * spec->value_dim, 4);
}

static uint64_t mlp_bytes(const struct memory_request *request) {
    const struct model_spec *spec = request->spec;
    uint64_t rows = request->step_rows;
    uint64_t shared = (uint64_t)spec->shared_experts * spec->expert_width;
    uint64_t width = max_u64(spec->dense_width, shared) / request->tp;
    return array(rows * spec->experts, 4) + 2 * array(rows * spec->topk, 4) +
           array(SUM_SEGMENTS / request->tp * rows * spec->hidden, 4) + array(rows * 2 * width, 4) +
           array(rows * width, 4);
}

static uint64_t head_bytes(const struct memory_request *request) {
    const struct model_spec *spec = request->spec;
    return array((uint64_t)HEAD_ROWS * spec->hidden, 4) +
           array((uint64_t)HEAD_ROWS * spec->vocab, 4) + 2 * array(spec->vocab, 4);
}

static uint64_t activation_bytes(const struct memory_request *request) {
    const struct model_spec *spec = request->spec;
    uint64_t rows = request->step_rows;
    uint64_t by_turns = max_u64(max_u64(attention_bytes(request), mlp_bytes(request)),
                                head_bytes(request));
    return 3 * array(rows * spec->hidden, 4) + array(rows * spec->rope_dim, 4) + by_turns;
}

/* A slot's table has room for the longest context and a tree, but not for more than the pool. */
static uint64_t page_table_bytes(const struct memory_request *request, uint64_t pool_tok) {
    uint64_t pages = (request->context_len + TREE_ROWS_MAX + request->page_tok - 1) /
                     request->page_tok;
    uint64_t pool_pages = pool_tok / request->page_tok;
    if (pages > pool_pages) pages = pool_pages;
    return request->max_running * pages * sizeof(uint32_t);
}

static uint64_t comm_bytes(const struct memory_request *request) {
    uint64_t tp = request->tp;
    if (tp == 1) return 0;
    return 2 * (tp + 1) * COMM_SLOT_BYTES + tp * tp * COMM_PIECES * COMM_PIECE_BYTES;
}

/* All but the page table, which depends on the pool. */
static void add_rest(const struct memory_request *request, struct memory_plan *plan) {
    uint64_t draft_workspace = memory_draft_workspace_bytes(request);
    plan->line[MEMORY_WORKSPACE] = array(workspace_bytes(request), 1) + draft_workspace;
    plan->line[MEMORY_ACTIVATIONS] = activation_bytes(request) +
                                     memory_draft_scratch_bytes(request) - draft_workspace;
    plan->line[MEMORY_GRAPHS] = request->graph_bytes;
    plan->line[MEMORY_COMM] = comm_bytes(request);
}

/* ---- the pool ------------------------------------------------------------------------------ */

static uint64_t rest_bytes(const struct memory_plan *plan) {
    return plan->line[MEMORY_PAGE_TABLE] + plan->line[MEMORY_ACTIVATIONS] +
           plan->line[MEMORY_WORKSPACE] + plan->line[MEMORY_GRAPHS] + plan->line[MEMORY_COMM];
}

static uint64_t less(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

/* What weights and pool may take together. */
static uint64_t static_bytes(const struct memory_request *request, const struct memory_plan *plan) {
    if (request->fraction > 0) return (uint64_t)(request->fraction * (double)request->free_bytes);
    /* A table for the longest context: what the pool may need. */
    uint64_t table = page_table_bytes(request, UINT64_MAX / 2);
    return less(less(request->free_bytes, request->free_bytes / RESERVE_DIVISOR),
                rest_bytes(plan) + table);
}

static void size_pool(const struct memory_request *request, struct memory_plan *plan) {
    plan->pool_tok = request->pool_tok > 0 ? memory_plan_request_tok(request, request->pool_tok)
                                           : tokens_in(request, less(static_bytes(request, plan),
                                                                     plan->resident_bytes));
    plan->line[MEMORY_KV_TARGET] = target_kv_bytes(request, plan->pool_tok);
    plan->line[MEMORY_KV_DRAFT] = draft_kv_bytes(request, plan->pool_tok);
    plan->pool_bytes = plan->line[MEMORY_KV_TARGET] + plan->line[MEMORY_KV_DRAFT];
    plan->line[MEMORY_PAGE_TABLE] = page_table_bytes(request, plan->pool_tok);
}

static void balance(const struct memory_request *request, struct memory_plan *plan) {
    uint64_t taken = plan->resident_bytes + plan->pool_bytes;
    plan->other_bytes = rest_bytes(plan);
    plan->free_bytes = request->free_bytes;
    plan->headroom_bytes = less(request->free_bytes, taken);
    plan->shortfall_bytes = request->free_bytes > 0
                                ? less(taken + plan->other_bytes, request->free_bytes)
                                : 0;
    plan->fraction = request->fraction;
    if (request->fraction == 0 && request->free_bytes > 0)
        plan->fraction = (double)taken / (double)request->free_bytes;
}

enum status memory_plan_make(const struct memory_request *request, struct memory_plan *plan_out,
                             struct error *err) {
    CHECK(request->page_tok > 0 && request->step_rows > 0 && request->threads > 0);
    enum status status = model_spec_check_tp(request->spec, request->tp, err);
    if (status != STATUS_OK) return status;
    struct memory_plan plan = {0};
    status = memory_weights_add(request, &plan, err);
    if (status != STATUS_OK) return status;
    if (request->draft) status = drafter_spec_check_tp(request->draft, request->tp, err);
    if (status != STATUS_OK) return status;
    plan.line[MEMORY_DRAFT_WEIGHTS] = memory_draft_weight_bytes(request);
    for (int line = 0; line < MEMORY_WEIGHT_LINES; line++)
        plan.weight_bytes += plan.line[line];
    plan.resident_bytes = request->resident_bytes ? request->resident_bytes : plan.weight_bytes;
    plan.draft_token_bytes = draft_token_bytes(request);
    plan.token_bytes = target_token_bytes(request) + plan.draft_token_bytes;
    add_rest(request, &plan);
    size_pool(request, &plan);
    balance(request, &plan);
    *plan_out = plan;
    return STATUS_OK;
}

double memory_plan_fraction_for(const struct memory_request *request,
                                const struct memory_plan *plan, uint64_t tok_count) {
    CHECK(request->free_bytes > 0);
    uint64_t bytes = plan->resident_bytes +
                     memory_plan_kv_bytes(request, memory_plan_request_tok(request, tok_count));
    return ceil(1000.0 * (double)bytes / (double)request->free_bytes) / 1000.0;
}
