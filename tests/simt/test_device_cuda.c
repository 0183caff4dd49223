/* Opening a GPU, and regions of its memory, on emulated ones: what is refused and how, that nothing
 * is lost where a call fails, and that a captured graph writes into memory mapped behind it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <string.h>

#include "device_cuda.h"
#include "host_cublaslt.h"
#include "simt_cuda.h"
#include "simt_memory.h"

#define GRANULE SIMT_MEMORY_GRANULE
#define WORDS   (GRANULE / sizeof(uint32_t)) /* of a granule */
#define CALLS   200u                         /* more than opening or resizing makes */

#define assert_ok(call) assert_int_equal(call, cudaSuccess)

static int plug_in(void **state) {
    (void)state;
    simt_cuda_recover();
    simt_cuda_plug(&simt_device_default);
    return 0;
}

/* ============================== opening ======================================================= */

static void what_cannot_work_is_refused(void **state) {
    (void)state;
    static const struct {
        uint32_t count;
        int major, minor, driver;
        size_t shared_bytes;
        uint32_t ordinal;
        const char *found, *accepted;
    } cases[] = {
        {1, 12, 0, 0, 101376, 0, "found no NVIDIA driver", "CUDA 13.0 or later"},
        {1, 12, 0, 12040, 101376, 0, "found a driver for CUDA 12.4", "13.0 or later"},
        {0, 12, 0, 13000, 101376, 0, "found no GPU (no CUDA-capable device", "one for each rank"},
        {1, 12, 0, 13000, 101376, 1, "found 1 visible GPU, and this rank is to have number 1",
         "CUDA_VISIBLE_DEVICES"},
        {4, 12, 0, 13000, 101376, 7, "found 4 visible GPUs", "CUDA_VISIBLE_DEVICES"},
        {1, 8, 6, 13000, 101376, 0, "of compute capability 8.6", "9.0 (H100, H200) and 12.0"},
        {1, 12, 1, 13000, 101376, 0, "of compute capability 12.1", "9.0 (H100, H200) and 12.0"},
        {1, 9, 0, 13000, 49152, 0, "emulated device", "99 KiB of shared memory"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct simt_device plugged = simt_device_default;
        struct device_cuda *device;
        struct error err;
        plugged.count = cases[c].count;
        plugged.major = cases[c].major;
        plugged.minor = cases[c].minor;
        plugged.driver_version = cases[c].driver;
        plugged.shared_bytes_max = cases[c].shared_bytes;
        simt_cuda_recover();
        simt_cuda_plug(&plugged);
        assert_int_equal(device_cuda_open(cases[c].ordinal, &device, &err),
                         STATUS_FAILED_PRECONDITION);
        if (!strstr(err.text, cases[c].found) || !strstr(err.text, cases[c].accepted))
            fail_msg("case %zu: %s", c, err.text);
        assert_null(strchr(err.text, '\n'));
        assert_int_equal(strncmp(err.text, "--device cuda: ", 15), 0);
    }
}

static void facts_are_the_devices(void **state) {
    (void)state;
    struct device_cuda *device;
    struct error err;
    struct simt_device plugged = simt_device_default;
    plugged.major = 9;
    plugged.shared_bytes_max = 232448;
    plugged.multiprocessors = 132;
    plugged.ecc = false;
    simt_cuda_plug(&plugged);
    assert_int_equal(device_cuda_open(0, &device, &err), STATUS_OK);
    struct device_cuda_facts facts = device_cuda_facts(device);
    assert_string_equal(facts.name, "emulated device");
    assert_int_equal(facts.major, 9);
    assert_int_equal(facts.driver, 13000);
    assert_int_equal(facts.memory_bytes, plugged.memory_bytes);
    assert_int_equal(facts.free_bytes, plugged.memory_bytes);
    assert_false(facts.ecc);
    assert_int_equal(device_cuda_kernel_device(device)->multiprocessors, 132);
    assert_int_equal(device_cuda_kernel_device(device)->shared_bytes_max, 232448);
    assert_true(device_cuda_kernel_device(device)->has_wgmma);
    device_cuda_close(&device);
    assert_null(device);
}

static void whatever_call_fails_opening_says_so(void **state) {
    (void)state;
    struct device_cuda *device = NULL;
    struct error err;
    uint32_t failing = 0;
    enum status status = STATUS_UNKNOWN;
    for (; failing < CALLS && status != STATUS_OK; failing++) {
        simt_cuda_recover();
        simt_cuda_fail(failing, cudaErrorIllegalAddress);
        status = device_cuda_open(0, &device, &err);
        if (status == STATUS_OK) continue;
        assert_true(status == STATUS_INTERNAL || status == STATUS_FAILED_PRECONDITION);
        assert_true(strlen(err.text) > 10);
    }
    assert_in_range(failing, 14, CALLS - 1); /* each of its calls has failed once */
    device_cuda_close(&device);
}

static void the_library_of_products_is_opened_and_closed(void **state) {
    (void)state;
    struct device_cuda *device = NULL;
    struct error err;
    host_cublaslt_fail(0, CUBLAS_STATUS_NOT_INITIALIZED);
    assert_int_equal(device_cuda_open(0, &device, &err), STATUS_FAILED_PRECONDITION);
    assert_string_equal(err.text, "--device cuda: cuBLASLt: CUBLAS_STATUS_NOT_INITIALIZED");
    assert_null(device);
    assert_int_equal(device_cuda_open(0, &device, &err), STATUS_OK);
    assert_non_null(device_cuda_kernel_device(device)->cublaslt);
    device_cuda_close(&device);
    struct host_cublaslt_counts counts = host_cublaslt_counted();
    assert_int_equal(counts.made, counts.destroyed);
}

/* ============================== regions ======================================================= */

static struct device_cuda *open_device(size_t memory_bytes) {
    struct simt_device plugged = simt_device_default;
    struct device_cuda *device;
    struct error err;
    plugged.memory_bytes = memory_bytes;
    simt_cuda_plug(&plugged);
    assert_int_equal(device_cuda_open(0, &device, &err), STATUS_OK);
    return device;
}

static size_t free_bytes(void) {
    size_t bytes, total;
    assert_ok(cudaMemGetInfo(&bytes, &total));
    return bytes;
}

static void put(struct device_cuda *device, uint32_t *to, uint32_t word) {
    assert_ok(cudaMemcpyAsync(to, &word, sizeof word, cudaMemcpyHostToDevice,
                              device_cuda_stream(device)));
}

static uint32_t get(struct device_cuda *device, const uint32_t *from) {
    uint32_t word;
    assert_ok(cudaMemcpyAsync(&word, from, sizeof word, cudaMemcpyDeviceToHost,
                              device_cuda_stream(device)));
    return word;
}

struct write_call {
    uint32_t *begin;
    const uint32_t *where; /* in words; read when it runs */
};

static void write_thread(void *user) {
    const struct write_call *call = user;
    if (simt_thread_index.x == 0) call->begin[*call->where] = 1000 + *call->where;
}

static void regions_grow_and_shrink_in_place(void **state) {
    (void)state;
    struct device_cuda *device = open_device(64 * GRANULE);
    struct device_region *region;
    struct error err;
    assert_int_equal(device_region_create(device, 40 * GRANULE, &region, &err), STATUS_OK);
    assert_int_equal(free_bytes(), 64 * GRANULE); /* address space is no memory */
    assert_int_equal(device_region_resize(region, 1, &err), STATUS_OK);
    assert_int_equal(device_region_bytes(region), GRANULE);
    uint32_t *word = device_region_begin(region);
    put(device, word + WORDS - 1, 77);
    assert_int_equal(device_region_resize(region, 10 * GRANULE, &err), STATUS_OK);
    assert_ptr_equal(device_region_begin(region), word);
    assert_int_equal(get(device, word + WORDS - 1), 77);
    put(device, word + 10 * WORDS - 1, 78);
    assert_int_equal(get(device, word + 10 * WORDS - 1), 78);
    assert_int_equal(free_bytes(), 54 * GRANULE);
    assert_int_equal(device_region_resize(region, 2 * GRANULE, &err), STATUS_OK);
    assert_int_equal(free_bytes(), 62 * GRANULE);
    assert_int_equal(cudaMemcpyAsync(word + 2 * WORDS, &err, 4, cudaMemcpyHostToDevice,
                                     device_cuda_stream(device)),
                     cudaErrorInvalidValue);
    assert_int_equal(get(device, word + WORDS - 1), 77);
    device_region_destroy(&region);
    assert_int_equal(free_bytes(), 64 * GRANULE);
    device_cuda_close(&device);
}

static void captured_graphs_reach_new_memory(void **state) {
    (void)state;
    struct device_cuda *device = open_device(64 * GRANULE);
    cudaStream_t stream = device_cuda_stream(device);
    struct device_region *region, *index;
    struct error err;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    assert_int_equal(device_region_create(device, 40 * GRANULE, &region, &err), STATUS_OK);
    assert_int_equal(device_region_create(device, GRANULE, &index, &err), STATUS_OK);
    assert_int_equal(device_region_resize(region, GRANULE, &err), STATUS_OK);
    assert_int_equal(device_region_resize(index, GRANULE, &err), STATUS_OK);
    const struct write_call call = {device_region_begin(region), device_region_begin(index)};
    const struct simt_grid grid = {1, 1, 1, SIMT_WARP_LANES, 0};
    assert_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    simt_cuda_launch(stream, &grid, write_thread, &call, sizeof call);
    assert_ok(cudaStreamEndCapture(stream, &graph));
    assert_ok(cudaGraphInstantiate(&exec, graph, 0));
    assert_ok(cudaGraphDestroy(graph));

    const uint32_t places[] = {5, WORDS - 1, 7 * WORDS + 3, 39 * WORDS};
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
        size_t bytes = (places[p] + 1) * sizeof(uint32_t);
        assert_int_equal(device_region_resize(region, bytes, &err), STATUS_OK);
        put(device, device_region_begin(index), places[p]);
        assert_ok(cudaGraphLaunch(exec, stream));
        for (size_t q = 0; q <= p; q++)
            assert_int_equal(get(device, call.begin + places[q]), 1000 + places[q]);
    }
    /* Given back while work that uses it is under way: it is done first. */
    assert_ok(cudaGraphLaunch(exec, stream));
    assert_int_equal(device_region_resize(region, GRANULE, &err), STATUS_OK);
    assert_ok(cudaStreamSynchronize(stream));
    assert_ok(cudaGraphExecDestroy(exec));
    device_region_destroy(&index);
    device_region_destroy(&region);
    device_cuda_close(&device);
}

