#include "simt_async.h"

#include <stdlib.h>
#include <string.h>

#include "kernel.h"

#define POISON        0xff
#define WARPS_MAX     (SIMT_THREADS_MAX / SIMT_WARP_LANES)
#define GROUP_WARPS   (SIMT_ASYNC_LANES / SIMT_WARP_LANES)
#define PRODUCTS_MAX  64u  /* of a warp, under way */
#define WRITTEN_MAX   512u /* by a thread since its fence; what is more stays unseen */
#define SUMS_MAX      128u
#define INNER         16u
#define ROWS          16u /* of a warp */
#define LINE_BYTES    128u
#define EIGHT_BYTES   1024u
#define LINE_ELEMENTS 64u

struct written {
    size_t at;
    uint32_t bytes;
};

struct thread {
    struct written written[WRITTEN_MAX];
    uint32_t written_count;
    float *sums;            /* the kernel's, poisoned while products are under way */
    float value[SUMS_MAX];  /* meanwhile */
    const float *fenced_at; /* NULL: no fence since the last wait */
    float fenced[SUMS_MAX];
};

struct under_way {
    struct simt_product of;
    uint32_t group;
};

struct warp {
    struct under_way product[PRODUCTS_MAX]; /* the oldest first */
    uint32_t count, group;                  /* the group that commit closes next */
    uint32_t sums_count;                    /* 0: the sums are the kernel's */
    uint32_t issued;
};

/* What its warps, one after the other, issue. */
struct group {
    struct simt_product of[PRODUCTS_MAX]; /* the last */
    uint32_t issued;                      /* by the first of them */
};

struct simt_async {
    const unsigned char *shared;
    size_t shared_bytes;
    unsigned char seen[SIMT_SHARED_BYTES_MAX];
    struct warp warp[WARPS_MAX];
    struct group group[WARPS_MAX / GROUP_WARPS];
    struct thread thread[SIMT_THREADS_MAX];
};

struct simt_async *simt_async_create(void) {
    struct simt_async *async = calloc(1, sizeof *async);
    KERNEL_CHECK(async != NULL);
    return async;
}

void simt_async_begin(struct simt_async *async, uint32_t threads, const unsigned char *shared,
                      size_t shared_bytes) {
    async->shared = shared;
    async->shared_bytes = shared_bytes;
    memset(async->seen, POISON, shared_bytes);
    memset(async->warp, 0, sizeof async->warp);
    for (uint32_t i = 0; i < WARPS_MAX / GROUP_WARPS; i++)
        async->group[i].issued = 0;
    for (uint32_t i = 0; i < threads; i++) {
        async->thread[i].written_count = 0;
        async->thread[i].fenced_at = NULL;
    }
}

/* ============================== what is seen ================================================== */

void simt_async_spoil(struct simt_async *async, const void *at, uint32_t bytes) {
    memset(async->seen + ((const unsigned char *)at - async->shared), POISON, bytes);
}

void simt_async_wrote(struct simt_async *async, uint32_t thread, const void *at, uint32_t bytes) {
    struct thread *by = &async->thread[thread];
    simt_async_spoil(async, at, bytes);
    if (by->written_count == WRITTEN_MAX) return;
    size_t offset = (size_t)((const unsigned char *)at - async->shared);
    by->written[by->written_count++] = (struct written){offset, bytes};
}

void simt_async_publish(struct simt_async *async, uint32_t thread) {
    struct thread *by = &async->thread[thread];
    for (uint32_t i = 0; i < by->written_count; i++)
        memcpy(async->seen + by->written[i].at, async->shared + by->written[i].at,
               by->written[i].bytes);
    by->written_count = 0;
}

/* ============================== tiles ========================================================= */

static uint32_t tile_begin(uint64_t tile) {
    return (uint32_t)(tile & 0x3fff) << 4;
}

static uint32_t tile_leading_bytes(uint64_t tile) {
    return (uint32_t)(tile >> 16 & 0x3fff) << 4;
}

static uint32_t tile_stride_bytes(uint64_t tile) {
    return (uint32_t)(tile >> 32 & 0x3fff) << 4;
}

