/* The shapes every kernel is tried on: one table an op, used by the test and by the benchmark.
 * Small ones sit on the edges (no row, one row, odd rows, tails of panels and vectors, page
 * borders); the benchmark adds those of whole models. */
#ifndef ESPALIER_CASES_H
#define ESPALIER_CASES_H

#include <stdbool.h>

#include "dispatch.h"

struct embed_case {
    uint32_t rows, dim, vocab_begin, vocab_count, id_end;
    enum kernel_dtype dtype;
};
static const struct embed_case embed_cases[] = {
    {0, 64, 0, 10, 10, KERNEL_BF16},  {1, 64, 0, 10, 10, KERNEL_BF16},
    {7, 40, 10, 10, 40, KERNEL_BF16}, /* most ids elsewhere */
    {3, 1, 0, 5, 5, KERNEL_BF16},     {33, 7168, 0, 50, 60, KERNEL_BF16},
    {7, 41, 10, 10, 40, KERNEL_F32},
};

struct add_case {
    size_t count;
};
static const struct add_case add_cases[] = {{0}, {1}, {15}, {16}, {17}, {16384}, {16385}, {70001}};

struct rms_norm_case {
    uint32_t rows, dim;
    bool in_place;
    uint32_t pad; /* floats between rows */
    bool adds;    /* into x, or elsewhere where y is x */
};
static const struct rms_norm_case rms_norm_cases[] = {
    {0, 64, false, 0, false},    {1, 16, false, 0, false},   {1, 7168, false, 0, false},
    {3, 512, true, 64, false},   {5, 1536, true, 0, false},  {17, 256, false, 3, false},
    {130, 256, true, 16, false}, {1, 7168, false, 0, true},  {3, 512, true, 64, true},
    {17, 256, false, 3, true},   {130, 272, false, 0, true},
};

