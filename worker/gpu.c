/* The input of steps lies in pinned memory in two halves: while the host fills one, the other may
 * still be copied. On the device it lies once, so that captured ops find it where it was: copies
 * are work of the stream, behind the ops of the step before.
 *
 *     pinned   | half 0: at ─▶ ........ | half 1: sent ... at ─▶ .. |
 *                                              └── send: one copy ──▶ device
 */
#include "gpu.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "backend_cuda.h"
#include "base/check.h"
#include "comm_p2p.h"
#include "device_cuda.h"

struct gpu {
    struct device base;
    struct device_cuda *cuda;
    struct device_cuda_facts facts;
    int ordinal;
    uint8_t *pinned; /* [2, input_bytes] */
    uint8_t *there;  /* [input_bytes] on the device */
    size_t input_bytes;
    size_t at, sent; /* in the half that is being filled */
    uint32_t half;
    cudaEvent_t copied[2]; /* of each half, what was put last */
};

struct device_stage {
    cudaStream_t stream;
    uint8_t *memory;
};

struct device_graph {
    cudaGraphExec_t exec;
    cudaStream_t stream;
};

static cudaStream_t stream_of(const struct device *device) {
    return device->stream;
}

/* ============================== memory ======================================================== */

static void enter(struct device *device) {
    CHECK(cudaSetDevice(((struct gpu *)device)->ordinal) == cudaSuccess);
}

static enum status take(struct device *device, size_t bytes, const char *what, void **memory_out,
                        struct error *err) {
    (void)device;
    cudaError_t error = cudaMalloc(memory_out, bytes);
    if (error == cudaErrorMemoryAllocation)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%zu bytes of the GPU's memory for %s",
                         bytes, what);
    return device_cuda_status(error, what, err);
}

static void give(struct device *device, void *memory) {
    (void)cudaStreamSynchronize(stream_of(device)); /* a dead device uses nothing */
    (void)cudaFree(memory);
}

static enum status pin(struct device *device, size_t bytes, void **memory_out, struct error *err) {
    (void)device;
    return device_cuda_status(cudaMallocHost(memory_out, bytes), "pinning memory", err);
}

static void unpin(struct device *device, void *memory) {
    (void)cudaStreamSynchronize(stream_of(device));
    (void)cudaFreeHost(memory);
}

static void memory_left(struct device *device, uint64_t *free_out, uint64_t *total_out) {
    size_t free_bytes = 0, total_bytes = 0;
    (void)device;
    (void)cudaMemGetInfo(&free_bytes, &total_bytes); /* of a dead device: none */
    *free_out = free_bytes;
    *total_out = total_bytes;
}

static enum status region_create(struct device *device, size_t cap_bytes,
                                 struct device_region **region_out, struct error *err) {
    return device_region_create(((struct gpu *)device)->cuda, cap_bytes, region_out, err);
}

static void region_destroy(struct device_region *region) {
    device_region_destroy(&region);
}

/* ============================== loading ======================================================= */

static void stage_close(struct device_stage *stage) {
    (void)cudaFreeHost(stage->memory);
    if (stage->stream) (void)cudaStreamDestroy(stage->stream);
    free(stage);
}

static enum status stage_open(struct device *device, size_t bytes, struct device_stage **stage_out,
                              struct error *err) {
    struct device_stage *stage = calloc(1, sizeof *stage);
    if (!stage) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a stage");
    cudaError_t error = cudaSetDevice(((struct gpu *)device)->ordinal);
    if (error == cudaSuccess) error = cudaMallocHost((void **)&stage->memory, bytes);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&stage->stream, cudaStreamNonBlocking);
    if (error == cudaSuccess)
        *stage_out = stage;
    else
        stage_close(stage);
    return device_cuda_status(error, "a stage for weights", err);
}

static void *stage_memory(const struct device_stage *stage) {
    return stage->memory;
}

static enum status stage_send(struct device_stage *stage, size_t from, size_t bytes, void *to,
                              struct error *err) {
    cudaError_t error = cudaMemcpyAsync(to, stage->memory + from, bytes, cudaMemcpyHostToDevice,
                                        stage->stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stage->stream);
    return device_cuda_status(error, "uploading weights", err);
}

