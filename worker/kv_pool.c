#include "kv_pool.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"
#include "device.h"
#include "memory_fill.h"

/* Address space of a layer, in tokens: more than a machine holds, and at 61 layers of 1,152 bytes
 * a token still a hundredth of what a process may address. A multiple of any system's page. */
#define LAYER_CAP_TOK (UINT64_C(1) << 24)

struct kv_pool {
    struct kv_pool_shape shape;
    uint8_t *base;
    size_t layer_bytes; /* reserved */
    size_t page_bytes;  /* of one layer */
    uint32_t page_count;
    struct device_region *region[]; /* [layers] on a device, where base is NULL */
};

static enum status reserve_on_device(struct kv_pool *pool, struct error *err);
static enum status set_device_pages(struct kv_pool *pool, uint32_t page_count, struct error *err);
static bool memory_can_be_had(size_t bytes);
static bool set_pages(const struct kv_pool *pool, uint32_t from, uint32_t to);
static size_t mapped_bytes(const struct kv_pool *pool, uint32_t page_count);

enum status kv_pool_create(const struct kv_pool_shape *shape, struct kv_pool **pool_out,
                           struct error *err) {
    struct kv_pool *pool = calloc(1, sizeof *pool + shape->layers * sizeof pool->region[0]);
    if (!pool) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the KV pool");
    pool->shape = *shape;
    pool->page_bytes = shape->tok_bytes * shape->page_tok;
    pool->layer_bytes = shape->tok_bytes * LAYER_CAP_TOK;
    if (shape->device) {
        enum status status = reserve_on_device(pool, err);
        if (status != STATUS_OK)
            kv_pool_destroy(&pool);
        else
            *pool_out = pool;
        return status;
    }
    size_t bytes = pool->layer_bytes * shape->layers;
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        free(pool);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                         "%zu bytes of address space for the KV pool: %s", bytes, strerror(errno));
    }
    (void)madvise(base, bytes, MADV_HUGEPAGE); /* fewer TLB misses; fine without */
    pool->base = base;
    *pool_out = pool;
    return STATUS_OK;
}

void kv_pool_destroy(struct kv_pool **pool) {
    if (!*pool) return;
    if ((*pool)->base) munmap((*pool)->base, (*pool)->layer_bytes * (*pool)->shape.layers);
    for (uint32_t layer = 0; layer < (*pool)->shape.layers; layer++)
        if ((*pool)->region[layer])
            (*pool)->shape.device->ops->region_destroy((*pool)->region[layer]);
    free(*pool);
    *pool = NULL;
}

enum status kv_pool_resize(struct kv_pool *pool, uint32_t page_count, struct error *err) {
    size_t bytes = pool->page_bytes * page_count * pool->shape.layers;
    size_t grows_bytes = page_count > pool->page_count
                             ? bytes - pool->page_bytes * pool->page_count * pool->shape.layers
                             : 0;
    if (page_count > LAYER_CAP_TOK / pool->shape.page_tok)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                         "a KV pool of %u pages of %u tokens; at most %" PRIu64 " tokens",
                         page_count, pool->shape.page_tok, LAYER_CAP_TOK);
    if (pool->shape.device) return set_device_pages(pool, page_count, err);
    if (!memory_can_be_had(grows_bytes))
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "a KV pool of %zu bytes: %s", bytes,
                         strerror(errno));
    if (!set_pages(pool, pool->page_count, page_count)) {
        int cause = errno;
        CHECK(set_pages(pool, page_count, pool->page_count));
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "a KV pool of %zu bytes: %s", bytes,
                         strerror(cause));
    }
    pool->page_count = page_count;
    return STATUS_OK;
}

void *kv_pool_layer(const struct kv_pool *pool, uint32_t layer) {
    CHECK(layer < pool->shape.layers);
    if (pool->shape.device) return pool->shape.device->ops->region_begin(pool->region[layer]);
    return pool->base + layer * pool->layer_bytes;
}

struct device *kv_pool_device(const struct kv_pool *pool) {
    return pool->shape.device;
}

