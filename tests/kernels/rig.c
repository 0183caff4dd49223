#include "rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "linear/linear_pack.h"

struct block {
    struct block *next;
    _Alignas(64) char data[];
};

struct rig {
    struct block *blocks;
    char *memory; /* the caller's; NULL: blocks */
    size_t memory_left;
    uint64_t state;
};

struct rig *rig_create_in(uint64_t seed, void *memory, size_t bytes) {
    struct rig *rig = calloc(1, sizeof(*rig));
    if (!rig) abort();
    *rig = (struct rig){.memory = memory, .memory_left = bytes, .state = seed};
    return rig;
}

struct rig *rig_create(uint64_t seed) {
    return rig_create_in(seed, NULL, 0);
}

void rig_destroy(struct rig **rig) {
    for (struct block *block = (*rig)->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    free(*rig);
    *rig = NULL;
}

void *rig_alloc(struct rig *rig, size_t bytes) {
    size_t all = (sizeof(struct block) + bytes + 127) & ~(size_t)63;
    if (rig->memory) {
        char *taken = rig->memory;
        if (all > rig->memory_left) abort();
        rig->memory += all;
        rig->memory_left -= all;
        return memset(taken, 0, all);
    }
    struct block *block = aligned_alloc(64, all);
    if (!block) abort();
    memset(block, 0, all);
    block->next = rig->blocks;
    rig->blocks = block;
    return block->data;
}

static uint32_t next_u32(struct rig *rig) {
    rig->state = rig->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint64_t x = rig->state;
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return (uint32_t)(x >> 32);
}

uint32_t rig_below(struct rig *rig, uint32_t end) {
    return (uint32_t)((uint64_t)next_u32(rig) * end >> 32);
}

/* Near enough to normal: the sum of four uniforms. */
float rig_normal(struct rig *rig) {
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(next_u32(rig) >> 8) * 0x1p-24f - 0.5f;
    return sum * 1.7320508f;
}

static float *normals(struct rig *rig, size_t count, float spread) {
    float *out = rig_alloc(rig, count * sizeof(float));
    for (size_t i = 0; i < count; i++)
        out[i] = rig_normal(rig) * spread;
    return out;
}

static bf16 *bf16_normals(struct rig *rig, size_t count, float spread) {
    bf16 *out = rig_alloc(rig, count * sizeof(bf16));
    for (size_t i = 0; i < count; i++)
        out[i] = bf16_from_f32(rig_normal(rig) * spread);
    return out;
}

static size_t type_bytes(enum rig_type type) {
    return type == RIG_BF16 ? sizeof(bf16) : sizeof(uint32_t);
}

static size_t output_bytes(const struct rig_output *output) {
    return output->outer * output->rows * output->width * type_bytes(output->type);
}

/* data NULL: memory of its own. */
static void *add_output(struct rig *rig, struct rig_call *call, const char *name,
                        enum rig_type type, void *data, size_t outer, size_t rows, size_t width) {
    struct rig_output *output = &call->output[call->output_count++];
    *output = (struct rig_output){name, data, NULL, type, outer, rows, width};
    if (!data) {
        output->data = rig_alloc(rig, output_bytes(output));
        memset(output->data, RIG_UNTOUCHED, output_bytes(output));
    }
    output->initial = rig_alloc(rig, output_bytes(output));
    memcpy(output->initial, output->data, output_bytes(output));
    return output->data;
}

void rig_take_row(struct rig *rig, struct rig_call *call, size_t row) {
    for (uint32_t i = 0; i < call->output_count; i++) {
        struct rig_output *output = &call->output[i];
        size_t row_bytes = output->width * type_bytes(output->type);
        const char *from = (const char *)output->initial + row * row_bytes;
        output->data = rig_alloc(rig, output->outer * row_bytes);
        for (size_t o = 0; o < output->outer; o++)
            memcpy((char *)output->data + o * row_bytes, from + o * output->rows * row_bytes,
                   row_bytes);
        output->initial = NULL;
        output->rows = 1;
    }
}

void rig_reset(struct rig_call *call) {
    for (uint32_t i = 0; i < call->output_count; i++)
        memcpy(call->output[i].data, call->output[i].initial, output_bytes(&call->output[i]));
}

void rig_embed(struct rig *rig, const struct embed_case *c, uint32_t threads,
               struct rig_call *call) {
    (void)threads;
    uint32_t *id = rig_alloc(rig, c->rows * sizeof(uint32_t));
    for (uint32_t t = 0; t < c->rows; t++)
        id[t] = rig_below(rig, c->id_end);
    size_t count = (size_t)c->vocab_count * c->dim;
    bf16 *narrow = bf16_normals(rig, count, 1);
    float *wide = normals(rig, count, 1);
    for (size_t i = 0; i < count; i += 3) {
        narrow[i] = 0x8000; /* a negative zero */
        wide[i] = -0.0f;
    }
    call->args.embed = (struct embed_args){
        .id = id,
        .table = c->dtype == KERNEL_F32 ? (void *)wide : narrow,
        .table_dtype = c->dtype,
        .vocab_begin = c->vocab_begin,
        .vocab_count = c->vocab_count,
        .y = add_output(rig, call, "y", RIG_F32, NULL, 1, c->rows, c->dim),
        .rows = c->rows,
        .dim = c->dim,
    };
    call->bytes = (double)c->rows * c->dim * 2;
}

void rig_add(struct rig *rig, const struct add_case *c, uint32_t threads, struct rig_call *call) {
    (void)threads;
    call->args.add = (struct add_args){
        .x = add_output(rig, call, "x", RIG_F32, normals(rig, c->count, 1), 1, c->count, 1),
        .y = normals(rig, c->count, 1),
        .count = c->count,
    };
    call->bytes = (double)c->count * 8;
    call->flops = (double)c->count;
}

void rig_rms_norm(struct rig *rig, const struct rms_norm_case *c, uint32_t threads,
                  struct rig_call *call) {
    (void)threads;
    size_t stride = c->dim + c->pad;
    float *x = normals(rig, c->rows * stride, 3);
    call->args.rms_norm = (struct rms_norm_args){
        .x = x,
        .x_stride = stride,
        .add = c->adds ? normals(rig, c->rows * stride, 3) : NULL,
        .weight = normals(rig, c->dim, 1),
        .y = add_output(rig, call, "y", RIG_F32, c->in_place ? x : NULL, 1, c->rows, stride),
        .y_stride = stride,
        .rows = c->rows,
        .dim = c->dim,
        .eps = 1e-5f,
    };
    if (c->adds)
        call->args.rms_norm.sum = add_output(rig, call, "sum", RIG_F32, c->in_place ? NULL : x, 1,
                                             c->rows, stride);
    call->bytes = (double)c->rows * c->dim * (c->adds ? 12 : 4);
    call->flops = (double)c->rows * c->dim * 4;
}

struct linear_weight rig_weight(struct rig *rig, enum linear_format format, uint32_t n, uint32_t k,
                                uint32_t batch) {
    size_t data_bytes = linear_data_bytes(format, n, k);
    size_t scale_bytes = linear_scale_bytes(format, n, k);
    char *data = rig_alloc(rig, batch * data_bytes + 1);
    char *scale = rig_alloc(rig, batch * scale_bytes + 1);
    float spread = 1.0f / sqrtf((float)k);
    uint32_t block_begin = format == LINEAR_FP8 ? 37 * n % FP8_BLOCK : 0; /* anywhere */
    for (uint32_t b = 0; b < batch; b++, data += data_bytes, scale += scale_bytes) {
        size_t count = (size_t)n * k;
        if (format == LINEAR_F32) {
            linear_pack_rows(format, data, n, k, normals(rig, count, spread), k * 4ul, 0, n);
        } else if (format == LINEAR_BF16) {
            linear_pack_rows(format, data, n, k, bf16_normals(rig, count, spread), k * 2ul, 0, n);
        } else if (format == LINEAR_FP8) {
            uint8_t *codes = rig_alloc(rig, count);
            for (size_t i = 0; i < count; i++) /* every code but the two of NaN */
                codes[i] = (uint8_t)(rig_below(rig, 127) | rig_below(rig, 2) << 7);
            size_t blocks = (k + block_begin + FP8_BLOCK - 1) / FP8_BLOCK;
            float *scales = normals(rig, n * blocks, spread / 100);
            linear_pack_fp8(data, (float *)(void *)scale, n, k, block_begin, codes, k, scales,
                            blocks * sizeof(float), 0, n);
        } else {
            uint8_t *packed = rig_alloc(rig, count / 2);
            for (size_t i = 0; i < count / 2; i++)
                packed[i] = (uint8_t)rig_below(rig, 256);
            bf16 *scales = bf16_normals(rig, count / 32, spread / 4);
            linear_pack_int4(data, (bf16 *)(void *)scale, n, k, packed, k / 2, scales, k / 16, 0,
                             n);
        }
    }
    return (struct linear_weight){
        .data = data - batch * data_bytes,
        .scale = scale_bytes > 0 ? scale - batch * scale_bytes : NULL,
        .format = format,
        .n = n,
        .k = k,
        .block_begin = block_begin,
    };
}

static double weight_bytes(const struct linear_weight *weight) {
    return (double)linear_data_bytes(weight->format, weight->n, weight->k) +
           (double)linear_scale_bytes(weight->format, weight->n, weight->k);
}

void rig_linear(struct rig *rig, const struct linear_case *c, uint32_t threads,
                struct rig_call *call) {
    (void)threads;
    size_t x_stride = c->k + c->pad, y_stride = c->n + c->pad;
    call->args.linear = (struct linear_args){
        .x = normals(rig, c->batch * c->rows * x_stride, 1),
        .x_stride = x_stride,
        .x_batch_stride = c->rows * x_stride,
        .weight = rig_weight(rig, c->format, c->n, c->k, c->batch),
        .y = add_output(rig, call, "y", RIG_F32, NULL, c->batch, c->rows, y_stride),
        .y_stride = y_stride,
        .y_batch_stride = c->rows * y_stride,
        .add = c->add ? normals(rig, (size_t)c->segments * c->rows * c->n, 1) : NULL,
        .rows = c->rows,
        .batch = c->batch,
        .segments = c->segments,
        .activation = c->activation,
    };
    call->activation = c->activation;
    call->scratch_bytes = linear_scratch_bytes(c->activation, (size_t)c->batch * c->rows, c->k);
    call->bytes = c->batch * weight_bytes(&call->args.linear.weight);
    call->flops = 2.0 * c->batch * c->rows * c->n * c->k;
}

void rig_rope(struct rig *rig, const struct rope_case *c, uint32_t threads, struct rig_call *call) {
    (void)threads;
    size_t head_stride = c->dim + c->pad, row_stride = c->heads * head_stride + c->pad;
    float *cos_sin = rig_alloc(rig, (size_t)c->rows * c->dim * sizeof(float));
    uint32_t *position = rig_alloc(rig, c->rows * sizeof(uint32_t));
    double *inv_freq = rig_alloc(rig, c->dim / 2 * sizeof(double));
    for (uint32_t t = 0; t < c->rows; t++)
        position[t] = c->position + t;
    for (uint32_t i = 0; i < c->dim / 2; i++)
        inv_freq[i] = pow(50000.0, -2.0 * i / c->dim);
    rope_angles(cos_sin, position, c->rows, inv_freq, c->dim);
    float *x = normals(rig, c->rows * row_stride, 1);
    call->args.rope = (struct rope_args){
        .x = add_output(rig, call, "x", RIG_F32, x, 1, c->rows, row_stride),
        .row_stride = row_stride,
        .head_stride = head_stride,
        .cos_sin = cos_sin,
        .rows = c->rows,
        .heads = c->heads,
        .dim = c->dim,
        .halves = c->halves,
    };
    call->bytes = (double)c->rows * c->heads * c->dim * 4;
    call->flops = (double)c->rows * c->heads * c->dim * 3;
}

static uint32_t *permutation(struct rig *rig, uint32_t count) {
    uint32_t *out = rig_alloc(rig, count * sizeof(uint32_t));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = rig_below(rig, i + 1);
        out[i] = out[j];
        out[j] = i;
    }
    return out;
}

