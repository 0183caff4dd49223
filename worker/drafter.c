#include "drafter.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"
#include "candidates.h"
#include "device.h"
#include "kv_shadow.h"
#include "memory_fill.h"

#define SCRATCH_ALIGN 64u

_Static_assert(DRAFT_LEN_MAX + 1 <= DRAFTER_PASS_ROWS, "a block fits");

/* Of a step, T rows, S sequences that may guess, M positions guessed; of one pass, R rows. All f32;
 * letters as in drafter_spec.h, B rows of a block. */
struct activations {
    float *taps;         /* [T, this rank's inputs of fc] */
    float *final_angles; /* [T, C] cosines and sines; unused on a device, as the next */
    float *block_angles; /* [S, B, C] */
    float *head_x;       /* [M, D] rows of masks, normed and dense */

    float *x;       /* [R, D] the residual stream */
    float *h;       /* [R, D] */
    float *delta;   /* [R, D] */
    float *q, *o;   /* [R, H, C] */
    float *k, *v;   /* [R, G, C] */
    float *gate_up; /* [R, 2 F] */
    float *act;     /* [R, F] */
    void *workspace;
    size_t workspace_bytes;
};

/* What the host makes of a committed step, where ops find it once it is sent. */
struct input {
    uint32_t final_rows;
    const uint32_t *kv_slot;         /* [final_rows] */
    const float *final_angles;       /* [final_rows, C] */
    const struct kv_slot_move *move; /* [move_count] of taps, until those of final rows are dense */
    uint32_t move_count;

    uint32_t blocks;                     /* a sequence that guesses has one */
    const uint32_t *id;                  /* [blocks, B] */
    const float *block_angles;           /* [blocks, B, C] */
    const struct gqa_sequence *sequence; /* [blocks] rows are counted within their pass */
};

/* Blocks [begin, begin + blocks) of a step, all layers at a time. */
struct pass {
    uint32_t begin, blocks, rows;
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

    /* Of one step, before it is put. */
    struct kv_slot_move *move;     /* [max_rows] */
    uint32_t *id, *position;       /* [max_sequences, B] */
    struct gqa_sequence *sequence; /* [max_sequences] */
    uint32_t *wanted;              /* [max_sequences] positions that each block guesses */
    struct input in;
    struct pass pass;

    /* Of one result. */
    struct result_sequence *result; /* [max_sequences] */
    struct candidates candidates;
};

struct layout {
    uint8_t *base; /* NULL: measures */
    size_t at;
};

static size_t lay_out(struct drafter *drafter, uint8_t *base);
static enum status take_memory(struct drafter *drafter, struct error *err);
static enum status make_kv(struct drafter *drafter, struct error *err);
static enum status keep_some(struct drafter *drafter, const struct model *model, uint32_t begin,
                             uint32_t count, struct comm *comm, struct error *err);
static enum status run_blocks(struct drafter *drafter, const struct model *model, struct comm *comm,
                              struct error *err);
static enum status attend(struct drafter *drafter, const struct model *model, uint32_t layer,
                          struct comm *comm, struct error *err);
static enum status think(struct drafter *drafter, const struct model *model, uint32_t layer,
                         struct comm *comm, struct error *err);

/* ============================== making ======================================================== */

/* Positions that a step may guess. */
static uint32_t positions_max(const struct drafter *drafter) {
    return min_u32(drafter->options.max_sequences * drafter_len(drafter), DRAFT_POSITIONS_MAX);
}

static enum status make_arrays(struct drafter *drafter, struct error *err) {
    const struct drafter_spec *spec = &drafter->weights->spec;
    const size_t rows = drafter->options.max_rows, sequences = drafter->options.max_sequences;
    drafter->inv_freq = calloc(spec->head_dim / 2, sizeof *drafter->inv_freq);
    drafter->result = calloc(sequences, sizeof *drafter->result);
    drafter->move = calloc(rows, sizeof *drafter->move);
    drafter->id = calloc(sequences * spec->block, sizeof *drafter->id);
    drafter->position = calloc(sequences * spec->block, sizeof *drafter->position);
    drafter->sequence = calloc(sequences, sizeof *drafter->sequence);
    drafter->wanted = calloc(sequences, sizeof *drafter->wanted);
    if (!drafter->inv_freq || !drafter->result || !drafter->move || !drafter->id ||
        !drafter->position || !drafter->sequence || !drafter->wanted)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for guesses of %zu sequences",
                         sequences);
    drafter_spec_inv_freq(spec, drafter->inv_freq);
    return candidates_init(&drafter->candidates, drafter->options.device, drafter->weights->tp,
                           positions_max(drafter), err);
}

