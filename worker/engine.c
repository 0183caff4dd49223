#include "engine.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "cpus.h"
#include "device.h"
#include "drafter.h"
#include "inspection.h"
#include "kv_shadow.h"
#include "model.h"
#include "penalties.h"
#include "sampler.h"
#include "step_graph.h"
#include "team.h"

/* What a device is waited for. The coordinator's usual patience is shorter, and ends the
 * generation. */
#define STEP_WAIT_MS 120000u

struct engine {
    struct engine_options options;
    const struct weights *weights;
    struct kernel_team *team;
    struct kernel_ctx ctx;
    struct scratch scratch;
    struct kv_pool *kv;
    struct kv_shadow *shadow; /* NULL without options.shadow_hash */
    struct penalties *penalties;
    struct step *step;
    struct sampler *sampler;
    struct drafter *drafter;    /* NULL without options.drafter */
    struct step_graphs *graphs; /* NULL without a device */
    uint64_t graph_bytes;       /* that they took of it */
    double *inv_freq;
    struct model model;
    struct device_bounds bounds; /* of steps */
    float *capture;              /* the caller's, or NULL */

    /* What other threads may ask for while a step runs. The compute thread alone changes comm, so
     * it reads it without the lock. */
    pthread_mutex_t lock;
    struct comm *comm;
    struct engine_progress progress;
    struct engine_numbers numbers;
};

static enum status check_options(const struct weights *weights,
                                 const struct engine_options *options, struct error *err);
static enum status create_parts(struct engine *engine, struct error *err);
static enum status create_drafter(struct engine *engine, struct error *err);
static void make_model(struct engine *engine);
static void leave_group(struct engine *engine);
static enum status run_step(struct engine *engine, const struct step_plan *plan,
                            struct step_result *result_out, struct error *err);
static enum status go_on(struct engine *engine, const struct step_plan *plan,
                         const struct model_sequences *sequences, const struct step_final *final,
                         struct step_result *result_out, struct error *err);
static const struct kv_page_copy *put_copies(const struct engine *engine,
                                             const struct kv_page_copy *copy, uint32_t count);
static void copy_pages(const struct engine *engine, const struct kv_page_copy *copy,
                       const struct kv_page_copy *copy_of_ops, uint32_t count);
static void move_tokens(const struct engine *engine, const struct kv_slot_move *moves,
                        uint32_t count);

enum status engine_create(const struct weights *weights, const struct engine_options *options,
                          struct engine **engine_out, struct error *err) {
    enum status status = check_options(weights, options, err);
    if (status != STATUS_OK) return status;
    struct engine *engine = calloc(1, sizeof *engine);
    if (!engine) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for an engine");
    engine->options = *options;
    if (options->page_cap < options->page_count) engine->options.page_cap = options->page_count;
    engine->weights = weights;
    CHECK(pthread_mutex_init(&engine->lock, NULL) == 0);
    engine->bounds = engine_bounds(&engine->options);
    status = create_parts(engine, err);
    if (status != STATUS_OK) {
        engine_destroy(&engine);
        return status;
    }
    make_model(engine);
    engine->numbers.kv_bytes = kv_pool_bytes(engine->kv);
    engine->numbers.scratch_bytes = engine->scratch.bytes;
    *engine_out = engine;
    return STATUS_OK;
}

void engine_destroy(struct engine **engine) {
    if (!*engine) return;
    leave_group(*engine);
    drafter_destroy(&(*engine)->drafter);
    sampler_destroy(&(*engine)->sampler);
    step_graphs_destroy(&(*engine)->graphs, (*engine)->model.device);
    step_destroy(&(*engine)->step);
    penalties_destroy(&(*engine)->penalties);
    kv_shadow_destroy(&(*engine)->shadow);
    kv_pool_destroy(&(*engine)->kv);
    scratch_deinit(&(*engine)->scratch);
    team_destroy(&(*engine)->team);
    free((*engine)->inv_freq);
    pthread_mutex_destroy(&(*engine)->lock);
    free(*engine);
    *engine = NULL;
}

