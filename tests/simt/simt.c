#include "simt.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernel.h"
#include "simt_async.h"
#include "simt_fiber.h"
#include "simt_view.h"

#define POISON    0xff /* as bf16 and as f32 a NaN */
#define LOADS_MAX 64   /* whose bank conflicts are counted; more between two meetings are not */

#define BLOCKS_AT_ONCE 4u /* of a device, where several run */
#define OTHER_ODDS     8u /* one in so many steps in shared memory lets another block go on */
#define PAUSE_NS       1000u
#define PAUSES_MAX     64u /* before other threads of the process are let in */

#define WARPS_MAX      (SIMT_THREADS_MAX / SIMT_WARP_LANES)
#define NAMED_BARRIERS 16u /* 0 is the block's own */
#define PRODUCT_ODDS   8u  /* one in so many meetings carries out a product under way */
#define LAGGARD_ODDS   2u  /* one in so many blocks has a warp that lags */

enum meeting {
    MEET_NONE,
    MEET_BARRIER,
    MEET_NAMED,
    MEET_WARP,
    MEET_SHUFFLE,
    MEET_LOAD_X2,
    MEET_LOAD_X4,
    MEET_LOAD_X4_T,
    MEET_MMA,
    MEET_WGMMA,
    MEET_WGMMA_COMMIT,
    MEET_WGMMA_WAIT,
    MEET_COUNT
};

static const char *const meeting_names[] = {
    "nothing",   "a barrier",   "a named barrier", "a barrier of the warp",
    "a shuffle", "ldmatrix.x2", "ldmatrix.x4",     "ldmatrix.x4.trans",
    "mma",       "wgmma",       "wgmma.commit",    "wgmma.wait"};

struct copy {
    unsigned char *to;
    const unsigned char *from; /* NULL: zeros */
    uint32_t group;
};

struct thread {
    struct simt_fiber *fiber;
    bool done;
    enum meeting waits_at; /* by pause_at and resume */
    /* What a lane brings to a meeting of its warp, and takes home. */
    const unsigned char *row;
    uint32_t a[4], b[2], mask;
    float d[4];
    uint32_t out[4];
    struct simt_product product;
    float *sums;
    uint32_t barrier; /* at MEET_NAMED */
    struct copy copies[SIMT_COPIES_MAX];
    uint32_t copy_count, group;           /* the group that commit closes next */
    const unsigned char *load[LOADS_MAX]; /* since the warp last met */
    uint8_t load_bytes[LOADS_MAX];        /* 4, 8 or 16 */
    uint32_t load_count;
};

/* Some of a block's, one bit each. */
struct thread_set {
    uint64_t word[SIMT_THREADS_MAX / 64];
};

struct named_barrier {
    uint32_t threads, come;
    struct thread_set has_come;
};

struct warp {
    uint32_t ended;
    uint32_t come; /* of its lanes, to a meeting of the warp */
    enum meeting to;
};

/* One that runs, and its place in memory, which blocks have one after another. */
struct block {
    const struct simt_grid *grid;
    struct device *device;
    struct simt_index index;
    struct thread *thread; /* [SIMT_THREADS_MAX] */
    uint32_t current, live;
    struct thread_set can_run;
    uint32_t laggard; /* a warp that goes on when no other can; WARPS_MAX: there is none */
    uint32_t at_barrier;
    struct warp warp[WARPS_MAX];
    struct named_barrier named[NAMED_BARRIERS];
    unsigned char *shared;
    void (*kernel)(void *user);
    void *user;
    struct simt_view *view;
    struct simt_async *async;
    bool multiplies; /* it has products of warpgroups */
};

/* Its launches, one after another. */
struct device {
    const struct simt_work *works;
    uint32_t work_count;
    uint32_t work, begun, running; /* the launch that runs; of its blocks */
};

/* What runs kernels in one thread of the process. */
struct machine {
    struct machine *next; /* of those that nobody runs */
    struct simt_fiber *host;
    struct block block[SIMT_DEVICES_MAX * BLOCKS_AT_ONCE];
    uint32_t running; /* of them */
    uint32_t pauses;
};

