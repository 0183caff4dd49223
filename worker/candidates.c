#include "candidates.h"

#include <math.h>
#include <stdlib.h>

#include "base/check.h"

_Static_assert(DRAFT_TOP_MAX <= TOP_TOKENS_MAX, "candidates are found at once");

/* Rows whose logits exist at once. */
struct batch {
    uint32_t begin, rows; /* of all that are looked for */
    uint32_t top;
};

/* What one rank knows of a batch, laid one after the other in 4-byte words. */
struct found {
    uint32_t *token; /* [rows, top] */
    float *logit;    /* [rows, top] */
    float *max;      /* [rows, segments] */
    float *sum;      /* [rows, segments] */
};

size_t candidates_found_words(uint32_t tp, uint32_t rows_max) {
    return (size_t)tp * rows_max * 2 * (DRAFT_TOP_MAX + KERNEL_SEGMENTS / tp);
}

enum status candidates_init(struct candidates *candidates, struct device *device, uint32_t tp,
                            uint32_t rows_max, struct error *err) {
    candidates->device = device;
    candidates->rows_max = rows_max;
    candidates->lse = calloc(rows_max, sizeof *candidates->lse);
    candidates->candidate = calloc((size_t)rows_max * DRAFT_TOP_MAX, sizeof *candidates->candidate);
    if (!candidates->lse || !candidates->candidate)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for guesses of %u tokens",
                         rows_max);
    size_t bytes = candidates_found_words(tp, rows_max) * sizeof *candidates->gathered;
    return device ? device_pin(device, bytes, (void **)&candidates->gathered, err) : STATUS_OK;
}

void candidates_deinit(struct candidates *candidates) {
    if (candidates->device) device_unpin(candidates->device, candidates->gathered);
    free(candidates->lse);
    free(candidates->candidate);
}

static size_t found_words(uint32_t rows, uint32_t top, uint32_t segments) {
    return (size_t)rows * 2 * (top + segments);
}

/* Rank's part of what was gathered: batches lie one behind the other, in each the ranks'. */
static struct found found_of(uint32_t *words, const struct batch *batch, uint32_t tp,
                             uint32_t rank) {
    uint32_t segments = KERNEL_SEGMENTS / tp, top = batch->top;
    uint32_t *token = words + tp * found_words(batch->begin, top, segments) +
                      rank * found_words(batch->rows, top, segments);
    float *logit = (float *)(token + (size_t)batch->rows * top);
    float *max = logit + (size_t)batch->rows * top;
    return (struct found){
        .token = token, .logit = logit, .max = max, .sum = max + (size_t)batch->rows * segments};
}

/* The best of the ranks' best: each list descends, ties by ascending token, as ranks' parts of the
 * vocabulary do. */
static void merge_top(const struct found *found, uint32_t ranks, uint32_t row, uint32_t top,
                      struct draft_candidate *out) {
    uint32_t used[TP_MAX] = {0};
    for (uint32_t i = 0; i < top; i++) {
        uint32_t best = ranks;
        for (uint32_t rank = 0; rank < ranks; rank++) {
            if (used[rank] == top) continue;
            float logit = found[rank].logit[row * top + used[rank]];
            if (best == ranks || logit > found[best].logit[row * top + used[best]]) best = rank;
        }
        uint32_t at = row * top + used[best]++;
        out[i] = (struct draft_candidate){found[best].token[at], found[best].logit[at]};
    }
}

/* ln of the sum of exp over the vocabulary: eight segments, added as a binary tree. */
static float merge_lse(const struct found *found, uint32_t ranks, uint32_t row) {
    uint32_t segments = KERNEL_SEGMENTS / ranks;
    float max = -INFINITY;
    double sum[KERNEL_SEGMENTS];
    for (uint32_t s = 0; s < KERNEL_SEGMENTS; s++)
        max = fmaxf(max, found[s / segments].max[row * segments + s % segments]);
    for (uint32_t s = 0; s < KERNEL_SEGMENTS; s++) {
        const struct found *part = &found[s / segments];
        uint32_t at = row * segments + s % segments;
        sum[s] = (double)part->sum[at] * exp((double)part->max[at] - (double)max);
    }
    for (uint32_t apart = 1; apart < KERNEL_SEGMENTS; apart *= 2)
        for (uint32_t s = 0; s < KERNEL_SEGMENTS; s += 2 * apart)
            sum[s] = sum[s] + sum[s + apart];
    return (float)((double)max + log(sum[0]));
}

