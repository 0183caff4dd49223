/* A case lies in pinned memory, which a GPU reads over the bus and the CPU as its own: so what the
 * tests build for the CPU is what the GPU runs on, with nothing copied. The workspace is the
 * device's. */
#include "check_ops.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

#include "compare.h"
#include "linear/linear_cuda.h"
#include "mla_tree/mla_tree_cuda.h"
#include "moe_experts/moe_experts_cuda.h"
#include "rig.h"

#define PINNED_BYTES  ((size_t)320 << 20)
#define SCRATCH_BYTES ((size_t)64 << 20)

/* Op, tolerances relative and of the maximum with activation F32, of the maximum with BF16: those
 * of the op's header. */
#define OPS(X)                                                                                     \
    X(embed, 0, 0, 0)                                                                              \
    X(rms_norm, 2e-6, 0, 0)                                                                        \
    X(linear, 0, 1e-5, 1e-5)                                                                       \
    X(rope, 0, 0, 0)                                                                               \
    X(kv_copy, 0, 0, 0)                                                                            \
    X(kv_store, 0, 0, 0)                                                                           \
    X(kv_move, 0, 0, 0)                                                                            \
    X(mla_tree, 0, 1e-2, 1e-2)                                                                     \
    X(gqa_block, 0, 1e-5, 0)                                                                       \
    X(add, 0, 0, 0)                                                                                \
    X(moe_route, 2e-6, 0, 0)                                                                       \
    X(moe_experts, 0, 1e-2, 2e-3)                                                                  \
    X(swiglu, 2e-6, 1e-38, 0)                                                                      \
    X(penalize, 0, 0, 0)                                                                           \
    X(sample, 1e-6, 0, 0)                                                                          \
    X(top_tokens, 2e-6, 0, 0)

/* Of a step of 64 rows; of the larger ops less, since the references are slow: bench_gpu checks
 * those at whole shapes against the CPU's fast variants. */
static const struct embed_case embed_k26[] = {{64, 7168, 512, 512, 4096, KERNEL_BF16}};
static const struct rms_norm_case rms_norm_k26[] = {
    {64, 7168, false, 0, false}, {64, 512, true, 64, false}, {64, 7168, false, 0, true}};
static const struct rope_case rope_k26[] = {{64, 8, 64, 128, 199936, false}};
static const struct kv_copy_case kv_copy_k26[] = {{64, 1152, 9, 8, true}};
static const struct kv_store_case kv_store_k26[] = {{KERNEL_BF16, 64, 512, 64, 256, 0, false, 0}};
static const struct kv_move_case kv_move_k26[] = {{256, 1152, 64, true}};
static const struct gqa_block_case gqa_block_k26[] = {
    {KERNEL_BF16, 8, 1, 128, 64, 2048, false, 1, {{4096, 0, 8}}}};
static const struct add_case add_k26[] = {{64 * 7168}};
static const struct moe_route_case moe_route_k26[] = {
    {64, 384, 8, 1, 1, MOE_SIGMOID, true, true, 2.827f, false, 0}};
static const struct swiglu_case swiglu_k26[] = {{64, 2304, 0, 8}};
static const struct penalize_case penalize_k26[] = {
    {163840, PATH_SHORT, 64, 20, 1.2f, 0.1f, 0.9f, false}};
static const struct sample_case sample_k26[] = {
    {163840, 0.6f, 0.95f, 0, LOGITS_NORMAL, 20, 0, false}};
static const struct top_tokens_case top_tokens_k26[] = {{64, 20480, 0, 16, 1, LOGITS_NORMAL, 0}};
static const struct linear_case linear_k26[] = {
    {LINEAR_BF16, 17, 1536, 1536, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_BF16, 5, 384, 1536, 1, 1, false, 0, KERNEL_F32}};
static const struct mla_tree_case mla_tree_k26[] = {
    {KERNEL_BF16, 8, 512, 64, 64, 1, {{TREE_BUSHY, 1000, 16}}, KERNEL_BF16},
    {KERNEL_FP8, 8, 512, 64, 64, 1, {{TREE_BUSHY, 1000, 16}}, KERNEL_BF16}};
static const struct moe_experts_case moe_experts_k26[] = {
    {LINEAR_INT4, LINEAR_INT4, 9, 4, 6, 7168, 256, 1, ROUTE_RANDOM, KERNEL_BF16}};

