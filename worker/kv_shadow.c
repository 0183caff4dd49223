#include "kv_shadow.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

struct entry {
    uint64_t before, with;
};

struct kv_shadow {
    uint32_t page_tok;
    struct entry entry[]; /* [page_count * page_tok] */
};

enum status kv_shadow_create(uint32_t page_count, uint32_t page_tok, struct kv_shadow **shadow_out,
                             struct error *err) {
    size_t slots = (size_t)page_count * page_tok;
    struct kv_shadow *shadow = calloc(1, sizeof *shadow + slots * sizeof(struct entry));
    if (!shadow)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "shadow hashes of %zu bytes",
                         slots * sizeof(struct entry));
    shadow->page_tok = page_tok;
    *shadow_out = shadow;
    return STATUS_OK;
}

void kv_shadow_destroy(struct kv_shadow **shadow) {
    free(*shadow);
    *shadow = NULL;
}

void kv_shadow_copy(struct kv_shadow *shadow, const struct kv_page_copy *copies, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        const struct kv_page_copy *copy = &copies[i];
        memcpy(&shadow->entry[(size_t)copy->target * shadow->page_tok],
               &shadow->entry[(size_t)copy->source * shadow->page_tok],
               copy->tok_count * sizeof(struct entry));
    }
}

void kv_shadow_move(struct kv_shadow *shadow, uint32_t from, uint32_t to) {
    shadow->entry[to] = shadow->entry[from];
}

void kv_shadow_store(struct kv_shadow *shadow, uint32_t slot, uint64_t prefix_before,
                     uint64_t prefix_with) {
    shadow->entry[slot] = (struct entry){.before = prefix_before, .with = prefix_with};
}

enum status kv_shadow_check(const struct kv_shadow *shadow, const uint32_t *page,
                            uint32_t tok_count, uint64_t prefix, struct error *err) {
    uint64_t hash = HASH_CHAIN_EMPTY;
    for (uint32_t tok = 0; tok < tok_count; tok++) {
        uint32_t in_page = tok % shadow->page_tok;
        const struct entry *entry =
            &shadow->entry[(size_t)page[tok / shadow->page_tok] * shadow->page_tok + in_page];
        if (entry->before != hash)
            return error_set(err, STATUS_FAILED_PRECONDITION,
                             "the cache of token %u (page %u, offset %u) is of another prefix", tok,
                             page[tok / shadow->page_tok], in_page);
        hash = entry->with;
    }
    if (hash == prefix) return STATUS_OK;
    return error_set(err, STATUS_FAILED_PRECONDITION,
                     "the cache of the first %u tokens is of another prefix than the plan's",
                     tok_count);
}
