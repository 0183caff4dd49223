/* One source, three instruction sets.
 *
 * Every `<op>_cpu.c` is compiled once for each instruction set with KERNEL_ISA defined to
 * `generic`, `avx2`, `avx512` or `avx512bf16`, and names its symbols through the macros below, so
 * that one program holds them all: linear_cpu_avx512, linear_cpu_avx2, linear_cpu_generic.
 * dispatch.c defines linear_cpu, which calls the best this machine runs. Only the wrappers of simd/
 * know which set they are compiled for; an op is written once. */
#ifndef ESPALIER_ISA_H
#define ESPALIER_ISA_H

enum isa { ISA_GENERIC, ISA_AVX2, ISA_AVX512, ISA_AVX512BF16, ISA_COUNT };

/* What this process runs on, chosen once: the fastest that machine and program have, or what
 * the environment variable ESPALIER_ISA (one of the names above) says, if they have it. */
enum isa isa_active(void);

/* The same for products of int8, whose dot products are fast wherever there are some. */
enum isa isa_of_int8(void);

/* The largest that this machine and program have. */
enum isa isa_best(void);

#ifdef KERNEL_ISA
#define ISA_JOIN_(stem, isa) stem##_##isa
#define ISA_JOIN(stem, isa)  ISA_JOIN_(stem, isa)

/* The name of an external symbol for the instruction set being compiled. */
#define ISA_SYMBOL(stem) ISA_JOIN(stem, KERNEL_ISA)

/* The head of an op's fast variant: CPU_OP(linear) { ... } */
#define CPU_OP(op)                                                                                 \
    void ISA_SYMBOL(op##_cpu)(const struct op##_args *args, struct kernel_ctx *ctx);               \
    void ISA_SYMBOL(op##_cpu)(const struct op##_args *args, struct kernel_ctx *ctx)
#endif

#endif
