#include "drafter.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"
#include "candidates.h"
#include "kv_shadow.h"

/* Rows of one pass: as many blocks as fit, or tokens whose context is written. */
#define PASS_ROWS 256u

#define SCRATCH_ALIGN 64u

_Static_assert(DRAFT_LEN_MAX + 1 <= PASS_ROWS, "a block fits");

/* Activations of one pass, R = PASS_ROWS. All f32; letters as in drafter_spec.h. */
struct activations {
    float *taps;    /* [T, this rank's inputs of fc] of all rows of a step */
    float *x;       /* [R, D] the residual stream */
    float *h;       /* [R, D] */
    float *delta;   /* [R, D] */
    float *cos_sin; /* [R, C] */
    float *q, *o;   /* [R, H, C] */
    float *k, *v;   /* [R, G, C] */
    float *gate_up; /* [R, 2 F] */
    float *act;     /* [R, F] */
    float *head_x;  /* [R, D] rows of masks, dense */
    void *workspace;
    size_t workspace_bytes;
};

struct drafter {
    struct drafter_options options;
    const struct drafter_weights *weights;
    struct kv_pool *kv;
    struct kv_shadow *shadow; /* NULL without options.shadow_hash */
    double *inv_freq;         /* [C / 2] */
    struct activations a;
    void *memory; /* behind the activations */
    size_t bytes;

    /* Of one pass. */
    uint32_t id[PASS_ROWS];
    uint32_t position[PASS_ROWS];
    struct gqa_sequence sequence[PASS_ROWS / 2];
    uint32_t rows, blocks;

    /* Of one result. */
    struct result_sequence *result; /* [max_sequences] */
    struct candidates candidates;
};

struct layout {
    uint8_t *base; /* NULL: measures */
    size_t at;
};

static size_t lay_out(struct drafter *drafter, uint8_t *base);
static enum status make_kv(struct drafter *drafter, struct error *err);
static void angles(struct drafter *drafter, const uint32_t *position, uint32_t rows);
static enum status keep_some(struct drafter *drafter, const struct model *model,
                             const struct step_final *final, uint32_t begin, uint32_t count,
                             struct comm *comm, struct error *err);
static void add_block(struct drafter *drafter, const struct step_end *end);
static enum status run_blocks(struct drafter *drafter, const struct model *model, struct comm *comm,
                              struct error *err);
static enum status attend(struct drafter *drafter, const struct model *model, uint32_t layer,
                          struct comm *comm, struct error *err);
static enum status think(struct drafter *drafter, const struct model *model, uint32_t layer,
                         struct comm *comm, struct error *err);

/* ============================== making ======================================================== */

enum status drafter_create(const struct drafter_weights *weights,
                           const struct drafter_options *options, struct drafter **drafter_out,
                           struct error *err) {
    struct drafter *drafter = calloc(1, sizeof *drafter);
    if (!drafter) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a drafter");
    drafter->options = *options;
    drafter->weights = weights;
    drafter->inv_freq = calloc(weights->spec.head_dim / 2, sizeof *drafter->inv_freq);
    drafter->result = calloc(options->max_sequences, sizeof *drafter->result);
    bool has_room = candidates_init(&drafter->candidates);
    size_t bytes = lay_out(drafter, NULL);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    enum status status = STATUS_OK;
    if (memory == MAP_FAILED || !drafter->inv_freq || !drafter->result || !has_room)
        status = error_set(err, STATUS_RESOURCE_EXHAUSTED,
                           "%zu bytes for a drafter's activations: %s", bytes, strerror(errno));
    if (memory != MAP_FAILED) {
        drafter->memory = memory;
        drafter->bytes = bytes;
        lay_out(drafter, memory);
    }
    if (status == STATUS_OK) status = make_kv(drafter, err);
    if (status != STATUS_OK) {
        drafter_destroy(&drafter);
        return status;
    }
    drafter_spec_inv_freq(&weights->spec, drafter->inv_freq);
    *drafter_out = drafter;
    return STATUS_OK;
}

