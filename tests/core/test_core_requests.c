/* Requests through the core, from call to end: streams, limits, stops, cancels, drain. */
#include "core_world.h"

#include <string.h>

static struct world world;

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static void fill_prompt(uint32_t *prompt, uint32_t count, uint64_t seed) {
    for (uint32_t i = 0; i < count; i++)
        prompt[i] = (uint32_t)('a' + world_random(&seed) % 26);
}

static void serve_default(void) {
    world_init(&world);
    world_start(&world);
    world_serve(&world);
}

static void test_one_request(void **state) {
    (void)state;
    serve_default();
    uint32_t prompt[5];
    fill_prompt(prompt, 5, 1);
    struct generate_request request = world_request(prompt, 5, 20);
    request.ignore_eos = true;
    struct world_call *call = world_call(&world, &request);
    world_settle(&world);
    world_expect_stream(&world, call, &request);
    assert_int_equal(call->token_count, 20);
    assert_int_equal(call->deltas, 20);
    world_expect_idle(&world);
    world_stop(&world);
}

/* Twelve requests of many shapes at once; each must get what it gets alone. */
static void run_mixed(void) {
    enum { REQUESTS = 12, PROMPT_MAX = 70 };
    uint32_t prompt[REQUESTS][PROMPT_MAX];
    struct generate_request request[REQUESTS];
    struct world_call *call[REQUESTS];
    uint64_t random = 7;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        uint32_t count = 1 + (uint32_t)(world_random(&random) % PROMPT_MAX);
        fill_prompt(prompt[i], count, i / 2); /* pairs begin alike */
        request[i] = world_request(prompt[i], count, (uint32_t)(world_random(&random) % 40));
        request[i].sampling.temperature = i % 3 == 0 ? 0 : 0.7f;
        request[i].sampling.has_seed = i % 2;
        request[i].sampling.seed = i;
        call[i] = world_call(&world, &request[i]);
        if (i % 3 == 2)
            for (uint32_t rank = 0; rank < world.options.tp; rank++)
                world_deliver(&world, rank);
    }
    world_settle(&world);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(call[i]->status, STATUS_OK);
        world_expect_stream(&world, call[i], &request[i]);
    }
    world_expect_idle(&world);
}

static void test_mixed_over_chunks_pages_and_ranks(void **state) {
    (void)state;
    static const uint32_t chunk[] = {1, 7, 64}, page_tok[] = {1, 16, 64}, tp[] = {1, 2, 8};
    for (size_t i = 0; i < COUNT(chunk) * COUNT(page_tok) * COUNT(tp); i++) {
        world_init(&world);
        world.options.chunked_prefill_size = chunk[i % 3];
        world.options.page_tok = page_tok[i / 3 % 3];
        world.options.page_count = 300 / world.options.page_tok;
        world.options.tp = tp[i / 9];
        world.options.max_queued_requests = 12;
        world_start(&world);
        world_serve(&world);
        run_mixed();
        assert_in_range(world.worker[0].rows_most, 1, 8 + world.options.chunked_prefill_size);
        world_stop(&world);
    }
}

static void test_one_step_mixes_decode_and_several_prompts(void **state) {
    (void)state;
    world_init(&world);
    world.options.chunked_prefill_size = 10;
    world_start(&world);
    world_serve(&world);
    uint32_t prompt[3][24];
    for (uint32_t i = 0; i < 3; i++)
        fill_prompt(prompt[i], 24, 3 + i); /* nothing to share */
    struct generate_request first = world_request(prompt[0], 2, 30);
    first.ignore_eos = true;
    world_call(&world, &first);
    struct generate_request others[] = {world_request(prompt[1], 4, 1),
                                        world_request(prompt[2], 24, 1)};
    struct world_call *call[] = {world_call(&world, &others[0]), world_call(&world, &others[1])};
    world_deliver(&world, 0); /* the first request's prompt; the next plan has all three */
    assert_int_equal(world.worker[0].rows_most, 11);
    world_settle(&world);
    world_expect_stream(&world, call[0], &others[0]);
    world_expect_stream(&world, call[1], &others[1]);
    world_stop(&world);
}

