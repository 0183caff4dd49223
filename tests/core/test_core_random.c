/* Many short random histories, each from a seed: calls of all kinds, cancels, losses, faults, lies,
 * late messages, time that jumps, drains. After every event the core checks itself (core_world);
 * at the end of each history:
 *
 *   - every call has ended, once
 *   - each stream is what its request gives alone, or a beginning of it where it was cut
 *   - no page is held
 *   - the same seed gives the same effects again
 */
#include "core_world.h"

#include <stdio.h>
#include <string.h>

#define HISTORIES  2500u
#define EVENTS     160u
#define REQUESTS   24u
#define PROMPT_MAX 40u

static struct world world;

struct history {
    uint64_t random;
    bool crowded; /* brief replies at first, then long ones, more than the pool can hold */
    struct generate_request request[REQUESTS];
    uint32_t prompt[REQUESTS][PROMPT_MAX];
    struct world_call *call[REQUESTS];
    uint32_t request_count;
    struct fake_reply late; /* kept to be delivered again */
    bool has_late;
    bool drained;
};

static uint32_t below(struct history *history, uint32_t bound) {
    return (uint32_t)(world_random(&history->random) % bound);
}

/* Any sizes; workers with and without drafters, with all degrees of luck. */
static void choose_speculation(struct history *history) {
    static const uint32_t tree_rows[] = {2, 3, 8, 16, 64};
    struct core_options *options = &world.options;
    options->speculative_algorithm = (enum speculative_algorithm)below(history, 4);
    options->speculative_tree_rows = tree_rows[below(history, 5)];
    options->speculative_history_tok = 64u << below(history, 5);
    options->speculative_fixed = below(history, 2);
    options->speculative_seed_chain = below(history, 2);
    uint32_t draft_len = 1 + below(history, 7), luck = below(history, 9);
    bool drafts = options->speculative_algorithm == SPECULATE_DFLASH || below(history, 2);
    for (uint32_t rank = 0; rank < FAKE_RANKS; rank++) {
        world.draft_len[rank] = drafts ? draft_len : 0;
        world.draft_luck = luck;
    }
}

static void choose_options(struct history *history) {
    static const uint32_t page_tok[] = {1, 3, 16, 64}, chunk[] = {1, 7, 16, 64},
                          tp[] = {1, 1, 2, 4};
    world_init(&world);
    world.options.tp = tp[below(history, 4)];
    world.options.page_tok = page_tok[below(history, 4)];
    world.options.chunked_prefill_size = chunk[below(history, 4)];
    world.options.max_running_requests = 1 + below(history, 9);
    world.options.max_queued_requests = 1 + below(history, 6);
    uint32_t least = (96 + world.options.page_tok - 1) / world.options.page_tok;
    world.options.page_count = least + below(history, 2 * least);
    if (below(history, 8) == 0) {
        world.options.page_count = least / 2 + 1;
        world.options.allow_short_pool = true;
    }
    history->crowded = below(history, 3) == 0;
    if (history->crowded) {
        world.options.max_running_requests = 4 + below(history, 6);
        world.options.max_queued_requests = REQUESTS;
        world.options.page_count = least + below(history, least / 2 + 1);
        world.options.allow_short_pool = false;
    }
    world.options.schedule_policy = (enum schedule_policy)below(history, 4);
    world.options.max_prefill_tokens = below(history, 4) ? 0 : 20 + below(history, 60);
    world.options.max_step_rows = below(history, 4) ? 0 : 12 + below(history, 10);
    world.options.queue_timeout_ms = below(history, 6) ? 0 : 2000;
    world.options.overlap_steps = below(history, 2);
    world.options.disable_prefix_cache = below(history, 12) == 0;
    choose_speculation(history);
}

