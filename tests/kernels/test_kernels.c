/* Every op over the table of cases.h: the fast variant against the reference within the header's
 * tolerance, against the reference with the fast exp to the bit, and against itself to the bit - on
 * every instruction set, with one, two and three threads, and for every row alone. Then what
 * single headers promise beside that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define KERNEL_ISA generic /* whose tiles are tried alone */

#include "compare.h"
#include "exact.h"
#include "linear/linear_pack.h"
#include "linear/linear_tile.h"
#include "linear/linear_transpose.h"
#include "rig.h"
#include "team.h"

#define THREADS_MAX 3u
#define VARIANT_REF ISA_COUNT

static struct kernel_team *teams[THREADS_MAX + 1]; /* [1] is the caller alone */

/* The op called by a variant: an instruction set or VARIANT_REF. */
typedef void run_fn(struct rig_call *call, int variant, struct kernel_ctx *ctx);
typedef void build_fn(struct rig *rig, size_t case_idx, struct rig_call *call);
typedef void narrow_fn(struct rig *rig, struct rig_call *call, uint32_t row);

#define DEFINE_OP(op)                                                                              \
    static void run_##op(struct rig_call *call, int variant, struct kernel_ctx *ctx) {             \
        if (variant == VARIANT_REF)                                                                \
            op##_ref(&call->args.op, ctx);                                                         \
        else                                                                                       \
            dispatch_##op[variant](&call->args.op, ctx);                                           \
    }                                                                                              \
    static void build_##op(struct rig *rig, size_t case_idx, struct rig_call *call) {              \
        memset(call, 0, sizeof(*call));                                                            \
        rig_##op(rig, &op##_cases[case_idx], THREADS_MAX, call);                                   \
    }
DISPATCH_OPS(DEFINE_OP)

#define DEFINE_EXACT(op)                                                                           \
    static void run_exact_##op(struct rig_call *call, int variant, struct kernel_ctx *ctx) {       \
        (void)variant;                                                                             \
        exact_##op(&call->args.op, ctx);                                                           \
    }
DEFINE_EXACT(swiglu)
DEFINE_EXACT(moe_route)
DEFINE_EXACT(moe_experts)
DEFINE_EXACT(mla_tree)
DEFINE_EXACT(mla_expanded)
DEFINE_EXACT(gqa_block)
DEFINE_EXACT(top_tokens)

static void narrow_embed(struct rig *rig, struct rig_call *call, uint32_t row) {
    (void)rig;
    call->args.embed.id += row;
    call->args.embed.y = call->output[0].data;
    call->args.embed.rows = 1;
}

static void narrow_rms_norm(struct rig *rig, struct rig_call *call, uint32_t row) {
    (void)rig;
    struct rms_norm_args *args = &call->args.rms_norm;
    bool in_place = args->x == args->y, is_sum = args->add && !in_place;
    args->y = call->output[0].data;
    if (args->add) {
        args->add += row * args->x_stride;
        args->sum = call->output[1].data;
    }
    args->x = in_place ? args->y : is_sum ? args->sum : args->x + row * args->x_stride;
    args->rows = 1;
}

static void narrow_linear(struct rig *rig, struct rig_call *call, uint32_t row) {
    struct linear_args *args = &call->args.linear;
    if (args->add) {
        float *add = rig_alloc(rig, (size_t)args->segments * args->weight.n * sizeof(float));
        for (size_t s = 0; s < args->segments; s++)
            memcpy(add + s * args->weight.n, args->add + (s * args->rows + row) * args->weight.n,
                   args->weight.n * sizeof(float));
        args->add = add;
    }
    args->x += row * args->x_stride;
    args->y = call->output[0].data;
    args->y_batch_stride = args->y_stride;
    args->rows = 1;
}

static void narrow_rope(struct rig *rig, struct rig_call *call, uint32_t row) {
    (void)rig;
    call->args.rope.cos_sin += (size_t)row * call->args.rope.dim;
    call->args.rope.x = call->output[0].data;
    call->args.rope.rows = 1;
}

static void narrow_mla_tree(struct rig *rig, struct rig_call *call, uint32_t row) {
    struct mla_tree_args *args = &call->args.mla_tree;
    const struct mla_sequence *seq = args->sequences;
    while (row < seq->row_begin || row >= seq->row_begin + seq->row_count)
        seq++;
    struct mla_sequence *alone = rig_alloc(rig, sizeof(*alone));
    *alone = *seq;
    alone->row_begin = 0;
    alone->row_count = 1;
    if (seq->ancestors)
        alone->ancestors += row - seq->row_begin;
    else
        alone->committed += row - seq->row_begin;
    args->sequences = alone;
    args->sequence_count = 1;
    args->q_latent += (size_t)row * args->heads * args->latent_dim;
    args->q_rope += row * args->q_rope_row_stride;
    args->out = call->output[0].data;
}