struct linear_case {
    enum linear_format format;
    uint32_t rows, n, k, batch, segments;
    bool add;
    uint32_t pad;
    enum kernel_dtype activation;
};
static const struct linear_case linear_cases[] = {
    {LINEAR_BF16, 0, 32, 32, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_BF16, 1, 1, 1, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_BF16, 1, 100, 256, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_BF16, 2, 33, 64, 1, 8, false, 1, KERNEL_F32},
    {LINEAR_BF16, 3, 31, 7, 1, 1, false, 5, KERNEL_F32},
    {LINEAR_BF16, 5, 64, 300, 1, 4, true, 0, KERNEL_F32},
    {LINEAR_BF16, 7, 160, 520, 1, 2, false, 0, KERNEL_F32},
    {LINEAR_BF16, 12, 96, 257, 1, 1, false, 2, KERNEL_F32},
    {LINEAR_BF16, 13, 130, 512, 1, 8, true, 0, KERNEL_F32},
    {LINEAR_BF16, 64, 65, 128, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_BF16, 4, 32, 48, 5, 1, false, 0, KERNEL_F32},
    {LINEAR_BF16, 6, 40, 32, 8, 4, false, 3, KERNEL_F32},
    {LINEAR_BF16, 200, 16, 32, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_F32, 1, 384, 256, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_F32, 2, 48, 40, 1, 8, true, 0, KERNEL_F32},
    {LINEAR_F32, 9, 33, 272, 3, 2, false, 4, KERNEL_F32},
    {LINEAR_F32, 25, 70, 512, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_INT4, 1, 64, 32, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_INT4, 1, 100, 288, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_INT4, 2, 32, 256, 1, 8, true, 0, KERNEL_F32},
    {LINEAR_INT4, 3, 17, 96, 1, 1, false, 1, KERNEL_F32},
    {LINEAR_INT4, 4, 40, 64, 3, 2, false, 0, KERNEL_F32},
    {LINEAR_INT4, 11, 129, 640, 1, 4, false, 0, KERNEL_F32},
    {LINEAR_INT4, 29, 64, 320, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_INT4, 13, 48, 352, 1, 8, true, 0, KERNEL_F32}, /* segments of 44 inputs cut groups */
    {LINEAR_INT4, 1, 32, 32, 1, 8, false, 0, KERNEL_F32},
    {LINEAR_INT4, 24, 33, 2976, 1, 4, false, 0, KERNEL_F32},
    {LINEAR_FP8, 1, 1, 1, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_FP8, 1, 100, 576, 1, 1, false, 0, KERNEL_F32},
    {LINEAR_FP8, 2, 33, 120, 1, 8, true, 1, KERNEL_F32},
    {LINEAR_FP8, 3, 31, 7, 1, 1, false, 5, KERNEL_F32},
    {LINEAR_FP8, 13, 130, 1000, 1, 4, false, 0, KERNEL_F32},
    {LINEAR_FP8, 4, 40, 129, 3, 1, false, 0, KERNEL_F32},
    {LINEAR_FP8, 25, 64, 2048, 1, 8, false, 2, KERNEL_F32},
    {LINEAR_FP8, 12, 96, 256, 1, 2, true, 0, KERNEL_F32},
    {LINEAR_BF16, 0, 32, 32, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_BF16, 1, 1, 1, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_BF16, 1, 100, 256, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_BF16, 2, 33, 120, 1, 8, true, 1, KERNEL_BF16}, /* segments cut pairs */
    {LINEAR_BF16, 5, 64, 300, 1, 4, true, 0, KERNEL_BF16},
    {LINEAR_BF16, 13, 70, 1030, 3, 2, false, 2, KERNEL_BF16}, /* the same of several blocks */
    {LINEAR_BF16, 40, 40, 256, 5, 8, false, 3, KERNEL_BF16},
    {LINEAR_INT4, 1, 100, 288, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_INT4, 11, 129, 640, 1, 4, false, 0, KERNEL_BF16},
    {LINEAR_INT4, 13, 48, 352, 1, 8, true, 0, KERNEL_BF16}, /* segments of 44 inputs cut groups */
    {LINEAR_INT4, 29, 33, 2976, 1, 4, false, 0, KERNEL_BF16},
    {LINEAR_INT4, 4, 40, 64, 3, 2, false, 5, KERNEL_BF16},
    {LINEAR_FP8, 1, 1, 1, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_FP8, 1, 100, 576, 1, 1, false, 0, KERNEL_BF16},
    {LINEAR_FP8, 2, 33, 120, 1, 8, true, 1, KERNEL_BF16}, /* segments and blocks cut pairs */
    {LINEAR_FP8, 3, 31, 7, 1, 1, false, 5, KERNEL_BF16},
    {LINEAR_FP8, 5, 96, 120, 1, 8, false, 0, KERNEL_BF16},  /* segments alone do */
    {LINEAR_FP8, 26, 35, 1024, 1, 4, true, 0, KERNEL_BF16}, /* blocks alone do */
    {LINEAR_FP8, 13, 130, 1000, 1, 4, false, 0, KERNEL_BF16},
    {LINEAR_FP8, 4, 40, 129, 3, 1, false, 0, KERNEL_BF16},
    {LINEAR_FP8, 1, 64, 257, 2, 1, false, 3, KERNEL_BF16},
    {LINEAR_FP8, 25, 64, 2048, 1, 8, false, 2, KERNEL_BF16},
    {LINEAR_FP8, 12, 96, 256, 1, 2, true, 0, KERNEL_BF16},
    {LINEAR_INT4, 0, 32, 32, 1, 1, false, 0, KERNEL_INT8},
    {LINEAR_INT4, 1, 100, 288, 1, 1, false, 0, KERNEL_INT8},
    {LINEAR_INT4, 11, 129, 640, 1, 4, false, 0, KERNEL_INT8},
    {LINEAR_INT4, 13, 48, 352, 1, 8, true, 0, KERNEL_INT8}, /* segments of 44 inputs cut groups */
    {LINEAR_INT4, 1, 33, 2976, 1, 8, false, 0, KERNEL_INT8},
    {LINEAR_INT4, 29, 33, 2976, 1, 4, false, 0, KERNEL_INT8}, /* several stretches */
    {LINEAR_INT4, 4, 40, 64, 3, 2, false, 5, KERNEL_INT8},
    {LINEAR_BF16, 12, 40, 2802, 1, 2, true, 1, KERNEL_BF16}, /* of several stretches */
};