enum status drafter_create(const struct drafter_weights *weights,
                           const struct drafter_options *options, struct drafter **drafter_out,
                           struct error *err) {
    struct drafter *drafter = calloc(1, sizeof *drafter);
    if (!drafter) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a drafter");
    drafter->options = *options;
    drafter->weights = weights;
    enum status status = make_arrays(drafter, err);
    if (status == STATUS_OK) status = take_memory(drafter, err);
    if (status == STATUS_OK) status = make_kv(drafter, err);
    if (status != STATUS_OK) {
        drafter_destroy(&drafter);
        return error_wrap(err, status, "drafter");
    }
    *drafter_out = drafter;
    return STATUS_OK;
}

void drafter_destroy(struct drafter **drafter) {
    if (!*drafter) return;
    if ((*drafter)->options.device)
        device_give((*drafter)->options.device, (*drafter)->memory);
    else if ((*drafter)->memory)
        munmap((*drafter)->memory, (*drafter)->bytes);
    kv_shadow_destroy(&(*drafter)->shadow);
    kv_pool_destroy(&(*drafter)->kv);
    candidates_deinit(&(*drafter)->candidates);
    free((*drafter)->inv_freq);
    free((*drafter)->result);
    free((*drafter)->move);
    free((*drafter)->id);
    free((*drafter)->position);
    free((*drafter)->sequence);
    free((*drafter)->wanted);
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

static enum status take_memory(struct drafter *drafter, struct error *err) {
    const size_t bytes = lay_out(drafter, NULL);
    void *memory = NULL;
    if (drafter->options.device) {
        enum status status = device_take(drafter->options.device, bytes, "activations", &memory,
                                         err);
        if (status != STATUS_OK) return status;
    } else {
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED || !memory_fill(memory, bytes)) {
            int cause = errno;
            if (memory != MAP_FAILED) munmap(memory, bytes);
            return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%zu bytes for activations: %s", bytes,
                             strerror(cause));
        }
    }
    drafter->memory = memory;
    drafter->bytes = bytes;
    lay_out(drafter, memory);
    return STATUS_OK;
}

static enum status make_kv(struct drafter *drafter, struct error *err) {
    const struct drafter_options *options = &drafter->options;
    const struct drafter_weights *weights = drafter->weights;
    const struct kv_pool_shape shape = {
        .layers = weights->spec.layers,
        .page_tok = options->page_tok,
        .tok_bytes = kv_tok_bytes(options->kv_dtype, weights->kv_heads * weights->spec.head_dim,
                                  weights->kv_heads * weights->spec.head_dim),
        .device = options->device,
    };
    enum status status = kv_pool_create(&shape, &drafter->kv, err);
    if (status == STATUS_OK) status = kv_pool_resize(drafter->kv, options->page_count, err);
    if (status == STATUS_OK && options->shadow_hash)
        status = kv_shadow_create(options->page_cap, options->page_tok, &drafter->shadow, err);
    return status;
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
    size_t block_rows = (size_t)drafter->options.max_sequences * spec->block;
    a->taps = take_floats(&layout, drafter->options.max_rows, weights->fc.k);
    a->final_angles = take_floats(&layout, drafter->options.max_rows, spec->head_dim);
    a->block_angles = take_floats(&layout, block_rows, spec->head_dim);
    a->head_x = take_floats(&layout, positions_max(drafter), spec->hidden);
    a->x = take_floats(&layout, DRAFTER_PASS_ROWS, spec->hidden);
    a->h = take_floats(&layout, DRAFTER_PASS_ROWS, spec->hidden);
    a->delta = take_floats(&layout, DRAFTER_PASS_ROWS, spec->hidden);
    a->q = take_floats(&layout, DRAFTER_PASS_ROWS, q_dim);
    a->o = take_floats(&layout, DRAFTER_PASS_ROWS, q_dim);
    a->k = take_floats(&layout, DRAFTER_PASS_ROWS, kv_dim);
    a->v = take_floats(&layout, DRAFTER_PASS_ROWS, kv_dim);
    a->gate_up = take_floats(&layout, DRAFTER_PASS_ROWS, 2 * (size_t)weights->width);
    a->act = take_floats(&layout, DRAFTER_PASS_ROWS, weights->width);
    drafter->candidates.logits = take_floats(&layout, CANDIDATES_ROWS,
                                             drafter->options.vocab_count);
    drafter->candidates.found = take(
        &layout, candidates_found_words(weights->tp, positions_max(drafter)), sizeof(uint32_t));
    a->workspace_bytes = drafter->options.device
                             ? 0
                             : gqa_block_scratch_bytes(drafter->options.threads, spec->head_dim);
    a->workspace = take(&layout, a->workspace_bytes, 1);
    return layout.at;
}

