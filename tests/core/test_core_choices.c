/* Several choices to one prompt: each is what it is alone, and the prompt is computed once. */
#include "core_world.h"

#include <string.h>

static struct world world;

static void fill_prompt(uint32_t *prompt, uint32_t count, uint64_t seed) {
    for (uint32_t i = 0; i < count; i++)
        prompt[i] = (uint32_t)('a' + world_random(&seed) % 26);
}

/* It draws, and goes on to its limit whatever is drawn. */
static struct generate_request many(const uint32_t *prompt, uint32_t count, uint32_t choices,
                                    uint32_t max_tokens) {
    struct generate_request request = world_request(prompt, count, max_tokens);
    request.choice_count = choices;
    request.ignore_eos = true;
    request.sampling.temperature = 0.7f;
    request.sampling.has_seed = true;
    request.sampling.seed = 5;
    return request;
}

/* A choice's tokens are those that its index draws from the prompt and the rest of its own. */
static void expect_choice(const struct world_call *call, const struct generate_request *request,
                          uint32_t idx) {
    uint32_t all[WORLD_TOKENS], count = request->prompt_token_count;
    uint64_t seed = fake_seed(request->sampling.seed, idx);
    memcpy(all, request->prompt_token, count * sizeof *all);
    for (uint32_t i = 0; i < call->choice[idx].token_count; i++) {
        all[count] = fake_draw(all, count, request->sampling.temperature, seed);
        assert_int_equal(call->choice[idx].token[i], all[count]);
        count++;
    }
}

static void expect_whole(const struct world_call *call, const struct generate_request *request) {
    assert_int_equal(call->status, STATUS_OK);
    assert_int_equal(call->summary.choice_count, request->choice_count);
    assert_int_equal(call->summary.completion_tokens, request->choice_count * request->max_tokens);
    for (uint32_t i = 0; i < request->choice_count; i++) {
        expect_choice(call, request, i);
        assert_int_equal(call->choice[i].token_count, request->max_tokens);
        assert_int_equal(call->choice[i].finish, FINISH_LENGTH);
        assert_int_equal(call->summary.choice[i].finish_reason, FINISH_LENGTH);
        assert_int_equal(call->summary.choice[i].completion_tokens, request->max_tokens);
    }
}

/* The prompt's tokens once, and the last of them for each further choice: the next is drawn there.
 */
static void test_the_prompt_is_computed_once(void **state) {
    (void)state;
    for (uint32_t round = 0; round < 4; round++)
        for (uint32_t prompt_tok = 1; prompt_tok <= 13; prompt_tok++) {
            world_init(&world);
            world.options.tp = 2;
            world.options.disable_prefix_cache = round & 1;
            world.options.overlap_steps = round & 2;
            world.options.chunked_prefill_size = 5;
            world_start(&world);
            world_serve(&world);
            uint32_t prompt[13];
            fill_prompt(prompt, prompt_tok, prompt_tok);
            struct generate_request request = many(prompt, prompt_tok, 4, 9);
            struct world_call *call = world_call(&world, &request);
            world_settle(&world);
            expect_whole(call, &request);
            assert_int_equal(call->summary.choice[0].cached_tokens, 0);
            for (uint32_t i = 1; i < 4; i++)
                assert_int_equal(call->summary.choice[i].cached_tokens, prompt_tok - 1);
            struct snapshot snapshot = core_snapshot(world.core, world.now_ns);
            assert_int_equal(snapshot.tokens_prompt, prompt_tok + 3);
            assert_int_equal(snapshot.requests_finished, 1);
            world_expect_idle(&world);
            world_stop(&world);
        }
}

static void test_one_choice_says_nothing_of_choices(void **state) {
    (void)state;
    world_init(&world);
    world_start(&world);
    world_serve(&world);
    uint32_t prompt[6];
    fill_prompt(prompt, 6, 1);
    struct generate_request request = many(prompt, 6, 1, 7);
    struct world_call *one = world_call(&world, &request);
    request.choice_count = 0;
    struct world_call *none = world_call(&world, &request);
    request.choice_count = 3;
    struct world_call *three = world_call(&world, &request);
    world_settle(&world);
    assert_int_equal(one->summary.choice_count + none->summary.choice_count, 0);
    assert_int_equal(one->choice[0].finish, FINISH_NONE);
    assert_memory_equal(one->token, none->token, 7 * sizeof(uint32_t));
    assert_memory_equal(one->token, three->choice[0].token, 7 * sizeof(uint32_t));
    assert_memory_not_equal(one->token, three->choice[1].token, 7 * sizeof(uint32_t));
    world_stop(&world);
}

/* A choice that ends leaves the others alone, and its slot to whoever waits. */
static void test_a_choice_ends_by_itself(void **state) {
    (void)state;
    world_init(&world);
    world.options.max_running_requests = 3;
    world_start(&world);
    world_serve(&world);
    uint32_t prompt[7];
    fill_prompt(prompt, 7, 3);
    world.next_key = "key";
    struct generate_request request = many(prompt, 7, 3, 40);
    request.ignore_eos = false; /* so each ends where it draws the model's stop token */
    struct world_call *call = world_call(&world, &request);
    struct world_call *twin = world_call(&world, &request);
    world.next_key = NULL;
    assert_int_equal(twin->status, STATUS_ALREADY_EXISTS);
    uint32_t ended = 0;
    while (ended == 0) {
        assert_true(world_deliver(&world, 0));
        for (uint32_t i = 0; i < 3; i++)
            ended += call->choice[i].finish != FINISH_NONE;
    }
    assert_in_range(ended, 1, 2);
    assert_false(call->ended);
    struct snapshot snapshot = core_snapshot(world.core, world.now_ns);
    assert_int_equal(snapshot.requests_running, 3 - ended);
    world.next_key = "key"; /* it is the call's until its last choice has ended */
    assert_int_equal(world_call(&world, &request)->status, STATUS_ALREADY_EXISTS);
    world.next_key = NULL;
    struct generate_request small = many(prompt, 3, 1, 4);
    struct world_call *other = world_call(&world, &small);
    while (other->token_count == 0)
        assert_true(world_deliver(&world, 0));
    world_settle(&world);
    assert_int_equal(call->status, STATUS_OK);
    for (uint32_t i = 0; i < 3; i++) {
        expect_choice(call, &request, i);
        assert_int_equal(call->summary.choice[i].finish_reason, call->choice[i].finish);
    }
    world_expect_idle(&world);
    world_stop(&world);
}

