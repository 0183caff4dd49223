/* The CUDA variants of the small ops against their references: every case of cases.h, under every
 * schedule. mla_tree has a test of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <string.h>

#include "simt_variant.h"

#define POSITIONS 12u

/* Op, tolerance relative and of the maximum: those of the op's header. */
#define OPS(X)                                                                                     \
    X(embed, 0, 0)                                                                                 \
    X(rms_norm, 2e-6, 0)                                                                           \
    X(rope, 0, 0)                                                                                  \
    X(kv_copy, 0, 0)                                                                               \
    X(kv_store, 0, 0)                                                                              \
    X(gqa_block, 0, 1e-5)                                                                          \
    X(add, 0, 0)                                                                                   \
    X(moe_route, 2e-6, 0)                                                                          \
    X(swiglu, 2e-6, 1e-38)                                                                         \
    X(penalize, 0, 0)                                                                              \
    X(sample, 1e-6, 0)                                                                             \
    X(kv_move, 0, 0)                                                                               \
    X(top_tokens, 2e-6, 0)

#define DEFINE(op, relative, of_max)                                                               \
    static void build_##op(struct rig *rig, size_t case_idx, struct rig_call *call) {              \
        rig_##op(rig, &op##_cases[case_idx], 1, call);                                             \
    }                                                                                              \
    SIMT_VARIANT_CALLS(op)
OPS(DEFINE)

static struct simt_variant ops[] = {
#define X(op, relative, of_max)                                                                    \
    {.name = #op,                                                                                  \
     .case_count = sizeof op##_cases / sizeof op##_cases[0],                                       \
     .build = build_##op,                                                                          \
     .ref = ref_##op,                                                                              \
     .cuda = cuda_##op,                                                                            \
     .tolerance = {{relative, of_max}}},
    OPS(X)
#undef X
};
#define OP_COUNT (sizeof ops / sizeof ops[0])

static void test_op(void **state) {
    const struct simt_variant *op = *state;
    assert_int_equal(simt_variant_check(op, &simt_devices[1], 1), op->case_count);
}

/* As a step has them, one to 64: op, its case of n rows (or moves, or values by thirty-threes). */
#define OPS_OF_ROWS(X)                                                                             \
    X(embed, {n, 40, 10, 10, 40, KERNEL_BF16})                                                     \
    X(rms_norm, {n, 256, n % 2 == 0, 3, n % 3 == 0})                                               \
    X(rope, {n, 3, 32, 5, 199990, n % 2 == 0})                                                     \
    X(kv_store, {KERNEL_BF16, n, 128, 32, 70, 9, false, 0})                                        \
    X(kv_move, {70, 320, n, n % 2 == 0})                                                           \
    X(gqa_block, {KERNEL_BF16, 2, 1, 16, 16, n % 3 * 20, n % 2 == 0, 1, {{50, 0, n}}})             \
    X(add, {33 * n})                                                                               \
    X(moe_route, {n, 24, 4, 1, 1, MOE_SIGMOID, true, true, 2.827f, false, 0})                      \
    X(swiglu, {n, 33, 2, 3})                                                                       \
    X(top_tokens, {n, 100, 0, 8, 4, LOGITS_NORMAL, 3})

static const uint32_t row_counts[] = {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64};
#define ROW_COUNTS (sizeof row_counts / sizeof row_counts[0])

#define DEFINE_ROWS(op, ...)                                                                       \
    static void build_rows_of_##op(struct rig *rig, size_t case_idx, struct rig_call *call) {      \
        const uint32_t n = row_counts[case_idx];                                                   \
        const struct op##_case of_rows = __VA_ARGS__;                                              \
        rig_##op(rig, &of_rows, 1, call);                                                          \
    }
OPS_OF_ROWS(DEFINE_ROWS)

static void one_to_64_rows(void **state) {
    (void)state;
    static const struct {
        const char *name;
        void (*build)(struct rig *rig, size_t case_idx, struct rig_call *call);
    } builds[] = {
#define X(op, ...) {#op, build_rows_of_##op},
        OPS_OF_ROWS(X)
#undef X
    };
    for (size_t i = 0; i < sizeof builds / sizeof builds[0]; i++)
        for (size_t o = 0; o < OP_COUNT; o++) {
            if (strcmp(ops[o].name, builds[i].name) != 0) continue;
            struct simt_variant op = ops[o];
            op.case_count = ROW_COUNTS;
            op.build = builds[i].build;
            assert_int_equal(simt_variant_check(&op, &simt_devices[1], 1), ROW_COUNTS);
        }
}

/* One draw of a case may be right by chance: the filters are tried at many positions. */
static void filters_hold_at_every_position(void **state) {
    (void)state;
    const struct simt_variant variant = {.name = "sample", .cuda = cuda_sample};
    for (size_t c = 0; c < sizeof sample_cases / sizeof sample_cases[0]; c++) {
        const struct sample_case *sample = &sample_cases[c];
        bool filtered = sample->min_p > 0 || sample->top_p < 1 || sample->top_k > 0;
        if (!filtered || sample->vocab > 900 || sample->temperature == 0) continue;
        struct rig *rig = rig_create(c);
        struct rig_call call = {0};
        rig_sample(rig, sample, 1, &call);
        call.args.sample.logprob = NULL;
        call.args.sample.top_count = 0;
        struct kernel_ctx ctx = {.scratch = rig_alloc(rig, call.scratch_bytes),
                                 .scratch_bytes = call.scratch_bytes};
        for (uint32_t position = 0; position < POSITIONS; position++) {
            call.args.sample.position = position;
            sample_cpu(&call.args.sample, &ctx);
            uint32_t want = *call.args.sample.token;
            simt_variant_run(&variant, rig, &call, &simt_devices[1], simt_schedules[0].schedule);
            assert_int_equal(*call.args.sample.token, want);
        }
        rig_destroy(&rig);
    }
}

int main(void) {
    struct CMUnitTest tests[OP_COUNT + 2];
    tests[OP_COUNT] = (struct CMUnitTest)cmocka_unit_test(filters_hold_at_every_position);
    tests[OP_COUNT + 1] = (struct CMUnitTest)cmocka_unit_test(one_to_64_rows);
    for (size_t i = 0; i < OP_COUNT; i++)
        tests[i] = (struct CMUnitTest){ops[i].name, test_op, NULL, NULL, &ops[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
