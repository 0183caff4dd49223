#include "simt_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda.h"
#include "cuda_runtime_api.h"
#include "kernel.h"
#include "simt_memory.h"

#define LET_IN_NS 50000

enum work_kind { WORK_KERNEL, WORK_COPY, WORK_SET, WORK_HOST, WORK_RECORD, WORK_AWAIT };

/* One thing a stream is told; also a node of a graph. */
struct work {
    struct work *next;
    enum work_kind kind;
    struct simt_grid grid;
    void (*kernel)(void *user);
    void *args; /* of a kernel: owned; of a copy from other host memory: the bytes, owned */
    size_t args_bytes;
    void *to;
    const void *from;
    size_t bytes;
    int value;
    cudaHostFn_t function;
    void *user;
    struct CUevent_st *event;
    uint64_t record; /* which of the event's records */
};

struct work_list {
    struct work *first, **end;
};

struct CUstream_st {
    struct CUstream_st *next; /* of all streams */
    /* Threads are ranks: each has streams, and a device, of its own. A stream is the thread's that
     * is the first to tell it something. */
    pthread_t owner;
    bool owned;
    struct work_list works;
    bool capturing, unsuited;  /* unsuited: a call that cannot be captured was made */
    pthread_t capturer;        /* while it is capturing */
    struct work_list captured; /* likewise */
};

struct CUevent_st {
    uint64_t recorded, done;
    struct CUstream_st *stream; /* of the last record */
};

struct CUgraph_st {
    struct work_list works;
};

struct CUgraphExec_st {
    struct work_list works;
    bool uploaded; /* it has what it needs of the device */
};

const struct simt_device simt_device_default = {.count = 1,
                                                .major = 12,
                                                .minor = 0,
                                                .multiprocessors = 4,
                                                .shared_bytes_max = 101376,
                                                .memory_bytes = (size_t)1 << 30,
                                                .pitch_bytes_max = INT32_MAX,
                                                .driver_version = 13000,
                                                .ecc = true};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct simt_device device;
static bool plugged;
static struct simt_cuda_counters counters;
static struct CUstream_st *streams;
static cudaError_t sticky; /* of the device: fails every later call */
static cudaError_t last;   /* for cudaGetLastError */
static uint64_t calls, failing_call;
static cudaError_t failure;

static cudaError_t run_until_idle(struct CUstream_st *stream);

/* ============================== calls ========================================================= */

static const struct simt_device *the_device(void) {
    return plugged ? &device : &simt_device_default;
}

void simt_cuda_plug(const struct simt_device *new_device) {
    pthread_mutex_lock(&lock);
    device = *new_device;
    plugged = true;
    pthread_mutex_unlock(&lock);
}

void simt_cuda_fail(uint32_t after, int error) {
    pthread_mutex_lock(&lock);
    failing_call = calls + after + 1;
    failure = (cudaError_t)error;
    pthread_mutex_unlock(&lock);
}

void simt_cuda_recover(void) {
    pthread_mutex_lock(&lock);
    sticky = last = cudaSuccess;
    failing_call = 0;
    pthread_mutex_unlock(&lock);
}

struct simt_cuda_counters simt_cuda_count(void) {
    pthread_mutex_lock(&lock);
    struct simt_cuda_counters now = counters;
    pthread_mutex_unlock(&lock);
    return now;
}

static cudaError_t fail(cudaError_t error) {
    if (error != cudaSuccess) last = error;
    return error;
}

/* Every call begins with this, and ends with leave(). */
static cudaError_t enter(void) {
    pthread_mutex_lock(&lock);
    if (++calls == failing_call) return fail(failure);
    return fail(sticky);
}

static cudaError_t leave(cudaError_t error) {
    fail(error);
    pthread_mutex_unlock(&lock);
    return error;
}

const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidPitchValue: return "invalid pitch argument";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorPeerAccessUnsupported:
        return "peer access is not supported between these two devices";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error";
    case cudaErrorStreamCaptureWrongThread: return "ended by another thread than began it";
    }
    return "unrecognized error code";
}

cudaError_t cudaGetLastError(void) {
    pthread_mutex_lock(&lock);
    cudaError_t error = last;
    last = sticky;
    pthread_mutex_unlock(&lock);
    return error;
}

