#include "sampler.h"

#include <stdlib.h>

#include "base/check.h"

/* With each token drawn go its own log-probability and the others. */
#define LOGPROBS_PER_TOKEN (1 + TOP_LOGPROBS_MAX)

_Static_assert(TOP_LOGPROBS_MAX <= SAMPLE_TOP_MAX, "sample finds what a client may ask for");

/* What is drawn at a row; on a device where ops leave it. */
struct drawn {
    uint32_t token;
    float logprob;
    uint32_t top_token[TOP_LOGPROBS_MAX];
    float top_logprob[TOP_LOGPROBS_MAX];
};

/* One row to draw at. */
struct drawn_row {
    const struct plan_sequence *sequence;
    uint32_t head_row;    /* of the block: its logits are the model's */
    uint64_t position;    /* of the token that will be drawn */
    const uint32_t *path; /* [path_count] of a tree: from its root to the row, this included */
    uint32_t path_count;
};

/* No more tokens are drawn than a plan has rows. */
struct sampler {
    const struct penalties *penalties;
    struct result_sequence *sequence; /* [sequences_max] */
    uint32_t *token;                  /* [rows_max] */
    uint32_t token_count;
    struct token_logprob *logprob; /* [rows_max * LOGPROBS_PER_TOKEN] */
    uint32_t logprob_count;

    /* On a device: */
    struct device *device;
    struct drawn *there; /* [rows_max] of the rows that ask, in plan order */
    struct drawn *here;  /* [rows_max] pinned: the same, when the step has ended */
    uint32_t ahead;      /* of them drawn so far */
    struct penalize_args penalize[SCRATCH_HEAD_ROWS]; /* of a block; out NULL: none */
};

_Static_assert(TREE_ROWS_MAX <= PENALIZE_TAIL_MAX, "a path of a tree is a tail of the sequence's");
_Static_assert(TREE_ROWS_MAX <= SCRATCH_HEAD_ROWS, "the logits of a tree exist at once");

/* The sequences of one block of the head, and of how many rows it has logits. */
struct block {
    uint32_t begin, end, rows;
};

static struct block next_block(const struct step_plan *plan, uint32_t begin);
static void norm_rows(const struct model *model, const struct step_plan *plan,
                      const struct block *block);
static void draw_sequence(struct sampler *sampler, const struct model *model,
                          const struct step_plan *plan, const struct step_batch *batch,
                          uint32_t idx, uint32_t head_begin, uint32_t head_rows,
                          const struct drawn *ahead);
static enum status draw_ahead(struct sampler *sampler, const struct model *model,
                              const struct step_plan *plan, const struct step_batch *batch,
                              const struct block *block, struct error *err);
static enum status read_drawn(struct sampler *sampler, const struct model *model,
                              const struct step_plan *plan, const struct step_batch *batch,
                              struct comm *comm, struct error *err);
static enum status head_block(const struct model *model, uint32_t rows, struct comm *comm,
                              struct error *err);
static enum status head_row(const struct model *model, uint32_t row, uint32_t rows,
                            const float **logits_out, struct error *err);
static bool fill_penalties(const struct sampler *sampler, const struct model *model,
                           const struct drawn_row *row, struct penalize_args *args);
static void draw(const struct model *model, const struct drawn_row *row, const float *logits,
                 const struct penalize_args *penalize, struct drawn *out);
static uint32_t keep(struct sampler *sampler, const struct plan_sequence *sequence,
                     const struct drawn *drawn);

