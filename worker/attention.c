/* Shape chain, H heads on this rank:
 *
 *     h [T,D] ─ q_a, norm ─▶ [T,q_rank] ─ q_b ─▶ q [T,H,N+P]
 *     h [T,D] ─ kv_a ─▶ kv [T,R+P] ─ norm of R, rope of P ─▶ cache
 *     absorbed    q ─ W_UK ─▶ q_latent [T,H,R], cache ─ mla ─▶ o_latent [T,H,R] ─ W_UV ─▶ o [T,H,V]
 *     expanded    q, cache, W_UK, W_UV ─ mla ─▶ o
 *     o ─ o_proj ─▶ delta
 *
 * Expanded is for long chunks, and only where the operator prefers speed to exactness. */
#include "attention.h"

static void project_queries(const struct model *model, const struct layer_weights *layer,
                            const struct model_input *input);
static void store_latents(const struct model *model, const struct layer_weights *layer, void *kv,
                          const struct model_input *input);
static bool is_expanded(const struct model *model, const struct layer_weights *layer,
                        const struct mla_sequence *sequence);
static void attend_expanded(const struct model *model, const struct layer_weights *layer,
                            const void *kv, const struct model_sequences *run);
static void attend_by_runs(const struct model *model, const struct layer_weights *layer,
                           const void *kv, const struct model_sequences *all);
static void attend_absorbed(const struct model *model, const struct layer_weights *layer,
                            const void *kv, const struct model_sequences *run, uint32_t row_begin,
                            uint32_t rows);
static void inner_norm(const struct model *model, float *x, size_t stride, const float *weight,
                       uint32_t rows, uint32_t dim);
static void rotate(const struct model *model, float *x, size_t row_stride,
                   const struct model_input *input, uint32_t heads, size_t head_stride);

/* bf16 where reading the cache gives such, if the op takes its other operands so. */
static enum kernel_dtype attention_activation(const struct model *model, bool takes_bf16) {
    bool narrow = model->activation != KERNEL_F32 && model->kv_dtype != KERNEL_F32;
    return narrow && takes_bf16 ? KERNEL_BF16 : KERNEL_F32;
}

float *attention_forward(const struct model *model, const struct layer_weights *layer, void *kv,
                         const struct model_input *input) {
    struct scratch *s = model->scratch;
    project_queries(model, layer, input);
    store_latents(model, layer, kv, input);
    if (model->prefill_form == PREFILL_ABSORBED)
        attend_absorbed(model, layer, kv, &input->sequences, 0, input->rows);
    else
        attend_by_runs(model, layer, kv, &input->sequences);
    model_linear(model, s->o, &layer->o, s->delta, input->rows, model->segments, NULL);
    return s->delta;
}

/* Neighbours of one form at a time. */
static void attend_by_runs(const struct model *model, const struct layer_weights *layer,
                           const void *kv, const struct model_sequences *all) {
    for (uint32_t i = 0, count; i < all->count; i += count) {
        const struct mla_sequence *first = &all->sent[i]; /* the form is chosen on the host alone */
        bool expanded = is_expanded(model, layer, first);
        uint32_t rows = first->row_count;
        for (count = 1; i + count < all->count; count++) {
            if (is_expanded(model, layer, &first[count]) != expanded) break;
            rows += first[count].row_count;
        }
        struct model_sequences run = *all;
        run.sent = first;
        run.of_ops = &all->of_ops[i];
        run.count = count;
        if (expanded)
            attend_expanded(model, layer, kv, &run);
        else
            attend_absorbed(model, layer, kv, &run, first->row_begin, rows);
    }
}

static struct mla_expanded_args expanded_args(const struct model *model,
                                              const struct layer_weights *layer, const void *kv) {
    const struct model_spec *spec = &model->weights->spec;
    const size_t query_dim = spec->nope_dim + spec->rope_dim;
    bool bf16_weights = layer->w_uk.format == LINEAR_BF16;
    return (struct mla_expanded_args){.q = model->scratch->q,
                                      .q_row_stride = model->weights->heads * query_dim,
                                      .q_head_stride = query_dim,
                                      .kv = kv,
                                      .kv_dtype = model->kv_dtype,
                                      .w_uk = layer->w_uk,
                                      .w_uv = layer->w_uv,
                                      .out = model->scratch->o,
                                      .heads = model->weights->heads,
                                      .latent_dim = spec->kv_rank,
                                      .rope_dim = spec->rope_dim,
                                      .nope_dim = spec->nope_dim,
                                      .value_dim = spec->value_dim,
                                      .page_tok = model->page_tok,
                                      .scale = model->softmax_scale,
                                      .activation = attention_activation(model, bf16_weights)};
}

static bool is_expanded(const struct model *model, const struct layer_weights *layer,
                        const struct mla_sequence *sequence) {
    if (sequence->ancestors || !model->backend->mla_expanded) return false;
    struct mla_expanded_args args = expanded_args(model, layer, NULL);
    return args.nope_dim % 2 == 0 && mla_expanded_pays(&args, sequence);
}

/* q -> o for the rows of a run of sequences. */
static void attend_expanded(const struct model *model, const struct layer_weights *layer,
                            const void *kv, const struct model_sequences *run) {
    struct mla_expanded_args args = expanded_args(model, layer, kv);
    args.sequences = run->of_ops;
    args.sequence_count = run->count;
    model->backend->mla_expanded(&args, model->ctx);
}