/* On a device first nothing may wait for a peer any more, then what holds the communicator's work
 * goes, then it. */
static void leave_group(struct engine *engine) {
    if (engine->comm && engine->graphs) {
        comm_abort(engine->comm);
        step_graphs_drop(engine->graphs, engine->model.device);
    }
    pthread_mutex_lock(&engine->lock);
    struct comm *comm = engine->comm;
    engine->comm = NULL;
    pthread_mutex_unlock(&engine->lock); /* closing may take long, and others look in meanwhile */
    comm_close(&comm);
}

void engine_set_group(struct engine *engine, uint64_t generation, struct comm *comm) {
    if (comm)
        CHECK(comm_size(comm) == engine->weights->tp && comm_rank(comm) == engine->weights->rank);
    leave_group(engine);
    pthread_mutex_lock(&engine->lock);
    engine->comm = comm;
    engine->progress = (struct engine_progress){
        .generation = generation, .collective_ns = engine->numbers.all_reduce_times.sum_ns};
    pthread_mutex_unlock(&engine->lock);
    if (comm && engine->model.device) comm_use(comm, engine->model.device->stream, STEP_WAIT_MS);
    step_restart(engine->step, generation);
}

enum status engine_step(struct engine *engine, const struct step_plan *plan,
                        struct step_result *result_out, struct error *err) {
    int64_t begin_ns = clock_now_ns();
    *result_out = (struct step_result){
        .generation = plan->generation, .step = plan->step, .rank = engine->weights->rank};
    enum status status = run_step(engine, plan, result_out, err);
    if (status != STATUS_OK)
        return error_wrap(err, status, "rank %u step %" PRIu64, engine->weights->rank, plan->step);
    result_out->compute_ns = (uint64_t)(clock_now_ns() - begin_ns);
    pthread_mutex_lock(&engine->lock);
    engine->progress.step = plan->step;
    comm_take_times(engine->comm, &engine->numbers.all_reduce_times);
    engine->progress.collective_ns = engine->numbers.all_reduce_times.sum_ns;
    histogram_take(&engine->numbers.step_times, result_out->compute_ns);
    pthread_mutex_unlock(&engine->lock);
    return STATUS_OK;
}

void engine_capture_logits(struct engine *engine, float *logits) {
    engine->capture = logits;
}

void engine_capture_residual(struct engine *engine, float *residual) {
    engine->model.capture = residual;
}

void engine_abort(struct engine *engine) {
    pthread_mutex_lock(&engine->lock);
    if (engine->comm) comm_abort(engine->comm);
    pthread_mutex_unlock(&engine->lock);
}

struct engine_progress engine_progress(const struct engine *engine) {
    pthread_mutex_t *lock = (pthread_mutex_t *)&engine->lock;
    pthread_mutex_lock(lock);
    struct engine_progress progress = engine->progress;
    if (engine->comm) progress.collective_seq = comm_sequence(engine->comm);
    pthread_mutex_unlock(lock);
    return progress;
}

struct engine_numbers engine_numbers(const struct engine *engine) {
    pthread_mutex_t *lock = (pthread_mutex_t *)&engine->lock;
    pthread_mutex_lock(lock);
    struct engine_numbers numbers = engine->numbers;
    pthread_mutex_unlock(lock);
    return numbers;
}

struct engine_memory engine_memory(const struct engine *engine) {
    struct engine_memory memory = {
        .kv = engine->kv, .scratch = &engine->scratch, .drafter = engine->drafter};
    memory.page_tables = step_page_tables(engine->step, &memory.page_tables_bytes);
    memory.graph_bytes = engine->graph_bytes;
    if (engine->comm) memory.comm = comm_memory(engine->comm, &memory.comm_bytes);
    return memory;
}

uint64_t engine_bytes(const struct engine *engine) {
    uint64_t drafter = engine->drafter ? drafter_bytes(engine->drafter) : 0;
    return kv_pool_bytes(engine->kv) + engine->scratch.bytes + drafter;
}

/* ============================== making ======================================================== */