static float *sprinkle_special(struct rig *rig, float *values, size_t count) {
    static const uint32_t special[] = {
        0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, /* infinities, NaN of both kinds */
        0x80000000, 0x00000001, 0x3f808000, 0x3f818000, /* -0, subnormal, two ties */
        0x7f7fffff,                                     /* rounds to infinity */
    };
    for (size_t i = 0; i < count; i += 1 + rig_below(rig, 20))
        memcpy(&values[i], &special[rig_below(rig, 9)], sizeof(float));
    return values;
}

/* What an FP8 group may hold: a row of special values, one of zeros, one of subnormal numbers, and
 * short ones of any size, of which many lie between two codes. */
static void sprinkle_short(struct rig *rig, float *values, uint32_t rows, size_t stride) {
    for (uint32_t row = 0; row < rows; row++, values += stride) {
        int power = (int)rig_below(rig, 40) - 30;
        if (row % 4 == 0) sprinkle_special(rig, values, stride);
        for (size_t i = 0; i < stride && row % 4 != 0; i++) {
            int digits = (int)rig_below(rig, 127) - 63;
            if (row % 4 == 1) values[i] = copysignf(0.0f, values[i]);
            if (row % 4 == 2) values[i] = ldexpf(values[i], -124);
            if (row % 4 == 3) values[i] = ldexpf((float)digits, power + (int)rig_below(rig, 8));
        }
    }
}

