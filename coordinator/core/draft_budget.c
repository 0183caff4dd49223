#include "draft_budget.h"

/* The items by the value of their next node. */
struct queue {
    struct draft_budget_item *item;
    uint32_t *heap; /* indices of items that have a next node */
    uint32_t count;
};

/* A seeded tree's order is not by weight: a node counts as no more than those before it, or the
 * heap would ask for it without them. */
static double value_of(const struct draft_budget_item *item) {
    const struct draft_tree *tree = item->tree;
    double value = tree->node[item->node_count].weight;
    if (tree->seed_count > 0 && item->node_count >= tree->seed_count) {
        double last = tree->node[tree->seed_count - 1].weight;
        if (last < value) value = last;
    }
    return value;
}

static bool has_next(const struct draft_budget_item *item) {
    return item->node_count < item->node_max && item->node_count < item->tree->count;
}

static bool is_before(const struct queue *queue, uint32_t a, uint32_t b) {
    double of_a = value_of(&queue->item[a]), of_b = value_of(&queue->item[b]);
    return of_a > of_b || (of_a == of_b && a < b);
}

static void sink(struct queue *queue, uint32_t at) {
    uint32_t idx = queue->heap[at];
    for (uint32_t child; (child = 2 * at + 1) < queue->count; at = child) {
        if (child + 1 < queue->count &&
            is_before(queue, queue->heap[child + 1], queue->heap[child]))
            child++;
        if (!is_before(queue, queue->heap[child], idx)) break;
        queue->heap[at] = queue->heap[child];
    }
    queue->heap[at] = idx;
}

static void begin(struct queue *queue, uint32_t item_count) {
    queue->count = 0;
    for (uint32_t i = 0; i < item_count; i++) {
        queue->item[i].node_count = 0;
        if (has_next(&queue->item[i])) queue->heap[queue->count++] = i;
    }
    for (uint32_t at = queue->count / 2; at > 0; at--)
        sink(queue, at - 1);
}

/* One node more, of the item where it is worth most. */
static struct draft_budget_item *take(struct queue *queue) {
    struct draft_budget_item *item = &queue->item[queue->heap[0]];
    item->node_count++;
    if (!has_next(item)) queue->heap[0] = queue->heap[--queue->count];
    if (queue->count > 0) sink(queue, 0);
    return item;
}

struct draft_choice draft_budget_choose(const struct draft_budget *budget,
                                        struct draft_budget_item *item, uint32_t item_count,
                                        uint32_t *heap) {
    struct queue queue = {.item = item, .heap = heap};
    struct draft_choice best = {
        .tokens = item_count,
        .ns = cost_model_of_drawing(budget->cost, budget->step),
        .plain_tokens = item_count,
    };
    best.plain_ns = best.ns;
    begin(&queue, item_count);
    struct cost_model_step step = budget->step;
    double tokens = item_count;
    for (uint32_t rows = 1; best.plain_ns > 0 && rows <= budget->row_max && queue.count > 0;
         rows++) {
        const struct draft_budget_item *taken = take(&queue);
        tokens += taken->tree->node[taken->node_count - 1].weight;
        step.rows++;
        step.looks += taken->committed + taken->node_count + 1;
        double ns = cost_model_of_drawing(budget->cost, step) + (double)budget->overhead_ns;
        if (tokens * best.ns > best.tokens * ns) {
            best.row_count = rows;
            best.tokens = tokens;
            best.ns = ns;
        }
    }
    begin(&queue, item_count);
    for (uint32_t rows = 0; rows < best.row_count; rows++)
        take(&queue);
    return best;
}
