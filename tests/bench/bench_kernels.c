/* How near the roof each kernel runs.
 *
 *     bench_kernels [threads] [op] [all]
 *
 * First the roofs of this machine at this moment (roof.h). Then per shape: time of the best run,
 * bytes that must be read a second, operations a second, and the share of the roof: the time that
 * reading or computing alone would take, whichever is longer, over the time taken. Computing: by
 * f32 FMA, or by the dot products of what activations are rounded to. Shapes are those of whole
 * models; `all` adds the table of the tests. Weights are rotated through copies larger
 * than the caches where the shape is a decoding step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"
#include "roof.h"
#include "team.h"

#define BENCH_SECONDS 0.3

/* Copies of a call's weights, so that a small layer is not read from a cache. */
#define COLD_BYTES (256.0 * (1 << 20))
#define COLD_MAX   48u

static const struct linear_case linear_shapes[] = {
    {LINEAR_BF16, 1, 1536, 7168, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_BF16, 1, 4096, 1024, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_BF16, 8, 4096, 1024, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_BF16, 512, 4096, 1024, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_BF16, 512, 1024, 2048, 1, 8, false, 0, KERNEL_BF16},
    {LINEAR_BF16, 512, 512, 128, 16, 1, false, 0, KERNEL_BF16},
    {LINEAR_BF16, 512, 128, 512, 16, 1, false, 0, KERNEL_BF16},
    {LINEAR_INT4, 1, 4096, 7168, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_INT4, 8, 4096, 1024, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_INT4, 512, 4096, 1024, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_INT4, 1, 4096, 7168, 1, 1, false, 0, KERNEL_INT8},
    {LINEAR_INT4, 8, 4096, 1024, 1, 1, false, 0, KERNEL_INT8},
    {LINEAR_INT4, 512, 4096, 1024, 1, 1, false, 0, KERNEL_INT8},
    {LINEAR_FP8, 1, 4096, 7168, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_FP8, 8, 4096, 1024, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_FP8, 64, 4096, 1024, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_FP8, 512, 4096, 1024, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_BF16, 1, 1536, 7168, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_BF16, 8, 1536, 7168, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_BF16, 1, 4096, 1024, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_BF16, 4, 4096, 1024, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_BF16, 16, 4096, 1024, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_BF16, 512, 4096, 1024, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_BF16, 512, 1024, 7168, 1, 8, false, 0, KERNEL_F32},
    {LINEAR_BF16, 512, 512, 128, 16, 1, false, 0, KERNEL_F32},
    {LINEAR_INT4, 1, 4096, 7168, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_INT4, 4, 4096, 1024, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_INT4, 512, 4096, 1024, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_FP8, 1, 4096, 7168, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_FP8, 8, 4096, 1024, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_FP8, 64, 4096, 1024, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_FP8, 512, 4096, 1024, 1, 1, false, 0, KERNEL_F32},
};
static const struct mla_tree_case mla_tree_shapes[] = {
    {KERNEL_BF16, 16, 512, 64, 64, 1, {{CHAIN, 4096, 1}}, KERNEL_BF16},
    {KERNEL_BF16, 16, 512, 64, 64, 1, {{CHAIN, 16384, 1}}, KERNEL_BF16},
    {KERNEL_BF16, 64, 512, 64, 64, 1, {{CHAIN, 16384, 1}}, KERNEL_BF16},
    {KERNEL_BF16, 16, 512, 64, 64, 1, {{TREE_BUSHY, 16384, 16}}, KERNEL_BF16},
    {KERNEL_BF16, 16, 512, 64, 64, 1, {{CHAIN, 4096, 64}}, KERNEL_BF16},
    {KERNEL_BF16, 16, 512, 64, 64, 1, {{CHAIN, 4096, 512}}, KERNEL_BF16},
    {KERNEL_FP8, 16, 512, 64, 64, 1, {{CHAIN, 16384, 1}}, KERNEL_BF16},
    {KERNEL_FP8, 16, 512, 64, 64, 1, {{TREE_BUSHY, 16384, 16}}, KERNEL_BF16},
    {KERNEL_BF16, 16, 512, 64, 64, 1, {{CHAIN, 4096, 1}}, KERNEL_F32},
    {KERNEL_BF16, 16, 512, 64, 64, 1, {{CHAIN, 16384, 1}}, KERNEL_F32},
    {KERNEL_BF16, 64, 512, 64, 64, 1, {{CHAIN, 16384, 1}}, KERNEL_F32},
    {KERNEL_BF16, 16, 512, 64, 64, 1, {{TREE_BUSHY, 16384, 16}}, KERNEL_F32},
    {KERNEL_BF16, 16, 512, 64, 64, 1, {{CHAIN, 4096, 64}}, KERNEL_F32},
    {KERNEL_BF16, 8, 128, 32, 64, 1, {{CHAIN, 1000, 1}}, KERNEL_F32},
};
static const struct mla_expanded_case mla_expanded_shapes[] = {
    {KERNEL_BF16, LINEAR_BF16, 16, 512, 64, 128, 128, 64, 1, {{0, 512}}, KERNEL_BF16},
    {KERNEL_BF16, LINEAR_BF16, 16, 512, 64, 128, 128, 64, 1, {{4096, 512}}, KERNEL_BF16},
    {KERNEL_BF16, LINEAR_BF16, 16, 512, 64, 128, 128, 64, 1, {{4096, 512}}, KERNEL_F32},
};
static const struct gqa_block_case gqa_block_shapes[] = {
    {KERNEL_BF16, 8, 8, 32, 64, 0, false, 1, {{1000, 0, 8}}},
    {KERNEL_BF16, 8, 1, 128, 64, 0, false, 1, {{16384, 0, 8}}},
    {KERNEL_BF16, 8, 1, 128, 64, 0, false, 1, {{16384, 12288, 8}}},
};
static const struct moe_experts_case moe_experts_shapes[] = {
    {LINEAR_BF16, LINEAR_BF16, 1, 4, 32, 1024, 512, 8, ROUTE_RANDOM, KERNEL_BF16},
    {LINEAR_INT4, LINEAR_INT4, 1, 4, 32, 1024, 512, 8, ROUTE_RANDOM, KERNEL_BF16},
    {LINEAR_BF16, LINEAR_BF16, 512, 4, 32, 1024, 512, 8, ROUTE_RANDOM, KERNEL_BF16},
    {LINEAR_INT4, LINEAR_INT4, 512, 4, 32, 1024, 512, 8, ROUTE_RANDOM, KERNEL_BF16},
    {LINEAR_FP8, LINEAR_FP8, 1, 4, 32, 1024, 512, 8, ROUTE_RANDOM, KERNEL_BF16},
    {LINEAR_FP8, LINEAR_FP8, 512, 4, 32, 1024, 512, 8, ROUTE_RANDOM, KERNEL_BF16},
    {LINEAR_INT4, LINEAR_INT4, 1, 4, 32, 1024, 512, 8, ROUTE_RANDOM, KERNEL_INT8},
    {LINEAR_INT4, LINEAR_INT4, 512, 4, 32, 1024, 512, 8, ROUTE_RANDOM, KERNEL_INT8},
    {LINEAR_INT4, LINEAR_INT4, 1, 4, 32, 1024, 512, 8, ROUTE_RANDOM, KERNEL_F32},
    {LINEAR_INT4, LINEAR_INT4, 1, 8, 48, 7168, 2048, 8, ROUTE_RANDOM, KERNEL_F32},
    {LINEAR_INT4, LINEAR_INT4, 16, 4, 32, 1024, 512, 8, ROUTE_RANDOM, KERNEL_F32},
    {LINEAR_BF16, LINEAR_BF16, 1, 4, 32, 1024, 512, 8, ROUTE_RANDOM, KERNEL_F32},
    {LINEAR_INT4, LINEAR_INT4, 512, 4, 32, 1024, 512, 8, ROUTE_RANDOM, KERNEL_F32},
    {LINEAR_INT4, LINEAR_INT4, 1, 4, 16, 256, 256, 8, ROUTE_RANDOM, KERNEL_F32},
};
static const struct embed_case embed_shapes[] = {{512, 7168, 0, 1000, 1000, KERNEL_BF16}};
static const struct add_case add_shapes[] = {{7168}, {7168 * 512}};
static const struct rms_norm_case rms_norm_shapes[] = {
    {1, 7168, false, 0, false}, {512, 7168, false, 0, false}, {512, 7168, false, 0, true}};
