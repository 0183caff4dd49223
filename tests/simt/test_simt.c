/* The emulator itself: what its instructions compute, against their definitions in the PTX ISA, and
 * that it sees each kind of mistake it is there to see. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"
#include "simt.h"
#include "simt_view.h"

#define SEEDS 4u

static const enum simt_order orders[] = {SIMT_ROUND_ROBIN, SIMT_GREEDY_WARP, SIMT_RANDOM};

/* Run under every order and a few seeds; returns under how many of them the run failed. */
static uint32_t count_failures(const struct simt_grid *grid, void (*kernel)(void *user), void *user,
                               struct simt_report *last_failure) {
    uint32_t failures = 0;
    for (uint32_t o = 0; o < SIMT_ORDER_COUNT; o++)
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            struct simt_report report;
            simt_begin((struct simt_schedule){orders[o], seed}, &report);
            simt_launch(grid, kernel, user);
            failures += report.failed != 0;
            if (report.failed) *last_failure = report;
        }
    return failures;
}

static void expect_failure(uint32_t threads, void (*kernel)(void *user), void *user,
                           const char *fragment) {
    const struct simt_grid grid = {1, 1, 1, threads, 8192};
    struct simt_report report = {0};
    assert_int_equal(count_failures(&grid, kernel, user, &report), SIMT_ORDER_COUNT * SEEDS);
    if (strstr(report.text, fragment) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", report.text, fragment);
}

/* ============================== instructions ================================================== */

struct matrices {
    uint16_t element[4][8][8];
    uint32_t got[2][32][4]; /* plain, transposed */
    uint32_t two[32][2];
};

static void load_matrices(void *user) {
    struct matrices *m = user;
    uint32_t lane = simt_thread_index.x;
    uint16_t *shared = (uint16_t *)(void *)simt_shared();
    for (uint32_t i = lane; i < 4 * 64; i += 32)
        shared[i] = m->element[i / 64][i / 8 % 8][i % 8];
    simt_barrier();
    simt_load_matrix(m->got[0][lane], shared + lane * 8, 4, false);
    simt_load_matrix(m->got[1][lane], shared + lane * 8, 4, true);
    simt_load_matrix(m->two[lane], shared + lane % 16 * 8, 2, false);
}

static void matrices_are_dealt_to_lanes(void **state) {
    (void)state;
    struct matrices m;
    struct simt_report report = {0};
    const struct simt_grid grid = {1, 1, 1, 32, 512};
    for (uint32_t i = 0; i < 4 * 64; i++)
        m.element[i / 64][i / 8 % 8][i % 8] = (uint16_t)(i * 37 + 1);
    assert_int_equal(count_failures(&grid, load_matrices, &m, &report), 0);
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t row = lane / 4, column = lane % 4 * 2;
            assert_int_equal(m.got[0][lane][i], m.element[i][row][column] |
                                                    (uint32_t)m.element[i][row][column + 1] << 16);
            assert_int_equal(m.got[1][lane][i], m.element[i][column][row] |
                                                    (uint32_t)m.element[i][column + 1][row] << 16);
            if (i < 2) assert_int_equal(m.two[lane][i], m.got[0][lane][i]);
        }
}

struct product {
    float a[16][16], b[16][8], c[16][8], d[16][8];
};

static uint32_t pair(float low, float high) {
    return (uint32_t)bf16_from_f32(low) | (uint32_t)bf16_from_f32(high) << 16;
}

static void multiply(void *user) {
    struct product *p = user;
    uint32_t group = simt_thread_index.x / 4, in_group = simt_thread_index.x % 4;
    uint32_t a[4], b[2];
    float d[4];
    for (uint32_t i = 0; i < 4; i++) {
        const float *from = &p->a[group + i % 2 * 8][in_group * 2 + i / 2 * 8];
        a[i] = pair(from[0], from[1]);
        d[i] = p->c[group + i / 2 * 8][in_group * 2 + i % 2];
    }
    for (uint32_t i = 0; i < 2; i++)
        b[i] = pair(p->b[in_group * 2 + i * 8][group], p->b[in_group * 2 + 1 + i * 8][group]);
    simt_mma_bf16(d, a, b);
    for (uint32_t i = 0; i < 4; i++)
        p->d[group + i / 2 * 8][in_group * 2 + i % 2] = d[i];
}