enum status sampler_create(const struct sampler_shape *shape, const struct penalties *penalties,
                           struct sampler **sampler_out, struct error *err) {
    const size_t rows = shape->rows_max;
    struct sampler *sampler = calloc(1, sizeof *sampler);
    if (!sampler) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a sampler");
    sampler->penalties = penalties;
    sampler->device = shape->device;
    sampler->sequence = calloc(shape->sequences_max, sizeof *sampler->sequence);
    sampler->token = calloc(rows, sizeof *sampler->token);
    sampler->logprob = calloc(rows * LOGPROBS_PER_TOKEN, sizeof *sampler->logprob);
    enum status status = STATUS_OK;
    if (!sampler->sequence || !sampler->token || !sampler->logprob)
        status = error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for results of %u rows",
                           shape->rows_max);
    size_t bytes = rows * sizeof *sampler->there;
    if (status == STATUS_OK && shape->device)
        status = device_take(shape->device, bytes, "tokens", (void **)&sampler->there, err);
    if (status == STATUS_OK && shape->device)
        status = device_pin(shape->device, bytes, (void **)&sampler->here, err);
    if (status != STATUS_OK)
        sampler_destroy(&sampler);
    else
        *sampler_out = sampler;
    return status;
}

void sampler_destroy(struct sampler **sampler) {
    if (!*sampler) return;
    if ((*sampler)->device) {
        device_give((*sampler)->device, (*sampler)->there);
        device_unpin((*sampler)->device, (*sampler)->here);
    }
    free((*sampler)->sequence);
    free((*sampler)->token);
    free((*sampler)->logprob);
    free(*sampler);
    *sampler = NULL;
}

size_t sampler_input_bytes(uint32_t vocab, const struct device_bounds *bounds) {
    size_t row_bytes = TREE_ROWS_MAX * sizeof(uint32_t) + DEVICE_INPUT_ALIGN;
    size_t sequence_bytes = vocab * sizeof(uint32_t) +
                            LOGIT_BIAS_MAX * sizeof(struct penalize_bias) + 2 * DEVICE_INPUT_ALIGN;
    return bounds->rows_max * row_bytes + bounds->sequences_max * sequence_bytes;
}

enum status sampler_draw(struct sampler *sampler, const struct model *model,
                         const struct step_plan *plan, const struct step_batch *batch,
                         uint32_t head_rows, struct comm *comm, struct step_result *result_out,
                         struct error *err) {
    enum status status = STATUS_OK;
    sampler->token_count = sampler->logprob_count = sampler->ahead = 0;
    for (uint32_t begin = 0; begin < plan->sequence_count && status == STATUS_OK;) {
        struct block block = next_block(plan, begin);
        begin = block.end;
        if (head_rows == 0) {
            norm_rows(model, plan, &block);
            if (block.rows > 0) status = head_block(model, block.rows, comm, err);
        } else {
            block.rows = head_rows;
        }
        if (status == STATUS_OK && sampler->device)
            status = draw_ahead(sampler, model, plan, batch, &block, err);
        for (uint32_t i = block.begin, row = 0; i < block.end && !sampler->device; i++) {
            draw_sequence(sampler, model, plan, batch, i, row, block.rows, NULL);
            row += sampler_rows(&plan->sequence[i]);
        }
    }
    if (status == STATUS_OK && sampler->device)
        status = read_drawn(sampler, model, plan, batch, comm, err);
    if (status != STATUS_OK) return status;
    result_out->sequence = sampler->sequence;
    result_out->sequence_count = plan->sequence_count;
    result_out->token = sampler->token;
    result_out->token_count = sampler->token_count;
    result_out->logprob = sampler->logprob;
    result_out->logprob_count = sampler->logprob_count;
    return STATUS_OK;
}

/* As many sequences as fit a block of the head. */
static struct block next_block(const struct step_plan *plan, uint32_t begin) {
    struct block block = {.begin = begin, .end = begin};
    for (; block.end < plan->sequence_count; block.end++) {
        uint32_t wanted = sampler_rows(&plan->sequence[block.end]);
        if (block.rows + wanted > SCRATCH_HEAD_ROWS) break;
        block.rows += wanted;
    }
    return block;
}

/* The rows that ask, normed and dense, in head_x. */
static void norm_rows(const struct model *model, const struct step_plan *plan,
                      const struct block *block) {
    struct scratch *s = model->scratch;
    const uint32_t dim = model->weights->spec.hidden;
    for (uint32_t i = block->begin, row = 0; i < block->end; i++) {
        const struct plan_sequence *sequence = &plan->sequence[i];
        uint32_t wanted = sampler_rows(sequence);
        size_t first = sequence->row_begin + sequence->row_count - wanted;
        model_norm(model, s->x + first * dim, model->weights->final_norm,
                   s->head_x + (size_t)row * dim, wanted);
        row += wanted;
    }
}

