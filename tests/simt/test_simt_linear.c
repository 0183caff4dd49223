/* The CUDA variant of linear against the reference: every case it takes and some of its own,
 * planned for every device, under every schedule. Then what its header promises beside that, and
 * products of many rows by a cuBLASLt that stands in for NVIDIA's (host_cublaslt.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host_cublaslt.h"
#include "linear/linear_cublaslt.h"
#include "linear/linear_cuda.h"
#include "simt_variant.h"

/* Of max|y|: sums are of exact products, as the reference's, in another order. Cases have inner
 * dimensions up to 3,000 and weights of spread 1/sqrt(K). */
#define TOLERANCE 1e-5

/* FP8 blocks that begin where steps do; splits over blocks; one, two and four tiles of rows, and
 * more than a block's; rows that go to y directly. */
static const struct linear_case own_cases[] = {
    {LINEAR_FP8, 3, 64, 1000, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_FP8, 1, 96, 129, 2, 1, false, 3, KERNEL_F32},
    {LINEAR_FP8, 5, 32, 352, 1, 8, true, 0, KERNEL_F32},
    {LINEAR_FP8, 25, 64, 2048, 1, 8, false, 2, KERNEL_F32},
    {LINEAR_FP8, 65, 96, 129, 2, 1, false, 3, KERNEL_BF16},
    {LINEAR_FP8, 5, 32, 352, 1, 8, true, 0, KERNEL_BF16},
    {LINEAR_FP8, 9, 160, 1024, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_FP8, 33, 32, 288, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_BF16, 9, 70, 1100, 1, 1, false, 2, KERNEL_BF16},
    {LINEAR_BF16, 33, 40, 288, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_BF16, 2, 40, 1024, 1, 2, true, 0, KERNEL_BF16}, /* both split and in segments */
    {LINEAR_BF16, 70, 40, 96, 2, 1, false, 1, KERNEL_BF16},
    {LINEAR_INT4, 17, 130, 1024, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_INT4, 65, 33, 64, 1, 1, false, 7, KERNEL_BF16},
};

#define SHARED_CASES (sizeof linear_cases / sizeof linear_cases[0])
#define OWN_CASES    (sizeof own_cases / sizeof own_cases[0])

static const struct linear_case *case_of(size_t c) {
    return c < SHARED_CASES ? &linear_cases[c] : &own_cases[c - SHARED_CASES];
}

static void build_linear(struct rig *rig, size_t case_idx, struct rig_call *call) {
    rig_linear(rig, case_of(case_idx), 1, call);
}

static bool takes_linear(const struct rig_call *call) {
    return linear_cuda_takes(&call->args.linear);
}

static size_t scratch_bytes_of(const struct rig_call *call, const struct kernel_device *device) {
    return linear_cuda_plan(&call->args.linear, device).scratch_bytes;
}

SIMT_VARIANT_CALLS(linear)

static const struct simt_variant linear = {.name = "linear",
                                           .case_count = SHARED_CASES + OWN_CASES,
                                           .build = build_linear,
                                           .ref = ref_linear,
                                           .cuda = cuda_linear,
                                           .takes = takes_linear,
                                           .scratch_bytes = scratch_bytes_of,
                                           .tolerance = {{0, TOLERANCE}, {0, TOLERANCE}},
                                           .conflict_free = true};

static void every_case_on_every_device(void **state) {
    (void)state;
    assert_true(simt_variant_check(&linear, simt_devices, SIMT_DEVICES) >= 140);
}

static void build_rows(struct rig *rig, size_t case_idx, struct rig_call *call) {
    static const struct {
        enum linear_format format;
        enum kernel_dtype activation;
    } of[] = {{LINEAR_BF16, KERNEL_BF16}, {LINEAR_INT4, KERNEL_BF16}, {LINEAR_BF16, KERNEL_F32}};
    uint32_t rows = (uint32_t)case_idx + 1;
    const struct linear_case of_rows = {of[rows % 3].format,    rows, 72, 96, 1, 1, false, 0,
                                        of[rows % 3].activation};
    rig_linear(rig, &of_rows, 1, call);
}

static void one_to_64_rows(void **state) {
    (void)state;
    struct simt_variant rows = linear;
    rows.case_count = 64;
    rows.build = build_rows;
    assert_int_equal(simt_variant_check(&rows, &simt_devices[1], 1), 64);
}

