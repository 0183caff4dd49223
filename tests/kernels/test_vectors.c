/* Every op against vectors.txt, which numpy computed in float64 (make_vectors.py): the references,
 * and the fast variants with them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"
#include "linear/linear_pack.h"
#include "rig.h"

#define ARRAYS_MAX     24
#define FILE_BYTES_MAX (1u << 20)

struct array {
    char name[24];
    size_t count;
    float *f32; /* one of the two */
    uint64_t *u64;
};

struct vector {
    char op[24], label[32];
    struct array array[ARRAYS_MAX];
    size_t array_count;
    struct rig *rig; /* owns all of it */
};

static const struct array *find(const struct vector *v, const char *name) {
    for (size_t i = 0; i < v->array_count; i++)
        if (strcmp(v->array[i].name, name) == 0) return &v->array[i];
    return NULL;
}

static const struct array *need(const struct vector *v, const char *name) {
    const struct array *array = find(v, name);
    if (!array) fail_msg("%s %s: no array %s", v->op, v->label, name);
    return array;
}

static uint32_t number(const struct vector *v, const char *name) {
    return (uint32_t)need(v, name)->u64[0];
}

static float real(const struct vector *v, const char *name) {
    return need(v, name)->f32[0];
}

static const float *reals(const struct vector *v, const char *name) {
    const struct array *array = find(v, name);
    return array ? array->f32 : NULL;
}

static uint32_t *u32s(const struct vector *v, const char *name) {
    const struct array *array = need(v, name);
    uint32_t *out = rig_alloc(v->rig, array->count * sizeof(*out));
    for (size_t i = 0; i < array->count; i++)
        out[i] = (uint32_t)array->u64[i];
    return out;
}

static bf16 *bf16s(const struct vector *v, const char *name) {
    const struct array *array = need(v, name);
    bf16 *out = rig_alloc(v->rig, array->count * sizeof(*out));
    for (size_t i = 0; i < array->count; i++)
        out[i] = (bf16)array->u64[i];
    return out;
}

static uint8_t *u8s(const struct vector *v, const char *name) {
    const struct array *array = need(v, name);
    uint8_t *out = rig_alloc(v->rig, array->count);
    for (size_t i = 0; i < array->count; i++)
        out[i] = (uint8_t)array->u64[i];
    return out;
}

static void expect(const struct vector *v, const char *name, const float *got) {
    char label[80];
    snprintf(label, sizeof(label), "%s %s %s", v->op, v->label, name);
    const struct array *want = need(v, name);
    assert_true(
        compare_floats(label, got, want->f32, want->count, (struct compare_tolerance){1e-6, 2e-6}));
}

static void expect_u32(const struct vector *v, const char *name, const uint32_t *got) {
    const struct array *want = need(v, name);
    for (size_t i = 0; i < want->count; i++)
        if (got[i] != want->u64[i])
            fail_msg("%s %s: %s[%zu] is %u, expected %u", v->op, v->label, name, i, got[i],
                     (unsigned)want->u64[i]);
}

static float *output(const struct vector *v, const char *name) {
    return rig_alloc(v->rig, need(v, name)->count * sizeof(float));
}

static struct kernel_ctx context(const struct vector *v, size_t scratch_bytes) {
    return (struct kernel_ctx){.scratch = rig_alloc(v->rig, scratch_bytes),
                               .scratch_bytes = scratch_bytes};
}

static struct linear_weight pack_int4(const struct vector *v, const uint8_t *packed,
                                      const bf16 *scales, uint32_t n, uint32_t k) {
    uint8_t *data = rig_alloc(v->rig, linear_data_bytes(LINEAR_INT4, n, k));
    bf16 *scale = rig_alloc(v->rig, linear_scale_bytes(LINEAR_INT4, n, k));
    linear_pack_int4(data, scale, n, k, packed, k / 2, scales, k / 16, 0, n);
    return (struct linear_weight){
        .data = data, .scale = scale, .format = LINEAR_INT4, .n = n, .k = k};
}