struct rope_case {
    uint32_t rows, heads, dim, pad;
    uint32_t position; /* of row 0 */
    bool halves;
};
static const struct rope_case rope_cases[] = {
    {0, 4, 64, 0, 0, false},  {1, 1, 2, 0, 0, false},        {1, 16, 64, 128, 200000, false},
    {5, 3, 32, 5, 17, false}, {40, 8, 64, 0, 262143, false}, /* several tasks */
    {1, 1, 2, 0, 9, true},    {40, 8, 128, 3, 200000, true},
};

struct kv_store_case {
    enum kernel_dtype dtype;
    uint32_t rows, latent_dim, rope_dim, slots, pad;
    bool special;  /* infinities, NaN, zeros, subnormal numbers, ties of rounding */
    uint32_t fill; /* rows at the end that are stored nowhere */
};
static const struct kv_store_case kv_store_cases[] = {
    {KERNEL_F32, 0, 512, 64, 4, 0, false, 0},   {KERNEL_F32, 3, 128, 32, 7, 9, true, 0},
    {KERNEL_BF16, 1, 512, 64, 1, 64, true, 0},  {KERNEL_BF16, 65, 512, 64, 130, 0, true, 0},
    {KERNEL_FP8, 0, 512, 64, 4, 0, false, 0},   {KERNEL_FP8, 3, 16, 16, 7, 9, false, 0},
    {KERNEL_FP8, 17, 144, 48, 40, 0, true, 0}, /* a short group, zeros behind */
    {KERNEL_FP8, 33, 512, 64, 70, 64, true, 0}, {KERNEL_BF16, 8, 128, 32, 9, 0, false, 3},
    {KERNEL_FP8, 5, 128, 32, 6, 0, false, 2},
};

struct kv_copy_case {
    uint32_t page_tok, tok_bytes, pages, copy_count;
    bool chained; /* a copy's source is the target of the one before */
};
static const struct kv_copy_case kv_copy_cases[] = {
    {64, 640, 4, 0, false},
    {1, 640, 5, 2, true},
    {16, 1152, 6, 3, false},
    {64, 656, 5, 4, true},
};

enum tree_shape { CHAIN, TREE_ROOT, TREE_WIDE, TREE_LINE, TREE_BUSHY };

