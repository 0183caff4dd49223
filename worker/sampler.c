#include "sampler.h"

#include <stdlib.h>
#include <string.h>

/* With each token drawn go its own log-probability and the others. */
#define LOGPROBS_PER_TOKEN (1 + TOP_LOGPROBS_MAX)

_Static_assert(TOP_LOGPROBS_MAX <= SAMPLE_TOP_MAX, "sample finds what a client may ask for");

/* One row to draw at. */
struct drawn_row {
    const struct plan_sequence *sequence;
    const float *logits;  /* the model's */
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
};

_Static_assert(TREE_ROWS_MAX <= PENALIZE_TAIL_MAX, "a path of a tree is a tail of the sequence's");
_Static_assert(TREE_ROWS_MAX <= SCRATCH_HEAD_ROWS, "the logits of a tree exist at once");

static uint32_t rows_wanted(const struct plan_sequence *sequence);
static void draw_sequence(struct sampler *sampler, const struct model *model,
                          const struct step_plan *plan, const struct step_batch *batch,
                          uint32_t idx, uint32_t head_begin, uint32_t head_rows);
static enum status head_block(const struct model *model, uint32_t rows, struct comm *comm,
                              struct error *err);
static const float *head_row(const struct model *model, uint32_t row, uint32_t rows);
static const float *penalized(const struct sampler *sampler, const struct model *model,
                              const struct drawn_row *row);
static uint32_t draw(struct sampler *sampler, const struct model *model,
                     const struct drawn_row *row);

enum status sampler_create(uint32_t sequences_max, uint32_t rows_max,
                           const struct penalties *penalties, struct sampler **sampler_out,
                           struct error *err) {
    struct sampler *sampler = calloc(1, sizeof *sampler);
    if (!sampler) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a sampler");
    sampler->penalties = penalties;
    sampler->sequence = calloc(sequences_max, sizeof *sampler->sequence);
    sampler->token = calloc(rows_max, sizeof *sampler->token);
    sampler->logprob = calloc((size_t)rows_max * LOGPROBS_PER_TOKEN, sizeof *sampler->logprob);
    if (!sampler->sequence || !sampler->token || !sampler->logprob) {
        sampler_destroy(&sampler);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for results of %u rows",
                         rows_max);
    }
    *sampler_out = sampler;
    return STATUS_OK;
}

void sampler_destroy(struct sampler **sampler) {
    if (!*sampler) return;
    free((*sampler)->sequence);
    free((*sampler)->token);
    free((*sampler)->logprob);
    free(*sampler);
    *sampler = NULL;
}

enum status sampler_draw(struct sampler *sampler, const struct model *model,
                         const struct step_plan *plan, const struct step_batch *batch,
                         struct comm *comm, struct step_result *result_out, struct error *err) {
    struct scratch *s = model->scratch;
    const uint32_t dim = model->weights->spec.hidden;
    sampler->token_count = sampler->logprob_count = 0;
    for (uint32_t begin = 0, end = 0; begin < plan->sequence_count; begin = end) {
        /* As many sequences as fit a block of the head. */
        uint32_t rows = 0;
        for (; end < plan->sequence_count; end++) {
            const struct plan_sequence *sequence = &plan->sequence[end];
            uint32_t wanted = rows_wanted(sequence);
            if (rows + wanted > SCRATCH_HEAD_ROWS) break;
            size_t first = sequence->row_begin + sequence->row_count - wanted;
            model_norm(model, s->x + first * dim, model->weights->final_norm,
                       s->head_x + (size_t)rows * dim, wanted);
            rows += wanted;
        }
        enum status status = rows > 0 ? head_block(model, rows, comm, err) : STATUS_OK;
        if (status != STATUS_OK) return status;
        for (uint32_t i = begin, row = 0; i < end; row += rows_wanted(&plan->sequence[i++]))
            draw_sequence(sampler, model, plan, batch, i, row, rows);
    }
    result_out->sequence = sampler->sequence;
    result_out->sequence_count = plan->sequence_count;
    result_out->token = sampler->token;
    result_out->token_count = sampler->token_count;
    result_out->logprob = sampler->logprob;
    result_out->logprob_count = sampler->logprob_count;
    return STATUS_OK;
}

/* Its last rows, whose logits are needed: the walk of a tree may come to any. */
static uint32_t rows_wanted(const struct plan_sequence *sequence) {
    if (sequence->want != PLAN_WANT_TOKEN) return 0;
    return sequence->kind == PLAN_TREE ? sequence->row_count : 1;
}

