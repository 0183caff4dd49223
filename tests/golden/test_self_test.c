/* The rungs before a rank is ready: passed by what is sound, in every shape, and failed by each
 * fault they are there to find, with a line that names the rung. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "inspection.h"
#include "self_test.h"

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])
#define WORKSPACE_BYTES (4u << 20)

/* As much of an engine as the rungs use. */
struct rig {
    struct weights weights;
    struct scratch scratch;
    struct backend backend;
    struct kernel_ctx ctx;
    struct kv_pool *kv;
    struct model model;
    struct self_test_progress progress;
};

struct shape {
    uint32_t rank, rope, heads, page_tok, pages, max_rows, context_len;
    enum kernel_dtype kv, activation;
};

static float *floats(size_t count) {
    float *memory = calloc(count, sizeof *memory);
    assert_non_null(memory);
    return memory;
}

static void rig_init(struct rig *rig, const struct shape *shape) {
    struct error err;
    *rig = (struct rig){.backend = backend_cpu};
    const uint32_t rows = shape->max_rows, nope = 8, hidden = 64;
    rig->weights.spec.kv_rank = shape->rank;
    rig->weights.spec.rope_dim = shape->rope;
    rig->weights.spec.nope_dim = nope;
    rig->weights.spec.hidden = hidden;
    rig->weights.heads = shape->heads;
    rig->scratch.x = floats((size_t)rows * hidden);
    rig->scratch.kv = floats((size_t)rows * (shape->rank + shape->rope));
    rig->scratch.q = floats((size_t)rows * shape->heads * (nope + shape->rope));
    rig->scratch.q_latent = floats((size_t)rows * shape->heads * shape->rank);
    rig->scratch.o_latent = floats((size_t)rows * shape->heads * shape->rank);
    rig->ctx.scratch = aligned_alloc(64, WORKSPACE_BYTES);
    rig->ctx.scratch_bytes = WORKSPACE_BYTES;
    assert_true(mla_tree_scratch_bytes(1, shape->rank, shape->rope) <= WORKSPACE_BYTES);
    const struct kv_pool_shape pool = {
        .layers = 3,
        .page_tok = shape->page_tok,
        .tok_bytes = kv_tok_bytes(shape->kv, shape->rank, shape->rope)};
    assert_int_equal(kv_pool_create(&pool, &rig->kv, &err), STATUS_OK);
    assert_int_equal(kv_pool_resize(rig->kv, shape->pages, &err), STATUS_OK);
    rig->model = (struct model){.backend = &rig->backend,
                                .ctx = &rig->ctx,
                                .weights = &rig->weights,
                                .scratch = &rig->scratch,
                                .kv = rig->kv,
                                .kv_dtype = shape->kv,
                                .activation = shape->activation,
                                .page_tok = shape->page_tok,
                                .softmax_scale = 0.13f};
}

static void rig_deinit(struct rig *rig) {
    kv_pool_destroy(&rig->kv);
    free(rig->scratch.x);
    free(rig->scratch.kv);
    free(rig->scratch.q);
    free(rig->scratch.q_latent);
    free(rig->scratch.o_latent);
    free(rig->ctx.scratch);
}

/* ---- attention ----------------------------------------------------------------------------- */

static const struct shape usual = {128, 32, 4, 16, 40, 64, 600, KERNEL_BF16, KERNEL_F32};

static void sound_attention_passes(void **state) {
    (void)state;
    static const struct shape rows[] = {
        {128, 32, 4, 16, 40, 64, 600, KERNEL_BF16, KERNEL_F32},
        {128, 32, 4, 16, 40, 64, 600, KERNEL_BF16, KERNEL_BF16},
        {128, 32, 8, 64, 64, 512, 4096, KERNEL_F32, KERNEL_F32},
        {512, 64, 1, 64, 40, 100, 2500, KERNEL_BF16, KERNEL_BF16},
        {128, 32, 2, 1, 300, 7, 300, KERNEL_BF16, KERNEL_F32},  /* pages of one token */
        {128, 32, 4, 16, 20, 64, 4096, KERNEL_F32, KERNEL_F32}, /* a short pool */
        {48, 16, 3, 16, 4, 4, 50, KERNEL_F32, KERNEL_F32},
        {128, 32, 4, 16, 40, 64, 600, KERNEL_FP8, KERNEL_F32},
        {512, 64, 1, 64, 40, 100, 2500, KERNEL_FP8, KERNEL_BF16},
        {48, 16, 2, 1, 300, 7, 300, KERNEL_FP8, KERNEL_F32},
        {128, 32, 4, 16, 1, 64, 4, KERNEL_BF16, KERNEL_F32}, /* no tree fits: nothing is done */
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct rig rig;
        struct error err = {.text = ""};
        rig_init(&rig, &rows[i]);
        if (self_test_attention(&rig.model, rows[i].context_len, rows[i].max_rows, &rig.progress,
                                &err) != STATUS_OK)
            fail_msg("row %zu: %s", i, err.text);
        rig_deinit(&rig);
    }
}