static void narrow_mla_expanded(struct rig *rig, struct rig_call *call, uint32_t row) {
    struct mla_expanded_args *args = &call->args.mla_expanded;
    const struct mla_sequence *seq = args->sequences;
    while (row < seq->row_begin || row >= seq->row_begin + seq->row_count)
        seq++;
    struct mla_sequence *alone = rig_alloc(rig, sizeof(*alone));
    *alone = (struct mla_sequence){
        .row_count = 1, .committed = seq->committed + row - seq->row_begin, .page = seq->page};
    args->sequences = alone;
    args->sequence_count = 1;
    args->q += row * args->q_row_stride;
    args->out = call->output[0].data;
}

/* A row of a block needs its neighbours: alone is its sequence without the others. */
static void narrow_gqa_block(struct rig *rig, struct rig_call *call, uint32_t row) {
    struct gqa_block_args *args = &call->args.gqa_block;
    const struct gqa_sequence *seq = args->sequences;
    while (row < seq->row_begin || row >= seq->row_begin + seq->row_count)
        seq++;
    struct gqa_sequence *alone = rig_alloc(rig, sizeof(*alone));
    size_t kv_dim = (size_t)args->kv_heads * args->head_dim, begin = seq->row_begin;
    size_t row_floats = (size_t)args->heads * args->head_dim;
    *alone = *seq;
    alone->row_begin = 0;
    args->sequences = alone;
    args->sequence_count = 1;
    args->q += begin * row_floats;
    args->k += begin * kv_dim;
    args->v += begin * kv_dim;
    args->out = rig_alloc(rig, seq->row_count * row_floats * sizeof(float));
    call->output[0].data = args->out + (row - begin) * row_floats;
}

static void narrow_top_tokens(struct rig *rig, struct rig_call *call, uint32_t row) {
    (void)rig;
    struct top_tokens_args *args = &call->args.top_tokens;
    args->logits += row * args->logits_stride;
    args->token = call->output[0].data;
    args->logit = call->output[1].data;
    args->max = call->output[2].data;
    args->sum = call->output[3].data;
    args->rows = 1;
}

static void narrow_moe_route(struct rig *rig, struct rig_call *call, uint32_t row) {
    const uint32_t *row_count = call->args.moe_route.row_count;
    if (row_count) {
        uint32_t *left = rig_alloc(rig, sizeof *left);
        *left = *row_count > row ? *row_count - row : 0;
        call->args.moe_route.row_count = left;
    }
    call->args.moe_route.logits += (size_t)row * call->args.moe_route.experts;
    call->args.moe_route.expert = call->output[0].data;
    call->args.moe_route.weight = call->output[1].data;
    call->args.moe_route.rows = 1;
}

static void narrow_moe_experts(struct rig *rig, struct rig_call *call, uint32_t row) {
    (void)rig;
    struct moe_experts_args *args = &call->args.moe_experts;
    args->x += (size_t)row * args->dim;
    args->expert += (size_t)row * args->topk;
    args->weight += (size_t)row * args->topk;
    args->y = call->output[0].data;
    args->rows = 1;
}

static void narrow_swiglu(struct rig *rig, struct rig_call *call, uint32_t row) {
    (void)rig;
    call->args.swiglu.gate_up += row * call->args.swiglu.gate_up_stride;
    call->args.swiglu.y = call->output[0].data;
    call->args.swiglu.rows = 1;
}

struct op {
    const char *name;
    size_t case_count;
    build_fn *build;
    run_fn *run;
    struct compare_tolerance tolerance; /* of the fast variant against the reference */
    narrow_fn *narrow;                  /* NULL where rows are not the unit */
    run_fn *exact;                      /* NULL where the reference is exact itself */
};

#define OP(op, relative, of_max, narrow, exact)                                                    \
    {                                                                                              \
#op, sizeof(op##_cases) / sizeof(op##_cases[0]), build_##op, run_##op,                     \
            {relative, of_max }, narrow, exact                                                     \
    }

static const struct op ops[] = {
    OP(embed, 0, 0, narrow_embed, NULL),
    OP(rms_norm, 0, 0, narrow_rms_norm, NULL),
    OP(linear, 0, 0, narrow_linear, NULL),
    OP(rope, 0, 0, narrow_rope, NULL),
    OP(kv_copy, 0, 0, NULL, NULL),
    OP(kv_store, 0, 0, NULL, NULL),
    OP(mla_tree, 0, 1e-5, narrow_mla_tree, run_exact_mla_tree),
    OP(mla_expanded, 0, 1e-5, narrow_mla_expanded, run_exact_mla_expanded),
    OP(gqa_block, 0, 1e-5, narrow_gqa_block, run_exact_gqa_block),
    OP(add, 0, 0, NULL, NULL),
    OP(moe_route, 2e-6, 0, narrow_moe_route, run_exact_moe_route),
    OP(moe_experts, 0, 1e-5, narrow_moe_experts, run_exact_moe_experts),
    OP(swiglu, 2e-6, 1e-38, narrow_swiglu, run_exact_swiglu),
    OP(penalize, 0, 0, NULL, NULL),
    OP(sample, 0, 0, NULL, NULL),
    OP(kv_move, 0, 0, NULL, NULL),
    OP(top_tokens, 2e-6, 0, narrow_top_tokens, run_exact_top_tokens),
};
#define OP_COUNT (sizeof(ops) / sizeof(ops[0]))

