#include "ledger.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/check.h"
#include "base/log.h"
#include "device.h"
#include "drafter.h"
#include "memory_info.h"

/* How far a line may be off, and by how much at least: memory comes in pages. */
#define OFF_PERCENT_MAX 3
#define OFF_BYTES_MIN   (64u << 10)

/* ---- planned ------------------------------------------------------------------------------- */

void ledger_init(struct ledger *ledger, const struct ledger_rank *rank) {
    *ledger = (struct ledger){
        .rank = *rank,
        .before_bytes = rank->device             ? rank->device->free_bytes
                        : rank->device_bytes > 0 ? rank->device_bytes
                                                 : memory_info_available() / rank->tp,
    };
}

/* Without a size of its own and a fraction to take of it, a rank holds what it is asked to. */
static uint64_t memory_of(const struct ledger *ledger, uint32_t mem_fraction) {
    bool has_own = ledger->rank.device || ledger->rank.device_bytes > 0;
    return has_own || mem_fraction > 0 ? ledger->before_bytes : 0;
}

/* What says how much the rank has. */
static const char *source(const struct ledger *ledger) {
    return ledger->rank.device ? "--device cuda" : "--device-memory";
}

static enum status fail_pool(const struct ledger *ledger, struct error *err) {
    const struct memory_plan *plan = &ledger->plan;
    uint64_t static_bytes = (uint64_t)(plan->fraction * (double)plan->free_bytes);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                     "%s: found %" PRIu64 " bytes, of which weights and pool may take %" PRIu64
                     "; accepted: the weights' %" PRIu64 ", and a page of the KV cache, beside "
                     "%" PRIu64 " for the rest",
                     source(ledger), plan->free_bytes, static_bytes, plan->weight_bytes,
                     plan->other_bytes);
}

enum status ledger_plan(struct ledger *ledger, const struct control_welcome *welcome,
                        struct error *err) {
    const struct ledger_rank *rank = &ledger->rank;
    ledger->request = (struct memory_request){
        .spec = &rank->checkpoint->spec,
        .tensors = rank->checkpoint->tensors,
        .draft = rank->drafter ? &rank->drafter->spec : NULL,
        .draft_tensors = rank->drafter ? rank->drafter->tensors : NULL,
        .layout = MEMORY_PANELS,
        .kv = welcome->kv_dtype,
        .tp = rank->tp,
        .threads = rank->threads,
        .context_len = welcome->context_len,
        .page_tok = welcome->page_tok,
        .max_running = welcome->max_sequences,
        .step_rows = welcome->max_rows,
        .free_bytes = memory_of(ledger, welcome->mem_fraction),
        .fraction = (double)welcome->mem_fraction / FRACTION_ONE,
        .workspace_bytes = rank->workspace_bytes,
    };
    struct memory_request *request = &ledger->request;
    uint64_t wanted_tok = (uint64_t)welcome->page_count * welcome->page_tok;
    if (request->free_bytes == 0) request->pool_tok = wanted_tok;
    enum status status = memory_plan_make(request, &ledger->plan, err);
    if (status != STATUS_OK) return status;
    if (ledger->plan.pool_tok == 0) return fail_pool(ledger, err);
    if (ledger->plan.pool_tok > wanted_tok) {
        request->pool_tok = wanted_tok;
        status = memory_plan_make(request, &ledger->plan, err);
    }
    ledger->pages_had = ledger_page_count(ledger);
    return status;
}

uint32_t ledger_page_count(const struct ledger *ledger) {
    return (uint32_t)(ledger->plan.pool_tok / ledger->request.page_tok);
}

static uint32_t fraction_needed(const struct memory_request *request,
                                const struct memory_plan *plan) {
    if (plan->pool_tok >= request->context_len || request->free_bytes == 0) return 0;
    double fraction = memory_plan_fraction_for(request, plan, request->context_len);
    return fraction <= 1 ? (uint32_t)(fraction * FRACTION_ONE + 0.5) : 0;
}

uint32_t ledger_fraction_needed(const struct ledger *ledger) {
    return fraction_needed(&ledger->request, &ledger->plan);
}

/* ---- planned anew -------------------------------------------------------------------------- */

/* The request's model and split have been planned before: what could be refused was. */
static struct memory_plan plan_again(const struct memory_request *request) {
    struct memory_plan plan;
    struct error err;
    CHECK(memory_plan_make(request, &plan, &err) == STATUS_OK);
    return plan;
}

