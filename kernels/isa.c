/* The choice of an instruction set. AVX-512 BF16's dot product is worth two fused multiply-adds and
 * the unpacking that they need. Zen 4 does one in the time of one of them; Sapphire Rapids takes
 * the time of four, and there the set without it is the faster one. So both are run and timed. */
#include "simd/isa.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernel.h"

#define DOT_WORTH 3 /* fused multiply-adds; measured on both */

static const char *const isa_names[ISA_COUNT] = {"generic", "avx2", "avx512", "avx512bf16"};

#ifdef KERNEL_X86
#include "simd/chains.h"

#define CHAIN_STEPS 1024u /* a few microseconds: most runs are undisturbed */
#define RUNS        16u

static int64_t time_ns(void (*run)(uint32_t steps)) {
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    run(CHAIN_STEPS);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - begin.tv_sec) * INT64_C(1000000000) + end.tv_nsec - begin.tv_nsec;
}

/* The best of runs that take turns, so that both meet the processor at the same clock. */
static bool dots_pay(void) {
    int64_t fmas_ns = INT64_MAX, dots_ns = INT64_MAX;
    for (uint32_t run = 0; run < RUNS; run++) {
        int64_t ns = time_ns(chains_fma_avx512);
        if (ns < fmas_ns) fmas_ns = ns;
        ns = time_ns(chains_dot_bf16);
        if (ns < dots_ns) dots_ns = ns;
    }
    return dots_ns < DOT_WORTH * fmas_ns;
}
#else
static bool dots_pay(void) {
    return false;
}
#endif

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

/* The environment may lower the choice, never raise it above the best: diagnostics must not crash.
 */
static enum isa choose(bool with_bf16_dots) {
    enum isa best = isa_best();
    const char *wanted = getenv("ESPALIER_ISA");
    for (enum isa isa = ISA_GENERIC; wanted && isa <= best; isa++)
        if (strcmp(wanted, isa_names[isa]) == 0) return isa;
    return best == ISA_AVX512BF16 && with_bf16_dots && !dots_pay() ? ISA_AVX512 : best;
}

/* Threads that race here may measure twice and store another answer; either gives the same bits. */
static enum isa chosen_once(atomic_int *chosen, bool with_bf16_dots) {
    int isa = atomic_load_explicit(chosen, memory_order_relaxed);
    if (isa < 0) {
        isa = (int)choose(with_bf16_dots);
        atomic_store_explicit(chosen, isa, memory_order_relaxed);
    }
    return (enum isa)isa;
}

enum isa isa_active(void) {
    static atomic_int chosen = -1;
    return chosen_once(&chosen, true);
}

enum isa isa_of_int8(void) {
    static atomic_int chosen = -1;
    return chosen_once(&chosen, false);
}

const char *kernel_isa_name(void) {
    return isa_names[isa_active()];
}
