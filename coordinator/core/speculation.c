#include "speculation.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"

#define OWN_TOK_MAX    32768u     /* of a request's tokens, the latest are searched */
#define OWN_TOK_ALL    (1u << 21) /* of all requests together */
#define PROMISE_TOKENS 0.5        /* expected behind the token in flight: worth waiting for it */
#define REST_MAX       63u
#define GAP_MOST       4           /* of what was known: a gap counts for no more, but */
#define GAP_LEAST_NS   1e5         /* for so much */
#define GAP_FADE       (1.0 / 256) /* a step, while it is not measured */
#define NEWEST         0.125       /* weight of the newest measurement */

static bool uses_suffix(const struct core_options *options) {
    enum speculative_algorithm algorithm = options->speculative_algorithm;
    return algorithm == SPECULATE_SUFFIX || algorithm == SPECULATE_AUTO;
}

static bool uses_block(const struct core_options *options) {
    enum speculative_algorithm algorithm = options->speculative_algorithm;
    return algorithm == SPECULATE_DFLASH || algorithm == SPECULATE_AUTO;
}

static uint32_t power_of_two(uint64_t at_least, uint32_t at_most) {
    uint32_t power = 64;
    while (power < at_least && power < at_most)
        power *= 2;
    return power;
}

static uint32_t own_capacity(const struct core_options *options) {
    uint32_t each = OWN_TOK_ALL / core_running_cap(options);
    uint32_t most = OWN_TOK_MAX;
    while (most > each && most > 64)
        most /= 2;
    return power_of_two(options->context_len, most);
}

static uint32_t shared_capacity(const struct core_options *options) {
    return power_of_two(options->speculative_history_tok, CONTEXT_TOK_MAX);
}

size_t speculation_memory(const struct core_options *options) {
    if (options->speculative_algorithm == SPECULATE_NONE) return 0;
    size_t slots = core_running_cap(options);
    size_t histories = uses_suffix(options) ? slots * draft_suffix_memory(own_capacity(options)) +
                                                  draft_suffix_memory(shared_capacity(options))
                                            : 0;
    return histories +
           slots * (sizeof(struct speculation_slot) + sizeof(struct draft_budget_item) +
                    2 * sizeof(uint32_t)) +
           (size_t)4 * ARENA_ALIGN;
}

void speculation_init(struct speculation *speculation, const struct core_options *options,
                      struct arena *memory) {
    *speculation = (struct speculation){.options = options};
    if (options->speculative_algorithm == SPECULATE_NONE) return;
    size_t slots = core_running_cap(options);
    speculation->slot = arena_calloc(memory, slots, sizeof *speculation->slot);
    speculation->item = arena_calloc(memory, slots, sizeof *speculation->item);
    speculation->item_slot = arena_calloc(memory, slots, sizeof *speculation->item_slot);
    speculation->heap = arena_calloc(memory, slots, sizeof *speculation->heap);
    CHECK(speculation->slot && speculation->item && speculation->item_slot && speculation->heap);
    draft_calibration_init(&speculation->calibration);
    draft_trial_init(&speculation->trial);
    if (!uses_suffix(options)) return;
    draft_suffix_init(&speculation->shared, shared_capacity(options), memory);
    for (uint32_t slot = 0; slot < slots; slot++)
        draft_suffix_init(&speculation->slot[slot].own, own_capacity(options), memory);
}

static bool is_on(const struct speculation *speculation) {
    return speculation->slot != NULL;
}

static struct speculation_slot *slot_at(struct speculation *speculation, uint32_t slot) {
    CHECK(slot < core_running_cap(speculation->options));
    return &speculation->slot[slot];
}

uint32_t speculation_history_tok(const struct speculation *speculation) {
    return speculation_learns(speculation) ? own_capacity(speculation->options) : 0;
}

void speculation_open(struct speculation *speculation, uint32_t slot, uint64_t salt,
                      const uint32_t *token, uint32_t token_count) {
    if (!is_on(speculation)) return;
    struct speculation_slot *state = slot_at(speculation, slot);
    state->block.len = 0;
    state->node_count = state->rest = state->rest_next = 0;
    state->draft_asked = false;
    state->mark = (uint32_t)(hash_mix(salt) >> 32);
    if (!uses_suffix(speculation->options)) return;
    draft_suffix_clear(&state->own);
    draft_suffix_append(&state->own, 0, token, token_count);
}

