/* The sharding table: names, sizes, and that the ranks' slices laid side by side are the tensor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shard.h"

static const struct model_spec specs[] = {
    /* Kimi K2.5 */
    {.hidden = 7168,
     .layers = 61,
     .dense_layers = 1,
     .heads = 64,
     .q_rank = 1536,
     .kv_rank = 512,
     .nope_dim = 128,
     .rope_dim = 64,
     .value_dim = 128,
     .dense_width = 18432,
     .expert_width = 2048,
     .experts = 384,
     .topk = 8,
     .shared_experts = 1,
     .vocab = 163840},
    /* DeepSeek-V2-Lite */
    {.hidden = 2048,
     .layers = 27,
     .dense_layers = 1,
     .heads = 16,
     .q_rank = 0,
     .kv_rank = 512,
     .nope_dim = 128,
     .rope_dim = 64,
     .value_dim = 128,
     .dense_width = 10944,
     .expert_width = 1408,
     .experts = 64,
     .topk = 6,
     .shared_experts = 2,
     .vocab = 102400},
    /* Smallest that eight ranks can share, without a shared expert. */
    {.hidden = 16,
     .layers = 1,
     .heads = 8,
     .q_rank = 16,
     .kv_rank = 16,
     .nope_dim = 1,
     .rope_dim = 16,
     .value_dim = 1,
     .dense_width = 8,
     .expert_width = 8,
     .experts = 1,
     .topk = 1,
     .vocab = 8},
};

static void test_slices_tile(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++)
        for (uint32_t tp = 1; tp <= TP_MAX; tp *= 2)
            for (uint32_t t = 0; t < SHARD_TENSOR_COUNT; t++) {
                uint32_t row = 0;
                uint32_t column = 0;
                struct shard_slice slice = {0};
                for (uint32_t rank = 0; rank < tp; rank++) {
                    slice = shard_slice(&specs[s], (enum shard_tensor)t, rank, tp);
                    assert_int_equal(slice.row_begin, slice.split == SHARD_ROWS ? row : 0);
                    assert_int_equal(slice.column_begin, slice.split == SHARD_COLUMNS ? column : 0);
                    row += slice.row_count;
                    column += slice.column_count;
                }
                uint32_t copies = slice.split == SHARD_ROWS ? 1 : tp;
                assert_int_equal(row, copies * slice.rows);
                copies = slice.split == SHARD_COLUMNS ? 1 : tp;
                assert_int_equal(column, copies * slice.columns);
            }
}

/* Sizes as published for Kimi K2.5, and what rank 3 of 8 holds. */
static void test_table_of_k25(void **state) {
    (void)state;
    static const struct {
        enum shard_tensor tensor;
        const char *name;
        uint32_t rows, columns, row_begin, row_count, column_begin, column_count;
    } cases[] = {
        {SHARD_EMBED, "model.embed_tokens", 163840, 7168, 61440, 20480, 0, 7168},
        {SHARD_HEAD, "lm_head", 163840, 7168, 61440, 20480, 0, 7168},
        {SHARD_FINAL_NORM, "model.norm", 1, 7168, 0, 1, 0, 7168},
        {SHARD_INPUT_NORM, "model.layers.9.input_layernorm", 1, 7168, 0, 1, 0, 7168},
        {SHARD_POST_NORM, "model.layers.9.post_attention_layernorm", 1, 7168, 0, 1, 0, 7168},
        {SHARD_Q_PROJ, "model.layers.9.self_attn.q_proj", 12288, 7168, 4608, 1536, 0, 7168},
        {SHARD_Q_A, "model.layers.9.self_attn.q_a_proj", 1536, 7168, 0, 1536, 0, 7168},
        {SHARD_Q_A_NORM, "model.layers.9.self_attn.q_a_layernorm", 1, 1536, 0, 1, 0, 1536},
        {SHARD_Q_B, "model.layers.9.self_attn.q_b_proj", 12288, 1536, 4608, 1536, 0, 1536},
        {SHARD_KV_A, "model.layers.9.self_attn.kv_a_proj_with_mqa", 576, 7168, 0, 576, 0, 7168},
        {SHARD_KV_A_NORM, "model.layers.9.self_attn.kv_a_layernorm", 1, 512, 0, 1, 0, 512},
        {SHARD_KV_B, "model.layers.9.self_attn.kv_b_proj", 16384, 512, 6144, 2048, 0, 512},
        {SHARD_O, "model.layers.9.self_attn.o_proj", 7168, 8192, 0, 7168, 3072, 1024},
        {SHARD_DENSE_GATE, "model.layers.9.mlp.gate_proj", 18432, 7168, 6912, 2304, 0, 7168},
        {SHARD_DENSE_UP, "model.layers.9.mlp.up_proj", 18432, 7168, 6912, 2304, 0, 7168},
        {SHARD_DENSE_DOWN, "model.layers.9.mlp.down_proj", 7168, 18432, 0, 7168, 6912, 2304},
        {SHARD_ROUTER, "model.layers.9.mlp.gate", 384, 7168, 0, 384, 0, 7168},
        {SHARD_ROUTER_BIAS, "model.layers.9.mlp.gate.e_score_correction_bias", 1, 384, 0, 1, 0,
         384},
        {SHARD_SHARED_GATE, "model.layers.9.mlp.shared_experts.gate_proj", 2048, 7168, 768, 256, 0,
         7168},
        {SHARD_SHARED_UP, "model.layers.9.mlp.shared_experts.up_proj", 2048, 7168, 768, 256, 0,
         7168},
        {SHARD_SHARED_DOWN, "model.layers.9.mlp.shared_experts.down_proj", 7168, 2048, 0, 7168, 768,
         256},
        {SHARD_EXPERT_GATE, "model.layers.9.mlp.experts.77.gate_proj", 2048, 7168, 768, 256, 0,
         7168},
        {SHARD_EXPERT_UP, "model.layers.9.mlp.experts.77.up_proj", 2048, 7168, 768, 256, 0, 7168},
        {SHARD_EXPERT_DOWN, "model.layers.9.mlp.experts.77.down_proj", 7168, 2048, 0, 7168, 768,
         256},
    };
    assert_int_equal(sizeof cases / sizeof *cases, SHARD_TENSOR_COUNT);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[128];
        shard_name(cases[i].tensor, 9, 77, name, sizeof name);
        assert_string_equal(name, cases[i].name);
        struct shard_slice slice = shard_slice(&specs[0], cases[i].tensor, 3, 8);
        assert_int_equal(slice.rows, cases[i].rows);
        assert_int_equal(slice.columns, cases[i].columns);
        assert_int_equal(slice.row_begin, cases[i].row_begin);
        assert_int_equal(slice.row_count, cases[i].row_count);
        assert_int_equal(slice.column_begin, cases[i].column_begin);
        assert_int_equal(slice.column_count, cases[i].column_count);
    }
}

/* Two experts in one shared MLP; V2-Lite's width does not divide into panels. */
static void test_shared_width_of_v2_lite(void **state) {
    (void)state;
    struct shard_slice slice = shard_slice(&specs[1], SHARD_SHARED_DOWN, 7, 8);
    assert_int_equal(slice.columns, 2816);
    assert_int_equal(slice.column_begin, 7 * 352);
    assert_int_equal(slice.column_count, 352);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices_tile),
        cmocka_unit_test(test_table_of_k25),
        cmocka_unit_test(test_shared_width_of_v2_lite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
