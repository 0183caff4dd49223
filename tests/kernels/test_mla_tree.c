/* What mla_tree promises of trees: a row is its path as a sequence, a mask that says "chain" is
 * one, and each bit of a mask counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "compare.h"
#include "kv_store/kv_value.h"
#include "rig.h"

static const struct compare_tolerance exact = {0, 0};

/* A tree row has the bits of the last row of a chain that holds its path. */
static void test_tree_is_chain(void **state) {
    (void)state;
    const struct mla_tree_case trees[] = {
        {KERNEL_F32, 4, 32, 16, 16, 1, {{TREE_BUSHY, 61, 64}}, KERNEL_F32},
        {KERNEL_BF16, 3, 64, 32, 64, 1, {{TREE_BUSHY, 64, 40}}, KERNEL_F32},
        {KERNEL_BF16, 1, 32, 16, 1, 1, {{TREE_WIDE, 130, 20}}, KERNEL_F32},
        {KERNEL_BF16, 3, 64, 32, 64, 1, {{TREE_BUSHY, 100, 40}}, KERNEL_BF16},
        {KERNEL_FP8, 2, 128, 32, 16, 1, {{TREE_BUSHY, 100, 40}}, KERNEL_BF16},
    };
    for (size_t c = 0; c < sizeof trees / sizeof trees[0]; c++) {
        struct rig *rig = rig_create(c);
        struct rig_call call = {0};
        rig_mla_tree(rig, &trees[c], 1, &call);
        struct kernel_ctx ctx = {.scratch = rig_alloc(rig, call.scratch_bytes),
                                 .scratch_bytes = call.scratch_bytes};
        struct mla_tree_args tree = call.args.mla_tree;
        mla_tree_cpu(&tree, &ctx);

        const struct mla_sequence *seq = tree.sequences;
        uint32_t total = seq->committed + seq->row_count;
        size_t tok_bytes = kv_tok_bytes(tree.kv_dtype, tree.latent_dim, tree.rope_dim);
        uint32_t *page = rig_alloc(rig, total * sizeof(uint32_t));
        char *kv = rig_alloc(rig, total * tok_bytes);
        for (uint32_t row = 0; row < seq->row_count; row++) {
            uint32_t length = 0;
            for (uint32_t tok = 0; tok < total; tok++) {
                if (tok >= seq->committed && !(seq->ancestors[row] >> (tok - seq->committed) & 1))
                    continue;
                size_t slot = (size_t)seq->page[tok / tree.page_tok] * tree.page_tok +
                              tok % tree.page_tok;
                memcpy(kv + length * tok_bytes, (const char *)tree.kv + slot * tok_bytes,
                       tok_bytes);
                page[length] = length;
                length++;
            }
            struct mla_sequence chain = {
                .row_count = 1, .committed = length - 1, .page = page, .ancestors = NULL};
            size_t width = (size_t)tree.heads * tree.latent_dim;
            struct mla_tree_args args = tree;
            args.sequences = &chain;
            args.page_tok = 1;
            args.kv = kv;
            args.q_latent += row * width;
            args.q_rope += row * tree.q_rope_row_stride;
            args.out = rig_alloc(rig, width * sizeof(float));
            mla_tree_cpu(&args, &ctx);
            assert_true(compare_floats("tree against chain", tree.out + row * width, args.out,
                                       width, exact));
        }
        rig_destroy(&rig);
    }
}