void ledger_size(const struct ledger *ledger, uint32_t mem_fraction, uint32_t *page_count_out,
                 uint32_t *fraction_needed_out) {
    struct memory_request request = ledger->request;
    request.free_bytes = ledger->before_bytes;
    request.fraction = (double)mem_fraction / FRACTION_ONE;
    request.pool_tok = 0;
    const struct memory_plan plan = plan_again(&request);
    *page_count_out = (uint32_t)(plan.pool_tok / request.page_tok);
    *fraction_needed_out = fraction_needed(&request, &plan);
}

static enum status refuse_larger(const struct ledger *ledger, const struct memory_request *request,
                                 const struct memory_plan *plan, struct error *err) {
    struct memory_request fits = *request;
    fits.pool_tok = 0;
    fits.fraction = 0;
    return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                     "%s: found %" PRIu64 " bytes; a pool of %" PRIu64 " tokens needs %" PRIu64
                     " more; accepted: up to %" PRIu64 " tokens",
                     source(ledger), request->free_bytes, request->pool_tok, plan->shortfall_bytes,
                     plan_again(&fits).pool_tok);
}

/* A larger pool's page tables stay as they were touched. */
static void keep_tables(struct ledger *ledger, uint64_t bytes) {
    ledger->plan.other_bytes += bytes - ledger->plan.line[MEMORY_PAGE_TABLE];
    ledger->plan.line[MEMORY_PAGE_TABLE] = bytes;
}

enum status ledger_replan(struct ledger *ledger, uint32_t page_count, struct error *err) {
    struct memory_request request = ledger->request;
    request.pool_tok = (uint64_t)page_count * request.page_tok;
    const struct memory_plan plan = plan_again(&request);
    if (plan.shortfall_bytes > 0 && page_count > ledger->pages_had)
        return refuse_larger(ledger, &request, &plan, err);
    uint64_t tables = ledger->plan.line[MEMORY_PAGE_TABLE];
    ledger->request = request;
    ledger->plan = plan;
    if (page_count > ledger->pages_had) ledger->pages_had = page_count;
    if (plan.line[MEMORY_PAGE_TABLE] < tables) keep_tables(ledger, tables);
    return STATUS_OK;
}

/* ---- measured ------------------------------------------------------------------------------ */

/* A device has what it gave. */
static uint64_t resident(const struct ledger *ledger, const void *memory, size_t bytes) {
    return ledger->rank.device ? bytes : memory_info_resident(memory, bytes);
}

static void add(struct ledger *ledger, enum memory_line line, const void *memory, size_t bytes) {
    if (memory && bytes > 0) ledger->measured[line] += resident(ledger, memory, bytes);
}

static void add_linear(struct ledger *ledger, enum memory_line line,
                       const struct linear_weight *weight, uint32_t batch) {
    enum memory_line scales = line == MEMORY_EXPERTS ? MEMORY_EXPERT_SCALES : line;
    add(ledger, line, weight->data,
        batch * linear_data_bytes(weight->format, weight->n, weight->k));
    add(ledger, scales, weight->scale,
        batch * linear_scale_bytes(weight->format, weight->n, weight->k));
}

static void add_vector(struct ledger *ledger, enum memory_line line, const float *vector,
                       uint32_t count) {
    add(ledger, line, vector, count * sizeof(float));
}

static void add_layer(struct ledger *ledger, const struct weights *weights,
                      const struct layer_weights *layer) {
    const struct model_spec *spec = &weights->spec;
    add_vector(ledger, MEMORY_NORMS, layer->input_norm, spec->hidden);
    add_vector(ledger, MEMORY_NORMS, layer->post_norm, spec->hidden);
    add_vector(ledger, MEMORY_NORMS, layer->q_a_norm, spec->q_rank);
    add_vector(ledger, MEMORY_NORMS, layer->kv_a_norm, spec->kv_rank);
    if (spec->q_rank > 0) add_linear(ledger, MEMORY_ATTN_DOWN, &layer->q_a, 1);
    add_linear(ledger, MEMORY_ATTN_DOWN, &layer->kv_a, 1);
    add_linear(ledger, MEMORY_ATTN_Q, &layer->q_b, 1);
    add_linear(ledger, MEMORY_ATTN_KV, &layer->w_uk, weights->heads);
    add_linear(ledger, MEMORY_ATTN_KV, &layer->w_uv, weights->heads);
    add_linear(ledger, MEMORY_ATTN_OUT, &layer->o, 1);
    enum memory_line mlp = layer->dense ? MEMORY_DENSE : MEMORY_SHARED_EXPERTS;
    if (layer->mlp_down.n > 0) {
        add_linear(ledger, mlp, &layer->mlp_gate_up, 1);
        add_linear(ledger, mlp, &layer->mlp_down, 1);
    }
    if (layer->dense) return;
    add_linear(ledger, MEMORY_ROUTER, &layer->router, 1);
    add_vector(ledger, MEMORY_ROUTER, layer->router_bias, spec->experts);
    for (uint32_t e = 0; e < spec->experts; e++) {
        add_linear(ledger, MEMORY_EXPERTS, &layer->experts[e].gate_up, 1);
        add_linear(ledger, MEMORY_EXPERTS, &layer->experts[e].down, 1);
    }
}