static enum status check_options(const struct weights *weights,
                                 const struct engine_options *options, struct error *err) {
    const struct {
        const char *name;
        uint64_t value, max;
    } bounds[] = {
        {"threads", options->threads, TEAM_THREADS_MAX},
        {"max_rows", options->max_rows, PLAN_ROWS_MAX},
        {"max_sequences", options->max_sequences, PLAN_SEQS_MAX},
        {"page_tok", options->page_tok, KV_PAGE_TOK_MAX},
        {"page_count", options->page_count, KV_PAGES_MAX},
        {"context_len", options->context_len, weights->spec.context_max},
    };
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++)
        if (bounds[i].value < 1 || bounds[i].value > bounds[i].max)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "%s is %" PRIu64 ", of 1 to %" PRIu64 " here", bounds[i].name,
                             bounds[i].value, bounds[i].max);
    if (options->kv_dtype < KV_BF16 || options->kv_dtype > KV_FP8)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "kv_dtype is %d, of 0 (bf16), 1 (f32) and 2 (fp8)",
                         (int)options->kv_dtype);
    if (options->activation_dtype < ACTIVATION_F32 || options->activation_dtype > ACTIVATION_INT8)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "activation_dtype is %d, of 0 (f32), 1 (bf16) and 2 (int8)",
                         (int)options->activation_dtype);
    if (options->prefill_form != PREFILL_ABSORBED && options->prefill_form != PREFILL_EXPANDED)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "prefill_form is %d, of 0 (absorbed) and 1 (expanded)",
                         (int)options->prefill_form);
    return STATUS_OK;
}

static enum kernel_dtype kv_dtype_of(const struct engine_options *options) {
    static const enum kernel_dtype dtype[] = {
        [KV_BF16] = KERNEL_BF16, [KV_F32] = KERNEL_F32, [KV_FP8] = KERNEL_FP8};
    return dtype[options->kv_dtype];
}

/* A look at the pool may be longer than any sequence. */
struct device_bounds engine_bounds(const struct engine_options *options) {
    static const enum kernel_dtype activation[] = {[ACTIVATION_F32] = KERNEL_F32,
                                                   [ACTIVATION_BF16] = KERNEL_BF16,
                                                   [ACTIVATION_INT8] = KERNEL_INT8};
    return (struct device_bounds){
        .rows_max = options->max_rows,
        .sequences_max = options->max_sequences,
        .positions_max = max_u32(options->context_len + TREE_ROWS_MAX,
                                 options->page_cap * options->page_tok),
        .activation = activation[options->activation_dtype],
        .kv_dtype = kv_dtype_of(options),
    };
}

/* A look's page table is one of the whole pool, a step's are not. */
static struct device_bounds step_bounds(const struct engine *engine) {
    struct device_bounds steps = engine->bounds;
    steps.positions_max = engine->options.context_len + TREE_ROWS_MAX;
    return steps;
}

#define INPUT_SLACK (4 * DEVICE_INPUT_ALIGN) /* copies and moves are two puts more */

static enum status create_scratch(struct engine *engine, struct error *err) {
    const struct engine_options *options = &engine->options;
    struct device *device = options->device;
    const struct device_bounds *bounds = &engine->bounds;
    size_t workspace_bytes;
    if (!device)
        return scratch_init(&engine->scratch, engine->weights, options->max_rows, options->threads,
                            err);
    if (options->prefill_form == PREFILL_EXPANDED)
        return error_set(err, STATUS_UNIMPLEMENTED,
                         "--device cuda: --prefill-form expanded, accepted: absorbed");
    enum status status = device->workspace_bytes(device->kernel, engine->weights, options->drafter,
                                                 bounds, &workspace_bytes, err);
    if (status == STATUS_OK)
        status = scratch_init_on(&engine->scratch, device, engine->weights, options->max_rows,
                                 workspace_bytes, err);
    if (status != STATUS_OK) return status;
    const struct device_bounds steps = step_bounds(engine);
    size_t bytes = model_input_bytes(&engine->weights->spec, &steps, options->page_tok) +
                   options->page_cap * sizeof(uint32_t) +
                   sampler_input_bytes(engine->weights->spec.vocab, bounds) +
                   PLAN_EXTENTS_MAX * sizeof(struct kv_page_copy) +
                   options->max_rows * sizeof(struct kv_slot_move) + INPUT_SLACK;
    if (options->drafter) bytes += drafter_input_bytes(&options->drafter->spec, bounds);
    return device_reserve_input(device, bytes, err);
}

