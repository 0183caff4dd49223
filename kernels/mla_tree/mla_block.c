/*     query [R + P] ─┬─ scores   tile of queries x tokens, 16 sums in registers
 *     tokens ────────┼─ weights  exp and their sum
 *                    └─ values   tile of queries x columns, pairs of tokens if bf16
 *
 * Tokens are read where they lie: a block stays in the second-level cache from scores to values,
 * and every query of a tile uses what was loaded. `narrow` is constant wherever it is passed. */
#include "mla_tree/mla_block.h"

#include <stdbool.h>

#include "simd/f32x16_math.h"

/* Registers bound a tile of sums; the tile of scores is computed in pieces of these sizes. */
#if defined(__AVX512F__)
#define PIECE_QUERIES 4u
#define PIECE_TOKENS  4u
#define TILE_COLUMNS  64u
#else
#define PIECE_QUERIES 2u
#define PIECE_TOKENS  2u
#define TILE_COLUMNS  32u
#endif

#define TILE_QUERIES 4u

#define LINE_BYTES 64u

/* Queries next to each other that see the same tokens. */
struct tile {
    uint32_t first;
    uint32_t query_count; /* 4, 2 or 1 */
    uint32_t tok_count;
};

/* Lines of the tokens ahead that a pass asks for. A core keeps only a few under way, so they are
 * spread over all passes of a block: half of them over its scores, half over its values. */
struct ahead {
    const void *const *tok;
    size_t begin, end; /* bytes of a token */
};

static uint32_t cut_tiles(const struct mla_block *block, struct tile *tiles);
static void score_tiles(const struct mla_block *block, const struct tile *tiles, uint32_t count,
                        float *weights);
static void value_tiles(const struct mla_block *block, const struct tile *tiles, uint32_t count,
                        const float *weights, const struct mla_partial *partial);

void mla_block_attend(const struct mla_block *block, float *weights,
                      const struct mla_partial *partial) {
    struct tile tiles[MLA_QUERIES];
    uint32_t count = cut_tiles(block, tiles);
    bool narrow = block->dtype == KERNEL_BF16;
    uint32_t saved = narrow ? f32x16_flush_begin() : 0;
    score_tiles(block, tiles, count, weights);
    if (narrow) f32x16_flush_end(saved);
    for (uint32_t q = 0; q < block->query_count; q++) {
        float *of_query = weights + q * MLA_BLOCK_TOK;
        if (block->tok_count[q] > 0)
            mla_block_weigh(block->dtype, of_query, block->tok_count[q], of_query, &partial->max[q],
                            &partial->sum[q]);
    }
    if (narrow) saved = f32x16_flush_begin();
    value_tiles(block, tiles, count, weights, partial);
    if (narrow) f32x16_flush_end(saved);
}

static uint32_t cut_tiles(const struct mla_block *block, struct tile *tiles) {
    uint32_t tile_count = 0, count = block->query_count;
    for (uint32_t q = 0, alike; q < count; q += alike) {
        alike = 1;
        while (q + alike < count && alike < TILE_QUERIES &&
               block->tok_count[q + alike] == block->tok_count[q])
            alike++;
        if (alike == 3) alike = 2;
        if (block->tok_count[q] > 0)
            tiles[tile_count++] = (struct tile){q, alike, block->tok_count[q]};
    }
    return tile_count;
}

/* What pass `idx` of `count` asks for, of the lines [begin, end) of a token. */
static struct ahead ahead_of(const struct mla_block *block, size_t begin, size_t end, uint32_t idx,
                             uint32_t count) {
    size_t lines = end - begin;
    return (struct ahead){.tok = block->ahead,
                          .begin = (begin + lines * idx / count) * LINE_BYTES,
                          .end = (begin + lines * (idx + 1) / count) * LINE_BYTES};
}

static size_t lines_of(const struct mla_block *block) {
    return (block->ahead_bytes + LINE_BYTES - 1) / LINE_BYTES;
}

F32X16_INLINE void ask_ahead(const struct ahead *ahead, uint32_t first, const uint32_t tokens) {
    for (size_t at = ahead->begin; at < ahead->end; at += LINE_BYTES) {
        F32X16_UNROLL
        for (uint32_t t = 0; t < tokens; t++)
            __builtin_prefetch((const char *)ahead->tok[first + t] + at, 0, 2);
    }
}