static void add_weights(struct ledger *ledger, const struct weights *weights) {
    const struct model_spec *spec = &weights->spec;
    size_t value_bytes = weights->embed_dtype == KERNEL_BF16 ? sizeof(bf16) : sizeof(float);
    add(ledger, MEMORY_EMBED, weights->embed,
        (size_t)weights->vocab_count * spec->hidden * value_bytes);
    for (uint32_t layer = 0; layer < spec->layers; layer++)
        add_layer(ledger, weights, &weights->layer[layer]);
    add_vector(ledger, MEMORY_NORMS, weights->final_norm, spec->hidden);
    add_linear(ledger, MEMORY_HEAD, &weights->head, 1);
}

static void add_drafter_weights(struct ledger *ledger, const struct drafter_weights *weights) {
    const struct drafter_spec *spec = &weights->spec;
    add_linear(ledger, MEMORY_DRAFT_WEIGHTS, &weights->fc, 1);
    add_vector(ledger, MEMORY_DRAFT_WEIGHTS, weights->hidden_norm, spec->hidden);
    add_vector(ledger, MEMORY_DRAFT_WEIGHTS, weights->norm, spec->hidden);
    for (uint32_t i = 0; i < spec->layers; i++) {
        const struct drafter_layer_weights *layer = &weights->layer[i];
        const struct linear_weight *const parts[] = {&layer->q, &layer->k,       &layer->v,
                                                     &layer->o, &layer->gate_up, &layer->down};
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++)
            add_linear(ledger, MEMORY_DRAFT_WEIGHTS, parts[p], 1);
        add_vector(ledger, MEMORY_DRAFT_WEIGHTS, layer->input_norm, spec->hidden);
        add_vector(ledger, MEMORY_DRAFT_WEIGHTS, layer->post_norm, spec->hidden);
        add_vector(ledger, MEMORY_DRAFT_WEIGHTS, layer->q_norm, spec->head_dim);
        add_vector(ledger, MEMORY_DRAFT_WEIGHTS, layer->k_norm, spec->head_dim);
    }
}

static void add_pool(struct ledger *ledger, enum memory_line line, const struct kv_pool *kv,
                     uint32_t layers) {
    for (uint32_t layer = 0; layer < layers; layer++)
        add(ledger, line, kv_pool_layer(kv, layer), kv_pool_layer_bytes(kv));
}

/* Scratch, of which the workspace is a line of its own. */
static void add_scratch(struct ledger *ledger, const void *scratch, size_t bytes,
                        const void *workspace, size_t workspace_bytes) {
    uint64_t part = resident(ledger, workspace, workspace_bytes);
    ledger->measured[MEMORY_WORKSPACE] += part;
    ledger->measured[MEMORY_ACTIVATIONS] += resident(ledger, scratch, bytes) - part;
}

/* Nothing predicts them: the plan has what they took. */
static void keep_graphs(struct ledger *ledger, uint64_t bytes) {
    ledger->plan.other_bytes += bytes - ledger->plan.line[MEMORY_GRAPHS];
    ledger->plan.line[MEMORY_GRAPHS] = ledger->measured[MEMORY_GRAPHS] = bytes;
    ledger->request.graph_bytes = bytes;
}

static void add_engine(struct ledger *ledger, const struct engine *engine) {
    struct engine_memory memory = engine_memory(engine);
    add_pool(ledger, MEMORY_KV_TARGET, memory.kv, ledger->request.spec->layers);
    if (!ledger->rank.device) /* its page tables come with each step */
        add(ledger, MEMORY_PAGE_TABLE, memory.page_tables, memory.page_tables_bytes);
    add_scratch(ledger, memory.scratch->memory, memory.scratch->bytes, memory.scratch->workspace,
                memory.scratch->workspace_bytes);
    add(ledger, MEMORY_COMM, memory.comm, memory.comm_bytes);
    keep_graphs(ledger, memory.graph_bytes);
    if (!memory.drafter) return;
    struct drafter_memory draft = drafter_memory(memory.drafter);
    add_pool(ledger, MEMORY_KV_DRAFT, draft.kv, ledger->request.draft->layers);
    add_scratch(ledger, draft.scratch, draft.scratch_bytes, draft.workspace, draft.workspace_bytes);
}