/* The walk of a tree may come to any row. */
uint32_t sampler_rows(const struct plan_sequence *sequence) {
    if (sequence->want != PLAN_WANT_TOKEN) return 0;
    return sequence->kind == PLAN_TREE ? sequence->row_count : 1;
}

/* Drawn now, as the walk has come to the row. */
static uint32_t draw_here(struct sampler *sampler, const struct model *model,
                          const struct drawn_row *row, uint32_t head_rows) {
    struct penalize_args penalize;
    struct drawn drawn;
    const float *logits = NULL;
    struct error err;
    CHECK(head_row(model, row->head_row, head_rows, &logits, &err) == STATUS_OK); /* the host's */
    bool changes = fill_penalties(sampler, model, row, &penalize);
    draw(model, row, logits, changes ? &penalize : NULL, &drawn);
    return keep(sampler, row->sequence, &drawn);
}

/* The sequence's logits are rows [head_begin, ...) of the block's head_rows; `ahead`, where it is
 * not NULL, what was drawn there. */
static void draw_sequence(struct sampler *sampler, const struct model *model,
                          const struct step_plan *plan, const struct step_batch *batch,
                          uint32_t idx, uint32_t head_begin, uint32_t head_rows,
                          const struct drawn *ahead) {
    const struct plan_sequence *sequence = &plan->sequence[idx];
    struct result_sequence *result = &sampler->sequence[idx];
    uint64_t end = (uint64_t)sequence->committed + sequence->row_count;
    struct drawn_row drawn = {.sequence = sequence, .head_row = head_begin, .position = end};
    *result = (struct result_sequence){.slot = sequence->slot, .token_begin = sampler->token_count};
    if (sequence->want == PLAN_WANT_TOKEN && sequence->kind == PLAN_CHAIN) {
        if (ahead)
            keep(sampler, sequence, ahead);
        else
            draw_here(sampler, model, &drawn, head_rows);
    }
    if (sequence->kind == PLAN_TREE) {
        const struct tree *tree = &batch->tree[idx];
        struct tree_walk walk;
        uint32_t token = 0, path[TREE_ROWS_MAX];
        tree_walk_begin(&walk);
        drawn.path = path;
        do {
            uint32_t row = walk.row[walk.row_count - 1];
            path[drawn.path_count++] = tree->token[row];
            drawn.head_row = head_begin + row;
            drawn.position = (uint64_t)sequence->committed + walk.row_count;
            token = ahead ? keep(sampler, sequence, &ahead[row])
                          : draw_here(sampler, model, &drawn, head_rows);
        } while (tree_walk_take(&walk, tree, token));
    }
    result->token_count = sampler->token_count - result->token_begin;
}

/* ============================== on a device =================================================== */

/* Row number `row` of those of the sequence that ask. path: room for TREE_ROWS_MAX. */
static struct drawn_row row_of(const struct plan_sequence *sequence, const struct tree *tree,
                               uint32_t row, uint32_t *path) {
    struct drawn_row drawn = {.sequence = sequence,
                              .position = (uint64_t)sequence->committed + sequence->row_count};
    if (sequence->kind != PLAN_TREE) return drawn;
    for (uint32_t member = 0; member < tree->row_count; member++)
        if (tree->ancestors[row] >> member & 1) path[drawn.path_count++] = tree->token[member];
    drawn.path = path;
    drawn.position = (uint64_t)sequence->committed + drawn.path_count;
    return drawn;
}

