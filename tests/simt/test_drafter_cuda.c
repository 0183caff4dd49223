/* A drafter by the GPU's kernels, emulated: what it guesses behind every token is what it guesses
 * on the CPU, up to rounding - with chunks, trees whose rows move, company, ranks, a window, a
 * prefix that another sequence has computed, pages that move to a smaller pool - and tokens are the
 * same. More blocks than one pass holds, of a drafter of random weights. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm_nccl.h"
#include "golden_data.h"
#include "gpu.h"
#include "random_drafter.h"
#include "rig.h"
#include "simt_worlds.h"

#define PROMPT_TOKENS 21u
#define NEW_TOKENS    10u
#define SHARED_TOKENS 10u /* two pages, and a half */
#define PAGE_TOK      4u
#define LEN           7u
#define TOP           RIG_DRAFT_TOP
#define GUESSES_MAX   (NEW_TOKENS + 1u) /* and that behind a shared prefix; or the slots */
#define ERROR_MAX     2e-2              /* of the largest logit, as of the target's */

_Static_assert(RIG_SLOTS <= 2 * GUESSES_MAX, "the many have room");

struct way {
    const char *name, *drafter; /* NULL: the embedded one */
    uint32_t tp, window;
    bool company; /* another sequence guesses beside it */
    bool trees;   /* guesses are verified, else tokens come one by one */
};

/* Behind one token. */
struct guess {
    bool there;
    float lse[LEN];
    float logit[LEN][TOP];
};

/* What a run leaves, in memory that its ranks share. */
struct trace {
    struct way way;
    void (*drive)(struct rig *rig, struct trace *trace);
    uint32_t token[NEW_TOKENS], steps;
    struct guess guess[2 * GUESSES_MAX];
    bool failed;
    char text[SIMT_TEXT_BYTES];
    struct simt_schedule schedule;
};

static const uint32_t *text;

static struct device *open_device(void) {
    struct device *device;
    struct error err;
    if (gpu_open(0, &device, &err) == STATUS_OK) return device;
    fprintf(stderr, "%s\n", err.text);
    exit(1);
}

static void keep(struct guess *guess, const struct step_result *result, uint32_t idx) {
    const struct result_sequence *sequence = &result->sequence[idx];
    guess->there = sequence->draft_count > 0;
    for (uint32_t at = 0; at < sequence->draft_count && at < LEN; at++) {
        guess->lse[at] = result->draft_lse[sequence->draft_begin + at];
        for (uint32_t k = 0; k < TOP; k++)
            guess->logit[at][k] = result->candidate[(sequence->draft_begin + at) * TOP + k].logit;
    }
}

/* The second guess of the first position, and behind it the chain of the first ones: what is
 * accepted of the chain moves. Returns the rows. */
static uint32_t grow(const struct step_result *result, uint32_t idx, uint32_t *token,
                     uint32_t *parent) {
    const struct result_sequence *sequence = &result->sequence[idx];
    const struct draft_candidate *candidate = result->candidate + sequence->draft_begin * TOP;
    token[0] = result->token[sequence->token_begin + sequence->token_count - 1];
    token[1] = candidate[1].token;
    parent[0] = PLAN_NO_PARENT;
    parent[1] = 0;
    for (uint32_t at = 0; at < LEN; at++) {
        token[2 + at] = candidate[at * TOP].token;
        parent[2 + at] = at == 0 ? 0 : 1 + at;
    }
    return 2 + LEN;
}

static void decode(struct rig *rig, struct trace *trace) {
    uint32_t position = 0, done = 0, rows = 1, token[2 + LEN], parent[2 + LEN];
    while (done < NEW_TOKENS) {
        struct rig_piece piece[2];
        uint32_t pieces = 0, left = PROMPT_TOKENS - position;
        if (trace->way.company && rig->step % 3 != 2)
            piece[pieces++] = (struct rig_piece){.slot = 1,
                                                 .token = text + 700 + rig->slot[1].committed,
                                                 .count = 3,
                                                 .wants = true,
                                                 .draft_len = 1 + (uint32_t)rig->step % LEN};
        struct rig_piece mine = {
            .token = token, .count = rows, .wants = true, .draft_len = LEN, .parent = parent};
        if (left > 0) {
            mine.token = text + position;
            mine.count = left < PROMPT_TOKENS ? left : PROMPT_TOKENS / 2;
            mine.wants = mine.count == left;
            mine.draft_len = mine.wants ? LEN : 0;
            position += mine.count;
        }
        if (left > 0 || !trace->way.trees) mine.parent = NULL;
        piece[pieces] = mine;
        struct step_result result = rig_step(rig, piece, pieces + 1);
        const struct result_sequence *sequence = &result.sequence[pieces];
        if (sequence->token_count == 0) continue;
        for (uint32_t i = 0; i < sequence->token_count && done < NEW_TOKENS; i++)
            trace->token[done++] = result.token[sequence->token_begin + i];
        if (done < NEW_TOKENS) keep(&trace->guess[done - 1], &result, pieces);
        rows = grow(&result, pieces, token, parent);
        if (!trace->way.trees) rows = 1;
        trace->steps++;
    }
}