struct mla_tree_case {
    enum kernel_dtype dtype;
    uint32_t heads, latent_dim, rope_dim, page_tok;
    uint32_t sequence_count;
    struct {
        enum tree_shape shape;
        uint32_t committed, rows;
    } sequence[4];
    enum kernel_dtype activation;
};
static const struct mla_tree_case mla_tree_cases[] = {
    {KERNEL_F32, 1, 16, 16, 64, 1, {{CHAIN, 0, 1}}, KERNEL_F32},
    {KERNEL_F32, 2, 32, 16, 1, 1, {{CHAIN, 127, 2}}, KERNEL_F32},
    {KERNEL_BF16, 3, 48, 32, 16, 1, {{CHAIN, 64, 1}}, KERNEL_F32},
    {KERNEL_BF16, 16, 512, 64, 64, 1, {{CHAIN, 130, 1}}, KERNEL_F32},
    {KERNEL_F32, 4, 64, 32, 64, 1, {{CHAIN, 0, 150}}, KERNEL_F32},
    {KERNEL_BF16, 5, 80, 16, 7, 1, {{CHAIN, 60, 130}}, KERNEL_F32},
    {KERNEL_F32, 4, 32, 16, 64, 1, {{TREE_ROOT, 0, 1}}, KERNEL_F32},
    {KERNEL_F32, 4, 32, 16, 64, 1, {{TREE_WIDE, 127, 64}}, KERNEL_F32},
    {KERNEL_F32, 2, 32, 16, 16, 1, {{TREE_LINE, 100, 64}}, KERNEL_F32},
    {KERNEL_BF16, 8, 128, 32, 64, 1, {{TREE_BUSHY, 255, 33}}, KERNEL_F32},
    {KERNEL_BF16, 1, 128, 32, 1, 1, {{TREE_BUSHY, 70, 64}}, KERNEL_F32},
    {KERNEL_BF16, 8, 128, 32, 64, 1, {{CHAIN, 0, 1}}, KERNEL_F32},
    {KERNEL_BF16, 8, 128, 32, 64, 1, {{CHAIN, 63, 1}}, KERNEL_F32},
    {KERNEL_BF16, 8, 128, 32, 1, 1, {{CHAIN, 64, 2}}, KERNEL_F32},
    {KERNEL_BF16, 4, 128, 32, 16, 1, {{CHAIN, 0, 37}}, KERNEL_F32},
    {KERNEL_BF16, 2, 128, 32, 64, 1, {{TREE_WIDE, 31, 16}}, KERNEL_F32},
    {KERNEL_BF16, 2, 128, 32, 64, 1, {{TREE_LINE, 700, 8}}, KERNEL_F32},
    {KERNEL_BF16,
     3,
     128,
     32,
     7,
     4,
     {{TREE_BUSHY, 1000, 5}, {CHAIN, 0, 0}, {CHAIN, 20, 9}, {CHAIN, 300, 1}},
     KERNEL_F32},
    {KERNEL_BF16, 8, 512, 64, 64, 1, {{TREE_BUSHY, 250, 8}}, KERNEL_F32},
    {KERNEL_BF16,
     6,
     64,
     16,
     16,
     4, /* a step as it comes, one sequence without rows */
     {{TREE_BUSHY, 64, 9}, {CHAIN, 200, 1}, {CHAIN, 5, 0}, {CHAIN, 10, 40}},
     KERNEL_F32},
    {KERNEL_FP8, 2, 16, 16, 1, 1, {{CHAIN, 127, 2}}, KERNEL_F32},
    {KERNEL_FP8, 3, 144, 32, 16, 1, {{TREE_BUSHY, 70, 20}}, KERNEL_F32},
    {KERNEL_FP8, 8, 128, 32, 64, 1, {{TREE_BUSHY, 255, 33}}, KERNEL_F32},
    {KERNEL_FP8, 4, 512, 64, 64, 1, {{CHAIN, 300, 3}}, KERNEL_F32},
    {KERNEL_BF16, 1, 32, 32, 64, 1, {{CHAIN, 0, 1}}, KERNEL_BF16},
    {KERNEL_BF16, 3, 96, 32, 16, 1, {{CHAIN, 128, 2}}, KERNEL_BF16},
    {KERNEL_BF16, 16, 512, 64, 64, 1, {{CHAIN, 900, 1}}, KERNEL_BF16}, /* split over threads */
    {KERNEL_BF16, 70, 32, 32, 64, 1, {{CHAIN, 300, 1}}, KERNEL_BF16},  /* so are heads */
    {KERNEL_BF16, 5, 64, 32, 7, 1, {{CHAIN, 60, 200}}, KERNEL_BF16},
    {KERNEL_BF16, 8, 128, 32, 64, 1, {{TREE_BUSHY, 255, 33}}, KERNEL_BF16},
    {KERNEL_BF16, 2, 64, 64, 16, 1, {{TREE_LINE, 100, 64}}, KERNEL_BF16},
    {KERNEL_FP8, 16, 512, 64, 64, 1, {{CHAIN, 900, 1}}, KERNEL_BF16},
    {KERNEL_FP8, 5, 96, 32, 7, 1, {{CHAIN, 60, 130}}, KERNEL_BF16},
    {KERNEL_FP8, 8, 128, 32, 64, 1, {{TREE_BUSHY, 250, 8}}, KERNEL_BF16},
    {KERNEL_FP8,
     3,
     160,
     32,
     16,
     4,
     {{TREE_BUSHY, 64, 9}, {CHAIN, 200, 1}, {CHAIN, 5, 0}, {CHAIN, 10, 40}},
     KERNEL_BF16},
    {KERNEL_BF16,
     6,
     64,
     32,
     16,
     4,
     {{TREE_BUSHY, 64, 9}, {CHAIN, 200, 1}, {CHAIN, 5, 0}, {CHAIN, 10, 40}},
     KERNEL_BF16},
};

