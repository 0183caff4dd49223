/* What the core learns: how long replies get, what a step costs. And who waits, in order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "cost_model.h"
#include "id_index.h"
#include "output_estimate.h"
#include "wait_queue.h"

static void test_replies_start_at_the_most(void **state) {
    (void)state;
    struct output_estimate estimate = {.seen = 0};
    for (uint32_t i = 0; i < 7; i++) {
        output_estimate_take(&estimate, 10);
        assert_int_equal(output_estimate_of(&estimate, 1, 500), 500);
    }
    output_estimate_take(&estimate, 10);
    assert_in_range(output_estimate_of(&estimate, 1, 500), 10, 30);
    assert_int_equal(output_estimate_of(&estimate, 100, 500), 100); /* longer already */
    assert_int_equal(output_estimate_of(&estimate, 1, 5), 5);
}

static void test_replies_follow_what_is_seen(void **state) {
    (void)state;
    struct output_estimate estimate = {.seen = 0};
    for (uint32_t i = 0; i < 200; i++)
        output_estimate_take(&estimate, 100);
    assert_in_range(output_estimate_of(&estimate, 1, 10000), 99, 104);
    for (uint32_t i = 0; i < 200; i++)
        output_estimate_take(&estimate, i % 2 ? 50 : 150); /* as long on average, less certain */
    assert_in_range(output_estimate_of(&estimate, 1, 10000), 250, 350);
    for (uint32_t i = 0; i < 200; i++)
        output_estimate_take(&estimate, 0);
    assert_in_range(output_estimate_of(&estimate, 0, 10000), 0, 12);
    output_estimate_take(&estimate, UINT32_MAX);
    assert_int_equal(output_estimate_of(&estimate, 1, 10000), 10000);
}

static void test_a_shortage_raises_and_fades(void **state) {
    (void)state;
    struct output_estimate estimate = {.seen = 0};
    for (uint32_t i = 0; i < 100; i++)
        output_estimate_take(&estimate, 40);
    uint32_t before = output_estimate_of(&estimate, 1, 100000);
    output_estimate_raise(&estimate);
    uint32_t raised = output_estimate_of(&estimate, 1, 100000);
    assert_true(raised >= before + 36);
    output_estimate_raise(&estimate);
    assert_true(output_estimate_of(&estimate, 1, 100000) > raised + 36);
    for (uint32_t i = 0; i < 100; i++)
        output_estimate_take(&estimate, 40);
    assert_in_range(output_estimate_of(&estimate, 1, 100000), before, before + 2);
}

static uint64_t cost(struct cost_model_step step) {
    return 1000000 + 50000 * (uint64_t)step.rows + step.looks * 20;
}

static void test_costs_are_learned(void **state) {
    (void)state;
    struct cost_model model;
    cost_model_init(&model);
    uint64_t random = 5;
    for (uint32_t i = 0; i < 60; i++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        struct cost_model_step step = {.rows = 1 + (uint32_t)(random >> 33) % 512};
        step.looks = step.rows * ((random >> 20) % 3000);
        if (i == 15) assert_int_equal(cost_model_of(&model, step), 0); /* not enough seen */
        cost_model_take(&model, step, cost(step));
    }
    struct cost_model_step step = {.rows = 100, .looks = 100 * 2000};
    uint64_t expected = cost(step), found = cost_model_of(&model, step);
    assert_in_range(found, expected - expected / 50, expected + expected / 50);
    for (uint32_t committed = 0; committed <= 4000; committed += 1000) {
        struct cost_model_step decode = {.rows = 8, .looks = 8000};
        uint32_t rows = cost_model_rows(&model, decode, committed, 512, 12000000);
        struct cost_model_step with = {
            .rows = 8 + rows, .looks = 8000 + (uint64_t)rows * committed + rows * (rows + 1) / 2};
        assert_in_range(cost(with), 11000000, 12400000);
    }
    assert_int_equal(cost_model_rows(&model, step, 0, 512, 1), 0);
    assert_int_equal(cost_model_rows(&model, step, 0, 512, UINT64_MAX), 512);
}

/* A thousand steps that are all alike, then a change: the model is still sane, and follows. */
static void test_costs_of_steps_that_are_alike(void **state) {
    (void)state;
    struct cost_model model;
    cost_model_init(&model);
    struct cost_model_step step = {.rows = 8, .looks = 8000};
    for (uint32_t i = 0; i < 5000; i++)
        cost_model_take(&model, step, 2000000);
    assert_in_range(cost_model_of(&model, step), 1990000, 2010000);
    for (uint32_t i = 0; i < 200; i++)
        cost_model_take(&model, step, 4000000);
    assert_in_range(cost_model_of(&model, step), 3900000, 4100000);
}

static void test_the_queue_is_in_order(void **state) {
    (void)state;
    enum { COUNT = 200 };
    struct arena memory;
    arena_init(&memory, wait_queue_memory(COUNT));
    struct wait_queue queue;
    wait_queue_init(&queue, COUNT, &memory);
    assert_int_equal(wait_queue_first(&queue), WAIT_QUEUE_NOWHERE);
    for (uint32_t slot = 0; slot < COUNT; slot++) {
        struct wait_order order = {
            .class = slot % 3 == 0, .key = (slot * 37) % 11 - 5, .seq = COUNT - slot};
        wait_queue_put(&queue, slot, &order);
    }
    wait_queue_check(&queue);
    for (uint32_t slot = 5; slot < COUNT; slot += 7)
        wait_queue_remove(&queue, slot);
    wait_queue_check(&queue);
    struct wait_order last = {.class = 0, .key = INT64_MIN, .seq = 0};
    uint32_t taken = 0;
    while (queue.count > 0) {
        uint32_t slot = wait_queue_first(&queue);
        struct wait_order order = queue.order[slot];
        assert_int_not_equal(slot % 7, 5);
        assert_true(order.class > last.class ||
                    (order.class == last.class &&
                     (order.key > last.key || (order.key == last.key && order.seq > last.seq))));
        last = order;
        wait_queue_remove(&queue, slot);
        taken++;
    }
    assert_int_equal(taken, COUNT - 28);
    arena_deinit(&memory);
}

static void test_ids_find_their_slots(void **state) {
    (void)state;
    enum { COUNT = 100 };
    struct arena memory;
    arena_init(&memory, id_index_memory(COUNT));
    struct id_index index;
    id_index_init(&index, COUNT, &memory);
    for (uint32_t slot = 0; slot < COUNT; slot++)
        id_index_put(&index, UINT64_C(1) << 40 | slot * 16, slot);
    for (uint32_t slot = 0; slot < COUNT; slot += 2)
        id_index_remove(&index, slot);
    for (uint32_t slot = 0; slot < COUNT; slot++)
        assert_int_equal(id_index_find(&index, UINT64_C(1) << 40 | slot * 16),
                         slot % 2 ? slot : ID_INDEX_NONE);
    id_index_put(&index, 0, 0);
    assert_int_equal(id_index_find(&index, 0), 0);
    arena_deinit(&memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replies_start_at_the_most),
        cmocka_unit_test(test_replies_follow_what_is_seen),
        cmocka_unit_test(test_a_shortage_raises_and_fades),
        cmocka_unit_test(test_costs_are_learned),
        cmocka_unit_test(test_costs_of_steps_that_are_alike),
        cmocka_unit_test(test_the_queue_is_in_order),
        cmocka_unit_test(test_ids_find_their_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