/* Elements of a vector. */
F32X16_INLINE uint32_t width_of(const bool narrow) {
    return narrow ? 32 : 16;
}

/* acc[q][t] = the lanes of query q times token t. */
F32X16_INLINE void score_piece(const bool narrow, const uint32_t queries, const uint32_t tokens,
                               const char *query, const void *const *tok, uint32_t dim,
                               f32x16 *acc) {
    const size_t bytes = narrow ? sizeof(bf16) : sizeof(float);
    F32X16_UNROLL
    for (uint32_t i = 0; i < queries * tokens; i++)
        acc[i] = f32x16_zero();
    for (size_t i = 0; i < dim * bytes; i += width_of(narrow) * bytes) {
        F32X16_UNROLL
        for (uint32_t t = 0; t < tokens; t++) {
            const char *key = (const char *)tok[t] + i;
            F32X16_UNROLL
            for (uint32_t q = 0; q < queries; q++) {
                const char *value = query + q * dim * bytes + i;
                f32x16 *sum = &acc[q * tokens + t];
                if (narrow)
                    *sum = f32x16_dot(*sum, bf16x32_load(value), bf16x32_load(key));
                else
                    *sum = f32x16_fma(f32x16_load((const void *)value),
                                      f32x16_load((const void *)key), *sum);
            }
        }
    }
}

/* Sixteen scores at a time, whatever the shape of the tile. */
F32X16_INLINE void score_tile(const bool narrow, const uint32_t queries,
                              const struct mla_block *block, const struct tile *tile,
                              float *weights, const struct ahead *ahead) {
    const uint32_t tokens = 16 / queries;
    const uint32_t piece_queries = queries < PIECE_QUERIES ? queries : PIECE_QUERIES;
    const uint32_t piece_tokens = PIECE_QUERIES * PIECE_TOKENS / piece_queries;
    const size_t bytes = narrow ? sizeof(bf16) : sizeof(float);
    uint32_t dim = block->latent_dim + block->rope_dim;
    const char *query = (const char *)block->query + (size_t)tile->first * dim * bytes;
    f32x16 scale = f32x16_set1(block->scale);
    for (uint32_t j = 0; j < tile->tok_count; j += tokens) {
        f32x16 sums[16];
        ask_ahead(ahead, j, tokens);
        F32X16_UNROLL
        for (uint32_t q = 0; q < queries; q += piece_queries) {
            F32X16_UNROLL
            for (uint32_t t = 0; t < tokens; t += piece_tokens) {
                f32x16 acc[PIECE_QUERIES * PIECE_TOKENS];
                score_piece(narrow, piece_queries, piece_tokens, query + q * dim * bytes,
                            block->tok + j + t, dim, acc);
                F32X16_UNROLL
                for (uint32_t i = 0; i < piece_queries * piece_tokens; i++)
                    sums[(q + i / piece_tokens) * tokens + t + i % piece_tokens] = acc[i];
            }
        }
        float scores[16];
        f32x16_store(scores,
                     narrow ? f32x16_fma_flushed(f32x16_sum16_flushed(sums), scale, f32x16_zero())
                            : f32x16_mul(f32x16_sum16(sums), scale));
        F32X16_UNROLL
        for (uint32_t q = 0; q < queries; q++)
            memcpy(weights + q * MLA_BLOCK_TOK + j, scores + q * tokens, tokens * sizeof(float));
    }
}

F32X16_INLINE void score_tile_of(bool narrow, const uint32_t queries, const struct mla_block *block,
                                 const struct tile *tile, float *weights,
                                 const struct ahead *ahead) {
    if (narrow)
        score_tile(true, queries, block, tile, weights, ahead);
    else
        score_tile(false, queries, block, tile, weights, ahead);
}

/* Not inlined, like value_tiles: nothing of it may leave the stretch in which subnormal numbers are
 * zero. */
