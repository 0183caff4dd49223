/* A task is one head of one chunk. It goes through the prefix in blocks of 128 tokens: makes the
 * head's keys and values of the block as two weights in panels, and then, a tile of rows at a time,
 * scores and sums are products with them. All four products are linear_tile_dot's.
 *
 *     w_uk  [N rows]   x latents [128 outputs]      -> keys   [128 outputs, N + P inputs]
 *     tok   [128 rows] x W_UV    [V outputs]        -> values [V outputs, 128 inputs]
 *     query [rows]     x keys                       -> scores -> weights
 *     weights [rows]   x values                     -> out
 *
 * Where heads are fewer than threads, a chunk's rows are parted, and each part makes its own. */
#include "mla_expanded/mla_expanded.h"

#include "linear/linear_tile.h"
#include "linear/linear_transpose.h"
#include "mla_expanded/mla_expanded_scratch.h"
#include "mla_tree/mla_block.h"
#include "mla_tree/mla_token.h"
#include "simd/f32x16_math.h"
#include "team.h"

#define PANELS_OF_BLOCK (MLA_BLOCK_TOK / KERNEL_PANEL)
_Static_assert(PANELS_OF_BLOCK <= LINEAR_TILE_PANELS, "a block is a tile wide");
_Static_assert(LINEAR_TILE_ROWS <= MLA_EXPANDED_ROWS, "a tile of rows has room");

/* Rows of a tile that become pairs of inputs. */
#define PAIRED_ROWS (LINEAR_TILE_ROWS & ~1u)

struct job {
    const struct mla_expanded_args *args;
    char *scratch;
    size_t thread_bytes, value_bytes;
    uint32_t part_count;
    uint32_t rows_max;
    enum linear_format format; /* of keys and values */
};

/* What a task works on. */
struct chunk {
    const struct job *job;
    const struct mla_expanded_args *args;
    const struct mla_sequence *seq;
    uint32_t head, row_begin, row_end;
    struct mla_expanded_scratch s;
};

static void run_task(void *arg, uint32_t task, uint32_t thread);
static void unpack_w_uk(const struct chunk *chunk);
static void clear(const struct chunk *chunk);
static void gather(const struct chunk *chunk, uint32_t begin, uint32_t count);
static void make_keys(const struct chunk *chunk);
static void make_values(const struct chunk *chunk);
static void attend(const struct chunk *chunk, uint32_t row, uint32_t count, uint32_t begin);
static void divide(const struct chunk *chunk);

CPU_OP(mla_expanded) {
    const uint32_t threads = team_threads(ctx->team);
    struct job job = {.args = args, .scratch = ctx->scratch, .part_count = 1};
    KERNEL_CHECK(args->latent_dim % 16 == 0 && args->rope_dim % 16 == 0 && args->nope_dim % 2 == 0);
    KERNEL_CHECK(args->w_uk.format == args->w_uv.format &&
                 (args->w_uk.format == LINEAR_F32 || args->w_uk.format == LINEAR_BF16));
    KERNEL_CHECK(args->activation == KERNEL_F32 ||
                 (args->kv_dtype != KERNEL_F32 && args->w_uk.format == LINEAR_BF16));
    for (uint32_t i = 0; i < args->sequence_count; i++) {
        KERNEL_CHECK(!args->sequences[i].ancestors);
        if (args->sequences[i].row_count > job.rows_max)
            job.rows_max = args->sequences[i].row_count;
    }
    if (job.rows_max == 0) return;
    struct mla_expanded_scratch measured;
    job.thread_bytes = mla_expanded_scratch_lay(&measured, NULL, job.rows_max, args->latent_dim,
                                                args->rope_dim, args->nope_dim, args->value_dim);
    KERNEL_CHECK(ctx->scratch_bytes >= threads * job.thread_bytes);
    job.format = args->activation == KERNEL_BF16 ? LINEAR_BF16 : LINEAR_F32;
    job.value_bytes = args->activation == KERNEL_BF16 ? sizeof(bf16) : sizeof(float);
    if (args->heads * args->sequence_count < threads)
        job.part_count = divide_up(threads, args->heads * args->sequence_count);
    team_run(ctx->team, run_task, &job, args->sequence_count * args->heads * job.part_count);
}