struct mla_expanded_case {
    enum kernel_dtype dtype;
    enum linear_format format; /* of the weights */
    uint32_t heads, latent_dim, rope_dim, nope_dim, value_dim, page_tok;
    uint32_t sequence_count;
    struct {
        uint32_t committed, rows;
    } sequence[3];
    enum kernel_dtype activation;
};
static const struct mla_expanded_case mla_expanded_cases[] = {
    {KERNEL_F32, LINEAR_F32, 1, 16, 16, 2, 1, 64, 1, {{0, 1}}, KERNEL_F32},
    {KERNEL_F32, LINEAR_BF16, 2, 32, 16, 16, 8, 1, 1, {{127, 2}}, KERNEL_F32},
    {KERNEL_BF16, LINEAR_BF16, 1, 48, 32, 6, 40, 7, 1, {{60, 130}}, KERNEL_F32},
    {KERNEL_BF16, LINEAR_BF16, 2, 32, 16, 16, 24, 16, 3, {{0, 13}, {300, 1}, {5, 0}}, KERNEL_F32},
    {KERNEL_BF16, LINEAR_BF16, 1, 32, 32, 10, 33, 64, 1, {{128, 30}}, KERNEL_BF16},
    {KERNEL_BF16, LINEAR_BF16, 3, 64, 16, 16, 136, 16, 2, {{250, 9}, {0, 140}}, KERNEL_BF16},
    {KERNEL_BF16, LINEAR_BF16, 1, 512, 64, 128, 128, 64, 1, {{100, 40}}, KERNEL_BF16},
    {KERNEL_FP8, LINEAR_BF16, 1, 144, 32, 6, 40, 7, 1, {{60, 130}}, KERNEL_F32},
    {KERNEL_FP8, LINEAR_BF16, 2, 48, 16, 16, 40, 16, 2, {{250, 9}, {0, 40}}, KERNEL_BF16},
    {KERNEL_FP8, LINEAR_BF16, 1, 512, 64, 128, 128, 64, 1, {{100, 40}}, KERNEL_BF16},
};

struct gqa_block_case {
    enum kernel_dtype dtype;
    uint32_t heads, kv_heads, head_dim, page_tok, window;
    bool causal;
    uint32_t sequence_count;
    struct {
        uint32_t committed, context_begin, rows;
    } sequence[3];
};
static const struct gqa_block_case gqa_block_cases[] = {
    {KERNEL_F32, 1, 1, 16, 64, 0, false, 1, {{0, 0, 1}}},
    {KERNEL_F32, 1, 1, 32, 64, 0, false, 1, {{63, 0, 8}}}, /* the block lies across blocks */
    {KERNEL_F32, 4, 2, 32, 1, 0, true, 1, {{130, 0, 7}}},
    {KERNEL_BF16, 8, 8, 32, 64, 0, false, 1, {{1000, 0, 8}}},
    {KERNEL_BF16, 8, 1, 128, 16, 0, false, 1, {{200, 70, 8}}}, /* late context */
    {KERNEL_F32, 2, 2, 16, 7, 64, true, 1, {{300, 0, 16}}},    /* rows begin apart */
    {KERNEL_F32, 2, 1, 16, 16, 3, true, 1, {{64, 64, 8}}},     /* a window within the block */
    {KERNEL_BF16, 6, 2, 48, 16, 40, false, 1, {{20, 0, 9}}},
    {KERNEL_BF16, 4, 4, 64, 16, 0, false, 3, {{64, 0, 8}, {5, 0, 0}, {190, 128, 8}}},
    {KERNEL_BF16, 2, 1, 16, 64, 100, false, 1, {{200000, 0, 8}}}, /* a window far behind */
};

