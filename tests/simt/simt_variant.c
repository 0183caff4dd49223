#include "simt_variant.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka needs the first two, and stddef.h and stdint.h. */
#include <cmocka.h>

static struct simt_counters run(const char *label, const struct simt_variant *variant,
                                struct rig *rig, struct rig_call *call,
                                const struct kernel_device *device, struct simt_schedule schedule) {
    struct simt_report report;
    size_t bytes = variant->scratch_bytes ? variant->scratch_bytes(call, device)
                                          : call->scratch_bytes;
    struct kernel_ctx ctx = {
        .scratch = rig_alloc(rig, bytes), .scratch_bytes = bytes, .device = device};
    memset(ctx.scratch, 0xff, bytes); /* what nobody wrote is a NaN */
    rig_reset(call);
    simt_begin(schedule, &report);
    variant->cuda(call, &ctx);
    if (report.failed) fail_msg("%s: %s", label, report.text);
    return report.counters;
}

struct simt_counters simt_variant_run(const struct simt_variant *variant, struct rig *rig,
                                      struct rig_call *call, const struct kernel_device *device,
                                      struct simt_schedule schedule) {
    return run(variant->name, variant, rig, call, device, schedule);
}

/* False where the variant does not take the case. */
static bool check_case(const struct simt_variant *variant, size_t c,
                       const struct kernel_device *device) {
    struct rig *rig = rig_create(c + 1), *reference_rig = rig_create(c + 1);
    struct rig_call call = {0}, reference = {0};
    variant->build(rig, c, &call);
    bool is_taken = variant->takes == NULL || variant->takes(&call);
    if (is_taken) {
        variant->build(reference_rig, c, &reference);
        struct kernel_ctx ctx = {.scratch = rig_alloc(reference_rig, reference.scratch_bytes),
                                 .scratch_bytes = reference.scratch_bytes};
        variant->ref(&reference, &ctx);
        if (variant->spoil) variant->spoil(rig, &call);
    }
    for (size_t s = 0; is_taken && s < SIMT_ORDER_COUNT; s++) {
        if (!simt_is_wanted(s)) continue;
        char label[96];
        snprintf(label, sizeof label, "%s case %zu, %u multiprocessors, %s", variant->name, c,
                 device->multiprocessors, simt_schedules[s].name);
        struct simt_counters counters = run(label, variant, rig, &call, device,
                                            simt_schedules[s].schedule);
        for (uint32_t i = 0; i < call.output_count; i++)
            assert_true(compare_outputs(label, &call.output[i], SIZE_MAX, &reference.output[i],
                                        SIZE_MAX, variant->tolerance[call.activation]));
        if (variant->conflict_free) assert_int_equal(counters.bank_conflicts, 0);
    }
    rig_destroy(&rig);
    rig_destroy(&reference_rig);
    return is_taken;
}

size_t simt_variant_check(const struct simt_variant *variant, const struct kernel_device *devices,
                          size_t device_count) {
    size_t count = 0;
    for (size_t c = 0; c < variant->case_count; c++)
        for (size_t d = 0; d < device_count; d++)
            count += check_case(variant, c, &devices[d]);
    return count;
}

bool simt_variant_refuses(const struct simt_variant *variant, struct rig *rig,
                          struct rig_call *call) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        simt_variant_run(variant, rig, call, &simt_devices[1], simt_schedules[0].schedule);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 70;
}

static size_t output_bytes(const struct rig_call *call) {
    const struct rig_output *output = &call->output[0];
    assert_int_equal(output->type, RIG_F32);
    return output->outer * output->rows * output->width * sizeof(float);
}

void *simt_variant_keep(struct rig *rig, const struct rig_call *call) {
    void *kept = rig_alloc(rig, output_bytes(call));
    memcpy(kept, call->output[0].data, output_bytes(call));
    return kept;
}

void simt_variant_repeat(const struct simt_variant *variant, struct rig *rig, struct rig_call *call,
                         const struct kernel_device *device, uint32_t seeds, const void *kept) {
    for (uint32_t seed = 0; seed < seeds; seed++)
        for (size_t s = 0; s < SIMT_ORDER_COUNT; s++) {
            if (!simt_is_wanted(s)) continue;
            struct simt_schedule schedule = simt_schedules[s].schedule;
            schedule.seed += seed;
            simt_variant_run(variant, rig, call, device, schedule);
            assert_memory_equal(kept, call->output[0].data, output_bytes(call));
        }
}