/* The same bits under every schedule, and of a row alone. */
static void nothing_but_the_row_shows(void **state) {
    (void)state;
    static const struct linear_case cases[] = {
        {LINEAR_BF16, 35, 70, 608, 1, 2, false, 0, KERNEL_BF16},
        {LINEAR_FP8, 11, 64, 608, 1, 1, false, 0, KERNEL_F32},
        {LINEAR_FP8, 35, 64, 608, 1, 1, false, 0, KERNEL_BF16},
        {LINEAR_F32, 5, 64, 96, 1, 2, false, 0, KERNEL_F32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct linear_case *c = &cases[i];
        struct rig *rig = rig_create(i);
        struct rig_call call = {0};
        rig_linear(rig, c, 1, &call);
        simt_variant_run(&linear, rig, &call, &simt_devices[1], simt_schedules[0].schedule);
        const float *first = simt_variant_keep(rig, &call), *y = call.output[0].data;
        simt_variant_repeat(&linear, rig, &call, &simt_devices[1], 1, first);
        const float *x = call.args.linear.x;
        call.args.linear.rows = 1;
        for (uint32_t row = 0; row < c->rows; row += 3) {
            call.args.linear.x = x + row * call.args.linear.x_stride;
            simt_variant_run(&linear, rig, &call, &simt_devices[1], simt_schedules[0].schedule);
            assert_memory_equal(first + (size_t)row * c->n, y, c->n * sizeof *y);
        }
        rig_destroy(&rig);
    }
}

/* Weights once for every 32 rows, and beside them x for every tile of 64 outputs. */
static void weights_are_read_once(void **state) {
    (void)state;
    static const struct {
        enum linear_format format;
        enum kernel_dtype activation;
        uint32_t rows, reads;
    } cases[] = {
        {LINEAR_BF16, KERNEL_BF16, 1, 1},  {LINEAR_BF16, KERNEL_BF16, 32, 1},
        {LINEAR_BF16, KERNEL_BF16, 64, 2}, {LINEAR_INT4, KERNEL_BF16, 9, 1},
        {LINEAR_INT4, KERNEL_F32, 10, 1},  {LINEAR_INT4, KERNEL_F32, 11, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t d = 0; d < SIMT_DEVICES; d++) {
            const struct linear_case c = {
                cases[i].format, cases[i].rows, 192, 512, 1, 1, false, 0, cases[i].activation};
            struct rig *rig = rig_create(i);
            struct rig_call call = {0};
            rig_linear(rig, &c, 1, &call);
            struct simt_counters counters = simt_variant_run(&linear, rig, &call, &simt_devices[d],
                                                             simt_schedules[0].schedule);
            uint64_t parts = cases[i].activation == KERNEL_F32 ? 3 : 1;
            uint64_t x_bytes = c.rows * parts * c.k * sizeof(bf16) * (c.n / 64);
            assert_int_equal(counters.copied_bytes,
                             (uint64_t)call.bytes * cases[i].reads + x_bytes);
            rig_destroy(&rig);
        }
}

/* At shapes of Kimi K2.6: queries and keys down, output, router. */
static void plans_fill_the_device(void **state) {
    (void)state;
    static const struct {
        uint32_t rows, n, k, segments, device;
        enum kernel_dtype activation;
        uint32_t parts, splits;
        bool is_direct;
    } cases[] = {
        {1, 2112, 7168, 1, 1, KERNEL_BF16, 1, 11, false},
        {64, 2112, 7168, 1, 1, KERNEL_BF16, 1, 11, false},
        {65, 2112, 7168, 1, 1, KERNEL_BF16, 1, 1, true},
        {1, 7168, 1024, 1, 1, KERNEL_BF16, 1, 3, false},
        {1, 7168, 1024, 1, 2, KERNEL_BF16, 1, 2, false},
        {1, 384, 7168, 1, 1, KERNEL_F32, 3, 28, false},
        {1, 20480, 7168, 1, 1, KERNEL_BF16, 1, 1, true},
        {1, 7168, 8192, 8, 1, KERNEL_BF16, 1, 1, false},
        {1, 64, 32, 1, 1, KERNEL_BF16, 1, 1, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct linear_args args = {
            .weight = {.format = LINEAR_BF16, .n = cases[i].n, .k = cases[i].k},
            .rows = cases[i].rows,
            .batch = 1,
            .segments = cases[i].segments,
            .activation = cases[i].activation};
        struct linear_cuda_shape plan = linear_cuda_plan(&args, &simt_devices[cases[i].device]);
        assert_int_equal(plan.parts, cases[i].parts);
        assert_int_equal(plan.splits, cases[i].splits);
        assert_int_equal(plan.is_direct, cases[i].is_direct);
    }
}

/* A tree of three segments there is none, and a group of INT4 weights is whole. */
static void contracts_are_kept(void **state) {
    (void)state;
    static const struct {
        uint32_t k, segments, k_of_call;
    } cases[] = {{96, 1, 96}, {96, 3, 96}, {96, 16, 96}, {96, 1, 80}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct linear_case c = {LINEAR_INT4, 2, 32, cases[i].k, 1, 1, false, 0, KERNEL_BF16};
        struct rig *rig = rig_create(i);
        struct rig_call call = {0};
        rig_linear(rig, &c, 1, &call);
        call.args.linear.segments = cases[i].segments;
        call.args.linear.weight.k = cases[i].k_of_call;
        assert_int_equal(simt_variant_refuses(&linear, rig, &call), i > 0);
        rig_destroy(&rig);
    }
}

/* ============================== by cuBLASLt =================================================== */

static struct linear_cublaslt *library;

static struct kernel_device with_library(const struct kernel_device *device) {
    struct kernel_device with = *device;
    with.cublaslt = library;
    return with;
}

/* Of one segment, to y directly, where rows and batches of y are aligned to 16 bytes and where they
 * are to 4; with `add`; of several segments and batches. Weights whose panels do not fill a slab,
 * fill more than one, and are larger than one. */
static const struct linear_case many_rows[] = {
    {LINEAR_BF16, 256, 40, 96, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_BF16, 259, 33, 64, 3, 1, false, 1, KERNEL_BF16},
    {LINEAR_BF16, 256, 70, 64, 1, 1, true, 3, KERNEL_BF16},
    {LINEAR_BF16, 257, 70, 80, 1, 2, true, 0, KERNEL_BF16},
    {LINEAR_BF16, 256, 150, 128, 2, 8, false, 0, KERNEL_BF16},
    {LINEAR_BF16, 256, 40, 1032, 1, 1, false, 2, KERNEL_BF16},
};
#define MANY_ROWS_CASES (sizeof many_rows / sizeof many_rows[0])

static void build_many(struct rig *rig, size_t case_idx, struct rig_call *call) {
    rig_linear(rig, &many_rows[case_idx], 1, call);
}

static size_t scratch_bytes_of_many(const struct rig_call *call,
                                    const struct kernel_device *device) {
    struct kernel_device with = with_library(device);
    return linear_cuda_plan(&call->args.linear, &with).scratch_bytes;
}

static void cuda_many(struct rig_call *call, struct kernel_ctx *ctx) {
    struct kernel_device with = with_library(ctx->device);
    struct kernel_ctx own = *ctx;
    own.device = &with;
    linear_cuda(&call->args.linear, &own);
}

static const struct simt_variant many = {.name = "linear of many rows",
                                         .case_count = MANY_ROWS_CASES,
                                         .build = build_many,
                                         .ref = ref_linear,
                                         .cuda = cuda_many,
                                         .scratch_bytes = scratch_bytes_of_many,
                                         .tolerance = {{0, TOLERANCE}, {0, TOLERANCE}}};

static void many_rows_as_the_reference(void **state) {
    (void)state;
    uint32_t before = host_cublaslt_counted().products;
    assert_int_equal(simt_variant_check(&many, &simt_devices[1], 1), MANY_ROWS_CASES);
    assert_true(host_cublaslt_counted().products > before);
}

/* Each condition of the header alone, and what is unpacked at a time of what is left then. */
static void who_is_multiplied_by_cublaslt(void **state) {
    (void)state;
    static const struct {
        enum linear_format format;
        enum kernel_dtype activation;
        uint32_t rows, n, k, batch, segments, slab_outputs;
    } cases[] = {
        {LINEAR_BF16, KERNEL_BF16, 256, 96, 256, 1, 1, 96},
        {LINEAR_BF16, KERNEL_BF16, 255, 96, 256, 1, 1, 0},
        {LINEAR_BF16, KERNEL_F32, 256, 96, 256, 1, 1, 0},
        {LINEAR_FP8, KERNEL_F32, 256, 96, 256, 1, 1, 0},
        {LINEAR_FP8, KERNEL_BF16, 256, 96, 256, 1, 1, 0},
        {LINEAR_INT4, KERNEL_BF16, 256, 96, 256, 1, 1, 0},
        {LINEAR_BF16, KERNEL_BF16, 256, 96, 72, 1, 1, 96},
        {LINEAR_BF16, KERNEL_BF16, 256, 96, 72, 1, 2, 0}, /* segments of 36 inputs */
        {LINEAR_BF16, KERNEL_BF16, 256, 4096, 256, 1, 1, 128},
        {LINEAR_BF16, KERNEL_BF16, 256, 4096, 256, 2, 1, 64},
        {LINEAR_BF16, KERNEL_BF16, 256, 4096, 256, 8, 1, 32},
    };
    struct kernel_device with = with_library(&simt_devices[2]);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct linear_args args = {
            .weight = {.format = cases[i].format, .n = cases[i].n, .k = cases[i].k},
            .rows = cases[i].rows,
            .batch = cases[i].batch,
            .segments = cases[i].segments,
            .activation = cases[i].activation};
        struct linear_cuda_shape plan = linear_cuda_plan(&args, &with);
        assert_int_equal(plan.slab_outputs, cases[i].slab_outputs);
        assert_int_equal(linear_cuda_plan(&args, &simt_devices[2]).slab_outputs, 0);
        if (plan.slab_outputs == 0) continue;
        size_t inputs = (size_t)cases[i].batch * cases[i].k;
        assert_true(plan.is_direct);
        assert_int_equal(plan.scratch_bytes,
                         (cases[i].rows + plan.slab_outputs) * inputs * sizeof(bf16) +
                             LINEAR_CUBLASLT_WORKSPACE_BYTES);
    }
}

static void an_algorithm_is_chosen_once_a_shape(void **state) {
    (void)state;
    struct rig *rig = rig_create(1);
    struct rig_call call = {0};
    rig_linear(rig, &many_rows[4], 1, &call);
    for (uint32_t run = 0; run < 2; run++) {
        struct host_cublaslt_counts before = host_cublaslt_counted();
        simt_variant_run(&many, rig, &call, &simt_devices[1], simt_schedules[0].schedule);
        struct host_cublaslt_counts after = host_cublaslt_counted();
        assert_int_equal(after.products - before.products, 2 * 8); /* slabs x segments */
        assert_in_range(after.chosen - before.chosen, 0, run == 0 ? 2 : 0);
    }
    rig_destroy(&rig);
}

#define WIDTH 8u /* of the smallest product */

#define SHAPES 300u /* of so many rows at most */

/* Rows of ones, up to SHAPES in a batch, times one output of ones. */
static void multiply_ones(const struct linear_cublaslt_shape *shape, float *y, void *workspace) {
    struct kernel_device with = with_library(&simt_devices[1]);
    const struct kernel_ctx ctx = {.device = &with};
    static _Alignas(16) bf16 ones[SHAPES * WIDTH];
    for (size_t i = 0; i < SHAPES * WIDTH; i++)
        ones[i] = 0x3f80;
    const struct linear_cublaslt_args args = {
        .shape = *shape, .x = ones, .w = ones, .y = y, .workspace = workspace};
    linear_cublaslt_multiply(&args, &ctx);
}

static struct linear_cublaslt_shape ones_of(uint32_t rows) {
    return (struct linear_cublaslt_shape){.rows = rows,
                                          .n = 1,
                                          .k = WIDTH,
                                          .batch = 1,
                                          .x_stride = WIDTH,
                                          .w_stride = WIDTH,
                                          .y_stride = 1};
}

/* More shapes than are kept, twice. */
static void no_shape_gets_the_algorithm_of_another(void **state) {
    (void)state;
    struct rig *rig = rig_create(1);
    void *workspace = rig_alloc(rig, LINEAR_CUBLASLT_WORKSPACE_BYTES);
    float y[SHAPES];
    for (uint32_t i = 0; i < 2 * SHAPES; i++) {
        uint32_t rows = i % SHAPES + 1;
        memset(y, 0, sizeof y);
        const struct linear_cublaslt_shape shape = ones_of(rows);
        multiply_ones(&shape, y, workspace);
        for (uint32_t row = 0; row < SHAPES; row++)
            assert_true(y[row] == (row < rows ? WIDTH : 0));
    }
    rig_destroy(&rig);
}

/* Of y, of its rows, of its batches: the least counts. The library is strict about it. */
static void y_may_lie_anywhere(void **state) {
    (void)state;
    struct rig *rig = rig_create(1);
    void *workspace = rig_alloc(rig, LINEAR_CUBLASLT_WORKSPACE_BYTES);
    static const uint32_t cases[][3] = {{0, 4, 8}, {1, 4, 8}, {0, 5, 12}, {0, 4, 9}, {2, 6, 18}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct linear_cublaslt_shape shape = ones_of(2);
        float *y = (float *)rig_alloc(rig, 64 * sizeof *y) + cases[i][0];
        shape.batch = 2;
        shape.y_stride = cases[i][1];
        shape.y_batch_stride = cases[i][2];
        multiply_ones(&shape, y, workspace);
        for (uint32_t batch = 0; batch < 2; batch++)
            for (uint32_t row = 0; row < 2; row++)
                assert_true(y[batch * cases[i][2] + row * cases[i][1]] == WIDTH);
    }
    rig_destroy(&rig);
}

/* Wherever it begins: the library wants 256 bytes aligned, and ops have 64. */
static void the_workspace_is_kept_to(void **state) {
    (void)state;
    const size_t around = 2 * LINEAR_CUBLASLT_ALIGN, bytes = LINEAR_CUBLASLT_WORKSPACE_BYTES;
    const struct linear_cublaslt_shape shape = ones_of(1);
    struct rig *rig = rig_create(1);
    unsigned char *memory = rig_alloc(rig, bytes + around + 64);
    for (size_t at = 64; at <= 256; at += 64) {
        float y;
        unsigned char *begin = memory + at;
        memset(memory, 0, at);
        memset(begin + bytes, 0, around + 64 - at);
        multiply_ones(&shape, &y, begin);
        for (size_t i = 0; i < at; i++)
            assert_int_equal(memory[i], 0);
        for (size_t i = 0; i < around + 64 - at; i++)
            assert_int_equal(begin[bytes + i], 0);
    }
    rig_destroy(&rig);
}

/* What a process says in which call number `failing` of the library's fails; its exit code. */
static int code_of_failure(uint32_t failing, char *said, size_t room) {
    int pipe_of[2], status;
    assert_int_equal(pipe(pipe_of), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        float y[2];
        dup2(pipe_of[1], STDERR_FILENO);
        struct rig *rig = rig_create(1);
        host_cublaslt_fail(failing, CUBLAS_STATUS_NOT_SUPPORTED);
        const struct linear_cublaslt_shape shape = ones_of(2);
        multiply_ones(&shape, y, rig_alloc(rig, LINEAR_CUBLASLT_WORKSPACE_BYTES));
        _exit(0);
    }
    close(pipe_of[1]);
    ssize_t length = read(pipe_of[0], said, room - 1);
    close(pipe_of[0]);
    said[length < 0 ? 0 : length] = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void a_call_that_fails_ends_the_process(void **state) {
    (void)state;
    char said[512];
    uint32_t failing = 0;
    int code;
    linear_cublaslt_close(&library); /* which has chosen for this shape */
    assert_null(linear_cublaslt_open(&library));
    while ((code = code_of_failure(failing, said, sizeof said)) == 70) {
        assert_non_null(
            strstr(said, "cuBLASLt, 1 x 2 rows of 8 to 1: CUBLAS_STATUS_NOT_SUPPORTED"));
        failing++;
    }
    assert_int_equal(code, 0);
    assert_int_equal(failing, 11 + 7 + 1); /* descriptions, a choice, the product */
}

static void a_library_that_does_not_open_says_why(void **state) {
    (void)state;
    struct linear_cublaslt *other;
    host_cublaslt_fail(0, CUBLAS_STATUS_NOT_SUPPORTED);
    assert_string_equal(linear_cublaslt_open(&other), "CUBLAS_STATUS_NOT_SUPPORTED");
    assert_null(other);
    linear_cublaslt_close(&other);
}

int main(void) {
    assert_null(linear_cublaslt_open(&library));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_fill_the_device),
        cmocka_unit_test(every_case_on_every_device),
        cmocka_unit_test(one_to_64_rows),
        cmocka_unit_test(nothing_but_the_row_shows),
        cmocka_unit_test(weights_are_read_once),
        cmocka_unit_test(contracts_are_kept),
        cmocka_unit_test(many_rows_as_the_reference),
        cmocka_unit_test(who_is_multiplied_by_cublaslt),
        cmocka_unit_test(an_algorithm_is_chosen_once_a_shape),
        cmocka_unit_test(no_shape_gets_the_algorithm_of_another),
        cmocka_unit_test(y_may_lie_anywhere),
        cmocka_unit_test(the_workspace_is_kept_to),
        cmocka_unit_test(a_call_that_fails_ends_the_process),
        cmocka_unit_test(a_library_that_does_not_open_says_why),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    linear_cublaslt_close(&library);
    return failed;
}
