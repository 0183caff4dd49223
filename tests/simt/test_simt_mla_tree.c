/* The CUDA variant of mla_tree against the reference: every case it takes, with bf16 and with fp8
 * caches, every tile, one range of positions and many, under every schedule. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "kv_store/kv_store.h"
#include "kv_store/kv_value.h"
#include "mla_tree/mla_tree_cuda.h"
#include "simt_variant.h"

#define TOLERANCE    1e-2 /* of max|c| */
#define SHARED_CASES (sizeof mla_tree_cases / sizeof mla_tree_cases[0])
#define OWN_CASES    (sizeof own_cases / sizeof own_cases[0])

/* Steps of which some sequences are split and others, with more rows, are not; ranges that are not
 * worth a block; the tile of eight at Kimi's width. */
static const struct mla_tree_case own_cases[] = {
    {KERNEL_BF16,
     4,
     128,
     32,
     16,
     3,
     {{TREE_WIDE, 900, 9}, {CHAIN, 3, 65}, {TREE_BUSHY, 300, 2}},
     KERNEL_F32},
    {KERNEL_BF16, 8, 128, 32, 64, 2, {{CHAIN, 700, 40}, {CHAIN, 2000, 1}}, KERNEL_F32},
    {KERNEL_BF16, 8, 512, 64, 64, 1, {{CHAIN, 300, 1}}, KERNEL_F32},
};

static const struct mla_tree_case *case_of(size_t case_idx) {
    return case_idx < SHARED_CASES ? &mla_tree_cases[case_idx]
                                   : &own_cases[case_idx - SHARED_CASES];
}

static void build_mla_tree(struct rig *rig, size_t case_idx, struct rig_call *call) {
    rig_mla_tree(rig, case_of(case_idx), 1, call);
}

/* The cases of BF16 caches with FP8 ones; others become some that the variant does not take. */
static void build_of_records(struct rig *rig, size_t case_idx, struct rig_call *call) {
    struct mla_tree_case of = *case_of(case_idx);
    of.dtype = of.dtype == KERNEL_BF16 ? KERNEL_FP8 : KERNEL_F32;
    rig_mla_tree(rig, &of, 1, call);
}

static bool takes_mla_tree(const struct rig_call *call) {
    return mla_tree_cuda_takes(&call->args.mla_tree);
}

static size_t scratch_bytes_of(const struct rig_call *call, const struct kernel_device *device) {
    return mla_tree_cuda_plan(&call->args.mla_tree, device).scratch_bytes;
}

static uint32_t count_slots(const struct mla_tree_args *args) {
    uint32_t pages = 0;
    for (uint32_t s = 0; s < args->sequence_count; s++) {
        const struct mla_sequence *seq = &args->sequences[s];
        pages += (seq->committed + seq->row_count) / args->page_tok + 1;
    }
    return pages * args->page_tok;
}

/* What no sequence has stored may hold anything. */
static void spoil_unused_slots(struct rig *rig, struct rig_call *call) {
    const struct mla_tree_args *args = &call->args.mla_tree;
    uint32_t slots = count_slots(args);
    size_t tok_bytes = kv_tok_bytes(args->kv_dtype, args->latent_dim, args->rope_dim);
    bool *used = rig_alloc(rig, slots);
    for (uint32_t s = 0; s < args->sequence_count; s++) {
        const struct mla_sequence *seq = &args->sequences[s];
        for (uint32_t x = 0; x < seq->committed + seq->row_count; x++)
            used[seq->page[x / args->page_tok] * args->page_tok + x % args->page_tok] = true;
    }
    unsigned char *cache = (void *)(uintptr_t)args->kv; /* the rig's memory, which may be written */
    for (uint32_t slot = 0; slot < slots; slot++)       /* NaN, as bf16 and as scale */
        if (!used[slot]) memset(cache + slot * tok_bytes, 0xff, tok_bytes);
}

SIMT_VARIANT_CALLS(mla_tree)

