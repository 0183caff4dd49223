#include "weight_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"
#include "device.h"

#define WEIGHT_ALIGN 64u

void weight_plan_init(struct weight_plan *plan, const struct safetensors *checkpoint,
                      struct error *err) {
    *plan = (struct weight_plan){.checkpoint = checkpoint,
                                 .claimed = calloc(safetensors_count(checkpoint) + 1, sizeof(bool)),
                                 .err = err};
    CHECK(plan->claimed);
}

void weight_plan_deinit(struct weight_plan *plan) {
    free(plan->task);
    free(plan->claimed);
}

/* NULL: there is none. */
static void *take_memory(struct weight_plan *plan, const char *what) {
    void *memory = NULL;
    if (plan->device) {
        plan->status = device_take(plan->device, plan->used, what, &memory, plan->err);
        return memory;
    }
    memory = mmap(NULL, plan->used, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void give_memory(const struct weight_plan *plan, void *memory) {
    if (plan->device)
        device_give(plan->device, memory);
    else
        munmap(memory, plan->used);
}

void *weight_plan_take_memory(struct weight_plan *plan, const char *what, size_t *bytes_out) {
    *bytes_out = 0;
    if (plan->status != STATUS_OK) return NULL;
    size_t tasks_bytes = plan->task_count * sizeof *plan->task;
    void *memory = take_memory(plan, what);
    plan->task = malloc(tasks_bytes);
    if (plan->status != STATUS_OK) return NULL;
    if (!memory || !plan->task) {
        if (memory) give_memory(plan, memory);
        plan->status = error_set(plan->err, STATUS_RESOURCE_EXHAUSTED,
                                 "no memory for the %s: %llu bytes are needed", what,
                                 (unsigned long long)(plan->used + tasks_bytes));
        return NULL;
    }
    *bytes_out = plan->used;
    plan->base = memory;
    plan->used = 0;
    plan->task_count = 0;
    plan->read_bytes = 0;
    return memory;
}

void *weight_plan_take(struct weight_plan *plan, uint64_t bytes) {
    void *at = plan->base ? plan->base + plan->used : NULL;
    plan->used += (bytes + WEIGHT_ALIGN - 1) / WEIGHT_ALIGN * WEIGHT_ALIGN;
    return at;
}

void weight_plan_add(struct weight_plan *plan, const struct weight_task *task) {
    if (plan->task) plan->task[plan->task_count] = *task;
    plan->task_count++;
    plan->read_bytes += weight_task_bytes(task);
}

void weight_plan_add_rows(struct weight_plan *plan, struct weight_task *task) {
    uint32_t rows = weight_task_rows(task);
    for (uint32_t begin = 0; begin < task->rows; begin += rows) {
        task->row_begin = begin;
        task->row_count = task->rows - begin < rows ? task->rows - begin : rows;
        weight_plan_add(plan, task);
    }
}

void weight_plan_claim(struct weight_plan *plan, const struct tensor_info *tensor) {
    plan->claimed[tensor - safetensors_at(plan->checkpoint, 0)] = true;
}

void weight_plan_check_shape(struct weight_plan *plan, const struct tensor_info *tensor,
                             uint32_t rows, uint32_t columns, bool vector) {
    if (plan->status != STATUS_OK) return;
    uint32_t dims = vector ? 1 : 2;
    if (tensor->dims == dims && tensor->shape[dims - 1] == columns &&
        (vector || tensor->shape[0] == rows))
        return;
    char found[96] = "[";
    for (uint32_t d = 0; d < tensor->dims; d++)
        snprintf(found + strlen(found), sizeof found - strlen(found), "%s%llu", d ? ", " : "",
                 (unsigned long long)tensor->shape[d]);
    char wanted[48];
    snprintf(wanted, sizeof wanted, vector ? "[%u]" : "[%u, %u]", vector ? columns : rows, columns);
    plan->status = error_set(plan->err, STATUS_INVALID_ARGUMENT,
                             "%s: tensor %s: found shape %s], accepted %s, as config.json says",
                             safetensors_path(plan->checkpoint, tensor->file), tensor->name, found,
                             wanted);
}

void weight_plan_check_dtype(struct weight_plan *plan, const struct tensor_info *tensor,
                             bool matches, const char *accepted) {
    if (plan->status != STATUS_OK || matches) return;
    plan->status = error_set(plan->err, STATUS_INVALID_ARGUMENT,
                             "%s: tensor %s: found dtype %s, accepted %s",
                             safetensors_path(plan->checkpoint, tensor->file), tensor->name,
                             tensor->dtype_name, accepted);
}

bool weight_plan_is_plain(const struct tensor_info *tensor) {
    return tensor->dtype == TENSOR_BF16 || tensor->dtype == TENSOR_F16 ||
           tensor->dtype == TENSOR_F32;
}

enum status weight_plan_run(struct weight_plan *plan, uint32_t threads,
                            struct weights_progress *progress, void *memory, size_t memory_bytes) {
    if (plan->status != STATUS_OK) return plan->status;
    atomic_store(&progress->bytes, 0);
    atomic_store(&progress->bytes_total, plan->read_bytes);
    enum status status = weight_reader_run(plan->device, plan->checkpoint, plan->task,
                                           plan->task_count, threads, progress, plan->err);
    if (status == STATUS_OK && !plan->device) CHECK(mprotect(memory, memory_bytes, PROT_READ) == 0);
    return status;
}