__attribute__((noinline)) static void score_tiles(const struct mla_block *block,
                                                  const struct tile *tiles, uint32_t count,
                                                  float *weights) {
    bool narrow = block->dtype == KERNEL_BF16;
    for (uint32_t i = 0; i < count; i++) {
        const struct tile *tile = &tiles[i];
        const struct ahead ahead = ahead_of(block, 0, lines_of(block) / 2, i, count);
        float *to = weights + tile->first * MLA_BLOCK_TOK;
        switch (tile->query_count) {
        case 4: score_tile_of(narrow, 4, block, tile, to, &ahead); break;
        case 2: score_tile_of(narrow, 2, block, tile, to, &ahead); break;
        default: score_tile_of(narrow, 1, block, tile, to, &ahead);
        }
    }
}

static float max_of(const float *scores) {
    f32x16 max = f32x16_set1(-INFINITY);
    float lane[16], out = -INFINITY;
    for (uint32_t j = 0; j < MLA_BLOCK_TOK; j += 16)
        max = f32x16_max(f32x16_load(scores + j), max);
    f32x16_store(lane, max);
    for (int i = 0; i < 16; i++)
        out = lane[i] > out ? lane[i] : out;
    return out;
}

void mla_block_weigh(enum kernel_dtype dtype, float *scores, uint32_t seen, void *weights,
                     float *max_out, float *sum_out) {
    for (uint32_t j = seen; j < MLA_BLOCK_TOK; j++)
        scores[j] = -INFINITY; /* weight 0 */
    float max = max_of(scores);
    f32x16 minus = f32x16_set1(max), sum = f32x16_zero();
    for (uint32_t j = 0; j < MLA_BLOCK_TOK; j += 32) {
        f32x16 lo = f32x16_exp(f32x16_sub(f32x16_load(scores + j), minus));
        f32x16 hi = f32x16_exp(f32x16_sub(f32x16_load(scores + j + 16), minus));
        if (dtype == KERNEL_BF16) {
            bf16 *narrow = (bf16 *)weights + j;
            bf16x32_store(narrow, bf16x32_round(lo, hi));
            lo = f32x16_load_bf16(narrow);
            hi = f32x16_load_bf16(narrow + 16);
        } else {
            f32x16_store((float *)weights + j, lo);
            f32x16_store((float *)weights + j + 16, hi);
        }
        sum = f32x16_add(f32x16_add(sum, lo), hi);
    }
    *max_out = max;
    *sum_out = f32x16_sum(sum);
}

/* columns: 16 or a multiple of it. */
F32X16_INLINE void value_tile_f32(const uint32_t queries, const uint32_t columns,
                                  const struct mla_block *block, uint32_t tok_count,
                                  const float *weights, uint32_t column, float *values) {
    f32x16 acc[TILE_QUERIES][TILE_COLUMNS / 16];
    F32X16_UNROLL
    for (uint32_t i = 0; i < queries * columns / 16; i++)
        acc[i / (columns / 16)][i % (columns / 16)] = f32x16_zero();
    for (uint32_t j = 0; j < tok_count; j++) {
        const float *tok = (const float *)block->tok[j] + column;
        F32X16_UNROLL
        for (uint32_t q = 0; q < queries; q++) {
            f32x16 weight = f32x16_set1(weights[q * MLA_BLOCK_TOK + j]);
            F32X16_UNROLL
            for (uint32_t v = 0; v < columns / 16; v++)
                acc[q][v] = f32x16_fma(weight, f32x16_load(tok + v * 16), acc[q][v]);
        }
    }
    F32X16_UNROLL
    for (uint32_t q = 0; q < queries; q++) {
        F32X16_UNROLL
        for (uint32_t v = 0; v < columns / 16; v++)
            f32x16_store(values + (size_t)q * block->latent_dim + column + v * 16, acc[q][v]);
    }
}

/* columns: 32 or a multiple of it. Tokens come in pairs; the last of an odd number is its own
 * partner, with the weight 0. */