static const char *check_tile(uint64_t tile, bool line_is_step) {
    uint32_t in_eight = tile_begin(tile) % EIGHT_BYTES;
    if (tile >> 62 != 1) return "a tile of another swizzle than that of 128 bytes";
    if (tile >> 49 & 7) return "a tile with a base offset";
    if (in_eight >= LINE_BYTES) return "a tile that begins inside of eight lines";
    if (line_is_step ? in_eight != 0 : in_eight + INNER * sizeof(bf16) > LINE_BYTES)
        return "a tile that begins inside of a line";
    return NULL;
}

/* PTX ISA 8.8, 9.7.15.5.1, "Strides", for 128-byte swizzling. */
static size_t element_at(uint64_t tile, bool line_is_step, uint32_t idx, uint32_t step) {
    size_t at = tile_begin(tile);
    if (line_is_step)
        at += (size_t)idx / LINE_ELEMENTS * tile_leading_bytes(tile) +
              idx % LINE_ELEMENTS * sizeof(bf16) + (size_t)step / 8 * tile_stride_bytes(tile) +
              step % 8 * LINE_BYTES;
    else
        at += (size_t)idx / 8 * tile_stride_bytes(tile) + idx % 8 * LINE_BYTES +
              step * sizeof(bf16);
    return at ^ (at >> 7 & 7) << 4;
}

/* Those that lie beside each other whatever the tile: eight steps, or eight lines where a line is a
 * step, each value `stride` behind the one before. */
static bool read_eight(const struct simt_async *async, size_t at, float *values_out,
                       size_t stride) {
    bf16 value[8];
    if (at + sizeof value > async->shared_bytes) return false;
    memcpy(value, async->seen + at, sizeof value);
    for (uint32_t i = 0; i < 8; i++)
        values_out[i * stride] = bf16_to_f32(value[i]);
    return true;
}

/* ============================== products ====================================================== */

void simt_async_fence(struct simt_async *async, uint32_t thread, float *sums, uint32_t count) {
    async->thread[thread].fenced_at = sums;
    memcpy(async->thread[thread].fenced, sums, count * sizeof *sums);
}

/* The sums become the products'. */
static const char *take_sums(struct simt_async *async, uint32_t warp, uint32_t count,
                             float *const sums[SIMT_WARP_LANES]) {
    for (uint32_t l = 0; l < SIMT_WARP_LANES; l++) {
        struct thread *thread = &async->thread[warp * SIMT_WARP_LANES + l];
        if (thread->fenced_at != sums[l]) return "a product of sums without a fence before it";
        if (memcmp(thread->fenced, sums[l], count * sizeof(float)) != 0)
            return "sums that were written between the fence and the product";
        thread->fenced_at = NULL;
        thread->sums = sums[l];
        memcpy(thread->value, sums[l], count * sizeof(float));
        memset(sums[l], POISON, count * sizeof(float));
    }
    async->warp[warp].sums_count = count;
    return NULL;
}

static bool is_same(const struct simt_product *a, const struct simt_product *b) {
    return a->a == b->a && a->b == b->b && a->count == b->count &&
           a->line_is_step == b->line_is_step && a->adds == b->adds;
}

/* Is it what the group's other warps have issued there? */
static bool is_of_group(struct simt_async *async, uint32_t warp, const struct simt_product *of) {
    struct group *group = &async->group[warp / GROUP_WARPS];
    uint32_t idx = async->warp[warp].issued++;
    struct simt_product *there = &group->of[idx % PRODUCTS_MAX];
    if (idx < group->issued) return group->issued - idx > PRODUCTS_MAX || is_same(there, of);
    *there = *of;
    group->issued++;
    return true;
}

const char *simt_async_issue(struct simt_async *async, uint32_t warp, const struct simt_product *of,
                             float *const sums[SIMT_WARP_LANES]) {
    struct warp *by = &async->warp[warp];
    const char *mistake = check_tile(of->a, false);
    if (mistake == NULL) mistake = check_tile(of->b, of->line_is_step);
    if (mistake == NULL && by->sums_count == 0) mistake = take_sums(async, warp, of->count, sums);
    if (mistake != NULL) return mistake;
    if (!is_of_group(async, warp, of)) return "a product whose warps differ in their tiles";
    for (uint32_t l = 0; l < SIMT_WARP_LANES; l++)
        if (async->thread[warp * SIMT_WARP_LANES + l].sums != sums[l] ||
            by->sums_count != of->count)
            return "products of several sums at a time, which are not emulated";
    if (by->count == PRODUCTS_MAX) return "more products under way than are emulated";
    by->product[by->count++] = (struct under_way){*of, by->group};
    return NULL;
}