static enum status create_parts(struct engine *engine, struct error *err) {
    const struct engine_options *options = &engine->options;
    const struct weights *weights = engine->weights;
    const struct model_spec *spec = &weights->spec;
    const struct kv_pool_shape shape = {
        .layers = spec->layers,
        .page_tok = options->page_tok,
        .tok_bytes = kv_tok_bytes(kv_dtype_of(options), spec->kv_rank, spec->rope_dim),
        .device = options->device,
    };
    const struct step_limits limits = {
        .rows_max = options->max_rows,
        .slot_count = options->max_sequences,
        .page_tok = options->page_tok,
        .page_count = options->page_count,
        .page_cap = options->page_cap,
        .context_len = options->context_len,
        .vocab = spec->vocab,
        .draft_len = options->drafter ? options->drafter->spec.block - 1 : 0,
    };
    engine->inv_freq = calloc(spec->rope_dim / 2, sizeof *engine->inv_freq);
    engine->team = team_create(options->threads, cpus_spin_budget(options->threads, weights->tp));
    if (!engine->inv_freq || !engine->team)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a team of %u threads",
                         options->threads);
    enum status status = create_scratch(engine, err);
    if (status == STATUS_OK) status = kv_pool_create(&shape, &engine->kv, err);
    if (status == STATUS_OK) status = kv_pool_resize(engine->kv, options->page_count, err);
    if (status == STATUS_OK && options->shadow_hash)
        status = kv_shadow_create(options->page_cap, options->page_tok, &engine->shadow, err);
    if (status == STATUS_OK)
        status = penalties_create(&(struct penalties_shape){.page_count = options->page_cap,
                                                            .page_tok = options->page_tok,
                                                            .slot_count = options->max_sequences,
                                                            .vocab = spec->vocab},
                                  &engine->penalties, err);
    if (status == STATUS_OK)
        status = step_create(&limits, engine->shadow, engine->penalties, &engine->step, err);
    if (status == STATUS_OK)
        status = sampler_create(&(struct sampler_shape){.device = options->device,
                                                        .sequences_max = options->max_sequences,
                                                        .rows_max = options->max_rows},
                                engine->penalties, &engine->sampler, err);
    if (status == STATUS_OK && options->drafter) status = create_drafter(engine, err);
    if (status == STATUS_OK && options->device) {
        struct device_bounds bounds = step_bounds(engine);
        status = step_graphs_create(&bounds, &engine->graphs, err);
    }
    return status;
}

static enum status create_drafter(struct engine *engine, struct error *err) {
    const struct engine_options *options = &engine->options;
    const struct weights *weights = engine->weights;
    if (weights->vocab_count < DRAFT_TOP_MAX)
        return error_set(err, STATUS_UNIMPLEMENTED,
                         "a drafter, and a rank has %u tokens of the vocabulary, at least %u",
                         weights->vocab_count, DRAFT_TOP_MAX);
    return drafter_create(options->drafter,
                          &(struct drafter_options){
                              .device = options->device,
                              .threads = options->threads,
                              .max_rows = options->max_rows,
                              .max_sequences = options->max_sequences,
                              .page_tok = options->page_tok,
                              .page_count = options->page_count,
                              .page_cap = options->page_cap,
                              .kv_dtype = options->kv_dtype == KV_F32 ? KERNEL_F32 : KERNEL_BF16,
                              .vocab_count = weights->vocab_count,
                              .window = options->draft_window,
                              .shadow_hash = options->shadow_hash,
                          },
                          &engine->drafter, err);
}