static void make_call(struct history *history) {
    static const char *const stop[] = {"END", "ab", "e e", "the a", ".b"};
    if (history->request_count == REQUESTS) return;
    uint32_t at = history->request_count++;
    struct generate_request *request = &history->request[at];
    uint32_t count = 1 + below(history, PROMPT_MAX);
    for (uint32_t i = 0; i < count; i++)
        history->prompt[at][i] = 'a' + below(history, 3);
    *request = world_request(history->prompt[at], count, below(history, 30));
    if (history->crowded) request->max_tokens = at < 9 ? 1 : 20 + below(history, 36);
    request->sampling.temperature = below(history, 2) ? 0.5f : 0;
    request->sampling.has_seed = below(history, 2);
    request->sampling.seed = below(history, 5);
    request->ignore_eos = history->crowded || below(history, 2);
    request->include_stop = below(history, 2);
    request->stop_count = history->crowded ? 0 : below(history, 3);
    request->stop = stop + below(history, 4);
    request->logprobs = below(history, 4) == 0;
    if (at > 0 && below(history, 3) == 0) { /* begins as another did */
        uint32_t from = below(history, at), shared = 1 + below(history, count);
        memcpy(history->prompt[at], history->prompt[from], shared * sizeof(uint32_t));
    }
    request->top_logprobs = below(history, 3);
    if (below(history, 3) == 0) request->prompt_kind = PROMPT_TEXT;
    world.next_tenant = below(history, 4) ? NULL : "tenant";
    world.next_priority = (int32_t)below(history, 3) - 1;
    history->call[at] = world_call(&world, request);
    request->prompt_kind = PROMPT_TOKENS; /* what is expected starts from the ids */
}

static void finish_job(struct history *history) {
    for (uint32_t i = 0; i < history->request_count; i++) {
        struct world_call *call = history->call[i];
        if (!call->job_pending || below(history, 2)) continue;
        const struct generate_request *request = &history->request[i];
        world_job_done(&world, call, request->prompt_token, request->prompt_token_count, false);
        return;
    }
}

static void cancel_one(struct history *history) {
    if (history->request_count == 0) return;
    uint32_t at = below(history, history->request_count);
    world_cancel(&world, history->call[at],
                 below(history, 2) ? STATUS_CANCELLED : STATUS_DEADLINE_EXCEEDED);
}

static void deliver_some(struct history *history) {
    uint32_t rank = below(history, world.options.tp);
    for (uint32_t count = below(history, 6); count > 0; count--)
        world_deliver(&world, (rank + count) % world.options.tp);
}

/* Take an answer off the line: keep it, deliver it twice, or spoil it. */
static void tamper(struct history *history) {
    uint32_t rank = below(history, world.options.tp);
    struct worker_message *answer = world_take_answer(&world, rank);
    if (!answer) return;
    struct worker_message copy = *answer;
    if (copy.type == WORKER_STEP_RESULT && below(history, 2)) copy.step_result.state_hash ^= 4;
    world_message(&world, rank, &copy);
    if (below(history, 2) && world.worker[rank].id.value != 0) world_message(&world, rank, &copy);
}

static void fault(struct history *history) {
    uint32_t rank = below(history, world.options.tp);
    if (world.worker[rank].id.value == 0) return;
    struct worker_message message = {.type = WORKER_FAULT};
    message.fault = (struct worker_fault){
        .generation = core_snapshot(world.core, world.now_ns).generation - below(history, 2),
        .status = STATUS_INTERNAL,
        .text = "random",
        .fatal = below(history, 2),
    };
    if (message.fault.generation > 1000) return; /* one before the first */
    world_message(&world, rank, &message);
}

static void beat_all(void) {
    for (uint32_t rank = 0; rank < world.options.tp; rank++) {
        const struct fake_worker *worker = &world.worker[rank];
        if (worker->id.value == 0 || worker->limits.page_tok == 0) continue;
        struct worker_message message = {.type = WORKER_HEARTBEAT};
        message.heartbeat.generation = worker->generation;
        message.heartbeat.step = worker->step;
        world_message(&world, rank, &message);
    }
}

static void launch_missing(void) {
    for (uint32_t rank = 0; rank < world.options.tp; rank++)
        if (world.worker[rank].id.value == 0) world_launch(&world, rank);
}

/* Withdraw the beginning of some prompt, or everything. */
static void flush(struct history *history) {
    struct event event = {.type = EVENT_FLUSH};
    if (history->request_count > 0 && below(history, 3)) {
        event.flush.token = history->prompt[below(history, history->request_count)];
        event.flush.token_count = below(history, 20);
    }
    world_step(&world, event);
}

static void random_event(struct history *history) {
    uint32_t dice = below(history, 1000);
    if (history->crowded && dice < 800) dice = dice < 300 ? 0 : 999;
    if (dice < 120)
        make_call(history);
    else if (dice < 190)
        finish_job(history);
    else if (dice < 230)
        cancel_one(history);
    else if (dice < 240)
        world_kill(&world, below(history, world.options.tp));
    else if (dice < 300)
        launch_missing();
    else if (dice < 308)
        tamper(history);
    else if (dice < 316)
        fault(history);
    else if (dice < 380)
        beat_all();
    else if (dice < 460)
        world_tick(&world, below(history, 100) * WORLD_MS);
    else if (dice < 465)
        world_tick(&world, below(history, 4000) * WORLD_MS);
    else if (dice < 468)
        world_drain(&world, world.now_ns + below(history, 3000) * WORLD_MS);
    else if (dice < 475)
        flush(history);
    else
        deliver_some(history);
}