/* ============================== input ========================================================= */

size_t drafter_input_bytes(const struct drafter_spec *spec, const struct device_bounds *bounds) {
    const size_t angle_bytes = spec->head_dim * sizeof(float);
    size_t row_bytes = sizeof(struct kv_slot_move) + sizeof(uint32_t) + angle_bytes;
    size_t block_bytes = sizeof(struct gqa_sequence) +
                         spec->block * (sizeof(uint32_t) + angle_bytes);
    return bounds->rows_max * row_bytes + bounds->sequences_max * block_bytes +
           6 * DEVICE_INPUT_ALIGN;
}

/* Cosines and sines of positions [rows]: on the host in `angles`. */
static const float *put_angles(const struct drafter *drafter, const uint32_t *position,
                               uint32_t rows, float *angles) {
    const struct drafter_spec *spec = &drafter->weights->spec;
    const size_t count = (size_t)rows * spec->head_dim;
    const void *there = angles;
    if (drafter->options.device && rows > 0)
        angles = device_room(drafter->options.device, count * sizeof *angles, &there);
    rope_angles(angles, position, rows, drafter->inv_freq, spec->head_dim);
    for (size_t i = 0; i < count && spec->rope_amplitude != 1; i++)
        angles[i] *= (float)spec->rope_amplitude;
    return there;
}

static void put_final(struct drafter *drafter, const struct step_final *final) {
    struct device *device = drafter->options.device;
    struct input *in = &drafter->in;
    in->move_count = 0;
    for (uint32_t i = 0; i < final->count; i++) {
        CHECK(final->row[i] >= i);
        if (final->row[i] != i)
            drafter->move[in->move_count++] = (struct kv_slot_move){.from = final->row[i], .to = i};
        if (drafter->shadow)
            kv_shadow_store(drafter->shadow, final->kv_slot[i], final->prefix_before[i],
                            final->prefix_with[i]);
    }
    in->final_rows = final->count;
    in->kv_slot = device_put(device, final->kv_slot, final->count * sizeof *final->kv_slot);
    in->final_angles = put_angles(drafter, final->position, final->count, drafter->a.final_angles);
    in->move = device_put(device, drafter->move, in->move_count * sizeof *drafter->move);
}

/* As many blocks as run at a time. */
static uint32_t pass_blocks(const struct drafter *drafter) {
    return DRAFTER_PASS_ROWS / drafter->weights->spec.block;
}

/* The root and its masks. page: where ops find it. */
static void add_block(struct drafter *drafter, const struct step_end *end, const uint32_t *page) {
    const struct drafter_spec *spec = &drafter->weights->spec;
    const uint32_t window = drafter->options.window, block = drafter->in.blocks++;
    drafter->sequence[block] = (struct gqa_sequence){
        .row_begin = block % pass_blocks(drafter) * spec->block,
        .row_count = spec->block,
        .committed = end->committed,
        .context_begin = window > 0 && end->committed > window ? end->committed - window : 0,
        .page = page};
    for (uint32_t i = 0, row = block * spec->block; i < spec->block; i++, row++) {
        drafter->id[row] = i == 0 ? end->root : spec->mask_token;
        drafter->position[row] = end->committed + i;
    }
}

