/* Tiny checkpoints of every kind that is loaded (checkpoints/README.md) against what transformers
 * makes of them: the logits of every position, relative to their deviation; and against each other
 * to the bit, over ranks, threads and chunks.
 *
 * Where logits differ too much, the residual streams tell the first layer that does, and the
 * router's margin there whether it may only have chosen another expert that was as good. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "checkpoint_data.h"
#include "rig.h"

#define ERROR_MAX    1e-4 /* of the deviation */
#define FLIP         1e-6 /* scores nearer than this may be ordered either way */
#define ROWS_MAX     64u
#define FOLDER_BYTES 4096u
#define LOGITS       (ROWS_MAX * 96u)
#define RESIDUAL     (3u * ROWS_MAX * 160u)

static const char *const checkpoints[] = {"k26", "k2-fp8", "k2-bf16", "v2-lite", "v3", "f16"};

struct shape {
    uint32_t tp, threads;
    uint32_t chunk; /* tokens of each prompt a step */
    uint32_t page_tok;
};

/* The first is held against the reference, the others against the first. */
static const struct shape shapes[] = {
    {1, 1, ROWS_MAX, 64}, {1, 3, 7, 16}, {1, 2, 1, 1},  {2, 1, ROWS_MAX, 64},
    {2, 2, 5, 16},        {4, 1, 16, 7}, {8, 1, 9, 64},
};

/* What a run left; in memory shared by its ranks. */
struct trace {
    const struct shape *shape;
    const struct checkpoint_data *data;
    uint64_t rank_hash[TP_MAX]; /* of all logits */
    float logits[LOGITS];       /* rank 0's, as those of the data */
    float residual[RESIDUAL];
};

/* The rows of one step go to where they belong among all rows. */
static void keep_rows(struct trace *trace, const struct rig_piece *piece, const uint32_t *row,
                      uint32_t pieces, const float *logits, const float *residual) {
    const struct checkpoint_data *data = trace->data;
    uint32_t step_rows = 0, from = 0;
    for (uint32_t i = 0; i < pieces; i++)
        step_rows += piece[i].count;
    for (uint32_t i = 0; i < pieces; from += piece[i++].count) {
        memcpy(trace->logits + (size_t)row[i] * data->vocab, logits + (size_t)from * data->vocab,
               (size_t)piece[i].count * data->vocab * sizeof(float));
        for (uint32_t l = 0; l < data->layers; l++)
            memcpy(trace->residual + ((size_t)l * data->rows + row[i]) * data->hidden,
                   residual + ((size_t)l * step_rows + from) * data->hidden,
                   (size_t)piece[i].count * data->hidden * sizeof(float));
    }
}

static void run_rank(struct rig *rig, uint32_t rank, void *user) {
    struct trace *trace = user;
    const struct checkpoint_data *data = trace->data;
    static float logits[LOGITS], residual[RESIDUAL];
    engine_capture_logits(rig->engine, logits);
    engine_capture_residual(rig->engine, residual);
    if (rig_vocab(rig) != data->vocab) exit(1);
    for (uint32_t begin = 0; begin < ROWS_MAX; begin += trace->shape->chunk) {
        struct rig_piece piece[CHECKPOINT_PROMPTS_MAX];
        uint32_t row[CHECKPOINT_PROMPTS_MAX], pieces = 0, rows = 0;
        for (uint32_t p = 0; p < data->prompt_count; p++) {
            if (begin >= data->prompt[p].count) continue;
            uint32_t count = data->prompt[p].count - begin;
            if (count > trace->shape->chunk) count = trace->shape->chunk;
            row[pieces] = data->prompt[p].begin + begin;
            piece[pieces++] = (struct rig_piece){
                .slot = p, .token = data->prompt[p].id + begin, .count = count};
            rows += count;
        }
        if (pieces == 0) break;
        rig_step(rig, piece, pieces);
        trace->rank_hash[rank] = hash_bytes(logits, (size_t)rows * data->vocab * sizeof(float),
                                            trace->rank_hash[rank]);
        if (rank == 0) keep_rows(trace, piece, row, pieces, logits, residual);
    }
}

static void run_shape(const char *folder, const struct checkpoint_data *data,
                      const struct shape *shape, struct trace *trace) {
    const struct rig_options options = {.model = folder,
                                        .tp = shape->tp,
                                        .threads = shape->threads,
                                        .page_tok = shape->page_tok,
                                        .max_rows = ROWS_MAX,
                                        .context_len = ROWS_MAX,
                                        .kv_dtype = KV_F32,
                                        .shadow_hash = true};
    memset(trace, 0, sizeof *trace);
    trace->shape = shape;
    trace->data = data;
    rig_fork_ranks(&options, run_rank, trace);
    for (uint32_t rank = 1; rank < shape->tp; rank++)
        if (trace->rank_hash[rank] != trace->rank_hash[0])
            fail_msg("%s: ranks 0 and %u of %u saw other logits", folder, rank, shape->tp);
}