static void run_task(void *arg, uint32_t task, uint32_t thread) {
    const struct job *job = arg;
    const struct mla_expanded_args *args = job->args;
    struct chunk chunk = {.job = job, .args = args};
    uint32_t part = task % job->part_count;
    chunk.head = task / job->part_count % args->heads;
    chunk.seq = &args->sequences[task / job->part_count / args->heads];
    uint32_t part_rows = divide_up(chunk.seq->row_count, job->part_count);
    chunk.row_begin = min_u32(part * part_rows, chunk.seq->row_count);
    chunk.row_end = min_u32(chunk.row_begin + part_rows, chunk.seq->row_count);
    if (chunk.row_begin == chunk.row_end) return;
    mla_expanded_scratch_lay(&chunk.s, job->scratch + thread * job->thread_bytes, job->rows_max,
                             args->latent_dim, args->rope_dim, args->nope_dim, args->value_dim);

    unpack_w_uk(&chunk);
    clear(&chunk);
    uint32_t committed = chunk.seq->committed, positions = committed + chunk.row_end;
    for (uint32_t begin = 0; begin < positions; begin += MLA_BLOCK_TOK) {
        gather(&chunk, begin, min_u32(positions - begin, MLA_BLOCK_TOK));
        make_keys(&chunk);
        make_values(&chunk);
        uint32_t row = begin > committed + chunk.row_begin ? begin - committed : chunk.row_begin;
        for (; row < chunk.row_end; row += LINEAR_TILE_ROWS)
            attend(&chunk, row, min_u32(chunk.row_end - row, LINEAR_TILE_ROWS), begin);
    }
    divide(&chunk);
}

/* The head's weight of a batch. */
static struct linear_weight of_head(const struct linear_weight *weight, uint32_t head) {
    struct linear_weight out = *weight;
    out.data = (const char *)weight->data +
               head * linear_data_bytes(weight->format, weight->n, weight->k);
    return out;
}

/* Panels of outputs r and inputs n become rows n. */
static void unpack_w_uk(const struct chunk *chunk) {
    const struct mla_expanded_args *args = chunk->args;
    struct linear_weight weight = of_head(&args->w_uk, chunk->head);
    bool narrow = args->activation == KERNEL_BF16;
    size_t latent_dim = args->latent_dim;
    for (uint32_t n = 0; n < args->nope_dim; n++) {
        bf16 *row = (bf16 *)(void *)chunk->s.w_uk + n * latent_dim;
        float *wide = (float *)(void *)chunk->s.w_uk + n * latent_dim;
        for (uint32_t r = 0; r < latent_dim; r++) {
            if (weight.format == LINEAR_F32) {
                size_t at = ((size_t)r / KERNEL_PANEL * weight.k + n) * KERNEL_PANEL;
                wide[r] = ((const float *)weight.data)[at + r % KERNEL_PANEL];
                continue;
            }
            size_t pair = (size_t)r / KERNEL_PANEL * (weight.k / 2) + n / 2;
            bf16 value =
                ((const bf16 *)weight.data)[(pair * KERNEL_PANEL + r % KERNEL_PANEL) * 2 + n % 2];
            if (narrow)
                row[r] = value;
            else
                wide[r] = bf16_to_f32(value);
        }
    }
}

static float *out_of(const struct chunk *chunk, uint32_t row) {
    const struct mla_expanded_args *args = chunk->args;
    size_t t = (size_t)chunk->seq->row_begin + row;
    return args->out + (t * args->heads + chunk->head) * args->value_dim;
}

