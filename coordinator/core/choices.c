#include "choices.h"

#include "base/check.h"

size_t choices_memory(const struct core_options *options) {
    return core_running_cap(options) * sizeof(struct choices) + ARENA_ALIGN;
}

void choices_init(struct choices_store *store, const struct core_options *options,
                  struct arena *memory) {
    store->choices = arena_calloc(memory, core_running_cap(options), sizeof *store->choices);
    CHECK(store->choices != NULL);
    pool_init(&store->pool, core_running_cap(options));
}

void choices_deinit(struct choices_store *store) {
    pool_deinit(&store->pool);
}

struct choices *choices_open(struct choices_store *store, uint32_t count, uint32_t first_slot) {
    CHECK(count > 1 && count <= CHOICES_MAX);
    struct pool_id id = pool_acquire(&store->pool);
    CHECK(id.slot != POOL_NO_SLOT);
    struct choices *choices = &store->choices[id.slot];
    *choices = (struct choices){.id = id, .count = count};
    for (uint32_t i = 0; i < count; i++)
        choices->member[i] = CHOICES_NOBODY;
    choices_join(choices, first_slot);
    return choices;
}

void choices_close(struct choices_store *store, const struct choices *choices) {
    CHECK(choices_sibling(choices, CHOICES_NOBODY) == CHOICES_NOBODY);
    pool_release(&store->pool, choices->id);
}

uint32_t choices_join(struct choices *choices, uint32_t slot) {
    CHECK(choices->joined_count < choices->count);
    choices->member[choices->joined_count] = slot;
    return choices->joined_count++;
}

void choices_leave(struct choices *choices, uint32_t idx, const struct choice_summary *summary,
                   int64_t first_token_ns) {
    CHECK(choices->member[idx] != CHOICES_NOBODY && choices->joined_count == choices->count);
    choices->member[idx] = CHOICES_NOBODY;
    choices->summary[idx] = *summary;
    if (idx == 0) choices->first_token_ns = first_token_ns;
}

uint32_t choices_sibling(const struct choices *choices, uint32_t idx) {
    for (uint32_t i = 0; i < choices->count; i++)
        if (i != idx && choices->member[i] != CHOICES_NOBODY) return choices->member[i];
    return CHOICES_NOBODY;
}

void choices_summarize(const struct choices *choices, struct generate_summary *summary) {
    summary->finish_reason = choices->summary[0].finish_reason;
    summary->cached_tokens = choices->summary[0].cached_tokens;
    summary->completion_tokens = summary->freed_tokens = 0;
    summary->choice_count = choices->count;
    for (uint32_t i = 0; i < choices->count; i++) {
        summary->choice[i] = choices->summary[i];
        summary->completion_tokens += choices->summary[i].completion_tokens;
        summary->freed_tokens += choices->summary[i].freed_tokens;
    }
}