/* The greatest difference, of the deviation of `wanted`. */
static double relative_error(const float *got, const float *wanted, uint32_t count) {
    double sum = 0, squares = 0, greatest = 0;
    for (uint32_t i = 0; i < count; i++) {
        double difference = fabs((double)got[i] - (double)wanted[i]);
        sum += (double)wanted[i];
        squares += (double)wanted[i] * (double)wanted[i];
        if (!(difference <= greatest)) greatest = difference; /* a NaN too */
    }
    double mean = sum / count;
    return greatest / sqrt(squares / count - mean * mean);
}

/* Where the rows up to `row` of its prompt first part from the reference. */
static void fail_at(const char *name, const struct trace *trace, uint32_t row, double error) {
    const struct checkpoint_data *data = trace->data;
    uint32_t begin = 0;
    for (uint32_t p = 0; p < data->prompt_count; p++)
        if (data->prompt[p].begin <= row) begin = data->prompt[p].begin;
    for (uint32_t l = 0; l < data->layers; l++)
        for (uint32_t r = begin; r <= row; r++) {
            size_t at = (size_t)l * data->rows + r;
            double layer_error = relative_error(trace->residual + at * data->hidden,
                                                data->residual + at * data->hidden, data->hidden);
            if (layer_error <= ERROR_MAX) continue;
            fail_msg("%s: logits of row %u are off by %.2e of their deviation; first after layer "
                     "%u, in row %u, by %.2e; the router's margin there is %.2e%s",
                     name, row, error, l, r, layer_error, data->margin[at],
                     data->margin[at] < FLIP ? ": another choice of expert" : "");
        }
    fail_msg("%s: logits of row %u are off by %.2e of their deviation, the residual stream is not",
             name, row, error);
}

static void check_reference(const char *name, const struct trace *trace) {
    const struct checkpoint_data *data = trace->data;
    double greatest = 0, margin = INFINITY;
    for (uint32_t row = 0; row < data->rows; row++) {
        size_t at = (size_t)row * data->vocab;
        double error = relative_error(trace->logits + at, data->logits + at, data->vocab);
        if (!(error <= ERROR_MAX)) fail_at(name, trace, row, error);
        if (error > greatest) greatest = error;
    }
    for (uint32_t i = 0; i < data->layers * data->rows; i++)
        margin = fmin(margin, data->margin[i]);
    print_message("           %-8s error %.1e of the deviation, smallest margin %.1e\n", name,
                  greatest, margin);
}

static void check_checkpoint(const char *name) {
    char folder[FOLDER_BYTES];
    snprintf(folder, sizeof folder, "%s/%s", rig_path("tests/golden/checkpoints"), name);
    struct checkpoint_data data;
    checkpoint_data_read(folder, &data);
    assert_in_range(data.rows, 1, ROWS_MAX);
    assert_in_range(data.rows * data.vocab, 1, LOGITS);
    assert_in_range(data.layers * data.rows * data.hidden, 1, RESIDUAL);

    struct trace *first = rig_shared_alloc(sizeof *first);
    struct trace *trace = rig_shared_alloc(sizeof *trace);
    run_shape(folder, &data, &shapes[0], first);
    check_reference(name, first);
    for (size_t i = 1; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *shape = &shapes[i];
        run_shape(folder, &data, shape, trace);
        for (uint32_t k = 0; k < data.rows * data.vocab; k++)
            if (memcmp(&trace->logits[k], &first->logits[k], sizeof(float)) != 0)
                fail_msg("%s: tp %u, %u threads, chunks of %u: logit %u of row %u is %a, not %a",
                         name, shape->tp, shape->threads, shape->chunk, k % data.vocab,
                         k / data.vocab, (double)trace->logits[k], (double)first->logits[k]);
    }
    rig_shared_free(first, sizeof *first);
    rig_shared_free(trace, sizeof *trace);
    checkpoint_data_free(&data);
}

static void test_checkpoint(void **state) {
    check_checkpoint(*state);
}

int main(void) {
    enum { COUNT = sizeof checkpoints / sizeof *checkpoints };
    struct CMUnitTest tests[COUNT];
    for (uint32_t i = 0; i < COUNT; i++)
        tests[i] = (struct CMUnitTest){.name = checkpoints[i],
                                       .test_func = test_checkpoint,
                                       .initial_state = (void *)(uintptr_t)checkpoints[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
