/* A rank's memory: planned against what mincore says, and a line that is off is named. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "ledger.h"
#include "memory_info.h"
#include "scratch.h"

#define EMBEDDED ESPALIER_SOURCE_DIR "/deploy/model"
#define DRAFTER  ESPALIER_SOURCE_DIR "/deploy/drafter"
#define MIB      (UINT64_C(1) << 20)

struct rig {
    struct checkpoint checkpoint;
    struct checkpoint_drafter draft;
    struct weights *weights;
    struct drafter_weights *drafter;
    struct engine *engine;
    struct ledger ledger;
};

static struct control_welcome welcome = {.max_rows = 72,
                                         .max_sequences = 8,
                                         .page_tok = 64,
                                         .page_count = 1000,
                                         .context_len = 4096,
                                         .kv_dtype = KV_BF16};

static void must(enum status status, const struct error *err) {
    if (status != STATUS_OK) fail_msg("%s", err->text);
}

static void load_drafter(struct rig *rig) {
    struct error err;
    struct weights_progress progress = {0};
    must(checkpoint_open_drafter(DRAFTER, &rig->checkpoint.spec, 1, &rig->draft, &err), &err);
    must(drafter_weights_load(NULL, &rig->draft.spec, rig->draft.tensors, 0, 1, 2, &progress,
                              &rig->drafter, &err),
         &err);
}

static void open_rig(struct rig *rig, uint64_t device_bytes, bool drafts) {
    struct error err;
    struct weights_progress progress = {0};
    *rig = (struct rig){0};
    must(checkpoint_open(EMBEDDED, 1, &rig->checkpoint, &err), &err);
    must(weights_load(NULL, &rig->checkpoint.spec, rig->checkpoint.tensors, 0, 1, 2, &progress,
                      &rig->weights, &err),
         &err);
    if (drafts) load_drafter(rig);
    const struct ledger_rank rank = {.checkpoint = &rig->checkpoint,
                                     .drafter = drafts ? &rig->draft : NULL,
                                     .tp = 1,
                                     .threads = 2,
                                     .device_bytes = device_bytes};
    ledger_init(&rig->ledger, &rank);
    must(ledger_plan(&rig->ledger, &welcome, &err), &err);
    const struct engine_options options = {.threads = 2,
                                           .max_rows = welcome.max_rows,
                                           .max_sequences = welcome.max_sequences,
                                           .page_tok = welcome.page_tok,
                                           .page_count = ledger_page_count(&rig->ledger),
                                           .context_len = welcome.context_len,
                                           .kv_dtype = welcome.kv_dtype,
                                           .drafter = rig->drafter};
    must(engine_create(rig->weights, &options, &rig->engine, &err), &err);
    ledger_measure(&rig->ledger, rig->weights, rig->drafter, rig->engine);
}

static void close_rig(struct rig *rig) {
    engine_destroy(&rig->engine);
    weights_destroy(&rig->weights);
    if (rig->drafter) drafter_weights_destroy(&rig->drafter);
    if (rig->draft.tensors) checkpoint_close_drafter(&rig->draft);
    checkpoint_close(&rig->checkpoint);
}

/* What ledger_log writes on standard error. */
static void logged(const struct ledger *ledger, char *out, size_t bytes) {
    char path[] = "/tmp/ledger-XXXXXX";
    int fd = mkstemp(path), kept = dup(STDERR_FILENO);
    assert_true(fd >= 0 && kept >= 0 && dup2(fd, STDERR_FILENO) >= 0);
    ledger_log(ledger);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    ssize_t count = pread(fd, out, bytes - 1, 0);
    assert_true(count > 0 && (size_t)count < bytes - 1);
    out[count] = '\0';
    close(fd);
    close(kept);
    unlink(path);
}

static void check_every_line(bool drafts) {
    struct rig rig;
    open_rig(&rig, 64 * MIB, drafts);
    assert_in_range(ledger_page_count(&rig.ledger), 64, 999);
    assert_int_equal(rig.ledger.plan.line[MEMORY_KV_DRAFT] > 0, drafts);
    for (int line = 0; line < MEMORY_LINE_COUNT; line++) {
        if (memory_line_info[line].at_most) continue;
        if (rig.ledger.measured[line] != rig.ledger.plan.line[line])
            fail_msg("%s: measured %llu, planned %llu", memory_line_info[line].key,
                     (unsigned long long)rig.ledger.measured[line],
                     (unsigned long long)rig.ledger.plan.line[line]);
    }
    uint64_t room = 64 * MIB - rig.ledger.plan.weight_bytes - rig.ledger.plan.pool_bytes;
    assert_true(ledger_free_bytes(&rig.ledger) <= room);
    assert_true(ledger_free_bytes(&rig.ledger) >= MIB); /* the reserve, a 64th */
    char text[8192];
    logged(&rig.ledger, text, sizeof text);
    assert_null(strstr(text, "level=warn"));
    assert_non_null(strstr(text, "event=memory line=kv_target predicted_bytes="));
    assert_non_null(strstr(text, "event=memory_total pool_tokens="));
    close_rig(&rig);
}