static const struct simt_variant mla_tree = {.name = "mla_tree",
                                             .case_count = SHARED_CASES + OWN_CASES,
                                             .build = build_mla_tree,
                                             .ref = ref_mla_tree,
                                             .cuda = cuda_mla_tree,
                                             .takes = takes_mla_tree,
                                             .scratch_bytes = scratch_bytes_of,
                                             .spoil = spoil_unused_slots,
                                             .tolerance = {{0, TOLERANCE}, {0, TOLERANCE}},
                                             .conflict_free = true};

/* With few multiprocessors, so that some sequences of a step are split and others are not. */
static const struct kernel_device small = {.multiprocessors = 9,
                                           .shared_bytes_max = SIMT_SM120_SHARED_BYTES};
static const struct kernel_device small_wgmma = {
    .multiprocessors = 9, .shared_bytes_max = SIMT_SM90_SHARED_BYTES, .has_wgmma = true};

/* The largest tile of warps' products. */
static const struct kernel_device without_wgmma = {.multiprocessors = 132,
                                                   .shared_bytes_max = SIMT_SM90_SHARED_BYTES};

static void every_case_on_every_device(void **state) {
    (void)state;
    assert_true(simt_variant_check(&mla_tree, simt_devices, SIMT_DEVICES) >= 30);
    assert_true(simt_variant_check(&mla_tree, &without_wgmma, 1) >= 10);
    assert_true(simt_variant_check(&mla_tree, &small, 1) >= 10);
}

static void every_case_with_records(void **state) {
    (void)state;
    struct simt_variant records = mla_tree;
    records.build = build_of_records;
    assert_true(simt_variant_check(&records, simt_devices, SIMT_DEVICES) >= 30);
    assert_true(simt_variant_check(&records, &small, 1) >= 10);
}

/* One to 64 rows: every size of a tree, and of a tail beside the edges of pages and stages. */
static void build_size(struct rig *rig, size_t case_idx, struct rig_call *call) {
    static const enum tree_shape shapes[] = {TREE_BUSHY, TREE_WIDE, TREE_LINE, CHAIN};
    uint32_t rows = (uint32_t)case_idx + 1;
    const struct mla_tree_case of = {
        KERNEL_BF16, 2, 128, 32, 16, 1, {{shapes[rows % 4], 300 - rows, rows}}, KERNEL_F32};
    rig_mla_tree(rig, &of, 1, call);
}

static void every_size_of_tree(void **state) {
    (void)state;
    struct simt_variant sizes = mla_tree;
    sizes.case_count = 64;
    sizes.build = build_size;
    assert_int_equal(simt_variant_check(&sizes, &small, 1), 64);
}

/* Of a tile by warpgroups: one, full or not, and several, with ranges that end in a stage of their
 * own, in the tree, and in the committed positions. */
static void build_group_size(struct rig *rig, size_t case_idx, struct rig_call *call) {
    static const struct {
        uint32_t heads, rows, committed, page_tok;
        enum tree_shape shape;
    } cases[] = {
        {8, 5, 40, 64, TREE_BUSHY},   {8, 8, 152, 64, TREE_BUSHY},  {8, 16, 540, 64, TREE_BUSHY},
        {2, 17, 15, 1, TREE_LINE},    {3, 11, 0, 16, CHAIN},        {1, 64, 192, 64, TREE_WIDE},
        {8, 32, 291, 16, TREE_BUSHY}, {2, 64, 1000, 7, TREE_BUSHY}, {4, 37, 227, 64, CHAIN},
        {1, 33, 3, 1, TREE_BUSHY},    {64, 1, 513, 64, CHAIN},      {64, 2, 62, 64, TREE_LINE},
    };
    const struct mla_tree_case of = {
        KERNEL_BF16,
        cases[case_idx].heads,
        128,
        32,
        cases[case_idx].page_tok,
        1,
        {{cases[case_idx].shape, cases[case_idx].committed, cases[case_idx].rows}},
        KERNEL_F32};
    rig_mla_tree(rig, &of, 1, call);
    assert_int_equal(mla_tree_cuda_plan(&call->args.mla_tree, &small_wgmma).tile, MLA_TILE_WGMMA);
}