static void make_model(struct engine *engine) {
    const struct engine_options *options = &engine->options;
    struct device *device = options->device;
    model_spec_inv_freq(&engine->weights->spec, engine->inv_freq);
    engine->ctx = (struct kernel_ctx){.team = engine->team,
                                      .scratch = engine->scratch.workspace,
                                      .scratch_bytes = engine->scratch.workspace_bytes,
                                      .stream = device ? device->stream : NULL,
                                      .device = device ? device->kernel : NULL};
    engine->model = (struct model){
        .device = device,
        .backend = device ? device->backend : &backend_cpu,
        .ctx = &engine->ctx,
        .weights = engine->weights,
        .scratch = &engine->scratch,
        .kv = engine->kv,
        .kv_dtype = engine->bounds.kv_dtype,
        .activation = engine->bounds.activation,
        .prefill_form = options->prefill_form,
        .page_tok = options->page_tok,
        .segments = KERNEL_SEGMENTS / engine->weights->tp,
        .softmax_scale = model_spec_softmax_scale(&engine->weights->spec),
        .inv_freq = engine->inv_freq,
        .drafter = engine->drafter,
    };
}

/* ============================== stepping ====================================================== */

/* NULL: the step is launched op by op. What tests look at between ops is not in a graph. */
static const struct step_graph *find_graph(const struct engine *engine,
                                           const struct step_plan *plan) {
    bool watched = engine->capture || engine->model.capture;
    return engine->graphs && !watched ? step_graphs_find(engine->graphs, plan) : NULL;
}

/* Copies of pages, then the rows. *sequences_out: as they were put. *head_rows_out: of so many
 * there are logits already. */
static enum status forward(struct engine *engine, const struct step_plan *plan,
                           const struct step_batch *batch, struct model_sequences *sequences_out,
                           uint32_t *head_rows_out, struct error *err) {
    const struct model *model = &engine->model;
    const struct step_graph *graph = find_graph(engine, plan);
    const struct model_shape shape = graph ? *step_graph_shape(graph) : model_shape_of(batch);
    device_begin(model->device);
    const struct model_input input = model_put(model, batch, &shape);
    const struct kv_page_copy *copies = put_copies(engine, batch->copy, batch->copy_count);
    enum status status = device_send(model->device, err);
    if (status != STATUS_OK) return status;
    if (batch->copy_count > 0) copy_pages(engine, batch->copy, copies, batch->copy_count);
    *sequences_out = input.sequences;
    *head_rows_out = graph ? shape.rows : 0;
    if (graph) return step_graph_run(graph, model, &input, engine->comm, err);
    return batch->rows > 0 ? model_forward(model, &input, engine->comm, err) : STATUS_OK;
}

static enum status run_step(struct engine *engine, const struct step_plan *plan,
                            struct step_result *result_out, struct error *err) {
    struct comm *comm = engine->comm;
    if (!comm)
        return error_set(err, STATUS_FAILED_PRECONDITION, "a plan, and this rank is in no group");
    const struct step_batch *batch = NULL;
    enum status status = step_check(engine->step, plan, err);
    if (status == STATUS_OK) status = step_begin(engine->step, plan, &batch, err);
    if (status != STATUS_OK) return status;
    struct model_sequences sequences;
    uint32_t head_rows = 0;
    status = forward(engine, plan, batch, &sequences, &head_rows, err);
    if (status == STATUS_OK && engine->capture)
        status = sampler_logits(&engine->model, batch->rows, comm, engine->capture, err);
    if (status == STATUS_OK)
        status = sampler_draw(engine->sampler, &engine->model, plan, batch, head_rows, comm,
                              result_out, err);
    if (status != STATUS_OK) return status;
    const struct step_final *final = step_commit(engine->step, plan, result_out);
    result_out->state_hash = final->state_hash;
    return go_on(engine, plan, &sequences, final, result_out, err);
}

static enum status draft(struct engine *engine, const struct step_plan *plan,
                         struct step_result *result_out, struct error *err) {
    /* Guesses need no speed of bf16, and the widest input of a drafter is not in our workspace. */
    struct model model = engine->model;
    model.activation = KERNEL_F32;
    enum status status = drafter_keep(engine->drafter, &model, engine->comm, err);
    if (status != STATUS_OK || plan->draft_top == 0) return status;
    int64_t begin_ns = clock_now_ns();
    status = drafter_guess(engine->drafter, &model, plan, engine->comm, result_out, err);
    result_out->draft_ns = (uint64_t)(clock_now_ns() - begin_ns);
    return status;
}