struct simt_index simt_thread_index, simt_block_index;

static struct simt_schedule schedule;
static struct simt_report own_report; /* until simt_begin says where */
static struct simt_report *report = &own_report;
static uint64_t random_state;
static uint64_t clock_ns;
static struct machine *machine; /* that runs */
static struct machine *idle_machines;
static struct block *block; /* likewise, in it */
static uint64_t (*let_others_in)(void);

/* ============================== failures ====================================================== */

static void go_home(void) {
    simt_fiber_switch(block->thread[block->current].fiber, machine->host);
}

__attribute__((format(printf, 1, 2))) static void note_failure(const char *format, ...) {
    if (report->failed) return;
    report->failed = true;
    va_list args;
    va_start(args, format);
    int used = snprintf(report->text, sizeof report->text,
                        "block (%u, %u, %u), thread %u: ", simt_block_index.x, simt_block_index.y,
                        simt_block_index.z, block->current);
    vsnprintf(report->text + used, sizeof report->text - (size_t)used, format, args);
    va_end(args);
}

/* Ends the run; the fibers that are left are never resumed. */
#define FAIL(...)                                                                                  \
    do {                                                                                           \
        note_failure(__VA_ARGS__);                                                                 \
        go_home();                                                                                 \
    } while (0)

/* With what a function says that went wrong, if anything. */
#define FAIL_WITH(mistake)                                                                         \
    do {                                                                                           \
        const char *text = (mistake);                                                              \
        if (text != NULL) FAIL("%s", text);                                                        \
    } while (0)

/* ============================== who runs next ================================================= */

static uint32_t random_below(uint32_t end) { /* splitmix64 */
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t z = random_state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) % end);
}

/* The first in [begin, end) that can run; end where there is none. */
static uint32_t first_in(uint32_t begin, uint32_t end) {
    while (begin < end) {
        uint64_t ahead = block->can_run.word[begin / 64] >> begin % 64;
        if (ahead != 0) {
            begin += (uint32_t)__builtin_ctzll(ahead);
            return begin < end ? begin : end;
        }
        begin += 64 - begin % 64;
    }
    return end;
}

/* Likewise, cyclically from `from`. */
static uint32_t next_in(uint32_t begin, uint32_t end, uint32_t from) {
    from = begin + (from - begin) % (end - begin);
    uint32_t thread = first_in(from, end);
    if (thread < end) return thread;
    thread = first_in(begin, from);
    return thread < from ? thread : end;
}

/* Likewise, but one of the warp that lags only where there is no other. */
static uint32_t next_but_laggard(uint32_t count, uint32_t from) {
    if (block->laggard == WARPS_MAX) return next_in(0, count, from);
    uint64_t *word = &block->can_run.word[block->laggard / 2], kept = *word;
    *word &= ~((uint64_t)0xffffffffu << block->laggard % 2 * SIMT_WARP_LANES);
    uint32_t thread = next_in(0, count, from);
    *word = kept;
    return thread < count ? thread : next_in(0, count, from);
}

static uint32_t choose_next(void) {
    uint32_t count = block->grid->threads;
    if (schedule.order == SIMT_ROUND_ROBIN) return next_in(0, count, (block->current + 1) % count);
    if (schedule.order == SIMT_RANDOM) return next_but_laggard(count, random_below(count));
    uint32_t warp = block->current / SIMT_WARP_LANES * SIMT_WARP_LANES;
    uint32_t thread = next_in(warp, warp + SIMT_WARP_LANES, block->current);
    if (thread < warp + SIMT_WARP_LANES) return thread;
    return next_in(0, count, random_below(count) / SIMT_WARP_LANES * SIMT_WARP_LANES);
}

static bool is_running(const struct block *other) {
    return other->live > 0;
}

/* Any but this one where there is another; SIMT_RANDOM: this one too. */
static struct block *choose_block(void) {
    const uint32_t count = SIMT_DEVICES_MAX * BLOCKS_AT_ONCE;
    uint32_t self = (uint32_t)(block - machine->block);
    uint32_t from = schedule.order == SIMT_ROUND_ROBIN ? self + 1 : random_below(count);
    for (uint32_t i = 0; i < count; i++) {
        struct block *other = &machine->block[(from + i) % count];
        if (is_running(other) && (other != block || schedule.order == SIMT_RANDOM)) return other;
    }
    return block;
}