/* A call waits until there are slots for all of its choices; then nobody takes them from it. */
static void test_a_call_is_let_in_whole(void **state) {
    (void)state;
    world_init(&world);
    world.options.max_running_requests = 4;
    world.options.chunked_prefill_size = 4;
    world_start(&world);
    world_serve(&world);
    uint32_t prompt[20];
    fill_prompt(prompt, 20, 9);
    struct generate_request first = many(prompt, 20, 3, 6), second = many(prompt + 5, 9, 2, 6);
    struct generate_request third = many(prompt + 2, 5, 1, 6);
    struct world_call *call[] = {world_call(&world, &first), world_call(&world, &second),
                                 world_call(&world, &third)};
    assert_int_equal(core_snapshot(world.core, world.now_ns).requests_running, 1);
    assert_int_equal(core_snapshot(world.core, world.now_ns).requests_waiting, 2);
    while (call[0]->token_count == 0)
        assert_true(world_deliver(&world, 0));
    assert_int_equal(core_snapshot(world.core, world.now_ns).requests_running, 3);
    assert_int_equal(call[1]->token_count + call[2]->token_count, 0);
    world_settle(&world);
    expect_whole(call[0], &first);
    expect_whole(call[1], &second);
    assert_int_equal(call[2]->status, STATUS_OK);
    world_stop(&world);
}

static void test_more_choices_than_sequences_never_fit(void **state) {
    (void)state;
    world_init(&world);
    world.options.max_running_requests = 2;
    world_start(&world);
    uint32_t prompt[] = {'a', 'b'};
    struct generate_request request = many(prompt, 2, 3, 4);
    struct world_call *call = world_call(&world, &request);
    assert_int_equal(call->status, STATUS_OUT_OF_RANGE);
    assert_string_equal(call->status_text,
                        "the call wants 3 choices; the group runs 2 sequences at once "
                        "(--max-running-requests): it can never fit");
    world_stop(&world);
}

/* Pages of 4, a prompt of 10: two pages are shared, the third is copied. */
static void test_a_cancel_ends_all(void **state) {
    (void)state;
    for (uint32_t after = 0; after < 8; after++) {
        world_init(&world);
        world.options.chunked_prefill_size = 4;
        world.options.overlap_steps = after % 2;
        world_start(&world);
        world_serve(&world);
        uint32_t prompt[10];
        fill_prompt(prompt, 10, after);
        struct generate_request request = many(prompt, 10, 3, 30);
        struct world_call *call = world_call(&world, &request);
        for (uint32_t i = 0; i < after; i++)
            assert_true(world_deliver(&world, 0));
        uint32_t drawn = call->token_count, held = 0;
        world_cancel(&world, call, STATUS_CANCELLED);
        assert_int_equal(call->status, STATUS_CANCELLED);
        assert_int_equal(call->summary.choice_count, 3);
        assert_int_equal(call->summary.completion_tokens, drawn);
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(call->summary.choice[i].finish_reason, FINISH_CANCELLED);
            held += call->summary.choice[i].freed_tokens;
        }
        assert_int_equal(call->summary.freed_tokens, held);
        if (after == 7) { /* what they share is given back once: 8 tokens, then 2 and the replies */
            uint32_t replies = 0;
            for (uint32_t i = 0; i < 3; i++)
                replies += call->choice[i].token_count - 1;
            assert_int_equal(held, 8 + 3 * 2 + replies);
        }
        world_settle(&world);
        world_expect_idle(&world);
        world_stop(&world);
    }
}

/* One choice waits, retracted, when the group is lost: the call is lost with those that ran. */
static void test_a_lost_group_ends_retracted_choices_too(void **state) {
    (void)state;
    world_init(&world);
    world.options.page_count = 24;
    world_start(&world);
    world_serve(&world);
    uint32_t prompt[10];
    fill_prompt(prompt, 10, 2);
    struct generate_request request = many(prompt, 10, 4, 60);
    struct generate_request tiny = many(prompt, 2, 1, 1);
    for (uint32_t i = 0; i < 8; i++) /* short replies: more is let in than fits */
        world_call(&world, &tiny);
    world_settle(&world);
    struct world_call *call = world_call(&world, &request);
    while (core_snapshot(world.core, world.now_ns).retractions == 0)
        assert_true(world_deliver(&world, 0));
    world_kill(&world, 0);
    assert_int_equal(call->status, STATUS_UNAVAILABLE);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(call->summary.choice[i].finish_reason, FINISH_ERROR);
    world_expect_idle(&world);
    world_stop(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_prompt_is_computed_once),
        cmocka_unit_test(test_one_choice_says_nothing_of_choices),
        cmocka_unit_test(test_a_choice_ends_by_itself),
        cmocka_unit_test(test_a_call_is_let_in_whole),
        cmocka_unit_test(test_more_choices_than_sequences_never_fit),
        cmocka_unit_test(test_a_cancel_ends_all),
        cmocka_unit_test(test_a_lost_group_ends_retracted_choices_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