static void test_every_line_is_as_planned(void **state) {
    (void)state;
    check_every_line(false);
}

static void test_a_drafter_is_as_planned(void **state) {
    (void)state;
    check_every_line(true);
}

/* Its records, and its drafter's cache beside them. */
static void test_an_fp8_cache_is_as_planned(void **state) {
    (void)state;
    welcome.kv_dtype = KV_FP8;
    check_every_line(true);
    welcome.kv_dtype = KV_BF16;
}

/* Memory that is taken back is missed, where it was and by name. */
static void test_a_line_that_is_off_is_named(void **state) {
    (void)state;
    struct rig rig;
    open_rig(&rig, 64 * MIB, false);
    struct engine_memory memory = engine_memory(rig.engine);
    size_t bytes = kv_pool_layer_bytes(memory.kv) / 2 / 4096 * 4096;
    assert_int_equal(madvise(kv_pool_layer(memory.kv, 2), bytes, MADV_DONTNEED), 0);
    uint64_t before = rig.ledger.measured[MEMORY_KV_TARGET];
    ledger_measure(&rig.ledger, rig.weights, rig.drafter, rig.engine);
    assert_int_equal(rig.ledger.measured[MEMORY_KV_TARGET], before - bytes);
    char text[8192];
    logged(&rig.ledger, text, sizeof text);
    const char *warning = strstr(text, "level=warn");
    assert_non_null(warning);
    const char *named = strstr(warning, " event=memory line=kv_target ");
    assert_true(named && named < strchr(warning, '\n'));
    assert_null(strstr(warning + 1, "level=warn"));
    close_rig(&rig);
}

/* Whichever op needs most: shapes in which each does, planned and as the engine's scratch has it.
 */
static void test_every_workspace(void **state) {
    (void)state;
    static const struct {
        uint32_t rows, threads, heads, nope_dim, value_dim, kv_rank, vocab;
    } shapes[] = {
        {72, 2, 8, 32, 32, 128, 5632},   /* blocks of attention */
        {7, 3, 1, 1024, 1000, 16, 32},   /* expanded keys and values */
        {2000, 1, 8, 32, 32, 128, 5632}, /* pairs of rows and experts */
        {2000, 1, 64, 30, 32, 48, 5632}, /* activations of a product per head */
        {1, 1, 1, 32, 32, 16, 1u << 20}, /* a draw */
    };
    struct checkpoint checkpoint;
    struct error err;
    must(checkpoint_open(EMBEDDED, 1, &checkpoint, &err), &err);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct weights weights = {.spec = checkpoint.spec, .tp = 1};
        struct model_spec *spec = &weights.spec;
        spec->heads = weights.heads = shapes[i].heads;
        spec->nope_dim = shapes[i].nope_dim;
        spec->value_dim = shapes[i].value_dim;
        spec->kv_rank = shapes[i].kv_rank;
        spec->vocab = weights.vocab_count = shapes[i].vocab;
        weights.mlp_width = spec->dense_width;
        weights.shared_width = spec->shared_experts * spec->expert_width;
        weights.expert_width = spec->expert_width;
        struct scratch scratch;
        must(scratch_init(&scratch, &weights, shapes[i].rows, shapes[i].threads, &err), &err);
        const struct memory_request request = {.spec = spec,
                                               .layout = MEMORY_PANELS,
                                               .tp = 1,
                                               .threads = shapes[i].threads,
                                               .context_len = 4096,
                                               .page_tok = 64,
                                               .max_running = 1,
                                               .step_rows = shapes[i].rows,
                                               .free_bytes = 4096 * MIB};
        struct memory_plan planned;
        must(memory_plan_make(&request, &planned, &err), &err);
        if (planned.line[MEMORY_WORKSPACE] != (scratch.workspace_bytes + 63) / 64 * 64 ||
            planned.line[MEMORY_WORKSPACE] + planned.line[MEMORY_ACTIVATIONS] != scratch.bytes)
            fail_msg("shape %zu: planned %llu and %llu, scratch has %zu of %zu", i,
                     (unsigned long long)planned.line[MEMORY_WORKSPACE],
                     (unsigned long long)planned.line[MEMORY_ACTIVATIONS], scratch.workspace_bytes,
                     scratch.bytes);
        scratch_deinit(&scratch);
    }
    checkpoint_close(&checkpoint);
}