/* Reading is exact: an fp8 cache gives the bits of a bf16 cache of what it holds. */
static void test_fp8_is_bf16(void **state) {
    (void)state;
    const struct mla_tree_case cases[] = {
        {KERNEL_FP8, 3, 144, 16, 7, 1, {{CHAIN, 200, 9}}, KERNEL_F32},
        {KERNEL_FP8, 8, 512, 64, 64, 1, {{TREE_BUSHY, 150, 16}}, KERNEL_BF16},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct rig *rig = rig_create(c);
        struct rig_call call = {0};
        rig_mla_tree(rig, &cases[c], 1, &call);
        struct kernel_ctx ctx = {.scratch = rig_alloc(rig, call.scratch_bytes),
                                 .scratch_bytes = call.scratch_bytes};
        struct mla_tree_args args = call.args.mla_tree;
        mla_tree_cpu(&args, &ctx);
        size_t dim = (size_t)args.latent_dim + args.rope_dim;
        size_t width = (size_t)args.sequences->row_count * args.heads * args.latent_dim;
        size_t positions = args.sequences->committed + args.sequences->row_count;
        size_t slots = (positions / args.page_tok + 1) * args.page_tok;
        bf16 *kv = rig_alloc(rig, slots * dim * sizeof(bf16));
        for (size_t i = 0; i < slots * dim; i++) {
            float value = kv_value(args.kv, KERNEL_FP8, args.latent_dim, args.rope_dim, i / dim,
                                   i % dim);
            kv[i] = bf16_from_f32(value);
            assert_true(bf16_to_f32(kv[i]) == value);
        }
        const float *of_fp8 = args.out;
        args.kv = kv;
        args.kv_dtype = KERNEL_BF16;
        args.out = rig_alloc(rig, width * sizeof(float));
        mla_tree_cpu(&args, &ctx);
        assert_true(compare_floats("fp8 against bf16", of_fp8, args.out, width, exact));
        rig_destroy(&rig);
    }
}

/* The mask of a chain gives the bytes of a chain, whether rows come one by one or together. Then
 * one bit is cleared, which is what a row sees of one other: that row changes, and no other does.
 */
static void test_mask_of_a_chain(void **state) {
    (void)state;
    const struct mla_tree_case lines[] = {
        {KERNEL_F32, 4, 32, 16, 16, 1, {{TREE_LINE, 0, 64}}, KERNEL_F32},
        {KERNEL_F32, 2, 64, 32, 7, 1, {{TREE_LINE, 127, 9}}, KERNEL_F32},
        {KERNEL_BF16, 8, 64, 32, 64, 1, {{TREE_LINE, 300, 16}}, KERNEL_F32},
        {KERNEL_BF16, 8, 64, 32, 64, 1, {{TREE_LINE, 250, 33}}, KERNEL_BF16},
    };
    for (size_t c = 0; c < sizeof lines / sizeof lines[0]; c++) {
        struct rig *rig = rig_create(c);
        struct rig_call call = {0};
        rig_mla_tree(rig, &lines[c], 1, &call);
        struct kernel_ctx ctx = {.scratch = rig_alloc(rig, call.scratch_bytes),
                                 .scratch_bytes = call.scratch_bytes};
        struct mla_tree_args tree = call.args.mla_tree, chain = tree;
        struct mla_sequence sequence = *tree.sequences, masked = sequence;
        uint32_t rows = sequence.row_count;
        size_t width = (size_t)tree.heads * tree.latent_dim;
        mla_tree_cpu(&tree, &ctx);
        sequence.ancestors = NULL;
        chain.sequences = &sequence;
        chain.out = rig_alloc(rig, rows * width * sizeof(float));
        mla_tree_cpu(&chain, &ctx);
        assert_memory_equal(tree.out, chain.out, rows * width * sizeof(float));

        uint64_t *mask = rig_alloc(rig, rows * sizeof *mask);
        struct mla_tree_args spoiled = tree;
        masked.ancestors = mask;
        spoiled.sequences = &masked;
        spoiled.out = rig_alloc(rig, rows * width * sizeof(float));
        for (uint32_t row = 1; row < rows; row += 3)
            for (uint32_t bit = 0; bit < row; bit += 1 + bit / 2) {
                memcpy(mask, tree.sequences->ancestors, rows * sizeof *mask);
                mask[row] &= ~(UINT64_C(1) << bit);
                mla_tree_cpu(&spoiled, &ctx);
                for (uint32_t i = 0; i < rows; i++) {
                    int differs = memcmp(spoiled.out + i * width, chain.out + i * width,
                                         width * sizeof(float));
                    assert_int_equal(differs != 0, i == row);
                }
            }
        rig_destroy(&rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree_is_chain),
        cmocka_unit_test(test_fp8_is_bf16),
        cmocka_unit_test(test_mask_of_a_chain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