enum status drafter_put(struct drafter *drafter, const struct step_plan *plan,
                        const struct step *step, const struct step_final *final,
                        const struct model_sequences *sequences, struct error *err) {
    struct device *device = drafter->options.device;
    struct input *in = &drafter->in;
    put_final(drafter, final);
    in->blocks = 0;
    for (uint32_t i = 0; i < plan->sequence_count; i++) {
        const struct plan_sequence *sequence = &plan->sequence[i];
        if (sequence->draft_len == 0) continue;
        const struct step_end end = step_end_of(step, sequence->slot);
        drafter->wanted[in->blocks] = sequence->draft_len;
        add_block(drafter, &end, sequences->sent[i].page);
        if (!drafter->shadow) continue;
        enum status status = kv_shadow_check(drafter->shadow, end.page, end.committed,
                                             end.prefix_hash, err);
        if (status != STATUS_OK) return error_wrap(err, status, "drafter, slot %u", sequence->slot);
    }
    const uint32_t rows = in->blocks * drafter->weights->spec.block;
    in->id = device_put(device, drafter->id, rows * sizeof *drafter->id);
    in->block_angles = put_angles(drafter, drafter->position, rows, drafter->a.block_angles);
    in->sequence = device_put(device, drafter->sequence, in->blocks * sizeof *drafter->sequence);
    return STATUS_OK;
}

/* ============================== context ======================================================= */

/* The taps side by side are the input of fc, [T, taps D], of which this rank multiplies a stretch:
 * no more than that is kept. */
enum status drafter_tap(struct drafter *drafter, uint32_t layer, const float *x, uint32_t rows,
                        struct error *err) {
    const struct drafter_weights *weights = drafter->weights;
    size_t hidden = weights->spec.hidden, width = weights->fc.k;
    size_t mine_begin = weights->rank * width, mine_end = mine_begin + width;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < weights->spec.tap_count && status == STATUS_OK; i++) {
        if (weights->spec.tap[i] != layer) continue;
        size_t begin = i * hidden > mine_begin ? i * hidden : mine_begin;
        size_t end = (i + 1) * hidden < mine_end ? (i + 1) * hidden : mine_end;
        if (begin < end)
            status = device_copy_rows(
                drafter->options.device,
                &(struct device_rows){.to = drafter->a.taps + begin - mine_begin,
                                      .to_stride = width * sizeof(float),
                                      .from = x + begin - i * hidden,
                                      .from_stride = hidden * sizeof(float),
                                      .bytes = (end - begin) * sizeof(float),
                                      .count = rows},
                err);
    }
    return status;
}

enum status drafter_resize(struct drafter *drafter, uint32_t page_count, struct error *err) {
    return kv_pool_resize(drafter->kv, page_count, err);
}

void drafter_copy_pages(struct drafter *drafter, const struct model *model,
                        const struct kv_page_copy *copies, const struct kv_page_copy *copies_of_ops,
                        uint32_t count) {
    for (uint32_t layer = 0; layer < kv_pool_layers(drafter->kv); layer++)
        model->backend->kv_copy(&(struct kv_copy_args){.kv = kv_pool_layer(drafter->kv, layer),
                                                       .copies = copies_of_ops,
                                                       .copy_count = count,
                                                       .page_tok = drafter->options.page_tok,
                                                       .tok_bytes = kv_pool_tok_bytes(drafter->kv)},
                                model->ctx);
    if (drafter->shadow) kv_shadow_copy(drafter->shadow, copies, count);
}

/* Taps lie row by row, as tokens do in a cache, and move as those do. */
enum status drafter_keep(struct drafter *drafter, const struct model *model, struct comm *comm,
                         struct error *err) {
    const struct input *in = &drafter->in;
    model->backend->kv_move(
        &(struct kv_move_args){.kv = drafter->a.taps,
                               .moves = in->move,
                               .move_count = in->move_count,
                               .tok_bytes = drafter->weights->fc.k * sizeof(float)},
        model->ctx);
    enum status status = STATUS_OK;
    for (uint32_t begin = 0; begin < in->final_rows && status == STATUS_OK;
         begin += DRAFTER_PASS_ROWS)
        status = keep_some(drafter, model, begin,
                           min_u32(in->final_rows - begin, DRAFTER_PASS_ROWS), comm, err);
    return status == STATUS_OK ? status : error_wrap(err, status, "drafter's context");
}

static struct kernel_ctx ctx_of(const struct drafter *drafter, const struct model *model) {
    struct kernel_ctx ctx = *model->ctx;
    ctx.scratch = drafter->a.workspace;
    ctx.scratch_bytes = drafter->a.workspace_bytes;
    return ctx;
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
                       const float *weight, const float *angles, uint32_t rows, uint32_t heads) {
    uint32_t dim = drafter->weights->spec.head_dim;
    norm(drafter, model, x, weight, x, rows * heads, dim);
    model->backend->rope(&(struct rope_args){.x = x,
                                             .row_stride = (size_t)heads * dim,
                                             .head_stride = dim,
                                             .cos_sin = angles,
                                             .rows = rows,
                                             .heads = heads,
                                             .dim = dim,
                                             .halves = true},
                         model->ctx);
}

