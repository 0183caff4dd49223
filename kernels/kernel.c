#include "kernel.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "simd/isa.h"

#define EXIT_BROKEN_INVARIANT 70

static const char *const isa_names[ISA_COUNT] = {"generic", "avx2", "avx512", "avx512bf16"};

void kernel_check_failed(const char *expression, const char *file, int line) {
    fprintf(stderr, "%s:%d: kernel called against its contract: %s\n", file, line, expression);
    _exit(EXIT_BROKEN_INVARIANT); /* no handlers: other threads may be inside an op */
}

const char *kernel_isa_name(void) {
    return isa_names[isa_active()];
}

enum isa isa_best(void) {
#ifdef KERNEL_X86
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni")
                   ? ISA_AVX512BF16 /* whoever has the one has the other */
                   : ISA_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return ISA_AVX2;
#endif
    return ISA_GENERIC;
}

/* The environment may lower the choice, never raise it: diagnostics must not crash. */
static enum isa choose(void) {
    enum isa best = isa_best();
    const char *wanted = getenv("ESPALIER_ISA");
    if (!wanted) return best;
    for (enum isa isa = ISA_GENERIC; isa < best; isa++)
        if (strcmp(wanted, isa_names[isa]) == 0) return isa;
    return best;
}

enum isa isa_active(void) {
    /* Threads that race here find the same answer: what is stored is a constant of the process. */
    static atomic_int chosen = -1;
    int isa = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (isa < 0) {
        isa = (int)choose();
        atomic_store_explicit(&chosen, isa, memory_order_relaxed);
    }
    return (enum isa)isa;
}