/* The scales of whole blocks, given to each row. */
static struct linear_weight pack_fp8(const struct vector *v, uint32_t n, uint32_t k) {
    uint32_t begin = number(v, "block_begin"), row_begin = number(v, "row_begin");
    uint32_t blocks = (begin + k + 127) / 128;
    uint8_t *data = rig_alloc(v->rig, linear_data_bytes(LINEAR_FP8, n, k));
    float *scale = rig_alloc(v->rig, linear_scale_bytes(LINEAR_FP8, n, k));
    float *rows = rig_alloc(v->rig, n * blocks * sizeof(*rows));
    const float *stored = reals(v, "scale_f32");
    for (uint32_t r = 0; r < n; r++)
        memcpy(rows + r * blocks, stored + (row_begin + r) / 128 * blocks, blocks * sizeof(*rows));
    linear_pack_fp8(data, scale, n, k, begin, u8s(v, "w"), k, rows, blocks * sizeof(*rows), 0, n);
    return (struct linear_weight){
        .data = data, .scale = scale, .format = LINEAR_FP8, .n = n, .k = k, .block_begin = begin};
}

static void check_linear(const struct vector *v) {
    uint32_t n = number(v, "n"), k = number(v, "k"), rows = number(v, "rows");
    enum linear_format format = (enum linear_format)number(v, "format");
    struct linear_weight weight = {.format = format, .n = n, .k = k};
    if (format == LINEAR_INT4) {
        weight = pack_int4(v, u8s(v, "w"), bf16s(v, "scale"), n, k);
    } else if (format == LINEAR_FP8) {
        weight = pack_fp8(v, n, k);
    } else {
        void *data = rig_alloc(v->rig, linear_data_bytes(format, n, k));
        if (format == LINEAR_F32)
            linear_pack_rows(format, data, n, k, reals(v, "w_f32"), k * 4ul, 0, n);
        else
            linear_pack_rows(format, data, n, k, bf16s(v, "w"), k * 2ul, 0, n);
        weight.data = data;
    }
    const struct array *activation = find(v, "activation");
    enum kernel_dtype dtype = activation ? (enum kernel_dtype)activation->u64[0] : KERNEL_F32;
    struct kernel_ctx ctx = context(v, linear_scratch_bytes(dtype, rows, k));
    struct linear_args args = {.x = reals(v, "x"),
                               .x_stride = k,
                               .weight = weight,
                               .y = output(v, "y"),
                               .y_stride = n,
                               .add = reals(v, "add"),
                               .rows = rows,
                               .batch = 1,
                               .segments = number(v, "segments"),
                               .activation = dtype};
    linear_ref(&args, &ctx);
    expect(v, "y", args.y);
    args.y = output(v, "y");
    linear_cpu(&args, &ctx);
    expect(v, "y", args.y);
}

static void check_rms_norm(const struct vector *v) {
    uint32_t dim = number(v, "dim");
    struct kernel_ctx ctx = {0};
    struct rms_norm_args args = {.x = reals(v, "x"),
                                 .x_stride = dim,
                                 .add = reals(v, "add"),
                                 .weight = reals(v, "w"),
                                 .y_stride = dim,
                                 .rows = number(v, "rows"),
                                 .dim = dim,
                                 .eps = real(v, "eps")};
    for (int variant = 0; variant < 2; variant++) {
        args.y = output(v, "y");
        if (args.add) args.sum = output(v, "sum");
        variant == 0 ? rms_norm_ref(&args, &ctx) : rms_norm_cpu(&args, &ctx);
        expect(v, "y", args.y);
        if (args.add) expect(v, "sum", args.sum);
    }
}

static void check_swiglu(const struct vector *v) {
    uint32_t dim = number(v, "dim");
    struct kernel_ctx ctx = {0};
    struct swiglu_args args = {.gate_up = reals(v, "x"),
                               .gate_up_stride = 2 * (size_t)dim,
                               .y = output(v, "y"),
                               .y_stride = dim,
                               .rows = number(v, "rows"),
                               .dim = dim};
    swiglu_ref(&args, &ctx);
    expect(v, "y", args.y);
    args.y = output(v, "y");
    swiglu_cpu(&args, &ctx);
    expect(v, "y", args.y);
}

