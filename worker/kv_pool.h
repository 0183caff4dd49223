/* The memory of the latent KV cache: for each layer an array of pages.
 *
 *     kv[layer][page][token of the page][bytes]
 *
 * A layer's array begins at an address that never changes: address space is reserved at a cap, and
 * memory is mapped into its front. So the pool can be resized while everything that points into it
 * stays valid. Which page belongs to whom is the coordinator's business.
 *
 *     |<- mapped: page_count ->|<- reserved, no memory behind it ->|<- next layer
 *
 * Owner: the engine. One thread.
 */
#ifndef ESPALIER_KV_POOL_H
#define ESPALIER_KV_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct device;

struct kv_pool_shape {
    uint32_t layers;
    uint32_t page_tok;
    size_t tok_bytes;      /* of a layer */
    struct device *device; /* whose memory it is; NULL: the host's */
};

struct kv_pool;

/* An empty pool. RESOURCE_EXHAUSTED where the address space cannot be had. */
enum status kv_pool_create(const struct kv_pool_shape *shape, struct kv_pool **pool_out,
                           struct error *err) MUST_USE;
void kv_pool_destroy(struct kv_pool **pool);

/* Have page_count pages, with memory behind them: what the pool promises is there. Pages below both
 * the old and the new count keep their contents. The pool is as it was where it fails:
 * RESOURCE_EXHAUSTED with the bytes asked for. */
enum status kv_pool_resize(struct kv_pool *pool, uint32_t page_count, struct error *err) MUST_USE;

struct device *kv_pool_device(const struct kv_pool *pool);

/* Mapped of one layer, in whole system pages, or granules of the device. */
size_t kv_pool_layer_bytes(const struct kv_pool *pool);
void *kv_pool_layer(const struct kv_pool *pool, uint32_t layer); /* [pages, page_tok] */
uint32_t kv_pool_pages(const struct kv_pool *pool);
uint32_t kv_pool_layers(const struct kv_pool *pool);
size_t kv_pool_page_bytes(const struct kv_pool *pool); /* of one layer */
size_t kv_pool_tok_bytes(const struct kv_pool *pool);
uint64_t kv_pool_bytes(const struct kv_pool *pool); /* mapped */

#endif