F32X16_INLINE void value_tile_bf16(const uint32_t queries, const uint32_t columns,
                                   const struct mla_block *block, uint32_t tok_count,
                                   const float *weights, uint32_t column, float *values,
                                   const struct ahead *ahead) {
    f32x16 acc[TILE_QUERIES][TILE_COLUMNS / 16];
    F32X16_UNROLL
    for (uint32_t i = 0; i < queries * columns / 16; i++)
        acc[i / (columns / 16)][i % (columns / 16)] = f32x16_zero();
    for (uint32_t j = 0; j < tok_count; j += 2) {
        ask_ahead(ahead, j, 2);
        const bf16 *first = (const bf16 *)block->tok[j] + column;
        const bf16 *second = (const bf16 *)block->tok[j + 1] + column;
        bf16x32 pairs[TILE_COLUMNS / 16];
        F32X16_UNROLL
        for (uint32_t v = 0; v < columns / 32; v++)
            bf16x32_zip(bf16x32_load(first + v * 32), bf16x32_load(second + v * 32), &pairs[2 * v]);
        F32X16_UNROLL
        for (uint32_t q = 0; q < queries; q++) {
            const bf16 *narrow = (const bf16 *)(const void *)(weights + q * MLA_BLOCK_TOK);
            bf16x32 weight = bf16x32_pair(narrow + j);
            F32X16_UNROLL
            for (uint32_t v = 0; v < columns / 16; v++)
                acc[q][v] = f32x16_dot(acc[q][v], weight, pairs[v]);
        }
    }
    F32X16_UNROLL
    for (uint32_t q = 0; q < queries; q++) {
        float *out = values + (size_t)q * block->latent_dim + column;
        F32X16_UNROLL
        for (uint32_t v = 0; v < columns / 16; v += 2) {
            f32x16_zip_order(&acc[q][v]);
            f32x16_store(out + v * 16, acc[q][v]);
            f32x16_store(out + v * 16 + 16, acc[q][v + 1]);
        }
    }
}

/* The widest columns that are left; how many. */
F32X16_INLINE uint32_t value_tile(const bool narrow, const uint32_t queries,
                                  const struct mla_block *block, const struct tile *tile,
                                  const float *weights, uint32_t column, float *values,
                                  const struct ahead *ahead) {
    uint32_t left = block->latent_dim - column, tok_count = tile->tok_count;
    const float *w = weights + tile->first * MLA_BLOCK_TOK;
    float *to = values + (size_t)tile->first * block->latent_dim;
    if (narrow && left >= TILE_COLUMNS)
        value_tile_bf16(queries, TILE_COLUMNS, block, tok_count, w, column, to, ahead);
    else if (narrow)
        value_tile_bf16(queries, 32, block, tok_count, w, column, to, ahead);
    else if (left >= TILE_COLUMNS)
        value_tile_f32(queries, TILE_COLUMNS, block, tok_count, w, column, to);
    else
        value_tile_f32(queries, 16, block, tok_count, w, column, to);
    if (left >= TILE_COLUMNS) return TILE_COLUMNS;
    return narrow ? 32 : 16;
}

F32X16_INLINE void value_tiles_of(const bool narrow, const struct mla_block *block,
                                  const struct tile *tiles, uint32_t count, const float *weights,
                                  float *values) {
    /* Columns outside, queries inside: a strip of the block stays in the first-level cache. */
    const uint32_t passes = divide_up(block->latent_dim, TILE_COLUMNS) * count;
    uint32_t pass = 0;
    for (uint32_t column = 0, width = 0; column < block->latent_dim; column += width) {
        for (uint32_t i = 0; i < count; i++, pass++) {
            const struct tile *tile = &tiles[i];
            const struct ahead ahead = ahead_of(block, lines_of(block) / 2, lines_of(block), pass,
                                                passes);
            if (tile->query_count == 4)
                width = value_tile(narrow, 4, block, tile, weights, column, values, &ahead);
            else if (tile->query_count == 2)
                width = value_tile(narrow, 2, block, tile, weights, column, values, &ahead);
            else
                width = value_tile(narrow, 1, block, tile, weights, column, values, &ahead);
        }
        if (count == 0) return;
    }
}

__attribute__((noinline)) static void value_tiles(const struct mla_block *block,
                                                  const struct tile *tiles, uint32_t count,
                                                  const float *weights,
                                                  const struct mla_partial *partial) {
    if (block->dtype == KERNEL_BF16)
        value_tiles_of(true, block, tiles, count, weights, partial->values);
    else
        value_tiles_of(false, block, tiles, count, weights, partial->values);
}