static const struct compare_tolerance exact = {0, 0};

static void run(const struct op *op, struct rig_call *call, int variant, uint32_t threads) {
    void *scratch = aligned_alloc(64, (call->scratch_bytes + 127) & ~(size_t)63);
    assert_non_null(scratch);
    /* What a workspace holds must not matter; a NaN would spread. */
    memset(scratch, 0xff, call->scratch_bytes);
    struct kernel_ctx ctx = {
        .team = teams[threads], .scratch = scratch, .scratch_bytes = call->scratch_bytes};
    op->run(call, variant, &ctx);
    free(scratch);
}

/* Keep what the outputs hold now as the expectation. */
static void keep(struct rig *rig, const struct rig_call *call, struct rig_output *kept) {
    static const size_t bytes[] = {[RIG_F32] = 4, [RIG_BF16] = 2, [RIG_U32] = 4};
    for (uint32_t i = 0; i < call->output_count; i++) {
        kept[i] = call->output[i];
        size_t all = kept[i].outer * kept[i].rows * kept[i].width * bytes[kept[i].type];
        kept[i].data = rig_alloc(rig, all);
        memcpy(kept[i].data, call->output[i].data, all);
    }
}

static bool same(const char *label, const struct rig_call *call, const struct rig_output *kept,
                 struct compare_tolerance tolerance) {
    bool ok = true;
    for (uint32_t i = 0; i < call->output_count; i++)
        ok &= compare_outputs(label, &call->output[i], SIZE_MAX, &kept[i], SIZE_MAX, tolerance);
    return ok;
}

static bool check_rows_alone(const struct op *op, const char *label, struct rig *rig,
                             const struct rig_call *call, const struct rig_output *kept) {
    bool ok = true;
    for (uint32_t row = 0; row < call->output[0].rows && ok; row++) {
        struct rig_call alone = *call;
        rig_take_row(rig, &alone, row);
        op->narrow(rig, &alone, row);
        run(op, &alone, (int)isa_best(), 1);
        for (uint32_t i = 0; i < call->output_count; i++)
            ok &= compare_outputs(label, &alone.output[i], 0, &kept[i], row, exact);
    }
    return ok;
}

static bool check_case(const struct op *op, size_t case_idx) {
    char label[96];
    struct rig *rig = rig_create(case_idx + 1);
    struct rig_call call;
    struct rig_output expected[RIG_OUTPUTS_MAX], fast[RIG_OUTPUTS_MAX];
    op->build(rig, case_idx, &call);

    run(op, &call, VARIANT_REF, 1);
    keep(rig, &call, expected);
    rig_reset(&call);
    run(op, &call, (int)isa_best(), 1);
    keep(rig, &call, fast);
    snprintf(label, sizeof(label), "%s case %zu, fast against reference", op->name, case_idx);
    struct compare_tolerance tolerance = op->tolerance;
    /* Where the reference's exp differs in the last place, what is rounded may differ by one of its
     * places: of bf16 or of a group's 127. */
    if (call.activation == KERNEL_BF16 && op->exact) tolerance.of_max = 0x1p-8;
    if (call.activation == KERNEL_INT8 && op->exact) tolerance.of_max = 0x1p-7;
    bool ok = same(label, &call, expected, tolerance);

    if (op->exact) {
        rig_reset(&call);
        struct op definition = *op;
        definition.run = op->exact;
        run(&definition, &call, VARIANT_REF, 1);
        snprintf(label, sizeof(label), "%s case %zu, definition against fast", op->name, case_idx);
        ok &= same(label, &call, fast, exact);
    }
    for (int isa = 0; isa <= (int)isa_best(); isa++) {
        for (uint32_t threads = 1; threads <= THREADS_MAX; threads++) {
            rig_reset(&call);
            run(op, &call, isa, threads);
            snprintf(label, sizeof(label), "%s case %zu, instruction set %d, %u threads", op->name,
                     case_idx, isa, threads);
            ok &= same(label, &call, fast, exact);
        }
    }
    snprintf(label, sizeof(label), "%s case %zu, a row alone", op->name, case_idx);
    if (op->narrow) ok &= check_rows_alone(op, label, rig, &call, fast);
    rig_destroy(&rig);
    return ok;
}