/* Scripts say what is drawn; the table says what the client sees. */
static void test_stops(void **state) {
    (void)state;
    enum { MAX = 8 };
    static const struct {
        const char *name;
        uint32_t script[MAX];
        uint32_t script_count;
        uint32_t max_tokens;
        const char *stop[3];
        uint32_t stop_token;
        bool include_stop, ignore_eos, keep_special, in_reasoning;
        const char *content, *reasoning, *tool;
        uint32_t token_count;
        enum finish_reason finish;
    } row[] = {
        {"the model's stop token",
         {'a', WORLD_EOS},
         2,
         8,
         .content = "a",
         .token_count = 2,
         .finish = FINISH_STOP},
        {"ignored",
         {'a', WORLD_EOS, 'b'},
         3,
         3,
         .ignore_eos = true,
         .content = "ab",
         .token_count = 3,
         .finish = FINISH_LENGTH},
        {"the request's stop token",
         {'a', 'b', 'c'},
         3,
         8,
         .stop_token = 'b',
         .content = "a",
         .token_count = 2,
         .finish = FINISH_STOP},
        {"ignored likewise",
         {'a', 'b', 'c'},
         3,
         3,
         .stop_token = 'b',
         .ignore_eos = true,
         .content = "abc",
         .token_count = 3,
         .finish = FINISH_LENGTH},
        {"stop string in one token",
         {'a', WORLD_STOP_WORD},
         2,
         8,
         {"END"},
         .content = "a",
         .token_count = 2,
         .finish = FINISH_STOP},
        {"stop string over tokens",
         {'x', 'E', 'N', 'D', 'y'},
         5,
         8,
         {"END"},
         .content = "x",
         .token_count = 4,
         .finish = FINISH_STOP},
        {"included",
         {'x', 'E', 'N', 'D', 'y'},
         5,
         8,
         {"END"},
         .include_stop = true,
         .content = "xEND",
         .token_count = 4,
         .finish = FINISH_STOP},
        {"stop string within a token",
         {WORLD_THE, 'q'},
         2,
         8,
         {"he"},
         .content = "t",
         .token_count = 1,
         .finish = FINISH_STOP},
        {"held text comes out at the limit",
         {'a', 'E', 'N'},
         3,
         3,
         {"END"},
         .content = "aEN",
         .token_count = 3,
         .finish = FINISH_LENGTH},
        {"held text comes out at a stop token",
         {'E', 'N', WORLD_EOS},
         3,
         8,
         {"END"},
         .content = "EN",
         .token_count = 3,
         .finish = FINISH_STOP},
        {"the stop string is complete at the limit",
         {'E', 'N', 'D'},
         3,
         3,
         {"END"},
         .content = "",
         .token_count = 3,
         .finish = FINISH_STOP},
        {"the one that ends first",
         {'a', 'b', 'c'},
         3,
         8,
         {"abc", "b"},
         .content = "a",
         .token_count = 2,
         .finish = FINISH_STOP},
        {"max_tokens 1", {'a'}, 1, 1, .content = "a", .token_count = 1, .finish = FINISH_LENGTH},
        {"half a character waits",
         {0xC3, 0xA9, 'z'},
         3,
         3,
         .content = "\xC3\xA9z",
         .token_count = 3,
         .finish = FINISH_LENGTH},
        {"half a character at the end",
         {'a', 0xC3},
         2,
         2,
         .content = "a\xEF\xBF\xBD",
         .token_count = 2,
         .finish = FINISH_LENGTH},
        {"channels",
         {'r', WORLD_THINK_END, 'a', WORLD_TOOLS, 't', WORLD_TOOLS_END, 'b', WORLD_EOS},
         8,
         8,
         .in_reasoning = true,
         .content = "ab",
         .reasoning = "r",
         .tool = "t",
         .token_count = 8,
         .finish = FINISH_STOP},
        {"a channel's end lets out what is held",
         {'E', 'N', WORLD_THINK_END, 'D', WORLD_EOS},
         5,
         8,
         {"END"},
         .in_reasoning = true,
         .content = "D",
         .reasoning = "EN",
         .token_count = 5,
         .finish = FINISH_STOP},
        {"hidden tokens",
         {'a', WORLD_HIDDEN, 'b', WORLD_EOS},
         4,
         8,
         .content = "ab",
         .token_count = 4,
         .finish = FINISH_STOP},
        {"kept",
         {'a', WORLD_HIDDEN, WORLD_THINK, 'b', WORLD_EOS},
         5,
         8,
         .keep_special = true,
         .content = "a<|hidden|>",
         .reasoning = "<think>b",
         .token_count = 5,
         .finish = FINISH_STOP},
    };
    for (size_t i = 0; i < COUNT(row); i++) {
        serve_default();
        fake_script[3] = (struct fake_script){row[i].script, row[i].script_count};
        uint32_t prompt[] = {'p', row[i].in_reasoning ? WORLD_THINK : 'q'};
        struct generate_request request = world_request(prompt, 2, row[i].max_tokens);
        request.sampling.has_seed = true;
        request.sampling.seed = FAKE_SCRIPT_SEED + 3;
        request.stop = row[i].stop;
        while (row[i].stop[request.stop_count])
            request.stop_count++;
        request.stop_token = &row[i].stop_token;
        request.stop_token_count = row[i].stop_token != 0;
        request.include_stop = row[i].include_stop;
        request.ignore_eos = row[i].ignore_eos;
        request.keep_special = row[i].keep_special;
        struct world_call *call = world_call(&world, &request);
        world_settle(&world);
        if (call->token_count != row[i].token_count)
            fail_msg("%s: %u tokens", row[i].name, call->token_count);
        assert_memory_equal(call->token, row[i].script, call->token_count * sizeof(uint32_t));
        world_expect_text(call, CHANNEL_CONTENT, row[i].content);
        world_expect_text(call, CHANNEL_REASONING, row[i].reasoning ? row[i].reasoning : "");
        world_expect_text(call, CHANNEL_TOOL, row[i].tool ? row[i].tool : "");
        assert_int_equal(call->status, STATUS_OK);
        assert_int_equal(call->summary.finish_reason, row[i].finish);
        world_expect_idle(&world);
        world_stop(&world);
    }
}

