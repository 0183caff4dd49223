#include "draft_source_block.h"

#include <math.h>

#include "base/check.h"
#include "draft_heap.h"

/* Classes: positions on the spine, which are what the block was trained for, and those behind a
 * token that was not the likeliest. */
#define OFF_SPINE (DRAFT_CLASSES / 2)

void draft_block_take(struct draft_block *block, const struct step_result *result,
                      const struct result_sequence *sequence) {
    CHECK(sequence->draft_count <= DRAFT_LEN_MAX && result->draft_top <= DRAFT_TOP_MAX);
    block->len = sequence->draft_count;
    block->top = result->draft_top;
    for (uint32_t i = 0; i < block->len; i++) {
        uint32_t position = sequence->draft_begin + i;
        const struct draft_candidate *candidate = result->candidate + (size_t)position * block->top;
        for (uint32_t rank = 0; rank < block->top; rank++) {
            float log_probability = candidate[rank].logit - result->draft_lse[position];
            block->token[i][rank] = candidate[rank].token;
            block->probability[i][rank] = log_probability < 0 ? expf(log_probability) : 1;
        }
    }
}

/* One search. */
struct search {
    const struct draft_block *block;
    const struct draft_calibration *calibration;
    const struct draft_bounds *bounds;
    uint32_t depth_max;
    struct draft_tree *out;
    struct draft_heap heap;
};

static uint8_t class_of(uint32_t depth, bool on_spine) {
    uint32_t place = depth <= OFF_SPINE ? depth - 1 : OFF_SPINE - 1;
    return (uint8_t)(on_spine ? place : OFF_SPINE + place);
}

static double weight_of(const struct search *search, uint32_t parent) {
    return parent > 0 ? search->out->node[parent - 1].weight : 1;
}

/* The token of this rank behind a row, as an entry. False: there is none. on_spine: the row is. */
static bool find(const struct search *search, uint32_t parent, uint32_t depth, uint32_t rank,
                 bool on_spine, struct draft_heap_entry *entry_out) {
    if (depth > search->depth_max || rank >= search->block->top) return false;
    double factor = draft_calibration_factor(search->calibration, DRAFT_BLOCK,
                                             class_of(depth, on_spine));
    double probability = (double)search->block->probability[depth - 1][rank] * factor;
    *entry_out = (struct draft_heap_entry){
        .weight = weight_of(search, parent) * (probability < 1 ? probability : 1),
        .rank = rank,
        .parent = (uint8_t)parent,
        .depth = (uint8_t)depth,
        .on_spine = on_spine,
    };
    return entry_out->weight > 0;
}

static void offer(struct search *search, uint32_t parent, uint32_t depth, uint32_t rank,
                  bool on_spine) {
    struct draft_heap_entry entry;
    if (find(search, parent, depth, rank, on_spine, &entry)) draft_heap_push(&search->heap, &entry);
}

/* The row it gets. */
static uint32_t add(struct search *search, const struct draft_heap_entry *entry) {
    struct draft_tree *out = search->out;
    out->node[out->count++] = (struct draft_node){
        .weight = entry->weight,
        .stated = search->block->probability[entry->depth - 1][entry->rank],
        .token = search->block->token[entry->depth - 1][entry->rank],
        .parent = entry->parent,
        .depth = entry->depth,
        .source = DRAFT_BLOCK,
        .class = class_of(entry->depth, entry->on_spine),
    };
    return out->count;
}

static bool ends_at(const struct search *search, uint32_t row) {
    return row > 0 && draft_bounds_is_stop(search->bounds, search->out->node[row - 1].token);
}

/* The likeliest of each position; their siblings are on offer then, and what follows the last. */
static void seed(struct search *search) {
    struct draft_tree *out = search->out;
    struct draft_heap_entry entry;
    uint32_t row = 0;
    while (out->count < search->bounds->node_max && !ends_at(search, row) &&
           find(search, row, row + 1, 0, true, &entry)) {
        row = add(search, &entry);
        offer(search, entry.parent, entry.depth, 1, true);
    }
    out->seed_count = out->count;
}

void draft_block_guess(const struct draft_block *block, const struct draft_calibration *calibration,
                       const struct draft_bounds *bounds, bool seed_chain, struct draft_tree *out) {
    CHECK(bounds->node_max <= DRAFT_NODES_MAX);
    struct search search = {
        .block = block,
        .calibration = calibration,
        .bounds = bounds,
        .depth_max = block->len < bounds->depth_max ? block->len : bounds->depth_max,
        .out = out,
    };
    out->count = out->seed_count = 0;
    if (seed_chain)
        seed(&search);
    else
        offer(&search, 0, 1, 0, true);
    struct draft_heap_entry entry;
    while (out->count < bounds->node_max && draft_heap_pop(&search.heap, &entry)) {
        uint32_t row = add(&search, &entry);
        offer(&search, entry.parent, entry.depth, entry.rank + 1, entry.on_spine);
        if (!ends_at(&search, row))
            offer(&search, row, entry.depth + 1, 0, entry.on_spine && entry.rank == 0);
    }
}
