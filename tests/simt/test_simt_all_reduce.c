/* all_reduce between emulated devices that run at the same time: the bits of its reference on every
 * rank, whoever is ahead; and an end, with its reason, where a peer does not come. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <stdio.h>

#include "all_reduce/all_reduce.h"
#include "cuda_runtime_api.h"
#include "simt_cuda.h"
#include "simt_worlds.h"

#define RANKS_MAX ALL_REDUCE_RANKS_MAX
#define CALLS     4u
#define ROW       7168u /* K2.6's hidden dimension */
#define PATIENT                                                                                    \
    ((uint64_t)2 * 1000 * 1000 * 1000) /* ns of the emulated clock: a hang ends too                \
                                        */
#define HASTY ((uint64_t)1000 * 1000)

static const char *const form_names[] = {"one-shot", "two-shot"};

struct call {
    size_t count;
    enum all_reduce_form form;
    float *data[RANKS_MAX], *want; /* [count] */
};

static struct world {
    uint32_t ranks;
    cudaStream_t stream[RANKS_MAX];
    struct all_reduce_exchange *exchange[RANKS_MAX];
    uint32_t abort, verdict[RANKS_MAX];
    uint64_t wait_ns;
    struct call call[CALLS];
    uint32_t call_count;
    uint32_t absent; /* ranks that do not come: bits */
} world;

static void *allocate(size_t bytes) {
    void *memory = NULL;
    assert_int_equal(posix_memalign(&memory, 128, bytes > 0 ? bytes : 1), 0);
    return memory;
}

/* first: the number of the first meeting. */
static void begin_world(uint32_t ranks, uint32_t first) {
    world = (struct world){.ranks = ranks, .wait_ns = PATIENT};
    simt_cuda_recover();
    for (uint32_t r = 0; r < ranks; r++) {
        assert_int_equal(cudaStreamCreateWithFlags(&world.stream[r], cudaStreamNonBlocking), 0);
        struct all_reduce_exchange *exchange = world.exchange[r] = allocate(sizeof *exchange);
        memset(exchange->buffer, 0xff, sizeof exchange->buffer); /* NaN */
        for (uint32_t b = 0; b < ALL_REDUCE_BLOCKS_MAX; b++) {
            exchange->meeting[b] = first - 1;
            for (uint32_t peer = 0; peer < RANKS_MAX; peer++)
                exchange->flag[b][peer] = first - 1;
        }
        exchange->broken = 0;
    }
}