static void test_seeds(void **state) {
    (void)state;
    serve_default();
    uint32_t prompt[] = {'a', 'b', 'c'};
    struct generate_request request = world_request(prompt, 3, 12);
    request.ignore_eos = true;
    request.sampling.temperature = 1;
    request.sampling.has_seed = true;
    request.sampling.seed = 42;
    struct world_call *first = world_call(&world, &request);
    struct world_call *again = world_call(&world, &request);
    request.sampling.has_seed = false; /* then the event's random number is the seed */
    request.sampling.seed = 42;
    struct world_call *drawn = world_call(&world, &request);
    world_settle(&world);
    assert_memory_equal(first->token, again->token, 12 * sizeof(uint32_t));
    assert_memory_not_equal(first->token, drawn->token, 12 * sizeof(uint32_t));
    assert_int_equal(first->summary.seed, 42);
    assert_int_equal(drawn->summary.seed, 1234 + drawn->id.slot);
    world_expect_stream(&world, drawn, &request);
    world_stop(&world);
}

static void test_logprobs_pass_through(void **state) {
    (void)state;
    serve_default();
    uint32_t prompt[] = {'a', 'b', 'c'};
    static const uint32_t top[] = {0, 2, TOP_LOGPROBS_MAX};
    struct world_call *call[4];
    struct generate_request request = world_request(prompt, 3, 6);
    request.ignore_eos = true;
    for (uint32_t i = 0; i < 3; i++) {
        request.logprobs = true;
        request.top_logprobs = top[i];
        prompt[0] = 'a' + i;
        call[i] = world_call(&world, &request);
    }
    request.logprobs = false; /* alternatives without logprobs are none */
    call[3] = world_call(&world, &request);
    world_settle(&world);
    assert_int_equal(call[3]->logprob_count, 0);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(call[i]->logprob_count, 6 * (1 + top[i]));
        for (uint32_t j = 0; j < call[i]->logprob_count; j++) {
            struct token_logprob expected = fake_logprob(call[i]->token[j / (1 + top[i])],
                                                         j % (1 + top[i]));
            assert_int_equal(call[i]->logprob[j].token, expected.token);
            assert_true(call[i]->logprob[j].logprob == expected.logprob);
        }
    }
    world_stop(&world);
}