static void test_op(void **state) {
    const struct op *op = *state;
    bool ok = true;
    for (size_t i = 0; i < op->case_count; i++)
        ok &= check_case(op, i);
    assert_true(ok);
}

/* The scales of the blocks that inputs [begin, begin + count) of a panel touch. */
static void copy_blocks(const struct linear_weight *whole, uint32_t begin, uint32_t panel,
                        uint32_t count, char *scale_out) {
    size_t block_bytes = KERNEL_PANEL * sizeof(float);
    uint32_t first = (whole->block_begin + begin) / FP8_BLOCK;
    uint32_t end = (whole->block_begin + begin + count - 1) / FP8_BLOCK + 1;
    memcpy(scale_out + panel * linear_fp8_blocks(count) * block_bytes,
           (const char *)whole->scale + (panel * linear_fp8_blocks(whole->k) + first) * block_bytes,
           (end - first) * block_bytes);
}

/* Ranks: n of them own 8 / n segments each; their sums, added by the tree, are the bits of one. */
static void test_linear_ranks(void **state) {
    (void)state;
    enum { N = 40, K = 512, T = 3 };
    static const struct {
        enum linear_format format;
        enum kernel_dtype activation;
    } cases[] = {{LINEAR_F32, KERNEL_F32},  {LINEAR_BF16, KERNEL_F32},  {LINEAR_BF16, KERNEL_BF16},
                 {LINEAR_INT4, KERNEL_F32}, {LINEAR_INT4, KERNEL_BF16}, {LINEAR_INT4, KERNEL_INT8},
                 {LINEAR_FP8, KERNEL_F32},  {LINEAR_FP8, KERNEL_BF16}};
    for (size_t f = 0; f < sizeof(cases) / sizeof(cases[0]); f++) {
        struct rig *rig = rig_create(f);
        struct rig_call call = {0};
        enum linear_format format = cases[f].format;
        rig_linear(rig, &(struct linear_case){format, T, N, K, 1, 8, true, 0, cases[f].activation},
                   1, &call);
        struct kernel_ctx ctx = {.scratch = rig_alloc(rig, call.scratch_bytes),
                                 .scratch_bytes = call.scratch_bytes};
        struct linear_args whole = call.args.linear;
        linear_cpu(&whole, &ctx);
        for (uint32_t ranks = 2; ranks <= 8; ranks *= 2) {
            float part[8][T * N];
            uint32_t k = K / ranks;
            size_t row_bytes = linear_data_bytes(format, 32, 4) / 4;
            for (uint32_t r = 0; r < ranks; r++) {
                /* A rank's panel is a stretch of the whole one's. */
                struct linear_args args = whole;
                char *data = rig_alloc(rig, linear_data_bytes(format, N, k));
                char *scale = rig_alloc(rig, linear_scale_bytes(format, N, k) + 1);
                for (uint32_t p = 0; p < 2; p++) {
                    memcpy(data + p * k * row_bytes,
                           (const char *)whole.weight.data + (p * K + r * k) * row_bytes,
                           k * row_bytes);
                    if (format == LINEAR_FP8) copy_blocks(&whole.weight, r * k, p, k, scale);
                    if (format == LINEAR_INT4)
                        memcpy(scale + p * k * 2,
                               (const char *)whole.weight.scale + (p * K + r * k) * 2, k * 2);
                }
                args.weight.data = data;
                if (whole.weight.scale) args.weight.scale = scale;
                args.weight.block_begin = (whole.weight.block_begin + r * k) % FP8_BLOCK;
                args.weight.k = k;
                args.segments = 8 / ranks;
                args.x += r * k;
                args.add += (size_t)r * args.segments * T * N;
                args.y = part[r];
                linear_cpu(&args, &ctx);
            }
            for (uint32_t apart = 1; apart < ranks; apart *= 2)
                for (uint32_t r = 0; r < ranks; r += 2 * apart)
                    for (size_t i = 0; i < T * N; i++)
                        part[r][i] = part[r][i] + part[r + apart][i];
            assert_true(compare_floats("ranks against one", part[0], whole.y, T * N, exact));
        }
        rig_destroy(&rig);
    }
}

