/* The CUDA variant of mla_tree against the reference: every case it takes, every tile, one range of
 * positions and many, under every schedule. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <string.h>

#include "mla_tree/mla_tree_cuda.h"
#include "simt_variant.h"

#define TOLERANCE 1e-2 /* of max|c| */
#define CASES     (sizeof mla_tree_cases / sizeof mla_tree_cases[0])

static void build_mla_tree(struct rig *rig, size_t case_idx, struct rig_call *call) {
    rig_mla_tree(rig, &mla_tree_cases[case_idx], 1, call);
}

static bool takes_mla_tree(const struct rig_call *call) {
    return mla_tree_cuda_takes(&call->args.mla_tree);
}

static size_t scratch_bytes_of(const struct rig_call *call, const struct kernel_device *device) {
    return mla_tree_cuda_plan(&call->args.mla_tree, device).scratch_bytes;
}

/* What no sequence has stored may hold anything. */
static void spoil_unused_slots(struct rig *rig, struct rig_call *call) {
    const struct mla_tree_args *args = &call->args.mla_tree;
    uint32_t pages = 0;
    for (uint32_t s = 0; s < args->sequence_count; s++) {
        const struct mla_sequence *seq = &args->sequences[s];
        pages += (seq->committed + seq->row_count) / args->page_tok + 1;
    }
    uint32_t slots = pages * args->page_tok, width = args->latent_dim + args->rope_dim;
    bool *used = rig_alloc(rig, slots);
    for (uint32_t s = 0; s < args->sequence_count; s++) {
        const struct mla_sequence *seq = &args->sequences[s];
        for (uint32_t x = 0; x < seq->committed + seq->row_count; x++)
            used[seq->page[x / args->page_tok] * args->page_tok + x % args->page_tok] = true;
    }
    bf16 *cache = (bf16 *)(uintptr_t)args->kv; /* the rig's memory, which may be written */
    for (size_t i = 0; i < (size_t)slots * width; i++)
        if (!used[i / width]) cache[i] = 0x7fff;
}

SIMT_VARIANT_CALLS(mla_tree)

static const struct simt_variant mla_tree = {.name = "mla_tree",
                                             .case_count = CASES,
                                             .build = build_mla_tree,
                                             .ref = ref_mla_tree,
                                             .cuda = cuda_mla_tree,
                                             .takes = takes_mla_tree,
                                             .scratch_bytes = scratch_bytes_of,
                                             .spoil = spoil_unused_slots,
                                             .tolerance = {{0, TOLERANCE}, {0, TOLERANCE}},
                                             .conflict_free = true};

static void every_case_on_every_device(void **state) {
    (void)state;
    assert_true(simt_variant_check(&mla_tree, simt_devices, SIMT_DEVICES) >= 30);
}

/* The same bits under every schedule: nothing depends on who comes first. */
static void schedules_do_not_show(void **state) {
    (void)state;
    const struct mla_tree_case c = {
        KERNEL_BF16, 8, 128, 32, 16, 2, {{TREE_BUSHY, 900, 7}, {CHAIN, 40, 3}}, KERNEL_F32};
    struct rig *rig = rig_create(1);
    struct rig_call call = {0};
    rig_mla_tree(rig, &c, 1, &call);
    simt_variant_run(&mla_tree, rig, &call, &simt_devices[2], simt_schedules[0].schedule);
    const void *first = simt_variant_keep(rig, &call);
    simt_variant_repeat(&mla_tree, rig, &call, &simt_devices[2], 4, first);
    rig_destroy(&rig);
}

/* As many bytes as the cache has in these positions, whatever the heads and rows of the tile. */
static void the_cache_is_read_once(void **state) {
    (void)state;
    const struct mla_tree_case cases[] = {
        {KERNEL_BF16, 8, 128, 32, 64, 1, {{TREE_BUSHY, 777, 1}}, KERNEL_F32},
        {KERNEL_BF16, 8, 128, 32, 64, 1, {{TREE_BUSHY, 777, 4}}, KERNEL_F32},
        {KERNEL_BF16, 8, 128, 32, 64, 1, {{TREE_BUSHY, 777, 8}}, KERNEL_F32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rig *rig = rig_create(i);
        struct rig_call call = {0};
        rig_mla_tree(rig, &cases[i], 1, &call);
        struct simt_counters counters = simt_variant_run(&mla_tree, rig, &call, &simt_devices[2],
                                                         simt_schedules[0].schedule);
        uint32_t positions = cases[i].sequence[0].committed + cases[i].sequence[0].rows;
        assert_int_equal(counters.copied_bytes, positions * (128 + 32) * sizeof(bf16));
        rig_destroy(&rig);
    }
}

static void plans_fit_the_device(void **state) {
    (void)state;
    static const struct {
        uint32_t rows, sequences, positions;
        size_t shared_bytes_max;
        uint32_t multiprocessors;
        enum mla_cuda_tile tile;
        uint32_t query_tiles, splits;
    } cases[] = {
        {1, 1, 200000, SIMT_SM120_SHARED_BYTES, 188, MLA_TILE_16, 1, 188},
        {2, 1, 200000, SIMT_SM120_SHARED_BYTES, 188, MLA_TILE_16, 1, 188},
        {4, 1, 200000, SIMT_SM120_SHARED_BYTES, 188, MLA_TILE_32, 1, 188},
        {8, 1, 200000, SIMT_SM120_SHARED_BYTES, 188, MLA_TILE_32, 2, 94},
        {8, 1, 200000, SIMT_SM90_SHARED_BYTES, 132, MLA_TILE_64, 1, 132},
        {64, 1, 200000, SIMT_SM90_SHARED_BYTES, 132, MLA_TILE_64, 8, 16},
        {1, 16, 4096, SIMT_SM120_SHARED_BYTES, 188, MLA_TILE_16, 1, 11},
        {1, 1, 100, SIMT_SM120_SHARED_BYTES, 188, MLA_TILE_16, 1, 1},
        {1, 1, 257, SIMT_SM120_SHARED_BYTES, 188, MLA_TILE_16, 1, 2},
        {64, 64, 300, SIMT_SM120_SHARED_BYTES, 188, MLA_TILE_32, 16, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct mla_tree_args args = {.heads = 8,
                                           .latent_dim = 512,
                                           .rope_dim = 64,
                                           .sequence_count = cases[i].sequences,
                                           .rows_max = cases[i].rows,
                                           .positions_max = cases[i].positions};
        const struct kernel_device device = {cases[i].multiprocessors, cases[i].shared_bytes_max};
        struct mla_cuda_plan plan = mla_tree_cuda_plan(&args, &device);
        assert_int_equal(plan.tile, cases[i].tile);
        assert_int_equal(plan.query_tiles, cases[i].query_tiles);
        assert_int_equal(plan.splits, cases[i].splits);
        assert_true(plan.shared_bytes <= device.shared_bytes_max);
        assert_int_equal(plan.scratch_bytes, (size_t)plan.splits * cases[i].sequences *
                                                 cases[i].rows * 8 * (512 + 2) * sizeof(float));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_fit_the_device),
        cmocka_unit_test(every_case_on_every_device),
        cmocka_unit_test(schedules_do_not_show),
        cmocka_unit_test(the_cache_is_read_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