static const struct rope_case rope_shapes[] = {
    {1, 64, 64, 128, 0, false}, {512, 64, 64, 128, 0, false}, {512, 64, 128, 0, 0, true}};
static const struct kv_store_case kv_store_shapes[] = {
    {KERNEL_BF16, 512, 512, 64, 4096, 0, false, 0}, {KERNEL_FP8, 512, 512, 64, 4096, 0, false, 0}};
static const struct kv_copy_case kv_copy_shapes[] = {{64, 1152, 65, 64, false}};
static const struct kv_move_case kv_move_shapes[] = {{4096, 1152, 8, false}};
static const struct top_tokens_case top_tokens_shapes[] = {{7, 4096, 0, 16, 8, LOGITS_NORMAL, 0},
                                                           {7, 20480, 0, 16, 1, LOGITS_NORMAL, 0}};
static const struct moe_route_case moe_route_shapes[] = {
    {1, 384, 8, 1, 1, MOE_SIGMOID, true, true, 2.8f, false, 0},
    {512, 384, 8, 1, 1, MOE_SIGMOID, true, true, 2.8f, false, 0}};
static const struct swiglu_case swiglu_shapes[] = {{1, 18432, 0, 1}, {512, 2048, 0, 1}};
static const struct penalize_case penalize_shapes[] = {
    {163840, PATH_SHORT, 0, 0, 1.1f, 0.5f, 0.5f, false},
    {163840, PATH_NONE, 0, 1024, 1, 0, 0, false},
    {163840, PATH_FULL, 64, 0, 1.1f, 0.5f, 0.5f, false},
};
static const struct sample_case sample_shapes[] = {
    {163840, 0.0f, 1.0f, 0, LOGITS_NORMAL, 0, 0, false},
    {163840, 0.0f, 1.0f, 0, LOGITS_NORMAL, 20, 0, false},
    {163840, 1.0f, 1.0f, 0, LOGITS_NORMAL, 0, 0, false},
    {163840, 1.0f, 0.95f, 0, LOGITS_NORMAL, 0, 0, false},
    {163840, 0.6f, 0.95f, 0, LOGITS_FLAT, 0, 0, false},
    {163840, 1.0f, 0.95f, 50, LOGITS_NORMAL, 0, 0, false},
};