static void products_are_those_of_matrices(void **state) {
    (void)state;
    struct product p;
    struct simt_report report = {0};
    const struct simt_grid grid = {1, 1, 1, 32, 0};
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++) {
            p.a[i][k] = (float)((i * 7 + k * 3) % 11 - 5);
            if (k < 8) p.b[i][k] = (float)((i * 5 + k) % 7 - 3);
            if (k < 8) p.c[i][k] = (float)(i - k);
        }
    assert_int_equal(count_failures(&grid, multiply, &p, &report), 0);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            float sum = p.c[i][j];
            for (int k = 0; k < 16; k++)
                sum += p.a[i][k] * p.b[k][j];
            assert_true(p.d[i][j] == sum);
        }
    assert_int_equal(report.counters.products, 0); /* nothing failed, so nothing was written */
}

static void add_all(void *user) {
    float *out = user;
    float sum = (float)simt_thread_index.x;
    for (uint32_t apart = 1; apart < 32; apart *= 2)
        sum += simt_shuffle_xor(sum, apart);
    out[simt_thread_index.x] = sum;
}

static void shuffles_reach_every_lane(void **state) {
    (void)state;
    float out[64];
    struct simt_report report = {0};
    const struct simt_grid grid = {1, 1, 1, 64, 0};
    assert_int_equal(count_failures(&grid, add_all, out, &report), 0);
    for (int i = 0; i < 64; i++)
        assert_true(out[i] == (i < 32 ? 496.0f : 1520.0f));
}

struct copying {
    _Alignas(16) float from[4][64];
    float got[4][64];
    float early[64];
};

static void copy_in_groups(void *user) {
    struct copying *c = user;
    uint32_t i = simt_thread_index.x;
    float *shared = (float *)(void *)simt_shared();
    for (uint32_t g = 0; g < 4; g++) {
        if (i < 16) simt_copy16(shared + g * 64 + i * 4, c->from[g] + i * 4, g != 2);
        simt_copy_commit();
    }
    simt_copy_wait(1);
    simt_barrier();
    for (uint32_t g = 0; g < 3; g++)
        c->got[g][i] = shared[g * 64 + i];
    c->early[i] = shared[3 * 64 + i];
    simt_barrier(); /* before any thread's last copy lands */
    simt_copy_wait(0);
    simt_barrier();
    c->got[3][i] = shared[3 * 64 + i];
}

static void copies_land_when_waited_for(void **state) {
    (void)state;
    struct copying c;
    struct simt_report report = {0};
    const struct simt_grid grid = {1, 1, 1, 64, sizeof c.from};
    for (int i = 0; i < 256; i++)
        c.from[i / 64][i % 64] = (float)i;
    assert_int_equal(count_failures(&grid, copy_in_groups, &c, &report), 0);
    for (int i = 0; i < 256; i++)
        assert_true(c.got[i / 64][i % 64] == (i / 64 == 2 ? 0.0f : (float)i));
    for (int i = 0; i < 64; i++)
        assert_true(isnan(c.early[i]));
}

static void count_something(void *user) {
    (void)user;
    uint32_t lane = simt_thread_index.x % 32, out[4];
    static const _Alignas(16) unsigned char global[16];
    if (lane == 0) simt_copy16(simt_shared() + 4096, global, true);
    simt_copy_wait(0);
    simt_load_matrix(out, simt_shared() + lane * 16, 4, false);      /* 8 columns: no conflict */
    simt_load_matrix(out, simt_shared() + lane % 8 * 128, 4, false); /* one column: 7 a matrix */
    simt_load_matrix(out, simt_shared() + lane % 8 * (16 + 128), 4, false);
    simt_barrier();
}

static void costs_are_counted(void **state) {
    (void)state;
    struct simt_report report;
    const struct simt_grid grid = {2, 1, 3, 64, 8192};
    simt_begin((struct simt_schedule){SIMT_RANDOM, 7}, &report);
    simt_launch(&grid, count_something, NULL);
    assert_int_equal(report.failed, 0);
    assert_int_equal(report.counters.copied_bytes, 6 * 2 * 16);
    assert_int_equal(report.counters.matrix_loads, 6 * 2 * 3);
    assert_int_equal(report.counters.bank_conflicts, 6 * 2 * 4 * 7);
    assert_int_equal(report.counters.barriers, 6);
}