/* What a rank of so many bytes plans. */
static enum status plan(struct rig *rig, uint64_t device_bytes, uint32_t mem_fraction,
                        struct error *err) {
    struct control_welcome asked = welcome;
    asked.mem_fraction = mem_fraction;
    ledger_init(&rig->ledger, &(struct ledger_rank){.checkpoint = &rig->checkpoint,
                                                    .tp = 1,
                                                    .threads = 1,
                                                    .device_bytes = device_bytes});
    return ledger_plan(&rig->ledger, &asked, err);
}

static void test_pools_by_memory(void **state) {
    (void)state;
    struct rig rig = {0};
    struct error err;
    must(checkpoint_open(EMBEDDED, 1, &rig.checkpoint, &err), &err);
    /* As much as the machine, and nothing said of a fraction: what is asked for. */
    must(plan(&rig, 0, 0, &err), &err);
    assert_int_equal(ledger_page_count(&rig.ledger), 1000);
    assert_int_equal(ledger_fraction_needed(&rig.ledger), 0);
    /* More memory than is asked for changes nothing, less does. */
    must(plan(&rig, 1024 * MIB, 0, &err), &err);
    assert_int_equal(ledger_page_count(&rig.ledger), 1000);
    must(plan(&rig, 100 * MIB, 250000, &err), &err);
    uint32_t pages = ledger_page_count(&rig.ledger);
    uint64_t pool_bytes = 25 * MIB - rig.ledger.plan.weight_bytes;
    assert_true(rig.ledger.plan.pool_bytes <= pool_bytes);
    assert_true(pages < 64 && pages * 64u < 4096);
    uint32_t needed = ledger_fraction_needed(&rig.ledger);
    assert_in_range(needed, 250000, 300000);
    must(plan(&rig, 100 * MIB, needed, &err), &err);
    assert_true(ledger_page_count(&rig.ledger) >= 64);
    /* No page at all. */
    assert_int_equal(plan(&rig, 10 * MIB, 0, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.text, "--device-memory: found 10485760 bytes"));
    checkpoint_close(&rig.checkpoint);
}

/* A fraction asked for later is the one of the start: of the same memory, by the same function. */
static void test_a_fraction_later_is_a_fraction_at_the_start(void **state) {
    (void)state;
    struct rig rig = {0};
    struct error err;
    static const uint64_t device_bytes[] = {0, 100 * MIB};
    static const uint32_t fraction[] = {10000, 200000, 250000, 300000, 900000};
    must(checkpoint_open(EMBEDDED, 1, &rig.checkpoint, &err), &err);
    for (size_t i = 0; i < 2 * sizeof fraction / sizeof *fraction; i++) {
        uint64_t bytes = device_bytes[i % 2];
        uint32_t asked = fraction[i / 2], pages, needed;
        must(plan(&rig, bytes, 0, &err), &err);
        rig.ledger.before_bytes = 100 * MIB; /* the machine's own changes by the moment */
        ledger_size(&rig.ledger, asked, &pages, &needed);
        enum status status = plan(&rig, 100 * MIB, asked, &err);
        if (status != STATUS_OK) {
            assert_int_equal(pages, 0);
            continue;
        }
        uint32_t held = ledger_page_count(&rig.ledger);
        assert_int_equal(pages < 1000 ? pages : 1000,
                         held); /* a start has a most, a fraction not */
        assert_int_equal(needed, ledger_fraction_needed(&rig.ledger));
    }
    checkpoint_close(&rig.checkpoint);
}

/* The fraction is told where the pool is what it gives, and not where the pool is what was asked
 * for. */
static void test_a_fraction_is_told(void **state) {
    (void)state;
    struct rig rig = {0};
    struct error err;
    char text[8192];
    must(checkpoint_open(EMBEDDED, 1, &rig.checkpoint, &err), &err);
    must(plan(&rig, 100 * MIB, 250000, &err), &err);
    logged(&rig.ledger, text, sizeof text);
    assert_non_null(strstr(text, " mem_fraction_static=0.25\n"));
    must(ledger_replan(&rig.ledger, ledger_page_count(&rig.ledger) / 2, &err), &err);
    logged(&rig.ledger, text, sizeof text);
    assert_null(strstr(text, "mem_fraction_static"));
    checkpoint_close(&rig.checkpoint);
}