/* Groups that INT8 cannot scale: all zero, too small to divide by, with an infinity or a NaN. */
static void test_int8_groups(void **state) {
    (void)state;
    enum { N = 32, K = 96 };
    static const float extreme[] = {0, 0x1p-110f, INFINITY, NAN};
    for (size_t e = 0; e < sizeof(extreme) / sizeof(extreme[0]); e++) {
        struct rig *rig = rig_create(e);
        struct rig_call call = {0};
        rig_linear(rig, &(struct linear_case){LINEAR_INT4, 1, N, K, 1, 1, false, 0, KERNEL_INT8}, 1,
                   &call);
        struct linear_args args = call.args.linear;
        float x[K] = {[40] = extreme[e], [95] = 1};
        struct kernel_ctx ctx = {.scratch = rig_alloc(rig, call.scratch_bytes),
                                 .scratch_bytes = call.scratch_bytes};
        args.x = x;
        for (int isa = -1; isa <= (int)isa_best(); isa++) {
            isa < 0 ? linear_ref(&args, &ctx) : dispatch_linear[isa](&args, &ctx);
            for (uint32_t n = 0; n < N; n++) {
                uint8_t byte = ((const uint8_t *)args.weight.data)[92 * 16 + n % 16 * 4 + 3];
                float scale = bf16_to_f32(((const bf16 *)args.weight.scale)[2 * 32 + n]);
                float wanted = (float)((n < 16 ? byte & 15 : byte >> 4) - 8) * 127;
                wanted *= 1 / 127.0f * scale;
                if (!isfinite(extreme[e]))
                    assert_true(isnan(args.y[n]));
                else
                    assert_true(fabsf(args.y[n] - wanted) <= 1e-6f * fabsf(wanted));
            }
        }
        rig_destroy(&rig);
    }
}

/* Every code, as the first and as the second of a pair, times one: its value. */
static void test_fp8_codes(void **state) {
    (void)state;
    enum { N = 256, K = 2 };
    struct rig *rig = rig_create(1);
    uint8_t *codes = rig_alloc(rig, N * K);
    float *ones = rig_alloc(rig, N * sizeof *ones);
    for (uint32_t n = 0; n < N; n++) {
        ones[n] = 1;
        codes[n * K] = (uint8_t)(n % 128 == 127 ? 0 : n);
        codes[n * K + 1] = (uint8_t)(n % 128 == 0 ? 0 : n - 1);
    }
    void *data = rig_alloc(rig, linear_data_bytes(LINEAR_FP8, N, K));
    float *scale = rig_alloc(rig, linear_scale_bytes(LINEAR_FP8, N, K));
    assert_true(linear_pack_fp8(data, scale, N, K, 0, codes, K, ones, sizeof *ones, 0, N));
    float y[2 * N];
    const float x[2 * K] = {1, 0, 0, 1};
    const struct linear_args args = {.x = x,
                                     .x_stride = K,
                                     .weight = {data, scale, LINEAR_FP8, N, K, 0},
                                     .y = y,
                                     .y_stride = N,
                                     .rows = 2,
                                     .batch = 1,
                                     .segments = 1,
                                     .activation = KERNEL_BF16};
    size_t scratch_bytes = linear_scratch_bytes(KERNEL_BF16, args.rows, K);
    struct kernel_ctx ctx = {.scratch = rig_alloc(rig, scratch_bytes),
                             .scratch_bytes = scratch_bytes};
    for (int isa = -1; isa <= (int)isa_best(); isa++) {
        isa < 0 ? linear_ref(&args, &ctx) : dispatch_linear[isa](&args, &ctx);
        for (uint32_t n = 0; n < N; n++)
            for (uint32_t t = 0; t < 2; t++)
                assert_true(y[t * N + n] == e4m3_to_f32(codes[n * K + t]));
    }
    rig_destroy(&rig);
}

/* FP8 as pairs where numbers are subnormal, and where they would be if they were scaled on the way;
 * the greatest scales; blocks at odd inputs, and a last input without another. */
static void test_fp8_extremes(void **state) {
    (void)state;
    enum { N = 33, K = 333, T = 5 };
    static const float extreme[] = {0x1p-126f, -0x1p-126f, 0x1.8p-127f,  -0x1p-130f,
                                    0x1p-149f, 0x1p-119f,  -0x1.8p-121f, 0x1p-112f,
                                    -0.0f,     0x1p120f,   -0x1p119f,    0.0f};
    static const float scales_of[] = {1, 0x1p-126f, 0x1.8p118f, 0x1p-127f, -0x1p100f, 0x1p-30f};
    struct rig *rig = rig_create(3);
    struct rig_call call = {0};
    rig_linear(rig, &(struct linear_case){LINEAR_FP8, T, N, K, 1, 1, false, 0, KERNEL_BF16}, 1,
               &call);
    struct linear_args args = call.args.linear;
    assert_true(args.weight.block_begin % 2 == 1);
    float *x = rig_alloc(rig, T * K * sizeof *x), *want = rig_alloc(rig, T * N * sizeof *want);
    size_t scales = linear_scale_bytes(LINEAR_FP8, N, K) / sizeof(float);
    float *scale = rig_alloc(rig, scales * sizeof *scale);
    for (size_t i = 0; i < T * K; i++) /* rows of all, and of small ones alone */
        x[i] = extreme[rig_below(rig, i / K % 2 == 0 ? 12 : 9)];
    for (size_t i = 0; i < scales; i++)
        scale[i] = scales_of[rig_below(rig, 6)];
    args.x = x;
    args.weight.scale = scale;
    struct kernel_ctx ctx = {.scratch = rig_alloc(rig, call.scratch_bytes),
                             .scratch_bytes = call.scratch_bytes};
    linear_ref(&args, &ctx);
    memcpy(want, args.y, T * N * sizeof *want);
    for (int isa = 0; isa <= (int)isa_best(); isa++) {
        dispatch_linear[isa](&args, &ctx);
        assert_true(compare_floats("FP8 of extremes", args.y, want, T * N, exact));
    }
    rig_destroy(&rig);
}