void rig_kv_store(struct rig *rig, const struct kv_store_case *c, uint32_t threads,
                  struct rig_call *call) {
    (void)threads;
    size_t latent_stride = c->latent_dim + c->pad, rope_stride = c->rope_dim + c->pad;
    float *latent = normals(rig, c->rows * latent_stride, 1);
    float *rope_key = normals(rig, c->rows * rope_stride, 1);
    if (c->special && c->dtype == KERNEL_FP8)
        sprinkle_short(rig, latent, c->rows, latent_stride);
    else if (c->special)
        sprinkle_special(rig, latent, c->rows * latent_stride);
    if (c->special) sprinkle_special(rig, rope_key, c->rows * rope_stride);
    enum rig_type type = c->dtype == KERNEL_F32    ? RIG_F32
                         : c->dtype == KERNEL_BF16 ? RIG_BF16
                                                   : RIG_U32;
    size_t tok_bytes = kv_tok_bytes(c->dtype, c->latent_dim, c->rope_dim);
    uint32_t *slot = permutation(rig, c->slots);
    for (uint32_t t = c->rows - c->fill; t < c->rows; t++)
        slot[t] = KV_SLOT_NONE;
    call->args.kv_store = (struct kv_store_args){
        .latent = latent,
        .latent_stride = latent_stride,
        .rope_key = rope_key,
        .rope_stride = rope_stride,
        .kv = add_output(rig, call, "kv", type, NULL, 1, c->slots, tok_bytes / type_bytes(type)),
        .kv_dtype = c->dtype,
        .slot = slot,
        .rows = c->rows,
        .latent_dim = c->latent_dim,
        .rope_dim = c->rope_dim,
    };
    call->bytes = 4.0 * c->rows * (c->latent_dim + c->rope_dim);
}