/* ============================== steps ========================================================= */

static enum status reserve_input(struct device *device, size_t bytes, struct error *err) {
    struct gpu *gpu = (struct gpu *)device;
    if (bytes <= gpu->input_bytes) return STATUS_OK;
    device_unpin(device, gpu->pinned);
    device_give(device, gpu->there);
    gpu->pinned = gpu->there = NULL;
    gpu->input_bytes = 0;
    bytes = (bytes + DEVICE_INPUT_ALIGN - 1) / DEVICE_INPUT_ALIGN * DEVICE_INPUT_ALIGN;
    enum status status = pin(device, 2 * bytes, (void **)&gpu->pinned, err);
    if (status == STATUS_OK)
        status = take(device, bytes, "the input of steps", (void **)&gpu->there, err);
    if (status == STATUS_OK) gpu->input_bytes = bytes;
    return status;
}

static void begin(struct device *device) {
    struct gpu *gpu = (struct gpu *)device;
    gpu->half ^= 1;
    gpu->at = gpu->sent = 0;
    (void)cudaEventSynchronize(gpu->copied[gpu->half]); /* what failed, the next wait says */
}

static void *room(struct device *device, size_t bytes, const void **there_out) {
    struct gpu *gpu = (struct gpu *)device;
    size_t at = gpu->at;
    gpu->at += (bytes + DEVICE_INPUT_ALIGN - 1) / DEVICE_INPUT_ALIGN * DEVICE_INPUT_ALIGN;
    CHECK(gpu->at <= gpu->input_bytes); /* the engine reserves the most a step puts */
    *there_out = gpu->there + at;
    return gpu->pinned + gpu->half * gpu->input_bytes + at;
}

static enum status send(struct device *device, struct error *err) {
    struct gpu *gpu = (struct gpu *)device;
    size_t bytes = gpu->at - gpu->sent;
    const uint8_t *from = gpu->pinned + gpu->half * gpu->input_bytes + gpu->sent;
    if (bytes == 0) return STATUS_OK;
    cudaError_t error = cudaMemcpyAsync(gpu->there + gpu->sent, from, bytes, cudaMemcpyHostToDevice,
                                        stream_of(device));
    if (error == cudaSuccess) error = cudaEventRecord(gpu->copied[gpu->half], stream_of(device));
    gpu->sent = gpu->at;
    return device_cuda_status(error, "uploading the input of a step", err);
}

static enum status get(struct device *device, void *pinned, const void *from, size_t bytes,
                       struct error *err) {
    return device_cuda_status(
        cudaMemcpyAsync(pinned, from, bytes, cudaMemcpyDeviceToHost, stream_of(device)),
        "reading from the GPU", err);
}

static enum status wait_for_all(struct device *device, struct error *err) {
    return device_cuda_status(cudaStreamSynchronize(stream_of(device)), "waiting for the GPU", err);
}

static enum status clear(struct device *device, void *memory, size_t bytes, struct error *err) {
    return device_cuda_status(cudaMemsetAsync(memory, 0, bytes, stream_of(device)),
                              "clearing memory of the GPU", err);
}

static enum status copy(struct device *device, void *to, const void *from, size_t bytes,
                        struct error *err) {
    return device_cuda_status(
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_of(device)),
        "writing to the GPU", err);
}

/* Strides have an upper bound, below 2 GiB, and one row may be longer. */
static enum status copy_rows(struct device *device, const struct device_rows *rows,
                             struct error *err) {
    cudaStream_t stream = stream_of(device);
    cudaError_t error = cudaSuccess;
    if (rows->count == 1)
        error = cudaMemcpyAsync(rows->to, rows->from, rows->bytes, cudaMemcpyDeviceToDevice,
                                stream);
    else
        error = cudaMemcpy2DAsync(rows->to, rows->to_stride, rows->from, rows->from_stride,
                                  rows->bytes, rows->count, cudaMemcpyDeviceToDevice, stream);
    return device_cuda_status(error, "copying on the GPU", err);
}

/* ============================== graphs ======================================================== */

static enum status begin_capture(struct device *device, struct error *err) {
    return device_cuda_status(
        cudaStreamBeginCapture(stream_of(device), cudaStreamCaptureModeThreadLocal),
        "beginning to capture a step", err);
}