void speculation_follow(struct speculation *speculation, uint32_t slot, uint32_t token) {
    if (speculation_learns(speculation))
        draft_suffix_append(&slot_at(speculation, slot)->own, 0, &token, 1);
}

bool speculation_learns(const struct speculation *speculation) {
    return is_on(speculation) && uses_suffix(speculation->options);
}

void speculation_learn(struct speculation *speculation, uint32_t slot, const uint32_t *token,
                       uint32_t token_count) {
    draft_suffix_separate(&speculation->shared);
    draft_suffix_append(&speculation->shared, slot_at(speculation, slot)->mark, token, token_count);
}

void speculation_close(struct speculation *speculation, uint32_t slot) {
    if (!is_on(speculation)) return;
    struct speculation_slot *state = slot_at(speculation, slot);
    state->block.len = state->node_count = 0;
    state->draft_asked = false;
}

/* ============================== planning ====================================================== */

static void guess(struct speculation *speculation, struct speculation_slot *state,
                  const struct draft_bounds *bounds) {
    struct draft_tree tree[DRAFT_SOURCE_COUNT];
    const struct draft_tree *from[DRAFT_SOURCE_COUNT];
    uint32_t count = 0;
    const struct core_options *options = speculation->options;
    if (state->block.len > 0) {
        draft_block_guess(&state->block, &speculation->calibration, bounds,
                          options->speculative_seed_chain, &tree[count]);
        from[count] = &tree[count], count++;
    }
    if (uses_suffix(speculation->options)) {
        uint32_t end[DRAFT_SUFFIX_MATCH_MAX];
        uint32_t end_count = draft_suffix_end(&state->own, end);
        draft_suffix_guess(&state->own, DRAFT_OWN, 0, end, end_count, &speculation->calibration,
                           bounds, &tree[count]);
        from[count] = &tree[count], count++;
        draft_suffix_guess(&speculation->shared, DRAFT_SHARED, state->mark, end, end_count,
                           &speculation->calibration, bounds, &tree[count]);
        from[count] = &tree[count], count++;
    }
    draft_tree_merge(from, count, bounds->node_max, &state->tree);
}

/* Weights of what follows the first token guessed. */
static double promise(const struct draft_tree *tree) {
    double tokens = 0;
    for (uint32_t i = 0; i < tree->count; i++)
        if (tree->node[i].depth > 1) tokens += tree->node[i].weight;
    return tokens;
}

bool speculation_waits(struct speculation *speculation, uint32_t slot,
                       const struct draft_bounds *bounds) {
    if (!is_on(speculation)) return false;
    struct speculation_slot *state = slot_at(speculation, slot);
    if (state->node_count > 0 || state->draft_asked) return true;
    if (state->rest > 0 || !uses_suffix(speculation->options)) return false;
    guess(speculation, state, bounds);
    if (speculation->options->speculative_fixed) return state->tree.count > 0;
    return promise(&state->tree) >= PROMISE_TOKENS;
}

void speculation_begin(struct speculation *speculation) {
    speculation->item_count = 0;
}

void speculation_guess(struct speculation *speculation, uint32_t slot,
                       const struct draft_bounds *bounds, uint32_t committed) {
    if (!is_on(speculation)) return;
    struct speculation_slot *state = slot_at(speculation, slot);
    guess(speculation, state, bounds);
    speculation->item_slot[speculation->item_count] = slot;
    speculation->item[speculation->item_count++] = (struct draft_budget_item){
        .tree = &state->tree,
        .node_max = state->tree.count,
        .committed = committed,
    };
}

/* All there are guesses for, in the order of sequences. */
static struct draft_choice take_all(struct speculation *speculation, uint32_t row_max) {
    struct draft_choice choice = {.tokens = speculation->item_count,
                                  .plain_tokens = speculation->item_count};
    for (uint32_t i = 0; i < speculation->item_count; i++) {
        struct draft_budget_item *item = &speculation->item[i];
        uint32_t room = row_max - choice.row_count;
        item->node_count = item->node_max < room ? item->node_max : room;
        choice.row_count += item->node_count;
        for (uint32_t node = 0; node < item->node_count; node++)
            choice.tokens += item->tree->node[node].weight;
    }
    return choice;
}