static void test_context_end(void **state) {
    (void)state;
    serve_default();
    uint32_t prompt[95];
    fill_prompt(prompt, 95, 9);
    static const struct {
        uint32_t prompt_count, max_tokens, drawn;
    } row[] = {{90, 0, 6}, {90, 100, 6}, {90, UINT32_MAX, 6}, {95, 0, 1}, {95, 1, 1}, {90, 5, 5}};
    for (size_t i = 0; i < COUNT(row); i++) {
        struct generate_request request = world_request(prompt, row[i].prompt_count,
                                                        row[i].max_tokens);
        request.ignore_eos = true;
        struct world_call *call = world_call(&world, &request);
        world_settle(&world);
        assert_int_equal(call->token_count, row[i].drawn);
        world_expect_stream(&world, call, &request);
    }
    world_stop(&world);
}

static void test_refusals_say_found_and_accepted(void **state) {
    (void)state;
    world_init(&world);
    world.options.page_count = 10; /* 40 tokens for a context of 96 */
    world.options.allow_short_pool = true;
    world_start(&world);
    world_serve(&world);
    uint32_t prompt[200];
    fill_prompt(prompt, 200, 2);
    uint32_t alien[] = {'a', WORLD_VOCAB};
    static const char *const empty_stop[] = {""};
    struct generate_request bad_stop = world_request(prompt, 2, 1);
    bad_stop.stop = empty_stop;
    bad_stop.stop_count = 1;
    static const struct logit_bias alien_bias[] = {{'a', 1}, {WORLD_VOCAB, -1}};
    struct generate_request bad_bias = world_request(prompt, 2, 1);
    bad_bias.sampling.logit_bias = alien_bias;
    bad_bias.sampling.logit_bias_count = 2;
    const struct {
        struct generate_request request;
        enum status status;
        const char *words[3];
    } row[] = {
        {world_request(prompt, 0, 1), STATUS_INVALID_ARGUMENT, {"empty"}},
        {world_request(alien, 2, 1), STATUS_INVALID_ARGUMENT, {"token 1 is 515", "below 515"}},
        {world_request(prompt, 96, 1), STATUS_OUT_OF_RANGE, {"96", "--context-length"}},
        {world_request(prompt, 200, 0), STATUS_OUT_OF_RANGE, {"200", "96", "--context-length"}},
        {world_request(prompt, 40, 0), STATUS_OUT_OF_RANGE, {"41", "40", "--max-total-tokens"}},
        {world_request(prompt, 30, 11), STATUS_OUT_OF_RANGE, {"41", "40", "--max-total-tokens"}},
        {bad_stop, STATUS_INVALID_ARGUMENT, {"stop[0]"}},
        {bad_bias, STATUS_INVALID_ARGUMENT, {"logit_bias", "token 515", "below 515"}},
    };
    for (size_t i = 0; i < COUNT(row); i++) {
        struct world_call *call = world_call(&world, &row[i].request);
        assert_true(call->ended);
        assert_int_equal(call->status, row[i].status);
        assert_false(call->has_summary);
        for (size_t j = 0; j < 3 && row[i].words[j]; j++)
            if (!strstr(call->status_text, row[i].words[j]))
                fail_msg("'%s' lacks '%s'", call->status_text, row[i].words[j]);
    }
    struct generate_request fits = world_request(prompt, 30, 10),
                            most = world_request(prompt, 30, 0);
    fits.ignore_eos = most.ignore_eos = true;
    struct world_call *call = world_call(&world, &fits), *longest = world_call(&world, &most);
    world_settle(&world);
    world_expect_stream(&world, call, &fits);
    world_expect_stream(&world, longest, &most);
    assert_int_equal(longest->token_count, 10);
    world_expect_idle(&world);
    world_stop(&world);
}