static uint64_t device_left(const struct ledger *ledger) {
    uint64_t free_bytes, total_bytes;
    ledger->rank.device->ops->memory_left(ledger->rank.device, &free_bytes, &total_bytes);
    return free_bytes < ledger->before_bytes ? free_bytes : ledger->before_bytes;
}

void ledger_measure(struct ledger *ledger, const struct weights *weights,
                    const struct drafter_weights *drafter, const struct engine *engine) {
    for (int line = 0; line < MEMORY_WEIGHT_LINES; line++)
        ledger->measured[line] = 0;
    add_weights(ledger, weights);
    if (drafter) add_drafter_weights(ledger, drafter);
    ledger_measure_engine(ledger, engine);
}

void ledger_measure_engine(struct ledger *ledger, const struct engine *engine) {
    for (int line = MEMORY_WEIGHT_LINES; line < MEMORY_LINE_COUNT; line++)
        ledger->measured[line] = 0;
    add_engine(ledger, engine);
    ledger->process_bytes = ledger->rank.device ? ledger->before_bytes - device_left(ledger)
                                                : memory_info_process_resident();
}

static uint64_t measured_bytes(const struct ledger *ledger) {
    uint64_t bytes = 0;
    for (int line = 0; line < MEMORY_LINE_COUNT; line++)
        bytes += ledger->measured[line];
    return bytes;
}

uint64_t ledger_free_bytes(const struct ledger *ledger) {
    uint64_t taken = measured_bytes(ledger), has = ledger->request.free_bytes;
    if (ledger->rank.device) return device_left(ledger);
    if (has == 0) return memory_info_available();
    return has > taken ? has - taken : 0;
}

/* ---- told ---------------------------------------------------------------------------------- */

static bool is_off(const struct ledger *ledger, enum memory_line line) {
    uint64_t predicted = ledger->plan.line[line], measured = ledger->measured[line];
    if (measured < predicted && memory_line_info[line].at_most) return false;
    uint64_t off = measured > predicted ? measured - predicted : predicted - measured;
    return off > OFF_BYTES_MIN && off * 100 > predicted * OFF_PERCENT_MAX;
}

static void log_line(const struct ledger *ledger, enum memory_line line) {
    uint64_t predicted = ledger->plan.line[line], measured = ledger->measured[line];
    if (predicted == 0 && measured == 0) return;
    double percent = predicted > 0
                         ? 100.0 * ((double)measured - (double)predicted) / (double)predicted
                         : 100.0;
    log_write(is_off(ledger, line) ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, "memory",
              "line=%s predicted_bytes=%" PRIu64 " measured_bytes=%" PRIu64 " off_percent=%.1f%s",
              memory_line_info[line].key, predicted, measured, percent,
              memory_line_info[line].at_most ? " at_most=1" : "");
}

/* The pool is what the fraction gives, and no other limit is less. */
static bool follows_fraction(const struct ledger *ledger) {
    if (ledger->request.fraction == 0) return false;
    uint32_t page_count, needed;
    ledger_size(ledger, (uint32_t)(ledger->request.fraction * FRACTION_ONE + 0.5), &page_count,
                &needed);
    return page_count == ledger_page_count(ledger);
}

static void log_total(const struct ledger *ledger) {
    uint64_t measured = measured_bytes(ledger);
    uint64_t residual = ledger->process_bytes > measured ? ledger->process_bytes - measured : 0;
    char fraction[48] = "";
    if (follows_fraction(ledger))
        snprintf(fraction, sizeof fraction, " mem_fraction_static=%.6g", ledger->request.fraction);
    log_info("memory_total",
             "pool_tokens=%" PRIu64 " predicted_bytes=%" PRIu64 " measured_bytes=%" PRIu64
             " resident_bytes=%" PRIu64 " residual_bytes=%" PRIu64 "%s",
             ledger->plan.pool_tok,
             ledger->plan.weight_bytes + ledger->plan.pool_bytes + ledger->plan.other_bytes,
             measured, ledger->process_bytes, residual, fraction);
    if (ledger->plan.shortfall_bytes > 0)
        log_warn("memory_short",
                 "reason=\"weights and pool leave %" PRIu64 " bytes of --device-memory, and the "
                 "rest needs %" PRIu64 "\"",
                 ledger->plan.headroom_bytes, ledger->plan.other_bytes);
}

void ledger_log(const struct ledger *ledger) {
    for (int line = 0; line < MEMORY_LINE_COUNT; line++)
        log_line(ledger, line);
    log_total(ledger);
}

void ledger_log_pool(const struct ledger *ledger) {
    for (int line = MEMORY_KV_TARGET; line <= MEMORY_PAGE_TABLE; line++)
        log_line(ledger, line);
    log_total(ledger);
}
