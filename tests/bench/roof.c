#include "roof.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "kernel.h"
#include "simd/chains.h"

/* Runs are shorter than a time slice and many: on a machine that others use too, some then run
 * undisturbed. Reads go on where the last run ended, through far more than the caches hold. */
#define READ_BYTES          (UINT64_C(512) << 20)
#define READ_RUN_BYTES      (UINT64_C(32) << 20)
#define READ_TASKS_A_THREAD 4u
#define RUNS                128u

#define CHAIN_STEPS (1u << 17)

struct read_job {
    const uint64_t *data;
    size_t words_a_task;
    uint64_t *sink; /* [tasks] */
};

struct compute_job {
    void (*chains)(uint32_t steps);
};

double roof_now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void read_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    const struct read_job *job = arg;
    const uint64_t *data = job->data + task * job->words_a_task;
    uint64_t seen[8] = {0};
    for (size_t i = 0; i < job->words_a_task; i += 8)
        for (size_t j = 0; j < 8; j++)
            seen[j] |= data[i + j];
    for (size_t j = 0; j < 8; j++)
        job->sink[task] |= seen[j];
}

double roof_read(struct kernel_team *team) {
    uint32_t tasks = team_threads(team) * READ_TASKS_A_THREAD;
    uint64_t sink[TEAM_THREADS_MAX * READ_TASKS_A_THREAD] = {0};
    uint64_t *data = mmap(NULL, READ_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                          0);
    if (data == MAP_FAILED) abort();
    (void)madvise(data, READ_BYTES, MADV_HUGEPAGE);
    for (size_t i = 0; i < READ_BYTES / sizeof *data; i++)
        data[i] = i;
    struct read_job job = {.words_a_task = READ_RUN_BYTES / sizeof *data / tasks / 8 * 8,
                           .sink = sink};
    double best = 0;
    for (uint32_t run = 0; run < RUNS; run++) {
        job.data = data + run * (READ_RUN_BYTES / sizeof *data) % (READ_BYTES / sizeof *data);
        double begin = roof_now_s();
        team_run(team, read_task, &job, tasks);
        double rate = (double)(job.words_a_task * sizeof *data * tasks) / (roof_now_s() - begin);
        best = rate > best ? rate : best;
    }
    munmap(data, READ_BYTES);
    return best;
}

#if defined(__x86_64__)
DEFINE_CHAINS(fma_avx2, "avx2,fma", __m256, _mm256_setzero_ps(),
              _mm256_fmadd_ps(_mm256_set1_ps(0.5f), _mm256_set1_ps(0.25f), sum[c]))
DEFINE_CHAINS(dot_int8, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512(),
              _mm512_dpbusd_epi32(sum[c], _mm512_set1_epi32(0x01020304), _mm512_set1_epi8(-1)))
#define OPS_DOT_BF16 64.0
#define OPS_DOT_INT8 128.0

static bool has_dot_bf16(void) {
    return __builtin_cpu_supports("avx512bf16");
}

static bool has_dot_int8(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vnni");
}

static void choose_fma(void (**chains)(uint32_t), double *ops) {
    bool wide = __builtin_cpu_supports("avx512f");
    *chains = wide ? chains_fma_avx512 : fma_avx2;
    *ops = wide ? 32 : 16;
}
#else
typedef float vector4 __attribute__((vector_size(16)));
DEFINE_CHAINS(fma_generic, "", vector4, ((vector4){0}), sum[c] * 0.5f + 0.25f)

static void choose_fma(void (**chains)(uint32_t), double *ops) {
    *chains = fma_generic;
    *ops = 8;
}
#endif

static void compute_task(void *arg, uint32_t task, uint32_t thread) {
    (void)task;
    (void)thread;
    const struct compute_job *job = arg;
    job->chains(CHAIN_STEPS);
}

/* ops: of one step of one chain. */
static double measure_chains(struct kernel_team *team, void (*chains)(uint32_t), double ops) {
    struct compute_job job = {.chains = chains};
    double best = 0;
    for (uint32_t run = 0; run < RUNS; run++) {
        double begin = roof_now_s();
        team_run(team, compute_task, &job, team_threads(team));
        double seconds = roof_now_s() - begin;
        double rate = ops * CHAINS * CHAIN_STEPS * team_threads(team) / seconds;
        best = rate > best ? rate : best;
    }
    return best;
}

double roof_fma_f32(struct kernel_team *team) {
    void (*chains)(uint32_t) = NULL;
    double ops = 0;
    choose_fma(&chains, &ops);
    return measure_chains(team, chains, ops);
}

double roof_dot_bf16(struct kernel_team *team) {
#if defined(__x86_64__)
    if (has_dot_bf16()) return measure_chains(team, chains_dot_bf16, OPS_DOT_BF16);
#endif
    (void)team;
    return 0;
}

double roof_dot_int8(struct kernel_team *team) {
#if defined(__x86_64__)
    if (has_dot_int8()) return measure_chains(team, dot_int8, OPS_DOT_INT8);
#endif
    (void)team;
    return 0;
}