static void check_embed(const struct vector *v) {
    struct kernel_ctx ctx = {0};
    struct embed_args args = {.id = u32s(v, "id"),
                              .table = bf16s(v, "table"),
                              .table_dtype = KERNEL_BF16,
                              .vocab_begin = number(v, "begin"),
                              .vocab_count = number(v, "count"),
                              .y = output(v, "y"),
                              .rows = number(v, "rows"),
                              .dim = number(v, "dim")};
    embed_ref(&args, &ctx);
    expect(v, "y", args.y);
    args.y = output(v, "y");
    embed_cpu(&args, &ctx);
    expect(v, "y", args.y);
}

static void check_rope(const struct vector *v) {
    uint32_t rows = number(v, "rows"), dim = number(v, "dim"), heads = number(v, "heads");
    double *inv_freq = rig_alloc(v->rig, dim / 2 * sizeof(double));
    for (uint32_t i = 0; i < dim / 2; i++)
        inv_freq[i] = pow((double)real(v, "theta"), -2.0 * i / dim);
    float *cos_sin = rig_alloc(v->rig, (size_t)rows * dim * sizeof(float));
    rope_angles(cos_sin, u32s(v, "position"), rows, inv_freq, dim);
    struct kernel_ctx ctx = {0};
    struct rope_args args = {.x = output(v, "y"),
                             .row_stride = (size_t)heads * dim,
                             .head_stride = dim,
                             .cos_sin = cos_sin,
                             .rows = rows,
                             .heads = heads,
                             .dim = dim,
                             .halves = find(v, "halves") != NULL};
    memcpy(args.x, reals(v, "x"), need(v, "x")->count * sizeof(float));
    rope_ref(&args, &ctx);
    expect(v, "y", args.x);
    memcpy(args.x, reals(v, "x"), need(v, "x")->count * sizeof(float));
    rope_cpu(&args, &ctx);
    expect(v, "y", args.x);
}

static void check_moe_route(const struct vector *v) {
    struct kernel_ctx ctx = {0};
    struct moe_route_args args = {
        .logits = reals(v, "logits"),
        .bias = reals(v, "bias"),
        .expert = rig_alloc(v->rig, need(v, "expert")->count * sizeof(uint32_t)),
        .weight = output(v, "weight"),
        .rows = number(v, "rows"),
        .experts = number(v, "experts"),
        .topk = number(v, "topk"),
        .groups = number(v, "groups"),
        .topk_groups = number(v, "topk_groups"),
        .scoring = number(v, "softmax") ? MOE_SOFTMAX : MOE_SIGMOID,
        .renormalize = number(v, "renormalize") != 0,
        .scale = real(v, "scale")};
    moe_route_ref(&args, &ctx);
    expect_u32(v, "expert", args.expert);
    expect(v, "weight", args.weight);
    moe_route_cpu(&args, &ctx);
    expect_u32(v, "expert", args.expert);
    expect(v, "weight", args.weight);
}

