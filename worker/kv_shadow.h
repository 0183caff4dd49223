/* A debugging twin of the KV cache: for every slot, which prefix it stands for.
 *
 * Beside each cached token lie the hash of the prefix before it and of the prefix with it. Before
 * a step reads a sequence's cache, its chain of hashes must lead from the empty prefix to the
 * plan's: so a page given to two owners, a wrong copy or a stale table is found where it is read,
 * not guessed from wrong words later. Cost: 16 bytes a slot, and a look at every slot read.
 */
#ifndef ESPALIER_KV_SHADOW_H
#define ESPALIER_KV_SHADOW_H

#include "base/status.h"
#include "kv_copy/kv_copy.h"

struct kv_shadow;

enum status kv_shadow_create(uint32_t page_count, uint32_t page_tok, struct kv_shadow **shadow_out,
                             struct error *err) MUST_USE;
void kv_shadow_destroy(struct kv_shadow **shadow);

void kv_shadow_copy(struct kv_shadow *shadow, const struct kv_page_copy *copies, uint32_t count);
void kv_shadow_move(struct kv_shadow *shadow, uint32_t from, uint32_t to);
void kv_shadow_store(struct kv_shadow *shadow, uint32_t slot, uint64_t prefix_before,
                     uint64_t prefix_with);

/* Do the first tok_count tokens of the page table lead to prefix? FAILED_PRECONDITION names the
 * first token that is another's. */
enum status kv_shadow_check(const struct kv_shadow *shadow, const uint32_t *page,
                            uint32_t tok_count, uint64_t prefix, struct error *err) MUST_USE;

#endif