static void test_queue_is_bounded(void **state) {
    (void)state;
    world_init(&world);
    world.options.max_running_requests = 2;
    world.options.max_queued_requests = 3;
    world_start(&world);
    world_serve(&world);
    uint32_t prompt[] = {'a', 'b'};
    struct generate_request request = world_request(prompt, 2, 5);
    struct generate_request text = {.prompt_kind = PROMPT_TEXT, .prompt_text = bytes_of_text("ab")};
    struct world_call *call[8];
    for (uint32_t i = 0; i < 8; i++) /* two run; one of those that wait is being tokenized */
        call[i] = world_call(&world, i == 3 ? &text : &request);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(call[i]->ended, i >= 5);
    assert_int_equal(call[5]->status, STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(call[5]->status_text, "--max-queued-requests"));
    world_cancel(&world, call[4], STATUS_CANCELLED);
    struct world_call *late = world_call(&world, &request);
    assert_false(late->ended);
    world_job_done(&world, call[3], prompt, 2, false);
    world_settle(&world);
    world_expect_stream(&world, late, &request);
    assert_int_equal(call[3]->status, STATUS_OK);
    world_expect_idle(&world);
    world_stop(&world);
}

static void test_waiting_prompts_are_bounded_in_tokens(void **state) {
    (void)state;
    world_init(&world);
    world.options.context_len = 16384;
    world.options.page_tok = 64;
    world.options.page_count = 256;
    world_start(&world); /* nobody serves: all wait. 8 x 4096 + 4 x 16384 tokens in blocks of 512 */
    static uint32_t prompt[16000];
    fill_prompt(prompt, 16000, 4);
    struct generate_request request = world_request(prompt, 16000, 1);
    struct world_call *call[7];
    for (uint32_t i = 0; i < 7; i++)
        call[i] = world_call(&world, &request);
    for (uint32_t i = 0; i < 7; i++)
        assert_int_equal(call[i]->ended, i == 6);
    assert_int_equal(call[6]->status, STATUS_RESOURCE_EXHAUSTED);
    world_cancel(&world, call[2], STATUS_CANCELLED);
    assert_false(world_call(&world, &request)->ended);
    core_destroy(&world.core);
}

static void test_the_head_of_the_line_waits_for_pages(void **state) {
    (void)state;
    world_init(&world);
    world.options.page_count = 24; /* 96 tokens */
    world_start(&world);
    world_serve(&world);
    uint32_t prompt[3][40];
    for (uint32_t i = 0; i < 3; i++)
        fill_prompt(prompt[i], 40, 5 + i);
    struct generate_request request[] = {world_request(prompt[0], 40, 20),
                                         world_request(prompt[1], 30, 20),
                                         world_request(prompt[2], 2, 2)};
    struct world_call *call[3];
    for (uint32_t i = 0; i < 3; i++) {
        request[i].ignore_eos = true;
        call[i] = world_call(&world, &request[i]);
    }
    struct snapshot snapshot = core_snapshot(world.core, world.now_ns);
    assert_int_equal(snapshot.requests_running, 1); /* the third would fit, and is not let past */
    assert_int_equal(snapshot.requests_waiting, 2);
    assert_int_equal(snapshot.pages_promised, 15);
    assert_int_equal(snapshot.pages_free, 24 - 4); /* of the first chunk; more when rows need it */
    while (!call[0]->ended)
        assert_true(world_deliver(&world, 0));
    assert_int_equal(call[2]->token_count, 0);
    world_settle(&world);
    for (uint32_t i = 0; i < 3; i++)
        world_expect_stream(&world, call[i], &request[i]);
    world_expect_idle(&world);
    world_stop(&world);
}