static void check_moe_experts(const struct vector *v) {
    uint32_t rows = number(v, "rows"), topk = number(v, "topk"), count = number(v, "experts");
    uint32_t dim = number(v, "dim"), width = number(v, "width");
    struct moe_expert *experts = rig_alloc(v->rig, count * sizeof(*experts));
    size_t bytes = (size_t)width * dim; /* of gate and up; of down half of it */
    for (uint32_t e = 0; e < count; e++) {
        experts[e].gate_up = pack_int4(v, u8s(v, "gate_up") + e * bytes,
                                       bf16s(v, "gate_up_scale") + e * bytes / 16, 2 * width, dim);
        experts[e].down = pack_int4(v, u8s(v, "down") + e * bytes / 2,
                                    bf16s(v, "down_scale") + e * bytes / 32, dim, width);
    }
    struct kernel_ctx ctx = context(v, moe_experts_scratch_bytes(rows, topk, count, dim, width));
    struct moe_experts_args args = {.x = reals(v, "x"),
                                    .expert = u32s(v, "expert"),
                                    .weight = reals(v, "weight"),
                                    .experts = experts,
                                    .y = output(v, "y"),
                                    .rows = rows,
                                    .topk = topk,
                                    .expert_count = count,
                                    .dim = dim,
                                    .width = width,
                                    .segments = number(v, "segments")};
    moe_experts_ref(&args, &ctx);
    expect(v, "y", args.y);
    args.y = output(v, "y");
    moe_experts_cpu(&args, &ctx);
    expect(v, "y", args.y);
}

static void check_mla_tree(const struct vector *v) {
    uint32_t heads = number(v, "heads"), latent = number(v, "latent"), rope = number(v, "rope");
    const struct array *mask = find(v, "mask");
    struct mla_sequence sequence = {.row_count = number(v, "rows"),
                                    .committed = number(v, "committed"),
                                    .page = u32s(v, "page"),
                                    .ancestors = mask ? mask->u64 : NULL};
    struct kernel_ctx ctx = context(v, mla_tree_scratch_bytes(1, latent, rope));
    struct mla_tree_args args = {.q_latent = reals(v, "q_latent"),
                                 .q_rope = reals(v, "q_rope"),
                                 .q_rope_row_stride = (size_t)heads * rope,
                                 .q_rope_head_stride = rope,
                                 .kv = reals(v, "kv"),
                                 .kv_dtype = KERNEL_F32,
                                 .sequences = &sequence,
                                 .sequence_count = 1,
                                 .out = output(v, "out"),
                                 .heads = heads,
                                 .latent_dim = latent,
                                 .rope_dim = rope,
                                 .page_tok = number(v, "page_tok"),
                                 .scale = real(v, "scale")};
    mla_tree_ref(&args, &ctx);
    expect(v, "out", args.out);
    args.out = output(v, "out");
    mla_tree_cpu(&args, &ctx);
    expect(v, "out", args.out);
}

static void check_mla_expanded(const struct vector *v) {
    uint32_t heads = number(v, "heads"), latent = number(v, "latent"), rope = number(v, "rope");
    uint32_t nope = number(v, "nope"), value = number(v, "value"), rows = number(v, "rows");
    size_t uk_bytes = linear_data_bytes(LINEAR_F32, latent, nope);
    size_t uv_bytes = linear_data_bytes(LINEAR_F32, value, latent);
    char *w_uk = rig_alloc(v->rig, heads * uk_bytes), *w_uv = rig_alloc(v->rig, heads * uv_bytes);
    for (uint32_t h = 0; h < heads; h++) {
        linear_pack_rows(LINEAR_F32, w_uk + h * uk_bytes, latent, nope,
                         reals(v, "w_uk") + (size_t)h * latent * nope, nope * sizeof(float), 0,
                         latent);
        linear_pack_rows(LINEAR_F32, w_uv + h * uv_bytes, value, latent,
                         reals(v, "w_uv") + (size_t)h * value * latent, latent * sizeof(float), 0,
                         value);
    }
    struct mla_sequence sequence = {
        .row_count = rows, .committed = number(v, "committed"), .page = u32s(v, "page")};
    struct kernel_ctx ctx = context(v,
                                    mla_expanded_scratch_bytes(1, rows, latent, rope, nope, value));
    struct mla_expanded_args args = {
        .q = reals(v, "q"),
        .q_row_stride = (size_t)heads * (nope + rope),
        .q_head_stride = nope + rope,
        .kv = reals(v, "kv"),
        .kv_dtype = KERNEL_F32,
        .w_uk = {.data = w_uk, .format = LINEAR_F32, .n = latent, .k = nope},
        .w_uv = {.data = w_uv, .format = LINEAR_F32, .n = value, .k = latent},
        .sequences = &sequence,
        .sequence_count = 1,
        .heads = heads,
        .latent_dim = latent,
        .rope_dim = rope,
        .nope_dim = nope,
        .value_dim = value,
        .page_tok = number(v, "page_tok"),
        .scale = real(v, "scale")};
    for (int variant = 0; variant < 2; variant++) {
        args.out = output(v, "out");
        variant == 0 ? mla_expanded_ref(&args, &ctx) : mla_expanded_cpu(&args, &ctx);
        expect(v, "out", args.out);
    }
}