void drafter_destroy(struct drafter **drafter) {
    if (!*drafter) return;
    if ((*drafter)->memory) munmap((*drafter)->memory, (*drafter)->bytes);
    kv_shadow_destroy(&(*drafter)->shadow);
    kv_pool_destroy(&(*drafter)->kv);
    free((*drafter)->inv_freq);
    free((*drafter)->result);
    candidates_deinit(&(*drafter)->candidates);
    free(*drafter);
    *drafter = NULL;
}

uint32_t drafter_len(const struct drafter *drafter) {
    return drafter->weights->spec.block - 1;
}

struct drafter_memory drafter_memory(const struct drafter *drafter) {
    return (struct drafter_memory){.kv = drafter->kv,
                                   .scratch = drafter->memory,
                                   .scratch_bytes = drafter->bytes,
                                   .workspace = drafter->a.workspace,
                                   .workspace_bytes = drafter->a.workspace_bytes};
}

uint64_t drafter_bytes(const struct drafter *drafter) {
    return kv_pool_bytes(drafter->kv) + drafter->bytes;
}

static enum status make_kv(struct drafter *drafter, struct error *err) {
    const struct drafter_options *options = &drafter->options;
    const struct drafter_weights *weights = drafter->weights;
    const struct kv_pool_shape shape = {
        .layers = weights->spec.layers,
        .page_tok = options->page_tok,
        .tok_bytes = kv_tok_bytes(options->kv_dtype, weights->kv_heads * weights->spec.head_dim,
                                  weights->kv_heads * weights->spec.head_dim),
    };
    enum status status = kv_pool_create(&shape, &drafter->kv, err);
    if (status == STATUS_OK) status = kv_pool_resize(drafter->kv, options->page_count, err);
    if (status == STATUS_OK && options->shadow_hash)
        status = kv_shadow_create(options->page_cap, options->page_tok, &drafter->shadow, err);
    return status == STATUS_OK ? status : error_wrap(err, status, "drafter");
}

