/* The CUDA variants of the small ops against their references: every case of cases.h, under every
 * schedule. mla_tree has a test of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"
#include "simt_worlds.h"

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

struct op {
    const char *name;
    size_t case_count;
    void (*build)(struct rig *rig, size_t case_idx, struct rig_call *call);
    void (*ref)(struct rig_call *call, struct kernel_ctx *ctx);
    void (*cuda)(struct rig_call *call, struct kernel_ctx *ctx);
    struct compare_tolerance tolerance;
};

#define DEFINE(op, relative, of_max)                                                               \
    static void build_##op(struct rig *rig, size_t case_idx, struct rig_call *call) {              \
        memset(call, 0, sizeof *call);                                                             \
        rig_##op(rig, &op##_cases[case_idx], 1, call);                                             \
    }                                                                                              \
    static void ref_##op(struct rig_call *call, struct kernel_ctx *ctx) {                          \
        op##_ref(&call->args.op, ctx);                                                             \
    }                                                                                              \
    static void cuda_##op(struct rig_call *call, struct kernel_ctx *ctx) {                         \
        op##_cuda(&call->args.op, ctx);                                                            \
    }
OPS(DEFINE)

static struct op ops[] = {
#define X(op, relative, of_max)                                                                    \
    {#op,        sizeof op##_cases / sizeof op##_cases[0],                                         \
     build_##op, ref_##op,                                                                         \
     cuda_##op,  {relative, of_max}},
    OPS(X)
#undef X
};
#define OP_COUNT (sizeof ops / sizeof ops[0])

static void check_case(const struct op *op, size_t case_idx) {
    struct rig *rig = rig_create(case_idx + 1), *reference_rig = rig_create(case_idx + 1);
    struct rig_call call, reference;
    op->build(rig, case_idx, &call);
    op->build(reference_rig, case_idx, &reference);
    struct kernel_ctx ctx = {.scratch = rig_alloc(rig, call.scratch_bytes),
                             .scratch_bytes = call.scratch_bytes,
                             .device = &simt_devices[1]};
    op->ref(&reference, &ctx);
    for (size_t s = 0; s < SIMT_ORDER_COUNT; s++) {
        if (!simt_is_wanted(s)) continue;
        char label[96];
        struct simt_report report;
        snprintf(label, sizeof label, "%s case %zu, %s", op->name, case_idx,
                 simt_schedules[s].name);
        memset(ctx.scratch, 0xff, call.scratch_bytes);
        rig_reset(&call);
        simt_begin(simt_schedules[s].schedule, &report);
        op->cuda(&call, &ctx);
        if (report.failed) fail_msg("%s: %s", label, report.text);
        for (uint32_t i = 0; i < call.output_count; i++)
            assert_true(compare_outputs(label, &call.output[i], SIZE_MAX, &reference.output[i],
                                        SIZE_MAX, op->tolerance));
    }
    rig_destroy(&rig);
    rig_destroy(&reference_rig);
}

static void test_op(void **state) {
    const struct op *op = *state;
    for (size_t c = 0; c < op->case_count; c++)
        check_case(op, c);
}

/* One draw of a case may be right by chance: the filters are tried at many positions. */
static void filters_hold_at_every_position(void **state) {
    (void)state;
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
                                 .scratch_bytes = call.scratch_bytes,
                                 .device = &simt_devices[1]};
        for (uint32_t position = 0; position < POSITIONS; position++) {
            struct simt_report report;
            uint32_t want;
            call.args.sample.position = position;
            sample_cpu(&call.args.sample, &ctx);
            want = *call.args.sample.token;
            *call.args.sample.token = UINT32_MAX;
            simt_begin(simt_schedules[0].schedule, &report);
            sample_cuda(&call.args.sample, &ctx);
            if (report.failed) fail_msg("case %zu: %s", c, report.text);
            assert_int_equal(*call.args.sample.token, want);
        }
        rig_destroy(&rig);
    }
}

int main(void) {
    struct CMUnitTest tests[OP_COUNT + 1];
    tests[OP_COUNT] = (struct CMUnitTest)cmocka_unit_test(filters_hold_at_every_position);
    for (size_t i = 0; i < OP_COUNT; i++)
        tests[i] = (struct CMUnitTest){ops[i].name, test_op, NULL, NULL, &ops[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
