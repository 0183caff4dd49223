/* The CUDA variant of moe_experts against the reference: every case it takes and some of its own,
 * planned for every device, under every schedule. Then what its header promises beside that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <string.h>

#include "moe_experts/moe_experts_cuda.h"
#include "simt_variant.h"

#define TOLERANCE_F32  1e-2 /* of max|y|: the kernel rounds x and the activations to bf16 */
#define TOLERANCE_BF16 2e-3 /* the reference does too; some are rounded the other way */

/* Units of one tile of rows, two, four, and several units an expert; idle experts; tiles that end
 * within a panel; segments that cut steps; formats that differ. */
static const struct moe_experts_case own_cases[] = {
    {LINEAR_INT4, LINEAR_INT4, 9, 2, 3, 64, 64, 1, ROUTE_RANDOM, KERNEL_BF16},
    {LINEAR_INT4, LINEAR_INT4, 64, 1, 1, 96, 32, 1, ROUTE_ALL_SAME, KERNEL_BF16},
    {LINEAR_INT4, LINEAR_INT4, 33, 2, 5, 224, 64, 2, ROUTE_LAST, KERNEL_BF16},
    {LINEAR_INT4, LINEAR_INT4, 40, 2, 260, 32, 32, 8, ROUTE_RANDOM, KERNEL_BF16},
    {LINEAR_INT4, LINEAR_INT4, 2, 3, 12, 1152, 32, 1, ROUTE_RANDOM, KERNEL_BF16},
    {LINEAR_BF16, LINEAR_BF16, 17, 2, 4, 72, 64, 1, ROUTE_RANDOM, KERNEL_BF16},
    {LINEAR_BF16, LINEAR_INT4, 5, 3, 7, 100, 96, 1, ROUTE_RANDOM, KERNEL_BF16},
    {LINEAR_INT4, LINEAR_BF16, 3, 2, 7, 160, 352, 8, ROUTE_RANDOM, KERNEL_BF16},
    {LINEAR_FP8, LINEAR_FP8, 11, 2, 4, 160, 96, 1, ROUTE_RANDOM, KERNEL_F32},
    {LINEAR_FP8, LINEAR_FP8, 3, 1, 3, 64, 320, 8, ROUTE_RANDOM, KERNEL_F32},
    {LINEAR_FP8, LINEAR_FP8, 11, 2, 4, 160, 96, 1, ROUTE_RANDOM, KERNEL_BF16},
    {LINEAR_FP8, LINEAR_FP8, 34, 1, 2, 64, 320, 8, ROUTE_ALL_SAME, KERNEL_BF16},
};

#define SHARED_CASES (sizeof moe_experts_cases / sizeof moe_experts_cases[0])
#define OWN_CASES    (sizeof own_cases / sizeof own_cases[0])

static const struct moe_experts_case *case_of(size_t c) {
    return c < SHARED_CASES ? &moe_experts_cases[c] : &own_cases[c - SHARED_CASES];
}

static void build_moe_experts(struct rig *rig, size_t case_idx, struct rig_call *call) {
    rig_moe_experts(rig, case_of(case_idx), 1, call);
}

static bool takes_moe_experts(const struct rig_call *call) {
    return moe_experts_cuda_takes(&call->args.moe_experts);
}

static size_t scratch_bytes_of(const struct rig_call *call, const struct kernel_device *device) {
    return moe_experts_cuda_plan(&call->args.moe_experts, device).scratch_bytes;
}

SIMT_VARIANT_CALLS(moe_experts)

static const struct simt_variant moe_experts = {
    .name = "moe_experts",
    .case_count = SHARED_CASES + OWN_CASES,
    .build = build_moe_experts,
    .ref = ref_moe_experts,
    .cuda = cuda_moe_experts,
    .takes = takes_moe_experts,
    .scratch_bytes = scratch_bytes_of,
    .tolerance = {{0, TOLERANCE_F32}, {0, TOLERANCE_BF16}},
    .conflict_free = true};

static void every_case_on_every_device(void **state) {
    (void)state;
    assert_true(simt_variant_check(&moe_experts, simt_devices, SIMT_DEVICES) >= 50);
}