static void take_choice(struct speculation *speculation, uint32_t idx) {
    struct speculation_slot *state = slot_at(speculation, speculation->item_slot[idx]);
    state->node_count = speculation->item[idx].node_count;
    if (state->node_count > 0) {
        state->rest = state->rest_next = 0;
    } else if (state->rest == 0 && state->tree.count > 0) {
        state->rest = state->rest_next;
        state->rest_next = state->rest_next < REST_MAX ? 2 * state->rest_next + 1 : REST_MAX;
    }
}

/* What of a choice the drafter's guesses bring and cost. Without them the others stay as they are,
 * those behind a drafter's guess too: a step that is a little too good. */
static struct draft_trial_step step_of_drafts(const struct speculation *speculation,
                                              const struct draft_budget *budget) {
    const struct draft_choice *choice = &speculation->choice;
    struct cost_model_step plain = budget->step;
    struct draft_trial_step step = {.tokens = choice->tokens,
                                    .ns = choice->ns +
                                          speculation->draft_ns * speculation->item_count,
                                    .plain_tokens = choice->tokens};
    for (uint32_t i = 0; i < speculation->item_count; i++) {
        const struct draft_budget_item *item = &speculation->item[i];
        for (uint32_t node = 0; node < item->node_count; node++) {
            bool is_drafted = item->tree->node[node].source == DRAFT_BLOCK;
            if (is_drafted) step.plain_tokens -= item->tree->node[node].weight;
            plain.rows += !is_drafted;
            plain.looks += is_drafted ? 0 : item->committed + node + 2;
        }
    }
    step.plain_ns = cost_model_of_drawing(budget->cost, plain);
    double wait_ns = (double)budget->overhead_ns;
    if (plain.rows > budget->step.rows) step.plain_ns += wait_ns;
    if (choice->row_count == 0) step.ns += wait_ns; /* for the draft */
    return step;
}

static bool has_draft(const struct speculation *speculation) {
    for (uint32_t i = 0; i < speculation->item_count; i++)
        if (speculation->slot[speculation->item_slot[i]].block.len > 0) return true;
    return false;
}

static struct draft_choice choose(struct speculation *speculation,
                                  const struct draft_budget *budget) {
    return draft_budget_choose(budget, speculation->item, speculation->item_count,
                               speculation->heap);
}

void speculation_choose(struct speculation *speculation, const struct cost_model *cost,
                        struct cost_model_step step, uint32_t row_max) {
    if (!is_on(speculation) || speculation->item_count == 0) return;
    struct draft_budget budget = {
        .cost = cost,
        .step = step,
        .row_max = row_max,
        .overhead_ns = (uint64_t)speculation->gap_ns,
    };
    bool fixed = speculation->options->speculative_fixed;
    speculation->choice = fixed ? take_all(speculation, row_max) : choose(speculation, &budget);
    speculation->choice_count = speculation->item_count;
    if (!fixed && has_draft(speculation)) {
        struct draft_trial_step drafted = step_of_drafts(speculation, &budget);
        draft_trial_take(&speculation->trial, &drafted);
    }
    for (uint32_t i = 0; i < speculation->item_count; i++)
        take_choice(speculation, i);
}

uint32_t speculation_fit(struct speculation *speculation, uint32_t slot, uint32_t room) {
    if (!is_on(speculation)) return 0;
    struct speculation_slot *state = slot_at(speculation, slot);
    if (state->node_count > room) state->node_count = room;
    return state->node_count;
}

void speculation_rows(const struct speculation *speculation, uint32_t slot, uint32_t root,
                      uint32_t *token_out, uint32_t *parent_out) {
    const struct speculation_slot *state = &speculation->slot[slot];
    draft_tree_rows(&state->tree, state->node_count, root, token_out, parent_out);
}

uint32_t speculation_draft_len(struct speculation *speculation, uint32_t slot, uint32_t room) {
    if (!is_on(speculation)) return 0;
    struct speculation_slot *state = slot_at(speculation, slot);
    if (state->rest > 0) state->rest--;
    bool wants = speculation->options->speculative_fixed || draft_trial_is_on(&speculation->trial);
    if (!wants || !uses_block(speculation->options) || speculation->draft_len > room) return 0;
    if (speculation->draft_len > 0) state->draft_asked = true;
    return speculation->draft_len;
}

