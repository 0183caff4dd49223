/* Steps of few rows as graphs: the forward pass and the logits of all its rows, collectives among
 * them, captured once for every shape and replayed. A step then costs the host one launch instead
 * of a thousand.
 *
 *     shape     at most S sequences of at most M rows each, both powers of two; S x M rows,
 *               GRAPH_ROWS_MAX at most
 *     step      of the smallest shape that holds it; what is behind its own rows and sequences
 *               fills up (struct model_shape)
 *
 * What differs between steps is read from the device's memory: the step's input, which lies where
 * it lay when the shape was captured, and through it pages, wherever they are. So a pool that grows
 * or shrinks needs no new graphs. A new communicator does.
 *
 * Only steps of which every row asks for a token: single rows and trees. Others, which compute a
 * prompt, are launched op by op. Owner: the engine. Thread: the compute thread. */
#ifndef ESPALIER_STEP_GRAPH_H
#define ESPALIER_STEP_GRAPH_H

#include "model.h"

#define GRAPH_ROWS_MAX SCRATCH_HEAD_ROWS /* whose logits exist at once */

struct step_graph;
struct step_graphs;

/* None yet. bounds: of the steps there will be. */
enum status step_graphs_create(const struct device_bounds *bounds, struct step_graphs **graphs_out,
                               struct error *err) MUST_USE;
void step_graphs_destroy(struct step_graphs **graphs, struct device *device);

/* All shapes, with collectives of this communicator; all ranks do it alike. There are none yet. */
enum status step_graphs_capture(struct step_graphs *graphs, const struct model *model,
                                struct comm *comm, struct error *err) MUST_USE;

/* When no work waits for a peer any more, and before the communicator is closed. */
void step_graphs_drop(struct step_graphs *graphs, struct device *device);

uint32_t step_graphs_count(const struct step_graphs *graphs);

/* The one for a step; NULL where there is none. */
const struct step_graph *step_graphs_find(const struct step_graphs *graphs,
                                          const struct step_plan *plan);
const struct model_shape *step_graph_shape(const struct step_graph *graph);

/* As model_forward and sampler_head of all the shape's rows. input: put with the shape, and sent.
 */
enum status step_graph_run(const struct step_graph *graph, const struct model *model,
                           const struct model_input *input, struct comm *comm,
                           struct error *err) MUST_USE;

#endif