/* From what the step committed: tokens of walks move together, and the drafter goes on. */
static enum status go_on(struct engine *engine, const struct step_plan *plan,
                         const struct model_sequences *sequences, const struct step_final *final,
                         struct step_result *result_out, struct error *err) {
    struct device *device = engine->model.device;
    const struct kv_slot_move *moves = device_put(device, final->move,
                                                  final->move_count * sizeof *moves);
    enum status status = STATUS_OK;
    if (engine->drafter)
        status = drafter_put(engine->drafter, plan, engine->step, final, sequences, err);
    if (status == STATUS_OK) status = device_send(device, err);
    if (status != STATUS_OK) return status;
    if (final->move_count > 0) move_tokens(engine, moves, final->move_count);
    return engine->drafter ? draft(engine, plan, result_out, err) : STATUS_OK;
}

/* ============================== another size ================================================== */

#define MOVES_AT_A_TIME 64u

static enum status check_resize(const struct engine *engine, uint32_t page_count,
                                const struct page_move *move, uint32_t move_count,
                                struct error *err) {
    uint32_t now = kv_pool_pages(engine->kv);
    if (page_count < 1 || page_count > engine->options.page_cap)
        return error_set(err, STATUS_INVALID_ARGUMENT, "a pool of %u pages, of 1 to %u here",
                         page_count, engine->options.page_cap);
    for (uint32_t i = 0; i < move_count; i++)
        if (move[i].source >= now || move[i].target >= now || move[i].source == move[i].target)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "move %u of page %u to page %u, of two pages below %u", i,
                             move[i].source, move[i].target, now);
    return STATUS_OK;
}

enum status engine_resize(struct engine *engine, uint32_t page_count, const struct page_move *move,
                          uint32_t move_count, struct error *err) {
    enum status status = check_resize(engine, page_count, move, move_count, err);
    if (status != STATUS_OK) return status;
    for (uint32_t done = 0; done < move_count; done += MOVES_AT_A_TIME) {
        struct kv_page_copy copy[MOVES_AT_A_TIME];
        uint32_t count = move_count - done < MOVES_AT_A_TIME ? move_count - done : MOVES_AT_A_TIME;
        for (uint32_t i = 0; i < count; i++)
            copy[i] = (struct kv_page_copy){.source = move[done + i].source,
                                            .target = move[done + i].target,
                                            .tok_count = engine->options.page_tok};
        device_begin(engine->model.device);
        const struct kv_page_copy *copies = put_copies(engine, copy, count);
        status = device_send(engine->model.device, err);
        if (status != STATUS_OK) return status;
        copy_pages(engine, copy, copies, count);
        if (engine->shadow) kv_shadow_copy(engine->shadow, copy, count);
        penalties_copy(engine->penalties, copy, count);
    }
    uint32_t before = kv_pool_pages(engine->kv);
    status = kv_pool_resize(engine->kv, page_count, err);
    if (status == STATUS_OK && engine->drafter) {
        status = drafter_resize(engine->drafter, page_count, err);
        struct error ignored; /* what was had a moment ago */
        if (status != STATUS_OK) CHECK(kv_pool_resize(engine->kv, before, &ignored) == STATUS_OK);
    }
    if (status != STATUS_OK) return status;
    step_resize(engine->step, page_count);
    pthread_mutex_lock(&engine->lock);
    engine->numbers.kv_bytes = kv_pool_bytes(engine->kv);
    pthread_mutex_unlock(&engine->lock);
    return STATUS_OK;
}

/* ============================== looking at itself ============================================= */