/* ============================== mistakes ====================================================== */

/* Each thread leaves a number, and takes that of another warp. */
static void exchange(void *user, bool with_barrier, uint32_t shuffles) {
    float *out = user;
    float *shared = (float *)(void *)simt_shared();
    uint32_t i = simt_thread_index.x;
    shared[i] = (float)i;
    if (with_barrier) simt_barrier();
    while (shuffles-- > 0)
        (void)simt_shuffle_xor(0, 1);
    out[i] = shared[(i + 32) % 64];
}

static void exchange_with_barrier(void *user) {
    exchange(user, true, 1);
}

static void exchange_without_barrier(void *user) {
    exchange(user, false, 1);
}

/* So long that only a warp that lags has not left its number. */
static void exchange_after_a_while(void *user) {
    exchange(user, false, 64);
}

static uint32_t count_wrong(void (*kernel)(void *user), enum simt_order order) {
    uint32_t wrong = 0;
    for (uint32_t seed = 0; seed < 16; seed++) {
        float out[64];
        struct simt_report report;
        const struct simt_grid grid = {1, 1, 1, 64, 256};
        simt_begin((struct simt_schedule){order, seed}, &report);
        simt_launch(&grid, kernel, out);
        assert_int_equal(report.failed, 0);
        for (uint32_t i = 0; i < 64; i++)
            if (!(out[i] == (float)((i + 32) % 64))) {
                wrong++;
                break;
            }
    }
    return wrong;
}

static void a_missing_barrier_shows(void **state) {
    (void)state;
    for (uint32_t o = 0; o < SIMT_ORDER_COUNT; o++)
        assert_int_equal(count_wrong(exchange_with_barrier, orders[o]), 0);
    assert_int_equal(count_wrong(exchange_without_barrier, SIMT_ROUND_ROBIN), 0); /* it hides */
    assert_int_equal(count_wrong(exchange_without_barrier, SIMT_GREEDY_WARP), 16);
    assert_true(count_wrong(exchange_without_barrier, SIMT_RANDOM) > 0);
    assert_in_range(count_wrong(exchange_after_a_while, SIMT_RANDOM), 1, 15);
}

static void half_at_a_barrier(void *user) {
    (void)user;
    if (simt_thread_index.x < 32)
        simt_barrier();
    else
        (void)simt_shuffle_xor(0, 1), simt_barrier(), simt_barrier();
}

static void end_before_a_barrier(void *user) {
    (void)user;
    if (simt_thread_index.x == 5) return;
    simt_barrier();
}

static void shuffle_with_half_a_warp(void *user) {
    (void)user;
    if (simt_thread_index.x % 32 < 16)
        (void)simt_shuffle_xor(0, 1);
    else
        simt_barrier();
}

static void diverge(void *user) {
    (void)user;
    float d[4] = {0};
    const uint32_t a[4] = {0}, b[2] = {0};
    if (simt_thread_index.x % 2 == 0)
        (void)simt_shuffle_xor(0, 2);
    else
        simt_mma_bf16(d, a, b);
}

static void copy_beyond(void *user) {
    (void)user;
    static const _Alignas(16) unsigned char global[16];
    simt_copy16(simt_shared() + 8192 - 16 + 16 * simt_thread_index.x, global, true);
}

static void copy_from_odd_place(void *user) {
    (void)user;
    static const _Alignas(16) unsigned char global[32];
    simt_copy16(simt_shared(), global + 8, true);
}

static void load_from_odd_place(void *user) {
    (void)user;
    uint32_t out[4];
    simt_load_matrix(out, simt_shared() + 16 * simt_thread_index.x + 2, 4, false);
}

static void mistakes_are_named(void **state) {
    (void)state;
    expect_failure(64, half_at_a_barrier, NULL, "a barrier");
    expect_failure(64, end_before_a_barrier, NULL, "ended");
    expect_failure(64, shuffle_with_half_a_warp, NULL, "a shuffle");
    expect_failure(32, diverge, NULL, "while lane");
    expect_failure(32, copy_beyond, NULL, "outside of the 8192 bytes");
    expect_failure(32, copy_from_odd_place, NULL, "which 16 does not divide");
    expect_failure(32, load_from_odd_place, NULL, "ldmatrix at");
}

