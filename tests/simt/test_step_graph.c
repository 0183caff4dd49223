/* Steps that are captured once and replayed, on an emulated GPU with the embedded model: the tokens
 * are those of the CPU, whatever a shape fills up; a pool that grows is reached by the graphs that
 * were there; a new group captures anew; nothing is taken after the start; and what fails is said.
 * Graphs with collectives are in test_engine_cuda. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "comm_nccl.h"
#include "cuda_runtime_api.h"
#include "golden_data.h"
#include "gpu.h"
#include "rig.h"
#include "simt_cuda.h"
#include "simt_worlds.h"

#define ROWS_MAX   32u
#define CONTEXT    64u
#define PAGE_TOK   4u
#define PAGE_CAP   400u
#define SHAPES     (5u * 6u) /* of 1 to RIG_SLOTS sequences, of 1 to ROWS_MAX rows */
#define SEQUENCES  3u
#define TOKENS_MAX 32u
#define REPLAYS    4u /* of the story */

/* What was drawn. */
struct story {
    uint32_t token[TOKENS_MAX], count;
};

static const struct golden_prompt *golden;
static struct simt_report report;

static struct device *open_device(void) {
    struct device *device;
    struct error err;
    if (gpu_open(0, &device, &err) != STATUS_OK) fail_msg("%s", err.text);
    return device;
}

static struct rig *open_rig(bool emulated) {
    struct rig_options options = {.tp = 1,
                                  .threads = 1,
                                  .page_tok = PAGE_TOK,
                                  .page_cap = PAGE_CAP,
                                  .max_rows = ROWS_MAX,
                                  .context_len = CONTEXT,
                                  .kv_dtype = KV_BF16,
                                  .shadow_hash = true};
    if (emulated) {
        options.open_device = open_device;
        options.comm = &comm_nccl;
    }
    return rig_open(&options, 0, NULL);
}

static void step(struct rig *rig, struct story *story, const struct rig_piece *piece,
                 uint32_t next[SEQUENCES]) {
    const struct step_result result = rig_step(rig, piece, SEQUENCES);
    for (uint32_t i = 0; i < result.token_count; i++)
        story->token[story->count++] = result.token[i];
    for (uint32_t i = 0; i < SEQUENCES; i++)
        next[i] = result.token[result.sequence[i].token_begin + result.sequence[i].token_count - 1];
}

/* Of every page of the pool. */
static uint64_t *hash_pages(struct rig *rig) {
    uint32_t page[PAGE_CAP];
    struct examine_report told;
    struct error err;
    uint64_t *hash;
    for (uint32_t i = 0; i < rig->page_count; i++)
        page[i] = i;
    const struct control_examine order = {
        .generation = 7, .page = page, .page_count = rig->page_count};
    assert_int_equal(engine_examine(rig->engine, &order, &told, &hash, &err), STATUS_OK);
    assert_int_equal(told.pages_per_hash, 1);
    return hash;
}

static bool is_last_of_a_slot(const struct rig *rig, uint32_t page) {
    for (uint32_t slot = 0; slot < RIG_SLOTS; slot++)
        if (rig->slot[slot].page_count > 0 &&
            rig->slot[slot].page[rig->slot[slot].page_count - 1] == page)
            return true;
    return false;
}

/* Three sequences are less than the four of a shape: what fills up is stored nowhere. */
static void step_writes_its_own_pages(struct rig *rig, struct story *story,
                                      const struct rig_piece *piece, uint32_t next[SEQUENCES]) {
    uint64_t *before = hash_pages(rig);
    step(rig, story, piece, next);
    uint64_t *after = hash_pages(rig);
    for (uint32_t page = 0; page < rig->page_count; page++)
        if (!is_last_of_a_slot(rig, page)) assert_int_equal(before[page], after[page]);
    free(before);
    free(after);
}

/* Prompts, op by op; then single rows, a tree beside single rows, and single rows again, by graphs.
 * new_pages: the pool has so many behind the first of them, which is looked at; 0: as it is. */