static void enter_block(struct block *next) {
    block = next;
    simt_block_index = next->index;
    simt_thread_index.x = next->current;
}

/* Let another block go on, by the schedule; returns when this one is chosen again. */
static void switch_block(void) {
    if (machine->running < 2) return;
    struct block *self = block, *next = choose_block();
    if (next == self) return;
    enter_block(next);
    simt_fiber_switch(self->thread[self->current].fiber, next->thread[next->current].fiber);
}

static void say_deadlock(void) {
    uint32_t waiting[MEET_COUNT] = {0};
    char text[SIMT_TEXT_BYTES] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < block->grid->threads; i++)
        if (!block->thread[i].done) waiting[block->thread[i].waits_at]++;
    for (int m = MEET_BARRIER; m < MEET_COUNT; m++)
        if (waiting[m] > 0)
            used += (size_t)snprintf(text + used, sizeof text - used, ", %u at %s", waiting[m],
                                     meeting_names[m]);
    note_failure("deadlock%s, %u ended", text, block->grid->threads - block->live);
}

/* Perhaps: of a warp chosen at random. */
static void run_some_product(void) {
    if (!block->multiplies || random_below(PRODUCT_ODDS) != 0) return;
    uint32_t warp = random_below(block->grid->threads / SIMT_WARP_LANES);
    FAIL_WITH(simt_async_run(block->async, warp));
}

/* Let others run; returns when this thread is chosen again. */
static void yield(void) {
    if (schedule.order == SIMT_RANDOM) run_some_product();
    uint32_t self = block->current, next = choose_next();
    if (next == block->grid->threads) {
        if (block->live > 0) say_deadlock();
        go_home();
    }
    if (next == self) return;
    block->current = next;
    simt_thread_index.x = next;
    simt_fiber_switch(block->thread[self].fiber, block->thread[next].fiber);
}

static struct thread *self(void) {
    return &block->thread[block->current];
}

static void pause_at(enum meeting meeting) {
    self()->waits_at = meeting;
    block->can_run.word[block->current / 64] &= ~((uint64_t)1 << block->current % 64);
}

static void resume(struct block *in, uint32_t thread) {
    in->thread[thread].waits_at = MEET_NONE;
    in->can_run.word[thread / 64] |= (uint64_t)1 << thread % 64;
}

static void thread_main(void) {
    block->kernel(block->user);
    pause_at(MEET_NONE);
    self()->done = true;
    block->warp[block->current / SIMT_WARP_LANES].ended++;
    block->live--;
    if (block->at_barrier > 0) FAIL("ended while %u threads wait at a barrier", block->at_barrier);
    FAIL_WITH(simt_async_end_warp(block->async, block->current / SIMT_WARP_LANES));
    if (block->live == 0) FAIL_WITH(simt_async_end(block->async));
    yield();
}

/* ============================== meetings ====================================================== */

void simt_barrier(void) {
    pause_at(MEET_BARRIER);
    if (block->live < block->grid->threads)
        FAIL("a barrier after %u threads ended", block->grid->threads - block->live);
    if (++block->at_barrier == block->grid->threads) {
        block->at_barrier = 0;
        report->counters.barriers++;
        for (uint32_t i = 0; i < block->grid->threads; i++)
            resume(block, i);
        simt_view_barrier(block->view);
        if (schedule.order == SIMT_ROUND_ROBIN) switch_block();
    }
    yield();
}

/* Shared memory delivers 128 bytes a pass: 16 for each of eight lanes, 8 of 16, or 4 of 32, from
 * different banks. Lanes that want the same are served together. */
static void count_conflicts(const unsigned char *const *from, uint32_t bytes) {
    uint32_t lanes = 128 / bytes, in_bank[SIMT_WARP_LANES] = {0}, passes = 1;
    for (uint32_t l = 0; l < lanes; l++) {
        bool is_served = false;
        for (uint32_t before = 0; before < l; before++)
            is_served |= from[before] == from[l];
        uint32_t bank = (uint32_t)((uintptr_t)from[l] / bytes % lanes);
        if (!is_served && ++in_bank[bank] > passes) passes = in_bank[bank];
    }
    report->counters.bank_conflicts += passes - 1;
}