static void check_gqa_block(const struct vector *v) {
    uint32_t dim = number(v, "dim");
    struct gqa_sequence sequence = {.row_count = number(v, "rows"),
                                    .committed = number(v, "committed"),
                                    .context_begin = number(v, "begin"),
                                    .page = u32s(v, "page")};
    struct kernel_ctx ctx = context(v, gqa_block_scratch_bytes(1, dim));
    struct gqa_block_args args = {.q = reals(v, "q"),
                                  .k = reals(v, "k"),
                                  .v = reals(v, "v"),
                                  .kv = reals(v, "kv"),
                                  .kv_dtype = KERNEL_F32,
                                  .sequences = &sequence,
                                  .sequence_count = 1,
                                  .out = output(v, "out"),
                                  .heads = number(v, "heads"),
                                  .kv_heads = number(v, "groups"),
                                  .head_dim = dim,
                                  .page_tok = number(v, "page_tok"),
                                  .window = number(v, "window"),
                                  .causal = number(v, "causal") != 0,
                                  .scale = real(v, "scale")};
    gqa_block_ref(&args, &ctx);
    expect(v, "out", args.out);
    args.out = output(v, "out");
    gqa_block_cpu(&args, &ctx);
    expect(v, "out", args.out);
}

static void check_top_tokens(const struct vector *v) {
    uint32_t *token = rig_alloc(v->rig, need(v, "token")->count * sizeof(*token));
    struct kernel_ctx ctx = {0};
    struct top_tokens_args args = {.logits = reals(v, "logits"),
                                   .logits_stride = number(v, "width"),
                                   .rows = number(v, "rows"),
                                   .width = number(v, "width"),
                                   .id_begin = number(v, "first"),
                                   .count = number(v, "count"),
                                   .segments = number(v, "segments"),
                                   .token = token,
                                   .logit = output(v, "logit"),
                                   .max = output(v, "max"),
                                   .sum = output(v, "sum")};
    for (int variant = 0; variant < 2; variant++) {
        variant == 0 ? top_tokens_ref(&args, &ctx) : top_tokens_cpu(&args, &ctx);
        expect_u32(v, "token", token);
        expect(v, "logit", args.logit);
        expect(v, "max", args.max);
        expect(v, "sum", args.sum);
    }
}

static void check_penalize(const struct vector *v) {
    uint32_t bias_count = number(v, "bias_count"), *count = u32s(v, "count");
    struct penalize_bias *bias = rig_alloc(v->rig, (bias_count + 1) * sizeof(*bias));
    for (uint32_t i = 0; i < bias_count; i++)
        bias[i] = (struct penalize_bias){.token = u32s(v, "bias_token")[i],
                                         .value = reals(v, "bias_value")[i]};
    struct kernel_ctx ctx = {0};
    struct penalize_args args = {.logits = reals(v, "logits"),
                                 .vocab = number(v, "vocab"),
                                 .count = count,
                                 .tail = u32s(v, "tail"),
                                 .tail_count = number(v, "tail_count"),
                                 .bias = bias,
                                 .bias_count = bias_count,
                                 .repetition = real(v, "repetition"),
                                 .presence = real(v, "presence"),
                                 .frequency = real(v, "frequency")};
    for (int variant = 0; variant < 2; variant++) {
        args.out = output(v, "out");
        variant == 0 ? penalize_ref(&args, &ctx) : penalize_cpu(&args, &ctx);
        const float *wanted = reals(v, "out");
        for (uint32_t id = 0; id < args.vocab; id++)
            if (args.out[id] != wanted[id])
                fail_msg("%s: token %u is %a, expected %a", v->label, id, (double)args.out[id],
                         (double)wanted[id]);
    }
}