static void require(enum status status, const struct error *err) {
    if (status == STATUS_OK) return;
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

/* A pool of half the pages, the sequence's below the cut. */
static void shrink(struct rig *rig, struct rig_slot *slot) {
    const uint32_t half = rig->page_count / 2;
    struct page_move move[PROMPT_TOKENS + NEW_TOKENS];
    uint32_t count = 0, free_page = 0;
    struct error err;
    for (uint32_t i = 0; i < slot->page_count; i++) {
        if (slot->page[i] < half) continue;
        while (rig->page_taken[free_page])
            free_page++;
        move[count++] = (struct page_move){.source = slot->page[i], .target = free_page};
        rig->page_taken[free_page] = true;
        slot->page[i] = free_page;
    }
    if (count == 0 || free_page >= half) exit(1);
    require(engine_resize(rig->engine, half, move, count, &err), &err);
    rig->page_count = half;
}

/* Then, in a pool that has shrunk and grown again, a sequence that begins as this one. */
static void decode_and_share(struct rig *rig, struct trace *trace) {
    const uint32_t pages = rig->page_count;
    struct rig_piece piece = {.slot = 2,
                              .token = text + SHARED_TOKENS,
                              .count = PROMPT_TOKENS - SHARED_TOKENS,
                              .wants = true,
                              .draft_len = LEN};
    struct step_result result;
    struct error err;
    decode(rig, trace);
    rig_forget(rig, 1);
    shrink(rig, &rig->slot[0]);
    require(engine_resize(rig->engine, pages, NULL, 0, &err), &err);
    const struct step_plan *plan = rig_plan_behind(rig, &piece, 0, text, SHARED_TOKENS);
    require(rig_run(rig, plan, &piece, &result, &err), &err);
    keep(&trace->guess[NEW_TOKENS], &result, 0);
}

/* Three passes of blocks, and guesses whose logits do not exist at once. */
static void guess_many(struct rig *rig, struct trace *trace) {
    struct rig_piece piece[RIG_SLOTS];
    for (uint32_t i = 0; i < RIG_SLOTS; i++)
        piece[i] = (struct rig_piece){.slot = i,
                                      .token = text + 37 * i,
                                      .count = 1 + i % 2,
                                      .wants = true,
                                      .draft_len = i == 3 ? 0 : 4 + i % 3};
    struct step_result result = rig_step(rig, piece, RIG_SLOTS);
    for (uint32_t i = 0; i < RIG_SLOTS; i++)
        keep(&trace->guess[i], &result, i);
}

static void climb(struct rig *rig) {
    struct self_test_progress progress = {0};
    struct error err;
    require(engine_self_test(rig->engine, &progress, &err), &err);
}

static void drive(struct rig *rig, uint32_t rank, void *user) {
    struct trace *trace = user;
    static struct simt_report report;
    static struct trace elsewhere; /* of other ranks */
    struct trace *mine = trace;
    simt_begin(trace->schedule, &report);
    climb(rig);
    if (rank > 0) {
        elsewhere = *trace;
        mine = &elsewhere;
    }
    mine->drive(rig, mine);
    if (rank > 0) return;
    trace->failed = report.failed;
    memcpy(trace->text, report.text, sizeof report.text);
}

static struct trace *run(const struct way *way, void (*how)(struct rig *, struct trace *),
                         bool emulated) {
    struct trace *trace = rig_shared_alloc(sizeof *trace);
    trace->way = *way;
    trace->drive = how;
    trace->schedule = simt_schedules[way->tp % SIMT_ORDER_COUNT].schedule;
    char embedded[4096];
    snprintf(embedded, sizeof embedded, "%s", rig_path("deploy/drafter"));
    struct rig_options options = {.drafter = way->drafter ? way->drafter : embedded,
                                  .draft_window = way->window,
                                  .tp = way->tp,
                                  .threads = 1,
                                  .page_tok = PAGE_TOK,
                                  .max_rows = 32,
                                  .context_len = 64,
                                  .kv_dtype = KV_BF16,
                                  .shadow_hash = true};
    if (emulated) {
        options.open_device = open_device;
        options.comm = &comm_nccl;
    }
    rig_fork_ranks(&options, drive, trace);
    if (trace->failed) fail_msg("%s: %s", way->name, trace->text);
    return trace;
}

/* Where both guessed. Returns how often that was. */
static uint32_t compare_guesses(const struct trace *got, const struct trace *want) {
    double worst = 0, largest = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < 2 * GUESSES_MAX; i++) {
        const struct guess *mine = &got->guess[i], *other = &want->guess[i];
        if (!mine->there || !other->there) continue;
        count++;
        for (uint32_t at = 0; at < LEN; at++) {
            worst = fmax(worst, fabs((double)mine->lse[at] - (double)other->lse[at]));
            for (uint32_t k = 0; k < TOP; k++) {
                largest = fmax(largest, fabs((double)other->logit[at][k]));
                worst = fmax(worst, fabs((double)mine->logit[at][k] - (double)other->logit[at][k]));
            }
        }
    }
    print_message("%s: %u guesses differ by at most %.2g of %.3g\n", got->way.name, count, worst,
                  largest);
    assert_true(worst <= ERROR_MAX * largest);
    assert_true(worst > 0); /* other kernels, other sums: the same bits would be the same ones */
    return count;
}