/* Keys and values of the final rows [begin, begin + count), from one feature a row that all layers
 * share. */
static enum status keep_some(struct drafter *drafter, const struct model *model, uint32_t begin,
                             uint32_t count, struct comm *comm, struct error *err) {
    const float *angles = drafter->in.final_angles +
                          (size_t)begin * drafter->weights->spec.head_dim;
    const struct drafter_weights *weights = drafter->weights;
    const struct drafter_spec *spec = &weights->spec;
    const struct activations *a = &drafter->a;
    model_linear(model, a->taps + (size_t)begin * weights->fc.k, &weights->fc, a->x, count,
                 model->segments, NULL);
    enum status status = comm_all_reduce(comm, a->x, (size_t)count * spec->hidden, err);
    if (status != STATUS_OK) return status;
    norm(drafter, model, a->x, weights->hidden_norm, a->x, count, spec->hidden);
    uint32_t kv_dim = weights->kv_heads * spec->head_dim;
    for (uint32_t l = 0; l < spec->layers; l++) {
        const struct drafter_layer_weights *layer = &weights->layer[l];
        model_linear(model, a->x, &layer->k, a->k, count, 1, NULL);
        model_linear(model, a->x, &layer->v, a->v, count, 1, NULL);
        turn_heads(drafter, model, a->k, layer->k_norm, angles, count, weights->kv_heads);
        /* A token's record is its keys and then its values: to kv_store a row in two parts. */
        model->backend->kv_store(&(struct kv_store_args){.latent = a->k,
                                                         .latent_stride = kv_dim,
                                                         .rope_key = a->v,
                                                         .rope_stride = kv_dim,
                                                         .kv = kv_pool_layer(drafter->kv, l),
                                                         .kv_dtype = drafter->options.kv_dtype,
                                                         .slot = drafter->in.kv_slot + begin,
                                                         .rows = count,
                                                         .latent_dim = kv_dim,
                                                         .rope_dim = kv_dim},
                                 model->ctx);
    }
    return STATUS_OK;
}

/* ============================== guessing ====================================================== */

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

/* The masks of the pass that are wanted, normed for the head, behind `rows` that are there. Returns
 * how many are there now. */
static uint32_t norm_masks(const struct drafter *drafter, const struct model *model,
                           uint32_t rows) {
    const struct drafter_spec *spec = &drafter->weights->spec;
    const size_t dim = spec->hidden;
    for (uint32_t block = 0; block < drafter->pass.blocks; block++) {
        uint32_t wanted = drafter->wanted[drafter->pass.begin + block];
        norm(drafter, model, drafter->a.x + ((size_t)block * spec->block + 1) * dim,
             drafter->weights->norm, drafter->a.head_x + rows * dim, wanted, spec->hidden);
        rows += wanted;
    }
    return rows;
}

enum status drafter_guess(struct drafter *drafter, const struct model *model,
                          const struct step_plan *plan, struct comm *comm,
                          struct step_result *result, struct error *err) {
    const uint32_t blocks = drafter->in.blocks;
    uint32_t rows = 0;
    enum status status = STATUS_OK;
    for (uint32_t begin = 0; begin < blocks && status == STATUS_OK; begin += pass_blocks(drafter)) {
        drafter->pass.begin = begin;
        drafter->pass.blocks = min_u32(blocks - begin, pass_blocks(drafter));
        drafter->pass.rows = drafter->pass.blocks * drafter->weights->spec.block;
        status = run_blocks(drafter, model, comm, err);
        if (status == STATUS_OK) rows = norm_masks(drafter, model, rows);
    }
    if (status == STATUS_OK && rows > 0)
        status = candidates_find(&drafter->candidates, model, drafter->a.head_x, rows,
                                 plan->draft_top, comm, err);
    if (status != STATUS_OK) return error_wrap(err, status, "drafter");
    share_out(drafter, plan, result);
    return STATUS_OK;
}