#define COUNT(cases) (sizeof(cases) / sizeof(cases)[0])

#define DEFINE(op, ...)                                                                            \
    static void build_##op(struct rig *rig, size_t c, struct rig_call *call) {                     \
        size_t shared = COUNT(op##_cases);                                                         \
        rig_##op(rig, c < shared ? &op##_cases[c] : &op##_k26[c - shared], 1, call);               \
    }                                                                                              \
    static void ref_##op(struct rig_call *call, struct kernel_ctx *ctx) {                          \
        op##_ref(&call->args.op, ctx);                                                             \
    }                                                                                              \
    static void cuda_##op(struct rig_call *call, struct kernel_ctx *ctx) {                         \
        op##_cuda(&call->args.op, ctx);                                                            \
    }
OPS(DEFINE)

static const struct op {
    const char *name;
    size_t shared_cases, cases;
    void (*build)(struct rig *rig, size_t case_idx, struct rig_call *call);
    void (*ref)(struct rig_call *call, struct kernel_ctx *ctx);
    void (*cuda)(struct rig_call *call, struct kernel_ctx *ctx);
    struct compare_tolerance tolerance[2]; /* with activation F32, BF16 */
} ops[] = {
#define X(op, relative, of_max, of_max_bf16)                                                       \
    {#op,      COUNT(op##_cases), COUNT(op##_cases) + COUNT(op##_k26),          build_##op,        \
     ref_##op, cuda_##op,         {{relative, of_max}, {relative, of_max_bf16}}},
    OPS(X)
#undef X
};

static bool takes(const struct op *op, const struct rig_call *call) {
    if (op->build == build_linear) return linear_cuda_takes(&call->args.linear);
    if (op->build == build_mla_tree) return mla_tree_cuda_takes(&call->args.mla_tree);
    if (op->build == build_moe_experts) return moe_experts_cuda_takes(&call->args.moe_experts);
    return true;
}

static bool check_case(const struct op *op, size_t c, struct kernel_ctx *ctx, void *pinned) {
    struct rig *rig = rig_create_in(c + 1, pinned, PINNED_BYTES), *ref_rig = rig_create(c + 1);
    struct rig_call call = {0}, ref = {0};
    op->build(rig, c, &call);
    bool is_good = true;
    if (takes(op, &call)) {
        op->build(ref_rig, c, &ref);
        struct kernel_ctx ref_ctx = {.scratch = rig_alloc(ref_rig, ref.scratch_bytes),
                                     .scratch_bytes = ref.scratch_bytes};
        op->ref(&ref, &ref_ctx);
        op->cuda(&call, ctx);
        cudaError_t error = cudaStreamSynchronize(ctx->stream);
        if (error != cudaSuccess) {
            fprintf(stderr, "bench_gpu: %s case %zu: %s\n", op->name, c, cudaGetErrorString(error));
            is_good = false;
        }
        for (uint32_t i = 0; i < call.output_count && is_good; i++)
            is_good = compare_outputs(op->name, &call.output[i], SIZE_MAX, &ref.output[i], SIZE_MAX,
                                      op->tolerance[call.activation]);
        if (!is_good) printf("%s,case %zu,0,0,,DIFFERS\n", op->name, c);
    }
    rig_destroy(&rig);
    rig_destroy(&ref_rig);
    return is_good;
}

bool check_ops(struct kernel_ctx *ctx, bool is_whole) {
    struct kernel_ctx own = *ctx;
    void *pinned;
    if (cudaMallocHost(&pinned, PINNED_BYTES) != cudaSuccess ||
        cudaMalloc(&own.scratch, SCRATCH_BYTES) != cudaSuccess) {
        fprintf(stderr, "bench_gpu: no memory to check ops in\n");
        return false;
    }
    own.scratch_bytes = SCRATCH_BYTES;
    bool is_good = true;
    for (size_t i = 0; i < COUNT(ops); i++) {
        size_t cases = is_whole ? ops[i].cases : ops[i].shared_cases;
        bool op_is_good = true;
        for (size_t c = 0; c < cases; c++)
            op_is_good &= check_case(&ops[i], c, &own, pinned);
        if (op_is_good) printf("%s,%zu cases,0,0,,good\n", ops[i].name, cases);
        fflush(stdout);
        is_good &= op_is_good;
    }
    return cudaFree(own.scratch) == cudaSuccess && cudaFreeHost(pinned) == cudaSuccess && is_good;
}