cudaError_t cudaDriverGetVersion(int *version_out) {
    cudaError_t error = enter();
    if (error == cudaSuccess) *version_out = the_device()->driver_version;
    return leave(error);
}

cudaError_t cudaGetDeviceCount(int *count_out) {
    cudaError_t error = enter();
    if (error == cudaSuccess) *count_out = (int)the_device()->count;
    if (error == cudaSuccess && the_device()->count == 0) error = cudaErrorNoDevice;
    return leave(error);
}

cudaError_t cudaSetDevice(int ordinal) {
    cudaError_t error = enter();
    if (error == cudaSuccess && (ordinal < 0 || (uint32_t)ordinal >= the_device()->count))
        error = cudaErrorInvalidDevice;
    return leave(error);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties_out, int ordinal) {
    cudaError_t error = enter();
    if (error == cudaSuccess && (ordinal < 0 || (uint32_t)ordinal >= the_device()->count))
        error = cudaErrorInvalidDevice;
    if (error == cudaSuccess)
        *properties_out = (struct cudaDeviceProp){
            .name = "emulated device",
            .totalGlobalMem = the_device()->memory_bytes,
            .sharedMemPerBlockOptin = the_device()->shared_bytes_max,
            .major = the_device()->major,
            .minor = the_device()->minor,
            .multiProcessorCount = (int)the_device()->multiprocessors,
            .ECCEnabled = the_device()->ecc,
        };
    return leave(error);
}

cudaError_t cudaMemGetInfo(size_t *free_out, size_t *total_out) {
    cudaError_t error = enter();
    if (error == cudaSuccess) {
        *total_out = the_device()->memory_bytes;
        *free_out = *total_out - simt_memory_device_bytes();
    }
    return leave(error);
}

/* ============================== memory ======================================================== */

static bool is_mine(const struct CUstream_st *stream) {
    return stream->owned && pthread_equal(stream->owner, pthread_self()) != 0;
}

/* Freeing waits for whatever of this rank may use the memory. */
static cudaError_t wait_for_all(void) {
    cudaError_t error = cudaSuccess;
    for (struct CUstream_st *stream = streams; stream != NULL && error == cudaSuccess;
         stream = stream->next)
        if (is_mine(stream)) error = run_until_idle(stream);
    return error;
}

/* For calls that take or give memory, and might wait for the device: not by a thread that
 * captures. */
static cudaError_t refuse_while_capturing(void) {
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next) {
        if (!stream->capturing || pthread_equal(stream->capturer, pthread_self()) == 0) continue;
        stream->unsuited = true;
        return cudaErrorStreamCaptureUnsupported;
    }
    return cudaSuccess;
}

static cudaError_t allocate(void **memory_out, size_t bytes, bool pinned) {
    cudaError_t error = refuse_while_capturing();
    if (error != cudaSuccess) return error;
    counters.allocations++;
    *memory_out = simt_memory_allocate(bytes, the_device()->memory_bytes, pinned);
    return *memory_out != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaMalloc(void **memory_out, size_t bytes) {
    cudaError_t error = enter();
    if (error == cudaSuccess) error = allocate(memory_out, bytes, false);
    return leave(error);
}

cudaError_t cudaMallocHost(void **memory_out, size_t bytes) {
    cudaError_t error = enter();
    if (error == cudaSuccess) error = allocate(memory_out, bytes, true);
    return leave(error);
}

cudaError_t cudaFree(void *memory) {
    cudaError_t error = enter();
    if (memory == NULL) return leave(error);
    cudaError_t refused = refuse_while_capturing();
    if (refused != cudaSuccess) return leave(refused);
    if (error == cudaSuccess) error = wait_for_all();
    cudaError_t freed = simt_memory_release(memory, false) ? cudaSuccess : cudaErrorInvalidValue;
    return leave(error != cudaSuccess ? error : freed);
}

cudaError_t cudaFreeHost(void *memory) {
    cudaError_t error = enter();
    if (memory == NULL) return leave(error);
    cudaError_t refused = refuse_while_capturing();
    if (refused != cudaSuccess) return leave(refused);
    if (error == cudaSuccess) error = wait_for_all();
    cudaError_t freed = simt_memory_release(memory, true) ? cudaSuccess : cudaErrorInvalidValue;
    return leave(error != cudaSuccess ? error : freed);
}

/* Real processes have memory of their own each, and no way to each other's here. */
struct handle {
    void *memory;
    pid_t process;
};

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle_out, void *memory) {
    cudaError_t error = enter();
    if (error == cudaSuccess && !simt_memory_is_device(memory, 1)) error = cudaErrorInvalidValue;
    if (error != cudaSuccess) return leave(error);
    const struct handle handle = {.memory = memory, .process = getpid()};
    memset(handle_out, 0, sizeof *handle_out);
    memcpy(handle_out->reserved, &handle, sizeof handle);
    return leave(cudaSuccess);
}