static void clear(const struct chunk *chunk) {
    for (uint32_t row = chunk->row_begin; row < chunk->row_end; row++) {
        memset(out_of(chunk, row), 0, chunk->args->value_dim * sizeof(float));
        chunk->s.max[row] = -INFINITY;
        chunk->s.sum[row] = 0;
    }
}

/* Panel p of the keys. */
static char *keys_of(const struct chunk *chunk, uint32_t p) {
    size_t inputs = chunk->args->nope_dim + chunk->args->rope_dim;
    return chunk->s.keys + p * inputs * KERNEL_PANEL * chunk->job->value_bytes;
}

/* The first `bytes` of 32 rows become a panel's inputs: floats, or pairs of bf16. */
static void transpose(char *panel, const char *rows, size_t row_bytes, size_t bytes) {
    linear_transpose_u32((uint32_t *)(void *)panel, rows, row_bytes, KERNEL_PANEL,
                         (uint32_t)(bytes / sizeof(uint32_t)));
}

/* The block's tokens from the cache, zeros behind them: as rows, their latents as panels, and their
 * rotated keys where the head's keys end. */
static void gather(const struct chunk *chunk, uint32_t begin, uint32_t count) {
    const struct mla_expanded_args *args = chunk->args;
    size_t dim = (size_t)args->latent_dim + args->rope_dim,
           row_bytes = dim * chunk->job->value_bytes;
    size_t tok_bytes = kv_tok_bytes(args->kv_dtype, args->latent_dim, args->rope_dim);
    for (uint32_t j = 0; j < count; j++) {
        uint32_t tok = begin + j;
        size_t slot = (size_t)chunk->seq->page[tok / args->page_tok] * args->page_tok +
                      tok % args->page_tok;
        const char *tok_at = (const char *)args->kv + slot * tok_bytes;
        char *to = chunk->s.tok + j * row_bytes;
        if (args->kv_dtype == args->activation)
            memcpy(to, tok_at, row_bytes);
        else if (args->activation == KERNEL_F32)
            mla_token_to_f32(args->kv_dtype, tok_at, args->latent_dim, args->rope_dim, (void *)to);
        else
            mla_token_to_bf16(tok_at, args->latent_dim, args->rope_dim, (void *)to);
    }
    memset(chunk->s.tok + count * row_bytes, 0, (MLA_BLOCK_TOK - count) * row_bytes);
    for (uint32_t p = 0; p < PANELS_OF_BLOCK; p++) {
        const char *rows = chunk->s.tok + p * KERNEL_PANEL * row_bytes;
        size_t latent_bytes = args->latent_dim * chunk->job->value_bytes;
        char *rope = keys_of(chunk, p) + args->nope_dim * KERNEL_PANEL * chunk->job->value_bytes;
        transpose(chunk->s.latents + p * KERNEL_PANEL * latent_bytes, rows, row_bytes,
                  latent_bytes);
        transpose(rope, rows + latent_bytes, row_bytes, row_bytes - latent_bytes);
    }
}

/* Inputs k and k + 1 of a panel, from two rows of sums. */
static void store_inputs(const struct chunk *chunk, char *panel, uint32_t k, const float *first,
                         const float *second) {
    char *to = panel + (size_t)k * KERNEL_PANEL * chunk->job->value_bytes;
    if (chunk->args->activation == KERNEL_F32) {
        memcpy(to, first, KERNEL_PANEL * sizeof(float));
        memcpy(to + KERNEL_PANEL * sizeof(float), second, KERNEL_PANEL * sizeof(float));
        return;
    }
    bf16 narrow[2][KERNEL_PANEL];
    uint32_t pair[KERNEL_PANEL];
    linear_tile_narrow(KERNEL_BF16, narrow[0], sizeof narrow[0], first, KERNEL_PANEL);
    linear_tile_narrow(KERNEL_BF16, narrow[1], sizeof narrow[1], second, KERNEL_PANEL);
    for (uint32_t i = 0; i < KERNEL_PANEL; i++)
        pair[i] = narrow[0][i] | (uint32_t)narrow[1][i] << 16;
    memcpy(to, pair, sizeof pair);
}