typedef void op_fn(struct rig_call *call, struct kernel_ctx *ctx);
typedef void build_fn(struct rig *rig, size_t shape, bool of_tests, uint32_t threads,
                      struct rig_call *call);

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define DEFINE_OP(op)                                                                              \
    static void run_##op(struct rig_call *call, struct kernel_ctx *ctx) {                          \
        op##_cpu(&call->args.op, ctx);                                                             \
    }                                                                                              \
    static void build_##op(struct rig *rig, size_t shape, bool of_tests, uint32_t threads,         \
                           struct rig_call *call) {                                                \
        memset(call, 0, sizeof(*call));                                                            \
        rig_##op(rig, of_tests ? &op##_cases[shape] : &op##_shapes[shape], threads, call);         \
    }
DISPATCH_OPS(DEFINE_OP)

static const struct op {
    const char *name;
    op_fn *run;
    build_fn *build;
    size_t shapes, cases;
} ops[] = {
#define OP(op) {#op, run_##op, build_##op, COUNT(op##_shapes), COUNT(op##_cases)},
    DISPATCH_OPS(OP)};

static double read_roof, fma_roof, bf16_roof, int8_roof; /* bytes and operations a second */

static double compute_roof(enum kernel_dtype activation) {
    double dot = activation == KERNEL_INT8 ? int8_roof : activation == KERNEL_BF16 ? bf16_roof : 0;
    return dot > fma_roof ? dot : fma_roof;
}