static void drop(struct device_graph *graph) {
    (void)cudaStreamSynchronize(graph->stream); /* a dead device uses nothing */
    (void)cudaGraphExecDestroy(graph->exec);
    free(graph);
}

/* Uploaded at once: what a first launch would take, it has. */
static cudaError_t instantiate(cudaGraph_t captured, struct device_graph *graph) {
    cudaError_t error = cudaGraphInstantiate(&graph->exec, captured, 0);
    if (error != cudaSuccess) return error;
    error = cudaGraphUpload(graph->exec, graph->stream);
    if (error != cudaSuccess) (void)cudaGraphExecDestroy(graph->exec);
    return error;
}

static enum status end_capture(struct device *device, struct device_graph **graph_out,
                               struct error *err) {
    cudaGraph_t captured = NULL;
    cudaError_t error = cudaStreamEndCapture(stream_of(device), &captured);
    if (error != cudaSuccess) return device_cuda_status(error, "capturing a step", err);
    struct device_graph *graph = calloc(1, sizeof *graph);
    CHECK(graph);
    graph->stream = stream_of(device);
    error = instantiate(captured, graph);
    (void)cudaGraphDestroy(captured);
    if (error == cudaSuccess)
        *graph_out = graph;
    else
        free(graph);
    return device_cuda_status(error, "a graph of a captured step", err);
}

static enum status replay(struct device_graph *graph, struct error *err) {
    return device_cuda_status(cudaGraphLaunch(graph->exec, graph->stream),
                              "launching a captured step", err);
}

/* ============================== life ========================================================== */

static void close_gpu(struct device *device) {
    struct gpu *gpu = (struct gpu *)device;
    device_unpin(device, gpu->pinned);
    device_give(device, gpu->there);
    for (uint32_t half = 0; half < 2; half++)
        if (gpu->copied[half]) (void)cudaEventDestroy(gpu->copied[half]);
    device_cuda_close(&gpu->cuda);
    free(gpu);
}

static const struct device_ops gpu_ops = {
    .enter = enter,
    .close = close_gpu,
    .take = take,
    .give = give,
    .pin = pin,
    .unpin = unpin,
    .memory_left = memory_left,
    .region_create = region_create,
    .region_destroy = region_destroy,
    .region_resize = device_region_resize,
    .region_begin = device_region_begin,
    .region_bytes = device_region_bytes,
    .stage_open = stage_open,
    .stage_close = stage_close,
    .stage_memory = stage_memory,
    .stage_send = stage_send,
    .reserve_input = reserve_input,
    .begin = begin,
    .room = room,
    .send = send,
    .get = get,
    .wait = wait_for_all,
    .begin_capture = begin_capture,
    .end_capture = end_capture,
    .replay = replay,
    .drop = drop,
    .clear = clear,
    .copy = copy,
    .copy_rows = copy_rows,
};

enum status gpu_open(uint32_t ordinal, struct device **device_out, struct error *err) {
    struct gpu *gpu = calloc(1, sizeof *gpu);
    if (!gpu) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a device");
    enum status status = device_cuda_open(ordinal, &gpu->cuda, err);
    if (status != STATUS_OK) {
        free(gpu);
        return status;
    }
    gpu->ordinal = (int)ordinal;
    gpu->facts = device_cuda_facts(gpu->cuda);
    gpu->base = (struct device){.ops = &gpu_ops,
                                .name = gpu->facts.name,
                                .backend = &backend_cuda,
                                .comm = &comm_p2p,
                                .kernel = device_cuda_kernel_device(gpu->cuda),
                                .stream = device_cuda_stream(gpu->cuda),
                                .free_bytes = gpu->facts.free_bytes,
                                .workspace_bytes = backend_cuda_workspace_bytes};
    cudaError_t error = cudaSuccess;
    for (uint32_t half = 0; half < 2 && error == cudaSuccess; half++)
        error = cudaEventCreateWithFlags(&gpu->copied[half], cudaEventDisableTiming);
    *device_out = &gpu->base;
    if (error != cudaSuccess) device_close(device_out);
    return device_cuda_status(error, "--device cuda: taking the GPU", err);
}