/* The sequence's logits are rows [head_begin, ...) of the block's head_rows. */
static void draw_sequence(struct sampler *sampler, const struct model *model,
                          const struct step_plan *plan, const struct step_batch *batch,
                          uint32_t idx, uint32_t head_begin, uint32_t head_rows) {
    const struct plan_sequence *sequence = &plan->sequence[idx];
    struct result_sequence *result = &sampler->sequence[idx];
    uint64_t end = (uint64_t)sequence->committed + sequence->row_count;
    struct drawn_row drawn = {.sequence = sequence, .position = end};
    *result = (struct result_sequence){.slot = sequence->slot, .token_begin = sampler->token_count};
    if (sequence->want == PLAN_WANT_TOKEN && sequence->kind == PLAN_CHAIN) {
        drawn.logits = head_row(model, head_begin, head_rows);
        draw(sampler, model, &drawn);
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
            drawn.logits = head_row(model, head_begin + row, head_rows);
            drawn.position = (uint64_t)sequence->committed + walk.row_count;
            token = draw(sampler, model, &drawn);
        } while (tree_walk_take(&walk, tree, token));
    }
    result->token_count = sampler->token_count - result->token_begin;
}

enum status sampler_logits(const struct model *model, uint32_t rows, struct comm *comm, float *out,
                           struct error *err) {
    struct scratch *s = model->scratch;
    const struct model_spec *spec = &model->weights->spec;
    for (uint32_t begin = 0; begin < rows; begin += SCRATCH_HEAD_ROWS) {
        uint32_t count = min_u32(rows - begin, SCRATCH_HEAD_ROWS);
        model_norm(model, s->x + (size_t)begin * spec->hidden, model->weights->final_norm,
                   s->head_x, count);
        enum status status = head_block(model, count, comm, err);
        if (status != STATUS_OK) return status;
        for (uint32_t i = 0; i < count; i++)
            memcpy(out + (size_t)(begin + i) * spec->vocab, head_row(model, i, count),
                   spec->vocab * sizeof(float));
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

/* The logits of one row of the block, laid side by side: [vocab]. */
static const float *head_row(const struct model *model, uint32_t row, uint32_t rows) {
    const struct weights *weights = model->weights;
    const struct scratch *s = model->scratch;
    const size_t part = weights->vocab_count;
    if (weights->tp == 1) return s->head_logits + row * part;
    for (uint32_t rank = 0; rank < weights->tp; rank++)
        memcpy(s->row_logits + rank * part, s->head_logits + ((size_t)rank * rows + row) * part,
               part * sizeof(float));
    return s->row_logits;
}

/* The logits as the sequence's penalties and bias leave them. */
static const float *penalized(const struct sampler *sampler, const struct model *model,
                              const struct drawn_row *row) {
    struct penalize_args args = {.logits = row->logits,
                                 .vocab = model->weights->spec.vocab,
                                 .out = model->scratch->penalized};
    if (!penalties_fill(sampler->penalties, row->sequence, &args)) return row->logits;
    args.tail = row->path;
    args.tail_count = args.count ? row->path_count : 0;
    model->backend->penalize(&args, model->ctx);
    return args.out;
}

/* The token drawn there, added to the result. */
static uint32_t draw(struct sampler *sampler, const struct model *model,
                     const struct drawn_row *row) {
    const struct plan_sequence *sequence = row->sequence;
    uint32_t *token = &sampler->token[sampler->token_count++];
    uint32_t top_count = sequence->logprobs ? sequence->top_logprobs : 0;
    float own = 0, top_logprob[TOP_LOGPROBS_MAX];
    uint32_t top_token[TOP_LOGPROBS_MAX];
    model->backend->sample(&(struct sample_args){.logits = penalized(sampler, model, row),
                                                 .model_logits = row->logits,
                                                 .vocab = model->weights->spec.vocab,
                                                 .params = {.temperature = sequence->temperature,
                                                            .top_p = sequence->top_p,
                                                            .top_k = sequence->top_k,
                                                            .min_p = sequence->min_p,
                                                            .choice = sequence->choice,
                                                            .seed = sequence->seed},
                                                 .position = row->position,
                                                 .top_count = top_count,
                                                 .token = token,
                                                 .logprob = sequence->logprobs ? &own : NULL,
                                                 .top_token = top_token,
                                                 .top_logprob = top_logprob},
                           model->ctx);
    if (!sequence->logprobs) return *token;
    struct token_logprob *out = sampler->logprob + sampler->logprob_count;
    out[0] = (struct token_logprob){.token = *token, .logprob = own};
    for (uint32_t i = 0; i < top_count; i++)
        out[1 + i] = (struct token_logprob){.token = top_token[i], .logprob = top_logprob[i]};
    sampler->logprob_count += 1 + top_count;
    return *token;
}