/* ============================== results ======================================================= */

void speculation_take_draft(struct speculation *speculation, uint32_t slot,
                            const struct step_result *result,
                            const struct result_sequence *sequence) {
    if (is_on(speculation)) draft_block_take(&slot_at(speculation, slot)->block, result, sequence);
}

static void count_walk(struct speculation_counts *counts, const struct tree_walk *walk,
                       uint32_t node_count) {
    counts->trees++;
    counts->guesses += node_count;
    for (uint32_t depth = 1; depth < walk->row_count; depth++)
        counts->accepted[(depth < SPECULATION_DEPTHS ? depth : SPECULATION_DEPTHS) - 1]++;
}

/* A guess was tested where the walk has come to its parent. */
static void learn(struct speculation *speculation, const struct speculation_slot *state,
                  const struct tree_walk *walk) {
    uint64_t path = 0;
    for (uint32_t i = 0; i < walk->row_count; i++)
        path |= UINT64_C(1) << walk->row[i];
    for (uint32_t i = 0; i < state->node_count; i++) {
        const struct draft_node *node = &state->tree.node[i];
        bool hit = (path >> (i + 1) & 1) != 0;
        speculation->counts.source_guesses[node->source]++;
        speculation->counts.source_accepted[node->source] += hit;
        if (path >> node->parent & 1) draft_calibration_take(&speculation->calibration, node, hit);
    }
}

void speculation_verified(struct speculation *speculation, uint32_t slot,
                          const struct tree_walk *walk, bool drafted) {
    if (!is_on(speculation)) return;
    struct speculation_slot *state = slot_at(speculation, slot);
    if (walk) {
        count_walk(&speculation->counts, walk, state->node_count);
        learn(speculation, state, walk);
    }
    state->node_count = 0;
    if (drafted)
        state->draft_asked = false;
    else
        state->block.len = 0; /* it was behind a token that is past */
}

void speculation_measure(struct speculation *speculation, uint64_t draft_ns, uint32_t draft_count,
                         int64_t gap_ns) {
    if (!is_on(speculation)) return;
    draft_calibration_fade(&speculation->calibration);
    draft_trial_pass(&speculation->trial);
    double most_ns = GAP_MOST * speculation->gap_ns + GAP_LEAST_NS;
    if (gap_ns >= 0)
        speculation->gap_ns += NEWEST * (((double)gap_ns < most_ns ? (double)gap_ns : most_ns) -
                                         speculation->gap_ns);
    else
        speculation->gap_ns *= 1 - GAP_FADE;
    if (draft_count == 0) return;
    double newest = speculation->draft_ns > 0 ? NEWEST : 1;
    speculation->draft_ns += newest * ((double)draft_ns / draft_count - speculation->draft_ns);
}

static const char *algorithm_word(enum speculative_algorithm algorithm) {
    switch (algorithm) {
    case SPECULATE_NONE: break;
    case SPECULATE_SUFFIX: return "suffix";
    case SPECULATE_DFLASH: return "dflash";
    case SPECULATE_AUTO: return "auto";
    }
    return "none";
}

const char *speculation_reason(struct speculation *speculation) {
    const struct core_options *options = speculation->options;
    const struct draft_choice *choice = &speculation->choice;
    int used = snprintf(speculation->reason, sizeof speculation->reason, "%s",
                        algorithm_word(options->speculative_algorithm));
    char *out = speculation->reason + used;
    size_t room = sizeof speculation->reason - (size_t)used;
    if (!is_on(speculation)) return speculation->reason;
    if (speculation->choice_count == 0) {
        snprintf(out, room, ": nothing was planned yet");
    } else if (options->speculative_fixed) {
        snprintf(out, room,
                 ": %u guesses for %u sequences, as many as there are up to %u rows a tree",
                 choice->row_count, speculation->choice_count, options->speculative_tree_rows);
    } else if (choice->plain_ns == 0) {
        snprintf(out, room, ": no guesses before enough steps were measured");
    } else {
        snprintf(out, room,
                 ": %u guesses for %u sequences: %.2f tokens in %.2f ms expected, without %.2f in "
                 "%.2f ms",
                 choice->row_count, speculation->choice_count, choice->tokens, choice->ns / 1e6,
                 choice->plain_tokens, choice->plain_ns / 1e6);
    }
    return speculation->reason;
}