static void make_keys(const struct chunk *chunk) {
    const struct mla_expanded_args *args = chunk->args;
    const struct linear_weight latents = {.data = chunk->s.latents,
                                          .format = chunk->job->format,
                                          .n = MLA_BLOCK_TOK,
                                          .k = args->latent_dim};
    struct linear_tile tile;
    for (uint32_t n = 0; n < args->nope_dim; n += PAIRED_ROWS) {
        struct linear_rows x = {.dtype = args->activation,
                                .count = min_u32(args->nope_dim - n, PAIRED_ROWS)};
        for (uint32_t r = 0; r < x.count; r++)
            x.row[r] = chunk->s.w_uk + (n + r) * args->latent_dim * chunk->job->value_bytes;
        linear_tile_dot(&tile, &latents, 0, PANELS_OF_BLOCK, 1, &x);
        for (uint32_t p = 0; p < PANELS_OF_BLOCK; p++)
            for (uint32_t r = 0; r < x.count; r += 2)
                store_inputs(chunk, keys_of(chunk, p), n + r, tile.sum[p][r], tile.sum[p][r + 1]);
    }
}

static void make_values(const struct chunk *chunk) {
    const struct mla_expanded_args *args = chunk->args;
    const struct linear_weight w_uv = of_head(&args->w_uv, chunk->head);
    size_t panel_bytes = MLA_BLOCK_TOK * KERNEL_PANEL * chunk->job->value_bytes;
    size_t row_bytes = ((size_t)args->latent_dim + args->rope_dim) * chunk->job->value_bytes;
    uint32_t panels = divide_up(args->value_dim, KERNEL_PANEL);
    struct linear_tile tile;
    for (uint32_t j = 0; j < MLA_BLOCK_TOK; j += PAIRED_ROWS) {
        struct linear_rows x = {.dtype = args->activation,
                                .count = min_u32(MLA_BLOCK_TOK - j, PAIRED_ROWS)};
        for (uint32_t r = 0; r < x.count; r++)
            x.row[r] = chunk->s.tok + (j + r) * row_bytes;
        for (uint32_t first = 0; first < panels; first += LINEAR_TILE_PANELS) {
            uint32_t count = min_u32(panels - first, LINEAR_TILE_PANELS);
            linear_tile_dot(&tile, &w_uv, first, count, 1, &x);
            for (uint32_t p = 0; p < count; p++)
                for (uint32_t r = 0; r < x.count; r += 2)
                    store_inputs(chunk, chunk->s.values + (first + p) * panel_bytes, j + r,
                                 tile.sum[p][r], tile.sum[p][r + 1]);
        }
    }
}

/* Row r's scores of the block. */
static void scale_scores(const struct chunk *chunk, const struct linear_tile *tile, uint32_t r,
                         float *scores) {
    f32x16 scale = f32x16_set1(chunk->args->scale);
    for (uint32_t j = 0; j < MLA_BLOCK_TOK; j += 16)
        f32x16_store(
            scores + j,
            f32x16_mul(f32x16_load(&tile->sum[j / KERNEL_PANEL][r][j % KERNEL_PANEL]), scale));
}

static float exp_of(float x) {
    float lane[16];
    f32x16_store(lane, f32x16_exp(f32x16_set1(x)));
    return lane[0];
}