/* Tokens of any bytes. */
static void *add_cache(struct rig *rig, struct rig_call *call, size_t slots, size_t tok_bytes) {
    size_t words = tok_bytes / sizeof(uint32_t);
    uint32_t *kv = rig_alloc(rig, slots * tok_bytes);
    for (size_t i = 0; i < slots * words; i++)
        kv[i] = next_u32(rig);
    return add_output(rig, call, "kv", RIG_U32, kv, 1, slots, words);
}

void rig_kv_copy(struct rig *rig, const struct kv_copy_case *c, uint32_t threads,
                 struct rig_call *call) {
    (void)threads;
    size_t slots = (size_t)c->pages * c->page_tok;
    struct kv_page_copy *copies = rig_alloc(rig, c->copy_count * sizeof(*copies));
    for (uint32_t i = 0; i < c->copy_count; i++)
        copies[i] = (struct kv_page_copy){
            .source = c->chained ? i : 0,
            .target = i + 1,
            .tok_count = i == 0 ? c->page_tok : rig_below(rig, c->page_tok + 1),
        };
    call->args.kv_copy = (struct kv_copy_args){
        .kv = add_cache(rig, call, slots, c->tok_bytes),
        .copies = copies,
        .copy_count = c->copy_count,
        .page_tok = c->page_tok,
        .tok_bytes = c->tok_bytes,
    };
    call->bytes = 2.0 * c->copy_count * c->page_tok * c->tok_bytes;
}

void rig_kv_move(struct rig *rig, const struct kv_move_case *c, uint32_t threads,
                 struct rig_call *call) {
    (void)threads;
    struct kv_slot_move *moves = rig_alloc(rig, c->move_count * sizeof(*moves));
    for (uint32_t i = 0; i < c->move_count; i++)
        moves[i] = c->chained
                       ? (struct kv_slot_move){i + 1, i}
                       : (struct kv_slot_move){rig_below(rig, c->slots), rig_below(rig, c->slots)};
    call->args.kv_move = (struct kv_move_args){
        .kv = add_cache(rig, call, c->slots, c->tok_bytes),
        .moves = moves,
        .move_count = c->move_count,
        .tok_bytes = c->tok_bytes,
    };
    call->bytes = 2.0 * c->move_count * c->tok_bytes;
}

/* Normal latents and keys of so many slots. */
static void *latent_cache(struct rig *rig, enum kernel_dtype dtype, size_t slots,
                          uint32_t latent_dim, uint32_t rope_dim) {
    size_t dim = (size_t)latent_dim + rope_dim, bytes = kv_tok_bytes(dtype, latent_dim, rope_dim);
    if (dtype == KERNEL_F32) return normals(rig, slots * dim, 1);
    if (dtype == KERNEL_BF16) return bf16_normals(rig, slots * dim, 1);
    uint8_t *kv = rig_alloc(rig, slots * bytes);
    for (uint8_t *tok = kv; tok < kv + slots * bytes; tok += bytes) {
        float *scale = (float *)(void *)(tok + latent_dim);
        bf16 *rope = (bf16 *)(void *)(tok + kv_fp8_rope_at(latent_dim));
        for (size_t g = 0; g < kv_fp8_groups(latent_dim); g++)
            scale[g] = ldexpf(1.0f, -4 - (int)rig_below(rig, 4));
        for (size_t i = 0; i < latent_dim; i++)
            tok[i] = e4m3_from_f32(rig_normal(rig) / scale[i / KV_FP8_GROUP]);
        for (size_t i = 0; i < rope_dim; i++)
            rope[i] = bf16_from_f32(rig_normal(rig));
    }
    return kv;
}