/* Rows that stand apart are copied a stretch at a time; sums do not show where one ends. Experts
 * take such rows, but round what comes of them. */
static void test_rows_apart(void **state) {
    (void)state;
    enum { N = 34, K = 4512, T = LINEAR_TILE_ROWS };
    static const enum linear_format formats[] = {LINEAR_BF16, LINEAR_INT4, LINEAR_FP8};
    for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++) {
        struct rig *rig = rig_create(f);
        struct rig_call call = {0};
        rig_linear(rig, &(struct linear_case){formats[f], T, N, K, 1, 1, false, 0, KERNEL_BF16}, 1,
                   &call);
        const struct linear_args *args = &call.args.linear;
        struct linear_rows x = {.dtype = KERNEL_BF16, .count = T};
        for (uint32_t r = 0; r < T; r++) {
            void *row = rig_alloc(rig, linear_row_bytes(KERNEL_BF16, K));
            linear_tile_narrow(KERNEL_BF16, row, linear_row_bytes(KERNEL_BF16, LINEAR_CHUNK),
                               args->x + r * args->x_stride, K);
            x.row[r] = row;
        }
        struct linear_tile tile;
        struct kernel_ctx ctx = {0};
        linear_tile_dot(&tile, &args->weight, 0, 2, 1, &x);
        linear_ref(args, &ctx);
        for (uint32_t r = 0; r < T; r++)
            for (uint32_t n = 0; n < N; n++)
                assert_true(tile.sum[n / KERNEL_PANEL][r][n % KERNEL_PANEL] == args->y[r * N + n]);
        rig_destroy(&rig);
    }
}

/* Weights over the whole range of exp: where it is subnormal the sets differ most in how they
 * scale. */
static void test_softmax_range(void **state) {
    (void)state;
    enum { E = 32 };
    float logits[E], want[E], got[E];
    uint32_t expert[E];
    for (int e = 0; e < E; e++)
        logits[e] = 7.0f - 3.47f * (float)e;
    struct kernel_ctx ctx = {0};
    struct moe_route_args args = {.logits = logits,
                                  .expert = expert,
                                  .weight = want,
                                  .rows = 1,
                                  .experts = E,
                                  .topk = E,
                                  .groups = 1,
                                  .topk_groups = 1,
                                  .scoring = MOE_SOFTMAX,
                                  .scale = 1.0f};
    moe_route_ref(&args, &ctx);
    for (int isa = 0; isa <= (int)isa_best(); isa++) {
        args.weight = got;
        dispatch_moe_route[isa](&args, &ctx);
        assert_true(
            compare_floats("softmax", got, want, E, (struct compare_tolerance){3e-7, 3e-45}));
        args.weight = want; /* from the first set on, to the bit */
        dispatch_moe_route[0](&args, &ctx);
        assert_true(compare_floats("softmax of sets", got, want, E, exact));
    }
}

/* Rows become columns, whatever is left beside whole tiles, from any address. */
static void test_transpose(void **state) {
    (void)state;
    enum { K_MOST = 70, GAP = 3 };
    static const uint32_t counts[] = {1, 3, 4, 7, 8, 15, 16, 17, 31, 32};
    struct rig *rig = rig_create(11);
    size_t source_bytes = 32 * (K_MOST * 4 + GAP) + 1;
    uint8_t *source = rig_alloc(rig, source_bytes);
    uint32_t *panel = rig_alloc(rig, K_MOST * 32 * 4);
    for (size_t i = 0; i < source_bytes; i++)
        source[i] = (uint8_t)rig_below(rig, 256);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (uint32_t k = 1; k <= K_MOST; k++)
            for (uint32_t size = 1; size <= 4; size *= 2) {
                size_t stride = k * size + GAP;
                uint32_t count = counts[c], fill = size == 2 ? 0x8888 : 0;
                memset(panel, 0xee, K_MOST * 32 * 4);
                if (size == 1) linear_transpose_u8((uint8_t *)panel, source + 1, stride, count, k);
                if (size == 2)
                    linear_transpose_u16((uint16_t *)panel, source + 1, stride, count, k, 0x8888);
                if (size == 4) linear_transpose_u32(panel, source + 1, stride, count, k);
                for (uint32_t i = 0; i < k * 32; i++) {
                    const void *wanted = i % 32 < count
                                             ? (const void *)(source + 1 + i % 32 * stride +
                                                              i / 32 * size)
                                             : (const void *)&fill;
                    if (memcmp((uint8_t *)panel + i * size, wanted, size) != 0)
                        fail_msg("%u rows of %u values of %u bytes: [%u, %u]", count, k, size,
                                 i % 32, i / 32);
                }
                if (k < K_MOST) assert_int_equal(((uint8_t *)panel)[k * 32 * size], 0xee);
            }
    rig_destroy(&rig);
}