size_t kv_pool_layer_bytes(const struct kv_pool *pool) {
    if (pool->shape.device) return pool->shape.device->ops->region_bytes(pool->region[0]);
    return mapped_bytes(pool, pool->page_count);
}

uint32_t kv_pool_pages(const struct kv_pool *pool) {
    return pool->page_count;
}

uint32_t kv_pool_layers(const struct kv_pool *pool) {
    return pool->shape.layers;
}

size_t kv_pool_page_bytes(const struct kv_pool *pool) {
    return pool->page_bytes;
}

size_t kv_pool_tok_bytes(const struct kv_pool *pool) {
    return pool->shape.tok_bytes;
}

uint64_t kv_pool_bytes(const struct kv_pool *pool) {
    return (uint64_t)kv_pool_layer_bytes(pool) * pool->shape.layers;
}

/* ============================== on a device =================================================== */

static enum status reserve_on_device(struct kv_pool *pool, struct error *err) {
    const struct kv_pool_shape *shape = &pool->shape;
    enum status status = STATUS_OK;
    for (uint32_t layer = 0; layer < shape->layers && status == STATUS_OK; layer++)
        status = shape->device->ops->region_create(shape->device, pool->layer_bytes,
                                                   &pool->region[layer], err);
    return status;
}

/* Cleared, so that what no row was written to is the same on every rank. */
static enum status set_layer(struct kv_pool *pool, uint32_t layer, uint32_t page_count,
                             struct error *err) {
    struct device *device = pool->shape.device;
    struct device_region *region = pool->region[layer];
    size_t before = device->ops->region_bytes(region);
    enum status status = device->ops->region_resize(region, pool->page_bytes * page_count, err);
    size_t after = device->ops->region_bytes(region);
    if (status != STATUS_OK || after <= before) return status;
    return device_clear(device, (uint8_t *)device->ops->region_begin(region) + before,
                        after - before, err);
}

static enum status set_device_pages(struct kv_pool *pool, uint32_t page_count, struct error *err) {
    enum status status = STATUS_OK;
    for (uint32_t layer = 0; layer < pool->shape.layers && status == STATUS_OK; layer++)
        status = set_layer(pool, layer, page_count, err);
    if (status == STATUS_OK) {
        pool->page_count = page_count;
        return status;
    }
    struct error ignored; /* what was had a moment ago */
    for (uint32_t layer = 0; layer < pool->shape.layers; layer++)
        if (set_layer(pool, layer, pool->page_count, &ignored) != STATUS_OK) return STATUS_INTERNAL;
    return error_wrap(err, status, "a KV pool of %zu bytes",
                      pool->page_bytes * page_count * pool->shape.layers);
}

/* ============================== on the host =================================================== */

/* The system judges each request by itself, and layer by layer would grant more than it has. */
static bool memory_can_be_had(size_t bytes) {
    if (bytes == 0) return true;
    void *probe = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (probe == MAP_FAILED) return false;
    munmap(probe, bytes);
    return true;
}

static bool set_pages(const struct kv_pool *pool, uint32_t from, uint32_t to) {
    size_t front = mapped_bytes(pool, to), old = mapped_bytes(pool, from);
    for (uint32_t layer = 0; layer < pool->shape.layers; layer++) {
        uint8_t *base = kv_pool_layer(pool, layer);
        if (front > old && (mprotect(base, front, PROT_READ | PROT_WRITE) != 0 ||
                            !memory_fill(base + old, front - old)))
            return false;
        if (front < old && (madvise(base + front, old - front, MADV_DONTNEED) != 0 ||
                            mprotect(base + front, old - front, PROT_NONE) != 0))
            return false;
    }
    return true;
}

/* Of one layer, in whole system pages. */
static size_t mapped_bytes(const struct kv_pool *pool, uint32_t page_count) {
    const size_t granule = 1u << 16; /* a multiple of every system's page size */
    return (pool->page_bytes * page_count + granule - 1) / granule * granule;
}