/* What the lanes loaded between two meetings, as if they had done it together; they need not have.
 */
static void count_loads(struct thread *lane) {
    for (uint32_t i = 0; i < lane->load_count; i++) {
        const unsigned char *from[SIMT_WARP_LANES];
        for (uint32_t l = 0; l < SIMT_WARP_LANES; l++)
            from[l] = lane[l].load[i];
        uint32_t bytes = lane->load_bytes[i], lanes = 128 / bytes;
        for (uint32_t begin = 0; begin < SIMT_WARP_LANES; begin += lanes)
            count_conflicts(from + begin, bytes);
    }
    for (uint32_t l = 0; l < SIMT_WARP_LANES; l++)
        lane[l].load_count = 0;
}

/* Which lane keeps the warp from meeting, now that one does. */
static void blame_lane(const struct thread *lane, enum meeting meeting) {
    for (uint32_t l = 0; l < SIMT_WARP_LANES; l++) {
        if (lane[l].done) FAIL("%s without lane %u, which ended", meeting_names[meeting], l);
        if (lane[l].waits_at != MEET_NONE && lane[l].waits_at != meeting &&
            lane[l].waits_at != MEET_BARRIER && lane[l].waits_at != MEET_NAMED)
            FAIL("%s while lane %u is at %s", meeting_names[meeting], l,
                 meeting_names[lane[l].waits_at]);
    }
}

/* Wait for the warp's other lanes; the last of them does what `act` says, for all. */
static void meet_warp(enum meeting meeting, void (*act)(struct thread *lane)) {
    uint32_t first = block->current / SIMT_WARP_LANES * SIMT_WARP_LANES;
    struct warp *warp = &block->warp[first / SIMT_WARP_LANES];
    struct thread *lane = &block->thread[first];
    pause_at(meeting);
    if (warp->ended > 0 || (warp->come > 0 && warp->to != meeting)) blame_lane(lane, meeting);
    warp->to = meeting;
    if (++warp->come == SIMT_WARP_LANES) {
        warp->come = 0;
        count_loads(lane);
        act(lane);
        for (uint32_t l = 0; l < SIMT_WARP_LANES; l++)
            resume(block, first + l);
    }
    yield();
}

/* True for the last of the threads that the barrier is of: those that wait there have gone on. */
static bool come_to(uint32_t id, uint32_t threads) {
    struct named_barrier *named = &block->named[id % NAMED_BARRIERS];
    uint64_t bit = (uint64_t)1 << block->current % 64,
             *has_come = &named->has_come.word[block->current / 64];
    if (id == 0 || id >= NAMED_BARRIERS || threads % SIMT_WARP_LANES != 0)
        FAIL("barrier %u of %u threads", id, threads);
    if (named->come > 0 && named->threads != threads)
        FAIL("barrier %u of %u threads, and of %u", id, threads, named->threads);
    if (*has_come & bit) FAIL("came to barrier %u again before the others", id);
    *has_come |= bit;
    named->threads = threads;
    if (++named->come < threads) return false;
    *named = (struct named_barrier){0};
    for (uint32_t i = 0; i < block->grid->threads; i++)
        if (block->thread[i].waits_at == MEET_NAMED && block->thread[i].barrier == id)
            resume(block, i);
    return true;
}

void simt_meet(uint32_t id, uint32_t threads) {
    self()->barrier = id;
    if (!come_to(id, threads)) pause_at(MEET_NAMED);
    yield();
}

void simt_signal(uint32_t id, uint32_t threads) {
    (void)come_to(id, threads);
    yield();
}

static void act_nothing(struct thread *lane) {
    (void)lane;
}

void simt_warp_barrier(void) {
    meet_warp(MEET_WARP, act_nothing);
}