cudaError_t cudaIpcOpenMemHandle(void **memory_out, cudaIpcMemHandle_t handle, unsigned int flags) {
    cudaError_t error = enter();
    struct handle given;
    memcpy(&given, handle.reserved, sizeof given);
    bool apart = the_device()->apart || given.process != getpid();
    if (error == cudaSuccess && flags != cudaIpcMemLazyEnablePeerAccess)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess && apart) error = cudaErrorPeerAccessUnsupported;
    if (error == cudaSuccess && !simt_memory_borrow(given.memory)) error = cudaErrorInvalidValue;
    if (error == cudaSuccess) *memory_out = given.memory;
    return leave(error);
}

cudaError_t cudaIpcCloseMemHandle(void *memory) {
    cudaError_t error = enter();
    bool open = simt_memory_give_back(memory);
    return leave(error != cudaSuccess || open ? error : cudaErrorInvalidValue);
}

/* ---- the driver's ---------------------------------------------------------------------------- */

static CUresult enter_driver(void) {
    pthread_mutex_lock(&lock);
    return ++calls == failing_call ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult leave_driver(CUresult result) {
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult result_of(bool done) {
    return done ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void *pointer_to(CUdeviceptr address) {
    return (void *)(uintptr_t)address;
}

static CUresult granularity(size_t *bytes_out, const CUmemAllocationProp *kind,
                            CUmemAllocationGranularity_flags flags) {
    (void)kind;
    (void)flags;
    CUresult result = enter_driver();
    *bytes_out = SIMT_MEMORY_GRANULE;
    return leave_driver(result);
}

static CUresult reserve(CUdeviceptr *address_out, size_t bytes, size_t alignment,
                        CUdeviceptr wanted, unsigned long long flags) {
    CUresult result = enter_driver();
    if (result == CUDA_SUCCESS)
        result = result_of(bytes % SIMT_MEMORY_GRANULE == 0 && alignment == 0 && wanted == 0 &&
                           flags == 0);
    if (result == CUDA_SUCCESS) *address_out = (CUdeviceptr)(uintptr_t)simt_memory_reserve(bytes);
    return leave_driver(result);
}

static CUresult unreserve(CUdeviceptr address, size_t bytes) {
    (void)bytes;
    CUresult result = enter_driver();
    if (result == CUDA_SUCCESS) result = result_of(simt_memory_unreserve(pointer_to(address)));
    return leave_driver(result);
}

/* A handle is its size. */
static CUresult create(CUmemGenericAllocationHandle *handle_out, size_t bytes,
                       const CUmemAllocationProp *kind, unsigned long long flags) {
    CUresult result = enter_driver();
    if (result == CUDA_SUCCESS)
        result = result_of(kind->type == CU_MEM_ALLOCATION_TYPE_PINNED && flags == 0);
    counters.allocations++;
    if (result == CUDA_SUCCESS && !simt_memory_make(bytes, the_device()->memory_bytes))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) *handle_out = bytes;
    return leave_driver(result);
}

static CUresult destroy(CUmemGenericAllocationHandle handle) {
    CUresult result = enter_driver();
    if (result == CUDA_SUCCESS) simt_memory_unmake(handle);
    return leave_driver(result);
}

static CUresult map(CUdeviceptr address, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags) {
    CUresult result = enter_driver();
    if (result == CUDA_SUCCESS)
        result = result_of(offset == 0 && flags == 0 && handle == bytes &&
                           simt_memory_map(pointer_to(address), bytes));
    return leave_driver(result);
}

static CUresult unmap(CUdeviceptr address, size_t bytes) {
    CUresult result = enter_driver();
    if (result == CUDA_SUCCESS) result = result_of(simt_memory_unmap(pointer_to(address), bytes));
    return leave_driver(result);
}

static CUresult allow(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
                      size_t count) {
    CUresult result = enter_driver();
    if (result == CUDA_SUCCESS)
        result = result_of(count == 1 && access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
                           simt_memory_allow(pointer_to(address), bytes));
    return leave_driver(result);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **call_out,
                                             unsigned int version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result_out) {
    static const struct {
        const char *name;
        void *call;
    } known[] = {
        {"cuMemGetAllocationGranularity", (void *)granularity},
        {"cuMemAddressReserve", (void *)reserve},
        {"cuMemAddressFree", (void *)unreserve},
        {"cuMemCreate", (void *)create},
        {"cuMemRelease", (void *)destroy},
        {"cuMemMap", (void *)map},
        {"cuMemUnmap", (void *)unmap},
        {"cuMemSetAccess", (void *)allow},
    };
    cudaError_t error = enter();
    if (error == cudaSuccess && flags != cudaEnableDefault) error = cudaErrorInvalidValue;
    if (error != cudaSuccess) return leave(error);
    *result_out = cudaDriverEntryPointSymbolNotFound;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, name) == 0) {
            *call_out = known[i].call;
            *result_out = version > (unsigned)the_device()->driver_version
                              ? cudaDriverEntryPointVersionNotSufficent
                              : cudaDriverEntryPointSuccess;
        }
    return leave(cudaSuccess);
}