/* What a kernel may do wrong. */
static void forgets_the_last(const struct mla_tree_args *args, struct kernel_ctx *ctx) {
    struct mla_sequence sequence = *args->sequences;
    sequence.committed--;
    struct mla_tree_args wrong = *args;
    wrong.sequences = &sequence;
    mla_tree_cpu(&wrong, ctx);
}

static void takes_the_tree_for_a_chain(const struct mla_tree_args *args, struct kernel_ctx *ctx) {
    struct mla_sequence sequence = *args->sequences;
    sequence.ancestors = NULL;
    struct mla_tree_args wrong = *args;
    wrong.sequences = &sequence;
    mla_tree_cpu(&wrong, ctx);
}

static void swaps_two_pages(const struct mla_tree_args *args, struct kernel_ctx *ctx) {
    struct mla_sequence sequence = *args->sequences;
    uint32_t page[64];
    memcpy(page, sequence.page, 38 * sizeof *page);
    page[0] = sequence.page[37]; /* the first position, which is asked for by name */
    page[37] = sequence.page[0];
    sequence.page = page;
    struct mla_tree_args wrong = *args;
    wrong.sequences = &sequence;
    mla_tree_cpu(&wrong, ctx);
}

static void leaves_a_page_out(const struct mla_tree_args *args, struct kernel_ctx *ctx) {
    struct mla_sequence sequence = *args->sequences;
    uint32_t page[64];
    memcpy(page, sequence.page, 38 * sizeof *page);
    page[20] = page[21]; /* read twice instead */
    sequence.page = page;
    struct mla_tree_args wrong = *args;
    wrong.sequences = &sequence;
    mla_tree_cpu(&wrong, ctx);
}

static void scores_too_low(const struct mla_tree_args *args, struct kernel_ctx *ctx) {
    struct mla_tree_args wrong = *args;
    wrong.scale = args->scale / 8;
    mla_tree_cpu(&wrong, ctx);
}

static void misses_a_head(const struct mla_tree_args *args, struct kernel_ctx *ctx) {
    mla_tree_cpu(args, ctx);
    size_t last = (size_t)(args->sequences->row_count * args->heads - 1) * args->latent_dim;
    args->out[last + args->latent_dim - 1] = 0.5f;
}

static void unsound_attention_fails(void **state) {
    (void)state;
    static void (*const wrong[])(const struct mla_tree_args *, struct kernel_ctx *) = {
        forgets_the_last, takes_the_tree_for_a_chain,
        swaps_two_pages,  leaves_a_page_out,
        scores_too_low,   misses_a_head};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        struct rig rig;
        struct error err = {.text = ""};
        rig_init(&rig, &usual);
        rig.backend.mla_tree = wrong[i];
        enum status status = self_test_attention(&rig.model, usual.context_len, usual.max_rows,
                                                 &rig.progress, &err);
        if (status != STATUS_DATA_LOSS || !strstr(err.text, "self-test attention: over 600 tokens"))
            fail_msg("fault %zu is not found: %s %s", i, status_name(status), err.text);
        rig_deinit(&rig);
    }
}

/* ---- the pool ------------------------------------------------------------------------------ */

#define SYSTEM_PAGE 4096u

/* Two places of one memory: what is written to one is read at the other. */
static void alias(uint8_t *a, uint8_t *b) {
    int fd = memfd_create("alias", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, SYSTEM_PAGE), 0);
    int flags = MAP_SHARED | MAP_FIXED;
    assert_ptr_equal(mmap(a, SYSTEM_PAGE, PROT_READ | PROT_WRITE, flags, fd, 0), a);
    assert_ptr_equal(mmap(b, SYSTEM_PAGE, PROT_READ | PROT_WRITE, flags, fd, 0), b);
    close(fd);
}

static void a_pool_is_written_to_its_last_page(void **state) {
    (void)state;
    static const struct shape odd = {128, 32, 4, 7, 41, 64, 200, KERNEL_BF16, KERNEL_F32};
    struct rig rig;
    struct error err = {.text = ""};
    rig_init(&rig, &odd);
    size_t layer_bytes = odd.pages * kv_pool_page_bytes(rig.kv);
    assert_int_equal(self_test_pool(rig.kv, "the cache", &rig.progress, &err), STATUS_OK);
    assert_int_equal(rig.progress.percent, 100);
    const uint8_t *base = kv_pool_layer(rig.kv, 2); /* wiped again */
    for (size_t i = 0; i < layer_bytes; i++)
        assert_int_equal(base[i], 0);

    /* The very last words of the last layer, and a word near the beginning of the first. */
    uint8_t *last = (uint8_t *)kv_pool_layer(rig.kv, 2) + layer_bytes - 8;
    uint8_t *last_page = last - (uintptr_t)last % SYSTEM_PAGE;
    alias(kv_pool_layer(rig.kv, 0), last_page);
    assert_int_equal(self_test_pool(rig.kv, "the cache", &rig.progress, &err), STATUS_DATA_LOSS);
    assert_non_null(strstr(err.text, "self-test pool: the cache, page 0 of 41 in layer 0"));
    rig_deinit(&rig);
}

/* ---- collectives --------------------------------------------------------------------------- */