static uint64_t *ancestors_of(struct rig *rig, enum tree_shape shape, uint32_t rows) {
    if (shape == CHAIN) return NULL;
    uint64_t *mask = rig_alloc(rig, rows * sizeof(uint64_t));
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t parent = i == 0 ? 0 : i - 1;
        if (shape == TREE_WIDE) parent = 0;
        if (shape == TREE_BUSHY) parent = rig_below(rig, i > 0 ? i : 1);
        mask[i] = (i > 0 ? mask[parent] : 0) | UINT64_C(1) << i;
    }
    return mask;
}

void rig_mla_tree(struct rig *rig, const struct mla_tree_case *c, uint32_t threads,
                  struct rig_call *call) {
    uint32_t rows = 0, pages = 0, rows_max = 0, positions_max = 0;
    struct mla_sequence *sequences = rig_alloc(rig, c->sequence_count * sizeof(*sequences));
    size_t dim = c->latent_dim + c->rope_dim;
    for (uint32_t s = 0; s < c->sequence_count; s++)
        pages += (c->sequence[s].committed + c->sequence[s].rows) / c->page_tok + 1;
    const uint32_t *page = permutation(rig, pages);
    double positions = 0, tokens = 0;
    for (uint32_t s = 0; s < c->sequence_count; s++) {
        sequences[s] = (struct mla_sequence){
            .row_begin = rows,
            .row_count = c->sequence[s].rows,
            .committed = c->sequence[s].committed,
            .page = page,
            .ancestors = ancestors_of(rig, c->sequence[s].shape, c->sequence[s].rows),
        };
        uint32_t seen = c->sequence[s].committed + c->sequence[s].rows;
        if (c->sequence[s].rows > rows_max) rows_max = c->sequence[s].rows;
        if (seen > positions_max) positions_max = seen;
        rows += c->sequence[s].rows;
        tokens += c->sequence[s].committed + c->sequence[s].rows;
        page += (c->sequence[s].committed + c->sequence[s].rows) / c->page_tok + 1;
        for (uint32_t i = 0; i < c->sequence[s].rows; i++)
            positions += c->sequence[s].committed + i + 1;
    }
    size_t rope_head_stride = c->rope_dim + 16, rope_row_stride = c->heads * rope_head_stride;
    call->args.mla_tree = (struct mla_tree_args){
        .q_latent = normals(rig, (size_t)rows * c->heads * c->latent_dim, 1),
        .q_rope = normals(rig, rows * rope_row_stride, 1),
        .q_rope_row_stride = rope_row_stride,
        .q_rope_head_stride = rope_head_stride,
        .kv = latent_cache(rig, c->dtype, (size_t)pages * c->page_tok, c->latent_dim, c->rope_dim),
        .kv_dtype = c->dtype,
        .sequences = sequences,
        .sequence_count = c->sequence_count,
        .out = add_output(rig, call, "out", RIG_F32, NULL, 1, rows, c->heads * c->latent_dim),
        .heads = c->heads,
        .latent_dim = c->latent_dim,
        .rope_dim = c->rope_dim,
        .page_tok = c->page_tok,
        .scale = 1.5f / sqrtf((float)dim),
        .rows_max = rows_max,
        .positions_max = positions_max,
        .activation = c->activation,
    };
    call->activation = c->activation;
    call->scratch_bytes = mla_tree_scratch_bytes(threads, c->latent_dim, c->rope_dim);
    call->bytes = tokens * (double)kv_tok_bytes(c->dtype, c->latent_dim, c->rope_dim);
    call->flops = 2 * positions * c->heads * (double)(dim + c->latent_dim);
}

