/* From a case of cases.h to a call that can be run, checked and timed: memory, random contents,
 * outputs. Contents depend on the case alone. */
#ifndef ESPALIER_RIG_H
#define ESPALIER_RIG_H

#include "cases.h"

enum rig_type { RIG_F32, RIG_BF16, RIG_U32 };

/* An array an op writes: [outer, rows, width]. Floats that the op must leave alone (gaps between
 * rows, other slots) are part of it. */
struct rig_output {
    const char *name;
    void *data;
    void *initial; /* what it held when built */
    enum rig_type type;
    size_t outer, rows, width;
};

#define RIG_MEMBER(op) struct op##_args op;
union rig_args {
    DISPATCH_OPS(RIG_MEMBER)
};
#undef RIG_MEMBER

/* What the bytes of outputs are before an op has run: as a float, a value no op computes. */
#define RIG_UNTOUCHED 0x5a

#define RIG_OUTPUTS_MAX 4

struct rig_call {
    union rig_args args;
    struct rig_output output[RIG_OUTPUTS_MAX];
    uint32_t output_count;
    size_t scratch_bytes;
    enum kernel_dtype activation; /* of the op, where it has one */
    double bytes;                 /* read from memory at least */
    double flops;
};

/* An allocation list; everything a call points to belongs to its rig. */
struct rig;
struct rig *rig_create(uint64_t seed);
/* Everything in memory of the caller's, 64-byte aligned, that outlives the rig: such as a GPU sees.
 */
struct rig *rig_create_in(uint64_t seed, void *memory, size_t bytes);
void rig_destroy(struct rig **rig);
void *rig_alloc(struct rig *rig, size_t bytes); /* 64-byte aligned, zero */
uint32_t rig_below(struct rig *rig, uint32_t end);
float rig_normal(struct rig *rig);

/* Build a call; threads sizes its workspace. */
#define RIG_BUILD(op)                                                                              \
    void rig_##op(struct rig *rig, const struct op##_case *c, uint32_t threads,                    \
                  struct rig_call *call);
DISPATCH_OPS(RIG_BUILD)
#undef RIG_BUILD

/* Give a copy of a call outputs of its own, [outer, 1, width], that begin as the given row of the
 * originals did; its args must then be narrowed to that row. */
void rig_take_row(struct rig *rig, struct rig_call *call, size_t row);

/* Outputs as they were when built. */
void rig_reset(struct rig_call *call);

struct linear_weight rig_weight(struct rig *rig, enum linear_format format, uint32_t n, uint32_t k,
                                uint32_t batch);

#endif
