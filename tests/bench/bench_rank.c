#include "bench_rank.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"
#include "engine.h"

#define GENERATION   1u
#define PAGE_TOK     64u
#define PAGE_COUNT   ((BENCH_CONTEXT_MAX + BENCH_OWN_ROWS_MAX) / PAGE_TOK)
#define JOIN_WAIT_MS 120000u

/* A way through the pool that meets every page once and never two neighbours in a row. */
#define PAGE_STRIDE 37u
_Static_assert(PAGE_COUNT % PAGE_STRIDE != 0, "the stride is a prime and reaches every page");

/* Of a context that was never computed; any will do. */
#define MADE_UP_HASH UINT64_C(1)

#define REQUIRE(condition, ...)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "bench: " __VA_ARGS__);                                                \
            fprintf(stderr, " (%s:%d)\n", __FILE__, __LINE__);                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

struct bench_rank {
    struct weights *weights;
    struct engine *engine;
    uint64_t step;  /* last run */
    uint32_t drawn; /* by its last row */
    uint32_t token[BENCH_ROWS_MAX];
    struct page_extent extent[PAGE_COUNT];
    struct page_copy copy[PAGE_COUNT];
};

/* What a step reads and computes, from the shapes of this rank's weights. */
struct cost {
    double bytes, flops;
};

static struct weights *load(const char *model, uint32_t rank, uint32_t tp, uint32_t threads);
static void fill_pool(struct bench_rank *rank);
static void run_steps(struct bench_rank *rank, const struct bench_point *point);
static struct cost step_cost(const struct weights *weights, uint32_t rows, uint32_t context);
static int64_t cpu_now_ns(void);

struct bench_rank *bench_rank_open(const char *model, uint32_t rank, uint32_t tp, uint32_t threads,
                                   enum activation_dtype activation, enum prefill_form form,
                                   const struct comm_key *key) {
    struct bench_rank *bench = calloc(1, sizeof *bench);
    REQUIRE(bench, "no memory");
    bench->weights = load(model, rank, tp, threads);
    const struct engine_options options = {
        .threads = threads,
        .max_rows = BENCH_ROWS_MAX,
        .max_sequences = 1,
        .page_tok = PAGE_TOK,
        .page_count = PAGE_COUNT,
        .context_len = BENCH_CONTEXT_MAX + BENCH_OWN_ROWS_MAX,
        .kv_dtype = KV_BF16,
        .activation_dtype = activation,
        .prefill_form = form,
    };
    struct error err;
    struct comm *comm = NULL;
    REQUIRE(engine_create(bench->weights, &options, &bench->engine, &err) == STATUS_OK, "%s",
            err.text);
    REQUIRE(comm_join(&comm_host, key, rank, tp, GENERATION, JOIN_WAIT_MS, NULL, &comm, &err) ==
                STATUS_OK,
            "%s", err.text);
    engine_set_group(bench->engine, GENERATION, comm);
    for (uint32_t page = 0; page < PAGE_COUNT; page++)
        bench->extent[page] = (struct page_extent){.first_page = page * PAGE_STRIDE % PAGE_COUNT,
                                                   .page_count = 1};
    fill_pool(bench);
    return bench;
}

void bench_rank_close(struct bench_rank **rank) {
    engine_destroy(&(*rank)->engine);
    weights_destroy(&(*rank)->weights);
    free(*rank);
    *rank = NULL;
}

struct bench_measurement bench_rank_run(struct bench_rank *rank, const struct bench_point *point) {
    struct bench_measurement out = {0};
    for (uint32_t i = 0; i < point->steps; i++) {
        struct cost cost = step_cost(rank->weights, point->rows, point->context + i * point->rows);
        out.bytes += cost.bytes;
        out.flops += cost.flops;
    }
    int64_t wall_ns = clock_now_ns(), cpu_ns = cpu_now_ns();
    run_steps(rank, point);
    out.wall_ns = clock_now_ns() - wall_ns;
    out.cpu_ns = cpu_now_ns() - cpu_ns;
    out.drawn = rank->drawn;
    return out;
}

/* ============================== running ======================================================= */

static struct weights *load(const char *model, uint32_t rank, uint32_t tp, uint32_t threads) {
    struct model_spec spec;
    struct safetensors *checkpoint = NULL;
    struct weights_progress progress = {0};
    struct weights *weights = NULL;
    struct error err;
    enum status status = model_spec_load(model, &spec, &err);
    if (status == STATUS_OK) status = safetensors_open(model, &checkpoint, &err);
    if (status == STATUS_OK)
        status = weights_load(NULL, &spec, checkpoint, rank, tp, threads, &progress, &weights,
                              &err);
    REQUIRE(status == STATUS_OK, "%s", err.text);
    safetensors_close(&checkpoint);
    return weights;
}