void rig_mla_expanded(struct rig *rig, const struct mla_expanded_case *c, uint32_t threads,
                      struct rig_call *call) {
    uint32_t rows = 0, rows_max = 0, pages = 0;
    struct mla_sequence *sequences = rig_alloc(rig, c->sequence_count * sizeof(*sequences));
    for (uint32_t s = 0; s < c->sequence_count; s++)
        pages += (c->sequence[s].committed + c->sequence[s].rows) / c->page_tok + 1;
    const uint32_t *page = permutation(rig, pages);
    double seen = 0, tokens = 0;
    for (uint32_t s = 0; s < c->sequence_count; s++) {
        uint32_t committed = c->sequence[s].committed, count = c->sequence[s].rows;
        sequences[s] = (struct mla_sequence){
            .row_begin = rows, .row_count = count, .committed = committed, .page = page};
        rows += count;
        if (count > rows_max) rows_max = count;
        page += (committed + count) / c->page_tok + 1;
        tokens += committed + count;
        seen += (double)count * committed + count * (count + 1.0) / 2;
    }
    size_t head_stride = c->nope_dim + c->rope_dim, row_stride = c->heads * head_stride + 16;
    call->args.mla_expanded = (struct mla_expanded_args){
        .q = normals(rig, rows * row_stride, 1),
        .q_row_stride = row_stride,
        .q_head_stride = head_stride,
        .kv = latent_cache(rig, c->dtype, (size_t)pages * c->page_tok, c->latent_dim, c->rope_dim),
        .kv_dtype = c->dtype,
        .w_uk = rig_weight(rig, c->format, c->latent_dim, c->nope_dim, c->heads),
        .w_uv = rig_weight(rig, c->format, c->value_dim, c->latent_dim, c->heads),
        .sequences = sequences,
        .sequence_count = c->sequence_count,
        .out = add_output(rig, call, "out", RIG_F32, NULL, 1, rows, c->heads * c->value_dim),
        .heads = c->heads,
        .latent_dim = c->latent_dim,
        .rope_dim = c->rope_dim,
        .nope_dim = c->nope_dim,
        .value_dim = c->value_dim,
        .page_tok = c->page_tok,
        .scale = 1.5f / sqrtf((float)head_stride),
        .activation = c->activation,
    };
    call->activation = c->activation;
    call->scratch_bytes = mla_expanded_scratch_bytes(threads, rows_max, c->latent_dim, c->rope_dim,
                                                     c->nope_dim, c->value_dim);
    call->bytes = tokens * (double)kv_tok_bytes(c->dtype, c->latent_dim, c->rope_dim);
    call->flops = 2 * c->heads *
                  (seen * (double)(head_stride + c->value_dim) +
                   tokens * (double)c->latent_dim * (c->nope_dim + c->value_dim));
}

void rig_gqa_block(struct rig *rig, const struct gqa_block_case *c, uint32_t threads,
                   struct rig_call *call) {
    uint32_t rows = 0, pages = 0, rows_max = 0;
    struct gqa_sequence *sequences = rig_alloc(rig, c->sequence_count * sizeof(*sequences));
    for (uint32_t s = 0; s < c->sequence_count; s++)
        pages += c->sequence[s].committed / c->page_tok + 1;
    const uint32_t *page = permutation(rig, pages);
    double keys = 0, scores = 0;
    for (uint32_t s = 0; s < c->sequence_count; s++) {
        uint32_t committed = c->sequence[s].committed, from = c->sequence[s].context_begin;
        sequences[s] = (struct gqa_sequence){.row_begin = rows,
                                             .row_count = c->sequence[s].rows,
                                             .committed = committed,
                                             .context_begin = from,
                                             .page = page};
        page += committed / c->page_tok + 1;
        rows += c->sequence[s].rows;
        if (c->sequence[s].rows > rows_max) rows_max = c->sequence[s].rows;
        keys += committed - from + c->sequence[s].rows;
        scores += (double)c->sequence[s].rows * (committed - from + c->sequence[s].rows);
    }
    size_t dim = (size_t)c->kv_heads * c->head_dim, count = (size_t)pages * c->page_tok * 2 * dim;
    call->args.gqa_block = (struct gqa_block_args){
        .q = normals(rig, (size_t)rows * c->heads * c->head_dim, 1),
        .k = normals(rig, rows * dim, 1),
        .v = normals(rig, rows * dim, 1),
        .kv = c->dtype == KERNEL_F32 ? (void *)normals(rig, count, 1)
                                     : (void *)bf16_normals(rig, count, 1),
        .kv_dtype = c->dtype,
        .sequences = sequences,
        .sequence_count = c->sequence_count,
        .out = add_output(rig, call, "out", RIG_F32, NULL, 1, rows, c->heads * c->head_dim),
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .page_tok = c->page_tok,
        .window = c->window,
        .causal = c->causal,
        .scale = 1.5f / sqrtf((float)c->head_dim),
        .rows_max = rows_max,
    };
    call->scratch_bytes = gqa_block_scratch_bytes(threads, c->head_dim);
    call->bytes = 2 * keys * (double)dim * (c->dtype == KERNEL_F32 ? 4 : 2);
    call->flops = 4 * scores * c->heads * c->head_dim;
}

void rig_moe_route(struct rig *rig, const struct moe_route_case *c, uint32_t threads,
                   struct rig_call *call) {
    (void)threads;
    size_t count = (size_t)c->rows * c->experts;
    float *logits = normals(rig, count, 1.5f);
    for (size_t i = 0; i < count && c->ties; i++)
        logits[i] = (float)rig_below(rig, 4) * 0.5f;
    float *bias = normals(rig, c->experts, 0.2f);
    for (uint32_t e = 0; e < c->experts && c->ties; e++)
        bias[e] = (float)rig_below(rig, 2);
    uint32_t *row_count = rig_alloc(rig, sizeof *row_count);
    *row_count = c->rows - c->fill;
    call->args.moe_route = (struct moe_route_args){
        .logits = logits,
        .bias = c->bias ? bias : NULL,
        .expert = add_output(rig, call, "expert", RIG_U32, NULL, 1, c->rows, c->topk),
        .weight = add_output(rig, call, "weight", RIG_F32, NULL, 1, c->rows, c->topk),
        .rows = c->rows,
        .row_count = c->fill > 0 ? row_count : NULL,
        .experts = c->experts,
        .topk = c->topk,
        .groups = c->groups,
        .topk_groups = c->topk_groups,
        .scoring = c->scoring,
        .renormalize = c->renormalize,
        .scale = c->scale,
    };
    call->bytes = (double)count * 4;
}

