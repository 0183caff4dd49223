#include "candidates.h"

#include <math.h>
#include <stdlib.h>

_Static_assert(DRAFT_LEN_MAX <= CANDIDATES_ROWS, "a block's rows are found at once");
_Static_assert(DRAFT_TOP_MAX <= TOP_TOKENS_MAX, "candidates are found at once");

/* What one rank knows of `rows` rows of logits, laid one after the other in 4-byte words. */
struct found {
    uint32_t *token; /* [rows, top] */
    float *logit;    /* [rows, top] */
    float *max;      /* [rows, segments] */
    float *sum;      /* [rows, segments] */
};

bool candidates_init(struct candidates *candidates) {
    candidates->lse = calloc(DRAFT_POSITIONS_MAX, sizeof *candidates->lse);
    candidates->candidate = calloc((size_t)DRAFT_POSITIONS_MAX * DRAFT_TOP_MAX,
                                   sizeof *candidates->candidate);
    return candidates->lse && candidates->candidate;
}

void candidates_deinit(struct candidates *candidates) {
    free(candidates->lse);
    free(candidates->candidate);
}

size_t candidates_found_words(uint32_t tp) {
    return (size_t)tp * CANDIDATES_ROWS * 2 * (DRAFT_TOP_MAX + KERNEL_SEGMENTS);
}

static size_t found_words(uint32_t rows, uint32_t top, uint32_t segments) {
    return (size_t)rows * 2 * (top + segments);
}

/* Rank's part of what was gathered. */
static struct found found_of(const struct candidates *candidates, uint32_t tp, uint32_t rank,
                             uint32_t rows, uint32_t top) {
    uint32_t segments = KERNEL_SEGMENTS / tp;
    uint32_t *at = (uint32_t *)candidates->found + rank * found_words(rows, top, segments);
    float *logit = (float *)(at + (size_t)rows * top);
    float *max = logit + (size_t)rows * top;
    return (struct found){
        .token = at, .logit = logit, .max = max, .sum = max + (size_t)rows * segments};
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

static void merge(struct candidates *candidates, uint32_t ranks, uint32_t rows, uint32_t top) {
    struct found found[TP_MAX];
    for (uint32_t rank = 0; rank < ranks; rank++)
        found[rank] = found_of(candidates, ranks, rank, rows, top);
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t position = candidates->positions++;
        merge_top(found, ranks, row, top, candidates->candidate + (size_t)position * top);
        candidates->lse[position] = merge_lse(found, ranks, row);
    }
}

enum status candidates_find(struct candidates *candidates, const struct model *model,
                            const float *x, uint32_t rows, uint32_t top, struct comm *comm,
                            struct error *err) {
    const struct weights *target = model->weights;
    uint32_t segments = KERNEL_SEGMENTS / target->tp;
    for (uint32_t begin = 0; begin < rows; begin += CANDIDATES_ROWS) {
        uint32_t count = rows - begin < CANDIDATES_ROWS ? rows - begin : CANDIDATES_ROWS;
        struct found mine = found_of(candidates, target->tp, target->rank, count, top);
        model_linear(model, x + (size_t)begin * target->spec.hidden, &target->head,
                     candidates->logits, count, 1, NULL);
        model->backend->top_tokens(&(struct top_tokens_args){.logits = candidates->logits,
                                                             .logits_stride = target->vocab_count,
                                                             .rows = count,
                                                             .width = target->vocab_count,
                                                             .id_begin = target->vocab_begin,
                                                             .count = top,
                                                             .segments = segments,
                                                             .token = mine.token,
                                                             .logit = mine.logit,
                                                             .max = mine.max,
                                                             .sum = mine.sum},
                                   model->ctx);
        enum status status = comm_all_gather(comm, mine.token,
                                             found_words(count, top, segments) * sizeof(uint32_t),
                                             candidates->found, err);
        if (status != STATUS_OK) return error_wrap(err, status, "candidates");
        merge(candidates, target->tp, count, top);
    }
    return STATUS_OK;
}