/* Where in its life a call is cancelled. */
static void test_cancel_in_every_state(void **state) {
    (void)state;
    enum { QUEUED, WAITING, PREFILL_IDLE, PREFILL_IN_STEP, DECODE_IN_STEP, WHERE_COUNT };
    for (uint32_t where = 0; where < WHERE_COUNT; where++) {
        world_init(&world);
        world.options.chunked_prefill_size = 4;
        world.options.max_running_requests = 2;
        world_start(&world);
        if (where != WAITING) world_serve(&world);
        uint32_t prompt[20];
        fill_prompt(prompt, 20, where);
        struct generate_request other = world_request(prompt, 20, 10);
        struct generate_request request = world_request(prompt, 11, 10);
        request.ignore_eos = other.ignore_eos = true;
        struct generate_request text = request;
        text.prompt_kind = PROMPT_TEXT;
        text.prompt_text = bytes_of_text("text");
        struct world_call *first = NULL;
        if (where == PREFILL_IDLE) first = world_call(&world, &other); /* takes every chunk */
        struct world_call *call = world_call(&world, where == QUEUED ? &text : &request);
        if (where == DECODE_IN_STEP)
            while (call->token_count < 3)
                assert_true(world_deliver(&world, 0));
        uint32_t drawn = call->token_count;
        world_cancel(&world, call, where % 2 ? STATUS_DEADLINE_EXCEEDED : STATUS_CANCELLED);
        assert_true(call->ended);
        assert_int_equal(call->status, where % 2 ? STATUS_DEADLINE_EXCEEDED : STATUS_CANCELLED);
        assert_int_equal(call->has_summary, where != QUEUED);
        if (call->has_summary) {
            assert_int_equal(call->summary.finish_reason, FINISH_CANCELLED);
            assert_int_equal(call->summary.completion_tokens, drawn);
        }
        bool in_step = where == PREFILL_IN_STEP || where == DECODE_IN_STEP;
        struct snapshot snapshot = core_snapshot(world.core, world.now_ns);
        uint32_t running = in_step || first ? 1 : 0; /* pages of a step in flight stay until then */
        assert_int_equal(snapshot.requests_running, running);
        world_cancel(&world, call, STATUS_CANCELLED); /* crossed with the end: nothing happens */
        if (where == QUEUED) world_job_done(&world, call, prompt, 3, false);
        if (where == WAITING) world_serve(&world);
        struct world_call *after = world_call(&world,
                                              &request); /* the slot and pages serve again */
        world_settle(&world);
        world_expect_stream(&world, after, &request);
        if (first) world_expect_stream(&world, first, &other);
        world_expect_idle(&world);
        world_stop(&world);
    }
}

static void test_tokenize_job(void **state) {
    (void)state;
    serve_default();
    struct generate_request chat = {
        .prompt_kind = PROMPT_CHAT,
        .prompt_text = bytes_of_text("{}"),
        .max_tokens = 4,
        .sampling = {.top_p = 1, .has_seed = true, .seed = FAKE_SCRIPT_SEED},
    };
    fake_script[0] = (struct fake_script){(const uint32_t[]){'x'}, 1};
    struct world_call *call = world_call(&world, &chat);
    assert_true(call->job_pending);
    assert_int_equal(call->job_kind, PROMPT_CHAT);
    world_job_done(&world, call, (const uint32_t[]){'h', 'i'}, 2, true);
    world_settle(&world);
    world_expect_text(call, CHANNEL_REASONING, "xxxx"); /* the prompt left <think> open */
    assert_int_equal(call->summary.prompt_tokens, 2);

    call = world_call(&world, &chat);
    struct event event = {.type = EVENT_JOB_DONE};
    event.job_done.job = call->job;
    event.job_done.status = STATUS_INVALID_ARGUMENT;
    event.job_done.text = "messages[0].role: found 'x'";
    world_step(&world, event);
    assert_int_equal(call->status, STATUS_INVALID_ARGUMENT);
    assert_string_equal(call->status_text, "messages[0].role: found 'x'");
    world_step(&world, event); /* a second answer has nobody to go to */

    call = world_call(&world, &chat);
    world_job_done(&world, call, NULL, 0, false);
    assert_int_equal(call->status, STATUS_INVALID_ARGUMENT);
    world_expect_idle(&world);
    world_stop(&world);
}

static void test_summary_times(void **state) {
    (void)state;
    serve_default();
    uint32_t prompt[] = {'a', 'b'};
    struct generate_request request = world_request(prompt, 2, 3);
    request.ignore_eos = true;
    world_call(&world, &request);
    struct world_call *call = world_call(&world, &request); /* waits for the step in flight */
    static const uint32_t step_ms[] = {5, 7, 11, 13};
    for (size_t i = 0; i < COUNT(step_ms); i++) {
        world.now_ns += step_ms[i] * WORLD_MS;
        world_deliver(&world, 0);
    }
    assert_true(call->ended);
    assert_int_equal(call->summary.queue_ns, 5 * WORLD_MS);
    assert_int_equal(call->summary.first_token_ns, 12 * WORLD_MS);
    assert_int_equal(call->summary.total_ns, 36 * WORLD_MS);
    struct snapshot snapshot = core_snapshot(world.core, world.now_ns + 3);
    assert_int_equal(snapshot.steps, 4);
    assert_int_equal(snapshot.step_ns_last, 13 * WORLD_MS);
    assert_int_equal(snapshot.step_ns, 36 * WORLD_MS);
    assert_int_equal(snapshot.tokens_prompt, 4);
    assert_int_equal(snapshot.tokens_generated, 6);
    assert_int_equal(snapshot.requests_finished, 2);
    assert_int_equal(snapshot.uptime_ns, 36 * WORLD_MS + 3);
    world_stop(&world);
}