static void play(struct rig *rig, struct story *story, uint32_t new_pages) {
    struct rig_piece piece[SEQUENCES];
    uint32_t next[SEQUENCES];
    for (uint32_t i = 0; i < SEQUENCES; i++)
        piece[i] = (struct rig_piece){
            .slot = 2 * i, .token = golden[i].id, .count = golden[i].id_count, .wants = true};
    step(rig, story, piece, next);
    for (uint32_t i = 0; i < SEQUENCES; i++)
        piece[i] = (struct rig_piece){.slot = 2 * i, .token = &next[i], .count = 1, .wants = true};
    if (new_pages > 0) {
        step_writes_its_own_pages(rig, story, piece, next);
        rig_resize(rig, new_pages);
    } else {
        step(rig, story, piece, next);
    }
    step(rig, story, piece, next);
    const uint32_t *ahead = golden[0].greedy + 3;
    const uint32_t guess[5] = {next[0], 11, ahead[0], 12, ahead[1]};
    const uint32_t parent[5] = {UINT32_MAX, 0, 0, 1, 2};
    piece[0] = (struct rig_piece){
        .slot = 0, .token = guess, .count = 5, .wants = true, .parent = parent};
    step(rig, story, piece, next);
    piece[0] = (struct rig_piece){.slot = 0, .token = &next[0], .count = 1, .wants = true};
    step(rig, story, piece, next);
}

static struct story of_the_cpu(void) {
    struct rig *rig = open_rig(false);
    struct story story = {.count = 0};
    play(rig, &story, 0);
    rig_close(&rig);
    return story;
}

static void assert_same(const struct story *got, const struct story *want) {
    if (report.failed) fail_msg("%s", report.text);
    assert_int_equal(got->count, want->count);
    assert_memory_equal(got->token, want->token, want->count * sizeof want->token[0]);
}

static bool reaches_behind(const struct rig *rig, uint32_t page_count) {
    for (uint32_t slot = 0; slot < RIG_SLOTS; slot++)
        for (uint32_t i = 0; i < rig->slot[slot].page_count; i++)
            if (rig->slot[slot].page[i] >= page_count) return true;
    return false;
}

/* Neither steps nor a pool that grows need another graph, or more memory than the pool's. */
static void graphs_serve_a_pool_that_grows(void **state) {
    (void)state;
    const struct story want = of_the_cpu();
    const struct simt_cuda_counters none = simt_cuda_count();
    struct rig *rig = open_rig(true);
    const uint32_t page_count = rig->page_count;
    const struct simt_cuda_counters start = simt_cuda_count();
    assert_int_equal(start.graphs_made - none.graphs_made, SHAPES);
    struct story got = {.count = 0};
    play(rig, &got, PAGE_CAP);
    assert_same(&got, &want);
    assert_true(reaches_behind(rig, page_count));
    const struct simt_cuda_counters end = simt_cuda_count();
    assert_int_equal(end.graphs_made, start.graphs_made);
    assert_int_equal(end.graphs, start.graphs);
    assert_int_equal(end.graph_launches - start.graph_launches, REPLAYS);
    rig_close(&rig);
    assert_int_equal(simt_cuda_count().graphs, none.graphs);
}

static void a_new_group_captures_anew(void **state) {
    (void)state;
    const struct story want = of_the_cpu();
    struct rig *rig = open_rig(true);
    for (uint32_t group = 0; group < 2; group++) {
        const struct simt_cuda_counters start = simt_cuda_count();
        struct story got = {.count = 0};
        if (group > 0) rig_restart(rig);
        const struct simt_cuda_counters joined = simt_cuda_count();
        assert_int_equal(joined.graphs_made - start.graphs_made, group > 0 ? SHAPES : 0);
        assert_int_equal(joined.graphs, start.graphs); /* the old ones are gone */
        play(rig, &got, 0);
        assert_same(&got, &want);
        const struct simt_cuda_counters end = simt_cuda_count();
        assert_int_equal(end.allocations, joined.allocations);
        assert_int_equal(end.graph_launches - joined.graph_launches, REPLAYS);
    }
    rig_close(&rig);
}