/* One to 64 rows; of the experts, more than a half have none at first, and few at last. */
static void build_rows(struct rig *rig, size_t case_idx, struct rig_call *call) {
    uint32_t rows = (uint32_t)case_idx + 1;
    enum linear_format format = rows % 4 == 0 ? LINEAR_BF16 : LINEAR_INT4;
    const struct moe_experts_case of_rows = {format, format, rows,         2,          24, 64,
                                             32,     1,      ROUTE_RANDOM, KERNEL_BF16};
    rig_moe_experts(rig, &of_rows, 1, call);
}

static void one_to_64_rows(void **state) {
    (void)state;
    struct simt_variant rows = moe_experts;
    rows.case_count = 64;
    rows.build = build_rows;
    assert_int_equal(simt_variant_check(&rows, &simt_devices[1], 1), 64);
}

/* The same bits under every schedule, on every device, and of a row alone. */
static void nothing_but_the_row_shows(void **state) {
    (void)state;
    const struct moe_experts_case c = {LINEAR_INT4, LINEAR_INT4, 35,           2,          4, 160,
                                       64,          2,           ROUTE_RANDOM, KERNEL_BF16};
    struct rig *rig = rig_create(1);
    struct rig_call call = {0};
    rig_moe_experts(rig, &c, 1, &call);
    simt_variant_run(&moe_experts, rig, &call, &simt_devices[0], simt_schedules[0].schedule);
    const float *first = simt_variant_keep(rig, &call), *y = call.output[0].data;
    for (size_t d = 1; d < SIMT_DEVICES; d++)
        simt_variant_repeat(&moe_experts, rig, &call, &simt_devices[d], 1, first);
    struct moe_experts_args *args = &call.args.moe_experts;
    args->rows = 1;
    for (uint32_t row = 0; row < c.rows; row += 7) {
        args->x += row == 0 ? 0 : 7 * c.dim;
        args->expert += row == 0 ? 0 : 7 * c.topk;
        args->weight += row == 0 ? 0 : 7 * c.topk;
        simt_variant_run(&moe_experts, rig, &call, &simt_devices[1], simt_schedules[0].schedule);
        for (uint32_t s = 0; s < c.segments; s++)
            assert_memory_equal(first + ((size_t)s * c.rows + row) * c.dim, y + s * c.dim,
                                c.dim * sizeof *y);
    }
    rig_destroy(&rig);
}

/* Rows whose choices are none, as a launch has them that was captured for more. */
static void rows_without_experts_are_zero(void **state) {
    (void)state;
    const struct moe_experts_case c = {LINEAR_INT4, LINEAR_INT4,  6,          2, 3, 64, 32,
                                       1,           ROUTE_RANDOM, KERNEL_BF16};
    struct rig *rig = rig_create(1);
    struct rig_call call = {0};
    rig_moe_experts(rig, &c, 1, &call);
    const float *y = call.output[0].data;
    float first[4 * 64];
    struct simt_counters all = simt_variant_run(&moe_experts, rig, &call, &simt_devices[1],
                                                simt_schedules[0].schedule);
    memcpy(first, y, sizeof first);
    uint32_t *expert = (uint32_t *)(uintptr_t)call.args.moe_experts.expert; /* the rig's memory */
    for (uint32_t i = 4 * c.topk; i < 6 * c.topk; i++)
        expert[i] = c.experts;
    struct simt_counters fewer = simt_variant_run(&moe_experts, rig, &call, &simt_devices[1],
                                                  simt_schedules[2].schedule);
    assert_memory_equal(first, y, sizeof first);
    for (uint32_t i = 4 * c.dim; i < 6 * c.dim; i++)
        assert_true(y[i] == 0.0f);
    assert_true(fewer.copied_bytes < all.copied_bytes);
    rig_destroy(&rig);
}

/* Weights once for every expert with rows and 32 rows of it, and beside them rows: of x for every
 * panel of gates, of the activations for every tile of 64 columns. */