static void check_sample(const struct vector *v) {
    uint32_t vocab = number(v, "vocab"), token, top_token[4];
    float logprob, top_logprob[4];
    const float *min_p = reals(v, "min_p"); /* where the case has one */
    struct kernel_ctx ctx = context(v, sample_scratch_bytes(vocab));
    struct sample_args args = {.logits = reals(v, "logits"),
                               .model_logits = reals(v, "logits"),
                               .vocab = vocab,
                               .params = {.temperature = real(v, "temperature"),
                                          .top_p = real(v, "top_p"),
                                          .top_k = number(v, "top_k"),
                                          .min_p = min_p ? *min_p : 0,
                                          .choice = number(v, "choice"),
                                          .seed = need(v, "seed")->u64[0]},
                               .position = need(v, "position")->u64[0],
                               .top_count = 4,
                               .token = &token,
                               .logprob = &logprob,
                               .top_token = top_token,
                               .top_logprob = top_logprob};
    for (int variant = 0; variant < 2; variant++) {
        variant == 0 ? sample_ref(&args, &ctx) : sample_cpu(&args, &ctx);
        expect_u32(v, "token", &token);
        expect(v, "logprob", &logprob);
        expect_u32(v, "top_token", top_token);
        expect(v, "top_logprob", top_logprob);
    }
}

static void check_add(const struct vector *v) {
    struct kernel_ctx ctx = {0};
    for (int variant = 0; variant < 2; variant++) {
        struct add_args args = {
            .x = output(v, "out"), .y = reals(v, "y"), .count = need(v, "out")->count};
        memcpy(args.x, reals(v, "x"), args.count * sizeof(float));
        variant == 0 ? add_ref(&args, &ctx) : add_cpu(&args, &ctx);
        expect(v, "out", args.x);
    }
}

/* Caches are moved, and rounded where they are stored: what comes out is right to the bit. */
static void expect_cache(const struct vector *v, const bf16 *got) {
    const struct array *want = need(v, "out");
    for (size_t i = 0; i < want->count; i++)
        if (got[i] != want->u64[i])
            fail_msg("%s %s: value %zu is %04x, expected %04x", v->op, v->label, i, got[i],
                     (unsigned)want->u64[i]);
}

static void check_kv_store(const struct vector *v) {
    struct kernel_ctx ctx = {0};
    for (int variant = 0; variant < 2; variant++) {
        struct kv_store_args args = {.latent = reals(v, "latent"),
                                     .latent_stride = number(v, "latent_dim"),
                                     .rope_key = reals(v, "rope"),
                                     .rope_stride = number(v, "rope_dim"),
                                     .kv = bf16s(v, "kv"),
                                     .kv_dtype = KERNEL_BF16,
                                     .slot = u32s(v, "slot"),
                                     .rows = number(v, "rows"),
                                     .latent_dim = number(v, "latent_dim"),
                                     .rope_dim = number(v, "rope_dim")};
        variant == 0 ? kv_store_ref(&args, &ctx) : kv_store_cpu(&args, &ctx);
        expect_cache(v, args.kv);
    }
}

/* What attention makes of a token alone is its latent, as it reads it; of finite ones, since the
 * query is zero. */