static void act_shuffle(struct thread *lane) {
    for (uint32_t l = 0; l < SIMT_WARP_LANES; l++)
        lane[l].d[1] = lane[(l ^ lane[l].mask) % SIMT_WARP_LANES].d[0];
}

float simt_shuffle_xor(float value, uint32_t lane_mask) {
    self()->d[0] = value;
    self()->mask = lane_mask;
    meet_warp(MEET_SHUFFLE, act_shuffle);
    return self()->d[1];
}

/* ============================== copies ======================================================== */

static void check_shared(const void *address, const char *what) {
    const unsigned char *at = address;
    if ((uintptr_t)at % 16 != 0) FAIL("%s at %p, which 16 does not divide", what, address);
    if (at < block->shared || at + 16 > block->shared + block->grid->shared_bytes)
        FAIL("%s outside of the %zu bytes of shared memory", what, block->grid->shared_bytes);
}

void simt_copy16(void *shared, const void *global, bool wanted) {
    struct thread *thread = self();
    check_shared(shared, "a copy to shared memory");
    if ((uintptr_t)global % 16 != 0) FAIL("a copy from %p, which 16 does not divide", global);
    if (thread->copy_count == SIMT_COPIES_MAX)
        FAIL("more than %u copies under way", SIMT_COPIES_MAX);
    memset(shared, POISON, 16);
    simt_async_spoil(block->async, shared, 16);
    thread->copies[thread->copy_count++] = (struct copy){shared, wanted ? global : NULL,
                                                         thread->group};
    if (wanted) report->counters.copied_bytes += 16;
}

void simt_load(void *out, const void *shared, uint32_t bytes) {
    struct thread *thread = self();
    const unsigned char *from = shared;
    if ((uintptr_t)from % bytes != 0) FAIL("a load at %p, which %u does not divide", shared, bytes);
    if (from < block->shared || from + bytes > block->shared + block->grid->shared_bytes)
        FAIL("a load outside of the %zu bytes of shared memory", block->grid->shared_bytes);
    memcpy(out, from, bytes);
    if (thread->load_count == LOADS_MAX) return;
    thread->load_bytes[thread->load_count] = (uint8_t)bytes;
    thread->load[thread->load_count++] = from;
}

void simt_copy_commit(void) {
    self()->group++;
}

void simt_copy_wait(uint32_t pending) {
    struct thread *thread = self();
    uint32_t kept = 0;
    for (uint32_t i = 0; i < thread->copy_count; i++) {
        struct copy *copy = &thread->copies[i];
        if (copy->group + pending >= thread->group) {
            thread->copies[kept++] = *copy; /* not committed, or one of the newest */
            continue;
        }
        if (copy->from != NULL)
            memcpy(copy->to, copy->from, 16);
        else
            memset(copy->to, 0, 16);
        simt_async_wrote(block->async, block->current, copy->to, 16);
    }
    thread->copy_count = kept;
}

/* ============================== matrices ====================================================== */

static void load_matrices(struct thread *lane, uint32_t matrices, bool transposed) {
    for (uint32_t m = 0; m < matrices; m++) {
        const unsigned char *rows[8];
        for (uint32_t l = 0; l < 8; l++)
            rows[l] = lane[m * 8 + l].row;
        count_conflicts(rows, 16);
        for (uint32_t l = 0; l < SIMT_WARP_LANES; l++) {
            uint16_t element[2];
            for (uint32_t e = 0; e < 2; e++) {
                uint32_t row = transposed ? l % 4 * 2 + e : l / 4;
                uint32_t column = transposed ? l / 4 : l % 4 * 2 + e;
                memcpy(&element[e], lane[m * 8 + row].row + column * sizeof element[e],
                       sizeof element[e]);
            }
            lane[l].out[m] = (uint32_t)element[0] | (uint32_t)element[1] << 16;
        }
    }
    report->counters.matrix_loads++;
}

static void act_load_x2(struct thread *lane) {
    load_matrices(lane, 2, false);
}

static void act_load_x4(struct thread *lane) {
    load_matrices(lane, 4, false);
}

static void act_load_x4_transposed(struct thread *lane) {
    load_matrices(lane, 4, true);
}