/* Packing says so of a value that is not finite, wherever it lies; the greatest ones are fine. */
static void test_pack_looks(void **state) {
    (void)state;
    enum { N = 35, K = 133 }; /* a panel and a part of one; more than one line, and an odd end */
    static const struct {
        enum linear_format format;
        uint32_t value_bytes, greatest, bad[2];
    } cases[] = {{LINEAR_F32, 4, 0xff7fffff, {0x7f800000, 0xffc00001}},
                 {LINEAR_BF16, 2, 0xff7f, {0x7f80, 0xff81}},
                 {LINEAR_FP8, 1, 0xfe, {0x7f, 0xff}}};
    struct rig *rig = rig_create(19);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const uint32_t size = cases[c].value_bytes;
        uint8_t *values = rig_alloc(rig, N * K * size);
        void *data = rig_alloc(rig, linear_data_bytes(cases[c].format, N, K));
        float *scale = rig_alloc(rig, linear_scale_bytes(LINEAR_FP8, N, K)), scales[N * 2] = {0};
        for (uint32_t i = 0; i < N * K; i++)
            memcpy(values + i * size, &cases[c].greatest, size);
        for (uint32_t i = 0; i <= N * K; i++) {
            uint8_t *at = values + i * size;
            if (i < N * K) memcpy(at, &cases[c].bad[i % 2], size);
            bool finite = cases[c].format == LINEAR_FP8
                              ? linear_pack_fp8(data, scale, N, K, 0, values, K, scales,
                                                2 * sizeof *scales, 0, N)
                              : linear_pack_rows(cases[c].format, data, N, K, values, K * size, 0,
                                                 N);
            if (finite != (i == N * K))
                fail_msg("%u bytes: value [%u, %u] is taken for %s", size, i / K, i % K,
                         finite ? "finite" : "not finite");
            if (i < N * K) memcpy(at, &cases[c].greatest, size);
        }
    }
    rig_destroy(&rig);
}

/* Packing by ranges is packing at once; W^T given transposed is W. */
static void test_pack(void **state) {
    (void)state;
    enum { N = 70, K = 64 };
    struct rig *rig = rig_create(7);
    bf16 *w = rig_alloc(rig, N * K * sizeof(bf16)), *w_t = rig_alloc(rig, N * K * sizeof(bf16));
    for (uint32_t i = 0; i < N * K; i++)
        w[i] = (bf16)rig_below(rig, 65536);
    for (uint32_t n = 0; n < N; n++)
        for (uint32_t k = 0; k < K; k++)
            w_t[k * N + n] = w[n * K + k];
    size_t bytes = linear_data_bytes(LINEAR_BF16, N, K);
    assert_int_equal(bytes, 96 * K * 2);
    bf16 *whole = rig_alloc(rig, bytes), *other = rig_alloc(rig, bytes);
    memset(whole, 0xee, bytes);
    memset(other, 0xdd, bytes);
    linear_pack_rows(LINEAR_BF16, whole, N, K, w, K * 2, 0, N);
    for (uint32_t n = 0; n < 96; n++)
        for (uint32_t k = 0; k < K; k++)
            assert_int_equal(whole[((n / 32 * K + k) / 2 * 32 + n % 32) * 2 + k % 2],
                             n < N ? w[n * K + k] : 0);
    linear_pack_rows(LINEAR_BF16, other, N, K, w + 32 * K, K * 2, 32, N - 32);
    linear_pack_rows(LINEAR_BF16, other, N, K, w, K * 2, 0, 32);
    assert_memory_equal(other, whole, bytes);
    memset(other, 0xdd, bytes);
    linear_pack_transposed(LINEAR_BF16, other, N, K, w_t, N * 2);
    assert_memory_equal(other, whole, bytes);

    size_t int4_bytes = linear_data_bytes(LINEAR_INT4, N, K);
    size_t scale_bytes = linear_scale_bytes(LINEAR_INT4, N, K);
    assert_int_equal(int4_bytes, 96 * K / 2);
    assert_int_equal(scale_bytes, 96 * (K / 32) * 2);
    uint8_t *data = rig_alloc(rig, int4_bytes), *data_2 = rig_alloc(rig, int4_bytes);
    bf16 *scale = rig_alloc(rig, scale_bytes), *scale_2 = rig_alloc(rig, scale_bytes);
    const uint8_t *packed = (const uint8_t *)w; /* any bytes do: N rows of K / 2 */
    linear_pack_int4(data, scale, N, K, packed, K / 2, w, K / 16, 0, N);
    linear_pack_int4(data_2, scale_2, N, K, packed + 64 * (K / 2), K / 2, w + 64 * (K / 32), K / 16,
                     64, N - 64);
    linear_pack_int4(data_2, scale_2, N, K, packed, K / 2, w, K / 16, 0, 64);
    assert_memory_equal(data, data_2, int4_bytes);
    assert_memory_equal(scale, scale_2, scale_bytes);
    for (uint32_t n = 0; n < 96; n++) {
        for (uint32_t k = 0; k < K; k++) {
            uint32_t want = n < N ? packed[n * (K / 2) + k / 2] >> (k % 2 * 4) & 15 : 8;
            uint8_t byte = data[(n / 32 * K + k / 4 * 4) * 16 + n % 16 * 4 + k % 2 * 2 + k % 4 / 2];
            assert_int_equal(n % 32 < 16 ? byte & 15 : byte >> 4, want);
        }
        assert_int_equal(scale[n / 32 * (K / 32) * 32 + n % 32], n < N ? w[n * (K / 32)] : 0);
    }
    rig_destroy(&rig);
}