static void expect_read(const struct vector *v, const void *kv, bool fast) {
    uint32_t latent_dim = number(v, "latent_dim"), rope_dim = number(v, "rope_dim");
    const float *read = reals(v, "read");
    struct kernel_ctx ctx = context(v, mla_tree_scratch_bytes(1, latent_dim, rope_dim));
    for (uint32_t row = 0; row < number(v, "rows"); row++, read += latent_dim) {
        float *out = rig_alloc(v->rig, latent_dim * sizeof(float));
        const struct mla_sequence alone = {.row_count = 1, .page = u32s(v, "slot") + row};
        const struct mla_tree_args args = {
            .q_latent = rig_alloc(v->rig, latent_dim * sizeof(float)),
            .q_rope = rig_alloc(v->rig, rope_dim * sizeof(float)),
            .kv = kv,
            .kv_dtype = KERNEL_FP8,
            .sequences = &alone,
            .sequence_count = 1,
            .out = out,
            .heads = 1,
            .latent_dim = latent_dim,
            .rope_dim = rope_dim,
            .page_tok = 1,
            .scale = 1.0f,
        };
        bool is_finite = true;
        for (uint32_t i = 0; i < latent_dim; i++)
            is_finite = is_finite && isfinite(read[i]);
        if (!is_finite) continue;
        fast ? mla_tree_cpu(&args, &ctx) : mla_tree_ref(&args, &ctx);
        for (uint32_t i = 0; i < latent_dim; i++)
            if (out[i] != read[i])
                fail_msg("%s %s: row %u reads %a, expected %a", v->op, v->label, row,
                         (double)out[i], (double)read[i]);
    }
}

static void check_kv_record(const struct vector *v) {
    struct kernel_ctx ctx = {0};
    const struct array *want = need(v, "out");
    for (int variant = 0; variant < 2; variant++) {
        struct kv_store_args args = {.latent = reals(v, "latent"),
                                     .latent_stride = number(v, "latent_dim"),
                                     .rope_key = reals(v, "rope"),
                                     .rope_stride = number(v, "rope_dim"),
                                     .kv = u8s(v, "kv"),
                                     .kv_dtype = KERNEL_FP8,
                                     .slot = u32s(v, "slot"),
                                     .rows = number(v, "rows"),
                                     .latent_dim = number(v, "latent_dim"),
                                     .rope_dim = number(v, "rope_dim")};
        variant == 0 ? kv_store_ref(&args, &ctx) : kv_store_cpu(&args, &ctx);
        for (size_t i = 0; i < want->count; i++)
            if (((const uint8_t *)args.kv)[i] != want->u64[i])
                fail_msg("%s %s: byte %zu is %02x, expected %02x", v->op, v->label, i,
                         ((const uint8_t *)args.kv)[i], (unsigned)want->u64[i]);
        expect_read(v, args.kv, variant == 1);
    }
}

static void check_kv_copy(const struct vector *v) {
    struct kv_page_copy copies[8];
    uint32_t count = (uint32_t)need(v, "copies")->count / 3, *copy = u32s(v, "copies");
    assert_true(count <= sizeof copies / sizeof *copies);
    for (uint32_t i = 0; i < count; i++)
        copies[i] = (struct kv_page_copy){copy[3 * i], copy[3 * i + 1], copy[3 * i + 2]};
    struct kernel_ctx ctx = {0};
    for (int variant = 0; variant < 2; variant++) {
        struct kv_copy_args args = {.kv = bf16s(v, "kv"),
                                    .copies = copies,
                                    .copy_count = count,
                                    .page_tok = number(v, "page_tok"),
                                    .tok_bytes = number(v, "token_dim") * sizeof(bf16)};
        variant == 0 ? kv_copy_ref(&args, &ctx) : kv_copy_cpu(&args, &ctx);
        expect_cache(v, args.kv);
    }
}

static void check_kv_move(const struct vector *v) {
    struct kv_slot_move moves[8];
    uint32_t count = (uint32_t)need(v, "moves")->count / 2, *move = u32s(v, "moves");
    assert_true(count <= sizeof moves / sizeof *moves);
    for (uint32_t i = 0; i < count; i++)
        moves[i] = (struct kv_slot_move){move[2 * i], move[2 * i + 1]};
    struct kernel_ctx ctx = {0};
    for (int variant = 0; variant < 2; variant++) {
        struct kv_move_args args = {.kv = bf16s(v, "kv"),
                                    .moves = moves,
                                    .move_count = count,
                                    .tok_bytes = number(v, "token_dim") * sizeof(bf16)};
        variant == 0 ? kv_move_ref(&args, &ctx) : kv_move_cpu(&args, &ctx);
        expect_cache(v, args.kv);
    }
}