/* What penalize reads of a sequence, once for all its rows. */
static void put_penalties(struct sampler *sampler, const struct model *model,
                          const struct plan_sequence *sequence, const struct tree *tree,
                          uint32_t head_begin) {
    uint32_t wanted = sampler_rows(sequence), path[TREE_ROWS_MAX];
    struct penalize_args shared = {.vocab = 0};
    for (uint32_t row = 0; row < wanted; row++) {
        struct penalize_args *args = &sampler->penalize[head_begin + row];
        const struct drawn_row drawn = row_of(sequence, tree, row, path);
        if (!fill_penalties(sampler, model, &drawn, args)) {
            args->out = NULL;
            continue;
        }
        if (row == 0) {
            shared.bias = device_put(sampler->device, args->bias,
                                     args->bias_count * sizeof *args->bias);
            if (args->count)
                shared.count = device_put(sampler->device, args->count,
                                          args->vocab * sizeof *args->count);
        }
        args->bias = shared.bias;
        args->count = shared.count;
        args->tail = device_put(sampler->device, args->tail, args->tail_count * sizeof *args->tail);
    }
}

/* Every row of the block, in the order of the plan. */
static enum status draw_ahead(struct sampler *sampler, const struct model *model,
                              const struct step_plan *plan, const struct step_batch *batch,
                              const struct block *block, struct error *err) {
    for (uint32_t i = block->begin, row = 0; i < block->end; i++) {
        put_penalties(sampler, model, &plan->sequence[i], &batch->tree[i], row);
        row += sampler_rows(&plan->sequence[i]);
    }
    enum status status = device_send(sampler->device, err);
    uint32_t head = 0, path[TREE_ROWS_MAX];
    for (uint32_t i = block->begin; i < block->end; i++) {
        const struct plan_sequence *sequence = &plan->sequence[i];
        for (uint32_t row = 0; row < sampler_rows(sequence) && status == STATUS_OK; row++, head++) {
            const struct drawn_row drawn = row_of(sequence, &batch->tree[i], row, path);
            const struct penalize_args *penalize = &sampler->penalize[head];
            const float *logits;
            status = head_row(model, head, block->rows, &logits, err);
            if (status == STATUS_OK)
                draw(model, &drawn, logits, penalize->out ? penalize : NULL,
                     &sampler->there[sampler->ahead++]);
        }
    }
    return status;
}

/* Waits until the draws are there. */
static enum status read_drawn(struct sampler *sampler, const struct model *model,
                              const struct step_plan *plan, const struct step_batch *batch,
                              struct comm *comm, struct error *err) {
    enum status status = STATUS_OK;
    if (sampler->ahead > 0)
        status = device_get(sampler->device, sampler->here, sampler->there,
                            sampler->ahead * sizeof *sampler->here, err);
    if (status == STATUS_OK) status = comm_wait(comm, err);
    if (status != STATUS_OK) return status;
    const struct drawn *ahead = sampler->here;
    for (uint32_t i = 0; i < plan->sequence_count; i++) {
        draw_sequence(sampler, model, plan, batch, i, 0, 0, ahead);
        ahead += sampler_rows(&plan->sequence[i]);
    }
    return STATUS_OK;
}

/* ============================== logits ======================================================== */

/* Rows that lie side by side. */
static enum status head_of(const struct model *model, const float *x, uint32_t rows,
                           struct comm *comm, struct error *err) {
    model_norm(model, x, model->weights->final_norm, model->scratch->head_x, rows);
    return head_block(model, rows, comm, err);
}

enum status sampler_head(const struct model *model, uint32_t rows, struct comm *comm,
                         struct error *err) {
    return head_of(model, model->scratch->x, rows, comm, err);
}