void simt_load_matrix(uint32_t *out, const void *shared_row, uint32_t matrices, bool transposed) {
    struct thread *thread = self();
    if (block->current % SIMT_WARP_LANES < 8 * matrices) check_shared(shared_row, "ldmatrix");
    thread->row = shared_row;
    if (matrices == 2)
        meet_warp(MEET_LOAD_X2, act_load_x2);
    else
        meet_warp(transposed ? MEET_LOAD_X4_T : MEET_LOAD_X4,
                  transposed ? act_load_x4_transposed : act_load_x4);
    memcpy(out, thread->out, matrices * sizeof *out);
}

static float half_of(uint32_t pair, uint32_t which) {
    return bf16_to_f32((bf16)(pair >> 16 * which));
}

/* Fragments as PTX ISA, "Matrix fragments for mma.m16n8k16", lays them out. */
static void act_mma(struct thread *lane) {
    float a[16][16], b[16][8], sum[16][8] = {{0}};
    for (uint32_t l = 0; l < SIMT_WARP_LANES; l++)
        for (uint32_t half = 0; half < 2; half++) {
            for (uint32_t i = 0; i < 4; i++)
                a[l / 4 + i % 2 * 8][l % 4 * 2 + half + i / 2 * 8] = half_of(lane[l].a[i], half);
            for (uint32_t i = 0; i < 2; i++)
                b[l % 4 * 2 + half + i * 8][l / 4] = half_of(lane[l].b[i], half);
        }
    for (uint32_t row = 0; row < 16; row++)
        for (uint32_t k = 0; k < 16; k++)
            for (uint32_t column = 0; column < 8; column++)
                sum[row][column] += a[row][k] * b[k][column];
    for (uint32_t l = 0; l < SIMT_WARP_LANES; l++)
        for (uint32_t i = 0; i < 4; i++)
            lane[l].d[i] += sum[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
    report->counters.products++;
}

void simt_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    struct thread *thread = self();
    memcpy(thread->d, d, sizeof thread->d);
    memcpy(thread->a, a, sizeof thread->a);
    memcpy(thread->b, b, sizeof thread->b);
    meet_warp(MEET_MMA, act_mma);
    memcpy(d, thread->d, sizeof thread->d);
}

/* ============================== products of warpgroups ======================================== */

uint32_t simt_shared_address(const void *shared) {
    return (uint32_t)((const unsigned char *)shared - block->shared);
}

void simt_store4(void *shared, uint32_t value) {
    unsigned char *at = shared;
    if ((uintptr_t)at % 4 != 0 || at < block->shared ||
        at + 4 > block->shared + block->grid->shared_bytes)
        FAIL("a store outside of the %zu bytes of shared memory", block->grid->shared_bytes);
    memcpy(at, &value, sizeof value);
    simt_async_wrote(block->async, block->current, at, sizeof value);
}

void simt_async_proxy_fence(void) {
    simt_async_publish(block->async, block->current);
}

void simt_wgmma_fence(float *sums, uint32_t count) {
    simt_async_fence(block->async, block->current, sums, count);
}

/* Early, late, or at any time between: whenever a thread goes on. */
static void act_wgmma(struct thread *lane) {
    uint32_t warp = block->current / SIMT_WARP_LANES;
    float *sums[SIMT_WARP_LANES];
    for (uint32_t l = 0; l < SIMT_WARP_LANES; l++) {
        sums[l] = lane[l].sums;
        if (memcmp(&lane[l].product, &lane[0].product, sizeof lane[0].product) != 0)
            FAIL("a product whose lanes differ in their tiles");
    }
    block->multiplies = true;
    FAIL_WITH(simt_async_issue(block->async, warp, &lane[0].product, sums));
    if (schedule.order == SIMT_GREEDY_WARP) FAIL_WITH(simt_async_run(block->async, warp));
    report->counters.products += lane[0].product.count / 4;
}

void simt_wgmma(float *sums, uint32_t count, uint64_t a, uint64_t b, bool line_is_step, bool adds) {
    struct thread *thread = self();
    memset(&thread->product, 0, sizeof thread->product); /* compared with others' */
    thread->product.a = a;
    thread->product.b = b;
    thread->product.count = count;
    thread->product.line_is_step = line_is_step;
    thread->product.adds = adds;
    thread->sums = sums;
    meet_warp(MEET_WGMMA, act_wgmma);
}