static void fill_experts(struct rig *rig, const struct moe_experts_case *c, uint32_t *expert) {
    for (uint32_t t = 0; t < c->rows; t++) {
        uint32_t left = c->topk, *row = expert + (size_t)t * c->topk;
        for (uint32_t e = 0; e < c->experts && left > 0; e++) {
            uint32_t open = c->experts - e;
            bool take = rig_below(rig, open) < left;
            if (c->routing == ROUTE_ALL_SAME) take = true;
            if (c->routing == ROUTE_LAST) take = open <= left;
            if (take) row[c->topk - left--] = e;
        }
    }
}

void rig_moe_experts(struct rig *rig, const struct moe_experts_case *c, uint32_t threads,
                     struct rig_call *call) {
    (void)threads;
    struct moe_expert *experts = rig_alloc(rig, c->experts * sizeof(*experts));
    size_t pairs = (size_t)c->rows * c->topk;
    uint32_t *expert = rig_alloc(rig, pairs * sizeof(uint32_t));
    float *weight = normals(rig, pairs, 1);
    bool *used = rig_alloc(rig, c->experts);
    fill_experts(rig, c, expert);
    for (size_t i = 0; i < pairs; i++)
        used[expert[i]] = true;
    for (uint32_t e = 0; e < c->experts; e++) {
        if (!used[e]) continue; /* an idle expert has no weights: it must not be touched */
        experts[e].gate_up = rig_weight(rig, c->gate_up, 2 * c->width, c->dim, 1);
        experts[e].down = rig_weight(rig, c->down, c->dim, c->width, 1);
        call->bytes += weight_bytes(&experts[e].gate_up) + weight_bytes(&experts[e].down);
    }
    call->args.moe_experts = (struct moe_experts_args){
        .x = normals(rig, (size_t)c->rows * c->dim, 2),
        .expert = expert,
        .weight = weight,
        .experts = experts,
        .y = add_output(rig, call, "y", RIG_F32, NULL, c->segments, c->rows, c->dim),
        .rows = c->rows,
        .topk = c->topk,
        .expert_count = c->experts,
        .dim = c->dim,
        .width = c->width,
        .segments = c->segments,
        .activation = c->activation,
        .gate_up_format = c->gate_up,
        .down_format = c->down,
    };
    call->activation = c->activation;
    call->scratch_bytes = moe_experts_scratch_bytes(c->rows, c->topk, c->experts, c->dim, c->width);
    call->flops = 6.0 * (double)pairs * c->dim * c->width;
}

void rig_swiglu(struct rig *rig, const struct swiglu_case *c, uint32_t threads,
                struct rig_call *call) {
    (void)threads;
    size_t stride = 2 * (size_t)c->dim + c->pad, y_stride = c->dim + c->pad;
    call->args.swiglu = (struct swiglu_args){
        .gate_up = normals(rig, c->rows * stride, c->spread),
        .gate_up_stride = stride,
        .y = add_output(rig, call, "y", RIG_F32, NULL, 1, c->rows, y_stride),
        .y_stride = y_stride,
        .rows = c->rows,
        .dim = c->dim,
    };
    call->bytes = (double)c->rows * c->dim * 8;
}

static float *shaped_logits(struct rig *rig, enum logits_shape shape, uint32_t vocab) {
    float *logits = normals(rig, vocab, 3);
    for (uint32_t id = 0; id < vocab; id++) {
        if (shape == LOGITS_FLAT) logits[id] = 1.0f + 0.001f * rig_normal(rig);
        if (shape == LOGITS_TIES)
            logits[id] = (float)rig_below(rig, 3) * (rig_below(rig, 2) ? 1 : -1);
        if (shape == LOGITS_PEAK) logits[id] = id == vocab / 3 ? 30.0f : -80.0f;
        if (shape == LOGITS_MASKED && rig_below(rig, 4) != 0) logits[id] = -INFINITY;
        if (shape == LOGITS_ODD && id % 7 == 3) logits[id] = NAN;
        if (shape == LOGITS_ODD && id == vocab / 2) logits[id] = INFINITY;
        if (shape == LOGITS_NONE) logits[id] = id % 2 ? NAN : -INFINITY;
    }
    return logits;
}