static void tiles_by_warpgroups(void **state) {
    (void)state;
    struct simt_variant sizes = mla_tree;
    sizes.case_count = 12;
    sizes.build = build_group_size;
    assert_int_equal(simt_variant_check(&sizes, &small_wgmma, 1), 12);
}

/* 200,000 positions, whose pages are some few, met again and again. */
static void build_long_context(struct rig *rig, size_t case_idx, struct rig_call *call) {
    (void)case_idx;
    const uint32_t context = 200000, page_tok = 64, few = 37, rows = 9;
    const struct mla_tree_case first = {
        KERNEL_BF16, 2, 128, 32, page_tok, 1, {{TREE_BUSHY, few * page_tok, rows}}, KERNEL_F32};
    rig_mla_tree(rig, &first, 1, call);
    struct mla_sequence *sequence = rig_alloc(rig, sizeof *sequence);
    *sequence = call->args.mla_tree.sequences[0];
    uint32_t pages = (context + rows) / page_tok + 1;
    uint32_t *page = rig_alloc(rig, pages * sizeof *page);
    for (uint32_t i = 0; i < pages; i++)
        page[i] = sequence->page[rig_below(rig, few)];
    page[pages - 1] = sequence->page[few]; /* of the rows */
    sequence->page = page;
    sequence->committed = context;
    call->args.mla_tree.sequences = sequence;
    call->args.mla_tree.positions_max = context + rows;
}

static void long_context(void **state) {
    (void)state;
    struct simt_variant contexts = mla_tree;
    contexts.case_count = 1;
    contexts.build = build_long_context;
    contexts.spoil = NULL; /* more positions than slots */
    assert_int_equal(simt_variant_check(&contexts, &simt_devices[1], 1), 1);
}

/* The same bits under every schedule: nothing depends on who comes first. */
static void schedules_do_not_show(void **state) {
    (void)state;
    const struct mla_tree_case c = {
        KERNEL_BF16, 8, 128, 32, 16, 2, {{TREE_BUSHY, 900, 7}, {CHAIN, 40, 3}}, KERNEL_F32};
    const struct kernel_device *devices[] = {&simt_devices[2], &without_wgmma};
    for (size_t d = 0; d < 2; d++) {
        struct rig *rig = rig_create(1);
        struct rig_call call = {0};
        rig_mla_tree(rig, &c, 1, &call);
        simt_variant_run(&mla_tree, rig, &call, devices[d], simt_schedules[0].schedule);
        const void *first = simt_variant_keep(rig, &call);
        simt_variant_repeat(&mla_tree, rig, &call, devices[d], 4, first);
        rig_destroy(&rig);
    }
}

/* A BF16 cache with the values of an FP8 one. */
static const bf16 *widen_cache(struct rig *rig, const struct mla_tree_args *args) {
    uint32_t width = args->latent_dim + args->rope_dim;
    size_t slots = count_slots(args);
    bf16 *wide = rig_alloc(rig, slots * width * sizeof *wide);
    for (size_t i = 0; i < slots * width; i++) {
        float value = kv_value(args->kv, KERNEL_FP8, args->latent_dim, args->rope_dim, i / width,
                               i % width);
        wide[i] = bf16_from_f32(value);
        assert_true(bf16_to_f32(wide[i]) == value);
    }
    return wide;
}

