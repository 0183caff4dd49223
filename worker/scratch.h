/* Every activation of a step, allocated once for the largest step, memory and all.
 *
 *     all the step   x, h, delta, cos_sin
 *     by turns       attention's | the MLP's | the head's       one memory, never alive together
 *     each op        workspace
 *
 * Nothing grows with the context: attention works block by block. All f32.
 */
#ifndef ESPALIER_SCRATCH_H
#define ESPALIER_SCRATCH_H

#include "weights.h"

struct device;

/* Rows whose logits exist at once: what bounds them is a block, not the step. */
#define SCRATCH_HEAD_ROWS 64u

struct scratch {
    float *x;       /* [T, D] the residual stream */
    float *h;       /* [T, D] the normed input of a block */
    float *delta;   /* [T, D] what a block adds, this rank's share */
    float *cos_sin; /* [T, P] */

    float *q_a;      /* [T, q_rank] */
    float *q;        /* [T, H, N + P] */
    float *kv;       /* [T, R + P] */
    float *q_latent; /* [T, H, R] */
    float *o_latent; /* [T, H, R] */
    float *o;        /* [T, H, V] */

    float *router_logits; /* [T, E] */
    uint32_t *expert;     /* [T, K] */
    float *expert_weight; /* [T, K] */
    float *expert_y;      /* [segments, T, D] */
    float *gate_up;       /* [T, 2 F], F the wider of dense and shared */
    float *act;           /* [T, F] */

    float *head_x;      /* [B, D] rows about to be drawn, B = SCRATCH_HEAD_ROWS */
    float *head_logits; /* [tp, B, vocab / tp] */
    float *row_logits;  /* [vocab] */
    float *penalized;   /* [vocab] */

    void *workspace;
    size_t workspace_bytes;

    struct device *device; /* whose memory; NULL: the host's */
    void *memory;          /* behind all of the above */
    size_t bytes;
};

/* rows_max: T of the largest step. threads: of the compute team. RESOURCE_EXHAUSTED with the bytes
 * asked for. */
enum status scratch_init(struct scratch *scratch, const struct weights *weights, uint32_t rows_max,
                         uint32_t threads, struct error *err) MUST_USE;

/* Likewise on a device, whose ops need workspace_bytes. */
enum status scratch_init_on(struct scratch *scratch, struct device *device,
                            const struct weights *weights, uint32_t rows_max,
                            size_t workspace_bytes, struct error *err) MUST_USE;
void scratch_deinit(struct scratch *scratch);

#endif
