/* What it costs to verify a tree: attention over a long context for 1, 8 and 16 rows.
 *
 *     bench_verify [threads] [rounds]
 *
 * One layer of the latent attention of a Kimi-K2-class model as one rank of eight has it: 8 heads,
 * a latent of 512 + 64 in bf16, pages of 64 tokens that lie scattered, contexts made up. For each
 * context the row counts take turns, round by round, so that what else the machine does hits all;
 * printed are medians: the time, how many times a single row's it is, the share of the roof (the
 * longer of reading the latent once and of computing, over the time taken; roof.h), and how often
 * the latent is read - once for all rows and heads, and threads that share the queries. */
#include <stdio.h>
#include <stdlib.h>

#include "rig.h"
#include "roof.h"

#define ROUNDS_MAX 99u

static const uint32_t contexts[] = {1024, 16384, 65536};
static const uint32_t row_counts[] = {1, 8, 16};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static int by_value(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double time_of(struct rig_call *call, struct kernel_ctx *ctx, uint32_t runs) {
    double begin = roof_now_s();
    for (uint32_t i = 0; i < runs; i++)
        mla_tree_cpu(&call->args.mla_tree, ctx);
    return (roof_now_s() - begin) / runs;
}

static void bench_context(uint32_t context, uint32_t rounds, struct kernel_team *team,
                          double read_roof, double fma_roof) {
    uint32_t threads = team_threads(team), runs = context < 8192 ? 8 : 1;
    struct rig *rig = rig_create(1);
    struct rig_call call[COUNT(row_counts)];
    double taken[COUNT(row_counts)][ROUNDS_MAX];
    struct kernel_ctx ctx = {.team = team};
    for (size_t i = 0; i < COUNT(row_counts); i++) {
        const struct mla_tree_case shape = {
            KERNEL_BF16, 8, 512, 64, 64, 1, {{TREE_BUSHY, context, row_counts[i]}}, KERNEL_F32};
        call[i] = (struct rig_call){0};
        rig_mla_tree(rig, &shape, threads, &call[i]);
        ctx.scratch_bytes = call[i].scratch_bytes;
    }
    ctx.scratch = rig_alloc(rig, ctx.scratch_bytes);
    for (uint32_t round = 0; round < rounds; round++)
        for (size_t i = 0; i < COUNT(row_counts); i++)
            taken[i][round] = time_of(&call[i], &ctx, runs);
    double single = 0;
    for (size_t i = 0; i < COUNT(row_counts); i++) {
        qsort(taken[i], rounds, sizeof **taken, by_value);
        double median = taken[i][rounds / 2];
        double read_s = call[i].bytes / read_roof, fma_s = call[i].flops / fma_roof;
        if (i == 0) single = median;
        printf("context %6u  rows %2u  %10.3f ms  %5.2f of one row  %5.1f %% of the %s roof  "
               "latent read %u x\n",
               context, row_counts[i], median * 1e3, median / single,
               100 * (read_s > fma_s ? read_s : fma_s) / median, read_s > fma_s ? "read" : "fma",
               mla_tree_passes(&call[i].args.mla_tree, 0));
    }
    fflush(stdout);
    rig_destroy(&rig);
}

int main(int argc, char **argv) {
    uint32_t threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1;
    uint32_t rounds = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 11;
    if (threads < 1 || threads > TEAM_THREADS_MAX || rounds < 1 || rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: bench_verify [threads, 1..%u] [rounds, 1..%u]\n", TEAM_THREADS_MAX,
                ROUNDS_MAX);
        return 64;
    }
    struct kernel_team *team = team_create(threads, 2000);
    if (!team) return 1;
    double read_roof = roof_read(team), fma_roof = roof_fma_f32(team);
    printf("%s, %u threads: read %.1f GB/s, fma %.1f GFLOP/s\n", kernel_isa_name(), threads,
           read_roof * 1e-9, fma_roof * 1e-9);
    for (size_t i = 0; i < COUNT(contexts); i++)
        bench_context(contexts[i], rounds, team, read_roof, fma_roof);
    team_destroy(&team);
    return 0;
}