static void it_guesses_as_on_the_cpu(void **state) {
    (void)state;
    static const struct way ways[] = {
        {"two ranks, trees, company", NULL, 2, 0, true, true},
        {"a window of 8, trees", NULL, 1, 8, false, true},
    };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        struct way plain = ways[i];
        plain.tp = 1;
        plain.company = plain.trees = false;
        struct trace *want = run(&plain, decode_and_share, false);
        struct trace *got = run(&ways[i], decode_and_share, true);
        assert_int_equal(want->steps, NEW_TOKENS);
        assert_in_range(got->steps, 1, NEW_TOKENS - 2); /* trees saved steps */
        assert_memory_equal(got->token, want->token, sizeof want->token);
        assert_int_equal(compare_guesses(got, want), got->steps); /* the last one's is shared's */
        rig_shared_free(got, sizeof *got);
        rig_shared_free(want, sizeof *want);
    }
}

static void many_guess_at_a_time(void **state) {
    (void)state;
    const struct random_drafter kind = {.dtype = "F32",
                                        .layers = 2,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .head_dim = 16,
                                        .width = 40,
                                        .block = 33,
                                        .tap = {2, 5},
                                        .tap_count = 2,
                                        .window = {20, 0},
                                        .causal = {true, false},
                                        .amplitude = 1.41589,
                                        .more = "\"layer_types\":[\"sliding_attention\","
                                                "\"full_attention\"],\"sliding_window\":20,"
                                                "\"rope_scaling\":{\"rope_type\":\"deepseek_yarn\","
                                                "\"factor\":16,"
                                                "\"original_max_position_embeddings\":64,"
                                                "\"attention_factor\":1.41589},",
                                        .dflash = ""};
    char folder[64];
    struct tensor_store *store = random_drafter_store(&kind);
    random_drafter_write(&kind, store, folder);
    const struct way way = {.name = "many", .drafter = folder, .tp = 1};
    struct trace *want = run(&way, guess_many, false);
    struct trace *got = run(&way, guess_many, true);
    assert_int_equal(compare_guesses(got, want), RIG_SLOTS - 1);
    rig_shared_free(got, sizeof *got);
    rig_shared_free(want, sizeof *want);
    tensor_store_destroy(store);
    folder_remove(folder);
}

static int set_up(void **state) {
    (void)state;
    golden_data_heldout(&text);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_guesses_as_on_the_cpu),
        cmocka_unit_test(many_guess_at_a_time),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
