/* An op's CUDA variant as tests try it: run under a schedule, in a workspace whose contents must
 * not matter; held against the reference in every case, on every device, under every schedule. */
#ifndef ESPALIER_SIMT_VARIANT_H
#define ESPALIER_SIMT_VARIANT_H

#include <stdbool.h>

#include "compare.h"
#include "simt_worlds.h"

struct simt_variant {
    const char *name;
    size_t case_count;
    void (*build)(struct rig *rig, size_t case_idx, struct rig_call *call);
    void (*ref)(struct rig_call *call, struct kernel_ctx *ctx);
    void (*cuda)(struct rig_call *call, struct kernel_ctx *ctx);
    bool (*takes)(const struct rig_call *call); /* NULL: every case */
    /* NULL: the call's scratch_bytes. */
    size_t (*scratch_bytes)(const struct rig_call *call, const struct kernel_device *device);
    /* Spoil what the kernel has no business with; NULL: nothing. Not done to the reference. */
    void (*spoil)(struct rig *rig, struct rig_call *call);
    struct compare_tolerance tolerance[2]; /* with activation F32, BF16 */
    bool conflict_free;                    /* no bank of shared memory is asked twice at a time */
};

/* ref_op and cuda_op, as a variant holds them. */
#define SIMT_VARIANT_CALLS(op)                                                                     \
    static void ref_##op(struct rig_call *call, struct kernel_ctx *ctx) {                          \
        op##_ref(&call->args.op, ctx);                                                             \
    }                                                                                              \
    static void cuda_##op(struct rig_call *call, struct kernel_ctx *ctx) {                         \
        op##_cuda(&call->args.op, ctx);                                                            \
    }

/* One run, with outputs as they were built. Fails the test where the kernel failed. */
struct simt_counters simt_variant_run(const struct simt_variant *variant, struct rig *rig,
                                      struct rig_call *call, const struct kernel_device *device,
                                      struct simt_schedule schedule);

/* Every case it takes, planned for each of the devices; how many of both together. */
size_t simt_variant_check(const struct simt_variant *variant, const struct kernel_device *devices,
                          size_t device_count);

/* Is the call answered as one against the contract: by the end of the process, with code 70? */
bool simt_variant_refuses(const struct simt_variant *variant, struct rig *rig,
                          struct rig_call *call);

/* A copy of what the first output holds, the rig's. */
void *simt_variant_keep(struct rig *rig, const struct rig_call *call);

/* Under every schedule, each with `seeds` seeds, the first output has the bits that were kept. */
void simt_variant_repeat(const struct simt_variant *variant, struct rig *rig, struct rig_call *call,
                         const struct kernel_device *device, uint32_t seeds, const void *kept);

#endif
