/* Workers and generations: who may come, how a group forms, everything that ends it. */
#include "core_world.h"

#include <stdio.h>
#include <string.h>

static struct world world;

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const uint32_t prompt[] = {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j'};

static void serve(uint32_t tp) {
    world_init(&world);
    world.options.tp = tp;
    world_start(&world);
    world_serve(&world);
}

static struct generate_request long_request(void) {
    struct generate_request request = world_request(prompt, COUNT(prompt), 40);
    request.ignore_eos = true;
    return request;
}

static void expect_words(const char *text, const char *words) {
    if (!strstr(text, words)) fail_msg("'%s' lacks '%s'", text, words);
}

static const struct worker_hello good_hello = {
    .wire_version = WIRE_VERSION,
    .rank = 1,
    .tp = 2,
    .pid = 77,
    .model_fingerprint = WORLD_FINGERPRINT,
    .device = "",
    .probe = "",
};

static void test_options_are_checked(void **state) {
    (void)state;
    const struct {
        size_t field;
        uint32_t value;
        const char *words;
    } row[] = {
        {offsetof(struct core_options, tp), 0, "--tp: found 0, accepted: 1 to 8"},
        {offsetof(struct core_options, tp), 9, "--tp"},
        {offsetof(struct core_options, context_len), 1, "--context-length"},
        {offsetof(struct core_options, page_tok), 0, "--page-size"},
        {offsetof(struct core_options, page_tok), 129, "--page-size"},
        {offsetof(struct core_options, page_count), 0, "pool"},
        {offsetof(struct core_options, page_count), 23, "92 tokens"},
        {offsetof(struct core_options, max_running_requests), 0, "--max-running-requests"},
        {offsetof(struct core_options, max_running_requests), 1025, "--max-running-requests"},
        {offsetof(struct core_options, max_queued_requests), 0, "--max-queued-requests"},
        {offsetof(struct core_options, max_queued_requests), 16385, "accepted: 1 to 16384"},
        {offsetof(struct core_options, chunked_prefill_size), 0, "--chunked-prefill-size"},
        {offsetof(struct core_options, heartbeat_ms), 0, "--heartbeat"},
        {offsetof(struct core_options, step_timeout_ms), 199, "--step-timeout"},
        {offsetof(struct core_options, load_timeout_ms), 199, "--load-timeout"},
    };
    for (size_t i = 0; i < COUNT(row); i++) {
        world_init(&world);
        world.options.spec = &world.spec;
        memcpy((char *)&world.options + row[i].field, &row[i].value, sizeof row[i].value);
        struct error err;
        assert_int_equal(core_create(&world.options, &world.core, &err), STATUS_INVALID_ARGUMENT);
        expect_words(err.text, row[i].words);
    }
    world_init(&world);
    world.spec.vocab = WORLD_VOCAB + 1; /* the model could draw what has no text */
    world.options.spec = &world.spec;
    struct error err;
    assert_int_equal(core_create(&world.options, &world.core, &err), STATUS_INVALID_ARGUMENT);
    world_init(&world);
    world.options.spec = &world.spec;
    world.options.context_len = CONTEXT_TOK_MAX;
    world.options.page_tok = 1;
    world.options.page_count = CONTEXT_TOK_MAX;
    world.options.max_running_requests = PLAN_SEQS_MAX;
    assert_int_equal(core_create(&world.options, &world.core, &err), STATUS_INVALID_ARGUMENT);
    expect_words(err.text, "tables");
    world_init(&world);
    world.options.page_count = 24; /* exactly one context */
    world_start(&world);
    world_stop(&world);
}

static void say_hello(const struct worker_hello *hello, uint32_t id) {
    fake_worker_init(&world.stranger, hello->rank, hello->tp, (struct worker_id){id});
    fake_worker_push(&world.stranger, WORKER_HELLO)->message.hello = *hello;
}

static void test_hellos_that_are_refused(void **state) {
    (void)state;
    const struct {
        uint32_t version, tp, rank;
        uint64_t fingerprint;
        const char *found, *accepted;
    } row[] = {
        {WIRE_VERSION + 1, 2, 1, WORLD_FINGERPRINT, "found 2", "accepted: 1"},
        {WIRE_VERSION, 4, 1, WORLD_FINGERPRINT, "--tp: found 4", "accepted: 2"},
        {WIRE_VERSION, 2, 2, WORLD_FINGERPRINT, "--rank: found 2", "accepted: 0 to 1"},
        {WIRE_VERSION, 2, 1, 0xbad, "found 0000000000000bad", "accepted: 000000000000feed"},
        {WIRE_VERSION, 2, 0, WORLD_FINGERPRINT, "found 0", "process 1001"},
    };
    world_init(&world);
    world.options.tp = 2;
    world_start(&world);
    world_launch(&world, 0);
    world_settle(&world);
    for (size_t i = 0; i < COUNT(row); i++) {
        struct worker_hello hello = good_hello;
        hello.wire_version = row[i].version;
        hello.tp = row[i].tp;
        hello.rank = row[i].rank;
        hello.model_fingerprint = row[i].fingerprint;
        uint32_t id = 100 + (uint32_t)i;
        say_hello(&hello, id);
        world_settle(&world);
        assert_true(world.stranger.refused);
        expect_words(world.stranger.refusal, row[i].found);
        expect_words(world.stranger.refusal, row[i].accepted);
        assert_int_equal(world.dropped.value, id);
        assert_int_equal(core_snapshot(world.core, world.now_ns).rank[1].state, RANK_ABSENT);
        /* Its connection's end, or late words, are of nobody. */
        struct event event = {.type = EVENT_WORKER_LOST};
        event.worker.worker.value = id;
        world_step(&world, event);
    }
    assert_int_equal(core_snapshot(world.core, world.now_ns).rank[0].state, RANK_LOADED);
    world_launch(&world, 1);
    world_settle(&world);
    assert_true(core_snapshot(world.core, world.now_ns).ready);
    world_stop(&world);
}

static void test_from_load_to_ready(void **state) {
    (void)state;
    world_init(&world);
    world.options.tp = 2;
    world_start(&world);
    assert_int_equal(core_health(world.core, "engine", world.now_ns).health, HEALTH_NOT_SERVING);
    assert_int_equal(core_health(world.core, "rank/2", world.now_ns).health,
                     HEALTH_SERVICE_UNKNOWN);
    assert_int_equal(core_health(world.core, "rank/", world.now_ns).health, HEALTH_SERVICE_UNKNOWN);
    assert_int_equal(core_health(world.core, "rank/01", world.now_ns).health,
                     HEALTH_SERVICE_UNKNOWN);
    assert_int_equal(core_health(world.core, "ran", world.now_ns).health, HEALTH_SERVICE_UNKNOWN);
    world_launch(&world, 1);
    world_deliver(&world, 1); /* hello */
    const struct control_welcome *limits = &world.worker[1].limits;
    assert_int_equal(limits->coordinator_pid, 1);
    assert_int_equal(limits->coordinator_start, 2);
    assert_int_equal(limits->max_rows, 8 + 16);
    assert_int_equal(limits->max_sequences, 8);
    assert_int_equal(limits->page_tok * limits->page_count, 4 * 48);
    assert_int_equal(limits->context_len, 96);
    world_deliver(&world, 1); /* progress */
    struct snapshot snapshot = core_snapshot(world.core, world.now_ns + 50);
    assert_int_equal(snapshot.rank[1].state, RANK_LOADING);
    assert_int_equal(snapshot.rank[1].load_bytes, 50);
    assert_int_equal(snapshot.rank[1].load_bytes_total, 100);
    assert_int_equal(snapshot.rank[1].load_ns, 50);
    assert_string_equal(snapshot.rank[1].probe, "127.0.0.1:1");
    world_settle(&world);
    snapshot = core_snapshot(world.core, world.now_ns);
    assert_int_equal(snapshot.rank[1].state, RANK_LOADED);
    assert_int_equal(snapshot.generation, 0);
    assert_false(snapshot.ready);
    expect_words(snapshot.reason, "1 of 2 ranks are loaded");
    assert_int_equal(core_health(world.core, "rank/1", world.now_ns).health, HEALTH_NOT_SERVING);
    struct generate_request request = long_request();
    struct world_call *early = world_call(&world, &request); /* waits for the group */
    world_launch(&world, 0);
    for (uint32_t i = 0; i < 4; i++) /* hello, progress, loaded, key */
        world_deliver(&world, 0);
    world_deliver(&world, 0);
    assert_false(core_snapshot(world.core, world.now_ns).ready);
    world_deliver(&world, 1);
    snapshot = core_snapshot(world.core, world.now_ns);
    assert_true(snapshot.ready);
    assert_string_equal(snapshot.reason, "");
    assert_int_equal(snapshot.generation, 1);
    expect_words(world.log, "group_ready generation=1 tp=2 max_total_num_tokens=192 "
                            "chunked_prefill_size=16 max_running_requests=8 context_len=96");
    assert_int_equal(core_health(world.core, "rank/1", world.now_ns).health, HEALTH_SERVING);
    world_settle(&world);
    world_expect_stream(&world, early, &request);
    world_stop(&world);
}

/* A rank dies after each number of deliveries of a whole history; what ran then is told so, what
 * waited runs in the next generation. */
static void test_a_rank_is_lost_at_every_point(void **state) {
    (void)state;
    struct generate_request request = long_request();
    for (uint32_t victim = 0; victim < 2; victim++) {
        bool finished = false;
        for (uint32_t after = 0; !finished; after++) {
            world_init(&world);
            world.options.tp = 2;
            world.options.max_running_requests = 2;
            world_start(&world);
            world_launch(&world, 0);
            world_launch(&world, 1);
            struct world_call *call[4];
            for (uint32_t i = 0; i < 4; i++)
                call[i] = world_call(&world, &request);
            uint32_t delivered = 0;
            while (delivered < after && (world_deliver(&world, delivered % 2) ||
                                         world_deliver(&world, 1 - delivered % 2)))
                delivered++;
            finished = delivered < after;
            uint32_t ended_before = 0;
            bool was_running[4];
            for (uint32_t i = 0; i < 4; i++) {
                ended_before += call[i]->ended;
                was_running[i] = !call[i]->ended && call[i]->token_count > 0;
            }
            struct snapshot before = core_snapshot(world.core, world.now_ns);
            if (before.rank[victim].state == RANK_ABSENT) { /* its hello is not in yet */
                world_stop(&world);
                continue;
            }
            world_kill(&world, victim);
            struct snapshot snapshot = core_snapshot(world.core, world.now_ns);
            assert_int_equal(snapshot.rank[victim].state, RANK_LOST);
            assert_int_equal(snapshot.pages_free,
                             snapshot.pages_total); /* nothing is left cached */
            assert_int_equal(snapshot.requests_running, 0);
            assert_int_equal(snapshot.requests_waiting, 4 - ended_before - before.requests_running);
            for (uint32_t i = 0; i < 4; i++) {
                if (was_running[i]) assert_true(call[i]->ended);
                if (!call[i]->ended || call[i]->status == STATUS_OK) continue;
                assert_int_equal(call[i]->status, STATUS_UNAVAILABLE);
                char name[16];
                snprintf(name, sizeof name, "rank %u", victim);
                expect_words(call[i]->status_text, name);
                assert_int_equal(call[i]->summary.finish_reason, FINISH_ERROR);
            }
            if (before.generation > 0) expect_words(world.log, "generation_over");
            world_launch(&world, victim);
            world_recover(&world);
            assert_int_equal(core_snapshot(world.core, world.now_ns).generation,
                             before.generation + 1);
            for (uint32_t i = 0; i < 4; i++)
                world_expect_stream(&world, call[i], &request);
            world_expect_idle(&world);
            world_stop(&world);
        }
    }
}

/* Results that must not be believed. Each row spoils rank 0's answer, or rank 1's. */
enum lie {
    LIE_HASH,
    LIE_TWICE,
    LIE_STEP_BEFORE,
    LIE_STEP_AFTER,
    LIE_RANK,
    LIE_NO_TOKEN,
    LIE_OTHER_SLOT,
    LIE_TWO_TOKENS,
    LIE_ONE_MORE,
    LIE_RANGE,
    LIE_VOCABULARY,
    LIE_LOGPROBS,
    LIE_COUNT,
};

static void spoil(struct step_result *result, enum lie lie) {
    static struct result_sequence sequence[2];
    static uint32_t token[2];
    if (result->sequence_count > 0) {
        sequence[0] = sequence[1] = result->sequence[0];
        token[0] = token[1] = result->token[0];
        result->sequence = sequence;
        result->token = token;
    }
    switch (lie) {
    case LIE_HASH: result->state_hash ^= 1; break;
    case LIE_STEP_BEFORE: result->step--; break;
    case LIE_STEP_AFTER: result->step++; break;
    case LIE_RANK: result->rank ^= 1; break;
    case LIE_NO_TOKEN: result->sequence_count = 0; break;
    case LIE_OTHER_SLOT: sequence[0].slot++; break;
    case LIE_TWO_TOKENS:
        sequence[0].token_count = 2;
        result->token_count = 2;
        break;
    case LIE_ONE_MORE: result->sequence_count = 2; break;
    case LIE_RANGE: sequence[0].token_begin = 1; break;
    case LIE_VOCABULARY: token[0] = WORLD_VOCAB; break;
    case LIE_LOGPROBS: result->logprob_count = 1; break;
    case LIE_TWICE:
    case LIE_COUNT: break;
    }
}

static void test_lies_end_the_generation(void **state) {
    (void)state;
    static const char *const words[LIE_COUNT] = {
        [LIE_HASH] = "its state is",        [LIE_TWICE] = "a second result",
        [LIE_STEP_BEFORE] = "is in flight", [LIE_STEP_AFTER] = "is in flight",
        [LIE_RANK] = "says rank",           [LIE_NO_TOKEN] = "lacks the one token",
        [LIE_OTHER_SLOT] = "lacks the one", [LIE_TWO_TOKENS] = "lacks the one token",
        [LIE_ONE_MORE] = "more tokens",     [LIE_RANGE] = "lacks the one token",
        [LIE_VOCABULARY] = "token 515",     [LIE_LOGPROBS] = "1 logprobs of 0",
    };
    for (enum lie lie = 0; lie < LIE_COUNT; lie++) {
        uint32_t liar = lie == LIE_HASH || lie == LIE_RANK ? 1 : 0;
        serve(2);
        struct generate_request request = long_request();
        struct world_call *call = world_call(&world, &request);
        while (call->token_count < 3) {
            world_deliver(&world, 1);
            world_deliver(&world, 0);
        }
        struct worker_message *answer = world_take_answer(&world, liar);
        struct worker_message spoiled = *answer;
        spoil(&spoiled.step_result, lie);
        world_message(&world, liar, &spoiled);
        if (lie == LIE_TWICE) world_message(&world, liar, &spoiled);
        assert_int_equal(call->status, STATUS_UNAVAILABLE);
        assert_int_equal(call->token_count, 3); /* nothing of the step was believed */
        expect_words(call->status_text, liar ? "rank 1: " : "rank 0: ");
        expect_words(call->status_text, words[lie]);
        expect_words(world.log, "step_lost generation=1");
        assert_int_equal(world.dropped_count, 0); /* weights are kept */
        world_recover(&world);
        assert_int_equal(core_snapshot(world.core, world.now_ns).generation, 2);
        struct world_call *next = world_call(&world, &request);
        world_settle(&world);
        world_expect_stream(&world, next, &request);
        world_expect_idle(&world);
        world_stop(&world);
    }
}

static void test_a_result_without_a_step(void **state) {
    (void)state;
    serve(1);
    struct worker_message result = {.type = WORKER_STEP_RESULT};
    result.step_result.generation = 1;
    world_message(&world, 0, &result);
    assert_false(core_snapshot(world.core, world.now_ns).ready);
    world_recover(&world);
    assert_int_equal(core_snapshot(world.core, world.now_ns).generation, 2);
    assert_true(core_snapshot(world.core, world.now_ns).ready);
    world_stop(&world);
}

static void test_old_generations_are_ignored(void **state) {
    (void)state;
    serve(2);
    struct generate_request request = long_request();
    world_call(&world, &request);
    struct worker_message old_result = *world_take_answer(&world, 0);
    world_kill(&world, 1);
    world_launch(&world, 1);
    world_recover(&world);
    struct world_call *call = world_call(&world, &request);
    const struct worker_message old[] = {
        old_result,
        {.type = WORKER_JOINED, .joined.generation = 1},
        {.type = WORKER_GROUP_KEY, .group_key.generation = 1},
        {.type = WORKER_HEARTBEAT, .heartbeat = {.generation = 1, .step = 99}},
        {.type = WORKER_FAULT, .fault = {.generation = 1, .status = STATUS_INTERNAL, .text = "x"}},
    };
    for (size_t i = 0; i < COUNT(old); i++) {
        world_message(&world, 0, &old[i]);
        struct snapshot snapshot = core_snapshot(world.core, world.now_ns);
        assert_true(snapshot.ready);
        assert_int_equal(snapshot.generation, 2);
        assert_int_equal(snapshot.rank[0].step, 0);
    }
    world_settle(&world);
    world_expect_stream(&world, call, &request);
    assert_int_equal(call->status, STATUS_OK);
    world_stop(&world);
}

/* What a worker may not say where it stands: it is dropped, and a new process may take its place.
 */
static void test_breaches(void **state) {
    (void)state;
    enum { LOADING, LOADED, SERVING };
    const struct {
        uint32_t when;
        struct worker_message message;
    } row[] = {
        {LOADING, {.type = WORKER_HELLO, .hello = good_hello}},
        {LOADING, {.type = WORKER_JOINED, .joined.generation = 1}},
        {LOADING, {.type = WORKER_STEP_RESULT, .step_result.generation = 1}},
        {LOADED, {.type = WORKER_LOADED}},
        {LOADED, {.type = WORKER_HEARTBEAT, .heartbeat.generation = 1}},
        {SERVING, {.type = WORKER_HELLO, .hello = good_hello}},
        {SERVING, {.type = WORKER_LOADED}},
        {SERVING, {.type = WORKER_JOINED, .joined.generation = 1}},
        {SERVING, {.type = WORKER_GROUP_KEY, .group_key.generation = 1}},
        {SERVING, {.type = WORKER_STEP_RESULT, .step_result.generation = 2}},
        {SERVING, {.type = WORKER_HEARTBEAT, .heartbeat.generation = 2}},
    };
    for (size_t i = 0; i < COUNT(row); i++) {
        world_init(&world);
        world.options.tp = 2;
        world_start(&world);
        world_launch(&world, 1);
        if (row[i].when == LOADING)
            world_deliver(&world, 1);
        else
            world_settle(&world);
        if (row[i].when == SERVING) {
            world_launch(&world, 0);
            world_settle(&world);
        }
        uint32_t id = world.worker[1].id.value;
        world_message(&world, 1, &row[i].message);
        if (world.dropped.value != id) fail_msg("row %zu is accepted", i);
        struct snapshot snapshot = core_snapshot(world.core, world.now_ns);
        assert_int_equal(snapshot.rank[1].state, RANK_LOST);
        assert_false(snapshot.ready);
        expect_words(snapshot.reason, "rank 1 sent");
        if (row[i].when != SERVING) world_launch(&world, 0);
        world_launch(&world, 1);
        world_recover(&world);
        assert_true(core_snapshot(world.core, world.now_ns).ready);
        world_stop(&world);
    }
}

static void test_keys(void **state) {
    (void)state;
    static const uint8_t long_key[GROUP_KEY_BYTES_MAX + 1] = {0};
    const struct {
        uint32_t rank;
        size_t bytes;
    } row[] = {{0, 0}, {0, sizeof long_key}, {1, 4}};
    for (size_t i = 0; i < COUNT(row); i++) {
        world_init(&world);
        world.options.tp = 2;
        world_start(&world);
        world_launch(&world, 1);
        world_settle(&world);
        world_launch(&world, 0);
        for (uint32_t j = 0; j < 3; j++)
            world_deliver(&world, 0);
        struct worker_message message = {.type = WORKER_GROUP_KEY};
        message.group_key.generation = 1;
        message.group_key.key = (struct bytes){long_key, row[i].bytes};
        world_message(&world, row[i].rank, &message);
        assert_int_equal(core_snapshot(world.core, world.now_ns).rank[row[i].rank].state,
                         RANK_LOST);
        core_destroy(&world.core);
    }
}

static void test_faults(void **state) {
    (void)state;
    for (uint32_t fatal = 0; fatal < 2; fatal++) {
        serve(2);
        struct generate_request request = long_request();
        struct world_call *call = world_call(&world, &request);
        struct worker_message fault = {.type = WORKER_FAULT};
        fault.fault = (struct worker_fault){
            .generation = 1,
            .status = STATUS_FAILED_PRECONDITION,
            .text = "slot 3: prefix hash",
            .fatal = fatal,
        };
        world_message(&world, 1, &fault);
        assert_int_equal(call->status, STATUS_UNAVAILABLE);
        expect_words(call->status_text, "rank 1: FAILED_PRECONDITION: slot 3: prefix hash");
        assert_int_equal(world.dropped_count, fatal);
        if (fatal) world_launch(&world, 1);
        world_recover(&world);
        assert_true(core_snapshot(world.core, world.now_ns).ready);
        world_stop(&world);
    }
}

/* The survivor's word about a death comes before the death itself: one loss, and no group between.
 */
static void test_one_death_is_one_loss(void **state) {
    (void)state;
    serve(2);
    struct worker_message fault = {.type = WORKER_FAULT};
    fault.fault = (struct worker_fault){
        .generation = 1, .status = STATUS_UNAVAILABLE, .text = "rank 1 is gone"};
    world_message(&world, 0, &fault);
    assert_int_equal(world.timer_ns, world.now_ns + 100 * WORLD_MS);
    world_tick(&world, 100 * WORLD_MS - 1);
    world_kill(&world, 1);
    world_tick(&world, 1);
    assert_int_equal(core_snapshot(world.core, world.now_ns).generation, 1);
    world_launch(&world, 1);
    world_settle(&world);
    assert_int_equal(core_snapshot(world.core, world.now_ns).generation, 2);
    assert_true(core_snapshot(world.core, world.now_ns).ready);
    world_stop(&world);
}

static void test_late_load_progress_is_harmless(void **state) {
    (void)state;
    serve(1);
    struct worker_message progress = {.type = WORKER_LOAD_PROGRESS};
    world_message(&world, 0, &progress);
    struct snapshot snapshot = core_snapshot(world.core, world.now_ns);
    assert_true(snapshot.ready);
    assert_int_equal(snapshot.rank[0].load_bytes, 100);
    world_stop(&world);
}

static void report_load(uint32_t rank, uint64_t bytes, uint64_t bytes_total) {
    struct worker_message message = {.type = WORKER_LOAD_PROGRESS};
    message.load_progress = (struct worker_load_progress){bytes, bytes_total};
    world_message(&world, rank, &message);
}

static void beat(uint32_t rank, uint64_t step, uint64_t collective_seq) {
    struct worker_message message = {.type = WORKER_HEARTBEAT};
    message.heartbeat = (struct worker_heartbeat){
        .generation = core_snapshot(world.core, world.now_ns).generation,
        .step = step,
        .collective_seq = collective_seq,
        .computing = true,
    };
    world_message(&world, rank, &message);
}

static void test_a_step_without_progress_times_out(void **state) {
    (void)state;
    serve(2);
    world.worker[0].stuck = world.worker[1].stuck = true;
    struct generate_request request = long_request();
    struct world_call *call = world_call(&world, &request);
    for (uint32_t i = 1; i <= 5; i++) { /* a slow step that goes on is none */
        world.now_ns += 900 * WORLD_MS;
        beat(0, 0, 10 * i);
        beat(1, 0, 10 * i - 1);
        assert_false(call->ended);
    }
    for (uint32_t i = 0; i < 9; i++) { /* alive, and at the same place: rank 1 holds 0 up */
        world.now_ns += 100 * WORLD_MS;
        beat(0, 0, 50);
        beat(1, 0, 49);
    }
    world_tick(&world, 100 * WORLD_MS - 1);
    assert_false(call->ended);
    uint32_t culprit = world.worker[1].id.value;
    world_tick(&world, 1);
    assert_int_equal(call->status, STATUS_UNAVAILABLE);
    expect_words(call->status_text, "rank 1 made no progress for 1000 ms (step 0, collective 49");
    assert_int_equal(world.dropped.value, culprit);
    assert_int_equal(world.dropped_count, 1);
    world.worker[0].stuck = false;
    world_launch(&world, 1);
    world_recover(&world);
    assert_true(core_snapshot(world.core, world.now_ns).ready);
    world_stop(&world);
}

/* A rank that loads is lost when its bytes stand still, beating or stopped; with all of them read,
 * only silence counts, since the pool may take long to make. */
static void test_a_load_that_stands_still_times_out(void **state) {
    (void)state;
    static const struct {
        const char *what;
        uint64_t bytes; /* of 100; reported after a while, where not 0 */
        bool beats;
        bool is_lost;
    } row[] = {
        {"stopped before it reads", 0, false, true}, {"stopped while it reads", 40, false, true},
        {"stuck before it reads", 0, true, true},    {"stuck while it reads", 40, true, true},
        {"stopped with all read", 100, false, true}, {"makes its pool", 100, true, false},
    };
    for (size_t i = 0; i < COUNT(row); i++) {
        world_init(&world);
        world.options.tp = 2;
        world_start(&world);
        world_launch(&world, 0);
        world_settle(&world);
        world_launch(&world, 1);
        world_deliver(&world, 1);          /* hello */
        fake_worker_pop(&world.worker[1]); /* its progress is told here instead */
        if (row[i].bytes > 0) {
            world_tick(&world, 700 * WORLD_MS);
            report_load(1, row[i].bytes, 100);
        }
        uint32_t loader = world.worker[1].id.value;
        assert_in_range(world.timer_ns, 1, world.now_ns + 1000 * WORLD_MS);
        for (uint32_t tick = 0; tick < 10; tick++) {
            assert_int_equal(world.dropped_count, 0);
            world_tick(&world, 100 * WORLD_MS - (tick == 9));
            beat(0, 0, 0);
            if (row[i].beats && row[i].bytes > 0) report_load(1, row[i].bytes, 100);
            if (row[i].beats) beat(1, 0, 0);
        }
        assert_int_equal(world.dropped_count, 0);
        world_tick(&world, 1);
        struct snapshot snapshot = core_snapshot(world.core, world.now_ns);
        if ((snapshot.rank[1].state == RANK_LOST) != row[i].is_lost) fail_msg("%s", row[i].what);
        assert_int_equal(snapshot.rank[0].state, RANK_LOADED);
        if (row[i].is_lost) {
            assert_int_equal(world.dropped.value, loader);
            char words[96];
            snprintf(words, sizeof words, "loaded nothing for 1000 ms (--load-timeout; %u of %u",
                     (unsigned)row[i].bytes, row[i].bytes > 0 ? 100u : 0u);
            expect_words(snapshot.reason, words);
            world_launch(&world, 1);
        }
        world_settle(&world);
        snapshot = core_snapshot(world.core, world.now_ns);
        if (!snapshot.ready) fail_msg("%s: %s", row[i].what, snapshot.reason);
        world_stop(&world);
    }
}

static void test_one_missing_result_times_out(void **state) {
    (void)state;
    serve(2);
    world.worker[0].stuck = true;
    struct generate_request request = long_request();
    struct world_call *call = world_call(&world, &request);
    world.now_ns += 600 * WORLD_MS;
    world_deliver(&world, 1); /* has done its part, and need not get on any further */
    for (uint32_t i = 1; i < 10; i++) {
        world.now_ns += 300 * WORLD_MS;
        beat(1, 1, 5);
        beat(0, 0, i);
        assert_false(call->ended);
    }
    world_tick(&world, 900 * WORLD_MS);
    beat(1, 1, 5);
    world_tick(&world, 100 * WORLD_MS);
    expect_words(call->status_text, "rank 0 made no progress");
    world_stop(&world);
}

static void test_silence_of_an_idle_group(void **state) {
    (void)state;
    serve(2);
    world.now_ns += 700 * WORLD_MS;
    beat(0, 0, 0);
    assert_in_range(world.timer_ns, 1, world.now_ns + 300 * WORLD_MS);
    world_tick(&world, 300 * WORLD_MS);
    struct snapshot snapshot = core_snapshot(world.core, world.now_ns);
    assert_int_equal(snapshot.rank[1].state, RANK_LOST);
    assert_int_equal(snapshot.rank[0].state, RANK_LOADED);
    assert_int_equal(snapshot.rank[0].heartbeat_age_ns, 300 * WORLD_MS);
    world_stop(&world);
}

/* The coordinator was stopped, not the workers: their words are still in its socket. */
static void test_own_pause_is_not_held_against_workers(void **state) {
    (void)state;
    serve(1);
    world.worker[0].stuck = true;
    struct generate_request request = long_request();
    struct world_call *call = world_call(&world, &request);
    world.now_ns += 10000 * WORLD_MS;
    world_step(&world, (struct event){.type = EVENT_TICK});
    assert_false(call->ended);
    world_tick(&world, 1000 * WORLD_MS - 1);
    assert_false(call->ended);
    world_tick(&world, 1);
    assert_int_equal(call->status, STATUS_UNAVAILABLE);
    world_stop(&world);
}

static void test_forming_times_out(void **state) {
    (void)state;
    for (uint32_t deliveries = 3; deliveries <= 4; deliveries++) { /* no key; then no joining */
        world_init(&world);
        world.options.tp = 2;
        world_start(&world);
        world_launch(&world, 1);
        world_settle(&world);
        world_launch(&world, 0);
        for (uint32_t i = 0; i < deliveries; i++)
            world_deliver(&world, 0);
        if (deliveries == 4) world_deliver(&world, 0);
        assert_int_equal(core_snapshot(world.core, world.now_ns).generation, 1);
        assert_int_equal(world.timer_ns, world.now_ns + 1000 * WORLD_MS);
        world_tick(&world, 1000 * WORLD_MS - 1);
        assert_int_equal(world.dropped_count, 0);
        world_tick(&world, 1);
        uint32_t culprit = deliveries == 3 ? 0 : 1;
        assert_int_equal(core_snapshot(world.core, world.now_ns).rank[culprit].state, RANK_LOST);
        beat(1 - culprit, 0, 0);
        world_launch(&world, culprit);
        world_recover(&world);
        assert_int_equal(core_snapshot(world.core, world.now_ns).generation, 2);
        assert_true(core_snapshot(world.core, world.now_ns).ready);
        world_stop(&world);
    }
}

/* Its peer gives up each try to form before the rank is overdue in that try alone. */
static void test_forming_again_does_not_excuse_silence(void **state) {
    (void)state;
    world_init(&world);
    world.options.tp = 2;
    world_start(&world);
    world_launch(&world, 1);
    world_settle(&world);
    world_launch(&world, 0);
    for (uint32_t i = 0; i < 5; i++)
        world_deliver(&world, 0);
    const struct worker_message fault = {
        .type = WORKER_FAULT,
        .fault = {.generation = 1, .status = STATUS_DEADLINE_EXCEEDED, .text = "late"}};
    world_tick(&world, 700 * WORLD_MS);
    beat(0, 0, 0);
    world_message(&world, 0, &fault);
    for (uint32_t i = 0; i < 5; i++) {
        world_tick(&world, 100 * WORLD_MS);
        world_deliver(&world, 0);
        beat(0, 0, 0);
    }
    assert_int_equal(core_snapshot(world.core, world.now_ns).rank[1].state, RANK_LOST);
    assert_int_equal(core_snapshot(world.core, world.now_ns).rank[0].state, RANK_LOADED);
    world_stop(&world);
}

static void test_a_rank_that_does_not_come_back(void **state) {
    (void)state;
    serve(2);
    world_kill(&world, 1);
    struct generate_request request = long_request();
    struct world_call *call = world_call(&world, &request); /* waits */
    int64_t due_ns = world.now_ns + 5000 * WORLD_MS;
    world_tick(&world, 1000 * WORLD_MS); /* asked for while the group served */
    assert_int_equal(world.timer_ns, due_ns);
    world_tick(&world, 4000 * WORLD_MS - 1);
    assert_false(world.exited);
    world_tick(&world, 1);
    assert_true(world.exited);
    assert_int_equal(world.exit_code, EXIT_CODE_GROUP_LOST);
    expect_words(world.exit_text, "rank 1 did not come back within 5000 ms");
    assert_int_equal(call->status, STATUS_UNAVAILABLE);
    assert_true(world.worker[0].shut_down);
    assert_int_equal(core_health(world.core, "", world.now_ns).health, HEALTH_NOT_SERVING);
    world_launch(&world, 1); /* too late: nobody answers any more */
    world_settle(&world);
    world_kill(&world, 0);
    world_tick(&world, 9000 * WORLD_MS);
    world_stop(&world);
}

static void test_a_rank_that_loads_again_is_not_waited_for(void **state) {
    (void)state;
    serve(2);
    world_kill(&world, 1);
    world_launch(&world, 1);
    world_deliver(&world, 1); /* hello; loading may take long */
    for (uint64_t bytes = 1; bytes <= 60; bytes++) {
        world.now_ns += 900 * WORLD_MS;
        report_load(1, bytes, 100);
        beat(0, 0, 0);
    }
    assert_false(world.exited);
    world_recover(&world);
    assert_true(core_snapshot(world.core, world.now_ns).ready);
    world_stop(&world);
}

static void test_too_many_losses(void **state) {
    (void)state;
    static const struct {
        int64_t between_ms;
        bool exits;
    } row[] = {{11899, true}, {11900, false}};
    for (size_t i = 0; i < COUNT(row); i++) {
        world_init(&world);
        world.options.step_timeout_ms = 100000;
        world_start(&world);
        world_serve(&world);
        for (uint32_t loss = 1; loss <= 6; loss++) {
            assert_false(world.exited);
            world_kill(&world, 0);
            if (loss == 6) break;
            world_launch(&world, 0);
            world_recover(&world);
            assert_true(core_snapshot(world.core, world.now_ns).ready);
            world.now_ns += row[i].between_ms * WORLD_MS;
        }
        assert_int_equal(world.exited, row[i].exits);
        if (row[i].exits) assert_int_equal(world.exit_code, EXIT_CODE_GROUP_LOST);
        if (row[i].exits) expect_words(world.exit_text, "6 losses within 60 s, the last: rank 0");
        world_stop(&world);
    }
}

static void test_time_does_not_go_back(void **state) {
    (void)state;
    serve(1);
    struct generate_request request = long_request();
    struct world_call *call = world_call(&world, &request);
    world.now_ns -= 500 * WORLD_MS;
    world_settle(&world);
    assert_int_equal(call->summary.total_ns, 0);
    world_stop(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_are_checked),
        cmocka_unit_test(test_hellos_that_are_refused),
        cmocka_unit_test(test_from_load_to_ready),
        cmocka_unit_test(test_a_rank_is_lost_at_every_point),
        cmocka_unit_test(test_lies_end_the_generation),
        cmocka_unit_test(test_a_result_without_a_step),
        cmocka_unit_test(test_old_generations_are_ignored),
        cmocka_unit_test(test_breaches),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_one_death_is_one_loss),
        cmocka_unit_test(test_late_load_progress_is_harmless),
        cmocka_unit_test(test_a_step_without_progress_times_out),
        cmocka_unit_test(test_a_load_that_stands_still_times_out),
        cmocka_unit_test(test_one_missing_result_times_out),
        cmocka_unit_test(test_silence_of_an_idle_group),
        cmocka_unit_test(test_own_pause_is_not_held_against_workers),
        cmocka_unit_test(test_forming_times_out),
        cmocka_unit_test(test_forming_again_does_not_excuse_silence),
        cmocka_unit_test(test_a_rank_that_does_not_come_back),
        cmocka_unit_test(test_a_rank_that_loads_again_is_not_waited_for),
        cmocka_unit_test(test_too_many_losses),
        cmocka_unit_test(test_time_does_not_go_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