enum status engine_self_test(struct engine *engine, struct self_test_progress *progress,
                             struct error *err) {
    const struct engine_options *options = &engine->options;
    enum status status = self_test_attention(&engine->model, options->context_len,
                                             options->max_rows, progress, err);
    if (status == STATUS_OK) status = self_test_pool(engine->kv, "the cache", progress, err);
    if (status == STATUS_OK && engine->drafter)
        status = self_test_pool(drafter_memory(engine->drafter).kv, "the drafter's cache", progress,
                                err);
    progress->rung = SELF_TEST_NONE;
    return status;
}

enum status engine_test_group(struct engine *engine, struct self_test_progress *progress,
                              struct error *err) {
    progress->percent = 0;
    progress->rung = SELF_TEST_COLLECTIVE;
    enum status status = self_test_collective(&engine->model, engine->options.max_rows,
                                              engine->comm, err);
    progress->rung = SELF_TEST_NONE;
    return status;
}

enum status engine_capture_steps(struct engine *engine, struct error *err) {
    if (!engine->graphs) return STATUS_OK;
    uint64_t before, after, total;
    struct device *device = engine->model.device;
    int64_t begin_ns = clock_now_ns();
    device->ops->memory_left(device, &before, &total);
    enum status status = step_graphs_capture(engine->graphs, &engine->model, engine->comm, err);
    if (status != STATUS_OK)
        return error_wrap(err, status,
                          "rank %u, whose pool (--mem-fraction-static) left %" PRIu64 " MB",
                          engine->weights->rank, before >> 20);
    device->ops->memory_left(device, &after, &total);
    engine->graph_bytes = before > after ? before - after : 0;
    log_info("graphs", "count=%u bytes=%" PRIu64 " elapsed_ms=%" PRId64,
             step_graphs_count(engine->graphs), engine->graph_bytes,
             (clock_now_ns() - begin_ns) / NS_PER_MS);
    return STATUS_OK;
}

enum status engine_examine(struct engine *engine, const struct control_examine *order,
                           struct examine_report *report_out, uint64_t **hash_out,
                           struct error *err) {
    *hash_out = NULL;
    if (!engine->comm)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "an order to examine, and this rank is in no group");
    *report_out = (struct examine_report){
        .rank = engine->weights->rank,
        .device = engine->model.device ? engine->model.device->name : kernel_isa_name(),
        .pages_per_hash = 1};
    enum status status = inspection_hash(engine->kv, engine->team, order, report_out, hash_out,
                                         err);
    if (status == STATUS_OK && order->rows > 0)
        status = inspection_time(&engine->model, engine->options.max_rows, order, report_out, err);
    if (status == STATUS_OK && order->rows > 0)
        status = inspection_time_sum(&engine->model, engine->comm, report_out, err);
    if (status == STATUS_OK) return status;
    free(*hash_out);
    *hash_out = NULL;
    return status;
}

static const struct kv_page_copy *put_copies(const struct engine *engine,
                                             const struct kv_page_copy *copy, uint32_t count) {
    return device_put(engine->model.device, copy, count * sizeof *copy);
}

static void copy_pages(const struct engine *engine, const struct kv_page_copy *copy,
                       const struct kv_page_copy *copy_of_ops, uint32_t count) {
    const struct model *model = &engine->model;
    for (uint32_t layer = 0; layer < kv_pool_layers(engine->kv); layer++)
        model->backend->kv_copy(&(struct kv_copy_args){.kv = kv_pool_layer(engine->kv, layer),
                                                       .copies = copy_of_ops,
                                                       .copy_count = count,
                                                       .page_tok = model->page_tok,
                                                       .tok_bytes = kv_pool_tok_bytes(engine->kv)},
                                model->ctx);
    if (engine->drafter) drafter_copy_pages(engine->drafter, model, copy, copy_of_ops, count);
}

static void move_tokens(const struct engine *engine, const struct kv_slot_move *moves,
                        uint32_t count) {
    const struct model *model = &engine->model;
    for (uint32_t layer = 0; layer < kv_pool_layers(engine->kv); layer++)
        model->backend->kv_move(&(struct kv_move_args){.kv = kv_pool_layer(engine->kv, layer),
                                                       .moves = moves,
                                                       .move_count = count,
                                                       .tok_bytes = kv_pool_tok_bytes(engine->kv)},
                                model->ctx);
}