struct member {
    pthread_t thread;
    const struct comm_key *key;
    uint32_t rank, size;
    bool lies;
    enum status status;
    struct error err;
};

static void *climb(void *argument) {
    struct member *member = argument;
    struct rig rig;
    struct comm *comm;
    rig_init(&rig, &usual);
    if (comm_join(&comm_host, member->key, member->rank, member->size, 1, 10000, NULL, &comm,
                  &member->err) != STATUS_OK)
        abort();
    if (member->lies) {
        float sum[16] = {1e6f};
        member->status = comm_all_reduce(comm, sum, 16, &member->err);
    } else {
        member->status = self_test_collective(&rig.model, usual.max_rows, comm, &member->err);
    }
    comm_close(&comm);
    rig_deinit(&rig);
    return NULL;
}

static void run_members(struct member *member, uint32_t size) {
    struct comm_seed *seed;
    struct comm_key key = {.bytes = 0};
    struct error err;
    assert_int_equal(comm_seed_create(&comm_host, size, 1, &seed, &key, &err), STATUS_OK);
    for (uint32_t rank = 0; rank < size; rank++) {
        member[rank].key = &key;
        member[rank].rank = rank;
        member[rank].size = size;
        assert_int_equal(pthread_create(&member[rank].thread, NULL, climb, &member[rank]), 0);
    }
    for (uint32_t rank = 0; rank < size; rank++)
        assert_int_equal(pthread_join(member[rank].thread, NULL), 0);
    comm_seed_destroy(&seed);
}

static void ranks_check_known_values(void **state) {
    (void)state;
    static const uint32_t sizes[] = {1, 2, 4};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct member member[4] = {{0}};
        run_members(member, sizes[i]);
        for (uint32_t rank = 0; rank < sizes[i]; rank++)
            if (member[rank].status != STATUS_OK) fail_msg("%s", member[rank].err.text);
    }
    struct member member[2] = {{.lies = false}, {.lies = true}};
    run_members(member, 2);
    assert_int_equal(member[0].status, STATUS_DATA_LOSS);
    assert_non_null(strstr(member[0].err.text, "self-test collective: element 0 of a sum of 16"));
}

/* ---- what pages hold ----------------------------------------------------------------------- */

static void a_bit_changes_the_hash_of_its_page_alone(void **state) {
    (void)state;
    static const uint32_t page[] = {7, 3, 39, 0};
    struct rig rig;
    struct error err = {.text = ""};
    rig_init(&rig, &usual);
    size_t page_bytes = kv_pool_page_bytes(rig.kv);
    struct control_examine order = {.generation = 1, .page = page, .page_count = 4};
    struct examine_report report = {0};
    uint64_t *before, *after;
    assert_int_equal(inspection_hash(rig.kv, NULL, &order, &report, &before, &err), STATUS_OK);
    assert_int_equal(report.hash_count, 4);
    assert_int_equal(report.page_count, 4);
    assert_int_equal(report.pages_per_hash, 1);
    uint8_t *byte = (uint8_t *)kv_pool_layer(rig.kv, 2) + 40 * page_bytes - 1; /* page 39's last */
    *byte ^= 0x10;
    assert_int_equal(inspection_hash(rig.kv, NULL, &order, &report, &after, &err), STATUS_OK);
    for (uint32_t i = 0; i < 4; i++)
        assert_true((before[i] != after[i]) == (i == 2));
    free(before);
    free(after);
    static const uint32_t beyond[] = {40};
    order.page = beyond;
    order.page_count = 1;
    assert_int_equal(inspection_hash(rig.kv, NULL, &order, &report, &after, &err),
                     STATUS_INVALID_ARGUMENT);
    rig_deinit(&rig);
}

static void times_are_of_all_bytes_or_none(void **state) {
    (void)state;
    static const uint32_t page[] = {7, 3, 39, 0};
    struct rig rig;
    struct error err;
    rig_init(&rig, &usual);
    struct control_examine order = {.generation = 1, .page = page, .page_count = 4, .rows = 8};
    struct examine_report report = {0};
    assert_int_equal(inspection_time(&rig.model, usual.max_rows, &order, &report, &err), STATUS_OK);
    assert_int_equal(report.attention_bytes, 4 * kv_pool_page_bytes(rig.kv));
    assert_int_equal(report.read_bytes, report.attention_bytes);
    assert_true(report.attention_ns > 0 && report.read_ns > 0);
    order.rows = TREE_ROWS_MAX; /* as many as the pages hold: nothing is before them */
    report = (struct examine_report){0};
    assert_int_equal(inspection_time(&rig.model, usual.max_rows, &order, &report, &err), STATUS_OK);
    assert_int_equal(report.attention_bytes, 0);
    rig_deinit(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_attention_passes),
        cmocka_unit_test(unsound_attention_fails),
        cmocka_unit_test(a_pool_is_written_to_its_last_page),
        cmocka_unit_test(ranks_check_known_values),
        cmocka_unit_test(a_bit_changes_the_hash_of_its_page_alone),
        cmocka_unit_test(times_are_of_all_bytes_or_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