/* ============================== products of warpgroups ======================================== */

/* Where the operands of one product lie, [64, 16] and [16, GROUP_COLUMNS], in lines of 128 bytes.
 */
#define GROUP_COLUMNS 128u
#define GROUP_STEP    16u /* of the left operand's lines, the first that the product takes */
#define GROUP_A       0u
#define GROUP_B       8192u  /* with columns for lines */
#define GROUP_TURNED  24576u /* with steps for lines: panels of 16 */
#define GROUP_PANEL   2048u
#define GROUP_SHARED  32768u

enum group_mistake {
    GROUP_RIGHT,
    GROUP_NO_PROXY_FENCE,
    GROUP_NO_BARRIER,
    GROUP_NO_FENCE,
    GROUP_LATE_WRITE, /* of sums, after the fence */
    GROUP_TOUCHED,    /* sums, before the wait */
    GROUP_NO_COMMIT,
    GROUP_NO_WAIT,
    GROUP_REFILLED, /* an operand, before the wait */
    GROUP_REFILLED_BY_OTHERS,
    GROUP_OWN_TILE,
    GROUP_WARPS_TILE,
    GROUP_ODD_TILE,
    GROUP_TILE_BEYOND,
    GROUP_LINE_END
};

struct group_product {
    enum group_mistake mistake;
    bool line_is_step, adds;
    float a[64][16], b[16][GROUP_COLUMNS], c[64][GROUP_COLUMNS], d[64][GROUP_COLUMNS];
};

/* Element e of a line, chunks of 16 bytes changed about as the 128-byte swizzle does. */
static unsigned char *group_element(uint32_t begin, uint32_t line, uint32_t e) {
    return simt_shared() + begin + line * 128 + ((e / 8) ^ (line % 8)) * 16 + e % 8 * 2;
}

static uint64_t group_tile(uint32_t begin, uint32_t leading) {
    return begin >> 4 | (uint64_t)(leading >> 4) << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}

static void group_fill(const struct group_product *p) {
    for (uint32_t i = simt_thread_index.x; i < 64 * 8; i += 128) {
        uint32_t row = i / 8, k = i % 8 * 2;
        simt_store4(group_element(GROUP_A, row, GROUP_STEP + k),
                    pair(p->a[row][k], p->a[row][k + 1]));
    }
    for (uint32_t i = simt_thread_index.x; i < GROUP_COLUMNS * 8; i += 128) {
        uint32_t n = i / 8, k = i % 8 * 2;
        simt_store4(group_element(GROUP_B, n, k), pair(p->b[k][n], p->b[k + 1][n]));
        k = i % 16, n = i / 16 * 2;
        simt_store4(group_element(GROUP_TURNED + n / 64 * GROUP_PANEL, k, n % 64),
                    pair(p->b[k][n], p->b[k][n + 1]));
    }
}