enum routing { ROUTE_RANDOM, ROUTE_ALL_SAME, ROUTE_LAST };

struct moe_experts_case {
    enum linear_format gate_up, down;
    uint32_t rows, topk, experts, dim, width, segments;
    enum routing routing;
    enum kernel_dtype activation;
};
static const struct moe_experts_case moe_experts_cases[] = {
    {LINEAR_INT4, LINEAR_INT4, 0, 2, 4, 64, 32, 1, ROUTE_RANDOM, KERNEL_F32},
    {LINEAR_INT4, LINEAR_INT4, 1, 1, 1, 32, 32, 1, ROUTE_RANDOM, KERNEL_F32},
    {LINEAR_INT4, LINEAR_INT4, 1, 4, 16, 256, 256, 8, ROUTE_RANDOM, KERNEL_F32},
    {LINEAR_INT4, LINEAR_INT4, 5, 4, 16, 160, 64, 2, ROUTE_RANDOM, KERNEL_F32}, /* idle experts */
    {LINEAR_INT4, LINEAR_INT4, 29, 3, 6, 64, 128, 4, ROUTE_ALL_SAME, KERNEL_F32},
    {LINEAR_BF16, LINEAR_BF16, 3, 2, 5, 40, 24, 8, ROUTE_RANDOM,
     KERNEL_F32}, /* up rows off a panel's edge */
    {LINEAR_BF16, LINEAR_BF16, 14, 6, 8, 72, 100, 4, ROUTE_LAST, KERNEL_F32},
    {LINEAR_F32, LINEAR_BF16, 4, 2, 3, 33, 48, 1, ROUTE_RANDOM, KERNEL_F32},
    {LINEAR_FP8, LINEAR_FP8, 5, 2, 4, 72, 200, 8, ROUTE_RANDOM, KERNEL_F32},
    {LINEAR_INT4, LINEAR_INT4, 6, 2, 3, 96, 352, 8, ROUTE_RANDOM,
     KERNEL_F32}, /* segments cut groups */
    {LINEAR_INT4, LINEAR_INT4, 1, 4, 16, 256, 256, 8, ROUTE_RANDOM, KERNEL_BF16},
    {LINEAR_INT4, LINEAR_INT4, 6, 2, 3, 96, 352, 8, ROUTE_RANDOM, KERNEL_BF16},
    {LINEAR_INT4, LINEAR_INT4, 29, 3, 6, 64, 128, 4, ROUTE_ALL_SAME, KERNEL_BF16},
    {LINEAR_BF16, LINEAR_BF16, 3, 2, 5, 40, 24, 8, ROUTE_RANDOM, KERNEL_BF16},
    {LINEAR_BF16, LINEAR_INT4, 14, 6, 8, 72, 96, 4, ROUTE_LAST, KERNEL_BF16},
    {LINEAR_FP8, LINEAR_FP8, 5, 2, 4, 72, 200, 8, ROUTE_RANDOM, KERNEL_BF16},
    {LINEAR_FP8, LINEAR_FP8, 12, 2, 2, 1501, 36, 4, ROUTE_ALL_SAME,
     KERNEL_BF16}, /* rows of several stretches; odd blocks in the down projection */
    {LINEAR_INT4, LINEAR_FP8, 14, 6, 8, 96, 96, 4, ROUTE_LAST, KERNEL_BF16},
    {LINEAR_INT4, LINEAR_INT4, 1, 4, 16, 256, 256, 8, ROUTE_RANDOM, KERNEL_INT8},
    {LINEAR_INT4, LINEAR_INT4, 6, 2, 3, 96, 352, 8, ROUTE_RANDOM, KERNEL_INT8},
    {LINEAR_INT4, LINEAR_INT4, 29, 3, 6, 64, 128, 4, ROUTE_ALL_SAME, KERNEL_INT8},
    {LINEAR_BF16, LINEAR_BF16, 12, 2, 2, 1400, 40, 8, ROUTE_ALL_SAME,
     KERNEL_BF16}, /* rows of several stretches */
};