static void test_bf16(void **state) {
    (void)state;
    static const struct {
        uint32_t bits;
        bf16 want;
    } cases[] = {
        {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81}, {0x7f7fffff, 0x7f80},
        {0x80000000, 0x8000}, {0x7f800001, 0x7fc0}, {0xff800000, 0xff80}, {0x00008000, 0x0000},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        float value;
        memcpy(&value, &cases[i].bits, 4);
        assert_int_equal(bf16_from_f32(value), cases[i].want);
    }
}

/* A call against its contract ends the process with code 70 and says what was broken. */
static void test_contract_broken(void **state) {
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        struct kernel_ctx ctx = {0};
        linear_cpu(&(struct linear_args){.rows = 1, .batch = 1, .segments = 3}, &ctx);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 70);
}

/* ESPALIER_ISA chooses what the machine runs; what it does not run, and nonsense, change nothing.
 */
static void test_isa_environment(void **state) {
    (void)state;
    static const char *const names[] = {"generic", "avx2", "avx512", "avx512bf16", "nonsense"};
    for (int i = 0; i < 5; i++) {
        char command[256], line[32] = "";
        snprintf(command, sizeof(command), "ESPALIER_ISA=%s /proc/%d/exe --isa", names[i],
                 (int)getpid());
        FILE *pipe = popen(command, "r");
        assert_non_null(pipe);
        assert_non_null(fgets(line, sizeof(line), pipe));
        assert_int_equal(pclose(pipe), 0);
        line[strcspn(line, "\n")] = 0;
        if (i > (int)isa_best() && isa_best() == ISA_AVX512BF16 && strcmp(line, "avx512") == 0)
            continue; /* the faster one there */
        assert_string_equal(line, names[i < (int)isa_best() ? i : (int)isa_best()]);
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--isa") == 0) {
        puts(kernel_isa_name());
        return 0;
    }
    if (argc > 1) cmocka_set_test_filter(argv[1]); /* an op alone, for mutants.sh */
    for (uint32_t i = 2; i <= THREADS_MAX; i++) {
        teams[i] = team_create(i, i == 2 ? 0 : 200);
        if (!teams[i]) return 1;
    }
    struct CMUnitTest tests[OP_COUNT + 16] = {{0}};
    size_t count = 0;
    for (size_t i = 0; i < OP_COUNT; i++)
        tests[count++] = (struct CMUnitTest){
            .name = ops[i].name, .test_func = test_op, .initial_state = (void *)(uintptr_t)&ops[i]};
    const struct CMUnitTest others[] = {
        cmocka_unit_test(test_linear_ranks),
        cmocka_unit_test(test_int8_groups),
        cmocka_unit_test(test_fp8_codes),
        cmocka_unit_test(test_fp8_extremes),
        cmocka_unit_test(test_rows_apart),
        cmocka_unit_test(test_softmax_range),
        cmocka_unit_test(test_pack),
        cmocka_unit_test(test_pack_looks),
        cmocka_unit_test(test_transpose),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_contract_broken),
        cmocka_unit_test(test_isa_environment),
    };
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        tests[count++] = others[i];
    int failed = _cmocka_run_group_tests("kernels", tests, count, NULL, NULL);
    for (uint32_t i = 2; i <= THREADS_MAX; i++)
        team_destroy(&teams[i]);
    return failed;
}