static void act_commit(struct thread *lane) {
    simt_async_commit(block->async, (uint32_t)(lane - block->thread) / SIMT_WARP_LANES);
}

void simt_wgmma_commit(void) {
    meet_warp(MEET_WGMMA_COMMIT, act_commit);
}

static void act_wait(struct thread *lane) {
    FAIL_WITH(simt_async_wait(block->async, (uint32_t)(lane - block->thread) / SIMT_WARP_LANES,
                              lane[0].mask));
}

void simt_wgmma_wait(uint32_t pending) {
    self()->mask = pending;
    meet_warp(MEET_WGMMA_WAIT, act_wait);
}

/* ============================== memory that devices share ===================================== */

/* Steps in it are where blocks of several devices may come between each other. */
static void step(void) {
    if (schedule.order == SIMT_RANDOM && random_below(OTHER_ODDS) == 0) switch_block();
}

void simt_share_store(float *to, const float *value) {
    step();
    simt_view_store(block->view, block->current, to, value);
}

void simt_share_load(float *value_out, const float *from) {
    step();
    simt_view_load(block->view, block->current, value_out, from);
}

void simt_store_release(uint32_t *at, uint32_t value) {
    step();
    simt_view_release(block->view, block->current);
    *at = value;
}

uint32_t simt_load_acquire(const uint32_t *at) {
    step();
    simt_view_acquire(block->view, block->current);
    return *at;
}

uint64_t simt_time(void) {
    return clock_ns;
}

/* Other threads of the process may run kernels of their own meanwhile. */
static void let_in(void) {
    struct machine *own_machine = machine;
    struct block *own_block = block;
    own_machine->pauses = 0;
    clock_ns += let_others_in();
    machine = own_machine;
    enter_block(own_block);
}

void simt_pause(void) {
    clock_ns += PAUSE_NS;
    if (let_others_in != NULL && ++machine->pauses >= PAUSES_MAX) let_in();
    switch_block();
    /* Also a warp that is greedy: who waits must not keep from running who is waited for. */
    uint32_t self = block->current, next = next_in(0, block->grid->threads, self + 1);
    if (next == self) return;
    block->current = next;
    simt_thread_index.x = next;
    simt_fiber_switch(block->thread[self].fiber, block->thread[next].fiber);
}

void simt_share_threads(uint64_t (*let_in_others)(void)) {
    let_others_in = let_in_others;
}

/* ============================== blocks ======================================================== */

unsigned char *simt_shared(void) {
    return block->shared;
}

static uint32_t block_count(const struct simt_grid *grid) {
    return grid->x * grid->y * grid->z;
}

static void begin_block(struct block *place, struct device *device) {
    const struct simt_work *work = &device->works[device->work];
    const struct simt_grid *grid = &work->grid;
    /* Blocks have no order; the schedules other than the first run them backwards. */
    uint32_t begun = device->begun++;
    uint32_t idx = schedule.order == SIMT_ROUND_ROBIN ? begun : block_count(grid) - 1 - begun;
    device->running++;
    machine->running++;
    *place = (struct block){
        .grid = grid,
        .device = device,
        .index = {idx % grid->x, idx / grid->x % grid->y, idx / grid->x / grid->y},
        .thread = place->thread,
        .live = grid->threads,
        .kernel = work->kernel,
        .user = work->user,
        .view = place->view,
        .async = place->async};
    if (place->thread == NULL) {
        place->thread = calloc(SIMT_THREADS_MAX, sizeof *place->thread);
        place->view = simt_view_create();
        place->async = simt_async_create();
        KERNEL_CHECK(place->thread != NULL);
    }
    place->shared = aligned_alloc(1024, grid->shared_bytes / 1024 * 1024 + 1024);
    memset(place->shared, POISON, grid->shared_bytes);
    simt_async_begin(place->async, grid->threads, place->shared, grid->shared_bytes);
    simt_view_begin(place->view);
    for (uint32_t i = 0; i < grid->threads; i++) {
        struct thread *thread = &place->thread[i];
        if (thread->fiber == NULL) thread->fiber = simt_fiber_create();
        simt_fiber_reset(thread->fiber, thread_main);
        thread->done = false;
        resume(place, i);
        thread->copy_count = thread->group = thread->load_count = 0;
    }
    place->current = schedule.order == SIMT_ROUND_ROBIN ? 0 : random_below(grid->threads);
    place->laggard = WARPS_MAX;
    if (schedule.order == SIMT_RANDOM && random_below(LAGGARD_ODDS) == 0)
        place->laggard = random_below(grid->threads / SIMT_WARP_LANES);
}

