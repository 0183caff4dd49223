#include "step_graph.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "sampler.h"

#define POWERS 7u /* of two, up to GRAPH_ROWS_MAX */

_Static_assert(1u << (POWERS - 1) == GRAPH_ROWS_MAX, "shapes are powers of two");
_Static_assert(TREE_ROWS_MAX <= GRAPH_ROWS_MAX, "the largest tree has a shape");

struct step_graph {
    struct model_shape shape;
    struct model_input input; /* as it lay */
    struct device_graph *graph;
    uint64_t operations; /* of the communicator, in it */
};

struct step_graphs {
    struct device_bounds bounds;
    uint32_t count;                          /* captured */
    struct step_graph graph[POWERS][POWERS]; /* by the logarithms of sequences, and of rows each */
};

/* The least power of two that is not below; count > 0. */
static uint32_t logarithm(uint32_t count) {
    uint32_t power = 0;
    while (1u << power < count)
        power++;
    return power;
}

enum status step_graphs_create(const struct device_bounds *bounds, struct step_graphs **graphs_out,
                               struct error *err) {
    struct step_graphs *graphs = calloc(1, sizeof *graphs);
    if (!graphs) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for graphs of steps");
    graphs->bounds = *bounds;
    *graphs_out = graphs;
    return STATUS_OK;
}

void step_graphs_destroy(struct step_graphs **graphs, struct device *device) {
    if (!*graphs) return;
    step_graphs_drop(*graphs, device);
    free(*graphs);
    *graphs = NULL;
}

/* ============================== capturing ===================================================== */

/* Of at most 2^sequences sequences of at most 2^rows rows, as far as there are such steps. */
static struct model_shape shape_of(const struct device_bounds *bounds, uint32_t sequences,
                                   uint32_t rows) {
    uint32_t rows_max = min_u32(bounds->rows_max, GRAPH_ROWS_MAX);
    return (struct model_shape){.rows = min_u32(1u << (sequences + rows), rows_max),
                                .sequences = min_u32(1u << sequences, bounds->sequences_max),
                                .rows_max = min_u32(1u << rows, rows_max),
                                .positions_max = bounds->positions_max};
}

/* Where a step's input will lie: that of a step of no rows. */
static struct model_input place_input(const struct model *model, const struct model_shape *shape) {
    const struct step_batch none = {.rows = 0};
    device_begin(model->device);
    return model_put(model, &none, shape);
}

static enum status forward(const struct step_graph *graph, const struct model *model,
                           struct comm *comm, struct error *err) {
    enum status status = model_forward(model, &graph->input, comm, err);
    return status == STATUS_OK ? sampler_head(model, graph->shape.rows, comm, err) : status;
}

static enum status capture(struct step_graph *graph, const struct model *model, struct comm *comm,
                           struct error *err) {
    graph->input = place_input(model, &graph->shape);
    uint64_t before = comm_sequence(comm);
    enum status status = device_begin_capture(model->device, err);
    if (status != STATUS_OK) return status;
    status = forward(graph, model, comm, err);
    struct error of_end;
    enum status end = device_end_capture(model->device, &graph->graph, &of_end);
    graph->operations = comm_sequence(comm) - before;
    if (status == STATUS_OK && end != STATUS_OK) status = error_set(err, end, "%s", of_end.text);
    if (status != STATUS_OK) device_drop(model->device, &graph->graph);
    return status;
}

enum status step_graphs_capture(struct step_graphs *graphs, const struct model *model,
                                struct comm *comm, struct error *err) {
    CHECK(graphs->count == 0);
    CHECK(!model->capture); /* of the residual stream: copies that a graph cannot hold */
    uint32_t sequences_max = min_u32(graphs->bounds.sequences_max, GRAPH_ROWS_MAX);
    uint32_t rows_max = min_u32(graphs->bounds.rows_max, GRAPH_ROWS_MAX);
    for (uint32_t s = 0; s <= logarithm(sequences_max); s++)
        for (uint32_t r = 0; r <= logarithm(rows_max); r++) {
            struct step_graph *graph = &graphs->graph[s][r];
            graph->shape = shape_of(&graphs->bounds, s, r);
            enum status status = capture(graph, model, comm, err);
            if (status != STATUS_OK)
                return error_wrap(err, status, "a graph of %u sequences and %u rows",
                                  graph->shape.sequences, graph->shape.rows);
            graphs->count++;
        }
    return STATUS_OK;
}

void step_graphs_drop(struct step_graphs *graphs, struct device *device) {
    for (uint32_t s = 0; s < POWERS; s++)
        for (uint32_t r = 0; r < POWERS; r++)
            device_drop(device, &graphs->graph[s][r].graph);
    graphs->count = 0;
}

uint32_t step_graphs_count(const struct step_graphs *graphs) {
    return graphs->count;
}

/* ============================== replaying ===================================================== */

const struct step_graph *step_graphs_find(const struct step_graphs *graphs,
                                          const struct step_plan *plan) {
    uint32_t rows_max = 1;
    if (plan->sequence_count == 0 || plan->row_count > GRAPH_ROWS_MAX) return NULL;
    for (uint32_t i = 0; i < plan->sequence_count; i++) {
        const struct plan_sequence *sequence = &plan->sequence[i];
        if (sampler_rows(sequence) != sequence->row_count) return NULL;
        rows_max = max_u32(rows_max, sequence->row_count);
    }
    const struct step_graph *graph =
        &graphs->graph[logarithm(plan->sequence_count)][logarithm(rows_max)];
    return graph->graph ? graph : NULL;
}

const struct model_shape *step_graph_shape(const struct step_graph *graph) {
    return &graph->shape;
}

static bool lies_there(const struct model_input *a, const struct model_input *b) {
    return a->rows == b->rows && a->row_count == b->row_count && a->token == b->token &&
           a->kv_slot == b->kv_slot && a->cos_sin == b->cos_sin &&
           a->sequences.of_ops == b->sequences.of_ops && a->sequences.count == b->sequences.count;
}

enum status step_graph_run(const struct step_graph *graph, const struct model *model,
                           const struct model_input *input, struct comm *comm, struct error *err) {
    CHECK(lies_there(&graph->input, input));
    enum status status = comm_replay(comm, graph->operations, err);
    return status == STATUS_OK ? device_replay(model->device, graph->graph, err) : status;
}