static void merge(struct candidates *candidates, const struct batch *batch, uint32_t ranks) {
    uint32_t *words = candidates->device ? candidates->gathered : candidates->found;
    struct found found[TP_MAX];
    for (uint32_t rank = 0; rank < ranks; rank++)
        found[rank] = found_of(words, batch, ranks, rank);
    for (uint32_t row = 0; row < batch->rows; row++) {
        size_t position = batch->begin + row;
        merge_top(found, ranks, row, batch->top, candidates->candidate + position * batch->top);
        candidates->lse[position] = merge_lse(found, ranks, row);
    }
}

/* The batch's, by all ranks. */
static enum status gather(struct candidates *candidates, const struct model *model, const float *x,
                          const struct batch *batch, struct comm *comm, struct error *err) {
    const struct weights *target = model->weights;
    const uint32_t segments = KERNEL_SEGMENTS / target->tp, top = batch->top;
    struct found mine = found_of(candidates->found, batch, target->tp, target->rank);
    model_linear(model, x + (size_t)batch->begin * target->spec.hidden, &target->head,
                 candidates->logits, batch->rows, 1, NULL);
    model->backend->top_tokens(&(struct top_tokens_args){.logits = candidates->logits,
                                                         .logits_stride = target->vocab_count,
                                                         .rows = batch->rows,
                                                         .width = target->vocab_count,
                                                         .id_begin = target->vocab_begin,
                                                         .count = top,
                                                         .segments = segments,
                                                         .token = mine.token,
                                                         .logit = mine.logit,
                                                         .max = mine.max,
                                                         .sum = mine.sum},
                               model->ctx);
    return comm_all_gather(comm, mine.token,
                           found_words(batch->rows, top, segments) * sizeof(uint32_t),
                           found_of(candidates->found, batch, target->tp, 0).token, err);
}

static struct batch batch_at(uint32_t begin, uint32_t rows, uint32_t top) {
    return (struct batch){
        .begin = begin, .rows = min_u32(rows - begin, CANDIDATES_ROWS), .top = top};
}

/* All batches, to the host. */
static enum status read_back(struct candidates *candidates, size_t words, struct comm *comm,
                             struct error *err) {
    struct device *device = candidates->device;
    if (!device) return STATUS_OK;
    enum status status = device_get(device, candidates->gathered, candidates->found,
                                    words * sizeof(uint32_t), err);
    return status == STATUS_OK ? comm_wait(comm, err) : status;
}

enum status candidates_find(struct candidates *candidates, const struct model *model,
                            const float *x, uint32_t rows, uint32_t top, struct comm *comm,
                            struct error *err) {
    const uint32_t tp = model->weights->tp;
    enum status status = STATUS_OK;
    CHECK(rows <= candidates->rows_max);
    for (uint32_t begin = 0; begin < rows && status == STATUS_OK; begin += CANDIDATES_ROWS) {
        const struct batch batch = batch_at(begin, rows, top);
        status = gather(candidates, model, x, &batch, comm, err);
    }
    if (status == STATUS_OK)
        status = read_back(candidates, tp * found_words(rows, top, KERNEL_SEGMENTS / tp), comm,
                           err);
    if (status != STATUS_OK) return error_wrap(err, status, "candidates");
    for (uint32_t begin = 0; begin < rows; begin += CANDIDATES_ROWS) {
        const struct batch batch = batch_at(begin, rows, top);
        merge(candidates, &batch, tp);
    }
    return STATUS_OK;
}