/* Of every tile of warps, at both widths: the same bits, whatever the scales, codes and zeros. */
static void records_have_the_bits_of_bf16(void **state) {
    (void)state;
    const struct mla_tree_case cases[] = {
        {KERNEL_FP8, 8, 512, 64, 64, 1, {{CHAIN, 90, 1}}, KERNEL_F32},
        {KERNEL_FP8, 2, 512, 64, 16, 2, {{TREE_BUSHY, 300, 8}, {CHAIN, 0, 1}}, KERNEL_BF16},
        {KERNEL_FP8, 8, 512, 64, 1, 1, {{TREE_LINE, 61, 4}}, KERNEL_F32},
        {KERNEL_FP8, 8, 512, 64, 64, 1, {{TREE_WIDE, 70, 9}}, KERNEL_F32},
        {KERNEL_FP8, 8, 128, 32, 64, 2, {{TREE_BUSHY, 700, 9}, {CHAIN, 33, 1}}, KERNEL_F32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rig *rig = rig_create(i);
        struct rig_call call = {0};
        rig_mla_tree(rig, &cases[i], 1, &call);
        simt_variant_run(&mla_tree, rig, &call, &without_wgmma, simt_schedules[0].schedule);
        void *of_records = simt_variant_keep(rig, &call);
        call.args.mla_tree.kv = widen_cache(rig, &call.args.mla_tree);
        call.args.mla_tree.kv_dtype = KERNEL_BF16;
        simt_variant_repeat(&mla_tree, rig, &call, &without_wgmma, 1, of_records);
        rig_destroy(&rig);
    }
}

/* A group that was no number reads as NaN (kv_store.h), and so does what comes of it. */
static void a_group_that_is_no_number_stays_seen(void **state) {
    (void)state;
    const struct mla_tree_case c = {KERNEL_FP8,           2,         512, 64, 64, 1,
                                    {{TREE_WIDE, 40, 3}}, KERNEL_F32};
    struct rig *rig = rig_create(1);
    struct rig_call call = {0};
    rig_mla_tree(rig, &c, 1, &call);
    const struct mla_tree_args *args = &call.args.mla_tree;
    size_t of_row = (size_t)2 * 512, slot = args->sequences[0].page[0] * UINT64_C(64) + 41;
    unsigned char *record = (unsigned char *)(uintptr_t)args->kv + slot * 656; /* of row 1 */
    memset(record + 128, 0, 128);
    ((float *)(void *)(record + 512))[1] = NAN;
    simt_variant_run(&mla_tree, rig, &call, &simt_devices[1], simt_schedules[0].schedule);
    for (size_t i = of_row; i < 2 * of_row; i++)
        assert_true(isnan(args->out[i]));
    assert_false(isnan(args->out[0])); /* row 0 does not see it */
    rig_destroy(&rig);
}

/* As many bytes as the cache has in these positions, whatever the heads and rows of the tile. */
static void the_cache_is_read_once(void **state) {
    (void)state;
    const struct mla_tree_case cases[] = {
        {KERNEL_BF16, 8, 128, 32, 64, 1, {{TREE_BUSHY, 777, 1}}, KERNEL_F32},
        {KERNEL_BF16, 8, 128, 32, 64, 1, {{TREE_BUSHY, 777, 4}}, KERNEL_F32},
        {KERNEL_BF16, 8, 128, 32, 64, 1, {{TREE_BUSHY, 777, 8}}, KERNEL_F32},
        {KERNEL_FP8, 8, 128, 32, 64, 1, {{TREE_BUSHY, 777, 4}}, KERNEL_F32},
        {KERNEL_FP8, 8, 512, 64, 64, 1, {{TREE_BUSHY, 77, 8}}, KERNEL_F32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rig *rig = rig_create(i);
        struct rig_call call = {0};
        rig_mla_tree(rig, &cases[i], 1, &call);
        struct simt_counters counters = simt_variant_run(&mla_tree, rig, &call, &simt_devices[2],
                                                         simt_schedules[0].schedule);
        uint32_t positions = cases[i].sequence[0].committed + cases[i].sequence[0].rows;
        size_t tok_bytes = kv_tok_bytes(cases[i].dtype, cases[i].latent_dim, cases[i].rope_dim);
        assert_int_equal(counters.copied_bytes, positions * tok_bytes);
        rig_destroy(&rig);
    }
}

static struct mla_cuda_plan plan_of(enum kernel_dtype kv_dtype, uint32_t heads, uint32_t rows,
                                    uint32_t sequences, uint32_t positions,
                                    const struct kernel_device *device) {
    const struct mla_tree_args args = {.kv_dtype = kv_dtype,
                                       .heads = heads,
                                       .latent_dim = 512,
                                       .rope_dim = 64,
                                       .sequence_count = sequences,
                                       .rows_max = rows,
                                       .positions_max = positions};
    return mla_tree_cuda_plan(&args, device);
}

static void plans_fit_the_device(void **state) {
    (void)state;
    static const struct {
        uint32_t rows, sequences, positions;
        size_t device;
        enum mla_cuda_tile tile;
        uint32_t blocks, splits_max, grid_blocks, partials;
    } cases[] = {
        {1, 1, 200000, 1, MLA_TILE_8, 188, 188, 188, 188 * 8},
        {2, 1, 200000, 1, MLA_TILE_16, 188, 188, 188, 188 * 16},
        {3, 1, 200000, 1, MLA_TILE_32, 188, 188, 188, 188 * 32},
        {8, 1, 200000, 1, MLA_TILE_32, 188, 188, 188, 188 * 32}, /* two tiles of 94 ranges */
        {1, 1, 200000, 2, MLA_TILE_8, 264, 264, 264, 264 * 8},
        {4, 1, 200000, 2, MLA_TILE_32, 264, 264, 264, 264 * 32},
        {5, 1, 200000, 2, MLA_TILE_WGMMA, 132, 132, 132, 132 * 64},
        {8, 1, 200000, 2, MLA_TILE_WGMMA, 132, 132, 132, 132 * 64},
        {64, 1, 200000, 2, MLA_TILE_WGMMA, 132, 132, 132, 132 * 64},
        {8, 1, 200000, 3, MLA_TILE_64, 132, 132, 132, 132 * 64},
        {1, 16, 4096, 1, MLA_TILE_8, 11, 11, 11, 11 * 8},
        {1, 1, 100, 1, MLA_TILE_8, 188, 1, 1, 0},
        {1, 1, 257, 1, MLA_TILE_8, 188, 2, 2, 2 * 8},
        {64, 64, 300, 1, MLA_TILE_32, 2, 2, 16, 2 * 32},
        {8192, 1, 200000, 1, MLA_TILE_32, 188, 188, 2048, 188 * 32},
        {8192, 64, 200000, 1, MLA_TILE_32, 2, 2, 2048, 2 * 32},
        {8192, 64, 200000, 2, MLA_TILE_WGMMA, 2, 2, 1024, 2 * 64},
        {64, 189, 200000, 1, MLA_TILE_32, 1, 1, 16, 0}, /* more sequences than blocks */
        {64, 1, 200000, 0, MLA_TILE_32, 1, 1, 16, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct kernel_device *device = cases[i].device < SIMT_DEVICES
                                                 ? &simt_devices[cases[i].device]
                                                 : &without_wgmma;
        for (int fp8 = 0; fp8 < 2; fp8++) { /* records take less room, not another plan */
            if (fp8 && cases[i].tile == MLA_TILE_WGMMA) continue;
            struct mla_cuda_plan plan = plan_of(fp8 ? KERNEL_FP8 : KERNEL_BF16, 8, cases[i].rows,
                                                cases[i].sequences, cases[i].positions, device);
            assert_int_equal(plan.tile, cases[i].tile);
            assert_int_equal(plan.blocks, cases[i].blocks);
            assert_int_equal(plan.splits_max, cases[i].splits_max);
            assert_int_equal(plan.grid_blocks, cases[i].grid_blocks);
            assert_int_equal(plan.partials, cases[i].partials);
            assert_true(plan.shared_bytes <= device->shared_bytes_max);
            assert_int_equal(plan.scratch_bytes, (size_t)plan.partials * cases[i].sequences *
                                                     (512 + 2) * sizeof(float));
        }
    }
}

/* Warpgroups multiply what copies bring; there is nobody to widen an FP8 cache for them. */
static void warpgroups_take_caches_as_they_are(void **state) {
    (void)state;
    struct mla_tree_args args = {.heads = 8,
                                 .latent_dim = 512,
                                 .rope_dim = 64,
                                 .sequence_count = 1,
                                 .rows_max = 16,
                                 .positions_max = 4096,
                                 .kv_dtype = KERNEL_BF16};
    assert_int_equal(mla_tree_cuda_plan(&args, &simt_devices[2]).tile, MLA_TILE_WGMMA);
    args.kv_dtype = KERNEL_FP8;
    assert_int_equal(mla_tree_cuda_plan(&args, &simt_devices[2]).tile, MLA_TILE_64);
}

static void check_plan(const struct mla_cuda_plan *plan, uint32_t queries) {
    uint32_t tiles = divide_up(queries, plan->tile_queries);
    uint32_t splits = min_u32(plan->blocks / tiles, plan->splits_max);
    assert_true(plan->grid_blocks >= max_u32(splits, 1) * tiles);
    assert_true(plan->scratch_bytes <= MLA_CUDA_SCRATCH_BYTES_MAX);
    if (splits <= 1) return;
    assert_true(plan->partials >= splits * queries);
    assert_true(plan->merge_queries >= queries);
}

/* Of every step of up to 8,192 rows and 64 sequences: each sequence's ranges have blocks, and
 * places in a workspace that keeps its limit; and what is said to be the most is what the greediest
 * step needs. */
static void workspace_is_bounded(void **state) {
    (void)state;
    static const struct kernel_device large = {.multiprocessors = 4000,
                                               .shared_bytes_max = SIMT_SM90_SHARED_BYTES};
    static const uint32_t heads[] = {1, 8, 64}, positions[] = {1, 700, 200000};
    const struct kernel_device *devices[] = {&simt_devices[0], &simt_devices[1], &simt_devices[2],
                                             &small, &large};
    size_t limit_met = 0;
    for (size_t i = 0; i < 5 * 3 * 3; i++) {
        const struct kernel_device *device = devices[i / 9];
        struct mla_tree_args bounds = {.kv_dtype = KERNEL_BF16,
                                       .heads = heads[i % 3],
                                       .latent_dim = 512,
                                       .rope_dim = 64,
                                       .sequence_count = 64,
                                       .rows_max = 8192,
                                       .positions_max = positions[i / 3 % 3]};
        size_t most = 0;
        for (uint32_t sequences = 1; sequences <= 64; sequences++)
            for (uint32_t rows = 1; rows <= 8192; rows += rows < 300 ? 1 : 263) {
                struct mla_cuda_plan plan = plan_of(KERNEL_BF16, bounds.heads, rows, sequences,
                                                    bounds.positions_max, device);
                check_plan(&plan, rows * bounds.heads);
                if (plan.scratch_bytes > most) most = plan.scratch_bytes;
            }
        assert_int_equal(mla_tree_cuda_scratch_bytes_max(&bounds, device), most);
        limit_met += most > MLA_CUDA_SCRATCH_BYTES_MAX / 10 * 9;
    }
    assert_true(limit_met > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_fit_the_device),
        cmocka_unit_test(workspace_is_bounded),
        cmocka_unit_test(warpgroups_take_caches_as_they_are),
        cmocka_unit_test(records_have_the_bits_of_bf16),
        cmocka_unit_test(a_group_that_is_no_number_stays_seen),
        cmocka_unit_test(tiles_by_warpgroups),
        cmocka_unit_test(every_case_on_every_device),
        cmocka_unit_test(every_case_with_records),
        cmocka_unit_test(long_context),
        cmocka_unit_test(every_size_of_tree),
        cmocka_unit_test(schedules_do_not_show),
        cmocka_unit_test(the_cache_is_read_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
