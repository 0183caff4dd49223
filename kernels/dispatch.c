/* <op>_cpu for every op: a table of its compilations and a call through it. */
#include "dispatch.h"

#ifdef KERNEL_X86
#define DECLARE(op)                                                                                \
    op##_fn op##_cpu_generic, op##_cpu_avx2, op##_cpu_avx512, op##_cpu_avx512bf16;                 \
    op##_fn *const dispatch_##op[ISA_COUNT] = {op##_cpu_generic, op##_cpu_avx2, op##_cpu_avx512,   \
                                               op##_cpu_avx512bf16};
#else
#define DECLARE(op)                                                                                \
    op##_fn op##_cpu_generic;                                                                      \
    op##_fn *const dispatch_##op[ISA_COUNT] = {op##_cpu_generic};
#endif

/* Two ops take int8. */
#define ACTIVATION_OF(type, args) (((const struct type *)(const void *)(args))->activation)
#define IS_INT8(args)                                                                              \
    (_Generic((args),                                                                              \
         const struct linear_args *: ACTIVATION_OF(linear_args, args),                             \
         const struct moe_experts_args *: ACTIVATION_OF(moe_experts_args, args),                   \
         default: KERNEL_F32) == KERNEL_INT8)

#define DEFINE(op)                                                                                 \
    void op##_cpu(const struct op##_args *args, struct kernel_ctx *ctx) {                          \
        dispatch_##op[IS_INT8(args) ? isa_of_int8() : isa_active()](args, ctx);                    \
    }

DISPATCH_OPS(DECLARE)
DISPATCH_OPS(DEFINE)