/* Bring everything to its end: all ranks back, all jobs done, all answers in. */
static void finish(struct history *history) {
    for (uint32_t round = 0; !world.exited && round < 20; round++) {
        launch_missing();
        for (uint32_t i = 0; i < history->request_count; i++)
            finish_job(history);
        world_recover(&world);
        if (!world.exited) beat_all();
    }
    if (!world.exited) assert_true(core_snapshot(world.core, world.now_ns).ready);
}

static struct snapshot history_end;

/* Returns the hash of all effects. */
static uint64_t run(uint64_t seed) {
    static struct history history;
    memset(&history, 0, sizeof history);
    history.random = seed;
    choose_options(&history);
    world_start(&world);
    launch_missing();
    for (uint32_t i = 0; i < EVENTS && !world.exited; i++)
        random_event(&history);
    finish(&history);
    for (uint32_t i = 0; i < history.request_count; i++)
        world_expect_stream(&world, history.call[i], &history.request[i]);
    world_expect_idle(&world);
    history_end = core_snapshot(world.core, world.now_ns);
    world_stop(&world);
    return world.effect_hash;
}

static uint64_t running_seed;
static struct {
    uint64_t ok, cancelled, unavailable, exhausted, exits;
    uint64_t cached, retractions, recomputed, evictions;
    uint64_t trees, accepted[SPECULATION_DEPTHS];
} seen;

static void count_ends(void) {
    for (uint32_t i = 0; i < world.call_count; i++) {
        seen.ok += world.call[i].status == STATUS_OK;
        seen.cancelled += world.call[i].status == STATUS_CANCELLED;
        seen.unavailable += world.call[i].status == STATUS_UNAVAILABLE;
        seen.exhausted += world.call[i].status == STATUS_RESOURCE_EXHAUSTED;
    }
    seen.exits += world.exited;
    seen.cached += history_end.tokens_cached;
    seen.retractions += history_end.retractions;
    seen.recomputed += history_end.tokens_recomputed;
    seen.evictions += history_end.evictions;
    seen.trees += history_end.speculated.trees;
    for (uint32_t i = 0; i < SPECULATION_DEPTHS; i++)
        seen.accepted[i] += history_end.speculated.accepted[i];
}

static void test_histories(void **state) {
    (void)state;
    for (running_seed = 1; running_seed <= HISTORIES; running_seed++) {
        uint64_t first = run(running_seed);
        count_ends();
        if (running_seed % 5 == 0) assert_int_equal(first, run(running_seed));
    }
    print_message("ends: %u ok, %u cancelled, %u unavailable, %u exhausted; %u exits\n",
                  (unsigned)seen.ok, (unsigned)seen.cancelled, (unsigned)seen.unavailable,
                  (unsigned)seen.exhausted, (unsigned)seen.exits);
    print_message("tokens: %u cached, %u recomputed; %u retractions, %u evictions\n",
                  (unsigned)seen.cached, (unsigned)seen.recomputed, (unsigned)seen.retractions,
                  (unsigned)seen.evictions);
    print_message("trees: %u, right at depth 1 %u, 2 %u, 5 %u\n", (unsigned)seen.trees,
                  (unsigned)seen.accepted[0], (unsigned)seen.accepted[1],
                  (unsigned)seen.accepted[4]);
    assert_true(seen.trees > 10 * HISTORIES && seen.accepted[0] > HISTORIES &&
                seen.accepted[4] > HISTORIES / 10);
    /* A test of nothing but easy cases would prove little. */
    assert_true(seen.cached > HISTORIES && seen.retractions > HISTORIES / 50 &&
                seen.recomputed > HISTORIES && seen.evictions > HISTORIES);
    assert_true(seen.ok > HISTORIES && seen.cancelled > HISTORIES / 10 &&
                seen.unavailable > HISTORIES / 10 && seen.exhausted > HISTORIES / 10 &&
                seen.exits > HISTORIES / 100);
}

static int say_seed(void **state) {
    (void)state;
    if (running_seed <= HISTORIES)
        print_message("in the history of seed %u\n", (unsigned)running_seed);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_histories, say_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
