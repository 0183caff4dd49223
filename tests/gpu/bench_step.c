#include "bench_step.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm.h"
#include "gpu.h"
#include "roof_cuda.h"
#include "sampler.h"
#include "step_graph.h"

#define RANKS    8u /* of which this is one */
#define PAGE_TOK 64u
#define LAYERS   8u /* at most */
#define ALIGN    256u

#define REQUIRE(condition, why)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "bench_step: %s: %s\n", #condition, why);                              \
            exit(70);                                                                              \
        }                                                                                          \
    } while (0)
#define REQUIRE_OK(call) REQUIRE((call) == STATUS_OK, err.text)

/* Kimi K2.6 with fewer layers, or something small of the same build. */
static const struct model_spec k26 = {.hidden = 7168,
                                      .layers = LAYERS,
                                      .dense_layers = 1,
                                      .heads = 64,
                                      .q_rank = 1536,
                                      .kv_rank = 512,
                                      .nope_dim = 128,
                                      .rope_dim = 64,
                                      .value_dim = 128,
                                      .dense_width = 18432,
                                      .expert_width = 2048,
                                      .experts = 384,
                                      .topk = 8,
                                      .shared_experts = 1,
                                      .groups = 1,
                                      .topk_groups = 1,
                                      .scoring = MODEL_SCORING_SIGMOID,
                                      .renormalize = true,
                                      .routed_scale = 2.827f,
                                      .vocab = 163840,
                                      .norm_eps = 1e-5f,
                                      .inner_norm_eps = 1e-6f,
                                      .rope = {.theta = 50000}};
static const struct model_spec tiny_spec = {.hidden = 128,
                                            .layers = 2,
                                            .dense_layers = 1,
                                            .heads = 16,
                                            .q_rank = 64,
                                            .kv_rank = 128,
                                            .nope_dim = 32,
                                            .rope_dim = 32,
                                            .value_dim = 32,
                                            .dense_width = 512,
                                            .expert_width = 256,
                                            .experts = 12,
                                            .topk = 2,
                                            .shared_experts = 1,
                                            .groups = 1,
                                            .topk_groups = 1,
                                            .scoring = MODEL_SCORING_SIGMOID,
                                            .renormalize = true,
                                            .routed_scale = 2.827f,
                                            .vocab = 1024,
                                            .norm_eps = 1e-5f,
                                            .inner_norm_eps = 1e-6f,
                                            .rope = {.theta = 50000}};

struct bench_step {
    struct device *device;
    struct weights weights;
    struct layer_weights layer[LAYERS];
    uint8_t *memory;                /* of all weights, filled with numbers */
    size_t used;                    /* of it; counted with memory NULL first */
    double row_bytes, expert_bytes; /* of the weights that every row needs, and of one expert */
    struct scratch scratch;
    struct kv_pool *kv;
    struct kernel_ctx ctx;
    struct model model;
    double *inv_freq;
    struct comm *comm;
    struct step_graphs *graphs;
    struct device_bounds bounds;
    uint32_t token[GRAPH_ROWS_MAX], position[GRAPH_ROWS_MAX], kv_slot[GRAPH_ROWS_MAX];
    uint64_t ancestors[GRAPH_ROWS_MAX];
    uint32_t *page;
};

/* ============================== weights ======================================================= */

