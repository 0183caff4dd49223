#include "device.h"

#include <stdlib.h>
#include <string.h>

void device_enter(struct device *device) {
    if (device) device->ops->enter(device);
}

void device_close(struct device **device) {
    if (!*device) return;
    (*device)->ops->close(*device);
    *device = NULL;
}

enum status device_take(struct device *device, size_t bytes, const char *what, void **memory_out,
                        struct error *err) {
    return device->ops->take(device, bytes, what, memory_out, err);
}

void device_give(struct device *device, void *memory) {
    if (memory) device->ops->give(device, memory);
}

enum status device_pin(struct device *device, size_t bytes, void **memory_out, struct error *err) {
    return device->ops->pin(device, bytes, memory_out, err);
}

void device_unpin(struct device *device, void *memory) {
    if (memory) device->ops->unpin(device, memory);
}

enum status device_copy_rows(struct device *device, const struct device_rows *rows,
                             struct error *err) {
    if (device) return device->ops->copy_rows(device, rows, err);
    for (size_t row = 0; row < rows->count; row++)
        memcpy((char *)rows->to + row * rows->to_stride,
               (const char *)rows->from + row * rows->from_stride, rows->bytes);
    return STATUS_OK;
}

enum status device_clear(struct device *device, void *memory, size_t bytes, struct error *err) {
    if (device) return device->ops->clear(device, memory, bytes, err);
    memset(memory, 0, bytes);
    return STATUS_OK;
}

enum status device_stage_open(struct device *device, size_t bytes, struct device_stage **stage_out,
                              struct error *err) {
    *stage_out = NULL;
    return device ? device->ops->stage_open(device, bytes, stage_out, err) : STATUS_OK;
}

void device_stage_close(struct device *device, struct device_stage **stage) {
    if (*stage) device->ops->stage_close(*stage);
    *stage = NULL;
}

enum status device_reserve_input(struct device *device, size_t bytes, struct error *err) {
    return device ? device->ops->reserve_input(device, bytes, err) : STATUS_OK;
}

void device_begin(struct device *device) {
    if (device) device->ops->begin(device);
}

const void *device_put(struct device *device, const void *data, size_t bytes) {
    if (!device || bytes == 0) return data;
    const void *there;
    memcpy(device->ops->room(device, bytes, &there), data, bytes);
    return there;
}

void *device_room(struct device *device, size_t bytes, const void **there_out) {
    return device->ops->room(device, bytes, there_out);
}

enum status device_send(struct device *device, struct error *err) {
    return device ? device->ops->send(device, err) : STATUS_OK;
}

enum status device_begin_capture(struct device *device, struct error *err) {
    return device->ops->begin_capture(device, err);
}

enum status device_end_capture(struct device *device, struct device_graph **graph_out,
                               struct error *err) {
    *graph_out = NULL;
    return device->ops->end_capture(device, graph_out, err);
}

enum status device_replay(struct device *device, struct device_graph *graph, struct error *err) {
    return device->ops->replay(graph, err);
}

void device_drop(struct device *device, struct device_graph **graph) {
    if (*graph) device->ops->drop(*graph);
    *graph = NULL;
}

enum status device_get(struct device *device, void *pinned, const void *from, size_t bytes,
                       struct error *err) {
    return device->ops->get(device, pinned, from, bytes, err);
}

void *device_fill(struct device *device, void *array, size_t bytes) {
    return device ? malloc(bytes) : array;
}

enum status device_filled(struct device *device, void *array, void *filled, size_t bytes,
                          struct error *err) {
    if (!device) return STATUS_OK;
    enum status status = device_write(device, array, filled, bytes, err);
    free(filled);
    return status;
}

enum status device_look(struct device *device, const void *array, size_t bytes,
                        const void **look_out, struct error *err) {
    *look_out = array;
    if (!device) return STATUS_OK;
    void *copy = malloc(bytes);
    *look_out = NULL;
    if (!copy)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a look at %zu bytes",
                         bytes);
    enum status status = device_read(device, copy, array, bytes, err);
    if (status == STATUS_OK)
        *look_out = copy;
    else
        free(copy);
    return status;
}

void device_looked(struct device *device, const void *look) {
    if (device) free((void *)(uintptr_t)look);
}

enum status device_read(struct device *device, void *to, const void *from, size_t bytes,
                        struct error *err) {
    if (device) {
        enum status status = device->ops->get(device, to, from, bytes, err);
        return status == STATUS_OK ? device->ops->wait(device, err) : status;
    }
    memcpy(to, from, bytes);
    return STATUS_OK;
}

enum status device_write(struct device *device, void *to, const void *from, size_t bytes,
                         struct error *err) {
    if (device) {
        enum status status = device->ops->copy(device, to, from, bytes, err);
        return status == STATUS_OK ? device->ops->wait(device, err) : status;
    }
    memcpy(to, from, bytes);
    return STATUS_OK;
}

enum status device_wait(struct device *device, struct error *err) {
    return device ? device->ops->wait(device, err) : STATUS_OK;
}