/* out = fma(out, a, sums * b) for one row and the columns of a panel. */
static void merge(float *out, const float *sums, uint32_t columns, float a, float b) {
    f32x16 kept = f32x16_set1(a), added = f32x16_set1(b);
    for (uint32_t i = 0; i < columns; i += 16) {
        uint32_t count = min_u32(columns - i, 16);
        f32x16 old = count == 16 ? f32x16_load(out + i) : f32x16_load_part(out + i, count);
        f32x16 merged = f32x16_fma(old, kept, f32x16_mul(f32x16_load(sums + i), added));
        if (count == 16)
            f32x16_store(out + i, merged);
        else
            f32x16_store_part(out + i, merged, count);
    }
}

/* Rows [row, row + count) and the block at `begin`, of which each sees at least one position. */
static void attend(const struct chunk *chunk, uint32_t row, uint32_t count, uint32_t begin) {
    const struct mla_expanded_args *args = chunk->args;
    const uint32_t key_dim = args->nope_dim + args->rope_dim;
    const struct linear_weight keys = {
        .data = chunk->s.keys, .format = chunk->job->format, .n = MLA_BLOCK_TOK, .k = key_dim};
    const struct linear_weight values = {.data = chunk->s.values,
                                         .format = chunk->job->format,
                                         .n = args->value_dim,
                                         .k = MLA_BLOCK_TOK};
    struct linear_rows x = {.dtype = args->activation, .count = count};
    for (uint32_t r = 0; r < count; r++) {
        size_t t = (size_t)chunk->seq->row_begin + row + r;
        const float *q = args->q + t * args->q_row_stride + chunk->head * args->q_head_stride;
        char *narrow = chunk->s.query + r * linear_row_bytes(KERNEL_BF16, key_dim);
        if (args->activation == KERNEL_BF16)
            linear_tile_narrow(KERNEL_BF16, narrow, LINEAR_CHUNK * sizeof(bf16), q, key_dim);
        x.row[r] = args->activation == KERNEL_BF16 ? (const void *)narrow : q;
    }
    struct linear_tile tile;
    linear_tile_dot(&tile, &keys, 0, PANELS_OF_BLOCK, 1, &x);

    float a[LINEAR_TILE_ROWS], b[LINEAR_TILE_ROWS];
    for (uint32_t r = 0; r < count; r++) {
        float max, sum, *all_max = &chunk->s.max[row + r], *all_sum = &chunk->s.sum[row + r];
        float scores[MLA_BLOCK_TOK];
        uint32_t seen = min_u32(chunk->seq->committed + row + r + 1 - begin, MLA_BLOCK_TOK);
        char *weights = chunk->s.weights + r * MLA_BLOCK_TOK * chunk->job->value_bytes;
        scale_scores(chunk, &tile, r, scores);
        mla_block_weigh(args->activation, scores, seen, weights, &max, &sum);
        float merged = *all_max > max ? *all_max : max;
        a[r] = exp_of(*all_max - merged);
        b[r] = exp_of(max - merged);
        *all_sum = fmaf(*all_sum, a[r], sum * b[r]);
        *all_max = merged;
        x.row[r] = weights;
    }
    uint32_t panels = divide_up(args->value_dim, KERNEL_PANEL);
    for (uint32_t first = 0; first < panels; first += LINEAR_TILE_PANELS) {
        uint32_t group = min_u32(panels - first, LINEAR_TILE_PANELS);
        linear_tile_dot(&tile, &values, first, group, 1, &x);
        for (uint32_t p = 0; p < group; p++)
            for (uint32_t r = 0; r < count; r++) {
                uint32_t column = (first + p) * KERNEL_PANEL;
                merge(out_of(chunk, row + r) + column, tile.sum[p][r],
                      min_u32(args->value_dim - column, KERNEL_PANEL), a[r], b[r]);
            }
    }
}

static void divide(const struct chunk *chunk) {
    for (uint32_t row = chunk->row_begin; row < chunk->row_end; row++) {
        float *out = out_of(chunk, row);
        for (uint32_t v = 0; v < chunk->args->value_dim; v++)
            out[v] = out[v] / chunk->s.sum[row];
    }
}