static void bench(const struct op *op, size_t shape, bool of_tests, struct kernel_team *team) {
    static struct rig_call calls[COLD_MAX];
    uint32_t threads = team_threads(team), copies = 0;
    struct rig *rig = rig_create(1);
    do {
        op->build(rig, shape, of_tests, threads, &calls[copies]);
        copies++;
    } while (copies < COLD_MAX && copies * calls[0].bytes < COLD_BYTES &&
             calls[0].flops < 64 * calls[0].bytes);

    struct kernel_ctx ctx = {.team = team,
                             .scratch = rig_alloc(rig, calls[0].scratch_bytes),
                             .scratch_bytes = calls[0].scratch_bytes};
    double best = 1e9, begin = roof_now_s();
    uint32_t runs = 0;
    for (; runs < 3 * copies || (roof_now_s() - begin < BENCH_SECONDS && runs < 100000);) {
        double round = roof_now_s();
        for (uint32_t i = 0; i < copies; i++)
            op->run(&calls[i], &ctx);
        double each = (roof_now_s() - round) / copies;
        best = each < best ? each : best;
        runs += copies;
    }
    double read_s = calls[0].bytes / read_roof,
           compute_s = calls[0].flops / compute_roof(calls[0].activation);
    printf("%-12s %s%-3zu %11.1f us %8.2f GB/s %8.1f GFLOP/s %6.1f %% of the %s roof\n", op->name,
           of_tests ? "case  " : "shape ", shape, best * 1e6, calls[0].bytes / best * 1e-9,
           calls[0].flops / best * 1e-9, 100 * (read_s > compute_s ? read_s : compute_s) / best,
           read_s > compute_s ? "read" : "compute");
    fflush(stdout);
    rig_destroy(&rig);
}

int main(int argc, char **argv) {
    uint32_t threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1;
    const char *only = argc > 2 && strcmp(argv[2], "all") != 0 ? argv[2] : NULL;
    bool all = argc > 2 && strcmp(argv[argc - 1], "all") == 0;
    if (threads < 1 || threads > TEAM_THREADS_MAX) {
        fprintf(stderr, "usage: bench_kernels [threads, 1..%u] [op] [all]\n", TEAM_THREADS_MAX);
        return 64;
    }
    struct kernel_team *team = team_create(threads, 2000);
    if (!team) return 1;
    read_roof = roof_read(team);
    fma_roof = roof_fma_f32(team);
    bf16_roof = roof_dot_bf16(team);
    int8_roof = roof_dot_int8(team);
    printf("%s, %u threads: read %.1f GB/s, fma %.1f GFLOP/s, dot of bf16 %.1f, of int8 %.1f\n",
           kernel_isa_name(), threads, read_roof * 1e-9, fma_roof * 1e-9, bf16_roof * 1e-9,
           int8_roof * 1e-9);
    for (size_t i = 0; i < COUNT(ops); i++) {
        if (only && strcmp(only, ops[i].name) != 0) continue;
        for (size_t s = 0; s < ops[i].shapes; s++)
            bench(&ops[i], s, false, team);
        for (size_t s = 0; all && s < ops[i].cases; s++)
            bench(&ops[i], s, true, team);
    }
    team_destroy(&team);
    return 0;
}