static void group_multiply(void *user) {
    struct group_product *p = user;
    enum group_mistake mistake = p->mistake;
    uint32_t thread = simt_thread_index.x, count = GROUP_COLUMNS / 2;
    float sums[GROUP_COLUMNS / 2];
    group_fill(p);
    if (mistake != GROUP_NO_PROXY_FENCE) simt_async_proxy_fence();
    if (mistake != GROUP_NO_BARRIER) simt_barrier();
    for (uint32_t i = 0; i < count; i++)
        sums[i] = p->c[thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8]
                      [i / 4 * 8 + thread % 4 * 2 + i % 2];
    if (mistake != GROUP_NO_FENCE) simt_wgmma_fence(sums, count);
    if (mistake == GROUP_LATE_WRITE) sums[3] += 1.0f;
    uint64_t a = group_tile(GROUP_A + GROUP_STEP * 2, 0);
    uint64_t b = p->line_is_step ? group_tile(GROUP_TURNED, GROUP_PANEL) : group_tile(GROUP_B, 0);
    if (mistake == GROUP_OWN_TILE && thread == 70) a += 2;
    if (mistake == GROUP_WARPS_TILE && thread >= 64) a += 2;
    if (mistake == GROUP_ODD_TILE) a += 8;
    if (mistake == GROUP_TILE_BEYOND) b = group_tile(GROUP_SHARED - 1024, 0);
    if (mistake == GROUP_LINE_END) a += 5;
    simt_wgmma(sums, count, a, b, p->line_is_step, p->adds);
    if (mistake != GROUP_NO_COMMIT) simt_wgmma_commit();
    if (mistake == GROUP_TOUCHED) sums[5] = 0.0f;
    if (mistake == GROUP_REFILLED) simt_store4(group_element(GROUP_A, thread / 2, GROUP_STEP), 0);
    if (mistake != GROUP_NO_WAIT) simt_wgmma_wait(0);
    /* A warp has waited for its own part alone. */
    if (mistake == GROUP_REFILLED_BY_OTHERS)
        simt_store4(group_element(GROUP_B, thread, 0), 0), simt_async_proxy_fence();
    for (uint32_t i = 0; i < count; i++)
        p->d[thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8]
            [i / 4 * 8 + thread % 4 * 2 + i % 2] = sums[i];
}

static void group_begin(struct group_product *p) {
    for (uint32_t i = 0; i < 64 * GROUP_COLUMNS; i++) {
        uint32_t row = i / GROUP_COLUMNS, n = i % GROUP_COLUMNS;
        p->c[row][n] = (float)(row % 13) - (float)(n % 29);
        if (n < 16) p->a[row][n] = (float)((row * 7 + n * 3) % 11) - 5.0f;
        if (row < 16) p->b[row][n] = (float)((row * 5 + n) % 17) - 8.0f;
    }
}

static bool group_is_right(const struct group_product *p) {
    for (uint32_t i = 0; i < 64; i++)
        for (uint32_t n = 0; n < GROUP_COLUMNS; n++) {
            float sum = p->adds ? p->c[i][n] : 0.0f;
            for (uint32_t k = 0; k < 16; k++)
                sum += p->a[i][k] * p->b[k][n];
            if (!(p->d[i][n] == sum)) return false;
        }
    return true;
}

/* Under how many schedules it fails or computes something else. */
static uint32_t group_count_wrong(struct group_product *p, struct simt_report *last_failure) {
    uint32_t wrong = 0;
    group_begin(p);
    for (uint32_t o = 0; o < SIMT_ORDER_COUNT; o++)
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            const struct simt_grid grid = {1, 1, 1, 128, GROUP_SHARED};
            struct simt_report report;
            simt_begin((struct simt_schedule){orders[o], seed}, &report);
            simt_launch(&grid, group_multiply, p);
            wrong += report.failed || !group_is_right(p);
            if (report.failed)
                *last_failure = report;
            else
                assert_int_equal(report.counters.products, 4 * GROUP_COLUMNS / 8);
        }
    return wrong;
}

static void products_of_warpgroups_are_those_of_matrices(void **state) {
    (void)state;
    for (uint32_t variant = 0; variant < 4; variant++) {
        static struct group_product p;
        struct simt_report failure = {0};
        p.line_is_step = variant % 2, p.adds = variant / 2;
        assert_int_equal(group_count_wrong(&p, &failure), 0);
    }
}