struct moe_route_case {
    uint32_t rows, experts, topk, groups, topk_groups;
    enum moe_scoring scoring;
    bool bias, renormalize;
    float scale;
    bool ties;     /* logits from a few values */
    uint32_t fill; /* rows at the end that are none */
};
static const struct moe_route_case moe_route_cases[] = {
    {0, 16, 4, 1, 1, MOE_SIGMOID, true, true, 2.827f, false, 0},
    {1, 1, 1, 1, 1, MOE_SIGMOID, false, true, 1.0f, false, 0},
    {3, 384, 8, 1, 1, MOE_SIGMOID, true, true, 2.827f, false, 0},
    {64, 16, 4, 1, 1, MOE_SIGMOID, true, true, 2.827f, true, 0},
    {9, 256, 8, 8, 4, MOE_SIGMOID, true, true, 2.5f, false, 0},
    {9, 256, 8, 8, 4, MOE_SIGMOID, false, true, 2.5f, true, 0},
    {11, 64, 6, 1, 1, MOE_SOFTMAX, false, false, 1.0f, false, 0},
    {5, 65, 32, 1, 1, MOE_SOFTMAX, true, true, 16.0f, false, 0},
    {2, 1024, 32, 32, 32, MOE_SIGMOID, true, false, 1.0f, false, 0},
    {8, 16, 4, 1, 1, MOE_SIGMOID, true, true, 2.827f, false, 3},
};

struct swiglu_case {
    uint32_t rows, dim, pad;
    float spread; /* of the gates: large ones saturate */
};
static const struct swiglu_case swiglu_cases[] = {
    {0, 64, 0, 1}, {1, 1, 0, 1}, {3, 17, 2, 3}, {5, 256, 0, 40}, {40, 333, 1, 120}, {2, 2048, 0, 8},
};

enum path_shape {
    PATH_NONE,  /* no counts: bias alone */
    PATH_EMPTY, /* counts of nothing */
    PATH_SHORT, /* some tokens, in prompt, reply or both */
    PATH_FULL,  /* every token */
};

struct penalize_case {
    uint32_t vocab;
    enum path_shape path;
    uint32_t tail_count, bias_count;
    float repetition, presence, frequency;
    bool odd; /* infinities, NaN and zeros among the logits */
};
static const struct penalize_case penalize_cases[] = {
    {1, PATH_NONE, 0, 1, 1, 0, 0, false},
    {1, PATH_FULL, 1, 0, 1.5f, 0.5f, 0.25f, false},
    {17, PATH_EMPTY, 0, 0, 1.3f, 0.5f, 0.5f, false},
    {100, PATH_EMPTY, 64, 0, 1.3f, 0.5f, 0.5f, true},
    {100, PATH_SHORT, 0, 0, 1.1f, 0, 0, true},
    {100, PATH_SHORT, 0, 0, 1, 0.7f, 0, true},
    {100, PATH_SHORT, 0, 0, 1, 0, -0.3f, false},
    {100, PATH_SHORT, 3, 100, 0.8f, -2, 2, true}, /* a bias for each */
    {1000, PATH_SHORT, 64, 20, 1.2f, 0.1f, 0.9f, false},
    {1000, PATH_FULL, 10, 7, 100, 1, 1, true},
    {300, PATH_SHORT, 5, 3, 1e-3f, 0, 0, true},
    {5000, PATH_NONE, 0, 1024, 1, 0, 0, true},
};

enum logits_shape {
    LOGITS_NORMAL,
    LOGITS_FLAT,
    LOGITS_TIES,
    LOGITS_PEAK,
    LOGITS_MASKED,
    LOGITS_ODD,
    LOGITS_NONE
};

