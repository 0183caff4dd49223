/* The emulated calls of the CUDA runtime: work is done when it is waited for and not before, in the
 * order that streams and events say, and mistakes of host code come back as errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "cuda_runtime_api.h"
#include "simt_cuda.h"

#define COUNT 64u
#define BYTES (COUNT * sizeof(uint32_t))

static cudaStream_t stream, other;
static uint32_t *pinned, *memory; /* [COUNT] each: the host's, the device's */

#define assert_ok(call) assert_int_equal(call, cudaSuccess)

static int set_up(void **state) {
    (void)state;
    simt_cuda_recover();
    assert_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    assert_ok(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    assert_ok(cudaMallocHost((void **)&pinned, BYTES));
    assert_ok(cudaMalloc((void **)&memory, BYTES));
    memset(pinned, 0, BYTES);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    simt_cuda_recover();
    assert_ok(cudaFree(memory));
    assert_ok(cudaFreeHost(pinned));
    assert_ok(cudaStreamDestroy(stream));
    assert_ok(cudaStreamDestroy(other));
    return 0;
}

/* Adds `addend` to the device's words. */
struct add_call {
    uint32_t *word;
    uint32_t addend;
};

static void add_thread(void *user) {
    const struct add_call *call = user;
    call->word[simt_thread_index.x] += call->addend;
}

static void launch_add(cudaStream_t where, uint32_t addend) {
    const struct simt_grid grid = {1, 1, 1, COUNT, 0};
    const struct add_call call = {memory, addend};
    simt_cuda_launch(where, &grid, add_thread, &call, sizeof call);
}

static void upload(cudaStream_t where) {
    assert_ok(cudaMemcpyAsync(memory, pinned, BYTES, cudaMemcpyHostToDevice, where));
}

static void download(cudaStream_t where) {
    assert_ok(cudaMemcpyAsync(pinned, memory, BYTES, cudaMemcpyDeviceToHost, where));
}

static bool host_can_read(const void *address) {
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    bool can = write(fd[1], address, 1) == 1;
    assert_true(can || errno == EFAULT);
    close(fd[0]);
    close(fd[1]);
    return can;
}

static void work_is_done_when_waited_for(void **state) {
    (void)state;
    pinned[3] = 5;
    upload(stream);
    launch_add(stream, 2);
    download(stream);
    pinned[3] = 40; /* too early: the copy has not been made */
    assert_int_equal(cudaStreamQuery(stream), cudaErrorNotReady);
    assert_ok(cudaStreamSynchronize(stream));
    assert_int_equal(pinned[3], 42);
    assert_int_equal(pinned[4], 2);
    assert_ok(cudaStreamQuery(stream));
}

/* Without a wait, who asks often enough sees it end too. */
static void asking_is_enough(void **state) {
    (void)state;
    upload(stream);
    launch_add(stream, 7);
    download(stream);
    uint32_t asked = 0;
    while (cudaStreamQuery(stream) == cudaErrorNotReady)
        asked++;
    assert_in_range(asked, 3, 10);
    assert_int_equal(pinned[0], 7);
    assert_ok(cudaGetLastError());
}

static void device_memory_is_not_the_hosts(void **state) {
    (void)state;
    assert_false(host_can_read(memory));
    assert_true(host_can_read(pinned));
    upload(stream);
    assert_ok(cudaStreamSynchronize(stream));
    assert_false(host_can_read(memory));
}

/* A copy from memory that is not pinned has the bytes of the moment. */
static void pageable_copies_are_made_at_once(void **state) {
    (void)state;
    uint32_t mine[COUNT] = {9};
    assert_ok(cudaMemcpyAsync(memory, mine, BYTES, cudaMemcpyHostToDevice, stream));
    mine[0] = 1;
    launch_add(stream, 1);
    assert_ok(cudaMemcpyAsync(mine, memory, BYTES, cudaMemcpyDeviceToHost, stream));
    assert_int_equal(mine[0], 10);
}

static void events_order_streams(void **state) {
    (void)state;
    cudaEvent_t event;
    assert_ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    pinned[0] = 1;
    upload(stream);
    launch_add(stream, 10);
    assert_ok(cudaEventRecord(event, stream));
    launch_add(stream, 100); /* behind the event */
    assert_ok(cudaStreamWaitEvent(other, event, 0));
    download(other);
    assert_ok(cudaStreamSynchronize(other));
    assert_int_equal(pinned[0], 11);
    download(stream);
    assert_ok(cudaStreamSynchronize(stream));
    assert_int_equal(pinned[0], 111);
    assert_ok(cudaEventSynchronize(event));
    assert_ok(cudaEventQuery(event));
    assert_ok(cudaEventDestroy(event));
}

static void unordered_streams_run_as_asked(void **state) {
    (void)state;
    pinned[0] = 1;
    upload(stream);
    assert_ok(cudaStreamSynchronize(stream));
    launch_add(stream, 10);
    download(other); /* nothing says that it comes after */
    assert_ok(cudaStreamSynchronize(other));
    assert_int_equal(pinned[0], 1);
}

/* Between the works told before and after it; here with its own look at device memory, as a
 * collective on the host needs. */
static void double_first(void *user) {
    uint32_t *word = user;
    word[0] *= 2;
}

static void host_functions_keep_their_place(void **state) {
    (void)state;
    pinned[0] = 1;
    upload(stream);
    launch_add(stream, 4);
    assert_ok(cudaLaunchHostFunc(stream, double_first, memory));
    launch_add(stream, 1);
    download(stream);
    assert_ok(cudaStreamSynchronize(stream));
    assert_int_equal(pinned[0], 11);
}

static void graphs_replay(void **state) {
    (void)state;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    pinned[0] = 1;
    upload(stream);
    assert_ok(cudaStreamSynchronize(stream));
    struct simt_cuda_counters before = simt_cuda_count();
    assert_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    launch_add(stream, 3);
    download(stream);
    assert_ok(cudaStreamEndCapture(stream, &graph));
    assert_ok(cudaGraphInstantiate(&exec, graph, 0));
    assert_ok(cudaGraphDestroy(graph));
    assert_ok(cudaStreamSynchronize(stream));
    assert_int_equal(pinned[0], 1); /* a capture runs nothing */
    for (uint32_t i = 1; i <= 3; i++) {
        assert_ok(cudaGraphLaunch(exec, stream));
        assert_ok(cudaStreamSynchronize(stream));
        assert_int_equal(pinned[0], 1 + 3 * i);
    }
    struct simt_cuda_counters after = simt_cuda_count();
    assert_int_equal(after.kernels - before.kernels, 3);
    assert_int_equal(after.graph_launches - before.graph_launches, 3);
    assert_ok(cudaGraphExecDestroy(exec));
}

static void *end_capture(void *error_out) {
    cudaGraph_t graph;
    *(cudaError_t *)error_out = cudaStreamEndCapture(stream, &graph);
    return NULL;
}

static void captures_hold_no_waits(void **state) {
    (void)state;
    cudaGraph_t graph;
    uint32_t mine[COUNT] = {0};
    assert_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    launch_add(stream, 3);
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    assert_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    assert_int_equal(cudaMemcpyAsync(memory, mine, BYTES, cudaMemcpyHostToDevice, stream),
                     cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    void *more;
    assert_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    assert_int_equal(cudaMalloc(&more, BYTES), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    assert_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    assert_int_equal(cudaFreeHost(pinned), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    pthread_t thread;
    cudaError_t error;
    assert_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    assert_int_equal(pthread_create(&thread, NULL, end_capture, &error), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(error, cudaErrorStreamCaptureWrongThread);
    assert_ok(cudaStreamSynchronize(stream));
}

static void copies_know_their_ends(void **state) {
    (void)state;
    uint32_t mine[COUNT] = {0};
    assert_int_equal(cudaMemcpyAsync(mine, pinned, BYTES, cudaMemcpyHostToDevice, stream),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpyAsync(memory, mine, BYTES, cudaMemcpyDeviceToHost, stream),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpyAsync(memory, mine, BYTES + 4, cudaMemcpyHostToDevice, stream),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy2DAsync(memory, (size_t)1 << 31, memory + 1, (size_t)1 << 31, 4, 1,
                                       cudaMemcpyDeviceToDevice, stream),
                     cudaErrorInvalidPitchValue);
    assert_int_equal(cudaMemsetAsync(memory + 1, 0, BYTES, stream), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_ok(cudaGetLastError());
}

static void memory_is_bounded(void **state) {
    (void)state;
    struct simt_device small = simt_device_default;
    small.memory_bytes = 1 << 20;
    simt_cuda_plug(&small);
    size_t free_bytes, total_bytes;
    void *a, *b;
    assert_ok(cudaMemGetInfo(&free_bytes, &total_bytes));
    assert_int_equal(total_bytes, 1 << 20);
    assert_int_equal(free_bytes, (1 << 20) - BYTES);
    assert_ok(cudaMalloc(&a, free_bytes));
    assert_int_equal(cudaMalloc(&b, 1), cudaErrorMemoryAllocation);
    assert_ok(cudaFree(a));
    assert_int_equal(cudaFree(a), cudaErrorInvalidValue);
    assert_ok(cudaMalloc(&b, 1));
    assert_ok(cudaFree(b));
    simt_cuda_plug(&simt_device_default);
}

/* The first thread does not come to the barrier of the others. */
static void stuck_thread(void *user) {
    (void)user;
    if (simt_thread_index.x > 0) simt_barrier();
}

static void a_failed_kernel_sticks(void **state) {
    (void)state;
    struct simt_report report;
    simt_begin((struct simt_schedule){SIMT_ROUND_ROBIN, 0}, &report);
    const struct simt_grid grid = {1, 1, 1, 32, 0};
    simt_cuda_launch(stream, &grid, stuck_thread, &grid, sizeof grid);
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
    assert_true(report.failed);
    assert_int_equal(cudaStreamSynchronize(other), cudaErrorLaunchFailure);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
    static struct simt_report fresh;
    simt_begin((struct simt_schedule){SIMT_ROUND_ROBIN, 0}, &fresh);
}

static void calls_fail_on_demand(void **state) {
    (void)state;
    int version;
    simt_cuda_fail(1, cudaErrorInsufficientDriver);
    assert_ok(cudaDriverGetVersion(&version));
    assert_int_equal(cudaDriverGetVersion(&version), cudaErrorInsufficientDriver);
    assert_ok(cudaDriverGetVersion(&version));
}

static void the_plugged_device_is_seen(void **state) {
    (void)state;
    int count;
    struct cudaDeviceProp properties;
    struct simt_device none = simt_device_default;
    none.count = 0;
    assert_ok(cudaGetDeviceCount(&count));
    assert_int_equal(count, 1);
    assert_ok(cudaGetDeviceProperties(&properties, 0));
    assert_int_equal(properties.major, 12);
    assert_int_equal(cudaSetDevice(1), cudaErrorInvalidDevice);
    simt_cuda_plug(&none);
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    simt_cuda_plug(&simt_device_default);
}

/* A peer's memory is the peer's to free, once it is closed. */
static void memory_is_opened_by_others(void **state) {
    (void)state;
    cudaIpcMemHandle_t handle;
    void *opened = NULL;
    assert_int_equal(cudaIpcGetMemHandle(&handle, pinned), cudaErrorInvalidValue);
    assert_ok(cudaIpcGetMemHandle(&handle, memory));
    struct simt_device device = simt_device_default;
    device.apart = true;
    simt_cuda_plug(&device);
    assert_int_equal(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess),
                     cudaErrorPeerAccessUnsupported);
    simt_cuda_plug(&simt_device_default);
    assert_int_equal(cudaIpcCloseMemHandle(memory), cudaErrorInvalidValue);
    assert_ok(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess));
    assert_non_null(opened);
    assert_int_equal(cudaFree(memory), cudaErrorInvalidValue);
    assert_ok(cudaIpcCloseMemHandle(opened));
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(work_is_done_when_waited_for),
        TEST(asking_is_enough),
        TEST(device_memory_is_not_the_hosts),
        TEST(pageable_copies_are_made_at_once),
        TEST(events_order_streams),
        TEST(unordered_streams_run_as_asked),
        TEST(host_functions_keep_their_place),
        TEST(graphs_replay),
        TEST(captures_hold_no_waits),
        TEST(copies_know_their_ends),
        TEST(memory_is_bounded),
        TEST(a_failed_kernel_sticks),
        TEST(calls_fail_on_demand),
        TEST(the_plugged_device_is_seen),
        TEST(memory_is_opened_by_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