void simt_async_commit(struct simt_async *async, uint32_t warp) {
    async->warp[warp].group++;
}

/* Fragments as PTX ISA, "WGMMA.mma_async.m64nNk16 register fragment layout for accumulator matrix
 * D", lays them out. */
static const char *multiply(struct simt_async *async, uint32_t warp,
                            const struct simt_product *of) {
    static float a[ROWS][INNER], b[INNER][2 * SUMS_MAX], sum[2 * SUMS_MAX]; /* one at a time */
    uint32_t columns = 2 * of->count, first = warp * SIMT_WARP_LANES % SIMT_ASYNC_LANES / 2;
    bool inside = true;
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t k = 0; k < INNER; k += 8)
            inside &= read_eight(async, element_at(of->a, false, first + r, k), &a[r][k], 1);
    for (uint32_t k = 0; k < INNER; k += of->line_is_step ? 1 : 8)
        for (uint32_t n = 0; n < columns; n += of->line_is_step ? 8 : 1)
            inside &= read_eight(async, element_at(of->b, of->line_is_step, n, k), &b[k][n],
                                 of->line_is_step ? 1 : 2 * SUMS_MAX);
    if (!inside) return "a product that reads outside of shared memory";
    for (uint32_t r = 0; r < ROWS; r++) {
        memset(sum, 0, sizeof sum);
        for (uint32_t k = 0; k < INNER; k++)
            for (uint32_t n = 0; n < columns; n++)
                sum[n] += a[r][k] * b[k][n];
        for (uint32_t n = 0; n < columns; n++) {
            uint32_t lane = r % 8 * 4 + n / 2 % 4;
            float *value = async->thread[warp * SIMT_WARP_LANES + lane].value +
                           (n / 8 * 4 + r / 8 * 2 + n % 2);
            *value = (of->adds ? *value : 0.0f) + sum[n];
        }
    }
    return NULL;
}

const char *simt_async_run(struct simt_async *async, uint32_t warp) {
    struct warp *by = &async->warp[warp];
    if (by->count == 0) return NULL;
    const char *mistake = multiply(async, warp, &by->product[0].of);
    by->count--;
    memmove(by->product, by->product + 1, by->count * sizeof by->product[0]);
    return mistake;
}

/* The sums become the kernel's again. */
static const char *give_sums(struct simt_async *async, uint32_t warp) {
    uint32_t count = async->warp[warp].sums_count;
    async->warp[warp].sums_count = 0;
    for (uint32_t l = 0; l < SIMT_WARP_LANES; l++) {
        struct thread *thread = &async->thread[warp * SIMT_WARP_LANES + l];
        const unsigned char *bytes = (const unsigned char *)thread->sums;
        for (size_t i = 0; i < count * sizeof(float); i++)
            if (bytes[i] != POISON) return "sums that were written while products added to them";
        memcpy(thread->sums, thread->value, count * sizeof(float));
    }
    return NULL;
}

const char *simt_async_wait(struct simt_async *async, uint32_t warp, uint32_t pending) {
    struct warp *by = &async->warp[warp];
    const char *mistake = NULL;
    while (mistake == NULL && by->count > 0 && by->product[0].group + pending < by->group)
        mistake = simt_async_run(async, warp);
    if (mistake == NULL && by->count == 0) mistake = give_sums(async, warp);
    return mistake;
}

const char *simt_async_end_warp(const struct simt_async *async, uint32_t warp) {
    return async->warp[warp].sums_count == 0 ? NULL : "ended without a wait for its products";
}

const char *simt_async_end(const struct simt_async *async) {
    for (uint32_t warp = 0; warp < WARPS_MAX; warp++)
        if (async->warp[warp].issued != async->group[warp / GROUP_WARPS].issued)
            return "a product of a part of a warpgroup";
    return NULL;
}