static void mistakes_with_warpgroups_show(void **state) {
    (void)state;
    const uint32_t all = SIMT_ORDER_COUNT * SEEDS;
    static const struct {
        enum group_mistake mistake;
        bool always;          /* or under some schedules */
        const char *fragment; /* NULL: it computes something else */
    } cases[] = {
        {GROUP_NO_PROXY_FENCE, true, NULL},
        {GROUP_NO_BARRIER, false, NULL},
        {GROUP_NO_FENCE, true, "without a fence"},
        {GROUP_LATE_WRITE, true, "between the fence and the product"},
        {GROUP_TOUCHED, true, "while products added"},
        {GROUP_NO_COMMIT, false, NULL},
        {GROUP_NO_WAIT, true, "without a wait"},
        {GROUP_REFILLED, false, NULL},
        {GROUP_REFILLED_BY_OTHERS, false, NULL},
        {GROUP_OWN_TILE, true, "lanes differ in their tiles"},
        {GROUP_WARPS_TILE, true, "warps differ in their tiles"},
        {GROUP_ODD_TILE, true, "inside of eight lines"},
        {GROUP_TILE_BEYOND, true, "outside of shared memory"},
        {GROUP_LINE_END, true, "inside of a line"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static struct group_product p;
        struct simt_report failure = {0};
        p.mistake = cases[i].mistake;
        p.adds = true;
        uint32_t wrong = group_count_wrong(&p, &failure);
        if (cases[i].always ? wrong != all : wrong == 0)
            fail_msg("mistake %d: %u of %u", cases[i].mistake, wrong, all);
        if (cases[i].fragment != NULL && strstr(failure.text, cases[i].fragment) == NULL)
            fail_msg("\"%s\" lacks \"%s\"", failure.text, cases[i].fragment);
    }
}

/* ============================== barriers of some threads ====================================== */

#define HANDED_ON 5u

/* Two warps fill what a third one takes: one signals and goes on, by turns at two barriers. */
static void hand_on(void *user) {
    float *got = user, *shared = (float *)(void *)simt_shared();
    uint32_t thread = simt_thread_index.x;
    for (uint32_t i = 0; i < HANDED_ON; i++) {
        if (thread < 64) {
            if (i >= 2) simt_meet(3 + i % 2, 96);
            shared[i % 2 * 64 + thread] = (float)(i * 64 + thread);
            simt_signal(1 + i % 2, 96);
        } else {
            simt_meet(1 + i % 2, 96);
            for (uint32_t half = 0; half < 64; half += 32)
                got[i * 64 + half + thread - 64] = shared[i % 2 * 64 + half + thread - 64];
            if (i + 2 < HANDED_ON) simt_signal(3 + i % 2, 96);
        }
    }
}

static void barriers_are_of_some_threads(void **state) {
    (void)state;
    float got[HANDED_ON * 64];
    struct simt_report report = {0};
    const struct simt_grid grid = {1, 1, 1, 96, 512};
    assert_int_equal(count_failures(&grid, hand_on, got, &report), 0);
    for (uint32_t i = 0; i < HANDED_ON * 64; i++)
        assert_true(got[i] == (float)i);
}

static void signal_twice(void *user) {
    (void)user;
    simt_signal(1, 96);
    simt_signal(1, 96);
}

static void meet_as_other_crowds(void *user) {
    (void)user;
    simt_meet(1, simt_thread_index.x < 32 ? 64 : 96);
}

static void meet_nobody(void *user) {
    (void)user;
    simt_meet(2, 96);
}

static void part_of_a_group(void *user) {
    (void)user;
    float sums[16] = {0};
    if (simt_thread_index.x >= 96) return;
    simt_wgmma_fence(sums, 16);
    simt_wgmma(sums, 16, group_tile(0, 0), group_tile(0, 0), false, true);
    simt_wgmma_commit();
    simt_wgmma_wait(0);
}

static void mistakes_at_barriers_are_named(void **state) {
    (void)state;
    expect_failure(64, signal_twice, NULL, "again before the others");
    expect_failure(64, meet_as_other_crowds, NULL, "and of");
    expect_failure(64, meet_nobody, NULL, "64 at a named barrier");
    expect_failure(128, part_of_a_group, NULL, "a part of a warpgroup");
}

/* ============================== several devices =============================================== */

/* Device 0 hands value after value to device 1, by one place; the second waits for each. */
#define HANDED 3u

struct relay {
    float value[SIMT_VIEW_FLOATS];
    uint32_t given, taken; /* how many */
    bool releases, acquires;
    float got[HANDED];
};

static void wait_for(const uint32_t *word, uint32_t at_least, bool acquires) {
    while ((acquires ? simt_load_acquire(word) : *word) < at_least)
        simt_pause();
}

static void give(void *user) {
    struct relay *relay = user;
    if (simt_thread_index.x != 0) return;
    for (uint32_t i = 1; i <= HANDED; i++) {
        const float value[SIMT_VIEW_FLOATS] = {(float)i, (float)i, (float)i, (float)i};
        simt_share_store(relay->value, value);
        if (relay->releases)
            simt_store_release(&relay->given, i);
        else
            relay->given = i;
        wait_for(&relay->taken, i, true);
    }
}

static void take(void *user) {
    struct relay *relay = user;
    if (simt_thread_index.x != 0) return;
    for (uint32_t i = 1; i <= HANDED; i++) {
        float value[SIMT_VIEW_FLOATS];
        wait_for(&relay->given, i, relay->acquires);
        simt_share_load(value, relay->value);
        relay->got[i - 1] = value[3];
        simt_store_release(&relay->taken, i);
    }
}

/* Does every value arrive: under all schedules, or under none of them? */
static bool values_arrive(bool releases, bool acquires) {
    uint32_t arrived = 0;
    for (uint32_t o = 0; o < SIMT_ORDER_COUNT; o++)
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            struct relay relay = {.releases = releases, .acquires = acquires};
            const struct simt_grid grid = {1, 1, 1, 32, 0};
            const struct simt_work giving = {grid, give, &relay}, taking = {grid, take, &relay};
            const struct simt_work *const works[] = {&giving, &taking};
            const uint32_t counts[] = {1, 1};
            struct simt_report report;
            simt_begin((struct simt_schedule){orders[o], seed}, &report);
            assert_true(simt_launch_together(works, counts, 2));
            uint32_t right = 0;
            for (uint32_t i = 0; i < HANDED; i++)
                right += relay.got[i] == (float)(i + 1);
            arrived += right == HANDED;
        }
    assert_true(arrived == 0 || arrived == SIMT_ORDER_COUNT * SEEDS);
    return arrived > 0;
}