static void attend_absorbed(const struct model *model, const struct layer_weights *layer,
                            const void *kv, const struct model_sequences *run, uint32_t row_begin,
                            uint32_t rows) {
    const struct model_spec *spec = &model->weights->spec;
    struct scratch *s = model->scratch;
    const uint32_t heads = model->weights->heads;
    const size_t query_dim = spec->nope_dim + spec->rope_dim;
    const size_t latent_stride = (size_t)heads * spec->kv_rank;
    const size_t value_stride = (size_t)heads * spec->value_dim;
    model->backend->linear(
        &(struct linear_args){.x = s->q + row_begin * heads * query_dim,
                              .x_stride = heads * query_dim,
                              .x_batch_stride = query_dim,
                              .weight = layer->w_uk,
                              .y = s->q_latent + row_begin * latent_stride,
                              .y_stride = latent_stride,
                              .y_batch_stride = spec->kv_rank,
                              .rows = rows,
                              .batch = heads,
                              .segments = 1,
                              .activation = model_activation(model, &layer->w_uk)},
        model->ctx);
    attention_attend(model, kv, run);
    model->backend->linear(
        &(struct linear_args){.x = s->o_latent + row_begin * latent_stride,
                              .x_stride = latent_stride,
                              .x_batch_stride = spec->kv_rank,
                              .weight = layer->w_uv,
                              .y = s->o + row_begin * value_stride,
                              .y_stride = value_stride,
                              .y_batch_stride = spec->value_dim,
                              .rows = rows,
                              .batch = heads,
                              .segments = 1,
                              .activation = model_activation(model, &layer->w_uv)},
        model->ctx);
}

void attention_attend(const struct model *model, const void *kv,
                      const struct model_sequences *sequences) {
    const struct model_spec *spec = &model->weights->spec;
    const struct scratch *s = model->scratch;
    const uint32_t heads = model->weights->heads;
    const size_t query_dim = spec->nope_dim + spec->rope_dim;
    const bool whole_vectors = spec->kv_rank % 32 == 0 && spec->rope_dim % 32 == 0;
    const enum kernel_dtype activation = attention_activation(model, whole_vectors);
    model->backend->mla_tree(&(struct mla_tree_args){.q_latent = s->q_latent,
                                                     .q_rope = s->q + spec->nope_dim,
                                                     .q_rope_row_stride = heads * query_dim,
                                                     .q_rope_head_stride = query_dim,
                                                     .kv = kv,
                                                     .kv_dtype = model->kv_dtype,
                                                     .sequences = sequences->of_ops,
                                                     .sequence_count = sequences->count,
                                                     .out = s->o_latent,
                                                     .heads = heads,
                                                     .latent_dim = spec->kv_rank,
                                                     .rope_dim = spec->rope_dim,
                                                     .page_tok = model->page_tok,
                                                     .scale = model->softmax_scale,
                                                     .activation = activation,
                                                     .rows_max = sequences->rows_max,
                                                     .positions_max = sequences->positions_max},
                             model->ctx);
}

/* h -> q, with its rope parts rotated. */
static void project_queries(const struct model *model, const struct layer_weights *layer,
                            const struct model_input *input) {
    const struct model_spec *spec = &model->weights->spec;
    struct scratch *s = model->scratch;
    const uint32_t heads = model->weights->heads, rows = input->rows;
    const size_t query_dim = spec->nope_dim + spec->rope_dim;

    const float *q_in = s->h;
    if (spec->q_rank > 0) {
        model_linear(model, s->h, &layer->q_a, s->q_a, rows, 1, NULL);
        inner_norm(model, s->q_a, spec->q_rank, layer->q_a_norm, rows, spec->q_rank);
        q_in = s->q_a;
    }
    model_linear(model, q_in, &layer->q_b, s->q, rows, 1, NULL);
    rotate(model, s->q + spec->nope_dim, heads * query_dim, input, heads, query_dim);
}

/* h -> the rows' latent and rotated key, into the cache. */
static void store_latents(const struct model *model, const struct layer_weights *layer, void *kv,
                          const struct model_input *input) {
    const struct model_spec *spec = &model->weights->spec;
    struct scratch *s = model->scratch;
    const uint32_t rows = input->rows;
    const size_t kv_dim = spec->kv_rank + spec->rope_dim;

    model_linear(model, s->h, &layer->kv_a, s->kv, rows, 1, NULL);
    inner_norm(model, s->kv, kv_dim, layer->kv_a_norm, rows, spec->kv_rank);
    rotate(model, s->kv + spec->kv_rank, kv_dim, input, 1, 0);
    model->backend->kv_store(&(struct kv_store_args){.latent = s->kv,
                                                     .latent_stride = kv_dim,
                                                     .rope_key = s->kv + spec->kv_rank,
                                                     .rope_stride = kv_dim,
                                                     .kv = kv,
                                                     .kv_dtype = model->kv_dtype,
                                                     .slot = input->kv_slot,
                                                     .rows = rows,
                                                     .latent_dim = spec->kv_rank,
                                                     .rope_dim = spec->rope_dim},
                             model->ctx);
}

static void inner_norm(const struct model *model, float *x, size_t stride, const float *weight,
                       uint32_t rows, uint32_t dim) {
    model->backend->rms_norm(&(struct rms_norm_args){.x = x,
                                                     .x_stride = stride,
                                                     .weight = weight,
                                                     .y = x,
                                                     .y_stride = stride,
                                                     .rows = rows,
                                                     .dim = dim,
                                                     .eps = model->weights->spec.inner_norm_eps},
                             model->ctx);
}

static void rotate(const struct model *model, float *x, size_t row_stride,
                   const struct model_input *input, uint32_t heads, size_t head_stride) {
    model->backend->rope(&(struct rope_args){.x = x,
                                             .row_stride = row_stride,
                                             .head_stride = head_stride,
                                             .cos_sin = input->cos_sin,
                                             .rows = input->rows,
                                             .heads = heads,
                                             .dim = model->weights->spec.rope_dim},
                         model->ctx);
}