struct sample_case {
    uint32_t vocab;
    float temperature, top_p;
    uint32_t top_k;
    enum logits_shape shape;
    uint32_t top_count;
    float min_p;
    bool penalized; /* the model's logits were others */
};
static const struct sample_case sample_cases[] = {
    {1, 0.0f, 1.0f, 0, LOGITS_NORMAL, 1, 0, false},
    {17, 0.0f, 1.0f, 0, LOGITS_TIES, 5, 0, false},
    {1000, 0.0f, 0.5f, 3, LOGITS_ODD, 20, 0, false},
    {1, 1.0f, 0.1f, 1, LOGITS_NORMAL, 0, 0, false},
    {333, 1.0f, 1.0f, 0, LOGITS_NORMAL, 3, 0, false},
    {4096, 0.6f, 0.95f, 0, LOGITS_NORMAL, 20, 0, false},
    {4096, 1.0f, 0.95f, 0, LOGITS_FLAT, 1, 0, false},
    {4096, 1.0f, 1.0f, 50, LOGITS_NORMAL, 0, 0, false},
    {1000, 1.0f, 0.9f, 40, LOGITS_TIES, 20, 0, false},
    {1000, 1.5f, 0.9999999f, 0, LOGITS_FLAT, 0, 0, false},
    {500, 0.01f, 0.5f, 0, LOGITS_PEAK, 2, 0, false},
    {500, 2.0f, 0.01f, 7, LOGITS_PEAK, 2, 0, false},
    {600, 1.0f, 0.95f, 599, LOGITS_MASKED, 9, 0, false},
    {600, 1.0f, 0.999f, 700, LOGITS_MASKED, 9, 0, false},
    {64, 0.7f, 0.8f, 0, LOGITS_ODD, 4, 0, false},
    {40, 1.0f, 0.9f, 5, LOGITS_NONE, 3, 0, false},
    {2000, 5.0f, 0.7f, 0, LOGITS_TIES, 0, 0, false},
    {800, 1.0f, 1.0f, 0, LOGITS_NORMAL, 0, 0.1f, false},
    {800, 0.6f, 0.9f, 60, LOGITS_NORMAL, 2, 0.02f, false},
    {300, 2.0f, 1.0f, 0, LOGITS_TIES, 0, 1.0f, false},
    {300, 1.0f, 0.5f, 0, LOGITS_FLAT, 0, 0.9f, false},
    {600, 1.0f, 1.0f, 0, LOGITS_MASKED, 3, 0.25f, false},
    {64, 0.7f, 1.0f, 0, LOGITS_ODD, 4, 0.3f, false},
    {64, 0.0f, 1.0f, 0, LOGITS_NORMAL, 0, 0.5f, false},
    {900, 0.0f, 1.0f, 0, LOGITS_NORMAL, 20, 0, true},
    {900, 0.8f, 0.9f, 30, LOGITS_NORMAL, 3, 0, true},
};

struct kv_move_case {
    uint32_t slots, tok_bytes, move_count;
    bool chained; /* down by one, so that a move's target is the next one's neighbour */
};
static const struct kv_move_case kv_move_cases[] = {
    {3, 640, 0, false},
    {70, 68, 64, true},
    {40, 1152, 9, false},
    {9, 656, 30, false}, /* many read what another wrote */
};

struct top_tokens_case {
    uint32_t rows, width, id_begin, count, segments;
    enum logits_shape shape;
    uint32_t pad;
};
static const struct top_tokens_case top_tokens_cases[] = {
    {0, 64, 0, 4, 8, LOGITS_NORMAL, 0},    {1, 1, 5, 1, 1, LOGITS_NORMAL, 0},
    {2, 17, 0, 17, 8, LOGITS_TIES, 3},     {7, 4096, 0, 16, 8, LOGITS_NORMAL, 0},
    {7, 512, 3584, 64, 1, LOGITS_FLAT, 0}, {3, 1000, 0, 8, 4, LOGITS_TIES, 0},
    {3, 333, 7, 8, 8, LOGITS_ODD, 1},      {2, 600, 0, 32, 8, LOGITS_MASKED, 0},
    {2, 40, 0, 5, 4, LOGITS_NONE, 0},      {2, 500, 0, 3, 2, LOGITS_PEAK, 0},
};

#endif