static void test_drain_lets_finish(void **state) {
    (void)state;
    world_init(&world);
    world.options.max_running_requests = 1;
    world_start(&world);
    world_serve(&world);
    uint32_t prompt[] = {'a', 'b'};
    struct generate_request request = world_request(prompt, 2, 5);
    struct world_call *runs = world_call(&world, &request), *waits = world_call(&world, &request);
    world_drain(&world, world.now_ns + 500 * WORLD_MS);
    assert_int_equal(core_health(world.core, "", world.now_ns).health, HEALTH_NOT_SERVING);
    struct world_call *late = world_call(&world, &request);
    assert_int_equal(late->status, STATUS_UNAVAILABLE);
    assert_false(world.exited);
    world_settle(&world);
    world_expect_stream(&world, runs, &request);
    world_expect_stream(&world, waits, &request);
    assert_int_equal(waits->status, STATUS_OK);
    assert_true(world.exited && world.exit_code == EXIT_CODE_OK);
    assert_true(world.worker[0].shut_down);
    world_expect_idle(&world);
    late = world_call(&world, &request); /* between the exit and its doing */
    assert_int_equal(late->status, STATUS_UNAVAILABLE);
    world_tick(&world, 1000 * WORLD_MS);
    world_stop(&world);
}

static void test_drain_cuts_at_its_deadline(void **state) {
    (void)state;
    world_init(&world);
    world.options.max_running_requests = 1;
    world_start(&world);
    world_serve(&world);
    uint32_t prompt[] = {'a', 'b'};
    struct generate_request request = world_request(prompt, 2, 50);
    struct generate_request text = {.prompt_kind = PROMPT_TEXT, .prompt_text = bytes_of_text("x")};
    struct world_call *call[] = {world_call(&world, &request), world_call(&world, &request),
                                 world_call(&world, &text)};
    int64_t deadline_ns = world.now_ns + 500 * WORLD_MS;
    world_drain(&world, deadline_ns);
    assert_int_equal(world.timer_ns, deadline_ns);
    world_drain(&world, deadline_ns + 5); /* a later one does not put it off */
    world_tick(&world, 500 * WORLD_MS - 1);
    assert_false(world.exited);
    world_tick(&world, 1);
    assert_true(world.exited && world.exit_code == EXIT_CODE_OK);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(call[i]->status, STATUS_UNAVAILABLE);
    world_expect_idle(&world);
    world_stop(&world);
}

static void test_drain_of_an_idle_core(void **state) {
    (void)state;
    world_init(&world);
    world_start(&world); /* not even a worker */
    world_drain(&world, INT64_MAX);
    assert_true(world.exited && world.exit_code == EXIT_CODE_OK);
    world_stop(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_request),
        cmocka_unit_test(test_mixed_over_chunks_pages_and_ranks),
        cmocka_unit_test(test_one_step_mixes_decode_and_several_prompts),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_logprobs_pass_through),
        cmocka_unit_test(test_context_end),
        cmocka_unit_test(test_refusals_say_found_and_accepted),
        cmocka_unit_test(test_queue_is_bounded),
        cmocka_unit_test(test_waiting_prompts_are_bounded_in_tokens),
        cmocka_unit_test(test_the_head_of_the_line_waits_for_pages),
        cmocka_unit_test(test_cancel_in_every_state),
        cmocka_unit_test(test_tokenize_job),
        cmocka_unit_test(test_summary_times),
        cmocka_unit_test(test_drain_lets_finish),
        cmocka_unit_test(test_drain_cuts_at_its_deadline),
        cmocka_unit_test(test_drain_of_an_idle_core),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
