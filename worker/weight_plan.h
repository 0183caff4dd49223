/* What loading any checkpoint has in common: its parts are walked twice by the same code. The first
 * walk finds and checks every tensor and adds up the memory; then all of it is taken in one piece;
 * the second walk gives each part its place and writes the tasks. A tensor found is claimed, so
 * that after a walk the unclaimed ones are those the model does not know.
 *
 * A plan keeps its first failure and checks nothing after it, which lets a walk read like a list of
 * the model's parts. Not for several threads at once. */
#ifndef ESPALIER_WEIGHT_PLAN_H
#define ESPALIER_WEIGHT_PLAN_H

#include "weight_reader.h"

struct weight_plan {
    const struct safetensors *checkpoint; /* borrowed */
    struct device *device;                /* whose memory is planned; NULL: the host's */
    bool *claimed;                        /* [tensors] */
    unsigned char *base;                  /* NULL in the first walk */
    uint64_t used;                        /* bytes of it */
    struct weight_task *task;             /* NULL in the first walk */
    uint32_t task_count;
    uint64_t read_bytes;
    enum status status;
    struct error *err; /* of the first failure */
};

void weight_plan_init(struct weight_plan *plan, const struct safetensors *checkpoint,
                      struct error *err);

/* Frees all but the memory. */
void weight_plan_deinit(struct weight_plan *plan);

/* Memory for all that the first walk added up, the caller's to munmap or to give back to the
 * device, and the beginning of the second walk. RESOURCE_EXHAUSTED names what it was for ("weights
 * of rank 3"). Pages are touched first by the threads that read. NULL after a failure. */
void *weight_plan_take_memory(struct weight_plan *plan, const char *what, size_t *bytes_out);

/* The next `bytes` of the memory; NULL in the first walk. */
void *weight_plan_take(struct weight_plan *plan, uint64_t bytes);

/* This task; or as many as all rows of the weight that `task` describes need. */
void weight_plan_add(struct weight_plan *plan, const struct weight_task *task);
void weight_plan_add_rows(struct weight_plan *plan, struct weight_task *task);

void weight_plan_claim(struct weight_plan *plan, const struct tensor_info *tensor);

/* Must be [rows, columns], or [columns] where it is to be a vector: INVALID_ARGUMENT. */
void weight_plan_check_shape(struct weight_plan *plan, const struct tensor_info *tensor,
                             uint32_t rows, uint32_t columns, bool vector);

/* INVALID_ARGUMENT unless it matches; `accepted` is for people. */
void weight_plan_check_dtype(struct weight_plan *plan, const struct tensor_info *tensor,
                             bool matches, const char *accepted);

/* BF16, F16 or F32. */
bool weight_plan_is_plain(const struct tensor_info *tensor);

/* Read and pack what was planned, and on the host forbid writing to it: from here on a stray write
 * into a weight is a fault at the place of the bug. The plan's failure, or weight_reader_run's. */
enum status weight_plan_run(struct weight_plan *plan, uint32_t threads,
                            struct weights_progress *progress, void *memory, size_t memory_bytes);

#endif