static void step(struct bench_rank *rank, struct step_plan *plan) {
    struct step_result result;
    struct error err;
    plan->generation = GENERATION;
    plan->step = ++rank->step;
    REQUIRE(engine_step(rank->engine, plan, &result, &err) == STATUS_OK, "%s", err.text);
    if (result.token_count > 0) rank->drawn = result.token[0];
}

/* One real chunk, then copies of its pages everywhere. */
static void fill_pool(struct bench_rank *rank) {
    const uint32_t source_count = BENCH_ROWS_MAX / PAGE_TOK;
    run_steps(rank, &(struct bench_point){.rows = BENCH_ROWS_MAX, .steps = 1});
    struct step_plan plan = {.copy = rank->copy};
    for (uint32_t page = source_count; page < PAGE_COUNT; page++)
        rank->copy[plan.copy_count++] = (struct page_copy){
            .source = rank->extent[page % source_count].first_page,
            .target = rank->extent[page].first_page,
            .tok_count = PAGE_TOK,
        };
    step(rank, &plan);
}

static void run_steps(struct bench_rank *rank, const struct bench_point *point) {
    const uint32_t end = point->context + point->rows * point->steps;
    const uint32_t pages = (end + PAGE_TOK - 1) / PAGE_TOK;
    REQUIRE(point->rows >= 1 && point->rows <= BENCH_ROWS_MAX && pages <= PAGE_COUNT,
            "a point of %u rows that ends at %u", point->rows, end);
    struct plan_sequence sequence = {
        .row_count = point->rows,
        .committed = point->context,
        .prefix_hash = point->context > 0 ? MADE_UP_HASH : HASH_CHAIN_EMPTY,
        .extent_count = pages,
        .want = PLAN_WANT_TOKEN,
        .top_p = 1,
    };
    for (uint32_t i = 0; i < point->steps; i++) {
        for (uint32_t row = 0; row < point->rows; row++) {
            uint64_t hash = hash_mix(sequence.committed + row + 1);
            rank->token[row] = (uint32_t)(hash % rank->weights->spec.vocab);
        }
        struct step_plan plan = {
            .token = rank->token,
            .row_count = point->rows,
            .sequence = &sequence,
            .sequence_count = 1,
            .extent = rank->extent,
            .extent_count = sequence.extent_count,
        };
        step(rank, &plan);
        for (uint32_t row = 0; row < point->rows; row++)
            sequence.prefix_hash = hash_chain(sequence.prefix_hash, rank->token[row]);
        sequence.committed += point->rows;
        sequence.page_base = pages;
        sequence.extent_count = 0;
    }
}

static int64_t cpu_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

/* ============================== what a step costs ============================================= */

/* A weight read once and multiplied with every row. */
static void add_linear(struct cost *cost, const struct linear_weight *weight, double batch,
                       double rows) {
    double bytes = (double)linear_data_bytes(weight->format, weight->n, weight->k) +
                   (double)linear_scale_bytes(weight->format, weight->n, weight->k);
    cost->bytes += batch * bytes;
    cost->flops += batch * rows * 2 * weight->n * weight->k;
}

/* Of E experts, those that some row chose, if rows choose evenly. */
static void add_experts(struct cost *cost, const struct weights *weights,
                        const struct layer_weights *layer, double rows) {
    double experts = weights->spec.experts, topk = weights->spec.topk;
    double chosen = experts * (1 - pow(1 - topk / experts, rows));
    struct cost one = {0};
    add_linear(&one, &layer->experts[0].gate_up, 1, 1);
    add_linear(&one, &layer->experts[0].down, 1, 1);
    cost->bytes += chosen * one.bytes;
    cost->flops += rows * topk * one.flops;
}

static struct cost step_cost(const struct weights *weights, uint32_t rows, uint32_t context) {
    const struct model_spec *spec = &weights->spec;
    const double token_dim = spec->kv_rank + spec->rope_dim;
    const double seen = (double)rows * context + rows * (rows + 1.0) / 2; /* keys, over all rows */
    struct cost cost = {0};
    for (uint32_t l = 0; l < spec->layers; l++) {
        const struct layer_weights *layer = &weights->layer[l];
        add_linear(&cost, &layer->q_a, 1, rows);
        add_linear(&cost, &layer->q_b, 1, rows);
        add_linear(&cost, &layer->kv_a, 1, rows);
        add_linear(&cost, &layer->w_uk, weights->heads, rows);
        add_linear(&cost, &layer->w_uv, weights->heads, rows);
        add_linear(&cost, &layer->o, 1, rows);
        add_linear(&cost, &layer->mlp_gate_up, 1, rows);
        add_linear(&cost, &layer->mlp_down, 1, rows);
        if (!layer->dense) {
            add_linear(&cost, &layer->router, 1, rows);
            add_experts(&cost, weights, layer, rows);
        }
        cost.bytes += (context + rows) * token_dim * sizeof(bf16);
        cost.flops += seen * weights->heads * 2 * (token_dim + spec->kv_rank);
    }
    add_linear(&cost, &weights->head, 1, 1);
    return cost;
}