static const struct {
    const char *op;
    void (*check)(const struct vector *v);
    size_t least; /* cases the file must hold */
} checks[] = {
    {"linear", check_linear, 14},
    {"rms_norm", check_rms_norm, 2},
    {"swiglu", check_swiglu, 1},
    {"embed", check_embed, 1},
    {"rope", check_rope, 2},
    {"moe_route", check_moe_route, 3},
    {"mla_tree", check_mla_tree, 2},
    {"moe_experts", check_moe_experts, 1},
    {"penalize", check_penalize, 8},
    {"sample", check_sample, 22},
    {"gqa_block", check_gqa_block, 3},
    {"top_tokens", check_top_tokens, 1},
    {"mla_expanded", check_mla_expanded, 1},
    {"add", check_add, 1},
    {"kv_store", check_kv_store, 1},
    {"kv_record", check_kv_record, 2},
    {"kv_copy", check_kv_copy, 1},
    {"kv_move", check_kv_move, 1},
};
#define CHECK_COUNT (sizeof(checks) / sizeof(checks[0]))

/* "name type count value...", the rest of a line. */
static void parse_array(struct vector *v, char *name, char **rest) {
    assert_true(v->array_count < ARRAYS_MAX);
    struct array *array = &v->array[v->array_count++];
    snprintf(array->name, sizeof(array->name), "%s", name);
    char *type = strtok_r(NULL, " ", rest), *count = strtok_r(NULL, " ", rest);
    assert_non_null(count);
    array->count = strtoul(count, NULL, 10);
    array->f32 = rig_alloc(v->rig, array->count * sizeof(float));
    array->u64 = rig_alloc(v->rig, array->count * sizeof(uint64_t));
    for (size_t i = 0; i < array->count; i++) {
        char *value = strtok_r(NULL, " ", rest), *end;
        if (!value) fail_msg("%s %s: %s is short", v->op, v->label, name);
        if (strcmp(type, "f32") == 0)
            array->f32[i] = strtof(value, &end);
        else
            array->u64[i] = strtoull(value, &end, 10);
        if (*end) fail_msg("%s %s: %s holds %s", v->op, v->label, name, value);
    }
}

static void test_vectors(void **state) {
    (void)state;
    size_t seen[CHECK_COUNT] = {0};
    FILE *file = fopen(ESPALIER_VECTORS, "r");
    if (!file) fail_msg("%s: %s", ESPALIER_VECTORS, strerror(errno));
    char *line = malloc(FILE_BYTES_MAX);
    assert_non_null(line);
    struct vector v = {.rig = NULL};
    while (fgets(line, FILE_BYTES_MAX, file)) {
        line[strcspn(line, "\n")] = 0;
        char *rest, *first = strtok_r(line, " ", &rest);
        assert_non_null(first);
        if (strcmp(first, "case") == 0) {
            v = (struct vector){.rig = rig_create(0)};
            snprintf(v.op, sizeof(v.op), "%s", strtok_r(NULL, " ", &rest));
            snprintf(v.label, sizeof(v.label), "%s", strtok_r(NULL, " ", &rest));
        } else if (strcmp(first, "end") == 0) {
            size_t i = 0;
            while (i < CHECK_COUNT && strcmp(checks[i].op, v.op) != 0)
                i++;
            if (i == CHECK_COUNT) fail_msg("no check for %s", v.op);
            checks[i].check(&v);
            seen[i]++;
            rig_destroy(&v.rig);
        } else {
            parse_array(&v, first, &rest);
        }
    }
    free(line);
    fclose(file);
    for (size_t i = 0; i < CHECK_COUNT; i++)
        if (seen[i] < checks[i].least) fail_msg("%zu cases of %s", seen[i], checks[i].op);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_vectors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