static void *take(struct bench_step *bench, size_t bytes) {
    void *at = bench->memory ? bench->memory + bench->used : NULL;
    bench->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

/* `batch` of [n, k]. */
static struct linear_weight take_linear(struct bench_step *bench, enum linear_format format,
                                        uint32_t batch, uint32_t n, uint32_t k) {
    struct linear_weight weight = {.format = format, .n = n, .k = k};
    weight.data = take(bench, batch * linear_data_bytes(format, n, k));
    if (format != LINEAR_BF16) weight.scale = take(bench, batch * linear_scale_bytes(format, n, k));
    return weight;
}

static void take_experts(struct bench_step *bench, struct layer_weights *layer) {
    const struct model_spec *spec = &bench->weights.spec;
    const uint32_t dim = spec->hidden, width = bench->weights.expert_width;
    size_t list_bytes = spec->experts * sizeof *layer->experts, before;
    struct moe_expert *expert = calloc(spec->experts, sizeof *expert);
    REQUIRE(expert, "memory");
    layer->experts_of_ops = take(bench, list_bytes);
    before = bench->used;
    for (uint32_t e = 0; e < spec->experts; e++) {
        expert[e].gate_up = take_linear(bench, LINEAR_INT4, 1, 2 * width, dim);
        expert[e].down = take_linear(bench, LINEAR_INT4, 1, dim, width);
    }
    bench->expert_bytes = (double)(bench->used - before) / spec->experts;
    free((void *)(uintptr_t)layer->experts);
    layer->experts = expert;
}

static void take_layer(struct bench_step *bench, struct layer_weights *layer, bool dense,
                       const float *ones) {
    const struct weights *weights = &bench->weights;
    const struct model_spec *spec = &weights->spec;
    const uint32_t dim = spec->hidden, heads = weights->heads, nope = spec->nope_dim;
    const uint32_t width = dense ? weights->mlp_width : weights->shared_width;
    const struct moe_expert *experts = layer->experts;
    size_t before = bench->used;
    *layer = (struct layer_weights){
        .input_norm = ones,
        .post_norm = ones,
        .q_a_norm = ones,
        .kv_a_norm = ones,
        .q_a = take_linear(bench, LINEAR_BF16, 1, spec->q_rank, dim),
        .q_b = take_linear(bench, LINEAR_BF16, 1, heads * (nope + spec->rope_dim), spec->q_rank),
        .kv_a = take_linear(bench, LINEAR_BF16, 1, spec->kv_rank + spec->rope_dim, dim),
        .w_uk = take_linear(bench, LINEAR_BF16, heads, spec->kv_rank, nope),
        .w_uv = take_linear(bench, LINEAR_BF16, heads, spec->value_dim, spec->kv_rank),
        .o = take_linear(bench, LINEAR_BF16, 1, dim, heads * spec->value_dim),
        .dense = dense,
        .mlp_gate_up = take_linear(bench, LINEAR_BF16, 1, 2 * width, dim),
        .mlp_down = take_linear(bench, LINEAR_BF16, 1, dim, width),
        .experts = experts,
    };
    if (!dense) layer->router = take_linear(bench, LINEAR_BF16, 1, spec->experts, dim);
    bench->row_bytes += (double)(bench->used - before);
    if (!dense) take_experts(bench, layer);
}

/* Twice: first for their size, then in the memory. */
static void take_weights(struct bench_step *bench) {
    struct weights *weights = &bench->weights;
    const uint32_t dim = weights->spec.hidden;
    bench->used = 0;
    const float *ones = take(bench, dim * sizeof *ones);
    weights->embed = take(bench, (size_t)weights->vocab_count * dim * sizeof(bf16));
    weights->final_norm = ones;
    size_t before = bench->used;
    weights->head = take_linear(bench, LINEAR_BF16, 1, weights->vocab_count, dim);
    bench->row_bytes = (double)(bench->used - before);
    for (uint32_t l = 0; l < weights->spec.layers; l++)
        take_layer(bench, &bench->layer[l], l < weights->spec.dense_layers, ones);
}

/* Lists of experts, and norms of one, are no numbers of the fill. */
static void upload(struct bench_step *bench) {
    const struct model_spec *spec = &bench->weights.spec;
    struct error err;
    float *ones = malloc(spec->hidden * sizeof *ones);
    REQUIRE(ones, "memory");
    for (uint32_t i = 0; i < spec->hidden; i++)
        ones[i] = 1;
    REQUIRE_OK(device_write(bench->device, bench->memory, ones, spec->hidden * sizeof *ones, &err));
    free(ones);
    for (uint32_t l = spec->dense_layers; l < spec->layers; l++)
        REQUIRE_OK(device_write(bench->device, (void *)(uintptr_t)bench->layer[l].experts_of_ops,
                                bench->layer[l].experts,
                                spec->experts * sizeof *bench->layer[l].experts, &err));
}

static void make_weights(struct bench_step *bench, const struct model_spec *spec) {
    struct error err;
    bench->weights = (struct weights){.spec = *spec,
                                      .tp = RANKS,
                                      .heads = spec->heads / RANKS,
                                      .mlp_width = spec->dense_width / RANKS,
                                      .shared_width = spec->expert_width / RANKS,
                                      .expert_width = spec->expert_width / RANKS,
                                      .vocab_count = spec->vocab / RANKS,
                                      .embed_dtype = KERNEL_BF16,
                                      .layer = bench->layer};
    take_weights(bench);
    REQUIRE_OK(device_take(bench->device, bench->used, "weights", (void **)&bench->memory, &err));
    roof_cuda_fill(bench->memory, bench->used, 1, &bench->ctx);
    take_weights(bench);
    upload(bench);
}

/* ============================== making ======================================================== */

static void make_cache(struct bench_step *bench) {
    const struct model_spec *spec = &bench->weights.spec;
    struct error err;
    const struct kv_pool_shape shape = {
        .layers = spec->layers,
        .page_tok = PAGE_TOK,
        .tok_bytes = kv_tok_bytes(KERNEL_BF16, spec->kv_rank, spec->rope_dim),
        .device = bench->device};
    const uint32_t pages = divide_up(bench->bounds.positions_max, PAGE_TOK);
    REQUIRE_OK(kv_pool_create(&shape, &bench->kv, &err));
    REQUIRE_OK(kv_pool_resize(bench->kv, pages, &err));
    for (uint32_t l = 0; l < spec->layers; l++)
        roof_cuda_fill(kv_pool_layer(bench->kv, l), kv_pool_layer_bytes(bench->kv), 2 + l,
                       &bench->ctx);
    /* In any order, by a prime step that meets every one. */
    bench->page = calloc(pages, sizeof *bench->page);
    REQUIRE(bench->page, "memory");
    for (uint32_t i = 0; i < pages; i++)
        bench->page[i] = (uint32_t)(((uint64_t)i * 7919 + 3) % pages);
}

static void make_model(struct bench_step *bench) {
    const struct model_spec *spec = &bench->weights.spec;
    struct device *device = bench->device;
    struct error err;
    size_t workspace_bytes;
    REQUIRE_OK(device->workspace_bytes(device->kernel, &bench->weights, NULL, &bench->bounds,
                                       &workspace_bytes, &err));
    REQUIRE_OK(scratch_init_on(&bench->scratch, device, &bench->weights, GRAPH_ROWS_MAX,
                               workspace_bytes, &err));
    REQUIRE_OK(
        device_reserve_input(device, model_input_bytes(spec, &bench->bounds, PAGE_TOK), &err));
    bench->inv_freq = calloc(spec->rope_dim / 2, sizeof *bench->inv_freq);
    REQUIRE(bench->inv_freq, "memory");
    model_spec_inv_freq(spec, bench->inv_freq);
    bench->ctx.scratch = bench->scratch.workspace;
    bench->ctx.scratch_bytes = bench->scratch.workspace_bytes;
    bench->model = (struct model){.device = device,
                                  .backend = device->backend,
                                  .ctx = &bench->ctx,
                                  .weights = &bench->weights,
                                  .scratch = &bench->scratch,
                                  .kv = bench->kv,
                                  .kv_dtype = KERNEL_BF16,
                                  .activation = KERNEL_BF16,
                                  .page_tok = PAGE_TOK,
                                  .segments = KERNEL_SEGMENTS / RANKS,
                                  .softmax_scale = model_spec_softmax_scale(spec),
                                  .inv_freq = bench->inv_freq};
}

struct bench_step *bench_step_open(bool tiny, uint32_t context_max) {
    struct bench_step *bench = calloc(1, sizeof *bench);
    struct error err;
    REQUIRE(bench, "memory");
    REQUIRE_OK(gpu_open(0, &bench->device, &err));
    device_enter(bench->device);
    bench->ctx = (struct kernel_ctx){.stream = bench->device->stream,
                                     .device = bench->device->kernel};
    bench->bounds = (struct device_bounds){.rows_max = GRAPH_ROWS_MAX,
                                           .sequences_max = 1,
                                           .positions_max = context_max + GRAPH_ROWS_MAX,
                                           .activation = KERNEL_BF16,
                                           .kv_dtype = KERNEL_BF16};
    make_weights(bench, tiny ? &tiny_spec : &k26);
    make_cache(bench);
    make_model(bench);
    const struct comm_key alone = {.bytes = 0};
    REQUIRE_OK(comm_join(bench->device->comm, &alone, 0, 1, 1, 0, NULL, &bench->comm, &err));
    comm_use(bench->comm, bench->device->stream, 0);
    REQUIRE_OK(step_graphs_create(&bench->bounds, &bench->graphs, &err));
    REQUIRE_OK(step_graphs_capture(bench->graphs, &bench->model, bench->comm, &err));
    return bench;
}

void bench_step_close(struct bench_step **bench) {
    step_graphs_destroy(&(*bench)->graphs, (*bench)->device);
    comm_close(&(*bench)->comm);
    scratch_deinit(&(*bench)->scratch);
    kv_pool_destroy(&(*bench)->kv);
    device_give((*bench)->device, (*bench)->memory);
    for (uint32_t l = 0; l < LAYERS; l++)
        free((void *)(uintptr_t)(*bench)->layer[l].experts);
    free((*bench)->inv_freq);
    free((*bench)->page);
    device_close(&(*bench)->device);
    free(*bench);
    *bench = NULL;
}

/* ============================== running ======================================================= */

/* A tree in which row i hangs on row (i - 1) / 2. */
static struct step_batch make_batch(struct bench_step *bench, uint32_t rows, uint32_t context,
                                    struct mla_sequence *sequence) {
    for (uint32_t i = 0; i < rows; i++) {
        uint64_t parents = i == 0 ? 0 : bench->ancestors[(i - 1) / 2];
        uint32_t place = context + i;
        bench->ancestors[i] = parents | (uint64_t)1 << i;
        bench->token[i] = (i * 7919 + 11) % bench->weights.vocab_count;
        bench->position[i] = context + (uint32_t)__builtin_popcountll(parents);
        bench->kv_slot[i] = bench->page[place / PAGE_TOK] * PAGE_TOK + place % PAGE_TOK;
    }
    *sequence = (struct mla_sequence){.row_count = rows,
                                      .committed = context,
                                      .page = bench->page,
                                      .ancestors = bench->ancestors};
    return (struct step_batch){.rows = rows,
                               .token = bench->token,
                               .position = bench->position,
                               .kv_slot = bench->kv_slot,
                               .sequence = sequence,
                               .sequence_count = 1};
}

/* From the batch to logits that are there. graph: of this shape; NULL: op by op. */
static void run_step(struct bench_step *bench, const struct step_batch *batch,
                     const struct model_shape *shape, const struct step_graph *graph) {
    const struct model *model = &bench->model;
    struct error err;
    device_begin(bench->device);
    const struct model_input input = model_put(model, batch, shape);
    REQUIRE_OK(device_send(bench->device, &err));
    if (graph) {
        REQUIRE_OK(step_graph_run(graph, model, &input, bench->comm, &err));
    } else {
        REQUIRE_OK(model_forward(model, &input, bench->comm, &err));
        REQUIRE_OK(sampler_head(model, shape->rows, bench->comm, &err));
    }
    REQUIRE_OK(device_wait(bench->device, &err));
}

/* Seconds; the first run is not counted. */
static double best_of(struct bench_step *bench, const struct step_batch *batch,
                      const struct step_graph *graph, uint32_t runs) {
    const struct model_shape shape = graph ? *step_graph_shape(graph) : model_shape_of(batch);
    double best = INFINITY;
    for (uint32_t run = 0; run <= runs; run++) {
        int64_t begin_ns = clock_now_ns();
        run_step(bench, batch, &shape, graph);
        double seconds = (double)(clock_now_ns() - begin_ns) / (double)NS_PER_S;
        if (run > 0) best = fmin(best, seconds);
    }
    return best;
}

static const struct step_graph *find_graph(const struct bench_step *bench, uint32_t rows) {
    struct plan_sequence planned = {.row_count = rows, .kind = PLAN_TREE, .want = PLAN_WANT_TOKEN};
    const struct step_plan plan = {.row_count = rows, .sequence = &planned, .sequence_count = 1};
    const struct step_graph *graph = step_graphs_find(bench->graphs, &plan);
    REQUIRE(graph, "no graph for such a step");
    return graph;
}

/* This rank's logits of the batch's rows. */
static float *read_logits(struct bench_step *bench, const struct model_shape *shape,
                          uint32_t rows) {
    const struct weights *weights = &bench->weights;
    size_t bytes = (size_t)rows * weights->vocab_count * sizeof(float);
    const float *mine = bench->scratch.head_logits +
                        (size_t)weights->rank * shape->rows * weights->vocab_count;
    float *logits = malloc(bytes);
    struct error err;
    REQUIRE(logits, "memory");
    REQUIRE_OK(device_read(bench->device, logits, mine, bytes, &err));
    return logits;
}

double bench_step_differs(struct bench_step *bench, uint32_t rows, uint32_t context) {
    struct mla_sequence sequence;
    const struct step_batch batch = make_batch(bench, rows, context, &sequence);
    const struct step_graph *graph = find_graph(bench, rows);
    const struct model_shape *shape = step_graph_shape(graph);
    run_step(bench, &batch, shape, NULL);
    float *want = read_logits(bench, shape, rows);
    run_step(bench, &batch, shape, graph);
    float *got = read_logits(bench, shape, rows);
    double worst = 0;
    for (size_t i = 0; i < (size_t)rows * bench->weights.vocab_count; i++) {
        double apart = fabs((double)got[i] - (double)want[i]);
        if (!(apart <= worst)) worst = apart;
    }
    free(want);
    free(got);
    return worst;
}

/* Experts as if rows chose them at random; of a weight in bf16 two operations a row and number. */
static void count_work(const struct bench_step *bench, uint32_t rows, uint32_t context,
                       struct bench_step_time *time) {
    const struct model_spec *spec = &bench->weights.spec;
    double moe_layers = spec->layers - spec->dense_layers;
    double missed = pow(1 - (double)spec->topk / spec->experts, rows);
    double of_cache = (double)(context + rows) * spec->layers;
    double of_expert = 3.0 * spec->hidden * bench->weights.expert_width;
    time->bytes = bench->row_bytes +
                  moe_layers * spec->experts * (1 - missed) * bench->expert_bytes +
                  of_cache * (double)kv_pool_tok_bytes(bench->kv);
    time->flops = rows *
                  (bench->row_bytes + 2 * moe_layers * spec->topk * of_expert +
                   2 * of_cache * bench->weights.heads * (2 * spec->kv_rank + spec->rope_dim));
}

struct bench_step_time bench_step_run(struct bench_step *bench, uint32_t rows, uint32_t context,
                                      uint32_t runs) {
    struct mla_sequence sequence;
    const struct step_batch batch = make_batch(bench, rows, context, &sequence);
    struct bench_step_time time = {
        .by_op = best_of(bench, &batch, NULL, runs),
        .by_graph = best_of(bench, &batch, find_graph(bench, rows), runs),
    };
    count_work(bench, rows, context, &time);
    return time;
}