/* Of one row. */
static size_t residual_bytes(const struct rig *rig) {
    const struct model_spec *spec = &rig->weights->spec;
    return (size_t)spec->layers * spec->hidden * sizeof(float);
}

/* What a test looks at between ops is not in a graph, and a prompt's rows need no logits.
 * Operations of the communicator are counted either way. */
static void other_steps_go_op_by_op(void **state) {
    (void)state;
    struct rig *rig = open_rig(true);
    const struct simt_cuda_counters start = simt_cuda_count();
    struct rig_piece piece = {.token = golden[0].id, .count = 3};
    rig_step(rig, &piece, 1);
    piece = (struct rig_piece){.token = golden[0].id + 3, .count = 1};
    rig_step(rig, &piece, 1);
    piece = (struct rig_piece){.token = golden[0].id + 4, .count = 1, .wants = true};
    float *residual = malloc(residual_bytes(rig));
    engine_capture_residual(rig->engine, residual);
    uint64_t began = engine_progress(rig->engine).collective_seq;
    rig_step(rig, &piece, 1);
    uint64_t by_op = engine_progress(rig->engine).collective_seq - began;
    engine_capture_residual(rig->engine, NULL);
    free(residual);
    assert_int_equal(simt_cuda_count().graph_launches, start.graph_launches);
    began = engine_progress(rig->engine).collective_seq;
    rig_step(rig, &piece, 1);
    assert_int_equal(simt_cuda_count().graph_launches, start.graph_launches + 1);
    assert_int_equal(engine_progress(rig->engine).collective_seq - began, by_op);
    rig_close(&rig);
}

/* Whatever call of a capture fails, and that of a launch. */
static void what_fails_is_said(void **state) {
    (void)state;
    struct rig *rig = open_rig(true);
    const uint64_t graphs = simt_cuda_count().graphs - SHAPES;
    const struct comm_key no_key = {.bytes = 0};
    enum status status = STATUS_UNKNOWN;
    struct error err;
    const uint32_t first = 2; /* behind a look at the memory, and one at the input */
    for (uint32_t failing = first; failing < first + 4; failing++) {
        struct comm *comm;
        assert_int_equal(comm_join(&comm_nccl, &no_key, 0, 1, 8, 0, NULL, &comm, &err), STATUS_OK);
        engine_set_group(rig->engine, 8, comm);
        simt_cuda_fail(failing, cudaErrorMemoryAllocation);
        status = engine_capture_steps(rig->engine, &err);
        simt_cuda_recover();
        if (status == STATUS_OK) fail_msg("call %u", failing);
        assert_ptr_equal(strstr(err.text, "rank 0, whose pool (--mem-fraction-static) left "),
                         err.text);
        assert_non_null(strstr(err.text, " MB: a graph of 1 sequences and 1 rows: "));
        assert_non_null(strstr(err.text, "out of memory"));
        assert_int_equal(simt_cuda_count().graphs, graphs);
    }
    rig_restart(rig);
    struct rig_piece piece = {.token = golden[0].id, .count = 1, .wants = true};
    const struct step_plan *plan = rig_plan(rig, &piece, 1);
    struct step_result result;
    simt_cuda_fail(3, cudaErrorIllegalAddress); /* behind the input */
    status = rig_run(rig, plan, &piece, &result, &err);
    simt_cuda_recover();
    assert_int_equal(status, STATUS_INTERNAL);
    assert_string_equal(err.text, "rank 0 step 1: launching a captured step: "
                                  "an illegal memory access was encountered");
    rig_close(&rig);
}

static int set_up(void **state) {
    (void)state;
    assert_true(golden_data_prompts(&golden) >= SEQUENCES);
    simt_begin(simt_schedules[0].schedule, &report);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_serve_a_pool_that_grows),
        cmocka_unit_test(a_new_group_captures_anew),
        cmocka_unit_test(other_steps_go_op_by_op),
        cmocka_unit_test(what_fails_is_said),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