/* ============================== work ========================================================== */

static void list_init(struct work_list *list) {
    list->first = NULL;
    list->end = &list->first;
}

static void list_add(struct work_list *list, struct work *work) {
    work->next = NULL;
    *list->end = work;
    list->end = &work->next;
}

static struct work *list_take(struct work_list *list) {
    struct work *work = list->first;
    list->first = work->next;
    if (list->first == NULL) list->end = &list->first;
    return work;
}

static void work_free(struct work *work) {
    free(work->args);
    free(work);
}

static void list_free(struct work_list *list) {
    while (list->first != NULL)
        work_free(list_take(list));
}

static struct work *work_copy(const struct work *work) {
    struct work *copy = malloc(sizeof *copy);
    KERNEL_CHECK(copy != NULL);
    *copy = *work;
    copy->args = NULL;
    if (work->args != NULL) {
        copy->args = malloc(work->args_bytes);
        KERNEL_CHECK(copy->args != NULL);
        memcpy(copy->args, work->args, work->args_bytes);
        if (work->kind == WORK_COPY) copy->from = copy->args;
    }
    return copy;
}

static void tell(struct CUstream_st *stream, const struct work *work) {
    if (!stream->owned) stream->owner = pthread_self();
    stream->owned = true;
    list_add(stream->capturing ? &stream->captured : &stream->works, work_copy(work));
}