static void *take(struct layout *layout, size_t count, size_t element_bytes) {
    size_t at = layout->at;
    layout->at += (count * element_bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
    return layout->base ? layout->base + at : NULL;
}

static float *take_floats(struct layout *layout, size_t rows, size_t width) {
    return take(layout, rows * width, sizeof(float));
}

static size_t lay_out(struct drafter *drafter, uint8_t *base) {
    const struct drafter_weights *weights = drafter->weights;
    const struct drafter_spec *spec = &weights->spec;
    struct activations *a = &drafter->a;
    struct layout layout = {.base = base};
    size_t q_dim = (size_t)weights->heads * spec->head_dim;
    size_t kv_dim = (size_t)weights->kv_heads * spec->head_dim;
    a->taps = take_floats(&layout, drafter->options.max_rows, weights->fc.k);
    a->x = take_floats(&layout, PASS_ROWS, spec->hidden);
    a->h = take_floats(&layout, PASS_ROWS, spec->hidden);
    a->delta = take_floats(&layout, PASS_ROWS, spec->hidden);
    a->cos_sin = take_floats(&layout, PASS_ROWS, spec->head_dim);
    a->q = take_floats(&layout, PASS_ROWS, q_dim);
    a->o = take_floats(&layout, PASS_ROWS, q_dim);
    a->k = take_floats(&layout, PASS_ROWS, kv_dim);
    a->v = take_floats(&layout, PASS_ROWS, kv_dim);
    a->gate_up = take_floats(&layout, PASS_ROWS, 2 * (size_t)weights->width);
    a->act = take_floats(&layout, PASS_ROWS, weights->width);
    a->head_x = take_floats(&layout, PASS_ROWS, spec->hidden);
    drafter->candidates.logits = take_floats(&layout, CANDIDATES_ROWS,
                                             drafter->options.vocab_count);
    drafter->candidates.found = take(&layout, candidates_found_words(weights->tp),
                                     sizeof(uint32_t));
    a->workspace_bytes = gqa_block_scratch_bytes(drafter->options.threads, spec->head_dim);
    a->workspace = take(&layout, a->workspace_bytes, 1);
    return layout.at;
}

/* ============================== context ======================================================= */

/* The taps side by side are the input of fc, [T, taps D], of which this rank multiplies a stretch:
 * no more than that is kept. */
void drafter_tap(struct drafter *drafter, uint32_t layer, const float *x, uint32_t rows) {
    const struct drafter_weights *weights = drafter->weights;
    size_t hidden = weights->spec.hidden, width = weights->fc.k;
    size_t mine_begin = weights->rank * width, mine_end = mine_begin + width;
    for (uint32_t i = 0; i < weights->spec.tap_count; i++) {
        if (weights->spec.tap[i] != layer) continue;
        size_t begin = i * hidden > mine_begin ? i * hidden : mine_begin;
        size_t end = (i + 1) * hidden < mine_end ? (i + 1) * hidden : mine_end;
        for (size_t row = 0; row < rows && begin < end; row++)
            memcpy(drafter->a.taps + row * width + begin - mine_begin,
                   x + row * hidden + begin - i * hidden, (end - begin) * sizeof(float));
    }
}

enum status drafter_resize(struct drafter *drafter, uint32_t page_count, struct error *err) {
    return kv_pool_resize(drafter->kv, page_count, err);
}

void drafter_copy_pages(struct drafter *drafter, const struct model *model,
                        const struct kv_page_copy *copies, uint32_t count) {
    for (uint32_t layer = 0; layer < kv_pool_layers(drafter->kv); layer++)
        model->backend->kv_copy(&(struct kv_copy_args){.kv = kv_pool_layer(drafter->kv, layer),
                                                       .copies = copies,
                                                       .copy_count = count,
                                                       .page_tok = drafter->options.page_tok,
                                                       .tok_bytes = kv_pool_tok_bytes(drafter->kv)},
                                model->ctx);
    if (drafter->shadow) kv_shadow_copy(drafter->shadow, copies, count);
}

enum status drafter_keep(struct drafter *drafter, const struct model *model,
                         const struct step_final *final, struct comm *comm, struct error *err) {
    size_t width = drafter->weights->fc.k;
    for (uint32_t i = 0; i < final->count; i++) {
        CHECK(final->row[i] >= i);
        if (final->row[i] != i)
            memcpy(drafter->a.taps + i * width, drafter->a.taps + final->row[i] * width,
                   width * sizeof(float));
        if (drafter->shadow)
            kv_shadow_store(drafter->shadow, final->kv_slot[i], final->prefix_before[i],
                            final->prefix_with[i]);
    }
    enum status status = STATUS_OK;
    for (uint32_t begin = 0; begin < final->count && status == STATUS_OK; begin += PASS_ROWS) {
        uint32_t left = final->count - begin;
        status = keep_some(drafter, model, final, begin, left < PASS_ROWS ? left : PASS_ROWS, comm,
                           err);
    }
    return status == STATUS_OK ? status : error_wrap(err, status, "drafter's context");
}

static struct kernel_ctx ctx_of(const struct drafter *drafter, const struct model *model) {
    return (struct kernel_ctx){.team = model->ctx->team,
                               .scratch = drafter->a.workspace,
                               .scratch_bytes = drafter->a.workspace_bytes};
}

static void norm(const struct drafter *drafter, const struct model *model, const float *x,
                 const float *weight, float *y, uint32_t rows, uint32_t dim) {
    model->backend->rms_norm(&(struct rms_norm_args){.x = x,
                                                     .x_stride = dim,
                                                     .weight = weight,
                                                     .y = y,
                                                     .y_stride = dim,
                                                     .rows = rows,
                                                     .dim = dim,
                                                     .eps = drafter->weights->spec.norm_eps},
                             model->ctx);
}

/* Norm and rotate each head of x [rows, heads, C] in place. */
static void turn_heads(const struct drafter *drafter, const struct model *model, float *x,
                       const float *weight, uint32_t rows, uint32_t heads) {
    uint32_t dim = drafter->weights->spec.head_dim;
    norm(drafter, model, x, weight, x, rows * heads, dim);
    model->backend->rope(&(struct rope_args){.x = x,
                                             .row_stride = (size_t)heads * dim,
                                             .head_stride = dim,
                                             .cos_sin = drafter->a.cos_sin,
                                             .rows = rows,
                                             .heads = heads,
                                             .dim = dim,
                                             .halves = true},
                         model->ctx);
}

static void angles(struct drafter *drafter, const uint32_t *position, uint32_t rows) {
    const struct drafter_spec *spec = &drafter->weights->spec;
    rope_angles(drafter->a.cos_sin, position, rows, drafter->inv_freq, spec->head_dim);
    if (spec->rope_amplitude == 1) return;
    for (size_t i = 0; i < (size_t)rows * spec->head_dim; i++)
        drafter->a.cos_sin[i] *= (float)spec->rope_amplitude;
}

/* Keys and values of the final rows [begin, begin + count), from one feature a row that all layers
 * share. */
static enum status keep_some(struct drafter *drafter, const struct model *model,
                             const struct step_final *final, uint32_t begin, uint32_t count,
                             struct comm *comm, struct error *err) {
    const struct drafter_weights *weights = drafter->weights;
    const struct drafter_spec *spec = &weights->spec;
    const struct activations *a = &drafter->a;
    model_linear(model, a->taps + (size_t)begin * weights->fc.k, &weights->fc, a->x, count,
                 model->segments, NULL);
    enum status status = comm_all_reduce(comm, a->x, (size_t)count * spec->hidden, err);
    if (status != STATUS_OK) return status;
    norm(drafter, model, a->x, weights->hidden_norm, a->x, count, spec->hidden);
    angles(drafter, final->position + begin, count);
    uint32_t kv_dim = weights->kv_heads * spec->head_dim;
    for (uint32_t l = 0; l < spec->layers; l++) {
        const struct drafter_layer_weights *layer = &weights->layer[l];
        model_linear(model, a->x, &layer->k, a->k, count, 1, NULL);
        model_linear(model, a->x, &layer->v, a->v, count, 1, NULL);
        turn_heads(drafter, model, a->k, layer->k_norm, count, weights->kv_heads);
        /* A token's record is its keys and then its values: to kv_store a row in two parts. */
        model->backend->kv_store(&(struct kv_store_args){.latent = a->k,
                                                         .latent_stride = kv_dim,
                                                         .rope_key = a->v,
                                                         .rope_stride = kv_dim,
                                                         .kv = kv_pool_layer(drafter->kv, l),
                                                         .kv_dtype = drafter->options.kv_dtype,
                                                         .slot = final->kv_slot + begin,
                                                         .rows = count,
                                                         .latent_dim = kv_dim,
                                                         .rope_dim = kv_dim},
                                 model->ctx);
    }
    return STATUS_OK;
}

/* ============================== guessing ====================================================== */

/* Rows [0, rows) of head_x are the masks of a pass's sequences, as many of each as it wants. */
static uint32_t gather_masks(const struct drafter *drafter, const struct step_plan *plan,
                             uint32_t begin, uint32_t end) {
    const struct drafter_spec *spec = &drafter->weights->spec;
    uint32_t rows = 0;
    for (uint32_t i = begin, block = 0; i < end; i++) {
        uint32_t len = plan->sequence[i].draft_len;
        if (len == 0) continue;
        memcpy(drafter->a.head_x + (size_t)rows * spec->hidden,
               drafter->a.x + ((size_t)block * spec->block + 1) * spec->hidden,
               (size_t)len * spec->hidden * sizeof(float));
        rows += len;
        block++;
    }
    return rows;
}

/* Give each sequence its positions. Logits that are no numbers make no guesses. */
static void share_out(struct drafter *drafter, const struct step_plan *plan,
                      struct step_result *result) {
    uint32_t top = plan->draft_top, from = 0, to = 0;
    memcpy(drafter->result, result->sequence, plan->sequence_count * sizeof *drafter->result);
    for (uint32_t i = 0; i < plan->sequence_count; i++) {
        uint32_t len = plan->sequence[i].draft_len;
        bool finite = true;
        for (uint32_t at = from; at < from + len; at++)
            finite = finite && isfinite(drafter->candidates.lse[at]) &&
                     isfinite(drafter->candidates.candidate[(at + 1) * top - 1].logit);
        drafter->result[i].draft_begin = to;
        drafter->result[i].draft_count = finite ? len : 0;
        memmove(drafter->candidates.lse + to, drafter->candidates.lse + from,
                len * sizeof *drafter->candidates.lse);
        memmove(drafter->candidates.candidate + (size_t)to * top,
                drafter->candidates.candidate + (size_t)from * top,
                (size_t)len * top * sizeof *drafter->candidates.candidate);
        from += len;
        to += drafter->result[i].draft_count;
    }
    result->sequence = drafter->result;
    result->draft_lse = drafter->candidates.lse;
    result->candidate = drafter->candidates.candidate;
    result->draft_count = to;
    result->draft_top = to > 0 ? top : 0;
}

enum status drafter_guess(struct drafter *drafter, const struct model *model,
                          const struct step_plan *plan, const struct step *step, struct comm *comm,
                          struct step_result *result, struct error *err) {
    drafter->candidates.positions = 0;
    for (uint32_t begin = 0, end = 0; begin < plan->sequence_count; begin = end) {
        drafter->rows = drafter->blocks = 0;
        for (; end < plan->sequence_count; end++) {
            if (plan->sequence[end].draft_len == 0) continue;
            if (drafter->rows + drafter->weights->spec.block > PASS_ROWS) break;
            struct step_end last = step_end_of(step, plan->sequence[end].slot);
            add_block(drafter, &last);
            if (!drafter->shadow) continue;
            enum status status = kv_shadow_check(drafter->shadow, last.page, last.committed,
                                                 last.prefix_hash, err);
            if (status != STATUS_OK)
                return error_wrap(err, status, "drafter, slot %u", plan->sequence[end].slot);
        }
        if (drafter->rows == 0) continue;
        enum status status = run_blocks(drafter, model, comm, err);
        if (status == STATUS_OK)
            status = candidates_find(&drafter->candidates, model, drafter->a.head_x,
                                     gather_masks(drafter, plan, begin, end), plan->draft_top, comm,
                                     err);
        if (status != STATUS_OK) return error_wrap(err, status, "drafter");
    }
    share_out(drafter, plan, result);
    return STATUS_OK;
}

static void add_block(struct drafter *drafter, const struct step_end *end) {
    const struct drafter_spec *spec = &drafter->weights->spec;
    uint32_t window = drafter->options.window;
    drafter->sequence[drafter->blocks++] = (struct gqa_sequence){
        .row_begin = drafter->rows,
        .row_count = spec->block,
        .committed = end->committed,
        .context_begin = window > 0 && end->committed > window ? end->committed - window : 0,
        .page = end->page};
    for (uint32_t i = 0; i < spec->block; i++) {
        drafter->id[drafter->rows] = i == 0 ? end->root : spec->mask_token;
        drafter->position[drafter->rows++] = end->committed + i;
    }
}

/* x becomes the residual stream of all blocks behind the last layer, normed for the head. */
static enum status run_blocks(struct drafter *drafter, const struct model *model, struct comm *comm,
                              struct error *err) {
    const struct weights *target = model->weights;
    const struct drafter_spec *spec = &drafter->weights->spec;
    const struct activations *a = &drafter->a;
    model->backend->embed(&(struct embed_args){.id = drafter->id,
                                               .table = target->embed,
                                               .table_dtype = target->embed_dtype,
                                               .vocab_begin = target->vocab_begin,
                                               .vocab_count = target->vocab_count,
                                               .y = a->x,
                                               .rows = drafter->rows,
                                               .dim = spec->hidden},
                          model->ctx);
    enum status status = comm_all_reduce(comm, a->x, (size_t)drafter->rows * spec->hidden, err);
    angles(drafter, drafter->position, drafter->rows);
    for (uint32_t layer = 0; layer < spec->layers && status == STATUS_OK; layer++) {
        status = attend(drafter, model, layer, comm, err);
        if (status == STATUS_OK) status = think(drafter, model, layer, comm, err);
    }
    if (status == STATUS_OK)
        norm(drafter, model, a->x, drafter->weights->norm, a->x, drafter->rows, spec->hidden);
    return status;
}

/* x += the sum over ranks of delta. */
static enum status add_sum(struct drafter *drafter, const struct model *model, struct comm *comm,
                           struct error *err) {
    size_t count = (size_t)drafter->rows * drafter->weights->spec.hidden;
    enum status status = comm_all_reduce(comm, drafter->a.delta, count, err);
    if (status != STATUS_OK) return status;
    model->backend->add(
        &(struct add_args){.x = drafter->a.x, .y = drafter->a.delta, .count = count}, model->ctx);
    return STATUS_OK;
}

static enum status attend(struct drafter *drafter, const struct model *model, uint32_t layer,
                          struct comm *comm, struct error *err) {
    const struct drafter_weights *weights = drafter->weights;
    const struct drafter_layer_weights *w = &weights->layer[layer];
    const struct drafter_spec *spec = &weights->spec;
    const struct activations *a = &drafter->a;
    uint32_t rows = drafter->rows;
    norm(drafter, model, a->x, w->input_norm, a->h, rows, spec->hidden);
    model_linear(model, a->h, &w->q, a->q, rows, 1, NULL);
    model_linear(model, a->h, &w->k, a->k, rows, 1, NULL);
    model_linear(model, a->h, &w->v, a->v, rows, 1, NULL);
    turn_heads(drafter, model, a->q, w->q_norm, rows, weights->heads);
    turn_heads(drafter, model, a->k, w->k_norm, rows, weights->kv_heads);
    struct kernel_ctx ctx = ctx_of(drafter, model);
    model->backend->gqa_block(&(struct gqa_block_args){.q = a->q,
                                                       .k = a->k,
                                                       .v = a->v,
                                                       .kv = kv_pool_layer(drafter->kv, layer),
                                                       .kv_dtype = drafter->options.kv_dtype,
                                                       .sequences = drafter->sequence,
                                                       .sequence_count = drafter->blocks,
                                                       .out = a->o,
                                                       .heads = weights->heads,
                                                       .kv_heads = weights->kv_heads,
                                                       .head_dim = spec->head_dim,
                                                       .page_tok = drafter->options.page_tok,
                                                       .window = spec->layer[layer].window,
                                                       .causal = spec->layer[layer].causal,
                                                       .scale = 1 / sqrtf((float)spec->head_dim),
                                                       .rows_max = spec->block},
                              &ctx);
    model_linear(model, a->o, &w->o, a->delta, rows, model->segments, NULL);
    return add_sum(drafter, model, comm, err);
}

static enum status think(struct drafter *drafter, const struct model *model, uint32_t layer,
                         struct comm *comm, struct error *err) {
    const struct drafter_weights *weights = drafter->weights;
    const struct drafter_layer_weights *w = &weights->layer[layer];
    const struct activations *a = &drafter->a;
    norm(drafter, model, a->x, w->post_norm, a->h, drafter->rows, weights->spec.hidden);
    model_linear(model, a->h, &w->gate_up, a->gate_up, drafter->rows, 1, NULL);
    model->backend->swiglu(&(struct swiglu_args){.gate_up = a->gate_up,
                                                 .gate_up_stride = 2 * (size_t)weights->width,
                                                 .y = a->act,
                                                 .y_stride = weights->width,
                                                 .rows = drafter->rows,
                                                 .dim = weights->width},
                           model->ctx);
    model_linear(model, a->act, &w->down, a->delta, drafter->rows, model->segments, NULL);
    return add_sum(drafter, model, comm, err);
}