enum status sampler_logits(const struct model *model, uint32_t rows, struct comm *comm, float *out,
                           struct error *err) {
    const struct scratch *s = model->scratch;
    const struct model_spec *spec = &model->weights->spec;
    for (uint32_t begin = 0; begin < rows; begin += SCRATCH_HEAD_ROWS) {
        uint32_t count = min_u32(rows - begin, SCRATCH_HEAD_ROWS);
        enum status status = head_of(model, s->x + (size_t)begin * spec->hidden, count, comm, err);
        if (status != STATUS_OK) return status;
        for (uint32_t i = 0; i < count && status == STATUS_OK; i++) {
            const float *logits;
            status = head_row(model, i, count, &logits, err);
            if (status == STATUS_OK)
                status = device_read(model->device, out + (size_t)(begin + i) * spec->vocab, logits,
                                     spec->vocab * sizeof(float), err);
        }
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

/* head_x [rows, D] -> head_logits [tp, rows, vocab / tp], the same on all ranks. */
static enum status head_block(const struct model *model, uint32_t rows, struct comm *comm,
                              struct error *err) {
    const struct weights *weights = model->weights;
    size_t count = (size_t)rows * weights->vocab_count;
    float *mine = model->scratch->head_logits + weights->rank * count;
    model_linear(model, model->scratch->head_x, &weights->head, mine, rows, 1, NULL);
    enum status status = comm_all_gather(comm, mine, count * sizeof(float),
                                         model->scratch->head_logits, err);
    return status == STATUS_OK ? status : error_wrap(err, status, "head");
}

/* The logits of one row of the block, laid side by side: [vocab]. Valid until the next, for ops
 * that are begun before. */
static enum status head_row(const struct model *model, uint32_t row, uint32_t rows,
                            const float **logits_out, struct error *err) {
    const struct weights *weights = model->weights;
    const struct scratch *s = model->scratch;
    const size_t part = weights->vocab_count;
    *logits_out = s->head_logits + row * part;
    if (weights->tp == 1) return STATUS_OK;
    const float *first = *logits_out;
    *logits_out = s->row_logits;
    return device_copy_rows(model->device,
                            &(struct device_rows){.to = s->row_logits,
                                                  .to_stride = part * sizeof(float),
                                                  .from = first,
                                                  .from_stride = rows * part * sizeof(float),
                                                  .bytes = part * sizeof(float),
                                                  .count = weights->tp},
                            err);
}

/* How the sequence's penalties and bias change the row's logits. False: not at all. */
static bool fill_penalties(const struct sampler *sampler, const struct model *model,
                           const struct drawn_row *row, struct penalize_args *args) {
    *args = (struct penalize_args){.vocab = model->weights->spec.vocab,
                                   .out = model->scratch->penalized};
    if (!penalties_fill(sampler->penalties, row->sequence, args)) return false;
    args->tail = row->path;
    args->tail_count = args->count ? row->path_count : 0;
    return true;
}

/* penalize: NULL where the logits stay as they are. */
static void draw(const struct model *model, const struct drawn_row *row, const float *logits,
                 const struct penalize_args *penalize, struct drawn *out) {
    const struct plan_sequence *sequence = row->sequence;
    const float *changed = logits;
    if (penalize) {
        struct penalize_args args = *penalize;
        args.logits = logits;
        model->backend->penalize(&args, model->ctx);
        changed = args.out;
    }
    model->backend->sample(
        &(struct sample_args){.logits = changed,
                              .model_logits = logits,
                              .vocab = model->weights->spec.vocab,
                              .params = {.temperature = sequence->temperature,
                                         .top_p = sequence->top_p,
                                         .top_k = sequence->top_k,
                                         .min_p = sequence->min_p,
                                         .choice = sequence->choice,
                                         .seed = sequence->seed},
                              .position = row->position,
                              .top_count = sequence->logprobs ? sequence->top_logprobs : 0,
                              .token = &out->token,
                              .logprob = sequence->logprobs ? &out->logprob : NULL,
                              .top_token = out->top_token,
                              .top_logprob = out->top_logprob},
        model->ctx);
}

/* Add to the result what was drawn; returns the token. */
static uint32_t keep(struct sampler *sampler, const struct plan_sequence *sequence,
                     const struct drawn *drawn) {
    sampler->token[sampler->token_count++] = drawn->token;
    if (!sequence->logprobs) return drawn->token;
    struct token_logprob *out = sampler->logprob + sampler->logprob_count;
    out[0] = (struct token_logprob){.token = drawn->token, .logprob = drawn->logprob};
    for (uint32_t i = 0; i < sequence->top_logprobs; i++)
        out[1 + i] = (struct token_logprob){.token = drawn->top_token[i],
                                            .logprob = drawn->top_logprob[i]};
    sampler->logprob_count += 1 + sequence->top_logprobs;
    return drawn->token;
}