static bool is_blocked(const struct CUstream_st *stream) {
    const struct work *work = stream->works.first;
    return work->kind == WORK_AWAIT && work->event->done < work->record;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Long enough that a thread which waits for the lock has it. */
static uint64_t let_in(void) {
    uint64_t begin_ns = now_ns();
    pthread_mutex_unlock(&lock);
    nanosleep(&(struct timespec){.tv_nsec = LET_IN_NS}, NULL);
    pthread_mutex_lock(&lock);
    return now_ns() - begin_ns;
}

static void run_kernel(struct work *work) {
    counters.kernels++;
    simt_share_threads(let_in);
    if (!simt_launch(&work->grid, work->kernel, work->args)) sticky = cudaErrorLaunchFailure;
}

/* Host functions may wait for other threads, which then need the lock. */
static void run_host(struct work *work) {
    pthread_mutex_unlock(&lock);
    work->function(work->user);
    pthread_mutex_lock(&lock);
}

static void run_work(struct work *work) {
    switch (work->kind) {
    case WORK_KERNEL: run_kernel(work); break;
    case WORK_COPY: memmove(work->to, work->from, work->bytes); break;
    case WORK_SET: memset(work->to, work->value, work->bytes); break;
    case WORK_HOST: run_host(work); break;
    case WORK_RECORD: work->event->done = work->record; break;
    case WORK_AWAIT: break;
    }
}

/* The stream's next work, unless it waits for another stream. False where it did nothing. */
static bool advance(struct CUstream_st *stream) {
    if (!is_mine(stream) || stream->works.first == NULL || is_blocked(stream)) return false;
    struct work *work = list_take(&stream->works);
    if (sticky == cudaSuccess || work->kind == WORK_RECORD) run_work(work);
    work_free(work);
    return true;
}

/* Run this stream to its end, and of the others what it waits for. */
static cudaError_t run_until_idle(struct CUstream_st *stream) {
    if (stream->works.first == NULL) return sticky;
    KERNEL_CHECK(is_mine(stream));
    simt_memory_open();
    while (stream->works.first != NULL) {
        bool moving = advance(stream);
        for (struct CUstream_st *other = streams; !moving && other != NULL; other = other->next)
            moving = advance(other);
        KERNEL_CHECK(moving); /* else an event is awaited that nobody will record */
    }
    simt_memory_close();
    return sticky;
}

void simt_cuda_launch(void *stream_user, const struct simt_grid *grid, void (*kernel)(void *user),
                      const void *args, size_t args_bytes) {
    const struct work work = {.kind = WORK_KERNEL,
                              .grid = *grid,
                              .kernel = kernel,
                              .args = (void *)(uintptr_t)args, /* copied */
                              .args_bytes = args_bytes};
    if (stream_user == NULL) {
        simt_share_threads(NULL);
        simt_launch(grid, kernel, work.args);
        return;
    }
    pthread_mutex_lock(&lock);
    tell(stream_user, &work);
    pthread_mutex_unlock(&lock);
}

bool simt_cuda_run_together(void *const *stream_users, uint32_t count) {
    const struct simt_work *works[SIMT_DEVICES_MAX];
    uint32_t work_counts[SIMT_DEVICES_MAX];
    KERNEL_CHECK(count <= SIMT_DEVICES_MAX);
    pthread_mutex_lock(&lock);
    simt_memory_open();
    for (uint32_t s = 0; s < count; s++) {
        const struct CUstream_st *stream = stream_users[s];
        uint32_t length = 0;
        for (const struct work *work = stream->works.first; work != NULL; work = work->next)
            length++;
        struct simt_work *list = calloc(length + 1, sizeof *list);
        KERNEL_CHECK(list != NULL);
        const struct work *work = stream->works.first;
        for (uint32_t i = 0; i < length; i++, work = work->next) {
            KERNEL_CHECK(work->kind == WORK_KERNEL);
            list[i] = (struct simt_work){work->grid, work->kernel, work->args};
        }
        works[s] = list;
        work_counts[s] = length;
        counters.kernels += length;
    }
    simt_share_threads(NULL);
    bool done = simt_launch_together(works, work_counts, count);
    for (uint32_t s = 0; s < count; s++) {
        list_free(&((struct CUstream_st *)stream_users[s])->works);
        free((void *)(uintptr_t)works[s]);
    }
    simt_memory_close();
    if (!done) sticky = cudaErrorLaunchFailure;
    pthread_mutex_unlock(&lock);
    return done;
}

/* ============================== streams and events ============================================ */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream_out, unsigned int flags) {
    cudaError_t error = enter();
    if (error == cudaSuccess && flags != cudaStreamNonBlocking) error = cudaErrorInvalidValue;
    if (error != cudaSuccess) return leave(error);
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    KERNEL_CHECK(stream != NULL);
    list_init(&stream->works);
    list_init(&stream->captured);
    stream->next = streams;
    streams = stream;
    *stream_out = stream;
    return leave(cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    cudaError_t error = enter();
    cudaError_t ran = run_until_idle(stream);
    struct CUstream_st **link = &streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    list_free(&stream->captured);
    free(stream);
    return leave(error != cudaSuccess ? error : ran);
}

/* For calls that a capture cannot hold. */
static cudaError_t refuse_in_capture(struct CUstream_st *stream) {
    if (!stream->capturing) return cudaSuccess;
    stream->unsuited = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    cudaError_t error = enter();
    if (error == cudaSuccess) error = refuse_in_capture(stream);
    if (error == cudaSuccess) error = run_until_idle(stream);
    return leave(error);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    cudaError_t error = enter();
    if (error == cudaSuccess) error = refuse_in_capture(stream);
    if (error != cudaSuccess) return leave(error);
    if (stream->works.first == NULL) return leave(sticky);
    /* A device gets on by itself: whoever asks often enough sees it end. */
    simt_memory_open();
    for (struct CUstream_st *other = streams; other != NULL; other = other->next)
        advance(other);
    simt_memory_close();
    pthread_mutex_unlock(&lock);
    return cudaErrorNotReady; /* no error to remember */
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
    cudaError_t error = enter();
    if (error == cudaSuccess && flags != 0) error = cudaErrorInvalidValue;
    if (error == cudaSuccess && event->recorded > 0)
        tell(stream, &(struct work){.kind = WORK_AWAIT, .event = event, .record = event->recorded});
    return leave(error);
}

static bool kind_fits(const struct work *work, enum cudaMemcpyKind kind) {
    bool to_device = simt_memory_is_device(work->to, work->bytes);
    bool from_device = simt_memory_is_device(work->from, work->bytes);
    return to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
           from_device == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    cudaError_t error = enter();
    struct work work = {.kind = WORK_COPY, .to = to, .from = from, .bytes = bytes};
    if (error == cudaSuccess && bytes > 0 && !kind_fits(&work, kind)) error = cudaErrorInvalidValue;
    if (error != cudaSuccess || bytes == 0) return leave(error);
    bool from_other = kind == cudaMemcpyHostToDevice && !simt_memory_is_pinned(from, bytes);
    bool to_other = kind == cudaMemcpyDeviceToHost && !simt_memory_is_pinned(to, bytes);
    if (from_other || to_other) error = refuse_in_capture(stream);
    if (error != cudaSuccess) return leave(error);
    if (from_other) {
        work.args = (void *)(uintptr_t)from; /* copied */
        work.args_bytes = bytes;
    }
    tell(stream, &work);
    if (to_other) error = run_until_idle(stream);
    return leave(error);
}

/* Within the device, row by row. */
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t row_bytes, size_t rows, enum cudaMemcpyKind kind,
                              cudaStream_t stream) {
    cudaError_t error = enter();
    bool fits = kind == cudaMemcpyDeviceToDevice && row_bytes <= to_pitch &&
                (row_bytes <= from_pitch || rows == 1);
    bool strides_fit = to_pitch <= the_device()->pitch_bytes_max &&
                       from_pitch <= the_device()->pitch_bytes_max;
    if (error == cudaSuccess && !fits) error = cudaErrorInvalidValue;
    if (error == cudaSuccess && !strides_fit) error = cudaErrorInvalidPitchValue;
    for (size_t row = 0; row < rows && row_bytes > 0 && error == cudaSuccess; row++) {
        const struct work work = {.kind = WORK_COPY,
                                  .to = (char *)to + row * to_pitch,
                                  .from = (const char *)from + row * from_pitch,
                                  .bytes = row_bytes};
        if (kind_fits(&work, kind))
            tell(stream, &work);
        else
            error = cudaErrorInvalidValue;
    }
    return leave(error);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    cudaError_t error = enter();
    if (error == cudaSuccess && !simt_memory_is_device(to, bytes)) error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        tell(stream, &(struct work){.kind = WORK_SET, .to = to, .value = value, .bytes = bytes});
    return leave(error);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user) {
    cudaError_t error = enter();
    if (error == cudaSuccess)
        tell(stream, &(struct work){.kind = WORK_HOST, .function = function, .user = user});
    return leave(error);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event_out, unsigned int flags) {
    cudaError_t error = enter();
    if (error == cudaSuccess && flags != cudaEventDisableTiming) error = cudaErrorInvalidValue;
    if (error != cudaSuccess) return leave(error);
    *event_out = calloc(1, sizeof **event_out);
    KERNEL_CHECK(*event_out != NULL);
    return leave(cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    cudaError_t error = enter();
    if (event->done < event->recorded) run_until_idle(event->stream);
    free(event);
    return leave(error);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    cudaError_t error = enter();
    if (error == cudaSuccess) error = refuse_in_capture(stream);
    if (error != cudaSuccess) return leave(error);
    event->stream = stream;
    tell(stream, &(struct work){.kind = WORK_RECORD, .event = event, .record = ++event->recorded});
    return leave(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    cudaError_t error = enter();
    if (error == cudaSuccess && event->done < event->recorded)
        error = run_until_idle(event->stream);
    return leave(error);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    cudaError_t error = enter();
    if (error != cudaSuccess || event->done == event->recorded) return leave(error);
    struct CUstream_st *stream = event->stream;
    pthread_mutex_unlock(&lock);
    error = cudaStreamQuery(stream);
    return error == cudaSuccess ? cudaErrorNotReady : error;
}

/* ============================== graphs ======================================================== */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    cudaError_t error = enter();
    if (error == cudaSuccess && (stream->capturing || mode != cudaStreamCaptureModeThreadLocal))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        stream->capturing = true;
        stream->capturer = pthread_self();
        stream->unsuited = false;
    }
    return leave(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status_out) {
    cudaError_t error = enter();
    *status_out = !stream->capturing ? cudaStreamCaptureStatusNone
                  : stream->unsuited ? cudaStreamCaptureStatusInvalidated
                                     : cudaStreamCaptureStatusActive;
    return leave(error);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph_out) {
    cudaError_t error = enter();
    if (error == cudaSuccess && !stream->capturing) error = cudaErrorInvalidValue;
    if (error == cudaSuccess && pthread_equal(stream->capturer, pthread_self()) == 0)
        error = cudaErrorStreamCaptureWrongThread;
    if (error == cudaSuccess && stream->unsuited) error = cudaErrorStreamCaptureInvalidated;
    stream->capturing = false;
    if (error != cudaSuccess) {
        list_free(&stream->captured);
        return leave(error);
    }
    struct CUgraph_st *graph = calloc(1, sizeof *graph);
    KERNEL_CHECK(graph != NULL);
    list_init(&graph->works);
    while (stream->captured.first != NULL)
        list_add(&graph->works, list_take(&stream->captured));
    *graph_out = graph;
    return leave(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec_out, cudaGraph_t graph,
                                 unsigned long long flags) {
    cudaError_t error = enter();
    if (error == cudaSuccess && flags != 0) error = cudaErrorInvalidValue;
    if (error != cudaSuccess) return leave(error);
    struct CUgraphExec_st *exec = calloc(1, sizeof *exec);
    KERNEL_CHECK(exec != NULL);
    list_init(&exec->works);
    for (const struct work *work = graph->works.first; work != NULL; work = work->next)
        list_add(&exec->works, work_copy(work));
    *exec_out = exec;
    counters.graphs_made++;
    counters.graphs++;
    return leave(cudaSuccess);
}

/* Its nodes need some of the device's memory. */
static cudaError_t upload(struct CUgraphExec_st *exec) {
    if (exec->uploaded) return cudaSuccess;
    counters.allocations++;
    exec->uploaded = simt_memory_make(SIMT_MEMORY_GRANULE, the_device()->memory_bytes);
    return exec->uploaded ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
    cudaError_t error = enter();
    if (error == cudaSuccess) error = refuse_in_capture(stream);
    if (error == cudaSuccess) error = upload(exec);
    return leave(error);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    cudaError_t error = enter();
    list_free(&graph->works);
    free(graph);
    return leave(error);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    cudaError_t error = enter();
    if (error == cudaSuccess) error = refuse_in_capture(stream);
    if (error != cudaSuccess) return leave(error);
    error = upload(exec);
    if (error != cudaSuccess) return leave(error);
    counters.graph_launches++;
    for (const struct work *work = exec->works.first; work != NULL; work = work->next)
        tell(stream, work);
    return leave(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    cudaError_t error = enter();
    list_free(&exec->works);
    if (exec->uploaded) simt_memory_unmake(SIMT_MEMORY_GRANULE);
    free(exec);
    counters.graphs--;
    return leave(error);
}