static uint32_t *path_counts(struct rig *rig, enum path_shape path, uint32_t vocab) {
    if (path == PATH_NONE) return NULL;
    uint32_t *count = rig_alloc(rig, vocab * sizeof(uint32_t));
    for (uint32_t id = 0; id < vocab && path != PATH_EMPTY; id++)
        if (path == PATH_FULL || rig_below(rig, 10) == 0)
            count[id] = rig_below(rig, 2) * PENALIZE_PROMPT +
                        rig_below(rig, 4) * PENALIZE_REPLY_ONE + (path == PATH_FULL);
    return count;
}

static struct penalize_bias *biases(struct rig *rig, uint32_t count, uint32_t vocab) {
    struct penalize_bias *bias = rig_alloc(rig, count * sizeof *bias);
    uint32_t id = 0;
    for (uint32_t i = 0; i < count; i++) {
        id += rig_below(rig, vocab - id - (count - 1 - i));
        bias[i] = (struct penalize_bias){.token = id++, .value = rig_normal(rig) * 10};
    }
    return bias;
}

void rig_penalize(struct rig *rig, const struct penalize_case *c, uint32_t threads,
                  struct rig_call *call) {
    (void)threads;
    float *logits = shaped_logits(rig, c->odd ? LOGITS_ODD : LOGITS_NORMAL, c->vocab);
    for (uint32_t id = 0; id < c->vocab && c->odd; id += 11)
        logits[id] = id % 2 ? 0.0f : id % 4 ? -0.0f : -INFINITY;
    uint32_t *tail = rig_alloc(rig, c->tail_count * sizeof(uint32_t));
    for (uint32_t i = 0; i < c->tail_count; i++)
        tail[i] = rig_below(rig, c->vocab < 40 ? c->vocab : 40); /* some of them more than once */
    call->args.penalize = (struct penalize_args){
        .logits = logits,
        .vocab = c->vocab,
        .count = path_counts(rig, c->path, c->vocab),
        .tail = tail,
        .tail_count = c->tail_count,
        .bias = biases(rig, c->bias_count, c->vocab),
        .bias_count = c->bias_count,
        .repetition = c->repetition,
        .presence = c->presence,
        .frequency = c->frequency,
        .out = add_output(rig, call, "out", RIG_F32, NULL, 1, 1, c->vocab),
    };
    call->bytes = (double)c->vocab * (c->path == PATH_NONE ? 4 : 8);
}

void rig_sample(struct rig *rig, const struct sample_case *c, uint32_t threads,
                struct rig_call *call) {
    (void)threads;
    float *logits = shaped_logits(rig, c->shape, c->vocab);
    call->args.sample = (struct sample_args){
        .logits = logits,
        .model_logits = c->penalized ? shaped_logits(rig, c->shape, c->vocab) : logits,
        .vocab = c->vocab,
        .params = {.temperature = c->temperature,
                   .top_p = c->top_p,
                   .top_k = c->top_k,
                   .min_p = c->min_p,
                   .choice = rig_below(rig, 3),
                   .seed = rig_below(rig, UINT32_MAX)},
        .position = rig_below(rig, 100000),
        .top_count = c->top_count,
        .token = add_output(rig, call, "token", RIG_U32, NULL, 1, 1, 1),
        .logprob = add_output(rig, call, "logprob", RIG_F32, NULL, 1, 1, 1),
        .top_token = add_output(rig, call, "top_token", RIG_U32, NULL, 1, 1, c->top_count),
        .top_logprob = add_output(rig, call, "top_logprob", RIG_F32, NULL, 1, 1, c->top_count),
    };
    call->scratch_bytes = sample_scratch_bytes(c->vocab);
    call->bytes = (double)c->vocab * 4;
}

void rig_top_tokens(struct rig *rig, const struct top_tokens_case *c, uint32_t threads,
                    struct rig_call *call) {
    (void)threads;
    size_t stride = c->width + c->pad;
    float *logits = rig_alloc(rig, c->rows * stride * sizeof(float));
    for (uint32_t t = 0; t < c->rows; t++)
        memcpy(logits + t * stride, shaped_logits(rig, c->shape, c->width),
               c->width * sizeof(float));
    call->args.top_tokens = (struct top_tokens_args){
        .logits = logits,
        .logits_stride = stride,
        .rows = c->rows,
        .width = c->width,
        .id_begin = c->id_begin,
        .count = c->count,
        .segments = c->segments,
        .token = add_output(rig, call, "token", RIG_U32, NULL, 1, c->rows, c->count),
        .logit = add_output(rig, call, "logit", RIG_F32, NULL, 1, c->rows, c->count),
        .max = add_output(rig, call, "max", RIG_F32, NULL, 1, c->rows, c->segments),
        .sum = add_output(rig, call, "sum", RIG_F32, NULL, 1, c->rows, c->segments),
    };
    call->bytes = (double)c->rows * c->width * 4;
}