/* Sums whose order shows: of every sign, over eleven powers of two. */
static float value_of(uint32_t rank, size_t i, uint32_t call) {
    uint64_t z = (i * 31 + rank * 7 + call + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z ^= z >> 27;
    float value = (float)(z >> 40) / (float)(1 << 24) * (float)(1 << z % 11);
    return z & 0x800 ? -value : value;
}

static void add_call(size_t count, enum all_reduce_form form) {
    uint32_t number = world.call_count++;
    struct call *call = &world.call[number];
    *call = (struct call){.count = count, .form = form};
    for (uint32_t r = 0; r < world.ranks; r++) {
        call->data[r] = allocate(count * sizeof(float));
        for (size_t i = 0; i < count; i++)
            call->data[r][i] = value_of(r, i, number);
    }
    call->want = allocate(count * sizeof(float));
    all_reduce_ref((const float *const *)call->data, world.ranks, count, call->want);
}

static void tell_rank(uint32_t rank) {
    struct kernel_ctx ctx = {.stream = world.stream[rank], .device = &simt_devices[1]};
    for (uint32_t c = 0; c < world.call_count; c++) {
        struct all_reduce_args args = {.data = world.call[c].data[rank],
                                       .count = world.call[c].count,
                                       .rank = rank,
                                       .ranks = world.ranks,
                                       .form = world.call[c].form,
                                       .wait_ns = world.wait_ns,
                                       .abort = &world.abort,
                                       .verdict = &world.verdict[rank]};
        memcpy(args.exchange, world.exchange, sizeof args.exchange);
        all_reduce_cuda(&args, &ctx);
    }
}

static void run_world(struct simt_schedule schedule) {
    struct simt_report report;
    simt_begin(schedule, &report);
    for (uint32_t r = 0; r < world.ranks; r++)
        if (!(world.absent >> r & 1)) tell_rank(r);
    simt_cuda_run_together((void *const *)world.stream, world.ranks);
    if (report.failed) fail_msg("%s", report.text);
}

static void check_sums(const char *schedule) {
    for (uint32_t r = 0; r < world.ranks; r++) {
        assert_int_equal(world.verdict[r], ALL_REDUCE_WHOLE);
        for (uint32_t c = 0; c < world.call_count; c++) {
            const struct call *call = &world.call[c];
            if (memcmp(call->data[r], call->want, call->count * sizeof(float)) != 0)
                fail_msg("%s, %s of %zu over %u ranks, call %u: rank %u differs", schedule,
                         form_names[call->form], call->count, world.ranks, c, r);
        }
    }
}

static void end_world(void) {
    for (uint32_t r = 0; r < world.ranks; r++) {
        assert_int_equal(cudaStreamDestroy(world.stream[r]), cudaSuccess);
        free(world.exchange[r]);
    }
    for (uint32_t c = 0; c < world.call_count; c++) {
        for (uint32_t r = 0; r < world.ranks; r++)
            free(world.call[c].data[r]);
        free(world.call[c].want);
    }
}

/* ============================== sums ========================================================== */

static void the_order_of_a_sum_shows(void **state) {
    (void)state;
    begin_world(8, 1);
    add_call(ROW, ALL_REDUCE_ONE_SHOT);
    uint32_t differ = 0;
    for (size_t i = 0; i < ROW; i++) {
        float chain = 0.0f;
        for (uint32_t r = 0; r < 8; r++)
            chain += world.call[0].data[r][i];
        differ += chain != world.call[0].want[i];
    }
    assert_true(differ > ROW / 10);
    end_world();
}

/* Calls of other sizes and forms behind it, for ranks that are ahead. */
static void sums_of(size_t count, uint32_t ranks, enum all_reduce_form form) {
    for (size_t s = 0; s < SIMT_ORDER_COUNT; s++) {
        if (!simt_is_wanted(s)) continue;
        begin_world(ranks, 1);
        add_call(count, form);
        add_call(count / 2 + 1, form);
        add_call(count > ROW ? ROW : count, 1 - form);
        add_call(5, form);
        run_world(simt_schedules[s].schedule);
        check_sums(simt_schedules[s].name);
        end_world();
    }
}

static void sums_are_the_references(void **state) {
    (void)state;
    static const size_t counts[] = {0, 1, 3, 1023, 4097, ROW, 2 * ROW, 5 * ROW};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
        for (uint32_t ranks = 1; ranks <= RANKS_MAX; ranks *= 2)
            for (uint32_t form = ALL_REDUCE_ONE_SHOT; form <= ALL_REDUCE_TWO_SHOT; form++)
                sums_of(counts[c], ranks, form);
}

/* Blocks meet more than once in a call. */
static void sixty_four_rows_take_rounds(void **state) {
    (void)state;
    assert_true(64 * ROW > ALL_REDUCE_BLOCKS_MAX * ALL_REDUCE_BLOCK_FLOATS);
    for (uint32_t form = ALL_REDUCE_ONE_SHOT; form <= ALL_REDUCE_TWO_SHOT; form++)
        for (size_t s = 0; s < SIMT_ORDER_COUNT; s++) {
            if (!simt_is_wanted(s)) continue;
            begin_world(form == ALL_REDUCE_ONE_SHOT ? 2 : 8, 1);
            add_call(64 * ROW, form);
            run_world(simt_schedules[s].schedule);
            check_sums(simt_schedules[s].name);
            end_world();
        }
}

static void numbers_of_meetings_go_round(void **state) {
    (void)state;
    for (size_t s = 0; s < SIMT_ORDER_COUNT; s++) {
        if (!simt_is_wanted(s)) continue;
        begin_world(4, UINT32_MAX - 2);
        for (uint32_t c = 0; c < CALLS; c++)
            add_call(ROW, c % 2 == 0 ? ALL_REDUCE_TWO_SHOT : ALL_REDUCE_ONE_SHOT);
        run_world(simt_schedules[s].schedule);
        check_sums(simt_schedules[s].name);
        assert_int_equal(world.exchange[0]->meeting[0], 2);
        end_world();
    }
}

/* What is left of a run is where the next begins. */
static void runs_follow_each_other(void **state) {
    (void)state;
    begin_world(8, 1);
    for (uint32_t seed = 0; seed < 8; seed++) {
        for (uint32_t c = 0; c < CALLS; c++)
            add_call(1 + (seed * CALLS + c) * 97, (seed + c) % 2);
        struct simt_schedule schedule = simt_schedules[2].schedule;
        schedule.seed += seed;
        run_world(schedule);
        check_sums("random");
        for (uint32_t c = 0; c < CALLS; c++) {
            for (uint32_t r = 0; r < world.ranks; r++)
                free(world.call[c].data[r]);
            free(world.call[c].want);
        }
        world.call_count = 0;
    }
    end_world();
}

/* ============================== faults ======================================================== */

static void a_peer_that_is_gone_is_named(void **state) {
    (void)state;
    for (uint32_t form = ALL_REDUCE_ONE_SHOT; form <= ALL_REDUCE_TWO_SHOT; form++)
        for (size_t s = 0; s < SIMT_ORDER_COUNT; s++) {
            if (!simt_is_wanted(s)) continue;
            begin_world(4, 1);
            world.wait_ns = HASTY;
            world.absent = 1u << 2;
            add_call(ROW, form);
            add_call(3, form);
            run_world(simt_schedules[s].schedule);
            for (uint32_t r = 0; r < world.ranks; r++)
                assert_int_equal(world.verdict[r],
                                 r == 2 ? ALL_REDUCE_WHOLE : (ALL_REDUCE_LATE | 2u << 8));
            end_world();
        }
}

/* A broken rank does not wait again: it returns before it has told anybody anything. */
static void what_is_broken_stays_so(void **state) {
    (void)state;
    begin_world(2, 1);
    world.wait_ns = HASTY;
    world.absent = 1u << 1;
    add_call(1, ALL_REDUCE_ONE_SHOT);
    run_world(simt_schedules[0].schedule);
    assert_int_equal(world.exchange[0]->broken, ALL_REDUCE_LATE);
    assert_int_equal(world.exchange[1]->flag[0][0], 1);
    world.wait_ns = PATIENT;
    world.verdict[0] = ALL_REDUCE_WHOLE;
    add_call(ROW, ALL_REDUCE_TWO_SHOT);
    world.absent = 1u << 1;
    run_world(simt_schedules[0].schedule);
    assert_int_equal(world.exchange[1]->flag[0][0], 1);
    assert_int_equal(world.verdict[0], ALL_REDUCE_WHOLE); /* told once */
    end_world();
}

static void the_host_ends_a_wait(void **state) {
    (void)state;
    for (size_t s = 0; s < SIMT_ORDER_COUNT; s++) {
        if (!simt_is_wanted(s)) continue;
        begin_world(8, 1);
        world.abort = 1;
        world.absent = 1u << 7;
        add_call(ROW, ALL_REDUCE_TWO_SHOT);
        run_world(simt_schedules[s].schedule);
        for (uint32_t r = 0; r < 7; r++)
            assert_int_equal(world.verdict[r] & 0xff, ALL_REDUCE_ABORTED);
        end_world();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_order_of_a_sum_shows),
        cmocka_unit_test(sums_are_the_references),
        cmocka_unit_test(sixty_four_rows_take_rounds),
        cmocka_unit_test(numbers_of_meetings_go_round),
        cmocka_unit_test(runs_follow_each_other),
        cmocka_unit_test(a_peer_that_is_gone_is_named),
        cmocka_unit_test(what_is_broken_stays_so),
        cmocka_unit_test(the_host_ends_a_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