/* x becomes the residual stream of the pass behind the last layer. */
static enum status run_blocks(struct drafter *drafter, const struct model *model, struct comm *comm,
                              struct error *err) {
    const struct weights *target = model->weights;
    const struct drafter_spec *spec = &drafter->weights->spec;
    const struct pass *pass = &drafter->pass;
    model->backend->embed(
        &(struct embed_args){.id = drafter->in.id + (size_t)pass->begin * spec->block,
                             .table = target->embed,
                             .table_dtype = target->embed_dtype,
                             .vocab_begin = target->vocab_begin,
                             .vocab_count = target->vocab_count,
                             .y = drafter->a.x,
                             .rows = pass->rows,
                             .dim = spec->hidden},
        model->ctx);
    enum status status = comm_all_reduce(comm, drafter->a.x, (size_t)pass->rows * spec->hidden,
                                         err);
    if (status != STATUS_OK) return status;
    norm(drafter, model, drafter->a.x, drafter->weights->layer[0].input_norm, drafter->a.h,
         pass->rows, spec->hidden);
    for (uint32_t layer = 0; layer < spec->layers && status == STATUS_OK; layer++) {
        status = attend(drafter, model, layer, comm, err);
        if (status == STATUS_OK) status = think(drafter, model, layer, comm, err);
    }
    return status;
}

/* x += the sum over ranks of delta; then h = norm(x), by this weight unless it is NULL. */
static enum status add_sum(struct drafter *drafter, const struct model *model, const float *weight,
                           struct comm *comm, struct error *err) {
    const struct drafter_spec *spec = &drafter->weights->spec;
    const struct activations *a = &drafter->a;
    return model_add_sum(model,
                         &(struct model_sum){.share = a->delta,
                                             .x = a->x,
                                             .weight = weight,
                                             .h = a->h,
                                             .dim = spec->hidden,
                                             .eps = spec->norm_eps},
                         drafter->pass.rows, comm, err);
}

static enum status attend(struct drafter *drafter, const struct model *model, uint32_t layer,
                          struct comm *comm, struct error *err) {
    const struct drafter_weights *weights = drafter->weights;
    const struct drafter_layer_weights *w = &weights->layer[layer];
    const struct drafter_spec *spec = &weights->spec;
    const struct activations *a = &drafter->a;
    const struct pass *pass = &drafter->pass;
    const float *angles = drafter->in.block_angles +
                          (size_t)pass->begin * spec->block * spec->head_dim;
    uint32_t rows = pass->rows;
    model_linear(model, a->h, &w->q, a->q, rows, 1, NULL);
    model_linear(model, a->h, &w->k, a->k, rows, 1, NULL);
    model_linear(model, a->h, &w->v, a->v, rows, 1, NULL);
    turn_heads(drafter, model, a->q, w->q_norm, angles, rows, weights->heads);
    turn_heads(drafter, model, a->k, w->k_norm, angles, rows, weights->kv_heads);
    struct kernel_ctx ctx = ctx_of(drafter, model);
    model->backend->gqa_block(
        &(struct gqa_block_args){.q = a->q,
                                 .k = a->k,
                                 .v = a->v,
                                 .kv = kv_pool_layer(drafter->kv, layer),
                                 .kv_dtype = drafter->options.kv_dtype,
                                 .sequences = drafter->in.sequence + pass->begin,
                                 .sequence_count = pass->blocks,
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
    return add_sum(drafter, model, w->post_norm, comm, err);
}

static enum status think(struct drafter *drafter, const struct model *model, uint32_t layer,
                         struct comm *comm, struct error *err) {
    const struct drafter_weights *weights = drafter->weights;
    const struct drafter_layer_weights *w = &weights->layer[layer];
    const struct activations *a = &drafter->a;
    const uint32_t rows = drafter->pass.rows;
    bool is_last = layer + 1 == weights->spec.layers; /* masks alone are normed behind it */
    model_linear(model, a->h, &w->gate_up, a->gate_up, rows, 1, NULL);
    model->backend->swiglu(&(struct swiglu_args){.gate_up = a->gate_up,
                                                 .gate_up_stride = 2 * (size_t)weights->width,
                                                 .y = a->act,
                                                 .y_stride = weights->width,
                                                 .rows = rows,
                                                 .dim = weights->width},
                           model->ctx);
    model_linear(model, a->act, &w->down, a->delta, rows, model->segments, NULL);
    return add_sum(drafter, model, is_last ? NULL : w[1].input_norm, comm, err);
}