static void what_cannot_be_had_changes_nothing(void **state) {
    (void)state;
    struct device_cuda *device = open_device(8 * GRANULE);
    struct device_region *region;
    struct error err;
    assert_int_equal(device_region_create(device, 20 * GRANULE, &region, &err), STATUS_OK);
    assert_int_equal(device_region_resize(region, 3 * GRANULE, &err), STATUS_OK);
    put(device, device_region_begin(region), 5);
    assert_int_equal(device_region_resize(region, 9 * GRANULE, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(device_region_resize(region, 21 * GRANULE, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(device_region_bytes(region), 3 * GRANULE);
    assert_int_equal(free_bytes(), 5 * GRANULE);
    uint32_t failing = 0;
    enum status status = STATUS_UNKNOWN;
    for (; failing < CALLS && status != STATUS_OK; failing++) {
        simt_cuda_fail(failing, cudaErrorMemoryAllocation);
        status = device_region_resize(region, 6 * GRANULE, &err);
        simt_cuda_recover();
        size_t want = status == STATUS_OK ? 6 : 3;
        assert_int_equal(device_region_bytes(region), want * GRANULE);
        assert_int_equal(free_bytes(), (8 - want) * GRANULE);
        assert_int_equal(get(device, device_region_begin(region)), 5);
    }
    assert_int_equal(failing, 3 * 3 + 1); /* three calls a granule */
    device_region_destroy(&region);
    device_cuda_close(&device);
}

/* What a device that failed does not take back ends with the process, in words of the fault. */
static void a_dead_device_is_left(void **state) {
    (void)state;
    struct device_cuda *device = open_device(8 * GRANULE);
    struct device_region *region;
    struct error err;
    /* A wait, two calls a granule, one more; then none. */
    for (uint32_t failing = 0; failing < 7; failing++) {
        assert_int_equal(device_region_create(device, 4 * GRANULE, &region, &err), STATUS_OK);
        assert_int_equal(device_region_resize(region, 2 * GRANULE, &err), STATUS_OK);
        simt_cuda_fail(failing, cudaErrorIllegalAddress);
        device_region_destroy(&region);
        assert_null(region);
        simt_cuda_recover();
    }
    device_cuda_close(&device);
}

/* An error that was told to a caller is not found by the next launch. */
static void errors_are_dealt_with_once(void **state) {
    (void)state;
    struct error err;
    void *memory;
    struct device_cuda *device = open_device(8 * GRANULE);
    cudaError_t error = cudaMalloc(&memory, 9 * GRANULE);
    assert_int_equal(device_cuda_status(error, "memory", &err), STATUS_RESOURCE_EXHAUSTED);
    assert_ok(cudaGetLastError());
    device_cuda_close(&device);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup(f, plug_in)
    const struct CMUnitTest tests[] = {
        TEST(what_cannot_work_is_refused),
        TEST(facts_are_the_devices),
        TEST(whatever_call_fails_opening_says_so),
        TEST(the_library_of_products_is_opened_and_closed),
        TEST(regions_grow_and_shrink_in_place),
        TEST(captured_graphs_reach_new_memory),
        TEST(what_cannot_be_had_changes_nothing),
        TEST(a_dead_device_is_left),
        TEST(errors_are_dealt_with_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