static void test_another_size(void **state) {
    (void)state;
    struct rig rig;
    struct error err;
    open_rig(&rig, 64 * MIB, false);
    uint32_t pages = ledger_page_count(&rig.ledger);
    struct memory_plan before = rig.ledger.plan;
    /* The reserve may be used up, and no more. */
    assert_int_equal(ledger_replan(&rig.ledger, pages * 2, &err), STATUS_RESOURCE_EXHAUSTED);
    char words[64];
    snprintf(words, sizeof words, "accepted: up to %u tokens", pages * welcome.page_tok);
    assert_non_null(strstr(err.text, words));
    assert_memory_equal(&rig.ledger.plan, &before, sizeof before);
    must(ledger_replan(&rig.ledger, pages / 2, &err), &err);
    must(engine_resize(rig.engine, pages / 2, NULL, 0, &err), &err);
    ledger_measure_engine(&rig.ledger, rig.engine);
    assert_true(rig.ledger.plan.line[MEMORY_KV_TARGET] < before.line[MEMORY_KV_TARGET]);
    assert_int_equal(rig.ledger.measured[MEMORY_KV_TARGET], rig.ledger.plan.line[MEMORY_KV_TARGET]);
    assert_int_equal(rig.ledger.plan.line[MEMORY_PAGE_TABLE], before.line[MEMORY_PAGE_TABLE]);
    assert_int_equal(rig.ledger.measured[MEMORY_EXPERTS], rig.ledger.plan.line[MEMORY_EXPERTS]);
    must(ledger_replan(&rig.ledger, pages, &err), &err);
    assert_memory_equal(&rig.ledger.plan, &before, sizeof before);
    close_rig(&rig);
}

/* A fraction that leaves too little for the rest is a warning at the start: later too, it can be
 * had again. */
static void test_what_was_had_can_be_had_again(void **state) {
    (void)state;
    struct rig rig = {0};
    struct error err;
    must(checkpoint_open(EMBEDDED, 1, &rig.checkpoint, &err), &err);
    must(plan(&rig, 40 * MIB, 990000, &err), &err);
    uint32_t pages = ledger_page_count(&rig.ledger);
    assert_true(rig.ledger.plan.shortfall_bytes > 0 && pages < 1000);
    must(ledger_replan(&rig.ledger, 1, &err), &err);
    must(ledger_replan(&rig.ledger, pages, &err), &err);
    assert_int_equal(ledger_replan(&rig.ledger, pages + 1, &err), STATUS_RESOURCE_EXHAUSTED);
    checkpoint_close(&rig.checkpoint);
}

static void test_resident_ranges(void **state) {
    (void)state;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *memory = mmap(NULL, 8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                           0);
    assert_true(memory != MAP_FAILED);
    (void)madvise(memory, 8 * page, MADV_NOHUGEPAGE);
    assert_int_equal(memory_info_resident(memory, 8 * page), 0);
    memory[0] = memory[3 * page] = 1;
    assert_int_equal(memory_info_resident(memory, 8 * page), 2 * page);
    assert_int_equal(memory_info_resident(memory + 10, 20), 20);
    assert_int_equal(memory_info_resident(memory + 3 * page - 7, 8), 1);
    assert_int_equal(memory_info_resident(memory + 3 * page + 1, page), page - 1);
    assert_int_equal(memory_info_resident(memory, 0), 0);
    munmap(memory, 8 * page);
    assert_true(memory_info_process_resident() > 100 * 1024);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_line_is_as_planned),
        cmocka_unit_test(test_a_drafter_is_as_planned),
        cmocka_unit_test(test_an_fp8_cache_is_as_planned),
        cmocka_unit_test(test_a_line_that_is_off_is_named),
        cmocka_unit_test(test_every_workspace),
        cmocka_unit_test(test_pools_by_memory),
        cmocka_unit_test(test_a_fraction_later_is_a_fraction_at_the_start),
        cmocka_unit_test(test_a_fraction_is_told),
        cmocka_unit_test(test_another_size),
        cmocka_unit_test(test_what_was_had_can_be_had_again),
        cmocka_unit_test(test_resident_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