static void what_is_shared_is_seen_behind_release_and_acquire(void **state) {
    (void)state;
    assert_true(values_arrive(true, true));
    assert_false(values_arrive(false, true));
    assert_false(values_arrive(true, false));
}

/* Each block writes where the next launch of its device, and no sooner, reads. */
struct ledger {
    uint32_t word[8];
    uint32_t wrong;
};

static void write_word(void *user) {
    struct ledger *ledger = user;
    simt_pause();
    if (simt_thread_index.x == 0) ledger->word[simt_block_index.x]++;
}

static void check_words(void *user) {
    struct ledger *ledger = user;
    for (uint32_t i = 0; i < 8; i++)
        ledger->wrong += ledger->word[i] != 1;
}

static void launches_of_a_device_follow_each_other(void **state) {
    (void)state;
    for (uint32_t o = 0; o < SIMT_ORDER_COUNT; o++) {
        struct ledger ledgers[SIMT_DEVICES_MAX] = {0};
        struct simt_work work[SIMT_DEVICES_MAX][2];
        const struct simt_work *works[SIMT_DEVICES_MAX];
        uint32_t counts[SIMT_DEVICES_MAX];
        struct simt_report report;
        for (uint32_t d = 0; d < SIMT_DEVICES_MAX; d++) {
            const struct simt_grid many = {8, 1, 1, 32, 0}, one = {1, 1, 1, 32, 0};
            work[d][0] = (struct simt_work){many, write_word, &ledgers[d]};
            work[d][1] = (struct simt_work){one, check_words, &ledgers[d]};
            works[d] = work[d];
            counts[d] = 2;
        }
        simt_begin((struct simt_schedule){orders[o], o}, &report);
        assert_true(simt_launch_together(works, counts, SIMT_DEVICES_MAX));
        for (uint32_t d = 0; d < SIMT_DEVICES_MAX; d++)
            assert_int_equal(ledgers[d].wrong, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_are_dealt_to_lanes),
        cmocka_unit_test(products_are_those_of_matrices),
        cmocka_unit_test(shuffles_reach_every_lane),
        cmocka_unit_test(copies_land_when_waited_for),
        cmocka_unit_test(costs_are_counted),
        cmocka_unit_test(a_missing_barrier_shows),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(products_of_warpgroups_are_those_of_matrices),
        cmocka_unit_test(mistakes_with_warpgroups_show),
        cmocka_unit_test(barriers_are_of_some_threads),
        cmocka_unit_test(mistakes_at_barriers_are_named),
        cmocka_unit_test(what_is_shared_is_seen_behind_release_and_acquire),
        cmocka_unit_test(launches_of_a_device_follow_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