static void end_block(struct block *ended) {
    simt_view_end(ended->view);
    free(ended->shared);
    ended->shared = NULL;
    ended->live = 0;
    ended->device->running--;
    machine->running--;
}

/* Begin what the device has room for. False where it has nothing left that runs. */
static bool fill_device(struct device *device, struct block *place, uint32_t at_once) {
    while (device->running == 0 && device->work < device->work_count &&
           device->begun == block_count(&device->works[device->work].grid)) {
        device->work++;
        device->begun = 0;
    }
    if (device->work == device->work_count) return false;
    for (uint32_t i = 0; i < at_once; i++)
        if (!is_running(&place[i]) &&
            device->begun < block_count(&device->works[device->work].grid))
            begin_block(&place[i], device);
    return true;
}

/* One that nobody runs. */
static struct machine *take_machine(void) {
    struct machine *taken = idle_machines;
    if (taken != NULL) {
        idle_machines = taken->next;
        return taken;
    }
    taken = calloc(1, sizeof *taken);
    KERNEL_CHECK(taken != NULL);
    taken->host = simt_fiber_create();
    return taken;
}

static bool run(struct device *devices, uint32_t device_count, uint32_t at_once) {
    machine = take_machine();
    block = &machine->block[0];
    while (!report->failed) {
        bool runs = false;
        for (uint32_t d = 0; d < device_count; d++)
            runs |= fill_device(&devices[d], &machine->block[d * BLOCKS_AT_ONCE], at_once);
        if (!runs) break;
        enter_block(is_running(block) ? block : choose_block());
        simt_fiber_switch(machine->host, block->thread[block->current].fiber);
        if (block->live == 0) end_block(block);
    }
    for (uint32_t i = 0; i < SIMT_DEVICES_MAX * BLOCKS_AT_ONCE; i++)
        if (is_running(&machine->block[i])) end_block(&machine->block[i]);
    machine->next = idle_machines;
    idle_machines = machine;
    return !report->failed;
}

void simt_begin(struct simt_schedule new_schedule, struct simt_report *new_report) {
    schedule = new_schedule;
    random_state = new_schedule.seed;
    clock_ns = 0;
    report = new_report;
    *report = (struct simt_report){0};
}

static void check_grid(const struct simt_grid *grid) {
    KERNEL_CHECK(grid->threads % SIMT_WARP_LANES == 0 && grid->threads <= SIMT_THREADS_MAX &&
                 grid->shared_bytes <= SIMT_SHARED_BYTES_MAX);
}

bool simt_launch(const struct simt_grid *grid, void (*kernel)(void *user), void *user) {
    const struct simt_work work = {.grid = *grid, .kernel = kernel, .user = user};
    struct device device = {.works = &work, .work_count = 1};
    check_grid(grid);
    return run(&device, 1, 1);
}

bool simt_launch_together(const struct simt_work *const *works, const uint32_t *work_counts,
                          uint32_t device_count) {
    struct device devices[SIMT_DEVICES_MAX];
    KERNEL_CHECK(device_count <= SIMT_DEVICES_MAX);
    for (uint32_t d = 0; d < device_count; d++) {
        devices[d] = (struct device){.works = works[d], .work_count = work_counts[d]};
        for (uint32_t w = 0; w < work_counts[d]; w++)
            check_grid(&works[d][w].grid);
    }
    return run(devices, device_count, BLOCKS_AT_ONCE);
}