static void weights_are_read_once(void **state) {
    (void)state;
    static const struct {
        uint32_t rows, reads;
    } cases[] = {{1, 1}, {7, 1}, {32, 1}, {33, 2}, {64, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t d = 0; d < SIMT_DEVICES; d++) {
            struct moe_experts_case c = {LINEAR_INT4, LINEAR_INT4,    cases[i].rows, 3, 3, 160, 64,
                                         2,           ROUTE_ALL_SAME, KERNEL_BF16};
            struct rig *rig = rig_create(i);
            struct rig_call call = {0};
            rig_moe_experts(rig, &c, 1, &call);
            struct simt_counters counters = simt_variant_run(
                &moe_experts, rig, &call, &simt_devices[d], simt_schedules[0].schedule);
            uint64_t pairs = (uint64_t)c.rows * c.topk;
            uint64_t row_bytes = (c.width / 32 * c.dim + (c.dim + 63) / 64 * c.width) *
                                 sizeof(bf16);
            assert_int_equal(counters.copied_bytes,
                             (uint64_t)call.bytes * cases[i].reads + pairs * row_bytes);
            rig_destroy(&rig);
        }
}

/* At Kimi K2.6's per-rank shape: blocks that feed a device, in the memory it has. */
static void plans_fit_the_device(void **state) {
    (void)state;
    static const struct {
        uint32_t rows;
        size_t device, format;
        uint32_t units_max, tiles_a_warp, down_blocks;
        bool gate_up_is_deep;
    } cases[] = {
        {1, 1, LINEAR_INT4, 8, 1, 28, true},    {2, 1, LINEAR_INT4, 16, 1, 28, true},
        {4, 1, LINEAR_INT4, 33, 2, 14, false},  {16, 1, LINEAR_INT4, 132, 8, 4, false},
        {64, 1, LINEAR_INT4, 400, 8, 4, false}, {1, 2, LINEAR_INT4, 8, 1, 28, true},
        {16, 2, LINEAR_INT4, 132, 5, 6, false}, {1, 1, LINEAR_BF16, 8, 1, 28, true},
        {64, 2, LINEAR_BF16, 400, 8, 4, false}, {8192, 1, LINEAR_INT4, 2432, 8, 4, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        enum linear_format format = (enum linear_format)cases[i].format;
        const struct moe_experts_args args = {.rows = cases[i].rows,
                                              .topk = 8,
                                              .expert_count = 384,
                                              .dim = 7168,
                                              .width = 256,
                                              .segments = 1,
                                              .gate_up_format = format,
                                              .down_format = format};
        const struct kernel_device *device = &simt_devices[cases[i].device];
        struct moe_cuda_plan plan = moe_experts_cuda_plan(&args, device);
        assert_int_equal(plan.units_max, cases[i].units_max);
        assert_int_equal(plan.down_tiles_a_warp, cases[i].tiles_a_warp);
        assert_int_equal(plan.down_blocks, cases[i].down_blocks);
        assert_int_equal(plan.gate_up_ring > 20000, cases[i].gate_up_is_deep);
        assert_true(4 * plan.gate_up_ring <= device->shared_bytes_max);
        if (!cases[i].gate_up_is_deep) /* a block beside it */
            assert_true(2 * (4 * plan.gate_up_ring + 1024) <= device->shared_bytes_max + 1024);
        assert_true(4 * plan.down_ring <= device->shared_bytes_max);
    }
}

/* Segments are those of a tree, and a group of INT4 weights is whole. */
static void contracts_are_kept(void **state) {
    (void)state;
    static const struct { uint32_t segments, dim; } cases[] = {{1, 64}, {3, 64}, {1, 60}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct moe_experts_case c = {LINEAR_INT4, LINEAR_INT4,  2,          1, 2, 64, 96,
                                           1,           ROUTE_RANDOM, KERNEL_BF16};
        struct rig *rig = rig_create(i);
        struct rig_call call = {0};
        rig_moe_experts(rig, &c, 1, &call);
        call.args.moe_experts.segments = cases[i].segments;
        call.args.moe_experts.dim = cases[i].dim;
        assert_int_equal(simt_variant_refuses(&moe_experts, rig, &call), i > 0);
        rig_destroy(&rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_fit_the_device),
        cmocka_unit_test(every_case_on_every_device),
        cmocka_unit_test(one_to_64_rows),
        cmocka_unit_test(nothing_but_the_row_shows),
        cmocka_unit_test(rows_without_experts_are_zero),
        cmocka_unit_test(weights_are_read_once),
        cmocka_unit_test(contracts_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
