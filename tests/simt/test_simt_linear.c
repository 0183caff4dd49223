/* The CUDA variant of linear against the reference: every case it takes and some of its own,
 * planned for every device, under every schedule. Then what its header promises beside that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <string.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_fill_the_device), cmocka_unit_test(every_case_on_every_device),
        cmocka_unit_test(one_to_64_rows),        cmocka_unit_test(nothing_but_the_row_shows),
        cmocka_unit_test(weights_are_read_once), cmocka_unit_test(contracts_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
